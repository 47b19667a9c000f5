"""Stochastic gradient Langevin dynamics: samples of an energy by noisy descent."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import InputError, choose

DECAYS = {"linear": 1, "quadratic": 2}


def scheduled(first: float, last: float, place: int, n_steps: int, decay: str = "linear") -> float:
    """A value that falls from ``first`` towards ``last``: ``(first - last) (1 - place / n_steps)^p + last``, p = 1 or 2.

    Example:
        >>> round(scheduled(1e-4, 1e-5, 10, 20, "quadratic"), 9)
        3.25e-05
    """
    return (first - last) * (1 - place / n_steps) ** choose(DECAYS, decay, "decay") + last


@dataclass(frozen=True)
class Langevin:
    """How chains move.

    Attributes:
        n_steps: of each chain; 0 leaves the start as it is.
        step: at the first step and towards the last one.
        noise: likewise; not used where both are coupled.
        decay: ``linear`` or ``quadratic``.
        coupled: ``z - step/2 * slope + sqrt(step) * w``, which samples ``exp(-E)``; otherwise ``z - step * slope + noise
            * w``, which samples ``exp(-2 step / noise^2 * E)``: a sharpened density, as the papers use.
    """

    n_steps: int = 20
    step: tuple[float, float] = (1e-4, 1e-5)
    noise: tuple[float, float] = (5e-3, 5e-4)
    decay: str = "linear"
    coupled: bool = False

    def __post_init__(self) -> None:
        choose(DECAYS, self.decay, "decay")
        if self.n_steps < 0 or not all(end >= 0 for end in (*self.step, *self.noise)):
            raise InputError(f"n_steps is {self.n_steps}, step {self.step} and noise {self.noise}; 0 or more is needed")

    def chains(
        self,
        energy: Callable[[Tensor], Tensor],
        start: Tensor,
        generator: torch.Generator,
        project: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Where chains end.

        Args:
            energy: (N, D) to (N,), with a gradient.
            start: (N, D).
            generator: of the noise, on the CPU.
            project: back to where features can lie, after every step.

        Returns:
            (N, D) without a gradient.
        """
        state = start.detach()
        for place in range(self.n_steps):
            with torch.enable_grad():
                state.requires_grad_()
                (slope,) = torch.autograd.grad(energy(state).sum(), state)
            step = scheduled(*self.step, place, self.n_steps, self.decay)
            noise = scheduled(*self.noise, place, self.n_steps, self.decay)
            if self.coupled:
                step, noise = step / 2, step**0.5
            drawn = torch.randn(state.shape, generator=generator, dtype=state.dtype).to(state.device)
            state = state.detach() - step * slope + noise * drawn
            state = state if project is None else project(state)
        return state.detach()
