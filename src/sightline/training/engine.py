"""One step of training, with its optimizer, learning rates and the signal that ends it; it knows no loss and no data."""

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
from sightline.models.encoder import Encoder
from sightline.training.distributed import clip_gradients
from sightline.training.large_batch import Examples, Loss, as_they_are, back_propagate
from sightline.training.recipe import OptimizerSection, ScheduleSection


@dataclass(frozen=True)
class Engine:
    """What moves the weights, one batch at a time.

    Every random choice the model makes in a step comes from (seed, step), so a run that was stopped and resumed is the run
    that never stopped.

    Attributes:
        fabric: devices and precision.
        learner: images, or cached features, to embeddings; set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch; see :mod:`sightline.training.large_batch`.
        optimizer: set up by ``fabric``.
        seed: the run's.
        clip_norm: largest gradient norm; None for no limit.
        chunk_size: images that go through the learner at a time; None for the whole batch.
        finished: some images of a batch as the learner wants them.
    """

    fabric: Fabric
    learner: nn.Module
    loss: Loss
    optimizer: Optimizer
    seed: int
    clip_norm: float | None = None
    chunk_size: int | None = None
    finished: Callable[[Tensor], Tensor] = as_they_are

    def step(self, batch: Examples, number: int) -> dict[str, float]:
        """Move the weights by one batch; its loss, the norm of the gradient before it is cut, and the learning rate."""
        self.learner.train()
        self.optimizer.zero_grad()
        here = Examples(*self.fabric.to_device(batch))
        seed, rate = derived_seed(self.seed, number), self.optimizer.param_groups[0]["lr"]
        try:
            value = back_propagate(self.fabric, self.learner, self.loss, here, seed, self.chunk_size, self.finished)
            if not math.isfinite(value.item()):
                raise InputError(f"the loss is {value.item()}")
        except InputError as error:
            raise InputError(f"step {number + 1}, learning rate {rate:g}: {error}") from error
        limit = math.inf if self.clip_norm is None else self.clip_norm
        norm = clip_gradients(self.fabric, self.learner, self.optimizer, limit)
        self.optimizer.step()
        return {"loss": value.item(), "grad_norm": norm.item(), "lr": rate}


def create_optimizer(section: OptimizerSection, encoder: Encoder, loss: nn.Module) -> Optimizer:
    """The named optimizer over the backbone, and at a higher rate over everything that starts from nothing.

    The second group is pooling, head and the loss's own parameters; with ``proxy_lr`` these are a third, without decay.
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
    """Share of the first learning rate at any moment of a run; the schedule waits for the warm-up.

    A function of time alone: nothing to save, nothing to get out of step on resuming.

    Args:
        section: the recipe's.
        epoch: how far the run is, from 0, in fractions.
        final_factor: what cosine and linear leave at the end, if not the section's.

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
    """A block in which SIGTERM does not end the process but sets the event; signals come to the main thread alone."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
