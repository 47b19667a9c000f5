"""A run that is killed at any moment and resumed is the run that never was: to the last bit, and without litter."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from torch.testing import assert_close

from sightline import Encoder, read_recipe, train
from sightline.training.run_folder import load_checkpoint

SCRIPT = Path(__file__).with_name("killed_runs.py")
PROXIES_AND_MEMORY = ["loss.decomposability=proxy", "memory.size=40", "memory.start_epoch=1", "checkpoint_every=2"]
KEEP = 5  # epochs
OTHERS = {".lock", "resumes.log", "environment.json", "tensorboard"}  # tell of the machine and of the kills


def assert_kills_change_nothing(image_tree, folder, overrides, moments, n_killed):
    overrides = [*overrides, *PROXIES_AND_MEMORY, f"keep_every={KEEP}"]
    train(read_recipe("images", [f"data.manifest={image_tree}", *overrides]), folder / "whole")
    words = [str(image_tree), str(folder / "killed"), json.dumps(overrides), json.dumps([*moments, "step:1000000"])]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= n_killed
    whole, killed = folder / "whole", folder / "killed"
    (position, state), (other_position, other_state) = (load_checkpoint(run / "last.pt") for run in (whole, killed))
    assert position == other_position
    assert position.epoch > 0
    assert any("prox" in name for name in state["loss"])
    assert len(state["loss"]["memory.ids"]) == 40
    assert_close(state, other_state, rtol=0, atol=0)
    weights, other_weights = (Encoder.from_pretrained(run / "encoder").state_dict() for run in (whole, killed))
    assert_close(dict(weights), dict(other_weights), rtol=0, atol=0)
    assert (whole / "log.csv").read_bytes() == (killed / "log.csv").read_bytes()
    kept = [f"epoch-{epoch:03}.pt" for epoch in range(KEEP, position.epoch + 1, KEEP)]
    for name in kept:
        (position, state), (other_position, other_state) = (load_checkpoint(run / name) for run in (whole, killed))
        assert position == other_position
        assert_close(state, other_state, rtol=0, atol=0)
    left = [sorted(path.name for path in run.iterdir() if path.name not in OTHERS) for run in (whole, killed)]
    assert left == [["encoder", *kept, "images.json", "last.pt", "log.csv", "recipe.json"]] * 2


def test_killed_in_a_step_a_validation_a_save_and_at_some_time(image_tree, tiny_recipe, tmp_path):
    moments = ["checkpoint:1", "step:5", "validation:2", "checkpoint:3", "encoder:1", "time:40"]
    overrides = [*tiny_recipe, "schedule.epochs=12", "schedule.warmup_epochs=1"]
    assert_kills_change_nothing(image_tree, tmp_path, overrides, moments, n_killed=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_twenty_random_moments(image_tree, tiny_recipe, tmp_path, seed):
    draw = random.Random(seed)
    largest = {"step": 8, "validation": 3, "checkpoint": 4, "time": 300}
    moments = [f"{what}:{draw.randint(1, largest[what])}" for what in draw.choices(list(largest), k=24)]
    overrides = [*tiny_recipe, "schedule.epochs=60", "schedule.warmup_epochs=1", "optimizer.lr=0.003", f"seed={seed}"]
    assert_kills_change_nothing(image_tree, tmp_path, overrides, moments, n_killed=20)
