"""Losses on exact ranks, whose backward pass compares them with the ranks of scores moved along the gradient (RaMBO)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.average_precision import one_minus_ap
from sightline.losses.base import LossBatch, PairLoss, on_batches, on_scores
from sightline.losses.state import RecentBatches, SeededDraws, pairs_with_memory
from sightline.ranking.pairs import Pairs, as_tensor
from sightline.ranking.profile import mean_over_queries, with_gradient
from sightline.ranking.ranks import check_pairs, check_range
from sightline.ranking.similarity import check_tensor


def best_first(scores: Tensor, relevant: Tensor, mask: Tensor) -> Tensor:
    """(Q, G) int64 the columns in order: by falling score, irrelevant before relevant where equal, then by column.

    Columns outside the mask come last.
    """
    pessimistic = relevant.byte().argsort(dim=1, stable=True)
    keys = scores.masked_fill(~mask, -math.inf).gather(1, pessimistic)
    return pessimistic.gather(1, keys.argsort(dim=1, descending=True, stable=True))


def _places(order: Tensor) -> Tensor:
    """(Q, G) the place of each column in ``order``, from 1."""
    places = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


class _Ranks(torch.autograd.Function):
    """Ranks from 1, with one strength a row; the gradient is 4.1 of the specification, on ranks that are not divided."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, relevant: Tensor, mask: Tensor, strength: Tensor) -> Tensor:
        ranks = _places(best_first(scores, relevant, mask)).to(scores)
        ctx.save_for_backward(scores, relevant, mask, strength, ranks)
        return ranks

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        scores, relevant, mask, strength, ranks = ctx.saved_tensors
        moved = _places(best_first(scores + strength * gradients[0], relevant, mask)).to(scores)
        return ((moved - ranks) / strength).masked_fill(~mask, 0.0), None, None, None


def _ranks(scores: Tensor, relevant: Tensor, mask: Tensor, strength: float) -> Tensor:
    """:func:`blackbox_ranks` times the length of each list: whole numbers, with the same gradient of a loss on them."""
    check_range("(0, inf)", strength=strength)
    per_row = mask.sum(1, keepdim=True).clamp(min=1).to(scores) * strength
    return _Ranks.apply(scores, relevant, mask, per_row)  # type: ignore[no-any-return, no-untyped-call]


@on_scores
def blackbox_ranks(pairs: Pairs, strength: float = 4.0) -> Tensor:
    """The exact rank of each item, divided by the length of its list; the gradient is that of an interpolation.

    The ranks are a permutation: equal scores rank the irrelevant item first, then the earlier column. For ``g`` from the
    loss, the gradient is ``(rank(scores + strength * g) - rank(scores)) / strength``. It sums to 0 over each list.
    It is not linear in ``g``: a factor on the loss acts on ``strength``; the losses of this module are free of that. Two
    sorts of each row in either pass.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant. It decides between equal scores only.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        strength: how far the scores are moved, above 0; the papers' lambda.

    Returns:
        (Q, G) in (0, 1]; 0 outside the mask.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.3, 0.8, 0.5, 0.5]], requires_grad=True)
        >>> ranks = blackbox_ranks(scores, torch.tensor([[True, False, True, False]]), strength=1.0)
        >>> ranks
        tensor([[1.0000, 0.2500, 0.7500, 0.5000]], grad_fn=<MaskedFillBackward0>)
        >>> ranks[0, 0].backward()
        >>> scores.grad
        tensor([[-0.7500,  0.2500,  0.2500,  0.2500]])
    """
    mask = pairs.mask
    ranks = _ranks(pairs.scores, pairs.relevant, mask, strength)
    return (ranks / mask.sum(1, keepdim=True).clamp(min=1)).masked_fill(~mask, 0.0)


