"""Better vectors before the ranking: query expansion and database-side augmentation by weighted neighbours.

The order that works: whiten (:class:`~sightline.models.heads.Whitening`), augment the gallery, expand queries against it.
"""

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.similarity import unit
from sightline.search.exact import top_k

SUMMED_ELEMENTS = 1 << 22  # numbers of neighbours' vectors held at once


def neighbours(queries: Tensor, gallery: Tensor, k: int, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k nearest items of each query by cosine, itself left out.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        k: how many, at least 1; no more than G come back.
        own: (Q,) int64 the place of each query in the gallery, -1 where it is not there; None if none is.

    Returns:
        (Q, K) scores, best first, and (Q, K) places. Where a row has fewer, -inf and -1 fill it.

    Example:
        >>> _, places = neighbours(torch.eye(2), torch.eye(2), 5, own=torch.arange(2))
        >>> places
        tensor([[ 1, -1],
                [ 0, -1]])
    """
    if own is None or not len(gallery):
        return top_k(queries, gallery, k)
    kept = min(k, len(gallery))
    scores, places = top_k(queries, gallery, kept + 1)
    itself = places == own[:, None]
    if places.shape[1] == kept:  # the whole gallery: there is none to take its place
        scores, places = (torch.cat([side, side[:, -1:]], 1) for side in (scores, places))
        itself = torch.cat([itself, torch.ones_like(itself[:, :1])], 1)
        places = torch.where(itself, -1, places)
        scores = torch.where(itself, -torch.inf, scores)
    order = itself.long().argsort(dim=1, stable=True)[:, :kept]
    return scores.gather(1, order), places.gather(1, order)


def weighted_sum(vectors: Tensor, scores: Tensor, found: Tensor, alpha: float) -> Tensor:
    """Each vector and its neighbours, weighted by their scores to the power of alpha, at unit length.

    Args:
        vectors: (Q, D) with the weight 1.
        scores: (Q, K) of the neighbours; below 0 they count as 0, -inf for none at all.
        found: (Q, K, D) the neighbours' vectors.
        alpha: 0 weights all alike.
    """
    if not alpha >= 0:
        raise InputError(f"alpha is {alpha}; at least 0 is needed")
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
    if k < 0:
        raise InputError(f"k is {k}; at least 0 is needed")
    if k == 0 or not len(gallery):
        return unit(queries)
    scores, places = neighbours(queries, gallery, k, own)
    n_rows = max(1, SUMMED_ELEMENTS // (places.shape[1] * gallery.shape[1]))
    parts = zip(queries.split(n_rows), scores.split(n_rows), places.split(n_rows), strict=True)
    summed = [weighted_sum(some, near, gallery[where.clamp(min=0)], alpha) for some, near, where in parts]
    return torch.cat(summed) if summed else unit(queries)


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
