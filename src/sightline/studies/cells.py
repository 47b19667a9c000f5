"""Run the cells of a suite, each in a process of its own; finished cells are not run again.

``python -m sightline.studies.cells <job.json>`` is such a process: it trains, or resumes, and measures the encoder. It
holds a lock, so that a process left behind by a killed suite and the next one do not interfere.
"""

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from sightline import __version__
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.errors import InputError, raise_faults
from sightline.evaluation.decomposability import decomposability_gap
from sightline.evaluation.metrics import metric_names
from sightline.evaluation.protocol import code_metric_names
from sightline.evaluation.result import Result, shown
from sightline.evaluation.tables import evaluate_table, read_sides
from sightline.files import locked, read_json_object, write_text
from sightline.labels.codes import CodeRelevance, sampling_paths
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.models.stages import UpperEncoder
from sightline.studies.suite import Cell, slug, suite_manifest
from sightline.training.cached_features import cache_features, embed_features
from sightline.training.large_batch import keep_freed_memory
from sightline.training.prepare import code_relevance, untrained_encoder
from sightline.training.recipe import Recipe
from sightline.training.run import train
from sightline.training.run_folder import RunFolder, load_checkpoint

KS = (1, 2, 4, 8, 10, 16, 32, 100)  # always measured
GAP_SIZES = (16, 32, 64, 128)  # batch sizes for the decomposability gap
LIBRARIES = ("OMP_NUM", "MKL_NUM", "NUMBA_NUM", "OPENBLAS_NUM", "POLARS_MAX")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one cell, and how it was obtained.

    Attributes:
        means: mean over the queries of every metric; NaN if it is undefined for all queries.
        class_means: for each metric of the cell, (C,) float32 means over the queries of each class, in order of class name;
            of images with several codes, over the queries whose rarest code, among those that another query has too, it is.
        about: :meth:`~sightline.studies.suite.Cell.describe`, the encoder's fingerprint, processor time and machine.
    """

    means: dict[str, float]
    class_means: dict[str, NDArray[np.float32]]
    about: dict[str, Any]

    @classmethod
    def of(cls, result: Result, metrics: Sequence[str], about: dict[str, Any]) -> "Outcome":
        """The outcome of a result, with the means of each class for some metrics."""
        labels = np.asarray(result.labels)
        tables = pl.DataFrame({name: result.per_query[name] for name in metrics}).fill_nan(None)
        by_class = tables.group_by(pl.Series("class", labels)).mean().sort("class")
        class_means = {name: by_class[name].fill_null(np.nan).to_numpy().astype(np.float32) for name in metrics}
        return cls(dict(result.means), class_means, about | {"fingerprint": result.fingerprint})

    def write(self, file: Path) -> None:
        """Write one small JSON file."""
        stored = self.about | {
            "metrics": {name: None if np.isnan(mean) else mean for name, mean in self.means.items()},
            "class_means": {name: _packed(values) for name, values in self.class_means.items()},
        }
        write_text(file, json.dumps(stored, indent=1, sort_keys=True) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Outcome":
        """The outcome that :meth:`write` wrote."""
        about = read_json_object(file)
        try:
            means = {name: np.nan if mean is None else float(mean) for name, mean in about.pop("metrics").items()}
            class_means = {name: _unpacked(text) for name, text in about.pop("class_means").items()}
            return cls(means, class_means, about)
        except (KeyError, ValueError, TypeError, AttributeError, zlib.error) as error:
            raise InputError(
                f"{file}: not a result of `sightline benchmark`: {error!r}; delete it to run the cell again"
            ) from error

    def differences(self, other: "Outcome") -> list[str]:
        """What differs in any bit, a sentence each; metrics that only the other has are ignored."""
        ours, theirs = ({"fingerprint": one.about["fingerprint"]} | one.means for one in (self, other))
        return [
            f"{what}: {ours[what]!r} and {theirs.get(what)!r}"
            for what in ours
            if repr(ours[what]) != repr(theirs.get(what))
        ]


def _packed(values: NDArray[np.float32]) -> str:
    return base64.b64encode(zlib.compress(values.astype("<f4").tobytes(), 9)).decode()


def _unpacked(text: str) -> NDArray[np.float32]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), "<f4")


def result_file(out: Path, cell: Cell) -> Path:
    """The file of a finished cell; rows of one run share it, and its name follows everything that affects the run."""
    return out / "results" / f"{_name(cell)}.json"


def _name(cell: Cell) -> str:
    loss = cell.recipe.loss.name if cell.row.trained else "untrained"
    return f"{cell.data}-{slug(loss)}-seed{cell.seed}-{cell.key[:12]}"


def read_finished(out: Path, cells: Sequence[Cell]) -> dict[Cell, Outcome]:
    """The cells with a result of exactly their recipe that has all their metrics."""
    found = {cell: Outcome.read(file) for cell in cells if (file := result_file(out, cell)).is_file()}
    return {
        cell: outcome
        for cell, outcome in found.items()
        if cell.agrees(outcome.about) and outcome.class_means.keys() >= {*cell.metrics}
    }


def run_cells(out: Path, cells: Sequence[Cell], keep: bool = False, say: Callable[[str], None] = lambda line: None) -> None:
    """Run the cells that have no result yet, one after the other; a run that several rows share runs once.

    Several processes may work in one folder: each skips the cells that another is running.

    On Ctrl-C the running cell saves a checkpoint and stops. A cell that fails does not stop the others; all failures are
    raised together at the end.

    Args:
        out: the folder of results; several suites may share it.
        cells: the cells to run.
        keep: keep run folders (encoder, checkpoint, log), which are deleted otherwise.
        say: called with a line for each cell.
    """
    done = read_finished(out, cells)
    left = list({cell.key: cell for cell in cells if cell not in done}.values())
    say(f"{len(done)} of {len(cells)} runs are finished; {len(left)} to run")
    failures: list[str] = []
    for place, cell in enumerate(left, start=1):
        file, claim = result_file(out, cell), out / "runs" / f"{_name(cell)}.lock"
        with locked(claim, wait=False) as is_ours:
            if not is_ours or read_finished(out, [cell]):
                continue
            file.unlink(missing_ok=True)  # a result with other metrics or other defaults
            reason = _run(write_job(out, cell, keep), cell.threads)
            failures += [] if file.is_file() else [f"{cell.title}: {reason}"]
            say(f"[{place}/{len(left)}] {_value(out, cell) if file.is_file() else failures[-1]}")
            claim.unlink()
    raise_faults(out, failures)


def _run(job_file: Path, threads: int) -> str:
    """Run the job in a process of its own; returns its status and last line."""
    log = job_file.with_name("log.txt")
    with log.open("wb") as opened:
        process = subprocess.Popen(
            [sys.executable, "-m", "sightline.studies.cells", str(job_file)],
            stdout=opened,
            stderr=opened,
            stdin=subprocess.DEVNULL,
            env=os.environ | {f"{library}_THREADS": str(threads) for library in LIBRARIES},
            start_new_session=True,  # Ctrl-C reaches the suite, which then asks its cell to save
        )
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise InputError(f"{log.parent}: stopped; to continue, repeat the command") from None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    return f"status {process.returncode}: {lines[-1] if lines else 'no output'} (full log: {log})"


def _value(out: Path, cell: Cell) -> str:
    outcome, metric = Outcome.read(result_file(out, cell)), cell.metrics[0]
    value, seconds = shown(metric, outcome.means[metric]), outcome.about["cpu_seconds"]
    return f"{cell.title}: {metric} {value}, {seconds:.0f} s of processor time"


def repeat(out: Path, cells: Sequence[Cell]) -> dict[Cell, list[str]]:
    """Run finished cells again in a temporary folder; returns for each what differs in any bit."""
    before = read_finished(out, cells)
    if missing := len(cells) - len(before):
        raise InputError(f"{out}: {missing} of {len(cells)} runs are not finished; run the suite without --repeat first")
    with tempfile.TemporaryDirectory() as folder:
        run_cells(Path(folder), cells)
        return {cell: before[cell].differences(again) for cell, again in read_finished(Path(folder), cells).items()}


def write_job(out: Path, cell: Cell, keep: bool = False) -> Path:
    """Write the input of :func:`run_job` for a cell; returns the file."""
    job = {"keep": keep, "cell": cell.describe(), "metrics": cell.metrics, "result": str(result_file(out.resolve(), cell))}
    file = out.resolve() / "runs" / _name(cell) / "job.json"
    write_text(file, json.dumps(job, indent=2))
    return file


def run_job(job_file: Path) -> None:
    """Train or resume as the job says, measure, write the result, and delete the run folder."""
    with locked(job_file.with_name("lock")):
        if not job_file.is_file():
            return  # finished and deleted by the process that held the lock before
        job = read_json_object(job_file)
        if not (file := Path(job["result"])).is_file():
            _train_and_measure(job["cell"], job["metrics"], job_file.with_name("run")).write(file)
        if not job["keep"]:
            shutil.rmtree(job_file.parent)


def _train_and_measure(about: dict[str, Any], metrics: Sequence[str], run: Path) -> Outcome:
    """Train and measure; raises InputError if training was asked to stop."""
    torch.set_num_threads(about["threads"])
    keep_freed_memory()
    recipe = Recipe.model_validate(about["recipe"])
    RunFolder(run).clear_unless(recipe)  # started with another manifest path, or by a version with other options
    was_resumed = RunFolder(run).last_checkpoint.is_file()
    encoder = _trained(recipe, run) if about["trained"] else untrained_encoder(recipe)
    manifest = suite_manifest(recipe.data.manifest, recipe)
    measured = manifest.split(about["split"])
    if about["trained"] and recipe.model.adaptation not in ("full", "lora"):
        table = _embed_by_features(encoder, recipe.model.adaptation, measured, recipe.data.n_workers)
    else:
        table = embed_manifest(encoder, measured, n_workers=recipe.data.n_workers, backend="torch")
    ran = {
        "cpu_seconds": round(_cpu_seconds(), 1),
        "was_resumed": was_resumed,
        "version": __version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    about["recipe"]["data"]["manifest"] = recipe.data.manifest.name  # without the path on this machine
    codes, relevance = recipe.data.codes, code_relevance(recipe, manifest)
    if codes is not None and relevance is not None:
        return Outcome.of(_measured_codes(table, metrics, codes, relevance), metrics, about | ran)
    result = evaluate_table(table, metrics=[*dict.fromkeys([*metric_names(KS, manifest.n_levels), *metrics])])
    return Outcome.of(result, metrics, about | ran | {"decomposability_gap": _gaps(table, result)})


def _measured_codes(table: EmbeddingTable, metrics: Sequence[str], codes: str, relevance: CodeRelevance) -> Result:
    """The result by codes; the class of a query is its rarest code, of those that another query has too."""
    everything = dict.fromkeys([*code_metric_names(KS, relevance.n_levels), *metrics])
    result = evaluate_table(table, metrics=[*everything], codes=codes, relevance=relevance)
    queries, _ = read_sides(table, None, codes)
    return replace(result, labels=np.array([path[-1] for path in sampling_paths(queries.codes, relevance.n_levels)]))


def _gaps(table: EmbeddingTable, result: Result) -> dict[str, float]:
    """The decomposability gap of average precision on the finest labels, by batch size."""
    labels, whole = np.asarray(result.labels), result.per_query["map"]
    return {str(size): decomposability_gap(table.vectors, labels, size, seeds=(0,), whole=whole).mean for size in GAP_SIZES}


def _embed_by_features(encoder: Encoder, adaptation: str, manifest: Manifest, n_workers: int) -> EmbeddingTable:
    """Embed with cached features of the frozen part, which takes most of the time and is the same for all runs."""
    learner = UpperEncoder(encoder, adaptation)
    features = cache_features(learner, manifest, encoder.settings.preprocessing, n_workers=n_workers)
    return EmbeddingTable(manifest, embed_features(learner, features), encoder.fingerprint())


def _trained(recipe: Recipe, run: Path) -> Encoder:
    folder = train(recipe, run, resume=True)
    position, patience = load_checkpoint(RunFolder(run).last_checkpoint)[0], recipe.validation.patience
    if position.epoch < recipe.schedule.epochs and (patience is None or position.n_worse < patience):
        raise InputError("stopped by a signal; to continue from its checkpoint, repeat the command")
    return Encoder.from_pretrained(folder)


def _cpu_seconds() -> float:
    """Processor time of this process and its workers."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    run_job(Path(sys.argv[1]))
