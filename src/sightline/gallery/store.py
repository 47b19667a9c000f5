"""The database of a gallery: SQLite tables of items and blocks of vectors, written in transactions.

Each item has a row number, which is not reused until the next compaction. Its vector is at that number in the blocks, which
are written once. The vector of a removed item stays until :meth:`Store.compact`.
"""

import functools
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from sightline.errors import InputError
from sightline.files import own_file, recovered_folder
from sightline.gallery.gallery import (
    LARGEST_DIM,
    EncoderIdentity,
    Value,
    may_be_id,
    some,
    value_fault,
)

DATABASE = "gallery.db"
FORMAT = 1
APPLICATION = 0x53494748
BLOCK_BYTES = 1 << 20
SCHEMA = """
CREATE TABLE described (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 0), generation INTEGER NOT NULL, epoch INTEGER NOT NULL,
                    next_row INTEGER NOT NULL, n_items INTEGER NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE blocks (start INTEGER PRIMARY KEY, n INTEGER NOT NULL, checksum INTEGER NOT NULL, vectors BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY, generation INTEGER NOT NULL);
INSERT INTO state VALUES (0, 0, 0, 0, 0);
"""
DISMISSED = "CREATE TABLE IF NOT EXISTS dismissed (id TEXT PRIMARY KEY, root TEXT NOT NULL) WITHOUT ROWID"
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
BUSY_SECONDS = 10.0
CANNOT_WRITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
MESSAGES = {  # by SQLite's error codes; 0 if Python raised the error
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED): "another process is writing; waited {seconds:g} s, nothing was changed",
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR): (
        "cannot be read or written ({error}); is the disk full? Earlier writes are kept"
    ),
    (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, 0): "the database is damaged or was closed: {error}",
}
FileState = tuple[int, int, int]  # inode, time and size


class DamagedError(InputError):
    """A gallery was damaged, or was not written by Sightline: not a mistake of the caller."""


def open_connection(file: Path, mode: str, read_only: bool = False) -> sqlite3.Connection:
    """A connection with explicit transactions that waits for other writers.

    The database may come from somebody else: its schema may not call functions, and its pages are checked.
    """
    connection = sqlite3.connect(
        f"{file.resolve().as_uri()}?mode={mode}", BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
    settings = {
        "trusted_schema": "OFF",
        "cell_size_check": "ON",
        "cache_size": -16000,
        "query_only": int(read_only),
        "synchronous": "FULL",  # a commit survives a power cut
    }
    try:
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name} = {value}")
        connection.execute("PRAGMA application_id").fetchone()  # the first statement that reads the file
        return connection
    except BaseException:
        connection.close()
        raise


def open_to_read(file: Path) -> tuple[sqlite3.Connection, "FileState | None"]:
    """A connection, and the state of the file if the connection cannot see writes of others.

    SQLite creates a log and its index beside a database that it reads. If it cannot, because the folder is read-only or the
    disk is full, it reads without them as long as nobody writes.
    """
    if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK):
        try:
            return open_connection(file, "rw", read_only=True), None
        except sqlite3.Error as error:
            if kind_of(error) not in CANNOT_WRITE or state_of_file(file) is None:
                raise
    still = state_of_file(file)
    return open_connection(file, mode_of(still), read_only=True), still


