import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import sightline as sl


def run(*command):
    plain = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_for_type_checkers():
    """What ``__init__`` imports for type checkers alone: each name with its module below the package."""
    tree = ast.parse(Path(sl.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    assert all(isinstance(node, ast.ImportFrom) for node in block.body)
    return {
        alias.name: alias.name if node.module == "sightline" else node.module.removeprefix("sightline.")
        for node in block.body
        for alias in node.names
    }


def test_the_three_lists_of_public_names_agree():
    assert names_for_type_checkers() == sl._MODULES
    assert sorted(sl.__all__) == sorted([*sl._MODULES, "__version__"])
    assert len(sl.__all__) == len(set(sl.__all__)) > 10
    assert dir(sl) == sorted(sl.__all__)


@pytest.mark.parametrize("name", sorted(sl._MODULES))
def test_each_public_name_is_that_of_its_module(name):
    module = import_module(f"sightline.{sl._MODULES[name]}")
    assert getattr(sl, name) is (module if name == sl._MODULES[name] else getattr(module, name))


def test_star_import_brings_every_name():
    brought = {}
    exec("from sightline import *", brought)
    assert brought.keys() >= set(sl.__all__)


@pytest.mark.parametrize("module", ["sightline", "sightline.cli.main", "sightline.training.recipe"])
def test_light_parts_do_not_import_torch(module):
    heavy = run(
        sys.executable, "-c", f"import sys, {module}; print(*({{'torch', 'timm', 'lightning_fabric'}} & {{*sys.modules}}))"
    )
    assert heavy.split() == []


def test_losses_are_there_after_a_plain_import():
    code = "import sightline as sl, torch; print(sl.losses.sup_ap_loss(torch.eye(2), torch.eye(2).bool()).item())"
    assert 0 <= float(run(sys.executable, "-c", code)) < 0.01
    assert sl.losses.sup_ap_loss(torch.eye(2), torch.eye(2).bool()).ndim == 0


def test_an_unknown_name_is_an_attribute_error_like_any_other():
    with pytest.raises(AttributeError, match=r"^module 'sightline' has no attribute 'evalaute'$"):
        _ = sl.evalaute
    assert not hasattr(sl, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from sightline import nonsense")


def test_the_module_and_the_console_command_give_the_same_help():
    command = Path(sys.executable).parent / "sightline"
    as_module, as_command = run(sys.executable, "-m", "sightline", "--help"), run(command, "--help")
    assert "Usage: sightline [OPTIONS]" in as_command
    assert as_module == as_command
    for verb in ("data", "train", "embed", "evaluate", "search", "demo"):
        assert f" {verb} " in as_command
