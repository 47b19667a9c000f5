"""Labels, flat, in levels or in sets, to levels of relevance; and which pairs count.

Levels are int8 tables of (Q, G): 0 irrelevant, up to the highest, -1 not in the query's list.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.kernels.row_loops import fill_level_counts, fill_shared_levels, is_looped, run_in_torch_threads
from sightline.ranking.ranks import check_pairs
from sightline.ranking.similarity import check_vectors, cosine_scores

MOST_LEVELS = 126  # of int8, one of whose values a compiled kernel needs


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
        raise InputError(
            f"labels must have as many levels on both sides, got {labels.shape[1]} and {ref_labels.shape[1]} levels"
        )
    shared = torch.zeros(len(labels), len(ref_labels), dtype=torch.int8, device=labels.device)
    if is_looped(labels):
        columns, ref_columns = (table.T.contiguous().numpy() for table in (labels, ref_labels))
        run_in_torch_threads(fill_shared_levels, columns, ref_columns, shared.numpy())
        return shared
    matching = torch.ones_like(shared, dtype=torch.bool)
    for level in reversed(range(labels.shape[1])):
        matching &= labels[:, level, None] == ref_labels[None, :, level]
        shared += matching
    return shared


def shared_known_levels(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """:func:`shared_levels`, where a label of -1, which is none, is shared by nobody, nor is any finer one.

    Example:
        >>> labels = torch.tensor([[7, 1], [-1, 1], [-1, 1]])
        >>> shared_known_levels(labels, labels)
        tensor([[2, 1, 1],
                [1, 1, 1],
                [1, 1, 1]], dtype=torch.int8)
    """
    shared, known = shared_levels(labels, ref_labels), labels.flip(1) != -1
    if is_looped(labels) and known.all():
        return shared
    return shared.minimum(known.cumprod(1).sum(1).to(torch.int8)[:, None])


def level_counts(levels: Tensor, n_levels: int) -> Tensor:
    """(Q, M) int64: how many items of each level 0 to ``n_levels`` each row of (Q, G) levels has; -1 is not counted.

    Example:
        >>> level_counts(torch.tensor([[2, 0, -1, 0]], dtype=torch.int8), n_levels=2)
        tensor([[2, 0, 1]])
    """
    if not is_looped(levels):
        return torch.stack([(levels == level).sum(1) for level in range(n_levels + 1)], 1)
    counts = torch.empty(len(levels), n_levels + 1, dtype=torch.int64)
    run_in_torch_threads(fill_level_counts, levels.contiguous().numpy(), counts.numpy())
    return counts


def flat_levels(relevant: Tensor, mask: Tensor) -> Tensor:
    """(Q, G) int8: 1 relevant, 0 not, -1 not in the list; from (Q, G) bool."""
    return (relevant & mask).view(torch.int8) + mask.view(torch.int8) - 1


def graded_levels(relevance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Any relevance from 0 on as levels: the distinct values of each row in order.

    Returns:
        (Q, G) int8 levels, 0 where relevance is 0 and -1 outside the mask; and (Q, M) float64, the relevance of each level,
        0 beyond a row's own.

    Example:
        >>> graded_levels(torch.tensor([[0.5, 0.0, 0.2], [0.1, 0.1, 0.0]]), torch.ones(2, 3, dtype=torch.bool))[0]
        tensor([[2, 0, 1],
                [1, 1, 0]], dtype=torch.int8)
    """
    relevance = relevance.masked_fill(~mask, 0)
    if not (relevance >= 0).all() or not relevance.isfinite().all():
        raise InputError("relevance must be finite and at least 0")
    ascending, order = F.pad(relevance, (1, 0)).sort(1)  # a 0 for level 0
    places = (ascending[:, 1:] > ascending[:, :-1]).cumsum(1)
    n_levels = int(places.max()) if places.numel() else 0
    if n_levels > MOST_LEVELS:
        raise InputError(
            f"relevance must have at most {MOST_LEVELS} different values in a row, got {n_levels}; round them to fewer"
        )
    places = F.pad(places, (1, 0))
    worth = torch.zeros(len(relevance), n_levels + 1, dtype=torch.float64, device=relevance.device)
    worth.scatter_(1, places, ascending.double())  # what falls together is equal
    levels = torch.empty_like(places).scatter_(1, order, places)[:, 1:]
    return levels.to(torch.int8).masked_fill(~mask, -1), worth


