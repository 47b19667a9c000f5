import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sightline.errors import InputError
from sightline.training.checkpoint import Position
from sightline.training.logs import RunLog, RunProgress, read_log


def write(folder, steps, position=None):
    log = RunLog(folder, position or Position(), ("tensorboard",))
    for step in steps:
        log.write(step, (step - 1) // 2, {"loss": 1 / step, "lr": 0.1})
    log.close()
    return folder / "log.csv"


def test_what_is_written_is_read_to_the_last_bit(tmp_path):
    log = RunLog(tmp_path, Position())
    log.write(1, 0, {"loss": 0.1 + 0.2, "val/map@r": 1e-300, "nan": math.nan})
    log.write(2, 1, {"loss": np.float64(1 / 3)})  # a float to every caller, but not to repr()
    rows = read_log(tmp_path / "log.csv")  # before it is closed: a run can be watched
    log.close()
    assert rows[:2] == [(1, 0, "loss", 0.1 + 0.2), (1, 0, "val/map@r", 1e-300)]
    assert math.isnan(rows[2][3])
    assert rows[3:] == [(2, 1, "loss", 1 / 3)]
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "step,epoch,name,value"


def test_a_resumed_log_is_that_of_a_run_that_never_stopped(tmp_path):
    whole = write(tmp_path / "whole", range(1, 7))
    write(tmp_path / "resumed", range(1, 6))
    resumed = write(tmp_path / "resumed", range(4, 7), Position(epoch=1, batch=1, step=3))
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_run_from_the_start_forgets_an_older_log(tmp_path):
    log = RunLog(tmp_path, Position())
    log.write(0, 0, {"val/map": 0.5})
    log.write(1, 0, {"loss": 0.5})
    log.close()
    assert [row[0] for row in read_log(write(tmp_path, [1]))] == [1, 1]


@pytest.mark.parametrize("n_cut", range(1, 40, 3))
def test_a_last_row_cut_off_by_a_crash_is_left_out(n_cut, tmp_path):
    file = write(tmp_path, range(1, 4))
    written, before = file.read_bytes(), read_log(file)
    file.write_bytes(written[:-n_cut])
    whole = before[: written[:-n_cut].count(b"\n") - 1]
    assert len(whole) < len(before)
    assert read_log(file) == whole
    write(tmp_path, [4], Position(step=3))
    assert read_log(file) == [*whole, (4, 1, "loss", 0.25), (4, 1, "lr", 0.1)]


def test_no_file_is_an_empty_log(tmp_path):
    assert read_log(tmp_path / "log.csv") == []
    (tmp_path / "log.csv").write_text("")
    assert read_log(tmp_path / "log.csv") == []


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    write(tmp_path, range(1, 6))
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


@pytest.mark.parametrize(
    "row", ["1,0,loss", "1,0,loss,0.5,7", "a,0,loss,0.5", "1,0,loss,much", "", "1" * 5000 + ",0,loss,1", '"', "\0", "\xff"]
)
def test_a_row_that_is_none_is_named_by_its_line(tmp_path, row):
    (tmp_path / "log.csv").write_bytes(b"step,epoch,name,value\r\n1,0,loss,0.5\r\n" + row.encode("latin-1") + b"\r\n")
    with pytest.raises(InputError, match=r"log\.csv: line 3: step, epoch, name and value are needed"):
        read_log(tmp_path / "log.csv")
