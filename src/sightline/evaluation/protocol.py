"""Who queries whom, which pairs are left out, and the metrics of the resulting rankings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.evaluation.metrics import Ranking, average_precision, metric_names, read_metric_name
from sightline.evaluation.result import CodeAP, Result, is_total
from sightline.evaluation.statistics import (
    Counts,
    Levels,
    Lists,
    VectorTable,
    as_numpy,
    as_table,
    as_tensor,
    find_tie_rule,
    statistics,
)
from sightline.evaluation.text_labels import NEVER, class_names, number_text
from sightline.labels.codes import CodeRelevance, CodeSets, code_tables
from sightline.labels.relevance import Relevance, as_relevance
from sightline.ranking.pairs import check_labels

DEFAULT_KS = (1, 2, 4, 8)
MOST_LEVELS = 127
Judgements = ArrayLike | Tensor | Callable[[Counts], ArrayLike | Tensor]
Groups = tuple[Counts, Counts]
Floats = NDArray[np.float64]
Rescored = Callable[[Counts, Tensor], Tensor]
EMPTY = {"skip": False, "zero": True}


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure on ranked lists, and how; see :func:`evaluate`."""

    ks: Sequence[int] = DEFAULT_KS
    metrics: Sequence[str] | None = None
    relevance: str | Relevance | CodeRelevance = "population"
    gain: str | Relevance = "exponential"
    ties: str = "worst"
    trust: bool = False


