"""A recipe to the parts of a run, all of them checked before anything is written."""

import copy
import os
import warnings
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from numpy.typing import NDArray
from torch import nn

from sightline.data.images import check_images
from sightline.data.manifest import Manifest, hold_out_classes, read_manifest
from sightline.data.samplers import Sampler, SamplerSection, create_sampler, unusable_classes
from sightline.errors import InputError, names, nearest
from sightline.evaluation.protocol import metric_names
from sightline.evaluation.tables import has_role
from sightline.losses import create_loss, loss_options
from sightline.losses.memory import keeps_batches
from sightline.losses.sums import takes_references
from sightline.models.encoder import Encoder
from sightline.training.distributed import process_number
from sightline.training.large_batch import check_chunkable
from sightline.training.loggers import check_loggers
from sightline.training.memory import BatchLoss, CrossBatchMemory, MemoryLoss
from sightline.training.recipe import Recipe
from sightline.training.sharding import shard


class RunParts(NamedTuple):
    """What a run is made of."""

    encoder: Encoder
    loss: nn.Module
    train_part: Manifest
    labels: NDArray[np.int64]
    sampler: Sampler
    val_part: Manifest | None


def parts_of_run(recipe: Recipe, show_progress: bool) -> RunParts:
    """Make all of it, which finds whatever is wrong with the recipe or the images."""
    check_loggers(recipe.loggers)
    manifest = read_manifest(recipe.data.manifest)
    measured = metric_names(recipe.validation.ks, manifest.n_levels)
    if recipe.validation.metric not in measured:
        known = nearest(recipe.validation.metric, measured)
        raise InputError(f"validation.metric: unknown metric {recipe.validation.metric!r}: {known}")
    train_part, val_part = train_and_validation(manifest, recipe)
    if val_part is not None:
        _check_answers(val_part)
    train_part = _usable(train_part, recipe.sampler)
    labels = train_part.labels()
    sampler = create_sampler(recipe.sampler, labels, recipe.seed)
    encoder = Encoder.create(
        recipe.model.backbone,
        embedding_dim=recipe.model.embedding_dim,
        pooling=recipe.model.pooling,
        weights=recipe.model.weights,
        image_size=recipe.data.image_size,
        resize=recipe.data.resize,
        freeze_batch_norm=recipe.model.freeze_batch_norm,
        seed=recipe.seed,
        feature_norm=recipe.model.feature_norm,
        stretch=recipe.data.stretch,
    )
    if recipe.model.adaptation == "lora":
        encoder.add_lora(recipe.model.lora_rank, recipe.seed)
    if recipe.model.adaptation == "frozen" and recipe.model.embedding_dim is None:
        raise InputError("model.adaptation 'frozen' leaves nothing to learn: set model.embedding_dim")
    loss = loss_of(recipe, encoder.dim, class_counts=[int(column.max()) + 1 for column in labels.T])
    _check_memory(recipe, loss)
    if recipe.chunk_size is not None and recipe.model.adaptation != "frozen":
        check_chunkable(encoder.train())
    if recipe.data.check_images:
        check_images(manifest.where(pl.col("split").is_in(["train", "val"])), show_progress and process_number() == 0)
    return RunParts(encoder, loss, train_part, labels, sampler, val_part)


def train_and_validation(manifest: Manifest, recipe: Recipe) -> tuple[Manifest, Manifest | None]:
    """What to train on and what to validate on; some training classes are held out where there is no ``val`` split."""
    train_part = manifest.split("train")
    if "val" in manifest.table["split"]:
        return train_part, manifest.split("val")
    if not recipe.data.val_fraction:
        return train_part, None
    return hold_out_classes(train_part, recipe.data.val_fraction, recipe.seed)


def _check_answers(manifest: Manifest) -> None:
    """Refuse images to validate with of which no query has a right answer, and warn where none can have a wrong one."""
    is_query, is_gallery = has_role(manifest, "is_query"), has_role(manifest, "is_gallery")
    codes = np.unique(manifest.labels(), axis=0, return_inverse=True)[1].ravel()
    n_answers = np.bincount(codes[is_gallery], minlength=int(codes.max()) + 1)[codes] - is_gallery
    if not n_answers[is_query].any():
        raise InputError(
            f"{manifest.source}: none of the {is_query.sum()} images to validate with has another of its class to find; "
            "give the classes of split val more images, or train without: data.val_fraction=0 and no split val"
        )
    if codes.max() == 0:
        warnings.warn(
            f"{manifest.source}: the {len(manifest)} images to validate with are of one class, so every ranking of them is "
            "right and the first epoch is kept; with data.val_fraction=0 and no split val the last one is",
            stacklevel=2,
        )


