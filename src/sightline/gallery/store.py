"""The truth of a gallery: one SQLite database of items and blocks of vectors, written in transactions.

An item has a row number that is never given twice between two compactions; its vector stands at that number in the
blocks, which are written once. Removing an item leaves its vector until :meth:`Store.compact`.
"""

import errno
import functools
import json
import math
import os
import re
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import own_file, recovered_folder
from sightline.gallery.gallery import METRICS, EncoderIdentity, Value, may_be_id, some, value_fault

DATABASE = "gallery.db"
FORMAT = 1
APPLICATION = 0x53494748
BLOCK_BYTES = 1 << 20
AT_ONCE = 500  # ids asked for in one statement
SCHEMA = """
CREATE TABLE described (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 0), generation INTEGER NOT NULL, epoch INTEGER NOT NULL,
                    next_row INTEGER NOT NULL, n_items INTEGER NOT NULL);
CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE blocks (start INTEGER PRIMARY KEY, n INTEGER NOT NULL, checksum INTEGER NOT NULL, vectors BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY, generation INTEGER NOT NULL);
INSERT INTO state VALUES (0, 0, 0, 0, 0);
"""
NEWEST = "newest"  # what is described: the generation that wrote the last new vector
DISMISSED = "CREATE TABLE IF NOT EXISTS dismissed (id TEXT PRIMARY KEY, root TEXT NOT NULL) WITHOUT ROWID"
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
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


@dataclass(frozen=True)
class State:
    """Where the store stands: ``generation`` counts commits, ``epoch`` compactions; rows are below ``next_row``."""

    generation: int
    epoch: int
    next_row: int
    n_items: int


@dataclass(frozen=True)
class Block:
    """Where a block of vectors begins, how many it has, and what their bytes add up to."""

    start: int
    n: int
    checksum: int


