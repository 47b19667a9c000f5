"""The numbers of a report: metrics with intervals, first results, curves, classes, published results."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest, label_columns
from sightline.errors import InputError, names
from sightline.evaluation.decomposability import Gap, decomposability_gap
from sightline.evaluation.metrics import METRICS, Metric, h_curves, metric_names, metric_of
from sightline.evaluation.protocol import DEFAULT_KS, EACH_CODE, evaluate
from sightline.evaluation.result import Comparison, Result, Unit, bootstrap_interval, compare, shown
from sightline.evaluation.statistics import ranked_levels
from sightline.evaluation.tables import evaluate_table
from sightline.ranking.nearest import top_k
from sightline.ranking.similarity import score_blocks
from sightline.report.subject import Subject
from sightline.studies.papers import read_published

BLOCK_ELEMENTS = 1 << 21  # scores sorted at once, with their levels
MOST_SAMPLED = 500  # queries
SAMPLED_SCORES = 20_000_000  # of queries whose whole list is sorted for curves and histograms
GRID = (np.arange(100) + 0.5) / 100  # recalls at which precision is taken; their mean is the area
EDGES = np.linspace(-1, 1, 101)
MEANINGS = {EACH_CODE: "mean over the codes of the query of the AP with the images of that code"}  # of what is in no table
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
        heights: (Q, K) height of the common ancestor: 0 for the same finest label, L for nothing shared; -1 where there
            are fewer. Of equal scores the higher comes first.
    """

    queries: Counts
    rows: Counts
    scores: Floats
    heights: Counts

    def height_shares(self, k: int, n_levels: int) -> Floats:
        """(L + 1,) fraction of the first k results of all queries at each height of the common ancestor."""
        heights = self.heights[:, :k]
        counts = np.bincount(heights[heights >= 0], minlength=n_levels + 1)
        return counts / max(1, int(counts.sum()))


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
    order = np.lexsort((-heights, -scores, itself))[
        :, :k
    ]  # the query itself last, then best first; of equal scores the worse
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
    rows_of: list[list[Floats]] = [[] for _ in range(n_levels + 1)]  # relevance by each label, then by all
    for block, scores in score_blocks(vectors[asked], vectors[items], BLOCK_ELEMENTS):
        rows = asked[block]
        levels = (labels[rows][:, None] == labels[items]).sum(2).astype(np.int8)
        levels[rows[:, None] == items] = -1
        for height in range(n_levels + 1):
            histogram[height] += np.histogram(scores.numpy()[levels == n_levels - height].clip(-1, 1), EDGES)[0]
        ranked = ranked_levels(scores, torch.from_numpy(levels))
        for label in range(n_levels):
            rows_of[label] += precision_at_recall((ranked >= n_levels - label).to(ranked.dtype), 1)
        rows_of[-1] += precision_at_recall(ranked, n_levels)
    *precision, h_precision = (np.mean(some or [np.full(len(GRID), np.nan)], 0) for some in rows_of)
    return Curves(len(asked), np.stack(precision), h_precision, histogram)


def precision_at_recall(ranked: Tensor, n_levels: int) -> list[Floats]:
    """Precision where recall first reaches each value of ``GRID``, hierarchical for several levels.

    Args:
        ranked: (Q, K) labels that each item shares with its query, best place first; -1 for none.
        n_levels: label levels.

    Returns:
        (100,) of each query that has a relevant item.

    Example:
        >>> precision_at_recall(torch.tensor([[1, 0, 0, 1]]), 1)[0][[0, 49, 50, 99]].tolist()
        [1.0, 1.0, 0.5, 0.5]
    """
    recalls, precisions = (curve.numpy() for curve in h_curves(ranked, n_levels))
    counted = ~np.isnan(precisions)  # places of relevant items
    pairs = [(recall[own], precision[own]) for recall, precision, own in zip(recalls, precisions, counted, strict=True)]
    return [
        precision[np.searchsorted(recall, GRID - 1e-9).clip(max=len(recall) - 1)]
        for recall, precision in pairs
        if len(recall)
    ]