def kind_of(error: sqlite3.Error) -> int:
    """SQLite's primary error code; 0 if Python raised the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def state_of_file(file: Path) -> FileState | None:
    """The state of a database that nobody writes to; None if it has a log, that is a writer, alive or killed."""
    log, found = file.with_name(f"{file.name}-wal"), file.stat()
    has_log = log.exists() and log.stat().st_size > 0
    return None if has_log else (found.st_ino, found.st_mtime_ns, found.st_size)


def mode_of(still: FileState | None) -> str:
    """How to connect if nothing may be written: without a log if nobody writes."""
    return "ro" if still is None else "ro&immutable=1"


@contextmanager
def sqlite_errors(folder: Path) -> Iterator[None]:
    """Turn every SQLite error into one InputError that names the gallery."""
    try:
        yield
    except sqlite3.Error as error:
        found = (message for kinds, message in MESSAGES.items() if kind_of(error) in kinds)
        message = next(found, "the database cannot be used: {error}")
        raise InputError(f"{folder}: {message.format(error=error, seconds=BUSY_SECONDS)}") from error


@dataclass(frozen=True)
class Description:
    """The settings in a gallery's database: encoder, metric, index and target recall.

    ``newest`` is the generation that wrote the last new vector; None if an old version wrote them all.
    """

    fingerprint: Annotated[str, Field(min_length=1)]
    dim: Annotated[int, Field(ge=1, le=LARGEST_DIM)]
    name: str
    metric: Literal["cosine", "dot"]
    index: str
    recall: Annotated[float, Field(gt=0, le=1)]
    newest: Annotated[int, Field(ge=0, lt=10**18)] | None = None


DESCRIPTION = TypeAdapter(Description)


@dataclass(frozen=True)
class State:
    """The counters of the database: ``generation`` counts commits, ``epoch`` compactions; rows are below ``next_row``."""

    generation: int
    epoch: int
    next_row: int
    n_items: int


@dataclass(frozen=True)
class Block:
    """The first row, the number and the checksum of a block of vectors."""

    start: int
    n: int
    checksum: int


class Store:
    """One open database; usable from several threads, one at a time."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, read_only: bool, still: FileState | None = None
    ) -> None:
        self.folder = folder
        self.read_only = read_only
        self._connection = connection
        self._still = still  # None if the connection sees writes of others
        self._lock = threading.RLock()
        self._writes = False  # in the current transaction
        described = self.described()
        self.state()
        self.identity = EncoderIdentity(described.fingerprint, described.dim, described.name)
        self.metric = described.metric

    @staticmethod
    def create(folder: Path, identity: EncoderIdentity, metric: str, index: str, recall: float) -> None:
        """Write a new database to a folder that has none."""
        with sqlite_errors(folder), closing(open_connection(folder / DATABASE, "rwc")) as connection:
            connection.execute("PRAGMA page_size = 16384")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA}"
            )
            _describe(connection, **asdict(identity), metric=metric, index=index, recall=recall)
            connection.execute("COMMIT")

    @classmethod
    def open(cls, folder: Path, read_only: bool = False) -> "Store":
        """Open the database in a gallery's folder."""
        file = recovered_folder(folder) / DATABASE
        if not os.path.lexists(file):
            why = f"it has no {DATABASE}" if folder.exists() else "no such folder"
            raise InputError(f"{folder}: not a gallery: {'it is a file' if folder.is_file() else why}")
        _check_links(folder, read_only)
        with sqlite_errors(folder):
            if not read_only and not (os.access(file, os.W_OK) and os.access(folder, os.W_OK)):
                raise InputError(f"{folder}: cannot be written; open it with read_only=True")
            connection, still = open_to_read(file) if read_only else (open_connection(file, "rw"), None)
            try:
                _check_tables(connection, file)
                return cls(folder, connection, read_only, still)
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Close the files; may be called twice."""
        with self._lock:
            self._connection.close()
            self._still = None

    def reading(self) -> AbstractContextManager[None]:
        """A block in which all reads see one state."""
        return self._transaction(writes=False)

    def writing(self) -> AbstractContextManager[None]:
        """A block whose writes are kept together or not at all; it waits for other writers."""
        self.check_writable()
        return self._transaction(writes=True)

    def check_writable(self) -> None:
        """Raise InputError if the gallery was opened with ``read_only``."""
        if self.read_only:
            raise InputError(f"{self.folder}: was opened with read_only=True")

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[None]:
        """A transaction, or a part of the current one."""
        with self._lock, sqlite_errors(self.folder):
            if self._connection.in_transaction and self._writes >= writes:
                yield
                return
            self._reconnect_if_changed()
            self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            self._writes = writes
            try:
                yield
                if writes:
                    self._connection.execute("UPDATE state SET generation = generation + 1")
                    self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _reconnect_if_changed(self) -> None:
        """Connect again if the file changed after a connection that cannot see writes of others."""
        file = self.folder / DATABASE
        with suppress(FileNotFoundError):  # it is being replaced
            if self._still is not None and (still := state_of_file(file)) != self._still:
                connection = open_connection(file, mode_of(still), self.read_only)
                self._connection.close()
                self._connection, self._still = connection, still

    def _rows(self, statement: str, *values: object) -> list[Any]:
        """The rows of a statement, in the state of the current block, if any."""
        with self.reading():
            return self._connection.execute(statement, values).fetchall()

    def state(self) -> State:
        """The current counters."""
        row = (self._rows("SELECT generation, epoch, next_row, n_items FROM state") or [(None,)])[0]
        is_sane = all(type(value) is int and value >= 0 for value in row) and row[3] <= row[2]
        self.check(is_sane, f"its state is {some(row)}")
        return State(*row)

    def check(self, is_sane: bool, fault: str) -> None:
        """Raise DamagedError unless the database is sane."""
        if not is_sane:
            raise DamagedError(f"{self.folder}: the database is damaged: {fault}")

    def described(self) -> Description:
        """The gallery's settings."""
        rows = self._rows("SELECT key, value, checksum FROM described")
        wrong = [key for key, value, checksum in rows if checksum != _checksum(key, value)]
        self.check(not wrong, f"wrong checksum of {some(wrong)}")
        try:
            return DESCRIPTION.validate_python({key: value for key, value, _ in rows if isinstance(value, str)})
        except ValidationError as error:
            faults = [f"{fault['loc'][0]}: {fault['msg']}, found {fault['input']!r}" for fault in error.errors()]
            raise DamagedError(f"{self.folder}: the database is damaged: {'; '.join(faults)}") from error

    def describe(self, **values: object) -> None:
        """Change some of the gallery's settings; inside :meth:`writing`."""
        _describe(self._connection, **values)

    def append(self, ids: Sequence[str], vectors: NDArray[np.float32], metadata: Sequence[dict[str, Value]]) -> None:
        """Add new items; inside :meth:`writing`."""
        first = self.state().next_row
        items = zip(range(first, first + len(ids)), ids, map(ENCODER.encode, metadata), strict=True)
        self._connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", [(*item, _checksum(*item)) for item in items])
        self._insert_blocks(first, vectors)
        self._connection.execute("UPDATE state SET next_row = next_row + ?1, n_items = n_items + ?1", (len(ids),))

    def _insert_blocks(self, first: int, vectors: NDArray[np.float32], rows: NDArray[np.int64] | None = None) -> None:
        """Write vectors, or some rows of them, in blocks that start at a row."""
        rows = np.arange(len(vectors)) if rows is None else rows
        n_rows = max(1, BLOCK_BYTES // (4 * self.identity.dim))
        for start in range(0, len(rows), n_rows):
            block = np.ascontiguousarray(vectors[rows[start : start + n_rows]], "<f4")
            values = (first + start, len(block), block_checksum(first + start, block), block.data)
            self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?)", values)

    def remove(self, rows: Sequence[int]) -> None:
        """Remove items by row; inside :meth:`writing`."""
        generation = self.state().generation + 1
        self._connection.executemany("DELETE FROM items WHERE row = ?", ((row,) for row in rows))
        self._connection.executemany("INSERT INTO removed VALUES (?, ?)", ((row, generation) for row in rows))
        self._connection.execute("UPDATE state SET n_items = n_items - ?", (len(rows),))

    def dismiss(self, roots: dict[str, str]) -> None:
        """Remember that items, given with their roots, were removed; inside :meth:`writing`."""
        self._connection.execute(DISMISSED)
        self._connection.executemany("INSERT OR REPLACE INTO dismissed VALUES (?, ?)", roots.items())

    def dismissed(self) -> dict[str, str]:
        """The remembered removals: ids with their roots."""
        return dict(self._rows("SELECT id, root FROM dismissed") if self._remembers() else [])

    def readmit(self, ids: Sequence[str]) -> None:
        """Forget that these items were removed; inside :meth:`writing`."""
        if self._remembers():
            self._connection.executemany("DELETE FROM dismissed WHERE id = ?", ((id_,) for id_ in ids))

    def _remembers(self) -> bool:
        """Whether there is a table of removals: it is created with the first."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = 'dismissed'"))

    def compact(self, vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Renumber the items from 0, in their order, and keep only their vectors; inside :meth:`writing`.

        Args:
            vectors: of all rows, from outside the database.
            rows: the rows of the remaining items, ascending.
        """
        items = self._rows("SELECT row, id, metadata, checksum FROM items ORDER BY row")
        wrong = [item[1] for item in items if _checksum(*item[:3]) != item[3]]
        self.check(not wrong, f"wrong checksum of {some(wrong)}; nothing was changed")
        moved = [(new, _checksum(new, id_, text), row) for new, (row, id_, text, _) in enumerate(items) if new != row]
        self._connection.execute("DELETE FROM blocks")
        self._insert_blocks(0, vectors, rows)
        # In ascending order a row's new number is always free: its former owner has moved already.
        self._connection.executemany("UPDATE items SET row = ?, checksum = ? WHERE row = ?", moved)
        self._connection.execute("DELETE FROM removed")
        self._connection.execute("UPDATE state SET epoch = epoch + 1, next_row = ?1, n_items = ?1", (len(rows),))

    def shrink(self) -> None:
        """Return unused pages to the disk."""
        with self._lock, sqlite_errors(self.folder):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The row of each id that is there."""
        return dict(self._rows("SELECT id, row FROM items WHERE id IN (SELECT value FROM json_each(?))", json.dumps(ids)))

    def metadata_of(self, rows: Sequence[int]) -> dict[int, dict[str, Value]]:
        """The metadata of the items in these rows."""
        statement = "SELECT row, metadata FROM items WHERE row IN (SELECT value FROM json_each(?))"
        return {row: self._decoded(row, text) for row, text in self._rows(statement, json.dumps(rows))}

    def _decoded(self, row: int, text: str) -> dict[str, Value]:
        try:
            metadata: dict[str, Value] = json.loads(text)
            faults = [fault for key, value in metadata.items() if (fault := value_fault(key, value))]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            faults = [str(error)]
        self.check(not faults, f"metadata of row {row}: {some(faults)}")
        return metadata

    def rows_where(self, condition: str, values: Sequence[Value]) -> NDArray[np.int64]:
        """The rows that meet an SQL condition over ``id`` and ``metadata``, ascending."""
        return np.array(self._rows(f"SELECT row FROM items WHERE {condition} ORDER BY row", *values), np.int64).reshape(-1)

    def ids_from(self, row: int) -> list[tuple[int, str]]:
        """Row and id of each item, from a row onwards."""
        found = self._rows("SELECT row, id FROM items WHERE row >= ? ORDER BY row", row)
        odd = [number for number, id_ in found if not may_be_id(id_)]
        self.check(not odd, f"no id in row {some(odd)}")
        return found

    def removed_since(self, generation: int) -> NDArray[np.int64]:
        """The rows that were removed after a generation."""
        return np.array(self._rows("SELECT row FROM removed WHERE generation > ?", generation), np.int64).reshape(-1)

    def blocks_from(self, row: int) -> list[Block]:
        """The blocks from a row onwards, checked to be contiguous up to the last row."""
        blocks = self._blocks("start >= ? ORDER BY start", row)
        ends = [row, *(block.start + block.n for block in blocks)]
        starts = [*(block.start for block in blocks), self.state().next_row]
        gaps = [end for end, start in zip(ends, starts, strict=True) if end != start]
        self.check(not gaps, f"vectors and items differ at row {some(gaps)}")
        return blocks

    def block_of(self, row: int) -> Block:
        """The block that contains a row."""
        found = self._blocks("start <= ? ORDER BY start DESC LIMIT 1", row)
        self.check(bool(found) and row < found[0].start + found[0].n, f"row {row} has no vector")
        return found[0]

    def _blocks(self, which: str, row: int) -> list[Block]:
        statement = f"SELECT start, n, checksum, typeof(vectors), length(vectors) FROM blocks WHERE {which}"
        found = self._rows(statement, row)
        odd = [
            start
            for start, n, _, kind, n_bytes in found
            if type(n) is not int or n < 1 or (kind, n_bytes) != ("blob", 4 * n * self.identity.dim)
        ]
        self.check(not odd, f"wrong number of bytes in the blocks that start at row {some(odd)}")
        return [Block(start, n, checksum) for start, n, checksum, _, _ in found]

    def block_vectors(self, block: Block) -> NDArray[np.float32]:
        """(n, D) the vectors of a block, checked by its checksum."""
        blob = self._rows("SELECT vectors FROM blocks WHERE start = ?", block.start)[0][0]
        rows = f"{block.start} to {block.start + block.n - 1}"
        self.check(block_checksum(block.start, blob) == block.checksum, f"wrong checksum of the vectors of rows {rows}")
        return np.frombuffer(blob, "<f4").reshape(block.n, self.identity.dim)

    def vectors_of(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """(N, D) the vectors of some rows, read from the database."""
        found = np.empty((len(rows), self.identity.dim), np.float32)
        block, vectors = Block(0, 0, 0), found
        for place in np.argsort(rows):
            if rows[place] >= block.start + block.n:
                block = self.block_of(rows[place])
                vectors = self.block_vectors(block)
            found[place] = vectors[rows[place] - block.start]
        return found

    def backup(self, file: Path) -> None:
        """Write a consistent copy of the database, while others read and write."""
        with (
            sqlite_errors(self.folder),
            closing(sqlite3.connect(file)) as copy,
            closing(open_connection(self.folder / DATABASE, mode_of(self._still))) as source,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = WAL")

    def faults(self) -> list[str]:
        """The faults of the database, one sentence each."""
        found: list[str] = []
        try:
            with self.reading():
                found.extend(self._faults())  # keeps the faults found before an error
        except InputError as error:
            found.append(str(error).removeprefix(f"{self.folder}: "))
        return found

    def _faults(self) -> Iterator[str]:
        query = self._connection.execute
        yield from (f"database: {line}" for (line,) in query("PRAGMA integrity_check(20)").fetchall() if line != "ok")
        self.described()
        state, n_items = self.state(), 0
        for row, id_, text, checksum in query("SELECT row, id, metadata, checksum FROM items"):
            n_items += 1
            if _checksum(row, id_, text) != checksum:
                yield f"item {id_!r} in row {row}: wrong checksum of its id and metadata"
        if n_items != state.n_items:
            yield f"expected {state.n_items} items, found {n_items}"
        n_removed, n_both = query(
            "SELECT count(*), (SELECT count(*) FROM removed JOIN items USING (row)) FROM removed"
        ).fetchone()
        if n_both or n_removed + n_items != state.next_row:
            yield f"expected {state.next_row} rows, found {n_items} items and {n_removed} removed ones, {n_both} in both"
        for block in self.blocks_from(0):
            try:
                self.block_vectors(block)
            except DamagedError as error:
                yield str(error).removeprefix(f"{self.folder}: the database is damaged: ")

    def size(self) -> int:
        """Bytes of the database and its log on disk."""
        files = (self.folder / DATABASE, self.folder / f"{DATABASE}-wal")
        return sum(file.stat().st_size for file in files if file.exists())


def _check_links(folder: Path, read_only: bool) -> None:
    """Raise InputError if a file of the database is a symbolic link, or has a hard link that would be written to."""
    for ending in ("", "-wal", "-shm", "-journal"):
        file = folder / f"{DATABASE}{ending}"
        with suppress(FileNotFoundError):
            # SQLite writes to those beside the database wherever it reads.
            if own_file(file).stat().st_nlink > 1 and (ending or not read_only):
                raise InputError(f"{file}: has hard links, which a write would change too; copy the gallery first")


def _check_tables(connection: sqlite3.Connection, file: Path) -> None:
    """Raise InputError for a database of another program or format, or with tables, views or triggers of its own."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if (application, version) != (APPLICATION, FORMAT):
        raise InputError(f"{file}: must be a gallery of format {FORMAT}, found application {application}, format {version}")
    expected, found = _expected_schema(), _schema(connection)
    if odd := [f"the {kind} {name!r}" for kind, name, _ in sorted(found - expected)]:
        raise DamagedError(f"{file}: not a gallery: it also has {', '.join(odd)}")
    if missing := sorted({name for _, name, _ in expected - found} - {"dismissed"}):
        raise DamagedError(f"{file}: the database is damaged: no table {some(missing)}")


def _schema(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and definition of all objects in a database, except the indexes that SQLite creates for keys."""
    automatic = "type = 'index' AND sql IS NULL AND name LIKE 'sqlite_autoindex_%'"
    rows = connection.execute(f"SELECT type, name, sql FROM sqlite_master WHERE NOT ({automatic})")
    return {(str(kind), str(name), " ".join(str(sql).split())) for kind, name, sql in rows}


@functools.cache
def _expected_schema() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(f"{SCHEMA};{DISMISSED}")
        return _schema(connection)


def _describe(connection: sqlite3.Connection, **values: object) -> None:
    rows = [(key, str(value), _checksum(key, value)) for key, value in values.items()]
    connection.executemany("INSERT OR REPLACE INTO described VALUES (?, ?, ?)", rows)


def block_checksum(start: int, vectors: object) -> int:
    """The checksum of a block's first row and bytes."""
    return zlib.crc32(vectors, start & 0xFFFFFFFF)  # type: ignore[arg-type]


def _checksum(*parts: object) -> int:
    return zlib.crc32("\0".join(map(str, parts)).encode("utf-8", "replace"))
