"""A run that is killed at any moment and resumed is the run that never was: to the last bit, and without litter."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from run_files import assert_same_checkpoint, assert_same_run

from sightline import train
from sightline.training.run_folder import load_checkpoint

SCRIPT = Path(__file__).with_name("killed_runs.py")
PROXIES_AND_MEMORY = ["loss.decomposability=proxy", "memory.size=40", "memory.start_epoch=1", "checkpoint_every=2"]
KEEP = 5  # epochs
OTHERS = {".lock", "resumes.log", "environment.json", "tensorboard"}  # about the machine and the kills


@pytest.fixture
def assert_kills_change_nothing(recipe_with, image_tree, tiny_recipe, tmp_path):
    def compare(overrides, moments, n_killed):
        overrides, whole, killed = [*overrides, *PROXIES_AND_MEMORY, f"keep_every={KEEP}"], tmp_path / "a", tmp_path / "b"
        train(recipe_with(*overrides), whole)
        words = [image_tree, killed, json.dumps([*tiny_recipe, *overrides]), json.dumps([*moments, "step:1000000"])]
        done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=600)
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
