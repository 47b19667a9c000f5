"""Losses that are one minus average precision of a histogram: scores fall softly into bins, and bins are ranked."""

import math
from collections.abc import Callable
from inspect import unwrap

import torch
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.losses.base import LossBatch, PairLoss, on_batches, on_scores
from sightline.ranking.pairs import Pairs, check_labels
from sightline.ranking.profile import mean_over_queries
from sightline.ranking.ranks import check_counts


def soft_histogram(scores: Tensor, weights: Tensor, n_bins: int = 20, low: float = -1.0, high: float = 1.0) -> Tensor:
    """The weight that falls into each bin, the bin of the highest scores first.

    Centres are evenly spaced from ``high`` down to ``low``. A score is shared between the two centres beside it, the nearer
    getting the more, so that its shares sum to 1; a score outside the range counts as its end. The slope is 0 on a centre
    and outside the range. Two additions a score: no Q x G x M tensor is made.

    Args:
        scores: (Q, G), finite.
        weights: (Q, G) how much each score counts.
        n_bins: how many centres, 2 or more.
        low: the last centre.
        high: the first centre.

    Returns:
        (Q, n_bins) in the dtype of ``scores``.

    Example:
        >>> soft_histogram(torch.tensor([[0.9, 0.25]]), torch.ones(1, 2), n_bins=5)
        tensor([[0.8000, 0.7000, 0.5000, 0.0000, 0.0000]])
    """
    place = (high - scores.clamp(low, high)) * ((n_bins - 1) / (high - low))  # 0 on the first centre
    upper = place.detach().floor().clamp(0, n_bins - 2)
    share = (place - upper).clamp(0, 1)  # of the lower of the two bins
    # On a centre the two sides disagree about the slope: the subgradient there is 0.
    share = torch.where((share == 0) | (share == 1), share.detach(), share)
    bins = torch.zeros(len(scores), n_bins, dtype=scores.dtype, device=scores.device)
    index = upper.long()
    return bins.scatter_add(1, index, (1 - share) * weights).scatter_add(1, index + 1, share * weights)


def _quantised(relevant: Tensor, total: Tensor) -> Tensor:
    """AP19's mAP_Q: the precision at the end of each bin."""
    # 0 with no gradient where both are 0.
    return relevant.cumsum(1) / total.cumsum(1).clamp(min=torch.finfo(total.dtype).tiny)


def _simplified(relevant: Tensor, total: Tensor) -> Tensor:
    """AP19's mAP_T: the precision half-way through each bin, its items being tied."""
    return (1 + 2 * relevant.cumsum(1) - relevant) / (1 + 2 * total.cumsum(1) - total)


def _integral(relevant: Tensor, total: Tensor) -> Tensor:
    """The closed form of the released code of AP19: the mean precision over the places of each bin."""
    relevant_before, total_before = relevant.cumsum(1) - relevant, total.cumsum(1) - total
    slope = (relevant - 1).relu() / ((total - 1).relu() + 1e-8)
    growth = torch.log1p(total / (total_before + 1))
    return (total * slope + (relevant_before + 1 - slope * (total_before + 1)) * growth) / (total + 1e-8)


TIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "integral": _integral,
    "quantised": _quantised,
    "simplified": _simplified,
}


@on_scores
def softbin_ap_loss(
    pairs: Pairs,
    n_bins: int = 20,
    low: float = -1.0,
    high: float = 1.0,
    ties: str = "quantised",
    weights: Tensor | None = None,
) -> Tensor:
    """One minus average precision of a histogram of the scores: mAP_Q of AP19 (Learning with Average Precision, 2019).

    Formula:
        ``1 - sum over bins m of precision(m) * relevant(m) / P``, relevant(m) what falls of the relevant items into bin
        m, precision(m) their share in the bins up to m

    Use:
        To compare with published results; there, the module's ``class_balanced`` was worth one to three points of mAP.

    Cost:
        Time and memory of Q x G, whatever the number of bins.

    Defaults:
        20 bins on [-1, 1] (Revaud et al., ICCV 2019); their code has 25 on [0, 1], and the query in its own list, which is
        the module's ``include_self``.

    Limit:
        With more bins it does not tend to ``1 - AP``: a score stays shared between two bins. For scores at least two
        bins apart it lies from 0 to 0.0858 above, and equals it where each score is a bin's centre;
        ``ties="simplified"`` is nearer elsewhere.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        n_bins: how many bin centres, 2 or more.
        low: the centre of the last bin; lower scores count as this one, without a slope.
        high: the centre of the first bin; higher scores count as this one.
        ties: the precision inside a bin: ``"quantised"`` is that at its end, ``"simplified"`` half-way through it (mAP_T),
            ``"integral"`` the mean over its places as the released code of mAP_T has it, which for a bin of one item is far
            from AP (a perfect first hit counts as ln 2) and has a very steep slope where a bin holds just over one item.
        weights: (Q,) how much each query counts, not below 0; None for all alike. See :func:`class_balanced_weights`.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has, or none has a weight.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.9, 0.8, 0.55, 0.3, -0.2]])
        >>> softbin_ap_loss(scores, torch.tensor([[True, False, True, False, True]]))
        tensor(0.2883)
    """
    check_counts(least=2, n_bins=n_bins)
    if not -math.inf < low < high < math.inf:
        raise InputError(f"low must be below high, and both finite, got low {low} and high {high}")
    precision_in = choose(TIES, ties, "ties")
    scores, relevant = pairs.scores, pairs.relevant
    n_relevant = relevant.sum(1)
    positives = soft_histogram(scores, relevant.to(scores), n_bins, low, high)
    everything = soft_histogram(scores, pairs.mask.to(scores), n_bins, low, high)
    ap = (precision_in(positives, everything) * positives).sum(1) / n_relevant.clamp(min=1)
    if weights is None:
        return mean_over_queries(1 - ap, n_relevant)
    if weights.shape != n_relevant.shape or not (weights.isfinite() & (weights >= 0)).all():
        raise InputError(f"weights must be ({len(scores)},), finite and at least 0, got {weights}")
    weights = weights.to(scores) * (n_relevant > 0)
    whole = weights.sum()
    return ((1 - ap) * weights).sum() / torch.where(whole > 0, whole, 1)


