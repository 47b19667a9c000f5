"""``data.skip_unreadable``: files that cannot be decoded are left out, counted and named."""

import json
import shutil

import pytest

from sightline.errors import InputError
from sightline.report.subject import read_subject
from sightline.training.prepare import plan_run
from sightline.training.recipe import read_recipe
from sightline.training.run import train


def test_unreadable_images_are_left_out_and_named(image_tree, tiny_recipe, tmp_path):
    folder = shutil.copytree(image_tree, tmp_path / "images")
    (folder / "super0/class00/bad.png").write_bytes(b"broken")
    (folder / "super1/none").mkdir()
    (folder / "super1/none/empty.png").touch()  # a class of nothing else
    given = [f"data.manifest={folder}", *tiny_recipe, "schedule.epochs=1"]
    with pytest.raises(InputError, match=r"2 faults[\s\S]*bad\.png"):
        train(read_recipe("images", [*given, "sampler.skip_small_classes=true"]), tmp_path / "refused")
    recipe = read_recipe("images", [*given, "data.skip_unreadable=true"])
    with pytest.warns(UserWarning, match=r"2 image[\s\S]*bad\.png[\s\S]*empty\.png"):
        train(recipe, tmp_path / "run")
    facts = json.loads((tmp_path / "run/images.json").read_text())
    assert facts["train"]["images"] + facts["val"]["images"] == 72
    assert [name in line for name, line in zip(("bad.png", "empty.png"), facts["skipped"], strict=True)] == [True, True]
    with pytest.warns(UserWarning, match="2 image"):
        assert "2 unreadable" in plan_run(recipe)
    with pytest.warns(UserWarning, match="2 image"):  # the same classes were held out
        assert len(read_subject(tmp_path / "run").table) == facts["val"]["images"]
    (folder / "super0/class00/bad.png").unlink()  # the images that are trained on stay the same
    with pytest.warns(UserWarning, match="1 image"):
        assert train(recipe, tmp_path / "run", resume=True) == tmp_path / "run/encoder"
