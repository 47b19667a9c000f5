"""A metric against a hyper-parameter, as PNG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sightline.benchmark.grid import Cell, slug
from sightline.benchmark.layout import Picture
from sightline.benchmark.outcome import Outcome
from sightline.benchmark.suite import Suite, Sweep
from sightline.evaluation.metrics import shown_scale
from sightline.files import replaced

# Okabe and Ito's colours, with another marker and line each: readable to colour-blind people and in grey.
STYLES = [
    ("#0072b2", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#009e73", "^", "-."),
    ("#cc79a7", "D", ":"),
    ("#000000", "v", "-"),
]
SETTINGS: Any = {"font.family": "sans-serif", "font.size": 10}


def draw_curves(suite: Suite, done: Mapping[Cell, Outcome], folder: Path, prefix: str) -> list[Picture]:
    """Draw a picture for each figure of the suite's sweeps that has a result; error bars are the deviation over seeds.

    Returns:
        The pictures, named relative to the folder.
    """
    pictures = []
    for figure in dict.fromkeys(sweep.figure for sweep in suite.sweeps):
        sweeps = [sweep for sweep in suite.sweeps if sweep.figure == figure]
        lines = {sweep: line for sweep in sweeps if (line := _line(sweep, done))}
        if lines:
            file = f"{prefix}-{slug(figure)}.png"
            _draw(lines, folder / file)
            told = ", ".join(sweep.name for sweep in lines)
            pictures.append(Picture(file, f"{sweeps[0].metric} against {sweeps[0].label}: {told}"))
    return pictures


def _line(sweep: Sweep, done: Mapping[Cell, Outcome]) -> dict[float, list[float]]:
    """The value of each seed at each place of the axis; pooled over data sets."""
    found: dict[float, list[float]] = {}
    for cell, outcome in done.items():
        if cell.row.sweep == sweep.name and cell.row.x is not None and cell.row.x in sweep.values:
            found.setdefault(cell.row.x, []).append(outcome.result[sweep.metric])
    return dict(sorted(found.items()))


def _draw(lines: Mapping[Sweep, dict[float, list[float]]], file: Path) -> None:
    first = next(iter(lines))
    scale = shown_scale(first.metric)
    with rc_context(SETTINGS):
        figure = Figure(figsize=(6, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for place, (sweep, line) in enumerate(lines.items()):
            colour, marker, style = STYLES[place % len(STYLES)]
            means = [scale * float(np.mean(values)) for values in line.values()]
            spread = [scale * float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in line.values()]
            axes.errorbar(
                list(line), means, spread, color=colour, marker=marker, linestyle=style, capsize=3, label=sweep.name
            )
        axes.set_xlabel(first.label)
        axes.set_ylabel(f"{first.metric} in percent" if scale == 100 else first.metric)
        if first.log:
            axes.set_xscale("log")
            ticks = sorted({x for line in lines.values() for x in line})
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.minorticks_off()
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2)  # a search for the best place takes seconds
        with replaced(file) as scratch:
            figure.savefig(scratch, format="png", dpi=120, metadata={"Software": None})
