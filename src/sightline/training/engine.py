"""The one loop, with its optimizer, learning rates and the signal that ends it; it knows no name of model, loss or data."""

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

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
from sightline.training.run_folder import Position


class Epoch(NamedTuple):
    """The batches of one epoch: how many there are, and those from a given one on."""

    n_batches: int
    batches: Iterable[Examples]


class Steering(Protocol):
    """What the loop asks of a run: batches, and what to do between steps."""

    def epoch_from(self, epoch: int, first: int) -> Epoch:
        """The batches of an epoch from the given one on."""

    def before_epoch(self) -> None:
        """Called before an epoch's first batch."""

    def before_step(self, epoch: float) -> None:
        """Called with the epoch, in fractions: sets learning rates and what is frozen."""

    def after_step(self, position: Position, n_batches: int, numbers: dict[str, float]) -> bool:
        """Called with the new position, the batches of the epoch and the step's numbers; True ends the run there."""

    def after_epoch(self, position: Position) -> tuple[Position, bool]:
        """Called with the position of the next epoch.

        Returns:
            The position, with its best value brought up to date, and whether the run ends there.
        """


@dataclass(frozen=True)
class Loop:
    """Train from a position to the end, or to where the run ends it.

    Every random choice the model makes in a step comes from (seed, step), so a run that was stopped and resumed is the run
    that never stopped.

    Attributes:
        fabric: devices and precision.
        encoder: images to embeddings, set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch; see :mod:`sightline.training.large_batch`.
        optimizer: set up by ``fabric``.
        seed: the run's.
        clip_norm: largest gradient norm; None for no limit.
        chunk_size: images that go through the encoder at a time; None for the whole batch.
        finished: some images of a batch as the encoder wants them.
    """

    fabric: Fabric
    encoder: nn.Module
    loss: Loss
    optimizer: Optimizer
    seed: int
    clip_norm: float | None = None
    chunk_size: int | None = None
    finished: Callable[[Tensor], Tensor] = as_they_are

    def fit(self, n_epochs: int, run: Steering, position: Position) -> Position:
        """Train to the end of the epochs; the position there."""
        for number in range(position.epoch, n_epochs):
            n_batches, batches = run.epoch_from(number, position.batch)
            if position.batch == 0:
                run.before_epoch()
            for batch in batches:
                run.before_step(number + position.batch / n_batches)
                numbers = self.step(batch, position.step)
                position = replace(position, batch=position.batch + 1, step=position.step + 1)
                if run.after_step(position, n_batches, numbers):
                    return position
            position, ended = run.after_epoch(replace(position, epoch=number + 1, batch=0))
            if ended:
                break
        return position

    def step(self, batch: Examples, number: int) -> dict[str, float]:
        """Move the weights by one batch; its loss, the norm of the gradient before it is cut, and the learning rate."""
        self.encoder.train()
        self.optimizer.zero_grad()
        here = Examples(*self.fabric.to_device(batch))
        seed, rate = derived_seed(self.seed, number), self.optimizer.param_groups[0]["lr"]
        try:
            value = back_propagate(self.fabric, self.encoder, self.loss, here, seed, self.chunk_size, self.finished)
            if not math.isfinite(value.item()):
                raise InputError(f"the loss is {value.item()}")
        except InputError as error:
            raise InputError(f"step {number + 1}, learning rate {rate:g}: {error}") from error
        limit = math.inf if self.clip_norm is None else self.clip_norm
        norm = clip_gradients(self.fabric, self.encoder, self.optimizer, limit)
        self.optimizer.step()
        return {"loss": value.item(), "grad_norm": norm.item(), "lr": rate}


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
