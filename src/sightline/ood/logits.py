"""Scorers of a classifier's logits; for encoders without a classifier, prototypes or centroids replace its weights."""

import warnings
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from sightline.errors import InputError
from sightline.ood.classifier import Classifier, StandIn, class_means, stand_in_classifier
from sightline.ood.density import mixture_on_sphere
from sightline.ood.scorer import Scorer, Seed

SMOOTHING = 1e-12  # of probabilities in a logarithm


class LogitScorer(Scorer):
    """An energy of the logits ``W z + b``.

    Args:
        inputs: ``vectors``, to which the classifier or its stand-in is applied, or ``logits``.
        stand_in: without a classifier: ``prototypes`` (class means), ``centroids`` (k-means), or ``auto``: prototypes if
            there are labels.
        scale: of the cosines to prototypes or centroids.
        n_clusters: number of centroids.
        seed: random seed of k-means.
    """

    state: ClassVar[tuple[str, ...]] = ("weight", "bias", "unit")
    n_classes_needed: ClassVar[int] = 1

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

    def energy(self, features: Tensor) -> Tensor:
        """``-log sum_c exp f_c``, unless a subclass overrides it."""
        return energy_of_logits(self.logits(features))

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.inputs == "logits":
            if classifier is not None:
                raise InputError("a scorer of logits takes no classifier; leave it out, or use inputs='vectors'")
            classifier = Classifier(inputs.new_zeros(inputs.shape[1], 0), inputs.new_zeros(inputs.shape[1]))
        elif classifier is None:
            classifier = stand_in_classifier(inputs, labels, self.stand_in, self.scale, self.n_clusters, self.seed)
        elif (width := classifier.weight.shape[1]) != inputs.shape[1]:
            raise InputError(f"vectors must have the classifier's {width} dimensions, got {inputs.shape[1]}")
        if len(classifier.weight) < self.n_classes_needed:
            raise InputError(f"scorer {self.name!r} requires {self.n_classes_needed} classes or more, got 1")
        self.weight, self.bias = classifier.weight.detach().to(inputs), classifier.bias.detach().to(inputs)
        self.unit = torch.tensor(classifier.unit)
        self._fit_features(self.features(inputs))

    def _fit_features(self, features: Tensor) -> None:
        """Fit what the scorer has beyond the classifier."""


class MSP(LogitScorer):
    """Minus the largest probability: ``-max_c softmax(f)_c`` (maximum softmax probability)."""

    n_classes_needed = 2

    def energy(self, features: Tensor) -> Tensor:
        return -self.logits(features).softmax(1).amax(1)


class MaxLogit(LogitScorer):
    """Minus the largest logit: ``-max_c f_c``."""

    def energy(self, features: Tensor) -> Tensor:
        return -self.logits(features).amax(1)


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
        return energy_of_logits(self.logits(features), self.temperature)

    def sample(self, n: int, generator: torch.Generator) -> Tensor | None:
        """From the mixture of von Mises-Fisher densities of proxies, prototypes or centroids."""
        concentration = self.weight.norm(dim=1)
        # Different concentrations have different normalisers: their mixture would not be uniform.
        is_even = (concentration - concentration[0]).abs().max() <= 1e-4 * concentration[0]
        if not (self.unit and is_even) or self.temperature != 1 or self.bias.any() or self.weight.shape[1] < 2:
            return None
        return mixture_on_sphere(self.weight / concentration[:, None], float(concentration[0]), n, generator)


