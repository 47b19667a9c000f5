"""What every loss is made of: the ranking core, checks of options, SupRank's settings, and the module around a function.

A loss on pairs is written once, as a function on :class:`~sightline.ranking.pairs.Pairs`. :func:`on_scores` makes it
public on ``(scores, relevance, mask)``; :class:`PairLoss` makes it a module on ``(embeddings, labels)`` with its options.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.ranking import levels, profile
from sightline.ranking import pairs as labels_to_pairs
from sightline.ranking.pairs import Pairs
from sightline.ranking.ranks import SigmoidStep, SupStep, check_pairs

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as it is inside ``torch.compile``, with a break in the graph: tracing it would reach into numba."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        # Not a decorator once and for all: that loads the compiler, which takes a second.
        chosen = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return chosen(*args, **options)

    return call


batch_pairs = uncompiled(labels_to_pairs.batch_pairs)
level_counts = uncompiled(levels.level_counts)
rank_loss = uncompiled(profile.rank_loss)
shared_levels = uncompiled(levels.shared_levels)


def flat_rank_loss(pairs: Pairs, step: SupStep | SigmoidStep, objective: profile.Objective) -> Tensor:
    """() mean of an objective over the queries, where an item is relevant or not."""
    flat = pairs.flat
    return rank_loss(pairs.scores, flat, level_counts(flat, 1), step, objective)


def check_finite(**values: float) -> None:
    """Refuse a named number that is NaN or infinite."""
    if wrong := [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]:
        raise InputError(f"{', '.join(wrong)}; a finite number is needed")


def check_margin(margin: float) -> None:
    """Refuse a margin that is below 0 or not finite."""
    if not 0 <= margin < math.inf:
        raise InputError(f"margin is {margin}; a finite number of 0 or more is needed")


def check_counts(**values: int) -> None:
    """Refuse a named count that is not a whole number above 0."""
    if wrong := [
        f"{name} is {value!r}"
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < 1
    ]:
        raise InputError(f"{', '.join(wrong)}; a whole number above 0 is needed")


@dataclass(frozen=True)
class Preset:
    """What a paper's formula leaves open or its code does otherwise: published runs can be repeated either way.

    Attributes:
        jump: of :class:`~sightline.ranking.ranks.SupStep`, like ``offset`` and ``strict``.
        offset: value just beyond delta.
        strict: an equal score gets no jump.
        include_self: a query is an item of its own list, of score 1 and relevant.
        reduction: of :func:`~sightline.losses.calibration_loss`.
    """

    jump: float = 0.5
    offset: float | None = None
    strict: bool = False
    include_self: bool = False
    reduction: str = "mean"


PRESETS = {
    "paper": Preset(),
    # SupRank, ROADMAP and HAPPIER as released, on every set but iNaturalist: the step drops by 0.053 at delta.
    "released-code": Preset(offset=1.44, strict=True, include_self=True, reduction="nonzero"),
    # Their iNaturalist configurations: no jump, so no upper bound between 0 and delta.
    "released-code-inaturalist": Preset(jump=0.0, offset=1.0, strict=True, include_self=True, reduction="nonzero"),
}


class SupOptions(TypedDict, total=False):
    """The options of :class:`SupRank`, for losses that hand them on."""

    tau: float
    rho: float
    delta: float | None
    preset: str


@dataclass(frozen=True)
class SupRank:
    """The settings of SupRank, which its losses take as options.

    Attributes:
        tau: width of the sigmoid, in units of the scores.
        rho: slope for an item of less relevance more than ``delta`` above.
        delta: where that slope starts; None for where the sigmoid comes to 0.99.
        preset: ``paper``, ``released-code`` or ``released-code-inaturalist``; only the paper's step gives an upper bound.

    Example:
        >>> SupRank(tau=0.02).step.tau
        0.02
    """

    tau: float = 0.01
    rho: float = 100.0
    delta: float | None = 0.05
    preset: str = "paper"

    @property
    def step(self) -> SupStep:
        """The step of these settings and what the preset adds."""
        chosen = choose(PRESETS, self.preset, "preset")
        return SupStep(self.tau, self.rho, self.delta, chosen.jump, chosen.offset, chosen.strict)


def flat_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Pairs:
    """Scores at hand, with what is relevant: all above 0."""
    scores, mask = check_pairs(scores, relevance, mask)
    return Pairs(scores, levels.flat_levels(relevance > 0, mask), 1, 1)


def graded_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Pairs:
    """Scores at hand, with what each item is worth, whatever the type of number."""
    scores, mask = check_pairs(scores, relevance, mask)
    of_items, worth = levels.graded_levels(relevance, mask)
    return Pairs(scores, of_items, worth.shape[1] - 1, 1, worth)


class OnScores(Protocol[P]):
    """A loss called on scores."""

    def __call__(
        self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *args: P.args, **options: P.kwargs
    ) -> Tensor: ...


def on_scores(function: Callable[Concatenate[Pairs, P], Tensor]) -> OnScores[P]:
    """The function on pairs as one on ``(scores, relevance, mask)``: all above 0 is relevant."""
    return _called_with(flat_pairs, function)


def on_graded_scores(function: Callable[Concatenate[Pairs, P], Tensor]) -> OnScores[P]:
    """The function on pairs as one on ``(scores, relevance, mask)``: relevance is what an item is worth."""
    return _called_with(graded_pairs, function)


def _called_with(
    to_pairs: Callable[[Tensor, Tensor, Tensor | None], Pairs], function: Callable[Concatenate[Pairs, P], Tensor]
) -> OnScores[P]:
    @functools.wraps(function)
    def call(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *args: P.args, **options: P.kwargs) -> Tensor:
        return function(to_pairs(scores, relevance, mask), *args, **options)

    tables = list(inspect.signature(to_pairs).parameters.values())
    _, *options = inspect.signature(function).parameters.values()
    call.__signature__ = inspect.Signature([*tables, *options], return_annotation=Tensor)  # type: ignore[attr-defined]
    return call


def spelled_out(cls: type, options: list[inspect.Parameter]) -> inspect.Signature:
    """The signature of a class; where its constructor hands on options that it does not name, with these in their place."""
    _, *own = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    kinds = {one.kind for one in own}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return inspect.Signature(own)
    named = [one for one in own if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    rest = [one for one in options if one.name not in {other.name for other in named}]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        rest = [one.replace(kind=one.KEYWORD_ONLY) for one in rest]
    return inspect.Signature(sorted([*named, *rest], key=lambda one: one.kind))


NO_PAIRS = Pairs(torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.int8), 1, 1)


class PairLoss(nn.Module):
    """A function on pairs as a module: each item of a batch queries all the others, or a reference set.

    ``class SupAPLoss(PairLoss, of=sup_ap_loss)`` has the options of that function, which checks them when the loss is made.
    Of labels in levels the finest counts, unless the loss says otherwise.

    Attributes:
        options: of the function, by name.
        include_self: whether a query is an item of its own list.
    """

    formula: ClassVar[Callable[..., Tensor]]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, of: Callable[..., Tensor]) -> None:
        super().__init_subclass__()
        cls.formula = staticmethod(inspect.unwrap(of))
        _, *options = inspect.signature(cls.formula).parameters.values()
        cls.__signature__ = spelled_out(cls, options)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        _, *parameters = inspect.signature(self.formula).parameters.values()
        bound = inspect.Signature(parameters).bind(*args, **options)
        bound.apply_defaults()
        self.options = dict(bound.arguments)
        self.formula(NO_PAIRS, **self.options)  # refuses an option that does not fit
        self.include_self = PRESETS[self.options.get("preset", "paper")].include_self

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        return self.of_pairs(batch_pairs(embeddings, labels, ref_emb, ref_labels, self.include_self))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of pairs at hand."""
        return self.formula(pairs, **self.options)


