"""The packages that are not installed with Sightline are tested where they are."""

import importlib.util
import json

import pytest

from sightline.errors import InputError
from sightline.training.checkpoint import Position
from sightline.training.loggers import LOGGERS, check_loggers
from sightline.training.logs import RunLog

IGNORED = pytest.mark.filterwarnings("ignore")  # what other packages warn of is theirs


def log_twice(folder, name):
    """Three steps, then from the second on again."""
    for steps, position in (((1, 2, 3), Position()), ((3, 4), Position(step=2))):
        log = RunLog(folder, position, (name,))
        for step in steps:
            log.write(step, 0, {"loss": 1 / step, "val/map@r": 0.5})
        log.close()


def test_a_logger_that_is_not_installed_is_refused_with_the_command(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("wandb", "mlflow") else found(name))
    check_loggers(("tensorboard",))
    with pytest.raises(InputError, match="loggers: wandb and mlflow not installed: pip install wandb mlflow"):
        check_loggers(("wandb", "tensorboard", "mlflow"))


def test_an_unknown_logger_is_refused():
    assert sorted(LOGGERS) == ["mlflow", "tensorboard", "wandb"]
    with pytest.raises(InputError, match="unknown logger 'wanbd': did you mean 'wandb'"):
        check_loggers(("wanbd",))


def test_a_file_where_tensorboard_writes_is_refused_by_name(tmp_path):
    (tmp_path / "tensorboard").write_text("a")
    with pytest.raises(InputError, match="tensorboard"):
        RunLog(tmp_path, Position(), ("tensorboard",))


def test_no_logger_leaves_the_table_alone(tmp_path):
    RunLog(tmp_path, Position()).close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@IGNORED
def test_wandb_keeps_its_run_when_resumed_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log_twice(tmp_path, "wandb")
    name = json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    files = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert files
    assert {file.stem for file in files} == {f"run-{name}"}
    assert b"val/map@r" in b"".join(file.read_bytes() for file in files)


@IGNORED
def test_mlflow_keeps_its_run_when_resumed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    log_twice(tmp_path, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=str(tmp_path / "mlruns"))
    run = json.loads((tmp_path / "loggers.json").read_text())["mlflow"]
    assert [metric.step for metric in client.get_metric_history(run, "loss")] == [1, 2, 3, 3, 4]
    assert client.get_metric_history(run, "val/map_at_r")[0].value == 0.5
    assert client.get_run(run).info.status == "FINISHED"
