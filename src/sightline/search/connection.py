"""How a gallery's database is connected to, where it may be written and where not, and what SQLite's errors mean."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import InputError

BUSY_SECONDS = 10.0
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
Still = tuple[int, int, int]  # inode, time and size


def connected(file: Path, mode: str = "rwc") -> sqlite3.Connection:
    """A connection whose transactions are begun and ended by hand; another writer is waited for."""
    return sqlite3.connect(
        f"{file.resolve().as_uri()}?mode={mode}", BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def configured(connection: sqlite3.Connection, read_only: bool) -> sqlite3.Connection:
    """The same connection, set up."""
    connection.execute("PRAGMA synchronous = FULL")  # a commit that returned survives a power cut
    connection.execute("PRAGMA cache_size = -16000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def standing_still(file: Path) -> Still | None:
    """What a database is known by that nobody writes to; None if it has a log, and so a writer, or had one that died."""
    if file.with_name(f"{file.name}-wal").exists():
        return None
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def mode_of(still: Still | None) -> str:
    """How to connect where nothing may be written: SQLite cannot make the log it wants, and does without if told to."""
    return "ro" if still is None else "ro&immutable=1"


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """One error that names the gallery, for whatever SQLite raises."""
    try:
        yield
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"another process is writing; waited {BUSY_SECONDS:g} s, nothing was changed"
        elif kind in FULL:
            message = f"cannot be read or written ({error}); is the disk full? Nothing of this call was kept"
        elif kind in DAMAGED or kind == 0:
            message = f"the database is damaged or was closed: {error}"
        else:
            message = f"the database cannot be used: {error}"
        raise InputError(f"{folder}: {message}") from error
