"""Vector to embedding."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError, choose

FeatureNorm = Literal["layer", "l2", "none"]
SMALLEST_VARIANCE = 1e-10  # share of the largest one: below it a direction is noise, not to be blown up


class UnitLength(nn.Module):
    """Each row at length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=1)


class Head(nn.Module):
    """A norm without parameters, a linear projection, then unit length.

    Args:
        in_dim: channels of the pooled vector.
        embedding_dim: dimensions to project to; None keeps the pooled vector's.
        feature_norm: before the projection: ``layer`` for LayerNorm, ``l2`` for unit length, or ``none``.
    """

    def __init__(self, in_dim: int, embedding_dim: int | None = None, feature_norm: FeatureNorm = "layer") -> None:
        super().__init__()
        norms = {"layer": nn.LayerNorm(in_dim, elementwise_affine=False), "l2": UnitLength(), "none": nn.Identity()}
        self.norm = choose(norms, feature_norm, "feature_norm")
        self.projection = nn.Identity() if embedding_dim is None else nn.Linear(in_dim, embedding_dim)

    def forward(self, pooled: Tensor) -> Tensor:
        return F.normalize(self.projection(self.norm(pooled)), dim=1)

    @torch.no_grad()
    def whiten(self, pooled: Tensor) -> None:
        """Start the projection at the leading principal directions of normed features, each brought to variance 1.

        The largest entry of every direction is positive, so that one set of features gives one projection.

        Args:
            pooled: (N, C) pooled features, more of them than the projection has dimensions.
        """
        if not isinstance(self.projection, nn.Linear):
            raise InputError("projection 'pca': there is no projection; set embedding_dim")
        features = self.norm(pooled).double()
        mean = features.mean(0)
        _, spread, directions = torch.linalg.svd(features - mean, full_matrices=False)
        variance = spread.square() / max(1, len(features) - 1)
        n_known, wanted = int((variance > SMALLEST_VARIANCE * variance[:1]).sum()), self.projection.out_features
        if n_known < wanted:
            raise InputError(
                f"projection 'pca': {len(features)} images with {features.shape[1]} features vary in {n_known} directions, "
                f"embedding_dim is {wanted}; take more images or fewer dimensions"
            )
        directions = directions[:wanted]
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))  # (D, 1)
        weight = directions * largest.sign() / variance[:wanted, None].sqrt()
        self.projection.weight.copy_(weight)
        self.projection.bias.copy_(-weight @ mean)
