"""What a run reports: a CSV file, a progress bar, and trackers (TensorBoard, Weights & Biases, MLflow).

Trackers work if they are installed; Sightline does not depend on them. The ids of runs of the last two are kept in
``loggers.json``, so that a resumed run continues them; steps repeated after a crash appear twice.
"""

import csv
import importlib
import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.errors import InputError
from sightline.files import read_json_object, replaced, write_text
from sightline.progress import in_notebook, notebook_bar, printable
from sightline.registry import Registry
from sightline.training.run_folder import Position, RunFolder

COLUMNS = ("step", "epoch", "name", "value")
TERM = "term/"  # prefix of the name of a term of the loss


class RunLog:
    """Numbers by step, as rows ``step, epoch, name, value`` of ``log.csv`` and to trackers.

    Opened at a position, it drops the rows beyond it, so that the log of a resumed run equals that of an uninterrupted one.
    """

    def __init__(self, folder: Path, position: Position, trackers: tuple[str, ...] = (), trust: bool = False) -> None:
        self.file = RunFolder(folder).log_file
        rows = [row for row in read_log(self.file) if row[0] <= position.step and position.step > 0]
        with replaced(self.file) as scratch, scratch.open("w", newline="") as stream:
            csv.writer(stream).writerows([COLUMNS, *rows])
        self.trackers = [TRACKERS.create(name, {}, trust=trust, folder=folder, step=position.step) for name in trackers]
        self.stream = self.file.open("a", newline="")
        self.writer = csv.writer(self.stream)

    def write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Add the values of one step."""
        self.writer.writerows((step, epoch, name, repr(float(value))) for name, value in values.items())
        self.stream.flush()
        for tracker in self.trackers:
            tracker.write(step, values)

    def close(self) -> None:
        """Flush and close."""
        self.stream.close()
        for tracker in self.trackers:
            tracker.close()


def read_log(file: Path) -> list[tuple[int, int, str, float]]:
    """The complete rows of ``log.csv``; empty if there is no file. A last row cut off by a crash is left out.

    Any other row that is not step, epoch, name and value raises InputError.
    """
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    rows = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[1:-1], start=2):
        try:
            ((step, epoch, name, value),) = csv.reader([line])
            rows.append((int(step), int(epoch), name, float(value)))
        except (ValueError, csv.Error) as error:
            raise InputError(f"{file}: line {number}: must be step, epoch, name and value, got {line[:80]!r}") from error
    return rows


class RunProgress(Progress):
    """A progress bar with the loss, images per second and the time left."""

    def __init__(self, n_epochs: int, shown: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown or in_notebook(),
        )
        self.n_epochs = n_epochs
        self.bar = notebook_bar(None, "Training", None) if shown and in_notebook() else None
        self.task = self.add_task("", visible=False, loss=0.0, speed=0.0)  # until the first step
        self.since = time.monotonic()
        self.n_images = 0

    def show(self, position: Position, n_batches: int, n_images: int, loss: float) -> None:
        """One more step of an epoch of ``n_batches``."""
        self.n_images += n_images
        speed = self.n_images / max(1e-9, time.monotonic() - self.since)
        done, total = position.epoch * n_batches + position.batch, self.n_epochs * n_batches
        title = f"Epoch {position.epoch + 1}/{self.n_epochs}"
        if self.bar is not None:
            self.bar.total = total
            self.bar.set_description(title, refresh=False)
            self.bar.set_postfix_str(f"loss {loss:.4f}, {speed:.0f} images/s", refresh=False)
            self.bar.update(done - self.bar.n)
        self.update(self.task, visible=True, description=title, completed=done, total=total, loss=loss, speed=speed)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.write(printable(line), file=sys.stderr)
        elif not self.disable:
            self.console.print(printable(line), highlight=False, markup=False)

    def stop(self) -> None:
        """Close the bar."""
        super().stop()
        if self.bar is not None:
            self.bar.close()


class Tracker(Protocol):
    """Receives the numbers of each step; created with the run ``folder`` and the current ``step``."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add the values of one step."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Files in ``tensorboard/``; of repeated steps the later ones are shown."""

    package = "tensorboard"

    def __init__(self, folder: Path, step: int) -> None:
        written = RunFolder(folder).tensorboard
        if written.exists() and not written.is_dir():
            raise InputError(f"{written}: must be a folder for TensorBoard's files; delete or rename this file")
        loggers: Any = importlib.import_module("lightning_fabric.loggers.tensorboard")
        self.logger = loggers.TensorBoardLogger(written.parent, name=written.name, version="", purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        self.logger.log_metrics(values, step)

    def close(self) -> None:
        self.logger.finalize("success")


class WeightsAndBiases:
    """A run in ``wandb/``, offline unless ``WANDB_MODE=online`` is set; ``wandb sync`` uploads it."""

    package = "wandb"

    def __init__(self, folder: Path, step: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        self.run = wandb.init(
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", "sightline"),
            name=folder.name,
            id=_stored_id(folder, "wandb", lambda: uuid.uuid4().hex[:8]),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True),
        )
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run in ``mlruns/`` or at ``MLFLOW_TRACKING_URI``; ``@`` in a name becomes ``_at_``."""

    package = "mlflow"

    def __init__(self, folder: Path, step: int) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # required by versions that prefer a database
        self.mlflow: Any = importlib.import_module("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or str((folder / "mlruns").resolve())
        self.client = self.mlflow.MlflowClient(tracking_uri=uri)
        self.run = _stored_id(folder, "mlflow", lambda: self._new_run(folder.name))

    def _new_run(self, name: str) -> str:
        experiment = self.client.get_experiment_by_name("sightline")
        number = experiment.experiment_id if experiment else self.client.create_experiment("sightline")
        return str(self.client.create_run(number, run_name=name).info.run_id)

    def write(self, step: int, values: dict[str, float]) -> None:
        now, metric = int(time.time() * 1000), self.mlflow.entities.Metric
        metrics = [metric(name.replace("@", "_at_"), float(value), now, step) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: Registry[Tracker] = Registry(
    "tracker",
    {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow},
    "sightline.trackers",
    wanted="a class that takes folder and step",
)


def check_trackers(wanted: tuple[str, ...], trust: bool = False) -> None:
    """Raise InputError for trackers that do not exist or whose ``package`` is not installed."""
    packages = [getattr(TRACKERS.find(name, trust=trust), "package", None) for name in wanted]
    if missing := [package for package in packages if package and importlib.util.find_spec(package) is None]:
        raise InputError(f"loggers: {' and '.join(missing)} not installed: pip install {' '.join(missing)}")


def _stored_id(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    file = RunFolder(folder).trackers_file
    ids: dict[str, Any] = read_json_object(file, folder) if file.is_file() else {}
    if tracker not in ids:
        ids[tracker] = new()
        write_text(file, json.dumps(ids) + "\n")
    return str(ids[tracker])
