"""A recipe to the parts of a run, all of them checked before anything is written; and the plan of it in words."""

import copy
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.dataset import PREFETCHED, ImageDataset
from sightline.data.images import check_images, readable_images
from sightline.data.manifest import Manifest, hold_out_classes, read_manifest
from sightline.data.samplers import Sampler, SamplerSection, create_sampler, unusable_classes
from sightline.data.transforms import eval_transform
from sightline.errors import SHOWN_FAULTS, InputError, names, nearest
from sightline.evaluation.metrics import metric_names
from sightline.evaluation.tables import has_role
from sightline.files import read_json_object
from sightline.losses import create_loss, loss_options
from sightline.models.card import DataFacts
from sightline.models.encoder import SETTINGS_FILE, Encoder, EncoderSettings
from sightline.models.stages import UpperEncoder
from sightline.training.batch_loss import BatchLoss, add_memory
from sightline.training.distributed import gathered_objects, n_processes, process_number, shard
from sightline.training.large_batch import bytes_of_graph, check_chunkable, fitting_chunk_size
from sightline.training.logs import check_trackers
from sightline.training.recipe import Recipe

OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "sgd": 1}  # of each weight, besides its gradient
PCA_IMAGES = 10_000  # from which a projection starts, at most


class RunParts(NamedTuple):
    """What a run is made of.

    Attributes:
        encoder: at its start.
        learner: what a batch goes through: the encoder, or its upper part on cached features.
        loss: the recipe's, with its memory.
        train_part: the images to learn from.
        labels: (N, L) their classes, finest level first.
        sampler: which of them share a batch.
        val_part: the images to validate with; None for none.
        skipped: a sentence for each image that was left out because it cannot be decoded.
    """

    encoder: Encoder
    learner: nn.Module
    loss: BatchLoss
    train_part: Manifest
    labels: NDArray[np.int64]
    sampler: Sampler
    val_part: Manifest | None
    skipped: list[str]

    def image_facts(self) -> dict[str, Any]:
        """What a run that goes on must find again: how many images of which classes, a hash of the rows, skipped images."""
        parts = {"train": self.train_part} | ({} if self.val_part is None else {"val": self.val_part})
        facts = {name: DataFacts.of(part) for name, part in parts.items()}
        return {
            name: {"images": one.n_images, "classes": list(one.n_classes), "rows": one.sha256[:12]}
            for name, one in facts.items()
        } | ({"skipped": self.skipped} if self.skipped else {})


def prepare_run(recipe: Recipe, show_progress: bool = False, trust: bool = False) -> RunParts:
    """Make all of it, which finds whatever is wrong with the recipe or the images.

    Args:
        recipe: the whole run.
        show_progress: draw a bar while images are checked.
        trust: follow import paths in the recipe.
    """
    check_trackers(recipe.loggers, trust)
    show_progress = show_progress and process_number() == 0
    manifest, skipped = recipe_images(recipe, show_progress)
    train_part, val_part, sampler = select_images(manifest, recipe)
    labels = train_part.labels()
    encoder = _create_encoder(recipe, trust)
    loss = create_recipe_loss(recipe, encoder.dim, [int(column.max()) + 1 for column in labels.T], trust)
    n_images, n_levels = labels.shape
    with_memory = add_memory(loss, recipe, n_images, (encoder.dim, n_levels), len(sampler.batches(0)))
    is_whole = recipe.model.adaptation in ("full", "lora")
    learner = encoder if is_whole else UpperEncoder(encoder, recipe.model.adaptation)
    _check_warmup(recipe, encoder, loss)
    if recipe.chunk_size is not None and recipe.model.adaptation != "frozen":
        check_chunkable(encoder.train())
    if recipe.data.check_images and not recipe.data.skip_unreadable:
        check_images(manifest.where(pl.col("split").is_in(["train", "val"])), show_progress)
    return RunParts(encoder, learner, with_memory, train_part, labels, sampler, val_part, skipped)


def recipe_images(recipe: Recipe, show_progress: bool = False) -> tuple[Manifest, list[str]]:
    """The recipe's manifest, and a sentence for each image left out because it cannot be decoded, if it asks for that."""
    manifest = read_manifest(recipe.data.manifest)
    if not recipe.data.skip_unreadable:
        return manifest, []
    manifest, skipped = readable_images(manifest, show_progress)
    if skipped and process_number() == 0:
        n_more = len(skipped) - SHOWN_FAULTS
        more = [f"... and {n_more} more; images.json in the run folder names all"] if n_more > 0 else []
        title = f"{manifest.source}: {len(skipped)} image(s) skipped that cannot be decoded"
        warnings.warn("\n  ".join([title, *skipped[:SHOWN_FAULTS], *more]), stacklevel=2)
    return manifest, skipped


