"""Who queries whom, which pairs are left out, and the metrics of the rankings that follow."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.evaluation.metrics import Ranking, metric_names, metric_of, read_metric_name
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import Counts, Lists, VectorTable, ranked_levels, statistics
from sightline.labels.relevance import Relevance, as_relevance
from sightline.ranking.pairs import check_labels

__all__ = ["DEFAULT_KS", "evaluate", "metric_names", "rank_lists"]

DEFAULT_KS = (1, 2, 4, 8)
NEVER = -1  # the label of an item that is relevant to nothing
MOST_LEVELS = 127
Levels = NDArray[np.int8]
Judgements = ArrayLike | Tensor | Callable[[Counts], ArrayLike | Tensor]
EMPTY = {"skip": False, "zero": True}


def evaluate(
    vectors: ArrayLike | Tensor,
    labels: ArrayLike | Tensor | None = None,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    *,
    metrics: Sequence[str] | None = None,
    judgements: Judgements | None = None,
    ids: Sequence[object] | None = None,
    gallery_ids: Sequence[object] | None = None,
    exclude: ArrayLike | Tensor | None = None,
    gallery_exclude: ArrayLike | Tensor | None = None,
    relevance: str | Relevance = "population",
    gain: str | Relevance = "exponential",
    ties: str = "worst",
    empty: Literal["skip", "zero"] = "skip",
    trust: bool = False,
) -> Result:
    """Rank the gallery for every query by cosine and measure the rankings.

    Without a gallery every item queries the others, itself left out by its place. Equal scores count against the query:
    lower levels first. Queries without a relevant item are left out of the means and counted in the result. Works in
    blocks, on a CPU in one to two times the product of queries and gallery; where ``torch.distributed`` has joined
    several processes, given the same arguments each does a part of the queries and all get the result.

    Args:
        vectors: (Q, D) of the queries, of any length; an array may be mapped from a file.
        labels: (Q,) or (Q, L) whole numbers, finest level first: an item's level is how many it shares with the query,
            from the coarsest on, and it is relevant if it shares them all. -1 is shared by none. Or (Q, C) bool, a set of
            labels for each: the level is how many are in both sets, and one makes it relevant.
        gallery: (G, D) items to rank instead.
        gallery_labels: like ``labels``, given exactly when ``gallery`` is; -1 for items that are never relevant.
        ks: places for ``recall@k``.
        metrics: names of those wanted; None for :func:`metric_names`.
        judgements: instead of labels, (Q, G) worth of each item for each query, bool, whole or real; 0 is irrelevant, below
            0 in no list. Or a function that gives the rows of some queries.
        ids: of the queries; a gallery item of the same id is the query itself and left out.
        gallery_ids: given exactly when ``ids`` is and there is a gallery.
        exclude: (Q,) group of each query: items of the same group are in no list of it. -1 is no group.
        gallery_exclude: (G,), given exactly when ``exclude`` is and there is a gallery.
        relevance: worth of each level for ``h_ap``.
        gain: worth of each level for ``ndcg``.
        ties: how equal scores count: a name of :data:`~sightline.evaluation.statistics.TIES`.
        empty: ``zero`` counts a query without a relevant item as 0, as some public code does, in every metric but those
            that others lack as well: ``severity@k`` and ``h_precision@k``.
        trust: import metrics that are named by a path, ``package.module:NAME``.

    Returns:
        ``recall@k`` for each k, ``map@r`` and ``map`` of the finest level; with several, also ``map_label_1`` and so on,
        ``h_ap``, ``ndcg``, ``asi`` and ``severity@1``.

    Example:
        >>> result = evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [0, 0, 1])
        >>> result["recall@1"], result.n_skipped
        (1.0, 1)
    """
    if (gallery is None) != (gallery_labels is None) and judgements is None:
        raise InputError("gallery and gallery_labels go together: one was given without the other")
    if (labels is None) == (judgements is None) or (judgements is not None and gallery_labels is not None):
        raise InputError("either labels or judgements are needed, not both")
    queries = VectorTable(as_table(vectors, "vectors"), "vectors")
    items = queries if gallery is None else VectorTable(as_table(gallery, "gallery"), "gallery")
    own = _own(len(queries), len(items), gallery is None, ids, gallery_ids)
    groups = _groups(len(queries), len(items), gallery is None, exclude, gallery_exclude)
    is_zero = choose(EMPTY, empty, "rule for queries without a relevant item")
    if judgements is None:
        label_table = as_table(labels, "labels")
        item_table = label_table if gallery is None else as_table(gallery_labels, "gallery_labels")
        if label_table.ndim == 2 and label_table.dtype in (bool, torch.bool):
            judgements = shared_sets(label_table, item_table, len(queries), len(items))
    if judgements is not None:
        found = _of_judgements(queries, items, judgements, own, groups, ks, metrics, relevance, gain, ties, trust)
    else:
        tables = _label_tables(label_table, item_table, len(queries), len(items))
        found = measured(by_labels(queries, items, *tables, own, groups), ks, metrics, relevance, gain, ties, trust=trust)
        found = replace(found, labels=classes_of(tables[0]))
    found = replace(found, ids=None if ids is None else [str(name) for name in ids])
    return _with_zeros(found) if is_zero else found


def classes_of(labels: Counts) -> Counts:
    """(N,) the finest label of each path, or numbers of the paths where one stands below two parents."""
    paths = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    is_class = len(np.unique(labels[:, 0])) == paths.max(initial=-1) + 1
    return labels[:, 0] if is_class else paths


def _with_zeros(result: Result) -> Result:
    metrics = {name: metric_of(name) for name in result.per_query}
    columns = {
        name: np.nan_to_num(column) if metric is None or metric.is_total else column
        for (name, column), metric in zip(result.per_query.items(), metrics.values(), strict=True)
    }
    return replace(result, per_query=columns)


def _of_judgements(
    queries: VectorTable,
    items: VectorTable,
    judgements: Judgements,
    own: Counts,
    groups: tuple[Counts, Counts] | None,
    ks: Sequence[int],
    metrics: Sequence[str] | None,
    relevance: str | Relevance,
    gain: str | Relevance,
    ties: str,
    trust: bool,
) -> Result:
    rows, values, are_levels = judged_levels(judgements, len(queries), len(items))
    lists = by_levels(queries, items, rows, len(values), own, groups)
    worth = None if are_levels else Relevance(values=values)
    wanted = metrics
    if wanted is None:
        wanted = metric_names(ks) if len(values) == 1 else [*metric_names(ks), "h_ap", "ndcg", "asi"]
    return measured(lists, ks, wanted, worth or relevance, worth or gain, ties, relevant=1, trust=trust)


def check_places(ks: Sequence[int]) -> None:
    """Refuse anything but places from 1 on."""
    if not isinstance(ks, Iterable) or not ks or not all(isinstance(k, int | np.integer) and k > 0 for k in ks):
        raise InputError(f"ks are {ks}; places from 1 on are needed")


def check_dimensions(queries: VectorTable, items: VectorTable) -> None:
    """Refuse vectors that cannot be compared."""
    if queries.dim != items.dim:
        raise InputError(f"vectors have {queries.dim} dimensions, the gallery {items.dim}")


def measured(
    lists: Lists,
    ks: Sequence[int],
    metrics: Sequence[str] | None,
    relevance: str | Relevance,
    gain: str | Relevance,
    ties: str,
    relevant: int | None = None,
    trust: bool = False,
) -> Result:
    """The metrics of some lists; see :func:`evaluate`. An item is relevant from level ``relevant`` on, None: the finest."""
    check_dimensions(lists.queries, lists.gallery)
    check_places(ks)
    if isinstance(metrics, str):
        raise InputError(f"metrics: a list of names is needed, found {metrics!r}")
    names = list(dict.fromkeys(metric_names(ks, lists.n_levels) if metrics is None else metrics))
    if not names:
        raise InputError("metrics: at least one is needed, found none")
    relevant = relevant or lists.n_levels
    asked = {name: read_metric_name(name, relevant, trust) for name in names}
    worth, gains = as_relevance(relevance), as_relevance(gain)
    places = {place for metric, k, _ in asked.values() if k is not None for place in metric.places(k)}
    stats = statistics(lists, sorted(places), ties)
    if not stats.counts[:, relevant - 1 :].any():
        why = ": no two labels agree" if lists.levels is None and not len(lists.by_group) else " in its list"
        raise InputError(f"none of the {len(lists.queries)} queries has a relevant item{why}")
    columns = {
        name: metric(Ranking(stats, relevant - label, worth, gains), k) for name, (metric, k, label) in asked.items()
    }
    return Result(columns, notes=_notes(stats.counts, worth) if "h_ap" in names else ())


def _notes(counts: Counts, relevance: Relevance) -> tuple[str, ...]:
    """What a reader of ``h_ap`` must know: where a finer level is worth less than a coarser one, order by level has < 1."""
    worth = relevance.of(counts)
    highest = np.maximum.accumulate(np.where(counts > 0, worth, -np.inf), 1)
    n_falling = int(((counts > 0) & (worth < highest)).any(1).sum())
    if not n_falling:
        return ()
    noun = f"{n_falling} of {len(counts)} queries"
    return (f"h_ap: for {noun} an item of a finer level is worth less than one of a coarser level; see docs/metrics.md",)


def by_labels(
    queries: VectorTable,
    items: VectorTable,
    labels: Counts,
    item_labels: Counts,
    own: Counts,
    groups: tuple[Counts, Counts] | None = None,
) -> Lists:
    """Lists whose items are relevant by their path of labels: sorted by it, those of a level are side by side."""
    n_queries, n_levels = labels.shape
    code = np.zeros(n_queries + len(item_labels), np.int64)
    never = np.zeros(n_queries, bool)
    codes = np.empty((len(code), n_levels), np.int64)
    for level, column in enumerate(np.concatenate([labels, item_labels]).T[::-1]):
        numbers = np.unique(column, return_inverse=True)[1]
        code = np.unique(code * (numbers.max(initial=0) + 1) + numbers, return_inverse=True)[1]
        codes[:, level] = code
    query_order, item_order = code[:n_queries].argsort(kind="stable"), code[n_queries:].argsort(kind="stable")
    begin, end = np.empty((n_queries, n_levels), np.int64), np.empty((n_queries, n_levels), np.int64)
    for level in range(n_levels):
        never |= labels[query_order, n_levels - 1 - level] == NEVER
        known, wanted = codes[n_queries:, level][item_order], codes[:n_queries, level][query_order]
        begin[:, level], end[:, level] = np.searchsorted(known, wanted), np.searchsorted(known, wanted, side="right")
        end[never, level] = begin[never, level]
    column = np.empty(len(items), np.int64)
    column[item_order] = np.arange(len(items))
    own = np.where(own >= 0, column[own], -1) if len(items) else own
    by_group, group_start, group_stop = _group_columns(groups, n_queries, len(items))
    if groups is not None and len(items):
        left_out = (own >= 0) & (groups[0] == groups[1][item_order[own]]) & (groups[0] != NEVER)
        own = np.where(left_out, -1, own)
    return Lists(
        queries,
        items,
        n_levels,
        query_order,
        item_order,
        begin,
        end,
        own[query_order],
        column[by_group],
        group_start[query_order],
        group_stop[query_order],
    )


def _group_columns(groups: tuple[Counts, Counts] | None, n_queries: int, n_items: int) -> tuple[Counts, Counts, Counts]:
    if groups is None:
        nothing = np.zeros(n_queries, np.int64)
        return np.zeros(0, np.int64), nothing, nothing
    order = groups[1].argsort(kind="stable")
    start, stop = (np.searchsorted(groups[1][order], groups[0], side=side) for side in ("left", "right"))
    return order, start, np.where(groups[0] == NEVER, start, stop)


def by_levels(
    queries: VectorTable,
    items: VectorTable,
    rows: Callable[[Counts], Levels],
    n_levels: int,
    own: Counts,
    groups: tuple[Counts, Counts] | None = None,
) -> Lists:
    """Lists whose items have the levels that ``rows`` gives for some queries, (B, G)."""

    def levels(numbers: Counts) -> Levels:
        found = np.array(rows(numbers))
        found[np.flatnonzero(own[numbers] >= 0), own[numbers][own[numbers] >= 0]] = -1
        if groups is not None:
            found[(groups[0][numbers, None] == groups[1]) & (groups[0][numbers, None] != NEVER)] = -1
        return found

    nothing, empty = np.zeros(len(queries), np.int64), np.zeros((len(queries), n_levels), np.int64)
    orders = np.arange(len(queries)), np.arange(len(items))
    none = np.full(len(queries), -1)
    return Lists(queries, items, n_levels, *orders, empty, empty, none, nothing[:0], nothing, nothing, levels)


def rank_lists(scores: Tensor, relevant: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The relevance of each query's list in ranked order; of equal scores the irrelevant items come first.

    Args:
        scores: (Q, G) float32 or float64, finite.
        relevant: (Q, G) bool.
        own: (Q,) int64, the column that is the query itself and so in no list of its own; -1 where there is none.

    Returns:
        (Q, G) bool, best place first, with a False at the end for the item left out; and (Q,) int64, relevant items.

    Example:
        >>> scores, relevant = torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[True, False, False]])
        >>> rank_lists(scores, relevant, own=torch.tensor([-1]))
        (tensor([[False, False,  True]]), tensor([1]))
    """
    itself = torch.arange(scores.shape[1], device=scores.device) == own[:, None]
    ranked = ranked_levels(scores, relevant.to(torch.int8).masked_fill(itself, -1)) > 0
    return ranked, ranked.sum(1)


