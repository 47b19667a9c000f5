"""Vectors to logits: a classifier's last layer, or a stand-in for encoders that have none; linear layers."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError, needs_extra
from sightline.kernels.row_loops import n_chunks, run_in_torch_threads, through_layers

LARGE = 1 << 20  # weights; with fewer, starting threads costs more than it saves
LARGE_SET = 20_000  # vectors; with more, k-means works on mini-batches
StandIn = Literal["auto", "prototypes", "centroids"]


@dataclass(eq=False)
class Classifier:
    """A linear layer.

    Attributes:
        weight: (C, D).
        bias: (C,).
        unit: whether vectors are normalised to length 1 first.
    """

    weight: Tensor
    bias: Tensor
    unit: bool = False

    def __post_init__(self) -> None:
        self.weight, self.bias = torch.as_tensor(self.weight), torch.as_tensor(self.bias)
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"a classifier must have a weight (C, D) and a bias (C,), got shapes {tuple(self.weight.shape)} and "
                f"{tuple(self.bias.shape)}"
            )
        if not (self.weight.isfinite().all() and self.bias.isfinite().all()):
            raise InputError("the classifier's weight and bias must be finite")


def classifier_of_proxies(proxies: Tensor, scale: float) -> Classifier:
    """The classifier of a proxy or normalised-softmax loss: ``scale`` times cosines.

    ``exp(-energy)`` of its logits is a mixture of von Mises-Fisher densities of concentration ``scale``.

    Args:
        proxies: (C, D), of any length.
        scale: one over the temperature of that loss.

    Example:
        >>> classifier_of_proxies(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 16.0).weight
        tensor([[16.,  0.],
                [ 0., 16.]])
    """
    if not 0 < scale < math.inf:
        raise InputError(f"scale must be above 0 and finite, got {scale}")
    weight = scale * F.normalize(proxies.detach(), dim=1)
    return Classifier(weight, weight.new_zeros(len(weight)), unit=True)


def stand_in_classifier(
    vectors: Tensor, labels: Tensor | None, kind: StandIn, scale: float, n_clusters: int, seed: int
) -> Classifier:
    """A stand-in for a classifier: class means or k-means centroids as proxies.

    Args:
        vectors: (N, D).
        labels: (N,) classes from 0, or None.
        kind: ``prototypes``, ``centroids``, or ``auto``: prototypes if there are labels.
        scale: of the cosines.
        n_clusters: centroids, at most N.
        seed: random seed of k-means.
    """
    unit = F.normalize(vectors, dim=1)
    if kind == "prototypes" and labels is None:
        raise InputError("stand_in 'prototypes' requires labels; pass them, or use 'centroids'")
    known = None if kind == "centroids" else labels
    means, _ = cluster_means(unit, n_clusters, seed) if known is None else class_means(unit, known)
    return classifier_of_proxies(means, scale)


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
    with needs_extra("k-means", "ood"):
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning
    array = vectors.double().cpu().numpy()
    n_clusters = min(n_clusters, len(array))
    method = MiniBatchKMeans if len(array) > LARGE_SET else KMeans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # about empty clusters, as with equal vectors
        found = method(n_clusters, n_init=1, random_state=seed, max_iter=50).fit(array)
    # Drop empty clusters.
    clusters = torch.from_numpy(found.labels_).long().unique(return_inverse=True)[1]
    return class_means(vectors, clusters)[0], clusters.to(vectors.device)


def linear_layers(
    features: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, slope: float = 1.0
) -> Tensor:
    """``features @ weight.T + bias`` of each layer in turn, each followed by a LeakyReLU with ``slope``.

    torch multiplies a single row by a matrix on one thread, more slowly than memory could be read. Here all threads do it,
    in float32 on a CPU and without a gradient; all other cases use torch. The order of summation does not depend on the
    number of threads. Weights in bfloat16 take half the time to read; the result has the features' dtype in any case.

    Args:
        features: (N, D).
        weights: one (C, D) per layer, of the features' dtype or bfloat16.
        biases: one (C,) per layer; None for none.
        slope: of the LeakyReLU; 1 for none.

    Returns:
        (N, C) of the last layer.

    Example:
        >>> linear_layers(torch.tensor([[1.0, 2.0]]), [torch.tensor([[3.0, -4.0]])], [torch.tensor([0.5])], slope=0.2)
        tensor([[-0.9000]])
    """
    if len(features) == 1 and _are_compiled(features, weights):
        half = weights[0].dtype == torch.bfloat16
        tables = tuple(weight.view(torch.uint16 if half else torch.uint32).numpy() for weight in weights)
        offsets = tuple(bias.float().numpy() for bias in biases or [torch.zeros(len(weight)) for weight in weights])
        n_parts, shift = n_chunks(len(weights[-1])), np.uint32(16 if half else 0)
        row = features[0].numpy()
        found = run_in_torch_threads(through_layers, row, tables, offsets, shift, np.float32(slope), n_parts)
        return torch.from_numpy(found)[None]
    for place, weight in enumerate(weights):
        features = F.linear(features, weight.to(features.dtype), biases[place].to(features.dtype) if biases else None)
        features = features if slope == 1 else F.leaky_relu(features, slope)
    return features


def _are_compiled(row: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the compiled loop applies."""
    return (
        not torch.is_grad_enabled()
        and row.dtype == torch.float32
        and sum(weight.numel() for weight in weights) >= LARGE
        and {weight.dtype for weight in weights} in ({torch.float32}, {torch.bfloat16})
        and all(table.is_cpu and table.is_contiguous() for table in (row, *weights))
    )
