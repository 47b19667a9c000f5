"""Vector to embedding, and its whitening."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sightline.errors import InputError, choose, named_errors
from sightline.files import replaced

FeatureNorm = Literal["layer", "l2", "none"]
SMALLEST_VARIANCE = 1e-10  # share of the largest one: below it a direction is noise, not to be blown up
FITTED_ROWS = 1 << 14  # vectors held in double precision at once


class UnitLength(nn.Module):
    """Each row at length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=1)


class Whitening(nn.Module):
    """Vectors less their mean, in principal directions, each divided by a power of its variance; then unit length.

    Made by :meth:`fit`; it is not trained. The square-rooted power of 0.25 lies between a rotation (0) and unit variance in
    all directions (0.5).

    Args:
        in_dim: dimensions of the vectors.
        out_dim: directions kept.

    Example:
        >>> whitening = Whitening.fit(torch.tensor([[3.0, 1.0], [1.0, 2.0], [-1.0, 1.0], [1.0, 0.0]]))
        >>> whitening(torch.tensor([[2.0, 3.0]]))
        tensor([[0.3333, 0.9428]])
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.eye(out_dim, in_dim))
        self.bias = nn.Buffer(torch.zeros(out_dim))

    @classmethod
    def fit(cls, vectors: Tensor | ArrayLike, dim: int | None = None, power: float = 0.25) -> "Whitening":
        """The whitening of some vectors, which should be others than those to be searched.

        Directions of no variance, below 1e-10 of the largest, are dropped. The largest entry of every direction is
        positive, so that one set of vectors gives one whitening.

        Args:
            vectors: (N, D), at least 2.
            dim: directions to keep, those of the largest variance; None for all.
            power: 0 rotates, 0.25 is square-rooted, 0.5 makes every variance 1.
        """
        if not isinstance(vectors, Tensor):
            with named_errors("whitening", "vectors must be a (N, D) table of numbers", TypeError, ValueError):
                vectors = torch.from_numpy(np.array(vectors, np.result_type(np.float32, np.asarray(vectors))))
        if vectors.ndim != 2 or len(vectors) < 2 or not vectors.is_floating_point() or not vectors.isfinite().all():
            found = f"{vectors.dtype} {tuple(vectors.shape)}"
            raise InputError(f"whitening: vectors must be at least 2 finite rows (N, D), got {found}")
        if not 0 <= power <= 1:
            raise InputError(f"whitening: power must be from 0 to 1 (0.25 square-rooted, 0.5 unit variance), got {power}")
        mean = vectors.mean(0, dtype=torch.float64)
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=vectors.device)
        for block in vectors.split(FITTED_ROWS):
            centred = block.double() - mean
            covariance.addmm_(centred.T, centred)
        variance, columns = torch.linalg.eigh(covariance / (len(vectors) - 1))
        variance, directions = variance.flip(0), columns.T.flip(0)
        n_known = int((variance > SMALLEST_VARIANCE * variance[:1].clamp(min=0)).sum())
        if not 1 <= (wanted := n_known if dim is None else dim) <= n_known:
            raise InputError(f"whitening: {len(vectors)} vectors vary in {n_known} directions; {wanted} cannot be kept")
        weight = _signed(directions[:wanted]) / variance[:wanted, None] ** power
        whitening = cls(len(mean), wanted).to(vectors.device)
        whitening.weight.copy_(weight)
        whitening.bias.copy_(-weight @ mean)
        return whitening

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, K) unit vectors of (N, D) vectors."""
        if vectors.shape[1] != self.weight.shape[1]:
            raise InputError(f"whitening: fitted on {self.weight.shape[1]} dimensions, the vectors have {vectors.shape[1]}")
        return F.normalize(F.linear(vectors, self.weight.to(vectors), self.bias.to(vectors)), dim=1)

    def save(self, file: Path) -> Path:
        """Write one safetensors file, complete or not at all."""
        with replaced(Path(file)) as scratch:
            save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, scratch)
        return Path(file)

    @classmethod
    def load(cls, file: Path) -> "Whitening":
        """The whitening that :meth:`save` wrote."""
        try:
            tensors = load_file(file)
            whitening = cls(*reversed(tensors["weight"].shape))
            whitening.load_state_dict(tensors)
        except FileNotFoundError as error:
            raise InputError(f"{file}: no such file") from error
        except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
            raise InputError(f"{file}: not a whitening, as `sightline whiten` writes it: {error}") from error
        return whitening


class Head(nn.Module):
    """A norm without parameters, a linear projection, then unit length; then a whitening, where one was fitted.

    Args:
        in_dim: channels of the pooled vector.
        embedding_dim: dimensions to project to; None keeps the pooled vector's.
        feature_norm: before the projection: ``layer`` for LayerNorm, ``l2`` for unit length, or ``none``.
        whitening_dim: dimensions after the whitening; None for no whitening.
    """

    def __init__(
        self,
        in_dim: int,
        embedding_dim: int | None = None,
        feature_norm: FeatureNorm = "layer",
        whitening_dim: int | None = None,
    ) -> None:
        super().__init__()
        norms = {"layer": nn.LayerNorm(in_dim, elementwise_affine=False), "l2": UnitLength(), "none": nn.Identity()}
        self.norm = choose(norms, feature_norm, "feature_norm")
        self.projection = nn.Identity() if embedding_dim is None else nn.Linear(in_dim, embedding_dim)
        self.whitening = None if whitening_dim is None else Whitening(embedding_dim or in_dim, whitening_dim)

    def forward(self, pooled: Tensor) -> Tensor:
        embeddings = F.normalize(self.projection(self.norm(pooled)), dim=1)
        return embeddings if self.whitening is None else self.whitening(embeddings)

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
        weight = _signed(directions[:wanted]) / variance[:wanted, None].sqrt()
        self.projection.weight.copy_(weight)
        self.projection.bias.copy_(-weight @ mean)


def _signed(directions: Tensor) -> Tensor:
    """Each row with the sign that makes its largest entry positive."""
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))  # (D, 1)
    return directions * largest.sign()
