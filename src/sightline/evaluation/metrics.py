"""Ranking metrics, relevant or not: one value a query, NaN where it is undefined.

All take ``ranked``, (Q, K) bool, True where the item at that place is relevant, best place first; and ``n_relevant``, (Q,)
int64, relevant items in the query's whole list. Relevant items that ``ranked`` lacks count as missed. A metric of a query
without a relevant item is NaN.
"""

import torch
from torch import Tensor


def _defined(values: Tensor, n_relevant: Tensor) -> Tensor:
    return values.double().where(n_relevant > 0, torch.nan)


def _precision_at_hits(ranked: Tensor) -> Tensor:
    """(Q, K) float64: precision at each relevant place, 0 elsewhere."""
    place = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64, device=ranked.device)
    return ranked.cumsum(1) / place * ranked


def recall_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Is one of the first k relevant? The "recall" of image retrieval, a hit rate.

    Returns:
        (Q,) float64, 0 or 1.

    Example:
        >>> recall_at_k(torch.tensor([[False, True]]), torch.tensor([1]), k=1)
        tensor([0.], dtype=torch.float64)
    """
    return _defined(ranked[:, :k].any(1), n_relevant)


def average_precision(ranked: Tensor, n_relevant: Tensor) -> Tensor:
    """Mean over the relevant items of the precision at their place.

    Returns:
        (Q,) float64 in [0, 1].

    Example:
        >>> average_precision(torch.tensor([[True, False, True]]), torch.tensor([2]))
        tensor([0.8333], dtype=torch.float64)
    """
    return _precision_at_hits(ranked).sum(1) / _defined(n_relevant, n_relevant)


def map_at_r(ranked: Tensor, n_relevant: Tensor) -> Tensor:
    """Average precision over the first R places alone, R being the number of relevant items of that query.

    Returns:
        (Q,) float64 in [0, 1], never above :func:`average_precision`.

    Example:
        >>> map_at_r(torch.tensor([[True, False, True]]), torch.tensor([2]))
        tensor([0.5000], dtype=torch.float64)
    """
    place = torch.arange(ranked.shape[1], device=ranked.device)
    counted = _precision_at_hits(ranked) * (place < n_relevant[:, None])
    return counted.sum(1) / _defined(n_relevant, n_relevant)
