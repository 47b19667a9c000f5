"""FAISS indexes of a gallery: choose, train, measure, save with a checksum, and search.

An index covers the first rows of a gallery in order, removed ones included; a search skips those. Rows that were added
later are searched by brute force, so an old index gives correct results, only more slowly, until it is rebuilt.
"""

import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from sightline.errors import InputError, needs_extra
from sightline.files import file_hash, locked, own_file, read_json, replaced
from sightline.gallery.gallery import Header
from sightline.gallery.snapshot import Snapshot
from sightline.gallery.store import Store
from sightline.progress import tracked
from sightline.ranking.nearest import top_k_products

HEADER = "index.json"
LOCK = "index.lock"
HEADERS = TypeAdapter(Header)
EXACT, AUTO = "exact", "auto"
RECALL_AT, N_MEASURED = 10, 256
EFFORTS = {  # by FAISS's name for a kind of index: what can be tuned in its search, and the values tried
    "IndexIVF": ("nprobe", [2**power for power in range(13)]),
    "IndexHNSW": ("efSearch", [16, 32, 64, 128, 256, 512, 1024]),
}
CHEAP_PRODUCT = 1 << 26  # values: a query over 130,000 x 512 takes about 25 ms by brute force
LARGEST_GRAPH = 300_000  # a graph of more takes hours to build on two cores
ADDED_AT_ONCE = 16_384
LARGEST_NUMBER, LARGEST_LINKS = 1 << 20, 1 << 10  # in a factory string: FAISS would allocate gigabytes for more
GATHERED_SHARE = 4  # a filter that keeps less than a quarter of the rows copies them; otherwise the others are skipped
EXACT_MATCHES = 65_536  # a filter that leaves no more items than this is searched by brute force
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


def library() -> Any:
    """The module ``faiss``; an InputError with the command that installs it, if it is missing."""
    with needs_extra("an index other than 'exact'", "search"):
        import faiss
    return faiss


def check_index(index: str | None, recall: float | None, dim: int) -> None:
    """Raise InputError unless the index is a FAISS factory string and the recall in (0, 1]."""
    if recall is not None and not (isinstance(recall, int | float) and 0 < recall <= 1):
        raise InputError(f"recall must be above 0 and at most 1, got {recall!r}")
    if index not in (None, EXACT, AUTO):
        _new(str(index), dim)


def _new(factory: str, dim: int) -> Any:
    faiss = library()
    numbers, links = re.findall(r"\d+", factory), re.findall(r"(?:HNSW|NSG)(\d+)", factory)
    is_large = any(len(n) > 7 or int(n) > LARGEST_NUMBER for n in numbers) or any(int(n) > LARGEST_LINKS for n in links)
    try:
        if is_large or "IDMap" in factory:
            raise RuntimeError(f"at most {LARGEST_NUMBER} in any number, {LARGEST_LINKS} links in a graph, and no IDMap")
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"index must be 'exact', 'auto' or a FAISS factory string for {dim} dimensions, such as 'HNSW32', "
            f"'IVF1024,PQ64' or 'SQ8', got {factory!r} ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    """The message of a FAISS error, without the line of its source."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error), flags=re.DOTALL)


