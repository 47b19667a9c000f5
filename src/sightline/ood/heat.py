"""HEAT: prior energies, each corrected by a residual, composed into one."""

from collections.abc import Sequence
from typing import Literal

from sightline.errors import InputError
from sightline.ood.composition import Composed
from sightline.ood.langevin import Langevin
from sightline.ood.plain import PLAIN, Described, create_described
from sightline.ood.residual_energy import ResidualEnergy, ResidualSettings


class Heat(Composed):
    """Prior energies, each with a residual that is trained to tell data from samples of the hybrid.

    ``E_k = prior_k / T_k + E_theta_k``; each brought to mean 0 and deviation 1 on the fit set; then composed.

    The thesis that introduced it trains on 50,000 vectors with ``temperature=1000, epochs=20, batch_size=1024,
    n_chains=1024, n_steps=20, lr=5e-6``; the defaults are for some thousands of vectors and a minute or two. The network
    sees vectors scaled to a root mean square of 1: unit vectors of many dimensions would leave it nearly constant.
    Fitted on float32, its weights are rounded to bfloat16 once they are trained: a query then reads half as much.

    Args:
        priors: names, or mappings with a name and options: ``["gmm"]`` is HEAT-GMM, ``["energy"]`` HEAT-EL,
            ``["gmm", "gmm_std", "energy"]`` what the papers call HEAT.
        beta: of the composition; 0 for the mean.
        weight: lambda, of the squared residual; the residual is at most ``1 / (2 weight)`` from 0.
        temperature: T of each prior; ``auto`` brings its deviation on the fit set to ``spread / (2 weight)``.
        spread: of the prior against the residual's bound, with ``auto``.
        hidden: units of each of the network's 5 hidden layers.
        tie_hidden: 4 of these share their weights, as in the authors' released code.
        epochs: passes over the fit set; the learning rate falls to a tenth after half of them.
        batch_size: real items a step.
        lr: learning rate of Adam.
        n_chains: samples a step.
        negatives: ``chain+init`` takes chains and their starts as samples, ``chain`` the chains alone.
        start: where chains begin: ``prior``; ``gmm``, one fitted for it; ``normal``; ``data``; ``buffer``, earlier
            chains; ``auto`` is ``prior`` where it can draw, else ``gmm``.
        n_steps: of each chain.
        step: size of a chain's steps, first and last.
        noise: of a chain's steps, first and last.
        decay: of both: ``linear`` or ``quadratic``.
        coupled: noise that belongs to the step: chains then sample the hybrid itself, not a sharpened form.
        input_noise: deviation of noise on what the network learns from.
        seed: of weights, batches and chains.
    """

    name = "heat"

    def __init__(
        self,
        priors: Sequence[Described] = ("gmm",),
        beta: float = 0.0,
        weight: float = 10.0,
        temperature: float | Literal["auto"] = "auto",
        spread: float = 2.0,
        hidden: int = 1024,
        tie_hidden: bool = False,
        epochs: int = 10,
        batch_size: int = 256,
        lr: float = 1e-4,
        n_chains: int = 128,
        negatives: str = "chain+init",
        start: str = "auto",
        n_steps: int = 10,
        step: Sequence[float] = (1e-4, 1e-5),
        noise: Sequence[float] = (5e-3, 5e-4),
        decay: str = "linear",
        coupled: bool = False,
        input_noise: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.priors, self.weight, self.temperature, self.spread = priors, weight, temperature, spread
        self.hidden, self.tie_hidden, self.epochs, self.batch_size, self.lr = hidden, tie_hidden, epochs, batch_size, lr
        self.n_chains, self.negatives, self.start, self.n_steps = n_chains, negatives, start, n_steps
        self.step, self.noise, self.decay, self.coupled = step, noise, decay, coupled
        self.input_noise, self.seed = input_noise, seed
        settings = ResidualSettings(
            weight=weight,
            temperature=temperature,
            spread=spread,
            hidden=hidden,
            tie_hidden=tie_hidden,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            n_chains=n_chains,
            negatives=negatives,
            start=start,
            input_noise=input_noise,
            langevin=Langevin(n_steps, _pair(step, "step"), _pair(noise, "noise"), decay, coupled),
            seed=seed,
        )
        made = create_described(PLAIN, priors, "priors")
        self._take([ResidualEnergy(prior, settings) for prior in made], beta)


class Composition(Composed):
    """Any scorers, each brought to mean 0 and deviation 1 on the fit set, composed.

    Args:
        scorers: names, or mappings with a name and options.
        beta: 0 for the mean, -1 for the mixture of their densities, infinite for the furthest out.
    """

    name = "composition"

    def __init__(self, scorers: Sequence[Described] = ("gmm", "energy"), beta: float = 0.0) -> None:
        self.scorers = scorers
        self._take(create_described(PLAIN | {Heat.name: Heat}, scorers, "scorers"), beta)


def _pair(ends: Sequence[float], what: str) -> tuple[float, float]:
    numbers = isinstance(ends, Sequence) and all(isinstance(end, int | float) for end in ends)
    if not numbers or len(ends) != 2:
        raise InputError(f"{what} is {ends!r}; two numbers are needed: at the first step and towards the last")
    return ends[0], ends[1]
