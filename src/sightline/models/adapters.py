"""Large backbones that learn by a few added weights (LoRA, https://arxiv.org/abs/2106.09685), by way of peft."""

import torch
from torch import nn

from sightline.errors import InputError


def add_lora(backbone: nn.Module, rank: int = 8, seed: int = 0) -> None:
    """Put a trainable product of two thin matrices beside each linear layer; the backbone's own weights rest.

    At first the products are 0, so nothing that the backbone computes changes. Convolutions are taken where there is no
    linear layer; those in groups are left as they are.

    Args:
        backbone: changed in place.
        rank: the thin side of the matrices.
        seed: of the random one of the two.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError(f"LoRA needs peft ({error}): pip install 'sightline[adapters]'") from error
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
    """Add what was learnt to the backbone's own weights and put its own layers back, in place; peft is needed no more."""
    for name, layer in adapters(backbone).items():
        layer.merge(safe_merge=True)  # type: ignore[operator]
        backbone.set_submodule(name, layer.get_base_layer())  # type: ignore[operator]
