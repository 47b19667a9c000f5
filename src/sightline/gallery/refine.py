"""What is done after the first ranking, in any gallery: expand the queries, search again, re-rank the first results."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.refine import NOTHING, RERANKERS, Refinement, weighted_sum
from sightline.ranking.similarity import unit

SAME = 0.999  # cosine from which on two vectors are of one image, as that of another encoding of its file
Ids = NDArray[np.object_]


class Searchable(Protocol):
    """What is needed of a gallery."""

    metric: str

    def search(
        self, queries: NDArray[np.float32], k: int = 10, *, where: str | None = None
    ) -> tuple[NDArray[np.float32], Ids]:
        """(Q, K) scores, best first, and the ids of those items."""

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) of some items."""


def refined_search(
    gallery: Searchable,
    queries: NDArray[np.floating[Any]],
    k: int = 10,
    refinement: Refinement = NOTHING,
    *,
    where: str | None = None,
    own: Sequence[str | None] | None = None,
) -> tuple[NDArray[np.float32], Ids]:
    """The k best items of each query after all steps; without steps, what ``gallery.search`` gives.

    Args:
        gallery: any that can search and give vectors.
        queries: (Q, D).
        k: results for each query, at least 1.
        refinement: the steps.
        where: metadata that results must have; queries are expanded by such items too.
        own: the id of each query in the gallery, left out of its results and its expansion; None for one that is not there.

    Returns:
        (Q, K) scores, best first: cosines, or those of the re-ranking, which are not comparable between queries; and (Q, K)
        ids. Where a query has fewer results than another, -inf and None fill its row.
    """
    vectors = np.ascontiguousarray(queries, np.float32)
    if vectors.ndim != 2:
        raise InputError(f"queries: a (Q, D) table is needed, found shape {vectors.shape}")
    own = [None] * len(vectors) if own is None else list(own)
    if len(own) != len(vectors):
        raise InputError(f"own: one id for each of {len(vectors)} queries is needed, found {len(own)}")
    if refinement.expand:
        scores, ids = _search(gallery, vectors, refinement.expand, where, own)
        found = _vectors(gallery, ids, vectors.shape[1])
        # Not the gallery's scores: it may rank by another measure.
        near = (unit(torch.from_numpy(vectors))[:, None] @ unit(found.flatten(0, 1)).view_as(found).mT)[:, 0]
        near = near.masked_fill(torch.from_numpy(scores) == -np.inf, -torch.inf)
        vectors = weighted_sum(torch.from_numpy(vectors), near, found, refinement.alpha).numpy()
    if refinement.rerank is None:
        return _search(gallery, vectors, k, where, own)
    scores, ids = _search(gallery, vectors, max(k, refinement.depth), where, own)
    if not ids.size:
        return scores, ids
    candidates = _vectors(gallery, ids, vectors.shape[1])
    rerank = RERANKERS[refinement.rerank]
    scores = np.full(ids.shape, -np.inf, np.float32)
    lengths = (ids != None).sum(1)  # noqa: E711 -- elementwise
    for length in np.unique(lengths[lengths > 0]):  # queries with as many results as each other are scored together
        rows = np.flatnonzero(lengths == length)
        some = torch.from_numpy(vectors[rows])
        scores[rows, :length] = rerank(some, candidates[rows, :length], refinement.reciprocal).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def best_matches(
    gallery: Searchable, queries: NDArray[np.floating[Any]], own: Sequence[str | None]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How near the best item of all is to each query, as it is and itself left out, and whether the query is an item.

    Args:
        gallery: any that can search and give vectors.
        queries: (Q, D).
        own: the id of each query in the gallery; None for one that is not there by id.

    Returns:
        (Q,) scores of the gallery's measure, -1 where there is no item; and (Q,) bool, True for a query that has an id or
        whose cosine to its best item is at least ``SAME``.
    """
    vectors = np.ascontiguousarray(queries, np.float32)
    scores, ids = refined_search(gallery, vectors, 1, own=own)
    if not ids.shape[1]:
        return np.full(len(vectors), -1.0), np.array([id_ is not None for id_ in own], bool)
    cosines = scores[:, 0]
    if gallery.metric != "cosine":
        best = unit(_vectors(gallery, ids, vectors.shape[1])[:, 0])
        cosines = (unit(torch.from_numpy(vectors)) * best).sum(1).numpy()
    is_item = (cosines >= SAME) | np.array([id_ is not None for id_ in own], bool)
    return np.where(np.isfinite(scores[:, 0]), scores[:, 0], -1.0).astype(np.float64), is_item


def _search(
    gallery: Searchable, queries: NDArray[np.float32], k: int, where: str | None, own: list[str | None]
) -> tuple[NDArray[np.float32], Ids]:
    """The k nearest of each query, itself left out."""
    if all(name is None for name in own):
        return gallery.search(queries, k, where=where)
    scores, ids = gallery.search(queries, k + 1, where=where)
    hidden = ids == np.array(own, object)[:, None]
    hidden &= ids != None  # noqa: E711 -- elementwise
    scores, ids = np.where(hidden, np.float32(-np.inf), scores), ids.copy()
    ids[hidden] = None
    order = np.argsort(hidden, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def _vectors(gallery: Searchable, ids: Ids, dim: int) -> Tensor:
    """(Q, K, D) of all results, each read once; zeros where there is none."""
    known, place = np.unique([name for name in ids.flat if name is not None], return_inverse=True)
    table = np.zeros((len(known) + 1, dim), np.float32)
    if len(known):
        table[:-1] = gallery.vectors(known.tolist())
    places = np.full(ids.size, len(known))
    places[[name is not None for name in ids.flat]] = place
    return torch.from_numpy(table[places.reshape(ids.shape)])
