"""Run the cells of a suite, one process a training; what is finished is never run again.

``python -m sightline.studies.run <job.json>`` is such a process: it trains, or goes on with it, and measures what needs
this encoder. It holds a lock while it works, so that one left behind by a killed suite and the next start never meet.
"""

import base64
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sightline import __version__
from sightline.data.manifest import read_manifest
from sightline.errors import InputError, raise_faults
from sightline.evaluation.result import Result, shown
from sightline.evaluation.tables import evaluate_table
from sightline.files import locked, read_json_object, replaced
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.studies.suite import Cell
from sightline.training.large_batch import keep_freed_memory
from sightline.training.prepare import untrained_encoder
from sightline.training.recipe import Recipe
from sightline.training.run import train
from sightline.training.run_folder import RunFolder, load_checkpoint

LIBRARIES = ("OMP_NUM", "MKL_NUM", "NUMBA_NUM", "OPENBLAS_NUM", "POLARS_MAX")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one cell found: the values of every query, and how they came about.

    Attributes:
        result: with the encoder's fingerprint; its classes are numbers, its ids are left out.
        about: what :meth:`~sightline.studies.suite.Cell.describe` says, a hash of the queries' ids, processor time, and
            what it ran on.
    """

    result: Result
    about: dict[str, Any]

    def write(self, file: Path) -> None:
        """Write one small JSON file: means to read, and every query's values, exact and compressed, to test with."""
        stored = self.about | {
            "fingerprint": self.result.fingerprint,
            "metrics": {name: None if np.isnan(mean) else mean for name, mean in self.result.means.items()},
            "classes": _packed(self.result.labels, "<i8"),
            "per_query": {name: _packed(values, "<f8") for name, values in self.result.per_query.items()},
        }
        with replaced(file) as scratch:
            scratch.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Outcome":
        """The outcome that :meth:`write` wrote."""
        about = read_json_object(file)
        try:
            classes, packed = _unpacked(about.pop("classes"), "<i8"), about.pop("per_query")
            values = {name: _unpacked(text, "<f8") for name, text in packed.items()}
            return cls(Result(values, labels=classes, fingerprint=about["fingerprint"]), about)
        except (KeyError, ValueError, TypeError, AttributeError, zlib.error) as error:
            raise InputError(f"{file}: not the result of a benchmark's run: {error!r}") from error

    def differences(self, other: "Outcome") -> list[str]:
        """What is not the same to the last bit, one sentence each; metrics that the other has alone do not count."""
        pairs = {what: (self.about[what], other.about[what]) for what in ("fingerprint", "queries")}
        found = [f"{what}: {ours} and {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs]
        ours, theirs = self.result.per_query, other.result.per_query
        missing = np.zeros(0)
        changed = [name for name in ours if not np.array_equal(ours[name], theirs.get(name, missing), equal_nan=True)]
        return found + [f"{name}: {self.result[name]!r} and {other.about['metrics'].get(name)!r}" for name in changed]


def _packed(values: Any, kind: str) -> str:
    return base64.b64encode(zlib.compress(np.asarray(values, kind).tobytes(), 9)).decode()


def _unpacked(text: str, kind: str) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), kind)


def result_file(out: Path, cell: Cell) -> Path:
    """Where a finished cell's values are: rows of the same run share it, and anything that decides them changes it."""
    return out / "results" / f"{_name(cell)}-{cell.key[:12]}.json"


def _folder(out: Path, cell: Cell) -> Path:
    return out / "runs" / f"{_name(cell)}-{cell.training[:12]}"


def _name(cell: Cell) -> str:
    return f"{cell.recipe.loss.name if cell.row.trained else 'untrained'}-seed{cell.seed}"


def finished(out: Path, cells: Sequence[Cell]) -> dict[Cell, Outcome]:
    """The cells that have a result of their very recipe, with all their metrics."""
    found = {cell: Outcome.read(file) for cell in cells if (file := result_file(out, cell)).is_file()}
    return {
        cell: outcome
        for cell, outcome in found.items()
        if cell.agrees(outcome.about) and outcome.result.per_query.keys() >= {*cell.metrics}
    }


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    keep: bool = False,
    say: Callable[[str], None] = lambda line: None,
    reuse: Sequence[Path] = (),
) -> None:
    """Run what has no result yet, one after the other, each run once, however many rows ask for it.

    Cells of one training that differ in what they measure share it: one process trains, then measures each. Several calls
    may work in one folder at a time: each leaves alone what another is at.

    An interrupt (Ctrl-C) lets the running cell save a checkpoint and end. A cell that fails does not stop the others; all
    failures are raised together at the end.

    Args:
        out: the suite's folder.
        cells: to run.
        keep: leave run folders (encoder, checkpoint, log), which are deleted otherwise.
        say: called with a line about each cell.
        reuse: folders of other suites, whose results of the same runs are taken.
    """
    if missing := [folder for folder in reuse if not folder.is_dir()]:
        raise InputError(f"{missing[0]}: no such folder to reuse results of")
    done = finished(out, cells)
    for folder in reuse:
        for cell, outcome in finished(folder, [cell for cell in cells if cell not in done]).items():
            outcome.write(result_file(out, cell))
            done[cell] = outcome
    trainings = list(dict.fromkeys(cell.training for cell in cells if cell not in done))
    say(f"{len(done)} of {len(cells)} runs are finished; {len(trainings)} to train")
    failures: list[str] = []
    for place, training in enumerate(trainings, start=1):
        alike = [cell for cell in cells if cell.training == training]
        claim = _folder(out, alike[0]).with_suffix(".lock")
        with locked(claim, wait=False) as is_ours:
            left = [cell for cell in alike if cell not in finished(out, alike)] if is_ours else []
            for cell in left:
                result_file(out, cell).unlink(missing_ok=True)  # of other metrics, or of other defaults
            reason = _run(write_job(out, alike[0], left, keep), alike[0].threads) if left else ""
            for cell in left:
                is_there = result_file(out, cell).is_file()
                failures += [] if is_there else [f"{cell.title}: {reason}"]
                say(f"[{place}/{len(trainings)}] {_value(out, cell) if is_there else failures[-1]}")
            if is_ours:
                claim.unlink()
    raise_faults(out, failures)


