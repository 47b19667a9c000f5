"""How a gallery's database is connected to, where it may be written and where not, and what SQLite's errors mean."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import InputError

BUSY_SECONDS = 10.0
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
CANNOT_WRITE = FULL | {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
Still = tuple[int, int, int]  # inode, time and size


class DamagedError(InputError):
    """A gallery is not as it was written, or was not written by Sightline; its user has done nothing wrong."""


def connected(file: Path, mode: str = "rwc") -> sqlite3.Connection:
    """A connection whose transactions are begun and ended by hand; another writer is waited for.

    The database may come from somebody else: what its schema says calls no function, and its pages are checked.
    """
    connection = sqlite3.connect(
        f"{file.resolve().as_uri()}?mode={mode}", BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def connected_to_read(file: Path) -> tuple[sqlite3.Connection, "Still | None"]:
    """A connection, and what the database is known by where the connection sees no other's writes.

    SQLite makes a log and an index of it beside a database that it reads. Where it cannot, because the folder may not be
    written or the disk is full, it does without if nobody writes.
    """
    if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK):
        connection = connected(file, "rw")
        try:
            connection.execute("PRAGMA application_id").fetchone()
            return connection, None
        except sqlite3.Error as error:
            connection.close()
            if kind_of(error) not in CANNOT_WRITE or standing_still(file) is None:
                raise
    still = standing_still(file)
    return connected(file, mode_of(still)), still


def kind_of(error: sqlite3.Error) -> int:
    """SQLite's number for the kind of an error; 0 where Python raised it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def written(file: Path) -> Iterator[None]:
    """SQLite's errors on a database that is made here, as those of the disk that it is made on."""
    try:
        yield
    except sqlite3.Error as error:
        if kind_of(error) not in FULL:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error


def configured(connection: sqlite3.Connection, read_only: bool) -> sqlite3.Connection:
    """The same connection, set up."""
    connection.execute("PRAGMA synchronous = FULL")  # a commit that returned survives a power cut
    connection.execute("PRAGMA cache_size = -16000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def standing_still(file: Path) -> Still | None:
    """What a database is known by that nobody writes to; None if it has a log, and so a writer, or had one that died."""
    try:
        if file.with_name(f"{file.name}-wal").stat().st_size:
            return None
    except FileNotFoundError:
        pass
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
        kind = kind_of(error)
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"another process is writing; waited {BUSY_SECONDS:g} s, nothing was changed"
        elif kind in FULL:
            message = f"cannot be read or written ({error}); is the disk full? What was written before is kept"
        elif kind in DAMAGED or kind == 0:
            message = f"the database is damaged or was closed: {error}"
        else:
            message = f"the database cannot be used: {error}"
        raise InputError(f"{folder}: {message}") from error
