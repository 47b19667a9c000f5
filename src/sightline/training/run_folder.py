"""The run folder: names of its files, checkpoints, and the environment of the run.

Random choices are functions of (seed, step) and learning rates of the position, so a checkpoint needs the position and the
state of encoder, loss and optimizer. Each checkpoint has a checksum: without it, a flipped bit in a weight would go
unnoticed.
"""

import hashlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from sightline import __version__
from sightline.errors import InputError, names
from sightline.files import locked, read_json_object, regular_file, replaced, write_text
from sightline.training.distributed import n_processes
from sightline.training.recipe import Recipe

FORMAT = 2
Count = Annotated[int, Field(strict=True, ge=0)]
# Recipe keys that may change on resume: more epochs or patience extend a finished run, the others change no result.
MAY_CHANGE = (
    "schedule.epochs",
    "validation.patience",
    "data.n_workers",
    "data.check_images",
    "checkpoint_every",
    "keep_every",
    "loggers",
    "strategy",
)
WITHOUT_CHECKSUM = 1  # the format of checkpoints written before checksums were added


class RunFolder:
    """The files of a run.

    Attributes:
        path: the folder.
        recipe_file: every value, defaults included.
        images_file: counts and a hash of the images, compared on resume.
        environment_file: versions, device and command at the start of the run.
        resumes_file: how the environment differed on resume.
        log_file: numbers by step.
        last_checkpoint: the checkpoint to resume from.
        encoder: the best encoder by the recipe's metric, or the last one without validation.
        tensorboard: TensorBoard's files.
        start: the encoder before training, saved for ``validation.interpolate``.
        trackers_file: ids of the run in other trackers.
        lock_file: locked by the process that trains.

    Example:
        >>> RunFolder("run").checkpoint_of(epoch=20).name
        'epoch-020.pt'
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.json"
        self.images_file = self.path / "images.json"
        self.environment_file = self.path / "environment.json"
        self.resumes_file = self.path / "resumes.log"
        self.log_file = self.path / "log.csv"
        self.last_checkpoint = self.path / "last.pt"
        self.encoder = self.path / "encoder"
        self.start = self.path / "start"
        self.tensorboard = self.path / "tensorboard"
        self.trackers_file = self.path / "loggers.json"
        self.lock_file = self.path / ".lock"

    def checkpoint_of(self, epoch: int) -> Path:
        """The checkpoint kept by ``keep_every`` at the end of an epoch, counted from 1."""
        return self.path / f"epoch-{epoch:03}.pt"

    def read_recipe(self) -> Recipe:
        """The recipe of the run; raises InputError if the folder is not that of a run with an encoder."""
        if not self.recipe_file.is_file() or not self.encoder.is_dir():
            there = names(sorted(path.name for path in self.path.iterdir())[:10]) or "nothing"
            needed = names([self.recipe_file.name, self.encoder.name])
            raise InputError(f"{self.path}: not a run folder with an encoder: must hold {needed}, found {there}")
        try:
            return Recipe.model_validate(read_json_object(self.recipe_file, self.path))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.recipe_file}: not a recipe: {str(error).splitlines()[0]}") from error

    def clear_unless(self, recipe: Recipe) -> None:
        """Delete the folder if it exists and holds anything but a run of exactly this recipe."""
        is_same = self.recipe_file.is_file() and read_json_object(self.recipe_file) == json.loads(recipe.model_dump_json())
        if self.path.is_dir() and not is_same:
            shutil.rmtree(self.path)

    def check(self, recipe: Recipe, resume: bool) -> None:
        """Raise InputError unless the folder is new or, with ``resume``, holds a run of the same recipe."""
        if not self.path.exists():
            return
        if self.path.is_dir():
            inside = sorted(self.path.iterdir())
            if links := [path.name for path in inside if path.is_symlink()]:
                raise InputError(
                    f"{self.path}: a run folder must not contain symbolic links, found {names(links)}; delete them"
                )
            if all(path == self.images_file or path.name.startswith(".") for path in inside):
                return  # empty, or left by a run that was killed before it wrote its recipe
        if not self.recipe_file.is_file():
            raise InputError(f"{self.path}: exists and is not a run folder; choose another folder with --out")
        if not resume:
            raise InputError(
                f"{self.path}: already holds a run; continue it with --resume, or choose another folder with --out"
            )
        stored, asked = read_json_object(self.recipe_file, self.path), json.loads(recipe.model_dump_json())
        epochs = _part(stored, "schedule").get("epochs")
        if isinstance(epochs, int) and (asked_for := recipe.schedule.epochs) < epochs:
            raise InputError(f"{self.path}: to resume, schedule.epochs must be at least {epochs}, got {asked_for}")
        for key in MAY_CHANGE:
            section, _, name = key.rpartition(".")
            _part(asked, section)[name] = _part(stored, section).get(name)
        if changed := differences(stored, asked):
            raise InputError(
                f"{self.path}: the recipe differs from that of the run: {'; '.join(changed)}; on resume only "
                f"{names(MAY_CHANGE)} may change"
            )

    def check_images(self, images: dict[str, Any]) -> None:
        """Raise InputError for other images than before: training images could now be validation images."""
        if not (self.recipe_file.is_file() and self.images_file.is_file()):
            return
        stored = read_json_object(self.images_file, self.path)
        # Unreadable files that were skipped may have been deleted since.
        if changed := differences(stored | {"skipped": images.get("skipped")}, images):
            raise InputError(
                f"{self.path}: the images changed since the run began: {'; '.join(changed)}; restore them, or start again"
            )

    @contextmanager
    def begin(self, recipe: Recipe, images: dict[str, Any], resume: bool) -> Iterator[None]:
        """Lock the folder for a block and write recipe and images; raises InputError if another process trains in it."""
        with locked(self.lock_file, wait=False) as is_alone:
            if not is_alone:
                raise InputError(
                    f"{self.path}: another process trains in this folder; wait for it, or choose another folder"
                )
            self.check(recipe, resume)  # again: another process may have written to it since
            write_text(self.images_file, json.dumps(images, indent=2) + "\n")
            write_text(self.recipe_file, recipe.model_dump_json(indent=2) + "\n")  # last: it makes the folder a run folder
            for stale in self.path.glob(".*.*"):  # left by a run that was killed while it wrote a file
                if stale.is_file():
                    stale.unlink()
            yield

    def record_environment(self, here: dict[str, Any], step: int) -> list[str]:
        """Write the environment at the start of a run; on resume, add what changed to ``resumes.log`` with the step.

        The command is not compared: it always differs on resume.

        Returns:
            A sentence for each difference.
        """
        if not self.environment_file.is_file():
            write_text(self.environment_file, json.dumps(here, indent=2) + "\n")
            return []
        stored = read_json_object(self.environment_file, self.path)
        changed = differences(stored, json.loads(json.dumps(here)) | {"command": stored.get("command")})
        if changed:
            with self.resumes_file.open("a", encoding="utf-8") as stream:
                stream.writelines(f"from step {step} on: {sentence}\n" for sentence in changed)
        return changed


@dataclass(frozen=True)
class Position:
    """How far a run has come.

    Attributes:
        epoch: the current epoch, from 0.
        batch: its next batch, from 0.
        step: optimizer steps since the start.
        best: the best value of the deciding metric so far; None before the first validation.
        n_worse: validations since that one.
    """

    epoch: Count = 0
    batch: Count = 0
    step: Count = 0
    best: float | None = None
    n_worse: Count = 0

    def is_over(self, recipe: Recipe) -> bool:
        """Are all epochs trained, or is the patience of early stopping used up?"""
        patience = recipe.validation.patience
        return self.epoch >= recipe.schedule.epochs or (patience is not None and self.n_worse >= patience)


def save_checkpoint(file: Path, position: Position, state: dict[str, Any]) -> None:
    """Write position and state to one file atomically."""
    stored = {"position": asdict(position), **state}
    # A stream, not a path: with a path, torch does not report why writing failed.
    with replaced(file) as scratch, scratch.open("wb") as stream:
        torch.save({"format": FORMAT, "checksum": _checksum(stored), **stored}, stream)


def load_checkpoint(file: Path) -> tuple[Position, dict[str, Any]]:
    """Read a checkpoint and verify its checksum; tensors on the CPU, no code is executed."""
    regular_file(file, file.parent)
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{file}: not a readable checkpoint: {error.strerror}") from error
    except Exception as error:  # a file of another program can make the unpickler raise anything
        raise InputError(
            f"{file}: not a readable checkpoint: truncated, or not written by Sightline; use another one, or start again"
        ) from error
    found = stored.pop("format", None) if isinstance(stored, dict) else None
    if found not in (FORMAT, WITHOUT_CHECKSUM):
        raise InputError(
            f"{file}: checkpoint format must be {FORMAT}, got {found!r}; resume with the version of Sightline that wrote it"
        )
    if found == FORMAT and stored.pop("checksum", None) != _checksum(stored):
        raise InputError(
            f"{file}: the checkpoint is damaged: its checksum is wrong; use another checkpoint, or start again"
        )
    try:
        return Position(**stored.pop("position")), stored
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: not a readable checkpoint: {error}") from error


@contextmanager
def naming_misfits(file: Path) -> Iterator[None]:
    """Turn errors of loading a checkpoint's state into an InputError that names the checkpoint."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(f"{file}: does not match the run: {reason[0] if reason else type(error).__name__}") from error