def _run(job_file: Path, threads: int) -> str:
    """Run the job in a process of its own; how that ended."""
    log = job_file.with_name("log.txt")
    with log.open("wb") as opened:
        process = subprocess.Popen(
            [sys.executable, "-m", "sightline.studies.run", str(job_file)],
            stdout=opened,
            stderr=opened,
            stdin=subprocess.DEVNULL,
            env=os.environ | {f"{library}_THREADS": str(threads) for library in LIBRARIES},
            start_new_session=True,  # Ctrl-C is for the suite, which then asks its cell to save
        )
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise InputError(f"{log.parent}: stopped; the same command goes on from here") from None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    return f"status {process.returncode}: {lines[-1] if lines else 'it said nothing'} (all of it: {log})"


def _value(out: Path, cell: Cell) -> str:
    outcome, metric = Outcome.read(result_file(out, cell)), cell.metrics[0]
    value, seconds = shown(metric, outcome.result[metric]), outcome.about["cpu_seconds"]
    return f"{cell.title}: {metric} {value}, {seconds:.0f} s of processor time"


def repeat(out: Path, cells: Sequence[Cell]) -> dict[Cell, list[str]]:
    """Run finished cells once more, elsewhere; what came out differently, to the last bit, for each."""
    before = finished(out, cells)
    if missing := len(cells) - len(before):
        raise InputError(f"{out}: {missing} of {len(cells)} runs are not finished: nothing to compare with")
    with tempfile.TemporaryDirectory() as folder:
        run_cells(Path(folder), cells)
        return {cell: before[cell].differences(again) for cell, again in finished(Path(folder), cells).items()}


def write_job(out: Path, trained: Cell, cells: Sequence[Cell], keep: bool = False) -> Path:
    """Write what :func:`run_job` must know of the cells of one training, and return the file.

    Args:
        out: the suite's folder.
        trained: the first cell of this training, finished or not, so that the next start finds its folder.
        cells: to measure.
        keep: leave the run folder when they are measured.
    """
    results = {str(result_file(out.resolve(), cell)): (cell.describe(), cell.metrics) for cell in cells}
    job = {"keep": keep, "train": trained.describe(), "results": results}
    file = _folder(out.resolve(), trained) / "job.json"
    with replaced(file) as scratch:
        scratch.write_text(json.dumps(job, indent=2), encoding="utf-8")
    return file


def run_job(job_file: Path) -> None:
    """Train as the job says, or go on with it, measure, write the results, and clear what it no longer needs."""
    with locked(job_file.with_name("lock")):
        if not job_file.is_file():
            return  # done and cleared by the process that had the lock before
        job = read_json_object(job_file)
        if left := {file: cell for file, cell in job["results"].items() if not Path(file).is_file()}:
            _train_and_measure(job["train"], left, job_file.with_name("run"))
        if not job["keep"]:
            shutil.rmtree(job_file.parent)


def _train_and_measure(trained: dict[str, Any], results: dict[str, Any], run: Path) -> None:
    """Write each result; refused if the training was asked to stop."""
    torch.set_num_threads(trained["threads"])
    keep_freed_memory()
    recipe, stored = Recipe.model_validate(trained["recipe"]), RunFolder(run).recipe_file
    if run.is_dir() and not (stored.is_file() and read_json_object(stored) == trained["recipe"]):
        shutil.rmtree(run)  # begun with another manifest's path, or by a version that knew other options
    was_resumed, began = RunFolder(run).last_checkpoint.is_file(), _cpu_seconds()
    encoder = _trained(recipe, run) if trained["trained"] else untrained_encoder(recipe)
    took = _cpu_seconds() - began
    for file, (about, metrics) in results.items():
        since = _cpu_seconds()
        measured = read_manifest(about["recipe"]["data"]["manifest"]).split(about["split"])
        result = evaluate_table(embed_manifest(encoder, measured, n_workers=recipe.data.n_workers), metrics=metrics)
        ran = {
            "queries": hashlib.sha256(json.dumps(result.ids).encode()).hexdigest(),
            "cpu_seconds": round(took + _cpu_seconds() - since, 1),
            "was_resumed": was_resumed,
            "version": __version__,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        Outcome(result, about | ran).write(Path(file))


def _trained(recipe: Recipe, run: Path) -> Encoder:
    folder = train(recipe, run, resume=True)
    position, patience = load_checkpoint(RunFolder(run).last_checkpoint)[0], recipe.validation.patience
    if position.epoch < recipe.schedule.epochs and (patience is None or position.n_worse < patience):
        raise InputError("stopped from outside; the same command goes on from its checkpoint")
    return Encoder.from_pretrained(folder)


def _cpu_seconds() -> float:
    """The processor's time of this process and of its workers."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


if __name__ == "__main__":
    run_job(Path(sys.argv[1]))
