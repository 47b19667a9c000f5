"""Scorers of a classifier's logits; for encoders without one, prototypes or centroids stand in for its weights."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError, choose
from sightline.ood.classifier import STAND_INS, Classifier, check_scale, stand_in_classifier
from sightline.ood.scorer import Scorer

INPUTS = {"vectors": "vectors", "logits": "logits"}
SMOOTHING = 1e-12  # of probabilities in a logarithm


class LogitScorer(Scorer):
    """An energy of the logits ``W z + b``.

    Args:
        inputs: ``vectors``, to which the classifier or its stand-in is applied, or ``logits`` as they are.
        stand_in: without a classifier: ``prototypes`` (class means), ``centroids`` (k-means), or ``auto``: prototypes where
            there are labels.
        scale: of the cosines to prototypes or centroids.
        n_clusters: centroids.
        seed: of k-means.
    """

    state: ClassVar[tuple[str, ...]] = ("weight", "bias", "unit")
    weight: Tensor
    bias: Tensor
    unit: Tensor
    n_classes_needed: ClassVar[int] = 1

    def __init__(
        self, inputs: str = "vectors", stand_in: str = "auto", scale: float = 16.0, n_clusters: int = 100, seed: int = 0
    ) -> None:
        self.inputs = choose(INPUTS, inputs, "inputs")
        self.stand_in = choose(dict(zip(STAND_INS, STAND_INS, strict=True)), stand_in, "stand_in")
        check_scale(scale)
        if n_clusters < 1:
            raise InputError(f"n_clusters is {n_clusters}; at least 1 is needed")
        self.scale, self.n_clusters, self.seed = scale, n_clusters, seed
        self.needs = (self.inputs,)

    def features(self, inputs: Tensor) -> Tensor:
        return F.normalize(inputs, dim=1) if self.unit else inputs

    def logits(self, features: Tensor) -> Tensor:
        """(N, C) of features."""
        return features if self.inputs == "logits" else features @ self.weight.T + self.bias

    def energy(self, features: Tensor) -> Tensor:
        return self.energy_of_logits(self.logits(features))

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        """(N,) of (N, C)."""
        raise NotImplementedError

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.inputs == "logits":
            if classifier is not None:
                raise InputError("a classifier is of no use to a scorer that is given logits")
            classifier = Classifier(inputs.new_zeros(inputs.shape[1], 0), inputs.new_zeros(inputs.shape[1]))
        elif classifier is None:
            classifier = stand_in_classifier(inputs, labels, self.stand_in, self.scale, self.n_clusters, self.seed)
        else:
            classifier.check_width(inputs.shape[1])
        if len(classifier.weight) < self.n_classes_needed:
            raise InputError(f"scorer {self.name!r} needs {self.n_classes_needed} classes or more, there is one")
        self.weight, self.bias = classifier.weight.detach().to(inputs), classifier.bias.detach().to(inputs)
        self.unit = torch.tensor(classifier.unit)
        self._fit_features(self.features(inputs))

    def _fit_features(self, features: Tensor) -> None:
        """What is learnt beyond the classifier."""


class MSP(LogitScorer):
    """Minus the largest probability: ``-max_c softmax(f)_c`` (maximum softmax probability)."""

    name = "msp"
    n_classes_needed = 2

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return -logits.softmax(1).amax(1)


class MaxLogit(LogitScorer):
    """Minus the largest logit: ``-max_c f_c``."""

    name = "maxlogit"

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return -logits.amax(1)


class Energy(LogitScorer):
    """``-T log sum_c exp(f_c / T)``, EL in the papers.

    Args:
        temperature: T.
        inputs: as for every scorer of logits, like the rest.
    """

    name = "energy"

    def __init__(
        self,
        temperature: float = 1.0,
        inputs: str = "vectors",
        stand_in: str = "auto",
        scale: float = 16.0,
        n_clusters: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(inputs, stand_in, scale, n_clusters, seed)
        if not temperature > 0:
            raise InputError(f"temperature is {temperature}; above 0 is needed")
        self.temperature = temperature

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return energy_of_logits(logits, self.temperature)

    def sample(self, n: int, generator: torch.Generator) -> Tensor | None:
        """From the mixture of von Mises-Fisher densities that proxies, prototypes and centroids are."""
        if not self.unit or self.temperature != 1 or self.bias.any() or self.weight.shape[1] < 2:
            return None
        concentration = self.weight.norm(dim=1)
        if (concentration - concentration[0]).abs().max() > 1e-4 * concentration[0]:
            return None  # densities of other concentrations have other normalisers: the mixture is not uniform
        return mixture_on_sphere(self.weight / concentration[:, None], float(concentration[0]), n, generator)


def energy_of_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``-T log sum_c exp(f_c / T)`` of each row.

    Example:
        >>> energy_of_logits(torch.tensor([[2.0, 1.0, 0.0]]))
        tensor([-2.4076])
    """
    return -temperature * (logits / temperature).logsumexp(1)


