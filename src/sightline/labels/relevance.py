"""Levels of shared labels to relevance: how much an item that shares so many levels is worth.

All take ``counts``, (Q, M), how many items of each level 0..L (M = L + 1) a query's list has, and give (Q, M) float64, 0 at
level 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.registry import option_parameters


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
    return (torch.tensor((0.0, *weights), dtype=torch.float64, device=counts.device) / at_least).cumsum(1)


def exponential_relevance(counts: Tensor) -> Tensor:
    """``2 ** l - 1``: the gain of NDCG."""
    return (2.0 ** torch.arange(counts.shape[1], dtype=torch.float64, device=counts.device) - 1).expand(len(counts), -1)


RELEVANCES: dict[str, Callable[..., Tensor]] = {
    "exponential": exponential_relevance,
    "population": population_relevance,
    "sum_wap": sum_wap_relevance,
    "weight": weight_relevance,
}


@dataclass(frozen=True)
class Relevance:
    """How much an item of each level is worth.

    Attributes:
        name: of ``RELEVANCES``: ``population`` divides ``(l / L) ** alpha`` by the items of
            that level, ``weight`` does not, ``sum_wap`` makes hierarchical AP the weighted sum of each level's AP,
            ``exponential`` is ``2 ** l - 1``.
        alpha: for ``population`` and ``weight``.
        weights: of the levels from the coarsest on, with sum 1, for ``sum_wap``; None for equal ones.
        values: worth of the levels 1..L themselves, whatever the name.
        count_self: count the query among the items of its own class, as the public code of the papers does.
        monotone: let no level be worth less than a coarser one.

    Example:
        >>> Relevance("weight").of(np.array([[1, 1, 2]]))
        array([[0.33333333, 0.66666667, 1.        ]])
    """

    name: str = "population"
    alpha: float = 1.0
    weights: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None
    count_self: bool = False
    monotone: bool = False

    def __post_init__(self) -> None:
        choose(RELEVANCES, self.name, "relevance")
        for name, given in (("alpha", (self.alpha,)), ("weights", self.weights), ("values", self.values)):
            if given is not None and not all(0 <= value < np.inf for value in given):
                raise InputError(f"{name} must be finite and at least 0, got {list(given)}")

    def of(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """(Q, L) the worth of an item of each level, in lists with (Q, L) items of each."""
        if self.values is not None:
            if len(self.values) != counts.shape[1]:
                raise InputError(f"{len(self.values)} values for {counts.shape[1]} levels")
            return np.broadcast_to(np.array(self.values, np.float64), counts.shape)
        table = torch.from_numpy(np.pad(counts, ((0, 0), (1, 0))))
        table[:, -1] += self.count_self
        function = RELEVANCES[self.name]
        options = {key: getattr(self, key) for key in option_parameters(function) if key != "counts"}
        worth: NDArray[np.float64] = function(table, **options).numpy()[:, 1:]
        return np.maximum.accumulate(worth, 1) if self.monotone else worth


POPULATION, EXPONENTIAL = Relevance(), Relevance("exponential")


def as_relevance(relevance: "str | Relevance") -> Relevance:
    """The relevance of that name with its default options, or the one given; an unknown name is refused."""
    return Relevance(relevance) if isinstance(relevance, str) else relevance