def _linear_above(loss_of: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """``loss_of(scores)``, with the gradient that it has alone, times whatever factor is put on it.

    A blackbox gradient is not linear: the scale of mixed precision (65536) or a weight in a sum would act on the strength.
    """
    if not (torch.is_grad_enabled() and scores.requires_grad):
        return loss_of(scores)
    leaf = scores.detach().requires_grad_()
    loss = loss_of(leaf)
    return with_gradient(scores, loss.detach(), *torch.autograd.grad(loss, leaf))


def with_margin(scores: Tensor, relevant: Tensor, margin: float, generator: torch.Generator | None = None) -> Tensor:
    """The scores with irrelevant items half a margin higher and relevant ones half a margin lower.

    Args:
        scores: (Q, G).
        relevant: (Q, G) bool.
        margin: 0 or more, in units of the scores.
        generator: None for the margin as it is; otherwise each item's is multiplied by the size of a standard normal number
            from here, as the released code of RaMBO does for average precision.
    """
    check_range("[0, inf)", margin=margin)
    half = scores.new_full((), margin / 2)  # a plain number would be rounded to single precision
    shift = torch.where(relevant, -half, half)
    if generator is not None:
        shift = shift * torch.randn(scores.shape, generator=generator, device=generator.device).abs().to(scores)
    return scores + shift


@on_scores
def blackbox_ap_loss(
    pairs: Pairs, strength: float = 4.0, margin: float = 0.02, generator: torch.Generator | None = None
) -> Tensor:
    """One minus exact average precision after a margin, with the gradient of :func:`blackbox_ranks`.

    The rank among relevant items is a constant.

    Formula:
        ``1 - mean over k of above(k) / rank(k)`` on exact ranks of ``s(j) + margin / 2`` for irrelevant and ``s(k) -
        margin / 2`` for relevant items

    Use:
        The metric itself as the value; sensitive to ``strength``, and best with a ``memory`` of recent batches.

    Cost:
        A few sorts of each row, forward and backward.

    Defaults:
        strength and margin for SOP (Rolínek et al., CVPR 2020); In-Shop had 0.2 and 0.05, CUB 0.2 and 0.02. They kept 3
        batches.

    Limit:
        With margin 0 and no equal scores the value is ``1 - AP``; the gradient tends to 0 as strength does.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        strength: how far scores are moved in the backward pass, above 0; the papers' lambda. They are moved along the
            gradient of the mean, so more queries need more of it.
        margin: how far a relevant score must be above an irrelevant one to rank above it.
        generator: draws the margin of each item, half-normal; None for the same margin everywhere.

    Returns:
        () mean over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.30, 0.80, 0.10, 0.50, 0.62]])
        >>> blackbox_ap_loss(scores, torch.tensor([[True, False, False, True, False]]), margin=0.1)
        tensor(0.5833)
    """
    relevant, mask = pairs.relevant, pairs.mask
    scores = with_margin(pairs.scores, relevant, margin, generator)
    among_relevant = _ranks_among(scores, relevant, mask)
    return _linear_above(
        lambda leaf: one_minus_ap(among_relevant, _ranks(leaf, relevant, mask, strength), relevant), scores
    )


def _ranks_among(scores: Tensor, relevant: Tensor, mask: Tensor) -> Tensor:
    """(Q, G) int64 how many relevant items stand at each item's place or above it."""
    order = best_first(scores.detach(), relevant, mask)
    return torch.empty_like(order).scatter_(1, order, relevant.gather(1, order).cumsum(1))


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "log": torch.log1p,
    "loglog": lambda n_above: torch.log1p(torch.log1p(n_above)),
}
REDUCTIONS = dict.fromkeys(["pairs", "queries"])


