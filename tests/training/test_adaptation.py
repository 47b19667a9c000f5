"""Runs in which the backbone learns little or nothing, and projections that start from principal components."""

import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from sightline import Encoder, InputError, embed_manifest, evaluate_table, read_manifest, read_recipe, train
from sightline.training.logs import read_log
from sightline.training.prepare import pooled_features, train_and_validation
from sightline.training.run_folder import load_checkpoint


@pytest.fixture
def recipe_with(image_tree, tiny_recipe):
    """The small recipe with more overrides."""

    def read(*overrides):
        return read_recipe("images", [f"data.manifest={image_tree}", *tiny_recipe, *overrides])

    return read


def losses(run):
    return [value for _, _, name, value in read_log(run / "log.csv") if name == "loss"]


def test_a_frozen_backbone_sees_each_image_once_and_the_head_learns(recipe_with, tmp_path, monkeypatch):
    n_seen = []
    pooled = Encoder.pooled
    monkeypatch.setattr(Encoder, "pooled", lambda self, images: n_seen.append(len(images)) or pooled(self, images))
    recipe = recipe_with("model.adaptation=frozen", "schedule.epochs=20")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    assert sum(n_seen) == 1 + 72  # one to check the image size; 60 to train on, 12 to validate on
    fresh = Encoder.create("tiny", 16, image_size=32, seed=recipe.seed)
    assert_close(trained.backbone.state_dict(), fresh.backbone.state_dict(), rtol=0, atol=0)
    assert_close(trained.pooling.state_dict(), fresh.pooling.state_dict(), rtol=0, atol=0)
    assert not torch.equal(trained.head.projection.weight, fresh.head.projection.weight)
    assert sum(losses(tmp_path / "run")[-3:]) < sum(losses(tmp_path / "run")[:3])


def test_the_validation_of_a_frozen_run_is_that_of_its_encoder(recipe_with, tmp_path):
    recipe = recipe_with("model.adaptation=frozen", "schedule.epochs=1")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    logged = {name: value for _, _, name, value in read_log(tmp_path / "run/log.csv")}
    _, held_out = train_and_validation(read_manifest(recipe.data.manifest), recipe)
    assert_close(evaluate_table(embed_manifest(trained, held_out))["map@r"], logged["val/map@r"])


def test_a_frozen_run_goes_on_as_if_it_had_not_been_stopped(recipe_with, tmp_path):
    recipe = recipe_with("model.adaptation=frozen", "chunk_size=5")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "stopped", max_minutes=0)
    train(recipe, tmp_path / "stopped", resume=True)
    (_, whole), (_, stopped) = (load_checkpoint(tmp_path / run / "last.pt") for run in ("whole", "stopped"))
    assert_close(whole, stopped, rtol=0, atol=0)


def test_two_processes_train_a_frozen_run_as_one(recipe_with, image_tree, tiny_recipe, tmp_path):
    overrides = [*tiny_recipe, "model.adaptation=frozen", "model.projection=pca"]
    train(recipe_with(*overrides), tmp_path / "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sightline"]
    command += ["train", "images", f"data.manifest={image_tree}", *overrides, "--out", str(tmp_path / "two")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-3, atol=1e-4)


def test_a_frozen_run_without_a_projection_is_refused(recipe_with, tmp_path):
    with pytest.raises(InputError, match=r"leaves nothing to learn: set model\.embedding_dim"):
        train(recipe_with("model.adaptation=frozen", "model.embedding_dim=none"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_with_lora_is_resumed_and_leaves_a_plain_encoder(recipe_with, tmp_path):
    pytest.importorskip("peft", exc_type=ImportError)
    recipe = recipe_with("model.adaptation=lora", "model.lora_rank=2", "data.val_fraction=0")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "run", max_minutes=0)
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run", resume=True))
    (_, whole), (_, resumed) = (load_checkpoint(tmp_path / run / "last.pt") for run in ("whole", "run"))
    assert_close(whole, resumed, rtol=0, atol=0)
    fresh = Encoder.create("tiny", 16, image_size=32, seed=recipe.seed)
    assert trained.state_dict().keys() == fresh.state_dict().keys()
    moved = trained.backbone.layers[0][0].weight - fresh.backbone.layers[0][0].weight
    assert 1 <= torch.linalg.matrix_rank(moved.flatten(1)) <= 2
    assert_close(trained.backbone.layers[0][1].state_dict(), fresh.backbone.layers[0][1].state_dict(), rtol=0, atol=0)


def test_a_projection_starts_from_the_principal_components_of_the_training_images(recipe_with, tmp_path):
    recipe = recipe_with("model.projection=pca", "model.feature_norm=l2", "optimizer.lr=1e-30", "data.val_fraction=0")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    pooled = pooled_features(trained, read_manifest(recipe.data.manifest), n_workers=0)
    projected = trained.head.projection(trained.head.norm(pooled)).detach()
    assert_close(projected.mean(0), torch.zeros(16), rtol=0, atol=1e-3)
    assert_close(projected.T.cov(), torch.eye(16), rtol=0, atol=1e-3)
    with pytest.raises(InputError, match=r"projection 'pca': .* embedding_dim is 33"):
        train(recipe_with("model.projection=pca", "model.embedding_dim=33"), tmp_path / "large")
    assert not (tmp_path / "large").exists()
