"""Feature map to vector. Maps are (B, C, H, W) from convolutions or (B, T, C) from transformers.

A pooling of your own is a module class; where its ``__init__`` takes ``n_prefix_tokens`` (tokens before the image's own) or
``n_channels`` (C), the encoder fills them in.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.registry import Registry

GEM_EPSILON = 1e-6


def positions(features: Tensor, n_prefix_tokens: int) -> Tensor:
    """(B, C, positions): the map without its geometry, and without class and register tokens."""
    if features.ndim not in (3, 4):
        raise InputError(
            f"pooling needs (B, C, H, W) or (B, T, C) features, got {tuple(features.shape)}; use pooling 'none'"
        )
    return features.flatten(2) if features.ndim == 4 else features[:, n_prefix_tokens:].transpose(1, 2)


def std_pooled(maps: Tensor) -> Tensor:
    """(N, C) the standard deviation (divisor n - 1) over positions of (N, C, H, W), or over tokens of (N, T, C).

    0 if there is one position. Remove class and register tokens before.

    Example:
        >>> std_pooled(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
        tensor([[1.2910]])
    """
    if maps.ndim not in (3, 4):
        raise InputError(f"feature maps must have shape (N, C, H, W) or (N, T, C), got {tuple(maps.shape)}")
    values = maps.flatten(2) if maps.ndim == 4 else maps.transpose(1, 2)
    return values.std(2) if values.shape[2] > 1 else torch.zeros_like(values[:, :, 0])


class PositionPooling(nn.Module):
    """A function over the last dimension of (B, C, positions)."""

    def __init__(self, function: Callable[[Tensor], Tensor], n_prefix_tokens: int) -> None:
        super().__init__()
        self.function, self.n_prefix_tokens = function, n_prefix_tokens

    def forward(self, features: Tensor) -> Tensor:
        return self.function(positions(features, self.n_prefix_tokens))


def average_pooling(n_prefix_tokens: int = 0) -> PositionPooling:
    """Mean over positions."""
    return PositionPooling(partial(torch.mean, dim=2), n_prefix_tokens)


def max_pooling(n_prefix_tokens: int = 0) -> PositionPooling:
    """Largest value over positions."""
    return PositionPooling(partial(torch.amax, dim=2), n_prefix_tokens)


def mean_max_pooling(n_prefix_tokens: int = 0) -> PositionPooling:
    """Mean plus largest value over positions."""
    return PositionPooling(_mean_plus_max, n_prefix_tokens)


def _mean_plus_max(values: Tensor) -> Tensor:
    return values.mean(2) + values.amax(2)


class GeMPooling(nn.Module):
    """Generalised mean: the p-th root of the mean p-th power, over positions, with one power, which learns.

    p = 1 is the mean, a large p the maximum. Values under 1e-6 count as 1e-6; the power as at least 1. In float32 at least.

    Example:
        >>> GeMPooling()(torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 2, 2))
        tensor([[2.9240]], grad_fn=<ExpBackward0>)
    """

    def __init__(self, n_prefix_tokens: int = 0, power: float = 3.0, learns: bool = True) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens
        self.power = nn.Parameter(torch.tensor([power]), requires_grad=learns)

    def forward(self, features: Tensor) -> Tensor:
        power = self.power.clamp(min=1)
        with torch.autocast(features.device.type, enabled=False):
            values = positions(features, self.n_prefix_tokens).to(torch.promote_types(features.dtype, torch.float32))
            # In logarithms: no power leaves the range of a float, and on a CPU the backward pass takes less than half.
            logs = values.clamp(min=GEM_EPSILON).log()
            largest = logs.detach().amax(2, keepdim=True)
            return (((logs - largest) * power).exp().mean(2).log() / power + largest.squeeze(2)).exp()


class ClassToken(nn.Module):
    """The first token of a transformer."""

    def forward(self, features: Tensor) -> Tensor:
        return features[:, 0]


class NoPooling(nn.Module):
    """The vectors of a backbone that pools by itself."""

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2:
            raise InputError(f"pooling 'none' needs (B, C) vectors, got features of shape {tuple(features.shape)}")
        return features


def frozen_gem_pooling(n_prefix_tokens: int = 0) -> GeMPooling:
    """Generalised mean over positions whose power stays 3."""
    return GeMPooling(n_prefix_tokens, learns=False)


class NativePooling(nn.Module):
    """The pooling that the backbone was trained with: attention pool, class token or mean, as timm's ``forward_head``.

    Args:
        backbone: a timm model without a classifier; its weights stay its own.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        if not hasattr(backbone, "forward_head"):
            raise InputError("pooling 'native' needs a timm model; use 'avg' or 'gem'")
        self._backbone = [backbone]  # in a list, so that its weights are not counted twice

    def forward(self, features: Tensor) -> Tensor:
        (backbone,) = self._backbone
        if features.ndim == 4 and getattr(backbone, "output_fmt", "NCHW") == "NHWC":  # as forward_features gave it
            features = features.permute(0, 2, 3, 1)
        pooled: Tensor = backbone.forward_head(features, pre_logits=True)  # type: ignore[operator]
        return pooled


POOLINGS: Registry[nn.Module] = Registry(
    "pooling",
    {
        "avg": average_pooling,
        "cls": ClassToken,
        "gem": GeMPooling,
        "gem_frozen": frozen_gem_pooling,
        "max": max_pooling,
        "mean+max": mean_max_pooling,
        "native": NativePooling,
        "none": NoPooling,
    },
    "sightline.poolings",
    wanted="a class of modules from feature maps to (B, C) vectors",
)
