"""Ranks of a query's relevant items, and the losses that are functions of them.

The one core of every ranking loss: what a loss adds is a formula on a :class:`RankProfile`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from sightline.errors import InputError
from sightline.kernels.blocks import BlockCounts, PairCounts, packed, rows_at_once
from sightline.kernels.row_loops import is_looped, n_chunks, run_in_torch_threads
from sightline.kernels.sorted_rows import MOST_ITEMS, room, smooth_count_gradient, smooth_count_rows
from sightline.ranking.pairs import MOST_LEVELS
from sightline.ranking.ranks import SigmoidStep, SupStep, exact_counts, smooth_counts

BLOCK_ELEMENTS = 1 << 19  # of (rows, P, levels) and (rows, G) tables held at once: 2 MB each
FEW_TARGETS = 32  # of every row: up to so many, all pairs are about as quick as blocks of a sorted row


class RankProfile(NamedTuple):
    """For each relevant item (target) of each query, in any order, how many items stand above it.

    Attributes:
        rows: which queries these are.
        valid: (Q, P) bool; queries have different numbers of targets.
        level: (Q, P) int64, the target's own level, from 1; 1 in the padding.
        above: (Q, P) items of the target's own level or a higher one that score at least as much, itself included.
        graded: (Q, P) the sum over items that score at least as much of the smaller of the two worths, itself included; 0
            where no worth was given.
        smooth: the items above with a smooth step, differentiable. With :class:`SigmoidStep` (Q, P, M), for each level, and
            the target counts itself with one half; with :class:`SupStep` (Q, P, 1), all levels below the target's own.
    """

    rows: slice
    valid: Tensor
    level: Tensor
    above: Tensor
    graded: Tensor
    smooth: Tensor

    def own(self, table: Tensor) -> Tensor:
        """(Q, P) entry of each target's own level in a (Q, M) table."""
        return table.gather(1, self.level)

    def share(self, total: Tensor | None = None) -> Tensor:
        """(Q, P) one over the (Q, 1) total, or over the number of targets; 0 in the padding."""
        at_target = self.valid.to(self.above)
        if total is None:
            return at_target / at_target.sum(1, keepdim=True).clamp_(min=1)
        return at_target / total.where(total > 0, 1)


Objective = Callable[[RankProfile], tuple[Tensor, Tensor]]  # (Q,) losses, and their slopes in ``smooth``


def mean_over_queries(losses: Tensor, n_relevant: Tensor) -> Tensor:
    """() mean of one loss a query over the queries that have a relevant item; 0, still differentiable, where none has."""
    return (losses * _shares(n_relevant, losses.dtype)).sum()


def _shares(n_relevant: Tensor, dtype: torch.dtype) -> Tensor:
    """(Q,) what each query weighs in the mean."""
    counted = (n_relevant > 0).to(dtype)
    return counted / counted.sum().clamp(min=1)


def rank_loss(
    scores: Tensor,
    levels: Tensor,
    counts: Tensor,
    step: SupStep | SigmoidStep,
    objective: Objective,
    worth: Tensor | None = None,
) -> Tensor:
    """A formula on the ranks of a query's relevant items, mean over the queries that have any.

    On a CPU in float32 the cost is that of a few passes over the scores, whatever the number of relevant items, and one
    more matrix of the scores' size is kept; see :mod:`sightline.kernels.sorted_rows`. On other devices in float32 it is
    more passes of the same kind: :mod:`sightline.kernels.blocks`; a GPU is waited for once, for the largest number of
    relevant items. In float64 every pair of a relevant item and another is evaluated, in blocks.

    Args:
        scores: (Q, G) similarity, finite.
        levels: (Q, G) int8: 0 irrelevant, up to M - 1 more and more relevant, -1 not in the query's list.
        counts: (Q, M) int64, how many items of each level a row has: :func:`~sightline.ranking.pairs.level_counts`.
        step: stands for the step function in the smooth counts. With :class:`SupStep` only levels below a target's own are
            counted smoothly.
        objective: a profile to (Q,) losses and how fast each rises with each entry of ``smooth``, in its shape; a query's
            loss depends on its own row alone.
        worth: (Q, M) in the type of the scores, the relevance of each level, for objectives that look at ``graded``.

    Returns:
        () differentiable in ``scores``; 0 where no query has a relevant item.
    """
    n_levels = counts.shape[1] - 1
    if n_levels > MOST_LEVELS:
        raise InputError(f"relevance must have at most {MOST_LEVELS} levels, got {n_levels}; round it to fewer")
    if n_levels == 0:  # nothing can be relevant
        return scores[:0].sum()  # not 0 times the sum, which may be infinite
    if is_looped(scores) and scores.dtype == torch.float32 and scores.shape[1] <= MOST_ITEMS:
        return _loss_of_sorted_rows(scores, levels, counts, step, objective, worth)
    if len(scores) and scores.dtype == torch.float32 and scores.device.type != "mps":  # which has no float64
        with torch.autocast(scores.device.type, enabled=False):
            return _loss_of_tables(scores, levels, counts, step, objective, worth)
    return _loss_of_all_pairs(scores, levels, counts, step, objective, worth)


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient in what it was computed from is known."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # Nothing is copied for a loss that is not part of a sum: one matrix less at the peak.
        alone = is_looped(gradient) and not torch.compiler.is_compiling() and gradients[0] == 1
        return gradient if alone else gradient * gradients[0], None, None