def evaluate(
    vectors: ArrayLike | Tensor,
    labels: ArrayLike | Tensor | None = None,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    *,
    metrics: Sequence[str] | None = None,
    judgements: Judgements | None = None,
    codes: CodeSets | None = None,
    gallery_codes: CodeSets | None = None,
    ids: Sequence[object] | None = None,
    gallery_ids: Sequence[object] | None = None,
    exclude: ArrayLike | Tensor | None = None,
    gallery_exclude: ArrayLike | Tensor | None = None,
    relevance: str | Relevance | CodeRelevance = "population",
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
        labels: (Q,) or (Q, L) whole numbers or text, finest level first: an item's level is how many it shares with the
            query, from the coarsest on, and it is relevant if it shares them all. -1, None and "" are shared by none. Or
            (Q, C) bool, a set of labels for each: the level is how many are in both sets, and one makes it relevant.
        gallery: (G, D) items to rank instead.
        gallery_labels: like ``labels``, given exactly when ``gallery`` is; -1 for items that are never relevant.
        ks: places for ``recall@k``.
        metrics: names of those wanted; None for :func:`metric_names`.
        judgements: instead of labels, (Q, G) worth of each item for each query, bool, whole or real; 0 is irrelevant, below
            0 in no list. Or a function that gives the rows of some queries.
        codes: instead of labels, the dotted codes of each query, one or more; see :func:`measure_codes`.
        gallery_codes: like ``codes``, given exactly when there is a gallery.
        ids: of the queries; a gallery item of the same id is the query itself and left out.
        gallery_ids: given exactly when ``ids`` is and there is a gallery.
        exclude: (Q,) group of each query, numbers or text: items of the same group are in no list of it. -1 is no group.
        gallery_exclude: (G,), given exactly when ``exclude`` is and there is a gallery.
        relevance: worth of each level for ``h_ap``; with codes a :class:`~sightline.labels.codes.CodeRelevance`, by default
            that of the deepest code.
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
    of_both = {"labels": (labels, gallery_labels), "codes": (codes, gallery_codes), "ids": (ids, gallery_ids)}
    _check_sides(of_both | {"exclude": (exclude, gallery_exclude)}, gallery is not None)
    if sum(given is not None for given in (labels, judgements, codes)) != 1:
        raise InputError("give one of labels, judgements and codes")
    queries, items = vector_tables(vectors, gallery)
    own = np.arange(len(queries)) if gallery is None else np.full(len(queries), -1)
    if ids is not None and gallery_ids is not None:
        own = places_of(list(map(str, ids)), list(map(str, gallery_ids)), (len(queries), len(items)))
    groups = None
    if exclude is not None:
        own_group, groups_of_items = _label_tables(exclude, gallery_exclude, queries, items, "exclude")
        groups = own_group[:, 0], groups_of_items[:, 0]
    is_zero = choose(EMPTY, empty, "rule for queries without a relevant item")
    wanted = MeasureOptions(ks, metrics, relevance, gain, ties, trust)
    labels, gallery_labels, texts = number_text(labels, gallery_labels)
    table = None if labels is None else as_table(labels, "labels")
    if table is not None and table.ndim == 2 and table.dtype in (bool, torch.bool):
        judgements = shared_sets(table, gallery_labels, queries, items)
    if codes is not None:
        found = measure_codes(queries, items, codes, gallery_codes, own, groups, wanted)
    elif judgements is not None:
        found = _measure_judgements(queries, items, judgements, own, groups, wanted)
    else:
        tables = _label_tables(table, gallery_labels, queries, items, "labels")
        classes = class_names(classes_of(tables[0]), tables[0], texts)
        found = replace(measure(by_labels(queries, items, *tables, own, groups), wanted), labels=classes)
    columns = found.per_query
    if is_zero:
        columns = {name: np.nan_to_num(column) if is_total(name) else column for name, column in columns.items()}
    return replace(found, per_query=columns, ids=None if ids is None else list(map(str, ids)))


def _check_sides(sides: Mapping[str, tuple[object, object]], has_gallery: bool) -> None:
    """Refuse what is given of the queries alone, or of the gallery alone."""
    for name, (side, other) in sides.items():
        if (other is None) != (side is None or not has_gallery):
            raise InputError(f"gallery_{name} must be given with {name} and a gallery, and only then")


def classes_of(labels: Counts) -> Counts:
    """(N,) the finest label of each path, or numbers of the paths where one stands below two parents."""
    paths = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    is_class = len(np.unique(labels[:, 0])) == paths.max(initial=-1) + 1
    return labels[:, 0] if is_class else paths


def _measure_judgements(
    queries: VectorTable,
    items: VectorTable,
    judgements: Judgements,
    own: Counts,
    groups: Groups | None,
    wanted: MeasureOptions,
) -> Result:
    rows, values, are_levels = judged_levels(judgements, len(queries), len(items))
    if wanted.metrics is None:
        graded = ["h_ap", "ndcg", "asi"] if len(values) > 1 else []
        wanted = replace(wanted, metrics=[*metric_names(wanted.ks), *graded])
    if not are_levels:
        worth = Relevance(values=values)
        wanted = replace(wanted, relevance=worth, gain=worth)
    return measure(by_levels(queries, items, rows, len(values), own, groups), wanted, relevant=1)


def check_places(ks: Sequence[int]) -> None:
    """Raise unless ``ks`` are whole numbers from 1 on."""
    if not isinstance(ks, Iterable) or not ks or not all(isinstance(k, int | np.integer) and k > 0 for k in ks):
        raise InputError(f"ks must be places from 1 on, got {ks}")


def vector_tables(vectors: ArrayLike | Tensor, gallery: ArrayLike | Tensor | None) -> tuple[VectorTable, VectorTable]:
    """Queries and items; raises if they cannot be compared."""
    queries = VectorTable(vectors, "vectors")
    items = queries if gallery is None else VectorTable(gallery, "gallery")
    if queries.dim != items.dim:
        raise InputError(f"vectors and gallery must have as many dimensions, got {queries.dim} and {items.dim}")
    return queries, items


def measure(lists: Lists, wanted: MeasureOptions, relevant: int | None = None) -> Result:
    """The metrics of some lists. An item is relevant from level ``relevant`` on, None: the finest."""
    check_places(wanted.ks)
    metrics = metric_names(wanted.ks, lists.n_levels) if wanted.metrics is None else wanted.metrics
    if isinstance(metrics, str) or not metrics:
        raise InputError(f"metrics must be a list of one name or more, got {metrics!r}")
    relevant = relevant or lists.n_levels
    asked = {name: read_metric_name(name, relevant, wanted.trust) for name in metrics}
    if isinstance(wanted.relevance, CodeRelevance):
        raise InputError("relevance of codes is for codes; give the name of one or a Relevance")
    worth, gains = as_relevance(wanted.relevance), as_relevance(wanted.gain)
    places = {place for metric, k, _ in asked.values() if k is not None for place in metric.places(k)}
    stats = statistics(lists, sorted(places), find_tie_rule(wanted.ties, wanted.trust))
    if not stats.counts[:, relevant - 1 :].any():
        why = ": no two labels agree" if lists.levels is None and not len(lists.by_group) else " in its list"
        raise InputError(f"none of the {len(lists.queries)} queries has a relevant item{why}")
    columns = {
        name: metric(Ranking(stats, relevant - label, worth, gains), k) for name, (metric, k, label) in asked.items()
    }
    return Result(columns, notes=_notes(stats.counts, worth) if "h_ap" in asked else ())


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
    groups: Groups | None = None,
) -> Lists:
    """Lists whose items are relevant by their path of labels: sorted by it, those of a level are side by side."""
    n_queries, n_levels = labels.shape
    code = np.zeros(n_queries + len(item_labels), np.int64)
    codes = np.empty((len(code), n_levels), np.int64)
    for level, column in enumerate(np.concatenate([labels, item_labels]).T[::-1]):
        numbers = np.unique(column, return_inverse=True)[1]
        code = np.unique(code * (numbers.max(initial=0) + 1) + numbers, return_inverse=True)[1]
        codes[:, level] = code
    query_order, item_order = code[:n_queries].argsort(kind="stable"), code[n_queries:].argsort(kind="stable")
    wanted, known = codes[:n_queries][query_order].T, codes[n_queries:][item_order].T
    begin, end = (
        np.stack([np.searchsorted(*sides, side=side) for sides in zip(known, wanted, strict=True)], 1)
        for side in ("left", "right")
    )
    never = np.logical_or.accumulate(labels[query_order, ::-1] == NEVER, 1)  # and so at every finer level
    column = np.empty(len(items), np.int64)
    column[item_order] = np.arange(len(items))
    if len(items):
        if groups is not None:
            own = np.where((groups[0] == groups[1][own]) & (groups[0] != NEVER), -1, own)
        own = np.where(own >= 0, column[own], -1)
    by_group, group_start, group_stop = _group_columns(groups, n_queries)
    return Lists(
        queries,
        items,
        n_levels,
        query_order,
        item_order,
        begin,
        np.where(never, begin, end),
        own[query_order],
        column[by_group],
        group_start[query_order],
        group_stop[query_order],
    )


