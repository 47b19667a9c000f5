"""The exceptions a user meets, and the sentence that suggests the name they meant."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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


def counted(n: int, one: str, several: str | None = None) -> str:
    """A number and its noun.

    Example:
        >>> counted(1, "image"), counted(2, "image"), counted(0, "class", "classes")
        ('1 image', '2 images', '0 classes')
    """
    return f"{n} {one if n == 1 else several or one + 's'}"


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
        name: the one to find.
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
        raise InputError(f"{where}: {counted(len(faults), 'fault')}\n  " + "\n  ".join(faults[:SHOWN_FAULTS] + more))


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """A missing package that the block imports becomes an :class:`InputError` with the command that installs it.

    Example:
        >>> with needs_extra("a picture", "report"):
        ...     import a_package_that_is_missing
        Traceback (most recent call last):
        sightline.errors.InputError: a picture needs a_package_that_is_missing: pip install 'sightline[report]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise InputError(f"{what} needs {package}: pip install 'sightline[{extra}]'") from error


@contextmanager
def named_errors(where: object, what: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Errors of these kinds that the block raises become one :class:`InputError` that says where, what, and why.

    An ``InputError`` of the block stays as it is.

    Example:
        >>> with named_errors("a.txt", "no number", ValueError):
        ...     int("x")
        Traceback (most recent call last):
        sightline.errors.InputError: a.txt: no number: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        # Of a key that is missing the text is the key alone; of a disk's error it has the number and the file too.
        text = repr(error) if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
        reason = f"{what}: {text.partition(chr(10))[0] or type(error).__name__}"
        raise InputError(f"{where}: {'no such file' if isinstance(error, FileNotFoundError) else reason}") from error
