"""Runs in which the backbone learns little or nothing, and projections that start from principal components."""

import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from sightline import Encoder, InputError, embed_manifest, evaluate_table, read_manifest, read_recipe, train
from sightline.models.stages import UpperEncoder
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


@pytest.mark.parametrize(
    ("adaptation", "learning"), [("frozen", ("head",)), ("upper", ("backbone.layers.2", "pooling", "head"))]
)
def test_what_rests_sees_each_view_once_and_the_rest_learns(recipe_with, tmp_path, monkeypatch, adaptation, learning):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    n_seen, resting = [], UpperEncoder.resting
    monkeypatch.setattr(UpperEncoder, "resting", lambda self, images: n_seen.append(len(images)) or resting(self, images))
    recipe = recipe_with(f"model.adaptation={adaptation}", "model.n_views=3", "schedule.epochs=20")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    assert sum(n_seen) == 1 + 3 * 60 + 1 + 12  # one each to find the shape; three views to train on, one to validate on
    fresh = Encoder.create("tiny", 16, image_size=32, seed=recipe.seed).state_dict()
    changed = {name for name, tensor in trained.state_dict().items() if not torch.equal(tensor, fresh[name])}
    assert changed
    assert {name for name in changed if not name.startswith(learning)} == set()
    assert all(any(name.startswith(part) for name in changed) for part in learning)
    assert sum(losses(tmp_path / "run")[-3:]) < sum(losses(tmp_path / "run")[:3])


@pytest.mark.parametrize("adaptation", ["frozen", "upper:2"])
def test_validation_on_features_is_that_of_the_saved_encoder(recipe_with, tmp_path, adaptation):
    recipe = recipe_with(f"model.adaptation={adaptation}", "schedule.epochs=1")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    logged = {name: value for _, _, name, value in read_log(tmp_path / "run/log.csv")}
    _, held_out = train_and_validation(read_manifest(recipe.data.manifest), recipe)
    measured = evaluate_table(embed_manifest(trained, held_out))["map@r"]
    assert_close(measured, logged["val/map@r"], rtol=0, atol=0.02)  # features are rounded to float16


@pytest.mark.parametrize("adaptation", ["frozen", "upper"])
def test_a_run_on_features_goes_on_as_if_it_had_not_been_stopped(recipe_with, tmp_path, adaptation):
    recipe = recipe_with(f"model.adaptation={adaptation}", "chunk_size=5", "loss.reference=train")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "stopped", max_minutes=0)
    train(recipe, tmp_path / "stopped", resume=True)
    (_, whole), (_, stopped) = (load_checkpoint(tmp_path / run / "last.pt") for run in ("whole", "stopped"))
    assert_close(whole, stopped, rtol=0, atol=0)


@pytest.mark.parametrize("adaptation", ["frozen", "upper"])
def test_two_processes_train_on_features_as_one(recipe_with, image_tree, tiny_recipe, tmp_path, adaptation):
    overrides = [*tiny_recipe, f"model.adaptation={adaptation}", "model.projection=pca", "loss.reference=train"]
    train(recipe_with(*overrides), tmp_path / "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sightline"]
    command += ["train", "images", f"data.manifest={image_tree}", *overrides, "--out", str(tmp_path / "two")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SIGHTLINE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.adaptation=frozen", "model.embedding_dim=none"], "model.embedding_dim"),
        (["model.adaptation=upper:3"], "upper:3"),
        (
            ["schedule.warmup_epochs=1", "model.embedding_dim=none", "model.pooling=avg", "loss={name='sup_ap'}"],
            "warmup_epochs",
        ),
        (["loss.reference=train", "memory.size=10"], "memory.size"),
        (["loss={name='norm_softmax', reference='train'}"], "loss.reference"),
        (["loss={name='sup_ap', proxies='means'}"], "loss.proxies"),
        (["loss={name='sum_norm_softmax', proxies='means'}"], "loss.proxies"),
    ],
)
def test_a_run_that_cannot_learn_as_asked_is_refused_before_it_starts(recipe_with, tmp_path, overrides, named):
    with pytest.raises(InputError) as fault:
        train(recipe_with(*overrides), tmp_path / "run")
    assert named in str(fault.value)
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


@pytest.mark.parametrize("adaptation", ["full", "upper:1"])
def test_proxies_that_follow_start_at_class_means_and_are_resumed(recipe_with, tmp_path, monkeypatch, adaptation):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    loss = "loss={name='roadmap', decomposability='proxy', proxies='means'}"
    recipe = recipe_with(f"model.adaptation='{adaptation}'", loss, "data.val_fraction=0", "optimizer.lr=1e-6")
    whole = train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "run", max_minutes=0)
    assert Encoder.from_pretrained(train(recipe, tmp_path / "run", resume=True)).fingerprint() == (
        Encoder.from_pretrained(whole).fingerprint()
    )
    _, state = load_checkpoint(tmp_path / "whole/last.pt")
    proxies = state["loss"]["loss.term.proxies"]
    images = read_manifest(recipe.data.manifest)
    vectors, classes = embed_manifest(Encoder.from_pretrained(whole), images).vectors, images.labels()[:, 0]
    means = torch.stack([torch.from_numpy(vectors[classes == one]).mean(0) for one in range(len(proxies))])
    own = torch.cosine_similarity(proxies[:, None], means[None], dim=2).diagonal()
    least = 0.9 if adaptation == "full" else 0.5  # from features of augmented views
    assert own.min() > least, "the encoder hardly moves, and so do they"
