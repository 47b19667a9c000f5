"""Losses on single pairs: they fix where similar and dissimilar scores lie, whatever the batch."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.errors import InputError, choose
from sightline.losses.core import batch_pairs, uncompiled
from sightline.ranking.levels import flat_levels
from sightline.ranking.ranks import check_pairs
from sightline.ranking.relevance import Pairs

REDUCTIONS = ("mean", "nonzero")
BLOCK_ELEMENTS = 1 << 19  # of (rows, G) tables held at once: 2 MB each


def check_calibration(alpha: float, beta: float, reduction: str) -> None:
    """Refuse settings that make no sense together."""
    if not -math.inf < beta < alpha < math.inf:
        raise InputError(f"alpha is {alpha}, beta is {beta}; alpha must be above beta, and both finite")
    choose(dict.fromkeys(REDUCTIONS), reduction, "reduction")


def mean_of_nonzero(terms: Tensor) -> Tensor:
    """() mean of the terms above 0, none of which is below; 0, still differentiable, where all are 0."""
    return terms.sum() / (terms > 0).sum().clamp(min=1)


def calibration_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    alpha: float = 0.9,
    beta: float = 0.6,
    reduction: str = "mean",
) -> Tensor:
    """How far relevant scores lie below ``alpha`` and irrelevant ones above ``beta``: the pair form of decomposability.

    Scores that mean the same in every batch make the average precision of a batch speak for the whole set. For each query
    the mean shortfall of its relevant items plus the mean excess of its irrelevant ones; an empty side is 0.

    Formula:
        ``mean over k of max(0, alpha - s(k)) + mean over n of max(0, s(n) - beta)``

    Use:
        As the second term of a rank loss; alone it is a contrastive loss.

    Cost:
        A few passes over the scores, some rows at a time; one byte a pair is kept for the gradient.

    Defaults:
        alpha and beta of ROADMAP (NeurIPS 2021); margins of 0.1 to 0.4 between them did about as well.

    Limit:
        0 where every relevant score reaches alpha and no other passes beta: then every batch has AP 1 and so has the
        whole set.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        alpha: what relevant scores should reach.
        beta: what irrelevant scores should stay under, below ``alpha``.
        reduction: ``mean`` as above (the paper's), or ``nonzero`` (the released code's): the mean of all shortfalls above 0
            in the table plus the mean of all such excesses.

    Returns:
        () with ``mean``, over the queries that have any item in their list; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.95, 0.70, 0.65, 0.30, 0.61]])
        >>> calibration_loss(scores, torch.tensor([[True, True, False, False, False]]))
        tensor(0.1200)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    check_calibration(alpha, beta, reduction)
    return _hinge_loss(scores, flat_levels(relevance > 0, mask), alpha, beta, reduction)


@uncompiled
def _hinge_loss(scores: Tensor, levels: Tensor, alpha: float, beta: float, reduction: str) -> Tensor:
    """The loss of (Q, G) int8 levels: 1 relevant, 0 not, -1 not in the list."""
    result: Tensor = _HingeLoss.apply(scores, levels, alpha, beta, reduction)  # type: ignore[no-untyped-call]
    return result


class _HingeLoss(torch.autograd.Function):
    """The loss some rows at a time; kept is which way each score is pulled, a byte a pair, and by how much in each row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, levels: Tensor, alpha: float, beta: float, reduction: str) -> Tensor:
        n_queries = len(scores)
        pulls = torch.empty_like(levels) if ctx.needs_input_grad[0] else None  # 1 up, -1 down
        sums = scores.new_zeros(2, n_queries)  # of shortfalls, of excesses
        sizes, beyond = (torch.zeros(2, n_queries, dtype=torch.int64, device=scores.device) for _ in range(2))
        for rows in _blocks(scores):
            relevant, irrelevant = levels[rows] == 1, levels[rows] == 0
            shortfall = (alpha - scores[rows]).relu_().masked_fill_(~relevant, 0.0)
            excess = (scores[rows] - beta).relu_().masked_fill_(~irrelevant, 0.0)
            short, over = shortfall > 0, excess > 0
            sums[:, rows] = torch.stack([shortfall.sum(1), excess.sum(1)])
            sizes[:, rows] = torch.stack([relevant.sum(1), irrelevant.sum(1)])
            beyond[:, rows] = torch.stack([short.sum(1), over.sum(1)])
            if pulls is not None:
                torch.sub(short.to(pulls.dtype), over.to(pulls.dtype), out=pulls[rows])
        if reduction == "nonzero":
            weights = beyond.sum(1, keepdim=True).clamp(min=1).to(sums).reciprocal().expand_as(sums)
        else:
            n_listed = (sizes.sum(0) > 0).sum().clamp(min=1)
            weights = (sizes.clamp(min=1) * n_listed).to(sums).reciprocal()
        if pulls is not None:
            ctx.save_for_backward(pulls, weights)
        return (sums * weights).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        pulls, weights = ctx.saved_tensors
        up, down = (-weights[0] * gradients[0])[:, None], (weights[1] * gradients[0])[:, None]
        slopes = torch.empty(pulls.shape, dtype=weights.dtype, device=weights.device)
        for rows in _blocks(slopes):
            torch.where(pulls[rows] > 0, up[rows], down[rows] * (pulls[rows] < 0), out=slopes[rows])
        return slopes, None, None, None, None


def _blocks(table: Tensor) -> Iterator[slice]:
    """The rows of a table, some at a time."""
    n_rows = max(1, BLOCK_ELEMENTS // max(1, table.shape[1]))
    return (slice(start, start + n_rows) for start in range(0, len(table), n_rows))


class CalibrationLoss(nn.Module):
    """:func:`calibration_loss` over a batch in which each item queries all the others, or a reference set."""

    def __init__(self, alpha: float = 0.9, beta: float = 0.6, reduction: str = "mean") -> None:
        super().__init__()
        check_calibration(alpha, beta, reduction)
        self.alpha, self.beta, self.reduction = alpha, beta, reduction

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        return self.of_pairs(batch_pairs(embeddings, labels, ref_emb, ref_labels))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of pairs at hand."""
        return _hinge_loss(pairs.scores, pairs.flat, self.alpha, self.beta, self.reduction)
