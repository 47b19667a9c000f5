"""A run that was stopped and goes on is the run that never stopped; a finished one goes on with more epochs."""

import os
import shutil
import signal

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from run_files import assert_same_checkpoint, assert_same_run
from torch.testing import assert_close

from sightline import Encoder, embed_manifest, read_manifest, train
from sightline.training import engine
from sightline.training.run_folder import RunFolder, load_checkpoint


@pytest.fixture
def whole_and_resumed(tmp_path, recipe_with):
    """The folder of a run that never stopped, which one stopped after its first step has equalled."""

    def compare(*overrides):
        recipe = recipe_with(*overrides)
        train(recipe, tmp_path / "whole")
        train(recipe, tmp_path / "stopped", max_minutes=0)
        assert load_checkpoint(tmp_path / "stopped/last.pt")[0].step == 1
        train(recipe, tmp_path / "stopped", resume=True)
        assert_same_run(tmp_path / "whole", tmp_path / "stopped")
        return tmp_path / "whole"

    return compare


def test_a_memory_is_part_of_the_checkpoint(whole_and_resumed):
    whole = whole_and_resumed("memory.size=all", "memory.start_epoch=1", "schedule.epochs=2")
    assert len(load_checkpoint(whole / "last.pt")[1]["loss"]["memory.ids"]) > 0


@pytest.mark.parametrize(("adaptation", "reference"), [("frozen", "train"), ("upper", "both")])
def test_cached_features_in_chunks_ranked_against_the_training_set(whole_and_resumed, adaptation, reference):
    settings = [f"model.adaptation={adaptation}", f"loss.reference={reference}", "chunk_size=5", "schedule.epochs=2"]
    state = load_checkpoint(whole_and_resumed(*settings) / "last.pt")[1]["loss"]
    assert any(name.startswith("keys.") for name in state), "the momentum encoder"


def test_half_precision_keeps_its_loss_scale(whole_and_resumed, monkeypatch):
    def on_the_cpu(recipe):  # where Fabric itself would take bfloat16, which needs no scale
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        return Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

    monkeypatch.setattr("sightline.training.run.create_fabric", on_the_cpu)
    whole = whole_and_resumed("precision=16-mixed", "chunk_size=5", "checkpoint_every=3", "schedule.epochs=2")
    assert load_checkpoint(whole / "last.pt")[1]["precision"]["scale"] > 64


def test_lora_leaves_a_plain_encoder(whole_and_resumed):
    pytest.importorskip("peft", exc_type=ImportError)
    overrides = ["model.adaptation=lora", "model.lora_rank=2", "data.val_fraction=0", "schedule.epochs=2"]
    trained = Encoder.from_pretrained(whole_and_resumed(*overrides) / "encoder")
    fresh = Encoder.create("tiny", 16, image_size=32, seed=0)
    assert trained.state_dict().keys() == fresh.state_dict().keys()
    moved = trained.backbone.layers[0][0].weight - fresh.backbone.layers[0][0].weight
    assert 1 <= torch.linalg.matrix_rank(moved.flatten(1)) <= 2
    assert_close(trained.backbone.layers[0][1].state_dict(), fresh.backbone.layers[0][1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("adaptation", "least"), [("full", 0.9), ("upper:1", 0.5)])  # the latter: from augmented views
def test_proxies_that_follow_start_at_class_means(whole_and_resumed, image_tree, adaptation, least):
    loss = "loss={name='roadmap', decomposability='proxy', proxies='means'}"
    overrides = [f"model.adaptation='{adaptation}'", loss, "data.val_fraction=0", "optimizer.lr=1e-6", "schedule.epochs=2"]
    whole = whole_and_resumed(*overrides)
    proxies = load_checkpoint(whole / "last.pt")[1]["loss"]["loss.term.proxies"]
    images = read_manifest(image_tree)
    vectors, classes = embed_manifest(Encoder.from_pretrained(whole / "encoder"), images).vectors, images.labels()[:, 0]
    means = torch.stack([torch.from_numpy(vectors[classes == one]).mean(0) for one in range(len(proxies))])
    own = torch.cosine_similarity(proxies[:, None], means[None], dim=2).diagonal()
    assert own.min() > least, "the encoder hardly moves, and so do they"


def test_a_compiled_encoder_trains_and_is_saved_as_the_plain_one(plain_run, recipe_with, tmp_path, monkeypatch):
    """Its graph is traced and run as it is: what a backend makes of it is torch's affair, and takes a minute."""
    n_graphs, compile_ = [], torch.compile

    def traced(graph, inputs):
        n_graphs.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda module, backend=None: compile_(module, backend=traced))
    recipe = recipe_with("compile=true")
    train(recipe, tmp_path / "compiled", max_minutes=0)
    train(recipe, tmp_path / "compiled", resume=True)
    assert n_graphs
    (_, plain), (_, compiled) = (load_checkpoint(run / "last.pt") for run in (plain_run, tmp_path / "compiled"))
    assert plain["encoder"].keys() == compiled["encoder"].keys()
    assert_close(compiled["encoder"], plain["encoder"], rtol=1e-4, atol=1e-5)


def test_sigterm_saves_and_ends_well(plain_run, image_tree, tiny_recipe, tmp_path, monkeypatch, sightline):
    left, back_propagate = [4], engine.back_propagate

    def interrupted(*args):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return back_propagate(*args)

    monkeypatch.setattr(engine, "back_propagate", interrupted)
    words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out", tmp_path / "stopped"]
    before = signal.getsignal(signal.SIGTERM)
    status, _, err = sightline(*words)
    assert (status, "step 4" in err, "--resume" in err) == (0, True, True)
    assert load_checkpoint(tmp_path / "stopped/last.pt")[0].step == 4
    assert sightline(*words, "--resume")[0] == 0
    assert "schedule.epochs" in sightline(*words, "--resume")[2], "nothing is left to train"
    assert signal.getsignal(signal.SIGTERM) == before
    assert_same_run(plain_run, tmp_path / "stopped")


def test_a_checkpoint_is_kept_every_so_many_epochs_and_the_run_can_go_back_to_it(recipe_with, tmp_path):
    recipe, run, back = recipe_with("schedule.epochs=5", "keep_every=2"), tmp_path / "run", tmp_path / "back"
    train(recipe, run)
    assert sorted(file.name for file in run.glob("*.pt")) == ["epoch-002.pt", "epoch-004.pt", "last.pt"]
    positions = [load_checkpoint(run / f"epoch-00{epoch}.pt")[0] for epoch in (2, 4)]
    assert [(position.epoch, position.batch) for position in positions] == [(2, 0), (4, 0)]
    shutil.copytree(run, back)
    shutil.copy(back / "epoch-002.pt", back / "last.pt")
    (back / "epoch-004.pt").unlink()
    train(recipe, back, resume=True)
    assert_same_run(run, back)
    assert_same_checkpoint(run / "epoch-004.pt", back / "epoch-004.pt")


def test_more_epochs_on_a_finished_run_are_one_longer_run(recipe_with, tmp_path):
    same = ["schedule.name=constant", "model.freeze_batch_norm=none"]
    train(recipe_with(*same, "schedule.epochs=2"), tmp_path / "run")
    longer = recipe_with(*same, "schedule.epochs=4", "data.n_workers=1", "keep_every=1", "validation.patience=9")
    train(longer, tmp_path / "run", resume=True)
    train(recipe_with(*same, "schedule.epochs=4"), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert RunFolder(tmp_path / "run").read_recipe().schedule.epochs == 4
