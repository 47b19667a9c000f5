"""Losses that are one minus recall at several places, with the rank made smooth."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.losses.base import LossBatch, PairLoss, SupRank, flat_rank_loss, on_batches, on_scores
from sightline.losses.state import SeededDraws
from sightline.ranking.pairs import Pairs
from sightline.ranking.profile import Objective, RankProfile
from sightline.ranking.ranks import SigmoidStep, check_range
from sightline.ranking.similarity import unit

PLACES = (1, 2, 4, 8, 16)
NORMALISERS = {"capped": True, "positives": False}


def recall_objective(
    ks: Sequence[int], width: float, sup: bool, normalise: str = "capped", offset: float = 0.0
) -> Objective:
    """The formula on the ranks; with SupRank the rank among relevant items is exact and carries no gradient."""
    if not ks or not all(isinstance(k, int) and k > 0 for k in ks):
        raise InputError(f"ks must be whole numbers of at least 1, got {list(ks)}")
    check_range("(0, inf)", rank_width=width)
    check_range("(-inf, inf)", offset=offset)
    capped = choose(NORMALISERS, normalise, "normalise")

    def objective(profile: RankProfile) -> tuple[Tensor, Tensor]:
        among_relevant = profile.above if sup else 0.5 + profile.smooth[..., 1]
        rank = among_relevant + profile.smooth[..., 0]
        n_relevant = profile.valid.sum(1, keepdim=True).clamp(min=1)
        losses, slopes = rank.new_ones(len(rank)), torch.zeros_like(rank)
        for k in ks:
            inside = torch.sigmoid((k - rank + offset) / width) * profile.valid
            found, most = inside.sum(1), n_relevant.clamp(max=k) if capped else n_relevant
            losses -= (found if sup or not capped else found.clamp(max=k)) / most[:, 0] / len(ks)
            counts = torch.ones_like(found) if sup or not capped else (found <= k).to(found)
            slopes += inside * (1 - inside) * (counts[:, None] / (most * width * len(ks)))
        return losses, slopes[..., None].expand_as(profile.smooth)

    return objective


@on_scores
def sup_recall_loss(
    pairs: Pairs,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
    """One minus the share of ``min(k, relevant items)`` among the first k, mean over several k, with SupRank.

    Formula:
        ``1 - mean over K of sum over k of sigmoid((K - above(k) - sup(k)) / rank_width) / min(P, K)``

    Use:
        Where recall at a few places is reported. Use several places, so that all relevant items get a gradient.

    Cost:
        That of the core, and one sigmoid for each relevant item and place.

    Defaults:
        Places and rank_width of the released code of SupRank; the papers give none.

    Limit:
        Sup-R@k is no upper bound of one minus recall, unlike the other losses with SupRank: the outer sigmoid, which
        says whether a rank is within K, is positive where the step is 0. A lone relevant item at 0.50 below others at
        0.51 and 0.52 misses place 1, and its loss is 0.93.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        ks: the places.
        rank_width: width of the outer sigmoid, in ranks.
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> scores = torch.tensor([[0.50, 0.51, 0.52]])
        >>> sup_recall_loss(scores, torch.tensor([[True, False, False]]), ks=[1])
        tensor(0.9316)
    """
    return flat_rank_loss(pairs, SupRank(tau, rho, delta, preset).step, recall_objective(ks, rank_width, sup=True))


@on_scores
def smooth_recall_loss(
    pairs: Pairs,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
    normalise: str = "capped",
    offset: float = 0.0,
) -> Tensor:
    """One minus recall at several places with a sigmoid for every step; what is found counts at most k.

    Formula:
        ``1 - mean over K of min(K, sum over k of sigmoid((K + offset - smooth(k)) / rank_width)) / min(P, K)``

    Use:
        Recall with large batches; ``mixup`` of the module adds points between items of a class, which helps on small
        sets (SiMix), and ``include_query`` repeats the released code.

    Cost:
        That of the core; with mixup of a batch n (n - 1) / 2 more items for a class of n.

    Defaults:
        Places and both widths of RS@k (Patel et al., CVPR 2022).

    Limit:
        With an offset of 0.5, one minus recall at K, over min(P, K), as both widths tend to 0; with 0 an item at place
        K counts one half.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        ks: the places.
        rank_width: width of the outer sigmoid, in ranks.
        tau: width of the inner one, in units of the scores.
        normalise: ``capped`` divides what is found, at most k, by ``min(k, relevant items)``; ``positives`` divides all of
            it by the relevant items.
        offset: added to each k; with 0.5 the limit of narrow sigmoids is the true recall.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.
    """
    return flat_rank_loss(pairs, SigmoidStep(tau), recall_objective(ks, rank_width, False, normalise, offset))


class SupRecallLoss(PairLoss, of=sup_recall_loss):
    """:func:`sup_recall_loss` over a batch in which each item queries all the others, or a reference set."""


class SmoothRecallLoss(PairLoss, of=smooth_recall_loss, presets=True):
    """:func:`smooth_recall_loss` over a batch in which each item queries all the others, or a reference set.

    Args:
        ks: as in the function, like the next four.
        rank_width: width of the outer sigmoid.
        tau: width of the inner one.
        normalise: ``capped`` or ``positives``.
        offset: added to each k.
        mixup: in training, add to the batch a random point between every two items of a class, as queries and as items
            (SiMix); their similarities are those of the unscaled mean. Not with a reference set.
        include_query: count the query as an irrelevant item of its own list, as the authors' code does: every rank is about
            one larger.
        seed: random seed of the mixing weights.
        preset: ``released-code`` counts the query as a relevant item of its own list, as the code of ROADMAP does.
    """

    def __init__(
        self,
        ks: Sequence[int] = PLACES,
        rank_width: float = 1.0,
        tau: float = 0.01,
        normalise: str = "capped",
        offset: float = 0.0,
        *,
        mixup: bool = False,
        include_query: bool = False,
        seed: int = 0,
        preset: str = "paper",
    ) -> None:
        super().__init__(ks, rank_width, tau, normalise, offset, preset=preset)
        if self.include_self and (include_query or mixup):
            raise InputError(f"preset {preset!r} ranks the query itself: leave out include_query and mixup")
        self.mixup, self.include_query, self.draws = mixup, include_query, SeededDraws(seed)

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        if self.include_query or self.mixup:
            batch.refuse(["indices_tuple"], "include_query and mixup rank all pairs of a batch; set both to False")
        pairs = batch.pairs(self.include_self)
        scores, levels = pairs.scores, pairs.flat
        if self.mixup and self.training:
            batch.refuse(["ref_emb"], "mixup works within a batch; leave it out, or set mixup to False")
            n_pairs = int((levels > 0).triu(1).sum())
            scores, levels = mixed_pairs(batch.embeddings, levels, torch.rand(n_pairs, generator=self.draws.next()))
        if self.include_query and (batch.ref_emb is None or batch.ref_emb is batch.embeddings):
            levels = levels.clone().fill_diagonal_(0)
        return self.of_pairs(Pairs(scores, levels, 1, 1))


def mixed_pairs(embeddings: Tensor, levels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and flat levels of a batch and a point between every two of its items that are relevant to each other.

    A point is relevant to what both its items are relevant to, one of themselves included.

    Args:
        embeddings: (B, D).
        levels: (B, B) int8: 1 relevant, 0 not, -1 on the diagonal.
        weights: (P,) in [0, 1], how much of each point is its first item, in the order of the pairs (0, 1), (0, 2), ...
    """
    first, second = (levels > 0).triu(1).nonzero(as_tuple=True)
    real = unit(embeddings)
    share = weights.to(real)[:, None]
    # Not real[first]: on several threads torch adds up the gradient of that in any order.
    points = torch.cat([real, share * real.index_select(0, first) + (1 - share) * real.index_select(0, second)])
    kin = (levels != 0).float()  # of a class, itself included
    rows = torch.cat([kin, kin[first] * kin[second]])
    related = torch.cat([rows, rows[:, first] * rows[:, second]], 1) > 0
    with torch.autocast(embeddings.device.type, enabled=False):
        scores = points @ points.T
    return scores, related.to(torch.int8).fill_diagonal_(-1)
