"""From a recipe to the parts of a run, checked before anything is written; and the plan that ``--dry-run`` prints."""

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
from scipy import sparse
from torch import Tensor, nn

from sightline.data.dataset import PREFETCHED, ImageDataset
from sightline.data.images import check_images, readable_images
from sightline.data.manifest import Manifest, hold_out_classes, read_manifest
from sightline.data.samplers import Sampler, create_sampler, unusable_classes
from sightline.data.transforms import eval_transform
from sightline.errors import SHOWN_FAULTS, InputError, names, nearest
from sightline.evaluation.metrics import metric_names
from sightline.evaluation.protocol import code_metric_names
from sightline.evaluation.tables import has_role
from sightline.files import read_json_object
from sightline.labels.code_column import code_lists, deepest, hold_out_codes, read_code_tree, read_codes
from sightline.labels.codes import CodeRelevance, code_tables, sampling_paths
from sightline.losses import create_loss, loss_options
from sightline.losses.several_codes import CodesLoss, ItemCodes
from sightline.models.backbones import has_own_pooling
from sightline.models.card import DataFacts
from sightline.models.encoder import SETTINGS_FILE, Encoder, EncoderSettings
from sightline.models.stages import UpperEncoder
from sightline.training.batch_loss import BatchLoss, add_memory
from sightline.training.distributed import gathered_objects, n_processes, process_number, shard
from sightline.training.large_batch import bytes_of_graph, check_chunkable, fitting_chunk_size
from sightline.training.logs import check_trackers
from sightline.training.recipe import Recipe

OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "sgd": 1}  # of each weight, besides its gradient
PCA_IMAGES = 10_000  # at most, for the principal components of a projection


class RunParts(NamedTuple):
    """What a run is made of.

    Attributes:
        encoder: before training.
        learner: the module that is trained: the encoder, or its upper part on cached features.
        loss: the recipe's loss, with its memory.
        train_part: the training images.
        labels: (N, L) their classes, finest level first; of images with several codes (N, 1), their numbers.
        sampler: draws the batches.
        val_part: the validation images; None for none.
        skipped: a sentence for each image left out because it cannot be decoded.
        codes: the column of codes; None where images have labels.
        relevance: what sharing codes is worth; None where images have labels.
    """

    encoder: Encoder
    learner: nn.Module
    loss: BatchLoss
    train_part: Manifest
    labels: NDArray[np.int64]
    sampler: Sampler
    val_part: Manifest | None
    skipped: list[str]
    codes: str | None = None
    relevance: CodeRelevance | None = None

    def image_facts(self) -> dict[str, Any]:
        """What must be the same on resume: counts of images and classes, a hash of the rows; and the skipped images."""
        parts = {"train": self.train_part} | ({} if self.val_part is None else {"val": self.val_part})
        facts = {name: DataFacts.of(part, self.codes) for name, part in parts.items()}
        return {
            name: {"images": one.n_images, "classes": list(one.n_classes), "rows": one.sha256[:12]}
            for name, one in facts.items()
        } | ({"skipped": self.skipped} if self.skipped else {})


def prepare_run(recipe: Recipe, show_progress: bool = False, trust: bool = False) -> RunParts:
    """Make all parts of a run, and with that check the recipe and the images.

    Args:
        recipe: the recipe of the run.
        show_progress: draw a progress bar while images are checked.
        trust: follow import paths in the recipe.
    """
    check_trackers(recipe.loggers, trust)
    show_progress = show_progress and process_number() == 0
    manifest, skipped = recipe_images(recipe, show_progress)
    train_part, val_part, sampler = select_images(manifest, recipe)
    encoder = _create_encoder(recipe, trust)
    relevance = code_relevance(recipe, manifest)
    if recipe.data.codes is None or relevance is None:
        labels = train_part.labels()
        loss = create_recipe_loss(recipe, encoder.dim, [int(column.max()) + 1 for column in labels.T], trust)
    else:
        labels = np.arange(len(train_part))[:, None]
        sets = code_lists(train_part, recipe.data.codes)
        loss = create_codes_loss(recipe, encoder.dim, ItemCodes(sets, relevance, recipe.codes.level), trust)
    n_images, n_levels = labels.shape
    with_memory = add_memory(loss, recipe, n_images, (encoder.dim, n_levels), len(sampler.batches(0)))
    is_whole = recipe.model.adaptation in ("full", "lora")
    learner = encoder if is_whole else UpperEncoder(encoder, recipe.model.adaptation)
    _check_warmup(recipe, encoder, loss)
    if recipe.chunk_size is not None and recipe.model.adaptation != "frozen":
        check_chunkable(encoder.train())
    if recipe.data.check_images and not recipe.data.skip_unreadable:
        check_images(manifest.where(pl.col("split").is_in(["train", "val"])), show_progress)
    return RunParts(
        encoder, learner, with_memory, train_part, labels, sampler, val_part, skipped, recipe.data.codes, relevance
    )


