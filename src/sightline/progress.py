"""What goes to a terminal or a notebook: progress bars, HTML tables, and text that cannot command a terminal."""

import html
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")

# Controls but for newline and tab, of 7 and of 8 bits; marks that turn the direction of text; halves of characters.
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def tracked(items: Iterable[T], title: str, total: int, shown: bool) -> Iterable[T]:
    """The items, with a progress bar on standard error, or in the notebook's cell, if it is to be shown."""
    if not shown or total == 0:
        return items  # a bar that is disabled starts a thread all the same
    if in_notebook():
        return notebook_bar(items, title, total)  # type: ignore[no-any-return]
    return track(items, title, total, console=Console(stderr=True))


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, where bars that move the cursor do not work."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def notebook_bar(items: Iterable[Any] | None, title: str, total: int | None) -> Any:
    """A bar of tqdm: a widget where ipywidgets is installed, otherwise text."""
    if find_spec("ipywidgets") is None:
        from tqdm import tqdm
    else:
        from tqdm.notebook import tqdm
    return tqdm(items, desc=title, total=total)


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


def html_table(rows: Sequence[Sequence[object]], note: str = "") -> str:
    """A header and rows for a notebook, and a line below them; everything is escaped.

    Example:
        >>> html_table([["metric", "mean"], ["map", "50.0"]])
        '<table><tr><th>metric</th><th>mean</th></tr><tr><td>map</td><td>50.0</td></tr></table>'
    """
    lines = [
        "<tr>" + "".join(f"<{cell}>{html.escape(str(word))}</{cell}>" for word in row) + "</tr>"
        for row, cell in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{''.join(lines)}</table>" + (f"<p>{html.escape(note)}</p>" if note else "")
