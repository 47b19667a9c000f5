"""Save and resume exactly.

Random choices are functions of (seed, step) and learning rates of the position, so both are in a checkpoint by its
position; the rest is the state of encoder, loss and optimizer.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sightline.errors import InputError
from sightline.files import replaced

FORMAT = 1


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


def save_checkpoint(file: Path, position: Position, state: dict[str, Any]) -> None:
    """Write the position and the state to one file, which is the new one complete or the old one."""
    with replaced(file) as scratch:
        torch.save({"format": FORMAT, "position": asdict(position), **state}, scratch)


def load_checkpoint(file: Path) -> tuple[Position, dict[str, Any]]:
    """What :func:`save_checkpoint` wrote; tensors on the CPU, nothing executed."""
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{file}: not a readable checkpoint: {error.strerror}") from error
    except Exception as error:  # a foreign file can make the unpickler raise anything
        raise InputError(f"{file}: not a readable checkpoint: it was cut short, or something else wrote it") from error
    found = stored.pop("format", None) if isinstance(stored, dict) else None
    if found != FORMAT:
        raise InputError(f"{file}: a checkpoint of format {found!r}; this version of Sightline reads {FORMAT}")
    return Position(**stored.pop("position")), stored