def recipe_images(recipe: Recipe, show_progress: bool = False) -> tuple[Manifest, list[str]]:
    """The manifest, without undecodable images if ``data.skip_unreadable`` is set, and a sentence for each of these."""
    manifest = with_recipe_codes(read_manifest(recipe.data.manifest, labelled=recipe.data.codes is None), recipe)
    if not recipe.data.skip_unreadable:
        return manifest, []
    manifest, skipped = readable_images(manifest, show_progress)
    if skipped and process_number() == 0:
        n_more = len(skipped) - SHOWN_FAULTS
        more = [f"... and {n_more} more; images.json in the run folder names all"] if n_more > 0 else []
        title = f"{manifest.source}: skipped {len(skipped)} image(s) that cannot be decoded; replace or delete these files"
        warnings.warn("\n  ".join([title, *skipped[:SHOWN_FAULTS], *more]), stacklevel=2)
    return manifest, skipped


def with_recipe_codes(manifest: Manifest, recipe: Recipe) -> Manifest:
    """The manifest with the recipe's column of codes read and checked, if it names one."""
    if recipe.data.codes is None:
        if changed := recipe.codes.model_dump(exclude_defaults=True):
            raise InputError(f"codes.{next(iter(changed))}: only images with several codes have codes; set data.codes")
        return manifest
    known = None if recipe.codes.tree is None else read_code_tree(recipe.codes.tree, recipe.codes.leaves)
    return read_codes(manifest, recipe.data.codes, known)


def code_relevance(recipe: Recipe, manifest: Manifest) -> CodeRelevance | None:
    """What sharing codes is worth, in the levels of the recipe's tree or of the deepest code; None without codes."""
    if recipe.data.codes is None:
        return None
    options = recipe.codes.model_dump(exclude={"tree", "leaves", "level"})
    return CodeRelevance(_code_levels(recipe, manifest), **options)


def _code_levels(recipe: Recipe, manifest: Manifest) -> int:
    if recipe.codes.tree is not None:
        return read_code_tree(recipe.codes.tree).tree.n_levels
    return deepest(code_lists(manifest, recipe.data.codes or ""))


def sampler_labels(manifest: Manifest, recipe: Recipe) -> tuple[NDArray[np.int64], list[str]]:
    """(N, L) classes for the sampler, finest first, and the names of those at its level.

    Of images with several codes the class is a rare code that ``sampler.per_class`` of them share.
    """
    level = recipe.sampler.level
    if recipe.data.codes is None:
        labels = manifest.labels()
        return labels, manifest.class_names(level) if level < labels.shape[1] else []
    sets, n_levels = code_lists(manifest, recipe.data.codes), _code_levels(recipe, manifest)
    columns = np.array(sampling_paths(sets, n_levels, recipe.sampler.per_class)).T[::-1]
    found = [np.unique(column, return_inverse=True) for column in columns]
    called = found[level][0].tolist() if level < n_levels else []
    return np.stack([numbers for _, numbers in found], 1).astype(np.int64), [name.rstrip(".") for name in called]


def select_images(manifest: Manifest, recipe: Recipe) -> tuple[Manifest, Manifest | None, Sampler]:
    """Training images, validation images and the sampler; raises InputError for images that the recipe cannot use."""
    relevance, ks = code_relevance(recipe, manifest), recipe.validation.ks
    measured = metric_names(ks, manifest.n_levels) if relevance is None else code_metric_names(ks, relevance.n_levels)
    if recipe.validation.metric not in measured:
        known = nearest(recipe.validation.metric, measured)
        raise InputError(f"validation.metric: unknown metric {recipe.validation.metric!r}: {known}")
    train_part, val_part = train_and_validation(manifest, recipe)
    if val_part is not None:
        _check_answers(val_part, recipe.data.codes)
    train_part, labels = _usable(train_part, recipe)
    return train_part, val_part, create_sampler(recipe.sampler, labels, recipe.seed)


