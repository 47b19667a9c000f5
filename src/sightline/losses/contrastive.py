"""Losses on pairs and triplets: where similar and dissimilar scores lie, whatever their ranks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sightline.errors import InputError, choose
from sightline.kernels.blocks import packed
from sightline.losses.base import LossBatch, PairLoss, on_batches, on_scores, uncompiled
from sightline.ranking.pairs import Pairs, check_indices, check_labels
from sightline.ranking.ranks import check_range, smooth_counts

REDUCTIONS = dict.fromkeys(["mean", "nonzero"])
BLOCK_ELEMENTS = 1 << 19  # of (rows, G) tables held at once: 2 MB each


def mean_of_nonzero(terms: Tensor) -> Tensor:
    """() mean of the terms above 0, none of which is below; 0, still differentiable, where all are 0."""
    return terms.sum() / (terms > 0).sum().clamp(min=1)


@on_scores
def calibration_loss(pairs: Pairs, alpha: float = 0.9, beta: float = 0.6, reduction: str = "mean") -> Tensor:
    """How far relevant scores lie below ``alpha`` and irrelevant ones above ``beta``: the pair form of decomposability.

    If scores mean the same in every batch, a high average precision in each batch is one on the whole set. For each query
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
    if not -math.inf < beta < alpha < math.inf:
        raise InputError(f"alpha must be above beta, and both finite, got alpha {alpha} and beta {beta}")
    choose(REDUCTIONS, reduction, "reduction")
    return _hinge_loss(pairs.scores, pairs.flat, alpha, beta, reduction)


@uncompiled
def _hinge_loss(scores: Tensor, levels: Tensor, alpha: float, beta: float, reduction: str) -> Tensor:
    """The loss of (Q, G) int8 levels: 1 relevant, 0 not, -1 not in the list."""
    return _HingeLoss.apply(scores, levels, alpha, beta, reduction)  # type: ignore[no-any-return, no-untyped-call]


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


class CalibrationLoss(PairLoss, of=calibration_loss):
    """:func:`calibration_loss` over a batch in which each item queries all the others, or a reference set."""


@on_scores
def contrastive_loss(pairs: Pairs, pos_margin: float = 0.9, neg_margin: float = 0.6) -> Tensor:
    """How far relevant pairs lie below one mark and irrelevant ones above another, over the pairs that do.

    The mean shortfall of all relevant pairs below ``pos_margin``, plus the mean excess of all irrelevant ones above
    ``neg_margin``; pairs within their mark are not counted in either mean, so few hard pairs weigh as much as many. Equal
    to pytorch-metric-learning's ``ContrastiveLoss`` on cosines. :func:`~sightline.losses.calibration_loss` has the same
    terms, but counts every pair and each query alike.

    Formula:
        ``mean of max(0, pos_margin - s) + mean of max(0, s - neg_margin)``, each over the pairs where it is above 0

    Use:
        A plain baseline on pairs.

    Cost:
        A few passes over the scores.

    Defaults:
        Marks of the calibration term.

    Limit:
        Equal to calibration with ``reduction="nonzero"``.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        pos_margin: what relevant scores should reach.
        neg_margin: what irrelevant scores should stay under.

    Returns:
        () sum of the two means; a mean of nothing is 0.

    Example:
        >>> scores = torch.tensor([[0.95, 0.70, 0.65, 0.30, 0.61]])
        >>> contrastive_loss(scores, torch.tensor([[True, True, False, False, False]]))
        tensor(0.2300)
    """
    check_range("(-inf, inf)", pos_margin=pos_margin, neg_margin=neg_margin)
    return _hinge_loss(pairs.scores, pairs.flat, pos_margin, neg_margin, "nonzero")


class ContrastiveLoss(PairLoss, of=contrastive_loss):
    """:func:`contrastive_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts.
    """


