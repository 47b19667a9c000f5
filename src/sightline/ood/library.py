"""Detectors of pytorch-ood by name, on vectors or logits: ``pip install 'sightline[ood]'``."""

import importlib
import logging
from collections.abc import Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.ood.classifier import Classifier
from sightline.ood.logits import LogitScorer

Share = Annotated[float, Field(ge=0, lt=1)]
OF_LOGITS = ("inputs", "stand_in", "scale", "n_clusters", "seed")
OF_VECTORS = ("Mahalanobis", "RMD")  # without logits
NEED_LABELS = ("RMD", "SHE")
MOST_PRINCIPAL = 256


class LibraryScorer(LogitScorer):
    """A detector of pytorch-ood, in float32 and without a gradient."""

    differentiable: ClassVar[bool] = False
    detector: ClassVar[str]  # its class in pytorch_ood.detector
    part: ClassVar[str]  # what it takes: features, logits or feature_maps

    def __init__(self, **options: Any) -> None:
        self.chosen = {name: one.default for name, one in signature(type(self)).parameters.items()} | options
        super().__init__(**{name: value for name, value in self.chosen.items() if name in OF_LOGITS})

    def options(self) -> dict[str, object]:
        """The settings it was created with."""
        return self.chosen

    def energy(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = self._call("predict", features)
            return scores

    def _call(self, verb: str, features: Tensor, *labels: Tensor) -> Any:
        rows = (self.logits(features) if self.part == "logits" else features).float()
        if self.part == "feature_maps":
            rows = rows[:, :, None, None]
        return getattr(self.made, f"{verb}_{self.part}")(rows, *labels)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        if self.detector in OF_VECTORS:
            classifier = Classifier(inputs.new_zeros(1, inputs.shape[1]), inputs.new_zeros(1))
        super()._fit(inputs, labels, classifier)
        self.made = self._detector(len(inputs))
        if labels is None and self.detector in NEED_LABELS:
            raise InputError(f"scorer {self.name!r} requires labels")
        classes = torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels
        try:
            if self.made.requires_fit:
                self._call("fit", self.features(inputs), classes)
        except (ValueError, AssertionError) as error:
            raise InputError(f"scorer {self.name!r}: {error}") from error
        for name, value in self._numbers().items():  # laid out as when saved: a product then has the same last bits
            setattr(self.made, name, value.contiguous())

    def _numbers(self) -> dict[str, Tensor]:
        """What the detector holds, as tensors."""
        held = {name: value for name, value in vars(self.made).items() if name not in self.chosen}
        return {name: torch.as_tensor(value) for name, value in held.items() if isinstance(value, Tensor | float)}

    def _detector(self, n_items: int) -> Any:
        """The library's detector, not fitted."""
        try:
            made = getattr(importlib.import_module("pytorch_ood.detector"), self.detector)
        except ImportError as error:
            raise InputError(f"scorer {self.name!r} requires pytorch-ood: pip install 'sightline[ood]'") from error
        logging.getLogger("pytorch_ood").setLevel(logging.WARNING)
        n_classes, dim = self.weight.shape
        head = nn.Linear(dim, n_classes).requires_grad_(False)
        head.weight.copy_(self.weight)
        head.bias.copy_(self.bias)
        flat = nn.Sequential(nn.Flatten(), head)
        known: dict[str, object] = {"head": flat if self.part == "feature_maps" else head, "w": head.weight, "b": head.bias}
        known |= dict.fromkeys(("encoder", "model", "backbone"))
        own = {name: value for name, value in self.chosen.items() if name not in OF_LOGITS}
        if "d" in own and own["d"] is None:
            own["d"] = min(MOST_PRINCIPAL, dim // 2, max(1, n_items // 2))
        taken = {name: value for name, value in known.items() if name in signature(made).parameters}
        return made(**taken, **own)

    def tensors(self) -> dict[str, Tensor]:
        """The classifier, and the numbers that the detector holds."""
        dists = {f"dists.{name}": value.data for name, value in getattr(self.made, "dists", {}).items()}
        return super().tensors() | {f"detector.{name}": value for name, value in (self._numbers() | dists).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the fitted state from what :meth:`tensors` returned."""
        super().restore(tensors)
        self.made = self._detector(1)
        if self.made.requires_fit and not any(key.startswith("detector.") for key in tensors):
            raise InputError(f"scorer {self.name!r} has no state of pytorch-ood's detector")
        for key, value in tensors.items():
            kind, _, name = key.partition(".")
            if kind == "detector" and name.startswith("dists."):
                self.made.dists[name.removeprefix("dists.")] = nn.Parameter(value, requires_grad=False)
            elif kind == "detector":
                setattr(self.made, name, value)


def _scorer(detector: str, part: str, summary: str, **options: tuple[Any, object]) -> type[LibraryScorer]:
    """The class of a detector: its own options, then those of every scorer of logits."""
    shared = [] if detector in OF_VECTORS else signature(LogitScorer).parameters.values()
    own = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=kind) for name, (kind, value) in options.items()
    ]
    of_logits = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in shared if part == "logits" or one.name != "inputs"]
    body = {"__doc__": summary, "__signature__": Signature([*own, *of_logits]), "detector": detector, "part": part}
    return type(detector, (LibraryScorer,), body)


ASH = _scorer(
    "ASH", "feature_maps", "Energy of vectors with small values pruned and the rest scaled.", percentile=(Share, 0.65)
)
DICE = _scorer("DICE", "features", "Energy with only the weights that contribute most.", p=(Share, 0.7))
FDBD = _scorer("fDBD", "features", "Minus the distance to the decision boundaries, over that to the mean.")
GEN = _scorer("GEN", "logits", "Generalised entropy of the probabilities.", gamma=(PositiveFloat, 0.1))
KLMatching = _scorer("KLMatching", "logits", "Divergence from the nearest mean prediction.")
LTS = _scorer("LTS", "features", "Energy of logits scaled by the share of the largest activations.", p=(Share, 0.05))
Mahalanobis = _scorer("Mahalanobis", "features", "Mahalanobis distance to the nearest class mean, one covariance for all.")
MaxLogit = _scorer("MaxLogit", "logits", "Minus the largest logit.")
MSP = _scorer("MaxSoftmax", "logits", "Minus the largest probability (maximum softmax probability).")
NCI = _scorer("NCI", "features", "Minus the cosine of the centred vector to the weights of its class.", alpha=(float, 0.0))
NNGuide = _scorer("NNGuide", "features", "Energy, weighted by similarity to the nearest vectors.", k=(PositiveInt, 10))
PNML = _scorer("PNML", "features", "Regret of the predictive normalised maximum likelihood.")
ReAct = _scorer("ReAct", "feature_maps", "Energy of vectors clipped at a percentile.", percentile=(Share, 0.9))
RMD = _scorer("RMD", "features", "Relative Mahalanobis distance: to the nearest class less that to all items.")
SCALE = _scorer(
    "SCALE", "feature_maps", "Energy of vectors scaled by their share of large values.", percentile=(Share, 0.65)
)
SHE = _scorer("SHE", "features", "Minus the product with the mean vector of the predicted class.")
ViM = _scorer("ViM", "features", "Distance from the principal subspace as a virtual logit.", d=(PositiveInt | None, None))
