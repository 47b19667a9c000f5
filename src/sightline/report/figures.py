"""Figures of one or two models, one panel each: curves, bars, and class means on a plane by t-SNE."""

from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.preprocessing import minmax_scale

from sightline.evaluation.decomposability import Gap
from sightline.evaluation.detection import DetectionResult, roc
from sightline.evaluation.metrics import shown_scale
from sightline.ood.classifier import class_means
from sightline.report.numbers import EDGES, GRID, Curves
from sightline.report.style import (
    BLUE,
    CLASSES,
    GREEN,
    GREY,
    INK,
    MARKERS,
    MODELS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    drawing,
    level_colours,
    level_lines,
    level_names,
    write_figure,
)
from sightline.report.subject import LogRow, Outliers, Subject
from sightline.training.logs import TERM

MOST_CLASSES = 2000  # points of a map; more are drawn at random
MOST_DIMS = 32  # kept of the class means before t-SNE
N_ROUNDS = 500
DECIMALS = 6  # of class means; those that agree in all of them are one point
N_NEAR = 10  # class means that are asked for their coarsest label
SIZE = 400  # of the map in the page, in its own units
SHAPES = {  # drawn from the point, relative
    "o": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "^": "m0-4l3.6 6.6h-7.2z",
    "s": "m-2.8-2.8h5.6v5.6h-5.6z",
    "D": "m0-4l4 4l-4 4l-4-4z",
}
Floats = NDArray[np.float64]
Line = tuple[str, str, str, list[tuple[int, float]]]  # label, colour, line and points
OUTLIER_SETS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY)
N_BINS = 60  # of energies
LABEL_LINES = ("-", "--", ":", "-.")  # of relevance by the finest label, the next one, ...


@dataclass(frozen=True, eq=False)
class Panel:
    """A figure with its file name and a description for screen readers."""

    name: str
    description: str
    figure: Figure


@contextmanager
def drawn_panel(name: str, description: str, n_columns: int = 0, **axes_settings: Any) -> Iterator[tuple[Panel, Axes]]:
    """A panel and its axes to draw on.

    Args:
        name: of the panel.
        description: of the panel.
        n_columns: of a legend below the axes, where it covers no curves; 0 for no legend.
        axes_settings: such as ``title``, ``xlabel`` and ``ylim``, applied after drawing.
    """
    with drawing() as (figure, axes):
        yield Panel(name, description, figure), axes
        axes.set(**axes_settings)
        if n_columns:
            figure.legend(loc="outside lower center", fontsize=9, ncols=n_columns)


def columns_of_several(models: Sized) -> int:
    """Legend columns: one per model, or none for a single model."""
    return len(models) if len(models) > 1 else 0


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """An exponential moving average, corrected for bias at the start.

    Example:
        >>> smoothed([1.0, 1.0, 1.0])
        [1.0, 1.0, 1.0]
    """
    return pl.Series(values, dtype=pl.Float64).ewm_mean(alpha=1 - weight).round(12).to_list()


def training_panels(logs: dict[str, Sequence[LogRow]], metric: str) -> list[Panel]:
    """The loss of every step, its terms if it has several, and the validation metric.

    Args:
        logs: rows of each model's ``log.csv``; those without rows are left out.
        metric: the metric to draw, such as ``map@r``.
    """
    factor = shown_scale(metric)
    models = [(*look, name, log) for look, (name, log) in zip(MODELS, logs.items(), strict=False)]
    loss = [(name, colour, line, points) for colour, line, name, log in models if (points := _points(log, "loss"))]
    validated = [
        (name, colour, line, points)
        for colour, line, name, log in models
        if (points := _points(log, f"val/{metric}", factor))
    ]
    terms = [
        (f"{name}, {term}" if len(logs) > 1 else term, colour, line, _points(log, TERM + term))
        for colour, _, name, log in models
        for line, term in zip(chain(LABEL_LINES, repeat(LABEL_LINES[-1])), _terms(log), strict=False)
    ]
    title = f"Validation {metric}{' (%)' if factor == 100 else ''}"
    n_with_terms = sum(bool(_terms(log)) for log in logs.values())
    return [
        *_training_panel("loss", "loss", "Training loss", loss, columns_of_several(loss)),
        *_training_panel("terms", "each term of the loss", "Terms of the loss, not weighted", terms, n_with_terms),
        *_training_panel("validation", "validation", title, validated, columns_of_several(validated)),
    ]