def _usable(manifest: Manifest, sampler: SamplerSection) -> Manifest:
    """The classes that can fill their part of a batch; the others are refused unless they are to be skipped."""
    labels = manifest.labels()
    small = unusable_classes(sampler, labels)
    codes = labels[:, sampler.level]
    if len(small) and not sampler.skip_small_classes:
        called = [manifest.class_names(sampler.level)[code] for code in small[:5]]
        raise InputError(
            f"{manifest.source}: {len(small)} of {codes.max() + 1} training classes are unusable: they have fewer than "
            f"sampler.per_class={sampler.per_class} images ({names(called)}{', ...' if len(small) > 5 else ''}); "
            "lower it, or leave them out with sampler.skip_small_classes=true"
        )
    return manifest.where(pl.lit(pl.Series(~np.isin(codes, small))))


def loss_of(recipe: Recipe, embedding_dim: int, class_counts: list[int]) -> nn.Module:
    """The recipe's loss; what it needs to know of data and model is filled in where it asks for it."""
    known = {
        "n_classes": class_counts[0],
        "n_levels": len(class_counts),
        "class_counts": class_counts,
        "embedding_dim": embedding_dim,
    }
    taken = loss_options(recipe.loss.name)
    loss = create_loss(recipe.loss.name, False, **{k: v for k, v in known.items() if k in taken} | recipe.loss.options())
    trial = copy.deepcopy(loss)  # shows a value that does not fit; a copy, for a loss may remember what it saw
    trial(torch.eye(2, embedding_dim), torch.zeros(2, len(class_counts), dtype=torch.int64))
    return loss


def fabric_of(recipe: Recipe) -> Fabric:
    """One process, or those that ``torchrun`` started."""
    together, here = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy: Strategy | str = "auto"
    if recipe.sampler.batch_size % together:
        raise InputError(f"sampler.batch_size is {recipe.sampler.batch_size}: {together} processes cannot share it evenly")
    if recipe.strategy == "fsdp":
        _check_shardable(recipe)
    if together > 1 and recipe.strategy == "fsdp":
        strategy = ModelParallelStrategy(shard, data_parallel_size=together, tensor_parallel_size=1)
    elif together > 1:
        # A backbone that rests has weights without a gradient, which processes would wait for.
        strategy = DDPStrategy(find_unused_parameters=recipe.schedule.warmup_epochs > 0)
    fabric = Fabric(
        accelerator="auto", devices=here, num_nodes=together // here, strategy=strategy, precision=recipe.precision
    )
    if together > 1 and "LT_CLI_USED" not in os.environ:  # `fabric run` has launched them
        fabric.launch()
    return fabric


def _check_shardable(recipe: Recipe) -> None:
    """What sharded weights cannot do is refused by the recipe's own words."""
    reasons = {
        "precision='16-mixed'": recipe.precision == "16-mixed",  # its loss scale would need all gradients together
        "compile=true": recipe.compile,
        "model.adaptation='frozen'": recipe.model.adaptation == "frozen",
        "chunk_size='auto'": recipe.chunk_size == "auto",
    }
    if unfit := [reason for reason, holds in reasons.items() if holds]:
        raise InputError(f"strategy='fsdp' does not go with {', '.join(unfit)}; strategy='ddp' does")


def _check_memory(recipe: Recipe, loss: nn.Module) -> None:
    """Refuse a memory beside a loss that cannot use it."""
    if recipe.memory.size is None:
        return
    if not takes_references(loss):
        raise InputError(f"memory.size: loss {recipe.loss.name!r} takes no reference set, so a memory is of no use to it")
    if keeps_batches(loss):
        raise InputError(
            f"memory.size: loss {recipe.loss.name!r} keeps earlier batches itself; one memory is enough: leave out "
            "memory.size, or set the loss's own memory to 0"
        )


def with_memory(
    recipe: Recipe, loss: nn.Module, dim: int, labels: NDArray[np.int64], batches_an_epoch: int
) -> BatchLoss | MemoryLoss:
    """The loss as the loop calls it, on embeddings, labels and ids."""
    size = recipe.memory.size
    if size is None:
        return BatchLoss(loss)
    memory = CrossBatchMemory(len(labels) if size == "all" else size, dim, labels.shape[1])
    return MemoryLoss(loss, memory, recipe.memory.start_epoch * batches_an_epoch, recipe.memory.share)
