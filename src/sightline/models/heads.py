"""Vector to embedding."""

import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """LayerNorm without parameters, a linear projection, then unit length.

    Args:
        in_dim: channels of the pooled vector.
        embedding_dim: dimensions to project to; None keeps the pooled vector's.
    """

    def __init__(self, in_dim: int, embedding_dim: int | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_dim, elementwise_affine=False)
        self.projection = nn.Identity() if embedding_dim is None else nn.Linear(in_dim, embedding_dim)

    def forward(self, pooled: Tensor) -> Tensor:
        return F.normalize(self.projection(self.norm(pooled)), dim=1)
