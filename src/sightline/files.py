"""Write a file or a folder so that it is there complete or not at all, and read back what was written."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sightline.errors import InputError

FAILING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@contextmanager
def named_failures(target: Path) -> Iterator[None]:
    """Errors of a disk that is full or fails, which name no file or a scratch file, with the name of what is written."""
    try:
        yield
    except shutil.Error as error:  # of several files; the first says why
        raise OSError(None, error.args[0][0][2], str(target)) from error
    except OSError as error:
        if error.errno not in FAILING:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """A scratch path beside ``file`` that takes its place, once on disk, when the block ends without an error.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "a.txt")
        >>> with replaced(file) as scratch:
        ...     _ = scratch.write_text("whole")
        >>> file.read_text()
        'whole'
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with named_failures(file):
            yield scratch
            with scratch.open("rb+") as written:
                os.fsync(written.fileno())
            scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)


def read_json(file: Path) -> Any:
    """What a JSON file holds; refused if it is damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from error


def check_folder(folder: Path, mark: str, what: str) -> None:
    """Refuse a folder that :func:`replaced_folder` would refuse: to be called before minutes of work."""
    if folder.exists() and not (folder / mark).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not {what}; it is left as it is")


@contextmanager
def replaced_folder(folder: Path, mark: str, what: str) -> Iterator[Path]:
    """An empty folder beside ``folder`` that takes its place when the block ends without an error.

    Args:
        folder: replaced if it holds the file ``mark``; refused if it holds anything else.
        mark: the file by which such a folder is known.
        what: the kind of thing, for the message.
    """
    check_folder(folder, mark, what)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.saving")
    new, old = scratch / "new", scratch / "old"
    shutil.rmtree(new, ignore_errors=True)  # of a save that was killed; its old folder is kept until this one is there
    new.mkdir(parents=True)
    try:
        with named_failures(folder):
            yield new
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(scratch)
