"""Losses that are one minus average precision, with the rank made smooth."""

import torch
from torch import Tensor, nn

from sightline.ranking.profile import RankProfile, rank_losses
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs
from sightline.ranking.relevance import batch_pairs


def mean_over_queries(losses: Tensor, n_relevant: Tensor) -> Tensor:
    """() mean of one loss a query over the queries that have a relevant item; 0, still differentiable, where none has."""
    counted = n_relevant > 0
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def flat_levels(relevance: Tensor, mask: Tensor) -> Tensor:
    """(Q, G) int8: 1 relevant, 0 not, -1 not in the list."""
    relevant = (relevance if relevance.dtype == torch.bool else relevance > 0) & mask
    return relevant.view(torch.int8) + mask.view(torch.int8) - 1


def ap_losses(rank_among_relevant: Tensor, rank: Tensor, valid: Tensor) -> Tensor:
    """(Q,) one minus AP from the (Q, P) ranks of each query's relevant items; 1 where there are none."""
    # Clamped, not masked afterwards: the gradient of 0 / 0 is NaN even where it is masked out.
    precision = rank_among_relevant / rank.clamp(min=1)
    return 1 - (precision * valid).sum(1) / valid.sum(1).clamp(min=1)


def one_minus_ap(rank_among_relevant: Tensor, rank: Tensor, valid: Tensor) -> Tensor:
    """() mean of :func:`ap_losses` over the queries that have a relevant item."""
    return mean_over_queries(ap_losses(rank_among_relevant, rank, valid), valid.sum(1))


def sup_ap_objective(profile: RankProfile) -> Tensor:
    """(Q,) the exact rank among relevant items, which carries no gradient, over the smooth rank."""
    rank_among_relevant = profile.exact[..., 1]
    return ap_losses(rank_among_relevant, rank_among_relevant + profile.smooth[..., 0], profile.valid)


def smooth_ap_objective(profile: RankProfile) -> Tensor:
    """(Q,) the smooth rank on both sides of the fraction."""
    rank_among_relevant = 0.5 + profile.smooth[..., 1]  # the target counts itself with sigmoid(0); its rank starts at 1
    return ap_losses(rank_among_relevant, rank_among_relevant + profile.smooth[..., 0], profile.valid)


def sup_ap_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """One minus average precision with SupRank: an upper bound of ``1 - AP`` that pushes far mistakes hardest.

    The rank among relevant items is exact and carries no gradient; the count of irrelevant items above uses
    :class:`~sightline.ranking.ranks.SupStep`. It is 0 exactly where a query has no irrelevant item. Cost: see
    :func:`~sightline.ranking.profile.rank_losses`; no Q x G x G tensor is made.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an irrelevant item more than ``delta`` above a relevant one.
        delta: where that slope starts.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> sup_ap_loss(scores, torch.tensor([[True, True, False]]))
        tensor(0.8723)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels = flat_levels(relevance, mask)
    losses = rank_losses(scores, levels, 1, SupStep(tau, rho, delta), sup_ap_objective)
    return mean_over_queries(losses, (levels > 0).sum(1))


class SupAPLoss(nn.Module):
    """:func:`sup_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Of labels in levels the finest counts.

    Example:
        >>> import torch
        >>> embeddings = torch.eye(4)[[0, 0, 1, 1]]
        >>> SupAPLoss()(embeddings, torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, tau: float = 0.01, rho: float = 100.0, delta: float = 0.05) -> None:
        super().__init__()
        self.tau, self.rho, self.delta = tau, rho, delta

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        return sup_ap_loss(pairs.scores, pairs.relevant, pairs.mask, self.tau, self.rho, self.delta)


def smooth_ap_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, tau: float = 0.01) -> Tensor:
    """One minus average precision, its step function softened to a sigmoid on both sides of the fraction.

    Tends to ``1 - AP`` as ``tau`` tends to 0, where no scores are tied. Neither an upper nor a lower bound. Cost: see
    :func:`~sightline.ranking.profile.rank_losses`; no Q x G x G tensor is made.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> smooth_ap_loss(scores, torch.tensor([[True, True, False]]))
        tensor(0.4034)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels = flat_levels(relevance, mask)
    return mean_over_queries(rank_losses(scores, levels, 1, SigmoidStep(tau), smooth_ap_objective), (levels > 0).sum(1))


class SmoothAPLoss(nn.Module):
    """:func:`smooth_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Of labels in levels the finest counts. pytorch-metric-learning's ``SmoothAPLoss`` keeps each query in its own list, as a
    relevant item, and takes neighbours in the batch for a class: its value is this definition's on such a list where the
    batch is sorted by class and has as many classes as items in each.
    """

    def __init__(self, tau: float = 0.01) -> None:
        super().__init__()
        self.tau = tau

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        return smooth_ap_loss(pairs.scores, pairs.relevant, pairs.mask, self.tau)
