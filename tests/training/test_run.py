import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close

from sightline import (
    EmbeddingTable,
    Encoder,
    InputError,
    embed_manifest,
    evaluate_table,
    read_manifest,
    read_recipe,
    train,
)
from sightline.files import locked
from sightline.models.card import read_card
from sightline.training import engine
from sightline.training import run as training_run
from sightline.training.logs import read_log
from sightline.training.prepare import prepare_run
from sightline.training.run_folder import RunFolder, load_checkpoint


def recipe_for(image_tree, overrides, *more):
    return read_recipe("images", [f"data.manifest={image_tree}", *overrides, *more])


def assert_same_run(folder, other):
    """Weights, optimizer and log of two runs are the same to the last bit."""
    assert (
        Encoder.from_pretrained(folder / "encoder").fingerprint()
        == Encoder.from_pretrained(other / "encoder").fingerprint()
    )
    (position, state), (other_position, other_state) = (load_checkpoint(run / "last.pt") for run in (folder, other))
    assert position == other_position
    assert_close(state, other_state, rtol=0, atol=0)
    assert (folder / "log.csv").read_bytes() == (other / "log.csv").read_bytes()


def test_a_run_learns_and_leaves_everything_in_one_folder(image_tree, tiny_recipe, tmp_path):
    # Without validation: on two held-out classes an early encoder can be the best by chance.
    recipe = recipe_for(image_tree, tiny_recipe, "schedule.epochs=24", "data.val_fraction=0")
    encoder = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock", "encoder", "environment.json", "images.json", "last.pt", "log.csv", "recipe.json", "tensorboard",
    ]  # fmt: skip
    assert (
        read_recipe("images", [f"data.manifest={image_tree}"]).model_dump().keys()
        == json.loads((tmp_path / "run/recipe.json").read_text()).keys()
    )
    losses = [value for _, _, name, value in read_log(tmp_path / "run/log.csv") if name == "loss"]
    assert len(losses) > 6
    assert sum(losses[-3:]) < sum(losses[:3])
    table = embed_manifest(encoder, read_manifest(image_tree))
    untrained = embed_manifest(Encoder.create("tiny", 16, image_size=32), read_manifest(image_tree))
    after = evaluate_table(EmbeddingTable.read(table.write(tmp_path / "t.parquet")))["map@r"]
    assert after > evaluate_table(untrained)["map@r"] + 0.1


def test_the_encoder_kept_is_the_best_by_the_recipes_metric(image_tree, tiny_recipe, tmp_path):
    # The rate is absurd from the second epoch on, so the first epoch's encoder must win.
    recipe = recipe_for(image_tree, tiny_recipe, "schedule.name=constant", "optimizer.lr=3.0", "validation.metric=map")
    kept = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    log = [(step, value) for step, _, name, value in read_log(tmp_path / "run/log.csv") if name == "val/map"]
    position, state = load_checkpoint(tmp_path / "run/last.pt")
    assert position.best == max(value for _, value in log)
    last = Encoder.create("tiny", 16, image_size=32)
    last.load_state_dict(state["encoder"])
    is_last_best = max(log, key=lambda row: (row[1], -row[0]))[0] == log[-1][0]
    assert (kept.fingerprint() == last.fingerprint()) == is_last_best


