"""What every metric of a ranking follows from: a few sums for each query, from vectors in blocks, never all scores at once.

On a CPU each worker thread multiplies a block of queries with the gallery, in slices that stay in the cache, and counts its
own rows (:mod:`sightline.kernels.counting`). On other devices whole rows are sorted. Processes share the queries. How equal
scores count is a row of :data:`TIES`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.kernels import bucket_sort, counting
from sightline.ranking.similarity import unit
from sightline.registry import Registry

QUERY_ROWS = 256
# One shape of product throughout: another one rounds otherwise, and copies would not tie. A multiple of what a product
# computes side by side, in float64 too.
SLICE_COLUMNS = 1152
TILE_ELEMENTS = 1 << 25  # scores that a worker holds at once: of 256 queries up to 131,072 items, then of fewer
KEPT_BYTES = 2 << 30  # an array above this, mapped from a file for one, is read again for every block of queries
CHECKED_ROWS = 1 << 14
SORT_ELEMENTS = 1 << 22  # scores sorted at once; a sort takes about 50 bytes for each

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Levels = NDArray[np.int8]
NO_LEVELS: Levels = np.zeros((0, 0), np.int8)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over each query's relevant items; level l of 1..L is at [l - 1], r is the place of an item, from 1 on.

    Attributes:
        counts: (Q, L) items of each level in the list.
        length: (Q,) items in the list.
        precision: (Q, L, L) at [a, m], over the items of level a: items of level m not after it, divided by r.
        discount: (Q, L) over the items of each level: 1 / log2(1 + r).
        first: (Q, L) the best place of each level; 0 where it has none.
        precision_at_r: (Q, L) over the items of level l or finer among the first R places, R being how many there are:
            precision at r, with level l or finer as relevant.
        found_at_r: (Q, L) items of level l or finer among the first R.
        set_precision: (Q, L) sum of that precision over the places 1..R, of relevant items or not.
        asi: (Q,) sum over the places 1..n, n items being of level 1 or above, of the set intersection with the ideal list.
        ks: the places of what follows, ascending.
        found: (Q, K, L) items of each level among the first k.
        precision_at_k: (Q, K, L) over the items of level l or finer among the first k: precision at r.
        discount_at_k: (Q, K, L) over the items of each level among the first k: 1 / log2(1 + r).
    """

    counts: Counts
    length: Counts
    precision: Floats
    discount: Floats
    first: Counts
    precision_at_r: Floats
    found_at_r: Floats
    set_precision: Floats
    asi: Floats
    ks: tuple[int, ...]
    found: Floats
    precision_at_k: Floats
    discount_at_k: Floats

    @property
    def n_levels(self) -> int:
        """L."""
        return int(self.counts.shape[1])

    def at(self, k: int) -> int:
        """Where k is among ``ks``."""
        return self.ks.index(k)


def join_statistics(parts: Sequence[Statistics], order: Counts | slice = slice(None)) -> Statistics:
    """The queries of all parts, one after the other, then in another order."""
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])[order]
        for field in fields(Statistics)
        if field.name != "ks"
    }
    return Statistics(**columns, ks=parts[0].ks)


def ranked_levels(scores: Tensor, levels: Tensor) -> Tensor:
    """The levels of each query's list in ranked order; of equal scores the lower level comes first.

    Args:
        scores: (Q, G) finite.
        levels: (Q, G) int8; -1 where the item is not in the list.

    Returns:
        (Q, G) int8, best place first, -1 at the end.

    Example:
        >>> scores, levels = torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[2, -1, 1]], dtype=torch.int8)
        >>> ranked_levels(scores, levels)
        tensor([[ 1,  2, -1]], dtype=torch.int8)
    """
    return levels.gather(1, _ranked(scores, levels))


def _ranked(scores: Tensor, levels: Tensor) -> Tensor:
    lower_first = levels.argsort(dim=1, stable=True)
    scores = scores.masked_fill(levels < 0, -torch.inf).gather(1, lower_first)
    return lower_first.gather(1, scores.argsort(dim=1, descending=True, stable=True))


