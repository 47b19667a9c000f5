"""The vectors of a gallery as one table in memory, kept in step with its database.

The table is a file beside the database that every process maps. It is derived: what a process finds there is held against
the checksums in the database, and written anew where it differs. A row's bytes never change between two compactions, and
each compaction begins another file, so processes that write the same rows at once write the same bytes.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.ranking.similarity import EVEN_COLUMNS
from sightline.search.store import Block, Store, block_checksum

PREFIX = "vectors-"
SUFFIX = ".f32"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A gallery at one moment.

    Attributes:
        generation: which moment.
        epoch: how often it was compacted.
        table: (R', D) float32, rows filled up to an even number; those from R on mean nothing.
        ids: (R,) object, the id of each row; None where the item was removed.
        alive: (R,) bool, the rows that are items.
        n_items: how many those are.
    """

    generation: int
    epoch: int
    table: NDArray[np.float32]
    ids: NDArray[np.object_]
    alive: NDArray[np.bool_]
    n_items: int

    def rows(self) -> NDArray[np.int64]:
        """The rows that are items, rising."""
        return np.flatnonzero(self.alive)

    def ids_at(self, places: NDArray[np.int64]) -> NDArray[np.object_]:
        """The id at each place; None where there is no place."""
        found = np.full(places.shape, None, object)
        found[places >= 0] = self.ids[places[places >= 0]]
        return found


def table_file(folder: Path, epoch: int) -> Path:
    """Where the table of vectors is."""
    return folder / f"{PREFIX}{epoch}{SUFFIX}"


def refreshed(store: Store, last: Snapshot | None, repairs: list[str]) -> Snapshot:
    """The store as it is now; what the last snapshot has is not read again.

    Args:
        store: what to read; inside its ``reading()`` or ``writing()``.
        last: a snapshot of this store, or None.
        repairs: is told what was found damaged and written anew.
    """
    state = store.state()
    if last is not None and last.generation == state.generation:
        return last
    if last is None or last.epoch != state.epoch or last.generation > state.generation:
        last = Snapshot(-1, state.epoch, np.empty((0, store.identity.dim), np.float32), *_nobody(0), n_items=0)
    known = len(last.ids)
    ids, alive = (
        np.concatenate(pair) for pair in zip((last.ids, last.alive), _nobody(state.next_row - known), strict=True)
    )
    added = store.ids_from(known)
    rows = np.array([row for row, _ in added], np.int64)
    ids[rows], alive[rows] = np.array([id_ for _, id_ in added], object), True
    gone = store.removed_since(last.generation)
    ids[gone], alive[gone] = None, False
    table = last.table if known == state.next_row and known else _mapped(store, state.next_row, known, state.epoch, repairs)
    return Snapshot(state.generation, state.epoch, table, ids, alive, state.n_items)


def _nobody(n_rows: int) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    return np.full(n_rows, None, object), np.zeros(n_rows, bool)


def _mapped(store: Store, n_rows: int, known: int, epoch: int, repairs: list[str]) -> NDArray[np.float32]:
    """(R', D) the table, mapped from its file, or in memory where that cannot be written."""
    shape = (n_rows + -n_rows % EVEN_COLUMNS, store.identity.dim)
    if not n_rows:
        return np.empty(shape, np.float32)
    file = table_file(store.folder, epoch)
    is_new = not file.exists()
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lengthen(handle, 4 * shape[0] * shape[1])
            table: NDArray[np.float32] = np.memmap(file, "<f4", "c", shape=shape)
            damaged = _stale(store, table, known)
            for block in damaged:
                _write_at(handle, store.block_vectors(block).tobytes(), 4 * shape[1] * block.start)
            if damaged and not known and not is_new:
                repairs.append(f"{file.name}: {len(damaged)} blocks of vectors were missing or damaged; written anew")
        finally:
            os.close(handle)
    except OSError:  # a disk that is full or cannot be written is no reason not to search
        table = np.zeros(shape, np.float32)
        for block in store.blocks_from(0):
            table[block.start : block.start + block.n] = store.block_vectors(block)
        return table
    for other in store.folder.glob(f"{PREFIX}*{SUFFIX}"):
        number = other.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        if number.isdecimal() and int(number) < epoch:
            other.unlink(missing_ok=True)
    return np.asarray(table)


def _stale(store: Store, table: NDArray[np.float32], known: int) -> list[Block]:
    """The blocks from a row on whose bytes in the table are not those of the database."""
    blocks = store.blocks_from(known)
    return [b for b in blocks if block_checksum(b.start, table[b.start : b.start + b.n]) != b.checksum]


def table_faults(store: Store, snapshot: Snapshot) -> list[str]:
    """What became wrong in a table since it was mapped, one sentence each; inside the store's ``reading()``."""
    if store.state().epoch != snapshot.epoch:
        return []
    stale = [block for block in _stale(store, snapshot.table, 0) if block.start + block.n <= len(snapshot.ids)]
    name = table_file(store.folder, snapshot.epoch).name
    return [f"{name}: {len(stale)} blocks are damaged; they are written anew at the next search"] if stale else []


def _lengthen(handle: int, n_bytes: int) -> None:
    """Make room on the disk; a file that is longer stays so, for another process may have written there."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, n_bytes)
    elif os.fstat(handle).st_size < n_bytes:
        os.pwrite(handle, b"\0", n_bytes - 1)


def _write_at(handle: int, data: bytes, place: int) -> None:
    while data:
        n_written = os.pwrite(handle, data, place)
        data, place = data[n_written:], place + n_written
