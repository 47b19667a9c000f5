"""The protocols of particular benchmarks: DyML, revisited Oxford and Paris, Google Landmarks v2."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable, read_pieces
from sightline.data.readers.landmarks import KINDS, read_judgements
from sightline.data.readers.retrieval_sets import level_sets
from sightline.errors import InputError, choose
from sightline.evaluation.protocol import (
    MeasureOptions,
    by_labels,
    by_levels,
    check_places,
    evaluate,
    measure,
    places_of,
    vector_tables,
)
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import Counts, Scores, VectorTable, as_numpy, as_table, ranked_levels
from sightline.evaluation.tables import Rescore, Steps, has_role, refine
from sightline.ranking.nearest import neighbours
from sightline.ranking.refine import Refinement, expand_queries
from sightline.ranking.similarity import unit

HELD_ELEMENTS = 1 << 27  # scores held at once: of all 70 queries with a million items
DYML_METRICS = ("map", "asi", "recall@1")
KS = (1, 5, 10)
REVISITED = {  # which items are relevant (1) and which in no list (-1)
    "easy": {"easy": 1, "hard": -1, "junk": -1},
    "medium": {"easy": 1, "hard": 1, "junk": -1},
    "hard": {"easy": -1, "hard": 1, "junk": -1},
}


class RetrievalSet(NamedTuple):
    """Queries and what they rank, with the labels of one level; see :func:`evaluate`."""

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
        raise InputError("sets must have at least one level, got none")
    results = {level: evaluate(**one._asdict(), metrics=DYML_METRICS) for level, one in sets.items()}
    return results, {name: float(np.mean([result[name] for result in results.values()])) for name in DYML_METRICS}


def evaluate_revisited(
    vectors: ArrayLike | Tensor,
    gallery: ArrayLike | Tensor,
    easy: Sequence[ArrayLike],
    hard: Sequence[ArrayLike],
    junk: Sequence[ArrayLike],
    ks: Sequence[int] = KS,
    distractors: Iterable[ArrayLike | Tensor] = (),
    rescored: Rescore | None = None,
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
        distractors: (N, D) pieces of further items, relevant to no query, of which one is held at a time.
        rescored: the scores after re-ranking, from queries' numbers and their (B, G) scores; not with distractors.

    Returns:
        For ``easy``, ``medium`` and ``hard``: ``map``, the area below straight lines, and ``mp@k``.

    Example:
        >>> results = evaluate_revisited(np.eye(1, 2), [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [[1]], [[2]], [[0]], ks=[1])
        >>> results["easy"].means
        {'map': 1.0, 'mp@1': 1.0}
    """
    check_places(ks)
    queries, items = vector_tables(vectors, gallery)
    given = {"easy": easy, "hard": hard, "junk": junk}
    lists = {name: _read_lists(name, one, len(queries), len(items)) for name, one in given.items()}
    for query, kinds in enumerate(zip(*lists.values(), strict=True)):
        several = np.flatnonzero(np.bincount(np.concatenate([np.unique(places) for places in kinds])) > 1)
        if len(several):
            raise InputError(f"query {query}: items {several.tolist()} are in more than one of easy, hard and junk")
    if not any(len(places) for places in lists["easy"] + lists["hard"]):
        raise InputError(f"none of the {len(queries)} queries has a relevant item: easy and hard are empty")
    found = _places(queries, items, lists, rescored)
    _push_down(queries, found, distractors)
    columns = {
        setup: {
            "map": np.array([trapezoid_average_precision(places) for places, _ in rows]),
            **{f"mp@{k}": np.array([revisited_precision_at_k(places, k) for places, _ in rows]) for k in ks},
        }
        for setup, rows in found.items()
    }
    return {setup: Result(one) for setup, one in columns.items()}


