"""The metrics: for each one function on a :class:`Ranking` and one row of :data:`METRICS`.

A function gives one value a query, (Q,) float64, NaN where it is undefined; every metric is undefined for a query without a
relevant item. It takes the ranking and, where the metric is asked for at a place such as ``recall@10``, that place. Names,
command line, reports and docs read the table; other packages add rows by the entry points ``sightline.metrics``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.evaluation.statistics import Counts, Floats, Statistics, list_statistics
from sightline.labels.relevance import EXPONENTIAL, POPULATION, Relevance, as_relevance
from sightline.registry import Registry

OF_LEVELS = ("h_ap", "ndcg", "asi", "severity@1")  # measured by default where labels have levels


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranked lists of all queries, as metrics see them: sums over the relevant items of each.

    Attributes:
        stats: the sums; level l of 1..L is at [l - 1].
        level: an item is relevant from this level on.
        relevance: worth of each level for hierarchical metrics.
        gain: worth of each level for NDCG.
    """

    stats: Statistics
    level: int
    relevance: Relevance = POPULATION
    gain: Relevance = EXPONENTIAL

    @property
    def n_relevant(self) -> Counts:
        """(Q,) relevant items in the list."""
        return self.relevant(self.stats.counts)

    @property
    def first(self) -> Counts:
        """(Q,) the place of the first relevant item, from 1 on; 0 where there is none."""
        first = self.stats.first[:, self.level - 1 :]
        best: Counts = np.where(first > 0, first, np.iinfo(np.int64).max).min(1)
        return np.where(first.any(1), best, 0)

    def relevant(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of (..., L) values over the levels that are relevant."""
        total: NDArray[Any] = values[..., self.level - 1 :].sum(-1)
        return total

    def found(self, k: int) -> Floats:
        """(Q, L) items of each level among the first k."""
        return self.stats.found[:, self.stats.at(k)]

    def share(self, part: Floats | float, whole: NDArray[Any]) -> Floats:
        """(Q,) part / whole; NaN where whole is 0."""
        found: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
        return found

    def where_relevant(self, values: NDArray[Any], is_graded: bool = False) -> Floats:
        """(Q,) the values; NaN for queries without a relevant item, or without one of any level."""
        return np.where((self.stats.counts.sum(1) if is_graded else self.n_relevant) > 0, values, np.nan)


# Relevant or not. -------------------------------------------------------------------------------------------------------


def recall(ranking: Ranking, k: int) -> Floats:
    """1 if one of the first k is relevant: the "recall" of image retrieval, a hit rate; its curve over k is the CMC."""
    return ranking.where_relevant(ranking.first <= k)


def true_recall(ranking: Ranking, k: int) -> Floats:
    """Relevant items among the first k, of as many as there could be."""
    return ranking.share(ranking.relevant(ranking.found(k)), np.minimum(k, ranking.n_relevant))


def classical_recall(ranking: Ranking, k: int) -> Floats:
    """Relevant items among the first k, of all: the recall of text retrieval."""
    return ranking.share(ranking.relevant(ranking.found(k)), ranking.n_relevant)


def precision(ranking: Ranking, k: int) -> Floats:
    """Relevant items among the first k, divided by k even where the list is shorter."""
    return ranking.where_relevant(ranking.relevant(ranking.found(k)) / k)


def average_precision(ranking: Ranking, k: int | None = None) -> Floats:
    """Mean over the relevant items of the precision at their place; at k over the first k places alone, divided by as
    many relevant items as those could hold.
    """
    if k is None:
        finer = slice(ranking.level - 1, None)
        return ranking.share(ranking.stats.precision[:, finer, finer].sum((1, 2)), ranking.n_relevant)
    at_k = ranking.stats.precision_at_k[:, ranking.stats.at(k), ranking.level - 1]
    return ranking.share(at_k, np.minimum(k, ranking.n_relevant))


def map_at_r(ranking: Ranking) -> Floats:
    """Average precision over the first R places, R being the number of relevant items of the query."""
    return ranking.share(ranking.stats.precision_at_r[:, ranking.level - 1], ranking.n_relevant)


def r_precision(ranking: Ranking) -> Floats:
    """Relevant items among the first R, of R."""
    return ranking.share(ranking.stats.found_at_r[:, ranking.level - 1], ranking.n_relevant)


def set_precision(ranking: Ranking) -> Floats:
    """Average set intersection with one level: mean over the places 1..R of the precision there."""
    return ranking.share(ranking.stats.set_precision[:, ranking.level - 1], ranking.n_relevant)


# In levels of labels. ---------------------------------------------------------------------------------------------------


def h_ap(ranking: Ranking) -> Floats:
    """Hierarchical average precision: AP in which an item of less worth counts as a part of one of more.

    1 exactly where the list is sorted by worth; AP where there is one level.
    """
    worth, stats = ranking.relevance.of(ranking.stats.counts), ranking.stats
    lesser = np.minimum(worth[:, :, None], worth[:, None, :])
    return ranking.share((lesser * stats.precision).sum((1, 2)), (worth * stats.counts).sum(1))


def weighted_ap(ranking: Ranking) -> Floats:
    """Weighted sum of each level's average precision, with the weights of the relevance."""
    sum_wap = Relevance("sum_wap", weights=ranking.relevance.weights)
    return h_ap(Ranking(ranking.stats, ranking.level, sum_wap))


def h_recall(ranking: Ranking, k: int) -> Floats:
    """Hierarchical recall: the worth of the first k, of that of the whole list."""
    worth = ranking.relevance.of(ranking.stats.counts)
    return ranking.share((worth * ranking.found(k)).sum(1), (worth * ranking.stats.counts).sum(1))


def h_precision(ranking: Ranking, k: int) -> Floats:
    """Hierarchical precision: what the first k share with the k-th, of k times its worth; NaN where it has none."""
    worth, found = ranking.relevance.of(ranking.stats.counts), ranking.found(k)
    at = (worth * (found - ranking.found(k - 1))).sum(1)
    return ranking.share((np.minimum(worth, at[:, None]) * found).sum(1), k * at)


def ndcg(ranking: Ranking, k: int | None = None) -> Floats:
    """Normalised discounted cumulative gain, at k or of the whole list; the ideal is taken from the whole list."""
    stats = ranking.stats
    worth = ranking.gain.of(stats.counts)
    order = worth.argsort(1, kind="stable")  # the ideal order is that of the gains, which may fall with the level
    counts = np.take_along_axis(stats.counts, order, 1)
    ends = np.flip(np.flip(counts, 1).cumsum(1), 1)
    n_most = int(ends.max(initial=0)) if k is None else k
    total = np.append(0.0, (1 / np.log2(1 + np.arange(1, n_most + 1))).cumsum())
    ideal = total[np.minimum(ends, n_most)] - total[np.minimum(ends - counts, n_most)]
    discount = stats.discount if k is None else stats.discount_at_k[:, stats.at(k)]
    return ranking.share((worth * discount).sum(1), (np.take_along_axis(worth, order, 1) * ideal).sum(1))


def asi(ranking: Ranking) -> Floats:
    """Average set intersection: for n up to the number of relevant items, how much of the first n an ideal list has too."""
    return ranking.share(ranking.stats.asi, ranking.stats.counts.sum(1))


def distance(ranking: Ranking, k: int) -> Floats:
    """Mean of L - level over the first k, right ones included."""
    total, n_ranked = _levels_off(ranking.stats, k)
    return ranking.where_relevant(ranking.share(total, n_ranked), is_graded=True)


def severity(ranking: Ranking, k: int) -> Floats:
    """Mean of L - level over the wrong items among the first k; NaN where none is wrong.

    At k = 1 the mean over queries is the mistake severity; above it :func:`pooled_severity` weighs every mistake alike.
    """
    total, n_ranked = _levels_off(ranking.stats, k)
    return ranking.where_relevant(ranking.share(total, n_ranked - ranking.found(k)[:, -1]), is_graded=True)


def pooled_severity(stats: Statistics, k: int) -> tuple[float, int]:
    """Mean of L - level over all wrong items among the first k of all queries, and how many they are; NaN where none is."""
    total, n_ranked = _levels_off(stats, k)
    counted = stats.counts.sum(1) > 0
    n_wrong = int((n_ranked - stats.found[:, stats.at(k), -1])[counted].sum())
    return (float(total[counted].sum() / n_wrong), n_wrong) if n_wrong else (float("nan"), 0)


def _levels_off(stats: Statistics, k: int) -> tuple[Floats, Counts]:
    """(Q,) the sum of L - level over the first k, and how many those are."""
    n_ranked = np.minimum(k, stats.length)
    found = stats.found[:, stats.at(k)]
    return stats.n_levels * n_ranked - (found * np.arange(1, stats.n_levels + 1)).sum(1), n_ranked


# The table. -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A row of :data:`METRICS`.

    Attributes:
        compute: given a :class:`Ranking` and, where it has one, k, one value a query.
        meaning: what it says of a query, in a few words.
        takes_k: ``never``, ``always`` (``recall@10``) or ``maybe`` (``ndcg`` and ``ndcg@10``).
        unit: ``share``, shown in percent, or ``levels`` of labels.
        higher_is_better: the direction in which it improves.
        is_graded: it looks at all label levels at once, so that it cannot be asked for at one (``map_label_1``).
        is_total: defined for every query that has a relevant item.
        places: the k's whose statistics it reads, for a k that is asked for.
    """

    compute: Callable[..., Floats]
    meaning: str
    takes_k: Literal["never", "always", "maybe"] = "never"
    unit: Literal["share", "levels"] = "share"
    higher_is_better: bool = True
    is_graded: bool = False
    is_total: bool = True
    places: Callable[[int], tuple[int, ...]] = lambda k: (k,)

    def __call__(self, ranking: Ranking, k: int | None = None) -> Floats:
        """(Q,) its value for each query."""
        return self.compute(ranking) if k is None else self.compute(ranking, k)


HITS = Metric(recall, "queries with an image of their class among the first k", "always", places=lambda k: ())
METRICS: Registry[Floats] = Registry(
    "metric",
    {
        "asi": Metric(asi, "overlap with the ideal list at every place", is_graded=True),
        "classical_recall": Metric(classical_recall, "images of the class among the first k, of all", "always"),
        "cmc": HITS,
        "distance": Metric(
            distance,
            "levels up to the common ancestor of the first results, right ones too; lower is better",
            "always",
            "levels",
            higher_is_better=False,
            is_graded=True,
        ),
        "h_ap": Metric(h_ap, "average precision on the label tree: a near miss counts in part", is_graded=True),
        "h_precision": Metric(
            h_precision,
            "worth that the first k share with the k-th, of k times its worth",
            "always",
            is_graded=True,
            is_total=False,
            places=lambda k: (k - 1, k),  # the item at place k is what the place before it lacks
        ),
        "h_recall": Metric(h_recall, "worth of the first k, of that of the whole list", "always", is_graded=True),
        "map": Metric(average_precision, "average precision", "maybe"),
        "map@r": Metric(map_at_r, "precision summed over the first R places, R the images of the class"),
        "ndcg": Metric(ndcg, "discounted gain on the label tree", "maybe", is_graded=True),
        "precision": Metric(precision, "images of the class among the first k, of k", "always"),
        "r_precision": Metric(r_precision, "images of the class among the first R, R the images of the class"),
        "recall": HITS,
        "set_precision": Metric(set_precision, "mean over the first R places of the precision there"),
        "severity": Metric(
            severity,
            "levels up to the common ancestor of a wrong first result; lower is better",
            "always",
            "levels",
            higher_is_better=False,
            is_graded=True,
            is_total=False,
        ),
        "true_recall": Metric(true_recall, "images of the class among the first k, of as many as there could be", "always"),
        "weighted_ap": Metric(weighted_ap, "weighted sum of each level's average precision", is_graded=True),
    },
    "sightline.metrics",
    lambda found: isinstance(found, Metric),
    "a sightline.Metric",
)


def list_metrics() -> list[str]:
    """The names of :data:`METRICS`, in alphabetical order, without the place that some are asked for at.

    Example:
        >>> [name for name in list_metrics() if name.startswith("map")]
        ['map', 'map@r']
    """
    return METRICS.names()


class MetricName(NamedTuple):
    """A metric's name taken apart; ``label`` counts levels from the finest, which is 0."""

    metric: Metric
    k: int | None
    label: int


def metric_names(ks: Sequence[int] = (1, 2, 4, 8), n_levels: int = 1) -> list[str]:
    """The metrics :func:`~sightline.evaluation.protocol.evaluate` gives for these places and so many levels of labels.

    Example:
        >>> metric_names([1, 10])
        ['recall@1', 'recall@10', 'map@r', 'map']
        >>> metric_names([1], n_levels=2)
        ['recall@1', 'map@r', 'map', 'map_label_1', 'h_ap', 'ndcg', 'asi', 'severity@1']
    """
    flat = [*(f"recall@{k}" for k in dict.fromkeys(ks)), "map@r", "map"]
    return flat if n_levels == 1 else [*flat, *(f"map_label_{n}" for n in range(1, n_levels)), *OF_LEVELS]


def read_metric_name(name: str, n_levels: int, trust: bool = False) -> MetricName:
    """A metric's name taken apart; one that is not known is refused with the nearest that is.

    Args:
        name: such as ``map``, ``recall@10`` or ``map_label_1``; ``package.module:NAME`` in place of the first part.
        n_levels: of the labels.
        trust: import such a path.

    Example:
        >>> read_metric_name("recall@10_label_1", n_levels=2)[1:]
        (10, 1)
    """
    base, k, label = _parts(name)
    if base in METRICS or ":" in base:
        metric: Metric = METRICS.find(base, trust=trust)  # type: ignore[assignment]
        fits = metric.takes_k != "always" if k is None else metric.takes_k != "never" and int(k) > 0
        if fits and (label is None or (int(label) < n_levels and not metric.is_graded)):
            return MetricName(metric, None if k is None else int(k), int(label or 0))
    raise InputError(f"unknown metric {name!r}: {nearest(name, _examples(n_levels))}")


def metric_of(name: str) -> Metric | None:
    """The row of a result's column, such as ``recall@10_label_1``; None for one that the table does not have."""
    base = _parts(name)[0]
    return METRICS.find(base) if base in METRICS else None  # type: ignore[return-value]


def shown_scale(name: str) -> int:
    """What a value is multiplied by where people read it: 100 for a share, in percent; 1 for label levels."""
    metric = metric_of(name)
    return 100 if metric is None or metric.unit == "share" else 1


def _parts(name: str) -> tuple[str, str | None, str | None]:
    found = re.fullmatch(r"(.+?)(?:@(\d+))?(?:_label_(\d+))?", name)
    return (found[1], found[2], found[3]) if found else (name, None, None)


def _examples(n_levels: int) -> list[str]:
    rows: dict[str, Any] = {name: METRICS.find(name) for name in METRICS}
    plain = [name for name, metric in rows.items() if metric.takes_k != "always"]
    found = [*plain, *(f"{name}@10" for name, metric in rows.items() if metric.takes_k != "never")]
    flat = [name for name in plain if not rows[name].is_graded]
    return found + [f"{name}_label_{label}" for name in flat for label in range(1, n_levels)]


def list_metric(
    name: str,
    ranked: Tensor,
    n_levels: int = 1,
    relevance: str | Relevance = POPULATION,
    gain: str | Relevance = EXPONENTIAL,
) -> Tensor:
    """A metric of lists that are ranked already.

    Args:
        name: as in :func:`read_metric_name`.
        ranked: (Q, K) levels, best place first: 0 is irrelevant, ``n_levels`` the finest; below 0 where a list has ended.
        n_levels: L.
        relevance: worth of each level for hierarchical metrics.
        gain: worth of each level for ``ndcg``.

    Returns:
        (Q,) float64.

    Example:
        >>> list_metric("map", torch.tensor([[1, 0, 1]]))
        tensor([0.8333], dtype=torch.float64)
    """
    check_levels(ranked, n_levels)
    metric, k, label = read_metric_name(name, n_levels)
    stats = list_statistics(ranked, n_levels, () if k is None else metric.places(k))
    values = metric(Ranking(stats, n_levels - label, as_relevance(relevance), as_relevance(gain)), k)
    return torch.from_numpy(values).to(ranked.device)


def check_levels(ranked: Tensor, n_levels: int) -> None:
    """Refuse levels above ``n_levels``."""
    if ranked.numel() and ranked.max() > n_levels:
        raise InputError(f"ranked: levels must be at most {n_levels}, got {int(ranked.max())}")


def h_curves(ranked: Tensor, n_levels: int, relevance: str | Relevance = POPULATION) -> tuple[Tensor, Tensor]:
    """Hierarchical recall and precision at every place; H-AP is the area: the sum of steps of recall times precision.

    Returns:
        (Q, K) recall in [0, 1]; and (Q, K) precision, NaN at items without worth.

    Example:
        >>> recall, precision = h_curves(torch.tensor([[1, 2]]), n_levels=2, relevance=Relevance("weight"))
        >>> precision
        tensor([[1.0000, 0.7500]], dtype=torch.float64)
    """
    check_levels(ranked, n_levels)
    stats = list_statistics(ranked, n_levels)
    worth = torch.from_numpy(np.pad(as_relevance(relevance).of(stats.counts), ((0, 0), (1, 0)))).to(ranked.device)
    at = worth.gather(1, ranked.clamp(min=0).long())
    place = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64, device=ranked.device)
    shared = torch.zeros_like(at)
    for level in range(1, n_levels + 1):
        shared += (ranked == level).cumsum(1) * torch.minimum(worth[:, level, None], at)
    total = at.sum(1, keepdim=True)
    return at.cumsum(1) / total.where(total > 0, torch.nan), shared / (place * at).where(at > 0, torch.nan)