def with_gradient(given: Tensor, value: Tensor, gradient: Tensor | None) -> Tensor:
    """The () value, with this gradient in the tensor that it was computed from; None for no gradient."""
    if gradient is None:
        return value
    return _KnownGradient.apply(given, value, gradient)  # type: ignore[no-any-return, no-untyped-call]


def _loss_in_blocks(
    scores: Tensor,
    shares: Tensor,
    n_rows: int,
    counts_of: Callable[[slice], "_SortedCounts | PairCounts | BlockCounts"],
    objective: Objective,
) -> Tensor:
    """The loss and its gradient in one go, some rows at a time; the gradient is all that is kept."""
    needs_gradient = torch.is_grad_enabled() and scores.requires_grad
    gradient = torch.empty_like(scores, memory_format=torch.contiguous_format) if needs_gradient else None
    total = torch.zeros((), dtype=torch.float64, device=scores.device)
    with torch.no_grad():
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            found = counts_of(rows)
            losses, slopes = objective(RankProfile(rows, found.valid, found.level, found.above, found.graded, found.values))
            total += torch.dot(losses, shares[rows])
            if gradient is not None:
                found.fill_gradient(slopes * shares[rows, None, None], gradient[rows])
    return with_gradient(scores, total.to(scores.dtype), gradient)


