"""The subject of a report: a run folder or an embedding table, how it was made, and its out-of-distribution scores."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest, check_lists, label_columns, split_lists
from sightline.errors import InputError
from sightline.evaluation.detection import detection_metrics
from sightline.evaluation.tables import has_role
from sightline.labels.code_column import attach_codes
from sightline.losses import LOSSES
from sightline.models.card import Account
from sightline.models.embed import embed_manifest, own_device
from sightline.models.encoder import Encoder
from sightline.ood.rejector import Rejector
from sightline.training.logs import read_log
from sightline.training.prepare import recipe_images, train_and_validation, untrained_encoder
from sightline.training.recipe import Recipe
from sightline.training.run_folder import RunFolder

UNTRAINED = "untrained"
EMBEDDED = "report.parquet"  # in a run folder: its test images, so that a second report need not embed them
LogRow = tuple[int, int, str, float]


@dataclass(frozen=True, eq=False)
class Subject:
    """One model as a report shows it.

    Attributes:
        name: shown to readers.
        table: labelled images with their vectors.
        log: rows of the run's ``log.csv``; empty if unknown.
        recipe: of the run, if known.
        card: of the run's encoder, if known.
        shows_validation: whether images of the table chose the epoch.
        codes: column of several codes an image, where these are all it has: metrics are then by codes, and the labels of
            the table are the levels of one code of each image, its rarest that another image has too.
    """

    name: str
    table: EmbeddingTable
    log: tuple[LogRow, ...] = ()
    recipe: Recipe | None = None
    card: Account | None = None
    shows_validation: bool = False
    codes: str | None = None

    @property
    def selection(self) -> str | None:
        """A sentence on the validation images that chose the epoch; None where none did, or it is not known."""
        card = self.card
        if card is None or card.training is None or card.evaluation is None or not card.evaluation.chose:
            return None
        by = "" if self.recipe is None else f" by {self.recipe.validation.metric}"
        share = card.training.trained_share
        mixed = "" if share is None else f" (weights {share:.0%} trained, {1 - share:.0%} start)"
        chosen = f"epoch {card.training.epoch} of {card.training.epochs}{mixed} was chosen{by} on {card.evaluation.on}"
        optimistic = "; this page shows those images, so its numbers are optimistic" if self.shows_validation else ""
        return f"{self.name}: {chosen}{optimistic}."

    @property
    def by_codes(self) -> str | None:
        """A sentence on what stands for labels; None where images have labels."""
        if self.codes is None:
            return None
        return (
            f"{self.name}: images have several codes (column {self.codes}). Metrics and frames are by all of them; curves, "
            "map, severity and classes by one code of each image, its rarest that another image has too."
        )

    @property
    def queries(self) -> NDArray[np.int64]:
        """Rows of the table that are queries."""
        return np.flatnonzero(has_role(self.table.manifest, "is_query"))

    @property
    def items(self) -> NDArray[np.int64]:
        """Rows of the table that are ranked."""
        return np.flatnonzero(has_role(self.table.manifest, "is_gallery"))

    @property
    def thresholds(self) -> dict[str, float]:
        """Target scores of a calibrating loss: relevant images above alpha, others below beta; empty for other losses."""
        if self.recipe is None or self.recipe.loss.name not in LOSSES:
            return {}
        parameters = LOSSES.options(self.recipe.loss.name)
        options = {name: one.default for name, one in parameters.items()} | self.recipe.loss.options()
        if not {"alpha", "beta"} <= options.keys() or options.get("decomposability", "calibration") != "calibration":
            return {}
        return {name: float(options[name]) for name in ("alpha", "beta")}


def read_subject(
    source: Path,
    show_progress: bool = False,
    split: str | None = None,
    name: str | None = None,
    like: EmbeddingTable | None = None,
    trust: bool = False,
    backend: str | None = None,
    codes: str | None = None,
    scorer_inputs: bool = False,
) -> Subject:
    """Read an embedding table, or embed the images that a run was not trained on.

    For a run these are its split ``test``, else ``val``, else the classes it held out; the run folder keeps their vectors.

    Args:
        source: a ``.parquet`` file of ``sightline embed`` or a folder of ``sightline train``.
        show_progress: draw a bar while embedding.
        split: use only this split.
        name: shown to readers; None for the name of the file or folder.
        like: embed the images of this table instead.
        trust: import the module of a wrapped encoder.
        backend: what computes vectors; see :meth:`Encoder.encode`.
        codes: column of several codes an image, for images without labels; None for that of the run's recipe, or the first
            column of lists.
        scorer_inputs: embed the images of a run with what rejectors of more than vectors need.
    """
    source = Path(source)
    if not source.is_dir():
        table = EmbeddingTable.read(source)
        labelled, column = _labelled(table if split is None else table.split(split), codes)
        return Subject(name or source.stem, labelled, codes=column)
    run = RunFolder(source)
    recipe = run.read_recipe()
    encoder = Encoder.from_pretrained(run.encoder, trust=trust).to(own_device())
    manifest = _unseen(recipe, split) if like is None else like.manifest
    chose = train_and_validation(recipe_images(recipe)[0], recipe)[1] if like is None else None
    kept = source / EMBEDDED
    vectors = EmbeddingTable.read(kept) if kept.is_file() else None
    same = vectors is not None and vectors.fingerprint == encoder.fingerprint() and bool(vectors.inputs) >= scorer_inputs
    if vectors is None or not same or vectors.ids != manifest.table["id"].to_list():
        vectors = embed_manifest(
            encoder, manifest, show_progress=show_progress, backend=backend, scorer_inputs=scorer_inputs
        )
        vectors.write(kept)
    labelled, column = _labelled(vectors, codes or recipe.data.codes)
    return Subject(
        name or source.resolve().name,
        labelled,
        tuple(read_log(run.log_file)),
        recipe,
        encoder.card,
        shows_validation=chose is not None and not set(chose.table["id"]).isdisjoint(vectors.ids),
        codes=column,
    )


def read_untrained(
    run: Subject,
    show_progress: bool = False,
    name: str | None = None,
    trust: bool = False,
    backend: str | None = None,
) -> Subject:
    """The run's pretrained backbone on the same images, mean-pooled, without projection; or the encoder it started from."""
    if run.recipe is None:
        raise InputError(f"--against {UNTRAINED} requires a run folder; {run.name!r} is a table without a recipe")
    encoder = untrained_encoder(run.recipe, trust).to(own_device())
    table = embed_manifest(encoder, run.table.manifest, show_progress=show_progress, backend=backend)
    return Subject(name or UNTRAINED, table, codes=run.codes)


