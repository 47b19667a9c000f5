"""A backbone cut in two between its stages: the lower part runs once over the images, the upper part learns."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.models.backbones import feature_map
from sightline.models.encoder import Encoder, state_hash
from sightline.models.quick_backward import quick_backward

CONTAINERS = ("blocks", "stages", "layers")  # what timm calls the list of a model's stages or blocks
NUMBERED = re.compile(r"(layer|stage|s)_?\d+")  # or each by itself, as ResNet's layer1 to layer4
UPPER_SHARE = 0.3  # of the stages, where nobody says how many


def stage_names(backbone: nn.Module) -> list[str]:
    """The names of a backbone's stages, or of a transformer's blocks, in the order in which they run.

    Example:
        >>> from sightline.models.backbones import TinyBackbone
        >>> stage_names(TinyBackbone())
        ['layers.0', 'layers.1', 'layers.2']
    """
    for container in CONTAINERS:
        if isinstance(stages := getattr(backbone, container, None), nn.Sequential | nn.ModuleList) and len(stages) > 1:
            return [f"{container}.{name}" for name, _ in stages.named_children()]
    return [name for name, _ in backbone.named_children() if NUMBERED.fullmatch(name)]


class _Reached(Exception):  # noqa: N818  (no error: it ends a forward pass that has done enough)
    """Carries what the first upper stage is given."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.features = features


class _Passed(nn.Module):
    """A layer of the lower part, which has run already."""

    def forward(self, features: Any, *_: Any, **__: Any) -> Any:
        return features


class _Source(nn.Module):
    """Stands for the last lower stage and puts out what it once did."""

    features: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.features


class CutBackbone:
    """A backbone's lower and upper part; the upper one shares its weights with the backbone.

    Works on any model with ``forward_features`` and a list of stages or blocks. What runs before the first stage (a stem, a
    patch embedding) belongs to the lower part, what runs after the last one to the upper part.

    Args:
        backbone: left as it is.
        n_upper: stages of the upper part; None for about a third of them.
        side: of the square images that it sees.
        pool: what is done with the feature map: it may have weights of the backbone, too.

    Attributes:
        n_upper: stages of the upper part.
        upper_weights: names of the backbone's weights that belong to it.

    Example:
        >>> from sightline.models.backbones import TinyBackbone
        >>> backbone, images = TinyBackbone().eval(), torch.rand(2, 3, 32, 32)
        >>> cut = CutBackbone(backbone, n_upper=1, side=32)
        >>> bool((cut.upper(cut.lower(images)) == backbone.forward_features(images)).all())
        True
    """

    def __init__(
        self, backbone: nn.Module, n_upper: int | None, side: int, pool: Callable[[Tensor], Tensor] = lambda maps: maps
    ) -> None:
        names = stage_names(backbone)
        if len(names) < 2:
            raise InputError(
                "the backbone has no list of stages or blocks and cannot be cut: use adaptation 'full' or 'frozen'"
            )
        self.n_upper = max(1, round(UPPER_SHARE * len(names))) if n_upper is None else n_upper
        if not 1 <= self.n_upper < len(names):
            raise InputError(
                f"upper:{n_upper}: the backbone has {len(names)} stages, so 1 to {len(names) - 1} of them can be trained"
            )
        self._backbone, self._side = backbone, side
        self._first = backbone.get_submodule(names[-self.n_upper])
        self._lower_stages = names[: -self.n_upper]
        was_training = backbone.training
        backbone.eval()
        with torch.no_grad():
            device = next(backbone.parameters()).device
            images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
            features, whole = self.lower(images), feature_map(backbone, images)
            for passed in (self._children_below(images), []):  # a patch embedding must run: its shape is looked at
                self._upper, self._source = self._shared_upper(passed)
                self._needs_images = not passed
                if self._gives(features, whole):
                    break
            else:
                raise InputError(
                    "the backbone cannot be cut: its upper stages read more than the lower ones' output; use 'full'"
                )
        self.upper_weights = self._reached_weights(features, pool)
        backbone.train(was_training)

    def _reached_weights(self, features: Tensor, pool: Callable[[Tensor], Tensor]) -> list[str]:
        """The names of the backbone's weights that the upper part's output depends on."""
        weights = dict(self._backbone.named_parameters())
        learned = [weight.requires_grad for weight in weights.values()]
        self._backbone.requires_grad_()
        with torch.enable_grad():
            gradients = torch.autograd.grad(pool(self.upper(features)).sum(), list(weights.values()), allow_unused=True)
        for weight, learns in zip(weights.values(), learned, strict=True):
            weight.requires_grad_(learns)
        return [name for name, gradient in zip(weights, gradients, strict=True) if gradient is not None]

    def lower(self, images: Tensor) -> Tensor:
        """What the first upper stage is given of (B, 3, H, W) images."""

        def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            raise _Reached(inputs[0])

        hook = self._first.register_forward_pre_hook(stop)
        try:
            feature_map(self._backbone, images)
        except _Reached as reached:
            if isinstance(reached.features, Tensor):
                return reached.features
        finally:
            hook.remove()
        raise InputError("the backbone cannot be cut: its stages do not pass one tensor to the next; use adaptation 'full'")

    def upper(self, features: Tensor) -> Tensor:
        """The backbone's feature map, from what :meth:`lower` gave."""
        side = self._side if self._needs_images else 1
        self._source.features = features
        try:
            return feature_map(self._upper, features.new_zeros(len(features), 3, side, side))
        finally:
            del self._source.features

    def _children_below(self, images: Tensor) -> list[str]:
        """The direct children that have run by the time the first stage is entered, apart from the stages."""
        ran: list[str] = []
        children = {name: child for name, child in self._backbone.named_children() if name not in self._containers}
        hooks = [child.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, child in children.items()]
        try:
            self.lower(images)
        finally:
            for hook in hooks:
                hook.remove()
        return ran

    @property
    def _containers(self) -> set[str]:
        return {name.split(".")[0] for name in self._lower_stages}

    def _shared_upper(self, passed: Sequence[str]) -> tuple[nn.Module, _Source]:
        """The backbone without its lower part: other lists of layers, the same layers in them."""
        upper, source = _shallow_copy(self._backbone), _Source()
        for name in self._containers:
            if name not in self._lower_stages:
                upper._modules[name] = _shallow_copy(getattr(upper, name))
        stand_ins = {name: _Passed() for name in [*passed, *self._lower_stages[:-1]]} | {self._lower_stages[-1]: source}
        for name, stand_in in stand_ins.items():
            parent, _, child = name.rpartition(".")
            upper.get_submodule(parent)._modules[child] = stand_in
        return upper, source

    def _gives(self, features: Tensor, whole: Tensor) -> bool:
        try:
            return torch.equal(self.upper(features), whole)
        except (RuntimeError, ValueError, AssertionError, TypeError):
            return False


