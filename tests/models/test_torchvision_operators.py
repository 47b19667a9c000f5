import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from sightline import torchvision_operators
from sightline.torchvision_operators import UNDECLARED, BeforeTorchvision, declare_missing_operators, install


def test_timm_and_sightline_can_be_imported_in_any_order():
    for code in (
        "import sightline, sys; assert 'torch' not in sys.modules; import timm",
        # Without sightline timm cannot be imported beside a CPU build of torch; afterwards it can.
        "try:\n    import timm\nexcept RuntimeError: pass\nimport sightline, timm",
    ):
        code += "\nimport torch; from torchvision.transforms import v2"
        code += "\nprint(tuple(v2.Resize(4)(torch.zeros(3, 8, 8)).shape), timm)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.startswith("(3, 4, 4)"), done.stderr


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder in which torchvision is found."""
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torchvision_operators, "PathFinder", SimpleNamespace(find_spec={"torchvision": spec}.get))
    (tmp_path / "_C.so").touch()
    return tmp_path


@pytest.fixture
def declared(monkeypatch):
    """What is declared, as (namespace, kind, schema), without declaring it."""
    declared = []

    def library(namespace, kind):
        return SimpleNamespace(define=lambda schema: declared.append((namespace, kind, schema)))

    monkeypatch.setattr(torch.library, "Library", library)
    return declared


def test_nothing_is_declared_where_the_library_loads_or_torchvision_is_not_installed(installed, declared, monkeypatch):
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    (installed / "image.so").touch()
    assert (declare_missing_operators(), declared, loaded) == (None, [], [str(installed / "_C.so")])
    for specs in ({}, {"torchvision": SimpleNamespace(origin=None)}):
        monkeypatch.setattr(torchvision_operators, "PathFinder", SimpleNamespace(find_spec=specs.get))
        assert (declare_missing_operators(), declared) == (None, [])


def test_the_operators_are_declared_once_where_it_does_not(installed, declared, monkeypatch):
    failing = Mock(side_effect=OSError("libcudart.so.13: cannot open shared object file"))
    monkeypatch.setattr(torch.ops, "load_library", failing)
    finder = BeforeTorchvision()
    for name in ("torch", "torchvision", "torchvision.ops", "torchvision"):
        assert finder.find_spec(name) is None
    assert finder.declared is not None
    assert declared == [("torchvision", "DEF", schema) for schema in UNDECLARED]
    install()
    assert sum(isinstance(finder, BeforeTorchvision) for finder in sys.meta_path) == 1