def choose_index(n_rows: int, dim: int, recall: float, memory: int | None = None) -> str:
    """The kind of index for a number of vectors: brute force while that is fast, then a graph, then an inverted file.

    Args:
        n_rows: number of vectors.
        dim: dimensions of each.
        recall: share of the true nearest items that must be found; above 0.999 only brute force reaches it.
        memory: bytes the index may take; None for half of the free memory.

    Example:
        >>> [choose_index(n, 512, 0.95, memory=2**32) for n in (60_000, 200_000, 1_000_000, 100_000_000)]
        ['exact', 'HNSW32', 'IVF4096,SQ8', 'IVF32768,PQ64']
    """
    if n_rows * dim <= CHEAP_PRODUCT or recall > 0.999:
        return EXACT
    if memory is None:
        memory = psutil.virtual_memory().available // 2
    if n_rows <= LARGEST_GRAPH and n_rows * (4 * dim + 320) <= memory:
        return "HNSW32"
    n_lists = min(2 ** round(np.log2(4 * np.sqrt(n_rows))), 32_768)
    if n_rows * (dim + 8) <= memory:
        return f"IVF{n_lists},SQ8"
    pieces = max(n for n in range(1, max(1, dim // 8) + 1) if dim % n == 0)
    return f"IVF{n_lists},PQ{pieces}"


def n_candidates(factory: str) -> int:
    """How many candidates to fetch for each result: coarse codes need more to choose from."""
    if any(kind in factory for kind in ("PQ", "PCA", "RaBitQ", "RQ")):
        return 10
    return 2 if "SQ" in factory else 1


@dataclass(frozen=True)
class LoadedIndex:
    """A trained index over the first rows of a table, with its header."""

    header: Header
    index: Any


def set_effort(index: Any, effort: Mapping[str, int]) -> None:
    """Set the search parameters of an index."""
    for name, value in effort.items():
        library().ParameterSpace().set_index_parameter(index, name, value)


def candidates(
    index: Any, factory: str, queries: NDArray[np.float32], k: int, shown: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(Q, C) rows of an index that may be among the k nearest, in no order; padded with -1.

    Args:
        index: of FAISS.
        factory: its factory string.
        queries: (Q, D).
        k: number of results.
        shown: (n_rows,) bool, the rows that may be found.
    """
    wanted = min(index.ntotal, k * n_candidates(factory))
    if shown.all():
        return _search(index, queries, wanted)
    bits = np.packbits(shown, bitorder="little")  # must live as long as the selector
    selector = library().IDSelectorBitmap(bits)
    with suppress(RuntimeError):
        return _search(index, queries, wanted, _parameters(library(), index, selector))
    while True:  # this kind cannot skip rows: fetch more until enough are left
        rows = _search(index, queries, wanted)
        rows = np.where((rows >= 0) & shown[rows], rows, -1)
        if wanted == index.ntotal or ((rows >= 0).sum(1) >= min(k, int(shown.sum()))).all():
            return rows
        wanted = min(index.ntotal, 4 * wanted)


def _search(index: Any, queries: NDArray[np.float32], k: int, parameters: Any = None) -> NDArray[np.int64]:
    # After an import of faiss.contrib.torch_utils, `search` takes no parameters; `search_numpy` does.
    search = getattr(index, "search_numpy", index.search)
    return search(queries, k, params=parameters)[1]  # type: ignore[no-any-return]


def _parameters(faiss: Any, index: Any, selector: Any) -> Any:
    """Search parameters for the index's type that restrict the search to selected rows."""
    match faiss.downcast_index(index):
        case faiss.IndexPreTransform() as whole:
            return faiss.SearchParametersPreTransform(index_params=_parameters(faiss, whole.index, selector))
        case faiss.IndexIVF() as lists:
            return faiss.SearchParametersIVF(sel=selector, nprobe=lists.nprobe)
        case faiss.IndexHNSW() as graph:
            return faiss.SearchParametersHNSW(sel=selector, efSearch=graph.hnsw.efSearch)
    return faiss.SearchParameters(sel=selector)


def nearest_of(
    table: NDArray[np.float32], queries: NDArray[np.float32], rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k candidates of each query with the largest inner product, best first, ties by row.

    Args:
        table: (R, D).
        queries: (Q, D).
        rows: (Q, C) candidates, padded with -1.
        k: number of results.

    Returns:
        (Q, k) scores padded with -inf, and (Q, k) rows padded with -1.
    """
    scores = np.full((len(queries), k), -np.inf, np.float32)
    places = np.full((len(queries), k), -1, np.int64)
    for number, (query, candidates) in enumerate(zip(queries, rows, strict=True)):
        found = np.unique(candidates[candidates >= 0])
        products = table[found] @ query
        order = np.argsort(-products, kind="stable")[:k]
        scores[number, : len(order)], places[number, : len(order)] = products[order], found[order]
    return scores, places


def train(
    snapshot: Snapshot, factory: str, recall: float, show_progress: bool = False
) -> tuple[Any, float, dict[str, int]] | None:
    """Train an index on a gallery's vectors, and tune its search to the target recall.

    Args:
        snapshot: all its rows are indexed under their numbers; removed ones are never found.
        factory: FAISS factory string.
        recall: share of the true nearest items to find.
        show_progress: draw a progress bar.

    Returns:
        The index, its measured recall and search parameters; None if there are too few items to train it.
    """
    table, rows = snapshot.table[: len(snapshot.ids)], np.flatnonzero(snapshot.alive)
    index, rng, faiss = _new(factory, table.shape[1]), np.random.default_rng(0), library()
    kind = _without_transforms(faiss, index)
    n_lists = kind.nlist if isinstance(kind, faiss.IndexIVF) else 0
    if isinstance(kind, faiss.IndexPQ | faiss.IndexIVFPQ):
        kind.do_polysemous_training = False  # for search by Hamming distance: takes a minute, and is not used here
    try:
        if not index.is_trained:
            sample = rng.choice(rows, min(len(rows), max(65_536, 64 * n_lists)), replace=False)
            if len(sample) < max(n_lists, 1) or ("PQ" in factory and len(sample) < 256):
                return None
            index.train(table[np.sort(sample)])
        starts = range(0, len(table), ADDED_AT_ONCE)
        for start in tracked(starts, f"Index {factory}", len(starts), show_progress):
            index.add(np.ascontiguousarray(table[start : start + ADDED_AT_ONCE]))
    except RuntimeError:  # each kind has a minimum number of items: principal axes, residual codes, graphs
        return None
    measured = np.sort(rng.choice(rows, min(len(rows), N_MEASURED), replace=False))
    return index, *_tune(index, factory, snapshot, measured, recall)


def _without_transforms(faiss: Any, index: Any) -> Any:
    """The inner index behind transforms and re-ranking; it lives as long as the whole index."""
    match faiss.downcast_index(index):
        case faiss.IndexRefine() as whole:
            return _without_transforms(faiss, whole.base_index)
        case faiss.IndexPreTransform() as whole:
            return _without_transforms(faiss, whole.index)
        case searched:
            return searched


def _tune(
    index: Any, factory: str, snapshot: Snapshot, measured: NDArray[np.int64], asked: float
) -> tuple[float, dict[str, int]]:
    """The recall and parameters of the least effort that is enough, or of the most; items do not find themselves."""
    queries, k = np.array(snapshot.table[measured]), RECALL_AT + 1
    truth = exact_nearest(snapshot, queries, k)[1]
    faiss = library()
    inner = _without_transforms(faiss, index)
    efforts = [
        {name: value}
        for kind, (name, values) in EFFORTS.items()
        if isinstance(inner, getattr(faiss, kind))
        for value in values
        if value <= getattr(inner, "nlist", value)
    ]
    reached, effort = 0.0, {}
    for effort in efforts or [{}]:
        set_effort(index, effort)
        found = nearest_of(snapshot.table, queries, candidates(index, factory, queries, k, snapshot.alive), k)[1]
        hits = [
            len((set(true) & set(row)) - {itself, -1}) / max(1, len(set(true) - {itself}))
            for true, row, itself in zip(truth.tolist(), found.tolist(), measured.tolist(), strict=True)
        ]
        reached = float(np.mean(hits))
        if reached >= asked:
            break
    return reached, effort


def save(folder: Path, index: Any, header: Header) -> Header:
    """Write the index, then the header that names it; each appears complete or not at all."""
    # A new name for each build: until the new header is written, the old one names a file that did not change.
    name = f"index-{header.epoch}-{header.n_rows}-{uuid.uuid4().hex}.faiss"
    try:
        with replaced(folder / name) as scratch:
            library().write_index(index, str(scratch))
            checksum = file_hash(scratch)
        header = replace(header, file=name, checksum=checksum)
        with replaced(folder / HEADER) as scratch:
            scratch.write_text(json.dumps(asdict(header), indent=2) + "\n")
    except (OSError, RuntimeError) as error:
        (folder / name).unlink(missing_ok=True)
        raise InputError(
            f"{folder}: the index cannot be written: {_reason(error)}; is the disk full? The index before it is kept"
        ) from error
    _remove_files(folder, name)
    return header


def _remove_files(folder: Path, but: str = "") -> None:
    """Remove other indexes and the files of killed builds; the caller holds the lock."""
    for file in (*folder.glob("index-*.faiss"), *folder.glob(".index*")):
        if file.name != but:
            file.unlink(missing_ok=True)


def read_header(folder: Path) -> Header | None:
    """The header of the current index; None if there is none or it is damaged."""
    try:
        return HEADERS.validate_python(read_json(own_file(folder / HEADER)))
    except (OSError, ValueError):  # InputError is a ValueError, and so is pydantic's error
        return None


def is_whole(folder: Path, header: Header) -> bool:
    """Whether the file that a header names has the header's checksum."""
    try:
        return file_hash(own_file(folder / header.file)) == header.checksum
    except (OSError, InputError):
        return False


def load(folder: Path, header: Header, dim: int) -> LoadedIndex | None:
    """The index of a header; None if its file is missing, damaged or of other vectors."""
    with suppress(OSError, RuntimeError, MemoryError):
        index = library().read_index(str(folder / header.file)) if is_whole(folder, header) else None
        if index is not None and (index.ntotal, index.d) == (header.n_rows, dim):
            set_effort(index, header.effort)
            return LoadedIndex(header, index)
    return None


def exact_nearest(snapshot: Snapshot, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None) -> Found:
    """Scores and rows of the nearest items by brute force: the oracle of every index.

    Args:
        snapshot: what to search.
        queries: (Q, D), checked.
        k: number of results; fewer are returned if there are fewer items.
        rows: the rows that may be found, ascending; None for all items.
    """
    n_rows = len(snapshot.ids)
    wanted = torch.from_numpy(queries)
    if rows is not None and len(rows) * GATHERED_SHARE <= n_rows:
        filled = torch.zeros(len(rows) + -len(rows) % 16, queries.shape[1])
        filled[: len(rows)] = torch.from_numpy(snapshot.table[rows])
        scores, places = top_k_products(wanted, filled, len(rows), min(k, len(rows)))
        return scores.numpy(), rows[places.numpy()]
    shown = None if rows is None and snapshot.state.n_items == n_rows else torch.from_numpy(_shown(snapshot, rows))
    n_shown = snapshot.state.n_items if rows is None else len(rows)
    scores, places = top_k_products(wanted, torch.from_numpy(snapshot.table), n_rows, min(k, n_shown), shown)
    return scores.numpy(), places.numpy()


def _shown(snapshot: Snapshot, rows: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """(R,) bool, the rows that may be found."""
    return snapshot.alive if rows is None else np.bincount(rows, minlength=len(snapshot.ids)).astype(bool)


class Indexes:
    """The index of one open gallery: loaded at the first search, rebuilt if it is damaged."""

    def __init__(self, store: Store, repairs: list[str]) -> None:
        self._store = store
        self._repairs = repairs
        self._loading = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._loaded: LoadedIndex | None = None

    def nearest(self, snapshot: Snapshot, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None) -> Found:
        """As :func:`exact_nearest`, from the index if there is one; a query with too few results is searched exactly."""
        with self._loading:
            found = None if rows is not None and len(rows) <= EXACT_MATCHES else self._current(snapshot)
        shown = _shown(snapshot, rows)
        k = min(k, int(shown.sum()))
        if found is None or k == 0:
            return exact_nearest(snapshot, queries, k, rows)
        n_covered = found.header.n_rows
        places = candidates(found.index, found.header.factory, queries, k, shown[:n_covered])
        later = n_covered + np.flatnonzero(shown[n_covered:])
        if len(later):
            places = np.hstack([places, exact_nearest(snapshot, queries, k, later)[1]])
        scores, places = nearest_of(snapshot.table, queries, places, k)
        if (short := np.flatnonzero(places[:, -1] < 0)).size:  # its lists hold too few, as after many removals
            scores[short], places[short] = exact_nearest(snapshot, queries[short], k, rows)
        return scores, places

    def _current(self, snapshot: Snapshot) -> LoadedIndex | None:
        """The index of this snapshot's rows, if there is one."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            header = read_header(self._store.folder)
            if header is not None and header.epoch != snapshot.state.epoch:
                return None  # built before the gallery was compacted, or after
            is_ours = header is not None and self._token(snapshot, header.n_rows) == header.token
            self._loaded = load(self._store.folder, header, snapshot.table.shape[1]) if header and is_ours else None
            if stamp != self._stamp_now():
                return self._current(snapshot)  # meanwhile another process built one, and removed this one
            if stamp is not None and self._loaded is None:
                self._rebuild(snapshot, HEADER if header is None else header.file)
            self._stamp = self._stamp_now()
        found = self._loaded
        fits = found is not None and found.header.epoch == snapshot.state.epoch and found.header.n_rows <= len(snapshot.ids)
        return found if fits else None

    def _stamp_now(self) -> tuple[int, int] | None:
        """Time and inode of the header on disk; None if there is none."""
        try:
            found = os.lstat(self._store.folder / HEADER)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _rebuild(self, snapshot: Snapshot, file: str) -> None:
        """Rebuild a damaged index; if this process may not write, or another is building, search is by brute force."""
        outcome = "searched by brute force"
        with suppress(InputError):
            self.build(snapshot)
            outcome = "rebuilt"
        self._repairs.append(f"{file}: damaged or missing; {outcome}")

    def build(self, snapshot: Snapshot, show_progress: bool = False) -> Header | None:
        """Build the index that the gallery is set to, and save it; None if it is searched by brute force."""
        self._store.check_writable()
        folder, asked = self._store.folder, self._store.described()
        n_items = snapshot.state.n_items
        factory = choose_index(n_items, asked.dim, asked.recall) if asked.index == AUTO else asked.index
        with locked(folder / LOCK, wait=False) as mine:
            if not mine:
                raise InputError(f"{folder}: another process is building the index; try again when it is done")
            made = train(snapshot, factory, asked.recall, show_progress) if n_items and factory != EXACT else None
            token = self._token(snapshot, len(snapshot.ids))
            if made is None or token is None:
                (folder / HEADER).unlink(missing_ok=True)  # first: a header must not name a file that is gone
                _remove_files(folder)
                self._loaded = None
                return None
            index, reached, effort = made
            header = Header(factory, snapshot.state.epoch, len(snapshot.ids), token, "", "", reached, effort)
            self._loaded = LoadedIndex(save(folder, index, header), index)
            self._stamp = self._stamp_now()
            return self._loaded.header

    def faults(self) -> list[str]:
        """The faults of the index on disk, one sentence each."""
        folder, state = self._store.folder, self._store.state()
        header = read_header(folder)
        fits = header is not None and (header.epoch != state.epoch or header.n_rows <= state.next_row)
        if (header is not None and fits and is_whole(folder, header)) or not os.path.lexists(folder / HEADER):
            return []
        return [f"{header.file if header else HEADER}: damaged or missing; `sightline index verify --repair` rebuilds it"]

    def _token(self, snapshot: Snapshot, n_rows: int) -> str | None:
        """A checksum over the blocks of the first rows; None if the gallery was compacted after the snapshot."""
        with self._store.reading():
            if self._store.state().epoch != snapshot.state.epoch:
                return None
            blocks = self._store.blocks_from(0)
        text = " ".join(f"{block.start}:{block.checksum}" for block in blocks if block.start < n_rows)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
