"""Protocols of particular benchmarks: DyML, revisited Oxford and Paris, Google Landmarks v2, an AP for each label."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.evaluation.metrics import Ranking, average_precision
from sightline.evaluation.protocol import NEVER, as_numpy, as_table, by_labels, check_dimensions, check_places, evaluate
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import SORT_ELEMENTS, Counts, VectorTable, ranked_levels, statistics
from sightline.ranking.similarity import n_filling

HELD_ELEMENTS = 1 << 27  # scores held at once: of all 70 queries with a million items
READ_ROWS = 342 * 48  # even, as n_filling has it
DYML_METRICS = ("map", "asi", "recall@1")


class RetrievalSet(NamedTuple):
    """Queries and what they rank, with the labels of one level; see :func:`~sightline.evaluation.protocol.evaluate`."""

    vectors: ArrayLike | Tensor
    labels: ArrayLike | Tensor
    gallery: ArrayLike | Tensor | None = None
    gallery_labels: ArrayLike | Tensor | None = None
    ids: Sequence[object] | None = None
    gallery_ids: Sequence[object] | None = None


def evaluate_dyml(sets: Mapping[str, RetrievalSet]) -> tuple[dict[str, Result], dict[str, float]]:
    """Each level's own queries and gallery measured, and the plain mean of the levels.

    Args:
        sets: by the name of the level. One set of images with several label columns is given once for each column.

    Returns:
        A result for each level, with ``map``, ``asi`` and ``recall@1``; and the mean of each metric over the levels.

    Example:
        >>> sets = {level: RetrievalSet(np.eye(4, 3), [0, 0, 1, 1]) for level in ("fine", "coarse")}
        >>> results, means = evaluate_dyml(sets)
        >>> means["map"] == results["fine"]["map"]
        True
    """
    if not sets:
        raise InputError("sets: at least one level is needed, found none")
    results = {
        level: evaluate(
            one.vectors,
            one.labels,
            one.gallery,
            one.gallery_labels,
            metrics=DYML_METRICS,
            ids=one.ids,
            gallery_ids=one.gallery_ids,
        )
        for level, one in sets.items()
    }
    return results, {name: float(np.mean([result[name] for result in results.values()])) for name in DYML_METRICS}


def evaluate_revisited(
    vectors: ArrayLike | Tensor,
    gallery: ArrayLike | Tensor,
    easy: Sequence[ArrayLike],
    hard: Sequence[ArrayLike],
    junk: Sequence[ArrayLike],
    ks: Sequence[int] = (1, 5, 10),
) -> dict[str, Result]:
    """The three setups of revisited Oxford and Paris.

    Easy: the easy items are relevant, hard ones and junk are in no list. Medium: easy and hard ones are relevant. Hard: the
    hard items are relevant, easy ones and junk are in no list. Queries without a relevant item are left out.

    Args:
        vectors: (Q, D) of the queries, cut to their boxes.
        gallery: (G, D).
        easy: for each query, the places in the gallery of its easy items.
        hard: of its hard ones.
        junk: of those that count neither way.
        ks: for ``mp@k``.

    Returns:
        For ``easy``, ``medium`` and ``hard``: ``map``, the area below straight lines, and ``mp@k``.

    Example:
        >>> results = evaluate_revisited(np.eye(1, 2), [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [[1]], [[2]], [[0]], ks=[1])
        >>> results["easy"].means
        {'map': 1.0, 'mp@1': 1.0}
    """
    check_places(ks)
    queries, items = (
        VectorTable(as_table(vectors, "vectors"), "vectors"),
        VectorTable(as_table(gallery, "gallery"), "gallery"),
    )
    check_dimensions(queries, items)
    lists = {
        name: _places(name, given, len(queries), len(items))
        for name, given in (("easy", easy), ("hard", hard), ("junk", junk))
    }
    for query, kinds in enumerate(zip(*lists.values(), strict=True)):
        several = np.flatnonzero(np.bincount(np.concatenate([np.unique(places) for places in kinds])) > 1)
        if len(several):
            raise InputError(f"query {query}: items {several.tolist()} are in more than one of easy, hard and junk")
    if not any(len(places) for name in ("easy", "hard") for places in lists[name]):
        raise InputError(f"none of the {len(queries)} queries has a relevant item: easy and hard are empty")
    setups = {
        "easy": {"easy": 1, "hard": -1, "junk": -1},
        "medium": {"easy": 1, "hard": 1, "junk": -1},
        "hard": {"hard": 1, "easy": -1, "junk": -1},
    }
    columns: dict[str, dict[str, list[Tensor]]] = {
        setup: {name: [] for name in ("map", *(f"mp@{k}" for k in ks))} for setup in setups
    }
    for block, scores in _score_blocks(queries, items):
        for setup, levels_of in setups.items():
            levels = torch.zeros(scores.shape, dtype=torch.int8)
            for name, level in levels_of.items():
                for row, places in enumerate(lists[name][block]):
                    levels[row, torch.from_numpy(places)] = level
            ranked = ranked_levels(scores, levels.to(scores.device)) > 0
            columns[setup]["map"].append(trapezoid_average_precision(ranked))
            for k in ks:
                columns[setup][f"mp@{k}"].append(revisited_precision_at_k(ranked, k))
    return {
        setup: Result({name: torch.cat(parts).cpu().numpy() for name, parts in found.items()})
        for setup, found in columns.items()
    }


def trapezoid_average_precision(ranked: Tensor) -> Tensor:
    """(Q,) average precision as the revisited sets take it: the area below straight lines, not steps.

    Each relevant item counts the mean of the precision at its place and just before it, which is 1 before the first place.

    Args:
        ranked: (Q, K) bool, True where the item at that place is relevant, best place first.

    Example:
        >>> trapezoid_average_precision(torch.tensor([[True, False, True, True]]))
        tensor([0.7639], dtype=torch.float64)
    """
    before = torch.arange(ranked.shape[1], dtype=torch.float64, device=ranked.device)
    n_found = ranked.cumsum(1)
    earlier = ((n_found - ranked.long()) / before.clamp(min=1)).where(before > 0, 1.0)
    n_relevant = ranked.sum(1).double()
    return ((n_found / (before + 1) + earlier) * ranked).sum(1) / 2 / n_relevant.where(n_relevant > 0, torch.nan)


def revisited_precision_at_k(ranked: Tensor, k: int) -> Tensor:
    """(Q,) precision at k, or at the place of the last relevant item where that comes first: mP@k of the revisited sets.

    Example:
        >>> revisited_precision_at_k(torch.tensor([[True, True, False]]), k=3)
        tensor([1.], dtype=torch.float64)
    """
    place = torch.arange(1, ranked.shape[1] + 1, device=ranked.device)
    last = F.pad(place * ranked, (1, 0)).amax(1).clamp(min=1, max=k)
    return (ranked[:, :k].sum(1) / last).double().where(ranked.any(1), torch.nan)


def _score_blocks(queries: VectorTable, items: VectorTable) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of some queries with all items, which are read once for as many queries as can be held."""
    dtype = torch.promote_types(queries.dtype, items.dtype)
    n_held, n_sorted = (max(1, n // max(1, len(items))) for n in (HELD_ELEMENTS, SORT_ELEMENTS))
    n_read = min(READ_ROWS, len(items) + n_filling(len(items), dtype))
    for start in range(0, len(queries), n_held):
        rows = queries.take(np.arange(start, min(start + n_held, len(queries))), dtype)
        held = torch.empty(len(rows), len(items), dtype=dtype, device=rows.device)
        for first in range(0, len(items), n_read):
            some = items.take(np.arange(first, min(first + n_read, len(items))), dtype)
            filled = F.pad(some, (0, 0, 0, n_read - len(some)))  # products of one shape, or copies would not tie
            with torch.autocast(rows.device.type, enabled=False):
                held[:, first : first + len(some)] = (rows @ filled.T)[:, : len(some)]
        for row in range(0, len(rows), n_sorted):
            scores = held[row : row + n_sorted]
            yield slice(start + row, start + row + len(scores)), scores


def _places(name: str, lists: Sequence[ArrayLike], n_queries: int, n_items: int) -> list[Counts]:
    if len(lists) != n_queries:
        raise InputError(f"{name}: a list for each of the {n_queries} queries is needed, found {len(lists)}")
    tables = [as_numpy(as_table(one, name)).reshape(-1) for one in lists]
    if strange := [query for query, one in enumerate(tables) if len(one) and one.dtype.kind not in "iu"]:
        raise InputError(f"{name} of query {strange[0]}: whole numbers are needed, found {tables[strange[0]].dtype}")
    places = [one.astype(np.int64) for one in tables]
    for query, one in enumerate(places):
        if len(one) and not 0 <= one.min() <= one.max() < n_items:
            raise InputError(f"{name} of query {query}: places from 0 to {n_items - 1} are needed, found {one.tolist()}")
    return places


def evaluate_gldv2(
    vectors: ArrayLike | Tensor, gallery: ArrayLike | Tensor, relevant: Sequence[ArrayLike], ks: Sequence[int] = (100,)
) -> Result:
    """Google Landmarks v2 by its official lists of solutions.

    The papers here count any index image with the landmark of the first solution image instead: that is
    :func:`~sightline.evaluation.protocol.evaluate` by labels, with the same metric.

    Args:
        vectors: (Q, D) of the queries that have a solution.
        gallery: (G, D) of the index.
        relevant: for each query, the places in the gallery of its solution.
        ks: for ``map@k``.

    Returns:
        ``map@k`` for each k.

    Example:
        >>> evaluate_gldv2(np.eye(1, 2), [[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], relevant=[[2]]).means
        {'map@100': 0.5}
    """
    check_places(ks)
    queries, items = as_table(vectors, "vectors"), as_table(gallery, "gallery")
    places = _places("relevant", relevant, len(queries), len(items))

    def rows(numbers: Counts) -> NDArray[np.bool_]:
        table = np.zeros((len(numbers), len(items)), bool)
        for row, query in enumerate(numbers.tolist()):
            table[row, places[query]] = True
        return table

    return evaluate(queries, gallery=items, judgements=rows, metrics=[f"map@{k}" for k in ks])


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
        ties: as in :func:`~sightline.evaluation.protocol.evaluate`.

    Returns:
        ``map``; NaN for a query none of whose labels another item has.

    Example:
        >>> sets = np.array([[True, True], [True, False], [False, True]])
        >>> evaluate_each_label([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], sets).per_query["map"]
        array([0.75, 1.  , 0.5 ])
    """
    if (gallery is None) != (gallery_sets is None):
        raise InputError("gallery and gallery_sets go together: one was given without the other")
    table = as_table(vectors, "vectors")
    queries = VectorTable(table, "vectors")
    items = queries if gallery is None else VectorTable(as_table(gallery, "gallery"), "gallery")
    check_dimensions(queries, items)
    sets = _sets(label_sets, len(queries), "label_sets")
    item_sets = sets if gallery_sets is None else _sets(gallery_sets, len(items), "gallery_sets")
    if sets.shape[1] != item_sets.shape[1]:
        raise InputError(f"sets of {sets.shape[1]} and {item_sets.shape[1]} labels cannot be compared")
    total, n_labels = np.zeros(len(queries)), np.zeros(len(queries))
    for label in np.flatnonzero(sets.any(0)):
        rows = np.flatnonzero(sets[:, label])
        relevant = np.where(item_sets[:, label], 0, NEVER)[:, None]
        own = rows if gallery is None else np.full(len(rows), -1)
        lists = by_labels(VectorTable(table[rows], "vectors"), items, np.zeros((len(rows), 1), np.int64), relevant, own)
        ap = average_precision(Ranking(statistics(lists, (), ties), level=1))
        total[rows] += np.nan_to_num(ap)
        n_labels[rows] += ~np.isnan(ap)
    if not n_labels.any():
        raise InputError(f"none of the {len(queries)} queries has a relevant item: no two share a label")
    return Result({"map": np.divide(total, n_labels, out=np.full(len(queries), np.nan), where=n_labels > 0)})


def _sets(sets: ArrayLike | Tensor, n_items: int, name: str) -> NDArray[np.bool_]:
    found: NDArray[Any] = as_numpy(as_table(sets, name))
    if found.dtype != bool or found.ndim != 2 or len(found) != n_items:
        raise InputError(f"{name}: ({n_items}, C) bool is needed, found {found.dtype} {found.shape}")
    return found
