import contextlib
import json
import os
import platform
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from refusals import assert_refused
from sightline import __version__
from sightline.errors import InputError
from sightline.training import run_folder
from sightline.training.run_folder import Position, RunFolder, load_checkpoint, naming_misfits, save_checkpoint

STATE = {"encoder": {"weight": torch.arange(6.0).reshape(2, 3)}, "loss": {}, "optimizer": {"state": {0: {"step": 3}}}}
POSITION = Position(epoch=2, batch=5, step=17, best=0.1 + 0.2)


def assert_holds(file, position, state=STATE):
    found, stored = load_checkpoint(file)
    assert found == position
    assert_close(stored, state, rtol=0, atol=0)


def test_what_is_saved_is_loaded_also_from_before_there_were_checksums_and_after_a_failed_save(tmp_path, monkeypatch):
    file = tmp_path / "run/last.pt"
    for position in (Position(), POSITION):
        save_checkpoint(file, position, STATE)
        assert_holds(file, position)
    torch.save({"format": 1, "position": {"epoch": 2, "batch": 5, "step": 17}, **STATE}, tmp_path / "last.pt")
    assert_holds(tmp_path / "last.pt", Position(epoch=2, batch=5, step=17))

    def broken(stored, target):
        target.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(run_folder.torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(file, Position(step=18), STATE)
    assert_holds(file, POSITION)
    assert [path.name for path in file.parent.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("in_weights", [True, False])  # which torch reads without a check of its own
def test_a_cut_file_is_refused_and_a_flipped_bit_found_or_changes_nothing(in_weights, tmp_path):
    file, generator = tmp_path / "last.pt", random.Random(0)
    save_checkpoint(file, POSITION, STATE)
    whole = file.read_bytes()
    for share in (0, 0.01, 0.5, 0.99):
        file.write_bytes(whole[: int(share * len(whole))])
        assert_refused(r"last\.pt: ", load_checkpoint, file)
    weights = whole.find(STATE["encoder"]["weight"].numpy().tobytes())
    for _ in range(30):
        stored = bytearray(whole)
        place = weights + generator.randrange(24) if in_weights else generator.randrange(len(stored))
        stored[place] ^= 1 << generator.randrange(8)
        file.write_bytes(stored)
        with pytest.raises(InputError, match=r"last\.pt: .*checksum") if in_weights else contextlib.suppress(InputError):
            assert_holds(file, POSITION)


@settings(derandomize=True, database=None, deadline=None, max_examples=50)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_and_nothing_else_is_raised(tmp_path_factory, stored):
    file = tmp_path_factory.getbasetemp() / "bytes.pt"
    file.write_bytes(stored)
    assert_refused(r"bytes\.pt: ", load_checkpoint, file)


ODD_POSITIONS = [{"epoch": "a"}, {"step": None}, {"batch": -2}, {"best": "good"}, {"n_worse": 1.5}]
CODE = {"format": 1, "position": {}, "encoder": torch.nn.Linear(1, 1)}  # would run code to load


@pytest.mark.parametrize(
    ("stored", "fact"),
    [
        *((stored, "format .*None") for stored in ({"weight": torch.ones(1)}, [1, 2], torch.ones(2))),
        ({"format": 99, "position": {}}, "format .*99"),
        *(({"format": 1, "position": odd}, next(iter(odd))) for odd in ODD_POSITIONS),
        ({"format": 1}, "position"),
        (CODE, ""),
    ],
)
def test_what_is_no_checkpoint_is_refused(stored, fact, tmp_path):
    torch.save(stored, tmp_path / "last.pt")
    assert_refused(rf"last\.pt: [\s\S]*{fact}", load_checkpoint, tmp_path / "last.pt")


def test_what_does_not_fit_is_refused_by_the_checkpoints_name(tmp_path):
    def misfit(wrong):
        with naming_misfits(tmp_path / "last.pt"):
            if isinstance(wrong, Exception):
                raise wrong
            torch.nn.Linear(1, 1).load_state_dict(wrong)

    for wrong in ({}, {"weight": torch.ones(2, 3)}, ["odd"]):
        assert_refused(r"last\.pt: ", misfit, wrong)
    assert_refused("KeyError", misfit, KeyError())
    assert_refused("^as it is$", misfit, InputError("as it is"))


CPU = torch.device("cpu")


def test_versions_device_command_and_git(monkeypatch, tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.setattr(sys, "argv", ["sightline", "train", "a b.toml"])
    found = run_folder.environment(CPU)
    assert (found["python"], found["sightline"]) == (platform.python_version(), __version__)
    assert (found["device"], found["processes"], found["threads"]) == ("cpu", 1, torch.get_num_threads())
    assert found["command"] == "sightline train 'a b.toml'"
    assert "git" not in found
    git("init")
    assert "git" not in run_folder.environment(CPU)  # nothing is committed yet
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    os.utime(tmp_path / "a", ns=(0, 0))  # which makes git write its index where it may
    written = (tmp_path / ".git/index").read_bytes()
    assert run_folder.environment(CPU)["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    assert (tmp_path / ".git/index").read_bytes() == written
    (tmp_path / "a").write_text("2")
    assert run_folder.environment(CPU)["git"]["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert "git" not in run_folder.environment(CPU)


def test_what_differs_is_added_to_the_first_record(tmp_path):
    here = {"command": "sightline train images", "torch": "2", "git": {"commit": "a", "dirty": False}}
    assert RunFolder(tmp_path).record_environment(here, step=0) == []
    assert RunFolder(tmp_path).record_environment(here | {"command": "sightline train images --resume"}, step=4) == []
    assert not (tmp_path / "resumes.log").exists()
    later = {"command": "sightline train images --resume", "torch": "3", "git": {"commit": "a", "dirty": True}}
    sentences = ["git.dirty is False there, True here", "torch is '2' there, '3' here"]
    assert RunFolder(tmp_path).record_environment(later, step=8) == sentences
    assert json.loads((tmp_path / "environment.json").read_text()) == here
    assert (tmp_path / "resumes.log").read_text().splitlines() == [f"from step 8 on: {line}" for line in sentences]
    found = run_folder.differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}, "d": 0})
    assert found == ["a.b is 1 there, 3 here", "d is None there, 0 here"]
    assert run_folder.differences({"a": {"b": 1}}, {"a": 2}) == ["a is {'b': 1} there, 2 here"]
