"""HEAT: prior energies, each corrected by a network trained against samples of the hybrid, and composed into one."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from sightline.errors import InputError, names
from sightline.ood.classifier import Classifier, linear_layers
from sightline.ood.composition import Beta, Composed
from sightline.ood.scorer import Scorer, Seed, Several, create, create_several, tensors_below
from sightline.progress import tracked

N_HIDDEN = 5  # hidden layers: 6 linear layers with the last, which computes the energy
SLOPE = 0.2
BUFFER_SIZE, RESTARTS = 40_000, 0.1
FirstAndLast = Annotated[Sequence[NonNegativeFloat], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class HeatSettings:
    """Settings of :class:`Heat`.

    Attributes:
        priors: names, or mappings with a name and options: ``["gmm"]`` is HEAT-GMM, ``["energy"]`` HEAT-EL,
            ``["gmm", "gmm_std", "energy"]`` what the papers call HEAT.
        beta: of the composition; 0 for the mean.
        weight: lambda, the weight of the squared residual; it bounds the residual by ``1 / (2 weight)``.
        temperature: T of each prior; ``auto`` scales its deviation on the fit set to ``spread / (2 weight)``.
        spread: of the prior relative to the bound of the residual, with ``auto``.
        hidden: units of each of the network's 5 hidden layers.
        tie_hidden: share the weights of 4 of these layers, as the authors' released code does.
        epochs: passes over the fit set; the learning rate falls to a tenth after half of them.
        batch_size: real items per step.
        lr: learning rate of Adam.
        n_chains: Langevin chains per step.
        negatives: ``chain+init`` uses the ends and the starts of chains as samples, ``chain`` only the ends.
        start: where chains start: ``prior``, a sample of the prior; ``gmm``, of a GMM fitted for it; ``normal``; ``data``;
            ``buffer``, the ends of earlier chains; ``auto`` is ``prior`` if the prior can sample, else ``gmm``.
        n_steps: of each chain.
        step: first and last step size of a chain.
        noise: first and last noise of a chain.
        decay: of both: ``linear`` or ``quadratic``.
        coupled: derive the noise from the step size: chains then sample the hybrid itself, not a sharpened density.
        input_noise: standard deviation of the noise on the network's training inputs.
        seed: random seed of weights, batches and chains.
    """

    priors: Several = ("gmm",)
    beta: Beta = 0.0
    weight: PositiveFloat = 10.0
    temperature: PositiveFloat | Literal["auto"] = "auto"
    spread: PositiveFloat = 2.0
    hidden: PositiveInt = 1024
    tie_hidden: bool = False
    epochs: NonNegativeInt = 10
    batch_size: PositiveInt = 256
    lr: PositiveFloat = 1e-4
    n_chains: PositiveInt = 128
    negatives: Literal["chain+init", "chain"] = "chain+init"
    start: Literal["auto", "prior", "gmm", "normal", "data", "buffer"] = "auto"
    n_steps: NonNegativeInt = 10
    step: FirstAndLast = (1e-4, 1e-5)
    noise: FirstAndLast = (5e-3, 5e-4)
    decay: Literal["linear", "quadratic"] = "linear"
    coupled: bool = False
    input_noise: NonNegativeFloat = 1e-4
    seed: Seed = 0


def decayed(ends: Sequence[float], place: int, n_steps: int, decay: str = "linear") -> float:
    """A value that decays from first to last: ``(first - last) (1 - place / n_steps)^p + last``, p = 1 or 2.

    Example:
        >>> round(decayed((1e-4, 1e-5), 10, 20, "quadratic"), 9)
        3.25e-05
    """
    first, last = ends
    return (first - last) * (1 - place / n_steps) ** (2 if decay == "quadratic" else 1) + last


def langevin_chains(
    energy: Callable[[Tensor], Tensor],
    start: Tensor,
    settings: HeatSettings,
    generator: torch.Generator,
    project: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The ends of Langevin chains.

    A step is ``z - step * slope + noise * w``, which samples ``exp(-2 step / noise^2 * E)``: a sharpened density, as in the
    papers. If coupled, it is ``z - step/2 * slope + sqrt(step) * w``, which samples ``exp(-E)``.

    Args:
        energy: (N, D) to (N,), with a gradient.
        start: (N, D).
        settings: ``n_steps`` (0 returns the start), ``step``, ``noise``, ``decay`` and ``coupled``.
        generator: random generator of the noise, on the CPU.
        project: maps features back to where data can be, after every step.

    Returns:
        (N, D) without a gradient.
    """
    state = start.detach()
    for place in range(settings.n_steps):
        with torch.enable_grad():
            state.requires_grad_()
            (slope,) = torch.autograd.grad(energy(state).sum(), state)
        step = decayed(settings.step, place, settings.n_steps, settings.decay)
        noise = decayed(settings.noise, place, settings.n_steps, settings.decay)
        if settings.coupled:
            step, noise = step / 2, step**0.5
        drawn = torch.randn(state.shape, generator=generator, dtype=state.dtype).to(state.device)
        state = state.detach() - step * slope + noise * drawn
        state = state if project is None else project(state)
    return state.detach()


