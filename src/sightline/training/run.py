"""A recipe to a trained encoder: joins data, model, loss, loop and validation in one run folder.

The folder holds ``recipe.json`` (every value, defaults included), ``images.json`` (which images, for a resume to find the
same), ``environment.json`` (what it ran on; ``resumes.log`` says what was different later), ``log.csv``, ``tensorboard/``,
``last.pt`` (what a resume reads), ``epoch-020.pt`` and the like where the recipe keeps some, and ``encoder/`` (the best so
far by the recipe's metric, or the last where nothing validates).
"""

import copy
import json
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.samplers import Sampler, views_of
from sightline.data.transforms import eval_transform, train_transform
from sightline.errors import InputError, names
from sightline.evaluation.result import shown
from sightline.evaluation.tables import evaluate_table
from sightline.files import locked, named_failures, read_json_object, replaced
from sightline.losses.memory import start_epoch
from sightline.models.card import DataFacts
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.training.account import account_of_run
from sightline.training.checkpoint import Position, load_checkpoint, naming_misfits, save_checkpoint
from sightline.training.distributed import agreed, gathered_objects, n_processes, own_part, process_number
from sightline.training.engine import Between, Epoch, Examples, fit
from sightline.training.environment import differences, environment, record_environment
from sightline.training.interruption import Interruption
from sightline.training.large_batch import as_they_are, fitting_chunk_size
from sightline.training.logs import TERM, RunLog, RunProgress
from sightline.training.optimization import Schedule, create_optimizer
from sightline.training.plan import plan
from sightline.training.prepare import fabric_of, parts_of_run, with_memory
from sightline.training.recipe import Recipe
from sightline.training.sharding import load_optimizer_state, whole_optimizer_state, whole_state

RECIPE_FILE, IMAGES_FILE, LAST_FILE, ENCODER_FOLDER = "recipe.json", "images.json", "last.pt", "encoder"
LOCK_FILE = ".lock"
PCA_IMAGES = 10_000  # from which a projection starts, at most


def train(
    recipe: Recipe, out: Path, resume: bool = False, show_progress: bool = False, max_minutes: float | None = None
) -> Path:
    """Train as the recipe says; two runs of one recipe on one machine give the same bits.

    Everything that can be wrong with the recipe or the images is found before the run folder is made. SIGTERM saves a
    checkpoint and ends the run; ``resume`` goes on with it. Under ``torchrun`` the processes share each batch.

    Args:
        recipe: the whole run.
        out: the run folder; must be new, or hold a run of the same recipe if ``resume`` is set.
        resume: go on from the last checkpoint there; from the start if there is none yet.
        show_progress: draw a progress bar on standard error.
        max_minutes: end after so long, with a checkpoint to resume from; None for no limit.

    Returns:
        The folder of the trained encoder; it is not there where the run was stopped before its first validation.
    """
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    fabric = fabric_of(recipe)
    _check_run_folder(recipe, out, resume)
    parts = parts_of_run(recipe, show_progress)
    told = _told_images(parts.train_part, parts.val_part)
    _check_images(told, out)
    fabric.barrier()  # nobody writes before all have looked
    with locked(out / LOCK_FILE, wait=False) if process_number() == 0 else nullcontext(True) as is_alone:
        if not is_alone:
            raise InputError(f"{out}: another process is training in this folder")
        if process_number() == 0:
            _check_run_folder(recipe, out, resume)  # another process may have been faster
        if recipe.model.projection == "pca" and not (out / LAST_FILE).is_file():
            _whiten(parts.encoder.to(fabric.device), parts.train_part, recipe)
        if process_number() == 0:
            with replaced(out / IMAGES_FILE) as scratch:
                scratch.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
            with replaced(out / RECIPE_FILE) as scratch:
                scratch.write_text(recipe.model_dump_json(indent=2) + "\n", encoding="utf-8")
        fabric.barrier()
        with named_failures(out):
            _run(fabric, recipe, out, *parts, show_progress, deadline)
    return out / ENCODER_FOLDER


def plan_run(recipe: Recipe) -> str:
    """What :func:`train` would do, checked as it would check it; nothing is written."""
    fabric = fabric_of(recipe)
    parts = parts_of_run(recipe, show_progress=False)
    return plan(recipe, fabric.device, parts.train_part, parts.val_part, parts.sampler, parts.encoder, parts.loss)


