"""ROC curves and histograms of energies: what belongs against what does not."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sightline.evaluation.detection import DetectionResult, roc
from sightline.files import replaced

SETTINGS: Any = {"svg.hashsalt": "sightline", "font.family": "sans-serif", "font.size": 10}
INSIDE = "#4b5563"
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by colour-blind readers too
N_BINS = 60


def draw_detection(result: DetectionResult, file: Path, threshold: float | None = None) -> Path:
    """Draw the ROC of each outlier set beside the histograms of all energies.

    Args:
        result: energies of both kinds.
        file: to write; its ending says the format.
        threshold: drawn as a line over the histograms.
    """
    file = Path(file)
    with rc_context(SETTINGS):
        figure = Figure(figsize=(9.5, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        everything = np.concatenate([result.inside, *result.outside.values()])
        # A few items far out would squeeze all others into one bin: these are put in the last one.
        low, high = float(everything.min()), float(np.quantile(everything, 0.995))
        bins = np.linspace(low, high if high > low else low + 1, N_BINS + 1)
        right.hist(
            np.clip(result.inside, bins[0], bins[-1]), bins.tolist(), density=True, color=INSIDE, alpha=0.5, label="belongs"
        )
        for place, (name, energies) in enumerate(result.outside.items()):
            colour = COLOURS[place % len(COLOURS)]
            left.plot(
                *roc(result.inside, energies), color=colour, label=f"{name}: {100 * result.per_set[name]['auroc']:.1f}"
            )
            clipped = np.clip(energies, bins[0], bins[-1])
            right.hist(clipped, bins.tolist(), density=True, histtype="step", color=colour, linewidth=1.5, label=name)
        if threshold is not None:
            right.axvline(threshold, color="black", linestyle="--", linewidth=1, label="threshold")
        left.plot([0, 1], [0, 1], color=INSIDE, linewidth=0.8, linestyle=":")
        _dress(left, "outliers accepted", "images that belong accepted")
        _dress(right, "energy", "density")
        left.legend(loc="lower right", fontsize=9, title="AUROC in percent")
        right.legend(loc="upper right", fontsize=9)
        with replaced(file) as scratch:
            kind = file.suffix.removeprefix(".") or "svg"
            figure.savefig(scratch, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return file


def _dress(axes: Axes, horizontal: str, vertical: str) -> None:
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
