import json
import platform
import subprocess
import sys

import pytest
import torch

from sightline import __version__
from sightline.training.environment import differences, environment, record_environment

CPU = torch.device("cpu")


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_versions_device_and_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sightline", "train", "a b.toml"])
    found = environment(CPU)
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert (found["sightline"], found["device"], found["processes"]) == (__version__, "cpu", 1)
    assert found["threads"] == torch.get_num_threads()
    assert found["command"] == "sightline train 'a b.toml'"
    assert {"numba", "timm"} <= found.keys()


def test_git_commit_and_whether_the_tree_is_dirty(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git" not in environment(CPU)
    git(tmp_path, "init")
    assert "git" not in environment(CPU)  # nothing is committed yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    assert environment(CPU)["git"] == {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert environment(CPU)["git"]["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert "git" not in environment(CPU)


def test_the_first_record_stays_and_differences_are_added(tmp_path):
    here = {"command": "sightline train images", "torch": "2", "git": {"commit": "a", "dirty": False}}
    assert record_environment(tmp_path, here, step=0) == []
    assert record_environment(tmp_path, here | {"command": "sightline train images --resume"}, step=4) == []
    assert not (tmp_path / "resumes.log").exists()
    later = {"command": "sightline train images --resume", "torch": "3", "git": {"commit": "a", "dirty": True}}
    sentences = ["git.dirty is False there, True here", "torch is '2' there, '3' here"]
    assert record_environment(tmp_path, later, step=8) == sentences
    assert json.loads((tmp_path / "environment.json").read_text()) == here
    assert (tmp_path / "resumes.log").read_text().splitlines() == [f"from step 8 on: {line}" for line in sentences]


@pytest.mark.parametrize(
    ("there", "here", "found"),
    [
        ({}, {}, []),
        ({"a": 1}, {}, ["a is 1 there, None here"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}, ["a.b is 1 there, 3 here"]),
        ({"a": {"b": 1}}, {"a": 2}, ["a is {'b': 1} there, 2 here"]),
    ],
)
def test_differences(there, here, found):
    assert differences(there, here) == found
