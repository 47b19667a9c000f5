from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.testing import assert_close

from sightline.training.checkpoint import Position
from sightline.training.engine import Between, Epoch, Examples, fit

N_EPOCHS, N_BATCHES = 3, 4


class StopHereError(Exception):
    pass


def new_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def batch(epoch, number):
    generator = torch.Generator().manual_seed(100 * epoch + number)
    return Examples(torch.randn(8, 6, generator=generator), torch.arange(8) % 2, torch.arange(8))


def squared_distance_to_label(embeddings, labels, ids):
    return (embeddings - labels[:, None]).square().mean()


def run(model, optimizer, position=None, stop_after=None, seed=3, clip_norm=None, before=lambda epoch: None):
    """Train; with ``stop_after`` raise after that many steps, as a crash would; the end, positions and numbers."""
    fabric = Fabric(accelerator="cpu", devices=1)
    seen, positions = [], []

    def epoch_from(epoch, first):
        return Epoch(N_BATCHES, (batch(epoch, number) for number in range(first, N_BATCHES)))

    def after_step(position, n_batches, numbers):
        assert n_batches == N_BATCHES
        seen.append(numbers)
        positions.append(position)
        if position.step == stop_after:
            raise StopHereError
        return False

    def after_epoch(position):
        return replace(position, best=float(position.epoch)), False

    module, wrapped = fabric.setup(model, optimizer)
    try:
        end = fit(
            fabric, module, squared_distance_to_label, wrapped, range(N_EPOCHS), epoch_from,
            Between(lambda: None, before, after_step, after_epoch), position or Position(), seed, clip_norm,
        )  # fmt: skip
    except StopHereError:
        end = positions[-1]
    return end, positions, seen


@pytest.mark.parametrize("stop_after", [1, 3, 4, 5, 11])
def test_stopped_after_any_step_and_resumed_equals_never_stopped(stop_after):
    whole = new_model()
    end, _, numbers = run(whole, torch.optim.Adam(whole.parameters(), lr=0.1))
    assert end == Position(epoch=N_EPOCHS, batch=0, step=N_EPOCHS * N_BATCHES, best=N_EPOCHS)

    first = new_model()
    optimizer = torch.optim.Adam(first.parameters(), lr=0.1)
    position, _, before = run(first, optimizer, stop_after=stop_after)
    assert position.step == stop_after
    torch.manual_seed(99)  # what a new process has drawn by then must not matter
    second = new_model()
    resumed = torch.optim.Adam(second.parameters(), lr=0.1)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    _, _, after = run(second, resumed, position=position)
    assert before + after == numbers
    assert_close(dict(second.state_dict()), dict(whole.state_dict()), rtol=0, atol=0)


def test_dropout_differs_from_step_to_step_and_with_the_seed():
    def first_losses(seed):
        model = new_model()
        return [step["loss"] for step in run(model, torch.optim.SGD(model.parameters(), lr=0.0), seed=seed)[2]]

    torch.manual_seed(0)
    assert first_losses(3) == first_losses(3)
    assert first_losses(3) != first_losses(4)


def test_gradients_are_cut_to_the_norm_and_the_norm_before_is_reported():
    free, cut = new_model(), new_model()
    _, _, numbers = run(free, torch.optim.SGD(free.parameters(), lr=1.0), stop_after=1)
    _, _, cut_numbers = run(cut, torch.optim.SGD(cut.parameters(), lr=1.0), stop_after=1, clip_norm=0.01)
    assert cut_numbers[0]["grad_norm"] == numbers[0]["grad_norm"] > 0.01
    start = new_model().state_dict()
    moved = torch.cat([(start[name] - value).flatten() for name, value in cut.state_dict().items()])
    assert_close(moved.norm().item(), 0.01, rtol=1e-3, atol=0)


def test_time_is_told_in_fractions_of_an_epoch():
    told = []
    model = new_model()
    run(model, torch.optim.SGD(model.parameters(), lr=0.1), before=told.append)
    assert told == [step / N_BATCHES for step in range(N_EPOCHS * N_BATCHES)]