def _points(log: Sequence[LogRow], what: str, factor: float = 1) -> list[tuple[int, float]]:
    return [(step, factor * value) for step, _, name, value in log if name == what]


def _terms(log: Sequence[LogRow]) -> list[str]:
    """Names of what the loss adds up."""
    return list(dict.fromkeys(name.removeprefix(TERM) for _, _, name, _ in log if name.startswith(TERM)))


def _training_panel(kind: str, what: str, title: str, lines: list[Line], n_columns: int) -> list[Panel]:
    if not lines:
        return []
    with drawn_panel(f"training-{kind}", f"{what} against training step", n_columns, title=title, xlabel="step") as (
        panel,
        axes,
    ):
        for label, colour, line, points in lines:
            steps, values = zip(*points, strict=True)
            if kind == "loss":
                axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
            look: dict[str, Any] = {"color": colour, "linewidth": 1.8, "label": label}
            if kind == "validation":
                axes.plot(steps, values, line, marker="o", markersize=4, **look)
            else:
                axes.plot(steps, smoothed(values), line, **look)
        if title.endswith("(%)"):
            axes.set_ylim(top=min(101, axes.get_ylim()[1]))
    return [panel]


def recall_panel(ks: Sequence[int], recalls: dict[str, Floats]) -> Panel:
    """Recall@k against k.

    Args:
        ks: ascending.
        recalls: by model, (L, K) with relevance by each label, finest first.
    """
    with drawn_panel(
        "recall",
        "share of queries with a right image among the first k, against k",
        len(recalls),
        ylim=(None, 101),
        title="Recall@k: a relevant image in the first k",
        xlabel="k",
        ylabel="queries (%)",
    ) as (panel, axes):
        _by_label(axes, np.array(ks, np.float64), recalls)
        axes.set_xscale("log", base=2)
        ticks = list(ks)[:: 1 if len(ks) <= 6 else 2]
        axes.set_xticks(ticks, [str(k) for k in ticks])
    return panel


def precision_panel(curves: dict[str, Curves]) -> Panel:
    """Precision against recall of each label."""
    with drawn_panel(
        "precision-recall",
        "precision against recall",
        len(curves),
        ylim=(0, 101),
        title="Precision at each recall",
        xlabel="recall (%)",
        ylabel="precision (%)",
    ) as (panel, axes):
        _by_label(axes, 100 * GRID, {name: one.precision for name, one in curves.items()})
    return panel


def h_precision_panel(curves: dict[str, Curves]) -> Panel:
    """Hierarchical precision against hierarchical recall; the area is H-AP."""
    with drawn_panel(
        "hierarchical-precision-recall",
        "hierarchical precision against hierarchical recall",
        len(curves),
        ylim=(0, 101),
        title="Hierarchical precision at each recall",
        xlabel="hierarchical recall (%)",
        ylabel="hierarchical precision (%)",
    ) as (panel, axes):
        for (colour, line), (name, one) in zip(MODELS, curves.items(), strict=False):
            label = f"{name} (area {100 * float(np.mean(one.h_precision)):.1f})"
            axes.plot(100 * GRID, 100 * one.h_precision, line, color=colour, linewidth=1.8, label=label)
    return panel


def severity_panel(shares: dict[str, Floats], k: int) -> Panel:
    """Height of the common ancestor of query and result, as fractions of the first k results."""
    n_levels, width = len(next(iter(shares.values()))) - 1, 0.8 / len(shares)
    with drawn_panel(
        f"severity-{k}",
        f"how much the first {k} results share with their query",
        columns_of_several(shares),
        ylim=(None, max(100 * share.max() for share in shares.values()) * 1.1),
        title="First result" if k == 1 else f"First {k} results",
        ylabel="results (%)",
    ) as (panel, axes):
        for place, ((colour, _), (name, share)) in enumerate(zip(MODELS, shares.items(), strict=False)):
            at = np.arange(n_levels + 1) + (place - (len(shares) - 1) / 2) * width
            look: dict[str, Any] = {"color": colour, "edgecolor": "white", "hatch": ("", "//")[place], "alpha": 0.9}
            bars = axes.bar(at, 100 * share, width * 0.94, label=name, **look)
            axes.bar_label(bars, [f"{100 * value:.0f}" for value in share], fontsize=9, color=INK)
        axes.set_xticks(range(n_levels + 1), [name.replace(" ", "\n") for name in level_names(n_levels)])
        axes.grid(axis="x", alpha=0)
    return panel


