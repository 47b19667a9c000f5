"""Which items share a batch; seeded by run and epoch.

Every batch is the whole batch of a step: several processes each take their part of it. Nothing is kept between epochs.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations, pairwise
from math import comb
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from sightline.errors import InputError, choose, names

MOST_BATCHES = 100_000  # an epoch that is listed; beyond, sets of super-labels are drawn
CLASS_WEIGHTS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "size": lambda n_groups: n_groups,
    "sqrt": np.sqrt,
    "uniform": np.ones_like,
}


class SamplerSection(BaseModel):
    """Which images share a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["class_balanced", "hierarchical", "graded", "random"] = "class_balanced"  # which images share a batch
    batch_size: int = Field(default=128, ge=2)  # images in a list, of all processes together
    per_class: int = Field(default=4, ge=2)  # images of each class in a batch
    skip_small_classes: bool = False  # leave out classes with fewer than per_class images; otherwise they are refused
    level: int = Field(default=0, ge=0)  # label column that is the class; 0 is the finest
    max_per_class: int | None = Field(default=None, ge=1)  # images of a class that an epoch may use
    n_batches: int | None = Field(default=None, ge=1)  # in an epoch; classes are then drawn with replacement
    class_weights: Literal["size", "sqrt", "uniform"] = "size"  # how often a class is drawn
    super_level: int | None = Field(default=None, ge=1)  # of hierarchical: column of the super-label; none: the coarsest
    super_labels_per_batch: int = Field(default=2, ge=2)  # of hierarchical
    batches_per_pair: int = Field(default=10, ge=1)  # of hierarchical: for each pair, or larger set, of super-labels


