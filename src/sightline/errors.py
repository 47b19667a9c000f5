"""The exceptions a user meets, and the sentence that suggests the name they meant."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

SHOWN_FAULTS = 20
SHOWN_NAMES = 30


class InputError(ValueError):
    """Something the user gave does not fit; the message says where, what was found and what would fit."""


def names(words: Iterable[object]) -> str:
    """The words in quotes, joined by commas, for use inside a message.

    Example:
        >>> names(["train", "val"])
        "'train', 'val'"
    """
    return ", ".join(repr(str(word)) for word in words)


def nearest(name: str, known: Iterable[str]) -> str:
    """A closing clause for a message about an unknown name: the nearest known one, or all of them, cut after 30.

    Example:
        >>> nearest("sup_pa", ["sup_ap", "smooth_ap"])
        "did you mean 'sup_ap'?"
        >>> nearest("x", ["sup_ap", "smooth_ap"])
        "known: 'smooth_ap', 'sup_ap'"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
    return f"known: {names(known[:SHOWN_NAMES])}{more}"


def choose(table: Mapping[str, T], name: str, what: str) -> T:
    """``table[name]``, or an error that suggests the nearest name.

    Args:
        table: the choices by name.
        name: the one asked for.
        what: the kind of thing, for the message.

    Example:
        >>> choose({"adam": 1, "sgd": 2}, "sgd", "optimizer")
        2
        >>> choose({"adam": 1, "sgd": 2}, "adma", "optimizer")
        Traceback (most recent call last):
        sightline.errors.InputError: unknown optimizer 'adma': did you mean 'adam'?
    """
    if name not in table:
        raise InputError(f"unknown {what} {name!r}: {nearest(name, table)}")
    return table[name]


def raise_faults(where: object, faults: list[str]) -> None:
    """Raise one error that lists the faults found in ``where``; do nothing if there are none."""
    if faults:
        more = [f"... and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else []
        noun = "fault" if len(faults) == 1 else "faults"
        raise InputError(f"{where}: {len(faults)} {noun}\n  " + "\n  ".join(faults[:SHOWN_FAULTS] + more))
