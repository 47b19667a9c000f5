import re

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from refusals import assert_refused
from sightline.models.encoder import Encoder
from sightline.models.pooling import POOLINGS, GeMPooling


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def gem_of(values: list[float], power: float) -> float:
    """By its definition, in Python's floats."""
    return (sum(max(value, 1e-6) ** power for value in values) / len(values)) ** (1 / power)


SLOW = {
    "avg": lambda values: sum(values) / len(values),
    "gem": lambda values: gem_of(values, 3),
    "gem_frozen": lambda values: gem_of(values, 3),
    "max": max,
    "mean+max": lambda values: sum(values) / len(values) + max(values),
}


def test_the_table_has_every_pooling():
    assert POOLINGS.names() == sorted([*SLOW, "cls", "native", "none"])
    features = drawn(2, 6, 3)
    assert_close(POOLINGS.create("cls", {})(features), features[:, 0])
    assert_close(POOLINGS.create("none", {})(features[:, 0]), features[:, 0])
    for name, wrong in (("none", features), ("avg", features[:, 0])):
        assert_refused(re.escape(str(tuple(wrong.shape))), POOLINGS.create(name, {}), wrong)
    assert_refused(r"'gme'.*'gem'", Encoder.create, "tiny", 8, "gme", image_size=32)


@pytest.mark.parametrize("name", SLOW)
def test_pooling_is_its_definition_over_positions_of_the_image(name):
    near, slow = {"rtol": 1e-6, "atol": 1e-6}, SLOW[name]
    image = drawn(2, 3, 4, 5)
    expected = torch.tensor([[slow(channel.flatten().tolist()) for channel in one] for one in image], dtype=torch.float64)
    for layout in (torch.contiguous_format, torch.channels_last):
        pooled = POOLINGS.create(name, {}, n_prefix_tokens=0)(image.to(memory_format=layout))
        assert_close(pooled.detach(), expected, **near)
    tokens = drawn(2, 6, 3)
    tokens[:, :2] = 100  # prefix tokens
    expected = torch.tensor(
        [[slow(one[2:, channel].tolist()) for channel in range(3)] for one in tokens], dtype=torch.float64
    )
    assert_close(POOLINGS.create(name, {}, n_prefix_tokens=2)(tokens).detach(), expected, **near)


def test_gem_of_one_to_four():
    one_to_four = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    for power, value in ((0.2, 2.5), (1.0, 2.5), (3.0, 2.9240177382), (50.0, 3.8906198337)):
        assert_close(GeMPooling(power=power).double()(one_to_four).item(), value, rtol=1e-10, atol=0)


@pytest.mark.parametrize("power", [1.5, 3.0, 7.0])
def test_gem_gradient_is_the_finite_difference(power):
    gem = GeMPooling(power=power).double()

    def pooled(features, exponent):
        return torch.func.functional_call(gem, {"power": exponent}, features)

    features = (drawn(2, 3, 2, 2).abs() + 0.1).requires_grad_()
    assert gradcheck(pooled, (features, torch.tensor([power], dtype=torch.float64, requires_grad=True)))


@pytest.mark.parametrize(("power", "scale"), [(3.0, 0.0), (60.0, 1e-4), (1.0, 1.0), (60.0, 1e4)])
def test_gem_and_its_gradient_are_finite_for_dead_and_for_loud_channels(power, scale):
    features = (scale * torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) - scale / 2).requires_grad_()
    gem = GeMPooling(power=power)
    pooled = gem(features)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert features.grad.isfinite().all()
    assert gem.power.grad.isfinite().all()
    assert (pooled >= 1e-6 * 0.999).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = features.detach().bfloat16()
        assert_close(gem(half), gem(half.float()))