class Sampler(Protocol):
    """What training asks of a sampler."""

    @property
    def batch_size(self) -> int:
        """Items in a full batch, of all processes together."""

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds; a function of the seed and the epoch alone."""


@dataclass(frozen=True)
class ClassBalancedSampler:
    """Batches of ``per_class`` images from each of ``batch_size / per_class`` classes.

    An epoch deals each class's images into groups of ``per_class``; a batch takes one group from each of its classes, drawn
    in proportion to the groups they have left. No image is seen twice. The epoch ends when too few classes have a group
    left; what remains is not used. It costs about as much as sorting the images, however many classes there are.

    With ``n_batches``, or weights other than ``size``, each batch draws its classes from all of them, and an image may come
    again once its class is used up; without ``n_batches`` there are then as many batches as the groups would fill.

    Attributes:
        labels: (N,) or (N, L) class numbers of each item, finest level first.
        batch_size: items in a batch, a multiple of ``per_class``.
        per_class: items of each class in a batch, at least 2 for a ranking loss to have positives.
        seed: the run's.
        level: the column of ``labels`` that is the class.
        max_per_class: images of a class that an epoch uses, drawn afresh in each; all if none.
        n_batches: batches in an epoch.
        class_weights: a class is drawn in proportion to its groups, to their root, or as often as any other.

    Example:
        >>> sampler = ClassBalancedSampler(np.array([0, 0, 1, 1, 2, 2]), batch_size=4, per_class=2)
        >>> sampler.batches(epoch=0)
        [[1, 0, 3, 2]]
    """

    labels: NDArray[np.int64]
    batch_size: int
    per_class: int = 4
    seed: int = 0
    level: int = 0
    max_per_class: int | None = None
    n_batches: int | None = None
    class_weights: str = "size"

    def __post_init__(self) -> None:
        choose(CLASS_WEIGHTS, self.class_weights, "sampler.class_weights")
        _check_classes(self._n_groups, self.batch_size, self.per_class, self.max_per_class)

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        rng = np.random.default_rng([self.seed, epoch])
        n_classes = self.batch_size // self.per_class
        if self.n_batches is None and self.class_weights == "size":
            drawn = drawn_until_used_up(self._n_groups, n_classes, rng)
        else:
            n_batches = self.n_batches or int(self._n_groups.sum()) // n_classes
            drawn = drawn_afresh(weights_of(self._n_groups, self.class_weights), n_classes, n_batches, rng)
        return dealt_images(column_of(self.labels, self.level), drawn, self.per_class, self.max_per_class, rng)

    @cached_property
    def _n_groups(self) -> NDArray[np.int64]:
        return group_counts(column_of(self.labels, self.level), self.per_class, self.max_per_class)


@dataclass(frozen=True)
class HierarchicalSampler:
    """Batches of few super-labels, so that their classes are hard to tell apart.

    For every set of ``super_labels_per_batch`` super-labels there are ``batches_per_pair`` batches, in random order; each
    takes equally many images from each super-label, ``per_class`` of each class. A class with fewer images repeats them. A
    super-label with too few classes gives all of them, and its batches are shorter; one warning says so.

    Attributes:
        labels: (N, L) class numbers of each item, finest level first, at least two levels.
        batch_size: items in a batch, a multiple of ``per_class * super_labels_per_batch``.
        per_class: items of each class in a batch.
        seed: the run's.
        level: the column of ``labels`` that is the class.
        super_level: the column of ``labels`` that is the super-label; the last if none.
        super_labels_per_batch: super-labels that meet in a batch.
        batches_per_pair: batches for each set of super-labels.
        n_batches: batches in an epoch, each of a random set of super-labels, in place of all the sets.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 2], [3, 2]])
        >>> HierarchicalSampler(labels, batch_size=4, per_class=2, batches_per_pair=1).batches(epoch=0)
        [[4, 7, 6, 5], [1, 4, 0, 5], [7, 6, 0, 1]]
    """

    labels: NDArray[np.int64]
    batch_size: int
    per_class: int = 4
    seed: int = 0
    level: int = 0
    super_level: int | None = None
    super_labels_per_batch: int = 2
    batches_per_pair: int = 10
    n_batches: int | None = None

    def __post_init__(self) -> None:
        super_level = depth(self.labels) - 1 if self.super_level is None else self.super_level
        column_of(self.labels, super_level)
        if super_level <= self.level:
            raise InputError(
                f"sampler: the super-label is level {super_level} and the class level {self.level} of "
                f"{depth(self.labels)}; a coarser level than the class's is needed"
            )
        _check_sizes(self.batch_size, self.per_class, self.super_labels_per_batch)
        n_sets = comb(len(self._classes), self.super_labels_per_batch)
        if not n_sets:
            raise InputError(
                f"sampler: super_labels_per_batch is {self.super_labels_per_batch}, at level {super_level} there are "
                f"{len(self._classes)} super-labels"
            )
        if self.n_batches is None and n_sets * self.batches_per_pair > MOST_BATCHES:
            raise InputError(
                f"sampler: {len(self._classes)} super-labels make {n_sets} sets of {self.super_labels_per_batch}, too many "
                "for an epoch; set n_batches to draw some of them"
            )
        needed = self._classes_per_super_label
        if short := [len(classes) for classes in self._classes if len(classes) < needed]:
            warnings.warn(
                f"sampler: {len(short)} of {len(self._classes)} super-labels have fewer than the {needed} classes of their "
                f"part of a batch (the smallest {min(short)}): batches with them are shorter than {self.batch_size}",
                stacklevel=2,
            )

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        rng = np.random.default_rng([self.seed, epoch])
        n, n_super = self.super_labels_per_batch, len(self._classes)
        if self.n_batches is None:
            sets = rng.permutation(np.repeat(list(combinations(range(n_super), n)), self.batches_per_pair, axis=0)).tolist()
        else:
            sets = [rng.choice(n_super, n, replace=False).tolist() for _ in range(self.n_batches)]
        drawn = [
            np.concatenate(
                [
                    rng.choice(classes, min(len(classes), self._classes_per_super_label), replace=False)
                    for classes in (self._classes[super_label] for super_label in chosen)
                ]
            ).tolist()
            for chosen in sets
        ]
        dealt = dealt_images(column_of(self.labels, self.level), drawn, self.per_class, None, rng)
        return [rng.permutation(batch).tolist() for batch in dealt]

    @property
    def _classes_per_super_label(self) -> int:
        return self.batch_size // self.super_labels_per_batch // self.per_class

    @cached_property
    def _classes(self) -> list[NDArray[np.int64]]:
        """The classes of each super-label."""
        level = depth(self.labels) - 1 if self.super_level is None else self.super_level
        parent = parents_of(column_of(self.labels, self.level), column_of(self.labels, level))
        return [np.flatnonzero(parent == super_label) for super_label in np.unique(parent[parent >= 0])]


@dataclass(frozen=True)
class GradedSampler:
    """Batches in which every item meets others at every distance in the label tree, as far as the tree has them.

    A batch has ``batch_size / per_class`` classes, chosen from the root down: wherever it enters a branch it takes at least
    two of its children, where there are two, and as many as their own needs leave room for. So every item meets
    ``per_class - 1`` others of its class, and at each coarser level one that is related to it there and no closer. Children
    are drawn in proportion to the groups of ``per_class`` images they have left, or as ``class_weights`` says. An image
    comes again in an epoch only where its branch has no other left. A batch is shorter where the tree cannot fill it.

    Attributes:
        labels: (N, L) class numbers of each item, finest level first; every class has one parent.
        batch_size: items in a batch, a multiple of ``per_class``.
        per_class: items of each class in a batch, at least 2.
        seed: the run's.
        level: the column of ``labels`` that is the class; finer ones are left out.
        max_per_class: images of a class that an epoch uses, drawn afresh in each; all if none.
        n_batches: batches in an epoch; if none, it ends when most classes of a batch would have no group left, or with
            other weights than ``size`` after as many batches as the groups would fill.
        class_weights: a class counts by its groups, by their root, or as much as any other.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]])
        >>> GradedSampler(labels, batch_size=4, per_class=2).batches(epoch=0)
        [[2, 3, 1, 0], [4, 5, 7, 6]]
    """

    labels: NDArray[np.int64]
    batch_size: int
    per_class: int = 4
    seed: int = 0
    level: int = 0
    max_per_class: int | None = None
    n_batches: int | None = None
    class_weights: str = "size"

    def __post_init__(self) -> None:
        choose(CLASS_WEIGHTS, self.class_weights, "sampler.class_weights")
        if self.level + 1 >= depth(self.labels):
            raise InputError(
                f"sampler: graded needs a level above the class; the class is level {self.level} of {depth(self.labels)}"
            )
        n_groups = group_counts(column_of(self.labels, self.level), self.per_class, self.max_per_class)
        _check_classes(n_groups, self.batch_size, self.per_class, self.max_per_class)
        needed = self.per_class * max(self._tree.need[child] for child in self._tree.children[-1])
        if needed > self.batch_size:
            raise InputError(
                f"sampler: batch_size is {self.batch_size}; with {self.per_class} images a class, positives at each of "
                f"{depth(self.labels) - self.level} levels take {needed}; raise batch_size or lower per_class"
            )

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        rng = np.random.default_rng([self.seed, epoch])
        tree, n_classes = self._tree, self.batch_size // self.per_class
        weights = tree.summed(weights_of(tree.n_groups, self.class_weights))
        by_what_is_left = self.class_weights == "size"
        n_batches = self.n_batches or (None if by_what_is_left else int(tree.n_groups.sum()) // n_classes)
        drawn: list[list[int]] = []
        while n_batches is None or len(drawn) < n_batches:
            batch = tree.draw(n_classes, weights, rng)
            if by_what_is_left:
                fresh = [node for node in batch if weights[node] > 0]
                if n_batches is None and 2 * len(fresh) < len(batch):
                    break
                tree.add(weights, fresh, -1)
            drawn.append(batch)
        return dealt_images(column_of(self.labels, self.level), drawn, self.per_class, self.max_per_class, rng)

    @cached_property
    def _tree(self) -> "ClassTree":
        columns = [column_of(self.labels, level) for level in range(self.level, depth(self.labels))]
        return ClassTree.of(columns, group_counts(columns[0], self.per_class, self.max_per_class))


@dataclass(frozen=True)
class RandomSampler:
    """Batches of any images, each at most once in an epoch; for losses that need no positives in the batch.

    The last images that do not fill a batch are not used.

    Attributes:
        labels: (N,) or (N, L) class numbers of each item, finest level first.
        batch_size: items in a batch.
        seed: the run's.
        level: the column of ``labels`` that is the class.
        max_per_class: images of a class that an epoch uses, drawn afresh in each; all if none.

    Example:
        >>> RandomSampler(np.array([0, 0, 0, 1, 1]), batch_size=2).batches(epoch=0)
        [[2, 4], [3, 0]]
    """

    labels: NDArray[np.int64]
    batch_size: int
    seed: int = 0
    level: int = 0
    max_per_class: int | None = None

    def __post_init__(self) -> None:
        n_images = int(group_counts(column_of(self.labels, self.level), 1, self.max_per_class).sum())
        if not 1 <= self.batch_size <= n_images:
            raise InputError(f"sampler: batch_size is {self.batch_size}, there are {n_images} images for an epoch")

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        rng = np.random.default_rng([self.seed, epoch])
        places = rng.permutation(len(self.labels))
        if self.max_per_class is not None:
            places = places[n_earlier(column_of(self.labels, self.level)[places]) < self.max_per_class]
        n_batches = len(places) // self.batch_size
        batches: list[list[int]] = places[: n_batches * self.batch_size].reshape(n_batches, -1).tolist()
        return batches


SAMPLERS: Mapping[str, type[ClassBalancedSampler | HierarchicalSampler | GradedSampler | RandomSampler]] = {
    "class_balanced": ClassBalancedSampler,
    "hierarchical": HierarchicalSampler,
    "graded": GradedSampler,
    "random": RandomSampler,
}


def create_sampler(section: SamplerSection, labels: NDArray[np.int64], seed: int) -> Sampler:
    """The sampler a recipe names; an option that it does not read is refused, unless it is left as it is by default.

    Args:
        section: the recipe's.
        labels: (N, L) class numbers of the training items, finest level first.
        seed: the run's.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0], [1, 0]])
        >>> create_sampler(SamplerSection(name="random", batch_size=2), labels, seed=0).batches(epoch=0)
        [[2, 0], [1, 3]]
    """
    sampler = choose(SAMPLERS, section.name, "sampler")
    read = {field.name for field in fields(sampler)} & SamplerSection.model_fields.keys()
    unread = SamplerSection.model_fields.keys() - read - {"name", "skip_small_classes"}
    if refused := sorted(key for key in unread if getattr(section, key) != SamplerSection.model_fields[key].default):
        raise InputError(f"sampler: {section.name!r} has no option {names(refused)}; it has {names(sorted(read))}")
    return sampler(labels=labels, seed=seed, **{key: getattr(section, key) for key in read})


def views_of(batches: list[list[int]]) -> list[list[int]]:
    """How often each image has come before in the epoch: an image that comes again is another view of it.

    Example:
        >>> views_of([[4, 7, 4], [7, 2, 4]])
        [[0, 0, 1], [1, 0, 2]]
    """
    if not batches:
        return []
    earlier = n_earlier(np.concatenate([np.array(batch, np.int64) for batch in batches]))
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    return [part.tolist() for part in np.split(earlier, ends)]


def unusable_classes(section: SamplerSection, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The classes of column ``section.level`` that the recipe's sampler would never draw, for want of images.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0]])
        >>> unusable_classes(SamplerSection(per_class=2), labels), unusable_classes(SamplerSection(name="random"), labels)
        (array([1]), array([], dtype=int64))
    """
    draws_whole_groups = section.name in ("class_balanced", "graded")
    return small_classes(column_of(labels, section.level), section.per_class if draws_whole_groups else 0)


