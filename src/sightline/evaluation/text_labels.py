"""Labels that are text, numbered so that metrics can compare them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.errors import InputError
from sightline.evaluation.statistics import Counts

NEVER = -1  # the label of an item that is relevant to nothing
Labels = ArrayLike | Tensor | None
Texts = NDArray[np.object_]


def number_text(labels: Labels, gallery_labels: Labels = None, name: str = "labels") -> tuple[Labels, Labels, Texts | None]:
    """Both sides as whole numbers, the same text on one level having the same number; numbers stay as they are.

    None, "" and NaN are no label: they become -1.

    Args:
        labels: (N,) or (N, L) text, or anything else.
        gallery_labels: like ``labels``, or None.
        name: what the caller's user knows them by.

    Returns:
        Both sides, and (N, L) the text of ``labels``; None where they are not text.

    Example:
        >>> number_text(["robin", "owl", None], ["owl"])[:2]
        (array([[ 1],
               [ 0],
               [-1]]), array([[0]]))
    """
    given = {title: side for title, side in ((name, labels), (f"gallery_{name}", gallery_labels)) if side is not None}
    texts = {title: _texts(side, title) for title, side in given.items()}
    if all(table is None for table in texts.values()):
        return labels, gallery_labels, None
    tables = [table for table in texts.values() if table is not None]
    if len(tables) < len(given):
        raise InputError(f"{name} and gallery_{name} must both be text or both be whole numbers")
    if len({table.shape[1] for table in tables}) > 1:
        raise InputError(
            f"{' and '.join(given)} must have as many levels, got {tables[0].shape[1]} and {tables[1].shape[1]}"
        )
    together = np.concatenate(tables)
    numbers = np.full(together.shape, NEVER, np.int64)
    for level, column in enumerate(together.T):
        known = column != ""
        numbers[known, level] = np.unique(column[known].astype(str), return_inverse=True)[1]
    first = numbers[: len(tables[0])]
    return first, None if gallery_labels is None else numbers[len(tables[0]) :], tables[0]


def class_names(classes: Counts, numbers: Counts, texts: Texts | None) -> NDArray[np.generic]:
    """(N,) the text of each class where labels are text: the finest, or the path where that has several parents."""
    if texts is None:
        return classes
    is_finest = np.array_equal(classes, numbers[:, 0])
    return np.array([row[0] if is_finest else " < ".join(row) for row in texts], str)


def _texts(values: ArrayLike | Tensor, name: str) -> Texts | None:
    """(N, L) text, "" where there is no label; None where the values are no text."""
    if isinstance(values, Tensor):
        return None
    try:
        table = np.asanyarray(values)
    except ValueError as error:
        raise InputError(f"{name} must be a table: {error}") from error
    if table.dtype.kind in "biufc":
        return None
    cells = [_text(value) for value in table.astype(object).flat]
    if table.ndim not in (1, 2) or None in cells:
        found = sorted({type(value).__name__ for value in table.astype(object).flat})
        raise InputError(f"{name} must be (N,) or (N, L) text or whole numbers, got {table.shape} of {', '.join(found)}")
    return np.array(cells, object).reshape(len(table), -1)


def _text(value: object) -> str | None:
    """A label as text, "" for no label; None for what is no label at all."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
