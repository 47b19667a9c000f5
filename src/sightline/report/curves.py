"""Curves and bars of one or two models, one panel each."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sightline.evaluation.decomposability import Gap
from sightline.evaluation.detection import DetectionResult, roc
from sightline.evaluation.metrics import shown_scale
from sightline.report.rankings import EDGES, GRID, Curves
from sightline.report.style import (
    BLUE,
    GREEN,
    INK,
    MODELS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    drawing,
    dress,
    level_colours,
    level_lines,
    level_names,
    write_figure,
)
from sightline.report.subject import LogRow, Outliers
from sightline.training.logs import TERM

Floats = NDArray[np.float64]
OUTLIER_SETS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY)
N_BINS = 60  # of energies
LABEL_LINES = ("-", "--", ":", "-.")  # of relevance by the finest label, the next one, ...


@dataclass(frozen=True, eq=False)
class Panel:
    """A figure with the name of its file and a sentence for those who cannot see it."""

    name: str
    description: str
    figure: Figure


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """An exponential mean, unbiased at the start.

    Example:
        >>> smoothed([1.0, 1.0, 1.0])
        [1.0, 1.0, 1.0]
    """
    total, share, means = 0.0, 0.0, []
    for value in values:
        total, share = weight * total + (1 - weight) * value, weight * share + (1 - weight)
        means.append(round(total / share, 12))
    return means


def training_panels(logs: dict[str, Sequence[LogRow]], metric: str) -> list[Panel]:
    """The loss of every step, its terms where it has some, and the validation metric of every epoch that was validated.

    Args:
        logs: rows of each model's ``log.csv``; those without rows are left out.
        metric: the metric to draw, such as ``map@r``.
    """
    factor = shown_scale(metric)
    rows = {
        "loss": {name: [(step, value) for step, _, what, value in log if what == "loss"] for name, log in logs.items()},
        metric: {
            name: [(step, factor * value) for step, _, what, value in log if what == f"val/{metric}"]
            for name, log in logs.items()
        },
    }
    panels = []
    for what, series in rows.items():
        if not any(series.values()):
            continue
        with drawing() as (figure, axes):
            for (colour, line), (name, points) in zip(MODELS, series.items(), strict=False):
                if not points:
                    continue
                steps, values = zip(*points, strict=True)
                if what == "loss":
                    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
                    axes.plot(steps, smoothed(values), line, color=colour, linewidth=1.8, label=name)
                else:
                    axes.plot(steps, values, line, color=colour, linewidth=1.8, marker="o", markersize=4, label=name)
            percent = " (%)" if factor == 100 else ""
            if what == metric and percent:
                axes.set_ylim(top=min(101, axes.get_ylim()[1]))
            dress(axes, "Training loss" if what == "loss" else f"Validation {metric}{percent}", "step")
            _legend_of_several(figure, [points for points in series.values() if points])
        kind = "loss" if what == "loss" else "validation"
        panels.append(Panel(f"training-{kind}", f"{kind} against training step", figure))
    return [*panels[:1], *_term_panels(logs), *panels[1:]]


def _term_panels(logs: dict[str, Sequence[LogRow]]) -> list[Panel]:
    """The terms that a model's loss adds up, not weighted; none where no loss does."""
    of_models: dict[str, dict[str, list[tuple[int, float]]]] = {name: {} for name in logs}
    for name, log in logs.items():
        for step, _, what, value in log:
            if what.startswith(TERM):
                of_models[name].setdefault(what.removeprefix(TERM), []).append((step, value))
    if not any(of_models.values()):
        return []
    with drawing() as (figure, axes):
        for (colour, _), (name, terms) in zip(MODELS, of_models.items(), strict=False):
            for number, (term, points) in enumerate(terms.items()):
                steps, values = zip(*points, strict=True)
                line = LABEL_LINES[min(number, len(LABEL_LINES) - 1)]
                called = f"{name}, {term}" if len(logs) > 1 else term
                axes.plot(steps, smoothed(values), line, color=colour, linewidth=1.8, label=called)
        dress(axes, "Terms of the loss, not weighted", "step")
        _legend_below(figure, [terms for terms in of_models.values() if terms])
    return [Panel("training-terms", "each term of the loss against training step", figure)]


