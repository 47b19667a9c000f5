"""Losses that are one minus average precision, with the rank made smooth."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.base import LossBatch, PairLoss, SupRank, flat_rank_loss, on_batches, on_scores
from sightline.ranking.pairs import GradedSets, Pairs, as_tensor, check_sets, flat_levels
from sightline.ranking.profile import RankProfile, mean_over_queries
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs


def one_minus_ap(rank_among_relevant: Tensor, rank: Tensor, valid: Tensor) -> Tensor:
    """() mean of one minus AP over the queries that have a relevant item, from the (Q, P) ranks of such items."""
    n_relevant = valid.sum(1)
    # Masked before, not afterwards: the gradient of 0 / 0 is NaN even where it is masked out. Not clamped: what a clamp
    # hands on at its bound, where the best rank lies, is not the same in all versions of torch.
    precision = rank_among_relevant / rank.where(valid, 1.0)
    return mean_over_queries(1 - (precision * valid).sum(1) / n_relevant.clamp(min=1), n_relevant)


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


@on_scores
def sup_ap_loss(
    pairs: Pairs, tau: float = 0.01, rho: float = 100.0, delta: float | None = 0.05, preset: str = "paper"
) -> Tensor:
    """One minus average precision with SupRank: an upper bound of ``1 - AP`` that pushes far mistakes hardest.

    The rank among relevant items is exact and carries no gradient; the count of irrelevant items above uses
    :class:`~sightline.ranking.ranks.SupStep`. It is 0 exactly where a query has no irrelevant item.

    Formula:
        ``1 - mean over k of above(k) / (above(k) + sup(k))``

    Use:
        The rank loss to start with, wherever items are relevant or not; :class:`~sightline.losses.RoadmapLoss` adds a term
        that keeps the scores of small batches comparable.

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
    return flat_rank_loss(pairs, SupRank(tau, rho, delta, preset).step, sup_ap_objective)


class SupAPLoss(PairLoss, of=sup_ap_loss):
    """:func:`sup_ap_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts.

    Example:
        >>> import torch
        >>> embeddings = torch.eye(4)[[0, 0, 1, 1]]
        >>> SupAPLoss()(embeddings, torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """


@on_scores
def smooth_ap_loss(pairs: Pairs, tau: float = 0.01) -> Tensor:
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
    return flat_rank_loss(pairs, SigmoidStep(tau), smooth_ap_objective)


class SmoothAPLoss(PairLoss, of=smooth_ap_loss, presets=True):
    """:func:`smooth_ap_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts. pytorch-metric-learning's ``SmoothAPLoss`` keeps each query in its own
    list, as a relevant item, and takes neighbours in the batch for a class: its value is this definition's on such a list
    where the batch is sorted by class and has as many classes as items in each.
    """


def each_label_ap_loss(
    scores: Tensor,
    labels: Tensor,
    ref_labels: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    label_weights: Sequence[float] | Tensor | None = None,
) -> Tensor:
    """:func:`~sightline.losses.sup_ap_loss` once for each label of the query, its carriers relevant, and their mean.

    One ranking serves all labels of a query: what carries two of them counts in both. A label that no item of the query's
    list carries is left out, and so is a query all of whose labels are.

    Formula:
        The mean over the query's labels c of sup_ap, k running over the items with c and n over those without

    Use:
        Flat sets of labels, each of which is to be found; where sharing any one is enough, use sup_ap. It ignores how
        similar two labels are.

    Cost:
        That of the core with one row for each label of each query, and as many rows of scores held.

    Defaults:
        Those of sup_ap; every label of a query weighs the same.

    Limit:
        Never below one minus the ``map`` of :func:`~sightline.evaluate_each_label` with ties by counting; sup_ap where each
        item has one label.

    Args:
        scores: (Q, G) similarity of each query to each item.
        labels: (Q, C) bool, the labels of each query.
        ref_labels: (G, C) bool, those of each item.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for an item without the label more than ``delta`` above one with it.
        delta: where that slope starts; None for where the sigmoid comes to 0.99.
        label_weights: what each of the C labels weighs in the mean of a query, such as one over its frequency; 0 leaves it
            out. None for equal weights.

    Returns:
        () mean over the queries that share a label with an item of their list; 0 where none does.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7]])
        >>> query, items = torch.tensor([[True, True]]), torch.tensor([[True, False], [False, True], [True, True]])
        >>> each_label_ap_loss(scores, query, items, tau=0.001, rho=1.0)
        tensor(0.3741)
    """
    step, weights = SupStep(tau, rho, delta), _check_weights(label_weights)
    scores, mask = check_pairs(scores, scores, mask)  # relevance comes from the labels
    labels, ref_labels = as_tensor(labels, "labels", scores.device), as_tensor(ref_labels, "ref_labels", scores.device)
    check_sets(labels, ref_labels, *scores.shape)
    return _of_sets(scores, labels, ref_labels, mask, step, weights)


