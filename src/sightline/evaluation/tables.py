"""Embedding tables measured, as they are or after whitening, augmentation, expansion and re-ranking; in processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.readers.retrieval_sets import LEVELS
from sightline.errors import InputError, names
from sightline.evaluation.protocol import (
    DEFAULT_KS,
    MeasureOptions,
    by_labels,
    classes_of,
    measure,
    measure_codes,
    places_of,
    vector_tables,
)
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import Counts, VectorTable
from sightline.evaluation.text_labels import NEVER
from sightline.labels.code_column import code_lists, read_codes
from sightline.labels.codes import CodeRelevance
from sightline.models.heads import Whitening
from sightline.ranking.ranks import check_range
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
        check_range("[0, inf)", augment=self.augment)

    def one_by_one(self) -> dict[str, "Steps"]:
        """No step, then each added to those before it; by a name for each."""
        none = Steps(refinement=replace(self.refinement, expand=0, rerank=None))
        ladder = {
            "no step": none,
            "+ whitening": replace(none, whitening=self.whitening),
            f"+ augmentation by {self.augment}": replace(self, refinement=none.refinement),
            f"+ expansion by {self.refinement.expand}": replace(self, refinement=replace(self.refinement, rerank=None)),
            f"+ re-ranking {self.refinement.rerank}": self,
        }
        before = [None, *ladder.values()]
        return {name: steps for (name, steps), last in zip(ladder.items(), before, strict=False) if steps != last}


def evaluate_table(
    table: EmbeddingTable | Path | str,
    ks: Sequence[int] = DEFAULT_KS,
    gallery: EmbeddingTable | Path | str | None = None,
    metrics: Sequence[str] | None = None,
    steps: Steps | None = None,
    exclude: str | None = None,
    trust: bool = False,
    codes: str | None = None,
    relevance: CodeRelevance | None = None,
) -> Result:
    """:func:`evaluate` on an embedding table, or on one that queries another; after whitening, expansion and so on.

    A table is given itself or as the file that :meth:`EmbeddingTable.write` wrote.

    Where a table says which images are queries or gallery (``is_query``, ``is_gallery``; empty means neither), the queries
    rank the gallery; otherwise every image is both. An image that is both, by its id, is never in its own list. ``exclude``
    names a column, such as the camera: images with the query's own value in it are in no list; an empty one is no value.
    ``trust`` imports metrics that are named by a path. ``codes`` names a column of several codes an image, which count in
    place of labels, by ``relevance``; by default that of the deepest code.
    """
    table = _as_embedding_table(table, "table")
    gallery = None if gallery is None else _as_embedding_table(gallery, "gallery")
    queries, items = read_sides(table, gallery, codes)
    for one in (table, gallery or table):
        VectorTable(one.vectors, str(one.manifest.source))  # refuses what is not finite by the rows of the file
    vectors, others = vector_tables(queries.vectors, items.vectors)
    own = places_of(queries.ids, items.ids, (len(queries.ids), len(items.ids)))
    rescored, groups = None, None
    if steps is not None:
        vectors, others, rescored = refine(vectors, others, own, steps)
    if exclude is not None:
        sources = _numbered([table, gallery or table], exclude)
        groups = sources[0][queries.rows], sources[1][items.rows]
    if codes is not None:
        wanted = MeasureOptions(ks, metrics, relevance or MeasureOptions.relevance, trust=trust)
        found = measure_codes(vectors, others, queries.codes, items.codes, own, groups, wanted, rescored)
        return replace(found, ids=queries.ids, fingerprint=table.fingerprint)
    lists = replace(by_labels(vectors, others, queries.labels, items.labels, own, groups), rescored=rescored)
    result = measure(lists, MeasureOptions(ks, metrics, trust=trust))
    return replace(result, ids=queries.ids, labels=classes_of(queries.labels), fingerprint=table.fingerprint)


def _as_embedding_table(given: EmbeddingTable | Path | str, name: str) -> EmbeddingTable:
    if isinstance(given, str | Path):
        return EmbeddingTable.read(Path(given))
    if not isinstance(given, EmbeddingTable):
        raise InputError(
            f"{name} must be an EmbeddingTable or its file, got {type(given).__name__}; sl.evaluate takes arrays"
        )
    return given


class Side(NamedTuple):
    """The queries of a table, or its gallery; with codes there are no labels, and else no codes."""

    rows: NDArray[np.bool_]
    ids: list[str]
    vectors: NDArray[np.float32]
    labels: Counts
    codes: list[list[str]]


def read_sides(table: EmbeddingTable, gallery: EmbeddingTable | None, codes: str | None = None) -> tuple[Side, Side]:
    """Who queries whom, and what they are: their labels numbered alike, or their codes, of the column of that name.

    Refuses tables that cannot be compared.
    """
    both = [table] if gallery is None else [table, gallery]
    if table.fingerprint != both[-1].fingerprint:
        raise InputError(
            f"{table.manifest.source} and {both[-1].manifest.source}: vectors of two different encoders, "
            f"{table.fingerprint} and {both[-1].fingerprint}, cannot be compared"
        )
    for one in both:
        _check_one_set(one.manifest)
        if codes is None and not one.manifest.n_levels:
            raise InputError(f"{one.manifest.source}: its images have no labels to evaluate by")
    labels = _labels_of(both) if codes is None else [np.zeros((len(one), 0), np.int64) for one in both]
    lists = [[] if codes is None else code_lists(read_codes(one.manifest, codes), codes) for one in both]
    roles = has_role(table.manifest, "is_query"), has_role(both[-1].manifest, "is_gallery")
    queries, items = (
        Side(rows, np.array(one.ids)[rows].tolist(), one.vectors[rows], numbers[rows], [*compress(sets, rows)])
        for rows, one, numbers, sets in zip(
            roles, (table, both[-1]), (labels[0], labels[-1]), (lists[0], lists[-1]), strict=True
        )
    )
    return queries, items


def _labels_of(tables: Sequence[EmbeddingTable]) -> list[Counts]:
    """(N, L) the labels of each table, numbered alike."""
    depths = [one.manifest.n_levels for one in tables]
    if depths[0] != depths[-1]:
        raise InputError(f"labels of {depths[0]} and {depths[-1]} levels cannot be compared")
    if len(tables) == 1:
        return [tables[0].manifest.labels()]
    columns = [_numbered(tables, f"label_{level}") for level in range(depths[0])]
    return [np.stack(sides, 1) for sides in zip(*columns, strict=True)]


def _numbered(tables: Sequence[EmbeddingTable], column: str) -> list[Counts]:
    """The values of a column of each table, numbered alike; -1 where there is none."""
    for one in tables:
        if column not in one.manifest.table.columns:
            raise InputError(f"{one.manifest.source}: no column {column!r}; it has {names(one.manifest.table.columns)}")
    values = pl.concat([one.manifest.table[column].cast(pl.String) for one in tables])
    numbers = (values.rank("dense").cast(pl.Int64) - 1).fill_null(NEVER).to_numpy()
    return np.split(numbers, np.cumsum([len(one) for one in tables])[:-1])


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


def refine(
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

    def rescore(numbers: Counts, scores: Tensor) -> Tensor:
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

    return *sides, rescore


@contextmanager
def join_processes() -> Iterator[bool]:
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