def _group_columns(groups: Groups | None, n_queries: int) -> tuple[Counts, Counts, Counts]:
    if groups is None:
        nothing = np.zeros(n_queries, np.int64)
        return nothing[:0], nothing, nothing
    order = groups[1].argsort(kind="stable")
    start, stop = (np.searchsorted(groups[1][order], groups[0], side=side) for side in ("left", "right"))
    return order, start, np.where(groups[0] == NEVER, start, stop)


def by_levels(
    queries: VectorTable,
    items: VectorTable,
    rows: Callable[[Counts], Levels],
    n_levels: int,
    own: Counts,
    groups: Groups | None = None,
) -> Lists:
    """Lists whose items have the levels that ``rows`` gives for some queries, (B, G)."""

    def levels(numbers: Counts) -> Levels:
        found = np.array(rows(numbers))
        found[np.flatnonzero(own[numbers] >= 0), own[numbers][own[numbers] >= 0]] = -1
        if groups is not None:
            found[(groups[0][numbers, None] == groups[1]) & (groups[0][numbers, None] != NEVER)] = -1
        return found

    empty = np.zeros((len(queries), n_levels), np.int64)
    orders, none = (np.arange(len(queries)), np.arange(len(items))), np.full(len(queries), -1)
    return Lists(queries, items, n_levels, *orders, empty, empty, none, *_group_columns(None, len(queries)), levels)


