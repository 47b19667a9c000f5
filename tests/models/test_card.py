"""The card beside a saved encoder, and encoders that come from a hub."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import ModelCard as HubCard
from PIL import Image

from refusals import assert_refused
from sightline import Encoder, Result, embed_manifest, evaluate_table, read_card, read_manifest, read_recipe, train
from sightline.data.manifest import hold_out_classes
from sightline.models.card import Account, EvaluationFacts, Measure, TrainingFacts, write_card


def tiny(seed=0):
    return Encoder.create("tiny", 8, image_size=32, seed=seed)


@pytest.fixture(scope="module")
def trained(image_tree, tiny_recipe, tmp_path_factory):
    """A run folder, with the recipe that made it."""
    words = [f"data.manifest={image_tree}", *tiny_recipe, "schedule.epochs=2", "data.val_fraction=0.4"]
    recipe = read_recipe("images", [*words, "loss={name='sup_ap', tau=0.02}"])
    folder = tmp_path_factory.mktemp("card") / "run"
    train(recipe, folder)
    return folder, recipe


def test_the_card_of_a_run_tells_its_data_loss_and_budget_and_the_hub_understands_it(trained, image_tree):
    folder, recipe = trained
    card, encoder = read_card(folder / "encoder"), Encoder.from_pretrained(folder / "encoder")
    part, held_out = hold_out_classes(read_manifest(image_tree), 0.4, recipe.seed)
    assert card.fingerprint == encoder.fingerprint()
    assert (card.data.manifest, card.data.n_images, card.data.n_classes) == ("tree", 42, (7, 3))
    assert len(set(part.table["label_0"])) == 7
    result = evaluate_table(embed_manifest(encoder, held_out), recipe.validation.ks)
    assert "30 images, 5 classes, none" in card.evaluation.on
    assert (card.evaluation.chose, card.evaluation.n_queries, card.evaluation.level) == (True, 30, 0.95)
    for name, mean in result.items():
        measure = card.evaluation.metrics[name]
        np.testing.assert_allclose((measure.mean, measure.low, measure.high), (mean, *result.interval(name)), rtol=1e-6)
    facts = card.training
    assert (facts.loss, facts.loss_options["tau"], facts.loss_options["rho"]) == ("sup_ap", 0.02, 100.0)  # and defaults
    assert (facts.epochs, facts.batch_size, facts.lr, facts.weights) == (2, 16, 0.01, None)
    assert str(image_tree.parent) not in (folder / "encoder/README.md").read_text(), "where images lie is nobody's business"
    head = HubCard.load(folder / "encoder/README.md").data
    assert (head.library_name, head.pipeline_tag, head.license) == ("sightline", "image-feature-extraction", "unknown")
    assert "image-retrieval" in head.tags
    assert set(head.metrics) == set(card.evaluation.metrics)
    recorded, measure = {result.metric_type: result for result in head.eval_results}["map"], card.evaluation.metrics["map"]
    assert recorded.metric_value == measure.mean
    assert recorded.metric_args == {"interval": [measure.low, measure.high], "level": 0.95}


@pytest.mark.parametrize("which", ["plain", "trained"])
def test_the_code_of_the_card_runs(which, trained, tmp_path, monkeypatch):
    folder = trained[0] / "encoder" if which == "trained" else tiny().save_pretrained(tmp_path / 'a "model"')
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(folder.parent)
    rng = np.random.default_rng(0)
    for name in ("one.jpg", "other.jpg"):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(name)
    names = {}
    exec(code, names)
    assert -1 <= names["similarity"] <= 1.0001
    assert names["encoder"].fingerprint() == read_card(folder).fingerprint


def test_a_card_goes_with_its_encoder_and_stays_behind_when_that_changes(trained, tmp_path):
    loaded = Encoder.from_pretrained(trained[0] / "encoder")
    copied = read_card(loaded.save_pretrained(tmp_path / "copy"))
    assert copied == loaded.card.model_copy(update={"name": "copy"})
    loaded.head.projection.weight.data += 1
    changed = read_card(loaded.save_pretrained(tmp_path / "changed"))
    assert (changed.data, changed.training, changed.evaluation) == (None, None, None)
    assert changed.fingerprint == loaded.fingerprint() != copied.fingerprint


def test_the_card_is_no_part_of_what_the_encoder_is(tmp_path):
    encoder = tiny()
    folder = encoder.save_pretrained(tmp_path / "encoder")
    for text in ("# mine\n", "---\n[1, 2\n---\n", "---\nsightline: {name: 3}\n---\n", "---\n- 1\n---\n"):
        (folder / "README.md").write_text(text)
        loaded = Encoder.from_pretrained(folder)
        assert loaded.card is None
        assert loaded.fingerprint() == encoder.fingerprint()
        assert_refused(r"README\.md", read_card, folder)
    (folder / "README.md").unlink()
    assert Encoder.from_pretrained(folder).card is None
    assert_refused(r"README\.md.*export card", read_card, folder)


@pytest.mark.parametrize(
    "text", ["", "a: b\n---\n- 'c'\n\n---\n", "# {{ x }}\t\u2028 \U0001f426 |", "null", "1e3", " *a &b"]
)
def test_any_text_of_a_card_loads_back(tmp_path, text):
    numbers = {"epoch": 1, "epochs": 2, "batch_size": 4, "lr": 1e-5, "seed": 0, "trained_share": 0.5}
    words = {"weights": text, "adaptation": "full", "optimizer": "sgd", "precision": "32-true"}
    training = TrainingFacts(loss=text, loss_options={text: text}, **numbers, **words)
    measures = {f"{text}@1": Measure(mean=0.5, low=None, high=None)}
    evaluation = EvaluationFacts(on=text, chose=True, n_queries=3, n_skipped=1, level=0.9, metrics=measures)
    account = Account(training=training, evaluation=evaluation, license=text, notes=text)
    folder = tiny().save_pretrained(tmp_path / "encoder", account)
    card = read_card(folder).model_copy(update={"name": text, "is_whitened": True})
    assert read_card(write_card(folder, card).parent) == card
    assert (card.training, card.evaluation, card.notes) == (training, evaluation, text)


def test_a_result_takes_the_place_of_the_validation(sightline, check_refused, trained, image_tree, tmp_path):
    folder = Encoder.from_pretrained(trained[0] / "encoder").save_pretrained(tmp_path / "run/encoder").parent
    table, file, notes = tmp_path / "table.parquet", tmp_path / "result.json", tmp_path / "notes.md"
    notes.write_text("Made for a test.\n")
    sightline("embed", folder / "encoder", image_tree, "--out", table, "--workers", 0)
    sightline("evaluate", table, "--json", file)
    before = read_card(folder / "encoder")
    other = Result({"map": np.array([0.5])}, fingerprint="0" * 32).write_json(tmp_path / "other.json")
    check_refused(["export", "card", folder, "--result", other], "other.json", "0" * 32, before.fingerprint)
    assert read_card(folder / "encoder") == before
    words = ["--result", file, "--on", "all images", "--license", "mit", "--notes", notes]
    assert sightline("export", "card", folder, *words) == (0, f"{folder / 'encoder/README.md'}\n", "")
    after, result = read_card(folder / "encoder"), Result.read_json(file)
    assert (after.data, after.training, after.license) == (before.data, before.training, "mit")
    assert (after.evaluation.on, after.evaluation.n_queries, after.evaluation.chose) == ("all images", 72, False)
    measure = after.evaluation.metrics["map"]
    np.testing.assert_allclose((measure.mean, measure.low, measure.high), (result["map"], *result.interval("map")))
    assert (folder / "encoder/README.md").read_text().endswith("## Notes\n\nMade for a test.\n")


class Hub:
    """Stands for the hub's client: keeps the files of each model and branch."""

    def __init__(self, root):
        self.root, self.created = root, []

    def __call__(self, library_name):
        return self

    def create_repo(self, name, private, exist_ok):
        self.created.append((name, private))

    def create_branch(self, name, branch, exist_ok):
        pass

    def upload_folder(self, repo_id, folder_path, revision, commit_message):
        shutil.copytree(folder_path, self.root / repo_id / "snapshots" / (revision or "main"))
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    def download(self, name, revision, allow_patterns):
        folder = self.root / name / "snapshots" / (revision or "main")
        if not folder.is_dir():
            raise ConnectionError("no such branch\nmore")
        return str(folder)


