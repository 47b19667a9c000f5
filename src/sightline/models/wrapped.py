"""Any module as a backbone: its output as one tensor, and how another process makes the module again."""

import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from sightline.data.transforms import Preprocessing
from sightline.errors import InputError, names
from sightline.registry import IMPORT_PATH, Registry

OUTPUTS = ("image_embeds", "last_hidden_state", "pooler_output")  # of Hugging Face models; the first one present is taken
FACTORIES: Registry[nn.Module] = Registry(
    "module factory", {}, "sightline.modules", wanted="a function or class that makes a torch.nn.Module"
)


class ModuleSource(BaseModel):
    """How to make a wrapped module again; its weights are saved beside this.

    Attributes:
        factory: import path ``package.module:name`` of a function or class; None where there is none, so that the encoder
            cannot be saved.
        options: arguments of the factory by name; of a Hugging Face model its configuration.
        output: which part of the module's output holds the features; None for the usual one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    factory: str | None = None
    options: dict[str, Any] = {}
    output: str | None = None

    def create(self, trust: bool = False) -> nn.Module:
        """A new module of random weights; ``trust`` imports the factory, otherwise it is refused."""
        if self.factory is None:
            raise InputError("the wrapped module has no factory")
        maker: Any = FACTORIES.find(self.factory, trust=trust)
        try:
            with torch.random.fork_rng():
                # Hugging Face models take one argument, their configuration.
                is_configured = inspect.isclass(maker) and hasattr(maker, "config_class")
                made = maker(maker.config_class.from_dict(self.options)) if is_configured else maker(**self.options)
        except Exception as error:  # the user's own code can raise anything
            raise InputError(f"{self.factory}: cannot make the module: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise InputError(f"{self.factory}: must return a torch.nn.Module, got {type(made).__name__}")
        return made


class WrappedBackbone(nn.Module):
    """A module with the interface of a timm model: ``forward_features`` and ``num_features``.

    Args:
        module: from (B, 3, side, side) images to (B, C) vectors, (B, C, H, W) maps or (B, T, C) tokens.
        side: of the images.
        output: attribute or key of what the module returns; None for a tensor, or the first of :data:`OUTPUTS`.

    Attributes:
        num_features: C.
        num_prefix_tokens: tokens before those of the image, whose number is a square.
        n_axes: 2 for vectors, 4 for maps, 3 for tokens.
    """

    def __init__(self, module: nn.Module, side: int, output: str | None = None) -> None:
        super().__init__()
        self.module, self.output = module, output
        was_training = module.training
        device = next((weight.device for weight in module.parameters()), None)
        try:
            with torch.no_grad():
                features = self.eval().forward_features(torch.zeros(1, 3, side, side, device=device))
        except InputError:
            raise
        except Exception as error:  # the user's own code can raise anything
            raise InputError(f"the module fails on images of {side} x {side} pixels: {error}") from error
        finally:
            self.train(was_training)
        self.n_axes = features.ndim
        self.num_features = features.shape[2 if features.ndim == 3 else 1]
        self.num_prefix_tokens = features.shape[1] - math.isqrt(features.shape[1]) ** 2 if features.ndim == 3 else 0
        self.cls_token = self.num_prefix_tokens > 0  # where timm's models keep theirs

    def forward_features(self, images: Tensor) -> Tensor:
        """The module's features; anything but a tensor of vectors, maps or tokens is refused."""
        found = self.module(images)
        if not isinstance(found, Tensor) or self.output is not None:
            found = self._part(found)
        # By shape: len would fix the number of images in an export.
        if not isinstance(found, Tensor) or found.ndim not in (2, 3, 4) or found.shape[0] != images.shape[0]:
            shown = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the module must return a tensor (B, C), (B, C, H, W) or (B, T, C) for {len(images)} images, got {shown}; "
                "name a part of its output with output="
            )
        return found

    def _part(self, found: Any) -> Any:
        keys = (self.output,) if self.output is not None else OUTPUTS
        parts = [found.get(key) if isinstance(found, Mapping) else getattr(found, key, None) for key in keys]
        if self.output is not None and parts[0] is None:
            there = [str(key) for key in found] if isinstance(found, Mapping) else [type(found).__name__]
            raise InputError(f"the module's output has no part {self.output!r}; found {names(there)}")
        return next((part for part in parts if part is not None), found)


def module_source(module: nn.Module, factory: str | Callable[..., nn.Module] | None, output: str | None) -> ModuleSource:
    """How to make the module again: by the factory given, else by its class and, of a Hugging Face model, configuration.

    A factory that is given must make a module with the same weights by name and shape; a class that does not is no factory.
    """
    given, options = factory is not None, {}
    if factory is None:
        config = getattr(module, "config", None)
        if hasattr(type(module), "config_class") and config is not None:
            values = json.loads(json.dumps(config.to_dict(), default=str))
            options = {key: value for key, value in values.items() if key != "_name_or_path"}  # a path of this machine
        factory = type(module)
    path = factory if isinstance(factory, str) else f"{factory.__module__}:{factory.__qualname__}"
    fault = _path_fault(path)
    if fault is None:
        source = ModuleSource(factory=path, options=options, output=output)
        try:
            fault = _fit_fault(module, source.create(trust=True))
        except InputError as error:
            fault = str(error)
        if fault is None:
            return source
    if given:
        raise InputError(f"factory {path!r}: {fault}")
    return ModuleSource(output=output)


def _path_fault(path: str) -> str | None:
    if path.startswith("__main__:"):
        return "another process cannot import what this script or notebook defines: move it to a .py file"
    return None if IMPORT_PATH.fullmatch(path) else "must be an import path such as 'my_package.my_module:make_model'"


def _fit_fault(module: nn.Module, made: nn.Module) -> str | None:
    own, other = ({name: tuple(tensor.shape) for name, tensor in one.state_dict().items()} for one in (module, made))
    differ = [name for name in own | other if own.get(name) != other.get(name)]
    return f"makes a module with other weights, such as {names(differ[:3])}" if differ else None


def as_preprocessing(given: object) -> Preprocessing:
    """The preprocessing of a side in pixels, or of a Hugging Face image processor; or one that is given as it is.

    Images are always resized with bilinear interpolation.

    Example:
        >>> as_preprocessing(32).resize
        37
    """
    if isinstance(given, Preprocessing):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return Preprocessing(crop=given, resize=round(given * 8 / 7))
    if not hasattr(given, "image_mean") or not hasattr(given, "size"):
        raise InputError(
            "preprocessing must be a sl.Preprocessing, the side of images in pixels, or a Hugging Face image processor, "
            f"got {type(given).__name__}"
        )
    is_cropped = bool(getattr(given, "do_center_crop", False))
    resize = _side(given.size)
    crop = _side(getattr(given, "crop_size", None) or given.size) if is_cropped else resize
    is_normalised = getattr(given, "do_normalize", True)
    mean, std = (given.image_mean, given.image_std) if is_normalised else ((0.0,) * 3, (1.0,) * 3)  # type: ignore[attr-defined]
    stretch = not is_cropped and "shortest_edge" not in dict(given.size)
    return Preprocessing(crop=crop, resize=resize, mean=tuple(mean), std=tuple(std), stretch=stretch)


def _side(size: Any) -> int:
    """The side that an image processor's ``{"height": ..., "width": ...}`` or ``{"shortest_edge": ...}`` names."""
    return int(size if isinstance(size, int) else next(iter(dict(size).values())))