def _penalty(weights: str | Sequence[float]) -> Callable[[Tensor], Tensor]:
    """The penalty for a number of irrelevant items above: one of the table, or the sum of as many weights."""
    if isinstance(weights, str):
        return choose(PENALTIES, weights, "weights")
    if not weights or not all(0 <= weight < math.inf for weight in weights):
        raise InputError(f"weights must be one or more finite numbers, each at least 0, got {list(weights)}")

    def summed(n_above: Tensor) -> Tensor:
        steps = torch.tensor([*weights, 0.0]).to(n_above)
        place = n_above.detach().long().clamp(max=len(weights))
        # Between whole numbers it is straight: the slope at k is the step from k to k + 1.
        return (steps.cumsum(0) - steps)[place] + steps[place] * (n_above - n_above.detach())

    return summed


@on_scores
def blackbox_recall_loss(
    pairs: Pairs,
    strength: float = 4.0,
    margin: float = 0.02,
    weights: str | Sequence[float] = "loglog",
    reduction: str = "queries",
) -> Tensor:
    """A penalty that grows with the number of irrelevant items above each relevant one; RaMBO's refined recall.

    It is the weighted sum over K of the share of relevant items with K or more irrelevant ones above. It is 0 exactly
    where, after the margin, no irrelevant item is above a relevant one.

    Formula:
        ``mean over k of W(rank(k) - above(k))``, W being ``ln(1 + ln(1 + n))``, ``ln(1 + n)`` or a sum of weights

    Use:
        RaMBO's own choice for retrieval: every relevant item is supervised, late places less.

    Cost:
        As blackbox_ap.

    Defaults:
        loglog, strength and margin as published for SOP.

    Limit:
        With weights (1,) and margin 0, the share of relevant items below an irrelevant one.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        strength: as in :func:`blackbox_ap_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one to rank above it.
        weights: of K = 1, 2, ...: ``"log"`` for a penalty of ln(1 + n), ``"loglog"`` for ln(1 + ln(1 + n)), or the weights
            themselves, not below 0, the rest being 0.
        reduction: ``"queries"`` for the mean over queries of the mean over their relevant items, ``"pairs"`` for the mean
            over all relevant items. They are equal where every query has as many.

    Returns:
        () the mean, over the queries that have a relevant item; 0 where none has.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.30, 0.80, 0.10, 0.50, 0.62]])
        >>> blackbox_recall_loss(scores, torch.tensor([[True, False, False, True, False]]), weights="log")
        tensor(1.0986)
    """
    return _recall(pairs, strength, margin, _penalty(weights), reduction)


def _recall(pairs: Pairs, strength: float, margin: float, penalty: Callable[[Tensor], Tensor], reduction: str) -> Tensor:
    choose(REDUCTIONS, reduction, "reduction")
    relevant, mask = pairs.relevant, pairs.mask
    n_relevant = relevant.sum(1)
    scores = with_margin(pairs.scores, relevant, margin)
    among_relevant = _ranks_among(scores, relevant, mask)

    def loss_of(leaf: Tensor) -> Tensor:
        n_above = (_ranks(leaf, relevant, mask, strength) - among_relevant) * relevant
        penalties = penalty(n_above) * relevant
        if reduction == "pairs":
            return penalties.sum() / n_relevant.sum().clamp(min=1)
        return mean_over_queries(penalties.sum(1) / n_relevant.clamp(min=1), n_relevant)

    return _linear_above(loss_of, scores)


