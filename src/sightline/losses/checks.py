"""Refusals of options, in the same words for every loss."""

import math

from sightline.errors import InputError


def check_finite(**values: float) -> None:
    """Refuse a named number that is NaN or infinite."""
    if wrong := [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]:
        raise InputError(f"{', '.join(wrong)}; a finite number is needed")


def check_margin(margin: float) -> None:
    """Refuse a margin that is below 0 or not finite."""
    if not 0 <= margin < math.inf:
        raise InputError(f"margin is {margin}; a finite number of 0 or more is needed")


def check_counts(**values: int) -> None:
    """Refuse a named count that is not a whole number above 0."""
    if wrong := [
        f"{name} is {value!r}"
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]:
        raise InputError(f"{', '.join(wrong)}; a whole number above 0 is needed")
