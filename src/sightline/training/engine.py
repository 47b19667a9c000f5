"""The one loop: takes batches, a loss and what to do between steps, and knows none of their names."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.data.dataset import derived_seed
from sightline.errors import InputError
from sightline.training.checkpoint import Position
from sightline.training.large_batch import Loss, as_they_are, back_propagate
from sightline.training.sharding import clip_gradients


class Examples(NamedTuple):
    """A batch as the loop wants it: images, as they are loaded; (B,) or (B, L) labels; and (B,) which images they are."""

    images: Tensor
    labels: Tensor
    ids: Tensor


class Epoch(NamedTuple):
    """The batches of one epoch: how many there are, and those from a given one on."""

    n_batches: int
    batches: Iterable[Examples]


@dataclass(frozen=True)
class Between:
    """What happens between steps.

    Attributes:
        before_epoch: called before an epoch's first batch.
        before_step: called with the epoch, in fractions: sets learning rates and what is frozen.
        after_step: called with the new position, the batches of the epoch and the step's numbers; True ends the run there.
        after_epoch: called with the position of the next epoch; returns it, with its best value brought up to date, and
            whether the run ends there.
    """

    before_epoch: Callable[[], None]
    before_step: Callable[[float], None]
    after_step: Callable[[Position, int, dict[str, float]], bool]
    after_epoch: Callable[[Position], tuple[Position, bool]]


def fit(
    fabric: Fabric,
    encoder: nn.Module,
    loss: Loss,
    optimizer: Optimizer,
    epochs: range,
    epoch_from: Callable[[int, int], Epoch],
    between: Between,
    position: Position,
    seed: int,
    clip_norm: float | None = None,
    chunk_size: int | None = None,
    finished: Callable[[Tensor], Tensor] = as_they_are,
) -> Position:
    """Train from a position to the end, or to where ``between`` ends the run.

    Every random choice the model makes in a step comes from (seed, step), so a run that was stopped and resumed is the run
    that never stopped.

    Args:
        fabric: devices and precision.
        encoder: images to embeddings, set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch; see :mod:`sightline.training.large_batch`.
        optimizer: set up by ``fabric``.
        epochs: those of the whole run.
        epoch_from: the batches of an epoch from the given one on.
        between: what happens between steps.
        position: where to start.
        seed: the run's.
        clip_norm: largest gradient norm; None for no limit.
        chunk_size: images that go through the encoder at a time; None for the whole batch.
        finished: some images of a batch as the encoder wants them.

    Returns:
        The position at the end.
    """
    for number in epochs[position.epoch :]:
        n_batches, batches = epoch_from(number, position.batch)
        if position.batch == 0:
            between.before_epoch()
        for batch in batches:
            between.before_step(number + position.batch / n_batches)
            encoder.train()
            optimizer.zero_grad()
            images, labels, ids = fabric.to_device(batch)
            step_seed = derived_seed(seed, position.step)
            rate = optimizer.param_groups[0]["lr"]
            try:
                value = back_propagate(fabric, encoder, loss, images, labels, ids, step_seed, chunk_size, finished)
                if not math.isfinite(value.item()):
                    raise InputError(f"the loss is {value.item()}")
            except InputError as error:
                raise InputError(f"step {position.step + 1}, learning rate {rate:g}: {error}") from error
            limit = math.inf if clip_norm is None else clip_norm
            norm = clip_gradients(fabric, encoder, optimizer, limit)
            optimizer.step()
            position = replace(position, batch=position.batch + 1, step=position.step + 1)
            numbers = {"loss": value.item(), "grad_norm": norm.item(), "lr": rate}
            if between.after_step(position, n_batches, numbers):
                return position
        position, ended = between.after_epoch(replace(position, epoch=number + 1, batch=0))
        if ended:
            return position
    return position