def list_statistics(ranked: Tensor, n_levels: int, ks: Sequence[int] = (), last: Tensor | None = None) -> Statistics:
    """The statistics of ranked lists.

    Args:
        ranked: (Q, K) levels, best place first; below 0 where a list has ended.
        n_levels: L.
        ks: places of which counts are wanted.
        last: (Q, K) int64, index of the last item that each one is tied with, if ties are counted.

    Example:
        >>> list_statistics(torch.tensor([[1, 0, 1]]), n_levels=1).precision
        array([[[1.66666667]]])
    """
    device, n_places = ranked.device, ranked.shape[1]
    ks = tuple(sorted(set(ks)))
    place = torch.arange(1, n_places + 1, dtype=torch.float64, device=device)
    is_level = torch.stack([ranked == level for level in range(1, n_levels + 1)], 1)  # (Q, L, K)
    seen, at = is_level.cumsum(2), place.expand(len(ranked), -1)
    if last is not None:
        seen, at = seen.gather(2, last[:, None].expand_as(seen)), place[last]
    share = is_level / at[:, None]
    precision = torch.einsum("qak,qmk->qam", share, seen.double())
    gains = is_level / torch.log2(1 + at)[:, None]
    finer = is_level.flip(1).cumsum(1).flip(1)  # (Q, L, K) of level l or finer
    places_precision = finer.cumsum(2) / place
    at_least = finer.sum(2)
    inside = place <= at_least[:, :, None]
    first = torch.where(is_level.any(2), is_level.byte().argmax(2) + 1, 0) if n_places else at_least
    cut = [min(k, n_places) for k in ks]
    cuts = [(is_level[:, :, :k].sum(2), (places_precision * finer)[:, :, :k].sum(2), gains[:, :, :k].sum(2)) for k in cut]
    found, precision_at_k, discount_at_k = (
        np.stack([as_numpy(row[part]).astype(np.float64) for row in cuts], 1)
        if cuts
        else np.zeros((len(ranked), 0, n_levels))
        for part in range(3)
    )
    return Statistics(
        counts=as_numpy(is_level.sum(2)),
        length=as_numpy((ranked >= 0).sum(1)),
        precision=as_numpy(precision),
        discount=as_numpy(gains.sum(2)),
        first=as_numpy(first),
        precision_at_r=as_numpy((places_precision * finer * inside).sum(2)),
        found_at_r=as_numpy((finer * inside).sum(2)).astype(np.float64),
        set_precision=as_numpy((places_precision * inside).sum(2)),
        asi=as_numpy(_set_intersections(is_level, place)),
        ks=ks,
        found=found,
        precision_at_k=precision_at_k,
        discount_at_k=discount_at_k,
    )


def _set_intersections(is_level: Tensor, place: Tensor) -> Tensor:
    counts = is_level.sum(2)
    finer = counts.flip(1).cumsum(1).flip(1) - counts
    ideal = torch.minimum((place.long() - finer[:, :, None]).clamp(min=0), counts[:, :, None])
    both = torch.minimum(is_level.cumsum(2), ideal).sum(1) / place
    return (both * (place <= counts.sum(1)[:, None])).sum(1)


def worst_order(scores: Tensor, levels: Tensor, n_levels: int, ks: Sequence[int]) -> Statistics:
    """The statistics of one strict list, of equal scores the lower level first; for any device, by sorting whole rows."""
    return list_statistics(ranked_levels(scores, levels), n_levels, ks)