def _own(
    n_queries: int, n_items: int, among_themselves: bool, ids: Sequence[object] | None, gallery_ids: Sequence[object] | None
) -> Counts:
    """(Q,) where each query is in the gallery; -1: nowhere."""
    if among_themselves:
        if gallery_ids is not None:
            raise InputError("gallery_ids were given without a gallery")
        return np.arange(n_queries)
    if (ids is None) != (gallery_ids is None):
        raise InputError("ids and gallery_ids go together: one was given without the other")
    if ids is None or gallery_ids is None:
        return np.full(n_queries, -1)
    for name, given, n in (("ids", ids, n_queries), ("gallery_ids", gallery_ids, n_items)):
        if len(given) != n:
            raise InputError(f"{name}: {n} are needed, found {len(given)}")
    return places_of(np.array(list(map(str, ids))), np.array(list(map(str, gallery_ids))))


def places_of(ids: NDArray[np.str_], gallery_ids: NDArray[np.str_]) -> Counts:
    """(Q,) where each id is among those of the gallery; -1: nowhere."""
    place = {name: column for column, name in enumerate(gallery_ids.tolist())}
    if len(place) < len(gallery_ids):
        raise InputError(f"gallery_ids: {len(gallery_ids) - len(place)} of {len(gallery_ids)} are there twice")
    return np.array([place.get(name, -1) for name in ids.tolist()], np.int64)


