"""The quick backward passes of depthwise convolutions and frozen batch norms against torch's own in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline.models.backbones import create_backbone
from sightline.models.quick_backward import QuickBackward, quick_backward

CASES = [  # channels, height, width, kernel, stride, padding
    (16, 7, 5, 3, 1, 1),
    (3, 7, 5, 3, 1, 1),
    (48, 9, 9, 3, 2, 0),
    (96, 2, 2, 5, 1, 2),
    (64, 6, 11, (1, 7), (1, 2), (0, 3)),
    (32, 1, 1, 3, 1, 1),
    (16, 8, 8, 2, 2, 0),
    (32, 4, 4, 5, 4, 3),
]
FORMATS = [torch.contiguous_format, torch.channels_last]


def draw(channels, height, width, kernel, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (kernel, kernel) if isinstance(kernel, int) else kernel
    images = torch.randn(3, channels, height, width, generator=generator)
    return images, torch.randn(channels, 1, *shape, generator=generator), torch.randn(channels, generator=generator)


def gradients(tensors, convolve):
    """Of a sum in which no two places of the result weigh the same; and the result."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    result = convolve(*leaves)
    (result * torch.arange(result.numel()).view_as(result).sin().to(result)).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def assert_as_torch(tensors, function):
    expected = gradients([tensor.double() for tensor in tensors], function)
    with QuickBackward():
        found = gradients(tensors, function)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_are_those_of_torch(case):
    channels, height, width, kernel, stride, padding = case
    for memory_format in FORMATS:

        def convolve(images, weight, bias, memory_format=memory_format):
            images = images.contiguous(memory_format=memory_format)
            return F.conv2d(images, weight, bias, stride, padding, groups=channels)

        assert_as_torch(draw(channels, height, width, kernel), convolve)


def assert_same_with_any_threads(tensors, function):
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            with QuickBackward():
                found.append(gradients(tensors, function))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_threads_do_not_change_a_bit():
    assert_same_with_any_threads(draw(96, 9, 9, 3)[:2], lambda x, w: F.conv2d(x, w, padding=1, groups=96))
    *tensors, mean, variance = draw_norm(48, 9, 9)
    assert_same_with_any_threads(tensors, lambda x, w, b: F.batch_norm(x, mean, variance, w, b))


def test_other_convolutions_and_batch_norms_stay_as_they_are():
    for (images, weight, bias), options in (
        (draw(16, 5, 5, 3), {"groups": 16, "dilation": 2}),
        (draw(16, 5, 5, 3), {"groups": 16, "padding": "same"}),
        ([tensor.double() for tensor in draw(16, 5, 5, 3)], {"groups": 16}),
        ([torch.ones(1, 16, 5, 5), torch.ones(16, 2, 3, 3), torch.ones(16)], {"groups": 8}),
        ([torch.ones(1, 16, 5, 5), torch.ones(32, 1, 3, 3), torch.ones(32)], {"groups": 16}),
    ):
        with QuickBackward():
            result = F.conv2d(images, weight.requires_grad_(), bias, **options)
        assert result.grad_fn.name() == "ConvolutionBackward0"
    for images, options in (
        (torch.ones(4, 16, 3, 3), {"training": True}),
        (torch.ones(4, 16, 3, 3), {"weight": None}),
        (torch.ones(4, 16, 3, 3).double(), {}),
        (torch.ones(4, 16), {}),
    ):
        mean, variance, weight, bias = torch.ones(4, 16, dtype=images.dtype).clone()
        with QuickBackward():
            result = F.batch_norm(images.requires_grad_(), mean, variance, **{"weight": weight, "bias": bias} | options)
        assert result.grad_fn.name() == "NativeBatchNormBackward0"


def draw_norm(channels, height, width):
    """Images, weight, bias, and running statistics far from 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    images = 3 + 2 * torch.randn(4, channels, height, width, generator=generator)
    weight, bias, mean = torch.randn(3, channels, generator=generator)
    return images, weight, bias, 3 + mean, 0.5 + torch.rand(channels, generator=generator)


@pytest.mark.parametrize(("shape", "memory_format"), [((16, 7, 5), FORMATS[0]), ((48, 32, 3), FORMATS[1])])
def test_a_frozen_batch_norm_has_the_result_and_gradients_of_torch(shape, memory_format):
    *tensors, mean, variance = draw_norm(*shape)

    def normalise(images, weight, bias):
        images = images.contiguous(memory_format=memory_format)
        return F.batch_norm(images, mean.to(images), variance.to(images), weight, bias, eps=1e-3)

    assert_as_torch(tensors, normalise)


def test_it_is_used_where_a_model_learns_on_a_cpu_alone():
    images = torch.ones(1, 3, 4, 4)
    assert isinstance(quick_backward(images), QuickBackward)
    assert not isinstance(quick_backward(images.to("meta")), QuickBackward)
    for context in (torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert not isinstance(quick_backward(images), QuickBackward)


def test_an_efficientnet_learns_the_same():
    torch.manual_seed(0)
    model = create_backbone("tf_efficientnet_lite0").eval()
    images = torch.randn(2, 3, 32, 32)
    found = []
    for dtype in (torch.float64, torch.float32):  # in float64 every convolution is torch's
        model.to(dtype).zero_grad()
        with QuickBackward():
            model.forward_features(images.to(dtype)).square().sum().backward()
        found.append([parameter.grad.double() for parameter in model.parameters()])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs - ours).norm() <= 1e-3 * theirs.norm()
