"""Vectors to logits: a classifier's last layer, or what stands in for it where an encoder has none."""

import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from sightline.errors import InputError

STAND_INS = ("auto", "prototypes", "centroids")
LARGE = 20_000  # vectors; above it k-means learns from parts of them


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear layer.

    Attributes:
        weight: (C, D).
        bias: (C,).
        unit: whether vectors are brought to length 1 first.
    """

    weight: Tensor
    bias: Tensor
    unit: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", torch.as_tensor(self.weight))
        object.__setattr__(self, "bias", torch.as_tensor(self.bias))
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"a weight (C, D) and a bias (C,) are needed, found {tuple(self.weight.shape)} and {tuple(self.bias.shape)}"
            )
        if not (self.weight.isfinite().all() and self.bias.isfinite().all()):
            raise InputError("the classifier's weight or bias has values that are not finite")

    def check_width(self, dim: int) -> None:
        """Refuse vectors of another width."""
        if dim != self.weight.shape[1]:
            raise InputError(f"the classifier takes vectors of {self.weight.shape[1]} dimensions, these have {dim}")


def classifier_of_proxies(proxies: Tensor, scale: float) -> Classifier:
    """The classifier that a proxy or normalised-softmax loss has trained: ``scale`` times cosines.

    ``exp(-energy)`` of its logits is a mixture of von Mises-Fisher densities of concentration ``scale``.

    Args:
        proxies: (C, D), of any length.
        scale: one over the temperature of that loss.

    Example:
        >>> classifier_of_proxies(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 16.0).weight
        tensor([[16.,  0.],
                [ 0., 16.]])
    """
    check_scale(scale)
    weight = scale * F.normalize(proxies.detach(), dim=1)
    return Classifier(weight, weight.new_zeros(len(weight)), unit=True)


def check_scale(scale: float) -> None:
    """Refuse what cosines cannot be multiplied with."""
    if not 0 < scale < math.inf:
        raise InputError(f"scale is {scale}; above 0 is needed")


def stand_in_classifier(
    vectors: Tensor, labels: Tensor | None, kind: str, scale: float, n_clusters: int, seed: int
) -> Classifier:
    """What takes a classifier's place: class means or k-means centroids as proxies.

    Args:
        vectors: (N, D).
        labels: (N,) classes from 0; None where they are not known.
        kind: ``prototypes``, ``centroids``, or ``auto``: prototypes where there are labels.
        scale: of the cosines.
        n_clusters: centroids, at most N.
        seed: of k-means.
    """
    unit = F.normalize(vectors, dim=1)
    if kind == "prototypes" or (kind == "auto" and labels is not None):
        if labels is None:
            raise InputError("prototypes need labels; give them, or take centroids")
        return classifier_of_proxies(class_means(unit, labels)[0], scale)
    return classifier_of_proxies(cluster_means(unit, n_clusters, seed)[0], scale)


def class_means(vectors: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(C, D) the mean of each class, in float64, and (C,) how many items it has."""
    n_classes = int(labels.max()) + 1
    labels = labels.to(vectors.device)
    sums = torch.zeros(n_classes, vectors.shape[1], dtype=torch.float64, device=vectors.device)
    sums.index_add_(0, labels, vectors.double())
    counts = torch.bincount(labels, minlength=n_classes)
    return sums / counts[:, None], counts


def cluster_means(vectors: Tensor, n_clusters: int, seed: int) -> tuple[Tensor, Tensor]:
    """(K, D) k-means centroids, in float64, and (N,) the cluster of each vector."""
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed is {seed}; k-means takes 0 to {(1 << 32) - 1}")
    array = vectors.double().cpu().numpy()
    n_clusters = min(n_clusters, len(array))
    method = MiniBatchKMeans if len(array) > LARGE else KMeans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of clusters that stay empty, as where vectors are equal
        found = method(n_clusters, n_init=1, random_state=seed, max_iter=50).fit(array)
    # Clusters that no vector is nearest to are left out.
    clusters = torch.from_numpy(found.labels_).long().unique(return_inverse=True)[1]
    return class_means(vectors, clusters)[0], clusters.to(vectors.device)
