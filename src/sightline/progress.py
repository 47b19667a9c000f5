"""A progress bar on standard error, so that what a command prints can be piped."""

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def tracked(items: Iterable[T], title: str, total: int, shown: bool) -> Iterable[T]:
    """The items, with a bar that fills as they are taken if it is to be shown."""
    return track(items, title, total, console=Console(stderr=True), disable=not shown)