def untrained_encoder(recipe: Recipe) -> Encoder:
    """The pretrained features of a recipe's backbone, averaged and normalised, without a projection."""
    model, data = recipe.model, recipe.data
    return Encoder.create(
        model.backbone, None, "avg", model.weights, data.image_size, data.resize, seed=recipe.seed, stretch=data.stretch
    )


def _whiten(encoder: Encoder, train_part: Manifest, recipe: Recipe) -> None:
    """Start the encoder's projection from principal components of some training images, seen as in search."""
    n_images = len(train_part.table)
    drawn = np.random.default_rng(recipe.seed).choice(n_images, min(n_images, PCA_IMAGES), replace=False)
    part = train_part.where(pl.lit(pl.Series(np.isin(np.arange(n_images), drawn))))
    encoder.head.whiten(_pooled(encoder, part, recipe.data.n_workers).to(next(encoder.parameters()).device))


def _pooled(encoder: Encoder, manifest: Manifest, n_workers: int) -> Tensor:
    """(N, C) what the encoder's head is given of each image, seen as in search; each process computes a part."""
    own = np.array_split(np.arange(len(manifest.table)), n_processes())[process_number()]
    part = manifest.where(pl.lit(pl.Series(np.isin(np.arange(len(manifest.table)), own))))
    images = ImageDataset.of(part, eval_transform(encoder.settings.preprocessing))
    pooled = encoder.pool_dataset(images, n_workers=n_workers)
    return torch.from_numpy(np.concatenate(gathered_objects(pooled)) if n_processes() > 1 else pooled)


def _check_run_folder(recipe: Recipe, out: Path, resume: bool) -> None:
    if not out.exists():
        return
    if out.is_dir() and (links := sorted(path.name for path in out.iterdir() if path.is_symlink())):
        raise InputError(f"{out}: a run folder has no links, found {names(links)}; they are not followed")
    if out.is_dir() and all(path.name == IMAGES_FILE or path.name.startswith(".") for path in out.iterdir()):
        return  # empty, or of a run that was killed before its recipe was written
    if not (out / RECIPE_FILE).is_file():
        raise InputError(f"{out}: exists and is not a run folder; it is left as it is")
    if not resume:
        raise InputError(f"{out}: holds a run already; give --resume to go on with it, or another folder")
    stored = read_json_object(out / RECIPE_FILE, out)
    asked = json.loads(recipe.model_dump_json()) | {"strategy": stored.get("strategy")}  # which may change
    if changed := differences(stored, asked):
        raise InputError(f"{out}: its run has another recipe: {'; '.join(changed)}")


def _told_images(train_part: Manifest, val_part: Manifest | None) -> dict[str, Any]:
    """What a run that goes on must find again: how many images, of which classes, and a hash of the rows."""
    parts = {"train": train_part} | ({} if val_part is None else {"val": val_part})
    facts = {name: DataFacts.of(part) for name, part in parts.items()}
    return {
        name: {"images": one.n_images, "classes": list(one.n_classes), "rows": one.sha256[:12]}
        for name, one in facts.items()
    }


def _check_images(told: dict[str, Any], out: Path) -> None:
    """Refuse to go on with other images: what was trained on before might be validated with now."""
    is_begun = (out / RECIPE_FILE).is_file() and (out / IMAGES_FILE).is_file()
    if is_begun and (changed := differences(read_json_object(out / IMAGES_FILE, out), told)):
        raise InputError(f"{out}: its run has other images: {'; '.join(changed)}")


