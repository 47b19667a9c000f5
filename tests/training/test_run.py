"""What a run computes, keeps, logs and refuses; those that are stopped are in test_resume.py."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
import torch
from run_files import assert_close_logs, assert_same_run, logged
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close

from refusals import assert_refused
from sightline import EmbeddingTable, Encoder, embed_manifest, evaluate_table, read_manifest, train
from sightline.files import locked
from sightline.models.card import read_card
from sightline.training import engine
from sightline.training import run as training_run
from sightline.training.logs import read_log
from sightline.training.prepare import prepare_run
from sightline.training.run_folder import RunFolder, load_checkpoint


def last_encoder(folder):
    encoder = Encoder.create("tiny", 16, image_size=32)
    encoder.load_state_dict(load_checkpoint(folder / "last.pt")[1]["encoder"])
    return encoder


def test_a_run_learns_and_leaves_everything_in_one_folder(image_tree, recipe_with, tmp_path):
    # Without validation: on two held-out classes an early encoder can be the best by chance.
    recipe = recipe_with("schedule.epochs=24", "data.val_fraction=0")
    encoder = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock", "encoder", "environment.json", "images.json", "last.pt", "log.csv", "recipe.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "run/recipe.json").read_text()).keys() == recipe.model_dump().keys()
    assert encoder.fingerprint() == last_encoder(tmp_path / "run").fingerprint()
    losses = logged(tmp_path / "run", "loss")
    assert len(losses) > 6
    assert sum(losses[-3:]) < sum(losses[:3])
    table = embed_manifest(encoder, read_manifest(image_tree))
    untrained = embed_manifest(Encoder.create("tiny", 16, image_size=32), read_manifest(image_tree))
    after = evaluate_table(EmbeddingTable.read(table.write(tmp_path / "t.parquet")))["map@r"]
    assert after > evaluate_table(untrained)["map@r"] + 0.1


def test_the_encoder_kept_is_the_best_by_the_recipes_metric(recipe_with, tmp_path):
    # The rate is absurd from the second epoch on, so the first epoch's encoder must win.
    recipe = recipe_with("schedule.name=constant", "optimizer.lr=3.0", "validation.metric=h_ap")
    kept = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    values = logged(tmp_path / "run", "val/h_ap")
    assert len(values) == 3
    assert load_checkpoint(tmp_path / "run/last.pt")[0].best == max(values)
    is_last_best = values.index(max(values)) == len(values) - 1
    assert (kept.fingerprint() == last_encoder(tmp_path / "run").fingerprint()) == is_last_best


def test_one_seed_gives_the_same_bits_with_any_number_of_loaders_and_another_does_not(plain_run, recipe_with, tmp_path):
    torch.manual_seed(1234)  # what was drawn before a run must not matter
    train(recipe_with("data.n_workers=2"), tmp_path / "again")
    assert_same_run(plain_run, tmp_path / "again")
    train(recipe_with("seed=1", "schedule.epochs=1"), tmp_path / "other")
    assert logged(tmp_path / "other", "loss")[0] != logged(plain_run, "loss")[0]


def test_the_backbone_rests_during_the_warm_up_and_validation_classes_are_never_trained_on(recipe_with, tmp_path):
    recipe = recipe_with("schedule.epochs=1")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    fresh = Encoder.create("tiny", 16, image_size=32, seed=0)
    assert_close(dict(trained.backbone.state_dict()), dict(fresh.backbone.state_dict()), rtol=0, atol=0)
    assert not torch.equal(trained.head.projection.weight, fresh.head.projection.weight)
    parts = prepare_run(recipe)
    learned, validated = (set(part.table["label_0"]) for part in (parts.train_part, parts.val_part))
    assert (len(learned), len(validated), learned & validated) == (10, 2, set())


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        ([], ["batch_size", "3 processes", "16"]),
        (["sampler.batch_size=64"], ["64", "16 classes", "10"]),
        (["loss.name=roadmop"], ["'roadmop'", "'roadmap'"]),
        (["loss.rhoo=3"], ["'roadmap'", "'rhoo'", "'rho'"]),
        (["validation.metric=map@rr"], ["'map@rr'", "'map@r'"]),
        (["model.backbone=tinny"], ["'tinny'", "'tiny'"]),
        (["loggers=['tensorbored']"], ["'tensorbored'", "'tensorboard'"]),
        (["memory.size=all", "loss={name='norm_softmax'}"], ["memory.size", "'norm_softmax'"]),
        (["memory.size=all", "loss={name='blackbox_ap',memory=2}"], ["memory.size", "'blackbox_ap'"]),
        (["memory.size=all", "loss={name='weighted_sum',terms=[{name='csl',weight=1}]}"], ["memory", "'weighted_sum'"]),
        (["model.freeze_batch_norm=none", "chunk_size=3"], ["chunk_size", "backbone.layers.0.1", "freeze_batch_norm"]),
        (["strategy=fsdp", "precision=16-mixed", "compile=true"], ["fsdp", "16-mixed", "compile", "ddp"]),
        (["model.adaptation=frozen", "model.embedding_dim=none"], ["model.embedding_dim"]),
        (["model.adaptation=upper:3"], ["upper:3"]),
        (["model.embedding_dim=none", "model.pooling=avg", "loss={name='sup_ap'}"], ["schedule.warmup_epochs"]),
        (["loss.reference=train", "memory.size=10"], ["memory.size", "loss.reference"]),
        (["loss={name='norm_softmax', reference='train'}"], ["loss.reference", "'norm_softmax'"]),
        (["memory.momentum=0.9"], ["memory.momentum", "memory.size", "loss.reference"]),
        (["loss.reference=train", "strategy=fsdp"], ["loss.reference", "strategy=fsdp", "memory.momentum=0"]),
        (["loss={name='sup_ap', proxies='means'}"], ["loss.proxies", "'sup_ap'"]),
        (["loss={name='sum_norm_softmax', proxies='means'}"], ["loss.proxies", "'sum_norm_softmax'"]),
        (["model.projection=pca", "model.embedding_dim=33"], ["projection", "33"]),
    ],
)
def test_a_recipe_that_cannot_run_is_refused_before_it_writes(recipe_with, tmp_path, monkeypatch, overrides, facts):
    if not overrides:
        monkeypatch.setenv("WORLD_SIZE", "3")
    assert_refused(facts, train, recipe_with(*overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class TestManifests:
    """Images that a recipe cannot use."""

    @pytest.fixture
    def manifest(self, image_tree, tmp_path):
        """Write a manifest: rows that a filter leaves, with other values in some columns."""
        rows = read_manifest(image_tree).table.with_columns(path=str(image_tree) + "/" + pl.col("path"))

        def write(rows_wanted=True, **columns):
            rows.filter(rows_wanted).with_columns(**columns).write_csv(tmp_path / "own.csv")
            return tmp_path / "own.csv"

        return write

    def test_a_class_too_small_for_its_part_of_a_batch(self, manifest, recipe_with):
        is_first = pl.int_range(pl.len()).over("label_0") == 0
        lonely = manifest((pl.col("label_0") != "class03") | is_first)
        facts = ["own.csv: 1 of 12", "per_class=4", "'class03'", "skip_small_classes"]
        assert_refused(facts, prepare_run, recipe_with("data.val_fraction=0", manifest=lonely))
        parts = prepare_run(recipe_with("data.val_fraction=0", "sampler.skip_small_classes=true", manifest=lonely))
        assert len(parts.train_part) == 66

    def test_validation_images_without_a_right_answer_or_of_one_class(self, manifest, recipe_with):
        is_val, is_first = pl.col("label_0") > "class09", pl.int_range(pl.len()).over("label_0") == 0
        split = pl.when(is_val).then(pl.lit("val")).otherwise("split")
        recipe = recipe_with(manifest=manifest(~is_val | is_first, split=split))
        assert_refused(r"own\.csv: .*2 validation images.*val_fraction=0", prepare_run, recipe)
        roles = {"is_query": pl.col("label_0") == "class10", "is_gallery": pl.col("label_0") == "class11"}
        recipe = recipe_with(manifest=manifest(split=split, **roles))
        assert_refused(r"own\.csv: .*6 validation images", prepare_run, recipe)
        split = pl.when(pl.col("label_0") == "class03").then(pl.lit("val")).otherwise("split")
        with pytest.warns(UserWarning, match=r"own\.csv: .*6 validation images.*one class.*val_fraction=0"):
            prepare_run(recipe_with(manifest=manifest(split=split)))


class TestFolders:
    """Run folders that a run must not touch, and those that it may."""

    @pytest.fixture
    def run(self, plain_run, tmp_path):
        return shutil.copytree(plain_run, tmp_path / "run")

    def test_a_folder_that_is_no_run(self, recipe_with, tmp_path):
        (tmp_path / "thesis.txt").write_text("mine")
        assert_refused("not a run folder", train, recipe_with(), tmp_path, resume=True)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
        for text in ("[]", "{", '{"loss": 3}', "[" * 100_000):
            (tmp_path / "recipe.json").write_text(text)
            assert_refused(r"recipe|loss", train, recipe_with(), tmp_path, resume=True)

    def test_a_run_that_is_there_or_has_another_recipe_or_other_images(self, recipe_with, run):
        before = {file: file.read_bytes() for file in run.iterdir() if file.is_file()}
        assert_refused("--resume", train, recipe_with(), run)
        for overrides, facts in (
            (["loss.name=sup_ap"], r"loss\.name is 'roadmap' there, 'sup_ap' here"),
            (["schedule.epochs=1"], r"schedule\.epochs.*3.*1"),
            (["schedule.epochs=4", "optimizer.lr=0.5"], r"optimizer\.lr.*0\.5.*'schedule\.epochs'"),
        ):
            assert_refused(facts, train, recipe_with(*overrides), run, resume=True)
        assert {file: file.read_bytes() for file in run.iterdir() if file.is_file()} == before
        facts = json.loads((run / "images.json").read_text())
        (run / "images.json").write_text(json.dumps(facts | {"val": facts["val"] | {"images": 18}}))
        assert_refused(["val.images", "18 there", "12 here"], train, recipe_with(), run, resume=True)
        (run / "images.json").write_text("{")
        assert_refused(r"images\.json: not JSON: ", train, recipe_with(), run, resume=True)

    def test_links_are_not_followed(self, recipe_with, run, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("mine")
        for name in ("log.csv", "resumes.log", "encoder", ".lock"):
            moved = (run / name).rename(tmp_path / "moved") if (run / name).exists() else None
            (run / name).symlink_to(outside if name == "encoder" else outside / "kept")
            assert_refused(name, train, recipe_with(), run, resume=True)
            (run / name).unlink()
            if moved:
                moved.rename(run / name)
        assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("kept", "mine")]

    def test_a_second_process_cannot_train_in_the_same_folder(self, recipe_with, tmp_path):
        out = tmp_path / "run"
        with locked(RunFolder(out).lock_file):
            assert_refused(r"run: .*another process", train, recipe_with(), out)

    def test_a_run_killed_before_its_recipe_was_written_starts(self, recipe_with, tmp_path):
        recipe, litter = recipe_with("schedule.epochs=1"), [".lock", "images.json", ".recipe.json.17"]
        for n_left, resume in product(range(len(litter) + 1), (True, False)):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            (tmp_path / "run").mkdir()
            for name in litter[:n_left]:
                (tmp_path / "run" / name).write_text("{}" if name == "images.json" else "")
            RunFolder(tmp_path / "run").check(recipe, resume)
        assert (train(recipe, tmp_path / "run") / "encoder.json").is_file()
        assert not (tmp_path / "run/.recipe.json.17").exists()

    def test_what_differs_when_a_run_goes_on_is_noted(self, recipe_with, run):
        train(recipe_with(), run, resume=True)
        assert not (run / "resumes.log").exists()
        file = run / "environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"timm": "0.1"}))
        train(recipe_with(), run, resume=True)
        assert json.loads(file.read_text())["timm"] == "0.1"
        (line,) = (run / "resumes.log").read_text().splitlines()
        assert "timm is '0.1' there" in line

    def test_a_full_disk_ends_a_run_with_one_line(self, image_tree, tiny_recipe, recipe_with, tmp_path):
        limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
        code = f"import resource; from sightline.cli.main import run; {limit}; run()"
        words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out"]
        done = subprocess.run([sys.executable, "-c", code, *words, tmp_path / "run"], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith(f"sightline: {tmp_path / 'run'}")
        assert line.endswith("File too large")
        train(recipe_with(), tmp_path / "run", resume=True)


def test_no_mistake_is_better_than_any_severity(recipe_with, tmp_path, monkeypatch):
    severities, measured = iter([1.5, math.nan, 1.0]), training_run.evaluate_table

    def evaluate_table(table, ks):
        result = measured(table, ks)
        severity = np.full_like(result.per_query["severity@1"], next(severities))
        return replace(result, per_query=result.per_query | {"severity@1": severity})

    monkeypatch.setattr(training_run, "evaluate_table", evaluate_table)
    train(recipe_with("validation.metric=severity@1", "validation.mode=min"), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run/last.pt")[0].best == 0
    assert read_card(tmp_path / "run/encoder").training.epoch == 2


@pytest.mark.parametrize("size", [3, "auto"])
def test_a_batch_in_chunks_is_the_batch_as_a_whole(plain_run, recipe_with, tmp_path, size):
    train(recipe_with(f"chunk_size={size}"), tmp_path / "chunks")
    assert_close_logs(plain_run, tmp_path / "chunks")


@pytest.mark.parametrize("more", [[], ["chunk_size=3", "memory.size=all", "memory.share=0.3"]])
def test_each_term_of_a_loss_is_logged_by_its_name(recipe_with, tmp_path, more):
    options = "loss={name='happier',weight=0.2}", "schedule.epochs=2", "loggers=['tensorboard']", "sampler.name=graded"
    train(recipe_with(*options, *more), tmp_path / "run")
    steps = {}
    for step, _, name, value in read_log(tmp_path / "run/log.csv"):
        steps.setdefault(step, {})[name] = value
    parts = {"batch/": 0.7, "memory/": 0.3} if more else {"": 1.0}
    terms = {f"term/{part}{name}" for part in parts for name in ("sup_h_ap", "norm_softmax")}
    assert {name for name in steps[2] if name.startswith("term/")} == terms
    for numbers in list(steps.values())[1:]:  # at the first step there is no memory yet
        of_part = {part: [numbers[f"term/{part}{name}"] for name in ("sup_h_ap", "norm_softmax")] for part in parts}
        total = sum(parts[part] * (0.8 * rank + 0.2 * proxy) for part, (rank, proxy) in of_part.items())
        assert_close(numbers["loss"], total, rtol=1e-5, atol=1e-6)
    # No name is a folder of another: MLflow keeps each in a file of that name.
    assert not any(other.startswith(f"{name}/") for name in steps[2] for other in steps[2])
    assert terms <= set(EventAccumulator(str(tmp_path / "run/tensorboard")).Reload().Tags()["scalars"])


def test_a_run_without_progress_ends_early(recipe_with, tmp_path):
    given = ["schedule.epochs=30", "optimizer.lr=1e-30", "validation.patience=2", "schedule.name=constant"]
    train(recipe_with(*given), tmp_path / "run")
    position, _ = load_checkpoint(tmp_path / "run/last.pt")
    assert (position.epoch, position.n_worse) == (3, 2)
    log = (tmp_path / "run/log.csv").read_bytes()
    train(recipe_with(*given), tmp_path / "run", resume=True)  # it is over
    assert load_checkpoint(tmp_path / "run/last.pt")[0] == position
    assert (tmp_path / "run/log.csv").read_bytes() == log


def test_an_image_that_a_batch_has_twice_is_seen_in_two_ways(recipe_with, tmp_path, monkeypatch):
    batches, back_propagate = [], engine.back_propagate

    def watched(fabric, module, loss, batch, *more):
        batches.append((batch.images, batch.ids.tolist()))
        return back_propagate(fabric, module, loss, batch, *more)

    monkeypatch.setattr(engine, "back_propagate", watched)
    sampler = "{name='hierarchical',per_class=8,batch_size=32,batches_per_pair=1}"  # of classes of 6 images
    train(recipe_with(f"sampler={sampler}", "schedule.epochs=1"), tmp_path / "run")
    assert sum(len(ids) - len({*ids}) for _, ids in batches) >= 8
    assert all(len(images.unique(dim=0)) == len(ids) for images, ids in batches)


def test_a_loss_that_is_not_finite_ends_the_run_with_its_step_and_learning_rate(recipe_with, tmp_path):
    recipe = recipe_with("optimizer.lr=1e6", "optimizer.name=sgd", "schedule.epochs=24")
    assert_refused(r"step \d+, learning rate [0-9e+]+: .*(NaN|nan|inf)", train, recipe, tmp_path / "run")
    assert read_log(tmp_path / "run" / "log.csv")


OWN_TRACKER = """
class Lines:
    def __init__(self, folder, step):
        self.write = lambda step, values: (folder / "lines.txt").write_text(f"{step} {sorted(values)[0]}")
        self.close = lambda: None
"""


def test_what_a_recipe_imports_is_followed_with_trust_alone(recipe_with, tmp_path, monkeypatch):
    (tmp_path / "own_trackers.py").write_text(OWN_TRACKER)
    monkeypatch.syspath_prepend(tmp_path)
    recipe, out = recipe_with("loggers=['own_trackers:Lines']", "schedule.epochs=1"), tmp_path / "run"
    assert_refused(r"module 'own_trackers'.*--trust", train, recipe, out)
    assert "own_trackers" not in sys.modules
    assert not out.exists()
    train(recipe, out, trust=True)
    assert (out / "lines.txt").is_file()
    pooled = recipe_with("model.pooling=own_trackers:Lines")
    assert_refused(r"own_trackers.*--trust", prepare_run, pooled)
    assert_refused("own_trackers:Lines", prepare_run, pooled, trust=True)