def places_of(ids: Sequence[str], gallery_ids: Sequence[str], sizes: tuple[int, int]) -> Counts:
    """(Q,) where each id is among those of the gallery; -1: nowhere."""
    if (len(ids), len(gallery_ids)) != sizes:
        raise InputError(f"ids and gallery_ids must be {sizes[0]} and {sizes[1]}, got {len(ids)} and {len(gallery_ids)}")
    place = {name: column for column, name in enumerate(gallery_ids)}
    if len(place) < len(gallery_ids):
        raise InputError(f"gallery_ids must differ: {len(gallery_ids) - len(place)} of {len(gallery_ids)} occur twice")
    return np.array([place.get(name, -1) for name in ids], np.int64)


def _label_tables(
    own: ArrayLike | Tensor | None, others: ArrayLike | Tensor | None, queries: VectorTable, items: VectorTable, name: str
) -> Groups:
    """(Q, L) and (G, L) whole numbers of both sides, where the items are the queries those of the queries."""
    tables = []
    own, others, _ = number_text(own, others, name)
    for title, given, n in ((name, own, len(queries)), (f"gallery_{name}", others, len(items))):
        if given is not None:
            tables.append(check_labels(as_tensor(given, title), n, title).cpu().numpy())
    if tables[0].shape[1] != tables[-1].shape[1] or (name == "exclude" and tables[0].shape[1] > 1):
        rule = "one column" if name == "exclude" else "as many levels on both sides"
        raise InputError(f"{name} must have {rule}, got {tables[0].shape[1]} and {tables[-1].shape[1]}")
    return tables[0], tables[-1]


# Relevance given by a table or a function. -------------------------------------------------------------------------------


def _read_sets(sets: ArrayLike | Tensor, n_items: int, name: str, n_labels: int | None = None) -> NDArray[np.bool_]:
    """(N, C) bool; raises for anything else."""
    found = as_numpy(as_table(sets, name))
    if found.dtype != bool or found.ndim != 2 or found.shape != (n_items, n_labels or found.shape[1]):
        wanted = f"({n_items}, {n_labels or 'C'})"
        raise InputError(f"{name} must be {wanted} bool, got {found.dtype} {found.shape}")
    return found


def shared_sets(
    sets: ArrayLike | Tensor, gallery_sets: ArrayLike | Tensor | None, queries: VectorTable, items: VectorTable
) -> Callable[[Counts], Levels]:
    """How many labels each query shares with each item."""
    own = _read_sets(sets, len(queries), "labels").astype(np.float32)
    others = own
    if gallery_sets is not None:
        others = _read_sets(gallery_sets, len(items), "gallery_labels", own.shape[1]).astype(np.float32)
    return lambda rows: np.minimum(own[rows] @ others.T, MOST_LEVELS).astype(np.int8)


