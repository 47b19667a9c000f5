"""A small suite from end to end: run, killed, resumed, changed, repeated."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from refusals import assert_refused
from sightline import Encoder, Result, embed_manifest, evaluate_table, read_manifest, train
from sightline.files import locked
from sightline.studies import cells as running
from sightline.studies.cells import Outcome, read_finished, repeat, result_file, run_cells, run_job, write_job
from sightline.studies.suite import cells_of, read_suite

SMOKE = Path(__file__).parents[2] / "benchmarks/suites/glyphs-smoke.toml"
SMALL = {"schedule.epochs=2": "schedule.epochs=1", "sampler.n_batches=4": "sampler.n_batches=2"}


def write_suite(folder, changes=()):
    """The shipped suite with some of its words replaced; its file is smoke.toml."""
    text = SMOKE.read_text()
    for old, new in (SMALL | dict(changes)).items():
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "smoke.toml").write_text(text)
    return read_suite(folder / "smoke.toml")


@pytest.fixture
def cells_in(noise, tmp_path):
    """The cells of a suite so written."""

    def read(changes=(), **chosen):
        return cells_of(write_suite(tmp_path, changes), {"glyphs": noise}, tmp_path / "data", **chosen)

    return read


@pytest.fixture(scope="module")
def stored(noise, tmp_path_factory):
    """The results of the suite, two losses and two seeds: run as its processes would, without their start."""
    folder = tmp_path_factory.mktemp("stored")
    for cell in cells_of(write_suite(folder), {"glyphs": noise}, folder / "data"):
        run_job(write_job(folder, cell))
    return folder


@pytest.fixture
def whole(stored, tmp_path):
    """A folder with these results."""
    shutil.copytree(stored / "results", tmp_path / "whole/results")
    return tmp_path / "whole"


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "sightline", "benchmark", *map(str, words)]


def test_a_suite_leaves_small_results_and_a_page(stored, whole, noise, cells_in, sightline):
    cells, said, results = cells_in(), [], list((whole / "results").iterdir())
    assert len(read_finished(whole, cells)) == len(cells) == len(results) == 5
    assert {"recipe", "loss", "metrics", "machine"} <= json.loads(results[0].read_text()).keys()
    assert all(file.stat().st_size < 20_000 for file in results)
    assert not list((stored / "runs").iterdir()), "run folders are cleared"
    run_cells(whole, cells, say=said.append)
    assert [line.split()[:3] for line in said] == [["5", "of", "5"]], "nothing is run again"
    words = ("benchmark", whole.parent / "smoke.toml", "--out", whole, "--data", f"glyphs={noise}", "--tables")
    status, out, _ = sightline(*words)
    assert (status, out.splitlines()[0]) == (0, "5 of 5 runs are finished")
    markdown = (whole / "smoke.md").read_text()
    assert re.search(r"^\| ROADMAP \|.* ± .*\| 2 \|$", markdown, flags=re.M)
    assert re.search(r"^\| before training \| [^±]*\| 1 \|$", markdown, flags=re.M)
    assert "| ROADMAP | " in markdown.partition("beside TPAMI Table I")[2]
    assert "| 81.9 |" in markdown


def test_an_outcome_keeps_means_and_those_of_each_class(tmp_path):
    values = {"map": np.array([0.5, 1.0, 0.25, np.nan]), "severity@1": np.full(4, np.nan), "recall@1": np.ones(4)}
    result = Result(values, labels=np.array([9, 4, 9, 4]), ids=list("abcd"), fingerprint="f")
    outcome = Outcome.of(result, ["map", "severity@1"], {"key": "k"})
    np.testing.assert_array_equal(outcome.class_means["map"], np.array([1.0, 0.375], np.float32), strict=True)
    assert np.isnan(outcome.class_means["severity@1"]).all()
    outcome.write(tmp_path / "a.json")
    again = Outcome.read(tmp_path / "a.json")
    assert again.means == pytest.approx({"map": 1.75 / 3, "severity@1": np.nan, "recall@1": 1.0}, nan_ok=True)
    assert outcome.differences(again) == []
    for name, column in outcome.class_means.items():
        np.testing.assert_array_equal(again.class_means[name], column, strict=True)
    assert "severity@1" in again.differences(Outcome({"map": again.means["map"], "recall@1": 1.0}, {}, again.about))[0]
    for text in ("[]", "{}", '{"metrics": {}, "class_means": {"map": "x"}}', '{"metrics": 1, "class_means": 2}'):
        (tmp_path / "a.json").write_text(text)
        assert_refused(r"a\.json", Outcome.read, tmp_path / "a.json")


def test_a_cell_interrupted_goes_on_to_the_same_result_and_another_seed_has_another(whole, cells_in, tmp_path):
    cell, other = cells_in(only=["Smooth-AP"])
    job = write_job(tmp_path, cell)
    train(cell.recipe, job.parent / "run", max_minutes=0)  # stops after its first step, with a checkpoint
    assert not (job.parent / "run/encoder").exists()
    run_job(job)
    outcome, stored = Outcome.read(result_file(tmp_path, cell)), read_finished(whole, [cell, other])
    assert outcome.about["was_resumed"]
    assert stored[cell].differences(outcome) == []
    assert stored[cell].differences(stored[other])[0].startswith("fingerprint: ")
    run_job(job)  # done, and its folder cleared
    job = write_job(tmp_path / "again", cell, keep=True)  # a run folder of another recipe starts again
    train(cell.recipe.model_copy(update={"seed": 5}), job.parent / "run", max_minutes=0)
    run_job(job)
    assert stored[cell].differences(Outcome.read(result_file(tmp_path / "again", cell))) == []
    assert (job.parent / "run/encoder").is_dir()


def test_a_result_of_other_defaults_is_run_again(whole, cells_in, tmp_path):
    """And of two rows of one run, one runs."""
    twin = {'[[rows]]\nname = "Smooth-AP"': '[[rows]]\nname = "twin"\ntrained = false\n\n[[rows]]\nname = "Smooth-AP"'}
    cell, other = cells_in(twin, only=["before training", "twin"])
    assert_refused("1 of 1 ", repeat, tmp_path, [cell])
    stored = read_finished(whole, [cell])[cell]
    changed = stored.about | {"recipe": stored.about["recipe"] | {"precision": "bf16-mixed"}}
    Outcome(stored.means, stored.class_means, changed).write(result_file(tmp_path, cell))
    assert read_finished(tmp_path, [cell]) == {}
    said = []
    run_cells(tmp_path, [cell, other], say=said.append)
    assert said[0].startswith("0 of 2 ")
    assert re.fullmatch(r"\[1/1\] (before training|twin), glyphs, seed 0: recall@1 \d+\.\d, \d+ s .*", said[1])
    assert read_finished(tmp_path, [cell, other])[other].differences(stored) == []
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_repeated_runs_are_compared_to_the_last_bit(whole, cells_in, monkeypatch):
    cells = cells_in(only=["before training"])

    def copied(out, cells):
        (outcome,) = read_finished(whole, cells).values()
        Outcome(outcome.means | {"map": 0.5}, outcome.class_means, outcome.about).write(result_file(out, cells[0]))

    monkeypatch.setattr(running, "run_cells", copied)
    assert [line.partition(":")[0] for line in repeat(whole, cells)[cells[0]]] == ["map"]


def test_suites_that_share_a_folder_share_their_runs(whole, cells_in, tmp_path, monkeypatch):
    renamed = {'["recall@1", "map@r",': '["map@r", "recall@1",', 'name = "ROADMAP"': 'name = "R"', '"ROADMAP" =': '"R" ='}
    same, said = {'"loss.name=smooth_ap"': '"loss.name=smooth_ap", "loss.tau=1e-2"'}, []
    with monkeypatch.context() as patched:
        patched.setattr(running, "write_job", lambda *_: pytest.fail("nothing is left to run"))
        run_cells(whole, cells_in(renamed | same), say=said.append)
    assert len(said) == 1
    changed = cells_in({'"loss.name=roadmap"': '"loss.name=roadmap", "loss.weight=0.3"'}, seeds=[0])
    done = read_finished(whole, changed)
    assert [cell.row.name for cell in changed if cell not in done] == ["ROADMAP"], "what changed runs again"
    (before,) = cells_in(only=["before training"])
    (cell,) = cells_in({'"severity@1"': '"severity@1", "severity@7"'}, only=["before training"])
    assert cell.key == before.key
    assert read_finished(whole, [cell]) == {}, "it lacks a metric that is wanted"
    run_job(write_job(tmp_path, cell))
    assert read_finished(tmp_path, [before]), "more than is wanted serves too"


def test_upper_stages_are_measured_by_cached_features_as_the_whole_encoder_would(noise, cells_in, tmp_path):
    upper = {'"data.n_workers=0"': '"data.n_workers=0", "model.adaptation=\'upper:1\'"'}
    (cell,) = cells_in(upper, only=["ROADMAP"], seeds=[0])
    run_job(write_job(tmp_path, cell, keep=True))
    stored = Outcome.read(result_file(tmp_path, cell))
    (folder,) = tmp_path.glob("runs/*/run/encoder")
    encoder = Encoder.from_pretrained(folder)
    result = evaluate_table(embed_manifest(encoder, read_manifest(noise).split("test")), metrics=["map"])
    assert stored.about["fingerprint"] == encoder.fingerprint()
    assert stored.means["map"] == pytest.approx(result["map"], abs=0.02)


def test_what_another_process_is_at_is_left_alone(cells_in, tmp_path):
    (cell,) = cells_in(only=["before training"])
    job, said = write_job(tmp_path, cell), []
    with locked(job.parent.with_suffix(".lock")):
        run_cells(tmp_path, [cell], say=said.append)
    assert len(said) == 1
    assert read_finished(tmp_path, [cell]) == {}


@pytest.mark.slow
def test_the_command_runs_a_suite_from_end_to_end(cells_in, noise, tmp_path):
    cells_in()
    words = command(tmp_path / "smoke.toml", "--out", tmp_path / "out", "--data", f"glyphs={noise}")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(re.findall(r"^\[\d/5\] .*: recall@1 \d+\.\d, \d+ s", done.stderr, flags=re.M)) == 5
    again = subprocess.run([*words, "--repeat", "--only", "ROADMAP"], capture_output=True, text=True)
    assert again.stdout.startswith("2 runs repeated")


def wait_for(pattern, folder, seconds=120):
    until = time.monotonic() + seconds
    while not list(folder.glob(pattern)):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_suite_killed_between_cells_goes_on_where_it_was(whole, cells_in, noise, tmp_path):
    cells = cells_in()
    words = command(tmp_path / "smoke.toml", "--out", tmp_path / "out", "--data", f"glyphs={noise}")
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("results/*.json", tmp_path / "out")
    killed.kill()
    killed.wait()
    # The cell under way was left behind; its lock keeps it and the next start apart.
    assert len(read_finished(tmp_path / "out", cells)) < len(cells)
    run_cells(tmp_path / "out", cells)
    done = read_finished(tmp_path / "out", cells)
    assert len(done) == 5
    assert not [1 for cell, outcome in done.items() if outcome.differences(Outcome.read(result_file(whole, cell)))]


@pytest.mark.slow
def test_a_suite_asked_to_stop_lets_its_cell_save_and_go_on(cells_in, noise, tmp_path):
    cells_in({"schedule.epochs=2": "schedule.epochs=4000", "validation.every=2": "validation.every=4000"})
    words = [tmp_path / "smoke.toml", "--out", tmp_path / "out", "--data", f"glyphs={noise}", "--only", "ROADMAP"]
    stopped = subprocess.Popen(command(*words, "--seed", 0), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for("runs/*/run/last.pt", tmp_path / "out")
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=60)
    assert (stopped.returncode, b"stopped" in said) == (2, True)
    assert not list(tmp_path.glob("out/results/*"))
    assert list(tmp_path.glob("out/runs/*/run/last.pt")), "a checkpoint to go on from"


@pytest.mark.slow
def test_a_cell_that_fails_is_named_and_the_others_run(cells_in, tmp_path):
    cells = cells_in({'"loss.name=smooth_ap"': '"loss.name=smooth_ap", "sampler.per_class=9"'}, seeds=[0])
    assert_refused(["Smooth-AP", "glyphs", "seed 0", "sampler.per_class=9"], run_cells, tmp_path / "out", cells)
    assert {cell.row.name for cell in read_finished(tmp_path / "out", cells)} == {"before training", "ROADMAP"}