def counted_ties(scores: Tensor, levels: Tensor, n_levels: int, ks: Sequence[int]) -> Statistics:
    """Like :func:`worst_order`, but ``precision`` and ``discount`` put all items of a tie at its last place."""
    order = _ranked(scores, levels)
    ranked, sorted_scores = levels.gather(1, order), scores.gather(1, order)
    place = torch.arange(ranked.shape[1], device=scores.device).expand_as(ranked)
    ends = torch.ones_like(ranked, dtype=torch.bool)
    ends[:, :-1] = (sorted_scores[:, 1:] != sorted_scores[:, :-1]) | (ranked[:, 1:] < 0)
    last = place.where(ends, ranked.shape[1]).flip(1).cummin(1).values.flip(1)
    # All items of a tie at the place of its last relevant one, or of its last item where none is: those do not count.
    tied = list_statistics(ranked, n_levels, (), last)
    return replace(list_statistics(ranked, n_levels, ks), precision=tied.precision, discount=tied.discount)


@dataclass(frozen=True)
class TieRule:
    """A row of :data:`TIES`.

    Attributes:
        meaning: in one sentence.
        statistics: of (B, G) scores and levels, L and the places, by sorting.
        kernel: what ``by_counting`` is where :mod:`sightline.kernels.counting` knows the rule; None: it is always sorted.
    """

    meaning: str
    statistics: Callable[[Tensor, Tensor, int, Sequence[int]], Statistics]
    kernel: bool | None = None

    def __call__(self, scores: Tensor, levels: Tensor, n_levels: int, ks: Sequence[int]) -> Statistics:
        """The statistics of some queries."""
        return self.statistics(scores, levels, n_levels, ks)


TIES: Registry[Statistics] = Registry(
    "tie rule",
    {
        "worst": TieRule(
            "Of equal scores the item of the lower level comes first, in one strict list.", worst_order, False
        ),
        "counting": TieRule(
            "In `map`, `h_ap`, `weighted_ap` and `ndcg` items of equal score all take the last place of them.",
            counted_ties,
            True,
        ),
    },
    "sightline.ties",
    lambda found: isinstance(found, TieRule),
    "a sightline.evaluation.statistics.TieRule",
)


def find_tie_rule(name: str, trust: bool = False) -> TieRule:
    """A row of :data:`TIES`; ``trust`` imports one named by a path."""
    rule: TieRule = TIES.find(name, trust=trust)  # type: ignore[assignment]
    return rule


def as_numpy(table: Tensor | NDArray[np.generic]) -> NDArray[Any]:
    """An array, wherever it was."""
    return table.detach().cpu().numpy() if isinstance(table, Tensor) else table


def as_table(values: ArrayLike | Tensor | None, name: str) -> Tensor | NDArray[np.generic]:
    """What the user gave as a tensor or an array of numbers."""
    if isinstance(values, Tensor):
        return values
    try:
        table = np.asanyarray(values)
    except ValueError as error:
        raise InputError(f"{name} must be a table of numbers: {error}") from error
    if table.dtype.kind not in "biuf":
        raise InputError(f"{name} must be a table of numbers, got {table.dtype}")
    return table


def as_tensor(values: ArrayLike | Tensor | None, name: str) -> Tensor:
    """What the user gave as a tensor; a copy where it was none."""
    table = as_table(values, name)
    return table if isinstance(table, Tensor) else torch.from_numpy(np.array(table, table.dtype.newbyteorder("=")))


