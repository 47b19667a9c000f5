"""Top-k by brute force in blocks: the oracle of every faster index."""

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.similarity import check_vectors, full_precision, score_blocks

BLOCK_ELEMENTS = 1 << 24  # scores held at once: 64 MB


def top_k(queries: Tensor, gallery: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest gallery items of each query by cosine, best first; equal scores in the gallery's order.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        k: results wanted, at least 1; fewer come back where the gallery is smaller.

    Returns:
        (Q, K) scores, float32 or, where either side is, float64; and (Q, K) int64 places in the gallery.

    Example:
        >>> scores, places = top_k(torch.tensor([[1.0, 0.1]]), torch.eye(2), k=1)
        >>> places
        tensor([[0]])
    """
    check_vectors(queries, "queries")
    check_vectors(gallery, "gallery")
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(f"queries have {queries.shape[1]} dimensions, the gallery {gallery.shape[1]}")
    if k < 1:
        raise InputError(f"k is {k}; at least 1 is needed")
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
