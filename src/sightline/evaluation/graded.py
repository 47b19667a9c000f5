"""Ranking metrics on a label tree: one value a query, NaN where it is undefined.

A pair's level is how many label levels it shares, from the coarsest on: 0 nothing, L the finest. Functions of ``ranked``
take (Q, K) levels, best place first, -1 where a list has ended; functions of :class:`Statistics` are the same metrics
without the lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.evaluation.statistics import Counts, Floats, Statistics, list_statistics
from sightline.hierarchy.relevance import RELEVANCES


@dataclass(frozen=True)
class Relevance:
    """How much an item of each level is worth.

    Attributes:
        name: of ``sightline.hierarchy.relevance.RELEVANCES``: ``population`` divides ``(l / L) ** alpha`` by the items of
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

    def of(self, counts: Counts) -> Floats:
        """(Q, L) the worth of an item of each level, in lists with (Q, L) items of each."""
        if self.values is not None:
            if len(self.values) != counts.shape[1]:
                raise InputError(f"{len(self.values)} values for {counts.shape[1]} levels")
            if not all(0 <= value < np.inf for value in self.values):
                raise InputError(f"values are {list(self.values)}; finite numbers from 0 on are needed")
            return np.broadcast_to(np.array(self.values, np.float64), counts.shape)
        function = choose(RELEVANCES, self.name, "relevance")
        if not 0 <= self.alpha < np.inf:
            raise InputError(f"alpha is {self.alpha}; a finite number from 0 on is needed")
        if self.weights is not None and not all(0 <= weight < np.inf for weight in self.weights):
            raise InputError(f"weights are {list(self.weights)}; finite numbers from 0 on are needed")
        table = torch.from_numpy(np.pad(counts, ((0, 0), (1, 0))))
        if self.count_self:
            table[:, -1] += 1
        options: dict[str, object] = {}
        if self.name in ("population", "weight"):
            options["alpha"] = self.alpha
        elif self.name == "sum_wap":
            options["weights"] = self.weights
        worth: Floats = function(table, **options).numpy()[:, 1:]
        return np.maximum.accumulate(worth, 1) if self.monotone else worth


POPULATION, EXPONENTIAL = Relevance(), Relevance("exponential")


def as_relevance(relevance: "str | Relevance") -> Relevance:
    """The relevance of that name with its usual options, or the one given; an unknown name is refused."""
    found = Relevance(relevance) if isinstance(relevance, str) else relevance
    choose(RELEVANCES, found.name, "relevance")
    return found


def _share(part: Floats, whole: Floats) -> Floats:
    """part / whole; NaN where whole is 0."""
    found: Floats = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) > 0)
    return found


def _finer(values: NDArray[Any], level: int) -> Floats:
    """Sum over the levels from ``level`` (1..L) on."""
    found: Floats = values[..., level - 1 :].sum(-1)
    return found


# Relevant or not: "relevant" is an item of ``level`` or finer.


def hit_rate_of(stats: Statistics, k: int, level: int) -> Floats:
    """1 if one of the first k is relevant."""
    best = np.where(stats.first > 0, stats.first, k + 1)[:, level - 1 :].min(1)
    return np.where(_finer(stats.counts, level) > 0, best <= k, np.nan)


def true_recall_of(stats: Statistics, k: int, level: int) -> Floats:
    """Relevant items among the first k, of as many as there could be."""
    return _share(_finer(stats.found[:, stats.at(k)], level), np.minimum(k, _finer(stats.counts, level)))


def classical_recall_of(stats: Statistics, k: int, level: int) -> Floats:
    """Relevant items among the first k, of all."""
    return _share(_finer(stats.found[:, stats.at(k)], level), _finer(stats.counts, level))


def precision_of(stats: Statistics, k: int, level: int) -> Floats:
    """Relevant items among the first k, divided by k even where the list is shorter."""
    return np.where(_finer(stats.counts, level) > 0, _finer(stats.found[:, stats.at(k)], level) / k, np.nan)


def ap_of(stats: Statistics, level: int) -> Floats:
    """Average precision."""
    return _share(stats.precision[:, level - 1 :, level - 1 :].sum((1, 2)), _finer(stats.counts, level))


def map_at_r_of(stats: Statistics, level: int) -> Floats:
    """Average precision over the first R places, R being the number of relevant items."""
    return _share(stats.precision_at_r[:, level - 1], _finer(stats.counts, level))


def r_precision_of(stats: Statistics, level: int) -> Floats:
    """Relevant items among the first R, of R."""
    return _share(stats.found_at_r[:, level - 1], _finer(stats.counts, level))


def map_at_k_of(stats: Statistics, k: int, level: int) -> Floats:
    """Average precision over the first k places, divided by ``min(k, relevant items)``."""
    return _share(stats.precision_at_k[:, stats.at(k), level - 1], np.minimum(k, _finer(stats.counts, level)))


