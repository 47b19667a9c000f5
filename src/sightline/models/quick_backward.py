"""Depthwise convolutions and frozen batch norms that learn quickly on a CPU.

torch's backward pass takes up to 50 times as long as the forward pass there for the first, 3 times for the second: most of
a training step of an EfficientNet. :class:`QuickBackward` gives both another one, whose sums have the same order with any
number of threads; everything else runs as it is.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from sightline.kernels.depthwise import fill_gradients, fill_norm_gradients
from sightline.kernels.row_loops import run_in_torch_threads


class _Depthwise(torch.autograd.Function):
    """torch's forward pass and the compiled backward pass."""

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
        for_images = torch.empty_like(images, memory_format=torch.channels_last)
        for_weight = run_in_torch_threads(
            fill_gradients,
            _channels_last(images),
            _channels_last(gradients[0]),
            weight[:, 0].permute(1, 2, 0).contiguous().numpy(),
            ctx.stride,
            ctx.padding,
            for_images.permute(0, 2, 3, 1).numpy(),
        )
        for_bias = gradients[0].sum((0, 2, 3)) if ctx.has_bias else None
        return for_images, torch.from_numpy(for_weight).permute(2, 0, 1)[:, None], for_bias, None, None


class _FrozenNorm(torch.autograd.Function):
    """torch's forward pass of a batch norm with fixed statistics, and the compiled backward pass."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(images, mean, variance, weight)
        ctx.eps = eps
        with torch.no_grad():
            return F.batch_norm(images, mean, variance, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, mean, variance, weight = ctx.saved_tensors
        shrink = (variance + ctx.eps).rsqrt()
        for_images = torch.empty_like(images, memory_format=torch.channels_last)
        sums, spreads = torch.zeros(2, *images.shape[:2])
        run_in_torch_threads(
            fill_norm_gradients,
            _channels_last(images),
            _channels_last(gradients[0]),
            (weight * shrink).numpy(),
            mean.numpy(),
            for_images.permute(0, 2, 3, 1).numpy(),
            sums.numpy(),
            spreads.numpy(),
        )
        return for_images, None, None, spreads.sum(0) * shrink, sums.sum(0), None


def _channels_last(images: Tensor) -> npt.NDArray[np.float32]:
    return images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


class QuickBackward(TorchFunctionMode):
    """While it is entered, depthwise convolutions and frozen batch norms in float32 on a CPU have the quick backward pass.

    Those of a number of channels that is no multiple of 16 stay torch's, as do convolutions that are dilated or padded by
    name and batch norms that learn their statistics or have no weight and bias.

    Example:
        >>> images, kernel = torch.ones(1, 16, 3, 3, requires_grad=True), torch.ones(16, 1, 3, 3)
        >>> with QuickBackward():
        ...     torch.conv2d(images, kernel, padding=1, groups=16).sum().backward()
        >>> images.grad[0, 0]
        tensor([[4., 6., 4.],
                [6., 9., 6.],
                [4., 6., 4.]])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        quick: dict[Callable[..., Any], Callable[..., Any]] = {torch.conv2d: _convolve, F.batch_norm: _normalise}
        return quick.get(func, func)(*args, **(kwargs or {}))


def _convolve(  # the parameters of torch.conv2d
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    is_depthwise = input.ndim == 4 and groups == input.shape[1] == len(weight)
    if not is_depthwise or not _fits(input, weight) or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    result: Tensor = _Depthwise.apply(input, weight, bias, _pair(stride), _pair(padding))  # type: ignore[no-untyped-call]
    return result


def _normalise(  # the parameters of torch.nn.functional.batch_norm
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    is_frozen = not training and running_mean is not None and running_var is not None
    if not is_frozen or weight is None or bias is None or input.ndim != 4 or not _fits(input, weight):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    result: Tensor = _FrozenNorm.apply(input, running_mean, running_var, weight, bias, eps)  # type: ignore[no-untyped-call]
    return result


def _fits(images: Tensor, weight: Tensor) -> bool:
    """Float32 on a CPU."""
    return images.device.type == "cpu" and images.dtype == weight.dtype == torch.float32


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def quick_backward(images: Tensor) -> AbstractContextManager[object]:
    """:class:`QuickBackward` where it helps: a model that learns from these images as they are, in float32 on a CPU."""
    learns = torch.is_grad_enabled() and images.device.type == "cpu"
    as_written = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
    return QuickBackward() if learns and as_written else nullcontext()