class Store:
    """One open database; usable from several threads, one at a time."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, read_only: bool, still: Still | None = None) -> None:
        self.folder = folder
        self.read_only = read_only
        self._connection = configured(connection, read_only)
        self._still = still  # None where the connection sees what others write
        self._lock = threading.RLock()
        self._is_writing = False
        try:
            with self._translated():
                described = self.described()
                self.state()
            self.identity = EncoderIdentity(described["fingerprint"], int(described["dim"]), described["name"])
        except InputError as error:
            connection.close()
            raise error if str(folder) in str(error) else DamagedError(f"{folder}: {error}") from error
        self.metric = described["metric"]

    @classmethod
    def create(cls, folder: Path, identity: EncoderIdentity, metric: str, index: str, recall: float) -> "Store":
        """A new database in a folder that has none."""
        folder.mkdir(parents=True, exist_ok=True)
        with translated(folder), written(folder / DATABASE):
            connection = connected(folder / DATABASE)
            connection.execute("PRAGMA page_size = 16384")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA}"
            )
            for key, value in {**asdict(identity), "metric": metric, "index": index, "recall": recall}.items():
                connection.execute("INSERT INTO described VALUES (?, ?, ?)", (key, str(value), _checksum(key, str(value))))
            connection.execute("COMMIT")
        return cls(folder, connection, read_only=False)

    @classmethod
    def open(cls, folder: Path, read_only: bool = False) -> "Store":
        """The database of a gallery's folder."""
        file = recovered_folder(folder) / DATABASE
        if folder.is_file():
            raise InputError(f"{folder}: not a gallery: it is a file, and a gallery is a folder")
        if not os.path.lexists(file):
            raise InputError(f"{folder}: not a gallery: it has no {DATABASE}")
        check_database(folder)
        with translated(folder):
            if not read_only and not (os.access(file, os.W_OK) and os.access(folder, os.W_OK)):
                raise InputError(f"{folder}: cannot be written; open it with read_only=True")
            if not read_only and file.stat().st_nlink > 1:
                raise InputError(f"{file}: has other names (hard links), which a write would change too; copy the gallery")
            connection, still = connected_to_read(file) if read_only else (connected(file, "rw"), None)
            try:
                found = (_one(connection, "PRAGMA application_id"), _one(connection, "PRAGMA user_version"))
                if found != (APPLICATION, FORMAT):
                    raise InputError(
                        f"{file}: not a gallery of format {FORMAT}: found application {found[0]}, format {found[1]}"
                    )
                _check_tables(connection, file)
            except BaseException:
                connection.close()
                raise
        return cls(folder, connection, read_only, still)

    def close(self) -> None:
        """Let go of the files; may be called twice."""
        with self._lock:
            self._connection.close()
            self._still = None

    def _look_again(self) -> None:
        """Connect anew if a database that nobody was writing to when it was connected is no longer what it was."""
        if self._still is None or self._connection.in_transaction:
            return
        with suppress(FileNotFoundError):  # at the moment of being replaced
            file = self.folder / DATABASE
            if (still := standing_still(file)) != self._still:
                connection = configured(connected(file, mode_of(still)), self.read_only)
                self._connection.close()
                self._connection, self._still = connection, still

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read in this block is of one moment."""
        with self._lock, self._translated():
            self._look_again()
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def check_writable(self) -> None:
        """Refuse what was opened for reading only."""
        if self.read_only:
            raise InputError(f"{self.folder}: was opened for reading only")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All that is written in this block is kept together or not at all; it waits for another writer to end.

        A block inside another is a part of that one.
        """
        self.check_writable()
        with self._lock, self._translated():
            if self._is_writing:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._is_writing = True
            try:
                yield
                self._connection.execute("UPDATE state SET generation = generation + 1")
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._is_writing = False

    def _translated(self) -> Any:
        return translated(self.folder)

    def state(self) -> State:
        """Where the store stands now."""
        with self._lock, self._translated():
            self._look_again()
            row = self._connection.execute("SELECT generation, epoch, next_row, n_items FROM state").fetchone()
        if row is None:
            raise DamagedError(f"{self.folder}: the database is damaged: it has no state")
        state = State(*row)
        if not all(type(value) is int and value >= 0 for value in row) or state.n_items > state.next_row:
            raise DamagedError(f"{self.folder}: the database is damaged: its state is {some(row)}")
        return state

    def described(self) -> dict[str, str]:
        """Encoder, metric, and the index and recall asked for."""
        rows = self._connection.execute("SELECT key, value, checksum FROM described").fetchall()
        if wrong := [key for key, value, checksum in rows if checksum != _checksum(key, value)]:
            raise DamagedError(f"{self.folder}: the database is damaged: wrong checksum of {some(wrong)}")
        found = {key: value for key, value, _ in rows if isinstance(value, str)}
        if missing := sorted({"fingerprint", "dim", "name", "metric", "index", "recall"} - found.keys()):
            raise DamagedError(f"{self.folder}: the database is damaged: no {some(missing)}")
        may_be = {
            "dim": bool(re.fullmatch("[0-9]{1,9}", found["dim"])),
            "metric": found["metric"] in METRICS,
            "recall": 0 < _number(found["recall"]) <= 1,
            NEWEST: bool(re.fullmatch("[0-9]{1,18}", found.get(NEWEST, "0"))),
        }
        if odd := [f"{key} is {found[key]!r}" for key, fits in may_be.items() if not fits]:
            raise DamagedError(f"{self.folder}: the database is damaged: {', '.join(odd)}")
        return found

    def describe(self, key: str, value: str) -> None:
        """Note what is described, in place of what was; inside :meth:`writing`."""
        self._connection.execute("INSERT OR REPLACE INTO described VALUES (?, ?, ?)", (key, value, _checksum(key, value)))

    def append(self, ids: Sequence[str], vectors: NDArray[np.float32], metadata: Sequence[dict[str, Value]]) -> None:
        """Add new items; inside :meth:`writing`."""
        first = self.state().next_row
        texts = list(map(ENCODER.encode, metadata))
        rows = range(first, first + len(ids))
        self._connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?)",
            [(row, id_, text, _checksum(row, id_, text)) for row, id_, text in zip(rows, ids, texts, strict=True)],
        )
        self._insert_blocks(first, vectors)
        statement = "UPDATE state SET next_row = next_row + ?, n_items = n_items + ?"
        self._connection.execute(statement, (len(ids), len(ids)))

    def _insert_blocks(self, first: int, vectors: NDArray[np.float32]) -> None:
        n_rows = self._rows_a_block()
        for start in range(0, len(vectors), n_rows):
            block = np.ascontiguousarray(vectors[start : start + n_rows], "<f4")
            values = (first + start, len(block), block_checksum(first + start, block), block.data)
            self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?)", values)

    def _rows_a_block(self) -> int:
        return max(1, BLOCK_BYTES // (4 * self.identity.dim))

    def remove(self, rows: Sequence[int]) -> None:
        """Take items out by row; inside :meth:`writing`."""
        generation = self.state().generation + 1
        self._connection.executemany("DELETE FROM items WHERE row = ?", ((row,) for row in rows))
        self._connection.executemany("INSERT INTO removed VALUES (?, ?)", ((row, generation) for row in rows))
        self._connection.execute("UPDATE state SET n_items = n_items - ?", (len(rows),))

    def dismiss(self, roots: dict[str, str]) -> None:
        """Remember that items, given with their roots, were removed; inside :meth:`writing`."""
        if roots:
            self._connection.execute(DISMISSED)
            self._connection.executemany("INSERT OR REPLACE INTO dismissed VALUES (?, ?)", roots.items())

    def dismissed(self) -> dict[str, str]:
        """The ids that :meth:`dismiss` was given and :meth:`readmit` was not, with their roots."""
        known = self._connection.execute("SELECT id, root FROM dismissed") if self._remembers() else []
        return dict(known)

    def readmit(self, ids: Sequence[str]) -> None:
        """Remember no more that these were removed; inside :meth:`writing`."""
        if self._remembers():
            self._connection.executemany("DELETE FROM dismissed WHERE id = ?", ((id_,) for id_ in ids))

    def _remembers(self) -> bool:
        """Whether an item was ever removed: galleries have no table for that before."""
        return bool(self._connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'dismissed'").fetchone()[0])

    def compact(self, vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Number the items anew from 0, in their order, and keep their vectors alone; inside :meth:`writing`.

        Args:
            vectors: of all rows, outside the database.
            rows: those of the items that are left, rising.
        """
        items = self._connection.execute("SELECT row, id, metadata, checksum FROM items ORDER BY row").fetchall()
        if [item[0] for item in items] != rows.tolist():
            raise RuntimeError("the rows to keep are not those of the items")
        if wrong := [item[1] for item in items if _checksum(*item[:3]) != item[3]]:
            raise InputError(
                f"{self.folder}: the database is damaged: wrong checksum of {some(wrong)}; nothing was changed"
            )
        moved = [(new, _checksum(new, id_, text), row) for new, (row, id_, text, _) in enumerate(items) if new != row]
        self._connection.execute("DELETE FROM blocks")
        n_rows = self._rows_a_block()
        for start in range(0, len(rows), n_rows):
            self._insert_blocks(start, vectors[rows[start : start + n_rows]])
        # In rising order a row's new number is free: who had it has moved already.
        self._connection.executemany("UPDATE items SET row = ?, checksum = ? WHERE row = ?", moved)
        self._connection.execute("DELETE FROM removed")
        self._connection.execute("UPDATE state SET epoch = epoch + 1, next_row = ?, n_items = ?", (len(rows), len(rows)))

    def shrink(self) -> None:
        """Give unused pages back to the disk."""
        with self._lock, self._translated():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The row of each id that is there."""
        return dict(self._selected("id, row", "id", ids))

    def _selected(self, columns: str, key: str, values: Sequence[object]) -> list[tuple[Any, Any]]:
        """Two columns of the items whose key is among some values."""
        found: list[tuple[Any, Any]] = []
        for start in range(0, len(values), AT_ONCE):
            part = values[start : start + AT_ONCE]
            marks = ",".join("?" * len(part))
            found += self._connection.execute(f"SELECT {columns} FROM items WHERE {key} IN ({marks})", part).fetchall()
        return found

    def metadata_of(self, rows: Sequence[int]) -> dict[int, dict[str, Value]]:
        """What is known of the items of these rows."""
        return {row: self._decoded(row, text) for row, text in self._selected("row, metadata", "row", rows)}

    def _decoded(self, row: int, text: str) -> dict[str, Value]:
        try:
            metadata: dict[str, Value] = json.loads(text)
            faults = [value_fault(key, value) for key, value in metadata.items()]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(
                f"{self.folder}: the database is damaged: metadata of row {row}; see index verify"
            ) from error
        if fault := next(filter(None, faults), None):
            raise DamagedError(f"{self.folder}: the database is damaged: metadata of row {row}: {fault}")
        return metadata

    def rows_where(self, condition: str, values: Sequence[Value]) -> NDArray[np.int64]:
        """The rows for which an SQL condition over ``id`` and ``metadata`` holds, rising."""
        with self._lock, self._translated():
            found = self._connection.execute(f"SELECT row FROM items WHERE {condition} ORDER BY row", values).fetchall()
        return np.array(found, np.int64).reshape(-1)

    def ids_from(self, row: int) -> list[tuple[int, str]]:
        """Row and id of each item from a row on."""
        found = self._connection.execute("SELECT row, id FROM items WHERE row >= ? ORDER BY row", (row,)).fetchall()
        if odd := [number for number, id_ in found if not may_be_id(id_)]:
            raise DamagedError(f"{self.folder}: the database is damaged: no id in row {some(odd)}")
        return found

    def removed_since(self, generation: int) -> NDArray[np.int64]:
        """The rows taken out after a generation."""
        found = self._connection.execute("SELECT row FROM removed WHERE generation > ?", (generation,)).fetchall()
        return np.array(found, np.int64).reshape(-1)

    def blocks_from(self, row: int) -> list[Block]:
        """The blocks that begin at a row or after it."""
        return self._blocks("start >= ? ORDER BY start", row)

    def block_before(self, row: int) -> Block | None:
        """The block that begins before a row and next to it."""
        return next(iter(self._blocks("start < ? ORDER BY start DESC LIMIT 1", row)), None)

    def _blocks(self, which: str, row: int) -> list[Block]:
        statement = f"SELECT start, n, checksum, typeof(vectors), length(vectors) FROM blocks WHERE {which}"
        found = []
        for start, n, checksum, kind, n_bytes in self._connection.execute(statement, (row,)):
            if type(n) is not int or n < 1 or (kind, n_bytes) != ("blob", 4 * n * self.identity.dim):
                raise DamagedError(
                    f"{self.folder}: the database is damaged: {n_bytes} bytes for {n!r} vectors from row {start!r} on"
                )
            found.append(Block(start, n, checksum))
        return found

    def block_vectors(self, block: Block) -> NDArray[np.float32]:
        """(n, D) the vectors of a block; refused if they are not those that were written."""
        row = self._connection.execute("SELECT vectors FROM blocks WHERE start = ?", (block.start,)).fetchone()
        if row is None or len(row[0]) != 4 * block.n * self.identity.dim or fault_of(block, row[0]):
            raise DamagedError(f"{self.folder}: the database is damaged: {fault_of(block, row[0] if row else b'')}")
        return np.frombuffer(row[0], "<f4").reshape(block.n, self.identity.dim)

    def vectors_of(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """(N, D) the vectors of some rows, by their blocks in the database."""
        found = np.empty((len(rows), self.identity.dim), np.float32)
        block, vectors = Block(0, 0, 0), found
        for place in np.argsort(rows):
            if not block.start <= (row := rows[place]) < block.start + block.n:
                block = self.block_before(row + 1) or Block(row, 0, 0)
                vectors = self.block_vectors(block)
                if row >= block.start + block.n:
                    raise DamagedError(f"{self.folder}: the database is damaged: row {row} has no vector")
            found[place] = vectors[row - block.start]
        return found

    def backup(self, file: Path) -> None:
        """Write a copy of the database as it is at one moment, while others read and write."""
        with self._translated():
            copy, source = sqlite3.connect(file), connected(self.folder / DATABASE, mode_of(self._still))
            try:
                with written(file):
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = WAL")
            finally:
                source.close()
                copy.close()

    def faults(self) -> list[str]:
        """What is wrong in the database, one sentence each."""
        try:
            with self.reading():
                return list(self._faults())
        except InputError as error:
            return [str(error).removeprefix(f"{self.folder}: ")]

    def _faults(self) -> Iterator[str]:
        query = self._connection.execute
        yield from (f"database: {line}" for (line,) in query("PRAGMA integrity_check(20)").fetchall() if line != "ok")
        self.described()
        state, n_items = self.state(), 0
        for row, id_, text, checksum in query("SELECT row, id, metadata, checksum FROM items"):
            n_items += 1
            if _checksum(row, id_, text) != checksum:
                yield f"item {id_!r} in row {row}: the checksum of its id and metadata is wrong"
        if n_items != state.n_items:
            yield f"{n_items} items are there, {state.n_items} are expected"
        end = 0
        for block in self.blocks_from(0):
            if block.start != end:
                yield f"vectors of rows {end} to {block.start} are missing"
            end = block.start + block.n
            blob = query("SELECT vectors FROM blocks WHERE start = ?", (block.start,)).fetchone()[0]
            if fault := fault_of(block, blob):
                yield fault
        if end != state.next_row:
            yield f"vectors end at row {end}, items at row {state.next_row}"
        n_removed, n_both = query(
            "SELECT count(*), (SELECT count(*) FROM removed JOIN items USING (row)) FROM removed"
        ).fetchone()
        if n_both or n_removed + n_items != state.next_row:
            yield f"{n_items} items and {n_removed} removed ones, {n_both} of them both, for {state.next_row} rows"

    def size(self) -> int:
        """Bytes of the database and its log on disk."""
        files = (self.folder / DATABASE, self.folder / f"{DATABASE}-wal")
        return sum(file.stat().st_size for file in files if file.exists())


def check_database(folder: Path) -> None:
    """Refuse a database that is a link, or has one beside it: SQLite would write where it leads."""
    own_file(folder / DATABASE)
    for ending in ("-wal", "-shm", "-journal"):
        file = folder / f"{DATABASE}{ending}"
        with suppress(FileNotFoundError):
            if own_file(file).stat().st_nlink > 1:
                raise InputError(f"{file}: a file that has another name too; it is not written to")


def _check_tables(connection: sqlite3.Connection, file: Path) -> None:
    """Refuse a database with other tables than a gallery has, with views or with triggers."""
    expected = _tables()
    found = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind == "index" and sql is None and str(name).startswith("sqlite_autoindex_"):
            continue
        if kind != "table" or expected.get(name) != " ".join(str(sql).split()):
            raise DamagedError(f"{file}: not a gallery: it has the {kind} {name!r}, which is none of a gallery's")
        found[name] = sql
    if missing := sorted(expected.keys() - found.keys() - {"dismissed"}):
        raise DamagedError(f"{file}: the database is damaged: no table {some(missing)}")


@functools.cache
def _tables() -> dict[str, str]:
    """The tables of a gallery by name, as SQLite writes them down."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(f"{SCHEMA};{DISMISSED}")
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    finally:
        connection.close()
    return {name: " ".join(sql.split()) for name, sql in rows}


def block_checksum(start: int, vectors: object) -> int:
    """Of a block's place and bytes."""
    return zlib.crc32(vectors, start & 0xFFFFFFFF)  # type: ignore[arg-type]


def fault_of(block: Block, vectors: object) -> str | None:
    """A sentence if these bytes are not those of the block."""
    if block_checksum(block.start, vectors) == block.checksum:
        return None
    return f"the checksum of the vectors of rows {block.start} to {block.start + block.n - 1} is wrong"


def _checksum(*parts: object) -> int:
    return zlib.crc32("\0".join(map(str, parts)).encode("utf-8", "replace"))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _one(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])
