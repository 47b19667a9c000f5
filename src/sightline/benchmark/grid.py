"""The cells of a suite: one recipe, one set of images and one seed each, with a key that says which run it is."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.benchmark.outcome import Outcome
from sightline.benchmark.sources import Images, check_once, find_manifest, read_images
from sightline.benchmark.suite import DataSet, Row, Suite, only_rows
from sightline.errors import InputError, names, nearest
from sightline.evaluation.metrics import metric_names, read_metric_name
from sightline.losses import loss_options
from sightline.training.account import loss_settings
from sightline.training.recipe import LossSection, Recipe, read_recipe

KS = (1, 2, 4, 8, 10, 16, 32, 100)  # measured in any case, so that another column needs no run
WITHOUT_EFFECT = {
    "data": {"manifest", "n_workers", "check_images"},
    "loggers": True,
    "checkpoint_every": True,
    "keep_every": True,
}


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
    def stem(self) -> str:
        """The name of its files."""
        return f"{slug(self.row.name)}-{slug(self.data)}-seed{self.seed}-{self.key[:12]}"

    @property
    def loss(self) -> dict[str, Any]:
        """Every option of its loss, given or not."""
        return loss_settings(self.recipe.loss.name, self.recipe.loss.options())

    def agrees(self, about: Mapping[str, Any]) -> bool:
        """Was this recipe run, as far as both versions of Sightline know its values?"""
        ours = json.loads(self.recipe.model_dump_json(exclude=WITHOUT_EFFECT))  # type: ignore[arg-type]
        return _same_where_shared({"recipe": ours, "loss": self.loss}, about)

    def is_served_by(self, outcome: Outcome) -> bool:
        """Is that the outcome of this very run, whatever its row is called, with all metrics that are wanted here?"""
        measured = all(metric in outcome.result.per_query for metric in self.metrics)
        return outcome.about["key"] == self.key and measured and self.agrees(outcome.about)

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.row.name}, {self.data}, seed {self.seed}"


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
    rows = only_rows(suite, list(only))
    if foreign := [seed for seed in seeds if seed not in suite.seeds]:
        raise InputError(f"seed {names(foreign)} is not of the suite, which has {names(suite.seeds)}")
    if unused := [name for name in given if name not in {one.source or one.name for one in suite.data}]:
        known = nearest(unused[0], [one.source or one.name for one in suite.data])
        raise InputError(f"--data {unused[0]!r}: no data set of the suite: {known}")
    for row in suite.all_rows:
        _check_loss(suite, row)
    cells = []
    for data in suite.data:
        manifest = find_manifest(data, given, make=check)
        if check:
            check_once(manifest, folder, show_progress)
        images = {
            without: read_images(data, manifest, suite.split, without, folder)
            for without in sorted({row.train_without_queries for row in rows})
        }
        for metric in suite.all_metrics:
            read_metric_name(metric, next(iter(images.values())).n_levels)
        for seed in suite.seeds:
            wanted = [row for row in rows if row.trained or seed == suite.seeds[0]]
            if not seeds or seed in seeds:
                cells += [_cell(suite, data, row, seed, images[row.train_without_queries]) for row in wanted]
    return cells


def _cell(suite: Suite, data: DataSet, row: Row, seed: int, images: Images) -> Cell:
    recipe = _recipe(suite, row, images.manifest, seed)
    metrics = tuple(dict.fromkeys([*metric_names(KS, images.n_levels), *suite.all_metrics]))
    # Without defaults: an option that a later version adds changes no key; a changed default is found by agrees().
    chosen = json.loads(recipe.model_dump_json(exclude=WITHOUT_EFFECT, exclude_defaults=True))  # type: ignore[arg-type]
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


def recipe_command(suite: Suite, row: Row, manifest: str) -> list[str]:
    """What to say to ``sightline train`` for one row, after the recipe's name."""
    return [*suite.set, *row.set, f"data.manifest={manifest}"]


def _recipe(suite: Suite, row: Row, manifest: Path, seed: int) -> Recipe:
    # The images were checked once for all runs, and log.csv is enough to look at afterwards.
    fixed = [f"seed={seed}", "data.check_images=false", "loggers=[]", "keep_every=none"]
    try:
        return read_recipe(suite.recipe, [*recipe_command(suite, row, str(manifest)), *fixed])
    except InputError as error:
        raise InputError(f"row {row.name!r}: {error}") from error


def _check_loss(suite: Suite, row: Row) -> None:
    loss = _recipe(suite, row, Path("manifest.csv"), suite.seeds[0]).loss
    try:
        known = loss_options(loss.name)
    except InputError as error:
        raise InputError(f"row {row.name!r}: {error}") from error
    if unknown := [option for option in loss.options() if option not in known]:
        raise InputError(f"row {row.name!r}: loss {loss.name!r} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