@on_scores
def xbm_contrastive_loss(pairs: Pairs, neg_margin: float = 0.5, epsilon: float = 1e-5) -> Tensor:
    """The contrastive loss of cross-batch memory: what relevant pairs lack to 1, plus irrelevant scores above a mark.

    Sums over each query's list, so it grows with the memory. Relevant scores within ``epsilon`` of 1 are left out: they are
    mostly the item itself, met in the memory.

    Formula:
        ``sum over k of (1 - s(k)) + sum over n with s(n) > neg_margin of s(n)``

    Use:
        With a large memory of earlier embeddings as reference set.

    Cost:
        A few passes over the scores.

    Defaults:
        Both marks of the released code of XBM (Wang et al., CVPR 2020).

    Limit:
        0 where relevant items coincide and others stay below neg_margin.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        neg_margin: irrelevant scores above it count, with their value and not with what they exceed it by.
        epsilon: how near to 1 a relevant score is taken for the item itself.

    Returns:
        () the sum over all pairs divided by Q; 0 of no query.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> xbm_contrastive_loss(scores, torch.tensor([[False, True, False, False, True]]))
        tensor(2.9000)
    """
    check_range("(-inf, inf)", neg_margin=neg_margin, epsilon=epsilon)
    scores, relevant = pairs.scores, pairs.relevant
    pulled = relevant & (scores < 1 - epsilon)
    pushed = pairs.mask & ~relevant & (scores > neg_margin)
    total = (1 - scores).masked_fill(~pulled, 0.0).sum() + scores.masked_fill(~pushed, 0.0).sum()
    return total / max(len(scores), 1)


class XBMContrastiveLoss(PairLoss, of=xbm_contrastive_loss):
    """:func:`xbm_contrastive_loss` over a batch in which each item queries all the others, or a reference set.

    The memory is the reference set; it may contain the batch. With labels in levels, only the finest counts.
    """