def set_precision_of(stats: Statistics, level: int) -> Floats:
    """ASI with ``level`` or finer as the only level: mean over the places 1..R of the precision there."""
    return _share(stats.set_precision[:, level - 1], _finer(stats.counts, level))


# In levels.


def h_ap_of(stats: Statistics, relevance: Relevance = POPULATION) -> Floats:
    """Hierarchical average precision."""
    worth = relevance.of(stats.counts)
    lesser = np.minimum(worth[:, :, None], worth[:, None, :])
    return _share((lesser * stats.precision).sum((1, 2)), (worth * stats.counts).sum(1))


def h_recall_of(stats: Statistics, k: int, relevance: Relevance = POPULATION) -> Floats:
    """Hierarchical recall: the worth of the first k, of that of the whole list."""
    worth = relevance.of(stats.counts)
    return _share((worth * stats.found[:, stats.at(k)]).sum(1), (worth * stats.counts).sum(1))


def h_precision_of(stats: Statistics, k: int, relevance: Relevance = POPULATION) -> Floats:
    """Hierarchical precision: what the first k share with the k-th, of k times its worth; NaN where it has none.

    Needs the statistics at k - 1 as well.
    """
    worth, found = relevance.of(stats.counts), stats.found[:, stats.at(k)]
    at = (worth * (found - stats.found[:, stats.at(k - 1)])).sum(1)
    return _share((np.minimum(worth, at[:, None]) * found).sum(1), k * at)


def weighted_ap_of(stats: Statistics, weights: tuple[float, ...] | None = None) -> Floats:
    """Weighted sum of each level's average precision, weights from the coarsest on; None for equal ones."""
    return h_ap_of(stats, Relevance("sum_wap", weights=weights))


def ndcg_of(stats: Statistics, gain: Relevance = EXPONENTIAL, k: int | None = None) -> Floats:
    """Normalised discounted cumulative gain, the ideal taken from the whole list."""
    worth = gain.of(stats.counts)
    if (np.diff(worth, axis=1) < 0).any():
        # The ideal order is that of the gains: sort the levels of each query by them.
        order = worth.argsort(1, kind="stable")
    else:
        order = np.broadcast_to(np.arange(stats.n_levels), worth.shape)
    counts = np.take_along_axis(stats.counts, order, 1)
    ends = np.flip(np.flip(counts, 1).cumsum(1), 1)
    starts = ends - counts
    n_most = int(ends.max(initial=0)) if k is None else k
    total = np.append(0.0, (1 / np.log2(1 + np.arange(1, n_most + 1))).cumsum())
    ideal = total[np.minimum(ends, n_most)] - total[np.minimum(starts, n_most)]
    discount = stats.discount if k is None else stats.discount_at_k[:, stats.at(k)]
    return _share((worth * discount).sum(1), (np.take_along_axis(worth, order, 1) * ideal).sum(1))


def asi_of(stats: Statistics) -> Floats:
    """Average set intersection with the ideal list, on level counts."""
    return _share(stats.asi, stats.counts.sum(1))


def hierarchical_distance_of(stats: Statistics, k: int) -> Floats:
    """Mean of L - level over the first k, right ones included; NaN for a query without a relevant item."""
    found = stats.found[:, stats.at(k)]
    n_shown = np.minimum(k, stats.length)
    total = stats.n_levels * n_shown - (found * np.arange(1, stats.n_levels + 1)).sum(1)
    return np.where(stats.counts.sum(1) > 0, _share(total, n_shown), np.nan)


def severity_of(stats: Statistics, k: int) -> Floats:
    """Mean of L - level over the wrong items among the first k; NaN where none is wrong or nothing is relevant.

    At k = 1 the mean over queries is the mistake severity; above it :func:`pooled_severity` weighs every mistake alike.
    """
    total, n_wrong = _mistakes(stats, k)
    return np.where(stats.counts.sum(1) > 0, _share(total, n_wrong), np.nan)


def pooled_severity(stats: Statistics, k: int) -> tuple[float, int]:
    """Mean of L - level over all wrong items among the first k of all queries, and how many they are; NaN where none is."""
    counted = stats.counts.sum(1) > 0
    total, n_wrong = (values[counted].sum() for values in _mistakes(stats, k))
    return (float(total / n_wrong), int(n_wrong)) if n_wrong else (float("nan"), 0)


def _mistakes(stats: Statistics, k: int) -> tuple[Floats, Floats]:
    found = stats.found[:, stats.at(k)]
    n_shown = np.minimum(k, stats.length)
    total = stats.n_levels * n_shown - (found * np.arange(1, stats.n_levels + 1)).sum(1)
    return total, n_shown - found[:, -1]


# The same on ranked lists.