def recall_panel(ks: Sequence[int], recalls: dict[str, Floats]) -> Panel:
    """Recall@k against k.

    Args:
        ks: ascending.
        recalls: by model, (L, K) for each label as what counts, finest first.
    """
    with drawing() as (figure, axes):
        _by_label(axes, np.array(ks, np.float64), recalls)
        axes.set_xscale("log", base=2)
        ticks = list(ks)[:: 1 if len(ks) <= 6 else 2]
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.set_ylim(top=101)
        dress(axes, "Recall@k: a right image among the first k", "k", "queries (%)")
        _legend_below(figure, recalls)
    return Panel("recall", "share of queries with a right image among the first k, against k", figure)


def precision_panel(curves: dict[str, Curves]) -> Panel:
    """Precision against recall of each label."""
    with drawing() as (figure, axes):
        _by_label(axes, 100 * GRID, {name: one.precision for name, one in curves.items()})
        dress(axes, "Precision at each recall", "recall (%)", "precision (%)")
        axes.set_ylim(0, 101)
        _legend_below(figure, curves)
    return Panel("precision-recall", "precision against recall", figure)


def h_precision_panel(curves: dict[str, Curves]) -> Panel:
    """Hierarchical precision against hierarchical recall; the area is H-AP."""
    with drawing() as (figure, axes):
        for (colour, line), (name, one) in zip(MODELS, curves.items(), strict=False):
            area = 100 * float(np.mean(one.h_precision))
            label = f"{name} (area {area:.1f})"
            axes.plot(100 * GRID, 100 * one.h_precision, line, color=colour, linewidth=1.8, label=label)
        dress(axes, "Hierarchical precision at each recall", "hierarchical recall (%)", "hierarchical precision (%)")
        axes.set_ylim(0, 101)
        _legend_below(figure, curves)
    return Panel("hierarchical-precision-recall", "hierarchical precision against hierarchical recall", figure)


def severity_panel(shares: dict[str, Floats], k: int) -> Panel:
    """How far up the common ancestor of query and result is, as shares of the first k results."""
    n_levels = len(next(iter(shares.values()))) - 1
    with drawing() as (figure, axes):
        width = 0.8 / len(shares)
        for place, ((colour, _), (name, share)) in enumerate(zip(MODELS, shares.items(), strict=False)):
            at = np.arange(n_levels + 1) + (place - (len(shares) - 1) / 2) * width
            bars = axes.bar(at, 100 * share, width * 0.94, color=colour, label=name, hatch=("", "//")[place], alpha=0.9)
            for bar in bars:
                bar.set_edgecolor("white")
            axes.bar_label(bars, [f"{100 * value:.0f}" for value in share], fontsize=9, color=INK)
        axes.set_xticks(range(n_levels + 1), [name.replace(" ", "\n") for name in level_names(n_levels)])
        dress(axes, "First result" if k == 1 else f"First {k} results", "", "results (%)")
        axes.grid(axis="x", alpha=0)
        axes.set_ylim(top=max(100 * share.max() for share in shares.values()) * 1.1)
        _legend_of_several(figure, shares)
    return Panel(f"severity-{k}", f"how much the first {k} results share with their query", figure)


def score_panel(name: str, histogram: NDArray[np.int64], thresholds: dict[str, float]) -> Panel:
    """Scores of pairs by what they share, each kind as a density."""
    n_levels = len(histogram) - 1
    used = np.flatnonzero(histogram.sum(0))
    low, high = EDGES[used[0]], EDGES[used[-1] + 1]
    with drawing() as (figure, axes):
        kinds = zip(histogram, level_colours(n_levels), level_lines(n_levels), level_names(n_levels), strict=True)
        for counts, colour, line, called in kinds:
            if counts.sum():
                density = counts / counts.sum() / (EDGES[1] - EDGES[0])
                axes.stairs(density, EDGES, color=colour, fill=True, alpha=0.15)
                axes.stairs(density, EDGES, color=colour, linestyle=line, linewidth=1.6, label=called)
        for at, (called, value) in enumerate(thresholds.items()):
            axes.axvline(value, color=INK, linewidth=1.2, linestyle=(0, (6 - 3 * at, 2)))
            axes.annotate(
                called, (value, 1), xycoords=("data", "axes fraction"), color=INK, fontsize=9, ha="right", va="top"
            )
        dress(axes, f"Scores of {name}", "cosine", "density")
        ends = [low, high, *thresholds.values()]
        axes.set_xlim(max(-1, min(ends) - 0.02), min(1.0, max(ends) + 0.02))
        figure.legend(loc="outside lower center", fontsize=9, ncols=2)  # inside it would cover the densities
    return Panel(f"scores-{name}", f"densities of the scores of {name} by what two images share", figure)


