import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.models.encoder import Encoder
from sightline.training.optimization import Schedule, create_optimizer
from sightline.training.recipe import OptimizerSection, ScheduleSection


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32)


def factors(moments, **section):
    return [Schedule(ScheduleSection(**section)).factor(moment) for moment in moments]


def test_cosine_falls_from_the_whole_rate_to_what_is_left_at_the_end():
    quarter = (1 + math.sqrt(0.5)) / 2  # cos(pi / 4)
    assert_close(factors([0, 2, 4, 6, 8], name="cosine", epochs=8), [1.0, quarter, 0.5, 1 - quarter, 0.0])
    left = factors([0, 4, 8], name="cosine", epochs=8, final_factor=0.2)
    assert_close(left, [1.0, 0.6, 0.2])


def test_the_schedule_waits_for_the_warm_up():
    schedule = Schedule(ScheduleSection(name="cosine", epochs=10, warmup_epochs=2))
    assert_close([schedule.factor(epoch) for epoch in (0, 1.9, 2, 6, 10)], [1.0, 1.0, 1.0, 0.5, 0.0])
    assert [schedule.is_warmup(epoch) for epoch in (0, 1.999, 2, 9)] == [True, True, False, False]
    assert not Schedule(ScheduleSection(epochs=10)).is_warmup(0)


def test_steps_fall_at_each_milestone_counted_from_the_warm_up():
    section = {"name": "step", "epochs": 12, "milestones": (3, 6), "gamma": 0.5}
    assert_close(factors([0, 2.99, 3, 5.5, 6, 12], **section), [1.0, 1.0, 0.5, 0.5, 0.25, 0.25])
    assert_close(factors([3, 4.99, 5, 8], **section, warmup_epochs=2), [1.0, 1.0, 0.5, 0.25])
    assert factors([0, 99], name="step", epochs=12) == [1, 1]


def test_constant_stays():
    assert factors([0, 3.3, 12], name="constant", epochs=12, warmup_epochs=3) == [1, 1, 1]


def test_a_warm_up_as_long_as_the_run_never_divides_by_zero():
    assert factors([0, 2.5, 3], name="cosine", epochs=3, warmup_epochs=3) == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_the_named_optimizer_has_the_backbone_apart_from_what_is_new(name, kind, encoder):
    loss = nn.Linear(3, 2)  # stands for a loss with weights of its own
    section = OptimizerSection(name=name, lr=0.25, head_lr_factor=4, weight_decay=0.125, momentum=0.75)
    optimizer = create_optimizer(section, encoder, loss)
    assert type(optimizer) is kind
    backbone, fresh = optimizer.param_groups
    assert (backbone["lr"], fresh["lr"]) == (0.25, 1.0)
    assert (backbone["weight_decay"], fresh["weight_decay"]) == (0.125, 0.125)
    if name == "sgd":
        assert (backbone["momentum"], backbone["nesterov"]) == (0.75, True)

    def ids(parameters):
        return [id(parameter) for parameter in parameters]

    assert ids(backbone["params"]) == ids(encoder.backbone.parameters())
    rest = set(ids(encoder.parameters())) - set(ids(encoder.backbone.parameters()))
    assert len(rest) == 3  # the pooling's power, the projection's weight and bias
    assert set(ids(fresh["params"])) == rest | set(ids(loss.parameters()))


def test_sgd_without_momentum_and_an_encoder_without_new_weights():
    plain = Encoder.create("tiny", embedding_dim=None, pooling="avg", image_size=32)
    optimizer = create_optimizer(OptimizerSection(name="sgd", momentum=0), plain, nn.Identity())
    assert [len(group["params"]) for group in optimizer.param_groups] == [9, 0]
    assert not optimizer.param_groups[0]["nesterov"]
    before = next(plain.parameters()).detach().clone()
    plain(torch.rand(2, 3, 32, 32))[:, 0].sum().backward()
    optimizer.step()
    assert (next(plain.parameters()) != before).any()


def test_linear_falls_evenly_to_what_is_left_after_the_warm_up():
    assert factors([0, 2, 4.5, 7, 12], name="linear", epochs=12, warmup_epochs=2) == [1, 1, 0.75, 0.5, 0]
    assert factors([0, 5, 10], name="linear", epochs=10, final_factor=0.5) == [1, 0.75, 0.5]
