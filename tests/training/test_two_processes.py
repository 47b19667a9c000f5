"""Two processes compute what one computes: every loss, whole runs, sharded weights, cached features.

The file is a script as well, run by torchrun: it saves what every loss gives on this process's half of the batches, then
runs the command lines one after the other.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from run_files import assert_close_logs, assert_same_run, in_two_processes
from staged_batches import IN_PROCESSES, steps
from torch import nn
from torch.testing import assert_close

import sightline
from sightline import train
from sightline.cli.main import run
from sightline.training import distributed
from sightline.training.run_folder import load_checkpoint

FSDP = ["optimizer.clip_norm=0.5", "checkpoint_every=2", "strategy=fsdp"]
RUNS = {  # overrides of runs that start in one pair of processes, one after the other
    "memory": ["memory.size=40", "memory.momentum=0.5"],
    "frozen": ["model.adaptation=frozen", "model.projection=pca", "loss.reference=train", "schedule.epochs=2"],
    "upper": ["model.adaptation=upper", "model.projection=pca", "loss.reference=both", "schedule.epochs=2"],
    "sharded": [*FSDP, "chunk_size=4"],
    "sharded resnet": [*FSDP, "model.backbone=resnet18", "optimizer.name=sgd", "memory.size=40", "schedule.epochs=2"],
}


def test_two_processes_compute_what_one_does(image_tree, tiny_recipe, recipe_with, tmp_path, monkeypatch):
    """Each process has half of a batch; its values, weights, proxies and memory are those of one with all of it."""
    words = {
        name: ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, *more, "--out", str(tmp_path / "two" / name)]
        for name, more in RUNS.items()
    }
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    done = in_two_processes(__file__, json.dumps([*words.values()]), tmp_path / "found")
    assert done.stdout.splitlines() == [str(tmp_path / "two" / name / "encoder") for name in RUNS]  # each once

    results = [torch.load(tmp_path / f"found{rank}", weights_only=True) for rank in range(2)]
    assert len(IN_PROCESSES) > 50
    for name in IN_PROCESSES:
        expected = steps(Fabric(accelerator="cpu", devices=1), name)
        for found in results:
            assert_close(found[name], expected, rtol=1e-6, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")

    for name, more in RUNS.items():
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        train(recipe_with(*(key for key in more if key != "strategy=fsdp")), one)
        assert_close_logs(one, two)
        if "strategy=fsdp" in more:
            states = [load_checkpoint(run / "last.pt")[1] for run in (one, two)]
            for part in ("encoder", "loss"):
                assert_close(states[1][part], states[0][part], rtol=1e-3, atol=1e-4)
            assert_close(states[1]["optimizer"]["state"], states[0]["optimizer"]["state"], rtol=1e-2, atol=1e-4)


@pytest.fixture
def train_in_two(image_tree, tiny_recipe):
    def run(out, *more):
        words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out", out, *more]
        in_two_processes("-m", "sightline", *words)
        return out

    return run


@pytest.mark.slow
def test_the_launcher_of_fabric_trains_as_torchrun_does(image_tree, tiny_recipe, train_in_two, tmp_path):
    train_in_two(tmp_path / "torchrun")
    command = [Path(sys.executable).with_name("fabric"), "run", "--accelerator", "cpu", "--devices", "2"]
    command += [Path(sightline.__file__).with_name("__main__.py"), "train", "images", f"data.manifest={image_tree}"]
    command += [*tiny_recipe, "--out", tmp_path / "fabric"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "torchrun", tmp_path / "fabric")


@pytest.mark.slow
def test_a_sharded_run_that_was_stopped_goes_on_as_if_it_had_not(recipe_with, train_in_two, tmp_path):
    sharded = ["strategy=fsdp", "checkpoint_every=1"]
    whole = train_in_two(tmp_path / "whole", *sharded)
    stopped = train_in_two(tmp_path / "stopped", *sharded, "--max-minutes", "0")
    assert load_checkpoint(stopped / "last.pt")[0].step == 1
    alone = shutil.copytree(stopped, tmp_path / "alone")
    train(recipe_with("checkpoint_every=1"), alone, resume=True)
    assert_close_logs(whole, alone)
    train_in_two(stopped, *sharded, "--resume")
    assert_same_run(whole, stopped)


def test_large_layers_are_put_together_by_themselves_and_lists_are_not(monkeypatch):
    monkeypatch.setattr(distributed, "UNIT_WEIGHTS", 10)
    small, large = nn.Linear(2, 2), nn.Linear(4, 4)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(small, nn.Linear(1, 4)), large])
    model = nn.ModuleDict({"blocks": blocks, "few": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    assert distributed._units(model) == [blocks[0][0], blocks[1], large]


def main(lines, file):
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    half = slice(8 * fabric.global_rank, 8 * fabric.global_rank + 8)
    torch.save({name: steps(fabric, name, half) for name in IN_PROCESSES}, f"{file}{fabric.global_rank}")
    for words in json.loads(lines):
        sys.argv = ["sightline", *words]
        try:
            run()
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