def energy_network(dim: int, hidden: int, tie_hidden: bool, seed: int) -> nn.Sequential:
    """A network from D to one number in 6 linear layers; it starts as 0 everywhere, so a hybrid starts as its prior.

    Args:
        dim: D.
        hidden: units of each hidden layer.
        tie_hidden: use one layer for the four from ``hidden`` to ``hidden``, as the authors' released code does.
        seed: random seed of the weights.

    Example:
        >>> sum(weight.numel() for weight in energy_network(512, 1024, False, 0).parameters())
        4724737
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        between: list[nn.Module] = [nn.Linear(before, after) for before, after in pairwise([dim, *[hidden] * N_HIDDEN])]
        last = nn.Linear(hidden, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    if tie_hidden:
        between[2:] = [between[1]] * (N_HIDDEN - 2)
    layers = [layer for linear in between for layer in (linear, nn.LeakyReLU(SLOPE))]
    return nn.Sequential(*layers, last)


def residual_loss(real: Tensor, generated: Tensor, weight: float) -> Tensor:
    """``mean(real) - mean(generated) + weight * (mean(real^2) + mean(generated^2))``.

    For samples of density p_gen and data of density p, its minimum is ``(p_gen - p) / (2 weight (p_gen + p))``, which is
    bounded by ``1 / (2 weight)``.

    Args:
        real: (N,) residuals of data.
        generated: (M,) residuals of samples.
        weight: of the squares.

    Example:
        >>> residual_loss(torch.tensor([0.2, -0.1, 0.3]), torch.tensor([0.5, 0.1, -0.2, 0.4]), 10.0)
        tensor(1.5500)
    """
    return real.mean() - generated.mean() + weight * (real.square().mean() + generated.square().mean())


class ResidualEnergy(Scorer):
    """``E_prior / T + E_theta``: a differentiable scorer, and the network that corrects it.

    Args:
        prior: not fitted yet.
        settings: of the training.
    """

    state: ClassVar[tuple[str, ...]] = ("temperature", "scale")

    def __init__(self, prior: Scorer, settings: HeatSettings) -> None:
        if not prior.differentiable:
            raise InputError(f"a prior must be differentiable, {prior.name!r} is not")
        self.prior, self.settings, self.needs = prior, settings, prior.needs

    def features(self, inputs: Tensor) -> Tensor:
        return self.prior.features(inputs)

    def energy(self, features: Tensor) -> Tensor:
        return self.prior.energy(features) / self.temperature + self.residual(features)

    def residual(self, features: Tensor) -> Tensor:
        """(N,) the network's correction."""
        *between, last = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        hidden = linear_layers(
            self.scale * features, [layer.weight for layer in between], [layer.bias for layer in between], SLOPE
        )
        return linear_layers(hidden, [last.weight], [last.bias]).squeeze(1)

    def _fit(self, inputs: Tensor, labels: Tensor | None, classifier: Classifier | None) -> None:
        settings = self.settings
        self.prior._fit_given({self.needs[0]: inputs}, labels, classifier)
        data = self.prior.features(inputs)
        energies = self.prior._energies({self.needs[0]: inputs})
        deviation = float(energies.std(correction=0))
        if not deviation > 1e-12 * float(energies.abs().max()):
            raise InputError(f"the energies of prior {self.prior.name!r} must differ on the fit set, all are equal")
        # The residual is bounded by 1 / (2 weight): scale the prior to that order.
        fitting = deviation * 2 * settings.weight / settings.spread
        self.temperature = torch.tensor(
            fitting if settings.temperature == "auto" else settings.temperature, dtype=torch.float64
        )
        # Scale the network's input: on unit vectors of many dimensions it would be nearly constant.
        self.scale = data.square().mean().rsqrt()
        self.network = energy_network(data.shape[1], settings.hidden, settings.tie_hidden, settings.seed).to(data)
        self._train(data, labels)
        if data.dtype == torch.float32:  # half the bytes to save, and to read for each query
            self.network.bfloat16()

    def _train(self, data: Tensor, labels: Tensor | None) -> None:
        settings = self.settings
        generator = torch.Generator().manual_seed(settings.seed)
        starts = _Starts(self.prior, data, labels, settings, generator)
        project = _projection(data)
        optimizer = torch.optim.Adam(self.network.parameters(), settings.lr, betas=(0.0, 0.999))
        n_batches = math.ceil(len(data) / settings.batch_size)
        schedule = MultiStepLR(optimizer, [math.ceil(settings.epochs / 2) * n_batches], gamma=0.1)
        batches = (
            data[rows.to(data.device)]
            for _ in range(settings.epochs)
            for rows in torch.randperm(len(data), generator=generator).split(settings.batch_size)
        )
        for real in tracked(batches, "Fitting HEAT", settings.epochs * n_batches, self.shows_progress):
            first = project(starts.draw(settings.n_chains))
            last = langevin_chains(self.energy, first, settings, generator, project)
            starts.keep(last)
            samples = torch.cat([last, first]) if settings.negatives == "chain+init" else last
            both = torch.cat([real, samples])
            noise = torch.randn(both.shape, generator=generator, dtype=both.dtype).to(both.device)
            with torch.enable_grad():
                residuals = self.residual(both + settings.input_noise * noise)
                loss = residual_loss(residuals[: len(real)], residuals[len(real) :], settings.weight)
                if not loss.isfinite():
                    raise InputError(f"the residual of prior {self.prior.name!r} diverged; lower lr ({settings.lr})")
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            schedule.step()
        self.network.requires_grad_(False)

    def parts(self) -> dict[str, Scorer]:
        return {"prior": self.prior}

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        weights = tensors_below("network", tensors)
        hidden, dim = weights["0.weight"].shape
        self.network = energy_network(dim, hidden, self.settings.tie_hidden, 0).to(weights["0.weight"].dtype)
        self.network.load_state_dict(weights)
        self.network.requires_grad_(False)


