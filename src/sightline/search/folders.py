"""Make a folder so that it is there complete or not at all; how large one is."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sightline.errors import InputError
from sightline.files import named_failures


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes ``folder`` when the block ends without an error; one with something in it is refused.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "new")
        >>> with appearing(folder) as scratch:
        ...     _ = (scratch / "a.txt").write_text("whole")
        >>> [file.name for file in folder.iterdir()]
        ['a.txt']
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists and is not empty; it is left as it is")
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        with named_failures(folder):
            yield scratch
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
        above = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(above)  # a power cut does not take the name back
        finally:
            os.close(above)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """What the files of a folder and of those below it take; files that go meanwhile do not count."""
    n_bytes = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            n_bytes += file.stat().st_size if file.is_file() else 0
    return n_bytes