def gap_panel(gaps: dict[str, dict[int, Gap]]) -> Panel:
    """The decomposability gap of average precision against the batch size."""
    with drawing() as (figure, axes):
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
        dress(axes, "AP inside batches minus AP of the whole set", "batch size", "gap (points)")
        _legend_of_several(figure, gaps)
    return Panel("decomposability-gap", "decomposability gap of average precision against batch size", figure)


def outlier_panel(found: Outliers) -> Panel:
    """Densities of the energies, and the threshold."""
    kinds = {"images shown": found.inside} | ({} if found.outside is None else {"outliers": found.outside})
    everything = np.concatenate([*kinds.values(), [found.threshold]])
    edges = _energy_edges(everything, found.threshold)
    with drawing() as (figure, axes):
        for (colour, line), (name, energies) in zip(MODELS, kinds.items(), strict=False):
            density = np.histogram(np.clip(energies, edges[0], edges[-1]), edges, density=True)[0]
            axes.stairs(density, edges, color=colour, fill=True, alpha=0.15)
            axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.6, label=name)
        axes.axvline(found.threshold, color=INK, linewidth=1.2, linestyle=":", label="threshold")
        dress(axes, f"Energies by {found.scorer}", "further out →", "density")
        figure.legend(loc="outside lower center", fontsize=9, ncols=len(kinds) + 1)
    return Panel("outliers", "densities of energies: how far out images are, and the threshold", figure)


def draw_detection(result: DetectionResult, file: Path, threshold: float | None = None) -> Path:
    """Draw the ROC of each outlier set beside the histograms of all energies.

    Args:
        result: energies of both kinds.
        file: to write; its ending says the format.
        threshold: drawn as a line over the histograms.
    """
    bins = _energy_edges(np.concatenate([result.inside, *result.outside.values()]))
    with drawing(9.5, 3.8, ncols=2) as (figure, (left, right)):
        inside = np.clip(result.inside, bins[0], bins[-1])
        right.hist(inside, bins.tolist(), density=True, color=INK, alpha=0.5, label="belongs")
        for (name, energies), colour in zip(result.outside.items(), cycle(OUTLIER_SETS)):
            area = f"{name}: {100 * result.per_set[name]['auroc']:.1f}"
            left.plot(*roc(result.inside, energies), color=colour, label=area)
            clipped = np.clip(energies, bins[0], bins[-1])
            right.hist(clipped, bins.tolist(), density=True, histtype="step", color=colour, linewidth=1.5, label=name)
        if threshold is not None:
            right.axvline(threshold, color="black", linestyle="--", linewidth=1, label="threshold")
        left.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        dress(left, "", "outliers accepted", "images that belong accepted")
        dress(right, "", "energy", "density")
        left.legend(loc="lower right", fontsize=9, title="AUROC in percent")
        right.legend(loc="upper right", fontsize=9)
    return write_figure(figure, file.parent, file.stem, (file.suffix.removeprefix(".") or "svg",), dpi=120)[0]


def _energy_edges(energies: Floats, least: float = -np.inf) -> Floats:
    """Edges of a histogram, up to ``least`` or further: a few energies far out are left for its last bin."""
    low, high = float(energies.min()), max(float(np.quantile(energies, 0.995)), least)
    return np.linspace(low, high if high > low else low + 1, N_BINS + 1)


def _by_label(axes: Axes, x: Floats, curves: dict[str, Floats]) -> None:
    for (colour, _), (name, rows) in zip(MODELS, curves.items(), strict=False):
        for label, row in enumerate(rows):
            called = f"{name}, label_{label}" if len(rows) > 1 else name
            line, width = LABEL_LINES[min(label, len(LABEL_LINES) - 1)], 1.8 if label == 0 else 1.3
            axes.plot(x, 100 * row, line, color=colour, linewidth=width, label=called)


def _legend_below(figure: Figure, models: Sized) -> None:
    """A column for each model, under the axes: several labels each would cover the curves."""
    figure.legend(loc="outside lower center", fontsize=9, ncols=len(models))


def _legend_of_several(figure: Figure, models: Sized) -> None:
    if len(models) > 1:
        _legend_below(figure, models)