class _Starts:
    """The starts of Langevin chains."""

    def __init__(
        self, prior: Scorer, data: Tensor, labels: Tensor | None, settings: HeatSettings, generator: torch.Generator
    ) -> None:
        self.kind, self.data, self.generator = settings.start, data, generator
        self.buffer = data[:0]
        self.source = prior
        draws = self.kind in ("auto", "prior", "buffer") and prior.sample(1, generator) is not None
        if self.kind == "prior" and not draws:
            raise InputError(f"start 'prior' requires a prior that can sample, {prior.name!r} cannot; use 'gmm' or 'data'")
        if not draws and self.kind not in ("normal", "data"):
            self.source = create("gmm", normalise=_is_unit(data), seed=settings.seed).fit(data, labels)

    def draw(self, n: int) -> Tensor:
        if self.kind == "normal":
            return torch.randn(n, self.data.shape[1], generator=self.generator, dtype=self.data.dtype).to(self.data.device)
        if self.kind == "data":
            return self._any_of(self.data, n)
        fresh = cast(Tensor, self.source.sample(n, self.generator)).to(self.data)
        if self.kind != "buffer" or 2 * len(self.buffer) < BUFFER_SIZE:
            return fresh
        kept = self._any_of(self.buffer, n)
        restarts = torch.rand(n, 1, generator=self.generator).to(self.data.device) < RESTARTS
        return torch.where(restarts, fresh, kept)

    def _any_of(self, rows: Tensor, n: int) -> Tensor:
        return rows[torch.randint(len(rows), (n,), generator=self.generator).to(rows.device)]

    def keep(self, last: Tensor) -> None:
        if self.kind == "buffer":
            self.buffer = torch.cat([self.buffer, last])[-BUFFER_SIZE:]


def _is_unit(data: Tensor) -> bool:
    return bool((data.norm(dim=1) - 1).abs().max() < 1e-3)


def _projection(data: Tensor) -> Callable[[Tensor], Tensor]:
    """A map back to where the data is: no negative values if it has none, length 1 if it is normalised."""
    rectify = bool((data >= 0).all())
    unit = _is_unit(data)

    def project(features: Tensor) -> Tensor:
        features = features.relu() if rectify else features
        return F.normalize(features, dim=1) if unit else features

    return project


class Heat(Composed):
    """Prior energies, each with a residual trained to separate data from samples of the hybrid.

    ``E_k = prior_k / T_k + E_theta_k``; each standardised to mean 0 and deviation 1 on the fit set; then composed.

    The thesis that introduced it trains on 50,000 vectors with ``temperature=1000, epochs=20, batch_size=1024,
    n_chains=1024, n_steps=20, lr=5e-6``; the defaults are for a few thousand vectors and take a minute or two. The network
    gets vectors scaled to a root mean square of 1: on unit vectors of many dimensions it would be nearly constant. If it is
    fitted on float32, its trained weights are rounded to bfloat16: a query then reads half as much memory.

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
