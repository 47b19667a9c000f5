"""A recipe to a trained encoder, top to bottom: prepare, loop, validate, save."""

import copy
import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.samplers import HardNegativeSampler, views_of
from sightline.data.transforms import Preprocessing, TrainTransform, Transform, train_transform
from sightline.evaluation.protocol import EACH_CODE, code_metric_names
from sightline.evaluation.result import Result, shown
from sightline.evaluation.tables import evaluate_table
from sightline.files import named_failures
from sightline.losses.state import start_epoch
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.models.stages import UpperEncoder
from sightline.ranking.nearest import hard_negatives
from sightline.training.account import account_of_run
from sightline.training.batch_loss import remember
from sightline.training.cached_features import CachedFeatures, cache_features, embed_features
from sightline.training.distributed import (
    any_process,
    load_optimizer_state,
    n_processes,
    own_part,
    process_number,
    whole_optimizer_state,
    whole_state,
)
from sightline.training.engine import Engine, create_optimizer, interruption, rate_factor
from sightline.training.large_batch import Examples, as_they_are, fitting_chunk_size
from sightline.training.logs import RunLog, RunProgress
from sightline.training.prepare import (
    RunParts,
    computed_in_parts,
    create_fabric,
    prepare_run,
    whiten_projection,
    with_start,
)
from sightline.training.recipe import Recipe, as_recipe
from sightline.training.run_folder import Position, RunFolder, environment, load_checkpoint, naming_misfits, save_checkpoint

TRAINED_SHARES = (0.0, 0.25, 0.5, 0.75)  # mixtures of start and trained weights to try, besides the trained ones (1)


def train(
    recipe: Recipe | str | Path,
    out: Path | str,
    resume: bool = False,
    show_progress: bool = False,
    max_minutes: float | None = None,
    trust: bool = False,
) -> Path:
    """Train an encoder from a recipe; two runs of one recipe on one machine give the same bits.

    The recipe and the images are checked before the run folder is created. SIGTERM saves a checkpoint and ends the run;
    ``resume`` continues it. Under ``torchrun`` the processes share each batch.

    ``resume`` with a larger ``schedule.epochs`` extends a finished run. With a constant or step schedule the result equals
    one longer run; a cosine or linear schedule is recomputed for the new number of epochs, so the learning rate rises
    again. Only the keys of :data:`~sightline.training.run_folder.MAY_CHANGE` may differ from the recipe of the run.

    Args:
        recipe: a recipe, the path of a recipe file, or the name of a shipped recipe.
        out: the run folder; must be new, or hold a run of the same recipe if ``resume`` is set.
        resume: continue from the last checkpoint; start from scratch if there is none.
        show_progress: draw a progress bar on standard error.
        max_minutes: stop after this time with a checkpoint to resume from; None for no limit.
        trust: import and run what the recipe names as ``package.module:Name``; otherwise such a name raises InputError.

    Returns:
        The folder of the trained encoder. It does not exist if the run was stopped before its first validation.
    """
    deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
    recipe = with_start(as_recipe(recipe))
    fabric, folder = create_fabric(recipe), RunFolder(out)
    folder.check(recipe, resume)
    parts = prepare_run(recipe, show_progress, trust)
    images = parts.image_facts()
    folder.check_images(images)
    if recipe.model.projection == "pca" and not folder.last_checkpoint.is_file():
        whiten_projection(recipe, parts.encoder.to(fabric.device), parts.train_part)
    fabric.barrier()  # every process has checked the folder before one writes
    with folder.begin(recipe, images, resume) if process_number() == 0 else nullcontext():
        fabric.barrier()
        with named_failures(folder.path):
            TrainingRun(fabric, recipe, folder, parts, deadline, show_progress).fit(trust)
    return folder.encoder