def small_classes(labels: NDArray[np.int64], per_class: int) -> NDArray[np.int64]:
    """The classes that cannot give ``per_class`` images.

    Example:
        >>> small_classes(np.array([0, 0, 0, 1, 2, 2]), per_class=2)
        array([1])
    """
    return np.flatnonzero(np.bincount(labels) < per_class)


def _check_sizes(batch_size: int, per_class: int, parts: int = 1) -> None:
    if per_class < 2 or batch_size < per_class * parts or batch_size % (per_class * parts):
        of_parts = f" times {parts} super-labels" if parts > 1 else ""
        raise InputError(
            f"sampler: batch_size is {batch_size} and per_class {per_class}; "
            f"per_class of at least 2{of_parts} must divide batch_size"
        )


def _check_classes(n_groups: NDArray[np.int64], batch_size: int, per_class: int, max_per_class: int | None) -> None:
    _check_sizes(batch_size, per_class)
    if max_per_class is not None and max_per_class < per_class:
        raise InputError(f"sampler: max_per_class is {max_per_class}, less than per_class, which is {per_class}")
    n_usable = int((n_groups > 0).sum())
    if n_usable < batch_size // per_class:
        fits = f"sampler.batch_size={n_usable * per_class} fits" if n_usable > 1 else "more classes or images are needed"
        raise InputError(
            f"sampler: a batch of {batch_size} needs {batch_size // per_class} classes "
            f"of at least {per_class} images, there are {n_usable}; {fits}"
        )


