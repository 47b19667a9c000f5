"""Who queries whom, which pairs are left out, and the metrics of the rankings that follow."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sightline.embedding.table import EmbeddingTable
from sightline.errors import InputError
from sightline.evaluation.metrics import average_precision, map_at_r, recall_at_k
from sightline.evaluation.result import Result
from sightline.ranking.relevance import check_labels, shared_levels
from sightline.ranking.similarity import check_vectors, score_blocks

DEFAULT_KS = (1, 2, 4, 8)
BLOCK_ELEMENTS = 1 << 22  # scores held at once; a ranking takes about 50 bytes for each


def evaluate(
    vectors: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    ks: Sequence[int] = DEFAULT_KS,
) -> Result:
    """Rank the gallery for every query by cosine and measure the rankings.

    Without a gallery every item queries the others, itself left out by its place. Equal scores count against the query:
    irrelevant items first. Queries without a relevant item are left out of the means and counted in the result. Works in
    blocks of queries.

    Args:
        vectors: (Q, D) of the queries, of any length.
        labels: (Q,) or (Q, L) whole numbers, finest level first; an item is relevant if it shares them all.
        gallery: (G, D) items to rank instead.
        gallery_labels: (G,) or (G, L), given exactly when ``gallery`` is.
        ks: places for ``recall@k``.

    Returns:
        ``recall@k`` for each k, ``map@r`` and ``map``.

    Example:
        >>> result = evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [0, 0, 1])
        >>> result["recall@1"], result.n_skipped
        (1.0, 1)
    """
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels go together: one was given without the other")
    queries, query_labels = _checked(vectors, labels, "vectors", "labels")
    if gallery is None or gallery_labels is None:
        return _evaluate(queries, query_labels, queries, query_labels, torch.arange(len(queries)), ks)
    items, item_labels = _checked(gallery, gallery_labels, "gallery", "gallery_labels")
    return _evaluate(queries, query_labels, items, item_labels, torch.full((len(queries),), -1), ks)


def _evaluate(
    queries: Tensor, query_labels: Tensor, items: Tensor, item_labels: Tensor, own: Tensor, ks: Sequence[int]
) -> Result:
    if queries.shape[1] != items.shape[1]:
        raise InputError(f"vectors have {queries.shape[1]} dimensions, the gallery {items.shape[1]}")
    if not ks or min(ks) < 1:
        raise InputError(f"ks are {list(ks)}; places from 1 on are needed")
    ks, own = list(dict.fromkeys(ks)), own.to(queries.device)
    values: dict[str, list[Tensor]] = {name: [] for name in metric_names(ks)}
    for rows, scores in score_blocks(queries, items, BLOCK_ELEMENTS):
        relevant = shared_levels(query_labels[rows], item_labels) == query_labels.shape[1]
        ranked, n_relevant = rank_lists(scores, relevant, own[rows])
        for k in ks:
            values[f"recall@{k}"].append(recall_at_k(ranked, n_relevant, k))
        values["map@r"].append(map_at_r(ranked, n_relevant))
        values["map"].append(average_precision(ranked, n_relevant))
    per_query = {name: torch.cat(parts).cpu().numpy() for name, parts in values.items() if parts}
    if not per_query or np.isnan(per_query["map"]).all():
        raise InputError(f"none of the {len(queries)} queries has a relevant item: no two labels agree")
    return Result(per_query)


def metric_names(ks: Sequence[int] = DEFAULT_KS) -> list[str]:
    """The metrics :func:`evaluate` gives for these places.

    Example:
        >>> metric_names([1, 10])
        ['recall@1', 'recall@10', 'map@r', 'map']
    """
    return [*(f"recall@{k}" for k in ks), "map@r", "map"]


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
    # An irrelevant item after all others changes no metric.
    itself = torch.arange(scores.shape[1], device=scores.device) == own[:, None]
    scores, relevant = scores.masked_fill(itself, -torch.inf), relevant & ~itself
    irrelevant_first = relevant.byte().argsort(dim=1, stable=True)
    order = scores.gather(1, irrelevant_first).argsort(dim=1, descending=True, stable=True)
    return relevant.gather(1, irrelevant_first.gather(1, order)), relevant.sum(1)


def evaluate_table(table: EmbeddingTable, ks: Sequence[int] = DEFAULT_KS) -> Result:
    """:func:`evaluate` on an embedding table.

    Where it says which images are queries or gallery (``is_query``, ``is_gallery``; empty means neither), the queries rank
    the gallery, an image that is both never itself; otherwise every image queries the others.
    """
    if not table.manifest.n_levels:
        raise InputError(f"{table.manifest.source}: its images have no labels to evaluate by")
    vectors, labels = _checked(table.vectors, table.manifest.labels(), str(table.manifest.source), "labels")
    rows = table.manifest.table
    is_query, is_gallery = (
        rows[role].fill_null(False).to_numpy() if role in rows.columns and rows[role].count() else np.ones(len(rows), bool)
        for role in ("is_query", "is_gallery")
    )
    place = np.where(is_gallery, is_gallery.cumsum() - 1, -1)
    sides = (vectors[is_query], labels[is_query], vectors[is_gallery], labels[is_gallery])
    return _evaluate(*sides, torch.from_numpy(place[is_query]), ks)


def _checked(vectors: ArrayLike | Tensor, labels: ArrayLike | Tensor, name: str, label_name: str) -> tuple[Tensor, Tensor]:
    table = _as_tensor(vectors, name)
    check_vectors(table, name)
    return table, check_labels(_as_tensor(labels, label_name).to(table.device), len(table), label_name)


def _as_tensor(values: ArrayLike | Tensor, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:  # torch has no read-only tensors and none that run backwards: such arrays are copied
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: not a table of numbers: {error}") from error
