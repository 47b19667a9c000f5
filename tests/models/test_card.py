"""The card beside a saved encoder, and encoders that come from a hub."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_stand_in import StandInHub
from huggingface_hub import ModelCard as HubCard
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sightline import (
    Encoder,
    InputError,
    Result,
    embed_manifest,
    evaluate_table,
    read_card,
    read_manifest,
    read_recipe,
    train,
)
from sightline.data.manifest import hold_out_classes
from sightline.data.transforms import Preprocessing
from sightline.models.card import Account, EvaluationFacts, Measure, ModelCard, TrainingFacts, write_card


def tiny(seed=0):
    return Encoder.create("tiny", 8, image_size=32, seed=seed)


@pytest.fixture(scope="module")
def trained(image_tree, tmp_path_factory):
    """A run folder, with the recipe that made it."""
    words = [
        *(f"data.manifest={image_tree}", "model.backbone=tiny", "model.weights=none", "model.embedding_dim=16"),
        *("model.adaptation=full", "validation.interpolate=false", "schedule.warmup_epochs=1"),
        *("data.image_size=32", "data.n_workers=0", "sampler.batch_size=16", "schedule.epochs=3", "optimizer.lr=0.01"),
        *("loss.name=sup_ap", "loss.tau=0.02", "data.val_fraction=0.4"),
    ]
    recipe = read_recipe("images", words)
    folder = tmp_path_factory.mktemp("card") / "run"
    train(recipe, folder)
    return folder, recipe


def test_the_card_of_a_run_tells_its_data_loss_and_budget(trained, image_tree):
    folder, recipe = trained
    card = read_card(folder / "encoder")
    part, _ = hold_out_classes(read_manifest(image_tree), 0.4, recipe.seed)
    assert card.fingerprint == Encoder.from_pretrained(folder / "encoder").fingerprint()
    assert (card.data.manifest, card.data.n_images, card.data.n_classes) == ("tree", 42, (7, 3))
    assert len(set(part.table["label_0"])) == 7
    assert card.training.loss == "sup_ap"
    assert card.training.loss_options["tau"] == 0.02
    assert card.training.loss_options["rho"] == 100.0  # a default is told too
    assert (card.training.epochs, card.training.batch_size, card.training.lr, card.training.weights) == (3, 16, 0.01, None)
    assert str(image_tree.parent) not in (folder / "encoder/README.md").read_text(), "where images lie is nobody's business"


def test_the_cards_metrics_are_those_of_the_validation_that_chose_it(trained, image_tree):
    folder, recipe = trained
    told = read_card(folder / "encoder").evaluation
    _, held_out = hold_out_classes(read_manifest(image_tree), 0.4, recipe.seed)
    result = evaluate_table(embed_manifest(Encoder.from_pretrained(folder / "encoder"), held_out), recipe.validation.ks)
    assert told.on == "validation images of tree (30 images, 5 classes, none of them trained on)"
    assert (told.chose, told.n_queries, told.level) == (True, 30, 0.95)
    assert told.metrics.keys() == result.per_query.keys()
    for name, measure in told.metrics.items():
        np.testing.assert_allclose(measure.mean, result[name], rtol=1e-6)
        np.testing.assert_allclose((measure.low, measure.high), result.interval(name), rtol=1e-6)
    assert told.metrics["map@r"].low < told.metrics["map@r"].mean < told.metrics["map@r"].high


def test_the_hubs_own_reader_understands_the_head(trained):
    folder, _ = trained
    head = HubCard.load(folder / "encoder/README.md").data
    assert (head.library_name, head.pipeline_tag, head.license) == ("sightline", "image-feature-extraction", "unknown")
    assert "image-retrieval" in head.tags
    card = read_card(folder / "encoder")
    told = {result.metric_type: result for result in head.eval_results}
    assert set(head.metrics) == set(card.evaluation.metrics)
    measure = card.evaluation.metrics["map"]
    assert told["map"].metric_value == measure.mean
    assert told["map"].metric_args == {"interval": [measure.low, measure.high], "level": 0.95}


def test_two_runs_write_the_same_card(trained, tmp_path):
    folder, recipe = trained
    train(recipe, tmp_path / "again")
    texts = [(place / "encoder/README.md").read_bytes() for place in (folder, tmp_path / "again")]
    assert texts[0] == texts[1]


def test_without_validation_there_are_no_metrics(trained, tmp_path):
    _, recipe = trained
    data = recipe.data.model_copy(update={"val_fraction": 0})
    schedule = recipe.schedule.model_copy(update={"epochs": 1})
    folder = train(recipe.model_copy(update={"data": data, "schedule": schedule}), tmp_path / "run")
    assert read_card(folder).evaluation is None
    assert "Not measured." in (folder / "README.md").read_text()
    assert HubCard.load(folder / "README.md").data.eval_results is None


def test_classes_that_were_trained_on_are_told(image_tree, trained, tmp_path):
    _, recipe = trained
    table = read_manifest(image_tree).table.with_row_index()
    split = (table["index"] % 6 > 3).replace_strict({True: "val", False: "train"})
    absolute = [str(image_tree / path) for path in table["path"]]
    file = tmp_path / "known.csv"
    table.drop("index", "split", "path").insert_column(0, split.alias("split")).with_columns(
        path=np.array(absolute)
    ).write_csv(file)
    changed = {"data": recipe.data.model_copy(update={"manifest": file})}
    folder = train(recipe.model_copy(update=changed), tmp_path / "run")
    on = read_card(folder).evaluation.on
    assert on == "validation images of known.csv (24 images, 12 classes, 12 of them trained on)"


@pytest.mark.parametrize("which", ["plain", "trained"])
def test_the_code_of_the_card_runs(which, trained, tmp_path, monkeypatch):
    folder = trained[0] / "encoder" if which == "trained" else tiny().save_pretrained(tmp_path / 'a "model"')
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    assert len(code) == 1
    monkeypatch.chdir(folder.parent)
    rng = np.random.default_rng(0)
    for name in ("one.jpg", "other.jpg"):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(name)
    names = {}
    exec(code[0], names)
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
        with pytest.raises(InputError, match=r"README.md: not a model card of Sightline: "):
            read_card(folder)
    (folder / "README.md").unlink()
    assert Encoder.from_pretrained(folder).card is None
    with pytest.raises(InputError, match=r"it has no README.md; sightline export card writes one"):
        read_card(folder)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=60)
shares = st.none() | st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(
    words, words, words, words, st.dictionaries(words, st.none() | st.booleans() | st.integers() | words), shares, shares
)
def test_any_card_loads_back(tmp_path_factory, name, on, licence, notes, options, mean, end):
    training = TrainingFacts(
        loss=on, loss_options=options, weights=name, adaptation="full", epoch=1, epochs=2, batch_size=4,
        optimizer="sgd", lr=1e-5, precision="32-true", seed=0,
    )  # fmt: skip
    measures = {f"{on}@1": Measure(mean=mean, low=end, high=end)}
    evaluation = EvaluationFacts(on=on, chose=False, n_queries=3, n_skipped=1, level=0.9, metrics=measures)
    account = Account(training=training, evaluation=evaluation, license=licence, notes=notes)
    known = {"fingerprint": "0" * 32, "backbone": "tiny", "pooling": "gem", "dim": 8, "is_whitened": True}
    card = ModelCard(
        name=name, preprocessing=Preprocessing(), **known, **{key: getattr(account, key) for key in Account.model_fields}
    )
    folder = tmp_path_factory.mktemp("any")
    assert read_card(write_card(folder, card).parent) == card


def test_a_rules_line_in_notes_does_not_end_the_head(tmp_path):
    folder = tiny().save_pretrained(tmp_path / "encoder")
    card = read_card(folder).model_copy(update={"notes": "above\n---\nbelow\n\n---\n"})
    assert read_card(write_card(folder, card).parent) == card


def test_a_result_takes_the_place_of_the_validation(sightline, trained, image_tree, tmp_path):
    folder = Encoder.from_pretrained(trained[0] / "encoder").save_pretrained(tmp_path / "run/encoder").parent
    table, file, notes = tmp_path / "table.parquet", tmp_path / "result.json", tmp_path / "notes.md"
    notes.write_text("Made for a test.\n")
    sightline("embed", folder / "encoder", image_tree, "--out", table, "--workers", 0)
    sightline("evaluate", table, "--json", file)
    before = read_card(folder / "encoder")
    words = ["--result", file, "--on", "all images", "--license", "mit", "--notes", notes]
    assert sightline("export", "card", folder, *words) == (0, f"{folder / 'encoder/README.md'}\n", "")
    after, result = read_card(folder / "encoder"), Result.read_json(file)
    assert (after.data, after.training, after.license) == (before.data, before.training, "mit")
    assert (after.evaluation.on, after.evaluation.n_queries, after.evaluation.chose) == ("all images", 72, False)
    assert after.evaluation.metrics["map"].mean == result["map"]
    ends = after.evaluation.metrics["map"].low, after.evaluation.metrics["map"].high
    np.testing.assert_allclose(ends, result.interval("map"), rtol=1e-12)
    assert (folder / "encoder/README.md").read_text().endswith("## Notes\n\nMade for a test.\n")


def test_a_result_of_another_encoder_is_refused(sightline, tmp_path):
    folder = tiny().save_pretrained(tmp_path / "encoder")
    text = (folder / "README.md").read_text()
    file = Result({"map": np.array([0.5])}, fingerprint="0" * 32).write_json(tmp_path / "result.json")
    status, _, err = sightline("export", "card", folder, "--result", file)
    assert (status, err) == (
        2,
        f"sightline: {file}: of another encoder, {'0' * 32}, not {tiny().fingerprint()}\n",
    )
    assert (folder / "README.md").read_text() == text


WITH_A_HUB = """
import json, sys
from sightline import Encoder, InputError