def _groups(
    n_queries: int,
    n_items: int,
    among_themselves: bool,
    exclude: ArrayLike | Tensor | None,
    gallery_exclude: ArrayLike | Tensor | None,
) -> tuple[Counts, Counts] | None:
    if (exclude is None) != (gallery_exclude is None) and not (among_themselves and gallery_exclude is None):
        raise InputError("exclude and gallery_exclude go together, with a gallery: one was given without the other")
    if exclude is None:
        return None
    groups = _group_numbers(exclude, n_queries, "exclude")
    return groups, groups if gallery_exclude is None else _group_numbers(gallery_exclude, n_items, "gallery_exclude")


def _group_numbers(groups: ArrayLike | Tensor, n_items: int, name: str) -> Counts:
    numbers = _whole(as_table(groups, name), n_items, name)
    if numbers.shape[1] != 1:
        raise InputError(f"{name}: one group for each of the {n_items} is needed, found {numbers.shape[1]}")
    return numbers[:, 0]


def _label_tables(
    labels: Tensor | NDArray[np.generic], item_labels: Tensor | NDArray[np.generic], n_queries: int, n_items: int
) -> tuple[Counts, Counts]:
    tables = _whole(labels, n_queries, "labels"), _whole(item_labels, n_items, "gallery_labels")
    if tables[0].shape[1] != tables[1].shape[1]:
        raise InputError(f"labels of {tables[0].shape[1]} and {tables[1].shape[1]} levels cannot be compared")
    return tables


