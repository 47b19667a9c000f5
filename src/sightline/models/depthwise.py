"""Depthwise convolutions that learn quickly on a CPU.

torch's backward pass of one takes up to 50 times as long as its forward pass there, and most of a training step of an
EfficientNet. :class:`QuickDepthwise` gives those convolutions another one, whose sums have the same order with any
number of threads; everything else runs as it is.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from sightline.ranking.levels import torch_threads
from sightline.ranking.vectors import LANES, Vectors, vector_kernel

BLOCK = 32  # channels that one thread works on at a time: two lines of the cache
CHANNELS = 16  # their number is a multiple of this: whole vectors on every processor


def _describe_tap(
    on: Vectors, slopes: Any, slope: Any, pixels: Any, targets: Any, pixel: Any, taps: Any, sums: Any, tap: Any
) -> None:
    """One tap of a kernel between one pixel of the result and one of the image, for a vector of channels."""
    value = on.load(slopes, slope)
    on.store(on.multiply_add(value, on.load(taps, tap), on.load(targets, pixel)), targets, pixel)
    on.store(on.multiply_add(value, on.load(pixels, pixel), on.load(sums, tap)), sums, tap)


_add_tap = vector_kernel(_describe_tap)


@njit(cache=True, error_model="numpy", parallel=True)
def _fill_gradients(images, gradient, weight, stride, padding, for_images, for_weight):  # type: ignore[no-untyped-def]
    """Channels are the last axis of all arrays; the taps of a kernel are the first two of its own. Adds to the last two."""
    n, height, width, n_channels = images.shape
    out_height, out_width = gradient.shape[1:3]
    tall, wide = weight.shape[:2]
    for block in prange(-(-n_channels // BLOCK)):
        start, stop = block * BLOCK, min(n_channels, (block + 1) * BLOCK)
        for i in range(n):
            for out_y in range(out_height):
                top = out_y * stride[0] - padding[0]
                for out_x in range(out_width):
                    left = out_x * stride[1] - padding[1]
                    slope = ((i * out_height + out_y) * out_width + out_x) * n_channels
                    for tap_y in range(max(0, -top), min(tall, height - top)):
                        for tap_x in range(max(0, -left), min(wide, width - left)):
                            pixel = ((i * height + top + tap_y) * width + left + tap_x) * n_channels
                            tap = (tap_y * wide + tap_x) * n_channels
                            for c in range(start, stop, LANES):
                                _add_tap(gradient, slope + c, images, for_images, pixel + c, weight, for_weight, tap + c)


class _Depthwise(torch.autograd.Function):
    """torch's forward pass and the backward pass above."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding, ctx.has_bias = tuple(stride), tuple(padding), bias is not None
        with torch.no_grad():
            return torch.conv2d(images, weight, bias, ctx.stride, ctx.padding, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        for_images = torch.zeros_like(images, memory_format=torch.channels_last)
        for_weight = torch.zeros_like(weight[:, 0].permute(1, 2, 0), memory_format=torch.contiguous_format)
        with torch_threads():
            _fill_gradients(
                _channels_last(images),
                _channels_last(gradients[0]),
                weight[:, 0].permute(1, 2, 0).contiguous().numpy(),
                ctx.stride,
                ctx.padding,
                for_images.permute(0, 2, 3, 1).numpy(),
                for_weight.numpy(),
            )
        for_bias = gradients[0].sum((0, 2, 3)) if ctx.has_bias else None
        return for_images, for_weight.permute(2, 0, 1)[:, None], for_bias, None, None


def _channels_last(images: Tensor) -> npt.NDArray[np.float32]:
    return images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


class QuickDepthwise(TorchFunctionMode):
    """While it is entered, depthwise convolutions in float32 on a CPU have the quick backward pass.

    Those of a number of channels that is no multiple of 16, dilated or padded by name stay torch's.

    Example:
        >>> images, kernel = torch.ones(1, 16, 3, 3, requires_grad=True), torch.ones(16, 1, 3, 3)
        >>> with QuickDepthwise():
        ...     torch.conv2d(images, kernel, padding=1, groups=16).sum().backward()
        >>> images.grad[0, 0]
        tensor([[4., 6., 4.],
                [6., 9., 6.],
                [4., 6., 4.]])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _convolve(*args, **(kwargs or {})) if func is torch.conv2d else func(*args, **(kwargs or {}))


def _convolve(  # the parameters of torch.conv2d
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    is_depthwise = input.ndim == 4 and groups == input.shape[1] == len(weight) and groups % CHANNELS == 0
    on_cpu = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    if not is_depthwise or not on_cpu or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    result: Tensor = _Depthwise.apply(input, weight, bias, _pair(stride), _pair(padding))  # type: ignore[no-untyped-call]
    return result


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def quick_depthwise(images: Tensor) -> AbstractContextManager[object]:
    """:class:`QuickDepthwise` where it helps: a model that learns from these images as they are, in float32 on a CPU."""
    learns = torch.is_grad_enabled() and images.device.type == "cpu"
    as_written = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
    return QuickDepthwise() if learns and as_written else nullcontext()
