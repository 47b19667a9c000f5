"""The interface of all scorers: inputs, calibration, saving and loading, and the table of scorers by name."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self

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
# Scorers by name, or as mappings with a name and options.
Several = Annotated[Sequence[str | Mapping[str, object]], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]  # the range that k-means accepts
KINDS = {  # inputs of scorers: shape, and number of dimensions
    "vectors": ("(N, D)", (2,)),
    "logits": ("(N, C)", (2,)),
    "features": ("(N, C)", (2,)),  # before an encoder's projection
    "feature maps": ("(N, C, H, W), (N, T, C) or, of each channel's deviation, (N, C)", (2, 3, 4)),
}


class Scorer(ABC):
    """How far out of distribution an item is: an energy, low for items like the fit set.

    Attributes:
        name: its name for :func:`~sightline.ood.create`.
        needs: its inputs: ``vectors``, ``features``, ``feature maps`` or ``logits``; several for a composition.
        differentiable: whether the energy has a gradient, which a prior of HEAT must have.
        threshold: energies above it are outliers; None before :meth:`calibrate`.
        acceptance: the probability, at least, with which it accepts an in-distribution item.
        keeps_features: whether another fit leaves :meth:`features` as they are, where they depend on the fit set: networks
            of HEAT are fitted on parts of it, and used together.
        calibration: energies of the held-out items in ascending order, at most 1001 of their quantiles; None before
            :meth:`calibrate`, and in scorers saved by an earlier version.
    """

    name: str = "scorer"
    needs: tuple[str, ...] = ("vectors",)
    differentiable: ClassVar[bool] = True
    state: ClassVar[tuple[str, ...]] = ()  # attributes that fitting sets, all tensors
    threshold: float | None = None
    acceptance: float | None = None
    calibration: NDArray[np.float64] | None = None
    width: int | None = None  # D of what it was fitted on
    shows_progress: bool = False
    keeps_features: bool = False

    # What a scorer implements -------------------------------------------------------------------------------------
    @abstractmethod
    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Set the attributes in ``state`` from checked inputs (float32 or float64) and int64 labels from 0."""

    def features(self, inputs: Tensor) -> Tensor:
        """(N, D) the features that the energy depends on: the inputs, pooled, clipped or normalised."""
        return inputs

    @abstractmethod
    def energy(self, features: Tensor) -> Tensor:
        """(N,) energies of what :meth:`features` returns, with a gradient if the scorer is differentiable."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor | None:
        """(n, D) features sampled from the density ``exp(-energy)``; None if the scorer cannot sample."""
        return None

    @property
    def notes(self) -> list[str]:
        """What fitting decided, a line each, its parts' included."""
        return [note for part in self.parts().values() for note in part.notes]

    # What its users call ------------------------------------------------------------------------------------------
    def fit(
        self,
        inputs: Inputs,
        labels: ArrayLike | Tensor | None = None,
        classifier: Classifier | None = None,
        show_progress: bool = False,
    ) -> Self:
        """Fit on in-distribution items; no outliers are used.

        Args:
            inputs: the inputs in :attr:`needs` of N in-distribution items, as a list, array or tensor; a dictionary by
                name if there are several.
            labels: (N,) or (N, L) classes, as numbers or strings; the finest are used.
            classifier: the linear layer from vectors to logits, if there is one.
            show_progress: draw a progress bar if fitting takes long.
        """
        if classifier is not None and not isinstance(classifier, Classifier):
            raise InputError(f"classifier must be a sightline.ood.Classifier, got {type(classifier).__name__}")
        self.shows_progress = show_progress
        given = self._checked(inputs)
        self._fit_given(given, _codes(labels, len(next(iter(given.values())))), classifier)
        self.threshold = self.acceptance = self.calibration = None
        return self

    def score(self, inputs: Inputs) -> NDArray[np.float64]:
        """(N,) energies; higher is further out of distribution."""
        self._check_fitted()
        given = self._checked(inputs)
        return self._energies(given).cpu().numpy() if len(given[self.needs[0]]) else np.empty(0)

    def calibrate(self, held_out: Inputs, tpr: float = 0.95) -> float:
        """Set the threshold by split conformal prediction, so that it accepts a share ``tpr`` of in-distribution items.

        The threshold is the ``ceil((n + 1) tpr)``-th smallest of the n energies. A new item whose energy is exchangeable
        with theirs (as if all had been drawn and only then shuffled) is accepted with a probability of at least ``tpr``,
        and less than ``tpr + 1 / (n + 1)`` if no two are equal. With fewer than ``tpr / (1 - tpr)`` items, the largest
        energy is the threshold, and ``acceptance`` is the ``n / (n + 1)`` that it guarantees.

        Args:
            held_out: in-distribution items that it was not fitted on.
            tpr: the share to accept, between 0 and 1.

        Returns:
            The threshold.
        """
        check_tpr(tpr)
        return self.calibrate_on(self.score(held_out), tpr)

    def calibrate_on(self, energies: ArrayLike, tpr: float = 0.95) -> float:
        """As :meth:`calibrate`, from the energies of the items, such as those that a service logged."""
        check_tpr(tpr)
        found = np.sort(np.asarray(energies, np.float64).ravel())
        if (n_bad := int((~np.isfinite(found)).sum())) or not len(found):
            raise InputError(
                f"scorer {self.name!r}: items to calibrate on must have finite energies, {n_bad} of {len(found)} do not"
            )
        self.threshold, self.acceptance = conformal_threshold(found, tpr)
        self.calibration = found if len(found) <= MOST_KEPT else np.quantile(found, np.linspace(0, 1, MOST_KEPT))
        return self.threshold

    def quantiles(self, energies: ArrayLike) -> NDArray[np.float64] | None:
        """(N,) share of the calibration items with a lower energy, in [0, 1]; None where their energies are not known."""
        if self.calibration is None:
            return None
        return np.searchsorted(self.calibration, np.asarray(energies)) / len(self.calibration)

    def is_outlier(self, inputs: Inputs) -> NDArray[np.bool_]:
        """(N,) True if the energy is above the threshold, or NaN."""
        if self.threshold is None:
            raise InputError(f"scorer {self.name!r} has no threshold; calibrate it on held-out items first")
        return ~(self.score(inputs) <= self.threshold)

    def save(self, folder: Path | str) -> Path:
        """Write ``scorer.json`` and ``scorer.safetensors`` to a folder, which appears complete or not at all."""
        self._check_fitted()
        with replaced_folder(Path(folder), SETTINGS_FILE, "a scorer") as scratch:
            self.write(scratch)
        return Path(folder)

    def write(self, folder: Path) -> None:
        """Write both files into an existing folder."""
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

    # Implementation -----------------------------------------------------------------------------------------------
    def options(self) -> dict[str, object]:
        """The settings it was created with."""
        return {option: getattr(self, option) for option in option_parameters(type(self))}

    def parts(self) -> dict[str, "Scorer"]:
        """Scorers that this one consists of, by the prefix of their tensors' names."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The fitted state."""
        found = {name: getattr(self, name) for name in self.state}
        for prefix, part in self.parts().items():
            inside = part.tensors() | {"width": torch.tensor(part.width)}
            found |= {f"{prefix}.{name}": tensor for name, tensor in inside.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the fitted state from what :meth:`tensors` returned."""
        for name in self.state:
            setattr(self, name, tensors[name])
        for prefix, part in self.parts().items():
            inside = tensors_below(prefix, tensors)
            part.restore(inside)
            part.width = int(inside["width"]) if "width" in inside else self.width  # missing in older files

    def _fit_given(self, given: Mapping[str, Tensor], labels: Tensor | None, classifier: Classifier | None) -> None:
        inputs = given[self.needs[0]]
        if not len(inputs):
            raise InputError("the fit set must have at least one item")
        self._fit(inputs, labels, classifier)
        self.width = _width(inputs)
        for name in self.state:  # fitting is in float64; scoring in the dtype of the inputs
            tensor = getattr(self, name)
            # Contiguous as when saved: a product with a transposed layout differs in the last bits.
            setattr(self, name, tensor.to(inputs.dtype if tensor.is_floating_point() else tensor.dtype).contiguous())

    def _energy_given(self, given: Mapping[str, Tensor]) -> Tensor:
        inputs = given[self.needs[0]]
        if self.width is not None and _width(inputs) != self.width:
            raise InputError(
                f"scorer {self.name!r}: {self.needs[0]} must have the {self.width} dimensions it was fitted on, "
                f"got {_width(inputs)}"
            )
        kept = next((getattr(self, name) for name in self.state if getattr(self, name).is_floating_point()), inputs)
        return self.energy(self.features(inputs.to(kept.dtype)))

    def _energies(self, given: Mapping[str, Tensor]) -> Tensor:
        """(N,) float64, computed in blocks and without a gradient; N at least 1."""
        starts = range(0, len(given[self.needs[0]]), BLOCK)
        with torch.no_grad():
            blocks = [{kind: rows[start : start + BLOCK] for kind, rows in given.items()} for start in starts]
            return torch.cat([self._energy_given(block).double() for block in blocks])

    def _check_fitted(self) -> None:
        if self.width is None:
            raise InputError(f"scorer {self.name!r} is not fitted; call fit first")

    def _checked(self, inputs: Inputs) -> dict[str, Tensor]:
        """The inputs as float tensors by kind; raises InputError if one is missing, misshapen or not finite."""
        by_kind = inputs if isinstance(inputs, Mapping) else {self.needs[0]: inputs}
        if missing := [kind for kind in self.needs if kind not in by_kind]:
            raise InputError(f"scorer {self.name!r} requires {' and '.join(missing)}; pass a dictionary of inputs by name")
        given = {kind: _as_tensor(by_kind[kind], kind, self.name) for kind in self.needs}
        if len({len(rows) for rows in given.values()}) > 1:
            counts = ", ".join(f"{len(rows)} {kind}" for kind, rows in given.items())
            raise InputError(f"scorer {self.name!r}: all inputs must have the same number of items, got {counts}")
        return given


def conformal_threshold(energies: NDArray[np.float64], tpr: float) -> tuple[float, float]:
    """The ``ceil((n + 1) tpr)``-th smallest of n energies, or the largest; and the probability that it guarantees.

    Example:
        >>> conformal_threshold(np.arange(19.0), 0.9), conformal_threshold(np.arange(4.0), 0.9)
        ((17.0, 0.9), (3.0, 0.8))
    """
    found, n_items = np.sort(energies), len(energies)
    acceptance = min(tpr, n_items / (n_items + 1))
    place = math.ceil((n_items + 1) * acceptance - 1e-9)  # not one more by rounding
    return float(found[place - 1]), acceptance


def check_tpr(tpr: float) -> None:
    """Raise InputError unless the share to accept is between 0 and 1."""
    if not isinstance(tpr, float | int) or not 0 < tpr < 1:
        raise InputError(f"tpr must be between 0 and 1, got {tpr!r}")


SCORERS: Registry[Scorer] = Registry(
    "scorer",
    {
        "ash": "sightline.ood.library:ASH",
        "composition": "sightline.ood.composition:Composition",
        "dice": "sightline.ood.library:DICE",
        "energy": "sightline.ood.logits:Energy",
        "fdbd": "sightline.ood.library:FDBD",
        "gen": "sightline.ood.library:GEN",
        "gmm": "sightline.ood.density:GMM",
        "gmm_pooled": "sightline.ood.density:GMMPooled",
        "gmm_std": "sightline.ood.density:GMMStd",
        "heat": "sightline.ood.heat:Heat",
        "kl_matching": "sightline.ood.library:KLMatching",
        "knn": "sightline.ood.density:KNN",
        "lts": "sightline.ood.library:LTS",
        "mahalanobis": "sightline.ood.library:Mahalanobis",
        "maxlogit": "sightline.ood.library:MaxLogit",
        "msp": "sightline.ood.library:MSP",
        "nci": "sightline.ood.library:NCI",
        "nnguide": "sightline.ood.library:NNGuide",
        "pnml": "sightline.ood.library:PNML",
        "react": "sightline.ood.library:ReAct",
        "rmd": "sightline.ood.library:RMD",
        "scale": "sightline.ood.library:SCALE",
        "she": "sightline.ood.library:SHE",
        "soft_knn": "sightline.ood.density:SoftKNN",
        "vim": "sightline.ood.library:ViM",
    },
    "sightline.scorers",
    lambda found: isinstance(found, type) and issubclass(found, Scorer),
    "a class derived from sightline.ood.Scorer",
)


def list_scorers() -> list[str]:
    """The names :func:`create` knows, in alphabetical order.

    Example:
        >>> [name for name in list_scorers() if name.startswith("gmm")]
        ['gmm', 'gmm_pooled', 'gmm_std']
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
    """Create a scorer by name, to be fitted.

    Args:
        name: one of :func:`list_scorers`, or ``package.module:Name``.
        trust: allow importing ``package.module:Name``.
        options: of the scorer; an unknown one raises InputError.

    Example:
        >>> vectors = np.random.default_rng(0).normal([5, 0, 0, 0], 1, (300, 4))
        >>> scorer = create("gmm").fit(vectors[:200])
        >>> threshold = scorer.calibrate(vectors[200:], tpr=0.95)
        >>> scorer.is_outlier(np.array([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]]))
        array([False,  True])
    """
    return create_named(name, options, trust=trust)


def create_named(name: str, options: Mapping[str, object], *, trust: bool = False, **known: object) -> Scorer:
    """The scorer of :meth:`~sightline.registry.Registry.create`, with the name it is loaded by."""
    made = SCORERS.create(name, options, trust=trust, **known)
    made.name = name
    return made


def create_several(several: Several) -> list[Scorer]:
    """Create scorers from names, or from mappings with a name and options."""
    described = [{"name": one} if isinstance(one, str) else dict(one) for one in several]
    return [create_named(str(options.pop("name", "")), options) for options in described]


def load(folder: Path | str, *, trust: bool = False) -> Scorer:
    """Load the scorer that :meth:`Scorer.save` wrote.

    Args:
        folder: with ``scorer.json`` and ``scorer.safetensors``.
        trust: allow importing a scorer named ``package.module:Name``.
    """
    folder = Path(folder)
    try:
        tensors_file = regular_file(folder / TENSORS_FILE, folder)
        stored = read_json_object(folder / SETTINGS_FILE, folder)
        if stored.get("format") != FORMAT:
            raise InputError(f"its format must be {FORMAT}, found {stored.get('format')!r}")
        described = check_seal(stored, folder / SETTINGS_FILE, tensors_file)
        scorer = create(described["name"], trust=trust, **described["options"])
        scorer.width = described["width"]
        tensors = load_file(tensors_file)
        scorer.restore(tensors)
        scorer.calibration = tensors["calibration"].numpy() if "calibration" in tensors else None
        scorer.threshold, scorer.acceptance = described["threshold"], described["acceptance"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        remedy = "if an earlier version wrote it, fit it again with `sightline ood fit`"
        raise InputError(f"{folder}: cannot be loaded as a scorer: {error}; {remedy}") from error
    return scorer


def tensors_below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix.``, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def _as_tensor(given: ArrayLike | Tensor, kind: str, name: str) -> Tensor:
    try:
        tensor = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError) as error:
        raise InputError(f"scorer {name!r}: {kind} must be numbers of shape {KINDS[kind][0]}: {error}") from error
    if tensor.ndim not in KINDS[kind][1] or 0 in tensor.shape[1:]:
        raise InputError(f"scorer {name!r}: {kind} must have shape {KINDS[kind][0]}, got {tuple(tensor.shape)}")
    if not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    # The sum first: it is fast, and finite only if all values are; it can overflow too, so rows are checked after it.
    if not math.isfinite(tensor.sum().item()) and (bad := ~tensor.isfinite().flatten(1).all(1)).any():
        raise InputError(
            f"{kind} must be finite; NaN or infinity in {int(bad.sum())} rows, the first is {int(bad.nonzero()[0])}"
        )
    return tensor


def _codes(labels: ArrayLike | Tensor | None, n_items: int) -> Tensor | None:
    """(N,) classes as numbers from 0."""
    if labels is None:
        return None
    try:
        array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as error:
        raise InputError(f"labels must have shape (N,) or (N, L): {error}") from error
    array = array[:, 0] if array.ndim == 2 and array.shape[1] else array
    if array.shape != (n_items,):
        raise InputError(f"labels must be one for each of the {n_items} items, got shape {array.shape}")
    if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
        raise InputError(f"labels must not be NaN; that of item {int(np.isnan(array).argmax())} is")
    try:
        return torch.from_numpy(np.unique(array, return_inverse=True)[1].astype(np.int64))
    except TypeError as error:
        raise InputError(f"labels must be all strings or all numbers: {error}") from error


def _width(inputs: Tensor) -> int:
    """D of vectors, logits and tokens, C of feature maps."""
    return inputs.shape[-1] if inputs.ndim < 4 else inputs.shape[1]
