"""Curves of a training run, drawn as SVG that stands inside a page."""

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

LogRow = tuple[int, int, str, float]
INK, LOSS, METRIC = "#6b7280", "#0072b2", "#009e73"  # readable on light and on dark, and to colour-blind readers
SETTINGS: Any = {  # Any: matplotlib wants the keys as literals
    "svg.hashsalt": "sightline",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
}


def smoothed(values: list[float], weight: float = 0.9) -> list[float]:
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


def training_curves(log: list[LogRow], metric: str) -> str:
    """The loss of every step and the validation metric of every epoch, as one SVG element.

    Args:
        log: the rows of a run's ``log.csv``.
        metric: the metric to draw, such as ``map@r``; its panel is left out where nothing was validated.
    """
    losses = [(step, value) for step, _, name, value in log if name == "loss"]
    validated = [(step, 100 * value) for step, _, name, value in log if name == f"val/{metric}"]
    with rc_context(SETTINGS):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, 2 if validated else 1, squeeze=False)[0]
        steps, values = [step for step, _ in losses], [value for _, value in losses]
        axes[0].plot(steps, values, color=LOSS, alpha=0.25, linewidth=1)
        axes[0].plot(steps, smoothed(values), color=LOSS, linewidth=1.8)
        _dress(axes[0], "Training loss")
        if validated:
            axes[1].plot(*zip(*validated, strict=True), color=METRIC, linewidth=1.8, marker="o", markersize=4)
            _dress(axes[1], f"Validation {metric} (%)")
        svg = io.StringIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK)
    axes.set_xlabel("step", color=INK)
    axes.tick_params(colors=INK)
    axes.grid(alpha=0.25)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_edgecolor(INK)
