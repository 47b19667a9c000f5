"""A small suite from end to end: run, killed, resumed, changed, repeated."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.evaluation.result import Result
from sightline.evaluation.tables import evaluate_table
from sightline.files import locked
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.studies import cells as running
from sightline.studies.cells import Outcome, read_finished, repeat, result_file, run_cells, run_job, write_job
from sightline.studies.suite import cells_of, read_suite
from sightline.training.run import train

SMOKE = Path(__file__).parents[2] / "benchmarks/suites/glyphs-smoke.toml"
SMALL = {"schedule.epochs=2": "schedule.epochs=1", "sampler.n_batches=4": "sampler.n_batches=2"}


def smoke(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """The shipped suite, with some words replaced."""
    text = SMOKE.read_text()
    for old, new in (SMALL if changes is None else changes).items():
        assert old in text
        text = text.replace(old, new, 1)
    file = folder / "smoke.toml"
    file.write_text(text)
    return file


def cells_in(file: Path, noise: Path, folder: Path, **chosen):
    return cells_of(read_suite(file), {"glyphs": noise}, folder / "data", **chosen)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "sightline", "benchmark", *map(str, words)]


def run_here(out: Path, cells) -> None:
    """What the processes of a suite do, without their start, which takes longer than such a run."""
    for cell in cells:
        run_job(write_job(out, cell))


@pytest.fixture(scope="module")
def whole(noise, tmp_path_factory):
    """The folder of a suite of two losses and two seeds that has run."""
    folder = tmp_path_factory.mktemp("whole")
    run_here(folder / "out", cells_in(smoke(folder), noise, folder))
    return folder


def test_a_suite_leaves_small_results_and_a_page(whole, noise, sightline):
    cells = cells_in(whole / "smoke.toml", noise, whole)
    assert len(read_finished(whole / "out", cells)) == len(cells) == 5
    results = list((whole / "out/results").iterdir())
    assert len(results) == 5
    assert {"recipe", "loss", "seed", "metrics", "machine"} <= json.loads(results[0].read_text())[
        "recipe"
    ].keys() | json.loads(results[0].read_text()).keys()
    assert all(file.stat().st_size < 20_000 for file in results)
    assert not list((whole / "out/runs").iterdir()), "run folders are cleared"
    words = ("benchmark", whole / "smoke.toml", "--out", whole / "out", "--data", f"glyphs={noise}", "--tables")
    status, out, _ = sightline(*words)
    assert (status, out.splitlines()[0]) == (0, "5 of 5 runs are finished")
    markdown = (whole / "out/smoke.md").read_text()
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
    again.write(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    assert "severity@1" in again.differences(Outcome({"map": again.means["map"], "recall@1": 1.0}, {}, again.about))[0]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"metrics": {}, "class_means": {"map": "x"}}', '{"metrics": 1, "class_means": 2}']
)
def test_a_file_that_is_no_result_is_named(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"a\.json"):
        Outcome.read(tmp_path / "a.json")


def test_a_finished_suite_runs_nothing_and_says_so(whole, noise):
    cells, said = cells_in(whole / "smoke.toml", noise, whole), []
    before = {file: file.stat().st_mtime_ns for file in (whole / "out/results").iterdir()}
    run_cells(whole / "out", cells, say=said.append)
    assert said == ["5 of 5 runs are finished; 0 to run"]
    assert {file: file.stat().st_mtime_ns for file in (whole / "out/results").iterdir()} == before


def test_a_cell_run_again_is_the_same_to_the_last_bit(whole, noise, tmp_path):
    first, second = cells_in(whole / "smoke.toml", noise, whole, only=["ROADMAP"])
    run_here(tmp_path, [first])
    stored = read_finished(whole / "out", [first, second])
    assert stored[first].differences(Outcome.read(result_file(tmp_path, first))) == []
    assert stored[first].differences(stored[second])[0].startswith("fingerprint: "), "another seed is not the same"


def test_a_cell_interrupted_goes_on_to_the_same_result(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["Smooth-AP"], seeds=[0])
    job = write_job(tmp_path, cell)
    train(cell.recipe, job.parent / "run", max_minutes=0)  # stops after its first step, with a checkpoint
    assert not (job.parent / "run/encoder").exists()
    run_job(job)
    outcome = Outcome.read(result_file(tmp_path, cell))
    assert outcome.about["was_resumed"]
    assert read_finished(whole / "out", [cell])[cell].differences(outcome) == []


def test_a_run_folder_of_another_recipe_starts_again(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["Smooth-AP"], seeds=[0])
    job = write_job(tmp_path, cell)
    train(cell.recipe.model_copy(update={"seed": 5}), job.parent / "run", max_minutes=0)
    run_job(job)
    assert read_finished(whole / "out", [cell])[cell].differences(Outcome.read(result_file(tmp_path, cell))) == []


def test_keep_leaves_the_encoder(noise, tmp_path):
    (cell,) = cells_in(smoke(tmp_path), noise, tmp_path, only=["ROADMAP"], seeds=[0])
    run_job(write_job(tmp_path, cell, keep=True))
    assert len(list(tmp_path.glob("runs/*/run/encoder"))) == 1


def test_repeating_what_was_never_run_is_refused(noise, tmp_path):
    cells = cells_in(smoke(tmp_path), noise, tmp_path, only=["before training"])
    with pytest.raises(InputError, match="1 of 1 runs are not finished: nothing to compare with"):
        repeat(tmp_path / "out", cells)


def test_a_result_of_other_defaults_is_run_again(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["before training"])
    stored = read_finished(whole / "out", [cell])[cell]
    changed = stored.about | {"recipe": stored.about["recipe"] | {"precision": "bf16-mixed"}}
    Outcome(stored.means, stored.class_means, changed).write(result_file(tmp_path, cell))
    assert read_finished(tmp_path, [cell]) == {}
    said = []
    run_cells(tmp_path, [cell], say=said.append)
    assert said[0].startswith("0 of 1 runs are finished")
    assert re.fullmatch(r"\[1/1\] before training, glyphs, seed 0: recall@1 \d+\.\d, \d+ s of processor time", said[1])
    assert read_finished(tmp_path, [cell])[cell].differences(stored) == []


def test_suites_that_share_a_folder_share_their_runs(whole, noise, tmp_path, monkeypatch):
    renamed = {'["recall@1", "map@r",': '["map@r", "recall@1",', 'name = "ROADMAP"': 'name = "R"', '"ROADMAP" =': '"R" ='}
    other = smoke(tmp_path, SMALL | renamed | {'"loss.name=smooth_ap"': '"loss.name=smooth_ap", "loss.tau=1e-2"'})
    said = []
    monkeypatch.setattr(running, "write_job", lambda *_: pytest.fail("nothing is left to run"))
    run_cells(whole / "out", cells_in(other, noise, tmp_path), say=said.append)
    assert said == ["5 of 5 runs are finished; 0 to run"]


def test_a_result_without_a_metric_that_is_wanted_is_not_taken(whole, noise, tmp_path):
    changed = smoke(tmp_path, SMALL | {'"severity@1"': '"severity@1", "severity@7"'})
    (cell,) = cells_in(changed, noise, tmp_path, only=["before training"])
    (before,) = cells_in(whole / "smoke.toml", noise, whole, only=["before training"])
    assert cell.key == before.key
    assert read_finished(whole / "out", [cell]) == {}
    run_here(tmp_path / "more", [cell])
    assert read_finished(tmp_path / "more", [before]), "more than is wanted serves too"


def test_two_rows_of_one_run_are_run_once(noise, tmp_path):
    twice = smoke(
        tmp_path,
        SMALL
        | {'[[rows]]\nname = "Smooth-AP"': '[[rows]]\nname = "twin"\ntrained = false\n\n[[rows]]\nname = "Smooth-AP"'},
    )
    cells, said = cells_in(twice, noise, tmp_path, only=["before training", "twin"]), []
    run_cells(tmp_path / "out", cells, say=said.append)
    assert [line.partition(",")[2][:15] for line in said[1:]] == [" glyphs, seed 0"]
    assert len(read_finished(tmp_path / "out", cells)) == 2
    assert len(list((tmp_path / "out/results").iterdir())) == 1


def test_upper_stages_are_measured_by_cached_features_as_the_whole_encoder_would(noise, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    file = smoke(tmp_path, SMALL | {'"data.n_workers=0"': '"data.n_workers=0", "model.adaptation=\'upper:1\'"'})
    (cell,) = cells_in(file, noise, tmp_path, only=["ROADMAP"], seeds=[0])
    run_job(write_job(tmp_path, cell, keep=True))
    stored = Outcome.read(result_file(tmp_path, cell))
    (folder,) = tmp_path.glob("runs/*/run/encoder")
    encoder = Encoder.from_pretrained(folder)
    result = evaluate_table(embed_manifest(encoder, read_manifest(noise).split("test")), metrics=["map"])
    assert stored.about["fingerprint"] == encoder.fingerprint()
    assert stored.means["map"] == pytest.approx(result["map"], abs=0.02)


@pytest.mark.slow
def test_the_command_runs_a_suite_from_end_to_end(whole, noise, tmp_path):
    words = command(whole / "smoke.toml", "--out", tmp_path / "out", "--data", f"glyphs={noise}")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 of 5 runs are finished; 5 to run" in done.stderr
    assert "Warning" not in done.stderr
    assert len(re.findall(r"^\[\d/5\] .*: recall@1 \d+\.\d, \d+ s", done.stderr, flags=re.M)) == 5
    again = subprocess.run([*words, "--repeat", "--only", "ROADMAP"], capture_output=True, text=True)
    assert again.stdout == "2 runs repeated: every value of every query is the same\n"


def test_a_changed_suite_runs_only_what_changed(whole, noise):
    changed = smoke(whole, SMALL | {'"loss.name=roadmap"': '"loss.name=roadmap", "loss.weight=0.3"'})
    cells = cells_in(changed, noise, whole, seeds=[0])
    smoke(whole)  # as it was, for the other tests
    done = read_finished(whole / "out", cells)
    assert [cell.row.name for cell in cells if cell not in done] == ["ROADMAP"]


@pytest.mark.slow
def test_a_suite_killed_between_cells_goes_on_where_it_was(whole, noise, tmp_path):
    words = command(smoke(tmp_path), "--out", tmp_path / "out", "--data", f"glyphs={noise}")
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = tmp_path / "out/results"
    until = time.monotonic() + 120
    while not (results.is_dir() and any(results.glob("*.json"))):
        assert time.monotonic() < until
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # The cell under way was left behind; its lock keeps it and the next start apart.
    cells = cells_in(tmp_path / "smoke.toml", noise, tmp_path)
    n_left = len(cells) - len(read_finished(tmp_path / "out", cells))
    assert n_left > 0
    run_cells(tmp_path / "out", cells)
    for cell, outcome in read_finished(tmp_path / "out", cells).items():
        assert outcome.differences(Outcome.read(result_file(whole / "out", cell))) == []
    assert len(read_finished(tmp_path / "out", cells)) == 5


@pytest.mark.slow
def test_a_suite_asked_to_stop_lets_its_cell_save_and_go_on(noise, tmp_path):
    long = {"schedule.epochs=2": "schedule.epochs=4000", "validation.every=2": "validation.every=4000"}
    words = ["--data", f"glyphs={noise}", "--only", "ROADMAP", "--seed", 0]
    stopped = subprocess.Popen(
        command(smoke(tmp_path, long), "--out", tmp_path / "out", *words), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("out/runs/*/run/last.pt")):
        assert time.monotonic() < until
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 2
    assert b"stopped; the same command goes on from here" in said
    assert not list(tmp_path.glob("out/results/*"))
    assert list(tmp_path.glob("out/runs/*/run/last.pt")), "a checkpoint to go on from"


@pytest.mark.slow
def test_a_cell_that_fails_is_named_and_the_others_run(noise, tmp_path):
    changes = SMALL | {'"loss.name=smooth_ap"': '"loss.name=smooth_ap", "sampler.per_class=9"'}
    cells, said = cells_in(smoke(tmp_path, changes), noise, tmp_path, seeds=[0]), []
    with pytest.raises(InputError, match=r"1 fault\n  Smooth-AP, glyphs, seed 0: status 1: .*sampler.per_class=9"):
        run_cells(tmp_path / "out", cells, say=said.append)
    assert {cell.row.name for cell in read_finished(tmp_path / "out", cells)} == {"before training", "ROADMAP"}


def test_what_another_process_is_at_is_left_alone(noise, tmp_path):
    (cell,) = cells_in(smoke(tmp_path), noise, tmp_path, only=["before training"])
    job, said = write_job(tmp_path, cell), []
    with locked(job.parent.with_suffix(".lock")):
        run_cells(tmp_path, [cell], say=said.append)
    assert said == ["0 of 1 runs are finished; 1 to run"]
    assert read_finished(tmp_path, [cell]) == {}
