"""Levels of shared labels to relevance: how much an item that shares so many levels is worth.

All take ``counts``, (Q, M), how many items of each level 0..L (M = L + 1) a query's list has, and give (Q, M) float64, 0 at
level 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sightline.errors import InputError


def weight_relevance(counts: Tensor, alpha: float = 1.0) -> Tensor:
    """``(l / L) ** alpha``, whatever the counts."""
    n_levels = counts.shape[1] - 1
    shares = torch.arange(n_levels + 1, dtype=torch.float64, device=counts.device) / max(n_levels, 1)
    return (shares**alpha).where(shares > 0, 0.0).expand(len(counts), -1)


def population_relevance(counts: Tensor, alpha: float = 1.0) -> Tensor:
    """``(l / L) ** alpha`` shared among the items of the level: each level weighs the same however many items it has.

    Not always larger for a finer level: where that has many more items, each of them is worth less.

    Example:
        >>> population_relevance(torch.tensor([[1, 1, 1, 2]]))
        tensor([[0.0000, 0.3333, 0.6667, 0.5000]], dtype=torch.float64)
    """
    return weight_relevance(counts, alpha) / counts.clamp(min=1)


def sum_wap_relevance(counts: Tensor, weights: tuple[float, ...] | None = None) -> Tensor:
    """What makes hierarchical AP the weighted sum of each level's AP: the sum over p <= l of ``w_p / items of level >= p``.

    Args:
        counts: (Q, M).
        weights: of the levels from the coarsest on, with sum 1; None for equal ones.
    """
    n_levels = counts.shape[1] - 1
    weights = weights or (1 / n_levels,) * n_levels
    if len(weights) != n_levels:
        raise InputError(f"{len(weights)} weights for {n_levels} levels")
    at_least = counts.flip(1).cumsum(1).flip(1).clamp(min=1)
    shares = torch.tensor((0.0, *weights), dtype=torch.float64, device=counts.device) / at_least
    return shares.cumsum(1)


def exponential_relevance(counts: Tensor) -> Tensor:
    """``2 ** l - 1``: the gain of NDCG."""
    return (2.0 ** torch.arange(counts.shape[1], dtype=torch.float64, device=counts.device) - 1).expand(len(counts), -1)


RELEVANCES: dict[str, Callable[..., Tensor]] = {
    "exponential": exponential_relevance,
    "population": population_relevance,
    "sum_wap": sum_wap_relevance,
    "weight": weight_relevance,
}
