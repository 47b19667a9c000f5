"""Losses for relevance in grades: hierarchical average precision and NDCG, with the rank made smooth."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.hierarchy.relevance import RELEVANCES, exponential_relevance, level_counts
from sightline.losses.average_precision import mean_over_queries
from sightline.ranking.profile import MOST_LEVELS, RankProfile, rank_losses
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs
from sightline.ranking.relevance import batch_pairs

Relevance = Callable[[Tensor], Tensor]


def graded_levels(relevance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Any non-negative relevance as levels: its distinct values in order.

    Returns:
        (Q, G) int8 levels, 0 where relevance is 0 and -1 outside the mask; and (M,) float64, the relevance of each level.
    """
    if not (relevance >= 0).all() or not relevance.isfinite().all():
        raise InputError("relevance: numbers from 0 on are needed")
    values, places = torch.unique(torch.cat([relevance.new_zeros(1), relevance.flatten()]), return_inverse=True)
    if len(values) > MOST_LEVELS:
        raise InputError(f"relevance has {len(values) - 1} grades, at most {MOST_LEVELS - 1} are supported: round them")
    levels = places[1:].reshape(relevance.shape).to(torch.int8).masked_fill(~mask, -1)
    return levels, values.double()


def _h_ap(scores: Tensor, levels: Tensor, table: Tensor, step: SupStep | SigmoidStep) -> Tensor:
    """() one minus H-AP; ``table`` (Q, M) is the relevance of each level for each query."""

    def objective(profile: RankProfile) -> Tensor:
        relevance = table[profile.rows].to(profile.smooth)
        own = profile.own(relevance)
        shared = torch.minimum(own[..., None], relevance[:, None])  # (Q, P, M): 0 at level 0
        if isinstance(step, SupStep):
            rank = profile.not_below(profile.exact) + profile.below(profile.smooth)
            graded_rank = (shared * profile.exact).sum(2)
        else:  # a target counts itself with one half
            rank = 0.5 + profile.smooth.sum(2)
            graded_rank = 0.5 * own + (shared * profile.smooth).sum(2)
        total = profile.over_targets(own)
        gained = profile.over_targets(graded_rank / rank.clamp(min=1))
        return 1 - gained / total.where(total > 0, 1.0)

    losses = rank_losses(scores, levels, table.shape[1] - 1, step, objective)
    return mean_over_queries(losses, (levels > 0).sum(1))


def _ndcg(scores: Tensor, levels: Tensor, gains: Tensor, step: SupStep | SigmoidStep) -> Tensor:
    """() one minus NDCG; ``gains`` (M,) grow with the level."""
    counts = level_counts(levels, len(gains) - 1)
    at_least = counts.flip(1).cumsum(1).flip(1)  # (Q, M)
    places = torch.arange(1, scores.shape[1] + 1, dtype=torch.float64, device=scores.device)
    discounts = torch.cat([places.new_zeros(1), (1 / torch.log2(1 + places)).cumsum(0)])  # of the first n places
    share = discounts[at_least] - discounts[at_least - counts]  # (Q, M): the places of a level in the ideal order
    ideal = (share * gains).sum(1)

    def objective(profile: RankProfile) -> Tensor:
        if isinstance(step, SupStep):
            rank = profile.not_below(profile.exact) + profile.below(profile.smooth)
        else:
            rank = 0.5 + profile.smooth.sum(2)
        gained = profile.over_targets(profile.own(gains.to(profile.smooth)[None]) / torch.log2(1 + rank.clamp(min=1)))
        best = ideal[profile.rows].to(profile.smooth)
        return 1 - gained / best.where(best > 0, 1.0)

    return mean_over_queries(rank_losses(scores, levels, len(gains) - 1, step, objective), (levels > 0).sum(1))


def sup_h_ap_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """One minus hierarchical AP with SupRank: an upper bound of ``1 - H-AP`` for relevance of any grades.

    Items of at least the target's relevance are counted exactly, without gradient; those of less by
    :class:`~sightline.ranking.ranks.SupStep`. With two grades it equals :func:`~sightline.losses.sup_ap_loss`. Cost: see
    :func:`~sightline.ranking.profile.rank_losses`.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) numbers from 0 on, of at most 126 different values above 0.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for a less relevant item more than ``delta`` above.
        delta: where that slope starts.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> sup_h_ap_loss(scores, torch.tensor([[2, 3, 0, 1, 3]]) / 3)
        tensor(0.6523)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels, values = graded_levels(relevance, mask)
    return _h_ap(scores, levels, values.expand(len(scores), -1), SupStep(tau, rho, delta))


def smooth_h_ap_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, tau: float = 0.01) -> Tensor:
    """One minus hierarchical AP with a sigmoid for every step: no bound. With two grades it equals smooth AP.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) numbers from 0 on, of at most 126 different values above 0.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels, values = graded_levels(relevance, mask)
    return _h_ap(scores, levels, values.expand(len(scores), -1), SigmoidStep(tau))


