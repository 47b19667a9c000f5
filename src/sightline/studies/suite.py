"""A suite file, and its cells: which recipe meets which images with which seed, and a key that says which run it is."""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline import __version__
from sightline.data.images import check_images
from sightline.data.manifest import Manifest, read_manifest
from sightline.data.readers.emoji import write_emoji
from sightline.data.readers.glyphs import write_glyphs
from sightline.errors import InputError, choose, names, nearest, raise_faults
from sightline.evaluation.metrics import metric_names, read_metric_name
from sightline.files import replaced
from sightline.losses import loss_options
from sightline.studies.papers import published_value
from sightline.training.account import loss_settings
from sightline.training.recipe import LossSection, Recipe, fault_sentence, read_recipe

MOST_LEVELS = 127  # of labels; the manifest says later how many there are
KS = (1, 2, 4, 8, 10, 16, 32, 100)  # measured in any case, so that another column needs no run
WITHOUT_EFFECT: Any = {
    "data": {"manifest", "n_workers", "check_images"},
    "loggers": True,
    "checkpoint_every": True,
    "keep_every": True,
}
SOURCES = Path("data")  # where a set is looked for, and made, if no manifest is given
MAKERS: dict[str, Callable[[Path], Path]] = {"emoji": write_emoji, "glyphs": write_glyphs}


class SuitePart(BaseModel):
    """A part of a suite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSet(SuitePart):
    """A set of images to train and measure on.

    Attributes:
        name: in tables and file names.
        source: the set it is made from, by the name that ``--data`` gives a manifest for; None: as ``name``.
        query: columns of the manifest and the value that makes an image of the measured split a query; the others of that
            split are the gallery. None: every image queries the others.
    """

    name: str
    source: str | None = None
    query: dict[str, str] | None = None


class Row(SuitePart):
    """What is compared: one recipe, run with every seed.

    Attributes:
        name: in tables; what ``--only`` takes.
        set: laid over the suite's recipe, such as ``loss.name=sup_ap``.
        trained: False measures the pretrained features alone: averaged, without projection, once.
        train_without_queries: leave images like the queries (``query`` of the data) out of training.
    """

    name: str
    set: tuple[str, ...] = ()
    trained: bool = True
    train_without_queries: bool = False


class Sweep(SuitePart):
    """A row for each value of one hyper-parameter, drawn as one line of a picture.

    Attributes:
        name: of the line; a row is called by it and the value.
        key: of the recipe, such as ``loss.weight``.
        values: one a row.
        label: of the axis.
        figure: sweeps of the same figure share a picture.
        metric: that is drawn.
        log: a logarithmic axis.
        set: as of a row.
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
    """A published table that asks the same question.

    Attributes:
        table: its name in :mod:`sightline.studies.papers`, such as ``tpami_table01``.
        title: what people call it.
        datasets: the paper's, each a column for each metric.
        metrics: ours, and what the table calls it.
        rows: ours, and what the table calls it.
    """

    table: str
    title: str
    datasets: tuple[str, ...] = Field(min_length=1)
    metrics: dict[str, str] = Field(min_length=1)
    rows: dict[str, str] = Field(min_length=1)


