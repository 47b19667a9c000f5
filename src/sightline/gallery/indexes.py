"""Which index answers a gallery's queries: brute force, or one of FAISS's that is found whole and of these vectors."""

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.gallery import faiss_index
from sightline.gallery.faiss_index import AUTO, EXACT, FaissIndex, Header
from sightline.gallery.snapshot import Snapshot
from sightline.gallery.store import Store
from sightline.ranking.nearest import top_k_products

GATHERED_SHARE = 4  # below a quarter of the rows, a filter's vectors are put together; above, the others are passed over
EXACT_MATCHES = 65_536  # a filter that leaves no more items than this is searched by brute force
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


def exact_nearest(snapshot: Snapshot, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None) -> Found:
    """Scores and rows of the nearest items by brute force: the oracle of every index.

    Args:
        snapshot: what to search.
        queries: (Q, D), checked.
        k: results wanted; fewer come back where there are fewer items.
        rows: those that may be found, rising; None for all items.
    """
    n_rows = len(snapshot.ids)
    wanted = torch.from_numpy(queries)
    if rows is not None and len(rows) * GATHERED_SHARE <= n_rows:
        filled = torch.zeros(len(rows) + -len(rows) % 16, queries.shape[1])
        filled[: len(rows)] = torch.from_numpy(snapshot.table[rows])
        scores, places = top_k_products(wanted, filled, len(rows), min(k, len(rows)))
        return scores.numpy(), rows[places.numpy()]
    shown = None
    if rows is not None or snapshot.n_items < n_rows:
        shown = torch.from_numpy(_shown(snapshot, rows))
    n_shown = snapshot.n_items if rows is None else len(rows)
    scores, places = top_k_products(wanted, torch.from_numpy(snapshot.table), n_rows, min(k, n_shown), shown)
    return scores.numpy(), places.numpy()


def _shown(snapshot: Snapshot, rows: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    if rows is None:
        return snapshot.alive
    shown = np.zeros(len(snapshot.ids), bool)
    shown[rows] = True
    return shown


class Indexes:
    """The derived index of one open gallery: loaded when it is first needed, built anew if it is damaged."""

    def __init__(self, store: Store, repairs: list[str]) -> None:
        self._store = store
        self._repairs = repairs
        self._loading = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._loaded: FaissIndex | None = None

    def nearest(self, snapshot: Snapshot, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None) -> Found:
        """As :func:`exact_nearest`, by the index if there is one; queries for which it finds fewer are searched exactly."""
        with self._loading:
            index = None if rows is not None and len(rows) <= EXACT_MATCHES else self._current(snapshot)
        shown = _shown(snapshot, rows)
        k = min(k, int(shown.sum()))
        if index is None or k == 0:
            return exact_nearest(snapshot, queries, k, rows)
        n_covered = index.header.n_rows
        candidates = index.candidates(queries, k, shown[:n_covered])
        later = n_covered + np.flatnonzero(shown[n_covered:])
        if len(later):
            candidates = np.hstack([candidates, exact_nearest(snapshot, queries, k, later)[1]])
        scores, places = faiss_index.nearest_of(snapshot.table, queries, candidates, k)
        if (short := np.flatnonzero(places[:, -1] < 0)).size:  # its lists held too few, as after many removals
            scores[short], places[short] = exact_nearest(snapshot, queries[short], k, rows)
        return scores, places

    def _current(self, snapshot: Snapshot) -> FaissIndex | None:
        """The index of this snapshot's rows, or None."""
        stamp = _stamp_of(self._store.folder / faiss_index.HEADER)
        if stamp is None:
            self._loaded, self._stamp = None, None
        elif stamp != self._stamp:
            header = faiss_index.read_header(self._store.folder)
            if header is not None and header.epoch != snapshot.epoch:
                return None  # of a gallery before it was compacted, or after
            self._loaded = None if header is None else self._load(header, snapshot)
            if self._loaded is None:
                if _stamp_of(self._store.folder / faiss_index.HEADER) != stamp:
                    return self._current(snapshot)  # another process built one meanwhile, and removed this one
                outcome = "built anew" if self._rebuild(snapshot) else "searched by brute force"
                file = faiss_index.HEADER if header is None else header.file
                self._repairs.append(f"{file}: damaged or missing; {outcome}")
            self._stamp = _stamp_of(self._store.folder / faiss_index.HEADER)
        found = self._loaded
        fits = found is not None and found.header.epoch == snapshot.epoch and found.header.n_rows <= len(snapshot.ids)
        return found if fits else None

    def _load(self, header: Header, snapshot: Snapshot) -> FaissIndex | None:
        if header.n_rows > len(snapshot.ids) or self._token(snapshot, header.n_rows) != header.token:
            return None
        return faiss_index.load(self._store.folder, header, self._store.identity.dim)

    def _rebuild(self, snapshot: Snapshot) -> bool:
        """Replace a damaged index; where this process may not, or another is at it already, search goes on exactly."""
        if not self._store.read_only:
            with suppress(InputError):
                self.build(snapshot)
                return True
        return False

    def build(self, snapshot: Snapshot, show_progress: bool = False) -> Header | None:
        """Build the index that the gallery asks for from its vectors, and save it; None if brute force is to be used."""
        self._store.check_writable()
        with self._store.reading():
            asked = self._store.described()
        factory, recall = asked["index"], float(asked["recall"])
        if factory == AUTO:
            factory = faiss_index.choose_index(snapshot.n_items, self._store.identity.dim, recall)
        with faiss_index.building(self._store.folder) as mine:
            if not mine:
                raise InputError(f"{self._store.folder}: another process is building the index")
            made = None
            if factory != EXACT and snapshot.n_items:
                vectors = snapshot.table[: len(snapshot.ids)]
                made = faiss_index.build(
                    vectors,
                    snapshot.alive,
                    factory,
                    recall,
                    lambda queries, k: exact_nearest(snapshot, queries, k)[1],
                    show_progress=show_progress,
                )
            token = self._token(snapshot, len(snapshot.ids))
            if made is None or token is None:
                faiss_index.forget(self._store.folder)
                self._loaded = None
                return None
            index, reached, effort = made
            header = Header(factory, snapshot.epoch, len(snapshot.ids), token, "", "", reached, effort)
            header = faiss_index.save(self._store.folder, index, header)
            self._loaded = FaissIndex(header, index)
            self._stamp = _stamp_of(self._store.folder / faiss_index.HEADER)
            return header

    def header(self) -> Header | None:
        """What the index on disk is of."""
        return faiss_index.read_header(self._store.folder)

    def faults(self) -> list[str]:
        """What is wrong with the index on disk, one sentence each."""
        if not os.path.lexists(self._store.folder / faiss_index.HEADER):
            return []
        header, repair = self.header(), "`sightline index verify --repair` builds it anew"
        if header is None:
            return [f"{faiss_index.HEADER}: cannot be read; {repair}"]
        state = self._store.state()
        fits = header.epoch != state.epoch or header.n_rows <= state.next_row
        whole = fits and faiss_index.is_whole(self._store.folder, header)
        return [] if whole else [f"{header.file}: damaged or missing; {repair}"]

    def _token(self, snapshot: Snapshot, n_rows: int) -> str | None:
        """A checksum over the blocks of the first rows; None if the gallery was compacted since the snapshot."""
        with self._store.reading():
            if self._store.state().epoch != snapshot.epoch:
                return None
            blocks = self._store.blocks_from(0)
        text = " ".join(f"{block.start}:{block.checksum}" for block in blocks if block.start < n_rows)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stamp_of(file: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