class GradedSets(NamedTuple):
    """In place of labels, for items with several labels of a tree: what they have, and what each is worth to each query.

    Attributes:
        worth: (Q, G) from 0 on, what each item is worth to each query; 0 is irrelevant.
        sets: for each level, finest first, the (Q, C) bool labels of each query.
        ref_sets: for each level, the (G, C) bool labels of each item.
        level: where all that counts is whether an item is relevant, one shared label of this level makes it so.
    """

    worth: Tensor
    sets: Sequence[Tensor]
    ref_sets: Sequence[Tensor]
    level: int = 0

    @property
    def own(self) -> Tensor:
        """(Q, C) bool, the labels of each query at the level."""
        return self.sets[self.level]

    @property
    def relevant(self) -> Tensor:
        """(Q, G) bool, True where query and item share a label of the level."""
        return self.own.float() @ self.ref_sets[self.level].float().T > 0


class Pairs(NamedTuple):
    """What a ranking loss works on: one row a query, one column an item of its list.

    Attributes:
        scores: (Q, G) similarity.
        levels: (Q, G) int8: 0 nothing in common, more for more, -1 not in the query's list.
        n_levels: the highest level there can be.
        relevant_from: the level from which on an item is relevant where that is all that counts.
        worth: (Q, M) float64, the relevance of each level 0 to ``n_levels`` where the labels say it; None where they are
            levels of a tree.
        shared: (Q, G) bool, which items are relevant where that is all that counts, if their level does not say it.
    """

    scores: Tensor
    levels: Tensor
    n_levels: int
    relevant_from: int
    worth: Tensor | None = None
    shared: Tensor | None = None

    @classmethod
    def of_worth(cls, scores: Tensor, levels: Tensor, worth: Tensor) -> "Pairs":
        """Pairs whose levels are worth what the (Q, M) table says."""
        return cls(scores, levels, worth.shape[1] - 1, 1, worth)

    @property
    def mask(self) -> Tensor:
        """(Q, G) bool, True where the item is in the query's list."""
        return self.levels >= 0

    @property
    def relevant(self) -> Tensor:
        """(Q, G) bool, True where the item answers the query: of a tree, where they share the finest label."""
        return self.levels >= self.relevant_from if self.shared is None else self.shared & self.mask

    @property
    def flat(self) -> Tensor:
        """(Q, G) int8: 1 relevant, 0 not, -1 not in the list."""
        return self.levels if self.n_levels == 1 and self.shared is None else flat_levels(self.relevant, self.mask)


def as_tensor(values: object, name: str, device: torch.device | None = None) -> Tensor:
    """Labels, relevance or a mask, from a tensor, a numpy array or a list, as a tensor on the device.

    Example:
        >>> as_tensor([[7, 1], [8, 1]], "labels").dtype
        torch.int64
    """
    if isinstance(values, Tensor):
        return values if device is None else values.to(device)
    try:
        return torch.as_tensor(np.array(values), device=device)  # a copy: torch warns of arrays that cannot be written to
    except (TypeError, ValueError) as error:
        found = f"{type(values).__name__} ({str(error).partition('. ')[0]})"
        raise InputError(f"{name} must be numbers in a tensor, an array or a list, got {found}") from error


