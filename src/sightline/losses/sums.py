"""Sums of losses: a rank loss with a decomposability term, any losses with weights, one loss on every level of the labels.

A sum keeps in ``terms`` what each term was at the last call, by name, for the log of a run: not weighted, without a graph.
It is not part of the ``state_dict``, and empty before the first call.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.average_precision import SupAPLoss
from sightline.losses.base import PRESETS, LossBatch, PairLoss, on_batches
from sightline.losses.classification import BinaryCrossEntropyLoss
from sightline.losses.contrastive import CalibrationLoss, TripletLoss
from sightline.losses.graded import SupHAPLoss, SupNDCGLoss
from sightline.losses.proxies import NormSoftmaxLoss, ProxyNCAPPLoss, check_alone
from sightline.losses.recall import PLACES, SupRecallLoss
from sightline.ranking.pairs import GradedSets, Pairs, check_labels
from sightline.ranking.ranks import check_counts, check_range

PAPER_WEIGHTS = {"calibration": 0.5, "proxy": 0.1}
NAMES: dict[type, str] = {
    SupAPLoss: "sup_ap",
    SupHAPLoss: "sup_h_ap",
    SupNDCGLoss: "sup_ndcg",
    SupRecallLoss: "sup_recall",
    CalibrationLoss: "calibration",
    NormSoftmaxLoss: "norm_softmax",
}


def terms_of(loss: object) -> dict[str, Tensor]:
    """The terms of a loss's last call; nothing where it adds up no others."""
    return getattr(loss, "terms", {})


def named_terms(name: str, loss: object, value: Tensor) -> dict[str, Tensor]:
    """The terms of one that was just computed: its value, or where it is a sum itself those of its own terms.

    Example:
        >>> named_terms("sup_ap", None, torch.tensor(0.25))
        {'sup_ap': tensor(0.2500)}
    """
    return {f"{name}/{part}": one for part, one in terms_of(loss).items()} or {name: value.detach()}


def all_terms(names: Sequence[str], losses: Iterable[nn.Module], values: Sequence[Tensor]) -> dict[str, Tensor]:
    """The :func:`named_terms` of all the losses of a sum."""
    return {name: value for term in zip(names, losses, values, strict=True) for name, value in named_terms(*term).items()}


def takes_references(loss: object) -> bool:
    """Whether the loss can be called with a reference set: losses on proxies cannot."""
    return bool(getattr(loss, "takes_references", True))


def call_on(loss: Callable[..., Tensor], batch: LossBatch) -> Tensor:
    """The loss of a batch; a loss with proxies gets neither references nor chosen pairs."""
    return loss(batch.embeddings, batch.labels, **(batch.beside if takes_references(loss) else {}))


