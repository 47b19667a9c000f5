"""A run that is killed at any moment and resumed is the run that never was: to the last bit, and without litter.

The file is a script as well: ``python test_killed_runs.py <manifest> <out> <overrides> <moments>`` trains in processes that
die by SIGKILL and prints how many did. A moment is ``what:number``: the number-th step, validation, checkpoint or encoder
from the start of that process, in the middle of it (a checkpoint half written), or ``time:milliseconds`` after training
began. Processes are forked from one that imports but never computes, so that each starts at once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from run_files import assert_same_checkpoint, assert_same_run

import sightline.models.encoder as encoder
import sightline.training.run as training_run
from sightline import read_recipe, train
from sightline.training import engine
from sightline.training.run_folder import load_checkpoint

PROXIES_AND_MEMORY = ["loss.decomposability=proxy", "memory.size=40", "memory.start_epoch=1", "checkpoint_every=2"]
KEEP = 5  # epochs
OTHERS = {".lock", "resumes.log", "environment.json", "tensorboard"}  # about the machine and the kills


@pytest.fixture
def assert_kills_change_nothing(recipe_with, image_tree, tiny_recipe, tmp_path):
    def compare(overrides, moments, n_killed):
        overrides, whole, killed = [*overrides, *PROXIES_AND_MEMORY, f"keep_every={KEEP}"], tmp_path / "a", tmp_path / "b"
        train(recipe_with(*overrides), whole)
        words = [image_tree, killed, json.dumps([*tiny_recipe, *overrides]), json.dumps([*moments, "step:1000000"])]
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) >= n_killed
        assert_same_run(whole, killed)
        position, state = load_checkpoint(whole / "last.pt")
        assert any("prox" in name for name in state["loss"])
        assert len(state["loss"]["memory.ids"]) == 40
        kept = [f"epoch-{epoch:03}.pt" for epoch in range(KEEP, position.epoch + 1, KEEP)]
        assert kept
        for name in kept:
            assert_same_checkpoint(whole / name, killed / name)
        left = [sorted(path.name for path in run.iterdir() if path.name not in OTHERS) for run in (whole, killed)]
        assert left == [["encoder", *kept, "images.json", "last.pt", "log.csv", "recipe.json"]] * 2

    return compare


def test_killed_in_a_step_a_validation_a_save_and_at_some_time(assert_kills_change_nothing):
    moments = ["checkpoint:1", "step:5", "validation:2", "checkpoint:3", "encoder:1", "time:40"]
    assert_kills_change_nothing(["schedule.epochs=8"], moments, n_killed=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_twenty_random_moments(assert_kills_change_nothing, seed):
    draw = random.Random(seed)
    largest = {"step": 8, "validation": 3, "checkpoint": 4, "time": 300}
    moments = [f"{what}:{draw.randint(1, largest[what])}" for what in draw.choices(list(largest), k=24)]
    assert_kills_change_nothing(["schedule.epochs=60", "optimizer.lr=0.003", f"seed={seed}"], moments, n_killed=20)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(save):
    """Save to a path or an open stream, and cut what was saved in half."""

    def instead(state, file):
        save(state, file)
        if isinstance(file, Path):
            os.truncate(file, file.stat().st_size // 2)
        else:
            file.truncate(file.tell() // 2)

    return instead


def arm(what, number):
    """Let this process die at that moment."""
    left = [number]

    def dying(call, first=lambda *_, **__: None):
        def instead(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                first(*args, **kwargs)
                die()
            return call(*args, **kwargs)

        return instead

    if what == "step":
        engine.back_propagate = dying(engine.back_propagate, engine.back_propagate)  # before the optimizer moves
    elif what == "validation":
        training_run.evaluate_table = dying(training_run.evaluate_table)
    elif what == "checkpoint":
        torch.save = dying(torch.save, half_written(torch.save))
    elif what == "encoder":
        encoder.save_file = dying(encoder.save_file, half_written(encoder.save_file))
    else:
        fit = training_run.TrainingRun.fit
        training_run.TrainingRun.fit = lambda *args: (threading.Timer(number / 1000, die).start(), fit(*args))[1]


def main(manifest, out, overrides, moments):
    died = 0
    for what, number in (moment.split(":") for moment in json.loads(moments)):
        child = os.fork()
        if child == 0:
            try:
                arm(what, int(number))
                recipe = read_recipe("images", [f"data.manifest={manifest}", *json.loads(overrides)])
                train(recipe, out, resume=True)
            except BaseException as error:
                sys.stderr.write(f"{what}:{number}: {error!r}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(1)
        died += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    sys.stdout.write(f"{died}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
