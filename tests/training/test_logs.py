"""The log of a run and its trackers; packages that are not installed with Sightline are tested where they are."""

import importlib.util
import json
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from refusals import assert_refused
from sightline.training.logs import RunLog, RunProgress, check_trackers, read_log
from sightline.training.run_folder import Position


def write(folder, steps, position=None, name="tensorboard"):
    log = RunLog(folder, position or Position(), (name,))
    for step in steps:
        log.write(step, (step - 1) // 2, {"loss": 1 / step, "val/map@r": 0.5})
    log.close()
    return folder / "log.csv"


def test_what_is_written_is_read_to_the_last_bit(tmp_path):
    assert read_log(tmp_path / "log.csv") == []
    log = RunLog(tmp_path, Position())
    log.write(1, 0, {"loss": 0.1 + 0.2, "val/map@r": 1e-300, "nan": math.nan})
    log.write(2, 1, {"loss": np.float64(1 / 3)})  # a float to every caller, but not to repr()
    rows = read_log(tmp_path / "log.csv")  # before it is closed: a run can be watched
    log.close()
    assert rows[:2] == [(1, 0, "loss", 0.1 + 0.2), (1, 0, "val/map@r", 1e-300)]
    assert math.isnan(rows[2][3])
    assert rows[3:] == [(2, 1, "loss", 1 / 3)]
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "step,epoch,name,value"


def test_a_resumed_log_is_that_of_a_run_that_never_stopped_and_a_new_run_forgets_it(tmp_path):
    whole = write(tmp_path / "whole", range(1, 7))
    write(tmp_path / "resumed", range(1, 6))
    resumed = write(tmp_path / "resumed", range(4, 7), Position(epoch=1, batch=1, step=3))
    assert resumed.read_bytes() == whole.read_bytes()
    log = RunLog(tmp_path, Position())
    log.write(0, 0, {"val/map": 0.5})
    log.write(1, 0, {"loss": 0.5})
    log.close()
    assert [row[0] for row in read_log(write(tmp_path, [1]))] == [1, 1]


@pytest.mark.parametrize("n_cut", [1, 2, 13, 30])
def test_a_last_row_cut_off_by_a_crash_is_left_out(n_cut, tmp_path):
    file = write(tmp_path, range(1, 4))
    written, before = file.read_bytes(), read_log(file)
    file.write_bytes(written[:-n_cut])
    whole = before[: written[:-n_cut].count(b"\n") - 1]
    assert len(whole) < len(before)
    assert read_log(file) == whole
    write(tmp_path, [4], Position(step=3))
    assert read_log(file) == [*whole, (4, 1, "loss", 0.25), (4, 1, "val/map@r", 0.5)]


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path, monkeypatch):
    write(tmp_path, range(1, 6))
    # Files are read in the order of their names, which hold the second: a run does not resume in the one it stopped in.
    later = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + 60})
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", later)
    write(tmp_path, range(4, 7), Position(step=3))
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    events = shown.Scalars("loss")
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events] == pytest.approx([1 / step for step in range(1, 7)])


def test_progress_goes_to_standard_error_and_only_if_wanted(capsys):
    for shown in (False, True):
        with RunProgress(n_epochs=4, shown=shown) as progress:
            progress.show(Position(epoch=1, batch=1, step=4), n_batches=3, n_images=8, loss=0.1234)
            progress.say("epoch 1: validation [map@r] 12.0")
        out, err = capsys.readouterr()
        assert out == ""
        assert ("Epoch 2/4" in err and "4/12" in err and "loss 0.1234" in err) == shown
        assert ("validation [map@r] 12.0" in err) == shown
        if not shown:
            assert err == ""


@pytest.mark.parametrize("row", ["1,0,loss", "a,0,loss,0.5", "1,0,loss,much", "", "1" * 5000 + ",0,loss,1", '"', "\0"])
def test_a_row_that_is_none_is_named_by_its_line(tmp_path, row):
    (tmp_path / "log.csv").write_bytes(b"step,epoch,name,value\r\n1,0,loss,0.5\r\n" + row.encode("latin-1") + b"\r\n")
    assert_refused(r"log\.csv: line 3: .*step, epoch, name", read_log, tmp_path / "log.csv")


def test_a_tracker_that_is_not_installed_or_cannot_write_is_refused(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("wandb", "mlflow") else found(name))
    check_trackers(("tensorboard",))
    assert_refused(r"loggers: .*pip install wandb mlflow", check_trackers, ("wandb", "tensorboard", "mlflow"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_refused("pip install tensorboard", check_trackers, ("tensorboard",))
    monkeypatch.undo()
    (tmp_path / "tensorboard").write_text("a")
    assert_refused("tensorboard", RunLog, tmp_path, Position(), ("tensorboard",))


IGNORED = pytest.mark.filterwarnings("ignore")  # what other packages warn of is theirs


@IGNORED
def test_wandb_keeps_its_run_when_resumed_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    write(tmp_path, (1, 2, 3), name="wandb")
    write(tmp_path, (3, 4), Position(step=2), "wandb")
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
    write(tmp_path, (1, 2, 3), name="mlflow")
    write(tmp_path, (3, 4), Position(step=2), "mlflow")
    client = mlflow.MlflowClient(tracking_uri=str(tmp_path / "mlruns"))
    run = json.loads((tmp_path / "loggers.json").read_text())["mlflow"]
    assert [metric.step for metric in client.get_metric_history(run, "loss")] == [1, 2, 3, 3, 4]
    assert client.get_metric_history(run, "val/map_at_r")[0].value == 0.5
    assert client.get_run(run).info.status == "FINISHED"
