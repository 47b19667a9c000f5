"""Distance to neighbours, and to the subspace that holds most of what varies."""

import warnings
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.ood.classifier import Classifier, check_scale, linear_layers
from sightline.ood.logits import LogitScorer
from sightline.ood.scorer import Scorer


class Neighbours(Scorer):
    """Keeps unit vectors of the fit set, all or some drawn at random."""

    state: ClassVar[tuple[str, ...]] = ("bank",)
    bank: Tensor

    def __init__(self, k: int, bank_size: int | None, seed: int) -> None:
        if k < 1 or (bank_size is not None and bank_size < 1):
            raise InputError(f"k is {k} and bank_size {bank_size}; at least 1 is needed")
        self.k, self.bank_size, self.seed = k, bank_size, seed

    def features(self, inputs: Tensor) -> Tensor:
        return F.normalize(inputs, dim=1)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.k > len(inputs):
            raise InputError(f"scorer {self.name!r}: k is {self.k}, the fit set has {len(inputs)} items")
        self.bank = self.features(inputs)
        if self.bank_size is not None and self.bank_size < len(inputs):
            drawn = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.seed))[: self.bank_size]
            self.bank = self.bank[drawn.sort().values.to(inputs.device)]

    def nearest(self, features: Tensor, k: int) -> Tensor:
        """(N, k) cosines to the nearest of the bank, best first."""
        return linear_layers(features, [self.bank]).topk(k, dim=1).values


class KNN(Neighbours):
    """Squared distance to the k-th nearest vector of the fit set, all at length 1: ``2 - 2 cos``.

    Args:
        k: which neighbour; 50 in the papers for 50,000 vectors of 10 classes, 1,000 for ImageNet. Lowered in proportion
            where the bank is smaller than the fit set.
        bank_size: vectors to keep, drawn at random; None for all.
        seed: of that draw.
    """

    name = "knn"
    state: ClassVar[tuple[str, ...]] = (*Neighbours.state, "neighbour")
    neighbour: Tensor

    def __init__(self, k: int = 50, bank_size: int | None = None, seed: int = 0) -> None:
        super().__init__(k, bank_size, seed)
        self.neighbour = torch.tensor(k)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        super()._fit(inputs, labels, classifier)
        self.neighbour = torch.tensor(max(1, round(self.k * len(self.bank) / len(inputs))))

    def energy(self, features: Tensor) -> Tensor:
        return (2 - 2 * self.nearest(features, int(self.neighbour))[:, -1]).clamp(min=0)


class SoftKNN(Neighbours):
    """``-(1/s) log sum_j exp(s z.g_j)`` over the k nearest vectors of the fit set: :class:`KNN` with a slope everywhere.

    Args:
        k: neighbours.
        scale: s; the larger, the more the nearest counts.
        bank_size: vectors to keep, drawn at random; None for all.
        seed: of that draw.
    """

    name = "soft_knn"

    def __init__(self, k: int = 10, scale: float = 16.0, bank_size: int | None = None, seed: int = 0) -> None:
        super().__init__(k, bank_size, seed)
        check_scale(scale)
        self.scale = scale

    def energy(self, features: Tensor) -> Tensor:
        k = min(self.k, len(self.bank))
        return -(self.scale * self.nearest(features, k)).logsumexp(1) / self.scale


class Residual(LogitScorer):
    """``|R^T (z - u)|``: how far a vector is from the leading directions of the fit set, about ``u = -W^+ b``.

    Args:
        n_principal: leading directions; None for half of D, or of N where that is less, 256 at most.
        stand_in: as for every scorer of logits, like the rest.
    """

    name = "residual"
    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "origin", "minor")
    origin: Tensor  # (D,) u
    minor: Tensor  # (D, D - n_principal) R

    def __init__(
        self,
        n_principal: int | None = None,
        stand_in: str = "auto",
        scale: float = 16.0,
        n_clusters: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        self.n_principal = n_principal

    def _fit_features(self, features: Tensor) -> None:
        n_items, dim = features.shape
        n_principal = min(256, dim // 2, max(1, n_items // 2)) if self.n_principal is None else self.n_principal
        if not 1 <= n_principal < dim:
            raise InputError(f"n_principal is {n_principal}; 1 to {dim - 1} is needed for vectors of {dim} dimensions")
        self.origin = -torch.linalg.pinv(self.weight.double()) @ self.bias.double()
        shifted = features.double() - self.origin
        values = torch.linalg.eigh(shifted.T @ shifted / len(shifted))  # smallest first
        self.minor = values.eigenvectors[:, : dim - n_principal]
        if not self.residual(features.double()).max() > 1e-9 * shifted.norm(dim=1).max():
            raise InputError(f"scorer {self.name!r}: the vectors lie in the leading directions: lower n_principal")
        if n_items < dim:
            warnings.warn(
                f"scorer {self.name!r}: {n_items} items for {dim} dimensions, {n_principal} of which are taken to vary",
                stacklevel=2,
            )

    def residual(self, features: Tensor) -> Tensor:
        """(N,) lengths."""
        length: Tensor = torch.linalg.vector_norm((features - self.origin.to(features)) @ self.minor.to(features), dim=1)
        return length

    def energy(self, features: Tensor) -> Tensor:
        return self.residual(features)


class ViM(Residual):
    """``alpha * residual - log sum_c exp f_c``, alpha so that both are of one size on the fit set (virtual logit).

    Args:
        n_principal: as for ``residual``, like the rest.
    """

    name = "vim"
    state: ClassVar[tuple[str, ...]] = (*Residual.state, "alpha")
    alpha: Tensor

    def _fit_features(self, features: Tensor) -> None:
        super()._fit_features(features)
        self.alpha = self.logits(features).amax(1).double().sum() / self.residual(features.double()).sum()

    def energy(self, features: Tensor) -> Tensor:
        return self.alpha * self.residual(features) - self.logits(features).logsumexp(1)