def _on_lists(
    metric: Callable[..., Floats], ranked: Tensor, n_levels: int, *options: object, k: int | None = None
) -> Tensor:
    _check_levels(ranked, n_levels)
    if k is not None and k < 1:
        raise InputError(f"k is {k}; at least 1 is needed")
    stats = list_statistics(ranked, n_levels, () if k is None else (k,))
    return torch.from_numpy(metric(stats, *options)).to(ranked.device)


def _check_levels(ranked: Tensor, n_levels: int) -> None:
    if ranked.numel() and ranked.max() > n_levels:
        raise InputError(f"ranked: levels up to {n_levels} are needed, found {int(ranked.max())}")


def level_average_precision(ranked: Tensor, n_levels: int, level: int) -> Tensor:
    """Average precision with the items of ``level`` (1 the coarsest) and finer as relevant.

    Example:
        >>> level_average_precision(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3, level=3)
        tensor([0.4500], dtype=torch.float64)
    """
    if not 1 <= level <= n_levels:
        raise InputError(f"level is {level}; from 1, the coarsest, to {n_levels} is needed")
    return _on_lists(ap_of, ranked, n_levels, level)


def h_ap(ranked: Tensor, n_levels: int, relevance: str | Relevance = POPULATION) -> Tensor:
    """Hierarchical average precision: AP in which an item of less worth counts as a part of one of more.

    1 exactly where the list is sorted by worth; AP where there is one level.

    Example:
        >>> h_ap(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3, relevance=Relevance("weight"))
        tensor([0.7833], dtype=torch.float64)
    """
    return _on_lists(h_ap_of, ranked, n_levels, as_relevance(relevance))


def weighted_ap(ranked: Tensor, n_levels: int, weights: tuple[float, ...] | None = None) -> Tensor:
    """Weighted sum of each level's average precision, weights from the coarsest on; None for equal ones.

    Example:
        >>> weighted_ap(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3)
        tensor([0.7347], dtype=torch.float64)
    """
    return _on_lists(weighted_ap_of, ranked, n_levels, weights)


def h_curves(ranked: Tensor, n_levels: int, relevance: str | Relevance = POPULATION) -> tuple[Tensor, Tensor]:
    """Hierarchical recall and precision at every place; H-AP is the area: the sum of steps of recall times precision.

    Returns:
        (Q, K) recall in [0, 1]; and (Q, K) precision, NaN at items without worth.

    Example:
        >>> recall, precision = h_curves(torch.tensor([[1, 2]]), n_levels=2, relevance=Relevance("weight"))
        >>> precision
        tensor([[1.0000, 0.7500]], dtype=torch.float64)
    """
    _check_levels(ranked, n_levels)
    stats = list_statistics(ranked, n_levels)
    worth = torch.from_numpy(np.pad(as_relevance(relevance).of(stats.counts), ((0, 0), (1, 0)))).to(ranked.device)
    at = worth.gather(1, ranked.clamp(min=0).long())
    place = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64, device=ranked.device)
    shared = torch.zeros_like(at)
    for level in range(1, n_levels + 1):
        shared += (ranked == level).cumsum(1) * torch.minimum(worth[:, level, None], at)
    total = at.sum(1, keepdim=True)
    return at.cumsum(1) / total.where(total > 0, torch.nan), shared / (place * at).where(at > 0, torch.nan)


def ndcg(ranked: Tensor, n_levels: int, gain: str | Relevance = EXPONENTIAL, k: int | None = None) -> Tensor:
    """Normalised discounted cumulative gain, at k or of the whole list; the ideal is taken from the whole list.

    Example:
        >>> ndcg(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3)
        tensor([0.7908], dtype=torch.float64)
    """
    return _on_lists(ndcg_of, ranked, n_levels, as_relevance(gain), k, k=k)


def asi(ranked: Tensor, n_levels: int) -> Tensor:
    """Average set intersection: for n up to the number of relevant items, how much of the first n an ideal list has too.

    Example:
        >>> asi(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3)
        tensor([0.4792], dtype=torch.float64)
    """
    return _on_lists(asi_of, ranked, n_levels)


def severity(ranked: Tensor, n_levels: int, k: int = 1) -> Tensor:
    """How far off the wrong items among the first k are: mean of L - level, NaN where none is wrong.

    Example:
        >>> severity(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3, k=5)
        tensor([2.], dtype=torch.float64)
    """
    return _on_lists(severity_of, ranked, n_levels, k, k=k)


def hierarchical_distance(ranked: Tensor, n_levels: int, k: int = 1) -> Tensor:
    """Mean of L - level over the first k, right ones included.

    Example:
        >>> hierarchical_distance(torch.tensor([[2, 3, 0, 1, 3]]), n_levels=3, k=5)
        tensor([1.2000], dtype=torch.float64)
    """
    return _on_lists(hierarchical_distance_of, ranked, n_levels, k, k=k)
