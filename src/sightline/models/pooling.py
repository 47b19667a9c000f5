"""Feature map to vector. Maps are (B, C, H, W) from convolutions or (B, T, C) from transformers.

A pooling of your own is a module class; where its ``__init__`` takes ``n_prefix_tokens`` (tokens before the image's own) or
``n_channels`` (C), the encoder fills them in.
"""

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.registry import Registry

GEM_EPSILON = 1e-6


def positions(features: Tensor, n_prefix_tokens: int) -> Tensor:
    """(B, C, positions): the map without its geometry, and without class and register tokens."""
    if features.ndim == 4:
        return features.flatten(2)
    return features[:, n_prefix_tokens:].transpose(1, 2)


class AveragePooling(nn.Module):
    """Mean over positions."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens

    def forward(self, features: Tensor) -> Tensor:
        return positions(features, self.n_prefix_tokens).mean(2)


class MaxPooling(nn.Module):
    """Largest value over positions."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens

    def forward(self, features: Tensor) -> Tensor:
        return positions(features, self.n_prefix_tokens).amax(2)


class GeMPooling(nn.Module):
    """Generalised mean: the p-th root of the mean p-th power, over positions, with one power, which learns.

    p = 1 is the mean, a large p the maximum. Values under 1e-6 count as 1e-6; the power as at least 1. In float32 at least.

    Example:
        >>> GeMPooling()(torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 2, 2))
        tensor([[2.9240]], grad_fn=<MulBackward0>)
    """

    def __init__(self, n_prefix_tokens: int = 0, power: float = 3.0, learns: bool = True) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens
        self.power = nn.Parameter(torch.tensor([power]), requires_grad=learns)

    def forward(self, features: Tensor) -> Tensor:
        power = self.power.clamp(min=1)
        with torch.autocast(features.device.type, enabled=False):
            values = positions(features, self.n_prefix_tokens).to(torch.promote_types(features.dtype, torch.float32))
            values = values.clamp(min=GEM_EPSILON)
            # (B, C, 1) factored out: its own power can leave the range of a float. A constant factor, so no gradient.
            largest = values.detach().amax(2, keepdim=True)
            return (values / largest).pow(power).mean(2).pow(1 / power) * largest.squeeze(2)


class MeanMaxPooling(nn.Module):
    """Mean plus largest value over positions."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens

    def forward(self, features: Tensor) -> Tensor:
        values = positions(features, self.n_prefix_tokens)
        return values.mean(2) + values.amax(2)


class ClassToken(nn.Module):
    """The first token of a transformer."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        if n_prefix_tokens < 1:
            raise InputError("pooling 'cls' needs a backbone with a class token")

    def forward(self, features: Tensor) -> Tensor:
        return features[:, 0]


def frozen_gem_pooling(n_prefix_tokens: int = 0) -> GeMPooling:
    """Generalised mean over positions whose power stays 3."""
    return GeMPooling(n_prefix_tokens, learns=False)


POOLINGS: Registry[nn.Module] = Registry(
    "pooling",
    {
        "avg": AveragePooling,
        "cls": ClassToken,
        "gem": GeMPooling,
        "gem_frozen": frozen_gem_pooling,
        "max": MaxPooling,
        "mean+max": MeanMaxPooling,
    },
    "sightline.poolings",
    wanted="a class of modules from feature maps to (B, C) vectors",
)
