"""Training that starts from a trained or wrapped encoder, and runs that get more epochs."""

import importlib
import shutil

import pytest
from torch.testing import assert_close

from sightline import Encoder, InputError, Whitening, read_card, read_recipe, train
from sightline.training.prepare import plan_run, prepare_run, untrained_encoder
from sightline.training.run_folder import RunFolder, load_checkpoint

OWN_NET = """
from torch import nn

def make_module():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.ReLU())
"""
SHORT = ["schedule.epochs=1", "schedule.warmup_epochs=0", "loggers=[]"]


@pytest.fixture
def recipe(image_tree, tiny_recipe):
    """Make a short recipe on the small images."""
    return lambda *more: read_recipe("images", [f"data.manifest={image_tree}", *tiny_recipe, *SHORT, *more])


@pytest.fixture
def start(tmp_path):
    encoder = Encoder.create("tiny", 8, pooling="avg", image_size=24, resize=30, feature_norm="l2", seed=5)
    return encoder.save_pretrained(tmp_path / "photos/encoder")


def test_a_run_starts_from_the_encoder_named_and_takes_its_shape(recipe, start, tmp_path):
    asked = recipe(f"model.start={start}", "optimizer.lr=1e-12")
    encoder = Encoder.from_pretrained(train(asked, tmp_path / "run"))
    before = Encoder.from_pretrained(start)
    assert encoder.settings == before.settings
    weights, wanted = encoder.state_dict(), before.state_dict()
    assert_close(weights, wanted, atol=1e-6, rtol=0)  # a learning rate of next to nothing
    kept = RunFolder(tmp_path / "run").read_recipe()
    assert (kept.model.backbone, kept.model.pooling, kept.model.embedding_dim) == ("tiny", "avg", 8)
    assert (kept.data.image_size, kept.data.resize) == (24, 30)
    assert read_card(tmp_path / "run/encoder").training.weights == "photos/encoder"
    assert untrained_encoder(kept).fingerprint() == before.fingerprint()
    train(asked, tmp_path / "run", resume=True)  # the recipe is still the run's
    assert "tiny, 24 px, 8 dimensions" in plan_run(asked)


@pytest.mark.parametrize("adaptation", ["lora", "upper:1", "frozen"])
def test_a_start_learns_by_every_adaptation(adaptation, recipe, start, tmp_path):
    trained = Encoder.from_pretrained(
        train(recipe(f"model.start={start}", f"model.adaptation={adaptation}"), tmp_path / "run")
    )
    before = Encoder.from_pretrained(start)
    assert trained.fingerprint() != before.fingerprint()
    lowest = "backbone.layers.0.0.weight"
    rests = adaptation != "lora"
    assert bool((trained.state_dict()[lowest] == before.state_dict()[lowest]).all()) == rests


def test_a_start_that_cannot_be_trained_is_refused_before_anything_is_written(recipe, start, tmp_path):
    encoder = Encoder.from_pretrained(start)
    whitened = encoder.whitened(Whitening.fit([[1.0] * 8, [0.0] * 4 + [1.0] * 4, list(range(8))]))
    bare = Encoder.create("tiny", None, image_size=24)
    cases = {
        "nowhere": (tmp_path / "nowhere", []),
        "sightline whiten": (whitened.save_pretrained(tmp_path / "whitened"), []),
        "no projection": (bare.save_pretrained(tmp_path / "bare"), ["model.adaptation=frozen"]),
    }
    for fact, (folder, more) in cases.items():
        with pytest.raises(InputError, match=fact):
            train(recipe(f"model.start={folder}", *more), tmp_path / "run")
    (start / "encoder.json").write_text('{"backbone": 3}')
    with pytest.raises(InputError, match=r"encoder\.json"):
        train(recipe(f"model.start={start}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("adaptation", ["full", "frozen"])
def test_a_wrapped_module_trains_with_trust_alone(adaptation, recipe, tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(OWN_NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_net").make_module()
    encoder = Encoder.wrap(module, 24, embedding_dim=8, factory="own_net:make_module")
    start = encoder.save_pretrained(tmp_path / "start")
    asked = recipe(f"model.start={start}", f"model.adaptation={adaptation}", "validation.interpolate=true")
    with pytest.raises(InputError, match=r"make_module.*--trust"):
        train(asked, tmp_path / "run")
    folder = train(asked, tmp_path / "run", trust=True)
    trained = Encoder.from_pretrained(folder, trust=True)
    assert trained.fingerprint() != encoder.fingerprint()
    assert trained.settings.module == encoder.settings.module
    with pytest.raises(InputError, match=r"stages.*cannot be cut"):
        prepare_run(recipe(f"model.start={start}", "model.adaptation=upper"), trust=True)


def test_more_epochs_on_a_finished_run_are_one_longer_run(recipe, tmp_path):
    same = ["schedule.name=constant", "model.freeze_batch_norm=none"]
    train(recipe(*same, "schedule.epochs=2"), tmp_path / "run")
    longer = recipe(*same, "schedule.epochs=4", "data.n_workers=1", "keep_every=1", "validation.patience=9")
    train(longer, tmp_path / "run", resume=True)
    train(recipe(*same, "schedule.epochs=4"), tmp_path / "whole")
    (position, state), (wanted, whole) = (load_checkpoint(tmp_path / name / "last.pt") for name in ("run", "whole"))
    assert position == wanted
    assert_close(state, whole, rtol=0, atol=0)
    fingerprints = [Encoder.from_pretrained(tmp_path / name / "encoder").fingerprint() for name in ("run", "whole")]
    assert fingerprints[0] == fingerprints[1]
    assert (tmp_path / "run/log.csv").read_bytes() == (tmp_path / "whole/log.csv").read_bytes()
    assert RunFolder(tmp_path / "run").read_recipe().schedule.epochs == 4


def test_a_resume_with_fewer_epochs_or_another_key_is_refused(recipe, tmp_path):
    train(recipe("schedule.epochs=2"), tmp_path / "run")
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "run", kept)
    with pytest.raises(InputError, match=r"schedule\.epochs.*2.*1"):
        train(recipe("schedule.epochs=1"), tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"optimizer\.lr.*0\.5.*'schedule\.epochs'"):
        train(recipe("schedule.epochs=3", "optimizer.lr=0.5"), tmp_path / "run", resume=True)
    assert (kept / "recipe.json").read_bytes() == (tmp_path / "run/recipe.json").read_bytes()


def test_a_recipe_and_a_folder_may_be_given_by_name(recipe, tmp_path, monkeypatch, image_tree):
    from sightline.training.recipe import recipe_as_toml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(recipe_as_toml(recipe()))
    assert train("mine.toml", "runs/nb").is_dir()
    assert train(tmp_path / "mine.toml", "runs/nb", resume=True).is_dir()
    for wrong in (3, {"data": {}}):
        with pytest.raises(InputError, match=type(wrong).__name__):
            train(wrong, "runs/other")
