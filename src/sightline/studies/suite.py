"""Suite files and their cells: recipe, images and seed of each run, and a key that identifies it."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline import __version__
from sightline.data.images import check_images
from sightline.data.manifest import Manifest, hold_out_classes, read_manifest
from sightline.data.readers.glyphs import write_glyphs
from sightline.data.readers.icons import write_icons
from sightline.data.readers.package_sets import write_emoji
from sightline.data.readers.trademarks.reader import write_trademarks
from sightline.errors import InputError, choose, names, nearest, raise_faults
from sightline.evaluation.metrics import read_metric_name
from sightline.evaluation.protocol import EACH_CODE
from sightline.files import read_toml, replaced
from sightline.labels.code_column import code_lists, deepest, hold_out_codes
from sightline.losses import loss_options
from sightline.studies.papers import published_value
from sightline.training.account import loss_settings
from sightline.training.prepare import with_recipe_codes
from sightline.training.recipe import LossSection, Recipe, describe_faults, read_recipe

MOST_LEVELS = 127  # of labels; the actual number is checked with the manifest
WITHOUT_EFFECT: Any = {
    "data": {"manifest", "n_workers", "check_images"},
    "loggers": True,
    "checkpoint_every": True,
    "keep_every": True,
}
SOURCES = Path("data")  # where data sets are found, or created, if no manifest is given
MAKERS: dict[str, Callable[[Path], Path]] = {
    "emoji": write_emoji,
    "glyphs": write_glyphs,
    "icons": write_icons,
    "trademarks": write_trademarks,
}


class SuitePart(BaseModel):
    """A part of a suite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSet(SuitePart):
    """A set of images to train and measure on.

    Attributes:
        name: used in tables, file names and ``--data``.
        val_fraction: share of training classes, or codes, to hold out as split ``val``, the same in all runs; None: use the
            manifest.
    """

    name: str
    val_fraction: float | None = Field(default=None, gt=0, lt=1)


class Row(SuitePart):
    """One recipe to compare, run with every seed.

    Attributes:
        name: used in tables and ``--only``.
        set: overrides of the suite's recipe, such as ``loss.name=sup_ap``.
        trained: False measures the encoder before training, once.
    """

    name: str
    set: tuple[str, ...] = ()
    trained: bool = True


class Sweep(SuitePart):
    """A row for each value of one hyper-parameter, drawn as one line of a figure.

    Attributes:
        name: of the line; also part of the row names.
        key: recipe key, such as ``loss.weight``.
        values: one per row.
        label: of the x axis.
        figure: sweeps with the same figure share a picture.
        metric: of the y axis.
        log: whether the x axis is logarithmic.
        set: further overrides.
    """

    name: str
    key: str
    values: tuple[float, ...] = Field(min_length=1)
    label: str
    figure: str
    metric: str
    log: bool = False
    set: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """A row for each value."""
        return [
            Row(name=f"{self.name}, {self.label} {value:g}", set=(*self.set, f"{self.key}={value:g}"))
            for value in self.values
        ]


class PaperTable(SuitePart):
    """A published table to compare with.

    Attributes:
        table: its name in :mod:`sightline.studies.papers`, such as ``tpami_table01``.
        title: its usual name.
        datasets: data sets of the paper, each a column for each metric.
        metrics: our metric names, and those of the table.
        rows: our row names, and those of the table.
    """

    table: str
    title: str
    datasets: tuple[str, ...] = Field(min_length=1)
    metrics: dict[str, str] = Field(min_length=1)
    rows: dict[str, str] = Field(min_length=1)


class Question(SuitePart):
    """Is one row better than the best of others? The page answers by runs paired by seed, over seeds and classes.

    Attributes:
        better: the row.
        than: the others; the best of them by its mean counts.
        metric: one of the suite's.
        level: p-value below which the answer is yes.
    """

    better: str
    than: tuple[str, ...] = Field(min_length=1)
    metric: str
    level: float = Field(default=0.05, gt=0, lt=1)


