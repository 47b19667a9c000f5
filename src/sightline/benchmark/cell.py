"""Train in a process of its own and measure what needs this encoder: ``python -m sightline.benchmark.cell <job.json>``.

The process holds a lock while it works, so that a cell left behind by a killed suite and its next start never meet.
"""

import json
import os
import platform
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sightline import __version__
from sightline.benchmark.locks import held
from sightline.benchmark.outcome import Outcome
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.evaluation.tables import evaluate_table
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.report.subject import untrained_encoder
from sightline.training.allocator import keep_freed_memory
from sightline.training.checkpoint import load_checkpoint
from sightline.training.recipe import Recipe
from sightline.training.run import ENCODER_FOLDER, LAST_FILE, RECIPE_FILE, train

INTERRUPTED = 75  # exit status: stopped on request, with a checkpoint to go on from
RUN_FOLDER = "run"


def run_job(job_file: Path) -> int:
    """Train as the job says, or go on with it, measure, write the results, and clear what it no longer needs.

    Returns:
        The exit status: 0, or that of a run that was asked to stop.
    """
    with held(job_file.with_name("lock"), wait=True):
        if not job_file.is_file():
            return 0  # done and cleared by the process that had the lock before
        job = json.loads(job_file.read_text(encoding="utf-8"))
        if left := [cell for cell in job["cells"] if not Path(cell["result"]).is_file()]:
            torch.set_num_threads(job["threads"])
            keep_freed_memory()
            if not _train_and_measure(job, left, job_file.parent / RUN_FOLDER):
                return INTERRUPTED
        if not job["keep"]:
            shutil.rmtree(job_file.parent)
    return 0


def _train_and_measure(job: dict[str, Any], cells: list[dict[str, Any]], run: Path) -> bool:
    """Write the result of each cell; False if the training was asked to stop."""
    recipe = Recipe.model_validate(job["recipe"])
    if _holds_another(recipe, run):
        shutil.rmtree(run)
    was_started, began = (run / LAST_FILE).is_file(), _seconds()
    if job["trained"]:
        train(recipe, run, resume=True)
        if not _is_finished(recipe, run):
            return False
        encoder = Encoder.from_pretrained(run / ENCODER_FOLDER)
    else:
        encoder = untrained_encoder(recipe)
    trained = _seconds()
    for cell in cells:
        since = _seconds()
        measured = read_manifest(cell["recipe"]["data"]["manifest"]).split(cell["split"])
        table = embed_manifest(encoder, measured, n_workers=recipe.data.n_workers)
        result = evaluate_table(table, metrics=cell["metrics"])
        about = {key: value for key, value in cell.items() if key not in ("metrics", "result")} | {
            **{name: round(trained[name] - began[name] + _seconds()[name] - since[name], 1) for name in began},
            "was_resumed": was_started,
            "version": __version__,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        Outcome(result, about).write(Path(cell["result"]))
    return True


def _seconds() -> dict[str, float]:
    """The time, and the processor's time of this process and of its workers."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": time.monotonic(), "cpu_seconds": time.process_time() + workers.ru_utime + workers.ru_stime}


def _holds_another(recipe: Recipe, run: Path) -> bool:
    """Was the run there begun with another manifest's path, or by a version that knew other options?"""
    stored = run / RECIPE_FILE
    return run.is_dir() and not (
        stored.is_file() and json.loads(stored.read_text()) == json.loads(recipe.model_dump_json())
    )


def _is_finished(recipe: Recipe, run: Path) -> bool:
    """Did training come to its end, and not to a request to stop?"""
    position = load_checkpoint(run / LAST_FILE)[0]
    patience = recipe.validation.patience
    return position.epoch >= recipe.schedule.epochs or (patience is not None and position.n_worse >= patience)


if __name__ == "__main__":
    try:
        sys.exit(run_job(Path(sys.argv[1])))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
