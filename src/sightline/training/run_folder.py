"""What a run leaves on disk: the names of its files, its checkpoints and what it ran on.

Random choices are functions of (seed, step) and learning rates of the position, so both are in a checkpoint by its
position; the rest is the state of encoder, loss and optimizer. A checksum of all of it is part of the file: a flipped bit
in a weight would otherwise be trained on.
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
# Recipe keys that a resume may change: more epochs or patience go on with a finished run, the others change no number.
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
WITHOUT_CHECKSUM = 1  # the format of checkpoints that were written before there was one


class RunFolder:
    """The files of a run by name.

    Attributes:
        path: the folder.
        recipe_file: every value, defaults included.
        images_file: which images, for a resume to find the same.
        environment_file: what the run began on.
        resumes_file: what was different later.
        log_file: numbers by step.
        last_checkpoint: what a resume reads.
        encoder: the best so far by the recipe's metric, or the last where nothing validates.
        tensorboard: where that tracker writes.
        start: the encoder before its first step, where the end of the run mixes it with the trained one.
        trackers_file: what identifies the run to other trackers.
        lock_file: held by the process that trains.

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
        """The checkpoint that is kept for good at the end of an epoch, counted from 1."""
        return self.path / f"epoch-{epoch:03}.pt"

    def read_recipe(self) -> Recipe:
        """The recipe of the run; refused where the folder is not that of a run that has an encoder."""
        if not self.recipe_file.is_file() or not self.encoder.is_dir():
            there = names(sorted(path.name for path in self.path.iterdir())[:10]) or "nothing"
            needed = names([self.recipe_file.name, self.encoder.name])
            raise InputError(f"{self.path}: not the folder of a run that has an encoder: must hold {needed}, found {there}")
        try:
            return Recipe.model_validate(read_json_object(self.recipe_file, self.path))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.recipe_file}: not a recipe: {str(error).splitlines()[0]}") from error

    def clear_unless(self, recipe: Recipe) -> None:
        """Delete the folder if it is there and is not that of a run of this very recipe."""
        is_same = self.recipe_file.is_file() and read_json_object(self.recipe_file) == json.loads(recipe.model_dump_json())
        if self.path.is_dir() and not is_same:
            shutil.rmtree(self.path)

    def check(self, recipe: Recipe, resume: bool) -> None:
        """Refuse a folder that is neither new nor, with ``resume``, that of a run of the same recipe."""
        if not self.path.exists():
            return
        if self.path.is_dir():
            inside = sorted(self.path.iterdir())
            if links := [path.name for path in inside if path.is_symlink()]:
                raise InputError(f"{self.path}: a run folder has no links, found {names(links)}; they are not followed")
            if all(path == self.images_file or path.name.startswith(".") for path in inside):
                return  # empty, or of a run that was killed before its recipe was written
        if not self.recipe_file.is_file():
            raise InputError(f"{self.path}: exists and is not a run folder; it is left as it is")
        if not resume:
            raise InputError(f"{self.path}: holds a run already; give --resume to go on with it, or another folder")
        stored, asked = read_json_object(self.recipe_file, self.path), json.loads(recipe.model_dump_json())
        epochs = _part(stored, "schedule").get("epochs")
        if isinstance(epochs, int) and (asked_for := recipe.schedule.epochs) < epochs:
            raise InputError(f"{self.path}: schedule.epochs must be at least {epochs} to go on with it, got {asked_for}")
        for key in MAY_CHANGE:
            section, _, name = key.rpartition(".")
            _part(asked, section)[name] = _part(stored, section).get(name)
        if changed := differences(stored, asked):
            raise InputError(
                f"{self.path}: its run has another recipe: {'; '.join(changed)}; only {names(MAY_CHANGE)} may change"
            )

    def check_images(self, images: dict[str, Any]) -> None:
        """Refuse to go on with other images: what was trained on before might be validated with now."""
        if not (self.recipe_file.is_file() and self.images_file.is_file()):
            return
        stored = read_json_object(self.images_file, self.path)
        # Unreadable files that were skipped then may be gone by now.
        if changed := differences(stored | {"skipped": images.get("skipped")}, images):
            raise InputError(f"{self.path}: its run has other images: {'; '.join(changed)}")

    @contextmanager
    def begin(self, recipe: Recipe, images: dict[str, Any], resume: bool) -> Iterator[None]:
        """A block in which no other process trains in this folder, which says which run this is; refused where one does."""
        with locked(self.lock_file, wait=False) as is_alone:
            if not is_alone:
                raise InputError(f"{self.path}: another process is training in this folder")
            self.check(recipe, resume)  # another process may have been faster
            write_text(self.images_file, json.dumps(images, indent=2) + "\n")
            write_text(self.recipe_file, recipe.model_dump_json(indent=2) + "\n")  # last: with it the folder is a run's
            for stale in self.path.glob(".*.*"):  # of a run that was killed while it wrote a file
                if stale.is_file():
                    stale.unlink()
            yield

    def record_environment(self, here: dict[str, Any], step: int) -> list[str]:
        """Write what the run runs on; where that is written already it is left as it is.

        Then what differs is added to ``resumes.log``, with the step from which on it holds. The command does not count:
        that of a run that goes on is always another, and a recipe that is another is refused.

        Returns:
            What differs, a sentence each.
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
    """How far a run is.

    Attributes:
        epoch: the epoch under way, from 0.
        batch: its next batch, from 0.
        step: optimizer steps made since the start.
        best: the best value of the deciding metric so far; None before the first validation.
        n_worse: validations since that one.
    """

    epoch: Count = 0
    batch: Count = 0
    step: Count = 0
    best: float | None = None
    n_worse: Count = 0


def save_checkpoint(file: Path, position: Position, state: dict[str, Any]) -> None:
    """Write the position and the state to one file, which is the new one complete or the old one."""
    stored = {"position": asdict(position), **state}
    # A stream, not a path: of a path torch does not say why it cannot be written.
    with replaced(file) as scratch, scratch.open("wb") as stream:
        torch.save({"format": FORMAT, "checksum": _checksum(stored), **stored}, stream)


def load_checkpoint(file: Path) -> tuple[Position, dict[str, Any]]:
    """What :func:`save_checkpoint` wrote, checked by its checksum; tensors on the CPU, nothing executed."""
    regular_file(file, file.parent)
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{file}: not a readable checkpoint: {error.strerror}") from error
    except Exception as error:  # a foreign file can make the unpickler raise anything
        raise InputError(f"{file}: not a readable checkpoint: it was cut short, or something else wrote it") from error
    found = stored.pop("format", None) if isinstance(stored, dict) else None
    if found not in (FORMAT, WITHOUT_CHECKSUM):
        raise InputError(f"{file}: a checkpoint of format {found!r}; this version of Sightline reads {FORMAT}")
    if found == FORMAT and stored.pop("checksum", None) != _checksum(stored):
        raise InputError(
            f"{file}: the checkpoint is damaged: its checksum is wrong; go on from another one, or start again"
        )
    try:
        return Position(**stored.pop("position")), stored
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: not a readable checkpoint: {error}") from error


@contextmanager
def naming_misfits(file: Path) -> Iterator[None]:
    """Errors of modules and optimizers that are given what a checkpoint holds, as one that names the checkpoint."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(f"{file}: does not fit the run: {reason[0] if reason else type(error).__name__}") from error


def _checksum(state: dict[str, Any]) -> str:
    """A hash of nested dictionaries and lists of tensors and plain values, in their order."""
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

    ``git`` is absent where the current directory is not in a repository.
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
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
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
