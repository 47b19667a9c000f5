"""Labels, flat, in levels or in sets, to levels of relevance; and which pairs count."""

from typing import NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.levels import MOST_LEVELS, flat_levels, graded_levels, shared_known_levels
from sightline.ranking.ranks import check_pairs
from sightline.ranking.similarity import check_vectors, cosine_scores


class Pairs(NamedTuple):
    """What a ranking loss works on: one row a query, one column an item of its list.

    Attributes:
        scores: (Q, G) similarity.
        levels: (Q, G) int8: 0 nothing in common, more for more, -1 not in the query's list.
        n_levels: the highest level there can be.
        relevant_from: the level from which on an item is relevant where that is all that counts.
        worth: (Q, M) float64, the relevance of each level 0 to ``n_levels`` where the labels say it; None where they are
            levels of a tree.
    """

    scores: Tensor
    levels: Tensor
    n_levels: int
    relevant_from: int
    worth: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """(Q, G) bool, True where the item is in the query's list."""
        return self.levels >= 0

    @property
    def relevant(self) -> Tensor:
        """(Q, G) bool, True where the item answers the query: of a tree, where they share the finest label."""
        return self.levels >= self.relevant_from

    @property
    def flat(self) -> Tensor:
        """(Q, G) int8: 1 relevant, 0 not, -1 not in the list."""
        return self.levels if self.n_levels == 1 else flat_levels(self.relevant, self.mask)


