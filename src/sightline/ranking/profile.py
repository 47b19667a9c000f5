"""Ranks of a query's relevant items, level by level, and the losses that are functions of them.

The one core of every ranking loss: what a loss adds is a formula on a :class:`RankProfile`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sightline.errors import InputError
from sightline.ranking.ranks import SigmoidStep, SupStep, Targets, exact_counts, smooth_counts
from sightline.ranking.sorted_counts import smooth_count_gradient, smooth_count_rows

MOST_LEVELS = 127  # levels are int8
BLOCK_ELEMENTS = 1 << 22  # of (rows, P, levels) and (rows, G) tables held at once: 32 MB each in float64


class RankProfile(NamedTuple):
    """For each relevant item (target) of each query, how many items of each level stand above it.

    Attributes:
        rows: which queries these are.
        valid: (Q, P) bool; queries have different numbers of targets.
        level: (Q, P) int64, the target's own level, from 1; 1 in the padding.
        exact: (Q, P, M) items of each level that score at least as much, the target itself included.
        smooth: (Q, P, M) the same with a smooth step, differentiable. The target counts itself with the step's value at 0.
    """

    rows: slice
    valid: Tensor
    level: Tensor
    exact: Tensor
    smooth: Tensor

    def own(self, table: Tensor) -> Tensor:
        """(Q, P) entry of each target's own level in a table of (Q, M) or (M,)."""
        return table.expand(len(self.level), -1).gather(1, self.level)

    def not_below(self, counts: Tensor) -> Tensor:
        """(Q, P) sum of (Q, P, M) counts over the levels at or above the target's own."""
        return (counts * (torch.arange(counts.shape[2], device=counts.device) >= self.level[..., None])).sum(2)

    def below(self, counts: Tensor) -> Tensor:
        """(Q, P) sum of (Q, P, M) counts over the levels below the target's own."""
        return (counts * (torch.arange(counts.shape[2], device=counts.device) < self.level[..., None])).sum(2)

    def over_targets(self, values: Tensor) -> Tensor:
        """(Q,) sum of (Q, P) values over each query's targets."""
        return (values * self.valid).sum(1)


Objective = Callable[[RankProfile], Tensor]


def rank_losses(scores: Tensor, levels: Tensor, n_levels: int, step: SupStep | SigmoidStep, objective: Objective) -> Tensor:
    """One loss a query: a formula on the ranks of its relevant items.

    On a CPU in float32 the cost is that of a few passes over the scores, whatever the number of relevant items, and one
    more matrix of the scores' size is kept; see :mod:`sightline.ranking.sorted_counts`. Elsewhere every pair of a relevant
    item and another is evaluated, in blocks.

    Args:
        scores: (Q, G) similarity, finite.
        levels: (Q, G) int8: 0 irrelevant, up to ``n_levels`` more and more relevant, -1 not in the query's list.
        n_levels: the highest level.
        step: stands for the step function in the smooth counts. With :class:`SupStep` only levels below a target's own are
            counted smoothly.
        objective: a profile to (Q,) losses; one query's loss depends on its own row alone.

    Returns:
        (Q,) losses, differentiable in ``scores``.
    """
    if n_levels + 1 > MOST_LEVELS:
        raise InputError(f"{n_levels} levels of relevance; at most {MOST_LEVELS - 1} are supported: round them to fewer")
    if scores.device.type == "cpu" and scores.dtype == torch.float32:
        result: Tensor = _SortedRankLosses.apply(scores, levels, n_levels, step, objective)  # type: ignore[no-untyped-call]
        return result
    targets = Targets.where(levels > 0)
    own = targets.of(scores)
    each = range(n_levels + 1)
    exact = torch.stack([exact_counts(scores, own, levels == level) for level in each], 2).to(scores.dtype)
    smooth = torch.stack([smooth_counts(scores, own, levels == level, step) for level in each], 2)
    own_level = targets.of(levels.long()).where(targets.valid, 1)
    return objective(RankProfile(slice(0, len(scores)), targets.valid, own_level, exact, smooth))


class _SortedRankLosses(torch.autograd.Function):
    """Losses and their gradient in one go, some rows at a time; the gradient is all that is kept."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, levels: Tensor, n_levels: int, step: SupStep | SigmoidStep, objective: Objective
    ) -> Tensor:
        n_queries, n_items = scores.shape
        losses = torch.zeros(n_queries)
        gradient = torch.zeros(n_queries, n_items) if ctx.needs_input_grad[0] else None
        n_targets = (levels > 0).sum(1)
        most = int(n_targets.max()) if n_queries else 0
        n_rows = max(1, BLOCK_ELEMENTS // max(1, most * (n_levels + 1), n_items))
        for start in range(0, n_queries, n_rows):
            rows = slice(start, start + n_rows)
            most_here = int(n_targets[rows].max())
            block = _Block(scores[rows].detach().contiguous(), levels[rows].contiguous(), n_levels, most_here, step)
            valid = torch.arange(block.n_targets) < n_targets[rows, None]
            smooth = torch.from_numpy(block.values).requires_grad_(gradient is not None)
            with torch.enable_grad():
                profile = RankProfile(rows, valid, torch.from_numpy(block.level), torch.from_numpy(block.counts), smooth)
                block_losses = objective(profile)
                total = block_losses.sum()
            losses[rows] = block_losses.detach().float()
            if gradient is not None:
                (weights,) = torch.autograd.grad(total, smooth)
                gradient[rows] = torch.from_numpy(block.gradient(weights.contiguous().numpy()))
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0][:, None], None, None, None, None


class _Block:
    """Some rows in the compiled kernels' terms."""

    def __init__(self, scores: Tensor, levels: Tensor, n_levels: int, n_targets: int, step: SupStep | SigmoidStep) -> None:
        sup = isinstance(step, SupStep)
        self.scores, self.levels, self.n_levels = scores.numpy(), levels.numpy(), n_levels + 1
        self.n_sources = n_levels if sup else n_levels + 1  # nothing is above the highest level
        rho, delta = (step.rho, step.delta) if isinstance(step, SupStep) else (0.0, 0.0)
        self.step = np.float32(step.tau), np.float32(rho), np.float32(delta)
        self.n_targets = n_targets
        self.place = np.empty(self.scores.shape, np.int32)
        self.level = np.ones((len(self.scores), n_targets), np.int64)  # 1 in the padding
        self.counts, self.values, self.slopes = (
            np.zeros((len(self.scores), self.n_targets, self.n_levels)) for _ in range(3)
        )
        out = (self.place, self.level, self.counts, self.values, self.slopes)
        smooth_count_rows(
            self.scores, self.levels, self.n_levels, self.n_sources, *self.step, 0.5 * sup, self._n_chunks(), *out
        )

    def _n_chunks(self) -> int:
        return min(len(self.scores), torch.get_num_threads())

    def gradient(self, weights: Any) -> Any:
        """(Q, G) gradient in the scores, from that in the smooth counts."""
        result = np.empty_like(self.scores)
        smooth_count_gradient(
            self.scores, self.levels, self.n_levels, self.n_sources, *self.step, self._n_chunks(),
            self.place, weights, self.slopes, result,
        )  # fmt: skip
        return result
