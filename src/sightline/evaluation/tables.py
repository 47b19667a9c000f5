"""Embedding tables measured, as they are or after whitening, augmentation, expansion and re-ranking; in processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.readers.dyml import LEVELS
from sightline.errors import InputError, names
from sightline.evaluation.protocol import DEFAULT_KS, NEVER, by_labels, classes_of, measured, places_of
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import Counts, VectorTable
from sightline.models.heads import Whitening
from sightline.ranking.refine import NOTHING, RERANKERS, Refinement, augment_gallery, expand_queries

CANDIDATE_ELEMENTS = 1 << 24  # numbers of candidates' vectors held at once
ABOVE = 4.0  # added to scores of the re-ranking: more than any cosine; float64 holds the sum without a loss

Rescore = Callable[[Counts, Tensor], Tensor]


@dataclass(frozen=True)
class Steps:
    """What is done to the vectors of an evaluation and to the rankings they give, in this order; by default nothing.

    Attributes:
        whitening: of queries and gallery.
        augment: neighbours that each gallery item is augmented by, with the refinement's ``alpha``. They may be queries.
        refinement: of each query. If it is in the gallery itself, that item does not expand it.
    """

    whitening: Whitening | None = None
    augment: int = 0
    refinement: Refinement = NOTHING

    def __post_init__(self) -> None:
        if self.augment < 0:
            raise InputError(f"augment is {self.augment}; at least 0 is needed")

    def one_by_one(self) -> dict[str, "Steps"]:
        """No step, then each added to those before it; by a name for each."""
        refinement = replace(self.refinement, expand=0, rerank=None)
        found = {"no step": Steps(refinement=refinement)}
        if self.whitening is not None:
            found["+ whitening"] = Steps(self.whitening, refinement=refinement)
        if self.augment:
            found[f"+ augmentation by {self.augment}"] = replace(self, refinement=refinement)
        if self.refinement.expand:
            expanded = replace(self.refinement, rerank=None)
            found[f"+ expansion by {expanded.expand}"] = replace(self, refinement=expanded)
        if self.refinement.rerank is not None:
            found[f"+ re-ranking {self.refinement.rerank}"] = self
        return found


def evaluate_table(
    table: EmbeddingTable,
    ks: Sequence[int] = DEFAULT_KS,
    gallery: EmbeddingTable | None = None,
    metrics: Sequence[str] | None = None,
    steps: Steps | None = None,
    exclude: str | None = None,
    trust: bool = False,
) -> Result:
    """:func:`evaluate` on an embedding table, or on one that queries another; after whitening, expansion and so on.

    Where a table says which images are queries or gallery (``is_query``, ``is_gallery``; empty means neither), the queries
    rank the gallery; otherwise every image is both. An image that is both, by its id, is never in its own list. ``exclude``
    names a column, such as the camera: images with the query's own value in it are in no list; an empty one is no value.
    ``trust`` imports metrics that are named by a path.
    """
    other = gallery or table
    check_same_encoder(table, other)
    for one in (table, other):
        _check_one_set(one.manifest)
        if not one.manifest.n_levels:
            raise InputError(f"{one.manifest.source}: its images have no labels to evaluate by")
    is_query, is_gallery = has_role(table.manifest, "is_query"), has_role(other.manifest, "is_gallery")
    queries = VectorTable(table.vectors, str(table.manifest.source))
    items = queries if gallery is None else VectorTable(other.vectors, str(other.manifest.source))
    labels, item_labels = table_labels(table, gallery)
    ids, item_ids = np.array(table.ids)[is_query], np.array(other.ids)[is_gallery]
    queries, items = VectorTable(queries.table[is_query], "queries"), VectorTable(items.table[is_gallery], "gallery")
    own, rescored = places_of(ids, item_ids), None
    if steps is not None:
        queries, items, rescored = refined(queries, items, own, steps)
    groups = None
    if exclude is not None:
        sources, item_sources = _groups(table, other, exclude)
        groups = sources[is_query], item_sources[is_gallery]
    lists = by_labels(queries, items, labels[is_query], item_labels[is_gallery], own, groups)
    lists = replace(lists, rescored=rescored)
    result = measured(lists, ks, metrics, "population", "exponential", "worst", trust=trust)
    return replace(result, ids=ids.tolist(), labels=classes_of(labels[is_query]), fingerprint=table.fingerprint)


def check_same_encoder(table: EmbeddingTable, other: EmbeddingTable) -> None:
    """Refuse vectors of two encoders."""
    if other.fingerprint != table.fingerprint:
        raise InputError(
            f"{table.manifest.source} and {other.manifest.source}: vectors of two different encoders, "
            f"{table.fingerprint} and {other.fingerprint}, cannot be compared"
        )


def _check_one_set(manifest: Manifest) -> None:
    """Refuse the test images of DyML-Vehicle and DyML-Animal as one set: they are three, one for each label level."""
    rows = manifest.table
    if "test_level" in rows.columns and rows["test_level"].is_in(LEVELS).any():
        raise InputError(
            f"{manifest.source}: its test images are three sets, one for each label level (column 'test_level'); "
            "measure them with level_sets and sl.evaluate_dyml, as docs/data.md shows"
        )


def has_role(manifest: Manifest, role: str) -> NDArray[np.bool_]:
    """(N,) which images have a role, ``is_query`` or ``is_gallery``: all of them where the manifest does not say."""
    rows = manifest.table
    is_known = role in rows.columns and rows[role].count()
    return rows[role].fill_null(False).to_numpy() if is_known else np.ones(len(rows), bool)


def _groups(table: EmbeddingTable, other: EmbeddingTable, column: str) -> tuple[Counts, Counts]:
    """The values of a column of both, numbered alike."""
    for one in (table, other):
        if column not in one.manifest.table.columns:
            raise InputError(f"{one.manifest.source}: no column {column!r}; it has {names(one.manifest.table.columns)}")
    both = pl.concat([one.manifest.table[column].cast(pl.String) for one in (table, other)])
    numbers = both.rank("dense").cast(pl.Int64).fill_null(NEVER).to_numpy()
    return numbers[: len(table)], numbers[len(table) :]


def table_labels(table: EmbeddingTable, gallery: EmbeddingTable | None) -> tuple[Counts, Counts]:
    """The labels of both, numbered alike."""
    if gallery is None:
        return (table.manifest.labels(),) * 2
    if table.manifest.n_levels != gallery.manifest.n_levels:
        raise InputError(f"labels of {table.manifest.n_levels} and {gallery.manifest.n_levels} levels cannot be compared")
    columns = [f"label_{level}" for level in range(table.manifest.n_levels)]
    both = [[*table.manifest.table[name], *gallery.manifest.table[name]] for name in columns]
    numbers = np.stack([np.unique(np.array(column, str), return_inverse=True)[1] for column in both], 1)
    return numbers[: len(table)], numbers[len(table) :]


def refined(
    queries: VectorTable, gallery: VectorTable, own: Counts, steps: Steps
) -> tuple[VectorTable, VectorTable, Rescore | None]:
    """The vectors that are ranked after the steps, and what re-ranks the scores they give.

    Args:
        queries: Q of them.
        gallery: G items.
        own: (Q,) the place of each query in the gallery, in none of its lists; -1 for none.
        steps: what to do.

    Returns:
        Queries, gallery, and a function of some queries' numbers and their (B, G) scores, the gallery in its own order,
        that gives their scores after re-ranking; None where there is none.
    """
    itself, refinement = torch.from_numpy(own), steps.refinement
    dtype = torch.promote_types(queries.dtype, gallery.dtype)
    rows, items = (side.take(np.arange(len(side)), dtype) for side in (queries, gallery))
    if steps.whitening is not None:
        rows, items = steps.whitening(rows), steps.whitening(items)
    if steps.augment:
        items = augment_gallery(items, steps.augment, refinement.alpha)
    if refinement.expand:
        rows = expand_queries(rows, items, refinement.expand, refinement.alpha, itself)
    sides = VectorTable(rows, "queries"), VectorTable(items, "gallery")
    if refinement.rerank is None:
        return *sides, None
    rerank = RERANKERS[refinement.rerank]

    def rescored(numbers: Counts, scores: Tensor) -> Tensor:
        hidden = scores.masked_fill(torch.arange(len(items)) == itself[numbers, None], -torch.inf)
        places = hidden.sort(dim=1, descending=True, stable=True).indices
        found = scores.double()
        lengths = np.minimum(refinement.depth, len(items) - (own[numbers] >= 0))
        for length in np.unique(lengths[lengths > 0]).tolist():
            n_rows = max(1, CANDIDATE_ELEMENTS // (length * items.shape[1]))
            for some in torch.from_numpy(np.flatnonzero(lengths == length)).split(n_rows):
                near = places[some, :length]
                reranked = rerank(rows[numbers[some.numpy()]], items[near], refinement.reciprocal)
                found[some[:, None], near] = ABOVE + reranked.double()
        return found

    return *sides, rescored


@contextmanager
def joined_processes() -> Iterator[bool]:
    """Inside, the processes of ``torchrun`` share the queries of an evaluation; True in the one that prints and writes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank() == 0
        dist.barrier()
    finally:
        dist.destroy_process_group()
