"""Losses for relevance in grades: hierarchical average precision and NDCG, with the rank made smooth."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sightline.errors import choose
from sightline.labels.relevance import RELEVANCES, exponential_relevance, population_relevance
from sightline.losses.base import PairLoss, SupRank, level_counts, on_graded_scores, rank_loss
from sightline.ranking.pairs import Pairs
from sightline.ranking.profile import RankProfile
from sightline.ranking.ranks import SigmoidStep, SupStep, check_range

Relevance = Callable[[Tensor], Tensor]


def _h_ap(scores: Tensor, levels: Tensor, counts: Tensor, table: Tensor, step: SupStep | SigmoidStep) -> Tensor:
    """() one minus H-AP; ``table`` (Q, M) is the relevance of each level for each query, ``counts`` its items."""
    table = _scaled(table, counts).to(scores)

    def objective(profile: RankProfile) -> tuple[Tensor, Tensor]:
        relevance = table[profile.rows]
        own = profile.own(relevance) * profile.valid
        share = profile.share(own.sum(1, keepdim=True))
        if isinstance(step, SupStep):
            rank = (profile.above + profile.smooth[..., 0]).clamp_(min=1)
            gained = profile.graded / rank * share
            return 1 - gained.sum(1), (gained / rank)[..., None]
        shared = torch.minimum(own[..., None], relevance[:, None])  # (Q, P, M): 0 at level 0
        rank = (0.5 + profile.smooth.sum(2)).clamp_(min=1)  # a target counts itself with one half
        gained = (0.5 * own + (shared * profile.smooth).sum(2)) / rank * share
        return 1 - gained.sum(1), (gained[..., None] - shared * share[..., None]) / rank[..., None]

    return rank_loss(scores, levels, counts, step, objective, table)


def _ndcg(scores: Tensor, levels: Tensor, counts: Tensor, gains: Tensor, step: SupStep | SigmoidStep) -> Tensor:
    """() one minus NDCG; ``gains`` (Q, M) grow with the level."""
    gains = _scaled(gains, counts)
    at_least = counts.flip(1).cumsum(1).flip(1)  # (Q, M)
    places = torch.arange(1, scores.shape[1] + 1, dtype=torch.float64, device=scores.device)
    discounts = torch.cat([places.new_zeros(1), (1 / torch.log2(1 + places)).cumsum(0)])  # of the first n places
    share = discounts[at_least] - discounts[at_least - counts]  # (Q, M): the places of a level in the ideal order
    ideal, gains = (share * gains).sum(1).to(scores), gains.to(scores)

    def objective(profile: RankProfile) -> tuple[Tensor, Tensor]:
        rank = profile.above + profile.smooth[..., 0] if isinstance(step, SupStep) else 0.5 + profile.smooth.sum(2)
        after = 1 + rank.clamp_(min=1)
        discount = torch.log2(after)
        gained = profile.own(gains[profile.rows]) * profile.share(ideal[profile.rows, None]) / discount
        slope = gained / (discount * after * math.log(2))
        return 1 - gained.sum(1), slope[..., None].expand_as(profile.smooth)

    return rank_loss(scores, levels, counts, step, objective)


def _by_levels(formula: Callable[..., Tensor], pairs: Pairs, relevance: Relevance, step: SupStep | SigmoidStep) -> Tensor:
    """The formula on pairs, with the relevance of their labels or, of a label tree, that of its levels."""
    counts = level_counts(pairs.levels, pairs.n_levels)
    worth = relevance(counts) if pairs.worth is None else pairs.worth
    return formula(pairs.scores, pairs.levels, counts, worth, step)


def _scaled(worth: Tensor, counts: Tensor) -> Tensor:
    """(Q, M) float64 worth with the highest that a row's items have brought to [0.5, 1); 0 for levels without an item.

    Float32 holds that, whatever the scale; both losses are the same on any. A power of two leaves their every bit.
    """
    present = worth.double() * (counts > 0)
    highest = present.amax(1, keepdim=True)
    scale = torch.frexp(highest).mantissa / highest.where(highest > 0, 1)
    return present * scale.clamp(max=2.0**1000)


@on_graded_scores
def sup_h_ap_loss(
    pairs: Pairs, tau: float = 0.01, rho: float = 100.0, delta: float | None = 0.05, preset: str = "paper"
) -> Tensor:
    """One minus hierarchical AP with SupRank: an upper bound of ``1 - H-AP`` for relevance of any grades.

    Items of at least the target's relevance are counted exactly, without gradient; those of less by
    :class:`~sightline.ranking.ranks.SupStep`.

    Formula:
        ``1 - sum over k of h(k) / (above(k) + sup(k)) / sum over k of g(k)``, with ``h(k)`` the sum of ``min(g(k),
        g(j))`` over the items j, k included, that score at least as much

    Use:
        Label trees and graded relevance, where a near miss should cost less than a far one. With the module's
        ``population``, an item of a finer level with many more items than a coarser one is worth less, though it still
        counts as better: the order by level then has an H-AP below 1. ``weight`` and ``sum_wap`` never fall.

    Cost:
        That of the core.

    Defaults:
        As sup_ap; the module takes the relevance of HAPPIER (Ramzi et al., ECCV 2022), computed on each query's list,
        and its alpha of 1.

    Limit:
        Never below one minus H-AP; with two grades it is sup_ap, and with ``sum_wap`` relevance H-AP is the weighted
        sum of the levels' AP.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) numbers from 0 on, of at most 126 different values above 0 in a row.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for a less relevant item more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> sup_h_ap_loss(scores, torch.tensor([[2, 3, 0, 1, 3]]) / 3)
        tensor(0.6523)
    """
    return _by_levels(_h_ap, pairs, population_relevance, SupRank(tau, rho, delta, preset).step)


@on_graded_scores
def smooth_h_ap_loss(pairs: Pairs, tau: float = 0.01) -> Tensor:
    """One minus hierarchical AP with a sigmoid for every step.

    Formula:
        ``1 - sum over k of h(k) / smooth(k) / sum over k of g(k)``, the step in ``h(k)`` a sigmoid too

    Use:
        To compare with sup_h_ap.

    Cost:
        That of the core, with one count a level.

    Defaults:
        tau of Smooth-AP.

    Limit:
        Tends to one minus H-AP as tau tends to 0, without ties; no bound before. With two grades it is smooth_ap.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) numbers from 0 on, of at most 126 different values above 0 in a row.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    return _by_levels(_h_ap, pairs, population_relevance, SigmoidStep(tau))


