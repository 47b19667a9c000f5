"""Gaussians with one covariance: the energy of their mixture, and the distance to the nearest of them."""

import math
import warnings
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.ood.classifier import Classifier, class_means, cluster_means
from sightline.ood.scorer import Scorer

Shrinkage = float | Literal["auto"]
COMPONENTS = ("auto", "classes", "one")
MOST_COMPONENTS = 1000
ITEMS_A_CLUSTER = 50  # where k-means takes the place of too many classes
WEIGHTS = {"counts": "counts", "uniform": "uniform"}


class TiedGaussians(Scorer):
    """Means and one covariance, ``(1/N) sum_i (z_i - mu_i)(z_i - mu_i)^T + shrinkage * trace / D * I``.

    Of classes with a single item none has a spread: they share one component, whose mean is that of all items.
    """

    state: ClassVar[tuple[str, ...]] = ("means", "centre", "whitening", "log_weights")
    means: Tensor  # (C, D) whitened
    centre: Tensor  # (D,)
    whitening: Tensor  # (D, D) inverse of the covariance's Cholesky factor
    log_weights: Tensor  # (C,)
    _squares: tuple[Tensor, Tensor] | None = None  # the means, and the (C,) squared lengths of these

    def __init__(self, components: str | int, normalise: bool, shrinkage: Shrinkage, seed: int) -> None:
        if isinstance(components, int):
            if components < 1:
                raise InputError(f"components is {components}; at least 1 is needed")
        else:
            choose(dict.fromkeys(COMPONENTS), components, "components")
        if shrinkage != "auto" and (isinstance(shrinkage, str) or not shrinkage >= 0):
            raise InputError(f"shrinkage is {shrinkage!r}; 0 or more is needed, or 'auto'")
        self.components, self.normalise, self.shrinkage, self.seed = components, normalise, shrinkage, seed

    def features(self, inputs: Tensor) -> Tensor:
        return F.normalize(inputs, dim=1) if self.normalise else inputs

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        features = self.features(inputs).double()
        n_items, dim = features.shape
        if n_items < 2:
            raise InputError(f"scorer {self.name!r} needs 2 items or more to measure a spread, there is {n_items}")
        means, counts, spread_about = component_means(features, labels, self.components, self.seed)
        centred = features - spread_about
        covariance = centred.T @ centred / n_items
        size = float(covariance.trace()) / dim
        if not size > 1e-12 * float(features.square().mean()):
            raise InputError(f"scorer {self.name!r}: the items do not differ within their classes: no spread to measure")
        if n_items - len(means) < dim:
            warnings.warn(
                f"scorer {self.name!r}: {n_items} items in {len(means)} component(s) for {dim} dimensions; "
                f"shrinkage {self.shrinkage} fills in the directions in which they do not vary",
                stacklevel=2,
            )
        identity = torch.eye(dim, dtype=torch.float64, device=inputs.device)
        if self.shrinkage == "auto":
            share = float(ledoit_wolf_shrinkage(centred.cpu().numpy(), assume_centered=True))
            covariance = (1 - share) * covariance + share * size * identity
        else:
            covariance += self.shrinkage * size * identity
        factor, fault = torch.linalg.cholesky_ex(covariance)
        if fault:
            raise InputError(f"scorer {self.name!r}: the covariance cannot be inverted; raise shrinkage ({self.shrinkage})")
        self.whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
        self.centre = features.mean(0)  # taken off first: distances lose fewer digits
        self.means = (means - self.centre) @ self.whitening.T
        self.log_weights = (counts.double() / n_items).log()

    def distances(self, features: Tensor) -> Tensor:
        """(N, C) squared Mahalanobis distances to the means."""
        white = (features - self.centre) @ self.whitening.T
        products = white @ self.means.T
        return (white.square().sum(1, keepdim=True) + self._squared_means() - 2 * products).clamp(min=0)

    def _squared_means(self) -> Tensor:
        """(C,) squared lengths of the means, found once: for one query they would cost as much as its own products."""
        squares = self._squares
        if squares is None or squares[0] is not self.means:
            self._squares = squares = self.means, self.means.square().sum(1)
        return squares[1]


