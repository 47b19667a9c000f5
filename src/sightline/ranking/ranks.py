"""Exact ranks with a stated tie rule, and their smooth forms.

A rank counts the items that stand above one item of a list. The exact count uses the step ``H(t) = [t >= 0]`` of the score
difference, so equal scores count against the item (the pessimistic "counting" rule). The smooth forms replace the step by
a kernel with a useful slope.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ranking.similarity import all_finite, check_tensor, full_precision

WORKSPACE_ELEMENTS = 1 << 21  # of a (rows, targets, G) block: 8 MB in float32, which stays near the cache


def check_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Refuse scores, relevance and mask that do not fit together.

    Returns:
        The scores in float32 at least and 0 outside the mask, where they may be anything; and the mask, all True where None
        was given.
    """
    check_tensor(scores, "scores")
    if scores.ndim != 2 or not scores.is_floating_point():
        raise InputError(f"scores must be a (Q, G) floating point table, got {scores.dtype} {tuple(scores.shape)}")
    if relevance.shape != scores.shape:
        raise InputError(
            f"relevance and scores must have one shape, got {tuple(relevance.shape)} and {tuple(scores.shape)}"
        )
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    elif mask.shape != scores.shape or mask.dtype != torch.bool:
        raise InputError(f"mask must be bool {tuple(scores.shape)}, got {mask.dtype} {tuple(mask.shape)}")
    else:
        scores = scores.masked_fill(~mask, 0.0)
    if not all_finite(scores):
        raise InputError("scores must be finite, found NaN or infinity")
    return full_precision(scores), mask


def check_range(interval: str, **values: float) -> None:
    """Refuse a named number outside an interval; a square bracket includes its end, a round one does not.

    Example:
        >>> check_range("[0, inf)", margin=0.1, width=-1.0)
        Traceback (most recent call last):
        sightline.errors.InputError: width must be in [0, inf), got -1.0
    """
    low, high = map(float, interval[1:-1].split(","))
    ends = [end for end, bracket in ((low, interval[0]), (high, interval[-1])) if bracket in "[]"]
    outside = {name: value for name, value in values.items() if not (low < value < high or value in ends)}
    if outside:
        raise InputError("; ".join(f"{name} must be in {interval}, got {value}" for name, value in outside.items()))


def check_counts(least: int = 1, **values: int) -> None:
    """Refuse a named count that is not a whole number, or below the least."""
    if wrong := {name: value for name, value in values.items() if type(value) is not int or value < least}:
        faults = (f"{name} must be a whole number of at least {least}, got {value!r}" for name, value in wrong.items())
        raise InputError("; ".join(faults))