def test_two_runs_of_one_seed_are_bit_identical_and_another_seed_differs(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe)
    train(recipe, tmp_path / "a")
    torch.manual_seed(1234)  # what was drawn before a run must not matter
    train(recipe_for(image_tree, tiny_recipe), tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    train(recipe_for(image_tree, tiny_recipe, "seed=1"), tmp_path / "c")
    assert (tmp_path / "a/log.csv").read_bytes() != (tmp_path / "c/log.csv").read_bytes()


def test_the_number_of_loader_processes_changes_nothing(image_tree, tiny_recipe, tmp_path):
    train(recipe_for(image_tree, tiny_recipe), tmp_path / "none")
    train(recipe_for(image_tree, tiny_recipe, "data.n_workers=2"), tmp_path / "two")
    (_, state), (_, other) = (load_checkpoint(tmp_path / run / "last.pt") for run in ("none", "two"))
    assert_close(state, other, rtol=0, atol=0)


def test_the_backbone_rests_during_the_warm_up(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe, "schedule.warmup_epochs=3")
    trained = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    fresh = Encoder.create("tiny", 16, image_size=32, seed=recipe.seed)
    assert_close(dict(trained.backbone.state_dict()), dict(fresh.backbone.state_dict()), rtol=0, atol=0)
    assert not torch.equal(trained.head.projection.weight, fresh.head.projection.weight)


def test_validation_classes_are_never_trained_on(image_tree, tiny_recipe):
    parts = prepare_run(recipe_for(image_tree, tiny_recipe))
    learned, validated = (set(part.table["label_0"]) for part in (parts.train_part, parts.val_part))
    assert (len(learned), len(validated)) == (10, 2)
    assert not learned & validated


def test_without_validation_the_last_encoder_is_kept(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe, "data.val_fraction=0")
    kept = Encoder.from_pretrained(train(recipe, tmp_path / "run"))
    last = Encoder.create("tiny", 16, image_size=32)
    last.load_state_dict(load_checkpoint(tmp_path / "run/last.pt")[1]["encoder"])
    assert kept.fingerprint() == last.fingerprint()


def test_validation_on_one_class_says_nothing_and_a_warning_says_so(image_tree, tiny_recipe, tmp_path):
    rows = read_manifest(image_tree).table.with_columns(path=str(image_tree) + "/" + pl.col("path"))
    rows = rows.with_columns(split=pl.when(pl.col("label_0") == "class03").then(pl.lit("val")).otherwise("split"))
    rows.write_csv(tmp_path / "images.csv")
    with pytest.warns(UserWarning, match=r"images\.csv: the \d+ images to validate with are of one class"):
        train(recipe_for(tmp_path / "images.csv", tiny_recipe), tmp_path / "run")


class TestRefusals:
    """Each is found before the run folder is made."""

    @pytest.fixture
    def assert_refused(self, image_tree, tiny_recipe, tmp_path):
        def refuse(message, *overrides, manifest=image_tree):
            with pytest.raises(InputError, match=message):
                train(recipe_for(manifest, tiny_recipe, *overrides), tmp_path / "run")
            assert not (tmp_path / "run").exists()

        return refuse

    def test_a_class_too_small_for_its_part_of_a_batch(self, image_tree, tmp_path, assert_refused, tiny_recipe):
        rows = read_manifest(image_tree).table.with_columns(path=str(image_tree) + "/" + pl.col("path"))
        lonely = rows.filter(pl.col("label_0") != "class03").vstack(rows.filter(pl.col("label_0") == "class03")[:1])
        lonely.write_csv(tmp_path / "lonely.csv")
        message = r"lonely.csv: 1 of 12 training classes are unusable: .*per_class=4 images \('class03'\)"
        assert_refused(message, "data.val_fraction=0", manifest=tmp_path / "lonely.csv")
        skipping = ("data.val_fraction=0", "sampler.skip_small_classes=true")
        train(recipe_for(tmp_path / "lonely.csv", tiny_recipe, *skipping), tmp_path / "skipping")

    def test_fewer_classes_than_a_batch_needs(self, assert_refused):
        assert_refused("a batch of 64 needs 16 classes of at least 4 images, there are 10", "sampler.batch_size=64")

    def test_an_unknown_loss_or_option_or_metric_or_backbone(self, assert_refused):
        assert_refused("unknown loss 'roadmop': did you mean 'roadmap'", "loss.name=roadmop")
        assert_refused("loss 'roadmap' has no option 'rhoo': did you mean 'rho'", "loss.rhoo=3")
        assert_refused("loss 'roadmap': tau .*'small'", "loss.tau=small")
        assert_refused("tau .* -1.0", "loss.tau=-1.0")
        assert_refused("unknown metric 'map@rr': did you mean 'map@r'", "validation.metric=map@rr")
        assert_refused("unknown backbone 'tinny': did you mean 'tiny'", "model.backbone=tinny")
        assert_refused("unknown tracker 'tensorbored': did you mean 'tensorboard'", "loggers=['tensorbored']")

    def test_a_batch_that_processes_cannot_share(self, assert_refused, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert_refused("^sampler.batch_size is 16: 3 processes cannot share it evenly$")

    @pytest.mark.parametrize(
        ("loss", "message"),
        [
            ("{name='norm_softmax'}", "loss 'norm_softmax' takes no reference set"),
            ("{name='weighted_sum',terms=[{name='csl',weight=1}]}", "loss 'weighted_sum' takes no reference set"),
            ("{name='blackbox_ap',memory=2}", "loss 'blackbox_ap' keeps earlier batches itself"),
        ],
    )
    def test_a_memory_that_the_loss_cannot_use(self, assert_refused, loss, message):
        assert_refused(rf"^memory\.size: {message}", "memory.size=all", f"loss={loss}")

    def test_a_batch_norm_that_learns_from_batches_in_chunks(self, assert_refused):
        message = "^chunk_size: batch norm 'backbone.layers.0.1' takes its statistics from the batch"
        assert_refused(message, "model.freeze_batch_norm=none", "chunk_size=3")

    def test_validation_images_without_a_right_answer(self, image_tree, tmp_path, assert_refused):
        rows = read_manifest(image_tree).table.with_columns(path=str(image_tree) + "/" + pl.col("path"))
        is_val = pl.col("label_0") > "class09"
        lonely = rows.filter(is_val).unique("label_0").with_columns(split=pl.lit("val"))
        pl.concat([rows.filter(~is_val), lonely]).write_csv(tmp_path / "lonely.csv")
        assert_refused(r"lonely.csv: none of the 2 images to validate with has another", manifest=tmp_path / "lonely.csv")
        roles = rows.with_columns(
            split=pl.when(is_val).then(pl.lit("val")).otherwise(pl.col("split")),
            is_query=pl.col("label_0") == "class10",
            is_gallery=pl.col("label_0") == "class11",
        )
        roles.write_csv(tmp_path / "roles.csv")
        assert_refused(r"roles.csv: none of the 6 images to validate with has another", manifest=tmp_path / "roles.csv")

    def test_what_sharding_cannot_do(self, assert_refused):
        message = "^strategy='fsdp' does not go with precision='16-mixed', compile=true; strategy='ddp' does$"
        assert_refused(message, "strategy=fsdp", "precision=16-mixed", "compile=true")

    def test_broken_images_are_all_named(self, image_tree, tmp_path, assert_refused):
        broken = shutil.copytree(image_tree, tmp_path / "tree")
        for name in ("super0/class00/0.png", "super1/class04/5.png"):
            (broken / name).write_bytes(b"no image")
        assert_refused(
            r"2 faults\n.*class00/0.png: not a readable image.*\n.*class04/5.png: not a readable", manifest=broken
        )

    def test_a_folder_that_is_no_run(self, image_tree, tiny_recipe, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run/thesis.txt").write_text("mine")
        with pytest.raises(InputError, match="not a run folder"):
            train(recipe_for(image_tree, tiny_recipe), tmp_path / "run", resume=True)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]

    def test_a_run_that_is_there_or_has_another_recipe(self, image_tree, tiny_recipe, tmp_path):
        train(recipe_for(image_tree, tiny_recipe), tmp_path / "run")
        before = (tmp_path / "run/last.pt").read_bytes()
        with pytest.raises(InputError, match="holds a run already; give --resume"):
            train(recipe_for(image_tree, tiny_recipe), tmp_path / "run")
        with pytest.raises(InputError, match=r"another recipe: loss.name is 'roadmap' there, 'sup_ap' here"):
            train(recipe_for(image_tree, tiny_recipe, "loss.name=sup_ap"), tmp_path / "run", resume=True)
        assert (tmp_path / "run/last.pt").read_bytes() == before

    def test_a_run_whose_images_are_others_by_now(self, image_tree, tiny_recipe, tmp_path):
        shutil.copytree(image_tree, tmp_path / "tree")
        recipe = recipe_for(tmp_path / "tree", tiny_recipe)
        train(recipe, tmp_path / "run", max_minutes=0)
        before = (tmp_path / "run/last.pt").read_bytes()
        finest = next(path.parent for path in sorted((tmp_path / "tree").rglob("*.png")))
        shutil.copytree(finest, finest.with_name("another"))
        with pytest.raises(InputError, match=r"run: its run has other images: .*val\.images is 12 there, 18 here"):
            train(recipe, tmp_path / "run", resume=True)
        assert (tmp_path / "run/last.pt").read_bytes() == before
        (tmp_path / "run/images.json").write_text("{")
        with pytest.raises(InputError, match=r"images\.json: not JSON: "):
            train(recipe, tmp_path / "run", resume=True)


def test_a_second_process_cannot_train_in_the_same_folder(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe)
    out = tmp_path / "run"
    with locked(RunFolder(out).lock_file), pytest.raises(InputError, match="another process") as refused:
        train(recipe, out)
    assert str(out) in str(refused.value)
    train(recipe, out)  # nothing was left behind that would be in the way


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", "images.json", ".recipe.json.17"]])
@pytest.mark.parametrize("resume", [True, False])
def test_a_run_killed_before_its_recipe_was_written_goes_on(image_tree, tiny_recipe, tmp_path, left, resume):
    recipe = recipe_for(image_tree, tiny_recipe, "schedule.epochs=1")
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text("{}" if name == "images.json" else "")
    assert (train(recipe, out, resume=resume) / "encoder.json").is_file()


def test_a_disk_that_is_full_ends_a_run_with_one_line(image_tree, tiny_recipe, tmp_path):
    code = (
        "import resource, sys; from sightline.cli.main import run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)); run()"
    )
    words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"sightline: {tmp_path / 'run'}" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].endswith("File too large")
    recipe = recipe_for(image_tree, tiny_recipe)
    assert (train(recipe, tmp_path / "run", resume=True) / "encoder.json").is_file()


@pytest.mark.parametrize("name", ["log.csv", "resumes.log", "encoder", "tensorboard", "last.pt", ".lock"])
def test_links_in_a_run_folder_are_not_followed(image_tree, tiny_recipe, tmp_path, name):
    recipe = recipe_for(image_tree, tiny_recipe)
    out, outside = tmp_path / "run", tmp_path / "outside"
    train(recipe, out)
    outside.mkdir()
    (outside / "kept").write_text("mine")
    if (out / name).exists():
        (out / name).rename(tmp_path / "moved")
    (out / name).symlink_to(outside if name in ("encoder", "tensorboard") else outside / "kept")
    with pytest.raises(InputError, match=name):
        train(recipe, out, resume=True)
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("kept", "mine")]


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"loss": 3}', "[" * 100_000])
def test_a_recipe_file_of_another_kind_is_refused(image_tree, tiny_recipe, tmp_path, text):
    recipe = recipe_for(image_tree, tiny_recipe)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(InputError, match=r"recipe|loss"):
        train(recipe, tmp_path, resume=True)