def class_rows(
    table: EmbeddingTable, result: Result, found: FirstResults, other: Result | None = None
) -> list[dict[str, Any]]:
    """Every class, the lowest average precision first, those without a value last.

    Args:
        table: the images.
        result: with ``recall@1`` and ``map`` of each query.
        found: the first results of the same queries.
        other: of another model, on the same queries.

    Returns:
        A row for each class: ``name``, its finest label; ``parents``, its other labels, finest first; ``n_images`` in the
        table; of its queries ``recall``, the share whose first result is of the class, and ``precision``, the mean average
        precision, NaN where it has no other image; ``before``, the same of the other model, if there is one;
        ``mistaken_for``, the class that most often comes first instead, and how often, None where none does.
    """
    columns = label_columns(table.manifest.n_levels)
    labels = table.manifest.table.select(pl.col(columns).cast(pl.String))
    wrong = np.where(found.heights[:, 0] > 0, found.rows[:, 0], len(labels))  # a row past the end for none
    queries = pl.DataFrame(
        {
            "label_0": labels["label_0"].gather(found.queries),
            "recall": result.per_query["recall@1"],
            "precision": result.per_query["map"],
            "before": None if other is None else other.per_query["map"],
            "instead": labels["label_0"].extend_constant(None, 1).gather(wrong),
        }
    ).fill_nan(None)
    measured = queries.group_by("label_0").agg(pl.col("recall", "precision", "before").mean())
    counts = queries.drop_nulls("instead").group_by("label_0", "instead").len("n_instead")
    most = counts.sort("instead").sort("n_instead", descending=True, maintain_order=True).unique("label_0", keep="first")
    classes = labels.group_by("label_0").agg(pl.len().alias("n_images"), pl.col(columns[1:]).first())
    rows = classes.join(measured, "label_0", how="left").join(most, "label_0", how="left")
    rows = (
        rows.sort("precision", "label_0", nulls_last=True)
        .head(MOST_ROWS)
        .with_columns(pl.col(pl.Float64).fill_null(np.nan))
    )
    return [
        {
            "name": row["label_0"],
            "parents": tuple(row[column] for column in columns[1:]),
            "mistaken_for": None if row["instead"] is None else (row["instead"], row["n_instead"]),
            **{key: row[key] for key in ("n_images", "recall", "precision", "before")},
        }
        for row in rows.rows(named=True)
    ]


LEVEL = 0.95
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
GAP_IMAGES = 4000  # of whole classes drawn at random, where there are more

# Data sets in papers: names of their manifests and folders, and the tables with results.
KNOWN = {
    "SOP": (("sop", "stanfordonlineproducts"), ("tpami_table04", "tpami_table05")),
    "CUB": (("cub", "cub2002011"), ("tpami_table04",)),
    "In-Shop": (("inshop", "deepfashion", "deepfashioninshop"), ("rambo_table4_inshop",)),
    "iNaturalist": (("inaturalist", "inaturalist2018", "inat", "inat2018"), ("tpami_table04",)),
    "iNat-base": (("inatbase",), ("tpami_table05",)),
    "iNat-full": (("inatfull",), ("tpami_table05", "tpami_table06")),
    "DyML-Product": (("dymlproduct",), ("tpami_table08",)),
    "DyML-Vehicle": (("dymlvehicle",), ("tpami_table08",)),
    "DyML-Animal": (("dymlanimal",), ("tpami_table08",)),
    "H-GLDv2": (("gldv2", "hgldv2"), ("tpami_table07",)),
}
PAPER_METRICS = {
    "mAP@R": "map@r",
    "AP": "map",
    "AP_fine": "map",
    "H-AP": "h_ap",
    "NDCG": "ndcg",
    "ASI": "asi",
    "mAP": "map",
}


def recall_places(n_items: int) -> list[int]:
    """1, 2, 4 and so on up to a tenth of the items, but at least to 8 and at most to 1024.

    Example:
        >>> recall_places(300)
        [1, 2, 4, 8, 16]
    """
    return [2**power for power in range(11) if 2**power <= max(8, n_items / 10)]


def measure(subject: Subject, k: int) -> Result:
    """Every metric that a report shows, of every query."""
    n_levels = subject.table.manifest.n_levels
    ks = recall_places(len(subject.items))
    curves = [f"recall@{place}" + (f"_label_{label}" if label else "") for label in range(n_levels) for place in ks]
    metrics = [*subject_metrics(subject, k), f"distance@{k}", *curves]
    if subject.codes is None:
        return evaluate_table(subject.table, metrics=metrics)
    classes = subject.table.manifest.labels()[subject.queries, 0]
    return replace(evaluate_table(subject.table, metrics=metrics, codes=subject.codes), labels=classes)


def subject_metrics(subject: Subject, k: int) -> list[str]:
    """The metrics of the table: :func:`table_metrics`, and of images with several codes the AP of each code."""
    named = table_metrics(subject.table.manifest.n_levels, k)
    return named if subject.codes is None else [*dict.fromkeys([*named, "h_ap", "ndcg", EACH_CODE])]


def table_metrics(n_levels: int, k: int) -> list[str]:
    """The metrics of the table, including those that other packages register."""
    added = [name for name in METRICS if name not in METRICS.table]
    at_k = [f"{name}@{k}" if cast(Metric, METRICS.find(name)).takes_k == "always" else name for name in added]
    return [*metric_names(DEFAULT_KS, n_levels), *([f"distance@{k}"] if n_levels > 1 else []), *at_k]