class GMM(TiedGaussians):
    """``-log sum_c pi_c exp(-d_c^2 / 2)``, d_c the Mahalanobis distance to the mean of class c.

    The negative log-likelihood is this plus ``(D/2) log 2 pi + (1/2) log |Sigma|``, the same for all items.

    Args:
        components: ``classes``; ``one`` Gaussian; a number of k-means clusters; or ``auto``: classes where there are
            labels of at most 1,000 classes, one cluster for every 50 items (1,000 at most) where there are more, one
            Gaussian without labels.
        weights: ``counts`` for pi_c by the size of the class, ``uniform`` for pi_c = 1.
        normalise: bring vectors to length 1 first.
        shrinkage: added to the covariance's diagonal, in units of its mean; ``auto`` mixes the covariance with its mean
            diagonal as Ledoit and Wolf (2004) do, which helps where there are not many more items than dimensions.
        seed: of k-means.
    """

    name = "gmm"

    def __init__(
        self,
        components: str | int = "auto",
        weights: str = "counts",
        normalise: bool = True,
        shrinkage: Shrinkage = 1e-6,
        seed: int = 0,
    ) -> None:
        super().__init__(components, normalise, shrinkage, seed)
        self.weights = choose(WEIGHTS, weights, "weights")

    def energy(self, features: Tensor) -> Tensor:
        exponents = -self.distances(features) / 2
        return -(exponents + self.log_weights if self.weights == "counts" else exponents).logsumexp(1)

    def constant(self) -> float:
        """What to add to an energy for the negative log-likelihood."""
        dim = len(self.centre)
        return dim / 2 * math.log(2 * math.pi) - float(self.whitening.diagonal().double().log().sum())

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        weights = self.log_weights.exp() if self.weights == "counts" else torch.ones_like(self.log_weights)
        chosen = torch.multinomial(weights.cpu(), n, replacement=True, generator=generator)
        noise = torch.randn(n, len(self.centre), generator=generator, dtype=torch.float64).to(self.means)
        white = self.means[chosen.to(self.means.device)] + noise
        drawn = torch.linalg.solve_triangular(self.whitening, white.T, upper=False).T + self.centre
        return F.normalize(drawn, dim=1) if self.normalise else drawn


class GMMStd(GMM):
    """:class:`GMM` of the standard deviation of each channel over the positions of a feature map.

    Args:
        components: as for ``gmm``, like the rest.
    """

    name = "gmm_std"
    needs = ("feature maps",)

    def features(self, inputs: Tensor) -> Tensor:
        return super().features(std_pooled(inputs))


def std_pooled(maps: Tensor) -> Tensor:
    """(N, C) the standard deviation (divisor n - 1) over positions of (N, C, H, W), or over tokens of (N, T, C).

    0 where there is one position. Class and register tokens are to be cut off before.

    Example:
        >>> std_pooled(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
        tensor([[1.2910]])
    """
    if maps.ndim not in (3, 4):
        raise InputError(f"feature maps (N, C, H, W) or (N, T, C) are needed, found shape {tuple(maps.shape)}")
    values = maps.flatten(2) if maps.ndim == 4 else maps.transpose(1, 2)
    return values.std(2) if values.shape[2] > 1 else torch.zeros_like(values[:, :, 0])


class Mahalanobis(TiedGaussians):
    """``min_c d_c^2`` of vectors as they are.

    Args:
        components: as for ``gmm``.
        shrinkage: as for ``gmm``.
        seed: of k-means.
    """

    name = "mahalanobis"

    def __init__(self, components: str | int = "auto", shrinkage: Shrinkage = 1e-6, seed: int = 0) -> None:
        super().__init__(components, False, shrinkage, seed)

    def energy(self, features: Tensor) -> Tensor:
        return self.distances(features).amin(1)


class SSD(TiedGaussians):
    """``min_c d_c^2`` of unit vectors, to k-means clusters or, as SSD+, to classes.

    Args:
        supervised: SSD+: labels in place of clusters.
        n_clusters: of k-means.
        shrinkage: as for ``gmm``.
        seed: of k-means.
    """

    name = "ssd"

    def __init__(self, supervised: bool = False, n_clusters: int = 1, shrinkage: Shrinkage = 1e-6, seed: int = 0) -> None:
        super().__init__("classes" if supervised else n_clusters, True, shrinkage, seed)
        self.supervised, self.n_clusters = supervised, n_clusters

    def energy(self, features: Tensor) -> Tensor:
        return self.distances(features).amin(1)


def component_means(
    features: Tensor, labels: Tensor | None, components: str | int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(C, D) means, (C,) counts, and (N, D) the mean about which each item is spread."""
    if components == "classes" and labels is None:
        raise InputError("components 'classes' needs labels; give them, or take 'one' or a number of clusters")
    if components == "auto":
        if labels is None:
            components = "one"
        elif int(labels.max()) + 1 > MOST_COMPONENTS:
            components = min(MOST_COMPONENTS, max(1, len(features) // ITEMS_A_CLUSTER))
        else:
            components = "classes"
    if components in ("one", 1):
        groups = torch.zeros(len(features), dtype=torch.int64)
    elif isinstance(components, int) or labels is None:
        groups = cluster_means(features, int(components), seed)[1]
    else:
        groups = labels
    groups = groups.to(features.device)
    means, counts = class_means(features, groups)
    single = counts == 1
    if single.any() and components == "classes":
        about = torch.where(single[groups, None], features.mean(0), means[groups])
        means = torch.cat([means[~single], features.mean(0, keepdim=True)])
        return means, torch.cat([counts[~single], single.sum()[None]]), about
    return means, counts, means[groups]