def _create_encoder(recipe: Recipe, trust: bool) -> Encoder:
    model, data = recipe.model, recipe.data
    if model.start is not None:
        return _start_encoder(recipe, model.start, trust)
    if model.adaptation == "frozen" and model.embedding_dim is None:
        raise InputError("model.adaptation='frozen' trains the projection alone: set model.embedding_dim")
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
    if model.pooling == "gem" and has_own_pooling(encoder.backbone):
        warnings.warn(
            f"model.pooling=gem averages over positions, and {model.backbone} was trained with a pooling of its own: "
            "model.pooling=native takes it",
            stacklevel=2,
        )
    if model.adaptation == "lora":
        encoder.add_lora(model.lora_rank, recipe.seed)
    return encoder


def _start_encoder(recipe: Recipe, start: Path, trust: bool) -> Encoder:
    """The encoder that ``model.start`` names, with the recipe's adaptation."""
    encoder, model = Encoder.from_pretrained(start, trust=trust), recipe.model
    if encoder.head.whitening is not None:
        raise InputError(
            f"model.start: {start} whitens its vectors; use the encoder that was the input of `sightline whiten`"
        )
    if model.adaptation == "frozen" and encoder.settings.embedding_dim is None:
        raise InputError(
            f"model.adaptation='frozen' trains the projection alone, and {start} has no projection; use 'upper'"
        )
    encoder.card = None  # describes the encoder before this run
    encoder.settings = encoder.settings.model_copy(update={"freeze_batch_norm": model.freeze_batch_norm})
    encoder.allow_gradients()
    if model.adaptation == "lora":
        encoder.add_lora(model.lora_rank, recipe.seed)
    return encoder


def with_start(recipe: Recipe) -> Recipe:
    """The recipe with the values that come from ``model.start`` filled in, so that recipe.json describes the encoder."""
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
    """Raise InputError for a warm-up in which nothing is trained."""
    besides = [*encoder.pooling.parameters(), *encoder.head.parameters(), *loss.parameters()]
    if recipe.schedule.warmup_epochs and not any(weight.requires_grad for weight in besides):
        raise InputError(
            f"schedule.warmup_epochs must be 0, got {recipe.schedule.warmup_epochs}: it freezes the backbone, there is no "
            f"projection (model.embedding_dim), and loss {recipe.loss.name!r} has no weights"
        )


def untrained_encoder(recipe: Recipe, trust: bool = False) -> Encoder:
    """The encoder before training: the recipe's pretrained backbone, average pooling, no projection; or ``model.start``."""
    model, data = recipe.model, recipe.data
    if model.start is not None:
        return Encoder.from_pretrained(model.start, trust=trust)
    return Encoder.create(
        model.backbone, None, "avg", model.weights, data.image_size, data.resize, seed=recipe.seed, stretch=data.stretch
    )


def train_and_validation(manifest: Manifest, recipe: Recipe) -> tuple[Manifest, Manifest | None]:
    """Training and validation images; without a ``val`` split, some training classes, or codes, are held out."""
    train_part = manifest.split("train")
    if "val" in manifest.table["split"]:
        return train_part, manifest.split("val")
    if not recipe.data.val_fraction:
        return train_part, None
    if recipe.data.codes is not None:
        return hold_out_codes(train_part, recipe.data.codes, recipe.data.val_fraction, recipe.seed)
    return hold_out_classes(train_part, recipe.data.val_fraction, recipe.seed)


def _check_answers(manifest: Manifest, column: str | None = None) -> None:
    """Raise InputError if no validation query has a relevant image, and warn if all images are relevant to all."""
    is_query, is_gallery = has_role(manifest, "is_query"), has_role(manifest, "is_gallery")
    if column is None:
        codes = np.unique(manifest.labels(), axis=0, return_inverse=True)[1].ravel()
        has = sparse.csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)))
    else:
        has = code_tables(code_lists(manifest, column), deepest(code_lists(manifest, column)))[0].has
    carriers = has[np.flatnonzero(is_gallery)].sum(0)  # of each class or code
    n_answers = has @ carriers - is_gallery * has.sum(1)
    if not n_answers[is_query].any():
        what = "its class" if column is None else "one of its codes"
        raise InputError(
            f"{manifest.source}: none of the {is_query.sum()} validation images has another image of {what} to find; "
            f"add images to these {'classes' if column is None else 'codes'}, or train without validation: "
            "data.val_fraction=0 and no split val"
        )
    if len(carriers) == 1:
        warnings.warn(
            f"{manifest.source}: the {len(manifest)} validation images are of one class: every ranking is right, and the "
            "first epoch is kept. Add classes, or train without validation: data.val_fraction=0 and no split val",
            stacklevel=2,
        )