class Suite(SuitePart):
    """A grid of runs on one budget.

    Attributes:
        title: of its page.
        about: the question.
        recipe: a shipped recipe, or a file beside the suite.
        set: overrides for all rows: the budget.
        data: data sets.
        seeds: random seeds.
        split: the split to measure; ``val`` to choose hyper-parameters.
        metrics: columns of the tables.
        baseline: the row that others are tested against.
        threads: per run; the last bits of a sum depend on them, so they are part of the budget.
        rows: recipes to compare.
        sweeps: more rows, drawn as curves.
        published: tables of papers to compare with.
        questions: what the page answers.
    """

    title: str
    about: str = ""
    recipe: str
    set: tuple[str, ...] = ()
    data: tuple[DataSet, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    split: Literal["val", "test"] = "test"
    metrics: tuple[str, ...] = Field(min_length=1)
    baseline: str
    threads: int = Field(default=1, ge=1)
    rows: tuple[Row, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    published: tuple[PaperTable, ...] = ()
    questions: tuple[Question, ...] = ()

    @cached_property
    def all_rows(self) -> list[Row]:
        """Rows and points of sweeps, in the order of the file."""
        return [*self.rows, *(row for sweep in self.sweeps for row in sweep.rows())]

    @property
    def all_metrics(self) -> list[str]:
        """The metrics of tables, figures, questions and published tables."""
        published = (metric for table in self.published for metric in table.metrics)
        drawn = [*(sweep.metric for sweep in self.sweeps), *(question.metric for question in self.questions)]
        return list(dict.fromkeys([*self.metrics, *drawn, *published]))


def read_suite(file: Path) -> Suite:
    """Read a suite and check it without its images; all faults are raised together."""
    try:
        suite = Suite.model_validate(read_toml(file))
    except ValidationError as error:
        raise InputError(f"{file}: {describe_faults(error, Suite)}") from error
    raise_faults(file, _faults(suite))
    beside = file.parent / suite.recipe
    return suite.model_copy(update={"recipe": str(beside)}) if beside.suffix == ".toml" else suite


def _faults(suite: Suite) -> list[str]:
    rows = [row.name for row in suite.all_rows]
    named = {"row": rows, "data set": [data.name for data in suite.data], "seed": [str(seed) for seed in suite.seeds]}
    counts = {what: Counter(given) for what, given in named.items()}
    faults = [
        f"{what} {name!r} must be unique, found {n} times" for what in counts for name, n in counts[what].items() if n > 1
    ]
    faults += [
        f"row {row.name!r} is not trained and cannot have `set`; remove one of the two"
        for row in suite.rows
        if row.set and not row.trained
    ]
    known = dict.fromkeys(rows)
    checks: list[Callable[[], object]] = [partial(choose, known, suite.baseline, "row as baseline")]
    checks += [partial(_check_metric, metric, MOST_LEVELS, True) for metric in suite.all_metrics]
    asked = {row for question in suite.questions for row in (question.better, *question.than)}
    checks += [partial(choose, known, row, "row of a question") for row in sorted(asked)]
    for table in suite.published:
        checks += [partial(choose, known, row, f"row of published {table.table}") for row in table.rows]
        cells = product(table.datasets, table.rows.values(), table.metrics.values())
        checks += [partial(published_value, table.table, *cell) for cell in cells]
    for check in checks:
        try:
            check()
        except InputError as error:
            faults.append(str(error))
    return list(dict.fromkeys(faults))


def _check_metric(name: str, n_levels: int, is_coded: bool) -> None:
    if name != EACH_CODE or not is_coded:
        read_metric_name(name, n_levels)


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a suite.

    Attributes:
        row: its row.
        data: name of the data set.
        seed: random seed.
        recipe: every value, seed and manifest included.
        split: the split to measure.
        metrics: metrics with a mean for each class.
        threads: threads of the run.
        key: a hash of everything that affects its numbers; row name and metrics do not.
    """

    row: Row
    data: str
    seed: int
    recipe: Recipe
    split: str
    metrics: tuple[str, ...]
    threads: int
    key: str

    @property
    def title(self) -> str:
        """Row, data set and seed."""
        return f"{self.row.name}, {self.data}, seed {self.seed}"

    def describe(self) -> dict[str, Any]:
        """What its result file says about it: every option of recipe and loss, with defaults; equal for rows of one run."""
        loss = self.recipe.loss
        return {
            "trained": self.row.trained,
            "key": self.key,
            "split": self.split,
            "threads": self.threads,
            "recipe": json.loads(self.recipe.model_dump_json()),
            "loss": loss_settings(loss.name, loss.options()),
        }

    def agrees(self, about: Mapping[str, Any]) -> bool:
        """Is a result of this recipe, by the values that both versions of Sightline know?"""
        ours = json.loads(self.recipe.model_dump_json(exclude=WITHOUT_EFFECT))
        return _same_where_shared({"key": self.key, "recipe": ours, "loss": self.describe()["loss"]}, about)


def _same_where_shared(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same_where_shared(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return bool(ours == theirs)


def slug(name: str) -> str:
    """A name without characters that do not belong in a file name.

    Example:
        >>> slug("SupRank + L_DG*, λ 0.1")
        'SupRank-L_DG-0.1'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") or "row"


def cells_of(
    suite: Suite,
    given: Mapping[str, Path],
    folder: Path,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    check: bool = True,
    show_progress: bool = False,
) -> list[Cell]:
    """The cells of a suite, by data set, then by seed, so that a stopped suite has all rows of some seeds.

    Args:
        suite: the suite.
        given: manifests by data set; others are found in ``data/`` or created.
        folder: where manifests with held-out classes are written.
        only: names of rows; empty for all.
        seeds: random seeds; empty for all.
        check: create missing data sets and decode every image once, before the first run.
        show_progress: draw a progress bar while images are checked.
    """
    asked = (
        (only, [row.name for row in suite.all_rows], "row"),
        (map(str, seeds), map(str, suite.seeds), "seed of the suite"),
        (given, [data.name for data in suite.data], "data set of --data"),
    )
    for wanted, known, what in asked:
        table = dict.fromkeys(known)
        for name in wanted:
            choose(table, name, what)
    rows = [row for row in suite.all_rows if not only or row.name in only]
    # Recipes are checked before images are created and decoded.
    recipes = [recipe_of(suite, row, Path("manifest.csv"), suite.seeds[0]) for row in rows]
    if len(columns := {recipe.data.codes for recipe in recipes}) > 1:
        raise InputError(f"data.codes must be the same in all rows of a suite, found {names(map(str, columns))}")
    runs = [(seed, row) for seed in suite.seeds for row in rows if not seeds or seed in seeds]
    cells = []
    for data in suite.data:
        manifest = suite_manifest(find_manifest(data, given, make=check), recipes[0])
        if check:
            check_images(manifest, show_progress)
        cells += _cells_on(suite, data, manifest, folder, runs, recipes[0].data.codes)
    return cells


def suite_manifest(file: Path, recipe: Recipe) -> Manifest:
    """The images of a suite, with codes as its recipe asks for them, or with labels."""
    return with_recipe_codes(read_manifest(file, labelled=recipe.data.codes is None), recipe)


def _cells_on(
    suite: Suite, data: DataSet, manifest: Manifest, folder: Path, runs: Sequence[tuple[int, Row]], codes: str | None
) -> list[Cell]:
    """The cells of one data set; rows without training have one cell."""
    n_levels = manifest.n_levels if codes is None else deepest(code_lists(manifest, codes))
    for metric in suite.all_metrics:
        _check_metric(metric, n_levels, codes is not None)
    images = read_images(data, manifest, folder, codes)
    images.split(suite.split)  # raises here, not after hours of training
    fingerprint = _fingerprint(images)
    return [
        _cell(suite, data, row, seed, images.source, fingerprint)
        for seed, row in runs
        if row.trained or seed == suite.seeds[0]
    ]


def _cell(suite: Suite, data: DataSet, row: Row, seed: int, manifest: Path, fingerprint: str) -> Cell:
    recipe = recipe_of(suite, row, manifest, seed)
    # Without defaults: a new option in a later version does not change the key; agrees() finds changed defaults.
    chosen = json.loads(recipe.model_dump_json(exclude=WITHOUT_EFFECT, exclude_defaults=True))
    decisive = {
        "version": __version__,
        "recipe": chosen | {"loss": _chosen(recipe.loss)},
        "trained": row.trained,
        "threads": suite.threads,
        "images": fingerprint,
        "split": suite.split,
    }
    return Cell(row, data.name, seed, recipe, suite.split, tuple(suite.all_metrics), suite.threads, _hash(decisive))


def _hash(decisive: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _chosen(loss: LossSection) -> dict[str, Any]:
    """The loss and its options that are not at their defaults; 1 and 1.0 are the same number."""
    usual = loss_settings(loss.name, {})
    given = {option: float(value) if type(value) is int else value for option, value in loss.options().items()}
    fields = loss.model_dump(include={*LossSection.model_fields}, exclude_defaults=True)
    return fields | {"name": loss.name} | {option: value for option, value in given.items() if usual.get(option) != value}


def recipe_of(suite: Suite, row: Row, manifest: Path, seed: int) -> Recipe:
    """The recipe of one run of a row."""
    # The images are checked once for all runs, and log.csv is enough to inspect a run.
    fixed = [f"data.manifest={manifest}", f"seed={seed}", "data.check_images=false", "loggers=[]", "keep_every=none"]
    try:
        recipe = read_recipe(suite.recipe, [*suite.set, *row.set, *fixed])
        known = dict.fromkeys(loss_options(recipe.loss.name))
        for option in recipe.loss.options():
            choose(known, option, f"option of loss {recipe.loss.name!r}:")
    except InputError as error:
        raise InputError(f"row {row.name!r}: {error}") from error
    return recipe


def find_manifest(data: DataSet, given: Mapping[str, Path], make: bool = True) -> Path:
    """The given manifest of a data set, or ``data/<set>/manifest.csv``, created if it is missing and ``make`` is set."""
    file = given.get(data.name, SOURCES / data.name / "manifest.csv")
    if data.name in given or file.is_file():
        return file
    if make and data.name in MAKERS:
        return MAKERS[data.name](file.parent)
    makers = "--tables creates none" if data.name in MAKERS else f"cannot be created ({nearest(data.name, MAKERS)})"
    raise InputError(f"data set {data.name!r}: {file} does not exist and {makers}; give --data {data.name}=<manifest>")


def read_images(data: DataSet, manifest: Manifest, folder: Path, codes: str | None = None) -> Manifest:
    """The manifest; with ``val_fraction`` a copy in the folder with some training classes, or codes, as split ``val``."""
    if data.val_fraction is None:
        return manifest
    if "val" in manifest.table["split"]:
        raise InputError(
            f"{manifest.source}: data set {data.name!r} has val_fraction, but the manifest has a split val; remove one"
        )
    train_part = manifest.split("train")
    if codes is None:
        cut_off = hold_out_classes(train_part, data.val_fraction, seed=0)[1]
    else:
        cut_off = hold_out_codes(train_part, codes, data.val_fraction, seed=0)[1]
    held_out = cut_off.table["path"]
    table = manifest.table.with_columns(
        split=pl.when(pl.col("path").is_in(held_out.implode())).then(pl.lit("val")).otherwise("split"),
        path=pl.Series([str(manifest.root.resolve() / path) for path in manifest.table["path"]]),
    )
    cut = replace(manifest, table=table, places=None)
    file = folder / f"{data.name}-{_fingerprint(cut)[:12]}.parquet"
    if not file.is_file():
        with replaced(file) as scratch:
            table.write_parquet(scratch)
    return read_manifest(file, labelled=codes is None)


def _fingerprint(manifest: Manifest) -> str:
    """A hash of the rows, file names and file sizes, independent of the folder."""
    try:
        sizes = [path.stat().st_size for path in manifest.paths()]
    except FileNotFoundError as error:
        raise InputError(f"{manifest.source}: {error.filename}: no such file") from error
    files = [Path(path).name for path in manifest.table["path"]]
    table = manifest.table.drop("id", "path").with_columns(file=pl.Series(files), bytes=pl.Series(sizes, dtype=pl.Int64))
    table = table.with_columns(pl.col(pl.List(pl.String)).list.join(";"))  # codes
    return hashlib.sha256(table.write_csv().encode()).hexdigest()