class VectorTable:
    """Vectors of which some are read at a time, scaled to length 1: a tensor, an array or a mapped file.

    Args:
        vectors: (N, D) finite.
        name: what the user knows it by.
    """

    def __init__(self, vectors: ArrayLike | Tensor, name: str) -> None:
        table = as_table(vectors, name)
        is_float = table.is_floating_point() if isinstance(table, Tensor) else table.dtype.kind == "f"
        if table.ndim != 2 or not is_float:
            found = f"{table.dtype} {tuple(table.shape)}"
            raise InputError(f"{name} must be a (N, D) floating point table, got {found}")
        self.table = table.detach() if isinstance(table, Tensor) else table
        finite = [
            piece.isfinite().all(1).cpu().numpy() if isinstance(piece, Tensor) else np.isfinite(piece).all(1)
            for piece in (self.table[first : first + CHECKED_ROWS] for first in range(0, len(table), CHECKED_ROWS))
        ]
        if not all(map(np.all, finite)):
            bad = np.flatnonzero(~np.concatenate(finite))
            shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
            raise InputError(f"{name}: {len(bad)} of {len(table)} rows hold NaN or infinity: {shown}")

    def __len__(self) -> int:
        return len(self.table)

    @property
    def dim(self) -> int:
        """D."""
        return self.table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What scores are computed in: float32, or float64 where the vectors are wider."""
        return torch.float64 if self.table.dtype.itemsize > 4 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.table.device if isinstance(self.table, Tensor) else torch.device("cpu")

    def take(self, rows: Counts, dtype: torch.dtype) -> Tensor:
        """(B, D) some of them, scaled to length 1."""
        if isinstance(self.table, Tensor):
            return unit(self.table[torch.from_numpy(rows).to(self.device)].to(dtype))
        return unit(torch.from_numpy(self.table[rows].astype(np.float64 if dtype == torch.float64 else np.float32)))


@dataclass(frozen=True, eq=False)
class Lists:
    """Who ranks what, and what is relevant to whom: by label intervals, or by a function that gives levels.

    Attributes:
        queries: Q of them.
        gallery: G items.
        n_levels: L.
        query_order: (Q,) in which queries are worked on.
        gallery_order: (G,) in which columns stand; all that follows is about columns and queries in these orders.
        begin: (Q, L) the columns from ``begin[q, l]`` to ``end[q, l]`` are of level l + 1 or above; empty with ``levels``.
        end: (Q, L).
        own: (Q,) the column that is the query itself; -1: none, or one of the group that is left out.
        by_group: (G,) columns, those of one group together.
        group_start: (Q,) the columns ``by_group[group_start:group_stop]`` are in no list of the query.
        group_stop: (Q,).
        levels: for queries by their number, their (B, G) int8 levels, -1 where an item is in no list; nothing is sorted
            then, and nothing else is left out.
        rescored: gives other scores for queries by their number and their (B, G) cosines, the gallery in its own order.
    """

    queries: VectorTable
    gallery: VectorTable
    n_levels: int
    query_order: Counts
    gallery_order: Counts
    begin: Counts
    end: Counts
    own: Counts
    by_group: Counts
    group_start: Counts
    group_stop: Counts
    levels: Callable[[Counts], Levels] | None = None
    rescored: Callable[[Counts, Tensor], Tensor] | None = None


def statistics(lists: Lists, ks: Sequence[int], rule: TieRule) -> Statistics:
    """The statistics of every query, in the queries' original order.

    Where ``torch.distributed`` has joined several processes each takes a part of the queries, and all get the whole.
    """
    rank, n_ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    mine = np.array_split(np.arange(len(lists.queries)), n_ranks)[rank]
    by_sorting = rule.kernel is None or lists.queries.device.type != "cpu" or lists.rescored is not None
    with ExitStack() as afterwards:
        # Products of float32 are of float32, whatever training has allowed: TF32 and bfloat16 make ties.
        afterwards.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        places = tuple(sorted(set(ks)))
        found = _sorted(lists, mine, places, rule) if by_sorting else _compiled(lists, mine, places, bool(rule.kernel))
    parts = [found] * n_ranks
    if n_ranks > 1:
        dist.all_gather_object(parts, found)
    return join_statistics(parts, np.argsort(lists.query_order))


def _sorted(lists: Lists, mine: Counts, ks: tuple[int, ...], rule: TieRule) -> Statistics:
    """Whole rows sorted, on any device."""
    dtype = torch.promote_types(lists.queries.dtype, lists.gallery.dtype)
    device = lists.queries.device
    items = lists.gallery.take(lists.gallery_order, dtype).to(device).T
    n_rows = max(1, SORT_ELEMENTS // max(1, items.shape[1]))
    column = torch.arange(items.shape[1], device=device)
    parts = []
    for rows in [mine[first : first + n_rows] for first in range(0, len(mine), n_rows)] or [mine]:
        with torch.autocast(device.type, enabled=False):
            scores = lists.queries.take(lists.query_order[rows], dtype) @ items
        if lists.rescored is not None:
            back = np.argsort(lists.gallery_order)
            scores = lists.rescored(lists.query_order[rows], scores[:, back])[:, lists.gallery_order]
        if lists.levels is None:
            begin, end = (torch.from_numpy(side[rows]).to(device)[:, :, None] for side in (lists.begin, lists.end))
            levels = ((begin <= column) & (column < end)).sum(1).to(torch.int8)
        else:
            levels = torch.from_numpy(lists.levels(rows)).to(device)
        hidden = np.zeros(levels.shape, np.float32)
        counting.leave_out(hidden, lists.own[rows], lists.by_group, lists.group_start[rows], lists.group_stop[rows])
        levels = levels.masked_fill(torch.from_numpy(hidden).to(device) < 0, -1)
        parts.append(rule(scores, levels, lists.n_levels, ks))
    return join_statistics(parts)


def _compiled(lists: Lists, mine: Counts, ks: tuple[int, ...], by_counting: bool) -> Statistics:
    """Relevant items sorted, the others counted; in threads."""
    tables, places = _tables(len(lists.gallery)), np.array(ks, np.int64)
    out = _Outputs.empty(len(mine), lists.n_levels, len(ks))
    if lists.levels is None:
        out.length[:] = len(lists.gallery) - (lists.own >= 0)[mine] - (lists.group_stop - lists.group_start)[mine]
    scores = Scores(lists.queries, lists.gallery, lists.gallery_order)
    n_most = int((lists.end - lists.begin).max(initial=0))
    n_rows = min(max(TILE_ELEMENTS // max(scores.width, 1), 8), QUERY_ROWS)
    buffers = threading.local()

    def rank(first: int) -> None:
        block = slice(first, min(first + n_rows, len(mine)))
        rows, part = mine[block], _Outputs._make(column[block] for column in out)
        begin, end, levels = lists.begin[rows], lists.end[rows], NO_LEVELS
        if lists.levels is not None:
            levels = np.ascontiguousarray(lists.levels(rows))
            part.length[:] = (levels >= 0).sum(1)
        if not (levels > 0).any() and (begin[:, 0] == end[:, 0]).all():
            return  # nothing is relevant to any of them
        n_here = max(n_most, int((levels > 0).sum(1).max(initial=0)))
        if not hasattr(buffers, "state") or buffers.state.n_most < n_here:
            buffers.state = _State(torch.empty(n_rows, scores.width, dtype=scores.dtype), n_here)
        tile = scores.fill(lists.query_order[rows], buffers.state.tile).numpy()
        counting.leave_out(tile, lists.own[rows], lists.by_group, lists.group_start[rows], lists.group_stop[rows])
        outputs = part.table, part.first, part.at_ks, part.counts
        counting.rank_tile(  # type: ignore[call-arg]
            tile, levels, begin, end, *buffers.state.arrays, tables, places, by_counting, *outputs
        )

    with ExitStack() as afterwards:
        n_workers = torch.get_num_threads()
        afterwards.callback(torch.set_num_threads, n_workers)
        torch.set_num_threads(1)  # each product keeps to its own thread
        pool = afterwards.enter_context(ThreadPoolExecutor(n_workers, initializer=torch.set_num_threads, initargs=(1,)))
        list(pool.map(rank, range(0, len(mine), n_rows)))
    return out.statistics(ks)


def _tables(n_items: int) -> Floats:
    """(2, G + 1) at [r], 1 / log2(1 + r) and the sum of 1 / i up to r."""
    place = np.arange(1, n_items + 1)
    return np.pad([1 / np.log2(1 + place), (1 / place).cumsum()], ((0, 0), (1, 0)))


class _Outputs(NamedTuple):
    counts: Counts
    table: Floats
    first: Counts
    at_ks: Floats
    length: Counts

    @classmethod
    def empty(cls, n_queries: int, n_levels: int, n_ks: int) -> "_Outputs":
        return cls(
            np.zeros((n_queries, n_levels), np.int64),
            np.zeros((n_queries, n_levels + 5, n_levels)),
            np.zeros((n_queries, n_levels), np.int64),
            np.zeros((n_queries, n_ks, 3, n_levels)),
            np.zeros(n_queries, np.int64),
        )

    def statistics(self, ks: tuple[int, ...]) -> Statistics:
        n_levels = self.counts.shape[1]
        return Statistics(
            counts=self.counts,
            length=self.length,
            precision=self.table[:, :n_levels],
            discount=self.table[:, n_levels],
            first=self.first,
            precision_at_r=self.table[:, n_levels + 1],
            set_precision=self.table[:, n_levels + 2],
            found_at_r=self.table[:, n_levels + 3],
            asi=self.table[:, n_levels + 4].sum(1),
            ks=ks,
            found=self.at_ks[:, :, 0],
            precision_at_k=self.at_ks[:, :, 1],
            discount_at_k=self.at_ks[:, :, 2],
        )


class _State:
    """One worker's memory: the tile it writes scores to, and what :func:`counting.rank_tile` takes for one row."""

    def __init__(self, tile: Tensor, n_most: int) -> None:
        kind = tile.numpy().dtype
        n_starts, n_children = bucket_sort.state_widths(n_most)
        self.tile, self.n_most = tile, n_most
        self.arrays = (
            np.empty(n_most + bucket_sort.SENTINELS, kind),  # scores of relevant items, their levels, the gaps between them
            np.empty(n_most, np.uint8),
            np.zeros(n_most + 1, np.int32),
            np.empty(n_starts, np.int32),  # buckets
            np.empty((n_children + 1, 4), kind),
            np.empty(n_children + 1, np.int64),
            np.empty(n_most, kind),  # spare room
            np.empty(n_most, np.uint8),
            np.empty(n_starts, np.int32),
            np.empty(max(n_most, counting.CHUNK), np.int32),
            np.empty(counting.CHUNK + 1, np.int32),
        )


