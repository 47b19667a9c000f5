"""A rank loss and a decomposability term, weighed against each other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.average_precision import SupAPLoss, sup_ap_loss
from sightline.losses.core import batch_pairs
from sightline.losses.csl import CSLLoss
from sightline.losses.graded import SupHAPLoss, SupNDCGLoss
from sightline.losses.levels import SumOverLevels
from sightline.losses.pairwise import CalibrationLoss, calibration_loss, check_calibration
from sightline.losses.presets import preset_named
from sightline.losses.proxies import ArcFaceLoss, NormSoftmaxLoss, ProxyNCAPPLoss
from sightline.losses.recall import PLACES, SupRecallLoss
from sightline.ranking.ranks import check_positive


def roadmap_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    alpha: float = 0.9,
    beta: float = 0.6,
    preset: str = "paper",
) -> Tensor:
    """ROADMAP: :func:`~sightline.losses.sup_ap_loss`, and a term that keeps scores comparable from batch to batch.

    Formula:
        ``(1 - weight) * sup_ap + weight * calibration``, or ``norm_softmax`` in place of calibration with the module's
        ``decomposability="proxy"``

    Use:
        The default of recipes: sup_ap alone does not tie one batch's scores to another's, and small batches need that.

    Cost:
        The core's, and a few passes over the scores; scores are computed once for both terms.

    Defaults:
        weight 0.5 with calibration (NeurIPS 2021), 0.1 with proxies (TPAMI, where 0.3 does better on iNaturalist).

    Limit:
        sup_ap at weight 0, the other term alone at 1; the same as a weighted_sum of the two.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        weight: share of the calibration term, in [0, 1].
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.
        alpha: as in :func:`~sightline.losses.calibration_loss`, like ``beta``.
        beta: what irrelevant scores should stay under.
        preset: as in :func:`~sightline.losses.sup_ap_loss`; that of the released code also sets ``reduction``.

    Returns:
        () the weighted sum of the two means.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> roadmap_loss(scores, torch.tensor([[True, True, False]]))
        tensor(0.6537)
    """
    if not 0 <= weight <= 1:
        raise InputError(f"weight is {weight}; a number from 0 to 1 is needed")
    rank_term = sup_ap_loss(scores, relevance, mask, tau, rho, delta, preset)
    reduction = preset_named(preset).reduction
    return (1 - weight) * rank_term + weight * calibration_loss(scores, relevance, mask, alpha, beta, reduction)


PAPER_WEIGHTS = {"calibration": 0.5, "proxy": 0.1}
RankLoss = SupAPLoss | SupHAPLoss | SupNDCGLoss | SupRecallLoss


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
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight is {weight}; a number from 0 to 1 is needed")
        reduction = preset_named(preset).reduction
        check_calibration(alpha, beta, reduction)
        check_positive(temperature=temperature)
        self.rank = rank
        if decomposability == "calibration":
            self.term: CalibrationLoss | NormSoftmaxLoss = CalibrationLoss(alpha, beta, reduction)
        elif n_classes is None or embedding_dim is None:
            raise InputError("decomposability 'proxy' needs n_classes and embedding_dim; 'calibration' needs neither")
        else:
            self.term = NormSoftmaxLoss(n_classes, embedding_dim, temperature)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels, self.rank.include_self)
        rank = self.rank.of_pairs(pairs)
        if isinstance(self.term, NormSoftmaxLoss):
            term: Tensor = self.term(embeddings, labels)
        elif self.rank.include_self:  # the term's pairs are of two items
            term = self.term(embeddings, labels, ref_emb, ref_labels)
        else:
            term = self.term.of_pairs(pairs)
        return (1 - self.weight) * rank + self.weight * term


class WeightedSum(nn.Module):
    """The sum of losses, each times its weight; losses with proxies see the batch alone where there is a reference set.

    Example:
        >>> import torch
        >>> loss = WeightedSum([SupAPLoss(), CalibrationLoss()], [0.5, 0.5])
        >>> loss(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, losses: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.losses, self.weights = nn.ModuleList(losses), tuple(weights)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        terms = [
            weight
            * (loss(embeddings, labels) if has_proxies_alone(loss) else loss(embeddings, labels, ref_emb, ref_labels))
            for loss, weight in zip(self.losses, self.weights, strict=True)
        ]
        return torch.stack(terms).sum()


def has_proxies_alone(loss: nn.Module) -> bool:
    """Whether the loss compares items with proxies and with nothing else."""
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

    With ``calibration`` it is :func:`roadmap_loss` of a batch (the NeurIPS paper's), with ``proxy`` the later papers'.

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
    """ROD-R@k: :class:`~sightline.losses.SupRecallLoss` with a decomposability term; see :class:`Decomposed`.

    Formula:
        ``(1 - weight) * sup_recall + weight * term``

    Use:
        As sup_recall, in batches much smaller than the set.

    Cost:
        sup_recall's, and the term's.

    Defaults:
        The papers give no weight here; those of roadmap are taken.

    Limit:
        sup_recall at weight 0.
    """
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
    """HAPPIER: :class:`~sightline.losses.SupHAPLoss` on the label levels with a decomposability term on the finest.

    Formula:
        ``(1 - weight) * sup_h_ap + weight * term``

    Use:
        Label trees: ranks by the whole tree, and keeps the finest classes apart with one proxy each.

    Cost:
        sup_h_ap's, and a product with one vector a class.

    Defaults:
        weight 0.1 and alpha 1 (Ramzi et al., ECCV 2022); its DyML-Animal command had 0.5.

    Limit:
        roadmap with the same term where labels have one level.

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
    alpha: float = 5.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Decomposed:
    """HAPPIER_F: :func:`happier` with an exponent that favours the finest level: 5 as on SOP; iNaturalist took 3.

    Formula:
        That of happier with alpha 5.

    Use:
        Label trees of which the finest level is what counts most.

    Cost:
        As happier.

    Defaults:
        The released file of that name leaves alpha at 1 and sets weight 0.5.

    Limit:
        happier at alpha 1; the higher alpha, the nearer to roadmap on the finest level.
    """
    return happier(n_classes, embedding_dim, decomposability, weight, relevance, alpha, tau, rho, delta, preset)


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
    """ROD-NDCG: :class:`~sightline.losses.SupNDCGLoss` with a decomposability term; see :class:`Decomposed`.

    Formula:
        ``(1 - weight) * sup_ndcg + weight * term``

    Use:
        As sup_ndcg, in batches much smaller than the set.

    Cost:
        sup_ndcg's, and the term's.

    Defaults:
        weight 0.1 of the released code; the papers give none.

    Limit:
        sup_ndcg at weight 0.
    """
    return Decomposed(SupNDCGLoss(tau, rho, delta, preset), decomposability, weight, n_classes, embedding_dim, preset)