def _whole(table: Tensor | NDArray[np.generic], n_items: int, name: str) -> Counts:
    numbers = as_numpy(table)
    native = np.array(numbers, numbers.dtype.newbyteorder("="))
    found: Counts = check_labels(torch.as_tensor(native), n_items, name).numpy()
    return found


# What is relevant to whom where a table or a function says it. ------------------------------------------------------------


def shared_sets(
    sets: Tensor | NDArray[np.generic], item_sets: Tensor | NDArray[np.generic], n_queries: int, n_items: int
) -> Callable[[Counts], NDArray[np.float32]]:
    """How many labels each query shares with each item."""
    sides = []
    for name, table, n in (("labels", sets, n_queries), ("gallery_labels", item_sets, n_items)):
        if table.dtype not in (bool, torch.bool) or tuple(table.shape) != (n, sets.shape[1]):
            found = f"{table.dtype} {tuple(table.shape)}"
            raise InputError(f"{name}: ({n}, {sets.shape[1]}) bool is needed, found {found}")
        sides.append(as_numpy(table).astype(np.float32))
    return lambda rows: np.minimum(sides[0][rows] @ sides[1].T, MOST_LEVELS).astype(np.int8)


def judged_levels(
    judgements: Judgements, n_queries: int, n_items: int
) -> tuple[Callable[[Counts], Levels], tuple[float, ...], bool]:
    """What gives the levels of some queries, the worth of each level, and whether that is the level itself."""
    if callable(judgements):
        source = judgements
    else:
        table = as_table(judgements, "judgements")
        if tuple(table.shape) != (n_queries, n_items):
            raise InputError(f"judgements: ({n_queries}, {n_items}) is needed, found {tuple(table.shape)}")
        source = table.__getitem__
    known: set[float] = set()
    are_levels = True
    for first in range(0, n_queries, 128):  # one pass for the values that there are
        rows = _judged_rows(source, np.arange(first, min(first + 128, n_queries)), n_items)
        known.update(np.unique(rows[rows > 0]).tolist())
        are_levels &= rows.dtype.kind in "biu"
        if len(known) > MOST_LEVELS:
            raise InputError(f"judgements: more than {MOST_LEVELS} different values above 0")
    if are_levels:
        known = set(range(1, int(max(known, default=1)) + 1))
        if len(known) > MOST_LEVELS:
            raise InputError(f"judgements: levels up to {MOST_LEVELS} are possible, found {len(known)}")
    values = np.array(sorted(known))

    def levels(rows: Counts) -> Levels:
        found = _judged_rows(source, rows, n_items)
        if are_levels:
            return (found if found.dtype.kind in "bu" else np.maximum(found, -1)).astype(np.int8)
        return np.where(found < 0, -1, np.searchsorted(values, found, side="right")).astype(np.int8)

    return levels, tuple(values.tolist()) or (1.0,), are_levels


def _judged_rows(source: Callable[[Counts], ArrayLike | Tensor], rows: Counts, n_items: int) -> NDArray[Any]:
    found: NDArray[Any] = as_numpy(as_table(source(rows), "judgements"))
    if found.shape != (len(rows), n_items):
        raise InputError(f"judgements: ({len(rows)}, {n_items}) is needed for {len(rows)} queries, found {found.shape}")
    if not (found < np.inf).all():
        raise InputError(f"judgements: NaN or infinity in the rows of queries {rows[0]} to {rows[-1]}")
    return found


def as_numpy(table: Tensor | NDArray[np.generic]) -> NDArray[np.generic]:
    """An array, wherever it was."""
    return table.detach().cpu().numpy() if isinstance(table, Tensor) else table


def as_table(values: ArrayLike | Tensor | None, name: str) -> Tensor | NDArray[np.generic]:
    """What the user gave as a tensor or an array of numbers."""
    if isinstance(values, Tensor):
        return values
    try:
        table = np.asanyarray(values)
    except ValueError as error:
        raise InputError(f"{name}: not a table of numbers: {error}") from error
    if table.dtype.kind not in "biuf":
        raise InputError(f"{name}: not a table of numbers: {table.dtype}")
    return table