def judged_levels(
    judgements: Judgements, n_queries: int, n_items: int
) -> tuple[Callable[[Counts], Levels], tuple[float, ...], bool]:
    """What gives the levels of some queries, the worth of each level, and whether that is the level itself."""
    source: Callable[[Counts], ArrayLike | Tensor]
    if callable(judgements):
        source = judgements
    else:
        table = as_table(judgements, "judgements")
        if tuple(table.shape) != (n_queries, n_items):
            raise InputError(f"judgements must be ({n_queries}, {n_items}), got {tuple(table.shape)}")
        source = table.__getitem__
    known: set[float] = set()
    are_levels = True
    for first in range(0, n_queries, 128):  # one pass for the values that there are
        rows = _judged_rows(source, np.arange(first, min(first + 128, n_queries)), n_items)
        known.update(np.unique(rows[rows > 0]).tolist())
        are_levels &= rows.dtype.kind in "biu"
        if len(known) > MOST_LEVELS or (are_levels and max(known, default=1) > MOST_LEVELS):
            raise InputError(f"judgements must have at most {MOST_LEVELS} levels, or different values above 0")
    values = np.arange(1, int(max(known, default=1)) + 1) if are_levels else np.array(sorted(known))

    def levels(rows: Counts) -> Levels:
        found = _judged_rows(source, rows, n_items)
        if are_levels:
            return (found if found.dtype.kind in "bu" else np.maximum(found, -1)).astype(np.int8)
        return np.where(found < 0, -1, np.searchsorted(values, found, side="right")).astype(np.int8)

    return levels, tuple(values.tolist()) or (1.0,), are_levels


def _judged_rows(source: Callable[[Counts], ArrayLike | Tensor], rows: Counts, n_items: int) -> NDArray[Any]:
    found = as_numpy(as_table(source(rows), "judgements"))
    if found.shape != (len(rows), n_items):
        raise InputError(f"judgements of {len(rows)} queries must be ({len(rows)}, {n_items}), got {found.shape}")
    if not (found < np.inf).all():
        raise InputError(f"judgements must be finite: NaN or infinity in the rows of queries {rows[0]} to {rows[-1]}")
    return found


def _ap_of_labels(
    queries: VectorTable,
    items: VectorTable,
    sets: sparse.csr_array,
    item_sets: sparse.csr_array,
    own: Counts,
    ties: str,
    groups: Groups | None = None,
    rescored: Rescored | None = None,
) -> Iterator[tuple[int, Counts, int, Floats]]:
    """Of each label that a query has: its number, its queries, how many items have it, and their average precision."""
    by_label, item_by_label = sets.tocsc(), item_sets.tocsc()
    for label in np.flatnonzero(np.diff(by_label.indptr)).tolist():
        rows = _rows_of(by_label, label)
        carriers = _rows_of(item_by_label, label)
        labels, item_labels = np.zeros((len(rows), 1), np.int64), np.full((len(items), 1), NEVER)
        item_labels[carriers] = 0
        some = None if groups is None else (groups[0][rows], groups[1])
        lists = by_labels(VectorTable(queries.table[rows], "vectors"), items, labels, item_labels, own[rows], some)
        lists = replace(lists, rescored=_for_rows(rescored, rows))
        yield label, rows, len(carriers), average_precision(Ranking(statistics(lists, (), find_tie_rule(ties)), level=1))


def _rows_of(table: sparse.csc_array, column: int) -> Counts:
    return np.sort(table.indices[table.indptr[column] : table.indptr[column + 1]]).astype(np.int64)


def _for_rows(rescored: Rescored | None, rows: Counts) -> Rescored | None:
    """What gives other scores, for some of the queries as they are numbered among themselves."""
    return None if rescored is None else lambda numbers, scores: rescored(rows[numbers], scores)


def evaluate_each_label(
    vectors: ArrayLike | Tensor,
    label_sets: ArrayLike | Tensor,
    gallery: ArrayLike | Tensor | None = None,
    gallery_sets: ArrayLike | Tensor | None = None,
    *,
    ties: str = "worst",
) -> Result:
    """Items with several labels: average precision for each label of the query, and its mean over them.

    Args:
        vectors: (Q, D).
        label_sets: (Q, C) bool.
        gallery: (G, D) items to rank instead of the other queries.
        gallery_sets: (G, C) bool, given exactly when ``gallery`` is.
        ties: as in :func:`evaluate`.

    Returns:
        ``map``; NaN for a query none of whose labels another item has.

    Example:
        >>> sets = np.array([[True, True], [True, False], [False, True]])
        >>> evaluate_each_label([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], sets).per_query["map"]
        array([0.75, 1.  , 0.5 ])
    """
    if (gallery is None) != (gallery_sets is None):
        raise InputError("gallery and gallery_sets must be given together")
    queries, items = vector_tables(vectors, gallery)
    sets = item_sets = _read_sets(label_sets, len(queries), "label_sets")
    if gallery_sets is not None:
        item_sets = _read_sets(gallery_sets, len(items), "gallery_sets", sets.shape[1])
    own = np.arange(len(queries)) if gallery is None else np.full(len(queries), -1)
    parts = _ap_of_labels(queries, items, sparse.csr_array(sets), sparse.csr_array(item_sets), own, ties)
    means, _ = _of_each_code(parts, [*map(str, range(sets.shape[1]))], len(queries))
    if np.isnan(means).all():
        raise InputError(f"none of the {len(queries)} queries has a relevant item: no two share a label")
    return Result({"map": means})


