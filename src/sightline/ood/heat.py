"""HEAT: prior energies, each with a residual that is kept only where held-out data gain from it, composed into one."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from scipy.stats import t as student
from torch import Tensor, nn

from sightline.errors import InputError, names
from sightline.ood.classifier import Classifier
from sightline.ood.composition import Beta, Composed
from sightline.ood.scorer import Scorer, Seed, Several, create_several, tensors_below
from sightline.progress import tracked

SLOPE = 0.2
WEIGHT_DECAY = 0.01
FEWEST = 100  # items: with fewer, a quarter says nothing
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
CHECKS = 5  # times in the training at which the residual may be taken
JUDGING = 8000  # samples of the prior that a gain is measured with
LANGEVIN = 0.02  # step of chains that replace a sampler, in units of the data's variance
CERTAINTY = 0.95
# Of the thesis, for encoders with feature maps. All components would cost a query four times as much, and there are seldom
# many more images than an encoder has channels.
REDUCED: dict[str, object] = {"n_components": 128, "shrinkage": "auto"}
ALL_PRIORS = ({"name": "gmm_pooled"} | REDUCED, {"name": "gmm_std"} | REDUCED, "energy")
FirstAndLast = Annotated[Sequence[NonNegativeFloat], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class HeatSettings:
    """Settings of :class:`Heat`.

    Attributes:
        priors: names, or mappings with a name and options: ``["gmm"]`` is HEAT-GMM, ``["energy"]`` HEAT-EL,
            ``["gmm", "gmm_std", "energy"]`` what the papers call HEAT.
        beta: of the composition; 0 for the mean.
        trainer: ``nce`` tells data from samples of the prior; ``sgld`` follows the papers, with Langevin chains of the
            hybrid; ``nce+sgld`` refines the first by the second.
        keep: ``auto`` keeps a residual if held-out data gain from it; ``always``.
        n_networks: in the ensemble; each is trained without its own part of the data, which judges it.
        hidden: units of each hidden layer.
        hidden_layers: of each network.
        bound: largest residual, in nats.
        train_steps: at most; held-out data choose how many, and the strength of the residual.
        batch_size: real items per network and step.
        lr: learning rate of Adam.
        temperature: of the prior in the chains of ``sgld``; ``auto`` is 10 times the deviation of its energies, 1 with
            ``nce+sgld``. Lambda of the papers is ``temperature / (2 bound)``.
        chain_steps: of each Langevin chain.
        chain_step: first and last step size of a chain of ``sgld``.
        chain_noise: first and last noise of such a chain.
        seed: random seed of parts, weights, batches and chains.
    """

    priors: Several = ("gmm",)
    beta: Beta = 0.0
    trainer: Literal["nce", "sgld", "nce+sgld"] = "nce"
    keep: Literal["auto", "always"] = "auto"
    n_networks: Annotated[int, Field(ge=2, le=64)] = 4
    hidden: PositiveInt = 128
    hidden_layers: PositiveInt = 3
    bound: PositiveFloat = 10.0
    train_steps: PositiveInt = 1500
    batch_size: PositiveInt = 256
    lr: PositiveFloat = 2e-3
    temperature: PositiveFloat | Literal["auto"] = "auto"
    chain_steps: NonNegativeInt = 10
    chain_step: FirstAndLast = (1e-4, 1e-5)
    chain_noise: FirstAndLast = (5e-3, 5e-4)
    seed: Seed = 0


def langevin_chains(
    energy: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: Sequence[tuple[float, float]],
    generator: torch.Generator,
    project: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The ends of Langevin chains, whose steps are ``z - step * slope + noise * w``.

    They sample ``exp(-2 step / noise^2 * E)``: ``exp(-E)`` where ``noise^2`` is twice the step, a sharpened density with
    the papers' steps.

    Args:
        energy: (N, D) to (N,), with a gradient.
        start: (N, D).
        steps: size and noise of each.
        generator: random generator of the noise, on the CPU.
        project: maps features back to where data can be, after every step.

    Returns:
        (N, D) without a gradient.
    """
    state = start.detach()
    for step, noise in steps:
        with torch.enable_grad():
            state.requires_grad_()
            (slope,) = torch.autograd.grad(energy(state).sum(), state)
        drawn = torch.randn(state.shape, generator=generator, dtype=state.dtype).to(state.device)
        state = state.detach() - step * slope + noise * drawn
        state = state if project is None else project(state)
    return state.detach()


