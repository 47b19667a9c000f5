"""A rank loss and a decomposability term, which makes a batch speak for the whole set, weighed against each other."""

import inspect
from collections.abc import Sequence
from typing import ClassVar, Unpack

from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.losses.average_precision import SupAPLoss
from sightline.losses.base import PRESETS, PairLoss, SupOptions, batch_pairs, spelled_out
from sightline.losses.graded import SupHAPLoss, SupNDCGLoss
from sightline.losses.pairs import CalibrationLoss
from sightline.losses.proxies import NormSoftmaxLoss
from sightline.losses.recall import PLACES, SupRecallLoss
from sightline.ranking.pairs import Pairs
from sightline.ranking.ranks import check_positive
from sightline.ranking.similarity import both_in_full_precision, check_vectors

PAPER_WEIGHTS = {"calibration": 0.5, "proxy": 0.1}
NAMES: dict[type, str] = {
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
        rank: the rank loss; its preset sets the reduction of ``calibration`` too.
        decomposability: ``calibration``, on the same pairs, or ``proxy``, which has a vector for each finest class and
            needs ``n_classes`` and ``embedding_dim``; it looks at the batch alone.
        weight: share of the second term, in [0, 1]; None for the papers': 0.5 with ``calibration``, 0.1 with ``proxy``.
        n_classes: finest classes, for ``proxy``.
        embedding_dim: D, for ``proxy``.
        alpha: as in :func:`~sightline.losses.calibration_loss`, like ``beta``.
        beta: what irrelevant scores should stay under.
        temperature: as in :func:`~sightline.losses.norm_softmax_loss`.

    Attributes:
        terms: both terms of the last call, by name; see :mod:`sightline.losses.sums`.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, rank: type[PairLoss]) -> None:
        super().__init_subclass__()
        cls.__signature__ = spelled_out(cls, list(inspect.signature(rank).parameters.values()))

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
    ) -> None:
        super().__init__()
        usual = choose(PAPER_WEIGHTS, decomposability, "decomposability")
        self.weight = usual if weight is None else weight
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight is {weight}; a number from 0 to 1 is needed")
        calibration = CalibrationLoss(alpha, beta, PRESETS[rank.options["preset"]].reduction)
        check_positive(temperature=temperature)
        self.rank, self.terms = rank, dict[str, Tensor]()
        if decomposability == "calibration":
            self.term: CalibrationLoss | NormSoftmaxLoss = calibration
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
        if isinstance(self.term, NormSoftmaxLoss):
            return self._sum(self.rank.of_pairs(pairs), self.term(embeddings, labels))
        if self.rank.include_self:  # the term's pairs are of two items
            return self._sum(self.rank.of_pairs(pairs), self.term(embeddings, labels, ref_emb, ref_labels))
        return self.of_pairs(pairs)

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of pairs at hand, with ``calibration``: of scores and relevance, see :func:`table_pairs`.

        Example:
            >>> import torch
            >>> from sightline.ranking.pairs import table_pairs
            >>> pairs = table_pairs(torch.tensor([[0.50, 0.51, 0.64]]), torch.tensor([[True, True, False]]))
            >>> RoadmapLoss().of_pairs(pairs)
            tensor(0.6537)
        """
        if isinstance(self.term, NormSoftmaxLoss):
            raise InputError("decomposability 'proxy' needs embeddings; 'calibration' works on pairs")
        return self._sum(self.rank.of_pairs(pairs), self.term.of_pairs(pairs))

    def _sum(self, rank: Tensor, term: Tensor) -> Tensor:
        self.terms = {NAMES[type(self.rank)]: rank.detach(), NAMES[type(self.term)]: term.detach()}
        return (1 - self.weight) * rank + self.weight * term


class RoadmapLoss(Decomposed, rank=SupAPLoss):
    """ROADMAP: :func:`~sightline.losses.sup_ap_loss`, and a term that keeps scores comparable from batch to batch.

    Formula:
        ``(1 - weight) * sup_ap + weight * calibration``, or ``norm_softmax`` in place of calibration with
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
        decomposability: as in :class:`Decomposed`, like all that follows but the options of the rank loss.
        weight: share of the second term.
        n_classes: finest classes.
        embedding_dim: D.
        alpha: what relevant scores should reach.
        beta: what irrelevant scores should stay under.
        temperature: of the proxies.
        sup: ``tau``, ``rho``, ``delta`` and ``preset``, as in :func:`~sightline.losses.sup_ap_loss`; a preset of the
            released code also sets the reduction of calibration.

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
        **sup: Unpack[SupOptions],
    ) -> None:
        super().__init__(SupAPLoss(**sup), decomposability, weight, n_classes, embedding_dim, alpha, beta, temperature)


