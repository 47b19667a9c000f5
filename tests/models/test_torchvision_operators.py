import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from sightline.torchvision_operators import UNDECLARED, declare_missing_operators


def test_torchvision_can_be_imported_afterwards():
    code = (
        "import sightline.torchvision_operators, torch\n"
        "from torchvision.transforms import v2\n"
        "print(tuple(v2.Resize(4)(torch.zeros(3, 8, 8)).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("(3, 4, 4)", 0), done.stderr


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder in which torchvision is found."""
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torchvision" else None)
    return tmp_path


@pytest.fixture
def declared(monkeypatch):
    """What is declared, as (namespace, kind, schema), without declaring it."""
    declared = []

    def library(namespace, kind):
        return SimpleNamespace(define=lambda schema: declared.append((namespace, kind, schema)))

    monkeypatch.setattr(torch.library, "Library", library)
    return declared


def test_nothing_is_declared_where_the_library_loads(installed, declared, monkeypatch):
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    for name in ("_C.so", "image.so"):
        (installed / name).touch()
    assert declare_missing_operators() is None
    assert loaded == [str(installed / "_C.so")]
    assert declared == []


def test_the_operators_are_declared_where_it_does_not(installed, declared, monkeypatch):
    def fail(path):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(torch.ops, "load_library", fail)
    (installed / "_C.so").touch()
    assert declare_missing_operators() is not None
    assert declared == [("torchvision", "DEF", schema) for schema in UNDECLARED]