def select_images(manifest: Manifest, recipe: Recipe) -> tuple[Manifest, Manifest | None, Sampler]:
    """The images to learn from, those to validate with and the sampler; refuses images that the recipe cannot use."""
    measured = metric_names(recipe.validation.ks, manifest.n_levels)
    if recipe.validation.metric not in measured:
        known = nearest(recipe.validation.metric, measured)
        raise InputError(f"validation.metric: unknown metric {recipe.validation.metric!r}: {known}")
    train_part, val_part = train_and_validation(manifest, recipe)
    if val_part is not None:
        _check_answers(val_part)
    train_part = _usable(train_part, recipe.sampler)
    return train_part, val_part, create_sampler(recipe.sampler, train_part.labels(), recipe.seed)


def _create_encoder(recipe: Recipe, trust: bool) -> Encoder:
    model, data = recipe.model, recipe.data
    if model.start is not None:
        return _start_encoder(recipe, model.start, trust)
    if model.adaptation == "frozen" and model.embedding_dim is None:
        raise InputError("model.adaptation 'frozen' leaves nothing to learn: set model.embedding_dim")
    encoder = Encoder.create(
        model.backbone,
        model.embedding_dim,
        model.pooling,
        model.weights,
        data.image_size,
        data.resize,
        model.freeze_batch_norm,
        recipe.seed,
        model.feature_norm,
        data.stretch,
        trust,
    )
    if model.adaptation == "lora":
        encoder.add_lora(model.lora_rank, recipe.seed)
    return encoder


def _start_encoder(recipe: Recipe, start: Path, trust: bool) -> Encoder:
    """The encoder that ``model.start`` names, as the recipe lets it learn."""
    encoder, model = Encoder.from_pretrained(start, trust=trust), recipe.model
    if encoder.head.whitening is not None:
        raise InputError(
            f"model.start: {start} whitens its vectors; start from the encoder that `sightline whiten` was given"
        )
    if model.adaptation == "frozen" and encoder.settings.embedding_dim is None:
        raise InputError(f"model.adaptation 'frozen' leaves nothing to learn: the encoder of {start} has no projection")
    encoder.card = None  # it is about the encoder before this run
    encoder.settings = encoder.settings.model_copy(update={"freeze_batch_norm": model.freeze_batch_norm})
    encoder.allow_gradients()
    if model.adaptation == "lora":
        encoder.add_lora(model.lora_rank, recipe.seed)
    return encoder


def with_start(recipe: Recipe) -> Recipe:
    """The recipe with what ``model.start`` decides filled in, so that a run's files name the encoder that it trains."""
    if recipe.model.start is None:
        return recipe
    file = recipe.model.start / SETTINGS_FILE
    if not file.is_file():
        raise InputError(f"model.start: {recipe.model.start}: not an encoder folder: it has no {SETTINGS_FILE}")
    stored = read_json_object(file)
    stored = {key: value for key, value in stored.items() if key in EncoderSettings.model_fields}
    try:
        settings = EncoderSettings.model_validate(stored)
        shape = settings.model_dump(include={"backbone", "pooling", "embedding_dim", "feature_norm"})
        seen = settings.preprocessing
        size = {"image_size": seen.crop, "resize": seen.resize, "stretch": seen.stretch}
        values = recipe.model_dump(mode="json")
        values["model"] |= shape | {"weights": None, "projection": "random"}
        values["data"] |= size
        return Recipe.model_validate(values)
    except ValueError as error:
        raise InputError(f"{file}: not an encoder's settings: {error}") from error


def _check_warmup(recipe: Recipe, encoder: Encoder, loss: nn.Module) -> None:
    """Refuse a warm-up in which nothing can learn."""
    besides = [*encoder.pooling.parameters(), *encoder.head.parameters(), *loss.parameters()]
    if recipe.schedule.warmup_epochs and not any(weight.requires_grad for weight in besides):
        raise InputError(
            f"schedule.warmup_epochs is {recipe.schedule.warmup_epochs}, and without the backbone nothing can learn: there "
            f"is no projection (model.embedding_dim), and loss {recipe.loss.name!r} has no weights; set it to 0"
        )


def untrained_encoder(recipe: Recipe, trust: bool = False) -> Encoder:
    """The pretrained features of a recipe's backbone, averaged and normalised, without a projection; or its start."""
    model, data = recipe.model, recipe.data
    if model.start is not None:
        return Encoder.from_pretrained(model.start, trust=trust)
    return Encoder.create(
        model.backbone, None, "avg", model.weights, data.image_size, data.resize, seed=recipe.seed, stretch=data.stretch
    )


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