def _usable(manifest: Manifest, recipe: Recipe) -> tuple[Manifest, NDArray[np.int64]]:
    """The images of classes large enough for a batch, and their (N, L) labels for the sampler.

    Smaller classes raise InputError unless they are to be skipped.
    """
    sampler = recipe.sampler
    labels, called = sampler_labels(manifest, recipe)
    small = unusable_classes(sampler, labels)
    if not len(small):
        return manifest, labels
    classes = labels[:, sampler.level]
    if not sampler.skip_small_classes:
        what = "training classes" if recipe.data.codes is None else "codes that images are drawn by"
        raise InputError(
            f"{manifest.source}: {len(small)} of {classes.max() + 1} {what} are unusable: they have fewer than "
            f"sampler.per_class={sampler.per_class} images ({names(called[one] for one in small[:5])}"
            f"{', ...' if len(small) > 5 else ''}); lower it, or leave these out with sampler.skip_small_classes=true"
        )
    is_kept = ~np.isin(classes, small)
    kept = [np.unique(column, return_inverse=True)[1] for column in labels[is_kept].T]
    return manifest.where(pl.lit(pl.Series(is_kept))), np.stack(kept, 1).astype(np.int64)


def create_recipe_loss(recipe: Recipe, embedding_dim: int, class_counts: list[int], trust: bool = False) -> nn.Module:
    """The recipe's loss; the options that follow from data and model, such as ``n_classes``, are filled in."""
    known = {
        "n_classes": class_counts[0],
        "n_levels": len(class_counts),
        "class_counts": class_counts,
        "embedding_dim": embedding_dim,
    }
    loss = _loss_with(recipe, known, trust)
    _try_loss(loss, embedding_dim, torch.zeros(2, len(class_counts), dtype=torch.int64))
    return loss


def create_codes_loss(recipe: Recipe, embedding_dim: int, codes: ItemCodes, trust: bool = False) -> nn.Module:
    """The recipe's loss on images with several codes, which are known by their numbers."""
    section = recipe.loss
    if section.queries_at_once is not None or section.proxies == "means":
        key = "loss.queries_at_once" if section.queries_at_once is not None else "loss.proxies='means'"
        raise InputError(f"{key} needs classes, one an image; remove it, or remove data.codes")
    options = loss_options(section.name, trust)
    if "relevance" in options and (given := [key for key in ("relevance", "alpha") if key in section.options()]):
        raise InputError(f"loss.{given[0]}: what images with several codes are worth is set by codes.alpha; move it there")
    known = {
        "n_classes": codes.counts[codes.level],
        "n_levels": len(codes.counts),
        "class_counts": codes.counts,
        "code_counts": codes.counts,
        "embedding_dim": embedding_dim,
    }
    loss = CodesLoss(_loss_with(recipe, known, trust), codes)
    _try_loss(loss, embedding_dim, torch.zeros(2, 1, dtype=torch.int64))
    return loss


def _loss_with(recipe: Recipe, known: dict[str, Any], trust: bool) -> nn.Module:
    filled_in = {option: known[option] for option in loss_options(recipe.loss.name, trust) if option in known}
    return create_loss(recipe.loss.name, trust, **filled_in | recipe.loss.options())


def _try_loss(loss: nn.Module, embedding_dim: int, labels: Tensor) -> None:
    """Call a copy of the loss, because a loss may keep batches; raises if an option does not fit."""
    copy.deepcopy(loss)(torch.eye(2, embedding_dim), labels)


def create_fabric(recipe: Recipe) -> Fabric:
    """One process, or those that ``torchrun`` started."""
    together, here = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy: Strategy | str = "auto"
    if recipe.sampler.batch_size % together:
        raise InputError(
            f"sampler.batch_size must be a multiple of the {together} processes, got {recipe.sampler.batch_size}"
        )
    if recipe.strategy == "fsdp":
        _check_shardable(recipe)
    if together > 1 and recipe.strategy == "fsdp":
        strategy = ModelParallelStrategy(shard, data_parallel_size=together, tensor_parallel_size=1)
    elif together > 1:
        # A frozen backbone has weights without a gradient, which processes would wait for.
        strategy = DDPStrategy(find_unused_parameters=recipe.schedule.warmup_epochs > 0)
    fabric = Fabric(
        accelerator="auto", devices=here, num_nodes=together // here, strategy=strategy, precision=recipe.precision
    )
    if together > 1 and "LT_CLI_USED" not in os.environ:  # `fabric run` has launched them
        fabric.launch()
    return fabric


