"""What all scorers share: what they are given, how they are calibrated, saved and loaded."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sightline.errors import InputError
from sightline.files import check_seal, read_json_object, regular_file, replaced_folder, sealed
from sightline.ood.classifier import Classifier
from sightline.registry import Registry, option_parameters

FORMAT = 1
SETTINGS_FILE, TENSORS_FILE = "scorer.json", "scorer.safetensors"
BLOCK = 1024  # items scored at once
MOST_KEPT = 1001  # energies of the calibration items that are saved: steps of 0.1 %
Inputs = ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]
# Scorers by name, or by a mapping with a name and options.
Several = Annotated[Sequence[str | Mapping[str, object]], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]  # what k-means takes
KINDS = {  # what scorers are given: shape, and numbers of dimensions
    "vectors": ("(N, D)", (2,)),
    "logits": ("(N, C)", (2,)),
    "feature maps": ("(N, C, H, W) or (N, T, C)", (3, 4)),
    "images": ("(N, 3, H, W)", (4,)),
}


class Scorer(ABC):
    """How far out an item is: an energy, low for what the fit set is like, high for what it is not.

    Attributes:
        name: what :func:`~sightline.ood.create` calls it.
        needs: what it is given: ``vectors``, ``feature maps``, ``logits`` or ``images``; several for a composition.
        differentiable: whether the energy has a gradient, as a prior of HEAT needs.
        threshold: energies above it are outliers; None until :meth:`calibrate`.
        acceptance: the share of held-out items below that threshold.
        calibration: energies of the held-out items in ascending order, at most 1001 of their quantiles; None until
            :meth:`calibrate`, and in scorers that an earlier version saved.
    """

    name: str = "scorer"
    needs: tuple[str, ...] = ("vectors",)
    differentiable: ClassVar[bool] = True
    state: ClassVar[tuple[str, ...]] = ()  # attributes that fitting makes, all tensors
    threshold: float | None = None
    acceptance: float | None = None
    calibration: NDArray[np.float64] | None = None
    width: int | None = None  # D of what it was fitted on
    shows_progress: bool = False

    # What a scorer is made of -------------------------------------------------------------------------------------
    @abstractmethod
    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Set what ``state`` names from checked inputs (float32 or float64) and int64 labels from 0."""

    def features(self, inputs: Tensor) -> Tensor:
        """(N, D) what the energy is a function of: the inputs, pooled, clipped or at unit length as the scorer wants."""
        return inputs

    @abstractmethod
    def energy(self, features: Tensor) -> Tensor:
        """(N,) energies of what :meth:`features` returns, with a gradient where there is one."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor | None:
        """(n, D) features drawn from the density ``exp(-energy)``; None where the scorer cannot draw."""
        return None

    # What it is used for ------------------------------------------------------------------------------------------
    def fit(
        self,
        inputs: Inputs,
        labels: ArrayLike | Tensor | None = None,
        classifier: Classifier | None = None,
        show_progress: bool = False,
    ) -> Self:
        """Learn what belongs; no outlier is ever seen.

        Args:
            inputs: what :attr:`needs` says, of N items that belong, as array or tensor; for a composition that needs
                several things, each by its name.
            labels: (N,) or (N, L) classes, of which the finest are used.
            classifier: the linear layer that makes logits of vectors, where there is one.
            show_progress: draw a bar, where fitting takes long.
        """
        if classifier is not None and not isinstance(classifier, Classifier):
            raise InputError(f"classifier is a {type(classifier).__name__}; a sightline.ood.Classifier is needed")
        self.shows_progress = show_progress
        given = self._checked(inputs)
        self._fit_given(given, _codes(labels, len(next(iter(given.values())))), classifier)
        self.threshold = self.acceptance = self.calibration = None
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N,) energies; the higher, the further out."""
        self._check_fitted()
        given = self._checked(inputs)
        return self._energies(given).cpu().numpy() if len(given[self.needs[0]]) else np.empty(0)

    def calibrate(self, held_out: Inputs, tpr: float = 0.95, method: Literal["linear", "higher"] = "linear") -> float:
        """Set the threshold below which a share ``tpr`` of items that belong lies.

        Args:
            held_out: items that belong and that it was not fitted on.
            tpr: the share to accept, between 0 and 1.
            method: ``linear`` interpolates between two energies; ``higher`` takes the upper of them, so that at least
                ``tpr`` of these items are accepted.

        Returns:
            The threshold.
        """
        check_tpr(tpr)
        energies = self.score(held_out)
        if (n_bad := int((~np.isfinite(energies)).sum())) or not len(energies):
            raise InputError(
                f"scorer {self.name!r}: {n_bad} of {len(energies)} items to calibrate on have no finite energy"
            )
        self.threshold = float(np.quantile(energies, tpr, method=method))
        self.acceptance = tpr
        levels = np.linspace(0, 1, MOST_KEPT)
        self.calibration = np.sort(energies) if len(energies) <= MOST_KEPT else np.quantile(energies, levels)
        return self.threshold

    def quantiles(self, energies: ArrayLike) -> NDArray[np.float64] | None:
        """(N,) share of the calibration items with a lower energy, in [0, 1]; None where their energies are not known."""
        if self.calibration is None:
            return None
        return np.searchsorted(self.calibration, np.asarray(energies)) / len(self.calibration)

    def is_outlier(self, inputs: Inputs) -> NDArray[np.bool_]:
        """(N,) True where the energy is above the threshold, or no number."""
        if self.threshold is None:
            raise InputError(f"scorer {self.name!r} has no threshold yet: calibrate it on held-out items")
        return ~(self.score(inputs) <= self.threshold)

    def save(self, folder: Path | str) -> Path:
        """Write ``scorer.json`` and ``scorer.safetensors`` to a folder, which appears complete or not at all."""
        self._check_fitted()
        with replaced_folder(Path(folder), SETTINGS_FILE, "a scorer") as scratch:
            self.write(scratch)
        return Path(folder)

    def write(self, folder: Path) -> None:
        """Write both files into a folder that is there."""
        stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        if self.calibration is not None:
            stored["calibration"] = torch.from_numpy(self.calibration)
        save_file(stored, folder / TENSORS_FILE)
        described = {
            "format": FORMAT,
            "name": self.name,
            "options": self.options(),
            "width": self.width,
            "threshold": self.threshold,
            "acceptance": self.acceptance,
        }
        try:
            text = json.dumps(sealed(described, folder / TENSORS_FILE), indent=2)
        except TypeError as error:
            raise InputError(f"scorer {self.name!r} has an option that cannot be saved: {error}") from error
        (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")

    # How it is done -----------------------------------------------------------------------------------------------
    def options(self) -> dict[str, object]:
        """The settings it was created with."""
        return {option: getattr(self, option) for option in option_parameters(type(self))}

    def parts(self) -> dict[str, "Scorer"]:
        """Scorers that this one is made of, by what the names of their tensors begin with."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What fitting made."""
        found = {name: getattr(self, name) for name in self.state}
        for prefix, part in self.parts().items():
            inside = part.tensors() | {"width": torch.tensor(part.width)}
            found |= {f"{prefix}.{name}": tensor for name, tensor in inside.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        for name in self.state:
            setattr(self, name, tensors[name])
        for prefix, part in self.parts().items():
            inside = tensors_below(prefix, tensors)
            part.restore(inside)
            part.width = int(inside["width"]) if "width" in inside else self.width  # older files have none of priors

    def _fit_given(self, given: Mapping[str, Tensor], labels: Tensor | None, classifier: Classifier | None) -> None:
        inputs = given[self.needs[0]]
        if not len(inputs):
            raise InputError("no items to fit on")
        self._fit(inputs, labels, classifier)
        self.width = _width(inputs)
        for name in self.state:  # float64 was for fitting; scoring takes the type of the inputs
            tensor = getattr(self, name)
            # Contiguous as it is saved: a product with a transposed layout differs in the last bits.
            setattr(self, name, tensor.to(inputs.dtype if tensor.is_floating_point() else tensor.dtype).contiguous())

    def _energy_given(self, given: Mapping[str, Tensor]) -> Tensor:
        inputs = given[self.needs[0]]
        if self.width is not None and _width(inputs) != self.width:
            raise InputError(
                f"scorer {self.name!r} was fitted on {self.needs[0]} of {self.width} dimensions, found {_width(inputs)}"
            )
        kept = next((getattr(self, name) for name in self.state if getattr(self, name).is_floating_point()), inputs)
        return self.energy(self.features(inputs.to(kept.dtype)))

    def _energies(self, given: Mapping[str, Tensor]) -> Tensor:
        """(N,) float64, found in blocks and without a gradient; N at least 1."""
        starts = range(0, len(given[self.needs[0]]), BLOCK)
        with torch.no_grad():
            blocks = [{kind: rows[start : start + BLOCK] for kind, rows in given.items()} for start in starts]
            return torch.cat([self._energy_given(block).double() for block in blocks])

    def _check_fitted(self) -> None:
        if self.width is None:
            raise InputError(f"scorer {self.name!r} is not fitted yet")

    def _checked(self, inputs: Inputs) -> dict[str, Tensor]:
        """The inputs as float tensors by what they are; refused where something is missing, misshapen or not a number."""
        by_kind = inputs if isinstance(inputs, Mapping) else {self.needs[0]: inputs}
        if missing := [kind for kind in self.needs if kind not in by_kind]:
            raise InputError(f"scorer {self.name!r} needs {' and '.join(missing)}: give each input by its name in a dict")
        given = {kind: _as_tensor(by_kind[kind], kind, self.name) for kind in self.needs}
        if len({len(rows) for rows in given.values()}) > 1:
            counts = ", ".join(f"{len(rows)} {kind}" for kind, rows in given.items())
            raise InputError(f"scorer {self.name!r}: one of each for every item is needed, found {counts}")
        return given


def check_tpr(tpr: float) -> None:
    """Refuse what is no share of items to accept."""
    if not 0 < tpr < 1:
        raise InputError(f"tpr is {tpr}; between 0 and 1 is needed")


SCORERS: Registry[Scorer] = Registry(
    "scorer",
    {
        "composition": "sightline.ood.composition:Composition",
        "dice": "sightline.ood.logits:DICE",
        "energy": "sightline.ood.logits:Energy",
        "gmm": "sightline.ood.density:GMM",
        "gmm_std": "sightline.ood.density:GMMStd",
        "heat": "sightline.ood.heat:Heat",
        "kl_matching": "sightline.ood.logits:KLMatching",
        "knn": "sightline.ood.density:KNN",
        "mahalanobis": "sightline.ood.density:Mahalanobis",
        "maxlogit": "sightline.ood.logits:MaxLogit",
        "msp": "sightline.ood.logits:MSP",
        "odin": "sightline.ood.logits:ODIN",
        "react": "sightline.ood.logits:ReAct",
        "residual": "sightline.ood.logits:Residual",
        "soft_knn": "sightline.ood.density:SoftKNN",
        "ssd": "sightline.ood.density:SSD",
        "vim": "sightline.ood.logits:ViM",
    },
    "sightline.scorers",
    lambda found: isinstance(found, type) and issubclass(found, Scorer),
    "a class derived from sightline.ood.Scorer",
)


def list_scorers() -> list[str]:
    """The names :func:`create` knows, in alphabetical order.

    Example:
        >>> [name for name in list_scorers() if name.startswith("gmm")]
        ['gmm', 'gmm_std']
    """
    return SCORERS.names()


def scorer_options(name: str) -> list[str]:
    """The options the named scorer takes.

    Example:
        >>> scorer_options("knn")
        ['k', 'bank_size', 'seed']
    """
    return list(SCORERS.options(name))


def create(name: str, *, trust: bool = False, **options: object) -> Scorer:
    """The named scorer, to be fitted.

    Args:
        name: one of :func:`list_scorers`, or ``package.module:Name``.
        trust: import such a path.
        options: the scorer's own settings; one it does not have is refused.

    Example:
        >>> vectors = np.random.default_rng(0).normal([5, 0, 0, 0], 1, (300, 4))
        >>> scorer = create("gmm").fit(vectors[:200])
        >>> threshold = scorer.calibrate(vectors[200:], tpr=0.95)
        >>> scorer.is_outlier(np.array([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]]))
        array([False,  True])
    """
    return create_named(name, options, trust=trust)


def create_named(name: str, options: Mapping[str, object], *, trust: bool = False, **known: object) -> Scorer:
    """The scorer of :meth:`~sightline.registry.Registry.create`, with the name by which it is loaded again."""
    made = SCORERS.create(name, options, trust=trust, **known)
    made.name = name
    return made


def create_several(several: Several) -> list[Scorer]:
    """Scorers of names, or of mappings with a name and options."""
    described = [{"name": one} if isinstance(one, str) else dict(one) for one in several]
    return [create_named(str(options.pop("name", "")), options) for options in described]


def load(folder: Path | str, *, trust: bool = False, **not_stored: object) -> Scorer:
    """The scorer that :meth:`Scorer.save` wrote there.

    Args:
        folder: with ``scorer.json`` and ``scorer.safetensors``.
        trust: import a scorer that is named by its path.
        not_stored: options that cannot be saved: the ``model`` of ``odin``.
    """
    folder = Path(folder)
    try:
        tensors_file = regular_file(folder / TENSORS_FILE, folder)
        stored = read_json_object(folder / SETTINGS_FILE, folder)
        if stored.get("format") != FORMAT:
            raise InputError(f"of format {stored.get('format')!r}; this version reads {FORMAT}")
        described = check_seal(stored, folder / SETTINGS_FILE, tensors_file)
        scorer = create(described["name"], trust=trust, **described["options"] | not_stored)
        scorer.width = described["width"]
        tensors = load_file(tensors_file)
        scorer.restore(tensors)
        scorer.calibration = tensors["calibration"].numpy() if "calibration" in tensors else None
        scorer.threshold, scorer.acceptance = described["threshold"], described["acceptance"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: not a scorer that can be opened: {error}") from error
    return scorer


def tensors_below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with ``prefix.``, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def _as_tensor(given: ArrayLike | Tensor, kind: str, name: str) -> Tensor:
    try:
        tensor = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError) as error:
        raise InputError(f"scorer {name!r} needs {kind} {KINDS[kind][0]}, found no numbers in rows: {error}") from error
    if tensor.ndim not in KINDS[kind][1] or 0 in tensor.shape[1:]:
        raise InputError(f"scorer {name!r} needs {kind} {KINDS[kind][0]}, found shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    # The sum first: it is quick, and finite only where all are; if not, it may still be that it grew too large.
    if not math.isfinite(tensor.sum().item()) and (bad := ~tensor.isfinite().flatten(1).all(1)).any():
        raise InputError(
            f"{kind}: row {int(bad.nonzero()[0])} has values that are not finite, and {int(bad.sum())} rows in all"
        )
    return tensor


def _codes(labels: ArrayLike | Tensor | None, n_items: int) -> Tensor | None:
    """(N,) classes as numbers from 0."""
    if labels is None:
        return None
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] else array
    if array.shape != (n_items,):
        raise InputError(f"labels: one for each of the {n_items} items is needed, found shape {array.shape}")
    if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
        raise InputError(f"labels: that of item {int(np.isnan(array).argmax())} is not a number")
    try:
        return torch.from_numpy(np.unique(array, return_inverse=True)[1].astype(np.int64))
    except TypeError as error:
        raise InputError(f"labels: all are to be words, or all numbers: {error}") from error


def _width(inputs: Tensor) -> int:
    """D of vectors and logits, C of feature maps and images."""
    return inputs.shape[-1] if inputs.ndim < 4 else inputs.shape[1]
