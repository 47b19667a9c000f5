"""Write a file so that it is there complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        yield scratch
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
