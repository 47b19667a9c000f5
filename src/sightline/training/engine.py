"""The one loop: takes batches, a loss and what to do between steps, and knows none of their names."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.data.dataset import derived_seed
from sightline.training.checkpoint import Position


class Examples(NamedTuple):
    """A batch as the loop wants it: (B, 3, H, W) images and (B,) or (B, L) labels."""

    images: Tensor
    labels: Tensor


class Epoch(NamedTuple):
    """The batches of one epoch: how many there are, and those from a given one on."""

    n_batches: int
    batches: Iterable[Examples]


@dataclass(frozen=True)
class Between:
    """What happens between steps.

    Attributes:
        before_step: called with the epoch, in fractions: sets learning rates and what is frozen.
        after_step: called with the new position, the batches of the epoch and the step's numbers.
        after_epoch: called with the position of the next epoch; returns it, with its best value brought up to date.
    """

    before_step: Callable[[float], None]
    after_step: Callable[[Position, int, dict[str, float]], None]
    after_epoch: Callable[[Position], Position]


def fit(
    fabric: Fabric,
    encoder: nn.Module,
    loss: nn.Module,
    optimizer: Optimizer,
    epochs: range,
    epoch_from: Callable[[int, int], Epoch],
    between: Between,
    position: Position,
    seed: int,
    clip_norm: float | None = None,
) -> Position:
    """Train from a position to the end.

    Every random choice the model makes in a step comes from (seed, step), so a run that was stopped and resumed is the run
    that never stopped.

    Args:
        fabric: devices and precision.
        encoder: images to embeddings, set up by ``fabric``.
        loss: called on (embeddings, labels).
        optimizer: set up by ``fabric``.
        epochs: those of the whole run.
        epoch_from: the batches of an epoch from the given one on.
        between: what happens between steps.
        position: where to start.
        seed: the run's.
        clip_norm: largest gradient norm; None for no limit.

    Returns:
        The position after the last epoch.
    """
    for number in epochs[position.epoch :]:
        n_batches, batches = epoch_from(number, position.batch)
        for batch in batches:
            between.before_step(number + position.batch / n_batches)
            encoder.train()
            torch.manual_seed(derived_seed(seed, position.step))
            images, labels = fabric.to_device(batch)
            value = loss(encoder(images), labels)
            optimizer.zero_grad()
            fabric.backward(value)
            limit = math.inf if clip_norm is None else clip_norm
            norm = cast(Tensor, fabric.clip_gradients(encoder, optimizer, max_norm=limit, error_if_nonfinite=False))
            optimizer.step()
            position = replace(position, batch=position.batch + 1, step=position.step + 1)
            numbers = {"loss": value.item(), "grad_norm": norm.item(), "lr": optimizer.param_groups[0]["lr"]}
            between.after_step(position, n_batches, numbers)
        position = between.after_epoch(replace(position, epoch=number + 1, batch=0))
    return position