def sup_ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """One minus NDCG with SupRank: an upper bound of ``1 - NDCG``; relevance is the gain.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) gains from 0 on, of at most 126 different values above 0.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: as in :func:`sup_h_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> sup_ndcg_loss(scores, 2.0 ** torch.tensor([[2, 3, 0, 1, 3]]) - 1)
        tensor(0.4953)
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels, values = graded_levels(relevance, mask)
    return _ndcg(scores, levels, values, SupStep(tau, rho, delta))


def smooth_ndcg_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, tau: float = 0.01) -> Tensor:
    """One minus NDCG with a sigmoid for every step: no bound; relevance is the gain.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) gains from 0 on, of at most 126 different values above 0.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    scores, mask = check_pairs(scores, relevance, mask)
    levels, values = graded_levels(relevance, mask)
    return _ndcg(scores, levels, values, SigmoidStep(tau))


class SupHAPLoss(nn.Module):
    """:func:`sup_h_ap_loss` over a batch, relevance from the label levels that query and item share.

    Which items count as better is decided by the level, what they are worth by the relevance, worked out on the list at
    hand.

    Args:
        relevance: ``population`` (the papers'), ``weight`` or ``sum_wap``; see :mod:`sightline.hierarchy.relevance`.
        alpha: exponent of ``population`` and ``weight``: above 1 favours the finest level.
        tau: as in the function, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.
    """

    def __init__(
        self,
        relevance: str = "population",
        alpha: float = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
    ) -> None:
        super().__init__()
        self.relevance = level_relevance(relevance, alpha)
        self.tau, self.rho, self.delta = tau, rho, delta

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        levels = pairs.levels.masked_fill(~pairs.mask, -1)
        table = self.relevance(level_counts(levels, pairs.n_levels))
        return _h_ap(pairs.scores, levels, table, SupStep(self.tau, self.rho, self.delta))


class SmoothHAPLoss(nn.Module):
    """:func:`smooth_h_ap_loss` over a batch, relevance as in :class:`SupHAPLoss`."""

    def __init__(self, relevance: str = "population", alpha: float = 1.0, tau: float = 0.01) -> None:
        super().__init__()
        self.relevance, self.tau = level_relevance(relevance, alpha), tau

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        levels = pairs.levels.masked_fill(~pairs.mask, -1)
        return _h_ap(pairs.scores, levels, self.relevance(level_counts(levels, pairs.n_levels)), SigmoidStep(self.tau))


class SupNDCGLoss(nn.Module):
    """:func:`sup_ndcg_loss` over a batch, with the gain ``2 ** l - 1`` for l shared label levels."""

    def __init__(self, tau: float = 0.01, rho: float = 100.0, delta: float = 0.05) -> None:
        super().__init__()
        self.tau, self.rho, self.delta = tau, rho, delta

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        levels = pairs.levels.masked_fill(~pairs.mask, -1)
        return _ndcg(pairs.scores, levels, _gains(levels, pairs.n_levels), SupStep(self.tau, self.rho, self.delta))


class SmoothNDCGLoss(nn.Module):
    """:func:`smooth_ndcg_loss` over a batch, gains as in :class:`SupNDCGLoss`."""

    def __init__(self, tau: float = 0.01) -> None:
        super().__init__()
        self.tau = tau

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        levels = pairs.levels.masked_fill(~pairs.mask, -1)
        return _ndcg(pairs.scores, levels, _gains(levels, pairs.n_levels), SigmoidStep(self.tau))


def _gains(levels: Tensor, n_levels: int) -> Tensor:
    return exponential_relevance(torch.zeros(1, n_levels + 1, device=levels.device))[0]


def level_relevance(name: str, alpha: float) -> Relevance:
    """The named relevance of levels, with its exponent where it has one."""
    if not alpha > 0:
        raise InputError(f"alpha is {alpha}; a number above 0 is needed")
    function = choose(RELEVANCES, name, "relevance")
    if name in ("population", "weight"):
        return lambda counts: function(counts, alpha)
    return function
