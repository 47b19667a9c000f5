"""One training step, the optimizer, the learning rate schedule and the SIGTERM handler; independent of loss and data."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.data.dataset import derived_seed
from sightline.errors import InputError
from sightline.losses.sums import terms_of
from sightline.models.encoder import Encoder
from sightline.training.distributed import clip_gradients
from sightline.training.large_batch import Examples, Loss, as_they_are, back_propagate
from sightline.training.logs import TERM
from sightline.training.recipe import OptimizerSection, ScheduleSection


@dataclass(frozen=True)
class Engine:
    """Updates the weights, one batch at a time.

    Every random choice of the model in a step is a function of (seed, step), so a resumed run equals an uninterrupted one.

    Attributes:
        fabric: devices and precision.
        learner: maps images or cached features to embeddings; set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch; see :mod:`sightline.training.large_batch`.
        optimizer: set up by ``fabric``.
        seed: random seed of the run.
        clip_norm: largest gradient norm; None for no limit.
        chunk_size: images per forward pass; None for the whole batch.
        finished: converts loaded images to what the learner takes.
        after_step: called with each batch, after the weights were updated; None for nothing.
    """

    fabric: Fabric
    learner: nn.Module
    loss: Loss
    optimizer: Optimizer
    seed: int
    clip_norm: float | None = None
    chunk_size: int | None = None
    finished: Callable[[Tensor], Tensor] = as_they_are
    after_step: Callable[[Examples], None] | None = None

    def step(self, batch: Examples, number: int) -> dict[str, float]:
        """Update the weights on one batch; returns loss, its terms, gradient norm before clipping, and learning rate.

        They come from the device together, once all of the step is on its way there.
        """
        self.learner.train()
        self.optimizer.zero_grad()
        here = Examples(*self.fabric.to_device(batch))
        seed, rate = derived_seed(self.seed, number), self.optimizer.param_groups[0]["lr"]
        try:
            value = back_propagate(self.fabric, self.learner, self.loss, here, seed, self.chunk_size, self.finished)
            limit = math.inf if self.clip_norm is None else self.clip_norm
            norm = clip_gradients(self.fabric, self.learner, self.optimizer, limit)
            self.optimizer.step()
            if self.after_step is not None:
                self.after_step(here)
            terms = {f"{TERM}{name}": term for name, term in terms_of(self.loss).items()}
            tensors = {"loss": value, "grad_norm": norm} | terms
            numbers = dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True))
            if not math.isfinite(numbers["loss"]):
                raise InputError(f"the loss is {numbers['loss']}; lower optimizer.lr, or set optimizer.clip_norm")
        except InputError as error:
            raise InputError(f"step {number + 1}, learning rate {rate:g}: {error}") from error
        return numbers | {"lr": rate}


def create_optimizer(section: OptimizerSection, encoder: Encoder, loss: nn.Module) -> Optimizer:
    """The named optimizer, with the backbone as first group and new weights as second, at a higher learning rate.

    New weights are pooling, head and the parameters of the loss; with ``proxy_lr`` the latter are a third group, without
    weight decay.
    """
    own = [weight for weight in loss.parameters() if weight.requires_grad]
    fresh = [*encoder.pooling.parameters(), *encoder.head.parameters(), *([] if section.proxy_lr else own)]
    groups: list[dict[str, Any]] = [
        {"params": list(encoder.backbone.parameters()), "lr": section.lr},
        {"params": fresh, "lr": section.lr * section.head_lr_factor},
    ]
    if section.proxy_lr and own:
        groups.append({"params": own, "lr": section.proxy_lr, "weight_decay": 0.0})
    makers: dict[str, Callable[..., Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": partial(torch.optim.SGD, momentum=section.momentum, nesterov=section.momentum > 0),
    }
    return makers[section.name](groups, weight_decay=section.weight_decay)


def rate_factor(section: ScheduleSection, epoch: float, final_factor: float | None = None) -> float:
    """The learning rate as a share of the first one; the schedule starts after the warm-up.

    A function of the position alone, so there is no state to save.

    Args:
        section: the recipe's schedule.
        epoch: position in the run, from 0, with fractions.
        final_factor: overrides the section's, for cosine and linear.

    Example:
        >>> schedule = ScheduleSection(epochs=12, warmup_epochs=2)
        >>> rate_factor(schedule, 1.0), rate_factor(schedule, 2.0), rate_factor(schedule, 7.0)
        (1.0, 1.0, 0.5)
    """
    left = section.final_factor if final_factor is None else final_factor
    since = max(0.0, epoch - section.warmup_epochs)
    share = min(1.0, since / max(1e-12, section.epochs - section.warmup_epochs))
    factors = {
        "constant": 1.0,
        "cosine": left + (1 - left) * (1 + math.cos(math.pi * share)) / 2,
        "linear": left + (1 - left) * (1 - share),
        "step": section.gamma ** sum(since >= milestone for milestone in section.milestones),
    }
    return factors[section.name]


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """A block in which SIGTERM sets the event instead of ending the process; has an effect in the main thread alone."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
