"""The numbers of a report: metrics with intervals, their differences, the papers' numbers, the decomposability gap."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sightline.data.manifest import Manifest
from sightline.errors import InputError, names
from sightline.evaluation.decomposability import Gap, decomposability_gap
from sightline.evaluation.metrics import METRICS, Metric, metric_names, metric_of
from sightline.evaluation.protocol import DEFAULT_KS, evaluate
from sightline.evaluation.result import Result, Unit, bootstrap_interval, compare, shown
from sightline.evaluation.tables import evaluate_table
from sightline.report.subject import Subject
from sightline.studies.papers import read_published

LEVEL = 0.95
BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
GAP_IMAGES = 4000  # of whole classes drawn at random, where there are more

# The data sets that papers report on: names of manifests and of folders they are in, and the tables with their numbers.
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


@dataclass(frozen=True)
class MetricRow:
    """One metric of one or two models.

    Attributes:
        name: of the metric.
        meaning: in a few words.
        cells: of each model, the mean and its interval.
        difference: first minus second and its interval, where there are two.
        verdict: ``better``, ``worse`` or ``may be chance``.
    """

    name: str
    meaning: str
    cells: list[tuple[str, str]]
    difference: tuple[str, str] | None = None
    verdict: str = ""


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
    return evaluate_table(subject.table, metrics=[*table_metrics(n_levels, k), f"distance@{k}", *curves])


def table_metrics(n_levels: int, k: int) -> list[str]:
    """The metrics of the table, those that other packages add among them; the others are for curves."""
    added = [name for name in METRICS if name not in METRICS.table]
    at_k = [f"{name}@{k}" if cast(Metric, METRICS.find(name)).takes_k == "always" else name for name in added]
    return [*metric_names(DEFAULT_KS, n_levels), *([f"distance@{k}"] if n_levels > 1 else []), *at_k]


def metric_rows(results: dict[str, Result], wanted: list[str]) -> tuple[list[MetricRow], Unit]:
    """The table of metrics: means with 95 % intervals and, for two models, which differences are real.

    Chance is taken to draw classes, for queries of one class rise and fall together; queries where there are few classes.
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
        if compared is None:
            rows.append(MetricRow(name, _meaning(name), cells))
            continue
        found = compared.differences[name]
        gain = found.b - found.a
        metric = metric_of(name)
        better = (gain > 0) == (metric is None or metric.higher_is_better)
        verdict = ("better" if better else "worse") if compared.is_real(name) else "may be chance"
        interval = " to ".join(shown(name, end, "+") for end in found.interval)
        rows.append(MetricRow(name, _meaning(name), cells, (shown(name, gain, "+"), interval), verdict))
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


@dataclass(frozen=True)
class PublishedTable:
    """What one table says of one data set: shares in percent by method and metric."""

    table: str
    dataset: str
    metrics: list[str]
    rows: list[tuple[str, list[float | None]]]


def paper_metric(column: str) -> str | None:
    """The name here of a metric of the papers; None for one that is not measured here.

    Example:
        >>> paper_metric("R@10"), paper_metric("mAP@R"), paper_metric("minutes/epoch")
        ('recall@10', 'map@r', None)
    """
    found = re.fullmatch(r"R@(\d+)", column)
    return f"recall@{found[1]}" if found else PAPER_METRICS.get(column)


def places_of(manifest: Manifest) -> list[Path]:
    """What may bear the name of a data set: the manifest without its suffix, and the folder that all images are in."""
    source = manifest.source.absolute()
    images = os.path.commonpath([path.absolute().parent for path in manifest.paths()])
    return [source.parent / source.stem, Path(os.path.normpath(images))]


def known_dataset(place: Path) -> str | None:
    """The data set of a folder or manifest, by its name or that of a folder above it.

    Example:
        >>> known_dataset(Path("/data/Stanford_Online_Products/images")), known_dataset(Path("/data/photos"))
        ('SOP', None)
    """
    for part in reversed(place.parts):
        plain = re.sub("[^a-z0-9]", "", part.lower())
        for dataset, (folders, _) in KNOWN.items():
            if plain in folders:
                return dataset
    return None


def published_tables_of(places: Sequence[Path], table: str | None, measured: list[str]) -> list[PublishedTable]:
    """The tables to show beside a result.

    Args:
        places: whose names may say which data set it is, the most telling first; see :func:`places_of`.
        table: the name of one table; None for those of the data set that the images are of, if it is known.
        measured: metrics of the result; others are left out.
    """
    dataset = next((found for place in places if (found := known_dataset(place))), None)
    if table is None:
        return [] if dataset is None else [_read(name, dataset, measured) for name in KNOWN[dataset][1]]
    there = sorted({row.dataset for row in read_published(table)})
    if dataset not in there and len(there) > 1:
        raise InputError(
            f"published table {table!r} is of {names(there)}, and the folder {str(places[-1])!r} does not say "
            "which of them these images are; put the set in a folder of its name"
        )
    return [_read(table, dataset if dataset in there else there[0], measured)]


def _read(table: str, dataset: str, measured: list[str]) -> PublishedTable:
    rows: dict[str, dict[str, float]] = {}
    for one in read_published(table):
        metric = paper_metric(one.metric)
        if one.dataset == dataset and metric in measured:
            rows.setdefault(one.method, {}).setdefault(metric, one.value)
    metrics = [name for name in measured if any(name in row for row in rows.values())]
    return PublishedTable(table, dataset, metrics, [(m, [row.get(name) for name in metrics]) for m, row in rows.items()])
