"""The weights between the start's and the trained ones that are kept at the end of a run."""

import pytest
import torch
from run_files import logged
from torch.testing import assert_close

from sightline import Encoder, embed_manifest, evaluate_table, train
from sightline.models.card import read_card
from sightline.training.prepare import prepare_run
from sightline.training.recipe import ValidationSection
from sightline.training.run import TRAINED_SHARES
from sightline.training.run_folder import RunFolder


@pytest.mark.parametrize("adaptation", ["full", "upper:1"])
def test_the_best_mixture_on_the_validation_images_is_kept_and_not_mixed_again(adaptation, recipe_with, tmp_path):
    recipe = recipe_with("validation.interpolate=true", f"model.adaptation='{adaptation}'", "optimizer.lr=0.03")
    folder = RunFolder(tmp_path)
    train(recipe, tmp_path)
    kept, start = Encoder.from_pretrained(folder.encoder), Encoder.from_pretrained(folder.start)
    share = read_card(folder.encoder).training.trained_share
    values = {one: logged(tmp_path, f"share {one:g}/map@r")[0] for one in TRAINED_SHARES}
    values[1.0] = max(logged(tmp_path, "val/map@r"))
    assert values[share] == max(values.values())
    # Each is what evaluation finds of the encoder at the start, and of the one that is kept.
    val_part = prepare_run(recipe).val_part
    for encoder, value in ((start, values[0.0]), (kept, values[share])):
        assert_close(evaluate_table(embed_manifest(encoder, val_part))["map@r"], value, rtol=0, atol=0.01)
    before = {file: file.read_bytes() for file in folder.encoder.iterdir()}
    train(recipe, tmp_path, resume=True)
    assert {file: file.read_bytes() for file in folder.encoder.iterdir()} == before


def test_every_weight_lies_between_start_and_end(recipe_with, tmp_path, monkeypatch):
    plain = train(recipe_with("validation.every=3"), tmp_path / "a")
    monkeypatch.setattr("sightline.training.run.TRAINED_SHARES", (0.25,))
    monkeypatch.setattr(ValidationSection, "is_better", lambda *_: True)  # the last one tried is kept
    train(recipe_with("validation.interpolate=true", "validation.every=3"), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert read_card(folder.encoder).training.trained_share == 0.25
    start, end, mixed = (Encoder.from_pretrained(path).state_dict() for path in (folder.start, plain, folder.encoder))
    n_moved = sum(not torch.equal(start[name], end[name]) for name in mixed)
    assert n_moved > 5
    for name, weight in mixed.items():
        if weight.is_floating_point():
            assert_close(weight, torch.lerp(start[name], end[name], 0.25), rtol=1e-6, atol=1e-7)