def test_what_is_pushed_to_a_hub_comes_back(tmp_path, monkeypatch):
    hub = Hub(tmp_path / "hub")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sightline.models.card.HfApi", hub)
    monkeypatch.setattr("sightline.models.card.snapshot_download", hub.download)
    assert tiny().push_to_hub("owner/name", private=True) == "https://hub/owner/name/commit/1"
    tiny(seed=1).push_to_hub("owner/name", revision="next")
    for revision, seed in ((None, 0), ("next", 1)):
        loaded = Encoder.from_pretrained("owner/name", revision=revision)
        assert (loaded.fingerprint(), loaded.card.name) == (tiny(seed).fingerprint(), "owner/name")
    assert hub.created == [("owner/name", True), ("owner/name", None)]
    assert_refused(r"^owner/name: .*'old': no such branch$", Encoder.from_pretrained, "owner/name", revision="old")
    monkeypatch.setattr(hub, "create_repo", hub.download)
    assert_refused(r"^owner/name: ", tiny().push_to_hub, "owner/name")
    assert_refused(r"encoder\.json", Encoder.from_pretrained, Path("owner/name"))
    assert_refused("'v1'", Encoder.from_pretrained, tiny().save_pretrained(tmp_path / "encoder"), revision="v1")
    assert_refused(r"'owner/name'.*'name'", tiny().push_to_hub, "name")