def metric_rows(results: dict[str, Result], wanted: list[str]) -> tuple[list[dict[str, Any]], Unit]:
    """The table of metrics: means with 95 % intervals and, for two models, which differences are significant.

    Intervals resample classes, as queries of one class are correlated; with fewer than 10 classes they resample queries.

    Returns:
        A row for each metric: ``name``; ``meaning``; ``cells``, the mean and its interval for each model;
        for two models ``difference``, first minus second and its interval, and ``verdict``: ``better``, ``worse`` or
        ``may be chance``. And the unit that intervals resample.
    """
    mine, *others = results.values()
    by: Unit = "classes" if mine.labels is not None and len(np.unique(mine.labels)) >= 10 else "queries"
    short = [Result({name: one.per_query[name] for name in wanted}, one.ids, one.labels) for one in (mine, *others)]
    ends = [
        bootstrap_interval(np.stack([one.per_query[name] for name in wanted], 1), one.groups(by), LEVEL) for one in short
    ]
    compared = compare(short[1], short[0], LEVEL, by) if others else None
    rows = []
    for column, name in enumerate(wanted):
        cells = [
            (shown(name, one[name]), " – ".join(shown(name, float(end)) for end in end_pair[:, column]))
            for one, end_pair in zip(short, ends, strict=True)
        ]
        metric, (_, _, label) = metric_of(name), name.partition("_label_")
        meaning = (MEANINGS.get(name, "") if metric is None else metric.meaning) + (f", by label_{label}" if label else "")
        rows.append({"name": name, "meaning": meaning, "cells": cells, **_difference(name, compared)})
    return rows, by


def _difference(name: str, compared: Comparison | None) -> dict[str, Any]:
    """First minus second with its interval, and the verdict; empty for a single model."""
    if compared is None:
        return {"difference": None, "verdict": ""}
    found, metric = compared.differences[name], metric_of(name)
    gain = found.b - found.a
    better = (gain > 0) == (metric is None or metric.higher_is_better)
    verdict = ("better" if better else "worse") if compared.is_real(name) else "may be chance"
    interval = " to ".join(shown(name, end, "+") for end in found.interval)
    return {"difference": (shown(name, gain, "+"), interval), "verdict": verdict}


def label_recalls(result: Result, n_levels: int, ks: list[int]) -> NDArray[np.float64]:
    """(L, K) the mean recall@k with each label as what counts, finest first."""
    suffixes = ["", *(f"_label_{label}" for label in range(1, n_levels))]
    return np.array([[result[f"recall@{k}{suffix}"] for k in ks] for suffix in suffixes])


def gaps_by_batch_size(subject: Subject, seed: int = 0) -> dict[int, Gap]:
    """The decomposability gap of average precision at several batch sizes, among the gallery images."""
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
    return gaps | {len(rows): Gap(0.0, 0.0, (0.0, 0.0), 2 * n_queries, 0)}  # a single batch is the whole set


def paper_metric(column: str) -> str | None:
    """Sightline's name for a metric in a paper; None if Sightline does not measure it.

    Example:
        >>> paper_metric("R@10"), paper_metric("mAP@R"), paper_metric("minutes/epoch")
        ('recall@10', 'map@r', None)
    """
    found = re.fullmatch(r"R@(\d+)", column)
    return f"recall@{found[1]}" if found else PAPER_METRICS.get(column)


def places_of(manifest: Manifest) -> list[Path]:
    """Paths that may name the data set: the manifest without its suffix, and the common folder of all images."""
    source = manifest.source.absolute()
    images = os.path.commonpath([path.absolute().parent for path in manifest.paths()])
    return [source.parent / source.stem, Path(os.path.normpath(images))]


def known_dataset(place: Path) -> str | None:
    """The data set of a folder or manifest, by its name or a parent folder's; None if unknown.

    Example:
        >>> known_dataset(Path("/data/Stanford_Online_Products/images")), known_dataset(Path("/data/photos"))
        ('SOP', None)
    """
    plain = [re.sub("[^a-z0-9]", "", part.lower()) for part in reversed(place.parts)]
    return next((dataset for part in plain for dataset, (folders, _) in KNOWN.items() if part in folders), None)


def published_tables_of(places: Sequence[Path], table: str | None, measured: list[str]) -> list[dict[str, Any]]:
    """The published tables to show beside a result.

    Args:
        places: paths that may name the data set, most specific first; see :func:`places_of`.
        table: name of one table; None for those of the data set, if it is known.
        measured: metrics of the result; others are left out.

    Returns:
        For each its name, ``table``; ``dataset``; ``metrics``, by Sightline's names; and ``rows``: a method and its
        value in percent for each metric, None where the table has none.
    """
    dataset = next((found for place in places if (found := known_dataset(place))), None)
    if table is None:
        return [] if dataset is None else [_read(name, dataset, measured) for name in KNOWN[dataset][1]]
    there = sorted({row.dataset for row in read_published(table)})
    if dataset not in there and len(there) > 1:
        raise InputError(
            f"published table {table!r} covers {names(there)}, and the folder {str(places[-1])!r} names none of them; "
            "put the images in a folder with the data set's name"
        )
    return [_read(table, dataset if dataset in there else there[0], measured)]


def _read(table: str, dataset: str, measured: list[str]) -> dict[str, Any]:
    rows: dict[str, dict[str, float]] = {}
    for one in read_published(table):
        metric = paper_metric(one.metric)
        if one.dataset == dataset and metric in measured:
            rows.setdefault(one.method, {}).setdefault(metric, one.value)
    metrics = [name for name in measured if any(name in row for row in rows.values())]
    values = [(method, [row.get(name) for name in metrics]) for method, row in rows.items()]
    return {"table": table, "dataset": dataset, "metrics": metrics, "rows": values}
