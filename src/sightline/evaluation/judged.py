"""What is relevant to whom where a table or a function says it, and what users give as tables of numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.evaluation.statistics import Counts

MOST_LEVELS = 127
Levels = NDArray[np.int8]
Judgements = ArrayLike | Tensor | Callable[[Counts], ArrayLike | Tensor]


def shared_sets(
    sets: Tensor | NDArray[np.generic], item_sets: Tensor | NDArray[np.generic], n_queries: int, n_items: int
) -> Callable[[Counts], NDArray[np.float32]]:
    """How many labels each query shares with each item."""
    sides = []
    for name, table, n in (("labels", sets, n_queries), ("gallery_labels", item_sets, n_items)):
        if table.dtype not in (bool, torch.bool) or tuple(table.shape) != (n, sets.shape[1]):
            found = f"{table.dtype} {tuple(table.shape)}"
            raise InputError(f"{name}: ({n}, {sets.shape[1]}) bool is needed, found {found}")
        sides.append(as_numpy(table).astype(np.float32))
    return lambda rows: np.minimum(sides[0][rows] @ sides[1].T, MOST_LEVELS).astype(np.int8)


def judged_levels(
    judgements: Judgements, n_queries: int, n_items: int
) -> tuple[Callable[[Counts], Levels], tuple[float, ...], bool]:
    """What gives the levels of some queries, the worth of each level, and whether that is the level itself."""
    if callable(judgements):
        source = judgements
    else:
        table = as_table(judgements, "judgements")
        if tuple(table.shape) != (n_queries, n_items):
            raise InputError(f"judgements: ({n_queries}, {n_items}) is needed, found {tuple(table.shape)}")
        source = table.__getitem__
    known: set[float] = set()
    are_levels = True
    for first in range(0, n_queries, 128):  # one pass for the values that there are
        rows = _judged_rows(source, np.arange(first, min(first + 128, n_queries)), n_items)
        known.update(np.unique(rows[rows > 0]).tolist())
        are_levels &= rows.dtype.kind in "biu"
        if len(known) > MOST_LEVELS:
            raise InputError(f"judgements: more than {MOST_LEVELS} different values above 0")
    if are_levels:
        known = set(range(1, int(max(known, default=1)) + 1))
        if len(known) > MOST_LEVELS:
            raise InputError(f"judgements: levels up to {MOST_LEVELS} are possible, found {len(known)}")
    values = np.array(sorted(known))

    def levels(rows: Counts) -> Levels:
        found = _judged_rows(source, rows, n_items)
        if are_levels:
            return (found if found.dtype.kind in "bu" else np.maximum(found, -1)).astype(np.int8)
        return np.where(found < 0, -1, np.searchsorted(values, found, side="right")).astype(np.int8)

    return levels, tuple(values.tolist()) or (1.0,), are_levels


def _judged_rows(source: Callable[[Counts], ArrayLike | Tensor], rows: Counts, n_items: int) -> NDArray[Any]:
    found: NDArray[Any] = as_numpy(as_table(source(rows), "judgements"))
    if found.shape != (len(rows), n_items):
        raise InputError(f"judgements: ({len(rows)}, {n_items}) is needed for {len(rows)} queries, found {found.shape}")
    if not (found < np.inf).all():
        raise InputError(f"judgements: NaN or infinity in the rows of queries {rows[0]} to {rows[-1]}")
    return found


def as_numpy(table: Tensor | NDArray[np.generic]) -> NDArray[np.generic]:
    """An array, wherever it was."""
    return table.detach().cpu().numpy() if isinstance(table, Tensor) else table


def as_table(values: ArrayLike | Tensor | None, name: str) -> Tensor | NDArray[np.generic]:
    """What the user gave as a tensor or an array of numbers."""
    if isinstance(values, Tensor):
        return values
    try:
        table = np.asanyarray(values)
    except ValueError as error:
        raise InputError(f"{name}: not a table of numbers: {error}") from error
    if table.dtype.kind not in "biuf":
        raise InputError(f"{name}: not a table of numbers: {table.dtype}")
    return table