@dataclass(frozen=True)
class ClassTree:
    """The classes that have a group of images, and what is above them; classes come first, the root last.

    Attributes:
        children: the nodes below each node; none below a class.
        parent: of each node; the root is its own.
        need: the fewest classes below a node that surely give two children, where there are two, to each node entered.
        room: the classes below a node.
        n_groups: of each class, 0 where it has none and is left out.
    """

    children: list[NDArray[np.int64]]
    parent: NDArray[np.int64]
    need: list[int]
    room: list[int]
    n_groups: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Sequence[NDArray[np.int64]], n_groups: NDArray[np.int64]) -> "ClassTree":
        in_use = n_groups[columns[0]] > 0
        columns = [column[in_use] for column in columns] + [np.zeros(int(in_use.sum()), np.int64)]  # the root last
        sizes = [len(n_groups), *(int(column.max()) + 1 for column in columns[1:])]
        first = np.cumsum([0, *sizes])
        children = [np.empty(0, np.int64)] * sizes[0]
        parent = np.arange(first[-1])
        room = [int(n > 0) for n in n_groups]
        need = room.copy()
        for level, (below, above) in enumerate(pairwise(columns)):
            parents = parents_of(below, above)
            known = np.flatnonzero(parents >= 0)
            parent[first[level] + known] = first[level + 1] + parents[known]
            by_parent = known[np.argsort(parents[known], kind="stable")]
            ends = np.searchsorted(parents[by_parent], np.arange(sizes[level + 1]), side="right")
            for nodes in np.split(first[level] + by_parent, ends[:-1]):
                children.append(nodes)
                need.append(sum(sorted(need[node] for node in nodes)[-2:]))
                room.append(sum(room[node] for node in nodes))
        return cls(children, parent, need, room, n_groups)

    def summed(self, of_classes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers of the classes, and at each node above the sum of its classes'."""
        sums = np.zeros(len(self.children))
        self.add(sums, np.arange(len(of_classes)), of_classes)
        return sums

    def add(self, sums: NDArray[np.float64], classes: ArrayLike, values: ArrayLike) -> None:
        """Add to the numbers of these classes, in place, and of all nodes above them."""
        nodes = np.asarray(classes, np.int64)
        while len(nodes):
            np.add.at(sums, nodes, values)
            above = self.parent[nodes]
            kept = above != nodes
            nodes, values = above[kept], np.broadcast_to(values, nodes.shape)[kept]

    def draw(self, n_classes: int, weights: NDArray[np.float64], rng: np.random.Generator) -> list[int]:
        """Distinct classes, two or more children of each node that is entered, as far as there are two.

        Args:
            n_classes: how many; there are fewer where the branches drawn have no more.
            weights: of all nodes; children are drawn in proportion, those of no weight last.
            rng: the generator.
        """
        drawn: list[int] = []
        entered = [(len(self.children) - 1, n_classes)]
        while entered:
            node, n_slots = entered.pop()
            children = self.children[node]
            # Exponential keys divided by weights: the smallest are a weighted draw without replacement.
            keys = rng.exponential(size=len(children)) / np.maximum(weights[children], 1e-9)
            if children[0] < len(self.n_groups):  # classes, of one slot each
                drawn += children[np.argpartition(keys, min(n_slots, len(keys)) - 1)[:n_slots]].tolist()
                continue
            shares: dict[int, int] = {}
            n_asked, room = n_slots, 0
            for child in children[np.argsort(keys)].tolist():
                if weights[child] <= 0 and len(shares) > 1 and room >= n_asked:
                    break  # those with weight can fill it
                if self.need[child] <= n_slots:
                    shares[child] = self.need[child]
                    n_slots -= shares[child]
                    room += self.room[child]
                if not n_slots:
                    break
            while n_slots and (with_room := [child for child in shares if shares[child] < self.room[child]][:n_slots]):
                n_slots -= len(with_room)
                shares |= {child: shares[child] + 1 for child in with_room}
            entered += shares.items()
        return drawn


def depth(labels: NDArray[np.int64]) -> int:
    """How many label levels there are."""
    return 1 if labels.ndim == 1 else labels.shape[1]


def column_of(labels: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """(N,) the labels of one level."""
    if labels.dtype == bool:
        raise InputError(
            "sampler: class numbers are needed, found bool; hierarchy.multilabel.sampling_classes makes them of sets"
        )
    if not 0 <= level < depth(labels):
        raise InputError(f"sampler: there is no label level {level}; the labels have {depth(labels)}, counted from 0")
    return labels if labels.ndim == 1 else labels[:, level]


def parents_of(classes: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    """The label above each class; -1 for a number that no item has."""
    parents = np.full(int(classes.max()) + 1, -1)
    parents[classes] = above
    if len(torn := np.flatnonzero(parents[classes] != above)):
        raise InputError(f"sampler: the labels are no tree: class {classes[torn[0]]} is below more than one coarser label")
    return parents


def group_counts(labels: NDArray[np.int64], per_class: int, max_per_class: int | None) -> NDArray[np.int64]:
    """How many groups of ``per_class`` images each class gives to an epoch."""
    return np.minimum(np.bincount(labels), len(labels) if max_per_class is None else max_per_class) // max(per_class, 1)


def weights_of(n_groups: NDArray[np.int64], class_weights: str) -> NDArray[np.float64]:
    """How much each class counts; 0 without a group."""
    return CLASS_WEIGHTS[class_weights](n_groups.astype(np.float64)) * (n_groups > 0)


def drawn_until_used_up(n_groups: NDArray[np.int64], n_classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Batches of distinct classes, each drawn in proportion to the groups it has left, until too few have one.

    A group is drawn from all that are left, and again if its class is in the batch: the same law as one draw after another
    from the classes not in it yet, without a pass over them. Of T groups about T log T are tried at worst: each batch takes
    at least one from outside its largest classes.
    """
    urn = np.repeat(np.arange(len(n_groups)), n_groups).tolist()
    left = n_groups.tolist()
    n_live = sum(n > 0 for n in left)
    batches = []
    tries: list[float] = []
    while n_live >= n_classes:
        batch: dict[int, None] = {}
        while len(batch) < n_classes:
            tries = tries or rng.random(4096).tolist()
            place = int(tries.pop() * len(urn))
            drawn = urn[place]
            if drawn not in batch:
                batch[drawn] = None
                left[drawn] -= 1
                n_live -= not left[drawn]
                urn[place] = urn[-1]
                urn.pop()
        batches.append(list(batch))
    return batches


def drawn_afresh(weights: NDArray[np.float64], n_classes: int, n_batches: int, rng: np.random.Generator) -> list[list[int]]:
    """Batches of distinct classes, each batch drawn in proportion to the weights from all of them."""
    usable = np.flatnonzero(weights)
    share = weights[usable] / weights.sum()
    ends = share.cumsum()[:-1]
    batches = []
    for _ in range(n_batches):
        tries = ends.searchsorted(rng.random(2 * n_classes), side="right")
        batch = list(dict.fromkeys(tries.tolist()))[:n_classes]
        if len(batch) < n_classes:  # few classes hold most of the weight: go on without those drawn
            rest = share.copy()
            rest[batch] = 0
            batch += rng.choice(len(rest), n_classes - len(batch), replace=False, p=rest / rest.sum()).tolist()
        batches.append(usable[batch].tolist())
    return batches


def n_earlier(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each label has come before, in the order given."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    earlier = np.empty(len(labels), np.int64)
    earlier[order] = np.arange(len(labels)) - (counts.cumsum() - counts)[labels[order]]
    return earlier


def dealt_images(
    labels: NDArray[np.int64],
    drawn: list[list[int]],
    per_class: int,
    max_per_class: int | None,
    rng: np.random.Generator,
) -> list[list[int]]:
    """The images of each batch: each time its class is drawn, the next ``per_class`` of them, in a random cycle."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    classes = np.concatenate([np.array(batch, np.int64) for batch in drawn])
    turns = n_earlier(classes)[:, None] * per_class + np.arange(per_class)  # (drawn, per_class)
    turns %= group_counts(labels, 1, max_per_class)[classes][:, None]
    images = order[(counts.cumsum() - counts)[classes][:, None] + turns].ravel()
    ends = np.cumsum([len(batch) * per_class for batch in drawn]).tolist()
    places = images.tolist()
    return [places[start:end] for start, end in pairwise([0, *ends])]