class TrainingRun:
    """A run on its devices, from its last checkpoint, if there is one, to its end.

    Args:
        fabric: devices, precision and processes.
        recipe: the recipe of the run.
        folder: the run folder, locked by the process that writes.
        parts: what :func:`~sightline.training.prepare.prepare_run` made of the recipe.
        deadline: time of ``time.monotonic()`` after which the run stops with a checkpoint.
        show_progress: draw progress bars on standard error.
    """

    progress: RunProgress
    is_interrupted: threading.Event
    log: RunLog | None

    def __init__(
        self,
        fabric: Fabric,
        recipe: Recipe,
        folder: RunFolder,
        parts: RunParts,
        deadline: float = math.inf,
        show_progress: bool = False,
    ) -> None:
        self.fabric, self.recipe, self.folder, self.parts, self.deadline = fabric, recipe, folder, parts, deadline
        self.is_writer = process_number() == 0
        self.show_progress = show_progress and self.is_writer
        self.encoder, self.loss, self.labels = parts.encoder, parts.loss, torch.from_numpy(parts.labels)
        self.images = ImageDataset.of(parts.train_part, _train_transform(recipe, self.encoder))
        self.loss.start_keys(parts.learner)
        self.position, state = self._restore()
        self.mined: list[list[int]] | None = state.get("mined")
        # Features of the frozen lower part, if there is one: the upper part learns from them.
        self.features = self._cache_features(parts.train_part, self.images.transform, recipe.model.n_views)
        self.val_features = self._cache_features(parts.val_part, self.encoder.settings.preprocessing)
        if recipe.validation.interpolate and not state and self.is_writer:
            self.encoder.save_pretrained(folder.start)
        fabric.barrier()  # every process has computed its part before one reads
        if self.loss.followers and not state:
            vectors = self._embed(self.encoder.to(fabric.device), parts.train_part, self.features)
            self.loss.move_proxies(torch.from_numpy(vectors), self.labels, step=1.0)
        # What is validated and saved: the encoder itself, or an unsharded copy of it.
        is_whole = fabric.world_size == 1 or recipe.strategy == "ddp"
        self.complete = self.encoder if is_whole else copy.deepcopy(self.encoder).to(fabric.device)
        learner = parts.learner
        module = fabric.setup_module(torch.compile(learner) if recipe.compile else learner)  # type: ignore[arg-type]
        self.loss.to(fabric.device)
        self.optimizer = create_optimizer(recipe.optimizer, self.encoder, self.loss)  # after: sharding makes new weights
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        chunk_size = state.get("chunk_size", recipe.chunk_size)
        if state:
            with naming_misfits(folder.last_checkpoint):
                load_optimizer_state(self.optimizer, state["optimizer"])
        elif chunk_size == "auto":
            example = self.images[0] if self.features is None else self.features.read([0], [0])[0]
            n_here = parts.sampler.batch_size // n_processes()
            chunk_size = fitting_chunk_size(learner.train(), example.to(fabric.device), n_here)
        optimizer = cast(Optimizer, fabric.setup_optimizers(self.optimizer))
        finished = self.images.finished if self.features is None else as_they_are
        clip_norm, after_step = recipe.optimizer.clip_norm, None
        if self.loss.keys is not None:
            after_step = partial(remember, fabric, self.loss, learner, chunk_size=chunk_size, finished=finished)
        self.engine = Engine(fabric, module, self.loss, optimizer, recipe.seed, clip_norm, chunk_size, finished, after_step)

    def _restore(self) -> tuple[Position, dict[str, Any]]:
        """Load encoder and loss from the last checkpoint; returns its position and its whole state."""
        file = self.folder.last_checkpoint
        if not file.is_file():
            return Position(), {}
        position, state = load_checkpoint(file)
        with naming_misfits(file):
            self.encoder.load_state_dict(state["encoder"])
            self.loss.load_state_dict(state["loss"])
            if scaling := state.get("precision"):
                self.fabric.strategy.precision.load_state_dict(scaling)
            if state["chunk_size"] is not None and (type(state["chunk_size"]) is not int or state["chunk_size"] < 1):
                raise ValueError(f"chunk_size is {state['chunk_size']!r}")
        return position, state

    def _cache_features(
        self, manifest: Manifest | None, transform: Transform | Preprocessing, n_views: int = 1
    ) -> CachedFeatures | None:
        learner = self.parts.learner.to(self.fabric.device)
        if manifest is None or not isinstance(learner, UpperEncoder):
            return None
        n_workers = self.recipe.data.n_workers
        return cache_features(learner, manifest, transform, n_views, n_workers, self.show_progress)

    def fit(self, trust: bool = False) -> None:
        """Train to the end, or until the run is asked to stop."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling guards against kernels that read uninitialised memory; none here does, and it costs a twelfth of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        is_stopped = False
        with (
            RunProgress(self.recipe.schedule.epochs, self.show_progress) as self.progress,
            interruption() as self.is_interrupted,
            self._open_log(trust) if self.is_writer else nullcontext() as self.log,
        ):
            if self.position.is_over(self.recipe):
                longer = "a larger schedule.epochs or validation.patience"
                self.progress.say(f"the run is finished; to train on, --resume with {longer}")
            while not is_stopped and not self.position.is_over(self.recipe):
                is_stopped = self._train_epoch()
            if not is_stopped and self.recipe.validation.interpolate:
                self._interpolate(trust)
            if is_stopped:
                self.progress.say(f"stopped at step {self.position.step}; to continue, repeat the command with --resume")

    def _open_log(self, trust: bool) -> AbstractContextManager[RunLog]:
        """Open the log, and record the environment in the run folder."""
        if changed := self.folder.record_environment(environment(self.fabric.device), self.position.step):
            self.progress.say(
                f"environment changed since the run began: {'; '.join(changed)}. The last bits may differ from an "
                "uninterrupted run; to avoid this, stop, restore the environment and resume"
            )
        return closing(RunLog(self.folder.path, self.position, self.recipe.loggers, trust))

    def _train_epoch(self) -> bool:
        """Train on the remaining batches of the epoch, validate and save; returns True if the run was asked to stop."""
        drawn, every = self._batches(), self.recipe.checkpoint_every
        if self.position.batch == 0:
            start_epoch(self.loss)
        for batch in self._load(drawn):
            self._train_batch(batch, len(drawn))
            if self.position.batch == len(drawn):  # the end of the epoch saves, after its validation
                break
            is_stopped = self._is_asked_to_stop()
            if is_stopped or (every and self.position.step % every == 0):
                self._save_checkpoint()
            if is_stopped:
                return True
        self.position = replace(self.position, epoch=self.position.epoch + 1, batch=0)
        self._keep_best()
        self._save_checkpoint(is_epoch=True)
        return not self.position.is_over(self.recipe) and self._is_asked_to_stop()

    def _batches(self) -> list[list[int]]:
        """The batches of the epoch; mined ones are kept, for a run that is stopped within the epoch."""
        sampler, epoch = self.parts.sampler, self.position.epoch
        if not isinstance(sampler, HardNegativeSampler):
            return sampler.batches(epoch)
        if self.position.batch == 0 or self.mined is None:
            if self.complete is not self.encoder:
                self.complete.load_state_dict(whole_state(self.encoder))
            vectors = torch.from_numpy(self._embed(self.complete, self.parts.train_part, self.features))
            classes = torch.from_numpy(sampler.classes)
            n = sampler.batch_size // self.recipe.sampler.per_class

            def find(rows: NDArray[np.int64]) -> NDArray[np.int64]:
                return hard_negatives(vectors[rows], classes[rows], vectors, classes, max(1, n - 1)).numpy()

            self.mined = sampler.mined(epoch, find)
        return self.mined

    def _load(self, drawn: list[list[int]]) -> Iterator[Examples]:
        """This process's part of the remaining batches of the epoch."""
        batches = [own_part(batch) for batch in drawn][self.position.batch :]
        views = [own_part(batch) for batch in views_of(drawn)[self.position.batch :]]
        seed = derived_seed(self.recipe.seed, self.position.epoch)
        if self.features is not None:
            return self._read_features(self.features, batches, views, seed)
        seeded = ImageDataset(self.images.images, self.images.transform, self.images.boxes, seed)
        loaded = load_batches(seeded, batches, self.recipe.data.n_workers, self.fabric.device, views=views, finish=False)
        return (Examples(pixels, self.labels[places], places) for pixels, places in loaded)

    def _read_features(
        self, features: CachedFeatures, batches: list[list[int]], views: list[list[int]], seed: int
    ) -> Iterator[Examples]:
        """Batches of cached features: in each epoch a random view of each image, and another one if it is repeated."""
        first_views = np.random.default_rng(seed).integers(features.n_views, size=len(features))
        for batch, again in zip(batches, views, strict=True):
            places = torch.tensor(batch)
            yield Examples(features.read(batch, first_views[batch] + again), self.labels[places], places)

    def _train_batch(self, batch: Examples, n_batches: int) -> None:
        """Set learning rates and frozen parts, update the weights, and log."""
        epoch = self.position.epoch + self.position.batch / n_batches
        schedule, proxy_left = self.recipe.schedule, self.recipe.optimizer.proxy_final_factor
        self.encoder.allow_gradients(backbone=epoch >= schedule.warmup_epochs)
        factors = [rate_factor(schedule, epoch, final_factor) for final_factor in (None, None, proxy_left)]
        for group, rate, factor in zip(self.optimizer.param_groups, self.rates, factors, strict=False):
            group["lr"] = rate * factor
        numbers = self.engine.step(batch, self.position.step)
        self.position = replace(self.position, batch=self.position.batch + 1, step=self.position.step + 1)
        self._record(self.position.epoch, numbers)
        self.progress.show(self.position, n_batches, self.parts.sampler.batch_size, numbers["loss"])

    def _record(self, epoch: int, numbers: dict[str, float]) -> None:
        if self.log is not None:
            self.log.write(self.position.step, epoch, numbers)

    def _is_asked_to_stop(self) -> bool:
        """Has any process passed the deadline or received SIGTERM?"""
        return any_process(time.monotonic() > self.deadline or self.is_interrupted.is_set())

    def _keep_best(self) -> None:
        """Validate if due, and save the encoder if it is the best; without validation images, save it in any case."""
        val_part, result = self.parts.val_part, None
        if self.complete is not self.encoder:
            self.complete.load_state_dict(whole_state(self.encoder))
        if val_part is not None:
            is_last = self.position.epoch == self.recipe.schedule.epochs
            if not is_last and self.position.epoch % self.recipe.validation.every:
                return
            result = self._validate(val_part)
        if self.is_writer and self.position.n_worse == 0:
            account = account_of_run(self.recipe, self.parts.train_part, val_part, result, self.position.epoch)
            self.complete.save_pretrained(self.folder.encoder, account)

    def _validate(self, manifest: Manifest) -> Result:
        """Measure the encoder, and update the best value in the position."""
        section = self.recipe.validation
        result = self._measure(self.complete, manifest)
        self._record(self.position.epoch - 1, {f"val/{name}": value for name, value in result.means.items()})
        mean = result.means[section.metric]
        self.progress.say(f"epoch {self.position.epoch}: validation {section.metric} {shown(section.metric, mean)}")
        is_better = section.is_better(mean, self.position.best)
        outcome = {"best": section.decisive(mean), "n_worse": 0} if is_better else {"n_worse": self.position.n_worse + 1}
        self.position = replace(self.position, **outcome)
        if self.position.n_worse == section.patience:
            self.progress.say(
                f"early stopping: no better {section.metric} in {section.patience} validations; to train on, --resume with "
                "a larger validation.patience"
            )
        return result

    def _interpolate(self, trust: bool) -> None:
        """Keep the mixture of start and trained weights that is best on the validation images.

        Weights fine-tuned from one start can be averaged; the average is often better than both on unseen classes
        (WiSE-FT). A share of 0 is the encoder before training.
        """
        self.fabric.barrier()  # the encoder is written
        encoder = Encoder.from_pretrained(self.folder.encoder, trust=trust)
        account, section, val_part = encoder.card, self.recipe.validation, self.parts.val_part
        if account is None or account.training is None or account.training.trained_share is not None or val_part is None:
            return  # mixed before this resume, or there are no validation images to choose with
        trained = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
        start = Encoder.from_pretrained(self.folder.start, trust=trust).state_dict()
        best_share, best, best_result, tried = 1.0, self.position.best, None, {}
        for share in TRAINED_SHARES:
            _mix_weights(encoder, start, trained, share)
            result = self._measure(encoder.to(self.fabric.device), val_part)
            tried[f"share {share:g}/{section.metric}"] = result.means[section.metric]
            if section.is_better(result.means[section.metric], best):
                best_share, best, best_result = share, section.decisive(result.means[section.metric]), result
        said = f"weights: {best_share:.0%} trained, {1 - best_share:.0%} start"
        self.progress.say(f"{said}; validation {section.metric} {shown(section.metric, best or 0.0)}")
        self._record(self.position.epoch - 1, tried)
        if self.is_writer:
            _mix_weights(encoder, start, trained, best_share)
            args = (self.recipe, self.parts.train_part, val_part, best_result, account.training.epoch)
            measured = account if best_result is None else account_of_run(*args)
            training = account.training.model_copy(update={"trained_share": best_share})
            encoder.cpu().save_pretrained(self.folder.encoder, measured.model_copy(update={"training": training}))

    def _measure(self, encoder: Encoder, manifest: Manifest) -> Result:
        """Validation metrics; the average precision of each code costs most, and is computed only where it decides."""
        table = EmbeddingTable(manifest, self._embed(encoder, manifest, self.val_features), encoder.fingerprint())
        section, codes, relevance = self.recipe.validation, self.parts.codes, self.parts.relevance
        if relevance is None:
            return evaluate_table(table, section.ks)
        measured = code_metric_names(section.ks, relevance.n_levels)
        wanted = [name for name in measured if name != EACH_CODE or name == section.metric]
        return evaluate_table(table, section.ks, metrics=wanted, codes=codes, relevance=relevance)

    def _embed(self, encoder: Encoder, manifest: Manifest, features: CachedFeatures | None) -> NDArray[np.float32]:
        """(N, D) embeddings of some images, from cached features or from pixels; each process computes a part."""
        n_workers, learner = self.recipe.data.n_workers, self.parts.learner
        if features is None:
            # By torch: weights that change with every step are not worth an export.
            return computed_in_parts(
                manifest, lambda part: embed_manifest(encoder, part, n_workers=n_workers, backend="torch").vectors
            )
        if encoder is not self.encoder:
            learner = UpperEncoder(encoder, self.recipe.model.adaptation)
        return embed_features(cast(UpperEncoder, learner), features)

    def _save_checkpoint(self, is_epoch: bool = False) -> None:
        """Save a checkpoint; all processes call it, one writes."""
        state = {
            "encoder": whole_state(self.encoder),
            "loss": self.loss.state_dict(),
            "optimizer": whole_optimizer_state(self.optimizer),
            "precision": self.fabric.strategy.precision.state_dict(),  # its loss scale, where it has one
            "chunk_size": self.engine.chunk_size,
        } | ({} if self.mined is None else {"mined": self.mined})
        epoch, keep_every = self.position.epoch, self.recipe.keep_every
        kept = [self.folder.checkpoint_of(epoch)] if is_epoch and keep_every and epoch % keep_every == 0 else []
        # last.pt is written last: a run that is killed between the two writes both again.
        for file in [*kept, self.folder.last_checkpoint] if self.is_writer else ():
            save_checkpoint(file, self.position, state)


def _mix_weights(encoder: Encoder, start: dict[str, Tensor], trained: dict[str, Tensor], share: float) -> None:
    """Load a mixture of start and trained weights into the encoder; integer tensors are the trained ones."""
    mixed = {name: torch.lerp(start[name], end, share) if end.is_floating_point() else end for name, end in trained.items()}
    encoder.load_state_dict(mixed)


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
