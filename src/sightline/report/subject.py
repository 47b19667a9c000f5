"""What a report is about: a run folder or an embedding table, how it was made, and what a rejector says of its images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest, label_columns, read_manifest
from sightline.errors import InputError
from sightline.evaluation.detection import detection_metrics
from sightline.evaluation.tables import has_role
from sightline.losses import LOSSES
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.ood.rejector import Rejector
from sightline.training.logs import read_log
from sightline.training.prepare import train_and_validation, untrained_encoder
from sightline.training.recipe import Recipe
from sightline.training.run_folder import RunFolder

UNTRAINED = "untrained"
EMBEDDED = "report.parquet"  # in a run folder: its test images, so that a second report need not embed them
LogRow = tuple[int, int, str, float]


@dataclass(frozen=True, eq=False)
class Subject:
    """One model as a report shows it.

    Attributes:
        name: what readers know it by.
        table: labelled images with their vectors.
        log: rows of the run's ``log.csv``; none where it is not known.
        recipe: of the run, where it is known.
    """

    name: str
    table: EmbeddingTable
    log: tuple[LogRow, ...] = ()
    recipe: Recipe | None = None

    @property
    def queries(self) -> NDArray[np.int64]:
        """Rows of the table that ask."""
        return np.flatnonzero(has_role(self.table.manifest, "is_query"))

    @property
    def items(self) -> NDArray[np.int64]:
        """Rows of the table that are ranked."""
        return np.flatnonzero(has_role(self.table.manifest, "is_gallery"))

    @property
    def thresholds(self) -> dict[str, float]:
        """Scores that training aimed at: relevant images above alpha, others below beta, where the loss calibrates."""
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
) -> Subject:
    """Read an embedding table, or embed the images that a run did not learn from.

    Of a run these are its split ``test``, else ``val``, else the classes it held out; their vectors are kept in the run
    folder.

    Args:
        source: a ``.parquet`` file of ``sightline embed`` or a folder of ``sightline train``.
        show_progress: draw a bar while embedding.
        split: only this one.
        name: what readers know it by; None for the name of the file or folder.
        like: embed the images of this table instead.
        trust: import the module of a wrapped encoder.
    """
    source = Path(source)
    if not source.is_dir():
        table = EmbeddingTable.read(source)
        return Subject(name or source.stem, _labelled(table if split is None else table.split(split)))
    run = RunFolder(source)
    recipe = run.read_recipe()
    encoder = Encoder.from_pretrained(run.encoder, trust=trust)
    manifest = _unseen(recipe, split) if like is None else like.manifest
    kept = source / EMBEDDED
    vectors = EmbeddingTable.read(kept) if kept.is_file() else None
    if vectors is None or vectors.fingerprint != encoder.fingerprint() or vectors.ids != manifest.table["id"].to_list():
        vectors = embed_manifest(encoder, manifest, show_progress=show_progress)
        vectors.write(kept)
    return Subject(name or source.resolve().name, _labelled(vectors), tuple(read_log(run.log_file)), recipe)


def read_untrained(run: Subject, show_progress: bool = False, name: str | None = None, trust: bool = False) -> Subject:
    """The run's pretrained backbone on the same images, averaged, without projection; or the encoder it started from."""
    if run.recipe is None:
        raise InputError(f"--against {UNTRAINED}: a run folder is needed, for {run.name!r} is a table without a recipe")
    encoder = untrained_encoder(run.recipe, trust)
    return Subject(name or UNTRAINED, embed_manifest(encoder, run.table.manifest, show_progress=show_progress))


def matched(subject: Subject, other: Subject) -> Subject:
    """The other one with its rows in the order of the first; refused unless they are the same images and labels."""
    ids, both = subject.table.ids, f"{subject.name!r} and {other.name!r}"
    place = {name: row for row, name in enumerate(other.table.ids)}
    if only := sorted(place.keys() ^ set(ids)):
        raise InputError(f"{both} are of other images: {len(only)} ids are in one alone, such as {only[0]!r}")
    order = np.array([place[name] for name in ids])
    levels = subject.table.manifest.n_levels, other.table.manifest.n_levels
    if levels[0] != levels[1]:
        raise InputError(f"{both}: labels of {levels[0]} and {levels[1]} levels")
    mine, theirs = (one.table.manifest.table.select(label_columns(levels[0])) for one in (subject, other))
    if len(differ := np.flatnonzero((mine.to_numpy() != theirs[order].to_numpy()).any(1))):
        row = int(differ[0])
        raise InputError(
            f"{both}: labels differ for {len(differ)} of {len(ids)} images, first for {ids[row]!r}: {mine.row(row)} and "
            f"{theirs.row(int(order[row]))}"
        )
    table = EmbeddingTable(subject.table.manifest, other.table.vectors[order], other.table.fingerprint)
    return replace(other, table=table)


def _unseen(recipe: Recipe, wanted: str | None) -> Manifest:
    manifest = read_manifest(recipe.data.manifest)
    if wanted is not None or "test" in manifest.table["split"]:
        return manifest.split(wanted or "test")
    held_out = train_and_validation(manifest, recipe)[1]
    if held_out is None:
        raise InputError(
            f"{manifest.source}: the run learned from all its images: embed others with `sightline embed`, "
            "and give that table"
        )
    return held_out


def _labelled(table: EmbeddingTable) -> EmbeddingTable:
    if not table.manifest.n_levels:
        raise InputError(f"{table.manifest.source}: its images have no labels, and a report compares with labels")
    return table


@dataclass(frozen=True, eq=False)
class Outliers:
    """Energies, higher being further out.

    Attributes:
        scorer: its name.
        threshold: energies up to it belong.
        inside: of the images shown.
        outside: of images that do not belong; None where none were given.
        match: the cosine from which on the best result is a match; None where it was not calibrated.
    """

    scorer: str
    threshold: float
    inside: NDArray[np.float64]
    outside: NDArray[np.float64] | None
    match: float | None

    @property
    def auroc(self) -> float | None:
        """Of both kinds of images, where there are outliers."""
        return None if self.outside is None else detection_metrics(self.inside, self.outside)["auroc"]


def held_rejector(run: Path) -> Path | None:
    """The rejector that lies in the encoder's folder of a run, if there is one."""
    folder = RunFolder(run).encoder / "rejector"
    return folder if folder.is_dir() else None


def read_outliers(folder: Path, table: EmbeddingTable, outlier_table: Path | None = None) -> Outliers:
    """Ask a rejector about a table.

    Args:
        folder: written by ``sightline ood fit``, or an encoder or gallery that holds one.
        table: of the encoder that it was fitted for.
        outlier_table: an embedding table of images that do not belong, of the same encoder.
    """
    rejector = Rejector.load(folder, table.fingerprint)
    outside = None
    if outlier_table is not None:
        others = EmbeddingTable.read(outlier_table)
        rejector.check_encoder(others.fingerprint, outlier_table)
        outside = rejector.scorer.score(others.vectors)
    inside = rejector.scorer.score(table.vectors)
    threshold = cast(float, rejector.scorer.threshold)  # a rejector has one
    return Outliers(rejector.scorer.name, threshold, inside, outside, rejector.similarity_threshold)