class UpperEncoder(nn.Module):
    """The part of an encoder that learns, on features of the part that rests.

    The encoder is changed in place: only the upper weights, pooling and head learn, or the head alone.

    Args:
        encoder: whole.
        adaptation: ``upper``, ``upper:N`` for N stages, or ``frozen`` for the head alone.
    """

    def __init__(self, encoder: Encoder, adaptation: str) -> None:
        super().__init__()
        self.encoder = encoder
        _, _, n_upper = adaptation.partition(":")
        side = encoder.settings.preprocessing.crop
        stages = int(n_upper) if n_upper else None
        # Every pooling reaches the same weights of the backbone, but for one that is a part of it.
        self.cut = None if adaptation == "frozen" else CutBackbone(encoder.backbone, stages, side, encoder.pooling)
        encoder.learn_only(() if self.cut is None else self.cut.upper_weights, pooling=self.cut is not None)

    @property
    def network(self) -> str:
        """A name for what the resting part computes: a hash of its weights, and where it ends."""
        state = self.encoder.state_dict()
        if self.cut is None:
            return f"{state_hash({name: tensor for name, tensor in state.items() if not name.startswith('head.')})} pooled"
        layers = {f"backbone.{name.rpartition('.')[0]}" for name in self.cut.upper_weights}  # with their statistics
        resting = {
            name: tensor
            for name, tensor in state.items()
            if name.startswith("backbone.") and name.rpartition(".")[0] not in layers
        }
        return f"{state_hash(resting)} {self.cut.n_upper}"

    def resting(self, images: Tensor) -> Tensor:
        """(B, ...) features of (B, 3, H, W) normalised images, as in evaluation; they have no gradient."""
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                return self.encoder.pooled(images) if self.cut is None else self.cut.lower(images)
        finally:
            self.train(was_training)

    def forward(self, features: Tensor) -> Tensor:
        """(B, D) unit vectors."""
        if self.cut is not None:
            if features.ndim == 4:
                features = features.contiguous(memory_format=torch.channels_last)
            with quick_backward(features):
                features = self.encoder.pooling(self.cut.upper(features))
        embeddings: Tensor = self.encoder.head(features)
        return embeddings


def _shallow_copy(module: nn.Module) -> nn.Module:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
