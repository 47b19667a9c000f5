"""Losses that are one minus average precision, with the rank made smooth."""

import torch
from torch import Tensor, nn

from sightline.losses.core import batch_pairs, level_counts, rank_loss
from sightline.losses.presets import preset_named, sup_step
from sightline.ranking.levels import flat_levels
from sightline.ranking.profile import Objective, RankProfile, mean_over_queries
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs
from sightline.ranking.relevance import Pairs


def ap_losses(rank_among_relevant: Tensor, rank: Tensor, valid: Tensor) -> Tensor:
    """(Q,) one minus AP from the (Q, P) ranks of each query's relevant items; 1 where there are none."""
    # Clamped, not masked afterwards: the gradient of 0 / 0 is NaN even where it is masked out.
    precision = rank_among_relevant / rank.clamp(min=1)
    return 1 - (precision * valid).sum(1) / valid.sum(1).clamp(min=1)


def one_minus_ap(rank_among_relevant: Tensor, rank: Tensor, valid: Tensor) -> Tensor:
    """() mean of :func:`ap_losses` over the queries that have a relevant item."""
    return mean_over_queries(ap_losses(rank_among_relevant, rank, valid), valid.sum(1))


def sup_ap_objective(profile: RankProfile) -> tuple[Tensor, Tensor]:
    """The exact rank among relevant items, which carries no gradient, over the smooth rank."""
    rank = (profile.above + profile.smooth[..., 0]).clamp_(min=1)
    precision = profile.above / rank * profile.share()
    return 1 - precision.sum(1), (precision / rank)[..., None]


def smooth_ap_objective(profile: RankProfile) -> tuple[Tensor, Tensor]:
    """The smooth rank on both sides of the fraction."""
    share, among_relevant = profile.share(), 0.5 + profile.smooth[..., 1]  # a target counts itself with sigmoid(0)
    rank = (among_relevant + profile.smooth[..., 0]).clamp_(min=1)
    precision = among_relevant / rank * share
    return 1 - precision.sum(1), torch.stack([precision, precision - share], 2) / rank[..., None]


def flat_rank_loss(scores: Tensor, levels: Tensor, step: SupStep | SigmoidStep, objective: Objective) -> Tensor:
    """() mean of an objective over the queries, for levels that are 1, 0 and -1: relevant, not, and not in the list."""
    return rank_loss(scores, levels, level_counts(levels, 1), step, objective)


def sup_ap_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
    """One minus average precision with SupRank: an upper bound of ``1 - AP`` that pushes far mistakes hardest.

    The rank among relevant items is exact and carries no gradient; the count of irrelevant items above uses
    :class:`~sightline.ranking.ranks.SupStep`. It is 0 exactly where a query has no irrelevant item.

    Formula:
        ``1 - mean over k of above(k) / (above(k) + sup(k))``

    Use:
        The rank loss to begin with, wherever items are relevant or not; :func:`~sightline.losses.roadmap` adds what
        makes small batches speak for the whole set.

    Cost:
        That of the core.

    Defaults:
        tau, rho and delta of SupRank (Ramzi et al., NeurIPS 2021 and TPAMI); delta, 0.01 ln 99 in the papers, is
        rounded to 0.05 as in their code.

    Limit:
        Never below ``1 - AP`` with ties counted against the query, and equal to it where all scores are equal. It does
        not tend to it: a wrong item far above counts ``rho`` times its gap.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an irrelevant item more than ``delta`` above a relevant one.
        delta: where that slope starts; None for where the sigmoid comes to 0.99.
        preset: ``paper``, ``released-code`` or ``released-code-inaturalist``; only the paper's step gives an upper bound.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> sup_ap_loss(scores, torch.tensor([[True, True, False]]))
        tensor(0.8723)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    return flat_rank_loss(scores, flat_levels(relevance > 0, mask), sup_step(tau, rho, delta, preset), sup_ap_objective)


class SupAPLoss(nn.Module):
    """:func:`sup_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Of labels in levels the finest counts.

    Example:
        >>> import torch
        >>> embeddings = torch.eye(4)[[0, 0, 1, 1]]
        >>> SupAPLoss()(embeddings, torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, tau: float = 0.01, rho: float = 100.0, delta: float | None = 0.05, preset: str = "paper") -> None:
        super().__init__()
        self.step, self.include_self = sup_step(tau, rho, delta, preset), preset_named(preset).include_self

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        return self.of_pairs(batch_pairs(embeddings, labels, ref_emb, ref_labels, self.include_self))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of pairs at hand."""
        return flat_rank_loss(pairs.scores, pairs.flat, self.step, sup_ap_objective)


def smooth_ap_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, tau: float = 0.01) -> Tensor:
    """One minus average precision, its step function softened to a sigmoid on both sides of the fraction.

    Formula:
        ``1 - mean over k of smooth+(k) / smooth(k)``

    Use:
        The baseline of sup_ap; its gradient can push a relevant item down in favour of another, and fades for far
        mistakes.

    Cost:
        That of the core.

    Defaults:
        tau of Smooth-AP (Brown et al., ECCV 2020).

    Limit:
        Tends to ``1 - AP`` as tau tends to 0, where no scores are tied; before, it may lie on either side.

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
    return flat_rank_loss(scores, flat_levels(relevance > 0, mask), SigmoidStep(tau), smooth_ap_objective)


class SmoothAPLoss(nn.Module):
    """:func:`smooth_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Of labels in levels the finest counts. pytorch-metric-learning's ``SmoothAPLoss`` keeps each query in its own list, as a
    relevant item, and takes neighbours in the batch for a class: its value is this definition's on such a list where the
    batch is sorted by class and has as many classes as items in each.
    """

    def __init__(self, tau: float = 0.01) -> None:
        super().__init__()
        self.step = SigmoidStep(tau)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        return flat_rank_loss(pairs.scores, pairs.flat, self.step, smooth_ap_objective)