# Several codes an item. -------------------------------------------------------------------------------------------------

EACH_CODE = "map_each_code"
BY_WORTH = ("h_ap", "h_precision", "h_recall", "ndcg")  # what looks at the worth of items, and not at what they share
CODE_QUERIES = 4096  # whose statistics are held at once: each has a table of grades by grades


def code_metric_names(ks: Sequence[int], n_levels: int) -> list[str]:
    """The metrics of :func:`measure_codes` for these places and so many levels of codes.

    Example:
        >>> code_metric_names([1], n_levels=2)[2:]
        ['map', 'map_label_1', 'h_ap', 'ndcg', 'asi', 'severity@1', 'map_each_code']
    """
    return [*dict.fromkeys([*metric_names(ks, n_levels), "h_ap", "ndcg"]), EACH_CODE]


def measure_codes(
    queries: VectorTable,
    items: VectorTable,
    codes: CodeSets,
    item_codes: CodeSets | None,
    own: Counts,
    groups: Groups | None,
    wanted: MeasureOptions,
    rescored: Rescored | None = None,
) -> Result:
    """The metrics of items with several codes; some rows of queries at a time, whatever their number.

    An item's level is the depth of the deepest code that it shares with the query: ``recall@k``, ``map@r`` and ``map`` ask
    for a code of the finest depth, ``map_label_1`` for one of the next, and ``asi`` and ``severity@1`` look at that level.
    ``h_ap`` and ``ndcg`` take the worth that the relevance of codes gives, in 120 grades. ``map_each_code`` is, for a
    query, the mean over its codes of the average precision with the items of that code as the relevant ones.

    Args:
        queries: Q of them.
        items: G.
        codes: of each query.
        item_codes: of each item; None where the items are the queries.
        own: (Q,) the place of each query among the items; -1 for none.
        groups: as :func:`by_labels` takes them.
        wanted: what to measure; its relevance is one of codes, or the default for the deepest code there is.
        rescored: as in :class:`~sightline.evaluation.statistics.Lists`.

    Returns:
        With ``map_each_code`` among the metrics, also the average precision of each code.
    """
    _check_code_sets(codes, len(queries), "codes")
    _check_code_sets(codes if item_codes is None else item_codes, len(items), "gallery_codes")
    everyone = [*codes, *(item_codes or ())]
    relevance = _relevance_of_codes(wanted.relevance, everyone)
    n_levels = relevance.n_levels
    names = code_metric_names(wanted.ks, n_levels) if wanted.metrics is None else list(wanted.metrics)
    tables = code_tables(everyone, n_levels)
    sides = [(one.has[: len(codes)], one.has[len(codes) if item_codes is not None else 0 :]) for one in tables]

    def deepest_shared(rows: Counts) -> Levels:
        shared = np.zeros((len(rows), len(items)), np.int8)
        for has, item_has in sides:
            shared += (has[rows] @ item_has.T).toarray() > 0
        return shared

    columns: dict[str, Floats] = {}
    if by_depth := [name for name in names if name != EACH_CODE and name.partition("@")[0] not in BY_WORTH]:
        lists = replace(by_levels(queries, items, deepest_shared, n_levels, own, groups), rescored=rescored)
        columns |= measure(lists, replace(wanted, metrics=by_depth, relevance="population")).per_query
    if by_worth := [name for name in names if name.partition("@")[0] in BY_WORTH]:
        pairs = relevance.between(codes, item_codes)
        columns |= _by_worth(queries, items, pairs, own, groups, replace(wanted, metrics=by_worth), rescored)
    each: tuple[CodeAP, ...] = ()
    if EACH_CODE in names:
        parts = _ap_of_labels(queries, items, *sides[0], own, wanted.ties, groups, rescored)
        columns[EACH_CODE], each = _of_each_code(parts, tables[0].names, len(queries))
    return Result({name: columns[name] for name in names}, codes=each)


