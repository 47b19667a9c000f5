"""Choose learning rate, images per class, adaptation and loss on validation classes, within a time budget.

Successive halving: the given recipe and single changes of it in short runs; then, with more time, the best of them and all
that helped together; finally the best one against the given recipe. Each trial has a schedule of its own length, so that
the learning rate reaches its final value in each.
"""

import csv
import io
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.files import locked, write_text
from sightline.models.card import read_card
from sightline.training.prepare import with_start
from sightline.training.recipe import Recipe, as_recipe, override_recipe, recipe_as_toml
from sightline.training.run import train
from sightline.training.run_folder import RunFolder, load_checkpoint

RATES = (3.0, 0.3)  # factors of the recipe's learning rate
LOSSES = (  # in addition to the recipe's own
    ("loss.name=roadmap", "loss.decomposability=proxy", "loss.proxies=means", "loss.reference=train"),
    ("loss.name=sup_ap",),
    ("loss.name=roadmap", "loss.decomposability=calibration"),
)
ADAPTATIONS = ("full", "upper", "frozen")
PER_CLASS = (2, 8, 4)
RUNGS = (10, 3, 2)  # trials per rung; the remaining time is shared evenly among trials and later rungs
LONGEST = 2  # at most this many times the recipe's epochs


@dataclass(frozen=True)
class Trial:
    """One run of the search; a line of ``trials.csv``.

    Attributes:
        rung: from 0.
        changes: overrides of the recipe; none for the given recipe.
        epochs: number of epochs.
        seconds: duration.
        value: the recipe's metric on the validation classes; None if the run failed.
        fault: the error of a failed run.
    """

    rung: int
    changes: tuple[str, ...]
    epochs: int
    seconds: float
    value: float | None
    fault: str = ""


def tune(
    recipe: Recipe | str | Path,
    out: Path | str,
    minutes: float,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    trust: bool = False,
) -> Path:
    """Search for better settings than the recipe's, and train with them; never worse on the validation classes.

    Writes ``trials.csv`` (every trial), ``recipe.toml`` (what was chosen) and ``best`` (the run folder of the best trial).
    SIGTERM raises KeyboardInterrupt when the current trial has saved its checkpoint; ``resume`` continues that trial.

    Args:
        recipe: the recipe to improve, its file or its name; the recipe itself is the first trial.
        out: folder; must be new unless ``resume`` is set.
        minutes: time budget; the current trial finishes first.
        resume: continue a stopped search; the time of its trials counts towards the budget.
        say: called with a line for each trial and one for the result.
        trust: see :func:`~sightline.training.run.train`.

    Returns:
        The folder of the best run.
    """
    recipe, out = with_start(as_recipe(recipe)), Path(out)
    if out.exists() and not resume:
        raise InputError(f"{out}: already exists; continue its search with --resume, or choose another folder with --out")
    with locked(out / ".lock", wait=False) as is_alone:
        if not is_alone:
            raise InputError(f"{out}: another process is searching in this folder; wait for it, or choose another folder")
        search = _Search(recipe, out, 60 * minutes, say, trust)
        for rung in range(len(RUNGS)):
            search.run_rung(rung)
        return search.finish()


