"""Ranking metrics, relevant or not: one value a query, NaN where it is undefined.

All take ``ranked``, (Q, K) bool, True where the item at that place is relevant, best place first; and ``n_relevant``, (Q,)
int64, relevant items in the query's whole list. Relevant items that ``ranked`` lacks count as missed. A metric of a query
without a relevant item is NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError


def _defined(values: Tensor, n_relevant: Tensor) -> Tensor:
    return values.double().where(n_relevant > 0, torch.nan)


def _precision_at_hits(ranked: Tensor) -> Tensor:
    """(Q, K) float64: precision at each relevant place, 0 elsewhere."""
    place = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64, device=ranked.device)
    return ranked.cumsum(1) / place * ranked


def _first(ranked: Tensor, k: int) -> Tensor:
    if k < 1:
        raise InputError(f"k is {k}; at least 1 is needed")
    return ranked[:, :k]


def recall_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Is one of the first k relevant? The "recall" of image retrieval, a hit rate; its curve over k is the CMC.

    Returns:
        (Q,) float64, 0 or 1.

    Example:
        >>> recall_at_k(torch.tensor([[False, True]]), torch.tensor([1]), k=1)
        tensor([0.], dtype=torch.float64)
    """
    return _defined(_first(ranked, k).any(1), n_relevant)


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


def map_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Average precision over the first k places alone, divided by as many relevant items as those could hold.

    Returns:
        (Q,) float64 in [0, 1]; :func:`average_precision` where k is the length of the list.

    Example:
        >>> map_at_k(torch.tensor([[True, False, True]]), torch.tensor([2]), k=2)
        tensor([0.5000], dtype=torch.float64)
    """
    return _first(_precision_at_hits(ranked), k).sum(1) / _defined(n_relevant.clamp(max=k), n_relevant)


def precision_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Relevant items among the first k, divided by k even where the list is shorter.

    Example:
        >>> precision_at_k(torch.tensor([[True, False, True]]), torch.tensor([2]), k=4)
        tensor([0.5000], dtype=torch.float64)
    """
    return _defined(_first(ranked, k).sum(1), n_relevant) / k


def true_recall_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Relevant items among the first k, divided by as many as there could be.

    Example:
        >>> true_recall_at_k(torch.tensor([[True, False, True]]), torch.tensor([2]), k=1)
        tensor([1.], dtype=torch.float64)
    """
    return _first(ranked, k).sum(1) / _defined(n_relevant.clamp(max=k), n_relevant)


def classical_recall_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Relevant items among the first k, divided by all: the recall of text retrieval.

    Example:
        >>> classical_recall_at_k(torch.tensor([[True, False, True]]), torch.tensor([2]), k=1)
        tensor([0.5000], dtype=torch.float64)
    """
    return _first(ranked, k).sum(1) / _defined(n_relevant, n_relevant)


def r_precision(ranked: Tensor, n_relevant: Tensor) -> Tensor:
    """Relevant items among the first R, divided by R, the number of relevant items of that query.

    Example:
        >>> r_precision(torch.tensor([[True, False, True]]), torch.tensor([2]))
        tensor([0.5000], dtype=torch.float64)
    """
    place = torch.arange(ranked.shape[1], device=ranked.device)
    return (ranked & (place < n_relevant[:, None])).sum(1) / _defined(n_relevant, n_relevant)


def trapezoid_average_precision(ranked: Tensor, n_relevant: Tensor) -> Tensor:
    """Average precision as the revisited Oxford and Paris sets take it: the area below straight lines, not steps.

    Each relevant item counts the mean of the precision at its place and just before it, which is 1 before the first place.

    Example:
        >>> trapezoid_average_precision(torch.tensor([[True, False, True, True]]), torch.tensor([3]))
        tensor([0.7639], dtype=torch.float64)
    """
    before = torch.arange(ranked.shape[1], dtype=torch.float64, device=ranked.device)
    earlier = ((ranked.cumsum(1) - ranked.long()) / before.clamp(min=1)).where(before > 0, 1.0) * ranked
    return (_precision_at_hits(ranked) + earlier).sum(1) / 2 / _defined(n_relevant, n_relevant)


def revisited_precision_at_k(ranked: Tensor, n_relevant: Tensor, k: int) -> Tensor:
    """Precision at k, or at the place of the last relevant item where that comes first: mP@k of the revisited sets.

    Example:
        >>> revisited_precision_at_k(torch.tensor([[True, True, False]]), torch.tensor([2]), k=3)
        tensor([1.], dtype=torch.float64)
    """
    place = torch.arange(1, ranked.shape[1] + 1, device=ranked.device)
    found = _first(ranked, k).sum(1)
    last = F.pad(place * ranked, (1, 0)).amax(1).clamp(min=1, max=k)
    return _defined(found, n_relevant) / last
