"""The vectors of a gallery as one table in memory, kept in step with its database.

The table is a file beside the database that every process maps. It is derived: what a process finds there is held against
the checksums in the database. Who writes to the gallery writes the file too, before its transaction ends; who only reads
maps it, or holds the vectors in memory where the file is missing or differs, and changes nothing. A row's bytes never
change between two compactions, and each compaction begins another file, so processes that write the same rows at once write
the same bytes. A file that is a link, or has another name beside this one, is never written to: another takes its place.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.gallery.store import Block, DamagedError, Store, block_checksum
from sightline.ranking.similarity import EVEN_COLUMNS

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
        is_mapped: whether the table is the file, and not a copy in memory.
    """

    generation: int
    epoch: int
    table: NDArray[np.float32]
    ids: NDArray[np.object_]
    alive: NDArray[np.bool_]
    n_items: int
    is_mapped: bool

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
        repairs: takes a sentence on what was found damaged.
    """
    state = store.state()
    if last is not None and last.generation == state.generation:
        return last
    if last is None or last.epoch != state.epoch or not last.generation < state.generation:
        nothing = np.empty((0, store.identity.dim), np.float32)
        last = Snapshot(-1, state.epoch, nothing, *_nobody(0), n_items=0, is_mapped=True)
    known = len(last.ids)
    blocks = _blocks(store, known, state.next_row)  # as many bytes are there: what follows asks for no more memory
    ids, alive = (
        np.concatenate(pair) for pair in zip((last.ids, last.alive), _nobody(state.next_row - known), strict=True)
    )
    added = store.ids_from(known)
    rows, gone = np.array([row for row, _ in added], np.int64), store.removed_since(last.generation)
    if any(((some < 0) | (some >= state.next_row)).any() for some in (rows, gone)):
        raise DamagedError(f"{store.folder}: the database is damaged: it has items beyond row {state.next_row}")
    ids[rows], alive[rows] = np.array([id_ for _, id_ in added], object), True
    ids[gone], alive[gone] = None, False
    if (n_alive := int(alive.sum())) != state.n_items:
        raise DamagedError(f"{store.folder}: the database is damaged: {n_alive} items are there, not {state.n_items}")
    table, is_mapped = last.table, last.is_mapped
    if known < state.next_row or not known:
        table, is_mapped = _table(store, last, state.next_row, blocks, repairs)
    return Snapshot(state.generation, state.epoch, table, ids, alive, state.n_items, is_mapped)


def _nobody(n_rows: int) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    return np.full(n_rows, None, object), np.zeros(n_rows, bool)


def _blocks(store: Store, known: int, n_rows: int) -> list[Block]:
    """The blocks from a row on, if they hold the rows from there to the last."""
    blocks, end = store.blocks_from(known), known
    for block in blocks:
        if block.start != end:
            break
        end += block.n
    if end != n_rows or (blocks and blocks[-1].start + blocks[-1].n != n_rows):
        raise DamagedError(f"{store.folder}: the database is damaged: vectors end at row {end}, items at row {n_rows}")
    return blocks


def _table(
    store: Store, last: Snapshot, n_rows: int, blocks: list[Block], repairs: list[str]
) -> tuple[NDArray[np.float32], bool]:
    """(R', D) the table, and whether it is mapped from its file: one that may be written is made whole first."""
    shape, known = (_even(n_rows), store.identity.dim), len(last.ids)
    if not n_rows:
        return np.empty(shape, np.float32), True
    file = table_file(store.folder, last.epoch)
    unseen = blocks if last.is_mapped else store.blocks_from(0)
    if not store.read_only:
        with suppress(OSError):  # a disk that is full or cannot be written is no reason not to search
            _make_whole(store, file, shape, unseen, None if known else repairs)
            _remove_tables(store.folder, below=last.epoch)
    table = _mapped(file, shape)
    if table is not None and not (damaged := _stale(table, unseen)):
        return table, True
    if table is not None and not known and store.read_only:
        repairs.append(f"{file.name}: {len(damaged)} blocks of vectors are missing or damaged; held in memory")
    table = np.zeros(shape, np.float32)
    table[:known] = last.table[:known]
    for block in blocks:
        table[block.start : block.start + block.n] = store.block_vectors(block)
    return table, False


def _even(n_rows: int) -> int:
    return n_rows + -n_rows % EVEN_COLUMNS


def _mapped(file: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """(R', D) the table in a file; None if the file is not there, too short, or no regular file of its own."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size < 4 * shape[0] * shape[1]:
            return None
        with os.fdopen(handle, "rb", closefd=False) as opened:
            return np.asarray(np.memmap(opened, "<f4", "c", shape=shape))
    finally:
        os.close(handle)


def _stale(table: NDArray[np.float32], blocks: list[Block]) -> list[Block]:
    """The blocks whose bytes in the table are not those of the database."""
    return [b for b in blocks if block_checksum(b.start, table[b.start : b.start + b.n]) != b.checksum]


def _make_whole(store: Store, file: Path, shape: tuple[int, int], blocks: list[Block], repairs: list[str] | None) -> None:
    """Write those of some blocks to the table's file that are not there as they should be."""
    is_new = not os.path.lexists(file)
    handle = _own_handle(file)
    try:
        _lengthen(handle, 4 * shape[0] * shape[1])
        damaged = _stale(np.memmap(file, "<f4", "c", shape=shape), blocks)
        for block in damaged:
            _write_block(handle, store, block)
    finally:
        os.close(handle)
    if damaged and not is_new and repairs is not None:
        repairs.append(f"{file.name}: {len(damaged)} blocks of vectors were missing or damaged; written anew")


def extend_table(store: Store, first: int) -> None:
    """Write the vectors from a row on to the table's file, or all of them if it lacks those before; inside ``writing()``.

    So readers find them when the transaction ends. Where the disk has no room for them, they do without.
    """
    state, n_bytes = store.state(), 4 * store.identity.dim
    file = table_file(store.folder, state.epoch)
    with suppress(OSError, InputError):
        handle = _own_handle(file)
        try:
            _lengthen(handle, n_bytes * _even(state.next_row))
            before = store.block_before(first)
            if before is not None:  # of a version that left this to readers, or written before a power cut
                found = os.pread(handle, n_bytes * before.n, n_bytes * before.start)
                first = first if block_checksum(before.start, found) == before.checksum else 0
            for block in store.blocks_from(first):
                _write_block(handle, store, block)
        finally:
            os.close(handle)
        _remove_tables(store.folder, above=state.epoch)  # of compactions that were killed


def _write_block(handle: int, store: Store, block: Block) -> None:
    _write_at(handle, store.block_vectors(block).tobytes(), 4 * store.identity.dim * block.start)


def _own_handle(file: Path) -> int:
    """A table's file, open for writing; a new one in the place of a link or of a file with another name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(file, flags, 0o644)
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return handle
        os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    file.unlink()
    return os.open(file, flags | os.O_EXCL, 0o644)


def remove_old_tables(store: Store) -> None:
    """Remove the tables of before the last compaction."""
    _remove_tables(store.folder, below=store.state().epoch)


def _remove_tables(folder: Path, below: int = 0, above: int | None = None) -> None:
    for file in folder.glob(f"{PREFIX}*{SUFFIX}"):
        number = file.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        if number.isdecimal() and (int(number) < below or (above is not None and int(number) > above)):
            with suppress(OSError):
                file.unlink()


def table_faults(store: Store) -> list[str]:
    """What is wrong with the table's file, one sentence each; inside the store's ``reading()``."""
    state = store.state()
    file = table_file(store.folder, state.epoch)
    table = _mapped(file, (_even(state.next_row), store.identity.dim)) if state.next_row else None
    stale = [] if table is None else _stale(table, store.blocks_from(0))
    return [f"{file.name}: {len(stale)} blocks are damaged; `sightline index verify --repair` writes them"] if stale else []


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
