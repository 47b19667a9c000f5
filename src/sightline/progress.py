"""What goes to a terminal: a progress bar on standard error, and text that cannot command the terminal."""

import re
from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")

# Controls but for newline and tab, of 7 and of 8 bits; marks that turn the direction of text; halves of characters.
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def tracked(items: Iterable[T], title: str, total: int, shown: bool) -> Iterable[T]:
    """The items, with a bar that fills as they are taken if it is to be shown."""
    return track(items, title, total, console=Console(stderr=True), disable=not shown)


def say(line: str) -> None:
    """A line on standard error."""
    Console(stderr=True).print(printable(line), highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text with characters that a terminal would obey as ``\\u001b``; newlines and tabs stay, and JSON stays JSON.

    Example:
        >>> printable("a\\x1b[2Jb")
        'a\\\\u001b[2Jb'
    """
    return COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
