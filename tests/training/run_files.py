"""What two run folders hold, compared; and a run in two processes."""

import os
import subprocess
import sys

from torch.testing import assert_close

from sightline import Encoder
from sightline.training.logs import read_log
from sightline.training.run_folder import load_checkpoint


def assert_same_run(folder, other):
    """Weights, optimizer and log of two runs are the same to the last bit."""
    prints = [Encoder.from_pretrained(run / "encoder").fingerprint() for run in (folder, other)]
    assert prints[0] == prints[1]
    assert_same_checkpoint(folder / "last.pt", other / "last.pt")
    assert (folder / "log.csv").read_bytes() == (other / "log.csv").read_bytes()


def assert_same_checkpoint(file, other):
    (position, state), (other_position, other_state) = load_checkpoint(file), load_checkpoint(other)
    assert position == other_position
    assert_close(state, other_state, rtol=0, atol=0)


def assert_close_logs(folder, other):
    """The same steps and names, with values that are the same but for rounding."""
    rows, others = (read_log(run / "log.csv") for run in (folder, other))
    assert [row[:3] for row in rows] == [row[:3] for row in others]
    assert_close([row[3] for row in rows], [row[3] for row in others], rtol=1e-3, atol=1e-4, equal_nan=True)


def logged(folder, name):
    """The values of one name in a run's log, in order."""
    return [value for *_, found, value in read_log(folder / "log.csv") if found == name]


def in_two_processes(*words):
    """Run ``python <words>`` by torchrun in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done
