"""Scorers of a classifier's logits; for encoders without a classifier, prototypes or centroids replace its weights."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from sightline.errors import InputError
from sightline.ood.classifier import Classifier, StandIn, stand_in_classifier
from sightline.ood.density import mixture_on_sphere
from sightline.ood.scorer import Scorer, Seed


class LogitScorer(Scorer):
    """A scorer that depends on the logits ``W z + b``.

    Args:
        inputs: ``vectors``, to which the classifier or its stand-in is applied, or ``logits``.
        stand_in: without a classifier: ``prototypes`` (class means), ``centroids`` (k-means), or ``auto``: prototypes if
            there are labels.
        scale: of the cosines to prototypes or centroids.
        n_clusters: number of centroids.
        seed: random seed of k-means.
    """

    state: ClassVar[tuple[str, ...]] = ("weight", "bias", "unit")

    def __init__(
        self,
        inputs: Literal["vectors", "logits"] = "vectors",
        stand_in: StandIn = "auto",
        scale: PositiveFloat = 16.0,
        n_clusters: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        self.inputs, self.needs = inputs, (inputs,)
        self.stand_in, self.scale, self.n_clusters, self.seed = stand_in, scale, n_clusters, seed

    def features(self, inputs: Tensor) -> Tensor:
        return F.normalize(inputs, dim=1) if self.unit else inputs

    def logits(self, features: Tensor) -> Tensor:
        """(N, C) of features."""
        return features if self.inputs == "logits" else features @ self.weight.T + self.bias

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.inputs == "logits":
            if classifier is not None:
                raise InputError("a scorer of logits takes no classifier; leave it out, or use inputs='vectors'")
            classifier = Classifier(inputs.new_zeros(inputs.shape[1], 0), inputs.new_zeros(inputs.shape[1]))
        elif classifier is None:
            classifier = stand_in_classifier(inputs, labels, self.stand_in, self.scale, self.n_clusters, self.seed)
        elif (width := classifier.weight.shape[1]) != inputs.shape[1]:
            raise InputError(f"vectors must have the classifier's {width} dimensions, got {inputs.shape[1]}")
        self.weight, self.bias = classifier.weight.detach().to(inputs), classifier.bias.detach().to(inputs)
        self.unit = torch.tensor(classifier.unit)


class Energy(LogitScorer):
    """Energy of the logits, EL in the papers: ``-T log sum_c exp(f_c / T)``.

    Args:
        temperature: T.
        inputs: as for every scorer of logits, like the options that follow.
    """

    def __init__(
        self,
        temperature: PositiveFloat = 1.0,
        inputs: Literal["vectors", "logits"] = "vectors",
        stand_in: StandIn = "auto",
        scale: PositiveFloat = 16.0,
        n_clusters: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        super().__init__(inputs, stand_in, scale, n_clusters, seed)
        self.temperature = temperature

    def energy(self, features: Tensor) -> Tensor:
        return -self.temperature * (self.logits(features) / self.temperature).logsumexp(1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor | None:
        """From the mixture of von Mises-Fisher densities of proxies, prototypes or centroids."""
        concentration = self.weight.norm(dim=1)
        # Different concentrations have different normalisers: their mixture would not be uniform.
        is_even = (concentration - concentration[0]).abs().max() <= 1e-4 * concentration[0]
        if not (self.unit and is_even) or self.temperature != 1 or self.bias.any() or self.weight.shape[1] < 2:
            return None
        return mixture_on_sphere(self.weight / concentration[:, None], float(concentration[0]), n, generator)
