"""ODIN: moves the image a little towards what the classifier takes it for, and asks how sure it then is."""

from collections.abc import Callable

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.ood.classifier import Classifier
from sightline.ood.scorer import Scorer


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
