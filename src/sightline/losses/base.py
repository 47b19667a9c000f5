"""What losses are built from: the ranking core, checks of options, SupRank's settings, and the module around a function.

A loss on pairs is written once, as a function on :class:`~sightline.ranking.pairs.Pairs`. :func:`on_scores` makes it
public on ``(scores, relevance, mask)``; :class:`PairLoss` makes it a module on ``(embeddings, labels)`` with its options.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from sightline.errors import InputError, choose
from sightline.kernels.row_loops import is_looped
from sightline.ranking import pairs as labels_to_pairs
from sightline.ranking import profile
from sightline.ranking.pairs import GradedSets, Pairs, as_tensor, only_chosen, table_pairs
from sightline.ranking.ranks import SigmoidStep, SupStep
from sightline.ranking.similarity import both_in_full_precision, check_tensor

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, on a CPU run as it is inside ``torch.compile``, with a break in the graph: it reaches into numba."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        # Not a decorator once and for all: that loads the compiler, which takes a second.
        breaks = torch.compiler.is_compiling() and is_looped(args[0])  # type: ignore[arg-type]
        return (torch.compiler.disable(function) if breaks else function)(*args, **options)

    return call


batch_pairs = uncompiled(labels_to_pairs.batch_pairs)
level_counts = uncompiled(labels_to_pairs.level_counts)
rank_loss = uncompiled(profile.rank_loss)
shared_levels = uncompiled(labels_to_pairs.shared_levels)


def flat_rank_loss(pairs: Pairs, step: SupStep | SigmoidStep, objective: profile.Objective) -> Tensor:
    """() mean of an objective over the queries, where an item is relevant or not."""
    flat = pairs.flat
    return rank_loss(pairs.scores, flat, level_counts(flat, 1), step, objective)


@dataclass(frozen=True)
class Preset:
    """What a paper's formula leaves open, or its code does differently: published runs can be repeated either way.

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
    """Pairs of given scores; an item is relevant where its relevance is above 0."""
    return table_pairs(scores, relevance > 0, mask)