class Step(Protocol):
    """A smooth stand-in for the step function, with its slope."""

    def value(self, gap: Tensor) -> Tensor: ...

    def slope(self, gap: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SigmoidStep:
    """``sigmoid(t / tau)``: SmoothAP's step. Neither above nor below the true one."""

    tau: float = 0.01

    def __post_init__(self) -> None:
        check_range("(0, inf)", tau=self.tau)

    def value(self, gap: Tensor) -> Tensor:
        return torch.sigmoid(gap / self.tau)

    def slope(self, gap: Tensor) -> Tensor:
        smooth = torch.sigmoid(gap / self.tau)
        return smooth * (1 - smooth) / self.tau


@dataclass(frozen=True)
class SupStep:
    """SupRank's step H-: never below the true one, and steep where a wrong item is far above.

    ``sigmoid(t / tau)`` below 0; the same plus 0.5 from 0 to ``delta``; a line of slope ``rho`` beyond. The jump at 0 makes
    the value at a tie 1, which the upper bound needs.

    Attributes:
        tau: width of the sigmoid, in units of the scores.
        rho: slope beyond ``delta``.
        delta: where the line starts; None for where the sigmoid comes to 0.99, 4.6 times ``tau``.
        jump: what is added from a gap of 0 on; below 0.5 the step is not above the true one.
        offset: the value just beyond ``delta``; None for no break there.
        strict: a gap of 0 gets no jump.

    Example:
        >>> SupStep().value(torch.tensor([-0.01, 0.0, 0.01, 0.1], dtype=torch.float64))
        tensor([0.2689, 1.0000, 1.2311, 6.4933], dtype=torch.float64)
    """

    tau: float = 0.01
    rho: float = 100.0
    delta: float | None = 0.05
    jump: float = 0.5
    offset: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_range("(0, inf)", tau=self.tau, rho=self.rho, delta=self.edge)
        check_range("[0, inf)", jump=self.jump)

    @property
    def edge(self) -> float:
        """Where the line starts."""
        return self.tau * math.log(99) if self.delta is None else self.delta

    @property
    def top(self) -> float:
        """The value just beyond the edge, without the jump."""
        return 1 / (1 + math.exp(-self.edge / self.tau)) if self.offset is None else self.offset - self.jump

    @property
    def line(self) -> tuple[float, float, float, float, bool]:
        """What compiled kernels take beside ``tau``."""
        return self.rho, self.edge, self.jump, self.top, self.strict

    def value(self, gap: Tensor) -> Tensor:
        line = self.top + self.rho * (gap - self.edge)
        jump = self.jump * (gap > 0 if self.strict else gap >= 0)
        return torch.where(gap > self.edge, line, torch.sigmoid(gap / self.tau)) + jump

    def slope(self, gap: Tensor) -> Tensor:
        smooth = torch.sigmoid(gap / self.tau)
        return torch.where(gap > self.edge, self.rho, smooth * (1 - smooth) / self.tau)


def exact_counts(scores: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """How many counted items of its row score at least as much as each target, the target itself included if counted.

    Costs one sort of each row. No gradient.

    Args:
        scores: (Q, G).
        targets: (Q, P) scores of the targets.
        counted: (Q, G) bool, the items to count.

    Returns:
        (Q, P) int64.

    Example:
        >>> scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
        >>> exact_counts(scores, scores, torch.tensor([[True, True, True, False]]))
        tensor([[1, 3, 3, 3]])
    """
    ascending = scores.detach().masked_fill(~counted, -math.inf).sort(1).values
    return scores.shape[1] - torch.searchsorted(ascending, targets.detach().contiguous())


class _SmoothCounts(torch.autograd.Function):
    """Sum over counted items j of ``step(score j - score k)`` for each target k, in blocks.

    Neither pass keeps a block: the backward pass computes the gaps again.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, counted: Tensor, step: Step) -> Tensor:
        ctx.save_for_backward(scores, targets, counted)
        ctx.step = step
        sums = torch.zeros_like(targets)
        for rows, columns in _blocks(scores, targets):
            gap = scores[rows, None, :] - targets[rows, columns, None]  # (rows, targets, G)
            # Not a product with the mask: 0 x infinity is NaN, and a matrix product runs in half precision under autocast.
            sums[rows, columns] = step.value(gap).masked_fill_(~counted[rows, None, :], 0.0).sum(2)
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        scores, targets, counted = ctx.saved_tensors
        (weight,) = gradients
        to_scores, to_targets = torch.zeros_like(scores), torch.zeros_like(targets)
        for rows, columns in _blocks(scores, targets):
            gap = scores[rows, None, :] - targets[rows, columns, None]
            weighted = (ctx.step.slope(gap) * weight[rows, columns, None]).masked_fill_(~counted[rows, None, :], 0.0)
            to_scores[rows] += weighted.sum(1)
            to_targets[rows, columns] = -weighted.sum(2)
        return to_scores, to_targets, None, None


def _blocks(scores: Tensor, targets: Tensor) -> list[tuple[slice, slice]]:
    """Slices of rows and of targets whose (rows, targets, G) block fits the workspace."""
    n_queries, n_targets = targets.shape
    per_target = max(scores.shape[1], 1)
    columns = max(1, min(n_targets, WORKSPACE_ELEMENTS // per_target))
    rows = max(1, WORKSPACE_ELEMENTS // (per_target * columns))
    return [
        (slice(row, row + rows), slice(column, column + columns))
        for row in range(0, n_queries, rows)
        for column in range(0, n_targets, columns)
    ]


def smooth_counts(scores: Tensor, targets: Tensor, counted: Tensor, step: Step) -> Tensor:
    """:func:`exact_counts` with a smooth step, differentiable in scores and targets.

    Time is Q x P x G, memory one block of a few MB beside the inputs.

    Args:
        scores: (Q, G), finite where counted.
        targets: (Q, P) scores of the targets.
        counted: (Q, G) bool, the items to count. A target that is among them counts itself with ``step.value(0)``.
        step: the kernel.

    Returns:
        (Q, P) in the dtype of ``scores``.
    """
    return _SmoothCounts.apply(scores, targets, counted, step)  # type: ignore[no-any-return, no-untyped-call]
