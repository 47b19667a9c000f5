"""Is one loss better than another? Effects of paired runs, with standard error, power and verdict.

Runs of two losses are paired by random seed, and every pair is measured on the same test classes. Both the seeds and the
classes are samples: another seed, or other classes, would give another number. The standard error includes both, by the
variances of a two-way layout (quasi-F, Clark 1973), with Satterthwaite's degrees of freedom.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL, POWER = 0.05, 0.8
Verdict = Literal["reproduced", "reversed", "not there", "undecided"]


@dataclass(frozen=True)
class Effect:
    """The mean difference of two rows, one minus the other.

    Attributes:
        mean: in the metric's unit.
        error: its standard error over seeds and classes.
        freedom: degrees of freedom of that error.
    """

    mean: float
    error: float
    freedom: float

    @property
    def p_value(self) -> float:
        """Two-sided p-value of no difference; 1 if all differences are 0."""
        return float(2 * stats.t.sf(abs(self.mean) / self.error, self.freedom)) if self.error else float(self.mean == 0)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval."""
        reach = stats.t.ppf(1 - LEVEL / 2, self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def detectable(self) -> float:
        """The smallest difference that such runs show at the 5 % level with a power of 80 %."""
        return self.detectable_at(LEVEL)

    def detectable_at(self, level: float) -> float:
        """The smallest difference that such runs show at a level with a power of 80 %."""
        return float((stats.t.ppf(1 - level / 2, self.freedom) + stats.t.ppf(POWER, self.freedom)) * self.error)


def paired_effect(differences: NDArray[np.float64]) -> Effect:
    """The effect of one row over another.

    Args:
        differences: (S, C) for each seed and test class, at least 2 of each; all classes have the same weight.

    Example:
        >>> effect = paired_effect(np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]))
        >>> round(effect.mean, 2), round(effect.error, 2)
        (2.25, 0.63)
    """
    n_seeds, n_classes = differences.shape
    mean = differences.mean()
    of_seeds, of_classes = differences.mean(1), differences.mean(0)
    rest = differences - of_seeds[:, None] - of_classes + mean
    squares = {  # mean squares, each with its degrees of freedom
        "seeds": (n_classes * of_seeds.var(ddof=1), n_seeds - 1),
        "classes": (n_seeds * of_classes.var(ddof=1), n_classes - 1),
        "both": ((rest**2).sum() / ((n_seeds - 1) * (n_classes - 1)), (n_seeds - 1) * (n_classes - 1)),
    }
    # Both mean squares contain the interaction, so one copy is subtracted; the result is never below either of them.
    largest = max(squares["seeds"], squares["classes"])
    total = squares["seeds"][0] + squares["classes"][0] - squares["both"][0]
    if total <= largest[0]:
        return Effect(float(mean), float(np.sqrt(largest[0] / differences.size)), float(largest[1]))
    freedom = total**2 / sum(square**2 / degrees for square, degrees in squares.values())
    return Effect(float(mean), float(np.sqrt(total / differences.size)), float(max(1.0, freedom)))


def verdict(effects: list[Effect], p_values: list[float], published: list[float]) -> Verdict:
    """Whether runs on one or more data sets confirm a published finding.

    Args:
        effects: one per data set.
        p_values: corrected p-value of each.
        published: the published difference in the unit of each effect, scaled to the base.

    Returns:
        ``reproduced``: the same sign, significant on all of at least two sets; ``reversed``: the other sign, likewise;
        ``not there``: no set shows it, and each shows the opposite or had the power to show an effect of the published
        size, which its interval excludes; otherwise ``undecided``.
    """
    signs = [np.sign(effect.mean) * np.sign(size) for effect, size in zip(effects, published, strict=True)]
    shows = [p < LEVEL and sign > 0 for p, sign in zip(p_values, signs, strict=True)]
    opposes = [p < LEVEL and sign < 0 for p, sign in zip(p_values, signs, strict=True)]
    if len(effects) > 1 and all(shows):
        return "reproduced"
    if len(effects) > 1 and all(opposes):
        return "reversed"
    excludes = [
        effect.detectable <= abs(size) and not effect.interval[0] <= size <= effect.interval[1]
        for effect, size in zip(effects, published, strict=True)
    ]
    is_absent = all(excluded or opposed for excluded, opposed in zip(excludes, opposes, strict=True))
    return "not there" if is_absent and not any(shows) else "undecided"
