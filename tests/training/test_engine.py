import math

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.testing import assert_close

from sightline.models.encoder import Encoder
from sightline.training.engine import Engine, create_optimizer, rate_factor
from sightline.training.large_batch import Examples
from sightline.training.recipe import OptimizerSection, ScheduleSection

N_STEPS = 12


def new_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return Examples(torch.randn(8, 6, generator=generator), torch.arange(8) % 2, torch.arange(8))


def squared_distance_to_label(embeddings, labels, ids):
    return (embeddings - labels[:, None]).square().mean()


def run(model, optimizer, first=0, stop=N_STEPS, seed=3, clip_norm=None):
    """Train from a step to another; the numbers of each."""
    fabric = Fabric(accelerator="cpu", devices=1)
    module, wrapped = fabric.setup(model, optimizer)
    engine = Engine(fabric, module, squared_distance_to_label, wrapped, seed, clip_norm)
    return [engine.step(batch(step), step) for step in range(first, stop)]


def numbers_of(model, optimizer=torch.optim.SGD, lr=1.0, **options):
    return run(model, optimizer(model.parameters(), lr=lr), **options)


def test_stopped_and_resumed_equals_never_stopped():
    whole, first, second = new_model(), new_model(), new_model()
    numbers = numbers_of(whole, torch.optim.Adam, 0.1)
    optimizer = torch.optim.Adam(first.parameters(), lr=0.1)
    before = run(first, optimizer, stop=5)
    torch.manual_seed(99)  # what a new process has drawn by then must not matter
    resumed = torch.optim.Adam(second.parameters(), lr=0.1)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert before + run(second, resumed, first=5) == numbers
    assert_close(dict(second.state_dict()), dict(whole.state_dict()), rtol=0, atol=0)


def test_dropout_differs_from_step_to_step_and_with_the_seed():
    first, again, other = (numbers_of(new_model(), lr=0.0, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first[0]["loss"] != other[0]["loss"]


def test_gradients_are_cut_to_the_norm_and_the_norm_before_is_reported():
    cut = new_model()
    (free_numbers,), (cut_numbers,) = numbers_of(new_model(), stop=1), numbers_of(cut, stop=1, clip_norm=0.01)
    assert cut_numbers["grad_norm"] == free_numbers["grad_norm"] > 0.01
    start = new_model().state_dict()
    moved = torch.cat([(start[name] - value).flatten() for name, value in cut.state_dict().items()])
    assert_close(moved.norm().item(), 0.01, rtol=1e-3, atol=0)


QUARTER = (1 + math.sqrt(0.5)) / 2  # cosine schedule after a quarter: cos(pi / 4)
STEP = {"name": "step", "epochs": 12, "milestones": (3, 6), "gamma": 0.5}


@pytest.mark.parametrize(
    ("section", "moments", "factors"),
    [
        ({"name": "cosine", "epochs": 8}, [0, 2, 4, 6, 8], [1, QUARTER, 0.5, 1 - QUARTER, 0]),
        ({"name": "cosine", "epochs": 8, "final_factor": 0.2}, [0, 4, 8], [1, 0.6, 0.2]),
        ({"name": "cosine", "epochs": 10, "warmup_epochs": 2}, [0, 1.9, 2, 6, 10], [1, 1, 1, 0.5, 0]),
        ({"name": "cosine", "epochs": 3, "warmup_epochs": 3}, [0, 2.5, 3], [1, 1, 1]),
        (STEP, [0, 2.99, 3, 5.5, 6, 12], [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (STEP | {"warmup_epochs": 2}, [3, 4.99, 5, 8], [1, 1, 0.5, 0.25]),
        ({"name": "linear", "epochs": 12, "warmup_epochs": 2}, [0, 2, 4.5, 7, 12], [1, 1, 0.75, 0.5, 0]),
        ({"name": "linear", "epochs": 10, "final_factor": 0.5}, [0, 5, 10], [1, 0.75, 0.5]),
        ({"name": "constant", "epochs": 12, "warmup_epochs": 3}, [0, 3.3, 12], [1, 1, 1]),
    ],
)
def test_learning_rate_schedules_worked_out_by_hand(section, moments, factors):
    found = [rate_factor(ScheduleSection(**section), moment) for moment in moments]
    assert_close(found, [float(factor) for factor in factors])


KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def test_the_named_optimizer_has_the_backbone_apart_from_what_is_new():
    encoder, loss = Encoder.create("tiny", embedding_dim=8, image_size=32), nn.Linear(3, 2)  # a loss with weights
    for name, kind in KINDS.items():
        section = OptimizerSection(name=name, lr=0.25, head_lr_factor=4, weight_decay=0.125, momentum=0.75)
        optimizer = create_optimizer(section, encoder, loss)
        assert type(optimizer) is kind
        backbone, fresh = optimizer.param_groups
        assert (backbone["lr"], fresh["lr"]) == (0.25, 1.0)
        assert (backbone["weight_decay"], fresh["weight_decay"]) == (0.125, 0.125)
        assert name != "sgd" or (backbone["momentum"], backbone["nesterov"]) == (0.75, True)
        ids = [{id(one) for one in group["params"]} for group in (backbone, fresh)]
        assert ids[0] == {id(one) for one in encoder.backbone.parameters()}
        assert ids[1] == {id(one) for one in [*encoder.parameters(), *loss.parameters()]} - ids[0]
        assert len(ids[1]) == 5  # the pooling's power, the projection's weight and bias, the loss's own
    plain = Encoder.create("tiny", embedding_dim=None, pooling="avg", image_size=32)
    optimizer = create_optimizer(OptimizerSection(name="sgd", momentum=0), plain, nn.Identity())
    assert [len(group["params"]) for group in optimizer.param_groups] == [9, 0]  # nothing is new
    assert not optimizer.param_groups[0]["nesterov"]