def _checksum(state: dict[str, Any]) -> str:
    """A hash of nested dictionaries and lists of tensors and plain values, in order."""
    digest = hashlib.sha256()
    for piece in _pieces(state):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        for key, entry in value.items():
            yield repr(key).encode()
            yield from _pieces(entry)
    elif isinstance(value, list | tuple):
        yield f"list {len(value)}".encode()
        for entry in value:
            yield from _pieces(entry)
    else:
        yield repr(value).encode()


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads, processes, command line, and the state of the current directory's git repository.

    ``git`` is missing if the current directory is not in a repository.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "sightline": __version__,
        **{package: version(package) for package in ("torch", "timm", "numba")},
        "platform": platform.platform(),
        "device": str(device) if device.type != "cuda" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "processes": n_processes(),
        "command": shlex.join(sys.argv),
    }
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    if commit is not None and changes is not None:
        found["git"] = {"commit": commit, "dirty": changes != ""}
    return found


def _git(*words: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "--no-optional-locks", *words], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
    return None


def _part(values: dict[str, Any], section: str) -> dict[str, Any]:
    """A section of a recipe's values; all of them for ""."""
    part = values.get(section, {}) if section else values
    return part if isinstance(part, dict) else {}


def differences(stored: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[str]:
    """Where two nested dictionaries differ.

    Example:
        >>> differences({"loss": {"name": "sup_ap"}, "seed": 0}, {"loss": {"name": "roadmap"}, "seed": 0})
        ["loss.name is 'sup_ap' there, 'roadmap' here"]
    """
    found = []
    for key in sorted(stored.keys() | here.keys()):
        there, now = stored.get(key), here.get(key)
        if isinstance(there, dict) and isinstance(now, dict):
            found += differences(there, now, f"{prefix}{key}.")
        elif there != now:
            found.append(f"{prefix}{key} is {there!r} there, {now!r} here")
    return found