class BlackBoxAPLoss(PairLoss, of=blackbox_ap_loss):
    """:func:`blackbox_ap_loss` over a batch in which each item queries all the others, or a reference set.

    With labels in levels, only the finest counts. Evaluation mode uses neither margin nor memory. An image that comes again
    while it is in memory is an easy relevant item of its own list: let an epoch contain each image once.

    Args:
        strength: as in :func:`blackbox_ap_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one.
        memory: how many earlier batches of the epoch lengthen the lists, without a gradient and without being queries. They
            are part of the ``state_dict``; :meth:`reset` forgets them.
        margin_noise: True to multiply each item's margin by the size of a standard normal number.
        seed: random seed of that noise.

    Example:
        >>> import torch
        >>> loss = BlackBoxAPLoss(memory=1)
        >>> loss(torch.eye(2)[[0, 0]], torch.tensor([5, 5])), loss(torch.eye(2)[[0, 0]], torch.tensor([6, 6]))
        (tensor(0.), tensor(0.6667))
    """

    def __init__(
        self, strength: float = 4.0, margin: float = 0.02, memory: int = 0, margin_noise: bool = False, seed: int = 0
    ) -> None:
        super().__init__(strength, margin)
        self.margin_noise, self.recent, self.draws = margin_noise, RecentBatches(memory), SeededDraws(seed)

    def reset(self) -> None:
        """Empty the memory."""
        self.recent.reset()

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        pairs = pairs_with_memory(self.recent, batch)
        if not self.training:
            return self.formula(pairs, **self.options | {"margin": 0.0})
        return self.formula(pairs, **self.options | {"generator": self.draws.next() if self.margin_noise else None})