def energy_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``-T log sum_c exp(f_c / T)`` of each row.

    Example:
        >>> energy_of_logits(torch.tensor([[2.0, 1.0, 0.0]]))
        tensor([-2.4076])
    """
    return -temperature * (logits / temperature).logsumexp(1)


class KLMatching(LogitScorer):
    """Divergence from the nearest mean prediction: ``min_c KL(p || t_c)``, t_c the mean over fit items predicted as c."""

    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "templates")
    n_classes_needed = 2

    def _fit_features(self, features: Tensor) -> None:
        probabilities = self.logits(features).double().softmax(1)
        predicted = probabilities.argmax(1).unique(return_inverse=True)[1]  # classes never predicted have no template
        self.templates = class_means(probabilities, predicted)[0]

    def energy(self, features: Tensor) -> Tensor:
        p = self.logits(features).softmax(1)
        own = torch.xlogy(p, p.clamp(min=SMOOTHING)).sum(1, keepdim=True)
        return (own - p @ self.templates.clamp(min=SMOOTHING).log().T).amin(1)


class ReAct(LogitScorer):
    """:class:`Energy` of vectors clipped at a quantile of all values of the fit set.

    Args:
        quantile: where to clip.
        stand_in: as for every scorer of logits, like the options that follow.
    """

    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "limit")

    def __init__(
        self,
        quantile: Annotated[float, Field(gt=0, le=1)] = 0.95,
        stand_in: StandIn = "auto",
        scale: PositiveFloat = 16.0,
        n_clusters: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        self.quantile = quantile

    def features(self, inputs: Tensor) -> Tensor:
        return super().features(inputs.minimum(self.limit.to(inputs)))

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        self.limit = torch.tensor(np.quantile(inputs.cpu().numpy(), self.quantile))
        super()._fit(inputs, labels, classifier)


class DICE(LogitScorer):
    """:class:`Energy` with the weights that contribute least, by ``W * mean(z)``, set to 0.

    Args:
        percentile: the share of weights to set to 0, in percent.
        stand_in: as for every scorer of logits, like the options that follow.
    """

    def __init__(
        self,
        percentile: Annotated[float, Field(ge=0, lt=100)] = 70.0,
        stand_in: StandIn = "auto",
        scale: PositiveFloat = 16.0,
        n_clusters: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        self.percentile = percentile

    def _fit_features(self, features: Tensor) -> None:
        contribution = self.weight * features.double().mean(0)
        self.weight = self.weight * (contribution > np.percentile(contribution.cpu().numpy(), self.percentile))


class Residual(LogitScorer):
    """Distance from the principal subspace of the fit set: ``|R^T (z - u)|``, around ``u = -W^+ b``.

    Args:
        n_principal: dimensions of that subspace; None for half of D, or of N if that is less, 256 at most.
        stand_in: as for every scorer of logits, like the options that follow.
    """

    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "origin", "minor")

    def __init__(
        self,
        n_principal: int | None = None,
        stand_in: StandIn = "auto",
        scale: PositiveFloat = 16.0,
        n_clusters: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        self.n_principal = n_principal

    def _fit_features(self, features: Tensor) -> None:
        n_items, dim = features.shape
        n_principal = min(256, dim // 2, max(1, n_items // 2)) if self.n_principal is None else self.n_principal
        if not 1 <= n_principal < dim:
            raise InputError(f"n_principal must be 1 to {dim - 1} for vectors of {dim} dimensions, got {n_principal}")
        self.origin = -torch.linalg.pinv(self.weight.double()) @ self.bias.double()  # (D,) u
        shifted = features.double() - self.origin
        values = torch.linalg.eigh(shifted.T @ shifted / n_items)  # smallest first
        self.minor: Tensor = values.eigenvectors[:, : dim - n_principal]  # (D, D - n_principal) R
        if not self.residual(features.double()).max() > 1e-9 * shifted.norm(dim=1).max():
            raise InputError(f"scorer {self.name!r}: all vectors lie in the principal subspace; lower n_principal")
        if n_items < dim:
            warnings.warn(
                f"scorer {self.name!r}: {n_items} items are few for {dim} dimensions, {n_principal} of them principal; "
                "fit on more items, or set n_principal",
                stacklevel=2,
            )

    def residual(self, features: Tensor) -> Tensor:
        """(N,) lengths."""
        beside = (features - self.origin.to(features)) @ self.minor.to(features)
        return torch.linalg.vector_norm(beside, dim=1)  # type: ignore[no-any-return]

    def energy(self, features: Tensor) -> Tensor:
        return self.residual(features)


class ViM(Residual):
    """Virtual logit: ``alpha * residual - log sum_c exp f_c``; alpha gives both terms the same scale on the fit set.

    Args:
        n_principal: all options are those of ``residual``.
    """

    state: ClassVar[tuple[str, ...]] = (*Residual.state, "alpha")

    def _fit_features(self, features: Tensor) -> None:
        super()._fit_features(features)
        self.alpha = self.logits(features).amax(1).double().sum() / self.residual(features.double()).sum()

    def energy(self, features: Tensor) -> Tensor:
        return self.alpha * self.residual(features) + energy_of_logits(self.logits(features))


class ODIN(Scorer):
    """``-max_c softmax(f(x') / T)_c`` with ``x' = x + epsilon * sign(gradient of log softmax(f(x) / T) at its largest)``.

    Takes images and the model; the model is not saved and must be passed again to ``load``.

    Args:
        model: (N, 3, H, W) normalised images to (N, C) logits.
        temperature: T.
        epsilon: step, in units of normalised pixels.
    """

    needs = ("images",)
    differentiable = False

    def __init__(
        self, model: Callable[[Tensor], Tensor], temperature: PositiveFloat = 1000.0, epsilon: float = 0.0014
    ) -> None:
        self.model, self.temperature, self.epsilon = model, temperature, epsilon

    def options(self) -> dict[str, object]:
        """The settings, without the model."""
        return {"temperature": self.temperature, "epsilon": self.epsilon}

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Nothing to fit."""

    def energy(self, features: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = features.detach().clone().requires_grad_()
            logits = self.model(moved)
            if logits.ndim != 2:
                raise InputError(f"scorer 'odin': the model must return logits (N, C), got shape {tuple(logits.shape)}")
            (slope,) = torch.autograd.grad((logits / self.temperature).log_softmax(1).amax(1).sum(), moved)
        return -(self.model(features + self.epsilon * slope.sign()) / self.temperature).softmax(1).amax(1).detach()