def _check_weights(weights: Sequence[float] | Tensor | None) -> list[float] | None:
    if weights is None:
        return None
    table = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    if table.ndim != 1 or not (table >= 0).all() or not table.isfinite().all() or not table.any():
        raise InputError(f"label_weights must be finite, at least 0 and not all 0, got {weights!r}")
    return table.tolist()


def _of_sets(
    scores: Tensor, labels: Tensor, ref_labels: Tensor, mask: Tensor, step: SupStep, weights: list[float] | None
) -> Tensor:
    """The loss of what is known to belong together: one row of the core for each label of each query."""
    if weights is not None and len(weights) != labels.shape[1]:
        raise InputError(f"label_weights must be {labels.shape[1]}, one for each label, got {len(weights)}")
    of_labels = scores.new_ones(labels.shape[1]) if weights is None else scores.new_tensor(weights) / max(weights)
    n_carriers = mask.to(scores) @ ref_labels.to(scores)
    weight = (labels & (n_carriers > 0)) * of_labels  # (Q, C)
    total = weight.sum(1, keepdim=True)
    query, label = weight.nonzero(as_tuple=True)
    # What a row weighs in the whole, times their number: the core divides by it.
    share = (weight / total)[query, label] * len(query) / (total > 0).sum()

    def weighted(profile: RankProfile) -> tuple[Tensor, Tensor]:
        losses, slopes = sup_ap_objective(profile)
        own = share[profile.rows]
        return losses * own, slopes * own[:, None, None]

    levels = flat_levels(ref_labels.T[label], mask[query])
    return flat_rank_loss(Pairs(scores.index_select(0, query), levels, 1, 1), step, weighted)


class EachLabelAPLoss(nn.Module):
    """:func:`each_label_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Labels are sets, (B, C) bool. With classes, levels of a tree or a relevance matrix, one label an item, it is
    :class:`~sightline.losses.SupAPLoss`, and takes no ``label_weights``.

    Example:
        >>> embeddings = torch.eye(3)[[0, 0, 1, 1]]
        >>> EachLabelAPLoss()(embeddings, torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]]).bool())
        tensor(0.2058)
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        label_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.step, self.label_weights = SupStep(tau, rho, delta), _check_weights(label_weights)

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        pairs, labels = batch.pairs(), batch.labels
        if isinstance(labels, GradedSets):
            sets = labels.ref_sets[labels.level]
            return _of_sets(pairs.scores, labels.own, sets, pairs.mask, self.step, self.label_weights)
        if labels.dtype == torch.bool:
            sets = labels if batch.ref_labels is None else batch.ref_labels
            return _of_sets(pairs.scores, labels, sets, pairs.mask, self.step, self.label_weights)
        if self.label_weights is not None:
            raise InputError(f"label_weights are for sets of labels, (B, C) bool, got {labels.dtype}")
        return flat_rank_loss(pairs, self.step, sup_ap_objective)
