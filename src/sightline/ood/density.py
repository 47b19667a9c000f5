"""Scorers by the density of the fit set around a vector: Gaussians with one covariance, and nearest neighbours."""

import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from sightline.errors import InputError
from sightline.models.pooling import std_pooled
from sightline.ood.classifier import Classifier, class_means, cluster_means, linear_layers
from sightline.ood.scorer import Scorer, Seed

Shrinkage = NonNegativeFloat | Literal["auto"]
Components = PositiveInt | Literal["auto", "classes", "one"]
MOST_COMPONENTS = 1000
ITEMS_A_CLUSTER = 50  # if k-means replaces too many classes


class GMM(Scorer):
    """Gaussian mixture with a component per class: ``-log sum_c pi_c exp(-d_c^2 / 2)``.

    All classes share one covariance, ``(1/N) sum_i (z_i - mu_i)(z_i - mu_i)^T + shrinkage * trace / D * I``. A class with a
    single item has no spread: all such classes share one component, whose mean is that of all items. With one component it
    ranks as the Mahalanobis distance (SSD).

    Args:
        components: ``classes``; ``one`` Gaussian; a number of k-means clusters; or ``auto``: classes if there are at most
            1,000, one cluster for every 50 items (1,000 at most) if there are more, one Gaussian without labels.
        weights: ``counts`` for pi_c by the size of the class, ``uniform`` for pi_c = 1.
        normalise: normalise vectors to length 1 first.
        shrinkage: added to the covariance's diagonal, in units of its mean; ``auto`` mixes the covariance with its mean
            diagonal as Ledoit and Wolf (2004) do, which helps if there are not many more items than dimensions.
        seed: random seed of k-means.
        n_components: leading principal components to reduce vectors to, or as many as the number of items allows, with the
            length of what they leave out as one more coordinate; None for the vectors as they are.
    """

    state: ClassVar[tuple[str, ...]] = ("means", "centre", "whitening", "log_weights", "basis")

    def __init__(
        self,
        components: Components = "auto",
        weights: Literal["counts", "uniform"] = "counts",
        normalise: bool = True,
        shrinkage: Shrinkage = 1e-6,
        seed: Seed = 0,
        n_components: PositiveInt | None = None,
    ) -> None:
        self.components, self.weights, self.normalise = components, weights, normalise
        self.shrinkage, self.seed, self.n_components = shrinkage, seed, n_components

    def features(self, inputs: Tensor) -> Tensor:
        rows = self._rows(inputs)
        if not len(self.basis):
            return rows
        rows = rows - self.basis[-1].to(rows)
        kept = rows @ self.basis[:-1].to(rows).T
        # The difference of squares is exact enough: what is left out is seldom small, and 0 if it is.
        left_out = (rows.square().sum(1, keepdim=True) - kept.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
        return torch.cat([kept, left_out], 1)

    def _rows(self, inputs: Tensor) -> Tensor:
        """(N, D) what principal components are taken of."""
        return F.normalize(inputs, dim=1) if self.normalise else inputs

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the fitted state from what :meth:`tensors` returned; files of earlier versions have no basis."""
        super().restore({"basis": tensors["means"].new_zeros(0, 0), **tensors})

    def energy(self, features: Tensor) -> Tensor:
        exponents = -self.distances(features) / 2
        return -(exponents + self.log_weights if self.weights == "counts" else exponents).logsumexp(1)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if not self.keeps_features:
            self.basis: Tensor = principal_components(self._rows(inputs), self._most_components(len(inputs), labels))
        features = self.features(inputs).double()
        n_items, dim = features.shape
        means, counts, spread_about = component_means(features, labels, self.components, self.seed)
        centred = features - spread_about
        covariance = centred.T @ centred / n_items
        size = float(covariance.trace()) / dim
        if not size > 1e-12 * float(features.square().mean()):
            raise InputError(f"scorer {self.name!r}: items must differ within their classes; their spread is 0")
        if n_items - len(means) < dim:
            remedy = "fit on more items" + ("" if self.shrinkage == "auto" else ", or set shrinkage to 'auto'")
            warnings.warn(
                f"scorer {self.name!r}: {n_items} items in {len(means)} component(s) are few for {dim} dimensions, "
                f"shrinkage {self.shrinkage} fills the rest; {remedy}",
                stacklevel=2,
            )
        identity = torch.eye(dim, dtype=torch.float64, device=inputs.device)
        if self.shrinkage == "auto":
            share = _share_of_diagonal(centred, covariance)
            covariance = (1 - share) * covariance + share * size * identity
        else:
            covariance += self.shrinkage * size * identity
        factor, fault = torch.linalg.cholesky_ex(covariance)
        if fault:
            raise InputError(f"scorer {self.name!r}: the covariance is singular; raise shrinkage ({self.shrinkage})")
        self.whitening: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)  # (D, D)
        self.centre = features.mean(0)  # subtracted first: distances lose fewer digits
        self.means: Tensor = (means - self.centre) @ self.whitening.T  # (C, D)
        self.log_weights = (counts.double() / n_items).log()
        for cached in ("squared_means", "colouring"):  # by an earlier fit
            self.__dict__.pop(cached, None)

    def _most_components(self, n_items: int, labels: Tensor | None) -> int | None:
        """``n_components``, or as many as leave the covariance of full rank, if that is less."""
        if self.n_components is None:
            return None
        n_groups = self.components if isinstance(self.components, int) else 1
        if labels is not None and self.components in ("auto", "classes"):
            counts = labels.bincount()
            n_groups = min(MOST_COMPONENTS, int((counts > 1).sum()) + 1)
        return max(1, min(self.n_components, n_items - n_groups - 1))

    def distances(self, features: Tensor) -> Tensor:
        """(N, C) squared Mahalanobis distances to the means."""
        white = (features - self.centre) @ self.whitening.T
        products = white @ self.means.T
        return (white.square().sum(1, keepdim=True) + self.squared_means - 2 * products).clamp(min=0)

    @cached_property
    def squared_means(self) -> Tensor:
        """(C,) squared lengths of the means, cached: for one query they would cost as much as its own products."""
        return self.means.square().sum(1)

    @cached_property
    def colouring(self) -> Tensor:
        """(D, D) inverse of the whitening, cached: solving for each batch takes three times as long."""
        identity = torch.eye(len(self.centre), dtype=self.whitening.dtype, device=self.whitening.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.whitening, identity, upper=False)
        return inverse

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        weights = self.log_weights.exp() if self.weights == "counts" else torch.ones_like(self.log_weights)
        chosen = torch.multinomial(weights.cpu(), n, replacement=True, generator=generator)
        noise = torch.randn(n, len(self.centre), generator=generator, dtype=self.means.dtype).to(self.means)
        drawn = (self.means[chosen.to(self.means.device)] + noise) @ self.colouring.T + self.centre
        return F.normalize(drawn, dim=1) if self.normalise and not len(self.basis) else drawn


class GMMPooled(GMM):
    """:class:`GMM` of pooled features, before an encoder's projection.

    Args:
        components: all options are those of ``gmm``.
    """

    needs = ("features",)


class GMMStd(GMM):
    """:class:`GMM` of the standard deviation of each channel over the positions of a feature map.

    Args:
        components: all options are those of ``gmm``.
    """

    needs = ("feature maps",)

    def _rows(self, inputs: Tensor) -> Tensor:
        return super()._rows(inputs if inputs.ndim == 2 else std_pooled(inputs))


def _share_of_diagonal(centred: Tensor, covariance: Tensor) -> float:
    """Ledoit and Wolf's (2004) share in [0, 1] of the (D, D) covariance to replace by its mean diagonal."""
    n_items, dim = centred.shape
    squared = covariance.square().sum()
    noise = (centred.square().sum(1).square().mean() - squared) / n_items  # expected squared error of the covariance
    apart = squared - covariance.trace().square() / dim  # squared distance from its mean diagonal
    return float((noise / apart).clamp(0, 1)) if apart > 0 else 0.0


def principal_components(rows: Tensor, n_components: int | None) -> Tensor:
    """(K + 1, D) the leading principal components, at length 1, then the mean; (0, D) for None, or if K is not below D."""
    n_kept = rows.shape[1] if n_components is None else n_components
    if n_kept >= rows.shape[1]:
        return rows[:0]
    mean = rows.double().mean(0)
    centred = rows.double() - mean
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors  # (D, D), by rising variance
    return torch.cat([directions[:, -n_kept:].flip(1).T, mean[None]]).to(rows)


def component_means(
    features: Tensor, labels: Tensor | None, components: str | int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(C, D) means, (C,) counts, and (N, D) the mean of each item's component."""
    too_many = labels is not None and int(labels.max()) >= MOST_COMPONENTS
    if components == "auto" and (labels is None or too_many):
        components = min(MOST_COMPONENTS, max(1, len(features) // ITEMS_A_CLUSTER)) if too_many else "one"
    if components in ("one", 1):
        groups = torch.zeros(len(features), dtype=torch.int64, device=features.device)
    elif isinstance(components, int):
        groups = cluster_means(features, components, seed)[1]
    elif labels is None:
        raise InputError("components 'classes' requires labels; pass them, or use 'one' or a number of clusters")
    else:
        groups = labels.to(features.device)
    means, counts = class_means(features, groups)
    single = counts == 1
    if single.any() and components in ("auto", "classes"):
        about = torch.where(single[groups, None], features.mean(0), means[groups])
        means = torch.cat([means[~single], features.mean(0, keepdim=True)])
        return means, torch.cat([counts[~single], single.sum()[None]]), about
    return means, counts, means[groups]


class Neighbours(Scorer):
    """A bank of unit vectors of the fit set, all of them or a random sample."""

    state: ClassVar[tuple[str, ...]] = ("bank",)

    def __init__(self, k: PositiveInt = 50, bank_size: PositiveInt | None = None, seed: int = 0) -> None:
        self.k, self.bank_size, self.seed = k, bank_size, seed

    def features(self, inputs: Tensor) -> Tensor:
        return F.normalize(inputs, dim=1)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.k > len(inputs):
            raise InputError(
                f"scorer {self.name!r}: k must be at most the {len(inputs)} items of the fit set, got {self.k}"
            )
        self.bank = self.features(inputs)
        if self.bank_size is not None and self.bank_size < len(inputs):
            drawn = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.seed))[: self.bank_size]
            self.bank = self.bank[drawn.sort().values.to(inputs.device)]

    def nearest(self, features: Tensor, k: int) -> Tensor:
        """(N, k) cosines to the nearest vectors of the bank, best first."""
        return linear_layers(features, [self.bank]).topk(k, dim=1).values


class KNN(Neighbours):
    """Squared distance to the k-th nearest vector of the fit set, all at length 1: ``2 - 2 cos``.

    Args:
        k: which neighbour; 50 in the papers for 50,000 vectors of 10 classes, 1,000 for ImageNet. Lowered in proportion if
            the bank is smaller than the fit set.
        bank_size: size of the random sample to keep; None for all vectors.
        seed: random seed of that sample.
    """

    state: ClassVar[tuple[str, ...]] = (*Neighbours.state, "neighbour")

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        super()._fit(inputs, labels, classifier)
        self.neighbour = torch.tensor(max(1, round(self.k * len(self.bank) / len(inputs))))

    def energy(self, features: Tensor) -> Tensor:
        return (2 - 2 * self.nearest(features, int(self.neighbour))[:, -1]).clamp(min=0)


class SoftKNN(Neighbours):
    """Smooth :class:`KNN`: ``-(1/s) log sum_j exp(s z.g_j)`` over the k nearest vectors of the fit set.

    Args:
        k: neighbours.
        scale: s; the larger, the more weight the nearest has.
        bank_size: size of the random sample to keep; None for all vectors.
        seed: random seed of that sample.
    """

    def __init__(
        self, k: PositiveInt = 10, scale: PositiveFloat = 16.0, bank_size: PositiveInt | None = None, seed: int = 0
    ) -> None:
        super().__init__(k, bank_size, seed)
        self.scale = scale

    def energy(self, features: Tensor) -> Tensor:
        k = min(self.k, len(self.bank))
        return -(self.scale * self.nearest(features, k)).logsumexp(1) / self.scale


def mixture_on_sphere(directions: Tensor, concentration: float, n: int, generator: torch.Generator) -> Tensor:
    """Sample from a uniform mixture of von Mises-Fisher densities ``exp(concentration * cos)``.

    Args:
        directions: (C, D) unit vectors, the centre of each density; D at least 2.
        concentration: 0 for the uniform density on the sphere.
        n: number of samples.
        generator: random generator on the CPU.

    Returns:
        (n, D) unit vectors of the directions' type.

    Example:
        >>> drawn = mixture_on_sphere(torch.eye(3)[:1], 1000.0, 500, torch.Generator().manual_seed(0))
        >>> bool((drawn[:, 0] > 0.97).all()), bool((drawn.norm(dim=1) - 1).abs().max() < 1e-5)
        (True, True)
    """
    middle = directions[torch.randint(len(directions), (n,), generator=generator).to(directions.device)]
    dim = directions.shape[1]
    # Inverse transform sampling: the density of the angle to the centre, its cumulative sum, and angles of uniform numbers.
    angles = torch.linspace(0, math.pi, 1 << 15, dtype=torch.float64)
    density = (concentration * angles.cos() + torch.xlogy(dim - 2, angles.sin().clamp(min=0))).softmax(0)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    angle = torch.from_numpy(np.interp(uniform, density.cumsum(0), angles)).to(directions)[:, None]
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64).to(directions)
    tangent = F.normalize(noise - (noise * middle).sum(1, keepdim=True) * middle, dim=1)
    return angle.cos() * middle + angle.sin() * tangent