def score_panel(name: str, histogram: NDArray[np.int64], thresholds: dict[str, float]) -> Panel:
    """Scores of pairs by shared labels, each as a density."""
    n_levels = len(histogram) - 1
    used = np.flatnonzero(histogram.sum(0))
    ends = [EDGES[used[0]], EDGES[used[-1] + 1], *thresholds.values()]
    with drawn_panel(
        f"scores-{name}",
        f"densities of the scores of {name} by what two images share",
        2,
        title=f"Scores of {name}",
        xlabel="cosine",
        ylabel="density",
        xlim=(max(-1, min(ends) - 0.02), min(1.0, max(ends) + 0.02)),
    ) as (panel, axes):
        kinds = zip(histogram, level_colours(n_levels), level_lines(n_levels), level_names(n_levels), strict=True)
        for counts, colour, line, called in kinds:
            if counts.sum():
                _draw_density(axes, counts / counts.sum() / (EDGES[1] - EDGES[0]), EDGES, colour, line, called)
        for at, (called, value) in enumerate(thresholds.items()):
            axes.axvline(value, color=INK, linewidth=1.2, linestyle=(0, (6 - 3 * at, 2)))
            axes.annotate(
                called, (value, 1), xycoords=("data", "axes fraction"), color=INK, fontsize=9, ha="right", va="top"
            )
    return panel


def gap_panel(gaps: dict[str, dict[int, Gap]]) -> Panel:
    """The decomposability gap of average precision against the batch size."""
    with drawn_panel(
        "decomposability-gap",
        "decomposability gap of average precision against batch size",
        columns_of_several(gaps),
        title="AP inside batches minus AP of the whole set",
        xlabel="batch size",
        ylabel="gap (points)",
    ) as (panel, axes):
        for (colour, line), (name, one) in zip(MODELS, gaps.items(), strict=False):
            sizes, means = list(one), 100 * np.array([gap.mean for gap in one.values()])
            axes.errorbar(
                sizes,
                means,
                100 * np.array([gap.deviation for gap in one.values()]),
                color=colour,
                linestyle=line,
                marker="o",
                markersize=4,
                capsize=3,
                label=name,
            )
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
    return panel


def outlier_panel(found: Outliers) -> Panel:
    """Densities of the energies, and the threshold."""
    kinds = {"images shown": found.inside} | ({} if found.outside is None else {"outliers": found.outside})
    edges = _energy_edges(np.concatenate([*kinds.values(), [found.threshold]]), found.threshold)
    with drawn_panel(
        "outliers",
        "densities of out-of-distribution energies, and the threshold",
        len(kinds) + 1,
        title=f"Energies by {found.scorer}",
        xlabel="further out →",
        ylabel="density",
    ) as (panel, axes):
        for (colour, line), (name, energies) in zip(MODELS, kinds.items(), strict=False):
            density = np.histogram(np.clip(energies, edges[0], edges[-1]), edges, density=True)[0]
            _draw_density(axes, density, edges, colour, line, name)
        axes.axvline(found.threshold, color=INK, linewidth=1.2, linestyle=":", label="threshold")
    return panel


def _draw_density(axes: Axes, density: Floats, edges: Floats, colour: str, line: str, label: str) -> None:
    axes.stairs(density, edges, color=colour, fill=True, alpha=0.15)
    axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.6, label=label)