class Networks(nn.Module):
    """K networks from D features to one bounded number, computed together; they start as 0 everywhere.

    Args:
        widths: D, then those of the hidden layers, then 1.
        n_networks: K.
        bound: of what they return.
        seed: random seed of the weights.
    """

    def __init__(self, widths: Sequence[int], n_networks: int, bound: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.bound = bound
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise(widths):
            for kept, rows in ((self.weights, before), (self.biases, 1)):
                drawn = 2 * torch.rand(n_networks, rows, after, generator=generator) - 1
                kept.append(nn.Parameter(drawn / before**0.5))
        with torch.no_grad():
            self.weights[-1].zero_()
            self.biases[-1].zero_()

    def forward(self, features: Tensor, which: slice = slice(None)) -> Tensor:
        """(K, N) of (N, D) features, or of (K, N, D): to each network its own."""
        chosen = [(weight[which], bias[which]) for weight, bias in zip(self.weights, self.biases, strict=True)]
        features = features.expand(len(chosen[0][0]), -1, -1)
        for place, (weight, bias) in enumerate(chosen):
            features = torch.baddbmm(bias, features, weight)  # one call: of a single query, calls cost as much as products
            if place + 1 < len(self.weights):
                features = F.leaky_relu(features, SLOPE)
        return self.bound * torch.tanh(features.squeeze(2) / self.bound)


def density_gain(data: Tensor, samples: Tensor) -> Tensor:
    """What a log density ratio f adds to the log-density of data: the bound ``E_data[f] - c - E_prior[exp(f - c)] + 1``.

    The gain is ``E_data[f] - log E_prior[exp f]``. Its plain estimate is too high by about half the variance of the mean of
    ``exp f``, over its square. This bound equals it for the best c, and its estimate has no bias, because c comes from
    one half of the samples and the mean from the other; then the other way round.

    Args:
        data: (K, N) of f on held-out data.
        samples: (K, M) of f on samples of the prior.

    Returns:
        (K,) in nats.

    Example:
        >>> density_gain(torch.zeros(1, 5), torch.zeros(1, 8))
        tensor([0.])
    """
    halves = samples[:, 0::2], samples[:, 1::2]
    normalisers = [half.logsumexp(1) - math.log(half.shape[1]) for half in halves]
    costs = [c + (half - c[:, None]).exp().mean(1) for c, half in zip(normalisers, halves[::-1], strict=True)]
    return data.mean(1) - (costs[0] + costs[1]) / 2 + 1


class _Part:
    """All data but one network's own part: the prior fitted on it, and what was held out."""

    def __init__(
        self,
        member: "ResidualEnergy",
        inputs: Tensor,
        labels: Tensor | None,
        classifier: Classifier | None,
        own: Tensor,
    ) -> None:
        self.prior, self.chains = copy.deepcopy(member.prior), member.sampling
        self.prior.keeps_features = True
        codes = None if labels is None else labels[~own].unique(return_inverse=True)[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about few items: the prior of all data says so
            self.prior._fit_given({member.needs[0]: inputs[~own]}, codes, classifier)
        features = self.prior.features(inputs)
        self.data, self.held_out = features[~own], features[own]
        self.project = _projection(self.data)

    def rows(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, D) of the data, at random."""
        return self.data[torch.randint(len(self.data), (n,), generator=generator).to(self.data.device)]

    def samples(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, D) of the prior; ends of short chains from the data if it cannot sample."""
        drawn = self.prior.sample(n, generator)
        if drawn is not None:
            return self.project(drawn.to(self.data))
        step = LANGEVIN * float(self.data.var(0).mean())
        return langevin_chains(
            self.prior.energy, self.rows(n, generator), [(step, (2 * step) ** 0.5)] * self.chains, generator, self.project
        )


class ResidualEnergy(Scorer):
    """A differentiable prior energy, less a strength times the mean of networks that estimate a log density ratio.

    Attributes:
        gain: what held-out data gain in log-density, in nats.
        gain_error: one standard error of it.
        strength: factor of the residual; 0 if it was dropped.
    """

    state: ClassVar[tuple[str, ...]] = ("strength", "scale", "gain", "gain_error", "steps_taken")

    def __init__(self, prior: Scorer, settings: HeatSettings) -> None:
        if not prior.differentiable:
            raise InputError(f"a prior must be differentiable, {prior.name!r} is not")
        self.prior, self.settings, self.needs = prior, settings, prior.needs
        self.sampling = settings.chain_steps

    def features(self, inputs: Tensor) -> Tensor:
        return self.prior.features(inputs)

    def energy(self, features: Tensor) -> Tensor:
        energy = self.prior.energy(features)
        return energy - self.strength * self.log_ratio(features).to(energy) if self.strength else energy

    def log_ratio(self, features: Tensor) -> Tensor:
        """(N,) the mean of the networks: the log of the density of data over that of the prior, in nats."""
        ratios: Tensor = self.networks((self.scale * features).float())
        return ratios.mean(0)

    @property
    def notes(self) -> list[str]:
        """Whether the residual was kept, and why."""
        gain = f"held-out gain {float(self.gain):.3f} +- {float(self.gain_error):.3f} nats"
        if self.gain.isnan():
            return [f"{self.prior.name}: no residual, fewer than {FEWEST} items to judge it by"]
        if not self.strength:
            return [f"{self.prior.name}: residual dropped, {gain}; the prior is used alone"]
        return [f"{self.prior.name}: residual kept at {float(self.strength):g} after {int(self.steps_taken)} steps, {gain}"]

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        settings = self.settings
        self.prior._fit_given({self.needs[0]: inputs}, labels, classifier)
        energies = self.prior._energies({self.needs[0]: inputs})
        deviation = float(energies.std(correction=0))
        if not deviation > 1e-12 * float(energies.abs().max()):
            raise InputError(f"the energies of prior {self.prior.name!r} must differ on the fit set, all are equal")
        data = self.prior.features(inputs)
        # Scale the networks' input: on unit vectors of many dimensions it would be nearly constant.
        self.scale = data.square().mean().rsqrt()
        self.strength, self.gain, self.gain_error = (torch.tensor(value) for value in (0.0, math.nan, math.nan))
        self.steps_taken = torch.tensor(0)
        if len(inputs) < FEWEST:
            return
        generator = torch.Generator().manual_seed(settings.seed)
        place = torch.randperm(len(inputs), generator=generator).to(inputs.device) % settings.n_networks
        parts = [_Part(self, inputs, labels, classifier, place == own) for own in range(settings.n_networks)]
        widths = [data.shape[1], *[settings.hidden] * settings.hidden_layers, 1]
        self.networks = Networks(widths, settings.n_networks, settings.bound, settings.seed).to(inputs.device)
        hot = deviation * 10 if settings.temperature == "auto" else settings.temperature
        with torch.enable_grad():
            self._train(parts, generator, hot)
        self.networks.requires_grad_(False)

    def _train(self, parts: list["_Part"], generator: torch.Generator, hot: float) -> None:
        """Train all networks; take them where held-out data gain most, and measure the gain on other held-out data."""
        settings = self.settings
        judge = _Judge(self, parts, generator)
        optimizer = torch.optim.AdamW(self.networks.parameters(), settings.lr, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.train_steps)
        refine_from = {"nce": settings.train_steps, "sgld": 0}.get(settings.trainer, settings.train_steps * 3 // 4)
        temperature = 1.0 if settings.trainer == "nce+sgld" and settings.temperature == "auto" else hot
        every = max(1, settings.train_steps // CHECKS)
        for step in tracked(range(settings.train_steps), "Fitting HEAT", settings.train_steps, self.shows_progress):
            real = self._scaled([part.rows(settings.batch_size, generator) for part in parts])
            first = [part.samples(settings.batch_size, generator) for part in parts]
            if step < refine_from:
                loss = contrastive_loss(self.networks(real), self.networks(self._scaled(first)))
            else:
                last = [self._chain(k, part, first[k], temperature, generator) for k, part in enumerate(parts)]
                both = torch.cat([self._scaled(last), self._scaled(first)], 1)
                loss = residual_loss(
                    -self.networks(real) / temperature,
                    -self.networks(both) / temperature,
                    temperature / (2 * settings.bound),
                )
            if not loss.isfinite():
                raise InputError(f"the residual of prior {self.prior.name!r} diverged; lower lr ({settings.lr})")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if (step + 1) % every == 0:
                judge.look(step + 1)
        judge.decide()

    def _scaled(self, features: list[Tensor]) -> Tensor:
        return (self.scale * torch.stack(features)).float()

    def _chain(self, k: int, part: "_Part", start: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        """The ends of chains of the k-th hybrid."""
        settings = self.settings

        def energy(features: Tensor) -> Tensor:
            ratio: Tensor = self.networks((self.scale * features).float(), slice(k, k + 1))[0]
            return (part.prior.energy(features) - ratio.to(features)) / temperature

        def decayed(ends: Sequence[float], place: int) -> float:
            return ends[1] + (ends[0] - ends[1]) * (1 - place / settings.chain_steps)

        steps = [
            (decayed(settings.chain_step, place), decayed(settings.chain_noise, place))
            for place in range(settings.chain_steps)
        ]
        return langevin_chains(energy, start, steps, generator, part.project)

    def parts(self) -> dict[str, Scorer]:
        return {"prior": self.prior}

    def tensors(self) -> dict[str, Tensor]:
        kept = self.networks.state_dict() if self.strength else {}
        return super().tensors() | {f"network.{name}": tensor for name, tensor in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        if self.strength:
            weights = tensors_below("network", tensors)
            widths = [weights["weights.0"].shape[1], *[self.settings.hidden] * self.settings.hidden_layers, 1]
            self.networks = Networks(widths, len(weights["weights.0"]), self.settings.bound, 0)
            self.networks.load_state_dict(weights)
            self.networks.requires_grad_(False)


class _Judge:
    """Chooses steps and strength by one half of each network's held-out data, and measures the gain on the other half."""

    def __init__(self, member: ResidualEnergy, parts: list[_Part], generator: torch.Generator) -> None:
        self.member, self.generator = member, generator
        fewest = min(len(part.held_out) for part in parts)
        self.data = member._scaled([part.held_out[:fewest] for part in parts])
        self.samples = member._scaled([part.samples(JUDGING, generator) for part in parts])
        self.best, self.found = -math.inf, member.gain

    @torch.no_grad()
    def look(self, steps: int) -> None:
        """Take the networks as they are if they are the best so far."""
        member = self.member
        data, samples = member.networks(self.data), member.networks(self.samples)
        for strength in STRENGTHS:
            chosen, judged = (
                density_gain(strength * data[:, half::2], strength * samples[:, half::2]).double() for half in (0, 1)
            )
            low = float(chosen.mean() - _error(chosen))  # not the mean: a few samples can make up most of a gain
            if low > self.best:
                self.best, self.found = low, judged
                member.strength, member.steps_taken = torch.tensor(strength), torch.tensor(steps)
                self.weights = copy.deepcopy(member.networks.state_dict())

    def decide(self) -> None:
        """Keep the best networks if the gain exceeds its error; else drop them."""
        member = self.member
        member.networks.load_state_dict(self.weights)
        member.gain, member.gain_error = self.found.mean(), _error(self.found)
        least = student.ppf(CERTAINTY, len(self.found) - 1) * member.gain_error
        if member.settings.keep == "auto" and not member.gain > least:
            member.strength = torch.tensor(0.0)


def _error(gains: Tensor) -> Tensor:
    """() one standard error of the mean over the networks."""
    error: Tensor = gains.std() / len(gains) ** 0.5
    return error


def contrastive_loss(real: Tensor, samples: Tensor) -> Tensor:
    """Noise-contrastive estimation: logistic loss of telling data from as many samples of the prior, added over networks.

    Its minimum is the log density ratio.

    Example:
        >>> contrastive_loss(torch.zeros(1, 3), torch.zeros(1, 3)) / math.log(2)
        tensor(2.)
    """
    return F.softplus(-real).mean(1).sum() + F.softplus(samples).mean(1).sum()


def residual_loss(real: Tensor, generated: Tensor, weight: float) -> Tensor:
    """The papers' loss: ``mean(real) - mean(generated) + weight * (mean(real^2) + mean(generated^2))``.

    For samples of density p_gen and data of density p, its minimum is ``(p_gen - p) / (2 weight (p_gen + p))``, which is
    bounded by ``1 / (2 weight)``.

    Args:
        real: (K, N) residuals of data; losses are added over K networks.
        generated: (K, M) residuals of samples.
        weight: of the squares.

    Example:
        >>> residual_loss(torch.tensor([[0.2, -0.1, 0.3]]), torch.tensor([[0.5, 0.1, -0.2, 0.4]]), 10.0)
        tensor(1.5500)
    """
    squares = real.square().mean(1) + generated.square().mean(1)
    return (real.mean(1) - generated.mean(1) + weight * squares).sum()


def _projection(data: Tensor) -> Callable[[Tensor], Tensor]:
    """A map back to where the data is: no negative values if it has none, length 1 if it is normalised."""
    rectify = bool((data >= 0).all())
    unit = bool((data.norm(dim=1) - 1).abs().max() < 1e-3)

    def project(features: Tensor) -> Tensor:
        features = features.relu() if rectify else features
        return F.normalize(features, dim=1) if unit else features

    return project


class Heat(Composed):
    """Prior energies, each with a residual that is kept only where held-out data gain from it, composed.

    ``E_k = prior_k - strength_k * f_k``, f_k the mean of networks that estimate the log density ratio of data to the prior;
    each standardised to mean 0 and deviation 1 on the fit set; then composed. ``notes`` says which residuals were kept.

    The networks get vectors scaled to a root mean square of 1: on unit vectors of many dimensions they would be nearly
    constant. The thesis trains on 50,000 vectors with ``trainer="sgld", temperature=1000, bound=50, hidden=1024,
    hidden_layers=5, train_steps=980, batch_size=1024, chain_steps=20, lr=5e-6``.

    Options are those of :class:`HeatSettings`.
    """

    __signature__ = inspect.signature(HeatSettings)  # for the checks of create() and for help

    def __init__(self, *args: Any, **options: Any) -> None:
        self.settings = HeatSettings(*args, **options)
        priors = create_several(self.settings.priors)
        if several := [prior.name for prior in priors if isinstance(prior, Composed)]:
            raise InputError(f"a prior must not be a composition, got {names(several)}")
        super().__init__([ResidualEnergy(prior, self.settings) for prior in priors], self.settings.beta)

    def options(self) -> dict[str, object]:
        """The settings it was created with."""
        return asdict(self.settings)
