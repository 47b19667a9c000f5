"""A rank loss and a decomposability term, weighed against each other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.average_precision import SupAPLoss
from sightline.losses.calibrated import RankLoss, check_weight
from sightline.losses.core import batch_pairs
from sightline.losses.csl import CSLLoss
from sightline.losses.graded import SupHAPLoss, SupNDCGLoss
from sightline.losses.levels import SumOverLevels
from sightline.losses.pairwise import CalibrationLoss, check_calibration
from sightline.losses.presets import preset_named, released
from sightline.losses.proxies import ArcFaceLoss, NormSoftmaxLoss, ProxyNCAPPLoss
from sightline.losses.recall import PLACES, SupRecallLoss
from sightline.losses.terms import named_terms
from sightline.ranking.ranks import check_positive
from sightline.ranking.similarity import both_in_full_precision, check_vectors

PAPER_WEIGHTS = {"calibration": 0.5, "proxy": 0.1}
NAMES = {
    SupAPLoss: "sup_ap",
    SupHAPLoss: "sup_h_ap",
    SupNDCGLoss: "sup_ndcg",
    SupRecallLoss: "sup_recall",
    CalibrationLoss: "calibration",
    NormSoftmaxLoss: "norm_softmax",
}


class Decomposed(nn.Module):
    """``(1 - weight) * rank + weight * term``: a rank loss and what makes a batch speak for the whole set.

    Args:
        rank: the rank loss.
        decomposability: ``calibration``, on the same pairs, or ``proxy``, which has a vector for each finest class and
            needs ``n_classes`` and ``embedding_dim``; it looks at the batch alone.
        weight: share of the second term, in [0, 1]; None for the papers': 0.5 with ``calibration``, 0.1 with ``proxy``.
        n_classes: finest classes, for ``proxy``.
        embedding_dim: D, for ``proxy``.
        preset: that of the rank loss; it sets the reduction of ``calibration`` too.
        alpha: as in :func:`~sightline.losses.calibration_loss`, like ``beta``.
        beta: what irrelevant scores should stay under.
        temperature: as in :func:`~sightline.losses.norm_softmax_loss`.

    Attributes:
        terms: both terms of the last call, by name; see :mod:`sightline.losses.terms`.
    """

    def __init__(
        self,
        rank: RankLoss,
        decomposability: str,
        weight: float | None,
        n_classes: int | None,
        embedding_dim: int | None,
        preset: str = "paper",
        alpha: float = 0.9,
        beta: float = 0.6,
        temperature: float = 0.05,
    ) -> None:
        super().__init__()
        usual = choose(PAPER_WEIGHTS, decomposability, "decomposability")
        self.weight = usual if weight is None else weight
        check_weight(self.weight)
        reduction = preset_named(preset).reduction
        check_calibration(alpha, beta, reduction)
        check_positive(temperature=temperature)
        self.rank = rank
        self.terms: dict[str, Tensor] = {}
        if decomposability == "calibration":
            self.term: CalibrationLoss | NormSoftmaxLoss = CalibrationLoss(alpha, beta, reduction)
        elif n_classes is None or embedding_dim is None:
            raise InputError("decomposability 'proxy' needs n_classes and embedding_dim; 'calibration' needs neither")
        else:
            self.term = NormSoftmaxLoss(n_classes, embedding_dim, temperature)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        check_vectors(embeddings, "embeddings")
        # The gradients of both terms meet before they are rounded.
        embeddings, ref_emb = both_in_full_precision(embeddings, ref_emb)
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels, self.rank.include_self)
        rank = self.rank.of_pairs(pairs)
        if isinstance(self.term, NormSoftmaxLoss):
            term: Tensor = self.term(embeddings, labels)
        elif self.rank.include_self:  # the term's pairs are of two items
            term = self.term(embeddings, labels, ref_emb, ref_labels)
        else:
            term = self.term.of_pairs(pairs)
        self.terms = {NAMES[type(self.rank)]: rank.detach(), NAMES[type(self.term)]: term.detach()}
        return (1 - self.weight) * rank + self.weight * term


class WeightedSum(nn.Module):
    """The sum of losses, each times its weight; losses with proxies see the batch alone where there is a reference set.

    Args:
        losses: what is added up.
        weights: of each.
        names: of each, in ``terms``; None for their places, from 1.

    Attributes:
        terms: what each was at the last call, by name; see :mod:`sightline.losses.terms`.

    Example:
        >>> import torch
        >>> loss = WeightedSum([SupAPLoss(), CalibrationLoss()], [0.5, 0.5])
        >>> loss(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, losses: Sequence[nn.Module], weights: Sequence[float], names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.losses, self.weights = nn.ModuleList(losses), tuple(weights)
        self.names = tuple(str(place) for place in range(1, len(losses) + 1)) if names is None else tuple(names)
        self.terms: dict[str, Tensor] = {}

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        check_vectors(embeddings, "embeddings")
        embeddings, ref_emb = both_in_full_precision(embeddings, ref_emb)
        values: list[Tensor] = []
        terms: dict[str, Tensor] = {}
        for name, loss in zip(self.names, self.losses, strict=True):
            value = loss(embeddings, labels) if has_proxies_alone(loss) else loss(embeddings, labels, ref_emb, ref_labels)
            values.append(value)
            terms |= named_terms(name, loss, value)
        self.terms = terms
        return torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)]).sum()


