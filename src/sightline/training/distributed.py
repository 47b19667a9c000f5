"""Gather across processes with gradients; does nothing on one."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from sightline.errors import InputError


def n_processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if n_processes() > 1 else 0


def own_part(batch: list[int]) -> list[int]:
    """This process's items of a batch that all know: parts of equal size, one after the other; a rest is not used.

    Example:
        >>> own_part([3, 1, 2])
        [3, 1, 2]
    """
    size = len(batch) // n_processes()
    if not size:
        raise InputError(f"a batch of {len(batch)} cannot be shared by {n_processes()} processes")
    return batch[process_number() * size : (process_number() + 1) * size]


class _Gathered(torch.autograd.Function):
    """Everybody's rows, of which one's own carry a gradient.

    Every process computes the same loss of the whole batch, so the gradient of its own rows is complete as it is. It is
    multiplied by the number of processes, because the strategies for several of them take the mean of the gradients of the
    weights, and a sum is needed.
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
    """What each process has, in their order."""
    items: list[Any] = [None] * n_processes()
    if n_processes() == 1:
        return [item]
    dist.all_gather_object(items, item)
    return items


def agreed(wish: bool) -> bool:
    """Does any process wish it? All get the same answer."""
    return wish if n_processes() == 1 else any(gathered_objects(wish))
