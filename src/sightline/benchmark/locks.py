"""A file that one process holds at a time, until it ends, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import InputError


@contextmanager
def held(file: Path, wait: bool = False) -> Iterator[None]:
    """Hold the file, with this process's number in it.

    Args:
        file: made if need be, and left there.
        wait: for the process that holds it; False raises an error that names it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise InputError(f"{file.parent}: process {_number(file)} works here; wait for it or end it first") from error
        opened.seek(0)
        opened.truncate()
        opened.write(str(os.getpid()))
        opened.flush()
        yield


def holder(file: Path) -> int | None:
    """The process that holds the file; None if nobody does."""
    if not file.is_file():
        return None
    with file.open("a+", encoding="utf-8") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _number(file)
    return None


def _number(file: Path) -> int:
    text = file.read_text(encoding="utf-8").strip()
    return int(text) if text.isdigit() else 0