class KLMatching(LogitScorer):
    """``min_c KL(p || t_c)``: p the probabilities of an item, t_c their mean over fit items predicted as c."""

    name = "kl_matching"
    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "templates")
    templates: Tensor
    n_classes_needed = 2

    def _fit_features(self, features: Tensor) -> None:
        probabilities = self.logits(features).double().softmax(1)
        predicted = probabilities.argmax(1)
        there = predicted.unique()  # classes never predicted have no template
        self.templates = torch.stack([probabilities[predicted == place].mean(0) for place in there])

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return kl_to_nearest(logits.softmax(1), self.templates)


def kl_to_nearest(probabilities: Tensor, templates: Tensor) -> Tensor:
    """(N,) the smallest divergence of each row of (N, C) from a row of (T, C)."""
    own = torch.xlogy(probabilities, probabilities.clamp(min=SMOOTHING)).sum(1)
    return (own[:, None] - probabilities @ templates.clamp(min=SMOOTHING).log().T).amin(1)


class ReAct(LogitScorer):
    """:class:`Energy` of vectors whose entries are cut off at a quantile of all entries of the fit set.

    Args:
        quantile: where to cut.
        stand_in: as for every scorer of logits, like the rest.
    """

    name = "react"
    state: ClassVar[tuple[str, ...]] = (*LogitScorer.state, "limit")
    limit: Tensor

    def __init__(
        self, quantile: float = 0.95, stand_in: str = "auto", scale: float = 16.0, n_clusters: int = 100, seed: int = 0
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        if not 0 < quantile <= 1:
            raise InputError(f"quantile is {quantile}; above 0 and at most 1 is needed")
        self.quantile = quantile
        self.limit = torch.tensor(torch.inf)

    def features(self, inputs: Tensor) -> Tensor:
        clipped = inputs.minimum(self.limit.to(inputs))
        return F.normalize(clipped, dim=1) if self.unit else clipped

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        self.limit = torch.tensor(np.quantile(inputs.cpu().numpy(), self.quantile))
        super()._fit(inputs, labels, classifier)

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return energy_of_logits(logits)


class DICE(LogitScorer):
    """:class:`Energy` with the weights that contribute little set to 0: those where ``W * mean(z)`` is low.

    Args:
        percentile: the share of weights to leave out, in percent.
        stand_in: as for every scorer of logits, like the rest.
    """

    name = "dice"

    def __init__(
        self, percentile: float = 70.0, stand_in: str = "auto", scale: float = 16.0, n_clusters: int = 100, seed: int = 0
    ) -> None:
        super().__init__("vectors", stand_in, scale, n_clusters, seed)
        if not 0 <= percentile < 100:
            raise InputError(f"percentile is {percentile}; 0 or more and below 100 is needed")
        self.percentile = percentile

    def _fit_features(self, features: Tensor) -> None:
        contribution = (self.weight * features.double().mean(0)).cpu().numpy()
        kept = torch.from_numpy(contribution > np.percentile(contribution, self.percentile))
        self.weight = self.weight * kept.to(self.weight.device)

    def energy_of_logits(self, logits: Tensor) -> Tensor:
        return energy_of_logits(logits)


class ODIN(Scorer):
    """``-max_c softmax(f(x') / T)_c`` with ``x' = x + epsilon * sign(gradient of log softmax(f(x) / T) at its largest)``.

    Needs images and the model; the model is not saved with it and is given again to ``load``.

    Args:
        model: (N, 3, H, W) normalised images to (N, C) logits.
        temperature: T.
        epsilon: step, in units of normalised pixels.
    """

    name = "odin"
    needs = ("images",)
    differentiable = False

    def __init__(
        self, model: Callable[[Tensor], Tensor] | None = None, temperature: float = 1000.0, epsilon: float = 0.0014
    ) -> None:
        if model is None:
            raise InputError("scorer 'odin' needs model: a function of images to logits")
        if not temperature > 0:
            raise InputError(f"temperature is {temperature}; above 0 is needed")
        self.model, self.temperature, self.epsilon = model, temperature, epsilon

    def options(self) -> dict[str, object]:
        """The settings, without the model."""
        return {"temperature": self.temperature, "epsilon": self.epsilon}

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Nothing is learnt."""

    def energy(self, features: Tensor) -> Tensor:
        return odin_energy(self.model, features, self.temperature, self.epsilon)


def odin_energy(model: Callable[[Tensor], Tensor], images: Tensor, temperature: float, epsilon: float) -> Tensor:
    """(N,) ODIN's energy of (N, ...) inputs of the model."""
    with torch.enable_grad():
        moved = images.detach().clone().requires_grad_()
        logits = model(moved)
        if logits.ndim != 2:
            raise InputError(f"scorer 'odin': the model gives shape {tuple(logits.shape)}; logits (N, C) are needed")
        (slope,) = torch.autograd.grad((logits / temperature).log_softmax(1).amax(1).sum(), moved)
    with torch.no_grad():
        return -(model(images + epsilon * slope.sign()) / temperature).softmax(1).amax(1)


def mixture_on_sphere(directions: Tensor, concentration: float, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a mixture, in equal parts, of von Mises-Fisher densities ``exp(concentration * cos)`` (Wood, 1994).

    Args:
        directions: (C, D) unit vectors, the middle of each density; D at least 2.
        concentration: 0 for the whole sphere evenly.
        n: how many.
        generator: of the draws, on the CPU.

    Returns:
        (n, D) unit vectors of the directions' type.

    Example:
        >>> drawn = mixture_on_sphere(torch.eye(3)[:1], 1000.0, 500, torch.Generator().manual_seed(0))
        >>> bool((drawn[:, 0] > 0.97).all()), bool((drawn.norm(dim=1) - 1).abs().max() < 1e-5)
        (True, True)
    """
    middle = directions[torch.randint(len(directions), (n,), generator=generator).to(directions.device)]
    dim = directions.shape[1]
    cosine = _cosines(dim, concentration, n, generator).to(directions)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64).to(directions)
    tangent = F.normalize(noise - (noise * middle).sum(1, keepdim=True) * middle, dim=1)
    return cosine[:, None] * middle + (1 - cosine**2).clamp(min=0).sqrt()[:, None] * tangent


def _cosines(dim: int, concentration: float, n: int, generator: torch.Generator) -> Tensor:
    """(n,) float64 cosines to the middle, by rejection; a draw is kept with a probability above one half."""
    m = dim - 1
    b = m / (2 * concentration + (4 * concentration**2 + m**2) ** 0.5)
    x = (1 - b) / (1 + b)
    c = concentration * x + m * torch.log(torch.tensor(1 - x**2, dtype=torch.float64))
    kept = torch.empty(0, dtype=torch.float64)
    while len(kept) < n:
        gammas = torch._standard_gamma(torch.full((2, 2 * n), m / 2, dtype=torch.float64), generator=generator)
        z = gammas[0] / gammas.sum(0)  # beta(m / 2, m / 2)
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        uniform = torch.rand(2 * n, generator=generator, dtype=torch.float64)
        accepted = concentration * w + m * torch.log(1 - x * w) - c >= torch.log(uniform)
        kept = torch.cat([kept, w[accepted]])
    return kept[:n]