def check_labels(labels: Tensor, n_items: int, name: str) -> Tensor:
    """The labels as an int64 (N, L) table, finest level first.

    Args:
        labels: (N,) or (N, L) of an integer type, L up to ``MOST_LEVELS``: a class number that went through a float is
            refused.
        n_items: N, as the vectors have it.
        name: what the caller's user knows them by.
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{name}: whole numbers are needed, found {labels.dtype}")
    if labels.ndim not in (1, 2) or labels.shape[0] != n_items or (labels.ndim == 2 and labels.shape[1] == 0):
        raise InputError(f"{name}: ({n_items},) or ({n_items}, L) is needed, found {tuple(labels.shape)}")
    if labels.ndim == 2 and labels.shape[1] > MOST_LEVELS:
        raise InputError(
            f"{name}: at most {MOST_LEVELS} levels are supported, found {labels.shape[1]} columns; sets of labels are bool"
        )
    return labels.long() if labels.ndim == 2 else labels.long()[:, None]


def table_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, n_levels: int | None = None) -> Pairs:
    """Scores at hand, with the relevance of each pair.

    Args:
        scores: (Q, G).
        relevance: (Q, G), by type. Bool: relevant or not. Integers: how many label levels the two share. Floating point:
            what the item is worth, 0 for irrelevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        n_levels: the label levels there are; None for the most that a pair shares.
    """
    scores, mask = check_pairs(scores, relevance, mask)
    if relevance.dtype == torch.bool:
        return Pairs(scores, flat_levels(relevance, mask), 1, 1)
    if relevance.is_floating_point():
        levels, worth = graded_levels(relevance, mask)
        return Pairs(scores, levels, worth.shape[1] - 1, 1, worth)
    shared = relevance.masked_fill(~mask, 0)
    least, most = (int(end) for end in shared.aminmax()) if shared.numel() else (0, 0)
    n_levels = max(1, most) if n_levels is None else n_levels
    if least < 0 or not most <= n_levels <= MOST_LEVELS:
        raise InputError(f"relevance: shared label levels are 0 to {min(n_levels, MOST_LEVELS)}, found others")
    return Pairs(scores, relevance.to(torch.int8).masked_fill(~mask, -1), n_levels, n_levels)


def batch_pairs(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    include_self: bool = False,
) -> Pairs:
    """Every item of the batch as a query against the rest of the batch, or against a reference set.

    A query never meets itself: it is left out by position where the reference set is the batch, as it is without one or
    where ``ref_emb`` is the very tensor ``embeddings``, with the same labels. Items of a separate reference set all count.

    Args:
        embeddings: (B, D), of any length; scores are cosines.
        labels: what the items are, by type. Integers, (B,) or (B, L): classes, or levels of a tree, finest first; -1 is no
            label, and shared by none. Bool, (B, C): sets of labels; an item is relevant if it shares one, and worth the
            share of the query's labels it has. Floating point, (B, G): the relevance of each item of the list itself, 0
            for irrelevant.
        ref_emb: (G, D) items to rank instead of the batch.
        ref_labels: as ``labels``, (G,), (G, L) or (G, C); given exactly when ``ref_emb`` is, unless ``labels`` says all.
        include_self: keep the query in its own list, as the first and most relevant item, as some public code does.
    """
    check_vectors(embeddings, "embeddings")
    if ref_emb is not None:
        check_vectors(ref_emb, "ref_emb")
    relevance_given = labels.is_floating_point() and labels.ndim == 2
    if (ref_emb is None) != (ref_labels is None) and not (relevance_given and ref_labels is None):
        raise InputError("ref_emb and ref_labels go together: one was given without the other")
    if ref_emb is embeddings and _same(labels, ref_labels):
        ref_emb = ref_labels = None
    n_items = len(embeddings if ref_emb is None else ref_emb)
    worth = None
    if relevance_given:
        if labels.shape != (len(embeddings), n_items):
            raise InputError(f"labels: relevance of ({len(embeddings)}, {n_items}) is needed, found {tuple(labels.shape)}")
        levels, worth = graded_levels(labels, torch.ones_like(labels, dtype=torch.bool))
        n_levels, relevant_from = worth.shape[1] - 1, 1
    elif labels.dtype == torch.bool and labels.ndim == 2:
        levels, worth = _shared_labels(labels, labels if ref_labels is None else ref_labels, len(embeddings), n_items)
        n_levels, relevant_from = worth.shape[1] - 1, 1
    else:
        table = check_labels(labels, len(embeddings), "labels")
        others = table if ref_labels is None else check_labels(ref_labels, n_items, "ref_labels")
        levels, n_levels = shared_known_levels(table, others), table.shape[1]
        relevant_from = n_levels
    if ref_emb is None and not include_self:
        levels.fill_diagonal_(-1)
    scores = cosine_scores(embeddings, embeddings if ref_emb is None else ref_emb)
    return Pairs(scores, levels, n_levels, relevant_from, worth)


def _same(labels: Tensor, ref_labels: Tensor | None) -> bool:
    """Whether labels of a reference set are those of the batch; None, beside a relevance matrix, is as good."""
    return ref_labels is None or (labels.dtype == ref_labels.dtype and torch.equal(labels, ref_labels))


def check_sets(sets: Tensor, ref_sets: Tensor, n_queries: int, n_items: int) -> None:
    """Refuse anything but (Q, C) and (G, C) bool, the labels of each query and of each item."""
    if sets.dtype != torch.bool or sets.ndim != 2:
        raise InputError(f"labels: ({n_queries}, C) bool is needed, found {sets.dtype} {tuple(sets.shape)}")
    if ref_sets.dtype != torch.bool or ref_sets.ndim != 2 or ref_sets.shape[1] != sets.shape[1]:
        raise InputError(f"ref_labels: label sets of {sets.shape[1]} labels are needed, found {tuple(ref_sets.shape)}")
    if len(sets) != n_queries or len(ref_sets) != n_items:
        raise InputError(
            f"labels: sets of {n_queries} and {n_items} items are needed, found {len(sets)} and {len(ref_sets)}"
        )


def _shared_labels(sets: Tensor, ref_sets: Tensor, n_queries: int, n_items: int) -> tuple[Tensor, Tensor]:
    """(Q, G) int8 how many labels each pair shares, and (Q, M) what share of the query's labels that is."""
    check_sets(sets, ref_sets, n_queries, n_items)
    n_labels = sets.sum(1)
    n_levels = max(1, int(n_labels.max()) if len(sets) else 1)
    if n_levels > MOST_LEVELS:
        raise InputError(f"labels: an item has {n_levels} labels, at most {MOST_LEVELS} are supported")
    shared = (sets.float() @ ref_sets.float().T).to(torch.int8)
    each = torch.arange(n_levels + 1, dtype=torch.float64, device=sets.device)
    return shared, each / n_labels[:, None].clamp(min=1)