def graded_pairs(scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Pairs:
    """Pairs of given scores and the worth of each item, whatever the type of number."""
    return table_pairs(scores, relevance if relevance.is_floating_point() else relevance.double(), mask)


class OnScores(Protocol[P]):
    """A loss called on scores."""

    def __call__(
        self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *args: P.args, **options: P.kwargs
    ) -> Tensor: ...


def on_scores(
    function: Callable[Concatenate[Pairs, P], Tensor],
    to_pairs: Callable[[Tensor, Tensor, Tensor | None], Pairs] = flat_pairs,
) -> OnScores[P]:
    """The function on pairs as one on ``(scores, relevance, mask)``: all above 0 is relevant."""

    @functools.wraps(function)
    def call(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *args: P.args, **options: P.kwargs) -> Tensor:
        check_tensor(scores, "scores")
        relevance = as_tensor(relevance, "relevance", scores.device)
        mask = None if mask is None else as_tensor(mask, "mask", scores.device)
        return function(to_pairs(scores, relevance, mask), *args, **options)

    tables = list(inspect.signature(to_pairs).parameters.values())
    _, *options = inspect.signature(function).parameters.values()
    call.__signature__ = inspect.Signature([*tables, *options], return_annotation=Tensor)  # type: ignore[attr-defined]
    return call


def on_graded_scores(function: Callable[Concatenate[Pairs, P], Tensor]) -> OnScores[P]:
    """The function on pairs as one on ``(scores, relevance, mask)``: relevance is what an item is worth."""
    return on_scores(function, graded_pairs)


class LossBatch(NamedTuple):
    """What a loss is called on, in pytorch-metric-learning's order.

    Attributes:
        embeddings: (B, D).
        labels: what the items are, as in :func:`~sightline.ranking.pairs.batch_pairs`.
        indices_tuple: the pairs or triplets that a miner chose, as in :func:`~sightline.ranking.pairs.only_chosen`; None
            for all pairs.
        ref_emb: (G, D) items to rank instead of the batch; None for the batch.
        ref_labels: what these are.
    """

    embeddings: Tensor
    labels: Tensor | GradedSets
    indices_tuple: Sequence[Tensor] | None
    ref_emb: Tensor | None
    ref_labels: Tensor | None

    @property
    def beside(self) -> dict[str, Any]:
        """The arguments given beside embeddings and labels, by name."""
        return {name: value for name, value in zip(self._fields[2:], self[2:], strict=True) if value is not None}

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise if one of the named arguments was given."""
        if found := [name for name in names if name in self.beside]:
            raise InputError(f"{', '.join(found)}: {why}")

    def in_full_precision(self) -> "LossBatch":
        """With embeddings in float32 at least: the gradients of the terms of a sum meet before they are rounded."""
        embeddings, ref_emb = both_in_full_precision(self.embeddings, self.ref_emb)
        return self._replace(embeddings=embeddings, ref_emb=ref_emb)

    def pairs(self, include_self: bool = False) -> Pairs:
        """Each item as a query, with the list of items that it ranks."""
        found = batch_pairs(self.embeddings, self.labels, self.ref_emb, self.ref_labels, include_self)
        if self.indices_tuple is None:
            return found
        if include_self:
            raise InputError("indices_tuple cannot be used with a preset that keeps a query in its own list")
        return only_chosen(found, self.indices_tuple)


class OnBatches(Protocol):
    """The ``forward`` of a loss."""

    def __call__(
        self,
        loss: Any,
        /,
        embeddings: Tensor,
        labels: object,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: object = None,
    ) -> Tensor: ...


def on_batches(of_batch: Callable[[Any, LossBatch], Tensor]) -> OnBatches:
    """A method on a :class:`LossBatch` as a ``forward`` that is called as those of pytorch-metric-learning are.

    Labels may be tensors, numpy arrays, lists or :class:`~sightline.ranking.pairs.GradedSets`; others are refused here.
    """

    def forward(
        self: Any,
        embeddings: Tensor,
        labels: object,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: object = None,
    ) -> Tensor:
        check_tensor(embeddings, "embeddings")
        if ref_emb is not None:
            check_tensor(ref_emb, "ref_emb")
        own = labels if isinstance(labels, GradedSets) else as_tensor(labels, "labels", embeddings.device)
        others = None if ref_labels is None else as_tensor(ref_labels, "ref_labels", embeddings.device)
        return of_batch(self, LossBatch(embeddings, own, indices_tuple, ref_emb, others))

    return forward


NO_PAIRS = Pairs(torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.int8), 1, 1)


class PairLoss(nn.Module):
    """A function on pairs as a module: each item of a batch queries all the others, or a reference set.

    ``class SupAPLoss(PairLoss, of=sup_ap_loss)`` has the options of that function, which checks them when the loss is made.
    With ``presets=True`` it has an option ``preset`` too, by which a query is in its own list, as in the code that was
    released with ROADMAP. With labels in levels, only the finest counts, unless the loss says otherwise.

    Attributes:
        options: of the function, by name.
        include_self: whether a query is an item of its own list.
    """

    formula: ClassVar[Callable[..., Tensor]]
    formula_options: ClassVar[set[str]]
    pair_options: ClassVar[inspect.Signature]

    def __init_subclass__(cls, of: Callable[..., Tensor], presets: bool = False) -> None:
        super().__init_subclass__()
        cls.formula = staticmethod(inspect.unwrap(of))
        _, *options = inspect.signature(cls.formula).parameters.values()
        cls.formula_options = {option.name for option in options}
        if presets:
            options.append(inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default="paper", annotation=str))
        cls.pair_options = inspect.Signature(options)
        if cls.__init__ is PairLoss.__init__:
            cls.__signature__ = cls.pair_options  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        bound = self.pair_options.bind(*args, **options)
        bound.apply_defaults()
        self.include_self = choose(PRESETS, bound.arguments.get("preset", "paper"), "preset").include_self
        self.options = {name: value for name, value in bound.arguments.items() if name in self.formula_options}
        self.formula(NO_PAIRS, **self.options)  # refuses an option that does not fit

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        return self.of_pairs(batch.pairs(self.include_self))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of given pairs."""
        return self.formula(pairs, **self.options)


def makes_loss(maker: object) -> bool:
    """Whether something imported can make a loss: a class of modules, or a function."""
    return issubclass(maker, nn.Module) if isinstance(maker, type) else callable(maker)


class OutsideLoss(nn.Module):
    """A loss of another package, such as pytorch-metric-learning, called as ours are.

    It gets (B,) labels: the finest of (B, L), unless it has an attribute ``takes_levels`` that is true. It gets
    ``indices_tuple`` and a reference set where its ``forward`` has these arguments.

    Args:
        loss: called on (embeddings, labels).
        name: for messages.
    """

    def __init__(self, loss: object, name: str) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InputError(f"loss {name!r} must be a torch.nn.Module, got {type(loss).__name__}")
        self.loss, self.name = loss, name
        arguments = inspect.signature(loss.forward).parameters
        self.lacks = [argument for argument in ("indices_tuple", "ref_emb", "ref_labels") if argument not in arguments]
        self.takes_references = not {"ref_emb", "ref_labels"} & set(self.lacks)

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        batch.refuse(self.lacks, f"loss {self.name!r} takes no such argument")
        if isinstance(batch.labels, GradedSets):
            raise InputError(f"loss {self.name!r} takes classes, one an item, not items with several codes")
        if (batch.ref_emb is None) != (batch.ref_labels is None):
            raise InputError("ref_emb and ref_labels must be given together")
        labels, beside = self._finest(batch.labels), batch.beside
        if batch.ref_labels is not None:
            beside["ref_labels"] = self._finest(batch.ref_labels)
        return self.loss(batch.embeddings, labels, **beside)  # type: ignore[no-any-return]

    def _finest(self, labels: Tensor) -> Tensor:
        return labels if labels.ndim == 1 or getattr(self.loss, "takes_levels", False) else labels[:, 0]
