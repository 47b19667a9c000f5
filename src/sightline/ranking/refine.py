"""The steps around the first ranking, on plain vectors: expand queries, augment the gallery, re-rank the first results.

The order that works: whiten (:class:`~sightline.models.heads.Whitening`), augment the gallery, expand queries against it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.ranking.nearest import neighbours
from sightline.ranking.ranks import check_range
from sightline.ranking.similarity import unit

POOL_ELEMENTS = 1 << 22  # pairs of a block of queries held at once
SUMMED_ELEMENTS = 1 << 22  # numbers of neighbours' vectors held at once


def weighted_sum(vectors: Tensor, scores: Tensor, found: Tensor, alpha: float) -> Tensor:
    """Each vector and its neighbours, weighted by their scores to the power of alpha, at unit length.

    Args:
        vectors: (Q, D) with the weight 1.
        scores: (Q, K) of the neighbours; below 0 they count as 0, -inf for none at all.
        found: (Q, K, D) the neighbours' vectors.
        alpha: 0 weights all alike.
    """
    check_range("[0, inf]", alpha=alpha)
    weights = scores.clamp(min=0).pow(alpha).masked_fill(scores == -torch.inf, 0)
    return unit(unit(vectors).to(weights) + (weights[:, None] @ unit(found.flatten(0, 1)).view_as(found).to(weights))[:, 0])


def expand_queries(queries: Tensor, gallery: Tensor, k: int = 10, alpha: float = 2.0, own: Tensor | None = None) -> Tensor:
    """Alpha-weighted query expansion: each query with its k nearest items, to search with again.

    ``q' = unit(q + sum over the k nearest of max(score, 0) ** alpha * item)``. Alpha 0 is the plain average; a large one,
    or k of 0, leaves the query as it is.

    Args:
        queries: (Q, D).
        gallery: (G, D), augmented or not.
        k: neighbours to add; no more than there are.
        alpha: power of the scores, at least 0.
        own: (Q,) int64 the place of each query in the gallery, left out; -1 where it is not there.

    Returns:
        (Q, D) unit vectors.

    Example:
        >>> expand_queries(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]), k=1)
        tensor([[0.9692, 0.2462]])
    """
    check_range("[0, inf)", k=k)
    if k == 0 or not len(gallery) or not len(queries):
        return unit(queries)
    scores, places = neighbours(queries, gallery, k, own)
    n_rows = max(1, SUMMED_ELEMENTS // (places.shape[1] * gallery.shape[1]))
    parts = zip(queries.split(n_rows), scores.split(n_rows), places.split(n_rows), strict=True)
    return torch.cat([weighted_sum(some, near, gallery[where.clamp(min=0)], alpha) for some, near, where in parts])


def augment_gallery(gallery: Tensor, k: int = 10, alpha: float = 2.0) -> Tensor:
    """Database-side augmentation: each item with its k nearest others, weighted as in :func:`expand_queries`.

    All pairs are compared, in blocks; the vectors given are the ones that neighbours are found and summed from.

    Args:
        gallery: (G, D).
        k: neighbours to add to each; no more than there are.
        alpha: power of the scores, at least 0.

    Returns:
        (G, D) unit vectors.
    """
    return expand_queries(gallery, gallery, k, alpha, own=torch.arange(len(gallery), device=gallery.device))


def kreciprocal_scores(
    queries: Tensor, candidates: Tensor, k_1: int = 20, k_2: int = 6, original_weight: float = 0.3
) -> Tensor:
    """Scores of each query's candidates by how many neighbours they share with it, and by their distance.

    The pool of a query is itself and its candidates. ``N(p, k)`` is p and its k nearest others in the pool; ``R(p, k)``
    those in whose own N(., k) p is. R(p, k_1) is extended by R(q, k_1 / 2) of each of its members q that has two thirds of
    that in R(p, k_1). Each p is then described by ``exp(-d(p, g))`` for the members g of its set, 0 for others, scaled to
    the sum 1 and averaged over N(p, k_2 - 1). The score is 1 less the weighted mean of the Jaccard distance of two
    descriptions and d: the squared distance of the unit vectors, divided by the largest that p has in the pool. Items as
    near as others count in the order given. With all items as candidates this is the k-reciprocal encoding of Zhong et al.
    (2017) for one query. It costs about M x M x (D + 3 M) for each.

    Args:
        queries: (Q, D).
        candidates: (Q, M, D) of each query, best first.
        k_1: neighbours of which reciprocal ones are kept, at least 1.
        k_2: descriptions averaged, at least 1: itself.
        original_weight: of the distance, from 0 to 1; 1 keeps the order of the cosines.

    Returns:
        (Q, M) scores from 0 to 1, higher is nearer; not comparable between queries.

    Example:
        >>> kreciprocal_scores(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.8, 0.6], [0.0, 1.0]]]), k_1=1, k_2=1)
        tensor([[0.7342, 0.0000]])
    """
    if candidates.ndim != 3 or queries.shape != (len(candidates), candidates.shape[2]):
        raise InputError(
            f"queries and candidates must be (Q, D) and (Q, M, D), got {tuple(queries.shape)} and {tuple(candidates.shape)}"
        )
    check_range("[1, inf)", k_1=k_1, k_2=k_2)
    check_range("[0, 1]", original_weight=original_weight)
    if 0 in candidates.shape[:2]:
        return queries.new_zeros(candidates.shape[:2])
    n_rows = max(1, POOL_ELEMENTS // (candidates.shape[1] + 1) ** 2)
    pools = zip(queries.split(n_rows), candidates.split(n_rows), strict=True)
    return torch.cat([_pool_scores(torch.cat([some[:, None], near], 1), k_1, k_2, original_weight) for some, near in pools])


def _pool_scores(pool: Tensor, k_1: int, k_2: int, original_weight: float) -> Tensor:
    pool = unit(pool.flatten(0, 1)).view(pool.shape)
    distance = 2 - 2 * pool @ pool.mT  # (B, n, n)
    rounding = torch.finfo(distance.dtype)
    distance = distance.masked_fill(distance < 16 * rounding.eps, 0)  # copies, and each with itself
    distance = distance / distance.amax(2, keepdim=True).clamp(min=rounding.tiny)
    # Itself first, before any copy of it.
    nearest = distance.diagonal_scatter(distance.new_full(distance.shape[:2], -1), dim1=1, dim2=2).argsort(
        dim=2, stable=True
    )
    sets = _reciprocal(nearest, k_1)
    halves = _reciprocal(nearest, max(1, round(k_1 / 2)))
    shared = sets @ halves.mT  # (B, n, n): at [p, q], members of p's set in q's half
    joining = sets * (3 * shared >= 2 * halves.sum(2)[:, None])
    sets = ((sets + joining @ halves) > 0).to(distance)
    described = (-distance).exp() * sets
    described = described / described.sum(2, keepdim=True)
    if k_2 > 1:
        some = torch.zeros_like(described).scatter_(2, nearest[:, :, :k_2], 1)
        described = some @ described / some.sum(2, keepdim=True)
    both = torch.minimum(described[:, :1], described[:, 1:]).sum(2)
    jaccard = 1 - both / (2 - both)
    return 1 - (1 - original_weight) * jaccard - original_weight * distance[:, 0, 1:]


def _reciprocal(nearest: Tensor, k: int) -> Tensor:
    """(B, n, n) 1 where each is among the k nearest of the other."""
    among = torch.zeros(nearest.shape, device=nearest.device).scatter_(2, nearest[:, :, : k + 1], 1)
    return among * among.mT


def _by_kreciprocal(queries: Tensor, candidates: Tensor, n_neighbours: int) -> Tensor:
    # Zhong et al. choose 20 and 6.
    return kreciprocal_scores(queries, candidates, n_neighbours, max(1, round(0.3 * n_neighbours)))


# Scores by queries (Q, D), candidates (Q, M, D) and the neighbours to look at.
RERANKERS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {"kreciprocal": _by_kreciprocal}


@dataclass(frozen=True)
class Refinement:
    """The steps after the first ranking; by default there are none.

    Attributes:
        expand: neighbours that each query is expanded by, before a second search; 0 for no expansion.
        alpha: power of their similarity that they are weighted by; 0 weights them alike.
        rerank: how the first results are ordered again: ``kreciprocal``; None leaves them.
        depth: results that are ordered again, or as many as are asked for if that is more.
        reciprocal: neighbours that the re-ranking compares: about as many images as a class has.

    Example:
        >>> Refinement(expand=10, rerank="kreciprocal")
        Refinement(expand=10, alpha=2.0, rerank='kreciprocal', depth=100, reciprocal=20)
    """

    expand: int = 0
    alpha: float = 2.0
    rerank: str | None = None
    depth: int = 100
    reciprocal: int = 20

    def __post_init__(self) -> None:
        check_range("[0, inf]", expand=self.expand, alpha=self.alpha)
        check_range("[1, inf)", depth=self.depth, reciprocal=self.reciprocal)
        if self.rerank is not None:
            choose(RERANKERS, self.rerank, "re-ranking")


NOTHING = Refinement()