def has_proxies_alone(loss: nn.Module) -> bool:
    """Whether the loss compares items with proxies and with nothing else."""
    if isinstance(loss, WeightedSum):
        return all(map(has_proxies_alone, loss.losses))
    of_levels = isinstance(loss, SumOverLevels) and len(loss.numbers) > 0
    return of_levels or isinstance(loss, ArcFaceLoss | CSLLoss | NormSoftmaxLoss | ProxyNCAPPLoss)


def roadmap(
    decomposability: str = "calibration",
    weight: float | None = None,
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    alpha: float = 0.9,
    beta: float = 0.6,
    temperature: float = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """ROADMAP: :class:`~sightline.losses.SupAPLoss` with a decomposability term; see :class:`Decomposed`.

    With ``calibration`` it is :func:`~sightline.losses.roadmap_loss` of a batch (the NeurIPS paper's), with ``proxy``
    that of the later papers.

    Example:
        >>> import torch
        >>> roadmap()(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """
    rank = SupAPLoss(tau, rho, delta, preset)
    return Decomposed(rank, decomposability, weight, n_classes, embedding_dim, preset, alpha, beta, temperature)


def rod_recall(
    decomposability: str = "calibration",
    weight: float | None = None,
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """ROD-R@k: :class:`~sightline.losses.SupRecallLoss` with a decomposability term; see :class:`Decomposed`."""
    weight = released(preset, weight, 0.5)
    rank = SupRecallLoss(ks, rank_width, tau, rho, delta, preset)
    return Decomposed(rank, decomposability, weight, n_classes, embedding_dim, preset)


def happier(
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    decomposability: str = "proxy",
    weight: float | None = None,
    relevance: str = "population",
    alpha: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """HAPPIER: :class:`~sightline.losses.SupHAPLoss` with a decomposability term on the finest level.

    Example:
        >>> happier(n_classes=120, embedding_dim=128).weight
        0.1
    """
    rank = SupHAPLoss(relevance, alpha, tau, rho, delta, preset)
    return Decomposed(rank, decomposability, weight, n_classes, embedding_dim, preset)


def happier_f(
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    decomposability: str = "proxy",
    weight: float | None = None,
    relevance: str = "population",
    alpha: float | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """HAPPIER_F: :func:`happier` with an exponent that favours the finest level: 5 as on SOP; iNaturalist took 3."""
    weight, alpha = released(preset, weight, 0.5), released(preset, alpha, 1.0)
    exponent = 5.0 if alpha is None else alpha
    return happier(n_classes, embedding_dim, decomposability, weight, relevance, exponent, tau, rho, delta, preset)


def rod_ndcg(
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    decomposability: str = "proxy",
    weight: float | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """ROD-NDCG: :class:`~sightline.losses.SupNDCGLoss` with a decomposability term; see :class:`Decomposed`."""
    return Decomposed(SupNDCGLoss(tau, rho, delta, preset), decomposability, weight, n_classes, embedding_dim, preset)