class _Search:
    """The trials so far."""

    def __init__(self, recipe: Recipe, out: Path, seconds: float, say: Callable[[str], None], trust: bool) -> None:
        self.recipe, self.out, self.seconds, self.say, self.trust = recipe, out, seconds, say, trust
        self.file = out / "trials.csv"
        self.trials = _read_trials(self.file) if self.file.is_file() else []
        self.began = time.monotonic() - sum(trial.seconds for trial in self.trials)

    def run_rung(self, rung: int) -> None:
        """Run the trials of a rung that are not finished; all have the same time budget."""
        candidates = self._candidates(rung)
        done = {trial.changes for trial in self.trials if trial.rung == rung}
        for place, changes in enumerate(candidates):
            if changes in done:
                continue
            left = self.seconds - (time.monotonic() - self.began)
            if rung and left <= 0 and self._best(rung - 1):
                return
            shares = (len(candidates) - place) * (len(RUNGS) - rung)
            self._run(rung, changes, left / shares)

    def _candidates(self, rung: int) -> list[tuple[str, ...]]:
        """The recipe with single changes; in later rungs with the best of the previous rung.

        In the second rung, all changes that helped by themselves also stand together.
        """
        if rung == 0:
            return [(), *(change for kind in _single_changes(self.recipe) for change in kind)][: RUNGS[0]]
        best = [*([self._combination()] if rung == 1 else []), *(trial.changes for trial in self._best(rung - 1))]
        best = [*dict.fromkeys(best)]
        return [*dict.fromkeys([*best[: RUNGS[rung] - (() not in best[: RUNGS[rung]])], ()])]

    def _combination(self) -> tuple[str, ...]:
        """Of each kind of change the best one that beat the recipe in the first rung."""
        places = {trial.changes: place for place, trial in enumerate(self._best(0))}
        found = [min(kind, key=lambda change: places.get(change, len(places))) for kind in _single_changes(self.recipe)]
        return tuple(key for change in found if places.get(change, len(places)) < places[()] for key in change)

    def _best(self, rung: int) -> list[Trial]:
        """The rung's trials that did not fail, best first."""
        finished = [trial for trial in self.trials if trial.rung == rung and trial.value is not None]
        is_descending = self.recipe.validation.mode == "max"
        return sorted(finished, key=lambda trial: trial.value or 0.0, reverse=is_descending)

    def _run(self, rung: int, changes: tuple[str, ...], seconds: float) -> None:
        folder, since, epochs, value, fault = self._folder(rung, changes), time.monotonic(), 1, None, ""
        try:
            epochs = self._n_epochs(changes, seconds)
            since = time.monotonic()
            value = self._value(self._with_epochs(changes, epochs), folder)
        except InputError as error:
            fault = str(error).splitlines()[0]
            if not changes:
                raise
        self.trials.append(Trial(rung, changes, epochs, round(time.monotonic() - since, 3), value, fault))
        _write_trials(self.file, self.trials)
        self.say(self._describe(self.trials[-1]))

    def _n_epochs(self, changes: tuple[str, ...], seconds: float) -> int:
        """As many epochs as fit, by the trials with the same part of the network learning."""
        # Failed trials are left out: they took almost no time and do not show the duration of an epoch.
        ran = [one for one in self.trials if one.value is not None]
        pace = [one.seconds / one.epochs for one in ran if self._adaptation(one.changes) == self._adaptation(changes)]
        if not pace and self._adaptation(changes) not in ("full", "lora"):
            one, folder = self._with_epochs(changes, 1), RunFolder(self.out / "trials/pace")
            for _ in range(2):  # the first one fills the cache of features
                since = time.monotonic()
                shutil.rmtree(folder.path, ignore_errors=True)
                self._value(one, folder)
                seconds -= time.monotonic() - since
            pace = [time.monotonic() - since]
        return max(1, min(int(seconds / min(pace)), LONGEST * self.recipe.schedule.epochs)) if pace else 1

    def _with_epochs(self, changes: tuple[str, ...], epochs: int) -> Recipe:
        recipe = override_recipe(self.recipe, changes)
        warmup = min(recipe.schedule.warmup_epochs, epochs - 1)
        fixed = ["data.check_images=false", "validation.interpolate=true", "loggers=[]"]
        return override_recipe(recipe, [f"schedule.epochs={epochs}", f"schedule.warmup_epochs={warmup}", *fixed])

    def _value(self, recipe: Recipe, folder: RunFolder) -> float | None:
        """Train, or go on, and measure."""
        folder.clear_unless(recipe)  # left by a stopped search with another number of epochs
        encoder = train(recipe, folder.path, resume=True, trust=self.trust)
        if not load_checkpoint(folder.last_checkpoint)[0].is_over(recipe):
            raise KeyboardInterrupt  # SIGTERM stopped the trial: the search ends with it, as by Ctrl-C
        card = read_card(encoder)
        return card.evaluation.metrics[recipe.validation.metric].mean if card and card.evaluation else None

    def _adaptation(self, changes: tuple[str, ...]) -> str:
        return override_recipe(self.recipe, changes).model.adaptation

    def _folder(self, rung: int, changes: tuple[str, ...]) -> RunFolder:
        return RunFolder(self.out / "trials" / f"{rung}-{self._candidates(rung).index(changes)}")

    def _describe(self, trial: Trial) -> str:
        metric, what = self.recipe.validation.metric, " ".join(trial.changes) or "the given recipe"
        found = f"{metric} {100 * trial.value:.1f}" if trial.value is not None else f"failed: {trial.fault}"
        return f"rung {trial.rung}, {trial.epochs} epoch(s), {trial.seconds:.0f} s: {found} with {what}"

    def finish(self) -> Path:
        """Write the best trial of the last rung that has any."""
        last = max(trial.rung for trial in self.trials if trial.value is not None)
        chosen = self._best(last)[0]
        before = next((trial.value for trial in self._best(last) if not trial.changes), None)
        best = RunFolder(self.out / "best")
        shutil.rmtree(best.path, ignore_errors=True)
        shutil.copytree(self._folder(last, chosen.changes).path, best.path)
        write_text(self.out / "recipe.toml", recipe_as_toml(best.read_recipe()))
        beside = "" if before is None or not chosen.changes else f"; the given recipe has {100 * before:.1f}"
        self.say(f"chosen: {self._describe(chosen)}{beside}")
        return best.path


def _single_changes(recipe: Recipe) -> list[list[tuple[str, ...]]]:
    """The changes of each kind, the most promising kind first, without what the recipe has already."""
    adaptation, per_class = recipe.model.adaptation.split(":")[0], recipe.sampler.per_class
    return [
        [(f"optimizer.lr={factor * recipe.optimizer.lr:.2g}",) for factor in RATES],
        [*LOSSES],
        [(f"model.adaptation={one}",) for one in ADAPTATIONS if one != adaptation],
        [(f"sampler.per_class={one}",) for one in PER_CLASS if one != per_class],
    ]


def _write_trials(file: Path, trials: Sequence[Trial]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Trial)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(trial) | {"changes": " ".join(trial.changes)} for trial in trials)
    write_text(file, text.getvalue())


def _read_trials(file: Path) -> list[Trial]:
    def read(row: dict[str, Any]) -> Trial:
        value = float(row["value"]) if row["value"] else None
        changes = tuple(row["changes"].split())
        return Trial(int(row["rung"]), changes, int(row["epochs"]), float(row["seconds"]), value, row["fault"])

    try:
        with file.open(newline="", encoding="utf-8") as stream:
            return [read(row) for row in csv.DictReader(stream)]
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{file}: not a trials.csv of --tune: {error!r}; delete it to start the search again") from error
