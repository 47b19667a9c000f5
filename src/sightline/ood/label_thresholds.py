"""Thresholds by label: conformal calibration within each group of queries that are nearest to the same label."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file, save_file

from sightline.errors import InputError, names
from sightline.files import check_seal, regular_file, sealed
from sightline.ood.classifier import class_means
from sightline.ood.scorer import conformal_threshold

FILE = "labels.safetensors"
MOST_NAMED = 10


@dataclass(frozen=True, eq=False)
class LabelThresholds:
    """A threshold for each label with enough held-out images, by the label whose mean vector is nearest.

    The nearest label depends on the query alone. So, for a query that is exchangeable with the held-out images: given that
    label, it is accepted with a probability of at least ``tpr``, and of less than ``tpr + 1 / (n + 1)`` for n held-out
    images of the label if no two energies are equal. Labels with fewer than ``tpr / (1 - tpr)`` held-out images (19 for
    0.95) have no such threshold; the common one, which applies to them, promises its share over all labels together.

    Attributes:
        level: the label level.
        names: of the labels.
        means: (C, D) unit vectors, the direction of each label's mean.
        thresholds: (C,) NaN for labels that the common threshold applies to.
        counts: (C,) held-out images that are nearest to the label.
    """

    level: int
    names: tuple[str, ...]
    means: NDArray[np.float32]
    thresholds: NDArray[np.float64]
    counts: NDArray[np.int64]

    def of(self, vectors: ArrayLike, common: float) -> NDArray[np.float64]:
        """(N,) the threshold of each of the (N, D) vectors."""
        found = self.thresholds[nearest_label(vectors, self.means)]
        return np.where(np.isnan(found), common, found)

    @property
    def without(self) -> list[str]:
        """Names of the labels that the common threshold applies to."""
        return [name for name, limit in zip(self.names, self.thresholds, strict=True) if math.isnan(limit)]

    def as_text(self) -> str:
        """How many labels have a threshold of their own, and which have none."""
        without = self.without
        text = (
            f"{len(self.names) - len(without)} of {len(self.names)} labels of level {self.level} have their own threshold"
        )
        if not without:
            return text
        more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        return f"{text}; too few held-out images for {names(without[:MOST_NAMED])}{more}: the common one applies"

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the numbers into an existing folder; what :meth:`read` must be given besides them."""
        arrays = {"means": self.means, "thresholds": self.thresholds, "counts": self.counts}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / FILE)
        return sealed({"level": self.level, "names": list(self.names)}, folder / FILE)

    @classmethod
    def read(cls, folder: Path, described: dict[str, Any]) -> "LabelThresholds":
        """What :meth:`write` wrote; raises ValueError, KeyError, TypeError or OSError if it is damaged."""
        file = regular_file(folder / FILE, folder)
        known = check_seal(described, folder, file)
        found = load_file(file)
        made = cls(
            int(known["level"]), tuple(map(str, known["names"])), *(found[k] for k in ("means", "thresholds", "counts"))
        )
        if not len(made.names) == len(made.means) == len(made.thresholds) == len(made.counts):
            raise ValueError(f"{file}: the numbers of names, means and thresholds differ")
        return made


def nearest_label(vectors: ArrayLike, means: NDArray[np.float32]) -> NDArray[np.int64]:
    """(N,) the place of the label whose unit mean has the largest product with each of the (N, D) vectors."""
    rows = np.asarray(vectors, np.float32)
    if rows.ndim != 2 or rows.shape[1] != means.shape[1]:
        raise InputError(f"vectors must be (N, {means.shape[1]}), got shape {rows.shape}")
    nearest: NDArray[np.int64] = (rows @ means.T).argmax(1)
    return nearest


def fit_label_thresholds(
    fitted: tuple[NDArray[np.float32], NDArray[np.int64]],
    held_out: tuple[NDArray[np.float32], NDArray[np.float64]],
    names: list[str],
    level: int,
    tpr: float,
) -> LabelThresholds:
    """Thresholds by label; see :class:`LabelThresholds`.

    Args:
        fitted: (N, D) vectors and (N,) labels from 0 of the fit set, which say what is nearest.
        held_out: (M, D) vectors and (M,) energies of images that neither means nor scorer were fitted on.
        names: of the labels.
        level: the label level.
        tpr: the share to accept of each label.

    Example:
        >>> vectors, labels = np.eye(2, dtype=np.float32), np.arange(2)
        >>> held_out = np.repeat(vectors, [9, 3], 0), np.arange(12.0)
        >>> fit_label_thresholds((vectors, labels), held_out, ["a", "b"], 0, 0.9).thresholds
        array([ 8., nan])
    """
    means = class_means(torch.from_numpy(fitted[0]), torch.from_numpy(fitted[1]))[0].numpy()
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    units = (means / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    groups = nearest_label(held_out[0], units)
    counts = np.bincount(groups, minlength=len(names))
    fewest = tpr / (1 - tpr) - 1e-9
    limits = [
        conformal_threshold(held_out[1][groups == label], tpr)[0] if count >= fewest else math.nan
        for label, count in enumerate(counts)
    ]
    return LabelThresholds(level, tuple(names), units, np.array(limits, np.float64), counts.astype(np.int64))
