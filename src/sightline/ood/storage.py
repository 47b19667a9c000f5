"""Write a folder so that it is there complete or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import InputError


@contextmanager
def replaced_folder(folder: Path, mark: str, what: str) -> Iterator[Path]:
    """An empty folder beside ``folder`` that takes its place when the block ends without an error.

    Args:
        folder: replaced if it holds the file ``mark``; refused if it holds anything else.
        mark: the file by which such a folder is known.
        what: the kind of thing, for the message.
    """
    if folder.exists() and not (folder / mark).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not {what}; it is left as it is")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    new, old = scratch / "new", scratch / "old"
    new.mkdir(parents=True)
    try:
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(scratch)
