"""The weights between the start's and the trained ones that are kept at the end of a run."""

import pytest
import torch
from torch.testing import assert_close

from sightline import Encoder, embed_manifest, evaluate_table, read_recipe, train
from sightline.models.card import read_card
from sightline.training.logs import read_log
from sightline.training.prepare import prepare_run
from sightline.training.recipe import ValidationSection
from sightline.training.run import TRAINED_SHARES
from sightline.training.run_folder import RunFolder


def run(image_tree, overrides, folder, *more):
    recipe = read_recipe("images", [f"data.manifest={image_tree}", *overrides, "validation.interpolate=true", *more])
    train(recipe, folder)
    return recipe, RunFolder(folder)


@pytest.mark.parametrize("adaptation", ["full", "upper:1"])
def test_the_best_mixture_on_the_validation_images_is_kept(adaptation, image_tree, tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    recipe, folder = run(image_tree, tiny_recipe, tmp_path / "run", f"model.adaptation='{adaptation}'", "optimizer.lr=0.03")
    kept, start = Encoder.from_pretrained(folder.encoder), Encoder.from_pretrained(folder.start)
    share = read_card(folder.encoder).training.trained_share
    log = [(name, value) for *_, name, value in read_log(folder.log_file)]
    values = {one: dict(log)[f"share {one:g}/map@r"] for one in TRAINED_SHARES}
    values[1.0] = max(value for name, value in log if name == "val/map@r")
    assert values[share] == max(values.values())
    # Each is what evaluation finds of the encoder at the start, and of the one that is kept.
    val_part = prepare_run(recipe).val_part
    for encoder, value in ((start, values[0.0]), (kept, values[share])):
        assert_close(evaluate_table(embed_manifest(encoder, val_part))["map@r"], value, rtol=0, atol=0.01)


def test_a_finished_run_is_not_mixed_again(image_tree, tiny_recipe, tmp_path):
    recipe, folder = run(image_tree, tiny_recipe, tmp_path / "run", "optimizer.lr=0.1")
    before = {file: file.read_bytes() for file in folder.encoder.iterdir()}
    train(recipe, folder.path, resume=True)
    assert {file: file.read_bytes() for file in folder.encoder.iterdir()} == before


def test_every_weight_lies_between_start_and_end(image_tree, tiny_recipe, tmp_path, monkeypatch):
    plain = train(
        read_recipe("images", [f"data.manifest={image_tree}", *tiny_recipe, "validation.every=3"]), tmp_path / "a"
    )
    monkeypatch.setattr("sightline.training.run.TRAINED_SHARES", (0.25,))
    monkeypatch.setattr(ValidationSection, "is_better", lambda *_: True)  # the last one tried is kept
    _, folder = run(image_tree, tiny_recipe, tmp_path / "run", "validation.every=3")
    assert read_card(folder.encoder).training.trained_share == 0.25
    start, end, mixed = (Encoder.from_pretrained(path).state_dict() for path in (folder.start, plain, folder.encoder))
    n_moved = sum(not torch.equal(start[name], end[name]) for name in mixed)
    assert n_moved > 5
    for name, weight in mixed.items():
        if weight.is_floating_point():
            assert_close(weight, torch.lerp(start[name], end[name], 0.25), rtol=1e-6, atol=1e-7)
