"""What scorers of out-of-distribution detection read of an encoder besides its vectors, in the same forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.models.pooling import std_pooled

KINDS = ("vectors", "features", "feature maps")  # in the order of a row


class ScorerInputs(nn.Module):
    """An encoder whose rows are longer: (B, D + C + C'), the vector, what the head is given, and channel deviations.

    Args:
        encoder: shares its weights.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def settings(self) -> Any:
        """Those of the encoder."""
        return self.encoder.settings

    @property
    def backbone(self) -> Any:
        """That of the encoder."""
        return self.encoder.backbone

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder.device  # type: ignore[no-any-return]

    @property
    def widths(self) -> tuple[int, ...]:
        """D, C and C'."""
        return (self.encoder.dim, self.encoder.n_channels, int(self.encoder.backbone.num_features))

    def fingerprint(self) -> str:
        """That of the encoder, and what is added."""
        return f"{self.encoder.fingerprint()}-scorer-inputs"

    def pooled(self, images: Tensor) -> Tensor:
        """(B, C + C') what the head is given, and the deviation of each channel over positions."""
        maps, positions = self.encoder.maps(images)
        return torch.cat([self.encoder.pooling(maps), std_pooled(positions)], 1)

    def head(self, pooled: Tensor) -> Tensor:
        """(B, D + C + C') the rows of what :meth:`pooled` returns."""
        return torch.cat([self.encoder.head(pooled[:, : self.encoder.n_channels]), pooled], 1)

    def forward(self, images: Tensor) -> Tensor:
        """(B, D + C + C') of (B, 3, H, W) normalised images."""
        return self.head(self.pooled(images))


def split_rows(rows: NDArray[np.float32], widths: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    """The inputs of scorers by name; each is contiguous.

    Args:
        rows: (N, D + C + C') by :class:`ScorerInputs`; or (N, D) by an encoder.
        widths: D, C and C'; or D alone, for ``vectors`` alone.
    """
    parts = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return {kind: np.ascontiguousarray(part) for kind, part in zip(KINDS, parts, strict=False)}