def test_no_mistake_is_better_than_any_severity(image_tree, tiny_recipe, tmp_path, monkeypatch):
    severities, measured = iter([1.5, math.nan, 1.0]), training_run.evaluate_table

    def evaluate_table(table, ks):
        result = measured(table, ks)
        severity = np.full_like(result.per_query["severity@1"], next(severities))
        return replace(result, per_query=result.per_query | {"severity@1": severity})

    monkeypatch.setattr(training_run, "evaluate_table", evaluate_table)
    overrides = ["validation.metric=severity@1", "validation.mode=min", "schedule.epochs=3"]
    train(recipe_for(image_tree, tiny_recipe, *overrides), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run/last.pt")[0].best == 0
    assert read_card(tmp_path / "run/encoder").training.epoch == 2


def test_a_batch_in_chunks_is_the_batch_as_a_whole(image_tree, tiny_recipe, tmp_path):
    train(recipe_for(image_tree, tiny_recipe), tmp_path / "whole")
    train(recipe_for(image_tree, tiny_recipe, "chunk_size=3"), tmp_path / "chunks")
    train(recipe_for(image_tree, tiny_recipe, "chunk_size=auto"), tmp_path / "auto")
    whole, chunks, auto = (read_log(tmp_path / run / "log.csv") for run in ("whole", "chunks", "auto"))
    assert [row[:3] for row in whole] == [row[:3] for row in chunks] == [row[:3] for row in auto]
    for rows in (chunks, auto):
        assert_close([row[3] for row in rows], [row[3] for row in whole], rtol=1e-3, atol=1e-4, equal_nan=True)


def test_a_checkpoint_is_kept_every_so_many_epochs_and_the_run_can_go_back_to_it(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe, "schedule.epochs=5", "keep_every=2")
    train(recipe, tmp_path / "run")
    assert sorted(file.name for file in (tmp_path / "run").glob("*.pt")) == ["epoch-002.pt", "epoch-004.pt", "last.pt"]
    kept = [load_checkpoint(tmp_path / f"run/epoch-00{epoch}.pt") for epoch in (2, 4)]
    assert [(position.epoch, position.batch) for position, _ in kept] == [(2, 0), (4, 0)]
    shutil.copytree(tmp_path / "run", tmp_path / "back")
    shutil.copy(tmp_path / "back/epoch-002.pt", tmp_path / "back/last.pt")
    (tmp_path / "back/epoch-004.pt").unlink()
    train(recipe, tmp_path / "back", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "back")
    position, state = load_checkpoint(tmp_path / "back/epoch-004.pt")
    assert position == kept[1][0]
    assert_close(state, kept[1][1], rtol=0, atol=0)


def test_a_memory_is_part_of_the_run_and_of_its_checkpoint(image_tree, tiny_recipe, tmp_path):
    overrides = [*tiny_recipe, "memory.size=all", "memory.start_epoch=1", "schedule.epochs=3"]
    train(recipe_for(image_tree, overrides), tmp_path / "whole")
    stopped = recipe_for(image_tree, overrides)
    train(stopped, tmp_path / "stopped", max_minutes=0)
    assert load_checkpoint(tmp_path / "stopped/last.pt")[0].step == 1
    train(stopped, tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    assert len(load_checkpoint(tmp_path / "whole/last.pt")[1]["loss"]["memory.ids"]) > 0


@pytest.mark.parametrize("more", [[], ["chunk_size=3", "memory.size=all", "memory.share=0.3"]])
def test_each_term_of_a_loss_is_logged_by_its_name(image_tree, tiny_recipe, tmp_path, more):
    recipe = recipe_for(image_tree, tiny_recipe, "loss={name='happier',weight=0.2}", *more)
    train(recipe, tmp_path / "run")
    steps = {}
    for step, _, name, value in read_log(tmp_path / "run/log.csv"):
        steps.setdefault(step, {})[name] = value
    parts = {"batch/": 0.7, "memory/": 0.3} if more else {"": 1.0}
    terms = {f"term/{part}{name}" for part in parts for name in ("sup_h_ap", "norm_softmax")}
    assert {name for name in steps[2] if name.startswith("term/")} == terms
    for numbers in list(steps.values())[1:]:  # at the first step there is no memory yet
        total = sum(
            share * (0.8 * numbers[f"term/{part}sup_h_ap"] + 0.2 * numbers[f"term/{part}norm_softmax"])
            for part, share in parts.items()
        )
        assert_close(numbers["loss"], total, rtol=1e-5, atol=1e-6)
    # No name is a folder of another: MLflow keeps each in a file of that name.
    assert not any(other.startswith(f"{name}/") for name in steps[2] for other in steps[2])
    events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    assert terms <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("metric", ["h_ap", "asi", "ndcg", "map_label_1"])
def test_a_metric_of_any_level_decides(image_tree, tiny_recipe, tmp_path, metric):
    recipe = recipe_for(image_tree, tiny_recipe, f"validation.metric={metric}", "loss.name=happier", "schedule.epochs=2")
    train(recipe, tmp_path / "run")
    values = [value for _, _, name, value in read_log(tmp_path / "run/log.csv") if name == f"val/{metric}"]
    assert len(values) == 2
    assert load_checkpoint(tmp_path / "run/last.pt")[0].best == max(values)


def test_what_differs_when_a_run_goes_on_is_noted(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe)
    train(recipe, tmp_path / "run", max_minutes=0)
    file = tmp_path / "run/environment.json"
    began = json.loads(file.read_text())
    train(recipe, tmp_path / "run", resume=True)
    assert not (tmp_path / "run/resumes.log").exists()
    file.write_text(json.dumps(began | {"timm": "0.1"}))
    train(recipe, tmp_path / "run", resume=True)
    assert json.loads(file.read_text())["timm"] == "0.1"
    noted = (tmp_path / "run/resumes.log").read_text()
    assert re.fullmatch(r"from step \d+ on: timm is '0.1' there, '\S+' here\n", noted)


def test_a_run_without_progress_ends_early(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(
        image_tree,
        tiny_recipe,
        "schedule.epochs=30",
        "optimizer.lr=1e-30",
        "validation.patience=2",
        "schedule.name=constant",
    )
    train(recipe, tmp_path / "run")
    position, _ = load_checkpoint(tmp_path / "run/last.pt")
    assert (position.epoch, position.n_worse) == (3, 2)
    log = (tmp_path / "run/log.csv").read_bytes()
    train(recipe, tmp_path / "run", resume=True)  # it is over
    assert load_checkpoint(tmp_path / "run/last.pt")[0] == position
    assert (tmp_path / "run/log.csv").read_bytes() == log


def test_sigterm_saves_and_ends_well_and_the_run_goes_on_as_if_it_had_not(image_tree, tiny_recipe, tmp_path):
    overrides = [*tiny_recipe, "schedule.epochs=8"]
    train(recipe_for(image_tree, overrides), tmp_path / "whole")
    command = [sys.executable, "-m", "sightline", "train", "images", f"data.manifest={image_tree}", *overrides]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "stopped")], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not read_log(tmp_path / "stopped/log.csv"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.terminate()
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert load_checkpoint(tmp_path / "stopped/last.pt")[0].epoch < 8
    train(recipe_for(image_tree, overrides), tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_a_compiled_encoder_trains_and_is_saved_as_the_plain_one(image_tree, tiny_recipe, tmp_path, monkeypatch):
    """Its graph is traced and run as it is: what a backend makes of it is torch's affair, and takes a minute."""
    n_graphs, compile_ = [], torch.compile

    def traced(graph, inputs):
        n_graphs.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda module, backend=None: compile_(module, backend=traced))
    train(recipe_for(image_tree, tiny_recipe), tmp_path / "plain")
    assert not n_graphs
    recipe = recipe_for(image_tree, tiny_recipe, "compile=true")
    train(recipe, tmp_path / "compiled", max_minutes=0)
    train(recipe, tmp_path / "compiled", resume=True)
    assert n_graphs
    (_, plain), (_, compiled) = (load_checkpoint(tmp_path / run / "last.pt") for run in ("plain", "compiled"))
    assert plain["encoder"].keys() == compiled["encoder"].keys()
    assert_close(compiled["encoder"], plain["encoder"], rtol=1e-4, atol=1e-5)


def test_a_run_in_half_precision_goes_on_with_its_loss_scale(image_tree, tiny_recipe, tmp_path, monkeypatch):
    def on_the_cpu(recipe):  # where Fabric itself would take bfloat16, which needs no scale
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        return Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

    monkeypatch.setattr("sightline.training.run.create_fabric", on_the_cpu)
    recipe = recipe_for(image_tree, tiny_recipe, "precision=16-mixed", "chunk_size=5", "checkpoint_every=3")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "stopped", max_minutes=0)
    train(recipe, tmp_path / "stopped", resume=True)
    assert load_checkpoint(tmp_path / "whole/last.pt")[1]["precision"]["scale"] > 64
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_two_processes_train_as_one(image_tree, tiny_recipe, tmp_path):
    overrides = [*tiny_recipe, "memory.size=40", "schedule.epochs=3"]
    train(recipe_for(image_tree, overrides), tmp_path / "one")
    done = in_two_processes(image_tree, overrides, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'two/encoder'}\n"  # once
    one, two = (read_log(tmp_path / run / "log.csv") for run in ("one", "two"))
    assert [row[:3] for row in one] == [row[:3] for row in two]
    assert_close([row[3] for row in two], [row[3] for row in one], rtol=1e-3, atol=1e-4, equal_nan=True)


def in_two_processes(image_tree, overrides, out, *more):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sightline"]
    command += ["train", "images", f"data.manifest={image_tree}", *overrides, "--out", str(out), *more]
    return subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_launcher_of_fabric_trains_as_torchrun_does(image_tree, tiny_recipe, tmp_path):
    assert in_two_processes(image_tree, tiny_recipe, tmp_path / "torchrun").returncode == 0
    command = [str(Path(sys.executable).with_name("fabric")), "run", "--accelerator", "cpu", "--devices", "2"]
    command += [
        str(Path(training_run.__file__).parents[1] / "__main__.py"),
        "train",
        "images",
        f"data.manifest={image_tree}",
    ]
    command += [*tiny_recipe, "--out", str(tmp_path / "fabric")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "torchrun", tmp_path / "fabric")


@pytest.mark.parametrize(
    "more",
    [
        ["chunk_size=4"],
        [
            "model.backbone=resnet18",
            "optimizer.name=sgd",
            "loss.name=roadmap",
            "schedule.warmup_epochs=1",
            "memory.size=40",
        ],
    ],
)
def test_sharded_weights_train_as_one_process(image_tree, tiny_recipe, tmp_path, more):
    overrides = [*tiny_recipe, "optimizer.clip_norm=0.5", "checkpoint_every=2", *more]
    train(recipe_for(image_tree, overrides), tmp_path / "one")
    done = in_two_processes(image_tree, [*overrides, "strategy=fsdp"], tmp_path / "two")
    assert done.returncode == 0, done.stderr
    one, two = (read_log(tmp_path / run / "log.csv") for run in ("one", "two"))
    assert [row[:3] for row in one] == [row[:3] for row in two]
    assert_close([row[3] for row in two], [row[3] for row in one], rtol=1e-3, atol=1e-4, equal_nan=True)
    states = [load_checkpoint(tmp_path / run / "last.pt")[1] for run in ("one", "two")]
    for part in ("encoder", "loss"):
        assert_close(states[1][part], states[0][part], rtol=1e-3, atol=1e-4)
    assert_close(states[1]["optimizer"]["state"], states[0]["optimizer"]["state"], rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_a_sharded_run_that_was_stopped_goes_on_as_if_it_had_not(image_tree, tiny_recipe, tmp_path):
    overrides = [*tiny_recipe, "strategy=fsdp", "checkpoint_every=1"]
    assert in_two_processes(image_tree, overrides, tmp_path / "whole").returncode == 0
    part = in_two_processes(image_tree, overrides, tmp_path / "stopped", "--max-minutes", "0")
    assert part.returncode == 0, part.stderr
    assert load_checkpoint(tmp_path / "stopped/last.pt")[0].step == 1
    shutil.copytree(tmp_path / "stopped", tmp_path / "alone")
    train(recipe_for(image_tree, overrides, "strategy=ddp"), tmp_path / "alone", resume=True)
    whole, alone = (read_log(tmp_path / run / "log.csv") for run in ("whole", "alone"))
    assert_close([row[3] for row in alone], [row[3] for row in whole], rtol=1e-3, atol=1e-4, equal_nan=True)
    done = in_two_processes(image_tree, overrides, tmp_path / "stopped", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_an_image_that_a_batch_has_twice_is_seen_in_two_ways(image_tree, tiny_recipe, tmp_path, monkeypatch):
    batches, back_propagate = [], engine.back_propagate

    def watched(fabric, module, loss, batch, *more):
        batches.append((batch.images, batch.ids.tolist()))
        return back_propagate(fabric, module, loss, batch, *more)

    monkeypatch.setattr(engine, "back_propagate", watched)
    sampler = "{name='hierarchical',per_class=8,batch_size=32,batches_per_pair=1}"  # of classes of 6 images
    train(recipe_for(image_tree, tiny_recipe, f"sampler={sampler}", "schedule.epochs=1"), tmp_path / "run")
    twice = [(images[ids.index(one)], images[place]) for images, ids in batches for place, one in enumerate(ids)
             if ids.index(one) < place]  # fmt: skip
    assert len(twice) >= 8
    assert not any(torch.equal(first, second) for first, second in twice)


@pytest.mark.parametrize(
    "sampler", ["{name='hierarchical',per_class=2,batch_size=12}", "{name='graded',per_class=2,batch_size=16}",
                "{name='random',batch_size=16}"],
)  # fmt: skip
def test_every_sampler_trains(sampler, image_tree, tiny_recipe, tmp_path):
    train(recipe_for(image_tree, tiny_recipe, f"sampler={sampler}", "schedule.epochs=1"), tmp_path / "run")
    assert any(row[2] == "loss" for row in read_log(tmp_path / "run/log.csv"))


def test_a_loss_that_is_not_finite_ends_the_run_with_its_step_and_learning_rate(image_tree, tiny_recipe, tmp_path):
    recipe = recipe_for(image_tree, tiny_recipe, "optimizer.lr=1e6", "optimizer.name=sgd", "schedule.epochs=24")
    with pytest.raises(InputError, match=r"step \d+, learning rate [0-9e+]+: .*(NaN|nan|inf)"):
        train(recipe, tmp_path / "run")
    assert read_log(tmp_path / "run" / "log.csv")
    assert (tmp_path / "run" / "recipe.json").is_file()
    with pytest.raises(InputError, match=r"optimizer\.lr"):
        recipe_for(image_tree, tiny_recipe, "optimizer.lr=1e38")


OWN_TRACKER = """
class Lines:
    def __init__(self, folder, step):
        self.file = (folder / "lines.txt").open("a")

    def write(self, step, values):
        self.file.write(f"{step} {sorted(values)[0]}\\n")

    def close(self):
        self.file.close()
"""


def test_what_a_recipe_imports_is_followed_with_trust_alone(image_tree, tiny_recipe, tmp_path, monkeypatch, sightline):
    (tmp_path / "own_trackers.py").write_text(OWN_TRACKER)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = recipe_for(image_tree, tiny_recipe, "loggers=['own_trackers:Lines']", "schedule.epochs=1")
    out = tmp_path / "run"
    with pytest.raises(InputError, match=r"module 'own_trackers'.*--trust"):
        train(recipe, out)
    assert "own_trackers" not in sys.modules
    assert not out.exists()
    train(recipe, out, trust=True)
    assert (out / "lines.txt").read_text().startswith("1 grad_norm\n")
    words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "model.pooling=own_trackers:Lines"]
    status, _, error = sightline(*words, "--out", tmp_path / "other")
    assert (status, "own_trackers" in error, "--trust" in error) == (2, True, True)
    status, _, error = sightline(*words, "--out", tmp_path / "other", "--trust", "--dry-run")
    assert (status, "own_trackers:Lines" in error) == (2, True)  # imported, and no pooling


def test_a_loss_of_another_package_trains_with_trust_alone(image_tree, tiny_recipe, tmp_path):
    overrides = ["loss={name='pytorch_metric_learning.losses:MultiSimilarityLoss',alpha=3.0}", "schedule.epochs=1"]
    recipe = recipe_for(image_tree, tiny_recipe, *overrides)
    with pytest.raises(InputError, match=r"module 'pytorch_metric_learning\.losses'.*--trust"):
        train(recipe, tmp_path / "run")
    encoder = train(recipe, tmp_path / "run", trust=True)
    assert read_card(encoder).training.loss_options["alpha"] == 3.0
