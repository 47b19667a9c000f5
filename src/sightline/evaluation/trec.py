"""Rankings and judgements for other tools: TREC's run and qrels files.

A run is ``{query id: {item id: score}}``, higher is better; judgements are ``{query id: {item id: level}}``, without the
irrelevant items. Both are what ranx, pytrec_eval and ir_measures take. Other tools order equal scores as they please, where
ours count against the query.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError, names
from sightline.evaluation.tables import read_sides
from sightline.files import replaced
from sightline.ranking.nearest import neighbours
from sightline.ranking.pairs import check_labels, shared_known_levels

Run = dict[str, dict[str, float]]
Judgements = dict[str, dict[str, int]]

BLOCK_ELEMENTS = 1 << 22  # pairs judged at once


def write_trec(folder: Path, table: EmbeddingTable, gallery: EmbeddingTable | None = None, k: int | None = 1000) -> Path:
    """Write ``run.trec`` and ``qrels.trec`` of the queries of a table, which rank it or another; see :func:`rankings`.

    Args:
        folder: made if it is not there.
        table: the queries, where a column ``is_query`` says which; otherwise all.
        gallery: of the same encoder; None for the table itself.
        k: items to keep for each query; None for all.
    """
    queries, items = read_sides(table, gallery)
    write_run(folder / "run.trec", rankings(queries.vectors, items.vectors, queries.ids, items.ids, k))
    write_qrels(folder / "qrels.trec", judgements(queries.labels, items.labels, queries.ids, items.ids))
    return folder


def rankings(
    queries: Tensor | NDArray[Any],
    gallery: Tensor | NDArray[Any],
    query_ids: Sequence[str],
    gallery_ids: Sequence[str],
    k: int | None = None,
) -> Run:
    """The nearest items of each query by cosine, best first; the item with the query's own id is left out.

    Args:
        queries: (Q, D).
        gallery: (G, D).
        query_ids: Q different names.
        gallery_ids: G different names.
        k: items to keep for each query; None for all.

    Example:
        >>> import torch
        >>> rankings(torch.eye(2), torch.eye(2), ["a", "b"], ["a", "b"])
        {'a': {'b': 0.0}, 'b': {'a': 0.0}}
    """
    _check_ids(query_ids, len(queries), "query_ids")
    _check_ids(gallery_ids, len(gallery), "gallery_ids")
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, or None for all, got {k}")
    place_of = {name: place for place, name in enumerate(gallery_ids)}
    own = torch.tensor([place_of.get(name, -1) for name in query_ids], dtype=torch.int64)
    tables = torch.as_tensor(queries), torch.as_tensor(gallery)
    scores, places = neighbours(*tables, len(gallery) if k is None else k, own.to(tables[0].device))
    return {
        query: {gallery_ids[place]: score for place, score in zip(found, row, strict=True) if place >= 0}
        for query, row, found in zip(query_ids, scores.tolist(), places.tolist(), strict=True)
    }


def judgements(
    labels: Tensor | NDArray[Any],
    gallery_labels: Tensor | NDArray[Any],
    query_ids: Sequence[str],
    gallery_ids: Sequence[str],
) -> Judgements:
    """The relevant items of each query with the number of label levels they share; itself, by its id, left out.

    A query without a relevant item is absent, so that other tools leave it out of their means as well.

    Args:
        labels: (Q,) or (Q, L) whole numbers, finest level first. One column judges relevant or not. -1 is shared by none.
        gallery_labels: (G,) or (G, L).
        query_ids: Q different names.
        gallery_ids: G different names.

    Example:
        >>> import torch
        >>> judgements(torch.tensor([[1, 5]]), torch.tensor([[1, 5], [2, 5], [3, 6]]), ["q"], ["x", "y", "z"])
        {'q': {'x': 2, 'y': 1}}
    """
    labels = check_labels(torch.as_tensor(labels), len(query_ids), "labels")
    gallery_labels = check_labels(torch.as_tensor(gallery_labels), len(gallery_ids), "gallery_labels")
    _check_ids(query_ids, len(labels), "query_ids")
    _check_ids(gallery_ids, len(gallery_labels), "gallery_ids")
    judged: Judgements = {}
    n_rows = max(1, BLOCK_ELEMENTS // max(1, len(gallery_ids)))
    for first, block in zip(range(0, len(labels), n_rows), labels.split(n_rows), strict=False):
        shared = shared_known_levels(block, gallery_labels)
        rows, places = shared.nonzero(as_tuple=True)
        for row, place, level in zip(rows.tolist(), places.tolist(), shared[rows, places].tolist(), strict=True):
            query, item = query_ids[first + row], gallery_ids[place]
            if item != query:
                judged.setdefault(query, {})[item] = level
    return judged


def write_run(file: Path, run: Mapping[str, Mapping[str, float]], name: str = "sightline") -> Path:
    """Write lines of ``query Q0 item rank score name``, best first; scores keep every digit.

    Args:
        file: to write.
        run: scores by query and item; ids without white space, which separates the columns.
        name: of the run, in the last column.
    """
    lines = (
        (query, "Q0", item, str(rank), repr(float(score)), name)
        for query, items in run.items()
        for rank, (item, score) in enumerate(sorted(items.items(), key=lambda item: -item[1]), start=1)
    )
    return _write(Path(file), lines)


def write_qrels(file: Path, judged: Mapping[str, Mapping[str, int]]) -> Path:
    """Write lines of ``query 0 item level``; ids without white space, which separates the columns."""
    lines = ((query, "0", item, str(level)) for query, items in judged.items() for item, level in items.items())
    return _write(Path(file), lines)


def _check_ids(ids: Sequence[str], n: int, name: str) -> None:
    if len(ids) != n:
        raise InputError(f"{name} must have one for each of {n}, got {len(ids)}")
    if twice := [one for one, count in Counter(ids).items() if count > 1]:
        raise InputError(f"{name}: {len(twice)} occur more than once, such as {names(twice[:3])}")


def _write(file: Path, lines: Iterable[Sequence[str]]) -> Path:
    with replaced(file) as scratch, scratch.open("w", encoding="utf-8") as text:
        for words in lines:
            if broken := [word for word in words if word.split() != [word]]:
                raise InputError(
                    f"{file}: TREC files take no empty names and no white space in them, found {names(broken)}"
                )
            text.write(" ".join(words) + "\n")
    return file