def _relevance_of_codes(given: str | Relevance | CodeRelevance, sets: CodeSets) -> CodeRelevance:
    """The relevance that was given; where none was, that of the deepest code."""
    if given == MeasureOptions.relevance:
        return CodeRelevance(max(code.count(".") + 1 for codes in sets for code in [*codes, ""]))
    if not isinstance(given, CodeRelevance):
        raise InputError(f"relevance must be a CodeRelevance beside codes, got {given!r}")
    return given


def _of_each_code(
    parts: Iterable[tuple[int, Counts, int, Floats]], called: Sequence[str], n_queries: int
) -> tuple[Floats, tuple[CodeAP, ...]]:
    """(Q,) the mean over each query's codes of their average precision, and the mean of each code over its queries."""
    total, n_codes = np.zeros(n_queries), np.zeros(n_queries)
    each = []
    for number, rows, n_carriers, ap in parts:
        is_defined = ~np.isnan(ap)
        total[rows] += np.nan_to_num(ap)
        n_codes[rows] += is_defined
        mean = float(ap[is_defined].mean()) if is_defined.any() else float("nan")
        each.append(CodeAP(called[number], len(rows), n_carriers, mean))
    return np.divide(total, n_codes, out=np.full(n_queries, np.nan), where=n_codes > 0), tuple(each)


def _check_code_sets(codes: CodeSets, n_items: int, name: str) -> None:
    if isinstance(codes, str) or len(codes) != n_items or any(isinstance(one, str) for one in codes):
        raise InputError(f"{name} must be {n_items} lists of codes, one for each item, got {len(codes)}: {codes[:2]!r}")


def _by_worth(
    queries: VectorTable,
    items: VectorTable,
    pairs: Callable[[Counts], Floats],
    own: Counts,
    groups: Groups | None,
    wanted: MeasureOptions,
    rescored: Rescored | None,
) -> dict[str, Floats]:
    """Metrics of the worth of items, some queries at a time: the statistics of all of them would not fit in memory."""
    asked = {name: read_metric_name(name, 1, wanted.trust) for name in wanted.metrics or ()}
    places = {place for metric, k, _ in asked.values() if k is not None for place in metric.places(k)}
    parts: dict[str, list[Floats]] = {name: [] for name in asked}
    for first in range(0, len(queries), CODE_QUERIES):
        rows = np.arange(first, min(first + CODE_QUERIES, len(queries)))
        levels, values, _ = judged_levels(partial(_rows_from, pairs, first), len(rows), len(items))
        some = None if groups is None else (groups[0][rows], groups[1])
        lists = by_levels(VectorTable(queries.table[rows], "vectors"), items, levels, len(values), own[rows], some)
        lists = replace(lists, rescored=_for_rows(rescored, rows))
        stats, worth = statistics(lists, sorted(places), find_tie_rule(wanted.ties, wanted.trust)), Relevance(values=values)
        for name, (metric, k, _) in asked.items():
            parts[name].append(metric(Ranking(stats, 1, worth, worth), k))
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def _rows_from(pairs: Callable[[Counts], Floats], first: int, rows: Counts) -> Floats:
    return pairs(first + rows)
