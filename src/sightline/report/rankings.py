"""What every query finds: its first results and their labels, summed up by class; for some queries, whole curves."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.evaluation.metrics import h_curves
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import ranked_levels
from sightline.ranking.nearest import top_k
from sightline.ranking.similarity import score_blocks
from sightline.report.subject import Subject

BLOCK_ELEMENTS = 1 << 21  # scores sorted at once, with their levels
MOST_SAMPLED = 500  # queries
SAMPLED_SCORES = 20_000_000  # of queries whose whole list is sorted for curves and histograms
GRID = (np.arange(100) + 0.5) / 100  # recalls at which precision is taken; their mean is the area
EDGES = np.linspace(-1, 1, 101)
MOST_ROWS = 5000  # the classes of the lowest average precision, where there are more

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FirstResults:
    """The first K results of every query.

    Attributes:
        queries: (Q,) rows of the table.
        rows: (Q, K) rows of the results, best first; -1 where there are fewer.
        scores: (Q, K) their cosines.
        heights: (Q, K) how far up the common ancestor is: 0 the same finest label, L nothing shared; -1 where there are
            fewer. Of equal scores the higher comes first.
    """

    queries: Counts
    rows: Counts
    scores: Floats
    heights: Counts

    def height_shares(self, k: int, n_levels: int) -> Floats:
        """(L + 1,) which share of the first k results of all queries has its common ancestor at each height."""
        heights = self.heights[:, :k]
        counts = np.bincount(heights[heights >= 0], minlength=n_levels + 1)
        shares: Floats = counts / max(1, counts.sum())
        return shares


@dataclass(frozen=True, eq=False)
class Curves:
    """Means over a sample of queries.

    Attributes:
        n_queries: in the sample.
        precision: (L, 100) precision at the place where recall first reaches each value of ``GRID``, for each label as what
            is relevant, finest first; NaN where no query has a relevant item. The mean of a row is its mean AP.
        h_precision: (100,) the hierarchical precision likewise; its mean is H-AP.
        histogram: (L + 1, 100) scores of the pairs of each height between ``EDGES``.
    """

    n_queries: int
    precision: Floats
    h_precision: Floats
    histogram: Counts


def first_results(subject: Subject, k: int) -> FirstResults:
    """The first k results of every query, itself left out."""
    queries, items = subject.queries, subject.items
    labels = subject.table.manifest.labels()
    vectors = torch.from_numpy(subject.table.vectors)
    scores, places = (found.numpy() for found in top_k(vectors[queries], vectors[items], k + 1))
    rows = items[places]
    itself = rows == queries[:, None]
    heights = (labels[rows] != labels[queries][:, None]).sum(2)
    order = np.lexsort((-heights, -scores, itself))[:, :k]  # itself last, then best first, of equal ones the worse
    rows, scores, heights, gone = (np.take_along_axis(part, order, 1) for part in (rows, scores, heights, itself))
    return FirstResults(queries, np.where(gone, -1, rows), scores.astype(np.float64), np.where(gone, -1, heights))


def sampled_curves(subject: Subject, seed: int = 0) -> Curves:
    """Precision against recall, and scores by relation, of as many queries as ``SAMPLED_SCORES`` allows."""
    queries, items = subject.queries, subject.items
    labels = subject.table.manifest.labels()
    n_levels = labels.shape[1]
    codes = labels[items][:, 0]
    asked = queries[np.isin(labels[queries][:, 0], codes)]
    n_queries = min(len(asked), MOST_SAMPLED, max(50, SAMPLED_SCORES // len(items)))
    asked = np.sort(np.random.default_rng(seed).permutation(asked)[:n_queries])
    vectors = torch.from_numpy(subject.table.vectors)
    histogram = np.zeros((n_levels + 1, len(EDGES) - 1), np.int64)
    flat: list[list[Floats]] = [[] for _ in range(n_levels)]
    graded = []
    for block, scores in score_blocks(vectors[asked], vectors[items], BLOCK_ELEMENTS):
        rows = asked[block]
        levels = (labels[rows][:, None] == labels[items]).sum(2).astype(np.int8)
        levels[rows[:, None] == items] = -1
        bins = ((scores.numpy() + 1) * (len(EDGES) - 1) / 2).astype(np.int64).clip(0, len(EDGES) - 2)
        for height in range(n_levels + 1):
            histogram[height] += np.bincount(bins[levels == n_levels - height], minlength=len(EDGES) - 1)
        ranked = ranked_levels(scores, torch.from_numpy(levels))
        for label in range(n_levels):
            hits = ranked.numpy() >= n_levels - label
            flat[label] += [precision_at_recall(row) for row in hits if row.any()]
        if n_levels > 1:
            recall, precision = (curve.numpy() for curve in h_curves(ranked, n_levels))
            graded += [_at(r[~np.isnan(p)], p[~np.isnan(p)]) for r, p in zip(recall, precision, strict=True)]
    precision = np.stack([_mean(rows) for rows in flat])
    return Curves(len(asked), precision, _mean(graded) if n_levels > 1 else precision[0], histogram)


def precision_at_recall(hits: NDArray[np.bool_]) -> Floats:
    """Precision where recall first reaches each value of ``GRID``, for one ranked list that has a hit.

    Example:
        >>> precision_at_recall(np.array([True, False, False, True]))[[0, 49, 50, 99]].tolist()
        [1.0, 1.0, 0.5, 0.5]
    """
    places = np.flatnonzero(hits) + 1
    found = np.arange(1, len(places) + 1)
    return _at(found / len(places), found / places)


def _at(recall: Floats, precision: Floats) -> Floats:
    reached = np.searchsorted(recall, GRID - 1e-9)
    return precision[np.minimum(reached, len(precision) - 1)] if len(precision) else np.full(len(GRID), np.nan)


def _mean(rows: list[Floats]) -> Floats:
    return np.nanmean(rows, 0) if rows else np.full(len(GRID), np.nan)


@dataclass(frozen=True)
class ClassRow:
    """One class.

    Attributes:
        name: its finest label.
        parents: its other labels, finest first.
        n_images: in the table.
        recall: share of its queries whose first result is of the class; NaN where it has no other image.
        precision: mean average precision of its queries.
        before: the same of the other model, if there is one.
        mistaken_for: the class that most often comes first instead, and how often; None where none does.
    """

    name: str
    parents: tuple[str, ...]
    n_images: int
    recall: float
    precision: float
    before: float | None
    mistaken_for: tuple[str, int] | None


def class_rows(table: EmbeddingTable, result: Result, found: FirstResults, other: Result | None = None) -> list[ClassRow]:
    """Every class, the lowest average precision first, those without a value last.

    Args:
        table: the images.
        result: with ``recall@1`` and ``map`` of each query.
        found: the first results of the same queries.
        other: of another model, on the same queries.
    """
    manifest = table.manifest
    labels = manifest.labels()
    codes = labels[found.queries, 0]
    n_classes = int(labels[:, 0].max()) + 1
    names = [manifest.class_names(level) for level in range(manifest.n_levels)]
    first_row = np.unique(labels[:, 0], return_index=True)[1]
    sizes = np.bincount(labels[:, 0], minlength=n_classes)
    recall, precision = (_means(result.per_query[name], codes, n_classes) for name in ("recall@1", "map"))
    before = None if other is None else _means(other.per_query["map"], codes, n_classes)
    instead = _instead(labels[:, 0], codes, found, n_classes)
    rows = []
    for code in np.argsort(precision, kind="stable")[:MOST_ROWS].tolist():
        parents = tuple(names[level][labels[first_row[code], level]] for level in range(1, manifest.n_levels))
        pair = instead[code]
        taken = None if pair is None else (names[0][pair[0]], pair[1])
        old = None if before is None else float(before[code])
        measured = float(recall[code]), float(precision[code])
        rows.append(ClassRow(names[0][code], parents, int(sizes[code]), *measured, old, taken))
    return rows


def _means(values: Floats, codes: Counts, n_classes: int) -> Floats:
    """(C,) the mean of each class, NaN where it has no value."""
    counted = ~np.isnan(values)
    sums = np.bincount(codes[counted], values[counted], n_classes)
    counts = np.bincount(codes[counted], minlength=n_classes)
    means: Floats = np.divide(sums, counts, out=np.full(n_classes, np.nan), where=counts > 0)
    return means


def _instead(classes: Counts, codes: Counts, found: FirstResults, n_classes: int) -> list[tuple[int, int] | None]:
    """For each class the other one that most often comes first, and how often."""
    wrong = found.heights[:, 0] > 0
    pairs = codes[wrong] * n_classes + classes[found.rows[wrong, 0]]
    most: list[tuple[int, int] | None] = [None] * n_classes
    for pair, count in zip(*(side.tolist() for side in np.unique(pairs, return_counts=True)), strict=True):
        code, taken = divmod(pair, n_classes)
        known = most[code]
        if known is None or count > known[1]:
            most[code] = taken, count
    return most