encoder = Encoder.create("tiny", 8, image_size=32)
other = Encoder.create("tiny", 8, image_size=32, seed=1)
told = {"commits": [encoder.push_to_hub("owner/name", private=True), other.push_to_hub("owner/name", revision="next")]}
loaded = Encoder.from_pretrained("owner/name")
told["names"] = [loaded.card.name, Encoder.from_pretrained("owner/name", revision="next").card.name]
told["prints"] = [loaded.fingerprint(), Encoder.from_pretrained("owner/name", revision="next").fingerprint()]
told["wanted"] = [encoder.fingerprint(), other.fingerprint()]
told["errors"] = []
for name, revision in (("owner/none", None), ("owner/name", "old")):
    try:
        Encoder.from_pretrained(name, revision=revision)
    except InputError as error:
        told["errors"].append(str(error))
json.dump(told, sys.stdout)
"""
WITHOUT = """
from sightline import Encoder, InputError
for call in (lambda: Encoder.from_pretrained("owner/name"), lambda: Encoder.create("tiny", 8).push_to_hub("owner/name")):
    try:
        call()
    except InputError as error:
        print(error)
"""


def with_hub(address, code, tmp_path):
    """Run the code in a process of its own: the hub's client reads its address when it is imported."""
    known = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_of_nobody", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | known, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_pushed_to_a_hub_comes_back(tmp_path):
    with StandInHub() as hub:
        told = json.loads(with_hub(hub.address, WITH_A_HUB, tmp_path))
    assert told["prints"] == told["wanted"]
    assert told["names"] == ["owner/name", "owner/name"]
    assert [commit.rpartition("/")[0] for commit in told["commits"]] == [f"{hub.address}/owner/name/commit"] * 2
    files = ["README.md", "encoder.json", "model.safetensors"]
    assert {branch: sorted(there) for branch, there in hub.models["owner/name"].items()} == {"main": files, "next": files}
    assert b'Encoder.from_pretrained("owner/name")' in hub.models["owner/name"]["main"]["README.md"]
    assert hub.created == [("owner/name", True), ("owner/name", False)]
    assert [commit["summary"] for commit in hub.commits] == ["Encoder", "Encoder"]
    assert told["errors"][0].startswith("owner/none: no such folder, and the hub does not give it: ")
    assert told["errors"][1].startswith("owner/name: no such folder, and the hub does not give it at 'old': ")


def test_without_a_network_both_ways_say_so(tmp_path):
    with StandInHub() as hub:
        nobody = hub.address
    missing, refused = with_hub(nobody, WITHOUT, tmp_path).splitlines()
    assert missing.startswith("owner/name: no such folder, and the hub does not give it: ")
    assert refused.startswith("owner/name: the hub did not take it: ")
    assert "refused" in missing
    assert "refused" in refused


def test_a_path_is_never_looked_for_on_a_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^owner/name: not an encoder folder: it has no encoder.json$"):
        Encoder.from_pretrained(Path("owner/name"))
    with pytest.raises(InputError, match=r"a folder, which has no revision 'v1'"):
        Encoder.from_pretrained(tiny().save_pretrained(tmp_path / "encoder"), revision="v1")
    with pytest.raises(InputError, match=r"^'name': 'owner/name' is needed$"):
        tiny().push_to_hub("name")