def draw_detection(result: DetectionResult, file: Path, threshold: float) -> Path:
    """Draw the ROC curve of each outlier set beside histograms of all energies.

    Args:
        result: energies of in-distribution images and outliers.
        file: to write; the suffix sets the format.
        threshold: drawn as a line.
    """
    bins = _energy_edges(np.concatenate([result.inside, *result.outside.values()]))
    with drawing(9.5, 3.8, ncols=2) as (figure, (left, right)):
        inside = np.clip(result.inside, bins[0], bins[-1])
        right.hist(inside, bins.tolist(), density=True, color=INK, alpha=0.5, label="in distribution")
        for (name, energies), colour in zip(result.outside.items(), cycle(OUTLIER_SETS)):
            area = f"{name}: {100 * result.per_set[name]['auroc']:.1f}"
            left.plot(*roc(result.inside, energies), color=colour, label=area)
            clipped = np.clip(energies, bins[0], bins[-1])
            right.hist(clipped, bins.tolist(), density=True, histtype="step", color=colour, linewidth=1.5, label=name)
        right.axvline(threshold, color="black", linestyle="--", linewidth=1, label="threshold")
        left.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        left.set(xlabel="outliers accepted", ylabel="in-distribution images accepted")
        right.set(xlabel="energy", ylabel="density")
        left.legend(loc="lower right", fontsize=9, title="AUROC in percent")
        right.legend(loc="upper right", fontsize=9)
    return write_figure(figure, file.parent, file.stem, (file.suffix.removeprefix(".") or "svg",), dpi=120)[0]


def _energy_edges(energies: Floats, least: float = -np.inf) -> Floats:
    """Histogram edges, up to at least ``least``: the few largest energies fall in the last bin."""
    low, high = float(energies.min()), max(float(np.quantile(energies, 0.995)), least)
    return np.linspace(low, high if high > low else low + 1, N_BINS + 1)


def _by_label(axes: Axes, x: Floats, curves: dict[str, Floats]) -> None:
    for (colour, _), (name, rows) in zip(MODELS, curves.items(), strict=False):
        for label, row in enumerate(rows):
            called = f"{name}, label_{label}" if len(rows) > 1 else name
            line, width = LABEL_LINES[min(label, len(LABEL_LINES) - 1)], 1.8 if label == 0 else 1.3
            axes.plot(x, 100 * row, line, color=colour, linewidth=width, label=called)


