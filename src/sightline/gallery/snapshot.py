"""The vectors of a gallery as one table in memory, kept up to date with its database.

The table is a file beside the database that every process maps into memory. It is derived: each process checks it against
the checksums in the database. A writer also writes the file, before its transaction ends. A reader maps it, or loads the
vectors into memory if the file is missing or differs, and changes nothing. The bytes of a row do not change between two
compactions, and each compaction starts a new file, so processes that write the same rows at the same time write the same
bytes. A file that is a symbolic link, or has hard links, is never written to: it is replaced.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import open_own, open_unfollowed
from sightline.gallery.store import Block, State, Store, block_checksum
from sightline.ranking.similarity import EVEN_COLUMNS

PREFIX = "vectors-"
SUFFIX = ".f32"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One state of a gallery.

    Attributes:
        state: its counters.
        table: (R', D) float32; rows from R onwards are padding.
        ids: (R,) object, the id of each row; None if the item was removed.
        alive: (R,) bool, the rows that are items.
        is_mapped: whether the table is mapped from its file; False for a copy in memory.
    """

    state: State
    table: NDArray[np.float32]
    ids: NDArray[np.object_]
    alive: NDArray[np.bool_]
    is_mapped: bool


def table_file(folder: Path, epoch: int) -> Path:
    """The file of the table of vectors."""
    return folder / f"{PREFIX}{epoch}{SUFFIX}"


def refresh(store: Store, last: Snapshot | None, repairs: list[str]) -> Snapshot:
    """The current state of the store; rows of the last snapshot are not read again.

    Args:
        store: what to read; inside its ``reading()`` or ``writing()``.
        last: a snapshot of this store, or None.
        repairs: gets a sentence for each damaged file.
    """
    state = store.state()
    if last is not None and last.state.generation == state.generation:
        return last
    if last is None or last.state.epoch != state.epoch or not last.state.generation < state.generation:
        nothing = np.empty((0, store.identity.dim), np.float32)
        last = Snapshot(State(-1, state.epoch, 0, 0), nothing, np.empty(0, object), np.empty(0, bool), is_mapped=True)
    known = len(last.ids)
    blocks = store.blocks_from(known)  # checks that the rows exist, before memory is allocated for them
    ids, alive = np.full(state.next_row, None, object), np.zeros(state.next_row, bool)
    ids[:known], alive[:known] = last.ids, last.alive
    added = store.ids_from(known)
    rows, gone = np.array([row for row, _ in added], np.int64), store.removed_since(last.state.generation)
    are_inside = all(((some >= 0) & (some < state.next_row)).all() for some in (rows, gone))
    store.check(are_inside, f"it has items beyond row {state.next_row}")
    ids[rows], alive[rows] = np.array([id_ for _, id_ in added], object), True
    ids[gone], alive[gone] = None, False
    store.check(alive.sum() == state.n_items, f"expected {state.n_items} items, found {alive.sum()}")
    table, is_mapped = last.table, last.is_mapped
    if known < state.next_row or not known:
        table, is_mapped = _table(store, last, state.next_row, blocks, repairs)
    return Snapshot(state, table, ids, alive, is_mapped)


def _table(
    store: Store, last: Snapshot, n_rows: int, blocks: list[Block], repairs: list[str]
) -> tuple[NDArray[np.float32], bool]:
    """(R', D) the table, and whether it is mapped from its file, which is completed first if it may be written."""
    shape, known = (_even(n_rows), store.identity.dim), len(last.ids)
    if not n_rows:
        return np.empty(shape, np.float32), True
    file = table_file(store.folder, last.state.epoch)
    unseen = blocks if last.is_mapped else store.blocks_from(0)
    if not store.read_only:
        with suppress(OSError):  # search works on a full or read-only disk too
            is_new = not os.path.lexists(file)
            stale = _write_stale(store, file, shape, unseen)
            if stale and not is_new and not known:
                repairs.append(f"{file.name}: {len(stale)} blocks of vectors were missing or damaged; written again")
            remove_tables(store, below=last.state.epoch)
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
    """(R', D) the table in a file; None if the file is missing, too short, or not a regular file."""
    with suppress(OSError), open(file, "rb", opener=open_unfollowed) as opened:
        found = os.fstat(opened.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size >= 4 * shape[0] * shape[1]:
            return np.asarray(np.memmap(opened, "<f4", "c", shape=shape))
    return None


def _stale(table: NDArray[np.float32], blocks: list[Block]) -> list[Block]:
    """The blocks whose bytes in the table differ from those in the database."""
    return [b for b in blocks if block_checksum(b.start, table[b.start : b.start + b.n]) != b.checksum]


def _write_stale(store: Store, file: Path, shape: tuple[int, int], blocks: list[Block]) -> list[Block]:
    """Write the blocks that are missing or damaged to the table's file, and return them."""
    with os.fdopen(_own_handle(file), "r+b") as opened:
        _lengthen(opened.fileno(), 4 * shape[0] * shape[1])
        stale = _stale(np.memmap(opened, "<f4", "c", shape=shape), blocks)
        for block in stale:
            opened.seek(4 * shape[1] * block.start)
            opened.write(store.block_vectors(block).tobytes())
    return stale


def extend_table(store: Store, first: int) -> None:
    """Write the vectors from a row onwards to the table's file, or all if earlier ones are missing; in ``writing()``.

    Readers then find them when the transaction ends. On a full disk, readers load them from the database.
    """
    state = store.state()
    file, shape = table_file(store.folder, state.epoch), (_even(state.next_row), store.identity.dim)
    with suppress(OSError, ValueError):  # InputError is a ValueError
        before = [store.block_of(first - 1)] if first else []
        if _write_stale(store, file, shape, before):  # an old version did not write it, or a power cut lost it
            first = 0
        _write_stale(store, file, shape, store.blocks_from(first))
        remove_tables(store, above=state.epoch)  # of killed compactions


def _own_handle(file: Path) -> int:
    """A table's file, open for writing; a link, or a file with hard links, is replaced by a new one."""
    with suppress(InputError):  # no regular file
        handle = open_own(file)
        if os.fstat(handle).st_nlink == 1:
            return handle
        os.close(handle)
    file.unlink()
    return open_unfollowed(file, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def remove_tables(store: Store, below: int = 0, above: int | None = None) -> None:
    """Remove the tables of earlier compactions, or of killed later ones."""
    for file in store.folder.glob(f"{PREFIX}*{SUFFIX}"):
        number = file.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        if number.isdecimal() and (int(number) < below or (above is not None and int(number) > above)):
            with suppress(OSError):
                file.unlink()


def table_faults(store: Store) -> list[str]:
    """The faults of the table's file, one sentence each."""
    with store.reading():
        state, blocks = store.state(), store.blocks_from(0)
    file = table_file(store.folder, state.epoch)
    table = _mapped(file, (_even(state.next_row), store.identity.dim)) if blocks else None
    stale = [] if table is None else _stale(table, blocks)
    return [f"{file.name}: {len(stale)} blocks are damaged; `sightline index verify --repair` writes them"] if stale else []


def _lengthen(handle: int, n_bytes: int) -> None:
    """Allocate space on the disk; a longer file is not cut, as another process may have written there."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, n_bytes)
    elif os.fstat(handle).st_size < n_bytes:
        os.pwrite(handle, b"\0", n_bytes - 1)