class BlackBoxRecallLoss(PairLoss, of=blackbox_recall_loss):
    """:func:`blackbox_recall_loss` over a batch in which each item queries all the others, or a reference set.

    Evaluation mode is as in :class:`BlackBoxAPLoss`.

    Args:
        strength: as in :func:`blackbox_recall_loss`, like ``margin``, ``weights`` and ``reduction``.
        margin: how far a relevant score must be above an irrelevant one.
        weights: of the places.
        reduction: over queries or over all pairs; the released code's is ``pairs``.
        memory: how many earlier batches are kept.
        memory_as: ``items`` lengthen the lists, as the paper means it and as in :class:`BlackBoxAPLoss`. ``queries`` is
            RaMBO's released code: old rows of scores are more queries with their old lists, without a gradient, and each
            number of items above counts times the batches ranked. Batches then have one size.

    Example:
        >>> import torch
        >>> BlackBoxRecallLoss()(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(
        self,
        strength: float = 4.0,
        margin: float = 0.02,
        weights: str | Sequence[float] = "loglog",
        reduction: str = "queries",
        *,
        memory: int = 0,
        memory_as: str = "items",
    ) -> None:
        super().__init__(strength, margin, weights, reduction)
        self.recent = RecentBatches(memory)
        self.keeps_queries: bool = choose({"items": False, "queries": True}, memory_as, "memory_as")

    def reset(self) -> None:
        """Empty the memory."""
        self.recent.reset()

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        if self.keeps_queries and self.training and self.recent.n_batches:
            return self._with_earlier_queries(batch.in_full_precision().pairs())
        pairs = pairs_with_memory(self.recent, batch)
        return self.formula(pairs, **self.options | ({} if self.training else {"margin": 0.0}))

    def _with_earlier_queries(self, pairs: Pairs) -> Tensor:
        flat = pairs.flat.long()
        earlier, earlier_levels = self.recent.before(pairs.scores, flat)
        scores, levels = torch.cat([pairs.scores, earlier]), torch.cat([flat, earlier_levels]).to(torch.int8)
        self.recent.push(pairs.scores, flat)
        times, penalty = len(scores) / len(flat), _penalty(self.options["weights"])
        found = {name: self.options[name] for name in ("strength", "margin", "reduction")}
        return _recall(Pairs(scores, levels, 1, 1), penalty=lambda n_above: penalty(times * n_above), **found)


def class_map_loss(
    logits: Tensor, targets: Tensor, mask: Tensor | None = None, strength: float = 0.5, margin: float = 0.15
) -> Tensor:
    """:func:`blackbox_ap_loss` with each class as a query, and the rows as its list: one minus mAP over classes.

    Formula:
        The mean over classes of blackbox_ap along a column.

    Use:
        Multi-label classifiers, and the classification head of a detector.

    Cost:
        A few sorts of each column.

    Defaults:
        strength and margin of the detection runs of Rolínek et al.

    Limit:
        One minus mAP over the rows at margin 0.

    Args:
        logits: (N, C) score of each row for each class.
        targets: (N, C) bool, or numbers: above 0 where the row is of the class.
        mask: (N, C) bool, True where the row is in the class's list; None for everywhere.
        strength: as in :func:`blackbox_ap_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one.

    Returns:
        () mean over the classes that have a relevant row; 0 where none has.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.9, 0.2], [0.3, 0.7], [0.4, 0.8]])
        >>> class_map_loss(logits, torch.tensor([[True, False], [False, True], [False, False]]))
        tensor(0.2500)
    """
    check_tensor(logits, "logits")
    targets = as_tensor(targets, "targets", logits.device)
    logits, mask = check_pairs(logits, targets, mask)
    return blackbox_ap_loss(logits.T, targets.T, mask.T, strength, margin)


def all_classes_ap_loss(
    logits: Tensor, targets: Tensor, mask: Tensor | None = None, strength: float = 0.5, margin: float = 0.15
) -> Tensor:
    """:func:`blackbox_ap_loss` on one list of all rows for all classes: scores must compare from class to class.

    Arguments are those of :func:`class_map_loss`.

    Formula:
        blackbox_ap of the N x C scores as one list.

    Use:
        Beside class_map_loss, where one threshold serves all classes.

    Cost:
        A few sorts of N x C scores.

    Defaults:
        As class_map_loss.

    Limit:
        Equal to class_map_loss for a single class.

    Returns:
        () the loss of the one list; 0 where nothing is relevant.
    """
    check_tensor(logits, "logits")
    targets = as_tensor(targets, "targets", logits.device)
    logits, mask = check_pairs(logits, targets, mask)
    return blackbox_ap_loss(logits.reshape(1, -1), targets.reshape(1, -1), mask.reshape(1, -1), strength, margin)


class DetectionAPLoss(nn.Module):
    """``(1 - share) * class_map_loss + share * all_classes_ap_loss``, called on class scores instead of embeddings.

    ``strength`` is that of the whole sum, as in RaMBO: each term has its part of it. Evaluation mode is without margin and
    memory.

    Args:
        strength: as in :func:`class_map_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one.
        share: of the list of all classes, in (0, 1).
        memory: how many earlier batches lengthen each class's list; :meth:`reset` forgets them. The list of all classes is
            of the batch alone.

    Example:
        >>> import torch
        >>> DetectionAPLoss()(torch.tensor([[0.9, 0.2], [0.3, 0.7]]), torch.eye(2).bool())
        tensor(0.)
    """

    def __init__(self, strength: float = 0.5, margin: float = 0.15, share: float = 1 / 3, memory: int = 7) -> None:
        super().__init__()
        check_range("(0, 1)", share=share)
        class_map_loss(torch.zeros(0, 0), torch.zeros(0, 0), None, strength, margin)  # refuses an option that does not fit
        self.strength, self.margin, self.share = strength, margin, share
        self.recent = RecentBatches(memory)

    def reset(self) -> None:
        """Empty the memory."""
        self.recent.reset()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of (N, C) scores and targets; those of a batch are kept after its loss is computed."""
        check_tensor(logits, "logits")
        targets = as_tensor(targets, "targets", logits.device)
        check_pairs(logits, targets, None)
        targets = targets > 0
        margin = self.margin if self.training else 0.0
        kept_logits, kept_targets = self.recent.before(logits, targets)
        longer = torch.cat([logits, kept_logits]), torch.cat([targets, kept_targets])
        # The gradient of c times a loss, at strength s, is c times that of the loss at strength c s.
        by_class = class_map_loss(*longer, None, self.strength * (1 - self.share), margin)
        across = all_classes_ap_loss(logits, targets, None, self.strength * self.share, margin)
        self.recent.push(logits, targets)
        return (1 - self.share) * by_class + self.share * across
