"""Top-k by brute force in blocks: the oracle of every faster index."""

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.similarity import check_vectors, unit

BLOCK_ELEMENTS = 1 << 24  # scores held at once: 64 MB


def top_k(queries: Tensor, gallery: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest gallery items of each query by cosine, best first; equal scores in the gallery's order.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        k: results wanted, at least 1; fewer come back where the gallery is smaller.

    Returns:
        (Q, K) float32 scores, and (Q, K) int64 places in the gallery.

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
    queries, gallery = unit(queries), unit(gallery)
    found = [_top_k_rows(block @ gallery.T, k) for block in queries.split(max(1, BLOCK_ELEMENTS // max(1, len(gallery))))]
    if not found:
        return queries.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=queries.device)
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
