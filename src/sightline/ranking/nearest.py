"""The nearest items of each query, by brute force in blocks: the oracle of every faster index."""

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.ranks import check_range
from sightline.ranking.similarity import check_vectors, full_precision, score_blocks

BLOCK_ELEMENTS = 1 << 24  # scores held at once: 64 MB


def top_k(queries: Tensor, gallery: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest gallery items of each query by cosine, best first; equal scores in the gallery's order.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        k: results to return, at least 1; fewer where the gallery is smaller.

    Returns:
        (Q, K) scores, float32 or, where either side is, float64; and (Q, K) int64 places in the gallery.

    Example:
        >>> scores, places = top_k(torch.tensor([[1.0, 0.1]]), torch.eye(2), k=1)
        >>> places
        tensor([[0]])
    """
    check_vectors(queries=queries, gallery=gallery)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(f"queries and gallery must have one dimension, got {queries.shape[1]} and {gallery.shape[1]}")
    check_range("[1, inf)", k=k)
    k = min(k, len(gallery))
    found = [_top_k_rows(scores, k) for _, scores in score_blocks(queries, gallery, BLOCK_ELEMENTS)]
    if not found:
        return full_precision(queries).new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=queries.device)
    return torch.cat([scores for scores, _ in found]), torch.cat([places for _, places in found])


def _top_k_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best, places = scores.topk(k, dim=1)
    # topk breaks ties as it likes: put those it returned in order, and redo the rows it cut in the middle of a tie.
    places = places.sort(1).values
    best, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    cut = (scores >= best[:, -1:]).sum(1) > k
    if cut.any():
        redone = scores[cut].sort(dim=1, descending=True, stable=True)
        best[cut], places[cut] = redone.values[:, :k], redone.indices[:, :k]
    return best, places


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
    order = itself.long().argsort(dim=1, stable=True)[:, :kept]  # itself last; it stays where the gallery has no other
    return scores.masked_fill(itself, -torch.inf).gather(1, order), places.masked_fill(itself, -1).gather(1, order)


def hard_negatives(queries: Tensor, query_classes: Tensor, items: Tensor, classes: Tensor, n: int) -> Tensor:
    """The nearest items of other classes, over a whole set: for each query one item of each of the n nearest classes.

    Args:
        queries: (Q, D).
        query_classes: (Q,) their classes.
        items: (G, D).
        classes: (G,) their classes, from 0 on.
        n: negatives of a query, at least 1.

    Returns:
        (Q, n) int64 rows of the items, nearest first, of equal scores that of the first class; -1 where these are fewer.

    Example:
        >>> items = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]])
        >>> hard_negatives(items[:1], torch.tensor([0]), items, torch.tensor([0, 1, 1, 2]), n=2)
        tensor([[1, 3]])
    """
    check_vectors(queries=queries, items=items)
    check_range("[1, inf)", n=n)
    n_classes = int(classes.max()) + 1 if len(classes) else 0
    found = torch.full((len(queries), n), -1)
    for block, scores in score_blocks(queries, items, BLOCK_ELEMENTS):
        own = query_classes[block]
        scores = scores.masked_fill(own[:, None] == classes, -torch.inf)
        best = scores.new_full((len(scores), n_classes), -torch.inf)
        best.scatter_reduce_(1, classes.expand(len(scores), -1), scores, "amax")
        values, nearest = (part[:, :n] for part in best.sort(dim=1, descending=True, stable=True))
        for place, (value, of_class) in enumerate(zip(values.T, nearest.T, strict=True)):
            rows = scores.masked_fill(classes != of_class[:, None], -torch.inf).argmax(1)
            found[block, place] = rows.where(value.isfinite(), -1).cpu()
    return found


def top_k_products(
    queries: Tensor, table: Tensor, n_rows: int, k: int, shown: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest inner products of each query, without a check or a copy: for vectors that were checked before.

    Args:
        queries: (Q, D) float32.
        table: (R', D) float32, its rows filled up to a multiple of 16: copies of a vector then score the same.
        n_rows: R, how many of them count.
        k: results to return, no more than there are.
        shown: (R,) bool, False where a row cannot be found; None for all.

    Returns:
        (Q, K) scores, best first, equal ones in the table's order; and (Q, K) int64 rows.
    """
    n_at_once = max(1, BLOCK_ELEMENTS // max(1, len(table)))
    scores, places = queries.new_empty(len(queries), k), torch.empty(len(queries), k, dtype=torch.int64)
    if not k:
        return scores, places
    for start in range(0, len(queries), n_at_once):
        part = slice(start, start + n_at_once)
        products = (queries[part] @ table.T)[:, :n_rows]
        if shown is not None:
            products.masked_fill_(~shown, -torch.inf)
        scores[part], places[part] = _top_k_rows(products, k)
    return scores, places
