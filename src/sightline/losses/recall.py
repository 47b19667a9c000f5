"""Losses that are one minus recall at several places, with the rank made smooth."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.average_precision import flat_levels, mean_over_queries
from sightline.ranking.profile import RankProfile, rank_losses
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs, check_positive
from sightline.ranking.relevance import batch_pairs

PLACES = (1, 2, 4, 8, 16)


def _recall(
    scores: Tensor, relevance: Tensor, mask: Tensor | None, ks: Sequence[int], width: float, step: SupStep | SigmoidStep
) -> Tensor:
    if not ks or min(ks) < 1:
        raise InputError(f"ks are {list(ks)}; places from 1 on are needed")
    check_positive(rank_width=width)
    scores, mask = check_pairs(scores, relevance, mask)
    levels = flat_levels(relevance, mask)
    clipped = isinstance(step, SigmoidStep)

    def objective(profile: RankProfile) -> Tensor:
        among_relevant = profile.exact[..., 1] if isinstance(step, SupStep) else 0.5 + profile.smooth[..., 1]
        rank = among_relevant + profile.smooth[..., 0]
        n_relevant = profile.valid.sum(1)
        recalls = []
        for k in ks:
            found = profile.over_targets(torch.sigmoid((k - rank) / width))
            recalls.append((found.clamp(max=k) if clipped else found) / n_relevant.clamp(min=1, max=k))
        return 1 - torch.stack(recalls).mean(0)

    return mean_over_queries(rank_losses(scores, levels, 1, step, objective), (levels > 0).sum(1))


def sup_recall_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
) -> Tensor:
    """One minus the share of ``min(k, relevant items)`` among the first k, mean over several k, with SupRank.

    Not an upper bound, unlike :func:`~sightline.losses.sup_ap_loss`: the outer sigmoid, which says whether a rank is within
    k, is positive where the step is 0. Several k are needed for all relevant items to get a gradient.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        ks: the places.
        rank_width: width of the outer sigmoid, in ranks.
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.50, 0.51, 0.52]])
        >>> sup_recall_loss(scores, torch.tensor([[True, False, False]]), ks=[1])
        tensor(0.9316)
    """
    return _recall(scores, relevance, mask, ks, rank_width, SupStep(tau, rho, delta))


def smooth_recall_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
) -> Tensor:
    """One minus recall at several places with a sigmoid for every step; what is found counts at most k.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        ks: the places.
        rank_width: width of the outer sigmoid, in ranks.
        tau: width of the inner one, in units of the scores.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    return _recall(scores, relevance, mask, ks, rank_width, SigmoidStep(tau))


class SupRecallLoss(nn.Module):
    """:func:`sup_recall_loss` over a batch in which each item queries all the others, or a reference set."""

    def __init__(
        self,
        ks: Sequence[int] = PLACES,
        rank_width: float = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
    ) -> None:
        super().__init__()
        self.ks, self.rank_width, self.tau, self.rho, self.delta = tuple(ks), rank_width, tau, rho, delta

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        options = (self.ks, self.rank_width, self.tau, self.rho, self.delta)
        return sup_recall_loss(pairs.scores, pairs.relevant, pairs.mask, *options)


class SmoothRecallLoss(nn.Module):
    """:func:`smooth_recall_loss` over a batch in which each item queries all the others, or a reference set."""

    def __init__(self, ks: Sequence[int] = PLACES, rank_width: float = 1.0, tau: float = 0.01) -> None:
        super().__init__()
        self.ks, self.rank_width, self.tau = tuple(ks), rank_width, tau

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        return smooth_recall_loss(pairs.scores, pairs.relevant, pairs.mask, self.ks, self.rank_width, self.tau)
