"""A rank loss and a decomposability term, weighed against each other: functions on scores, the term that of pairs."""

from collections.abc import Sequence

from torch import Tensor

from sightline.errors import InputError
from sightline.losses.average_precision import SupAPLoss, sup_ap_loss
from sightline.losses.graded import SupHAPLoss, SupNDCGLoss
from sightline.losses.pairwise import CalibrationLoss, calibration_loss
from sightline.losses.presets import preset_named, released
from sightline.losses.recall import PLACES, SupRecallLoss
from sightline.ranking.relevance import Pairs, table_pairs

RankLoss = SupAPLoss | SupHAPLoss | SupNDCGLoss | SupRecallLoss


def check_weight(weight: float) -> None:
    """Refuse what is no share of a sum."""
    if not 0 <= weight <= 1:
        raise InputError(f"weight is {weight}; a number from 0 to 1 is needed")


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
    check_weight(weight)
    rank_term = sup_ap_loss(scores, relevance, mask, tau, rho, delta, preset)
    reduction = preset_named(preset).reduction
    return (1 - weight) * rank_term + weight * calibration_loss(scores, relevance, mask, alpha, beta, reduction)


def rod_recall_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    ks: Sequence[int] = PLACES,
    rank_width: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
    """ROD-R@k: :func:`~sightline.losses.sup_recall_loss` with a decomposability term.

    Formula:
        ``(1 - weight) * sup_recall + weight * calibration``, or ``norm_softmax`` in place of calibration with the module's
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
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        weight: share of the calibration term, in [0, 1].
        ks: as in :func:`~sightline.losses.sup_recall_loss`, like the options that follow.
        rank_width: of the step at each place.
        tau: width of the sigmoid.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: the paper's step or the released code's.

    Returns:
        () the weighted sum of the two means.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> rod_recall_loss(scores, torch.tensor([[True, True, False]]), ks=[1, 2])
        tensor(0.7174)
    """
    pairs = table_pairs(scores, relevance > 0, mask)
    return _calibrated(SupRecallLoss(ks, rank_width, tau, rho, delta, preset), pairs, weight, preset)


def happier_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    alpha: float = 1.0,
    n_levels: int | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
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
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G), by type. Integers: how many label levels the two share; what an item is worth follows from
            ``alpha`` and the list, and the pairs that share all levels are calibrated as relevant. Floating point: what the
            item is worth; above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        weight: share of the calibration term, in [0, 1].
        alpha: exponent of the level: above 1 favours the finest.
        n_levels: the label levels there are; None for the most that a pair shares.
        tau: as in :func:`~sightline.losses.sup_h_ap_loss`, like the options that follow.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: the paper's step or the released code's.

    Returns:
        () the weighted sum of the two means.

    Example:
        >>> import torch
        >>> happier_loss(torch.tensor([[0.50, 0.51, 0.64]]), torch.tensor([[2, 0, 1]]))
        tensor(0.5040)
    """
    pairs = table_pairs(scores, relevance, mask, n_levels)
    return _calibrated(SupHAPLoss("population", alpha, tau, rho, delta, preset), pairs, weight, preset)


def happier_f_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    alpha: float | None = None,
    n_levels: int | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
    """HAPPIER_F: :func:`happier_loss` with an exponent that favours the finest level: 5 as on SOP; iNaturalist took 3.

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
        scores: as in :func:`happier_loss`, like all that follows.
        relevance: (Q, G) shared label levels, or worth.
        mask: (Q, G) bool.
        weight: share of the calibration term.
        alpha: exponent of the level; None for 5, or 1 with a preset of the released code.
        n_levels: the label levels there are.
        tau: width of the sigmoid.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: the paper's step or the released code's.
    """
    alpha = released(preset, alpha, 1.0)
    exponent = 5.0 if alpha is None else alpha
    return happier_loss(scores, relevance, mask, weight, exponent, n_levels, tau, rho, delta, preset)


def rod_ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    n_levels: int | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    preset: str = "paper",
) -> Tensor:
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
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G), by type. Integers: how many label levels l the two share, a gain of ``2 ** l - 1``; floating
            point: the gain itself. What is calibrated as relevant is as in :func:`happier_loss`.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        weight: share of the calibration term, in [0, 1].
        n_levels: the label levels there are; None for the most that a pair shares.
        tau: as in :func:`~sightline.losses.sup_ndcg_loss`, like the options that follow.
        rho: slope for far mistakes.
        delta: where that slope starts.
        preset: the paper's step or the released code's.

    Returns:
        () the weighted sum of the two means.

    Example:
        >>> import torch
        >>> rod_ndcg_loss(torch.tensor([[0.50, 0.51, 0.64]]), torch.tensor([[2, 0, 1]]))
        tensor(0.4630)
    """
    pairs = table_pairs(scores, relevance, mask, n_levels)
    return _calibrated(SupNDCGLoss(tau, rho, delta, preset), pairs, weight, preset)


def _calibrated(rank: RankLoss, pairs: Pairs, weight: float, preset: str) -> Tensor:
    """The rank loss and the calibration of pairs at hand."""
    term = CalibrationLoss(reduction=preset_named(preset).reduction)
    check_weight(weight)
    return (1 - weight) * rank.of_pairs(pairs) + weight * term.of_pairs(pairs)