def _loss_of_sorted_rows(
    scores: Tensor, levels: Tensor, counts: Tensor, step: SupStep | SigmoidStep, objective: Objective, worth: Tensor | None
) -> Tensor:
    """By the compiled kernels."""
    values, levels = scores.detach().contiguous(), levels.contiguous()
    table = scores.new_zeros(len(scores), 0) if worth is None else worth.contiguous()
    # Small tables in numpy: at a batch of 256 half of the time would go into calling torch.
    n_targets = counts.numpy()[:, 1:].sum(1)
    counted = n_targets > 0
    n_rows = max(1, BLOCK_ELEMENTS // max(1, n_targets.max(initial=0) * counts.shape[1], scores.shape[1]))
    return _loss_in_blocks(
        scores,
        torch.from_numpy((counted / max(1, counted.sum())).astype(np.float32)),
        n_rows,
        lambda rows: _SortedCounts(values[rows], levels[rows], counts[rows].numpy(), table[rows].numpy(), step),
        objective,
    )


def _loss_of_tables(
    scores: Tensor, levels: Tensor, counts: Tensor, step: SupStep | SigmoidStep, objective: Objective, worth: Tensor | None
) -> Tensor:
    """By whole-tensor operations on all pairs or on blocks of sorted rows, on any device."""
    values, sup, n_levels = scores.detach(), step if isinstance(step, SupStep) else None, counts.shape[1]
    n_targets = counts[:, 1:].sum(1)
    most = scores.shape[1] if torch.compiler.is_compiling() else int(n_targets.max())  # in a graph it cannot be asked
    few = most <= FEW_TARGETS
    n_rows = rows_at_once(scores, most, n_levels, few)

    def counts_of(rows: slice) -> PairCounts | BlockCounts:
        own_worth = None if worth is None else worth[rows]
        kind = PairCounts if few else BlockCounts
        return kind(values[rows], levels[rows], n_levels, most, step.tau, sup, own_worth)

    return _loss_in_blocks(scores, _shares(n_targets, scores.dtype), n_rows, counts_of, objective)


def _loss_of_all_pairs(
    scores: Tensor, levels: Tensor, counts: Tensor, step: SupStep | SigmoidStep, objective: Objective, worth: Tensor | None
) -> Tensor:
    """By every pair of a relevant item and another."""
    index, valid = packed(levels > 0)
    own, own_level = scores.gather(1, index), levels.long().gather(1, index).where(valid, 1)
    each = range(counts.shape[1])
    exact = torch.stack([exact_counts(scores, own, levels == level) for level in each], 2).to(scores.dtype)
    above = (exact * (torch.arange(len(each), device=exact.device) >= own_level[..., None])).sum(2)
    if isinstance(step, SupStep):
        lower = [smooth_counts(scores, own, (levels >= 0) & (levels < level), step) for level in each[1:]]
        smooth = torch.stack(lower, 2).gather(2, own_level[..., None] - 1)
    else:
        smooth = torch.stack([smooth_counts(scores, own, levels == level, step) for level in each], 2)
    graded = torch.zeros_like(above)
    if worth is not None:
        graded = (exact * torch.minimum(worth.gather(1, own_level)[..., None], worth[:, None])).sum(2)
    rows = slice(0, len(scores))
    losses, slopes = objective(RankProfile(rows, valid, own_level, above, graded, smooth.detach()))
    shares = _shares(counts[:, 1:].sum(1), scores.dtype)
    return with_gradient(smooth, (losses * shares).sum(), slopes * shares[:, None, None])


class _SortedCounts:
    """Some rows in the compiled kernels' terms; attributes are those of :class:`~sightline.kernels.blocks.BlockCounts`."""

    def __init__(
        self,
        scores: Tensor,
        levels: Tensor,
        counts: NDArray[np.int64],
        worth: NDArray[np.float32],
        step: SupStep | SigmoidStep,
    ) -> None:
        n_rows, n_items = scores.shape
        n_levels, self.n_targets = counts.shape[1], counts[:, 1:].sum(1)
        most = int(self.n_targets.max())
        single, is_sup = np.float32, isinstance(step, SupStep)
        rho, delta, jump, top, strict = step.line if isinstance(step, SupStep) else (0.0, np.inf, 0.0, 0.0, False)
        self.rows = (scores.numpy(), levels.numpy(), n_levels, int(is_sup), single(step.tau), single(rho), float(delta))
        self.n_chunks = n_chunks(n_rows)
        n_places, n_lanes = room(n_items, most)
        self.layout = (  # of the sorted rows; rows with few targets leave most of it untouched
            np.empty((n_rows, n_places), np.float32), np.empty((n_rows, n_places), np.int8),
            np.empty((n_rows, n_lanes), np.float32), np.empty((n_rows, n_places), np.int32),
            np.empty((n_rows, 2), np.int64), np.empty((n_rows, most), np.int32), np.empty((n_rows, most), np.int32),
        )  # fmt: skip
        self.own = np.ones((n_rows, most), np.int64)  # 1 in the padding
        above, graded = np.zeros((n_rows, most), np.float32), np.zeros((n_rows, most), np.float32)
        values = np.zeros((n_rows, most, 1 if is_sup else n_levels), np.float32)
        self.slopes = np.zeros_like(values)
        run_in_torch_threads(
            smooth_count_rows, *self.rows, single(jump), single(top), strict, self.n_chunks, self.n_targets, counts, worth,
            *self.layout, self.own, above, graded, values, self.slopes,
        )  # fmt: skip
        self.valid = torch.from_numpy(np.arange(most) < self.n_targets[:, None])
        self.level, self.above, self.graded, self.values = map(torch.from_numpy, (self.own, above, graded, values))

    def fill_gradient(self, weights: Tensor, gradient: Tensor) -> None:
        """Fill (Q, G) with the gradient in the scores, from that in the smooth counts."""
        run_in_torch_threads(
            smooth_count_gradient, *self.rows, self.n_chunks, self.n_targets, *self.layout, self.own,
            weights.contiguous().numpy(), self.slopes, gradient.numpy(),
        )  # fmt: skip