def create_recipe_loss(recipe: Recipe, embedding_dim: int, class_counts: list[int], trust: bool = False) -> nn.Module:
    """The recipe's loss; what it needs to know of data and model is filled in where it asks for it."""
    known = {
        "n_classes": class_counts[0],
        "n_levels": len(class_counts),
        "class_counts": class_counts,
        "embedding_dim": embedding_dim,
    }
    filled_in = {option: known[option] for option in loss_options(recipe.loss.name, trust) if option in known}
    loss = create_loss(recipe.loss.name, trust, **filled_in | recipe.loss.options())
    trial = copy.deepcopy(loss)  # shows a value that does not fit; a copy, for a loss may remember what it saw
    trial(torch.eye(2, embedding_dim), torch.zeros(2, len(class_counts), dtype=torch.int64))
    return loss


def create_fabric(recipe: Recipe) -> Fabric:
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
        f"model.adaptation={recipe.model.adaptation!r}": recipe.model.adaptation not in ("full", "lora"),
        "chunk_size='auto'": recipe.chunk_size == "auto",
    }
    if unfit := [reason for reason, holds in reasons.items() if holds]:
        raise InputError(f"strategy='fsdp' does not go with {', '.join(unfit)}; strategy='ddp' does")


def whiten_projection(recipe: Recipe, encoder: Encoder, train_part: Manifest) -> None:
    """Start the encoder's projection from principal components of some training images, seen as in search."""
    n_images = len(train_part)
    drawn = np.random.default_rng(recipe.seed).choice(n_images, min(n_images, PCA_IMAGES), replace=False)
    features = pooled_features(encoder, _rows(train_part, drawn), recipe.data.n_workers)
    encoder.head.whiten(features.to(next(encoder.parameters()).device))


def pooled_features(encoder: Encoder, manifest: Manifest, n_workers: int) -> Tensor:
    """(N, C) what the encoder's head is given of each image, seen as in search; each process computes a part."""

    def pool(part: Manifest) -> NDArray[np.float32]:
        images = ImageDataset.of(part, eval_transform(encoder.settings.preprocessing))
        return encoder.encode_dataset(images, n_workers=n_workers, pooled=True)

    return torch.from_numpy(computed_in_parts(manifest, pool))


def computed_in_parts(manifest: Manifest, compute: Callable[[Manifest], NDArray[np.float32]]) -> NDArray[np.float32]:
    """A row for each image, in the manifest's order; each process computes a part and gets them all."""
    own = np.array_split(np.arange(len(manifest)), n_processes())[process_number()]
    return np.concatenate(gathered_objects(compute(_rows(manifest, own))))


def _rows(manifest: Manifest, places: NDArray[np.int64]) -> Manifest:
    return manifest.where(pl.lit(pl.Series(np.isin(np.arange(len(manifest)), places))))


def plan_run(recipe: Recipe, trust: bool = False) -> str:
    """What training by the recipe would do, checked as it would check it, one ``name: value`` a line; writes nothing."""
    recipe = with_start(recipe)
    device = create_fabric(recipe).device
    encoder, learner, loss, train_part, _, sampler, val_part, skipped = prepare_run(recipe, trust=trust)
    n_batches, epochs = len(sampler.batches(0)), recipe.schedule.epochs
    here = sampler.batch_size // n_processes()
    side = encoder.settings.preprocessing.crop
    learner.to(device).train()
    image = torch.zeros(3, side, side, device=device)
    example = learner.resting(image[None])[0] if isinstance(learner, UpperEncoder) else image
    chunk = recipe.chunk_size
    found = " (auto: half of the free memory)" if chunk == "auto" else ""
    if chunk == "auto":
        chunk = fitting_chunk_size(learner, example, here)
    options = ", ".join(f"{key}={value!r}" for key, value in recipe.loss.options().items()) or "defaults"
    memory_items = 0 if loss.memory is None else loss.memory.size
    megabytes = _megabytes(recipe, learner, loss, example, here, min(chunk or here, here), memory_items * encoder.dim)
    lines = {
        "manifest": train_part.source,
        "training": _counts(train_part),
        "validation": "none: the last encoder is kept" if val_part is None else _counts(val_part),
        **({"skipped": f"{len(skipped)} unreadable images"} if skipped else {}),
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
    recipe: Recipe, learner: nn.Module, loss: nn.Module, image: Tensor, n_images: int, chunk: int, n_remembered: int
) -> dict[str, float]:
    """What the parts of a run take, each at its largest."""
    learning = 4 * (_n_weights(learner) + _n_weights(loss))
    stored = sum(weight.numel() * weight.element_size() for part in (learner, loss) for weight in part.parameters())
    read = 1 + PREFETCHED * recipe.data.n_workers  # batches as bytes, this one and those read ahead; a chunk as numbers
    parts = {
        "weights": stored,
        "gradients and optimizer": learning * (1 + OPTIMIZER_COPIES[recipe.optimizer.name]),
        "activations": bytes_of_graph(learner, image) * chunk,
        "images": (read * n_images + 4 * chunk) * image.numel(),
        "memory bank": n_remembered * 4,
    }
    return {name: n_bytes / 1e6 for name, n_bytes in parts.items() if n_bytes}