def class_balanced_weights(labels: object, counted: Tensor) -> Tensor:
    """A weight for each query, such that the classes count alike, however many queries each has.

    Args:
        labels: (Q,) or (Q, L) integers; queries with the same row are of one class.
        counted: (Q,) bool, True where the query takes part.

    Returns:
        (Q,) float64, 0 where a query does not take part; they sum to 1, or to 0 where none does.

    Example:
        >>> class_balanced_weights(torch.tensor([4, 4, 7, 9]), torch.tensor([True, True, True, False]))
        tensor([0.2500, 0.2500, 0.5000, 0.0000], dtype=torch.float64)
    """
    classes = check_labels(labels, len(counted), "labels").unique(dim=0, return_inverse=True)[1]
    n_queries = torch.bincount(classes, counted.double())
    n_classes = (n_queries > 0).sum().clamp(min=1)
    return counted / (n_queries[classes].clamp(min=1) * n_classes)


class SoftBinAPLoss(PairLoss, of=softbin_ap_loss, presets=True):
    """:func:`softbin_ap_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts.

    Args:
        n_bins: as in :func:`softbin_ap_loss`, like ``low``, ``high`` and ``ties``.
        low: the centre of the last bin.
        high: the centre of the first bin.
        ties: the precision inside a bin.
        class_balanced: True for the mean over classes of the mean inside each; False for the mean over queries.
        include_self: keep a query in its own list, as a relevant item of score 1, as the formula of AP19 and its code do.
        preset: ``released-code`` does the same, as the code of ROADMAP does.

    Example:
        >>> import torch
        >>> embeddings = torch.eye(4)[[0, 0, 1, 1]]
        >>> SoftBinAPLoss()(embeddings, torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(
        self,
        n_bins: int = 20,
        low: float = -1.0,
        high: float = 1.0,
        ties: str = "quantised",
        class_balanced: bool = False,
        include_self: bool = False,
        preset: str = "paper",
    ) -> None:
        super().__init__(n_bins, low, high, ties, preset=preset)
        self.class_balanced, self.include_self = class_balanced, include_self or self.include_self

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        pairs = batch.pairs(self.include_self)
        weights = class_balanced_weights(batch.labels, pairs.relevant.any(1)) if self.class_balanced else None
        return self.formula(pairs, **self.options | {"weights": weights})


@on_scores
def fast_ap_loss(pairs: Pairs, n_bins: int = 10) -> Tensor:
    """One minus FastAP: average precision of a histogram of squared distances between unit vectors.

    Formula:
        That of softbin_ap on the squared distance ``2 - 2 s(j)``.

    Use:
        To compare with published results of FastAP.

    Cost:
        As softbin_ap.

    Defaults:
        10 bins (Cakir et al., CVPR 2019).

    Limit:
        Equal to :func:`softbin_ap_loss` with ``n_bins + 1`` centres on [-1, 1].

    Args:
        scores: (Q, G) cosine of each query with each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        n_bins: steps from one centre to the next, 1 or more: there is one centre more.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> fast_ap_loss(scores, torch.tensor([[False, True, False, False, True]]))
        tensor(0.6167)
    """
    check_counts(n_bins=n_bins)
    return unwrap(softbin_ap_loss)(pairs, n_bins + 1)  # type: ignore[no-any-return]


class FastAPLoss(PairLoss, of=fast_ap_loss):
    """:func:`fast_ap_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts. The value is that of pytorch-metric-learning's ``FastAPLoss`` with as
    many bins.
    """
