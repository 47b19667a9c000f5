"""Levels of relevance: 0 irrelevant, up to the highest, -1 not in the query's list. int8 tables of (Q, G)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.kernels.row_loops import fill_level_counts, fill_shared_levels
from sightline.kernels.threads import n_chunks, torch_threads

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
        raise InputError(f"labels of {labels.shape[1]} and {ref_labels.shape[1]} levels cannot be compared")
    shared = torch.empty(len(labels), len(ref_labels), dtype=torch.int8, device=labels.device)
    if labels.device.type == "cpu":
        columns = labels.T.contiguous().numpy()
        ref_columns = columns if ref_labels is labels else ref_labels.T.contiguous().numpy()
        with torch_threads():
            fill_shared_levels(columns, ref_columns, n_chunks(len(labels)), shared.numpy())
        return shared
    matching = torch.ones_like(shared, dtype=torch.bool)
    shared.zero_()
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
    return shared if known.all() else shared.minimum(known.cumprod(1).sum(1).to(torch.int8)[:, None])


def level_counts(levels: Tensor, n_levels: int) -> Tensor:
    """(Q, M) int64: how many items of each level 0 to ``n_levels`` each row of (Q, G) levels has; -1 is not counted.

    Example:
        >>> level_counts(torch.tensor([[2, 0, -1, 0]], dtype=torch.int8), n_levels=2)
        tensor([[2, 0, 1]])
    """
    counts = torch.empty(len(levels), n_levels + 1, dtype=torch.int64, device=levels.device)
    if levels.device.type == "cpu":
        with torch_threads():
            fill_level_counts(levels.contiguous().numpy(), n_chunks(len(levels)), counts.numpy())
        return counts
    for level in range(n_levels + 1):
        counts[:, level] = (levels == level).sum(1)
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
        raise InputError("relevance: finite numbers from 0 on are needed")
    ascending, order = F.pad(relevance, (1, 0)).sort(1)  # a 0 for level 0
    places = (ascending[:, 1:] > ascending[:, :-1]).cumsum(1)
    n_levels = int(places.max()) if places.numel() else 0
    if n_levels > MOST_LEVELS:
        raise InputError(
            f"a query's list has {n_levels} grades of relevance, at most {MOST_LEVELS} are supported: round them to fewer"
        )
    places = F.pad(places, (1, 0))
    worth = torch.zeros(len(relevance), n_levels + 1, dtype=torch.float64, device=relevance.device)
    worth.scatter_(1, places, ascending.double())  # what falls together is equal
    levels = torch.empty_like(places).scatter_(1, order, places)[:, 1:]
    return levels.to(torch.int8).masked_fill(~mask, -1), worth
