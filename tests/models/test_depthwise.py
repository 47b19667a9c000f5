"""The quick backward pass of depthwise convolutions against torch's own in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline.models.backbones import create_backbone
from sightline.models.depthwise import QuickDepthwise, quick_depthwise

CASES = [  # channels, height, width, kernel, stride, padding
    (16, 7, 5, 3, 1, 1),
    (48, 9, 9, 3, 2, 0),
    (96, 2, 2, 5, 1, 2),
    (64, 6, 11, (1, 7), (1, 2), (0, 3)),
    (32, 1, 1, 3, 1, 1),
    (16, 8, 8, 2, 2, 0),
    (32, 4, 4, 5, 4, 3),
]


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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_are_those_of_torch(case, memory_format):
    channels, height, width, kernel, stride, padding = case
    tensors = draw(channels, height, width, kernel)

    def convolve(images, weight, bias):
        return F.conv2d(images.contiguous(memory_format=memory_format), weight, bias, stride, padding, groups=channels)

    expected = gradients([tensor.double() for tensor in tensors], convolve)
    with QuickDepthwise():
        found = gradients(tensors, convolve)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)


def test_threads_do_not_change_a_bit():
    tensors = draw(96, 9, 9, 3)[:2]
    before = torch.get_num_threads()
    found = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            with QuickDepthwise():
                found.append(gradients(tensors, lambda x, w: F.conv2d(x, w, padding=1, groups=96)))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        (draw(16, 5, 5, 3), {"groups": 16, "dilation": 2}),
        (draw(16, 5, 5, 3), {"groups": 16, "padding": "same"}),
        (draw(24, 5, 5, 3), {"groups": 24}),
        ([tensor.double() for tensor in draw(16, 5, 5, 3)], {"groups": 16}),
        ([torch.ones(1, 16, 5, 5), torch.ones(16, 2, 3, 3), torch.ones(16)], {"groups": 8}),
        ([torch.ones(1, 16, 5, 5), torch.ones(32, 1, 3, 3), torch.ones(32)], {"groups": 16}),
    ],
)
def test_other_convolutions_stay_as_they_are(tensors, options):
    images, weight, bias = tensors
    with QuickDepthwise():
        result = F.conv2d(images, weight.requires_grad_(), bias, **options)
    assert result.grad_fn.name() == "ConvolutionBackward0"


def test_it_is_used_where_a_model_learns_on_a_cpu_alone():
    images = torch.ones(1, 3, 4, 4)
    assert isinstance(quick_depthwise(images), QuickDepthwise)
    with torch.no_grad():
        assert not isinstance(quick_depthwise(images), QuickDepthwise)
    with torch.autocast("cpu", torch.bfloat16):
        assert not isinstance(quick_depthwise(images), QuickDepthwise)
    assert not isinstance(quick_depthwise(images.to("meta")), QuickDepthwise)


def test_an_efficientnet_learns_the_same():
    torch.manual_seed(0)
    model = create_backbone("tf_efficientnet_lite0").eval()
    images = torch.randn(2, 3, 32, 32)
    found = []
    for dtype in (torch.float64, torch.float32):  # in float64 every convolution is torch's
        model.to(dtype).zero_grad()
        with QuickDepthwise():
            model.forward_features(images.to(dtype)).square().sum().backward()
        found.append([parameter.grad.double() for parameter in model.parameters()])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs - ours).norm() <= 1e-3 * theirs.norm()
