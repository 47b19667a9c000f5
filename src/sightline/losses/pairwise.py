"""Losses on single pairs: they fix where similar and dissimilar scores lie, whatever the batch."""

import math

from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.core import batch_pairs
from sightline.ranking.profile import mean_over_queries
from sightline.ranking.ranks import check_pairs
from sightline.ranking.relevance import Pairs

REDUCTIONS = ("mean", "nonzero")


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
        A few passes over the scores.

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
    relevant = (relevance > 0) & mask
    irrelevant = mask & ~relevant
    if reduction == "nonzero":
        return mean_of_nonzero((alpha - scores[relevant]).relu()) + mean_of_nonzero((scores[irrelevant] - beta).relu())
    shortfall = (alpha - scores.masked_fill(~relevant, alpha)).relu().sum(1) / relevant.sum(1).clamp(min=1)
    excess = (scores.masked_fill(~irrelevant, beta) - beta).relu().sum(1) / irrelevant.sum(1).clamp(min=1)
    return mean_over_queries(shortfall + excess, mask.sum(1))


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
        return calibration_loss(pairs.scores, pairs.relevant, pairs.mask, self.alpha, self.beta, self.reduction)
