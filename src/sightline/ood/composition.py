"""Several energies as one."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import InputError, names
from sightline.ood.classifier import Classifier
from sightline.ood.scorer import BLOCK, Described, Scorer, create_described

NEAR_MEAN = 1e-4  # of |beta| times the spread: below it the mean and its first correction are exact to 1e-9 of the spread


def composed(energies: Tensor, beta: float) -> Tensor:
    """``(1/beta) (log sum_k exp(beta E_k) - log K)`` of each row: the mean at 0, the largest at infinity.

    It never falls as beta grows, and lies between the smallest and the largest. For a fixed beta it ranks as the papers'
    ``(1/beta) log sum_k exp(beta E_k)``, which grows without limit as beta tends to 0.

    Args:
        energies: (N, K).
        beta: any number, also infinite.

    Returns:
        (N,) of the energies' type.

    Example:
        >>> composed(torch.tensor([[1.0, 2.0, 4.0]]), 0.0)
        tensor([2.3333])
    """
    check_beta(beta)
    if math.isinf(beta):
        return energies.amax(1) if beta > 0 else energies.amin(1)
    mean = energies.mean(1)
    if beta == 0:
        return mean
    about = energies - mean[:, None]
    low, high = about.amin(1), about.amax(1)
    near = mean + beta / 2 * about.square().mean(1)
    far = mean + ((beta * about).logsumexp(1) - math.log(energies.shape[1])) / beta
    found = torch.where(abs(beta) * (high - low) < NEAR_MEAN, near, far)
    return found.clamp(mean + low, mean + high)


def check_beta(beta: float) -> None:
    """Refuse what is no number."""
    if math.isnan(beta):
        raise InputError("beta is not a number")


class Composed(Scorer):
    """Members, each brought to mean 0 and deviation 1 on the fit set, then :func:`composed`."""

    state: ClassVar[tuple[str, ...]] = ("means", "deviations")
    means: Tensor  # (K,) of each energy on the fit set
    deviations: Tensor

    def _take(self, members: Sequence[Scorer], beta: float) -> None:
        check_beta(beta)  # before minutes of fitting
        self.members, self.beta = list(members), beta
        self.needs = tuple(dict.fromkeys(kind for member in members for kind in member.needs))

    def energy(self, features: Tensor) -> Tensor:
        """(N,) of (N, K) energies of the members."""
        return composed((features - self.means) / self.deviations, self.beta)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Members fit themselves; see ``_fit_given``."""

    def _fit_given(self, given: dict[str, Tensor], labels: Tensor | None, classifier: Classifier | None) -> None:
        for member in self.members:
            member.shows_progress = self.shows_progress
            member._fit_given(
                {kind: given[kind] for kind in member.needs}, labels, None if member.needs == ("logits",) else classifier
            )
        n_items = len(next(iter(given.values())))
        blocks = range(0, n_items, BLOCK)
        with torch.no_grad():
            energies = torch.cat(
                [self._member_energies({k: v[at : at + BLOCK] for k, v in given.items()}) for at in blocks]
            )
        if not (finite := energies.isfinite().all(0)).all():
            called = [member.name for member, is_finite in zip(self.members, finite, strict=True) if not is_finite]
            raise InputError(f"scorer {names(called)} gives items of the fit set energies that are not finite")
        self.means, self.deviations = energies.mean(0), energies.std(0, correction=0)
        constant = self.deviations <= 1e-12 * energies.abs().amax(0)
        if constant.any():
            called = [member.name for member, is_constant in zip(self.members, constant, strict=True) if is_constant]
            raise InputError(
                f"scorer {names(called)} gives all items of the fit set one energy: it cannot be brought to scale"
            )
        self.width = self.members[0].width

    def _energy_given(self, given: dict[str, Tensor]) -> Tensor:
        return self.energy(self._member_energies(given))

    def _member_energies(self, given: dict[str, Tensor]) -> Tensor:
        """(N, K) float64."""
        parts = [member._energy_given({kind: given[kind] for kind in member.needs}) for member in self.members]
        return torch.stack([part.double() for part in parts], 1)

    def tensors(self) -> dict[str, Tensor]:
        own = super().tensors()
        for place, member in enumerate(self.members):
            own |= {f"{place}.{name}": tensor for name, tensor in member.tensors().items()}
            own[f"{place}.width"] = torch.tensor(member.width)
        return own

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        if missing := [name for place in range(len(self.members)) if (name := f"{place}.width") not in tensors]:
            raise InputError(f"scorer {self.name!r}: no tensor {names(missing)}")
        for place, member in enumerate(self.members):
            prefix = f"{place}."
            member.restore({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
            member.width = int(tensors[f"{place}.width"])


class Composition(Composed):
    """Any scorers, each brought to mean 0 and deviation 1 on the fit set, composed.

    Args:
        scorers: names, or mappings with a name and options.
        beta: 0 for the mean, -1 for the mixture of their densities, infinite for the furthest out.
    """

    name = "composition"

    def __init__(self, scorers: Sequence[Described] = ("gmm", "energy"), beta: float = 0.0) -> None:
        self.scorers = scorers
        self._take(create_described(scorers, "scorers"), beta)