@on_graded_scores
def sup_ndcg_loss(
    pairs: Pairs, tau: float = 0.01, rho: float = 100.0, delta: float | None = 0.05, preset: str = "paper"
) -> Tensor:
    """One minus NDCG with SupRank: an upper bound of ``1 - NDCG``; relevance is the gain.

    Formula:
        ``1 - sum over k of g(k) / log2(1 + above(k) + sup(k)) / ideal``, ideal being that sum in the best order

    Use:
        Graded relevance where the first places matter most.

    Cost:
        That of the core.

    Defaults:
        As sup_ap; the module's gain of l shared levels is 2^l - 1 (TPAMI).

    Limit:
        Never below one minus NDCG; without an irrelevant or less relevant item above another it comes near, not to, 0.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) gains from 0 on, of at most 126 different values above 0 in a row.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: as in :func:`sup_h_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> sup_ndcg_loss(scores, 2.0 ** torch.tensor([[2, 3, 0, 1, 3]]) - 1)
        tensor(0.4953)
    """
    return _by_levels(_ndcg, pairs, exponential_relevance, SupRank(tau, rho, delta, preset).step)


@on_graded_scores
def smooth_ndcg_loss(pairs: Pairs, tau: float = 0.01) -> Tensor:
    """One minus NDCG with a sigmoid for every step; relevance is the gain.

    Formula:
        ``1 - sum over k of g(k) / log2(1 + smooth(k)) / ideal``

    Use:
        To compare with sup_ndcg.

    Cost:
        As smooth_h_ap.

    Defaults:
        tau of Smooth-AP, gains as in sup_ndcg.

    Limit:
        Tends to one minus NDCG as tau tends to 0, without ties; no bound before.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) gains from 0 on, of at most 126 different values above 0 in a row.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: width of the sigmoid, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    return _by_levels(_ndcg, pairs, exponential_relevance, SigmoidStep(tau))


class SupHAPLoss(PairLoss, of=sup_h_ap_loss):
    """:func:`sup_h_ap_loss` over a batch, relevance from the label levels that query and item share.

    Which items count as better is decided by the level, what they are worth by the relevance, computed on each query's
    list. Sets of labels and a relevance matrix (:func:`~sightline.ranking.pairs.batch_pairs`) give the worth of an
    item themselves.

    Args:
        relevance: ``population`` (the papers'), ``weight``, ``sum_wap`` or ``exponential``; see
            :mod:`sightline.labels.relevance`.
        alpha: exponent of ``population`` and ``weight``: above 1 favours the finest level.
        tau: as in :func:`sup_h_ap_loss`, like the rest.
        rho: slope for a less relevant item more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.
    """

    def __init__(
        self,
        relevance: str = "population",
        alpha: float = 1.0,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
    ) -> None:
        super().__init__(tau, rho, delta, preset)
        self.relevance = level_relevance(relevance, alpha)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        return _by_levels(_h_ap, pairs, self.relevance, SupRank(**self.options).step)


class SmoothHAPLoss(PairLoss, of=smooth_h_ap_loss, presets=True):
    """:func:`smooth_h_ap_loss` over a batch, relevance as in :class:`SupHAPLoss`."""

    def __init__(
        self, relevance: str = "population", alpha: float = 1.0, *, tau: float = 0.01, preset: str = "paper"
    ) -> None:
        super().__init__(tau, preset=preset)
        self.relevance = level_relevance(relevance, alpha)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        return _by_levels(_h_ap, pairs, self.relevance, SigmoidStep(**self.options))


class SupNDCGLoss(PairLoss, of=sup_ndcg_loss):
    """:func:`sup_ndcg_loss` over a batch, with the gain ``2 ** l - 1`` for l shared label levels.

    With sets of labels or a relevance matrix, the gain is the relevance itself.
    """


class SmoothNDCGLoss(PairLoss, of=smooth_ndcg_loss, presets=True):
    """:func:`smooth_ndcg_loss` over a batch, gains as in :class:`SupNDCGLoss`."""


def level_relevance(name: str, alpha: float) -> Relevance:
    """The named relevance of levels, with its exponent where it has one."""
    check_range("(0, inf)", alpha=alpha)
    function = choose(RELEVANCES, name, "relevance")
    return partial(function, alpha=alpha) if name in ("population", "weight") else function