def check_labels(labels: object, n_items: int, name: str) -> Tensor:
    """The labels as an int64 (N, L) table, finest level first.

    Args:
        labels: (N,) or (N, L) of an integer type, L up to ``MOST_LEVELS``: a class number that went through a float is
            refused.
        n_items: N, as the vectors have it.
        name: their name in the message.
    """
    if isinstance(labels, GradedSets):
        raise InputError(f"{name} must be classes, one an item; this loss or option takes no items with several codes")
    labels = as_tensor(labels, name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{name} must be of an integer type, got {labels.dtype}")
    if labels.ndim not in (1, 2) or labels.shape[0] != n_items or (labels.ndim == 2 and labels.shape[1] == 0):
        raise InputError(f"{name} must have shape ({n_items},) or ({n_items}, L), got {tuple(labels.shape)}")
    if labels.ndim == 2 and labels.shape[1] > MOST_LEVELS:
        raise InputError(
            f"{name} must have at most {MOST_LEVELS} levels, got {labels.shape[1]} columns; give sets of labels as bool"
        )
    return labels.long() if labels.ndim == 2 else labels.long()[:, None]


def table_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, n_levels: int | None = None) -> Pairs:
    """Pairs of given scores and relevance.

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
        return Pairs.of_worth(scores, *graded_levels(relevance, mask))
    shared = relevance.masked_fill(~mask, 0)
    least, most = (int(end) for end in shared.aminmax()) if shared.numel() else (0, 0)
    n_levels = max(1, most) if n_levels is None else n_levels
    if least < 0 or not most <= n_levels <= MOST_LEVELS:
        raise InputError(f"relevance in shared levels must be 0 to {min(n_levels, MOST_LEVELS)}, got {least} to {most}")
    return Pairs(scores, relevance.to(torch.int8).masked_fill(~mask, -1), n_levels, n_levels)


def batch_pairs(
    embeddings: Tensor,
    labels: Tensor | GradedSets,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    include_self: bool = False,
) -> Pairs:
    """Every item of the batch as a query against the rest of the batch, or against a reference set.

    A query never meets itself: it is left out by position where the reference set is the batch, as it is without one or
    where ``ref_emb`` is the very tensor ``embeddings``, with the same labels; and where a longer reference set begins with
    the batch. Items of a separate reference set all count.

    Args:
        embeddings: (B, D), of any length; scores are cosines.
        labels: what the items are, by type. Integers, (B,) or (B, L): classes, or levels of a tree, finest first; -1 is no
            label, and shared by none. Bool, (B, C): sets of labels; an item is relevant if it shares one, and worth the
            share of the query's labels it has. Floating point, (B, G): the relevance of each item of the list itself, 0
            for irrelevant. :class:`GradedSets` say all of both sides.
        ref_emb: (G, D) items to rank instead of the batch.
        ref_labels: as ``labels``, (G,), (G, L) or (G, C); given exactly when ``ref_emb`` is, unless ``labels`` says all.
        include_self: keep the query in its own list, as the first and most relevant item, as some public code does.
    """
    check_vectors(embeddings=embeddings, **({} if ref_emb is None else {"ref_emb": ref_emb}))
    if isinstance(labels, GradedSets):
        return _of_sets(embeddings, labels, ref_emb, include_self)
    is_relevance = labels.is_floating_point() and labels.ndim == 2
    if (ref_emb is None) != (ref_labels is None) and not (is_relevance and ref_labels is None):
        raise InputError("ref_emb and ref_labels must be given together")
    items = embeddings if ref_emb is None else ref_emb
    item_labels = labels if ref_labels is None else ref_labels
    n_queries, n_items = len(embeddings), len(items)
    worth = None
    if is_relevance:
        if labels.shape != (n_queries, n_items):
            raise InputError(f"labels as relevance must be ({n_queries}, {n_items}), got {tuple(labels.shape)}")
        levels, worth = graded_levels(labels, torch.ones_like(labels, dtype=torch.bool))
    elif labels.dtype == torch.bool and labels.ndim == 2:
        levels, worth = _shared_labels(labels, item_labels, n_queries, n_items)
    else:
        table = check_labels(labels, n_queries, "labels")
        levels = shared_known_levels(table, check_labels(item_labels, n_items, "ref_labels"))
    may_begin = items is embeddings or (n_items > n_queries and not is_relevance)
    if not include_self and may_begin:
        levels.diagonal().masked_fill_(_begins_with(items, item_labels, embeddings, labels), -1)
    scores = cosine_scores(embeddings, items)
    if worth is not None:
        return Pairs.of_worth(scores, levels, worth)
    return Pairs(scores, levels, table.shape[1], table.shape[1])


def _of_sets(embeddings: Tensor, labels: GradedSets, ref_emb: Tensor | None, include_self: bool) -> Pairs:
    """:func:`batch_pairs` of items with several labels of a tree."""
    items = embeddings if ref_emb is None else ref_emb
    if labels.worth.shape != (len(embeddings), len(items)):
        raise InputError(f"worth must be ({len(embeddings)}, {len(items)}), got {tuple(labels.worth.shape)}")
    levels, worth = graded_levels(labels.worth, torch.ones_like(labels.worth, dtype=torch.bool))
    if not include_self and (items is embeddings or len(items) > len(embeddings)):
        begins = _begins_with(items, labels.ref_sets[0], embeddings, labels.sets[0])
        levels.diagonal().masked_fill_(begins, -1)
    pairs = Pairs.of_worth(cosine_scores(embeddings, items), levels, worth)
    return pairs._replace(shared=labels.relevant)


def only_chosen(pairs: Pairs, indices_tuple: Sequence[object]) -> Pairs:
    """Pairs of classes of which a miner chose some: the chosen positives are relevant, the chosen negatives are not.

    What was not chosen is in nobody's list; a pair that was chosen twice is in it once.

    Args:
        pairs: of :func:`batch_pairs`.
        indices_tuple: as pytorch-metric-learning's miners return it: (anchors, positives, anchors, negatives) or
            (anchors, positives, negatives), rows and columns of the scores.
    """
    if pairs.n_levels != 1 or pairs.worth is not None:
        raise InputError("indices_tuple needs classes: labels of shape (B,), not levels, sets or a relevance matrix")
    chosen = check_indices(indices_tuple, *pairs.scores.shape)
    anchors, positives, other_anchors, negatives = chosen if len(chosen) == 4 else (*chosen[:2], chosen[0], chosen[2])
    levels = torch.full_like(pairs.levels, -1)
    levels[other_anchors, negatives] = 0
    levels[anchors, positives] = 1
    return Pairs(pairs.scores, levels, 1, 1)


def check_indices(indices_tuple: Sequence[object], n_queries: int, n_items: int) -> list[Tensor]:
    """Three or four int64 tensors; refused where they are not indices of queries and items, in pairs or triplets."""
    parts = [as_tensor(part, "indices_tuple") for part in indices_tuple]
    fit = len(parts) in (3, 4) and all(part.ndim == 1 and not part.is_floating_point() for part in parts)
    sizes = [len(part) for part in parts] if fit else []
    if not fit or sizes[0] != sizes[1] or sizes[-2] != sizes[-1]:
        raise InputError(
            "indices_tuple must be (anchors, positives, anchors, negatives) or (anchors, positives, negatives), "
            f"integers of equal length, got shapes {[tuple(part.shape) for part in parts]}"
        )
    limits = [n_queries, n_items, n_queries, n_items] if len(parts) == 4 else [n_queries, n_items, n_items]
    if any(
        len(part) and not 0 <= int(part.min()) <= int(part.max()) < most for part, most in zip(parts, limits, strict=True)
    ):
        raise InputError(f"indices_tuple must index {n_queries} queries and {n_items} items; some indices are outside")
    return [part.long() for part in parts]


def _begins_with(items: Tensor, item_labels: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
    """() bool: whether the first items are those of the batch, with the same labels; a tensor, as a GPU is not to wait."""
    begins = torch.ones((), dtype=torch.bool, device=embeddings.device)
    for ours, theirs in ((embeddings, items), (labels, item_labels)):
        if ours is not theirs:
            first = theirs[: len(ours)]
            if first.shape != ours.shape or first.dtype != ours.dtype:
                return ~begins
            begins = begins & (first.detach() == ours.detach()).all()
    return begins


def check_sets(sets: Tensor, ref_sets: Tensor, n_queries: int, n_items: int) -> None:
    """Refuse anything but (Q, C) and (G, C) bool, the labels of each query and of each item."""
    fit = sets.ndim == ref_sets.ndim == 2 and sets.dtype == ref_sets.dtype == torch.bool
    if not fit or (len(sets), len(ref_sets), sets.shape[1]) != (n_queries, n_items, ref_sets.shape[1]):
        found = f"{sets.dtype} {tuple(sets.shape)} and {ref_sets.dtype} {tuple(ref_sets.shape)}"
        raise InputError(f"labels as sets must be bool, ({n_queries}, C) and ({n_items}, C), got {found}")


def _shared_labels(sets: Tensor, ref_sets: Tensor, n_queries: int, n_items: int) -> tuple[Tensor, Tensor]:
    """(Q, G) int8 how many labels each pair shares, and (Q, M) what share of the query's labels that is."""
    check_sets(sets, ref_sets, n_queries, n_items)
    n_labels = sets.sum(1)
    n_levels = max(1, int(n_labels.max()) if len(sets) else 1)
    if n_levels > MOST_LEVELS:
        raise InputError(f"labels must have at most {MOST_LEVELS} labels an item, got {n_levels}")
    shared = (sets.float() @ ref_sets.float().T).to(torch.int8)
    each = torch.arange(n_levels + 1, dtype=torch.float64, device=sets.device)
    return shared, each / n_labels[:, None].clamp(min=1)