def makes_loss(maker: object) -> bool:
    """Whether something imported can make a loss: a class of modules, or a function."""
    return issubclass(maker, nn.Module) if isinstance(maker, type) else callable(maker)


class OutsideLoss(nn.Module):
    """A loss of another package, such as pytorch-metric-learning, called as ours are.

    It gets (B,) labels: the finest of (B, L), unless it has an attribute ``takes_levels`` that is true; and a reference set
    where its ``forward`` has ``ref_emb`` and ``ref_labels``.

    Args:
        loss: called on (embeddings, labels).
        name: for messages.
    """

    def __init__(self, loss: object, name: str) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InputError(f"loss {name!r} must be a torch.nn.Module, found {type(loss).__name__}")
        self.loss, self.name = loss, name
        self.takes_references = {"ref_emb", "ref_labels"} <= inspect.signature(loss.forward).parameters.keys()

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        references = {}
        if ref_emb is not None and ref_labels is not None:
            if not self.takes_references:
                raise InputError(f"ref_emb, ref_labels: loss {self.name!r} takes no reference set")
            references = {"ref_emb": ref_emb, "ref_labels": self._finest(ref_labels)}
        value: Tensor = self.loss(embeddings, self._finest(labels), **references)
        return value

    def _finest(self, labels: Tensor) -> Tensor:
        return labels if labels.ndim == 1 or getattr(self.loss, "takes_levels", False) else labels[:, 0]
