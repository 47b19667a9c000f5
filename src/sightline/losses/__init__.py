"""Ranking losses: functions on ``(scores, relevance)``, modules on ``(embeddings, labels)``, and both by name."""

import inspect
from collections.abc import Callable

from torch import nn

from sightline.errors import InputError, choose, nearest
from sightline.losses.average_precision import SmoothAPLoss, SupAPLoss, smooth_ap_loss, sup_ap_loss
from sightline.losses.combined import RoadmapLoss, roadmap_loss
from sightline.losses.pairwise import CalibrationLoss, calibration_loss

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "calibration": CalibrationLoss,
    "roadmap": RoadmapLoss,
    "smooth_ap": SmoothAPLoss,
    "sup_ap": SupAPLoss,
}


def list_losses() -> list[str]:
    """The names :func:`create_loss` knows, in alphabetical order.

    Example:
        >>> list_losses()
        ['calibration', 'roadmap', 'smooth_ap', 'sup_ap']
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
    "CalibrationLoss",
    "RoadmapLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "calibration_loss",
    "create_loss",
    "list_losses",
    "loss_options",
    "roadmap_loss",
    "smooth_ap_loss",
    "sup_ap_loss",
]
