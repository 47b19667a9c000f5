"""Training in several processes: gathering with gradients, and sharded weights (FSDP); with one process, no-ops.

With sharding, each process keeps its part of every large layer, and a layer is whole only while it computes. Checkpoints
hold whole weights, as one process would save them, so a run can be resumed with another number of processes or without
sharding.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from sightline.errors import InputError


def n_processes() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """The number (rank) of this process, from 0."""
    return dist.get_rank() if n_processes() > 1 else 0


def own_part(batch: list[int]) -> list[int]:
    """This process's items of a batch: consecutive parts of equal size; a remainder is not used.

    Example:
        >>> own_part([3, 1, 2])
        [3, 1, 2]
    """
    size = len(batch) // n_processes()
    if not size:
        raise InputError(f"a batch of {len(batch)} is too small for {n_processes()} processes; use fewer processes")
    return batch[process_number() * size : (process_number() + 1) * size]


class _Gathered(torch.autograd.Function):
    """Everybody's rows, of which one's own carry a gradient.

    Every process computes the same loss of the whole batch, so the gradient of its own rows is complete as it is. It is
    multiplied by the number of processes, because the strategies for several of them take the mean of the gradients of the
    weights where the sum would be right.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n_rows = len(rows)
        return gathered(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        start = process_number() * ctx.n_rows
        return gradients[0][start : start + ctx.n_rows] * n_processes()


def gathered(rows: Tensor) -> Tensor:
    """(n B, ...) the (B, ...) rows of all processes, in their order; without a gradient."""
    if n_processes() == 1:
        return rows.detach()
    parts = [torch.empty_like(rows) for _ in range(n_processes())]
    dist.all_gather(parts, rows.detach().contiguous())
    return torch.cat(parts)


def gathered_with_gradient(rows: Tensor) -> Tensor:
    """(n B, D) the (B, D) embeddings of all processes; the gradient of the weights is that of one process with them all.

    For losses that every process computes on the whole batch.
    """
    if n_processes() == 1:
        return rows
    result: Tensor = _Gathered.apply(rows)  # type: ignore[no-untyped-call]
    return result


def gathered_objects(item: Any) -> list[Any]:
    """The items of all processes, in their order."""
    if n_processes() == 1:
        return [item]
    items: list[Any] = [None] * n_processes()
    dist.all_gather_object(items, item)
    return items


def any_process(flag: bool) -> bool:
    """True in all processes if it is True in any."""
    return any(gathered_objects(flag))


UNIT_WEIGHTS = 1 << 20  # a layer with at least this many weights is gathered on its own


def shard(encoder: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the weights of the encoder in place: each layer of :data:`UNIT_WEIGHTS` or more, then the rest."""
    flat = mesh if mesh.ndim == 1 else mesh["data_parallel"]
    for weight in encoder.parameters():
        weight.data = weight.data.contiguous()  # channels-last weights cannot be sharded
    for layer in _units(encoder):
        fully_shard(layer, mesh=flat)
    fully_shard(encoder, mesh=flat)
    return encoder


def _units(module: nn.Module) -> list[nn.Module]:
    """The smallest layers of the module with many weights, which contain no other such layer."""
    units = []
    for child in module.children():
        if sum(weight.numel() for weight in child.parameters()) >= UNIT_WEIGHTS:
            below = _units(child)
            is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)  # never called itself
            units += below or ([] if is_list else [child])
    return units


def whole(tensor: Any) -> Any:
    """The whole of a sharded tensor, gathered by all processes together; anything else unchanged."""
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
    """Load the state that :func:`whole_optimizer_state` returned; each process takes its part."""
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
    sharded = [gradient for gradient in found if isinstance(gradient, DTensor)]
    if not sharded:
        return cast(Tensor, fabric.clip_gradients(encoder, optimizer, max_norm=limit, error_if_nonfinite=False))
    alike = [gradient for gradient in found if not isinstance(gradient, DTensor)]  # on every process
    norm: Tensor = torch.stack([whole(get_total_norm(gradients)) for gradients in (sharded, alike)]).norm()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in found:
        gradient.mul_(factor)
    return norm
