"""A recipe to a trained encoder, top to bottom: prepare, loop, validate, save."""

import copy
import math
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.samplers import views_of
from sightline.data.transforms import TrainTransform, train_transform
from sightline.evaluation.result import Result, shown
from sightline.evaluation.tables import evaluate_table
from sightline.files import named_failures
from sightline.losses.memory import start_epoch
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.training.account import account_of_run
from sightline.training.distributed import (
    agreed,
    load_optimizer_state,
    n_processes,
    own_part,
    process_number,
    whole_optimizer_state,
    whole_state,
)
from sightline.training.engine import Epoch, Loop, Schedule, create_optimizer, interruption
from sightline.training.large_batch import Examples, as_they_are, fitting_chunk_size
from sightline.training.logs import TERM, RunLog, RunProgress
from sightline.training.memory import BatchLoss, CrossBatchMemory
from sightline.training.prepare import (
    RunParts,
    computed_in_parts,
    create_fabric,
    pooled_features,
    prepare_run,
    whiten_projection,
)
from sightline.training.recipe import Recipe
from sightline.training.run_folder import Position, RunFolder, environment, load_checkpoint, naming_misfits, save_checkpoint


def train(
    recipe: Recipe,
    out: Path,
    resume: bool = False,
    show_progress: bool = False,
    max_minutes: float | None = None,
    trust: bool = False,
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
        trust: import and run what the recipe names as ``package.module:Name``; otherwise such a name is refused.

    Returns:
        The folder of the trained encoder; it is not there where the run was stopped before its first validation.
    """
    deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
    fabric, folder = create_fabric(recipe), RunFolder(out)
    folder.check(recipe, resume)
    parts = prepare_run(recipe, show_progress, trust)
    images = parts.image_facts()
    folder.check_images(images)
    if recipe.model.projection == "pca" and not folder.last_checkpoint.is_file():
        whiten_projection(recipe, parts.encoder.to(fabric.device), parts.train_part)
    fabric.barrier()  # nobody writes before all have looked
    is_writer = process_number() == 0
    with folder.held() if is_writer else nullcontext():
        if is_writer:
            folder.check(recipe, resume)  # another process may have been faster
            folder.begin(recipe, images)
        fabric.barrier()
        with named_failures(out):
            TrainingRun(fabric, recipe, folder, parts, deadline).fit(show_progress, trust)
    return folder.encoder


class TrainingRun:
    """A run on its devices, from its last checkpoint, if it has one, to its end.

    Args:
        fabric: devices, precision and processes.
        recipe: the whole run.
        folder: where it writes, held by the process of the run that writes.
        parts: what :func:`~sightline.training.prepare.prepare_run` made of the recipe.
        deadline: the moment of ``time.monotonic()`` after which it ends with a checkpoint.
    """

    progress: RunProgress
    is_interrupted: threading.Event
    log: RunLog | None

    def __init__(
        self, fabric: Fabric, recipe: Recipe, folder: RunFolder, parts: RunParts, deadline: float = math.inf
    ) -> None:
        self.fabric, self.recipe, self.folder, self.parts, self.deadline = fabric, recipe, folder, parts, deadline
        self.is_writer = process_number() == 0
        self.encoder, self.labels, self.schedule = parts.encoder, torch.from_numpy(parts.labels), Schedule(recipe.schedule)
        self.images = ImageDataset.of(parts.train_part, _train_transform(recipe, self.encoder))
        self.loss = self._loss_on_batches()
        self.position, chunk_size, optimizer_state = self._restore()
        # (N, C) what a frozen backbone sees of each image: the head alone learns.
        self.features = self._pool(parts.train_part) if recipe.model.adaptation == "frozen" else None
        self.val_features = None if self.features is None or parts.val_part is None else self._pool(parts.val_part)
        learner: nn.Module = self.encoder if self.features is None else self.encoder.head
        # What is validated and saved: the encoder itself, or a whole one beside the parts that learn.
        is_whole = fabric.world_size == 1 or recipe.strategy == "ddp"
        self.complete = self.encoder if is_whole else copy.deepcopy(self.encoder).to(fabric.device)
        self.module = fabric.setup_module(torch.compile(learner) if recipe.compile else learner)  # type: ignore[arg-type]
        self.loss.to(fabric.device)
        self.optimizer = create_optimizer(recipe.optimizer, self.encoder, parts.loss)  # after: sharding makes new weights
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        if optimizer_state is not None:
            with naming_misfits(folder.last_checkpoint):
                load_optimizer_state(self.optimizer, optimizer_state)
        if chunk_size == "auto":
            example = self.images[0] if self.features is None else self.features[0]
            n_here = parts.sampler.batch_size // n_processes()
            chunk_size = fitting_chunk_size(learner.train(), example.to(fabric.device), n_here)
        self.chunk_size = chunk_size

    def _loss_on_batches(self) -> BatchLoss:
        """The loss with the memory that the recipe asks for."""
        size, share = self.recipe.memory.size, self.recipe.memory.share
        if size is None:
            return BatchLoss(self.parts.loss)
        n_images, n_levels = self.labels.shape
        memory = CrossBatchMemory(n_images if size == "all" else size, self.encoder.dim, n_levels)
        start = self.recipe.memory.start_epoch * len(self.parts.sampler.batches(0))
        return BatchLoss(self.parts.loss, memory, start, share)

    def _restore(self) -> tuple[Position, Any, dict[str, Any] | None]:
        """Give encoder and loss the state of the last checkpoint; the rest of it: position, chunk size, optimizer."""
        if not self.folder.last_checkpoint.is_file():
            return Position(), self.recipe.chunk_size, None
        position, state = load_checkpoint(self.folder.last_checkpoint)
        with naming_misfits(self.folder.last_checkpoint):
            self.encoder.load_state_dict(state["encoder"])
            self.loss.load_state_dict(state["loss"])
            if scaling := state.get("precision"):
                self.fabric.strategy.precision.load_state_dict(scaling)
            chunk_size = state["chunk_size"]
            if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
                raise ValueError(f"chunk_size is {chunk_size!r}")
            return position, chunk_size, state["optimizer"]

    def _pool(self, manifest: Manifest) -> Tensor:
        return pooled_features(self.encoder.to(self.fabric.device), manifest, self.recipe.data.n_workers)

    def fit(self, show_progress: bool = False, trust: bool = False) -> None:
        """Train to the end, or to where the run is asked to end."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        # A guard against kernels that read what nobody wrote; none here does, and it takes a twelfth of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        loop = Loop(
            self.fabric,
            self.module,
            self.loss,
            cast(Optimizer, self.fabric.setup_optimizers(self.optimizer)),
            self.recipe.seed,
            self.recipe.optimizer.clip_norm,
            self.chunk_size,
            as_they_are if self.features is not None else self.images.finished,
        )
        n_epochs = self.recipe.schedule.epochs
        with (
            RunProgress(n_epochs, show_progress and self.is_writer) as self.progress,
            interruption() as self.is_interrupted,
            self._open_log(trust) as self.log,
        ):
            loop.fit(0 if self._is_over(self.position) else n_epochs, self, self.position)

    def _open_log(self, trust: bool) -> AbstractContextManager[RunLog | None]:
        """The log of the process that writes, which also notes what it runs on."""
        if not self.is_writer:
            return nullcontext()
        here, step = environment(self.fabric.device), self.position.step
        for changed in self.folder.record_environment(here, step):
            self.progress.say(f"not as when the run began: {changed}")
        return closing(RunLog(self.folder.path, self.position, self.recipe.loggers, trust))

    def epoch_from(self, epoch: int, first: int) -> Epoch:
        """This process's part of the epoch's batches, from the given one on."""
        drawn = self.parts.sampler.batches(epoch)
        batches = [own_part(batch) for batch in drawn]
        if self.features is not None:
            features, parts = self.features, (torch.tensor(batch) for batch in batches[first:])
            return Epoch(len(batches), (Examples(features[places], self.labels[places], places) for places in parts))
        images, seed = self.images, derived_seed(self.recipe.seed, epoch)
        seeded = ImageDataset(images.images, images.transform, images.boxes, seed)
        views = [own_part(batch) for batch in views_of(drawn)[first:]]
        loaded = load_batches(
            seeded, batches[first:], self.recipe.data.n_workers, self.fabric.device, views=views, finish=False
        )
        return Epoch(len(batches), (Examples(pixels, self.labels[places], places) for pixels, places in loaded))

    def before_epoch(self) -> None:
        """Let the loss forget what must not outlive an epoch."""
        start_epoch(self.parts.loss)

    def before_step(self, epoch: float) -> None:
        """Set learning rates and what is frozen."""
        self.encoder.allow_gradients(backbone=not self.schedule.is_warmup(epoch))
        factor = self.schedule.factor(epoch)
        factors = [factor, factor, self.schedule.factor(epoch, self.recipe.optimizer.proxy_final_factor)]
        for group, rate, share in zip(self.optimizer.param_groups, self.rates, factors, strict=False):
            group["lr"] = rate * share

    def after_step(self, position: Position, n_batches: int, numbers: dict[str, float]) -> bool:
        """Write the step's numbers; save where it is time to."""
        terms = {f"{TERM}{name}": value.item() for name, value in self.loss.terms.items()}
        self._record(position, position.epoch, numbers | terms)
        self.progress.show(position, n_batches, self.parts.sampler.batch_size, numbers["loss"])
        if position.batch == n_batches:  # the end of the epoch saves, after its validation
            return False
        ended = self._is_asked_to_end()
        if ended or (self.recipe.checkpoint_every and position.step % self.recipe.checkpoint_every == 0):
            self._save_checkpoint(position)
        if ended:
            self.progress.say(f"stopped at step {position.step}: go on with --resume")
        return ended

    def after_epoch(self, position: Position) -> tuple[Position, bool]:
        """Validate, keep the encoder if it is the best, and save."""
        every, keep_every = self.recipe.validation.every, self.recipe.keep_every
        is_last = position.epoch == self.recipe.schedule.epochs
        if self.complete is not self.encoder:
            self.complete.load_state_dict(whole_state(self.encoder))
        result = None
        if self.parts.val_part is not None and (is_last or position.epoch % every == 0):
            position, result = self._validate(self.parts.val_part, position)
        if self.is_writer and (self.parts.val_part is None or (result is not None and position.n_worse == 0)):
            account = account_of_run(self.recipe, self.parts.train_part, self.parts.val_part, result, position.epoch)
            self.complete.save_pretrained(self.folder.encoder, account)
        self._save_checkpoint(position, keep=keep_every is not None and position.epoch % keep_every == 0)
        if self._is_over(position):
            patience, metric = self.recipe.validation.patience, self.recipe.validation.metric
            self.progress.say(f"no better {metric} in {patience} validations: the run ends")
            return position, True
        ended = self._is_asked_to_end() and not is_last
        if ended:
            self.progress.say(f"stopped at step {position.step}: go on with --resume")
        return position, ended

    def _record(self, position: Position, epoch: int, numbers: dict[str, float]) -> None:
        if self.log is not None:
            self.log.write(position.step, epoch, numbers)

    def _is_asked_to_end(self) -> bool:
        """Is the time over or a signal come, for any of the processes?"""
        return agreed(time.monotonic() > self.deadline or self.is_interrupted.is_set())

    def _is_over(self, position: Position) -> bool:
        """Has there been no better value for so many validations that the run ends?"""
        patience = self.recipe.validation.patience
        return patience is not None and position.n_worse >= patience

    def _validate(self, manifest: Manifest, position: Position) -> tuple[Position, Result]:
        """Measure the encoder; the position with what the deciding metric makes of it."""
        result = evaluate_table(self._embed(manifest), self.recipe.validation.ks)
        self._record(position, position.epoch - 1, {f"val/{name}": value for name, value in result.means.items()})
        metric, mean = self.recipe.validation.metric, result.means[self.recipe.validation.metric]
        self.progress.say(f"epoch {position.epoch}: validation {metric} {shown(metric, mean)}")
        value = 0.0 if math.isnan(mean) else mean  # how severe no mistake is
        sign = 1 if self.recipe.validation.mode == "max" else -1
        if position.best is None or sign * value > sign * position.best:
            return replace(position, best=value, n_worse=0), result
        return replace(position, n_worse=position.n_worse + 1), result

    def _embed(self, manifest: Manifest) -> EmbeddingTable:
        if self.val_features is None:
            vectors = computed_in_parts(
                manifest, lambda part: embed_manifest(self.complete, part, n_workers=self.recipe.data.n_workers).vectors
            )
        else:
            with torch.inference_mode():
                vectors = self.complete.head(self.val_features.to(self.fabric.device)).cpu().numpy()
        return EmbeddingTable(manifest, vectors, self.complete.fingerprint())

    def _save_checkpoint(self, position: Position, keep: bool = False) -> None:
        """Save what a resume reads; all processes call it, one writes."""
        state = {
            "encoder": whole_state(self.encoder),
            "loss": self.loss.state_dict(),
            "optimizer": whole_optimizer_state(self.optimizer),
            "precision": self.fabric.strategy.precision.state_dict(),  # its loss scale, where it has one
            "chunk_size": self.chunk_size,
        }
        # The last one last: a run that is killed between the two makes both again.
        files = [*([self.folder.checkpoint_of(position.epoch)] if keep else []), self.folder.last_checkpoint]
        for file in files if self.is_writer else ():
            save_checkpoint(file, position, state)


def _train_transform(recipe: Recipe, encoder: Encoder) -> TrainTransform:
    data = recipe.data
    return train_transform(
        encoder.settings.preprocessing,
        data.crop_area,
        data.flip,
        data.draft,
        data.colour_jitter,
        data.rotation,
        data.train_resize,
    )
