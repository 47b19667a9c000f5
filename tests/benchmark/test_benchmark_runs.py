"""A small suite from end to end: run, killed, resumed, changed, repeated."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sightline.benchmark import runs
from sightline.benchmark.cell import run_job
from sightline.benchmark.grid import cells_of
from sightline.benchmark.locks import held, holder
from sightline.benchmark.outcome import Outcome
from sightline.benchmark.pages import update_page, write_pages
from sightline.benchmark.runs import finished, repeat, result_file, run_cells, status, take, write_job
from sightline.benchmark.suite import read_suite
from sightline.errors import InputError
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
        assert run_job(write_job(out, cell, [cell])) == 0


@pytest.fixture(scope="module")
def whole(noise, tmp_path_factory):
    """The folder of a suite of two losses and two seeds that has run."""
    folder = tmp_path_factory.mktemp("whole")
    run_here(folder / "out", cells_in(smoke(folder), noise, folder))
    return folder


def test_a_suite_leaves_results_and_pages(whole, noise):
    cells = cells_in(whole / "smoke.toml", noise, whole)
    assert len(finished(whole / "out", cells)) == len(cells) == 5
    assert len(list((whole / "out/results").iterdir())) == 5
    assert not list((whole / "out/runs").iterdir()), "run folders are cleared"
    write_pages(read_suite(whole / "smoke.toml"), whole / "smoke.toml", cells, whole / "out")
    markdown = (whole / "out/tables.md").read_text()
    assert re.search(r"^\| ROADMAP \|.* ± .*\| 2 \|$", markdown, flags=re.M)
    assert re.search(r"^\| before training \| [^±]*\| 1 \|$", markdown, flags=re.M)
    assert "| ROADMAP | " in markdown.partition("### Beside TPAMI Table I")[2]
    assert "| 81.9 |" in markdown
    html = (whole / "out/index.html").read_text()
    assert "<table>" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html), "opens offline"


def test_the_page_keeps_what_people_wrote(whole, noise, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- suite smoke -->\nreplaced by the command\n<!-- end of suite smoke -->\n\nAfter.\n")
    cells = cells_in(whole / "smoke.toml", noise, whole)
    update_page(page, read_suite(whole / "smoke.toml"), whole / "smoke.toml", cells, whole / "out")
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("\nAfter.\n")
    assert "replaced by the command" not in text
    assert "| Smooth-AP |" in text


def test_a_finished_suite_runs_nothing_and_says_so(whole, noise):
    cells, said = cells_in(whole / "smoke.toml", noise, whole), []
    before = {file: file.stat().st_mtime_ns for file in (whole / "out/results").iterdir()}
    run_cells(whole / "out", cells, jobs=1, say=said.append)
    assert said == ["5 of 5 runs are finished already; 1 at once from here on"]
    assert {file: file.stat().st_mtime_ns for file in (whole / "out/results").iterdir()} == before
    assert status(whole / "out", cells).as_text(2) == "5 of 5 runs finished; nobody works on it"


def test_a_cell_run_again_is_the_same_to_the_last_bit(whole, noise, tmp_path):
    first, second = cells_in(whole / "smoke.toml", noise, whole, only=["ROADMAP"])
    run_here(tmp_path, [first])
    stored = finished(whole / "out", [first, second])
    assert stored[first].differences(Outcome.read(result_file(tmp_path, first))) == []
    assert stored[first].differences(stored[second])[0].startswith("the encoder: "), "another seed is not the same"


def test_a_cell_interrupted_goes_on_to_the_same_result(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["Smooth-AP"], seeds=[0])
    job = write_job(tmp_path, cell, [cell])
    train(cell.recipe, job.parent / "run", max_minutes=0)  # stops after its first step, with a checkpoint
    assert not (job.parent / "run/encoder").exists()
    assert run_job(job) == 0
    outcome = Outcome.read(result_file(tmp_path, cell))
    assert outcome.about["was_resumed"]
    assert finished(whole / "out", [cell])[cell].differences(outcome) == []


def test_a_run_folder_of_another_recipe_is_begun_anew(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["Smooth-AP"], seeds=[0])
    job = write_job(tmp_path, cell, [cell])
    train(cell.recipe.model_copy(update={"seed": 5}), job.parent / "run", max_minutes=0)
    assert run_job(job) == 0
    assert finished(whole / "out", [cell])[cell].differences(Outcome.read(result_file(tmp_path, cell))) == []


def test_keep_leaves_the_encoder(noise, tmp_path):
    (cell,) = cells_in(smoke(tmp_path), noise, tmp_path, only=["ROADMAP"], seeds=[0])
    assert run_job(write_job(tmp_path, cell, [cell], keep=True)) == 0
    assert len(list(tmp_path.glob("runs/*/run/encoder"))) == 1


def test_repeating_what_was_never_run_is_refused(noise, tmp_path):
    cells = cells_in(smoke(tmp_path), noise, tmp_path, only=["before training"])
    with pytest.raises(InputError, match="1 of 1 runs are not finished: nothing to compare with"):
        repeat(tmp_path / "out", cells)


def test_a_result_of_other_defaults_is_run_again(whole, noise, tmp_path):
    (cell,) = cells_in(whole / "smoke.toml", noise, whole, only=["before training"])
    stored = finished(whole / "out", [cell])[cell]
    changed = stored.about | {"recipe": stored.about["recipe"] | {"precision": "bf16-mixed"}}
    Outcome(stored.result, changed).write(result_file(tmp_path, cell))
    assert finished(tmp_path, [cell]) == {}
    said = []
    run_cells(tmp_path, [cell], jobs=1, say=said.append)
    assert said[0].startswith("0 of 1 runs are finished already")
    assert re.fullmatch(r"\[1/1\] before training, glyphs, seed 0: recall@1 \d+\.\d, \d+ s", said[1])
    assert finished(tmp_path, [cell])[cell].differences(stored) == []


def test_the_same_runs_are_taken_from_another_suite(whole, noise, tmp_path, monkeypatch):
    renamed = {'["recall@1", "map@r",': '["map", "recall@1",', 'name = "ROADMAP"': 'name = "R"', '"ROADMAP" =': '"R" ='}
    other = smoke(tmp_path, SMALL | renamed | {'"loss.name=smooth_ap"': '"loss.name=smooth_ap", "loss.tau=1e-2"'})
    cells, said = cells_in(other, noise, tmp_path), []
    monkeypatch.setattr(runs, "start", lambda *_: pytest.fail("nothing is left to run"))
    run_cells(tmp_path / "out", cells, jobs=1, say=said.append, reuse=[tmp_path, whole / "out"])
    assert said == ["5 of 5 runs are finished already, 5 of them taken from the same runs; 1 at once from here on"]
    theirs = finished(whole / "out", cells_in(whole / "smoke.toml", noise, whole))
    for ours, outcome in finished(tmp_path / "out", cells).items():
        assert outcome.about["row"] == ours.row.name
        (same,) = (found for cell, found in theirs.items() if cell.key == ours.key)
        assert same.differences(outcome) == []


def test_a_result_without_a_metric_that_is_wanted_is_not_taken(whole, noise, tmp_path):
    changed = smoke(tmp_path, SMALL | {'"severity@1"': '"severity@7"'})
    (cell,) = cells_in(changed, noise, tmp_path, only=["before training"])
    (before,) = cells_in(whole / "smoke.toml", noise, whole, only=["before training"])
    assert cell.key == before.key
    assert not take(tmp_path / "out", cell, [whole / "out"])
    assert finished(whole / "out", [cell]) == {}
    run_here(tmp_path / "more", [cell])
    assert take(tmp_path / "out", before, [tmp_path / "more"]), "more than is wanted serves too"
    assert sorted(Outcome.read(result_file(tmp_path / "out", before)).result.per_query) == sorted(before.metrics)


def test_two_rows_of_one_run_are_run_once(noise, tmp_path, monkeypatch):
    twice = smoke(
        tmp_path,
        SMALL
        | {'[[rows]]\nname = "Smooth-AP"': '[[rows]]\nname = "twin"\ntrained = false\n\n[[rows]]\nname = "Smooth-AP"'},
    )
    cells, said, started = cells_in(twice, noise, tmp_path, only=["before training", "twin"]), [], []
    start = runs.start
    monkeypatch.setattr(runs, "start", lambda *words: started.append(words) or start(*words))
    run_cells(tmp_path / "out", cells, jobs=2, say=said.append)
    assert len(started) == 1
    assert [line.partition(":")[0] for line in said[1:]] == [
        "[1/2] before training, glyphs, seed 0",
        "[2/2] twin, glyphs, seed 0",
    ]
    assert len(finished(tmp_path / "out", cells)) == 2


def vendors(folder: Path, noise: Path):
    """Two vendors ask in turn, of an encoder that saw them in training and of one that did not."""
    data = "\n\n".join(f'[[data]]\nname = "{v}"\nsource = "glyphs"\nquery = {{ vendor = "{v}" }}' for v in ("red", "blue"))
    unseen = '[[rows]]\nname = "unseen"\nset = ["loss.name=roadmap"]\ntrain_without_queries = true\n\n'
    row = '[[rows]]\nname = "ROADMAP"'
    file = smoke(folder, SMALL | {'[[data]]\nname = "glyphs"': data, row: unseen + row})
    return cells_in(file, noise, folder, only=["ROADMAP", "unseen"], seeds=[0])


def test_cells_that_differ_in_their_queries_alone_share_a_training(noise, tmp_path, monkeypatch):
    cells, started, said = vendors(tmp_path, noise), [], []
    titles = [f"{row}, {data}, seed 0" for data in ("red", "blue") for row in ("unseen", "ROADMAP")]
    assert [cell.title for cell in cells] == titles
    assert len({cell.key for cell in cells}) == 4

    class Ended:
        """A process that did its job."""

        returncode = 0

        def __init__(self, job, threads):
            started.append(job)
            assert run_job(job) == 0

        def poll(self):
            return 0

    monkeypatch.setattr(runs, "start", Ended)
    run_cells(tmp_path / "out", cells, jobs=1, say=said.append)
    assert len(started) == 3
    assert [re.sub(r"^\[\d/4\] |:.*", "", line) for line in said[1:]] == [titles[place] for place in (0, 1, 3, 2)]
    done = finished(tmp_path / "out", cells)
    without_red, red, _, blue = (done[cell] for cell in cells)
    assert red.result.fingerprint == blue.result.fingerprint != without_red.result.fingerprint
    assert red.result.ids != blue.result.ids
    run_here(tmp_path / "alone", [cells[3]])
    assert blue.differences(Outcome.read(result_file(tmp_path / "alone", cells[3]))) == []


def test_a_shared_training_is_not_begun_anew_when_one_of_its_cells_is_finished(noise, tmp_path):
    _, red, _, blue = vendors(tmp_path, noise)
    run_here(tmp_path, [red])
    job = write_job(tmp_path, red, [blue])
    train(red.recipe, job.parent / "run")  # killed after it had measured the first
    assert run_job(job) == 0
    assert Outcome.read(result_file(tmp_path, blue)).about["was_resumed"]


def test_a_folder_to_reuse_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such folder to reuse results of"):
        run_cells(tmp_path / "out", [], jobs=1, reuse=[tmp_path / "nowhere"])


@pytest.mark.slow
def test_the_command_runs_a_suite_from_end_to_end(whole, noise, tmp_path):
    words = command(whole / "smoke.toml", "--out", tmp_path / "out", "--data", f"glyphs={noise}", "--jobs", 2)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 of 5 runs are finished already; 2 at once" in done.stderr
    assert "Warning" not in done.stderr
    assert len(re.findall(r"^\[\d/5\] .*: recall@1 \d+\.\d, \d+ s", done.stderr, flags=re.M)) == 5
    again = subprocess.run([*words, "--repeat", "--only", "ROADMAP"], capture_output=True, text=True)
    assert again.stdout == "2 runs repeated: every value of every query is the same\n"


def test_a_changed_suite_runs_only_what_changed(whole, noise):
    changed = smoke(whole, SMALL | {'"loss.name=roadmap"': '"loss.name=roadmap", "loss.weight=0.3"'})
    cells = cells_in(changed, noise, whole, seeds=[0])
    smoke(whole)  # as it was, for the other tests
    done = finished(whole / "out", cells)
    assert [cell.row.name for cell in cells if cell not in done] == ["ROADMAP"]


@pytest.mark.slow
def test_a_suite_killed_between_cells_goes_on_where_it_was(whole, noise, tmp_path):
    words = command(smoke(tmp_path), "--out", tmp_path / "out", "--data", f"glyphs={noise}", "--jobs", 1)
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = tmp_path / "out/results"
    until = time.monotonic() + 120
    while not (results.is_dir() and any(results.glob("*.parquet"))):
        assert time.monotonic() < until
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # The cell under way was left behind; its lock keeps it and the next start apart.
    cells = cells_in(tmp_path / "smoke.toml", noise, tmp_path)
    n_left = len(cells) - len(finished(tmp_path / "out", cells))
    assert n_left > 0
    run_cells(tmp_path / "out", cells, jobs=2)
    for cell, outcome in finished(tmp_path / "out", cells).items():
        assert outcome.differences(Outcome.read(result_file(whole / "out", cell))) == []
    assert len(finished(tmp_path / "out", cells)) == 5


@pytest.mark.slow
def test_a_suite_asked_to_stop_lets_its_cell_save_and_go_on(noise, tmp_path):
    long = {"schedule.epochs=2": "schedule.epochs=4000", "validation.every=2": "validation.every=4000"}
    words = ["--data", f"glyphs={noise}", "--jobs", 1, "--only", "ROADMAP", "--seed", 0]
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
    with pytest.raises(InputError, match=r"1 fault\n  Smooth-AP, glyphs, seed 0: status 2: .*sampler.per_class=9"):
        run_cells(tmp_path / "out", cells, jobs=2, say=said.append)
    assert {cell.row.name for cell in finished(tmp_path / "out", cells)} == {"before training", "ROADMAP"}


@pytest.mark.slow
def test_in_the_background_it_says_how_far_it_is(noise, tmp_path):
    words = [smoke(tmp_path), "--out", tmp_path / "out", "--data", f"glyphs={noise}", "--only", "before training"]
    started = subprocess.run(command(*words, "--background"), capture_output=True, text=True, check=True)
    assert re.fullmatch(r"process \d+ runs 1 cells; its lines go to .*log.txt\n", started.stdout)
    until = time.monotonic() + 120
    while not (tmp_path / "out/index.html").is_file():
        assert time.monotonic() < until, (tmp_path / "out/log.txt").read_text()
        time.sleep(0.1)
    told = subprocess.run(command(*words, "--status"), capture_output=True, text=True, check=True).stdout
    assert told.startswith("1 of 1 runs finished")
    assert "[1/1] before training" in (tmp_path / "out/log.txt").read_text()


def test_two_suites_do_not_work_in_one_folder(tmp_path):
    assert holder(tmp_path / "lock") is None
    with held(tmp_path / "lock"):
        assert holder(tmp_path / "lock") == os.getpid()
        with pytest.raises(InputError, match=f"process {os.getpid()} works here"):
            run_cells(tmp_path, [], jobs=1)
    run_cells(tmp_path, [], jobs=1)
