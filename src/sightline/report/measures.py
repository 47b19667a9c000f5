"""The numbers of a report: metrics with intervals, their differences, and the decomposability gap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.evaluation.decomposability import Gap, decomposability_gap
from sightline.evaluation.metrics import metric_names, metric_of
from sightline.evaluation.protocol import DEFAULT_KS, evaluate
from sightline.evaluation.result import Result, Unit, compare, shown
from sightline.evaluation.tables import evaluate_table
from sightline.evaluation.uncertainty import bootstrap_interval
from sightline.report.subject import Subject

LEVEL = 0.95
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
GAP_IMAGES = 4000  # of whole classes drawn by lot, where there are more


@dataclass(frozen=True)
class Cell:
    """A number as it is read, and between which two it lies."""

    value: str
    interval: str


@dataclass(frozen=True)
class MetricRow:
    """One metric of one or two models.

    Attributes:
        name: of the metric.
        meaning: in a few words.
        cells: of each model.
        difference: first minus second, where there are two.
        verdict: ``better``, ``worse`` or ``may be chance``.
    """

    name: str
    meaning: str
    cells: list[Cell]
    difference: Cell | None = None
    verdict: str = ""


def recall_places(n_items: int) -> list[int]:
    """1, 2, 4 and so on up to a tenth of the items, but at least to 8 and at most to 1024.

    Example:
        >>> recall_places(300)
        [1, 2, 4, 8, 16]
    """
    return [2**power for power in range(11) if 2**power <= max(8, n_items / 10)]


def measured(subject: Subject, k: int) -> Result:
    """Every metric that a report shows, of every query."""
    n_levels = subject.table.manifest.n_levels
    ks = recall_places(len(subject.items))
    curves = [f"recall@{place}" + (f"_label_{label}" if label else "") for label in range(n_levels) for place in ks]
    told = metric_names(DEFAULT_KS, n_levels)
    return evaluate_table(subject.table, metrics=[*told, f"distance@{k}", *curves])


def told_metrics(n_levels: int, k: int) -> list[str]:
    """The metrics of the table; the others are for curves."""
    return [*metric_names(DEFAULT_KS, n_levels), *([f"distance@{k}"] if n_levels > 1 else [])]


def metric_rows(results: dict[str, Result], told: list[str]) -> tuple[list[MetricRow], Unit]:
    """The table of metrics: means with 95 % intervals and, for two models, which differences are real.

    Chance is taken to draw classes, for queries of one class rise and fall together; queries where there are few classes.
    """
    mine, *others = results.values()
    by: Unit = "classes" if mine.labels is not None and len(np.unique(mine.labels)) >= 10 else "queries"
    short = [Result({name: one.per_query[name] for name in told}, one.ids, one.labels) for one in (mine, *others)]
    ends = [bootstrap_interval(np.stack([one.per_query[name] for name in told], 1), one.groups(by), LEVEL) for one in short]
    compared = compare(short[1], short[0], LEVEL, by) if others else None
    rows = []
    for column, name in enumerate(told):
        cells = [
            Cell(shown(name, one[name]), " – ".join(shown(name, float(end)) for end in end_pair[:, column]))
            for one, end_pair in zip(short, ends, strict=True)
        ]
        if compared is None:
            rows.append(MetricRow(name, _meaning(name), cells))
            continue
        found = compared.differences[name]
        gain = found.b - found.a
        metric = metric_of(name)
        better = (gain > 0) == (metric is None or metric.higher_is_better)
        verdict = ("better" if better else "worse") if compared.is_real(name) else "may be chance"
        interval = " to ".join(shown(name, end, "+") for end in found.interval)
        rows.append(MetricRow(name, _meaning(name), cells, Cell(shown(name, gain, "+"), interval), verdict))
    return rows, by


def _meaning(name: str) -> str:
    metric, (_, _, label) = metric_of(name), name.partition("_label_")
    meaning = "" if metric is None else metric.meaning
    return f"{meaning}, by label_{label}" if label else meaning


def label_recalls(result: Result, n_levels: int, ks: list[int]) -> NDArray[np.float64]:
    """(L, K) the mean recall@k with each label as what counts, finest first."""
    suffixes = ["", *(f"_label_{label}" for label in range(1, n_levels))]
    return np.array([[result[f"recall@{k}{suffix}"] for k in ks] for suffix in suffixes])


def gaps_by_batch_size(subject: Subject, seed: int = 0) -> dict[int, Gap]:
    """The decomposability gap of average precision at several batch sizes, among the images that are ranked."""
    codes = subject.table.manifest.labels()[subject.items, 0]
    classes = np.random.default_rng(seed).permutation(int(codes.max()) + 1)
    within = np.cumsum(np.bincount(codes, minlength=len(classes))[classes]) <= max(GAP_IMAGES, 2)
    rows = np.flatnonzero(np.isin(codes, classes[within]))
    vectors, codes = subject.table.vectors[subject.items][rows], codes[rows]
    if not (np.bincount(codes) > 1).any():
        return {}
    whole = evaluate(vectors, codes, metrics=["map"]).per_query["map"]
    sizes = [size for size in BATCH_SIZES if size < len(rows)]
    gaps = {size: decomposability_gap(vectors, codes, size, seeds=range(2), whole=whole) for size in sizes}
    n_queries = int((~np.isnan(whole)).sum())
    return gaps | {len(rows): Gap(0.0, 0.0, (0.0, 0.0), 2 * n_queries, 0)}  # one batch is the whole set