def _places(
    queries: VectorTable, items: VectorTable, lists: Mapping[str, Sequence[Counts]], rescored: Rescore | None
) -> dict[str, list[tuple[Counts, NDArray[np.float64]]]]:
    """For each setup and query the places of the relevant items in its list, from 0, and their scores, best first."""
    found: dict[str, list[tuple[Counts, NDArray[np.float64]]]] = {setup: [] for setup in REVISITED}
    scorer = Scores(queries, items, np.arange(len(items)))
    n_held = min(max(1, HELD_ELEMENTS // scorer.width), len(queries))  # the items are read once for so many queries
    held = torch.empty(n_held, scorer.width, dtype=scorer.dtype, device=queries.device)
    for first in range(0, len(queries), n_held):
        block = np.arange(first, min(first + n_held, len(queries)))
        scores = scorer.fill(block, held)
        scores = scores if rescored is None else rescored(block, scores)
        for setup, worth in REVISITED.items():
            for query in block.tolist():
                levels = torch.zeros(1, len(items), dtype=torch.int8)
                for name, level in worth.items():
                    levels[0, torch.from_numpy(lists[name][query])] = level
                row, levels = scores[query - first][None], levels.to(scores.device)
                places = np.flatnonzero(as_numpy(ranked_levels(row, levels)[0] > 0))
                best_first = row[levels > 0].sort(descending=True).values
                found[setup].append((places, as_numpy(best_first.double())))
    return found


def _push_down(
    queries: VectorTable,
    found: Mapping[str, Sequence[tuple[Counts, NDArray[np.float64]]]],
    distractors: Iterable[ArrayLike | Tensor],
) -> None:
    """Move each place down by the distractors before it, in place; one with the same score comes first."""
    for piece in distractors:
        table = vector_tables(queries.table, piece)[1]
        dtype = torch.promote_types(queries.dtype, table.dtype)
        every = table.take(np.arange(len(table)), dtype).T.to(queries.device)
        n_held = max(1, HELD_ELEMENTS // max(1, len(table)))
        for first in range(0, len(queries), n_held):
            block = np.arange(first, min(first + n_held, len(queries)))
            scores = as_numpy((queries.take(block, dtype) @ every).sort(1).values.double())
            for rows in found.values():
                for query in block.tolist():
                    places, best_first = rows[query]
                    places += len(table) - np.searchsorted(scores[query - first], best_first)


def trapezoid_average_precision(places: Counts) -> float:
    """Average precision as the revisited sets take it: the area below straight lines, not steps.

    Each relevant item counts the mean of the precision at its place and just before it, which is 1 before the first place.

    Args:
        places: of the relevant items in their list, from 0, in order.

    Returns:
        NaN if there is none.

    Example:
        >>> round(trapezoid_average_precision(np.array([0, 2, 3])), 4)
        0.7639
    """
    n_before = np.arange(len(places))
    earlier = np.where(places > 0, n_before / np.maximum(places, 1), 1.0)
    return float(((n_before + 1) / (places + 1) + earlier).mean() / 2) if len(places) else np.nan


def revisited_precision_at_k(places: Counts, k: int) -> float:
    """Precision at k, or at the place of the last relevant item where that comes first: mP@k of the revisited sets.

    Example:
        >>> revisited_precision_at_k(np.array([0, 1]), k=3)
        1.0
    """
    return float((places < k).sum() / min(k, places[-1] + 1)) if len(places) else np.nan


def _read_lists(name: str, lists: Sequence[ArrayLike], n_queries: int, n_items: int) -> list[Counts]:
    """Places in the gallery for each query."""
    if len(lists) != n_queries:
        raise InputError(f"{name} must have a list for each of the {n_queries} queries, got {len(lists)}")
    tables = [as_numpy(as_table(one, name)).reshape(-1) for one in lists]
    for query, one in enumerate(tables):
        if len(one) and (one.dtype.kind not in "iu" or not 0 <= one.min() <= one.max() < n_items):
            raise InputError(f"{name} of query {query} must be whole numbers from 0 to {n_items - 1}, got {one.tolist()}")
    return [one.astype(np.int64) for one in tables]


def evaluate_gldv2(
    vectors: ArrayLike | Tensor,
    gallery: ArrayLike | Tensor,
    relevant: Sequence[ArrayLike],
    ks: Sequence[int] = (100,),
    rescored: Rescore | None = None,
) -> Result:
    """Google Landmarks v2 by its official lists of solutions.

    The papers here count any index image with the landmark of the first solution image instead: that is
    :func:`evaluate` by labels, with the same metric.

    Args:
        vectors: (Q, D) of the queries that have a solution.
        gallery: (G, D) of the index.
        relevant: for each query, the places in the gallery of its solution.
        ks: for ``map@k``.
        rescored: as in :func:`evaluate_revisited`.

    Returns:
        ``map@k`` for each k.

    Example:
        >>> evaluate_gldv2(np.eye(1, 2), [[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], relevant=[[2]]).means
        {'map@100': 0.5}
    """
    check_places(ks)
    queries, items = vector_tables(vectors, gallery)
    places = _read_lists("relevant", relevant, len(queries), len(items))

    def rows(numbers: Counts) -> NDArray[np.int8]:
        table = np.zeros((len(numbers), len(items)), np.int8)
        for row, query in enumerate(numbers.tolist()):
            table[row, places[query]] = 1
        return table

    lists = by_levels(queries, items, rows, 1, np.full(len(queries), -1))
    return measure(replace(lists, rescored=rescored), MeasureOptions(metrics=[f"map@{k}" for k in ks]))


# By name, on embedding tables. ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What a protocol measures.

    Attributes:
        table: of the manifest that ``sightline data prepare`` wrote.
        judgements: the ``.judgements.json`` beside that manifest; DyML has none.
        steps: done to the vectors and rankings first.
        distractors: for revisited Oxford and Paris: a table of further images, relevant to no query, read in pieces.
        ks: for ``mp@k`` or ``map@k``; empty for those of the papers.
    """

    table: EmbeddingTable
    judgements: Path | None = None
    steps: Steps = field(default_factory=Steps)
    distractors: Path | None = None
    ks: Sequence[int] = ()

    def side(self, role: str) -> NDArray[np.bool_]:
        """(N,) the rows that are queries or gallery."""
        return has_role(self.table.manifest, role)

    def judged(self, kinds: Sequence[str]) -> tuple[list[str], VectorTable, VectorTable, list[list[list[int]]]]:
        """Ids of the queries, their vectors, those of the gallery, and what is judged of each kind."""
        if self.judgements is None:
            raise InputError("this protocol needs --judgements, the file that `sightline data prepare` wrote")
        rows, items, ids = self.side("is_query"), self.side("is_gallery"), np.array(self.table.ids)
        if (rows & items).any():
            raise InputError(f"{self.table.manifest.source}: {ids[rows & items][0]!r} is a query and in the gallery")
        judged = read_judgements(self.judgements, ids[rows].tolist(), ids[items].tolist(), kinds)
        return ids[rows].tolist(), *vector_tables(self.table.vectors[rows], self.table.vectors[items]), judged


def evaluate_protocol(name: str, asked: Asked) -> dict[str, Result]:
    """An embedding table of a published set measured as its papers do: a result for each setup or level, by its name."""
    return choose(PROTOCOLS, name, "protocol")(asked)


def _by_level(asked: Asked) -> dict[str, Result]:
    if asked.judgements or asked.distractors or asked.ks:
        raise InputError("protocol 'dyml' takes no --judgements, --distractors or -k")
    table, ids, found = asked.table, np.array(asked.table.ids), {}
    for level, (rows, items, labels) in level_sets(table.manifest).items():
        own = places_of(ids[rows].tolist(), ids[items].tolist(), (len(rows), len(items)))
        queries, others, rescored = refine(*vector_tables(table.vectors[rows], table.vectors[items]), own, asked.steps)
        lists = replace(by_labels(queries, others, labels[rows, None], labels[items, None], own), rescored=rescored)
        found[level] = replace(measure(lists, MeasureOptions(metrics=DYML_METRICS)), ids=ids[rows].tolist())
    return found


def _by_solution(asked: Asked) -> dict[str, Result]:
    """By the official lists, and by the labels of the images, as the papers here count."""
    if asked.distractors:
        raise InputError("protocol 'gldv2' takes no --distractors")
    ids, queries, items, (relevant,) = asked.judged(("relevant",))
    nowhere, labels = np.full(len(ids), -1), asked.table.manifest.labels()
    queries, items, rescored = refine(queries, items, nowhere, asked.steps)
    official = evaluate_gldv2(queries.table, items.table, relevant, asked.ks or (100,), rescored)
    asking, asked_for = labels[asked.side("is_query")], labels[asked.side("is_gallery")]
    graded = ["h_ap", "asi", "ndcg"] if labels.shape[1] > 1 else []
    lists = replace(by_labels(queries, items, asking, asked_for, nowhere), rescored=rescored)
    by_landmark = measure(lists, MeasureOptions(metrics=[*official.per_query, *graded]))
    return {name: replace(result, ids=ids) for name, result in (("official", official), ("landmark", by_landmark))}


def _by_difficulty(asked: Asked) -> dict[str, Result]:
    ids, queries, items, (easy, hard, junk) = asked.judged(KINDS)
    nowhere, steps, ks = np.full(len(ids), -1), asked.steps, asked.ks or KS
    if asked.distractors is None:
        queries, items, rescored = refine(queries, items, nowhere, steps)
        found = evaluate_revisited(queries.table, items.table, easy, hard, junk, ks, rescored=rescored)
    else:
        read = _read_distractors(asked.distractors, asked.table, steps)
        queries, items, _ = refine(queries, items, nowhere, Steps(steps.whitening))
        expanded = _expand_among_all(torch.as_tensor(queries.table), torch.as_tensor(items.table), read, steps.refinement)
        found = evaluate_revisited(expanded, items.table, easy, hard, junk, ks, read())
    return {setup: replace(result, ids=ids) for setup, result in found.items()}


def _read_distractors(file: Path, table: EmbeddingTable, steps: Steps) -> Callable[[], Iterator[Tensor]]:
    """What reads them in whitened pieces, each time from the start."""
    if steps.augment or steps.refinement.rerank:
        raise InputError("with --distractors, vectors can be whitened and queries expanded, nothing else")
    fingerprint, read = read_pieces(file)
    if fingerprint != table.fingerprint:
        raise InputError(f"{file}: vectors of another encoder than {table.manifest.source}")
    whiten = steps.whitening or torch.nn.Identity()
    return lambda: (whiten(unit(torch.from_numpy(piece))) for piece in read())


def _expand_among_all(
    queries: Tensor, items: Tensor, read: Callable[[], Iterable[Tensor]], refinement: Refinement
) -> Tensor:
    """The queries expanded by their nearest of gallery and distractors."""
    if refinement.expand:
        for piece in read():  # the nearest of all are among the nearest of each piece
            near = neighbours(queries, piece, refinement.expand)[1]
            items = torch.cat([items, piece[near.unique()]])
    return expand_queries(queries, items, refinement.expand, refinement.alpha)


PROTOCOLS = {"roxford5k": _by_difficulty, "rparis6k": _by_difficulty, "gldv2": _by_solution, "dyml": _by_level}
