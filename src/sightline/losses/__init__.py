"""Ranking losses: functions on ``(scores, relevance)``, modules on ``(embeddings, labels)``, and both by name.

In the formulas, for one query, ``s(j)`` is the score of item j and ``g(j)`` its relevance; k runs over the P relevant
items, n over the irrelevant ones, K over the places of a recall. A loss is the mean over the queries with a relevant item.

- ``above(k)``: how many items at least as relevant as k score at least as much, k included: exact, without a gradient.
- ``sup(k)``: the sum of ``H(s(j) - s(k))`` over the items j less relevant than k, H being SupRank's step.
- ``smooth(k)``: 1 plus the sum of ``sigmoid((s(j) - s(k)) / tau)`` over all other items; ``smooth+(k)`` over relevant ones.
"""

import math
from collections.abc import Mapping, Sequence

from torch import nn

from sightline.errors import InputError
from sightline.losses.average_precision import (
    EachLabelAPLoss,
    SmoothAPLoss,
    SupAPLoss,
    each_label_ap_loss,
    smooth_ap_loss,
    sup_ap_loss,
)
from sightline.losses.base import OutsideLoss, SupRank, makes_loss
from sightline.losses.blackbox import (
    BlackBoxAPLoss,
    BlackBoxRecallLoss,
    DetectionAPLoss,
    all_classes_ap_loss,
    blackbox_ap_loss,
    blackbox_ranks,
    blackbox_recall_loss,
    class_map_loss,
)
from sightline.losses.classification import BinaryCrossEntropyLoss, binary_cross_entropy_loss
from sightline.losses.contrastive import (
    CalibrationLoss,
    ContrastiveLoss,
    SupConLoss,
    TripletLoss,
    XBMContrastiveLoss,
    calibration_loss,
    contrastive_loss,
    sup_con_loss,
    triplet_loss,
    xbm_contrastive_loss,
)
from sightline.losses.graded import (
    SmoothHAPLoss,
    SmoothNDCGLoss,
    SupHAPLoss,
    SupNDCGLoss,
    smooth_h_ap_loss,
    smooth_ndcg_loss,
    sup_h_ap_loss,
    sup_ndcg_loss,
)
from sightline.losses.histogram import FastAPLoss, SoftBinAPLoss, fast_ap_loss, softbin_ap_loss
from sightline.losses.proxies import (
    ArcFaceLoss,
    CSLLoss,
    NormSoftmaxLoss,
    ProxyNCAPPLoss,
    arcface_loss,
    csl_loss,
    norm_softmax_loss,
    proxy_nca_pp_loss,
)
from sightline.losses.recall import SmoothRecallLoss, SupRecallLoss, smooth_recall_loss, sup_recall_loss
from sightline.losses.sums import (
    HappierFLoss,
    HappierLoss,
    RoadmapLoss,
    RODNDCGLoss,
    RODRecallLoss,
    SumOverLevels,
    WeightedSum,
    binary_cross_entropy_over_levels,
    norm_softmax_over_levels,
    proxy_nca_pp_over_levels,
    sum_over_levels,
    triplet_over_levels,
)
from sightline.registry import Registry


