"""Ranking losses: functions on ``(scores, relevance)``, modules on ``(embeddings, labels)``, and both by name."""

import inspect
from collections.abc import Callable

from torch import nn

from sightline.errors import InputError, choose, nearest
from sightline.losses.average_precision import SmoothAPLoss, SupAPLoss, smooth_ap_loss, sup_ap_loss
from sightline.losses.baselines import (
    ContrastiveLoss,
    TripletLoss,
    XBMContrastiveLoss,
    contrastive_loss,
    triplet_loss,
    xbm_contrastive_loss,
)
from sightline.losses.blackbox import (
    BlackBoxAPLoss,
    BlackBoxRecallLoss,
    blackbox_ap_loss,
    blackbox_ranks,
    blackbox_recall_loss,
)
from sightline.losses.combined import Decomposed, happier, happier_f, roadmap, roadmap_loss, rod_ndcg, rod_recall
from sightline.losses.detection import DetectionAPLoss, all_classes_ap_loss, class_map_loss
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
from sightline.losses.levels import (
    SumOverLevels,
    norm_softmax_over_levels,
    proxy_nca_pp_over_levels,
    sum_over_levels,
    triplet_over_levels,
)
from sightline.losses.pairwise import CalibrationLoss, calibration_loss
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

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "arcface": ArcFaceLoss,
    "blackbox_ap": BlackBoxAPLoss,
    "blackbox_recall": BlackBoxRecallLoss,
    "calibration": CalibrationLoss,
    "contrastive": ContrastiveLoss,
    "csl": CSLLoss,
    "fast_ap": FastAPLoss,
    "happier": happier,
    "happier_f": happier_f,
    "norm_softmax": NormSoftmaxLoss,
    "proxy_nca_pp": ProxyNCAPPLoss,
    "roadmap": roadmap,
    "rod_ndcg": rod_ndcg,
    "rod_recall": rod_recall,
    "smooth_ap": SmoothAPLoss,
    "smooth_h_ap": SmoothHAPLoss,
    "smooth_ndcg": SmoothNDCGLoss,
    "smooth_recall": SmoothRecallLoss,
    "softbin_ap": SoftBinAPLoss,
    "sum_norm_softmax": norm_softmax_over_levels,
    "sum_proxy_nca_pp": proxy_nca_pp_over_levels,
    "sum_triplet": triplet_over_levels,
    "sup_ap": SupAPLoss,
    "sup_h_ap": SupHAPLoss,
    "sup_ndcg": SupNDCGLoss,
    "sup_recall": SupRecallLoss,
    "triplet": TripletLoss,
    "xbm_contrastive": XBMContrastiveLoss,
}


def list_losses() -> list[str]:
    """The names :func:`create_loss` knows, in alphabetical order.

    Example:
        >>> [name for name in list_losses() if name.startswith("sup_")]
        ['sup_ap', 'sup_h_ap', 'sup_ndcg', 'sup_recall']
    """
    return sorted(LOSSES)


def loss_options(name: str) -> list[str]:
    """The options the named loss takes.

    Example:
        >>> loss_options("smooth_ap")
        ['tau']
    """
    return list(inspect.signature(choose(LOSSES, name, "loss")).parameters)


def create_loss(name: str, **options: object) -> nn.Module:
    """The named loss, ready to be called on ``(embeddings, labels)``.

    Args:
        name: one of :func:`list_losses`.
        options: the loss's own settings; one it does not have is refused.

    Example:
        >>> import torch
        >>> loss = create_loss("sup_ap", tau=0.02)
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]])
        >>> loss(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.9270)
    """
    known = loss_options(name)
    if unknown := [option for option in options if option not in known]:
        raise InputError(f"loss {name!r} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    parameters = inspect.signature(LOSSES[name]).parameters
    for option, value in options.items():
        if isinstance(parameters[option].default, float) and not isinstance(value, int | float):
            raise InputError(f"loss {name!r}: {option} is {value!r}; a number is needed")
    return LOSSES[name](**options)


__all__ = [
    "LOSSES",
    "ArcFaceLoss",
    "BlackBoxAPLoss",
    "BlackBoxRecallLoss",
    "CSLLoss",
    "CalibrationLoss",
    "ContrastiveLoss",
    "Decomposed",
    "DetectionAPLoss",
    "FastAPLoss",
    "NormSoftmaxLoss",
    "ProxyNCAPPLoss",
    "SmoothAPLoss",
    "SmoothHAPLoss",
    "SmoothNDCGLoss",
    "SmoothRecallLoss",
    "SoftBinAPLoss",
    "SumOverLevels",
    "SupAPLoss",
    "SupHAPLoss",
    "SupNDCGLoss",
    "SupRecallLoss",
    "TripletLoss",
    "XBMContrastiveLoss",
    "all_classes_ap_loss",
    "arcface_loss",
    "blackbox_ap_loss",
    "blackbox_ranks",
    "blackbox_recall_loss",
    "calibration_loss",
    "class_map_loss",
    "contrastive_loss",
    "create_loss",
    "csl_loss",
    "fast_ap_loss",
    "happier",
    "happier_f",
    "list_losses",
    "loss_options",
    "norm_softmax_loss",
    "norm_softmax_over_levels",
    "proxy_nca_pp_loss",
    "proxy_nca_pp_over_levels",
    "roadmap",
    "roadmap_loss",
    "rod_ndcg",
    "rod_recall",
    "smooth_ap_loss",
    "smooth_h_ap_loss",
    "smooth_ndcg_loss",
    "smooth_recall_loss",
    "softbin_ap_loss",
    "sum_over_levels",
    "sup_ap_loss",
    "sup_h_ap_loss",
    "sup_ndcg_loss",
    "sup_recall_loss",
    "triplet_loss",
    "triplet_over_levels",
    "xbm_contrastive_loss",
]
