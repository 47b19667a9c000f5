"""What a run would do, in words, without doing it."""

import torch
from torch import Tensor, nn

from sightline.data.dataset import PREFETCHED
from sightline.data.manifest import Manifest
from sightline.data.samplers import Sampler
from sightline.models.encoder import Encoder
from sightline.training.distributed import n_processes
from sightline.training.large_batch import bytes_of_graph, fitting_chunk_size
from sightline.training.recipe import Recipe

OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "sgd": 1}  # of each weight, besides its gradient


def plan(
    recipe: Recipe,
    device: torch.device,
    train_part: Manifest,
    val_part: Manifest | None,
    sampler: Sampler,
    encoder: Encoder,
    loss: nn.Module,
) -> str:
    """The plan of a run, one ``name: value`` a line."""
    n_batches, epochs = len(sampler.batches(0)), recipe.schedule.epochs
    here = sampler.batch_size // n_processes()
    side = encoder.settings.preprocessing.crop
    encoder.to(device).train()
    encoder.allow_gradients(backbone=recipe.model.adaptation != "frozen")
    image = torch.zeros(3, side, side, device=device)
    chunk = recipe.chunk_size
    found = " (auto: half of the free memory)" if chunk == "auto" else ""
    if chunk == "auto":
        chunk = fitting_chunk_size(encoder, image, here)
    options = ", ".join(f"{key}={value!r}" for key, value in recipe.loss.options().items()) or "defaults"
    memory_items = len(train_part.table) if recipe.memory.size == "all" else recipe.memory.size or 0
    megabytes = _megabytes(recipe, encoder, loss, image, here, min(chunk or here, here), memory_items * encoder.dim)
    lines = {
        "manifest": train_part.source,
        "training": _counts(train_part),
        "validation": "none: the last encoder is kept" if val_part is None else _counts(val_part),
        "decides": f"{recipe.validation.mode} {recipe.validation.metric}, every {recipe.validation.every} epoch(s)",
        "model": f"{recipe.model.backbone}, {side} px, {encoder.dim} dimensions, {_n_weights(encoder):,} weights learn",
        "loss": f"{recipe.loss.name} ({options}), {_n_weights(loss):,} weights",
        "memory": f"{memory_items} items" if memory_items else "none",
        "batches": f"{sampler.batch_size} images each, {n_batches} an epoch",
        "steps": f"{n_batches * epochs} in {epochs} epochs",
        "chunk size": f"{chunk or 'the whole batch'}{found}",
        "devices": f"{n_processes()} process(es) on {device.type}, {recipe.precision}, {recipe.data.n_workers} loaders",
        "memory estimate": ", ".join(f"{name} {value:.0f} MB" for name, value in megabytes.items())
        + f": {sum(megabytes.values()):.0f} MB a process, besides Python and what the loss takes",
    }
    if val_part is None:
        del lines["decides"]
    width = max(map(len, lines)) + 1
    return "\n".join(f"{name + ':':{width}} {value}" for name, value in lines.items())


def _counts(manifest: Manifest) -> str:
    classes = [str(int(column.max()) + 1) for column in manifest.labels().T]
    return f"{len(manifest.table)} images, {' < '.join(classes)} classes"


def _n_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def _megabytes(
    recipe: Recipe, encoder: Encoder, loss: nn.Module, image: Tensor, n_images: int, chunk: int, n_remembered: int
) -> dict[str, float]:
    """What the parts of a run take, each at its largest."""
    learning = 4 * (_n_weights(encoder) + _n_weights(loss))
    stored = sum(weight.numel() * weight.element_size() for part in (encoder, loss) for weight in part.parameters())
    read = 1 + PREFETCHED * recipe.data.n_workers  # batches as bytes, this one and those read ahead; a chunk as numbers
    parts = {
        "weights": stored,
        "gradients and optimizer": learning * (1 + OPTIMIZER_COPIES[recipe.optimizer.name]),
        "activations": bytes_of_graph(encoder, image) * chunk,
        "images": (read * n_images + 4 * chunk) * image.numel(),
        "memory bank": n_remembered * 4,
    }
    return {name: n_bytes / 1e6 for name, n_bytes in parts.items() if n_bytes}
