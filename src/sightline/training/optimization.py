"""Optimizers by name, and the learning rate as a function of how far the run is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sightline.models.encoder import Encoder
from sightline.training.recipe import OptimizerSection, ScheduleSection


def create_optimizer(section: OptimizerSection, encoder: Encoder, loss: nn.Module) -> Optimizer:
    """The named optimizer over the backbone, and at a higher rate over everything that starts from nothing.

    The second group is pooling, head and the loss's own parameters; with ``proxy_lr`` these are a third, without decay.
    """
    own = list(loss.parameters())
    fresh = [*encoder.pooling.parameters(), *encoder.head.parameters(), *([] if section.proxy_lr else own)]
    groups: list[dict[str, Any]] = [
        {"params": list(encoder.backbone.parameters()), "lr": section.lr},
        {"params": fresh, "lr": section.lr * section.head_lr_factor},
    ]
    if section.proxy_lr and own:
        groups.append({"params": own, "lr": section.proxy_lr, "weight_decay": 0.0})
    makers: dict[str, Callable[[], Optimizer]] = {
        "adam": lambda: torch.optim.Adam(groups, weight_decay=section.weight_decay),
        "adamw": lambda: torch.optim.AdamW(groups, weight_decay=section.weight_decay),
        "sgd": lambda: torch.optim.SGD(
            groups, weight_decay=section.weight_decay, momentum=section.momentum, nesterov=section.momentum > 0
        ),
    }
    return makers[section.name]()


@dataclass(frozen=True)
class Schedule:
    """What the backbone may learn and at which share of its first learning rate, at any moment of a run.

    A function of time alone: nothing to save, nothing to get out of step on resuming.

    Example:
        >>> schedule = Schedule(ScheduleSection(epochs=12, warmup_epochs=2))
        >>> schedule.factor(1.0), schedule.factor(2.0), schedule.factor(7.0)
        (1.0, 1.0, 0.5)
    """

    section: ScheduleSection

    def is_warmup(self, epoch: float) -> bool:
        """Is the backbone still frozen?"""
        return epoch < self.section.warmup_epochs

    def factor(self, epoch: float, final_factor: float | None = None) -> float:
        """Share of the first learning rate; ``epoch`` counts from 0, in fractions. The schedule waits for the warm-up.

        Args:
            epoch: how far the run is.
            final_factor: what cosine and linear leave at the end, if not the section's.
        """
        section = self.section
        left = section.final_factor if final_factor is None else final_factor
        since = max(0.0, epoch - section.warmup_epochs)
        if section.name in ("cosine", "linear"):
            share = min(1.0, since / max(1e-12, section.epochs - section.warmup_epochs))
            remains = 1 - share if section.name == "linear" else (1 + math.cos(math.pi * share)) / 2
            return left + (1 - left) * remains
        if section.name == "step":
            return section.gamma ** sum(since >= milestone for milestone in section.milestones)
        return 1.0
