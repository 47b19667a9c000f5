"""What a run starts from: its images, a trained or wrapped encoder, principal components, cached features."""

import importlib
import json
import shutil

import pytest
import torch
from run_files import logged
from torch.testing import assert_close

from refusals import assert_refused
from sightline import Encoder, Whitening, embed_manifest, evaluate_table, read_card, read_manifest, train
from sightline.models.stages import UpperEncoder
from sightline.report.subject import read_subject
from sightline.training.prepare import plan_run, pooled_features, prepare_run, train_and_validation, untrained_encoder
from sightline.training.recipe import recipe_as_toml
from sightline.training.run_folder import RunFolder, load_checkpoint

OWN_NET = """
from torch import nn

def make_module():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.ReLU())
"""
SHORT = ["schedule.epochs=1", "schedule.warmup_epochs=0", "loggers=[]"]


@pytest.fixture
def start(tmp_path):
    encoder = Encoder.create("tiny", 8, pooling="avg", image_size=24, resize=30, feature_norm="l2", seed=5)
    return encoder.save_pretrained(tmp_path / "photos/encoder")


def test_unreadable_images_are_left_out_and_named(image_tree, recipe_with, tmp_path):
    folder = shutil.copytree(image_tree, tmp_path / "images")
    (folder / "super0/class00/bad.png").write_bytes(b"broken")
    (folder / "super1/none").mkdir()
    (folder / "super1/none/empty.png").touch()  # a class of nothing else
    recipe = recipe_with("sampler.skip_small_classes=true", manifest=folder)
    assert_refused(r"2 faults\n.*bad\.png.*\n.*empty\.png", train, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    recipe = recipe_with("schedule.epochs=1", "data.skip_unreadable=true", manifest=folder)
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


def test_a_backbone_with_a_pooling_of_its_own_is_not_averaged_unnoticed(recipe_with):
    backbone = ["model.backbone=test_vit", "model.weights=none", "data.image_size=32", "data.resize=32"]
    with pytest.warns(UserWarning, match=r"test_vit.*model\.pooling=native"):
        plan_run(recipe_with(*backbone))
    assert "test_vit" in plan_run(recipe_with(*backbone, "model.pooling=native"))


def test_a_run_starts_from_the_encoder_named_and_takes_its_shape(recipe_with, start, tmp_path):
    asked = recipe_with(*SHORT, f"model.start={start}", "optimizer.lr=1e-12")
    encoder, before = Encoder.from_pretrained(train(asked, tmp_path / "run")), Encoder.from_pretrained(start)
    assert encoder.settings == before.settings
    assert_close(encoder.state_dict(), before.state_dict(), atol=1e-6, rtol=0)  # a learning rate of next to nothing
    kept = RunFolder(tmp_path / "run").read_recipe()
    assert (kept.model.backbone, kept.model.pooling, kept.model.embedding_dim) == ("tiny", "avg", 8)
    assert (kept.data.image_size, kept.data.resize) == (24, 30)
    assert read_card(tmp_path / "run/encoder").training.weights == "photos/encoder"
    assert untrained_encoder(kept).fingerprint() == before.fingerprint()
    train(asked, tmp_path / "run", resume=True)  # the recipe is still the run's
    assert "tiny, 24 px, 8 dimensions" in plan_run(asked)


@pytest.mark.parametrize("adaptation", ["lora", "upper:1"])
def test_a_start_learns_by_every_adaptation(adaptation, recipe_with, start, tmp_path):
    if adaptation == "lora":
        pytest.importorskip("peft", exc_type=ImportError)
    recipe = recipe_with(*SHORT, f"model.start={start}", f"model.adaptation={adaptation}")
    trained, before = Encoder.from_pretrained(train(recipe, tmp_path / "run")), Encoder.from_pretrained(start)
    assert trained.fingerprint() != before.fingerprint()
    lowest = [one.state_dict()["backbone.layers.0.0.weight"] for one in (trained, before)]
    assert torch.equal(*lowest) == (adaptation != "lora")


def test_a_start_that_cannot_be_trained_is_refused_before_anything_is_written(recipe_with, start, tmp_path):
    whitening = Whitening.fit([[1.0] * 8, [0.0] * 4 + [1.0] * 4, list(range(8))])
    whitened = Encoder.from_pretrained(start).whitened(whitening).save_pretrained(tmp_path / "whitened")
    bare = Encoder.create("tiny", None, image_size=24).save_pretrained(tmp_path / "bare")
    (start / "encoder.json").write_text('{"backbone": 3}')
    for folder, more, fact in (
        (tmp_path / "nowhere", [], "nowhere"),
        (whitened, [], "sightline whiten"),
        (bare, ["model.adaptation=frozen"], "no projection"),
        (start, [], r"encoder\.json"),
    ):
        assert_refused(fact, train, recipe_with(*SHORT, f"model.start={folder}", *more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("adaptation", ["full", "frozen"])
def test_a_wrapped_module_trains_with_trust_alone(adaptation, recipe_with, tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(OWN_NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_net").make_module()
    encoder = Encoder.wrap(module, 24, embedding_dim=8, factory="own_net:make_module")
    begin = f"model.start={encoder.save_pretrained(tmp_path / 'start')}"
    asked = recipe_with(*SHORT, begin, f"model.adaptation={adaptation}", "validation.interpolate=true")
    assert_refused(r"make_module.*--trust", train, asked, tmp_path / "run")
    trained = Encoder.from_pretrained(train(asked, tmp_path / "run", trust=True), trust=True)
    assert trained.settings.module == encoder.settings.module
    learned = load_checkpoint(tmp_path / "run/last.pt")[1]["encoder"]  # what is kept may be the start
    assert not torch.equal(learned["head.projection.weight"], encoder.head.projection.weight)
    assert_refused(r"stages.*cannot be cut", prepare_run, recipe_with(begin, "model.adaptation=upper"), trust=True)


def test_a_recipe_and_a_folder_may_be_given_by_name(recipe_with, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(recipe_as_toml(recipe_with(*SHORT)))
    assert train("mine.toml", "runs/nb").is_dir()
    assert train(tmp_path / "mine.toml", "runs/nb", resume=True).is_dir()
    for wrong in (3, {"data": {}}):
        assert_refused(type(wrong).__name__, train, wrong, "runs/other")


@pytest.mark.parametrize(
    ("adaptation", "learning"), [("frozen", ("head",)), ("upper", ("backbone.layers.2", "pooling", "head"))]
)
def test_what_rests_sees_each_view_once_and_the_rest_learns(recipe_with, tmp_path, monkeypatch, adaptation, learning):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    n_seen, resting = [], UpperEncoder.resting
    monkeypatch.setattr(UpperEncoder, "resting", lambda self, images: n_seen.append(len(images)) or resting(self, images))
    recipe = recipe_with(f"model.adaptation={adaptation}", "model.n_views=3", "schedule.epochs=20", "validation.every=20")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    assert sum(n_seen) == 1 + 3 * 60 + 1 + 12  # one each to find the shape; three views to train on, one to validate on
    fresh = Encoder.create("tiny", 16, image_size=32, seed=recipe.seed).state_dict()
    changed = {name for name, tensor in trained.state_dict().items() if not torch.equal(tensor, fresh[name])}
    assert {name for name in changed if not name.startswith(learning)} == set()
    assert all(any(name.startswith(part) for name in changed) for part in learning)
    losses = logged(tmp_path / "run", "loss")
    assert sum(losses[-3:]) < sum(losses[:3])
    # Validation on features is that of the saved encoder.
    _, held_out = train_and_validation(read_manifest(recipe.data.manifest), recipe)
    measured = evaluate_table(embed_manifest(trained, held_out))["map@r"]
    assert_close([measured], logged(tmp_path / "run", "val/map@r"), rtol=0, atol=0.02)  # features are rounded to float16


def test_a_projection_starts_from_the_principal_components_of_the_training_images(recipe_with, image_tree, tmp_path):
    start = ["model.projection=pca", "model.feature_norm=l2", "optimizer.lr=1e-30", "data.val_fraction=0", *SHORT]
    trained = Encoder.from_pretrained(train(recipe_with(*start), tmp_path / "run"))
    pooled = pooled_features(trained, read_manifest(image_tree), n_workers=0)
    projected = trained.head.projection(trained.head.norm(pooled)).detach()
    assert_close((projected.mean(0), projected.T.cov()), (torch.zeros(16), torch.eye(16)), rtol=0, atol=1e-3)
