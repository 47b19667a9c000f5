"""Run the cells of a suite, several at once, one process a training; what is finished is never run again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from sightline.benchmark.cell import INTERRUPTED
from sightline.benchmark.grid import Cell
from sightline.benchmark.locks import held, holder
from sightline.benchmark.outcome import Outcome
from sightline.errors import InputError, raise_faults
from sightline.evaluation.result import shown
from sightline.files import replaced

LOCK_FILE, LOG_FILE, RESULTS, RUNS = "lock", "log.txt", "results", "runs"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Status:
    """How far a suite is.

    Attributes:
        finished: cells with a result.
        cells: all of them.
        left: trainings that the others need.
        process: that works on it; None: nobody does.
        seconds: mean of a finished cell that was trained in one go; None before there is one.
    """

    finished: int
    cells: int
    left: int
    process: int | None
    seconds: float | None

    def as_text(self, jobs: int) -> str:
        """One line for people."""
        text = f"{self.finished} of {self.cells} runs finished"
        if self.left and self.seconds is not None:
            text += f", about {duration(self.left * self.seconds / jobs)} left with {jobs} at once"
        return text + (f"; process {self.process} works on it" if self.process else "; nobody works on it")


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(42), duration(600), duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    )


def usual_jobs(threads: int) -> int:
    """As many cells at once as the machine has cores for."""
    return max(1, (os.cpu_count() or 1) // threads)


def result_file(out: Path, cell: Cell) -> Path:
    """Where a finished cell's values are; its name changes with anything that decides them."""
    return out / RESULTS / f"{cell.stem}.parquet"


def finished(out: Path, cells: Sequence[Cell]) -> dict[Cell, Outcome]:
    """The cells that have a result of their very recipe, with all their metrics and no other."""
    found = {cell: Outcome.read(file) for cell in cells if (file := result_file(out, cell)).is_file()}
    return {cell: outcome.only(cell.metrics) for cell, outcome in found.items() if cell.is_served_by(outcome)}


def take(out: Path, cell: Cell, folders: Sequence[Path]) -> bool:
    """Copy the result of the same run from another row, here or in other suites' folders, if one of them has it."""
    for folder in (out, *folders):
        for file in sorted((folder / RESULTS).glob(f"*-seed{cell.seed}-{cell.key[:12]}.parquet")):
            outcome = Outcome.read(file)
            if cell.is_served_by(outcome):
                about = outcome.about | {"row": cell.row.name, "data": cell.data}
                Outcome(outcome.only(cell.metrics).result, about).write(result_file(out, cell))
                return True
    return False


def status(out: Path, cells: Sequence[Cell]) -> Status:
    """How far the cells are, and how long one takes."""
    done = finished(out, cells)
    left = {cell.training for cell in cells if cell not in done}
    return Status(len(done), len(cells), len(left), holder(out / LOCK_FILE), _mean_seconds(done))


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    jobs: int,
    keep: bool = False,
    say: Callable[[str], None] = lambda line: None,
    reuse: Sequence[Path] = (),
) -> None:
    """Run what has no result yet, once, however many rows ask for the same run.

    Cells of one training that differ in what they measure share it: one process trains, then measures each.

    SIGTERM and Ctrl-C let the running cells save a checkpoint and end. A cell that fails does not stop the others; all
    failures are raised together at the end.

    Args:
        out: the suite's folder; one process at a time works in it.
        cells: to run.
        jobs: at once.
        keep: leave run folders (encoder, checkpoint, log), which are deleted otherwise.
        say: told a line about each cell.
        reuse: folders of other suites, whose results of the same runs are taken.
    """
    if missing := [folder for folder in reuse if not folder.is_dir()]:
        raise InputError(f"{missing[0]}: no such folder to reuse results of")
    with held(out / LOCK_FILE), _SignalAsInterrupt():
        done = finished(out, cells)
        left = [cell for cell in cells if cell not in done]
        for cell in left:
            result_file(out, cell).unlink(missing_ok=True)  # of other metrics, or of a version whose defaults were others
        waiting = [cell for cell in left if not take(out, cell, reuse)]
        taken = f", {len(left) - len(waiting)} of them taken from the same runs" if len(left) > len(waiting) else ""
        say(f"{len(cells) - len(waiting)} of {len(cells)} runs are finished already{taken}; {jobs} at once from here on")
        running: list[_Work] = []
        failures: list[str] = []
        try:
            while waiting or running:
                while len(running) < jobs and (chosen := _next(waiting, running)):
                    if take(out, chosen, reuse):
                        waiting.remove(chosen)
                        say(_line(out, cells, chosen, jobs))
                    else:
                        together = _together(chosen, waiting)
                        waiting = [cell for cell in waiting if cell not in together]
                        first = next(cell for cell in cells if cell.training == chosen.training)
                        job = write_job(out, first, together, keep)
                        running.append(_Work(together, job, start(job, chosen.threads)))
                for work in [work for work in running if work.process.poll() is not None]:
                    running.remove(work)
                    for cell in work.cells:
                        if result_file(out, cell).is_file():
                            say(_line(out, cells, cell, jobs))
                        else:
                            failures.append(f"{cell.title}: {_reason(work)}")
                            say(f"failed: {failures[-1]}")
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            for work in running:
                work.process.terminate()
            for work in running:
                work.process.wait()
            raise InputError(f"{out}: stopped; the same command goes on from here") from None
        raise_faults(out, failures)