def matched(subject: Subject, other: Subject) -> Subject:
    """``other`` with its rows in the order of ``subject``; raises InputError unless images and labels are the same."""
    ids, both = subject.table.ids, f"{subject.name!r} and {other.name!r}"
    place = {name: row for row, name in enumerate(other.table.ids)}
    if only := sorted(place.keys() ^ set(ids)):
        raise InputError(f"{both} must have the same images; {len(only)} ids are in only one of them, such as {only[0]!r}")
    order = np.array([place[name] for name in ids])
    levels = subject.table.manifest.n_levels, other.table.manifest.n_levels
    if levels[0] != levels[1]:
        raise InputError(f"{both} must have the same label levels, got {levels[0]} and {levels[1]}")
    mine, theirs = (one.table.manifest.table.select(label_columns(levels[0])) for one in (subject, other))
    if len(differ := np.flatnonzero((mine.to_numpy() != theirs[order].to_numpy()).any(1))):
        row = int(differ[0])
        raise InputError(
            f"{both}: labels differ for {len(differ)} of {len(ids)} images, first for {ids[row]!r}: {mine.row(row)} and "
            f"{theirs.row(int(order[row]))}"
        )
    table = EmbeddingTable(subject.table.manifest, other.table.vectors[order], other.table.fingerprint)
    return replace(other, table=table)