def _run(
    fabric: Fabric,
    recipe: Recipe,
    out: Path,
    encoder: Encoder,
    loss: nn.Module,
    train_part: Manifest,
    labels: NDArray[np.int64],
    sampler: Sampler,
    val_part: Manifest | None,
    show_progress: bool,
    deadline: float | None = None,
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A guard against kernels that read what nobody wrote; none here does, and it takes a twelfth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    batches_an_epoch = len(sampler.batches(0))
    listed = with_memory(recipe, loss, encoder.dim, labels, batches_an_epoch)
    position, chunk_size = Position(), recipe.chunk_size
    optimizer_state = None
    if (out / LAST_FILE).is_file():
        position, state = load_checkpoint(out / LAST_FILE)
        with naming_misfits(out / LAST_FILE):
            encoder.load_state_dict(state["encoder"])
            listed.load_state_dict(state["loss"])
            optimizer_state, chunk_size = state["optimizer"], state["chunk_size"]
            if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
                raise ValueError(f"chunk_size is {chunk_size!r}")
            if scaling := state.get("precision"):
                fabric.strategy.precision.load_state_dict(scaling)
    seen: Tensor | None = None  # by a backbone that is frozen
    learner: nn.Module = encoder
    if recipe.model.adaptation == "frozen":
        seen, learner = _pooled(encoder.to(fabric.device), train_part, recipe.data.n_workers), encoder.head
    model: nn.Module = torch.compile(learner) if recipe.compile else learner  # type: ignore[assignment]
    # What is validated and saved: the encoder itself, or a whole one beside the parts that learn.
    complete = encoder if fabric.world_size == 1 or recipe.strategy == "ddp" else copy.deepcopy(encoder).to(fabric.device)
    module = fabric.setup_module(model)
    listed = listed.to(fabric.device)
    optimizer = create_optimizer(recipe.optimizer, encoder, loss)  # after: sharding makes new weights
    if optimizer_state is not None:
        with naming_misfits(out / LAST_FILE):
            load_optimizer_state(optimizer, optimizer_state)
    wrapped = cast(Optimizer, fabric.setup_optimizers(optimizer))
    all_labels = torch.from_numpy(labels)
    transform = train_transform(
        encoder.settings.preprocessing,
        recipe.data.crop_area,
        recipe.data.flip,
        recipe.data.draft,
        recipe.data.colour_jitter,
        recipe.data.rotation,
        recipe.data.train_resize,
    )
    images = ImageDataset.of(train_part, transform)
    if chunk_size == "auto":
        learner.train()
        example = images[0] if seen is None else seen[0]
        chunk_size = fitting_chunk_size(learner, example.to(fabric.device), sampler.batch_size // n_processes())
    schedule = Schedule(recipe.schedule)
    is_writer = process_number() == 0

    def save(position: Position, keep: bool = False) -> None:
        state = {"encoder": whole_state(encoder), "loss": listed.state_dict()}
        state["optimizer"] = whole_optimizer_state(optimizer)
        state["precision"] = fabric.strategy.precision.state_dict()  # its loss scale, where it has one
        # The last one last: a run that is killed between the two makes both again.
        files = [out / f"epoch-{position.epoch:03}.pt", out / LAST_FILE] if keep else [out / LAST_FILE]
        for file in files if is_writer else ():
            save_checkpoint(file, position, state | {"chunk_size": chunk_size})

    def epoch_from(epoch: int, first: int) -> Epoch:
        drawn = sampler.batches(epoch)
        batches = [own_part(batch) for batch in drawn]
        if seen is not None:
            parts = (torch.tensor(batch) for batch in batches[first:])
            return Epoch(len(batches), (Examples(seen[places], all_labels[places], places) for places in parts))
        seeded = ImageDataset(images.images, transform, images.boxes, seed=derived_seed(recipe.seed, epoch))
        views = [own_part(batch) for batch in views_of(drawn)[first:]]
        loaded = load_batches(seeded, batches[first:], recipe.data.n_workers, fabric.device, views=views, finish=False)
        return Epoch(len(batches), (Examples(pixels, all_labels[places], places) for pixels, places in loaded))

    def before_epoch() -> None:
        start_epoch(loss)

    val_seen = None if seen is None or val_part is None else _pooled(complete, val_part, recipe.data.n_workers)

    def embedded(val_part: Manifest) -> EmbeddingTable:
        if val_seen is None:
            return _embedded_together(complete, val_part, recipe.data.n_workers)
        with torch.inference_mode():
            vectors = complete.head(val_seen.to(fabric.device)).cpu().numpy()
        return EmbeddingTable(val_part, vectors, complete.fingerprint())

    rates = [group["lr"] for group in create_optimizer(recipe.optimizer, encoder, loss).param_groups]

    def before_step(epoch: float) -> None:
        encoder.allow_gradients(backbone=not schedule.is_warmup(epoch))
        factors = [schedule.factor(epoch)] * 2 + [schedule.factor(epoch, recipe.optimizer.proxy_final_factor)]
        for group, rate, factor in zip(optimizer.param_groups, rates, factors, strict=False):
            group["lr"] = rate * factor

    with RunProgress(recipe.schedule.epochs, show_progress and is_writer) as progress, Interruption() as interruption:
        log = RunLog(out, position, recipe.loggers) if is_writer else None
        if is_writer:
            for stale in out.glob(".*.pt.*"):  # of a run that was killed while it saved
                stale.unlink()
            for changed in record_environment(out, environment(fabric.device), position.step):
                progress.say(f"not as when the run began: {changed}")

        def after_step(position: Position, n_batches: int, numbers: dict[str, float]) -> bool:
            if log is not None:
                terms = {f"{TERM}{name}": value.item() for name, value in listed.terms.items()}
                log.write(position.step, position.epoch, numbers | terms)
            progress.show(position, n_batches, sampler.batch_size, numbers["loss"])
            if position.batch == n_batches:  # the end of the epoch saves, after its validation
                return False
            late = deadline is not None and time.monotonic() > deadline
            ended = agreed(late or interruption.asked)
            if ended or (recipe.checkpoint_every and position.step % recipe.checkpoint_every == 0):
                save(position)
            if ended:
                progress.say(f"stopped at step {position.step}: go on with --resume")
            return ended

        def is_over(position: Position) -> bool:
            return recipe.validation.patience is not None and position.n_worse >= recipe.validation.patience

        def after_epoch(position: Position) -> tuple[Position, bool]:
            is_last = position.epoch == recipe.schedule.epochs
            improved = val_part is None
            result = None
            if complete is not encoder:
                complete.load_state_dict(whole_state(encoder))
            if val_part is not None and (is_last or position.epoch % recipe.validation.every == 0):
                result = evaluate_table(embedded(val_part), recipe.validation.ks)
                means = result.means
                if log is not None:
                    log.write(position.step, position.epoch - 1, {f"val/{name}": value for name, value in means.items()})
                metric = recipe.validation.metric
                progress.say(f"epoch {position.epoch}: validation {metric} {shown(metric, means[metric])}")
                value = 0.0 if math.isnan(means[metric]) else means[metric]  # how severe no mistake is
                sign = 1 if recipe.validation.mode == "max" else -1
                improved = position.best is None or sign * value > sign * position.best
                position = replace(
                    position,
                    best=value if improved else position.best,
                    n_worse=0 if improved else position.n_worse + 1,
                )
            if improved and is_writer:
                account = account_of_run(recipe, train_part, val_part, result, position.epoch)
                complete.save_pretrained(out / ENCODER_FOLDER, account)
            save(position, keep=recipe.keep_every is not None and position.epoch % recipe.keep_every == 0)
            if is_over(position):
                progress.say(
                    f"no better {recipe.validation.metric} in {recipe.validation.patience} validations: the run ends"
                )
                return position, True
            late = deadline is not None and time.monotonic() > deadline
            ended = agreed(late or interruption.asked) and not is_last
            if ended:
                progress.say(f"stopped at step {position.step}: go on with --resume")
            return position, ended

        try:
            fit(
                fabric,
                module,
                listed,
                wrapped,
                range(0 if is_over(position) else recipe.schedule.epochs),
                epoch_from,
                Between(before_epoch, before_step, after_step, after_epoch),
                position,
                recipe.seed,
                recipe.optimizer.clip_norm,
                chunk_size,
                as_they_are if seen is not None else images.finished,
            )
        finally:
            if log is not None:
                log.close()


def _embedded_together(encoder: Encoder, manifest: Manifest, n_workers: int) -> EmbeddingTable:
    """The manifest's vectors, each process embedding a part."""
    if n_processes() == 1:
        return embed_manifest(encoder, manifest, n_workers=n_workers)
    parts = np.array_split(np.arange(len(manifest.table)), n_processes())
    own = np.isin(np.arange(len(manifest.table)), parts[process_number()])
    part = embed_manifest(encoder, manifest.where(pl.lit(pl.Series(own))), n_workers=n_workers)
    return EmbeddingTable(manifest, np.concatenate(gathered_objects(part.vectors)), part.fingerprint)