class Suite(SuitePart):
    """A grid of runs on one budget.

    Attributes:
        title: of its page.
        about: what it asks.
        recipe: a shipped recipe, or a file beside the suite.
        set: laid over the recipe for all rows: the budget.
        data: the sets of images.
        seeds: of the runs.
        split: whose images are measured; ``val`` where hyper-parameters are chosen.
        metrics: columns of the tables.
        baseline: the row that others are tested against.
        by: what the paired test flips: ``queries``, or whole ``classes`` of them.
        threads: of each run; the last bits of a sum depend on them, so they are a part of the budget.
        rows: what is compared.
        sweeps: more rows, drawn as curves.
        published: tables of papers to stand beside.
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
    by: Literal["queries", "classes"] = "classes"
    threads: int = Field(default=1, ge=1)
    rows: tuple[Row, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    published: tuple[PaperTable, ...] = ()

    @cached_property
    def all_rows(self) -> list[Row]:
        """Rows and the points of sweeps, in the order of the file."""
        return [*self.rows, *(row for sweep in self.sweeps for row in sweep.rows())]

    @property
    def all_metrics(self) -> list[str]:
        """The metrics of tables and pictures, and those that published tables have too."""
        published = (metric for table in self.published for metric in table.metrics)
        return list(dict.fromkeys([*self.metrics, *(sweep.metric for sweep in self.sweeps), *published]))


def read_suite(file: Path) -> Suite:
    """Read a suite and check what can be checked without its images; all faults are raised together."""
    if not file.is_file():
        raise InputError(f"{file}: no such suite file")
    try:
        suite = Suite.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise InputError(f"{file}: " + "; ".join(fault_sentence(fault, Suite) for fault in error.errors())) from error
    except ValueError as error:
        raise InputError(f"{file}: not TOML: {error}") from error
    raise_faults(file, _faults(suite))
    beside = file.parent / suite.recipe
    return suite.model_copy(update={"recipe": str(beside)}) if beside.suffix == ".toml" else suite


def _faults(suite: Suite) -> list[str]:
    rows = [row.name for row in suite.all_rows]
    named = {"row": rows, "data set": [data.name for data in suite.data], "seed": [str(seed) for seed in suite.seeds]}
    faults = [
        f"{what} {name!r} is there {given.count(name)} times"
        for what, given in named.items()
        for name in given
        if given.count(name) > 1
    ]
    faults += [
        f"row {row.name!r} is not trained: it has nothing to set" for row in suite.rows if row.set and not row.trained
    ]
    if any(row.train_without_queries for row in suite.rows):
        faults += [
            f"data set {one.name!r} needs 'query': a row is trained without it" for one in suite.data if not one.query
        ]
    faults += _refused(choose, dict.fromkeys(rows), suite.baseline, "row as baseline")
    for metric in suite.all_metrics:
        faults += _refused(read_metric_name, metric, MOST_LEVELS)
    for table in suite.published:
        for row, method in table.rows.items():
            faults += _refused(choose, dict.fromkeys(rows), row, f"row of published {table.table}")
            for dataset in table.datasets:
                for metric in table.metrics.values():
                    faults += _refused(published_value, table.table, dataset, method, metric)
    return list(dict.fromkeys(faults))


def _refused(call: Callable[..., object], *arguments: object) -> list[str]:
    try:
        call(*arguments)
    except InputError as error:
        return [str(error)]
    return []


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a suite.

    Attributes:
        row: what is run.
        data: name of the set of images.
        seed: of the run.
        recipe: every value, seed and manifest included.
        split: that is measured.
        metrics: that are measured.
        threads: of the run.
        key: a hash of all that decides its numbers, and of nothing else: neither the row's name nor the metrics.
        training: a hash of all that decides its encoder; cells that differ in what they measure share it.
    """

    row: Row
    data: str
    seed: int
    recipe: Recipe
    split: str
    metrics: tuple[str, ...]
    threads: int
    key: str
    training: str

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.row.name}, {self.data}, seed {self.seed}"

    def describe(self) -> dict[str, Any]:
        """What its result says of it: every option of recipe and loss, given or not; rows of the same run say the same."""
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
        """Was this recipe run, as far as both versions of Sightline know its values?"""
        ours = json.loads(self.recipe.model_dump_json(exclude=WITHOUT_EFFECT))
        return _same_where_shared({"key": self.key, "recipe": ours, "loss": self.describe()["loss"]}, about)


