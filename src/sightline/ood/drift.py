"""Is the stated acceptance still true? What a service counts and logs about the verdicts of its rejector."""

import json
import math
from collections import deque
from pathlib import Path

from scipy.stats import binom

from sightline.errors import InputError

WINDOW = 1000  # queries
FEWEST = 200
LEVEL = 0.999  # of the band: one false alarm in a thousand windows
EVENT = "verdict"  # of a log line


class Drift:
    """The share of refused queries among the last ones, and whether it is what calibration promised.

    Attributes:
        alarmed: whether the number of refused queries is outside its binomial band.
    """

    def __init__(self) -> None:
        self.alarmed = False
        self.refused: deque[bool] = deque(maxlen=WINDOW)

    def add(self, refused: bool, acceptance: float) -> str | None:
        """Count a query; a sentence when the alarm goes on or off, else None."""
        self.refused.append(refused)
        n_queries, n_refused = len(self.refused), sum(self.refused)
        if n_queries < FEWEST:
            return None
        low, high = (float(edge) for edge in binom.interval(LEVEL, n_queries, 1 - acceptance))
        was, self.alarmed = self.alarmed, not low <= n_refused <= high
        if was == self.alarmed:
            return None
        facts = f"{n_refused} of the last {n_queries} queries were refused, {low:g} to {high:g} are expected"
        return f"{facts}; recalibrate or fit the rejector again" if self.alarmed else f"{facts}; back to normal"


def logged_energies(log: Path, threshold: float | None, gallery: str | None = None) -> list[float]:
    """The energies that a service logged for queries which it compared with this threshold.

    Args:
        log: lines of JSON; others are skipped.
        threshold: that of the rejector; lines with another come from another rejector.
        gallery: only lines of this gallery; required if there are lines of several.
    """
    if not log.is_file():
        raise InputError(f"{log}: no such file; `sightline serve gallery 2> {log}` writes it")
    found: list[tuple[str, float]] = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            try:
                line = json.loads(text)
                is_ours = line["event"] == EVENT and math.isclose(line["threshold"], threshold or 0.0, rel_tol=1e-9)
                found += [(line["gallery"], float(line["energy"]))] if is_ours else []
            except (ValueError, KeyError, TypeError):
                continue
    names = sorted({name for name, _ in found if gallery in (None, name)})
    if len(names) != 1:
        wanted = f"of gallery {gallery!r} " if gallery else ""
        raise InputError(
            f"{log}: must have verdicts {wanted}of one gallery with threshold {threshold}, found {names or 'none'}; "
            "name it with --gallery"
        )
    return [energy for name, energy in found if name == names[0]]