def _check_shardable(recipe: Recipe) -> None:
    """Raise InputError naming the keys that do not work with sharded weights."""
    reasons = {
        "precision='16-mixed'": recipe.precision == "16-mixed",  # its loss scale would need all gradients together
        "compile=true": recipe.compile,
        f"model.adaptation={recipe.model.adaptation!r}": recipe.model.adaptation not in ("full", "lora"),
        "chunk_size='auto'": recipe.chunk_size == "auto",
    }
    if unfit := [reason for reason, holds in reasons.items() if holds]:
        raise InputError(f"strategy='fsdp' does not support {', '.join(unfit)}; use strategy='ddp'")


def whiten_projection(recipe: Recipe, encoder: Encoder, train_part: Manifest) -> None:
    """Initialise the projection with principal components of training images, preprocessed as in search."""
    n_images = len(train_part)
    drawn = np.random.default_rng(recipe.seed).choice(n_images, min(n_images, PCA_IMAGES), replace=False)
    features = pooled_features(encoder, _rows(train_part, drawn), recipe.data.n_workers)
    encoder.head.whiten(features.to(next(encoder.parameters()).device))


def pooled_features(encoder: Encoder, manifest: Manifest, n_workers: int) -> Tensor:
    """(N, C) pooled features of each image, preprocessed as in search; each process computes a part."""

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
    """The plan of a run, one ``name: value`` a line, with the same checks as training; writes nothing."""
    recipe = with_start(recipe)
    device = create_fabric(recipe).device
    parts = prepare_run(recipe, trust=trust)
    encoder, learner, loss, train_part, _, sampler, val_part, skipped, *_ = parts
    n_batches, epochs = len(sampler.batches(0)), recipe.schedule.epochs
    here = sampler.batch_size // n_processes()
    side = encoder.settings.preprocessing.crop
    loss.start_keys(learner)
    learner.to(device).train()
    image = torch.zeros(3, side, side, device=device)
    example = learner.resting(image[None])[0] if isinstance(learner, UpperEncoder) else image
    chunk = recipe.chunk_size
    found = " (auto: half of the free memory)" if chunk == "auto" else ""
    if chunk == "auto":
        chunk = fitting_chunk_size(learner, example, here)
    options = ", ".join(f"{key}={value!r}" for key, value in recipe.loss.options().items()) or "defaults"
    memory_items = 0 if loss.memory is None else loss.memory.size
    momentum = f", momentum {loss.momentum:.3g}" if loss.momentum else ""
    megabytes = _megabytes(recipe, learner, loss, example, here, min(chunk or here, here), memory_items * encoder.dim)
    lines = {
        "manifest": train_part.source,
        "training": _counts(train_part, parts),
        "validation": "none: the last epoch is kept" if val_part is None else _counts(val_part, parts),
        **({"skipped": f"{len(skipped)} unreadable images"} if skipped else {}),
        "decides": f"{recipe.validation.mode} {recipe.validation.metric}, every {recipe.validation.every} epoch(s)",
        "model": f"{recipe.model.backbone}, {side} px, {encoder.dim} dimensions, {_n_weights(encoder):,} trainable weights",
        "loss": f"{recipe.loss.name} ({options}), {_n_weights(loss):,} weights",
        "memory": f"{memory_items} items{momentum}" if memory_items else "none",
        "batches": f"{sampler.batch_size} images each, {n_batches} per epoch",
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


def _counts(manifest: Manifest, parts: RunParts) -> str:
    if parts.codes is not None and parts.relevance is not None:
        counts = [len(table.names) for table in code_tables(code_lists(manifest, parts.codes), parts.relevance.n_levels)]
        return f"{len(manifest.table)} images, {' < '.join(map(str, counts))} codes"
    classes = [str(int(column.max()) + 1) for column in manifest.labels().T]
    return f"{len(manifest.table)} images, {' < '.join(classes)} classes"


def _n_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def _megabytes(
    recipe: Recipe, learner: nn.Module, loss: nn.Module, image: Tensor, n_images: int, chunk: int, n_remembered: int
) -> dict[str, float]:
    """Memory of the parts of a run, each at its peak."""
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
