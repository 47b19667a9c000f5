import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import sightline as sl
from refusals import assert_refused


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


def test_the_three_lists_of_public_names_agree_and_each_is_that_of_its_module():
    assert names_for_type_checkers() == sl._MODULES
    assert sorted(sl.__all__) == sorted([*sl._MODULES, "__version__"])
    assert len(sl.__all__) == len(set(sl.__all__)) > 10
    assert dir(sl) == sorted(sl.__all__)
    for name, place in sl._MODULES.items():
        module = import_module(f"sightline.{place}")
        assert getattr(sl, name) is (module if name == place else getattr(module, name)), name
    with pytest.raises(AttributeError, match=r"^module 'sightline' has no attribute 'evalaute'$"):
        _ = sl.evalaute
    assert not hasattr(sl, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from sightline import nonsense")


def test_what_does_not_fit_is_an_input_error_at_the_door(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call, *given, facts in (
        (sl.train, {}, "runs/nb", ["recipe", "dict"]),
        (sl.train, "nowhere.toml", "runs/nb", ["nowhere.toml"]),
        (sl.tune, None, "runs/nb", 1, ["recipe", "NoneType"]),
        (sl.read_recipe, 3, ["recipe", "int"]),
        (sl.read_recipe, "images", "loss.name=sup_ap", ["overrides", "loss.name=sup_ap"]),
        (sl.embed_manifest, "encoder", "levels.csv", ["Encoder", "str"]),
        (sl.embed_manifest, sl.Encoder.create("tiny", 8, image_size=32), "levels.csv", ["levels.csv"]),
        (sl.evaluate, "abc", [1, 2, 3], ["vectors"]),
        (sl.decomposability_gap, [[1.0], [2.0]], ["a", None], 2, ["2 items"]),
        (sl.export_onnx, torch.nn.Flatten(), "a.onnx", ["Encoder.wrap", "Flatten"]),
        (sl.read_card, "nowhere", ["nowhere"]),
        (sl.read_manifest, "nowhere", ["nowhere"]),
        (sl.Whitening.fit, [["a", "b"]], ["vectors"]),
    ):
        assert_refused(facts, call, *given)
    assert not list(tmp_path.iterdir())


def test_a_tree_and_a_recipe_show_themselves():
    tree = sl.Tree.from_edges([("cat", "mammal"), ("<dog>", "mammal"), ("eagle", "bird")])
    assert "5 nodes, 2 > 3" in repr(tree)
    assert "<summary>mammal</summary><ul><li>cat</li><li>&lt;dog&gt;</li></ul>" in tree._repr_html_()
    recipe = sl.read_recipe("images", ["data.manifest=photos", "optimizer.lr=0.5", "seed=3"])
    shown = recipe._repr_html_()
    assert "<td>optimizer.lr</td><td>0.5</td>" in shown
    assert "<td>seed</td><td>3</td>" in shown
    assert "optimizer.momentum" not in shown


def test_light_parts_do_not_import_torch_and_losses_are_there_after_a_plain_import():
    for module in ("sightline", "sightline.cli.main", "sightline.training.recipe"):
        code = f"import sys, {module}; print(*({{'torch', 'timm', 'lightning_fabric'}} & {{*sys.modules}}))"
        assert run(sys.executable, "-c", code).split() == []
    code = "import sightline as sl, torch; print(sl.losses.sup_ap_loss(torch.eye(2), torch.eye(2).bool()).item())"
    assert 0 <= float(run(sys.executable, "-c", code)) < 0.01


def test_the_module_and_the_console_command_give_the_same_help():
    command = Path(sys.executable).parent / "sightline"
    as_module, as_command = run(sys.executable, "-m", "sightline", "--help"), run(command, "--help")
    assert "Usage: sightline [OPTIONS]" in as_command
    assert as_module == as_command
    for verb in ("data", "train", "embed", "evaluate", "search", "demo"):
        assert f" {verb} " in as_command