class Scores:
    """Products of queries with the gallery, in slices of one shape whatever is asked for."""

    def __init__(self, queries: VectorTable, gallery: VectorTable, gallery_order: Counts) -> None:
        self._queries, self._gallery, self._order = queries, gallery, gallery_order
        self.width = -(-len(gallery) // SLICE_COLUMNS) * SLICE_COLUMNS
        self.dtype = torch.promote_types(queries.dtype, gallery.dtype)
        is_large = self.width * gallery.dim * self.dtype.itemsize > KEPT_BYTES and not isinstance(gallery.table, Tensor)
        self._kept = None if is_large else self._read(0, self.width)

    def _read(self, first: int, last: int) -> Tensor:
        """(B, D) columns; zeros beyond the gallery."""
        read = torch.zeros(last - first, self._gallery.dim, dtype=self.dtype, device=self._queries.device)
        for begin in range(first, min(last, len(self._gallery)), SLICE_COLUMNS):
            rows = self._order[begin : min(begin + SLICE_COLUMNS, last)]
            read[begin - first : begin - first + len(rows)] = self._gallery.take(rows, self.dtype)
        return read

    def fill(self, rows: Counts, out: Tensor) -> Tensor:
        """(B, G) the scores of some queries, written to ``out``: as many rows or more, and ``width`` columns."""
        queries = torch.zeros(len(out), self._queries.dim, dtype=self.dtype, device=self._queries.device)
        queries[: len(rows)] = self._queries.take(rows, self.dtype)
        for left in range(0, self.width, SLICE_COLUMNS):
            right = left + SLICE_COLUMNS
            items = self._read(left, right) if self._kept is None else self._kept[left:right]
            torch.mm(queries, items.T, out=out[:, left:right])
        return out[: len(rows), : len(self._gallery)]
