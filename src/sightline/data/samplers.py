"""Which items share a batch; seeded by run and epoch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError


@dataclass(frozen=True)
class ClassBalancedSampler:
    """Batches of ``per_class`` images from each of ``batch_size / per_class`` classes.

    Every epoch deals each class's images, shuffled, into groups of ``per_class``; a batch takes one group from each of its
    classes, drawn in proportion to the groups they have left. No image is seen twice in an epoch. It ends when too few
    classes have a group left; what remains is not used. Batches are a function of (seed, epoch) alone.

    Attributes:
        labels: (N,) class number of each item, contiguous from 0.
        batch_size: items in a batch, a multiple of ``per_class``.
        per_class: items of each class in a batch, at least 2 for a ranking loss to have positives.
        seed: the run's.

    Example:
        >>> sampler = ClassBalancedSampler(np.array([0, 0, 1, 1, 2, 2]), batch_size=4, per_class=2)
        >>> sampler.batches(epoch=0)
        [[0, 1, 5, 4]]
    """

    labels: NDArray[np.int64]
    batch_size: int
    per_class: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_class < 2 or self.batch_size < self.per_class or self.batch_size % self.per_class:
            raise InputError(
                f"sampler: batch_size is {self.batch_size} and per_class {self.per_class}; "
                "per_class of at least 2 must divide batch_size"
            )
        n_usable = int((np.bincount(self.labels) >= self.per_class).sum())
        if n_usable < self.batch_size // self.per_class:
            raise InputError(
                f"sampler: a batch of {self.batch_size} needs {self.batch_size // self.per_class} classes "
                f"of at least {self.per_class} images, there are {n_usable}; lower batch_size or per_class"
            )

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.labels))
        members = np.split(order[np.argsort(self.labels[order], kind="stable")], np.bincount(self.labels).cumsum()[:-1])
        left = np.array([len(images) // self.per_class for images in members])
        batches = []
        n_classes = self.batch_size // self.per_class
        while (left > 0).sum() >= n_classes:
            # Exponential keys divided by weights: the smallest are a weighted draw without replacement.
            keys = np.where(left > 0, rng.exponential(size=len(left)) / np.maximum(left, 1), np.inf)
            chosen = np.argpartition(keys, n_classes - 1)[:n_classes]
            left[chosen] -= 1
            groups = [members[c][left[c] * self.per_class : (left[c] + 1) * self.per_class] for c in np.sort(chosen)]
            batches.append(np.concatenate(groups).tolist())
        return batches


def small_classes(labels: NDArray[np.int64], per_class: int) -> NDArray[np.int64]:
    """The classes that cannot give ``per_class`` images.

    Example:
        >>> small_classes(np.array([0, 0, 0, 1, 2, 2]), per_class=2)
        array([1])
    """
    return np.flatnonzero(np.bincount(labels) < per_class)
