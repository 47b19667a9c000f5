"""The decomposability gap: how much better a metric looks inside batches than over the whole set, and bounds of it."""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.evaluation.metrics import list_metric
from sightline.evaluation.protocol import evaluate
from sightline.evaluation.statistics import Counts, as_tensor, ranked_levels
from sightline.evaluation.text_labels import number_text
from sightline.ranking.pairs import check_labels
from sightline.ranking.similarity import check_vectors, score_blocks

BLOCK_ELEMENTS = 1 << 22  # scores held at once; a ranking takes about 50 bytes for each
MOST_STEPS = 1 << 15  # of the search over batch orders, 10 microseconds each: any 11 batches, or more that are alike


class Gap(NamedTuple):
    """A decomposability gap measured on several partitions.

    Attributes:
        mean: over the partitions.
        deviation: standard deviation over the partitions; 0 for a single one.
        per_seed: the gap of each partition.
        n_counted: pairs of a query and a batch that holds a positive of it, in all partitions.
        n_skipped: pairs of a query and a batch without, which have no metric.
    """

    mean: float
    deviation: float
    per_seed: tuple[float, ...]
    n_counted: int
    n_skipped: int


def decomposability_gap(
    vectors: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    batch_size: int,
    *,
    metric: str = "map",
    per_class: int = 4,
    seeds: Sequence[int] = range(5),
    whole: ArrayLike | None = None,
) -> Gap:
    """The mean of a metric inside batches minus its value over the whole set, mean over the queries that have a positive.

    The set is cut into class-balanced batches at random; every item ranks the others of every batch that holds a positive
    of it. 0 where one batch is the whole set; it may be negative. For metrics other than average precision the full lists
    are sorted, in blocks of queries, which takes long for many items: give ``whole`` if it is known.

    Args:
        vectors: (N, D), of any length; scores are cosines, equal ones count against the query.
        labels: (N,) or (N, L) whole numbers or text; an item is relevant if it shares them all. -1 is shared by none.
        batch_size: items in a batch; the last of a partition may be smaller.
        metric: by name, such as ``map@r``; see :data:`sightline.evaluation.metrics.METRICS`.
        per_class: items of a class that stay together.
        seeds: one partition each.
        whole: (N,) the metric over the whole set where it is known, such as ``evaluate(...).per_query["map"]``.

    Example:
        >>> vectors, labels = np.random.default_rng(0).normal(size=(80, 4)), np.arange(80) // 8
        >>> decomposability_gap(vectors, labels, batch_size=80).mean
        0.0
        >>> gap = decomposability_gap(vectors, labels, batch_size=16)
        >>> f"{gap.mean:.2f} {gap.deviation:.2f}"
        '0.22 0.02'
    """
    table = as_tensor(vectors, "vectors")
    check_vectors(vectors=table)
    numbers = number_text(labels)[0]
    checked = check_labels(as_tensor(numbers, "labels").to(table.device), len(table), "labels")
    classes = torch.unique(checked, dim=0, return_inverse=True)[1].cpu().numpy()
    unknown = (checked == -1).any(1).cpu().numpy()
    classes = np.unique(np.where(unknown, len(classes) + np.arange(len(classes)), classes), return_inverse=True)[1]
    whole_numbers = all(isinstance(size, int | np.integer) for size in (batch_size, per_class))
    if not whole_numbers or batch_size < 2 or per_class < 1 or not len(seeds):
        raise InputError(
            "batch_size, per_class and the number of seeds must be whole numbers of at least 2, 1 and 1, "
            f"got {batch_size}, {per_class} and {len(seeds)}"
        )
    n_queries = int((np.bincount(classes)[classes] > 1).sum())
    if not n_queries:
        raise InputError(f"none of the {len(table)} items has a positive: no two labels agree")
    if whole is not None:
        values = np.asarray(whole, np.float64)
        if values.shape != classes.shape:
            raise InputError(f"whole must have one value for each of the {len(table)} items, got shape {values.shape}")
    elif metric == "map" and batch_size < len(table):
        values = evaluate(table, checked).per_query["map"]
    else:
        values, _ = _batch_means(table, classes, [np.arange(len(table))], metric)
    gaps, n_counted, n_pairs = [], 0, 0
    for seed in seeds:
        batches = class_balanced_partition(classes, batch_size, per_class, seed)
        inside, n_batches = _batch_means(table, classes, batches, metric)
        gaps.append(float(np.nanmean(inside - values)))
        n_counted += int(n_batches.sum())
        n_pairs += n_queries * len(batches)
    deviation = float(np.std(gaps, ddof=1)) if len(gaps) > 1 else 0.0
    return Gap(float(np.mean(gaps)), deviation, tuple(gaps), n_counted, n_pairs - n_counted)