def read_codes(manifest: Manifest, column: str | None = None) -> list[list[str]] | None:
    """The codes of each image; None if the table has none.

    Args:
        manifest: the images.
        column: of lists, or of text that is split at ``;``; None for the first column of lists, if any.
    """
    if column is not None:
        manifest = split_lists(manifest, column)
        check_lists(manifest)
    else:
        column = first_lists(manifest)
    return None if column is None else [codes or [] for codes in manifest.table[column].to_list()]


def first_lists(manifest: Manifest) -> str | None:
    """The first column of lists of text, if any."""
    return next((name for name, kind in manifest.table.schema.items() if kind == pl.List(pl.String)), None)


def _unseen(recipe: Recipe, wanted: str | None) -> Manifest:
    manifest = recipe_images(recipe)[0]
    if wanted is not None or "test" in manifest.table["split"]:
        return manifest.split(wanted or "test")
    held_out = train_and_validation(manifest, recipe)[1]
    if held_out is None:
        raise InputError(
            f"{manifest.source}: the run was trained on all its images; embed others with `sightline embed` and report on "
            "that table"
        )
    return held_out


def _labelled(table: EmbeddingTable, codes: str | None) -> tuple[EmbeddingTable, str | None]:
    """The table with labels; where these were made of codes, the column of them."""
    if table.manifest.n_levels:
        return table, None
    column = codes or first_lists(table.manifest)
    if column is None:
        raise InputError(
            f"{table.manifest.source}: a report needs labels or several codes an image, and these have neither; name a "
            "column of codes with --codes"
        )
    return EmbeddingTable(attach_codes(table.manifest, column), table.vectors, table.fingerprint), column


@dataclass(frozen=True, eq=False)
class Outliers:
    """Out-of-distribution energies; higher is further out.

    Attributes:
        scorer: name of the scorer.
        threshold: images with at most this energy are accepted.
        inside: energies of the images shown.
        outside: energies of known outliers; None if none were given.
        match: cosine from which the best result counts as a match; None if it was not calibrated.
    """

    scorer: str
    threshold: float
    inside: NDArray[np.float64]
    outside: NDArray[np.float64] | None
    match: float | None

    @property
    def auroc(self) -> float | None:
        """Area under the ROC curve; None without outliers."""
        return None if self.outside is None else detection_metrics(self.inside, self.outside)["auroc"]


def held_rejector(run: Path) -> Path | None:
    """The rejector in the encoder folder of a run, if any."""
    folder = RunFolder(run).encoder / "rejector"
    return folder if folder.is_dir() else None


def needs_inputs(detector: Path | None) -> bool:
    """Whether the rejector in a folder takes more than vectors; False for None."""
    return detector is not None and Rejector.load(detector).needs_images


def read_outliers(folder: Path, table: EmbeddingTable, outlier_table: Path | None = None) -> Outliers:
    """Score a table with a rejector; energies are shifted to the common threshold where labels have their own.

    Args:
        folder: written by ``sightline ood fit``, or an encoder or gallery folder that has one.
        table: vectors of the rejector's encoder; with inputs of scorers, if the rejector needs them.
        outlier_table: an embedding table of outliers, of the same encoder.
    """
    rejector = Rejector.load(folder, table.fingerprint)
    threshold = cast(float, rejector.scorer.threshold)  # a rejector has one
    outside = None
    if outlier_table is not None:
        others = EmbeddingTable.read(outlier_table)
        rejector.check_encoder(others.fingerprint, outlier_table)
        outside = rejector.energies(others) + (threshold - rejector.thresholds(others))
    inside = rejector.energies(table) + (threshold - rejector.thresholds(table))
    return Outliers(rejector.scorer.name, threshold, inside, outside, rejector.similarity_threshold)
