"""How each class fares: which ones fail, and what they are taken for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.evaluation.result import Result
from sightline.report.rankings import Found

MOST_ROWS = 5000  # the classes of the lowest average precision, where there are more


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


def class_rows(table: EmbeddingTable, result: Result, found: Found, other: Result | None = None) -> list[ClassRow]:
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


def _means(values: NDArray[np.float64], codes: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """(C,) the mean of each class, NaN where it has no value."""
    counted = ~np.isnan(values)
    sums = np.bincount(codes[counted], values[counted], n_classes)
    counts = np.bincount(codes[counted], minlength=n_classes)
    means: NDArray[np.float64] = np.divide(sums, counts, out=np.full(n_classes, np.nan), where=counts > 0)
    return means


def _instead(
    classes: NDArray[np.int64], codes: NDArray[np.int64], found: Found, n_classes: int
) -> list[tuple[int, int] | None]:
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