@dataclass(frozen=True)
class Kind:
    """A coarsest label: how its points look."""

    name: str
    colour: str
    marker: str


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Points on a plane, one a class.

    Attributes:
        names: of the classes.
        kinds: the coarsest labels, by size.
        kind_of: (C,) the kind of each class.
        points: by model, (C, 2) between 0 and 1; not of a model for which all classes are the same.
        n_classes: in the table, of which these may be a part.
        purity: by model, as :func:`neighbour_purity` gives it; none where there is one label level.
    """

    names: list[str]
    kinds: list[Kind]
    kind_of: NDArray[np.int64]
    points: dict[str, Floats]
    n_classes: int
    purity: dict[str, float]


def unit_class_means(subject: Subject) -> Floats:
    """(C, D) the mean of the unit vectors of each finest class, at length 1."""
    codes = torch.from_numpy(subject.table.manifest.labels()[:, 0])
    vectors = torch.from_numpy(subject.table.vectors).double()
    return np.asarray(F.normalize(class_means(F.normalize(vectors, dim=1), codes)[0], dim=1))


def class_map(subjects: list[Subject], seed: int = 0) -> ClassMap:
    """The classes of one table as one or two models see them."""
    manifest = subjects[0].table.manifest
    labels = manifest.labels()
    n_classes = int(labels[:, 0].max()) + 1
    shown = np.sort(np.random.default_rng(seed).permutation(n_classes)[:MOST_CLASSES])
    coarse = np.zeros(n_classes, np.int64)
    coarse[labels[:, 0]] = labels[:, -1]
    kinds, kind_of = _kinds(coarse[shown], manifest.class_names(manifest.n_levels - 1), manifest.n_levels)
    names = manifest.class_names(0)
    means = {subject.name: unit_class_means(subject)[shown] for subject in subjects}
    planes = {name: _plane(own, seed) for name, own in means.items()}
    points = {name: plane for name, plane in planes.items() if plane is not None}
    is_graded = manifest.n_levels > 1 and len(shown) > 1
    purity = {name: neighbour_purity(own, coarse[shown]) for name, own in means.items()} if is_graded else {}
    return ClassMap([names[code] for code in shown], kinds, kind_of, points, n_classes, purity)


def neighbour_purity(means: Floats, coarse: NDArray[np.int64], n_near: int = N_NEAR) -> float:
    """How many of the nearest class means, by their vectors and not by the map, share the coarsest label, as a mean share.

    Example:
        >>> neighbour_purity(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), np.array([0, 0, 1]), n_near=1)
        0.6666666666666666
    """
    scores = means @ means.T
    np.fill_diagonal(scores, -np.inf)
    near = np.argsort(-scores, axis=1, kind="stable")[:, : min(n_near, len(means) - 1)]
    return float((coarse[near] == coarse[:, None]).mean())


def _kinds(coarse: NDArray[np.int64], names: list[str], n_levels: int) -> tuple[list[Kind], NDArray[np.int64]]:
    """The labels with the most classes each get a colour and a marker of their own; the rest are grey."""
    if n_levels == 1:
        return [Kind("class", CLASSES[0], MARKERS[0])], np.zeros(len(coarse), np.int64)
    codes, counts = np.unique(coarse, return_counts=True)
    by_size = codes[np.argsort(-counts, kind="stable")]
    looks = [(colour, marker) for marker in MARKERS for colour in CLASSES[:-1]]
    kinds = [Kind(names[code], *look) for code, look in zip(by_size, looks, strict=False)]
    if len(by_size) > len(looks):
        kinds.append(Kind(f"{len(by_size) - len(looks)} others", GREY, MARKERS[0]))
    rank = np.zeros(int(codes.max()) + 1, np.int64)
    rank[by_size] = np.minimum(np.arange(len(by_size)), len(looks))
    return kinds, rank[coarse]


def _plane(means: Floats, seed: int) -> Floats | None:
    """(C, 2) places of the classes, those with the same mean at the same place; None if all of several are the same."""
    distinct, which = np.unique(means.round(DECIMALS), axis=0, return_inverse=True)  # t-SNE crashes on coincident points
    if len(distinct) == 1 < len(means):
        return None
    points: Floats = np.stack([np.linspace(0, 1, len(distinct)), np.full(len(distinct), 0.5)], 1)  # on a line
    if len(distinct) >= 4:  # enough for neighbours
        reduced = PCA(min(MOST_DIMS, *distinct.shape), random_state=seed).fit_transform(distinct)
        reduced = (reduced / np.abs(reduced).max()).astype(np.float32)  # the squares of small differences vanish
        perplexity = min(30.0, (len(distinct) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init="pca", max_iter=N_ROUNDS, angle=0.7, random_state=seed)
        points = minmax_scale(tsne.fit_transform(reduced).astype(np.float64))
    return points[which]


def map_panel(found: ClassMap, name: str) -> Panel:
    """One model's map as a figure, with a legend where there are kinds."""
    with drawing(6.4, 5.0) as (figure, axes):
        for number, kind in enumerate(found.kinds):
            own = found.points[name][found.kind_of == number]
            axes.scatter(*own.T, s=9, color=kind.colour, marker=kind.marker, linewidths=0, label=kind.name)
        axes.set(title=f"Class means of {name} (t-SNE)", xticks=[], yticks=[])
        if len(found.kinds) > 1:
            figure.legend(loc="outside right upper", fontsize=8, markerscale=2)
    return Panel(f"tsne-{name}", f"t-SNE of the class means of {name}", figure)


def marks(found: ClassMap, name: str) -> list[tuple[int, str, str]]:
    """What the page draws for each class: its kind, the path of its marker and its place."""
    places = 8 + (SIZE - 16) * (found.points[name] * [1, -1] + [0, 1])  # from the upper left corner
    return [
        (kind, SHAPES[found.kinds[kind].marker], f"{across:.1f} {down:.1f}")
        for kind, (across, down) in zip(found.kind_of.tolist(), places.tolist(), strict=True)
    ]
