"""Save and resume exactly.

Random choices are functions of (seed, step) and learning rates of the position, so both are in a checkpoint by its
position; the rest is the state of encoder, loss and optimizer. A checksum of all of it is part of the file: a flipped bit
in a weight would otherwise be trained on.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sightline.errors import InputError
from sightline.files import regular_file, replaced

FORMAT = 2
WITHOUT_CHECKSUM = 1  # the format of checkpoints that were written before there was one


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

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None
    n_worse: int = 0

    def __post_init__(self) -> None:
        counts = (self.epoch, self.batch, self.step, self.n_worse)
        if any(type(count) is not int or count < 0 for count in counts) or not isinstance(self.best, float | int | None):
            raise InputError(f"a run cannot be at {self}: counts from 0 and a number, or None, are expected")


def save_checkpoint(file: Path, position: Position, state: dict[str, Any]) -> None:
    """Write the position and the state to one file, which is the new one complete or the old one."""
    stored = {"position": asdict(position), **state}
    # A stream, not a path: of a path torch does not say why it cannot be written.
    with replaced(file) as scratch, scratch.open("wb") as stream:
        torch.save({"format": FORMAT, "checksum": _checksum(stored), **stored}, stream)


def load_checkpoint(file: Path) -> tuple[Position, dict[str, Any]]:
    """What :func:`save_checkpoint` wrote, checked by its checksum; tensors on the CPU, nothing executed."""
    try:
        stored = torch.load(regular_file(file, file.parent), map_location="cpu", weights_only=True)
    except InputError:
        raise
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
    except (KeyError, TypeError, InputError) as error:
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

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            digest.update(f"dict {len(value)}".encode())
            for key, entry in value.items():
                digest.update(repr(key).encode())
                add(entry)
        elif isinstance(value, list | tuple):
            digest.update(f"list {len(value)}".encode())
            for entry in value:
                add(entry)
        else:
            digest.update(repr(value).encode())

    add(state)
    return digest.hexdigest()
