"""Where numbers of a run go besides its CSV file: TensorBoard, Weights & Biases, MLflow.

The last two are used where they are installed; Sightline does not depend on them. What identifies their run is kept in
``loggers.json``, so that a resumed run goes on with it; steps made again after a crash are then there twice.
"""

import importlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from sightline.errors import InputError, choose
from sightline.files import read_json_object, replaced

IDS_FILE = "loggers.json"


class Logger(Protocol):
    """Takes the numbers of a step."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add the values of one step."""

    def close(self) -> None:
        """Write what is still held back."""


class TensorBoard:
    """Files in ``tensorboard/``; of steps made again the later ones are shown."""

    def __init__(self, folder: Path, step: int) -> None:
        if (folder / "tensorboard").exists() and not (folder / "tensorboard").is_dir():
            raise InputError(f"{folder / 'tensorboard'}: not a folder; TensorBoard's files go into one")
        self.logger = TensorBoardLogger(folder, name="tensorboard", version="", purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        self.logger.log_metrics(values, step)

    def close(self) -> None:
        self.logger.finalize("success")


class WeightsAndBiases:
    """A run in ``wandb/``, without a network unless ``WANDB_MODE=online`` is set; ``wandb sync`` uploads it."""

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
    """A run in the files of ``mlruns/``, or where ``MLFLOW_TRACKING_URI`` says; ``@`` in a name becomes ``_at_``."""

    def __init__(self, folder: Path, step: int) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # asked for by versions that prefer a data base
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


LOGGERS: dict[str, Callable[[Path, int], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def check_loggers(wanted: tuple[str, ...]) -> None:
    """Refuse loggers that do not exist or are not installed."""
    for name in wanted:
        choose(LOGGERS, name, "logger")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"loggers: {' and '.join(missing)} not installed: pip install {' '.join(missing)}")


def open_loggers(wanted: tuple[str, ...], folder: Path, step: int) -> list[Logger]:
    """The loggers of a run that stands at a step."""
    return [LOGGERS[name](folder, step) for name in wanted]


def _stored_id(folder: Path, logger: str, new: Callable[[], str]) -> str:
    file = folder / IDS_FILE
    ids: dict[str, Any] = read_json_object(file, folder) if file.is_file() else {}
    if logger not in ids:
        ids[logger] = new()
        with replaced(file) as scratch:
            scratch.write_text(json.dumps(ids) + "\n")
    return str(ids[logger])
