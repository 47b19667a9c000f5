"""A search for better settings: real runs of a tiny network."""

import csv
import os
import shutil
import signal
from itertools import pairwise

import pytest

from refusals import assert_refused
from sightline import Encoder, read_recipe, tune
from sightline.models.card import read_card
from sightline.training import engine
from sightline.training.run_folder import RunFolder

RUNGS = (6, 3, 2)
SHORT = ["schedule.epochs=1", "schedule.warmup_epochs=0", "sampler.per_class=4"]


def trials_in(folder):
    with (folder / "trials.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def searched(recipe_with, tmp_path_factory):
    """A search that had time for all of its trials: two epochs each."""
    folder, said = tmp_path_factory.mktemp("search") / "out", []
    recipe = recipe_with(*SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sightline.training.tune.RUNGS", RUNGS)
        patch.setenv("SIGHTLINE_CACHE", str(folder.parent))
        best = tune(recipe, folder, minutes=60, say=said.append)
    return recipe, folder, best, said


def test_each_rung_has_the_best_of_the_one_before_and_the_best_of_all_is_written(searched):
    _, folder, _, _ = searched
    rungs = [[row for row in trials_in(folder) if row["rung"] == str(rung)] for rung in range(len(RUNGS))]
    assert [len(rows) for rows in rungs] == list(RUNGS)
    for rows, later in pairwise(rungs):
        found = sorted((row for row in rows if row["value"]), key=lambda row: -float(row["value"]))
        best = [row["changes"] for row in found]
        helped = {key for changes in best[: best.index("")] for key in changes.split()}
        kept = {row["changes"] for row in later}
        assert "" in kept
        assert all(changes in best[: len(later)] or {*changes.split()} <= helped for changes in kept)
    recipe, folder, best, said = searched
    last = [row for row in trials_in(folder) if row["rung"] == str(len(RUNGS) - 1)]
    value = max(float(row["value"]) for row in last)
    assert best == folder / "best"
    assert read_card(best / "encoder").evaluation.metrics["map@r"].mean == value
    assert value >= float(next(row["value"] for row in last if not row["changes"])), "never worse than the recipe"
    chosen = read_recipe(str(folder / "recipe.toml"))
    assert (chosen.data.manifest, chosen.model.backbone) == (recipe.data.manifest, "tiny")
    assert Encoder.from_pretrained(best / "encoder").dim == 16
    assert said[-1].startswith("chosen: ")
    assert len(said) == sum(RUNGS) + 1


def test_changes_that_helped_by_themselves_are_tried_together(recipe_with, tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.training.tune.RUNGS", (10, 2, 2))
    rows = ["rung,changes,epochs,seconds,value,fault", "0,,1,1,0.5,"]
    values = {"optimizer.lr=0.0003": 0.4, "optimizer.lr=3e-05": 0.6, "sampler.per_class=2": 0.7, "sampler.per_class=8": 0.8}
    rows += [f"0,{changes},1,1,{value}," for changes, value in (values | {"loss.name=sup_ap": 0.1}).items()]
    changed = ("model.adaptation=upper", "model.adaptation=frozen")
    given = [key for key in SHORT if "adaptation" not in key] + ["optimizer.lr=1e-4", "model.adaptation=full"]
    rows += [f"0,{changes},1,1,0.45," for changes in changed]
    losses = ("loss.name=roadmap loss.decomposability=calibration",
              "loss.name=roadmap loss.decomposability=proxy loss.proxies=means loss.reference=train")  # fmt: skip
    rows += [f"0,{changes},1,1,," for changes in losses]  # these failed
    (tmp_path / "out").mkdir()
    (tmp_path / "out/trials.csv").write_text("\n".join(rows) + "\n")
    tune(recipe_with(*given), tmp_path / "out", minutes=60, resume=True)
    tried = [row["changes"] for row in trials_in(tmp_path / "out") if row["rung"] == "1"]
    assert tried == ["optimizer.lr=3e-05 sampler.per_class=8", ""]


def test_a_search_that_was_stopped_goes_on_with_what_it_has(searched, tmp_path, monkeypatch):
    recipe, folder, _, _ = searched
    monkeypatch.setattr("sightline.training.tune.RUNGS", RUNGS)
    shutil.copytree(folder, tmp_path / "out")
    rows = (tmp_path / "out/trials.csv").read_text().splitlines(keepends=True)
    (tmp_path / "out/trials.csv").write_text("".join(rows[:-1]))
    shutil.rmtree(tmp_path / "out/best")
    begun = RunFolder(tmp_path / "out/trials/2-1")  # killed before its first validation
    shutil.rmtree(begun.encoder)
    begun.last_checkpoint.unlink()
    said = []
    tune(recipe, tmp_path / "out", minutes=60, resume=True, say=said.append)
    assert len(said) == 2, "one trial, and the choice"
    before, after = (
        [(row["rung"], row["changes"], row["value"]) for row in trials_in(out)] for out in (folder, tmp_path / "out")
    )
    assert before == after
    assert_refused("--resume", tune, recipe, tmp_path / "out", minutes=60)


def test_sigterm_ends_the_search_and_its_trial_goes_on(searched, tmp_path, monkeypatch):
    recipe, folder, _, _ = searched
    monkeypatch.setattr("sightline.training.tune.RUNGS", RUNGS)
    back_propagate = engine.back_propagate

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return back_propagate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "back_propagate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(recipe, tmp_path / "out", minutes=60)
    assert not (tmp_path / "out/trials.csv").exists(), "an unfinished trial has no value"
    monkeypatch.setattr("sightline.training.tune.RUNGS", (1,))
    tune(recipe, tmp_path / "out", minutes=1e-9, resume=True)
    assert trials_in(tmp_path / "out")[0]["value"] == trials_in(folder)[0]["value"]


def test_a_search_without_time_still_leaves_an_encoder(recipe_with, tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.training.tune.RUNGS", (2, 2))
    best = tune(recipe_with(*SHORT), tmp_path / "out", minutes=1e-9)
    assert Encoder.from_pretrained(best / "encoder").dim == 16
    assert {row["rung"] for row in trials_in(tmp_path / "out")} == {"0"}


def test_a_time_that_is_none_is_refused(check_refused):
    for text in ("30", "m", "-1m", "infh"):
        check_refused(["train", "images", "--tune", text], "--tune")
