"""Fast indexes derived from a gallery by FAISS: chosen, trained, measured, saved with a checksum, and searched.

An index covers the rows of a gallery from 0 to some row, in order, removed ones too: those are passed over in a search.
Rows that were added later are searched by brute force, so an index is never wrong, only slower, until it is built anew.
"""

import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import locked, own_file, read_json, replaced
from sightline.gallery.gallery import Header
from sightline.gallery.snapshot import Snapshot
from sightline.gallery.store import Store
from sightline.progress import tracked
from sightline.ranking.nearest import top_k_products

HEADER = "index.json"
LOCK = "index.lock"
FILE_NAME = re.compile(r"index-[0-9]+-[0-9]+-[0-9a-f]{1,32}\.faiss")
EXACT, AUTO = "exact", "auto"
RECALL_AT, N_MEASURED = 10, 256
EFFORTS = {"nprobe": [2**power for power in range(13)], "efSearch": [16, 32, 64, 128, 256, 512, 1024]}
CHEAP_PRODUCT = 1 << 26  # values: a query over 130,000 x 512 takes some 25 ms by brute force
LARGEST_GRAPH = 300_000  # a graph of more takes hours to build on two cores
ADDED_AT_ONCE = 16_384
Exact = Callable[[NDArray[np.float32], int], NDArray[np.int64]]
LARGEST_NUMBER, LARGEST_LINKS = 1 << 20, 1 << 10  # in a factory string: FAISS would take gigabytes at once for more
GATHERED_SHARE = 4  # below a quarter of the rows, a filter's vectors are put together; above, the others are passed over
EXACT_MATCHES = 65_536  # a filter that leaves no more items than this is searched by brute force
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


def library() -> Any:
    """The module ``faiss``, or an error that says how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise InputError("this index needs FAISS: pip install 'sightline[search]', or use index='exact'") from error
    return faiss


def check_index(factory: str, dim: int) -> str:
    """The name, if an index of that kind can be made."""
    if factory not in (EXACT, AUTO):
        _new(factory, dim)
    return factory


def check_recall(recall: float | None) -> None:
    """Refuse what is no share of the true nearest."""
    if recall is not None and not 0 < recall <= 1:
        raise InputError(f"recall is {recall}; a share above 0 and at most 1 is needed")


def _new(factory: str, dim: int) -> Any:
    faiss = library()
    try:
        if any(len(digits) > 7 or int(digits) > LARGEST_NUMBER for digits in re.findall(r"\d+", factory)):
            raise RuntimeError(f"numbers up to {LARGEST_NUMBER} are taken")
        if any(int(links) > LARGEST_LINKS for links in re.findall(r"(?:HNSW|NSG)(\d+)", factory)):
            raise RuntimeError(f"graphs of up to {LARGEST_LINKS} links an item are built")
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if isinstance(_without_transforms(faiss, index), faiss.IndexIDMap):
            raise RuntimeError("rows have their numbers here: leave IDMap out")
        return index
    except RuntimeError as error:
        raise InputError(
            f"index {factory!r} is no FAISS factory string for {dim} dimensions ({_reason(error)}); "
            f"'exact', 'auto', or such as 'Flat', 'HNSW32', 'IVF1024,PQ64', 'SQ8'"
        ) from error


def _reason(error: Exception) -> str:
    """What an error of FAISS says, without the place in its source."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error), flags=re.DOTALL)


