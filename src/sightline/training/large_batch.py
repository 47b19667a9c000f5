"""A batch larger than memory, with the gradient of the whole; and what the C library does with memory that is freed.

The images go through the encoder in chunks, without a graph; the loss of all embeddings gives the gradient of each; the
chunks go through again, each with its graph, and that gradient is handed on (staged back-propagation). Both passes see the
same pixels and draw the same random numbers, so the result is that of one pass through the same chunks.
"""

import ctypes
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
from sightline.training.distributed import gathered, gathered_objects, gathered_with_gradient, n_processes, process_number

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of embeddings, labels and ids of the whole batch
MEMORY_SHARE = 0.5  # of what is free, for the graph of one chunk


class Examples(NamedTuple):
    """A batch as the loop wants it: images, as they are loaded; (B,) or (B, L) labels; and (B,) which images they are.

    The images are (B, 3, H, W), or what ``finished`` of :func:`back_propagate` makes that of.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor


def as_they_are(images: Tensor) -> Tensor:
    """The images, which the encoder takes so."""
    return images


def check_chunkable(encoder: nn.Module) -> None:
    """Refuse an encoder whose layers look at a whole batch: in chunks they would compute something else."""
    for name, layer in encoder.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise InputError(
                f"chunk_size: batch norm {name!r} takes its statistics from the batch, which in chunks would be others; "
                "freeze it with model.freeze_batch_norm='stats', or leave chunk_size out"
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
    """Nothing, whose gradient is a given one as it is: a loss scale is in it already."""

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
    """Add the gradient of the loss of a batch to the weights; the batch is that of all processes together.

    Args:
        fabric: devices and precision.
        encoder: set up by ``fabric``.
        loss: called on the embeddings, labels and ids of the whole batch, by every process.
        batch: this process's part of it.
        seed: of what is drawn; the n-th chunk of the batch draws by (seed, n), the loss alike in every process.
        chunk_size: images that go through the encoder at a time; None for all, in one pass.
        finished: some of the images as the encoder wants them, the same each time.

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
        torch.manual_seed(derived_seed(seed, 0, 1))  # not as a chunk does
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
    fabric.backward(value)  # to the embeddings, and to the loss's own parameters
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if leaf.is_cpu:
        release_freed_memory()  # the loss's tables: what the graph of a chunk needs comes in other sizes
    for number, (start, stop) in enumerate(bounds):
        not_last = number + 1 < len(bounds) and n_processes() > 1
        with fabric.no_backward_sync(encoder, enabled=not_last):  # type: ignore[arg-type]
            fabric.backward(_HandedOn.apply(embed(number), gradient[start:stop]))  # type: ignore[no-untyped-call]
    return value.detach()


def fitting_chunk_size(encoder: nn.Module, image: Tensor, batch_size: int) -> int:
    """How many images' graphs fit in half of the free memory: a power of two, or the whole batch.

    Processes that train together agree on the smallest of theirs: what each chunk draws depends on how many there are.

    Args:
        encoder: on its device, in training mode.
        image: (3, H, W) as in training.
        batch_size: the largest size of use.
    """
    fitting = int(MEMORY_SHARE * _free_bytes(image.device) / bytes_of_graph(encoder, image))
    here = batch_size if fitting >= batch_size else 2 ** int(math.log2(max(1, fitting)))
    smallest: int = min(gathered_objects(here))
    return smallest


def bytes_of_graph(encoder: nn.Module, image: Tensor) -> float:
    """What the graph of one more image takes, at least 1; the encoder is on its device, in training mode."""
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


def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it is another one, or Windows."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, TypeError):
        return None


def keep_freed_memory() -> bool:
    """Have this process keep the memory it frees, for what it asks for next; True where the C library can (glibc).

    A training step on a CPU frees and asks for the same gigabytes again. Left alone, glibc hands large blocks back to the
    system each time, which then clears and maps every page again: a quarter of a step of EfficientNet-Lite0. The process
    stays as large as it ever was, so this is for commands that train, not for a library's caller.
    """
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def release_freed_memory() -> None:
    """Hand back to the system what this process has freed and kept, wherever it lies; nothing where the C library cannot.

    What a stage leaves behind in blocks of other sizes would otherwise lie idle beside those of the next one.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