def _same_where_shared(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same_where_shared(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return bool(ours == theirs)


def slug(name: str) -> str:
    """A name that is fit for a file.

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
    """The cells of a suite, data by data and seed by seed, so that a stopped suite has all rows of some seeds.

    Args:
        suite: the suite.
        given: manifests by the name of their set; others are looked for, or made.
        folder: where cut manifests go.
        only: names of the rows wanted; none: all.
        seeds: wanted; none: all.
        check: make sets that are missing, and decode every image once, before the first run.
        show_progress: draw a bar while that is done.
    """
    named, sources = {row.name: row for row in suite.all_rows}, {one.source or one.name: one for one in suite.data}
    rows = {name: choose(named, name, "row") for name in only or named}
    if foreign := [seed for seed in seeds if seed not in suite.seeds]:
        raise InputError(f"seed {names(foreign)} is not of the suite, which has {names(suite.seeds)}")
    for name in given:
        choose(sources, name, "data set of --data")
    for row in rows.values():
        _recipe(suite, row, Path("manifest.csv"), suite.seeds[0])  # refused before images are made and checked
    cells = []
    for data in suite.data:
        manifest = read_manifest(find_manifest(data, given, make=check))
        if check:
            check_images(manifest, show_progress)
        images = {
            without: _Images(read_images(data, manifest, suite.split, without, folder))
            for without in {row.train_without_queries for row in rows.values()}
        }
        for metric in suite.all_metrics:
            read_metric_name(metric, manifest.n_levels)
        cells += [
            _cell(suite, data, row, seed, images[row.train_without_queries])
            for seed in suite.seeds
            for row in named.values()
            if row.name in rows and (not seeds or seed in seeds) and (row.trained or seed == suite.seeds[0])
        ]
    return cells


class _Images:
    """A manifest, and hashes of its rows and of those that training reads: also ``val``, which chooses an encoder."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.fingerprint = _fingerprint(manifest)
        self.training = _fingerprint(manifest.where(pl.col("split").is_in(["train", "val"])))


def _cell(suite: Suite, data: DataSet, row: Row, seed: int, images: _Images) -> Cell:
    recipe = _recipe(suite, row, images.manifest.source, seed)
    metrics = tuple(dict.fromkeys([*metric_names(KS, images.manifest.n_levels), *suite.all_metrics]))
    # Without defaults: an option that a later version adds changes no key; a changed default is found by agrees().
    chosen = json.loads(recipe.model_dump_json(exclude=WITHOUT_EFFECT, exclude_defaults=True))
    run = {
        "version": __version__,
        "recipe": chosen | {"loss": _chosen(recipe.loss)},
        "trained": row.trained,
        "threads": suite.threads,
    }
    key = _hash(run | {"images": images.fingerprint, "split": suite.split})
    training = _hash(run | {"images": images.training})
    return Cell(row, data.name, seed, recipe, suite.split, metrics, suite.threads, key, training)


def _hash(decisive: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _chosen(loss: LossSection) -> dict[str, Any]:
    """The loss and its options that are not at their defaults; 1 and 1.0 are the same number."""
    usual = loss_settings(loss.name, {})
    given = {option: float(value) if type(value) is int else value for option, value in loss.options().items()}
    return {"name": loss.name} | {option: value for option, value in given.items() if usual.get(option) != value}


def _recipe(suite: Suite, row: Row, manifest: Path, seed: int) -> Recipe:
    # The images were checked once for all runs, and log.csv is enough to look at afterwards.
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
    """The manifest that was given for a set, or ``data/<set>/manifest.csv``, made if it is not there and may be."""
    source = data.source or data.name
    file = given.get(source, SOURCES / source / "manifest.csv")
    if source in given or file.is_file():
        return file
    if source not in MAKERS or not make:
        why = "nothing is made now" if source in MAKERS else f"it cannot be made ({nearest(source, MAKERS)})"
        raise InputError(f"data set {source!r}: {file} is not there and {why}; give --data {source}=<manifest>")
    return MAKERS[source](file.parent)


def read_images(data: DataSet, manifest: Manifest, split: str, without_queries: bool, folder: Path) -> Manifest:
    """Cut a manifest as the suite asks; the cut is written to the folder under its fingerprint, the images stay.

    Args:
        data: what to cut.
        manifest: of the whole set.
        split: that is measured.
        without_queries: leave images like the queries out of the other splits.
        folder: where to write.
    """
    if not data.query:
        manifest.split(split)  # refused here, not after hours of training
        return manifest
    source, wanted = f"{manifest.source}: data set {data.name!r}", [pl.col(name) == data.query[name] for name in data.query]
    if unknown := data.query.keys() - {*manifest.table.columns}:
        raise InputError(f"{source} asks for column {names(unknown)}; there are {names(manifest.table.columns)}")
    is_query, measured = pl.all_horizontal(wanted), pl.col("split") == split
    for what, rows in (("query", is_query), ("gallery image", ~is_query)):
        if not len(manifest.where(measured & rows)):
            raise InputError(f"{source}: split {split!r} has no {what} for {data.query}")
    kept = manifest.where(measured | ~is_query) if without_queries else manifest
    table = kept.table.with_columns(
        pl.when(measured).then(is_query).alias("is_query"), pl.when(measured).then(~is_query).alias("is_gallery")
    )
    cut = replace(manifest, table=table, places=None)
    file = folder / f"{data.name}-{_fingerprint(cut)[:12]}.parquet"
    if not file.is_file():
        paths = pl.Series("path", [str(manifest.root.resolve() / path) for path in table["path"]])
        with replaced(file) as scratch:
            table.with_columns(paths).write_parquet(scratch)
    return replace(cut, source=file)


def _fingerprint(manifest: Manifest) -> str:
    """A hash of the rows and of the sizes of their files."""
    try:
        sizes = [path.stat().st_size for path in manifest.paths()]
    except FileNotFoundError as error:
        raise InputError(f"{manifest.source}: {error.filename}: no such file") from error
    table = manifest.table.with_columns(pl.Series("bytes", sizes, dtype=pl.Int64))
    return hashlib.sha256(table.write_csv().encode()).hexdigest()