def weighted_sum(
    terms: Sequence[Mapping[str, object]],
    n_classes: int | None = None,
    embedding_dim: int | None = None,
    n_levels: int | None = None,
    class_counts: Sequence[int] | None = None,
    code_counts: Sequence[int] | None = None,
) -> WeightedSum:
    """The sum of any losses of the table, each with its own options and times its weight.

    Formula:
        ``sum over terms of weight * term``

    Use:
        Any mixture that has no name, in a recipe as ``[[loss.terms]]``.

    Cost:
        That of its terms; each computes its own scores.

    Defaults:
        None: every term has a weight.

    Limit:
        roadmap, with sup_ap and calibration as terms.

    Args:
        terms: for each loss its ``name``, its ``weight``, 0 or more, and its options; one of them may be a sum again.
        n_classes: passed to each term that takes it and does not set it itself, like the next four.
        embedding_dim: D.
        n_levels: L.
        class_counts: classes of each level, finest first.
        code_counts: for items with several codes, codes of each level, finest first.

    Example:
        >>> terms = [{"name": "sup_ap", "weight": 0.9}, {"name": "norm_softmax", "weight": 0.1, "temperature": 0.1}]
        >>> weighted_sum(terms, n_classes=3, embedding_dim=2).weights
        (0.9, 0.1)
    """
    if isinstance(terms, str) or not terms:
        raise InputError(f"terms must be a list of losses, each with its name, weight and options, got {terms!r}")
    known = {
        "n_classes": n_classes,
        "embedding_dim": embedding_dim,
        "n_levels": n_levels,
        "class_counts": class_counts,
        "code_counts": code_counts,
    }
    losses, weights = zip(*(_term(place, term, known) for place, term in enumerate(terms, start=1)), strict=True)
    return WeightedSum(losses, weights, _numbered([str(term["name"]) for term in terms]))


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number from the second time on that one occurs."""
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True)]


def _term(place: int, term: Mapping[str, object], known: Mapping[str, object]) -> tuple[nn.Module, float]:
    """One loss of a sum, and its weight."""
    if not isinstance(term, Mapping) or not {"name", "weight"} <= term.keys():
        raise InputError(f"term {place} must have a name and a weight, got {term!r}")
    options = dict(term)
    name, weight = str(options.pop("name")), options.pop("weight")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise InputError(f"term {place}: weight must be finite and at least 0, got {weight!r}")
    try:
        return LOSSES.create(name, options, trust=False, **known), float(weight)
    except InputError as error:
        raise InputError(f"term {place}: {error}") from error


LOSSES: Registry[nn.Module] = Registry(
    "loss",
    {
        "arcface": ArcFaceLoss,
        "binary_cross_entropy": BinaryCrossEntropyLoss,
        "blackbox_ap": BlackBoxAPLoss,
        "blackbox_recall": BlackBoxRecallLoss,
        "calibration": CalibrationLoss,
        "contrastive": ContrastiveLoss,
        "csl": CSLLoss,
        "each_label_ap": EachLabelAPLoss,
        "fast_ap": FastAPLoss,
        "happier": HappierLoss,
        "happier_f": HappierFLoss,
        "norm_softmax": NormSoftmaxLoss,
        "proxy_nca_pp": ProxyNCAPPLoss,
        "roadmap": RoadmapLoss,
        "rod_ndcg": RODNDCGLoss,
        "rod_recall": RODRecallLoss,
        "smooth_ap": SmoothAPLoss,
        "smooth_h_ap": SmoothHAPLoss,
        "smooth_ndcg": SmoothNDCGLoss,
        "smooth_recall": SmoothRecallLoss,
        "softbin_ap": SoftBinAPLoss,
        "sum_binary_cross_entropy": binary_cross_entropy_over_levels,
        "sum_norm_softmax": norm_softmax_over_levels,
        "sum_proxy_nca_pp": proxy_nca_pp_over_levels,
        "sum_triplet": triplet_over_levels,
        "sup_ap": SupAPLoss,
        "sup_con": SupConLoss,
        "sup_h_ap": SupHAPLoss,
        "sup_ndcg": SupNDCGLoss,
        "sup_recall": SupRecallLoss,
        "triplet": TripletLoss,
        "weighted_sum": weighted_sum,
        "xbm_contrastive": XBMContrastiveLoss,
    },
    "sightline.losses",
    makes_loss,
    "a torch.nn.Module, or a function that returns one",
)


def list_losses() -> list[str]:
    """The names :func:`create_loss` knows, in alphabetical order.

    Example:
        >>> [name for name in list_losses() if name.startswith("sup_")]
        ['sup_ap', 'sup_con', 'sup_h_ap', 'sup_ndcg', 'sup_recall']
    """
    return LOSSES.names()


def loss_options(name: str, trust: bool = False) -> list[str]:
    """The options the named loss takes; name and trust as in :func:`create_loss`.

    Example:
        >>> loss_options("smooth_ap")
        ['tau', 'preset']
    """
    return list(LOSSES.options(name, trust=trust))


def create_loss(name: str, trust: bool = False, **options: object) -> nn.Module:
    """The named loss, ready to be called on ``(embeddings, labels)``.

    Args:
        name: one of :func:`list_losses`, or ``package.module:Name`` for a loss of another package, such as
            ``pytorch_metric_learning.losses:MultiSimilarityLoss``; see :class:`OutsideLoss`.
        trust: import such a path.
        options: the loss's own settings; one it does not have is refused.

    Example:
        >>> import torch
        >>> loss = create_loss("sup_ap", tau=0.02)
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
        >>> loss(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.9270)
    """
    loss = LOSSES.create(name, options, trust=trust)
    return loss if name in LOSSES.table else OutsideLoss(loss, name)


__all__ = [
    "LOSSES",
    "ArcFaceLoss",
    "BinaryCrossEntropyLoss",
    "BlackBoxAPLoss",
    "BlackBoxRecallLoss",
    "CSLLoss",
    "CalibrationLoss",
    "ContrastiveLoss",
    "DetectionAPLoss",
    "EachLabelAPLoss",
    "FastAPLoss",
    "HappierFLoss",
    "HappierLoss",
    "NormSoftmaxLoss",
    "OutsideLoss",
    "ProxyNCAPPLoss",
    "RODNDCGLoss",
    "RODRecallLoss",
    "RoadmapLoss",
    "SmoothAPLoss",
    "SmoothHAPLoss",
    "SmoothNDCGLoss",
    "SmoothRecallLoss",
    "SoftBinAPLoss",
    "SumOverLevels",
    "SupAPLoss",
    "SupConLoss",
    "SupHAPLoss",
    "SupNDCGLoss",
    "SupRank",
    "SupRecallLoss",
    "TripletLoss",
    "WeightedSum",
    "XBMContrastiveLoss",
    "all_classes_ap_loss",
    "arcface_loss",
    "binary_cross_entropy_loss",
    "binary_cross_entropy_over_levels",
    "blackbox_ap_loss",
    "blackbox_ranks",
    "blackbox_recall_loss",
    "calibration_loss",
    "class_map_loss",
    "contrastive_loss",
    "create_loss",
    "csl_loss",
    "each_label_ap_loss",
    "fast_ap_loss",
    "list_losses",
    "loss_options",
    "norm_softmax_loss",
    "norm_softmax_over_levels",
    "proxy_nca_pp_loss",
    "proxy_nca_pp_over_levels",
    "smooth_ap_loss",
    "smooth_h_ap_loss",
    "smooth_ndcg_loss",
    "smooth_recall_loss",
    "softbin_ap_loss",
    "sum_over_levels",
    "sup_ap_loss",
    "sup_con_loss",
    "sup_h_ap_loss",
    "sup_ndcg_loss",
    "sup_recall_loss",
    "triplet_loss",
    "triplet_over_levels",
    "weighted_sum",
    "xbm_contrastive_loss",
]