@on_scores
def sup_con_loss(pairs: Pairs, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss (SupCon): each relevant item against all others of the list, in a softmax.

    Of the two forms of Khosla et al. (NeurIPS 2020) the one with the sum outside the logarithm, which they recommend. Equal
    to pytorch-metric-learning's ``SupConLoss``. The paper's batches hold two augmented views of each image; here every
    image of the class counts as one.

    Formula:
        ``mean over k of log sum over all j of exp(s(j) / temperature) - s(k) / temperature``

    Use:
        Features for out-of-distribution detection, in place of cross-entropy (thesis, Table 5.3); a baseline on pairs.

    Cost:
        A few passes over the scores.

    Defaults:
        temperature of the paper.

    Limit:
        Times temperature, it tends to the highest score less the mean of the relevant ones as temperature tends to 0.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        temperature: what scores are divided by.

    Returns:
        () mean over the queries with a relevant item; 0 of none.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
        >>> sup_con_loss(scores, torch.tensor([[False, True, False, False, True]]))
        tensor(2.9519)
    """
    check_range("(0, inf)", temperature=temperature)
    relevant, answered = pairs.relevant, pairs.relevant.any(1)
    listed = pairs.mask & answered[:, None]
    # Less the highest of each list first: huge scores would overflow. A column more, for tables without any.
    highest = F.pad(pairs.scores.detach().where(listed, -torch.inf), (0, 1), value=-torch.inf).amax(1)
    logits = (pairs.scores - highest.where(answered, 0.0)[:, None]) / temperature
    chosen = logits.where(relevant, 0.0).sum(1) / relevant.sum(1).clamp(min=1)
    total = logits.where(listed, -torch.inf).exp().sum(1).where(answered, 1.0)
    return (total.log() - chosen).sum() / answered.sum().clamp(min=1)


class SupConLoss(PairLoss, of=sup_con_loss):
    """:func:`sup_con_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts.
    """


@dataclass(frozen=True)
class HingeStep:
    """``max(0, t + margin)``: a triplet's loss as a smooth stand-in for the step function."""

    margin: float

    def value(self, gap: Tensor) -> Tensor:
        return (gap + self.margin).relu()

    def slope(self, gap: Tensor) -> Tensor:
        return (gap + self.margin > 0).to(gap)


class BrokenStep(HingeStep):
    """1 where a triplet's loss is above 0, else 0; without a gradient."""

    def value(self, gap: Tensor) -> Tensor:
        return self.slope(gap)


def _all_triplets(scores: Tensor, relevant: Tensor, irrelevant: Tensor, margin: float) -> Tensor:
    """() mean over every triplet that breaks the margin, in blocks: no Q x P x G tensor is made."""
    index, valid = packed(relevant)
    positives = scores.gather(1, index)
    terms = smooth_counts(scores, positives, irrelevant, HingeStep(margin)).masked_fill(~valid, 0.0)
    broken = smooth_counts(scores.detach(), positives.detach(), irrelevant, BrokenStep(margin))
    # Counts of a row are exact in float32 up to 2^24 items; their sum may be larger.
    return terms.sum() / broken.masked_fill(~valid, 0.0).double().sum().clamp(min=1).to(terms)


def _hard_triplets(scores: Tensor, relevant: Tensor, irrelevant: Tensor, margin: float) -> Tensor:
    """() the least similar positive and the most similar negative of each anchor."""
    positive = scores.masked_fill(~relevant, torch.finfo(scores.dtype).max).amin(1)
    return _with_hardest(positive, scores, relevant, irrelevant, margin)


def _semi_hard_triplets(scores: Tensor, relevant: Tensor, irrelevant: Tensor, margin: float) -> Tensor:
    """() the most similar positive of each anchor and the most similar negative that is less similar than it."""
    positive = scores.masked_fill(~relevant, torch.finfo(scores.dtype).min).amax(1)
    return _with_hardest(positive, scores, relevant, irrelevant & (scores < positive[:, None]), margin)


def _with_hardest(positive: Tensor, scores: Tensor, relevant: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """() of the (Q,) scores of positives, each with the most similar of its negatives."""
    negative = scores.masked_fill(~negatives, torch.finfo(scores.dtype).min).amax(1)
    complete = relevant.any(1) & negatives.any(1)
    return mean_of_nonzero((negative - positive + margin).relu().masked_fill(~complete, 0.0))


DISTANCE_WEIGHTED = "distance-weighted"
NEAREST, FURTHEST = 0.5, 1.4  # distances of unit vectors: closer ones count as the first, further ones are not drawn
BY_SCORES = {"all": _all_triplets, "hard": _hard_triplets, "semi-hard": _semi_hard_triplets}


@on_scores
def triplet_loss(pairs: Pairs, margin: float = 0.05, mining: str = "semi-hard") -> Tensor:
    """How far a query's irrelevant items come within a margin of its relevant ones, over the triplets that do.

    Which triplets are taken:

    - ``"all"``: every one. Equal to pytorch-metric-learning's ``TripletMarginLoss`` on cosines; time is Q x P x G.
    - ``"hard"``: a query's least similar relevant item and its most similar irrelevant one.
    - ``"semi-hard"``: a query's most similar relevant item, and its most similar irrelevant one below that.
    - ``"distance-weighted"``, of the module alone: drawn, irrelevant items the more likely the rarer their distance is.

    Items that tie for a place share the gradient.

    Formula:
        ``mean of max(0, s(n) - s(k) + margin)`` over the triplets taken where it is above 0

    Use:
        The classical baseline; semi-hard mining is the safest.

    Cost:
        A few passes over the scores; every triplet, in blocks, with ``"all"``.

    Defaults:
        margin and mining of TL_SH in the SupRank papers.

    Limit:
        0 where every triplet taken keeps its margin.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        margin: how much more similar relevant items should be, from 0 up.
        mining: ``"all"``, ``"hard"`` or ``"semi-hard"``; ``"distance-weighted"`` needs embeddings: :class:`TripletLoss`.

    Returns:
        () mean over the triplets taken whose loss is above 0; 0 where there are none.

    Example:
        >>> scores = torch.tensor([[0.62, 0.60, 0.59, 0.585, 0.50]])
        >>> triplet_loss(scores, torch.tensor([[False, True, False, False, True]]))
        tensor(0.0400)
    """
    check_range("[0, inf)", margin=margin)
    if mining == DISTANCE_WEIGHTED:
        raise InputError(f"mining {mining!r} needs embeddings, which scores do not hold: use TripletLoss")
    mine = choose(BY_SCORES, mining, "mining")
    if pairs.scores.numel() == 0:
        return pairs.scores.sum()
    relevant = pairs.relevant
    return mine(pairs.scores, relevant, pairs.mask & ~relevant, margin)


class TripletLoss(PairLoss, of=triplet_loss):
    """:func:`triplet_loss` over a batch in which each item queries all the others, or a reference set.

    ``mining="distance-weighted"`` draws, for each item, as many triplets as its class has items: positives evenly,
    negatives the more likely the rarer their distance is on the sphere, none beyond 1.4, those under 0.5 as if at 0.5: as
    pytorch-metric-learning's ``DistanceWeightedMiner``, in float64. It draws from torch's global generator.

    With labels in levels, only the finest counts.

    Args:
        margin: how much more similar relevant items should be, from 0 up.
        mining: ``"all"``, ``"distance-weighted"``, ``"hard"`` or ``"semi-hard"``.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
        >>> TripletLoss(mining="hard")(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.2100)
    """

    def __init__(self, margin: float = 0.05, mining: str = "semi-hard") -> None:
        super().__init__(margin, "all" if mining == DISTANCE_WEIGHTED else mining)
        self.is_drawn = mining == DISTANCE_WEIGHTED

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        pairs = batch.pairs()
        if batch.indices_tuple is not None and len(batch.indices_tuple) == 3:
            anchors, positives, negatives = check_indices(batch.indices_tuple, *pairs.scores.shape)
        elif self.is_drawn:
            batch.refuse(["indices_tuple"], "distance-weighted mining draws from all pairs; give triplets, or none")
            check_labels(batch.labels, len(batch.embeddings), "labels")
            anchors, positives, negatives = _draw_triplets(pairs, batch.embeddings.shape[1])
        else:
            return self.of_pairs(pairs)
        gap = pairs.scores[anchors, negatives] - pairs.scores[anchors, positives]
        return mean_of_nonzero((gap + self.options["margin"]).relu())


def rarity(scores: Tensor, dim: int) -> Tensor:
    """(Q, G) float64, one over how often unit vectors of ``dim`` dimensions lie at such a distance, up to a factor a row.

    Distances below ``NEAREST`` count as that, those beyond ``FURTHEST`` as never drawn: 0.

    Args:
        scores: (Q, G) cosines; minus infinity for what is not to be drawn.
        dim: of the vectors.
    """
    # float64: in float32 one close pair in many dimensions would leave most other rows without any weight.
    squared = (2 - 2 * scores.double()).clamp(min=NEAREST**2)
    logits = (2 - dim) / 2 * squared.log() - (dim - 3) / 2 * torch.log1p(-squared / 4)
    logits = logits.masked_fill(squared >= FURTHEST**2, -torch.inf)
    return (logits - logits.amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)).exp()


@torch.no_grad()
def _draw_triplets(pairs: Pairs, dim: int) -> tuple[Tensor, ...]:
    """Anchors, positives and negatives, (T,) int64 each: for each item as many as its class has items, itself included."""
    relevant, is_self = pairs.relevant, ~pairs.mask
    weights = rarity(pairs.scores.masked_fill(relevant | is_self, -torch.inf), dim)
    anchors = (relevant.any(1) & weights.any(1)).nonzero()[:, 0]
    n_drawn = (relevant | is_self).sum(1)[anchors]
    if not len(anchors):
        return torch.zeros(3, 0, dtype=torch.int64, device=anchors.device).unbind()
    n_most = int(n_drawn.max())
    is_drawn = torch.arange(n_most, device=anchors.device) < n_drawn[:, None]
    tables = relevant.double(), weights
    positives, negatives = (torch.multinomial(table[anchors], n_most, replacement=True)[is_drawn] for table in tables)
    return anchors.repeat_interleave(n_drawn), positives, negatives
