"""Labels, flat or in levels, to a relevance matrix; and which pairs count."""

from typing import NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.similarity import check_vectors, cosine_scores


class Pairs(NamedTuple):
    """What a ranking loss works on: one row a query, one column an item of its list.

    Attributes:
        scores: (Q, G) similarity.
        levels: (Q, G) int8, how many label levels the pair shares; 0 means nothing in common.
        mask: (Q, G) bool, True where the item is in the query's list.
        n_levels: the level of a pair with the same finest label.
    """

    scores: Tensor
    levels: Tensor
    mask: Tensor
    n_levels: int

    @property
    def relevant(self) -> Tensor:
        """(Q, G) bool, True where query and item share the finest label."""
        return self.levels == self.n_levels


def check_labels(labels: Tensor, n_items: int, name: str) -> Tensor:
    """The labels as an int64 (N, L) table, finest level first.

    Args:
        labels: (N,) or (N, L) of an integer type: a class number that went through a float is refused.
        n_items: N, as the vectors have it.
        name: what the caller's user knows them by.
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{name}: whole numbers are needed, found {labels.dtype}")
    if labels.ndim not in (1, 2) or labels.shape[0] != n_items or (labels.ndim == 2 and labels.shape[1] == 0):
        raise InputError(f"{name}: ({n_items},) or ({n_items}, L) is needed, found {tuple(labels.shape)}")
    return labels.long() if labels.ndim == 2 else labels.long()[:, None]


def shared_levels(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """How many levels each pair shares, counted from the coarsest for as long as they match.

    A fine label that recurs below two parents is thus not the same class.

    Args:
        labels: (Q, L) int64, column 0 the finest level.
        ref_labels: (G, L) int64.

    Returns:
        (Q, G) int8 in [0, L].

    Example:
        >>> shared_levels(torch.tensor([[7, 1]]), torch.tensor([[7, 1], [8, 1], [7, 2]]))
        tensor([[2, 1, 0]], dtype=torch.int8)
    """
    if labels.shape[1] != ref_labels.shape[1]:
        raise InputError(f"labels of {labels.shape[1]} and {ref_labels.shape[1]} levels cannot be compared")
    shared = torch.zeros(len(labels), len(ref_labels), dtype=torch.int8, device=labels.device)
    matching = torch.ones_like(shared, dtype=torch.bool)
    for level in reversed(range(labels.shape[1])):
        matching &= labels[:, level, None] == ref_labels[None, :, level]
        shared += matching
    return shared


def batch_pairs(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
) -> Pairs:
    """Every item of the batch as a query against the rest of the batch, or against a reference set.

    A query never meets itself: it is left out by position where the reference set is the batch. Items of a separate
    reference set all count.

    Args:
        embeddings: (B, D), of any length; scores are cosines.
        labels: (B,) or (B, L) integers, finest level first.
        ref_emb: (G, D) items to rank instead of the batch.
        ref_labels: (G,) or (G, L), given exactly when ``ref_emb`` is.
    """
    check_vectors(embeddings, "embeddings")
    labels = check_labels(labels, len(embeddings), "labels")
    if (ref_emb is None) != (ref_labels is None):
        raise InputError("ref_emb and ref_labels go together: one was given without the other")
    if ref_emb is None or ref_labels is None:
        mask = ~torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
        return Pairs(cosine_scores(embeddings, embeddings), shared_levels(labels, labels), mask, labels.shape[1])
    check_vectors(ref_emb, "ref_emb")
    ref_labels = check_labels(ref_labels, len(ref_emb), "ref_labels")
    levels = shared_levels(labels, ref_labels)
    return Pairs(cosine_scores(embeddings, ref_emb), levels, torch.ones_like(levels, dtype=torch.bool), labels.shape[1])
