"""Several energies composed into one."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sightline.errors import InputError, names
from sightline.ood.classifier import Classifier
from sightline.ood.scorer import Scorer, Several, create_several

Beta = Annotated[float, Field(ge=-math.inf)]  # any number, also infinite
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
    if math.isnan(beta):
        raise InputError("beta must not be NaN")
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


class Composed(Scorer):
    """Members, each standardised to mean 0 and deviation 1 on the fit set, then :func:`composed`."""

    state: ClassVar[tuple[str, ...]] = ("means", "deviations")

    def __init__(self, members: Sequence[Scorer], beta: float) -> None:
        self.members, self.beta = list(members), beta
        self.needs = tuple(dict.fromkeys(kind for member in members for kind in member.needs))

    def energy(self, features: Tensor) -> Tensor:
        """(N,) of (N, K) energies of the members."""
        return composed((features - self.means) / self.deviations, self.beta)

    def parts(self) -> dict[str, Scorer]:
        return {str(place): member for place, member in enumerate(self.members)}

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        """Members fit themselves; see ``_fit_given``."""

    def _fit_given(self, given: Mapping[str, Tensor], labels: Tensor | None, classifier: Classifier | None) -> None:
        for member in self.members:
            member.shows_progress = self.shows_progress
            member._fit_given(given, labels, None if member.needs == ("logits",) else classifier)
        energies = torch.stack([member._energies(given) for member in self.members], 1)  # (N, K)
        self.means, self.deviations = energies.mean(0), energies.std(0, correction=0)
        usable = self.deviations > 1e-12 * energies.abs().amax(0)  # False also where an energy is not finite
        if called := [member.name for member, is_usable in zip(self.members, usable, strict=True) if not is_usable]:
            raise InputError(
                f"scorer {names(called)} cannot be standardised: its energies on the fit set are all equal, or not finite"
            )
        self.width = self.members[0].width

    def _energy_given(self, given: Mapping[str, Tensor]) -> Tensor:
        return self.energy(torch.stack([member._energy_given(given).double() for member in self.members], 1))


class Composition(Composed):
    """Any scorers, each standardised to mean 0 and deviation 1 on the fit set, composed.

    Args:
        scorers: names, or mappings with a name and options.
        beta: 0 for the mean, -1 for the mixture of their densities, infinite for the maximum.
    """

    def __init__(self, scorers: Several = ("gmm", "energy"), beta: Beta = 0.0) -> None:
        super().__init__(create_several(scorers), beta)
        self.scorers = scorers
