"""Batches larger than memory with the exact gradient (staged back-propagation); and control of freed memory.

The images pass the encoder in chunks without a graph; the loss of all embeddings gives the gradient of each embedding; the
chunks pass again, each with its graph, and back-propagate that gradient. Both passes see the same pixels and draw the same
random numbers, so the result equals one pass through the same chunks.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.data.dataset import derived_seed
from sightline.errors import InputError
from sightline.files import c_function
from sightline.training.distributed import gathered, gathered_objects, gathered_with_gradient, n_processes, process_number

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of embeddings, labels and ids of the whole batch
MEMORY_SHARE = 0.5  # share of the free memory for the graph of one chunk


class Examples(NamedTuple):
    """A batch: images as loaded; (B,) or (B, L) labels; and (B,) ids of the images.

    The images are (B, 3, H, W), or what ``finished`` of :func:`back_propagate` converts to that.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor


def as_they_are(images: Tensor) -> Tensor:
    """The images, unchanged."""
    return images


def check_chunkable(encoder: nn.Module) -> None:
    """Raise InputError for batch norm that uses batch statistics: in chunks it would compute something else."""
    for name, layer in encoder.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise InputError(
                f"chunk_size: batch norm {name!r} uses the statistics of the batch, which differ in chunks; freeze it with "
                "model.freeze_batch_norm='stats', or set chunk_size=none"
            )


def chunk_bounds(n_items: int, chunk_size: int | None) -> list[tuple[int, int]]:
    """Where each chunk begins and ends.

    Example:
        >>> chunk_bounds(5, 2)
        [(0, 2), (2, 4), (4, 5)]
    """
    size = chunk_size or n_items
    return [(start, min(start + size, n_items)) for start in range(0, n_items, size)]


class _HandedOn(torch.autograd.Function):
    """Zero, with a given gradient; that gradient already contains the loss scale."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return rows.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def back_propagate(
    fabric: Fabric,
    encoder: nn.Module,
    loss: Loss,
    batch: Examples,
    seed: int,
    chunk_size: int | None = None,
    finished: Callable[[Tensor], Tensor] = as_they_are,
) -> Tensor:
    """Back-propagate the loss of a batch that all processes share.

    Args:
        fabric: devices and precision.
        encoder: set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch, by every process.
        batch: this process's part of it.
        seed: random seed; the n-th chunk of the batch uses (seed, n), and the loss uses one seed in all processes.
        chunk_size: images per forward pass; None for one pass.
        finished: converts loaded images to what the encoder takes; deterministic.

    Returns:
        () the loss, without a graph.
    """
    images, all_labels, all_ids = batch.images, gathered(batch.labels), gathered(batch.ids)
    bounds = chunk_bounds(len(images), chunk_size)
    first = process_number() * len(bounds)

    def embed(number: int) -> Tensor:
        start, stop = bounds[number]
        torch.manual_seed(derived_seed(seed, first + number))
        embeddings: Tensor = encoder(finished(images[start:stop]))
        return embeddings

    def loss_of(rows: Tensor) -> Tensor:
        everyone = gathered_with_gradient(rows)
        torch.manual_seed(derived_seed(seed, 0, 1))  # a seed that no chunk has
        return loss(everyone, all_labels, all_ids)

    if chunk_size is None:
        value = loss_of(embed(0))
        fabric.backward(value)
        return value.detach()
    check_chunkable(encoder)
    with torch.no_grad():
        rows = torch.cat([embed(number) for number in range(len(bounds))])
    leaf = rows.requires_grad_()
    value = loss_of(leaf)
    fabric.backward(value)  # to the embeddings and to the parameters of the loss
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if leaf.is_cpu:
        release_freed_memory()  # of the loss: the graph of a chunk needs blocks of other sizes
    for number, (start, stop) in enumerate(bounds):
        not_last = number + 1 < len(bounds) and n_processes() > 1
        with fabric.no_backward_sync(encoder, enabled=not_last):  # type: ignore[arg-type]
            fabric.backward(_HandedOn.apply(embed(number), gradient[start:stop]))  # type: ignore[no-untyped-call]
    return value.detach()


def fitting_chunk_size(encoder: nn.Module, image: Tensor, batch_size: int) -> int:
    """The largest chunk whose graph fits in half of the free memory: a power of two, or the whole batch.

    Several processes take the smallest of their sizes, because the random numbers of a chunk depend on the size.

    Args:
        encoder: on its device, in training mode.
        image: (3, H, W) as in training.
        batch_size: the largest useful size.
    """
    fitting = int(MEMORY_SHARE * _free_bytes(image.device) / bytes_of_graph(encoder, image))
    here = batch_size if fitting >= batch_size else 2 ** int(math.log2(max(1, fitting)))
    smallest: int = min(gathered_objects(here))
    return smallest


def bytes_of_graph(encoder: nn.Module, image: Tensor) -> float:
    """Bytes of the graph of one more image, at least 1; the encoder is on its device, in training mode."""
    pair = torch.stack([image, image])
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    weights = sum(weight.numel() * weight.element_size() for weight in encoder.parameters())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(pair)
    return max(1.0, (sum(kept.values()) - weights) / 2)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as <malloc.h> of glibc numbers them


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees for its next allocations; returns True if the C library is glibc.

    A training step on a CPU frees and allocates the same gigabytes again. By default glibc returns large blocks to the
    system each time, which then clears and maps every page again: a quarter of a step of EfficientNet-Lite0. The process
    stays at its peak size, so only commands that train call this, not the library.
    """
    mallopt = c_function("mallopt")
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def release_freed_memory() -> None:
    """Return the freed memory that this process has kept to the system; does nothing without glibc.

    Blocks that one stage leaves behind would otherwise lie idle while the next stage allocates other sizes.
    """
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)