def _average_precision(ranked: Tensor) -> Tensor:
    """(Q,) of (Q, K) relevance in ranked order: :func:`list_metric` without the sums that other metrics read."""
    place = torch.arange(1, ranked.shape[1] + 1, dtype=torch.float64, device=ranked.device)
    n_relevant = ranked.sum(1).double()
    return (ranked.cumsum(1) / place * ranked).sum(1) / n_relevant.where(n_relevant > 0, torch.nan)


def class_balanced_partition(classes: Counts, batch_size: int, per_class: int, seed: int) -> list[Counts]:
    """The items in batches, each item in exactly one, ``per_class`` of a class together.

    Each class is shuffled and dealt into groups of ``per_class``, the last perhaps smaller; its groups are spread evenly
    over the batches, each at random within its share. Where sizes are not multiples a batch's end may cut a group.

    Args:
        classes: (N,) class numbers, from 0.
        batch_size: items in each batch but the last.
        per_class: items in a group.
        seed: of the draws.

    Example:
        >>> [batch.tolist() for batch in class_balanced_partition(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 4, 2, seed=0)]
        [[2, 3, 4, 6], [0, 1, 5, 7]]
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    sizes = np.bincount(classes)
    n_groups = -(-sizes // per_class)
    sorted_classes = classes[order]
    group = (np.arange(len(order)) - (sizes.cumsum() - sizes)[sorted_classes]) // per_class
    jitter = rng.random(int(n_groups.sum()))[(n_groups.cumsum() - n_groups)[sorted_classes] + group]
    spread = order[np.argsort((group + jitter) / n_groups[sorted_classes], kind="stable")]
    # In their old order inside a batch, so that one batch of all items is the set itself, bit for bit.
    return [np.sort(batch) for batch in np.split(spread, range(batch_size, len(spread), batch_size))]


def _batch_means(
    vectors: Tensor, classes: Counts, batches: Sequence[Counts], metric: str
) -> tuple[NDArray[np.float64], Counts]:
    """(N,) mean of the metric over the batches that hold a positive of the query, NaN where none does; and their number."""
    sums, n_batches = np.zeros(len(classes)), np.zeros(len(classes), np.int64)
    for items in batches:
        n_relevant = np.bincount(classes[items], minlength=int(classes.max()) + 1)[classes]
        n_relevant[items] -= 1
        queries = np.flatnonzero(n_relevant)
        for rows, scores in score_blocks(vectors[queries], vectors[items], BLOCK_ELEMENTS):
            asked = queries[rows]
            levels = np.where(asked[:, None] == items, -1, classes[asked][:, None] == classes[items]).astype(np.int8)
            ranked = ranked_levels(scores, torch.from_numpy(levels).to(scores.device))
            values = (_average_precision(ranked > 0) if metric == "map" else list_metric(metric, ranked)).cpu().numpy()
            sums[asked] += np.nan_to_num(values)
            n_batches[asked] += ~np.isnan(values)
    return np.divide(sums, n_batches, out=np.full(len(sums), np.nan), where=n_batches > 0), n_batches


def gap_bound(positives: ArrayLike, negatives: ArrayLike) -> float:
    """The largest gap of average precision that batches of these sizes allow, if each batch alone is ranked perfectly.

    For one query; the maximum of TPAMI's Eq. 26 over the orders of the batches, or a bound for many batches, as in
    :func:`calibrated_gap_bound`.

    Args:
        positives: (K,) of each batch.
        negatives: (K,) of each batch.

    Example:
        >>> f"{gap_bound([2, 2], [2, 2]):.7f}"
        '0.1833333'
    """
    return calibrated_gap_bound(positives, negatives, positives, negatives)


def calibrated_gap_bound(
    positives: ArrayLike, negatives: ArrayLike, high_positives: ArrayLike, high_negatives: ArrayLike
) -> float:
    """:func:`gap_bound` where it is known how many scores lie above two thresholds, alpha not below beta.

    The maximum of TPAMI's Eq. 27 over the orders of the batches: as printed, in one order, it is no bound. The search is
    exhaustive: what a batch adds depends on which ones come before it, not on their order. It ends at ``MOST_STEPS`` steps.
    For more batches another bound is returned, which no order enters: a negative above the k-th positive has all positives
    of its batch above it, so the batches of such negatives hold fewer than k positives together, and the most negatives of
    batches that do is a knapsack problem. For Eq. 26 it is never below the maximum, and equal to it for batches all alike.

    Args:
        positives: (K,) of each batch.
        negatives: (K,) of each batch.
        high_positives: (K,) of ``positives``, those that score at least alpha.
        high_negatives: (K,) of ``negatives``, those that score above beta.

    Example:
        >>> f"{calibrated_gap_bound([2, 2], [2, 2], [2, 1], [1, 0]):.7f}"
        '0.1458333'
    """
    batches = _checked_batches(positives, negatives, high_positives, high_negatives)
    kinds, copies = np.unique(batches, axis=0, return_counts=True)
    exhaustive = math.prod((copies + 1).tolist()) * len(kinds) <= MOST_STEPS
    least = _least_over_orders(kinds, copies) if exhaustive else _least_of_any_order(batches)
    return 1 - least / int(batches[:, 0].sum())


def _precision_sum(batch: Counts, before: Counts) -> float:
    """What a batch adds to the sum of Eq. 27, given the counts of all batches before it."""
    n_positives, _, n_high, _ = batch
    high = np.arange(1, n_high + 1) + before[2]
    low = np.arange(n_high + 1, n_positives + 1) + before[0]
    return float((high / (high + before[3])).sum() + (low / (low + before[1])).sum())


def _least_over_orders(kinds: Counts, copies: Counts) -> float:
    """The least sum of Eq. 27 over all orders, found from the sets of batches that can come first."""
    least = {(0,) * len(kinds): 0.0}
    for used in product(*(range(n + 1) for n in copies.tolist())):
        before = np.array(used) @ kinds
        for kind in np.flatnonzero(np.array(used) < copies):
            then = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
            least[then] = min(least.get(then, math.inf), least[used] + _precision_sum(kinds[kind], before))
    return least[tuple(copies.tolist())]


def _least_of_any_order(batches: Counts) -> float:
    """A sum that average precision times the positives is never below where each batch is ranked perfectly."""
    positives, negatives, high_positives, high_negatives = batches.T
    n_high = int(high_positives.sum())
    high, low = np.arange(1, n_high + 1), np.arange(n_high + 1, int(positives.sum()) + 1)
    # Positives from alpha on come first, and only negatives above beta can precede them.
    above_high, above_low = _most_before(high_positives, high_negatives), _most_before(positives, negatives)
    return float((high / (high + above_high[high - 1])).sum() + (low / (low + above_low[low - 1])).sum())


def _most_before(positives: Counts, negatives: Counts) -> Counts:
    """(P,) the most negatives of any batches that hold at most 0, 1, ..., P - 1 positives together: a knapsack."""
    most = np.zeros(int(positives.sum()), np.int64)
    for weight, value in zip(positives.tolist(), negatives.tolist(), strict=True):
        with_it = most[: max(0, len(most) - weight)] + value
        most[weight:] = np.maximum(most[weight:], with_it)
    return most


def _checked_batches(*columns: ArrayLike) -> Counts:
    """(K, 4) positives, negatives, those positives that score high and those negatives that do."""
    arrays = [np.asarray(column) for column in columns]
    if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1 or any(a.dtype.kind not in "iu" for a in arrays):
        found = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise InputError(f"counts of batches must be whole numbers, as many of each kind, got {found}")
    batches = np.stack(arrays, 1).astype(np.int64)
    if (batches < 0).any() or (batches[:, 2:] > batches[:, :2]).any():
        raise InputError("counts of batches must be at least 0, and those of high scores at most those of all")
    if not batches[:, 0].any():
        raise InputError("counts of batches: no batch has a positive, so average precision is undefined")
    return batches