class Decomposed(nn.Module):
    """``(1 - weight) * rank + weight * term``: a rank loss and a term that keeps scores comparable across batches.

    Args:
        rank: the rank loss; its preset sets the reduction of ``calibration`` too.
        decomposability: ``calibration``, on the same pairs, or ``proxy``, which has a vector for each finest class and
            needs ``n_classes`` and ``embedding_dim``; it looks at the batch alone.
        weight: share of the second term, in [0, 1]; None for the papers': 0.5 with ``calibration``, 0.1 with ``proxy``.
        n_classes: finest classes, for ``proxy``.
        embedding_dim: D, for ``proxy``.
        alpha: as in :func:`~sightline.losses.calibration_loss`, like ``beta``.
        beta: what irrelevant scores should stay under.
        temperature: as in :func:`~sightline.losses.norm_softmax_loss`.
        code_counts: for items with several codes, how many codes each level has, finest first: ``proxy`` then has a vector
            for each code of each level, and is the mean over levels; ``n_classes`` is not read.

    Attributes:
        terms: both terms of the last call, by name; see :mod:`sightline.losses.sums`.
    """

    def __init__(
        self,
        rank: PairLoss,
        decomposability: str,
        weight: float | None,
        n_classes: int | None,
        embedding_dim: int | None,
        alpha: float = 0.9,
        beta: float = 0.6,
        temperature: float = 0.05,
        code_counts: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        usual = choose(PAPER_WEIGHTS, decomposability, "decomposability")
        self.weight = usual if weight is None else weight
        check_range("[0, 1]", weight=self.weight)
        check_range("(0, inf)", temperature=temperature)
        calibration = CalibrationLoss(alpha, beta, PRESETS[rank.options["preset"]].reduction)
        self.rank, self.terms = rank, dict[str, Tensor]()
        if decomposability == "calibration":
            self.term: CalibrationLoss | NormSoftmaxLoss | SumOverLevels = calibration
        elif code_counts is not None and embedding_dim is not None:
            self.term = norm_softmax_over_levels(code_counts, embedding_dim, temperature)
        elif n_classes is None or embedding_dim is None:
            raise InputError("decomposability 'proxy' needs n_classes and embedding_dim, 'calibration' neither")
        else:
            self.term = NormSoftmaxLoss(n_classes, embedding_dim, temperature)

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        batch = batch.in_full_precision()
        pairs = batch.pairs(self.rank.include_self)
        if isinstance(self.term, CalibrationLoss) and not self.rank.include_self:
            return self.of_pairs(pairs)
        # Proxies compare with the batch alone; the pairs of calibration are of two items, never a query with itself.
        return self._sum(self.rank.of_pairs(pairs), call_on(self.term, batch))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of given pairs, with ``calibration``; :func:`table_pairs` makes pairs of scores and relevance.

        Example:
            >>> import torch
            >>> from sightline.ranking.pairs import table_pairs
            >>> pairs = table_pairs(torch.tensor([[0.50, 0.51, 0.64]]), torch.tensor([[True, True, False]]))
            >>> RoadmapLoss().of_pairs(pairs)
            tensor(0.6537)
        """
        if not isinstance(self.term, CalibrationLoss):
            raise InputError("decomposability 'proxy' needs embeddings; 'calibration' works on pairs")
        return self._sum(self.rank.of_pairs(pairs), self.term.of_pairs(pairs))

    def _sum(self, rank: Tensor, term: Tensor) -> Tensor:
        self.terms = {NAMES[type(self.rank)]: rank.detach(), NAMES.get(type(self.term), "sum_norm_softmax"): term.detach()}
        return (1 - self.weight) * rank + self.weight * term


class RoadmapLoss(Decomposed):
    """ROADMAP: :func:`~sightline.losses.sup_ap_loss`, and a term that keeps scores comparable from batch to batch.

    Formula:
        ``(1 - weight) * sup_ap + weight * calibration``, or ``norm_softmax`` in place of calibration with
        ``decomposability="proxy"``

    Use:
        The default of recipes. sup_ap alone does not tie one batch's scores to another's, which matters in small batches.

    Cost:
        The core's, and a few passes over the scores; scores are computed once for both terms.

    Defaults:
        weight 0.5 with calibration (NeurIPS 2021), 0.1 with proxies (TPAMI, where 0.3 does better on iNaturalist).

    Limit:
        sup_ap at weight 0, the other term alone at 1; the same as a weighted_sum of the two.

    Args:
        decomposability: as in :class:`Decomposed`, like all that follows but the options of the rank loss.
        weight: share of the second term.
        n_classes: finest classes.
        embedding_dim: D.
        alpha: what relevant scores should reach.
        beta: what irrelevant scores should stay under.
        temperature: of the proxies.
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like the rest.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts.
        preset: one of the released code also sets the reduction of calibration.

    Example:
        >>> import torch
        >>> RoadmapLoss()(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(
        self,
        decomposability: str = "calibration",
        weight: float | None = None,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        alpha: float = 0.9,
        beta: float = 0.6,
        temperature: float = 0.05,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
    ) -> None:
        super().__init__(
            SupAPLoss(tau, rho, delta, preset), decomposability, weight, n_classes, embedding_dim, alpha, beta, temperature
        )


class RODRecallLoss(Decomposed):
    """ROD-R@k: :func:`~sightline.losses.sup_recall_loss` with a decomposability term.

    Formula:
        ``(1 - weight) * sup_recall + weight * calibration``, or ``norm_softmax`` in place of calibration with
        ``decomposability="proxy"``

    Use:
        As sup_recall, in batches much smaller than the set.

    Cost:
        sup_recall's, and the term's.

    Defaults:
        The papers give no weight; those of roadmap are used. The released code sets none, which means 0.5 with either
        term.

    Limit:
        sup_recall at weight 0.

    Args:
        decomposability: as in :class:`Decomposed`, like ``weight``, ``n_classes`` and ``embedding_dim``.
        weight: share of the second term.
        n_classes: finest classes.
        embedding_dim: D.
        ks: as in :func:`~sightline.losses.sup_recall_loss`, like the options that follow.
        rank_width: of the step at each place.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.
    """

    def __init__(
        self,
        decomposability: str = "calibration",
        weight: float | None = None,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        ks: Sequence[int] = PLACES,
        rank_width: float = 1.0,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
    ) -> None:
        weight = _released(preset, weight, 0.5)
        super().__init__(
            SupRecallLoss(ks, rank_width, tau, rho, delta, preset), decomposability, weight, n_classes, embedding_dim
        )


class HappierLoss(Decomposed):
    """HAPPIER: :func:`~sightline.losses.sup_h_ap_loss` on the label levels with a decomposability term on the finest.

    Formula:
        ``(1 - weight) * sup_h_ap + weight * term``, the term being norm_softmax of the finest classes, or calibration of
        the pairs that share them

    Use:
        Label trees: ranks by the whole tree, and keeps the finest classes apart, with one proxy each.

    Cost:
        sup_h_ap's, and a product with one vector a class.

    Defaults:
        weight 0.1 with proxies and alpha 1 (Ramzi et al., ECCV 2022), whose DyML-Animal command had 0.5; 0.5 with
        calibration, as roadmap.

    Limit:
        roadmap with the same term where labels have one level.

    Args:
        n_classes: as in :class:`Decomposed`, like the next three.
        embedding_dim: D.
        decomposability: ``proxy`` or ``calibration``.
        weight: share of the second term.
        relevance: as in :class:`~sightline.losses.SupHAPLoss`, like the options that follow.
        alpha: exponent of the level: above 1 favours the finest.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.
        code_counts: as in :class:`Decomposed`.

    Example:
        >>> HappierLoss(n_classes=120, embedding_dim=128).weight
        0.1
    """

    def __init__(
        self,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        decomposability: str = "proxy",
        weight: float | None = None,
        relevance: str = "population",
        alpha: float = 1.0,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
        code_counts: Sequence[int] | None = None,
    ) -> None:
        rank = SupHAPLoss(relevance, alpha, tau=tau, rho=rho, delta=delta, preset=preset)
        super().__init__(rank, decomposability, weight, n_classes, embedding_dim, code_counts=code_counts)


class HappierFLoss(Decomposed):
    """HAPPIER_F: :class:`HappierLoss` with an exponent that favours the finest level: 5 as on SOP; iNaturalist took 3.

    Formula:
        That of happier with alpha 5

    Use:
        Label trees where the finest level matters most.

    Cost:
        As happier.

    Defaults:
        The released file of that name leaves alpha at 1 and sets weight 0.5, and so do the presets of the released code.

    Limit:
        happier at alpha 1; the higher alpha, the nearer to roadmap on the finest level.

    Args:
        n_classes: as in :class:`HappierLoss`, like all that follows.
        embedding_dim: D.
        decomposability: ``proxy`` or ``calibration``.
        weight: share of the second term.
        relevance: of the levels.
        alpha: exponent of the level; None for 5, or 1 with a preset of the released code.
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.
        code_counts: as in :class:`Decomposed`.
    """

    def __init__(
        self,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        decomposability: str = "proxy",
        weight: float | None = None,
        relevance: str = "population",
        alpha: float | None = None,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
        code_counts: Sequence[int] | None = None,
    ) -> None:
        weight, alpha = _released(preset, weight, 0.5), _released(preset, alpha, 1.0)
        alpha = 5.0 if alpha is None else alpha
        rank = SupHAPLoss(relevance, alpha, tau=tau, rho=rho, delta=delta, preset=preset)
        super().__init__(rank, decomposability, weight, n_classes, embedding_dim, code_counts=code_counts)


class RODNDCGLoss(Decomposed):
    """ROD-NDCG: :func:`~sightline.losses.sup_ndcg_loss` with a decomposability term.

    Formula:
        ``(1 - weight) * sup_ndcg + weight * term``, the term as in happier

    Use:
        As sup_ndcg, in batches much smaller than the set.

    Cost:
        sup_ndcg's, and the term's.

    Defaults:
        weight 0.1 of the released code with proxies, 0.5 with calibration; the papers give none.

    Limit:
        sup_ndcg at weight 0.

    Args:
        n_classes: as in :class:`Decomposed`, like the next three.
        embedding_dim: D.
        decomposability: ``proxy`` or ``calibration``.
        weight: share of the second term.
        tau: as in :func:`~sightline.losses.sup_ndcg_loss`, like the rest.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts.
        preset: as in :func:`~sightline.losses.sup_ap_loss`.
        code_counts: as in :class:`Decomposed`.
    """

    def __init__(
        self,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        decomposability: str = "proxy",
        weight: float | None = None,
        *,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        preset: str = "paper",
        code_counts: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            SupNDCGLoss(tau, rho, delta, preset), decomposability, weight, n_classes, embedding_dim, code_counts=code_counts
        )


def _released(preset: str, given: float | None, value: float) -> float | None:
    """The given value, or that of the released code where none is given and the preset is not the paper's."""
    return value if given is None and preset != "paper" else given


class WeightedSum(nn.Module):
    """The sum of losses, each times its weight; losses with proxies ignore a reference set.

    Args:
        losses: the terms.
        weights: of each.
        names: of each, in ``terms``; None for their places, from 1.

    Attributes:
        terms: what each was at the last call, by name; see :mod:`sightline.losses.sums`.

    Example:
        >>> loss = WeightedSum([TripletLoss(), TripletLoss(mining="hard")], [0.5, 0.5])
        >>> loss(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, losses: Sequence[nn.Module], weights: Sequence[float], names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.losses, self.weights = nn.ModuleList(losses), tuple(weights)
        self.names = tuple(str(place) for place in range(1, len(losses) + 1)) if names is None else tuple(names)
        self.terms: dict[str, Tensor] = {}
        self.takes_references = any(map(takes_references, losses))

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        if not self.takes_references:
            check_alone(batch)
        batch = batch.in_full_precision()
        values = [call_on(loss, batch) for loss in self.losses]
        self.terms = all_terms(self.names, self.losses, values)
        return torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)]).sum()


def sum_over_levels(
    losses: Callable[..., Tensor] | Sequence[Callable[..., Tensor]],
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
) -> Tensor:
    """The mean of one loss a level, each on the labels from its level up to the coarsest.

    A loss thus sees its level as the finest, and a name that recurs below two parents as two classes.

    Args:
        losses: one loss without proxies for all levels, or L losses, finest level first; each is called as
            ``loss(embeddings, labels)``, with ``ref_emb=`` and ``ref_labels=`` where a reference set is given.
        embeddings: (B, D).
        labels: (B, L) integers, finest level first; (B,) for one level.
        ref_emb: (G, D) items to compare with instead of the batch.
        ref_labels: (G, L) or (G,), given exactly when ``ref_emb`` is.

    Returns:
        () the sum of the losses, each with weight 1 / L.

    Example:
        >>> loss, embeddings = TripletLoss(mining="hard"), torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
        >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0]])
        >>> sum_over_levels(loss, embeddings, labels)  # all three are alike on the coarse level
        tensor(0.1050)
    """
    if callable(losses):
        if isinstance(losses, nn.Module) and any(True for _ in losses.parameters()):
            raise InputError("losses must have no proxies, which need a table for each level; use SumOverLevels")
        losses = [losses] * check_labels(labels, len(embeddings), "labels").shape[1]
    check_counts(n_levels=len(losses))
    return torch.stack(_of_levels(losses, LossBatch(embeddings, labels, None, ref_emb, ref_labels))).mean()


def _of_levels(losses: Sequence[Callable[..., Tensor]], batch: LossBatch) -> list[Tensor]:
    """The loss of each level, finest first."""
    batch.refuse(["indices_tuple"], "a sum over levels takes no chosen pairs: those of one level are not another's")
    embeddings, labels, _, ref_emb, ref_labels = batch.in_full_precision()
    if isinstance(labels, GradedSets):
        if len(labels.sets) != len(losses):
            raise InputError(f"labels must have {len(losses)} levels, got {len(labels.sets)}")
        beside = {} if ref_emb is None else {"ref_emb": ref_emb}
        return [loss(embeddings, labels._replace(level=level), **beside) for level, loss in enumerate(losses)]
    labels = _check_levels(labels, len(embeddings), len(losses), "labels")
    if ref_emb is not None and ref_labels is not None:  # one without the other is refused by the losses
        ref_labels = _check_levels(ref_labels, len(ref_emb), len(losses), "ref_labels")
    above = [
        LossBatch(embeddings, labels[:, level:], None, ref_emb, None if ref_labels is None else ref_labels[..., level:])
        for level in range(len(losses))
    ]
    return [loss(part.embeddings, part.labels, **part.beside) for loss, part in zip(losses, above, strict=True)]


def _check_levels(labels: Tensor, n_items: int, n_levels: int, name: str) -> Tensor:
    labels = check_labels(labels, n_items, name)
    if labels.shape[1] != n_levels:
        raise InputError(f"{name} must have {n_levels} levels, got {labels.shape[1]}")
    return labels


class PathNumbers(nn.Module):
    """Numbers the paths of one level from 0 in the order in which they occur, and keeps the numbers.

    New paths of one call are numbered in sorted order, whatever the order of the batch. Evaluation mode stores nothing.

    Args:
        n_classes: how many different paths there may be.
        n_columns: label columns from this level up to the coarsest.

    Example:
        >>> numbers = PathNumbers(n_classes=3, n_columns=2)
        >>> numbers(torch.tensor([[7, 1], [7, 0], [7, 1]]))  # name 7 recurs below 0 and 1
        tensor([1, 0, 1])
    """

    def __init__(self, n_classes: int, n_columns: int) -> None:
        super().__init__()
        check_counts(n_classes=n_classes, n_columns=n_columns)
        self.paths = nn.Buffer(torch.full((n_classes, n_columns), -1))
        self.n_known = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, labels: Tensor) -> Tensor:
        """(B,) int64 numbers of the (B, n_columns) paths."""
        met, which = labels.unique(dim=0, return_inverse=True)
        known = self.paths[: int(self.n_known)]
        same = (met[:, None, :] == known).all(2)  # (met, known)
        is_new = ~same.any(1)
        table = torch.cat([known, met[is_new]])
        if len(table) > len(self.paths):
            raise InputError(
                f"labels must be of at most {len(self.paths)} classes; {table[len(self.paths)].tolist()} is one more"
            )
        if self.training:
            self.paths[: len(table)] = table
            self.n_known.fill_(len(table))
        # The place of the one that is the same; new ones follow the known in order.
        place_of_same = (same * torch.arange(len(known), device=labels.device)).sum(1)
        return torch.where(is_new, len(known) - 1 + is_new.cumsum(0), place_of_same)[which]


class SumOverLevels(nn.Module):
    """:func:`sum_over_levels` of one loss made for every level, each with a proxy table of its own if it has one.

    With ``n_classes``, for losses that number their proxies by label, each gets one number for each path from the
    coarsest level down to its own, so names that recur below two parents have two proxies. Paths are numbered as they
    occur in training, and kept in buffers; give ``paths`` to fix the numbers beforehand, as several processes must.

    Args:
        loss_factory: called with each level, 0 the finest, to make its loss.
        n_levels: L.
        n_classes: classes of each level, finest first, for losses with proxies; None for those without.
        paths: (N, L) label paths to number beforehand, with ``n_classes`` alone; duplicates count once.

    Attributes:
        terms: ``level_0``, ``level_1``, ... of the last call; see :mod:`sightline.losses.sums`.

    Example:
        >>> counts = [3, 2]
        >>> loss = SumOverLevels(lambda level: NormSoftmaxLoss(counts[level], 4), n_levels=2, n_classes=counts)
        >>> [tuple(table.shape) for table in loss.parameters()]
        [(3, 4), (2, 4)]
    """

    def __init__(
        self,
        loss_factory: Callable[[int], nn.Module],
        n_levels: int,
        n_classes: Sequence[int] | None = None,
        paths: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_counts(n_levels=n_levels)
        if n_classes is not None and (isinstance(n_classes, int) or len(n_classes) != n_levels):
            raise InputError(f"n_classes must be {n_levels} counts, one for each level, finest first; got {n_classes}")
        if paths is not None and n_classes is None:
            raise InputError("paths are for losses with proxies: give n_classes too, or leave paths out")
        self.losses = nn.ModuleList(loss_factory(level) for level in range(n_levels))
        self.takes_references = n_classes is None
        self.terms: dict[str, Tensor] = {}
        counts = [] if n_classes is None else n_classes
        self.numbers = nn.ModuleList(PathNumbers(count, n_levels - level) for level, count in enumerate(counts))
        if paths is not None:
            paths = _check_levels(paths, len(paths), n_levels, "paths")
            for level, numbers in enumerate(self.numbers):
                numbers(paths[:, level:])

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        called: Sequence[Callable[..., Tensor]] = list(self.losses)
        if self.numbers:
            check_alone(batch)
            called = [partial(_by_number, *both) for both in zip(self.losses, self.numbers, strict=True)]
        values = _of_levels(called, batch)
        self.terms = all_terms([f"level_{level}" for level in range(len(values))], self.losses, values)
        return torch.stack(values).mean()


def _by_number(loss: nn.Module, numbers: nn.Module, embeddings: Tensor, labels: Tensor | GradedSets) -> Tensor:
    """A loss called with the numbers of the paths for labels; several codes an item are numbered already."""
    return loss(embeddings, labels if isinstance(labels, GradedSets) else numbers(labels))  # type: ignore[no-any-return]


def triplet_over_levels(n_levels: int, margin: float = 0.05, mining: str = "semi-hard") -> SumOverLevels:
    """:class:`~sightline.losses.TripletLoss` on every level: ΣTL_SH.

    Formula:
        The mean over levels of triplet, each on its own labels.

    Use:
        Label trees, as a baseline.

    Cost:
        triplet's, once a level.

    Defaults:
        As triplet; equal weights.

    Limit:
        triplet where labels have one level.

    Args:
        n_levels: L.
        margin: as in :func:`~sightline.losses.triplet_loss`, like ``mining``.
        mining: which triplets are taken.

    Example:
        >>> len(triplet_over_levels(3).losses)
        3
    """
    return SumOverLevels(lambda _: TripletLoss(margin, mining), n_levels)


def norm_softmax_over_levels(
    class_counts: Sequence[int], embedding_dim: int, temperature: float = 0.05, seed: int = 0, paths: Tensor | None = None
) -> SumOverLevels:
    """:class:`~sightline.losses.NormSoftmaxLoss` on every level, one proxy table each: ΣNSM.

    Formula:
        The mean over levels of norm_softmax.

    Use:
        Label trees with few items a class.

    Cost:
        norm_softmax's, once a level.

    Defaults:
        As norm_softmax; equal weights.

    Limit:
        norm_softmax where labels have one level.

    Args:
        class_counts: classes of each level, finest first.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: random seed of the finest level's initial proxies; each coarser level takes the next number.
        paths: as in :class:`SumOverLevels`.

    Example:
        >>> [tuple(table.shape) for table in norm_softmax_over_levels([3, 2], 4).parameters()]
        [(3, 4), (2, 4)]
    """
    return SumOverLevels(
        lambda level: NormSoftmaxLoss(class_counts[level], embedding_dim, temperature, seed + level),
        len(class_counts),
        class_counts,
        paths,
    )


def proxy_nca_pp_over_levels(
    class_counts: Sequence[int], embedding_dim: int, temperature: float = 1 / 18, seed: int = 0, paths: Tensor | None = None
) -> SumOverLevels:
    """:class:`~sightline.losses.ProxyNCAPPLoss` on every level, one proxy table each: ΣNCA++.

    Formula:
        The mean over levels of proxy_nca_pp.

    Use:
        To compare with ΣNCA++.

    Cost:
        proxy_nca_pp's, once a level.

    Defaults:
        As proxy_nca_pp; equal weights.

    Limit:
        proxy_nca_pp where labels have one level.

    Args:
        class_counts: classes of each level, finest first.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: random seed of the finest level's initial proxies; each coarser level takes the next number.
        paths: as in :class:`SumOverLevels`.

    Example:
        >>> [tuple(table.shape) for table in proxy_nca_pp_over_levels([3, 2], 4).parameters()]
        [(3, 4), (2, 4)]
    """
    return SumOverLevels(
        lambda level: ProxyNCAPPLoss(class_counts[level], embedding_dim, temperature, seed + level),
        len(class_counts),
        class_counts,
        paths,
    )


def binary_cross_entropy_over_levels(
    class_counts: Sequence[int], embedding_dim: int, seed: int = 0, paths: Tensor | None = None
) -> SumOverLevels:
    """:class:`~sightline.losses.BinaryCrossEntropyLoss` on every level, one linear layer each.

    Formula:
        The mean over levels of binary_cross_entropy.

    Use:
        Codes or labels in a tree, classified at every depth.

    Cost:
        binary_cross_entropy's, once a level.

    Defaults:
        As binary_cross_entropy; equal weights.

    Limit:
        binary_cross_entropy where labels have one level.

    Args:
        class_counts: classes of each level, finest first.
        embedding_dim: D.
        seed: random seed of the finest level's initial weights; each coarser level takes the next number.
        paths: as in :class:`SumOverLevels`.

    Example:
        >>> [tuple(table.shape) for table in binary_cross_entropy_over_levels([3, 2], 4).parameters()]
        [(3, 4), (3,), (2, 4), (2,)]
    """
    return SumOverLevels(
        lambda level: BinaryCrossEntropyLoss(class_counts[level], embedding_dim, seed + level),
        len(class_counts),
        class_counts,
        paths,
    )
