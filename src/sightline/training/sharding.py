"""Weights, gradients and optimizer state shared out among processes (FSDP), for encoders too large for one of them.

Each process keeps its part of every large layer; a layer's weights are together only while it computes. What is saved is
whole, as one process would save it, so a run can go on with another number of processes or without sharding.
"""

import math
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

UNIT_WEIGHTS = 1 << 20  # a layer with at least so many is put together by itself


def shard(encoder: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The encoder with its weights shared out, in place: a layer of :data:`UNIT_WEIGHTS` at a time, then the rest."""
    flat = mesh if mesh.ndim == 1 else mesh["data_parallel"]
    for weight in encoder.parameters():
        weight.data = weight.data.contiguous()  # channels last cannot be cut
    for layer in _units(encoder):
        fully_shard(layer, mesh=flat)
    fully_shard(encoder, mesh=flat)
    return encoder


def _units(module: nn.Module) -> list[nn.Module]:
    """The smallest layers below the module that have many weights, and hold no other such layer."""
    units = []
    for child in module.children():
        if sum(weight.numel() for weight in child.parameters()) >= UNIT_WEIGHTS:
            below = _units(child)
            is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)  # never called itself
            units += below or ([] if is_list else [child])
    return units


def whole(tensor: Any) -> Any:
    """A tensor put together from its parts, by all processes at once; anything else as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's state as if it were not sharded; all processes call it."""
    return {name: whole(tensor) for name, tensor in module.state_dict().items()}


def whole_optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state as if nothing were sharded; all processes call it."""
    stored = optimizer.state_dict()
    state = {number: {key: whole(value) for key, value in kept.items()} for number, kept in stored["state"].items()}
    return {"state": state, "param_groups": stored["param_groups"]}


def load_optimizer_state(optimizer: Optimizer, stored: dict[str, Any]) -> None:
    """Give an optimizer the state that :func:`whole_optimizer_state` returned, each process its part."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def part(number: int, value: Any) -> Any:
        parameter = parameters[number]
        if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
            return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        return value

    state = {
        number: {key: part(int(number), value) for key, value in kept.items()} for number, kept in stored["state"].items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": stored["param_groups"]})


def clip_gradients(fabric: Fabric, encoder: nn.Module, optimizer: Optimizer, limit: float) -> Tensor:
    """Scale the gradients of all the optimizer's weights down to a norm of ``limit`` together.

    Returns:
        () the norm before.
    """
    found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    parts = [gradient.to_local() for gradient in found if isinstance(gradient, DTensor)]
    if not parts:
        return cast(Tensor, fabric.clip_gradients(encoder, optimizer, max_norm=limit, error_if_nonfinite=False))
    alike = [gradient for gradient in found if not isinstance(gradient, DTensor)]  # on every process
    squares = torch.stack([part.square().sum() for part in parts]).sum()
    dist.all_reduce(squares)
    norm: Tensor = torch.stack([squares, *(gradient.square().sum() for gradient in alike)]).sum().sqrt()
    if not math.isinf(limit):
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        for gradient in [*parts, *alike]:
            gradient.mul_(factor)
    return norm