class RODRecallLoss(Decomposed, rank=SupRecallLoss):
    """ROD-R@k: :func:`~sightline.losses.sup_recall_loss` with a decomposability term.

    Formula:
        ``(1 - weight) * sup_recall + weight * calibration``, or ``norm_softmax`` in place of calibration with
        ``decomposability="proxy"``

    Use:
        As sup_recall, in batches much smaller than the set.

    Cost:
        sup_recall's, and the term's.

    Defaults:
        The papers give no weight here; those of roadmap are taken. The released code sets none, which is 0.5 with either
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
        sup: ``tau``, ``rho``, ``delta`` and ``preset``.
    """

    def __init__(
        self,
        decomposability: str = "calibration",
        weight: float | None = None,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        ks: Sequence[int] = PLACES,
        rank_width: float = 1.0,
        **sup: Unpack[SupOptions],
    ) -> None:
        weight = _released(sup, weight, 0.5)
        super().__init__(SupRecallLoss(ks, rank_width, **sup), decomposability, weight, n_classes, embedding_dim)


class HappierLoss(Decomposed, rank=SupHAPLoss):
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
        sup: ``tau``, ``rho``, ``delta`` and ``preset``.

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
        **sup: Unpack[SupOptions],
    ) -> None:
        rank = SupHAPLoss(relevance=relevance, alpha=alpha, **sup)
        super().__init__(rank, decomposability, weight, n_classes, embedding_dim)


class HappierFLoss(Decomposed, rank=SupHAPLoss):
    """HAPPIER_F: :class:`HappierLoss` with an exponent that favours the finest level: 5 as on SOP; iNaturalist took 3.

    Formula:
        That of happier with alpha 5

    Use:
        Label trees of which the finest level is what counts most.

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
        sup: ``tau``, ``rho``, ``delta`` and ``preset``.
    """

    def __init__(
        self,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        decomposability: str = "proxy",
        weight: float | None = None,
        relevance: str = "population",
        alpha: float | None = None,
        **sup: Unpack[SupOptions],
    ) -> None:
        weight, alpha = _released(sup, weight, 0.5), _released(sup, alpha, 1.0)
        rank = SupHAPLoss(relevance=relevance, alpha=5.0 if alpha is None else alpha, **sup)
        super().__init__(rank, decomposability, weight, n_classes, embedding_dim)


class RODNDCGLoss(Decomposed, rank=SupNDCGLoss):
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
        sup: ``tau``, ``rho``, ``delta`` and ``preset``, as in :func:`~sightline.losses.sup_ndcg_loss`.
    """

    def __init__(
        self,
        n_classes: int | None = None,
        embedding_dim: int | None = None,
        decomposability: str = "proxy",
        weight: float | None = None,
        **sup: Unpack[SupOptions],
    ) -> None:
        super().__init__(SupNDCGLoss(**sup), decomposability, weight, n_classes, embedding_dim)


def _released(sup: SupOptions, given: float | None, value: float) -> float | None:
    """What was given; where nothing was, the value of the released code if that is to be repeated."""
    return value if given is None and sup.get("preset", "paper") != "paper" else given