def repeat(out: Path, cells: Sequence[Cell]) -> dict[Cell, list[str]]:
    """Run finished cells once more, elsewhere; what came out differently, to the last bit, for each."""
    before = finished(out, cells)
    if len(before) < len(cells):
        raise InputError(
            f"{out}: {len(cells) - len(before)} of {len(cells)} runs are not finished: nothing to compare with"
        )
    with tempfile.TemporaryDirectory() as folder:
        run_cells(Path(folder), cells, jobs=1)
        return {cell: before[cell].differences(again) for cell, again in finished(Path(folder), cells).items()}


class _Work(NamedTuple):
    """Cells of one training, and the process that runs them."""

    cells: list[Cell]
    job: Path
    process: "subprocess.Popen[bytes]"


def write_job(out: Path, trained: Cell, cells: Sequence[Cell], keep: bool = False) -> Path:
    """Write what :mod:`sightline.benchmark.cell` needs to know of the cells of one training, and return the file.

    Args:
        out: the suite's folder.
        trained: the first cell of this training, finished or not, so that the next start finds its folder.
        cells: to measure.
        keep: leave the run folder when they are measured.
    """
    job = {
        "trained": trained.row.trained,
        "threads": trained.threads,
        "keep": keep,
        "recipe": json.loads(trained.recipe.model_dump_json()),
        "cells": [
            {
                "row": cell.row.name,
                "trained": cell.row.trained,
                "data": cell.data,
                "seed": cell.seed,
                "key": cell.key,
                "split": cell.split,
                "metrics": cell.metrics,
                "threads": cell.threads,
                "result": str(result_file(out.resolve(), cell)),
                "recipe": json.loads(cell.recipe.model_dump_json()),
                "loss": cell.loss,
            }
            for cell in cells
        ],
    }
    file = out.resolve() / RUNS / trained.stem / "job.json"
    with replaced(file) as scratch:
        scratch.write_text(json.dumps(job, indent=2), encoding="utf-8")
    return file


def start(job_file: Path, threads: int) -> "subprocess.Popen[bytes]":
    """A process that runs the job."""
    libraries = ("OMP", "MKL", "NUMBA", "OPENBLAS")
    limits = {f"{library}_NUM_THREADS": str(threads) for library in libraries} | {"POLARS_MAX_THREADS": str(threads)}
    with job_file.with_name(LOG_FILE).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sightline.benchmark.cell", str(job_file)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=os.environ | limits,
            start_new_session=True,  # Ctrl-C is for the suite, which then asks its cells to save
        )


def start_in_background(out: Path, arguments: Sequence[str]) -> int:
    """Start ``sightline benchmark`` with these arguments, detached; its lines go to the folder's log.

    Returns:
        The number of the process.
    """
    if process := holder(out / LOCK_FILE):
        raise InputError(f"{out}: process {process} works here; wait for it or end it first")
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOG_FILE).open("ab") as log:
        command = [sys.executable, "-m", "sightline", "benchmark", *arguments]
        started = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    return started.pid


class _SignalAsInterrupt:
    """While entered, SIGTERM is Ctrl-C."""

    def __enter__(self) -> None:
        with suppress(ValueError):  # not in the main thread: nothing to change
            self.before = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError, AttributeError):
            signal.signal(signal.SIGTERM, self.before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt


def _next(waiting: Sequence[Cell], running: Collection[_Work]) -> Cell | None:
    """The first cell whose training is not under way for others."""
    under_way = {work.cells[0].training for work in running}
    return next((cell for cell in waiting if cell.training not in under_way), None)


def _together(chosen: Cell, waiting: Sequence[Cell]) -> list[Cell]:
    """The cells that the chosen one's training serves, one of each key: other rows of the same run take its result."""
    served = {chosen.key: chosen}
    for cell in waiting:
        if cell.training == chosen.training:
            served.setdefault(cell.key, cell)
    return list(served.values())


def _line(out: Path, cells: Sequence[Cell], cell: Cell, jobs: int) -> str:
    now = status(out, cells)
    outcome = Outcome.read(result_file(out, cell))
    metric = cell.metrics[0]
    value = f"{metric} {shown(metric, outcome.result[metric])}, {duration(outcome.about['seconds'])}"
    time_left = f", about {duration(now.left * now.seconds / jobs)} left" if now.left and now.seconds is not None else ""
    return f"[{now.finished}/{now.cells}] {cell.title}: {value}{time_left}"


def _mean_seconds(done: dict[Cell, Outcome]) -> float | None:
    times = [
        outcome.about["seconds"] for cell, outcome in done.items() if cell.row.trained and not outcome.about["was_resumed"]
    ]
    return sum(times) / len(times) if times else None


def _reason(work: _Work) -> str:
    if work.process.returncode == INTERRUPTED:
        return "stopped from outside; the same command goes on from its checkpoint"
    log = work.job.with_name(LOG_FILE)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    return f"status {work.process.returncode}: {lines[-1] if lines else 'it said nothing'} (all of it: {log})"