def choose_index(n_rows: int, dim: int, recall: float, memory: int | None = None) -> str:
    """The kind of index for so many vectors: brute force while that is quick, a graph while it can be built, then lists.

    Args:
        n_rows: vectors.
        dim: of each.
        recall: share of the true nearest that must be found; above 0.999 only brute force will do.
        memory: bytes the index may take; None for half of what is free.

    Example:
        >>> [choose_index(n, 512, 0.95, memory=2**32) for n in (60_000, 200_000, 1_000_000, 100_000_000)]
        ['exact', 'HNSW32', 'IVF4096,SQ8', 'IVF32768,PQ64']
    """
    if n_rows * dim <= CHEAP_PRODUCT or recall > 0.999:
        return EXACT
    if memory is None:
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if n_rows <= LARGEST_GRAPH and n_rows * (4 * dim + 320) <= memory:
        return "HNSW32"
    n_lists = min(2 ** round(np.log2(4 * np.sqrt(n_rows))), 32_768)
    if n_rows * (dim + 8) <= memory:
        return f"IVF{n_lists},SQ8"
    pieces = max(n for n in range(1, max(1, dim // 8) + 1) if dim % n == 0)
    return f"IVF{n_lists},PQ{pieces}"


def n_candidates(factory: str) -> int:
    """How many candidates an index is asked for in place of one: codes that lose much need more to choose from."""
    if any(kind in factory for kind in ("PQ", "PCA", "RaBitQ", "RQ")):
        return 10
    return 2 if "SQ" in factory else 1


class FaissIndex:
    """A trained index over the first rows of a table."""

    def __init__(self, header: Header, index: Any) -> None:
        self.header = header
        self._index = index
        self._set_effort(header.effort)

    def _set_effort(self, effort: dict[str, int]) -> None:
        for name, value in effort.items():
            library().ParameterSpace().set_index_parameter(self._index, name, value)

    def candidates(self, queries: NDArray[np.float32], k: int, shown: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """(Q, C) rows that may be among the k nearest, in no order; -1 where fewer are found.

        Args:
            queries: (Q, D).
            k: results wanted.
            shown: (n_rows,) bool, the rows that may be found; None for all.
        """
        n_rows = self.header.n_rows
        wanted = min(n_rows, k * n_candidates(self.header.factory))
        if shown is None or shown.all():
            return self._search(queries, wanted, None)
        bits = np.packbits(shown, bitorder="little")  # must live as long as the selector
        selector = library().IDSelectorBitmap(bits)
        try:
            return self._search(queries, wanted, _parameters(library(), self._index, selector))
        except RuntimeError:  # this kind cannot pass rows over: ask for more until enough are left
            while True:
                rows = self._search(queries, wanted, None)
                rows = np.where((rows >= 0) & shown[rows], rows, -1)
                if wanted == n_rows or ((rows >= 0).sum(1) >= min(k, int(shown.sum()))).all():
                    return rows
                wanted = min(n_rows, 4 * wanted)

    def _search(self, queries: NDArray[np.float32], k: int, parameters: Any) -> NDArray[np.int64]:
        # Once anything has imported faiss.contrib.torch_utils, `search` takes no parameters: the one for arrays does.
        search = getattr(self._index, "search_numpy", self._index.search)
        rows: NDArray[np.int64] = search(queries, k, params=parameters)[1]
        return rows


def _parameters(faiss: Any, index: Any, selector: Any) -> Any:
    """Search parameters of the index's kind, which lets only selected rows be found."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=_parameters(faiss, index.index, selector))
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
    return faiss.SearchParameters(sel=selector)


def nearest_of(
    table: NDArray[np.float32], queries: NDArray[np.float32], rows: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Of some candidate rows for each query, the k of the largest inner product, best first, equal ones by row.

    Args:
        table: (R, D).
        queries: (Q, D).
        rows: (Q, C), -1 for none.
        k: results wanted.

    Returns:
        (Q, k) scores, -inf where there are fewer candidates; and (Q, k) rows, -1 there.
    """
    scores = np.full((len(queries), k), -np.inf, np.float32)
    places = np.full((len(queries), k), -1, np.int64)
    for number, (query, candidates) in enumerate(zip(queries, rows, strict=True)):
        found = np.unique(candidates[candidates >= 0])
        products = table[found] @ query
        order = np.argsort(-products, kind="stable")[:k]
        scores[number, : len(order)], places[number, : len(order)] = products[order], found[order]
    return scores, places


def build(
    table: NDArray[np.float32],
    alive: NDArray[np.bool_],
    factory: str,
    recall: float,
    exact: Exact,
    seed: int = 0,
    show_progress: bool = False,
) -> tuple[Any, float, dict[str, int]] | None:
    """Train an index on a sample, fill it, and find how much effort the asked recall takes.

    Args:
        table: (R, D) vectors of all rows.
        alive: (R,) bool, those that are items.
        factory: the kind.
        recall: of the 10 nearest, to reach if the kind can.
        exact: the true rows of the nearest items of some queries.
        seed: of the sample.
        show_progress: draw a bar.

    Returns:
        The index, the recall it reached and the effort that took; None if there are too few items to make one.
    """
    index = _new(factory, table.shape[1])
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(alive)
    faiss = library()
    kind = _without_transforms(faiss, index)
    n_lists = kind.nlist if isinstance(kind, faiss.IndexIVF) else 0
    if isinstance(kind, faiss.IndexPQ | faiss.IndexIVFPQ):
        kind.do_polysemous_training = False  # orders codes for a search by Hamming distance: a minute, and not used here
    starts = range(0, len(table), ADDED_AT_ONCE)
    try:
        if not index.is_trained:
            sample = rng.choice(rows, min(len(rows), max(65_536, 64 * n_lists)), replace=False)
            if len(sample) < max(n_lists, 1) or ("PQ" in factory and len(sample) < 256):
                return None
            index.train(table[np.sort(sample)])
        for start in tracked(starts, f"Index {factory}", len(starts), show_progress):
            index.add(np.ascontiguousarray(table[start : start + ADDED_AT_ONCE]))
    except RuntimeError:  # each kind has its own least number: principal axes, residual codes, graphs
        return None
    measured = np.sort(rng.choice(rows, min(len(rows), N_MEASURED), replace=False))
    reached, effort = _tuned(
        FaissIndex(Header(factory, 0, len(table), "", "", "", 0), index), table, alive, measured, recall, exact
    )
    return index, reached, effort


def _without_transforms(faiss: Any, index: Any) -> Any:
    """What is searched after rotations and projections, before a second look; it lives as long as the whole index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return _without_transforms(faiss, index.base_index)
    return _without_transforms(faiss, index.index) if isinstance(index, faiss.IndexPreTransform) else index


def _tuned(
    index: FaissIndex,
    table: NDArray[np.float32],
    alive: NDArray[np.bool_],
    measured: NDArray[np.int64],
    asked: float,
    exact: Exact,
) -> tuple[float, dict[str, int]]:
    """The recall of the least effort that is enough, or of the most; items look for their neighbours, not themselves."""
    queries = np.array(table[measured])
    truth = exact(queries, RECALL_AT + 1)
    faiss = library()
    knob = {faiss.IndexIVF: "nprobe", faiss.IndexHNSW: "efSearch"}
    inner = _without_transforms(faiss, index._index)
    name = next((name for kind, name in knob.items() if isinstance(inner, kind)), None)
    reached, effort = 0.0, {}
    for value in EFFORTS[name] if name else [0]:
        if name == "nprobe" and value > inner.nlist:
            break
        effort = {name: value} if name else {}
        index._set_effort(effort)
        found = nearest_of(table, queries, index.candidates(queries, RECALL_AT + 1, alive), RECALL_AT + 1)[1]
        hits = [
            len((set(true) & set(row)) - {itself, -1}) / max(1, len(set(true) - {itself}))
            for true, row, itself in zip(truth.tolist(), found.tolist(), measured.tolist(), strict=True)
        ]
        reached = float(np.mean(hits))
        if reached >= asked:
            break
    return reached, effort


def save(folder: Path, index: Any, header: Header) -> Header:
    """Write the index, then the header that names it; each is there complete or not at all."""
    # A name that no other build has: until the new header is there, the old one names a file that is as it was.
    name = f"index-{header.epoch}-{header.n_rows}-{uuid.uuid4().hex}.faiss"
    try:
        with replaced(folder / name) as scratch:
            library().write_index(index, str(scratch))
            checksum = _checksum(scratch)
        header = Header(**{**asdict(header), "file": name, "checksum": checksum})
        with replaced(folder / HEADER) as scratch:
            scratch.write_text(json.dumps(asdict(header), indent=2) + "\n")
    except (OSError, RuntimeError) as error:
        (folder / name).unlink(missing_ok=True)
        raise InputError(
            f"{folder}: the index cannot be written: {_reason(error)}; is the disk full? What was there before stays"
        ) from error
    for other in folder.glob("index-*.faiss"):
        if other.name != name:
            other.unlink(missing_ok=True)
    for scratch in folder.glob(".index*"):  # of builds that were killed: this one holds the lock
        scratch.unlink(missing_ok=True)
    return header


def read_header(folder: Path) -> Header | None:
    """What the present index is of; None if there is none, or what is there is damaged."""
    try:
        header = Header(**read_json(own_file(folder / HEADER)))
        return header if _is_sensible(header) else None
    except (OSError, ValueError, TypeError):  # InputError is a ValueError
        return None


def _is_sensible(header: Header) -> bool:
    """Whether the values of a header, which anybody may have written, are of the kinds that :func:`save` writes."""
    numbers = (header.epoch, header.n_rows)
    texts = (header.factory, header.token, header.file, header.checksum)
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and FILE_NAME.fullmatch(header.file) is not None
        and isinstance(header.recall, int | float)
        and isinstance(header.effort, dict)
        and all(name in EFFORTS and type(value) is int and value > 0 for name, value in header.effort.items())
    )


def forget(folder: Path) -> None:
    """Let there be no index; the header goes first, so that none is ever named without being there."""
    (folder / HEADER).unlink(missing_ok=True)
    for file in folder.glob("index-*.faiss"):
        file.unlink(missing_ok=True)


def is_whole(folder: Path, header: Header) -> bool:
    """Is the file that a header names as it was written?"""
    try:
        return _checksum(own_file(folder / header.file)) == header.checksum
    except (OSError, InputError):
        return False


def load(folder: Path, header: Header, dim: int) -> FaissIndex | None:
    """The index of a header; None if its file is not there, not as it was written or of other vectors."""
    if not is_whole(folder, header):
        return None
    try:
        index = library().read_index(str(folder / header.file))
        return FaissIndex(header, index) if (index.ntotal, index.d) == (header.n_rows, dim) else None
    except (OSError, RuntimeError, MemoryError):
        return None


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()[:32]


def building(folder: Path) -> AbstractContextManager[bool]:
    """True for the one process that may build this folder's index."""
    return locked(folder / LOCK, wait=False)


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
        scores, places = nearest_of(snapshot.table, queries, candidates, k)
        if (short := np.flatnonzero(places[:, -1] < 0)).size:  # its lists held too few, as after many removals
            scores[short], places[short] = exact_nearest(snapshot, queries[short], k, rows)
        return scores, places

    def _current(self, snapshot: Snapshot) -> FaissIndex | None:
        """The index of this snapshot's rows, or None."""
        stamp = _stamp_of(self._store.folder / HEADER)
        if stamp is None:
            self._loaded, self._stamp = None, None
        elif stamp != self._stamp:
            header = read_header(self._store.folder)
            if header is not None and header.epoch != snapshot.epoch:
                return None  # of a gallery before it was compacted, or after
            self._loaded = None if header is None else self._load(header, snapshot)
            if self._loaded is None:
                if _stamp_of(self._store.folder / HEADER) != stamp:
                    return self._current(snapshot)  # another process built one meanwhile, and removed this one
                outcome = "built anew" if self._rebuild(snapshot) else "searched by brute force"
                file = HEADER if header is None else header.file
                self._repairs.append(f"{file}: damaged or missing; {outcome}")
            self._stamp = _stamp_of(self._store.folder / HEADER)
        found = self._loaded
        fits = found is not None and found.header.epoch == snapshot.epoch and found.header.n_rows <= len(snapshot.ids)
        return found if fits else None

    def _load(self, header: Header, snapshot: Snapshot) -> FaissIndex | None:
        if header.n_rows > len(snapshot.ids) or self._token(snapshot, header.n_rows) != header.token:
            return None
        return load(self._store.folder, header, self._store.identity.dim)

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
            factory = choose_index(snapshot.n_items, self._store.identity.dim, recall)
        with building(self._store.folder) as mine:
            if not mine:
                raise InputError(f"{self._store.folder}: another process is building the index")
            made = None
            if factory != EXACT and snapshot.n_items:
                vectors = snapshot.table[: len(snapshot.ids)]
                made = build(
                    vectors,
                    snapshot.alive,
                    factory,
                    recall,
                    lambda queries, k: exact_nearest(snapshot, queries, k)[1],
                    show_progress=show_progress,
                )
            token = self._token(snapshot, len(snapshot.ids))
            if made is None or token is None:
                forget(self._store.folder)
                self._loaded = None
                return None
            index, reached, effort = made
            header = Header(factory, snapshot.epoch, len(snapshot.ids), token, "", "", reached, effort)
            header = save(self._store.folder, index, header)
            self._loaded = FaissIndex(header, index)
            self._stamp = _stamp_of(self._store.folder / HEADER)
            return header

    def header(self) -> Header | None:
        """What the index on disk is of."""
        return read_header(self._store.folder)

    def faults(self) -> list[str]:
        """What is wrong with the index on disk, one sentence each."""
        if not os.path.lexists(self._store.folder / HEADER):
            return []
        header, repair = self.header(), "`sightline index verify --repair` builds it anew"
        if header is None:
            return [f"{HEADER}: cannot be read; {repair}"]
        state = self._store.state()
        fits = header.epoch != state.epoch or header.n_rows <= state.next_row
        whole = fits and is_whole(self._store.folder, header)
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
