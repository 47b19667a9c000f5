"""Which items share a batch; seeded by run and epoch.

Every batch is the whole batch of a step: several processes each take their part of it. Nothing is kept between epochs.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice, pairwise
from math import comb
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from sightline.errors import InputError, names

MOST_BATCHES = 100_000  # an epoch that is listed; beyond, sets of super-labels are drawn
CLASS_WEIGHTS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "size": lambda n_groups: n_groups,
    "sqrt": np.sqrt,
    "uniform": np.ones_like,
}


class SamplerSection(BaseModel):
    """Which images share a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # which images share a batch
    name: Literal["class_balanced", "hierarchical", "graded", "hard_negatives", "random"] = "class_balanced"
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


@dataclass(frozen=True)
class Sampler:
    """Draws the batches of an epoch; they depend on the seed and the epoch alone.

    Attributes:
        labels: (N,) or (N, L) class numbers of each item, finest level first.
        section: the options; each sampler reads those that ``reads`` names.
        seed: the run's.
    """

    reads: ClassVar[tuple[str, ...]]
    labels: NDArray[np.int64]
    section: SamplerSection
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse options that do not fit each other or the labels."""

    @property
    def batch_size(self) -> int:
        """Items in a full batch, of all processes together."""
        return self.section.batch_size

    def batches(self, epoch: int) -> list[list[int]]:
        """The places in the data set that each batch of the epoch holds."""
        return self.draw(np.random.default_rng([self.seed, epoch]))

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> list[list[int]]:
        """The batches of one epoch."""

    @cached_property
    def n_levels(self) -> int:
        """How many label levels there are."""
        return len(np.atleast_2d(self.labels.T))

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """(N,) the class of each item: its label at ``section.level``."""
        return column_of(self.labels, self.section.level)


class GroupSampler(Sampler):
    """What samplers share that deal the images of each class into groups of ``per_class``, and draw classes for a batch.

    ``batch_size`` is a multiple of ``per_class``. Each epoch has another choice of the ``max_per_class`` images of a class.
    A class is drawn in proportion to its groups, to their root, or as often as any other, as ``class_weights`` says.
    """

    reads = ("batch_size", "class_weights", "level", "max_per_class", "n_batches", "per_class")

    def __post_init__(self) -> None:
        per_class, most = self.section.per_class, self.section.max_per_class
        _check_sizes(self.section)
        if most is not None and most < per_class:
            raise InputError(f"sampler: max_per_class must be at least per_class={per_class}, got {most}")
        n_usable = int((self._n_groups > 0).sum())
        if n_usable < self._n_classes:
            fits = f"sampler.batch_size={n_usable * per_class} fits" if n_usable > 1 else "add classes or images"
            raise InputError(
                f"sampler: a batch of {self.batch_size} needs {self._n_classes} classes "
                f"of at least {per_class} images, there are {n_usable}; {fits}"
            )

    def draw(self, rng: np.random.Generator) -> list[list[int]]:
        """The batches of one epoch."""
        return deal_images(self.classes, self.draw_classes(rng), self.section.per_class, self.section.max_per_class, rng)

    @abstractmethod
    def draw_classes(self, rng: np.random.Generator) -> list[list[int]]:
        """The classes of each batch of an epoch."""

    @property
    def _n_classes(self) -> int:
        return self.batch_size // self.section.per_class

    @cached_property
    def _n_groups(self) -> NDArray[np.int64]:
        return group_counts(self.classes, self.section.per_class, self.section.max_per_class)


class ClassBalancedSampler(GroupSampler):
    """Batches of ``per_class`` images from each of ``batch_size / per_class`` classes.

    An epoch deals each class's images into groups of ``per_class``; a batch takes one group from each of its classes, drawn
    in proportion to the groups they have left. No image is seen twice. The epoch ends when too few classes have a group
    left; what remains is not used. It costs about as much as sorting the images, however many classes there are.

    With ``n_batches``, or weights other than ``size``, each batch draws its classes from all of them, and an image may come
    again once its class is used up; without ``n_batches`` there are then as many batches as the groups would fill.

    Example:
        >>> section = SamplerSection(batch_size=4, per_class=2)
        >>> ClassBalancedSampler(np.array([0, 0, 1, 1, 2, 2]), section).batches(epoch=0)
        [[1, 0, 3, 2]]
    """

    def draw_classes(self, rng: np.random.Generator) -> list[list[int]]:
        """The classes of each batch of an epoch."""
        if self.section.n_batches is None and self.section.class_weights == "size":
            return draw_until_used_up(self._n_groups, self._n_classes, rng)
        n_batches = self.section.n_batches or int(self._n_groups.sum()) // self._n_classes
        return draw_from_all(weights_of(self._n_groups, self.section.class_weights), self._n_classes, n_batches, rng)


class HardNegativeSampler(ClassBalancedSampler):
    """Batches around one class each: its images, and their nearest images of other classes in the whole training set.

    The first class of each batch is drawn as ``class_balanced`` draws it. The others are those of the nearest negatives of
    its images, nearest first; each gives that negative and other images of its class at random, ``per_class`` together.
    Training finds new negatives at the start of each epoch, with :meth:`mined`; without it batches are class-balanced.

    Example:
        >>> sampler = HardNegativeSampler(np.array([0, 0, 1, 1, 2, 2]), SamplerSection(batch_size=4, per_class=2))
        >>> sampler.mined(0, lambda anchors: np.full((len(anchors), 1), 5))  # class 0 was drawn first, and 5 is of class 2
        [[1, 0, 5, 4]]
    """

    def mined(self, epoch: int, find: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> list[list[int]]:
        """The batches of an epoch; as many as :meth:`batches` has.

        Args:
            epoch: from 0.
            find: for (A,) images, the (A, n) nearest images of n other classes, nearest first; -1 for none.
        """
        drawn, rng = np.array(self.batches(epoch)), np.random.default_rng([self.seed, epoch, 1])
        per_class = self.section.per_class
        negatives = find(drawn[:, :per_class].ravel()).reshape(len(drawn), per_class, -1)
        return [self._around(batch, rows, rng) for batch, rows in zip(drawn.tolist(), negatives, strict=True)]

    def _around(self, batch: list[int], negatives: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
        """The batch with negatives, (per_class, n), in place of the images after the first class."""
        per_class = self.section.per_class
        chosen = batch[:per_class]
        met = {int(self.classes[chosen[0]])}
        # The nearest of each image, then the second nearest; where these are too few, the classes drawn.
        for row in [*negatives.T.ravel().tolist(), *batch[per_class:]]:
            of_class = int(self.classes[row])
            if row >= 0 and of_class not in met and len(chosen) < len(batch):
                met.add(of_class)
                others = self._members[of_class]
                more = rng.choice(others[others != row], per_class - 1, replace=False)
                chosen += [row, *more.tolist()]
        return chosen

    @cached_property
    def _members(self) -> list[NDArray[np.int64]]:
        """The images of each class."""
        order = np.argsort(self.classes, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.classes))[:-1])


class HierarchicalSampler(Sampler):
    """Batches of few super-labels, so that their classes are hard to tell apart.

    For every set of ``super_labels_per_batch`` super-labels there are ``batches_per_pair`` batches, in random order; each
    takes equally many images from each super-label, ``per_class`` of each class. A class with fewer images repeats them. A
    super-label with too few classes gives all of them, its batches are shorter, and a warning names the numbers.

    ``labels`` have at least two levels, and ``batch_size`` is a multiple of ``per_class * super_labels_per_batch``. With
    ``n_batches`` each batch is of a random set of super-labels, in place of all the sets.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 2], [3, 2]])
        >>> section = SamplerSection(name="hierarchical", batch_size=4, per_class=2, batches_per_pair=1)
        >>> HierarchicalSampler(labels, section).batches(epoch=0)
        [[4, 7, 6, 5], [1, 4, 0, 5], [7, 6, 0, 1]]
    """

    reads = (
        *("batch_size", "batches_per_pair", "level", "n_batches", "per_class"),
        *("super_labels_per_batch", "super_level"),
    )

    def __post_init__(self) -> None:
        level, n_together = self.section.level, self.section.super_labels_per_batch
        if self._super_level <= level:
            raise InputError(
                f"sampler: the super-label is level {self._super_level} and the class level {level} of "
                f"{self.n_levels}; it must be coarser than the class's"
            )
        _check_sizes(self.section, n_together)
        n_super, needed = len(self._below), self._classes_per_super_label
        n_sets = comb(n_super, n_together)
        if not n_sets:
            raise InputError(
                f"sampler: super_labels_per_batch is {n_together}, at level {self._super_level} there are "
                f"{n_super} super-labels"
            )
        if self.section.n_batches is None and n_sets * self.section.batches_per_pair > MOST_BATCHES:
            raise InputError(
                f"sampler: {n_super} super-labels make {n_sets} sets of {n_together}, too many "
                "for an epoch; set n_batches to draw some of them"
            )
        if short := [len(classes) for classes in self._below if len(classes) < needed]:
            warnings.warn(
                f"sampler: {len(short)} of {n_super} super-labels have fewer than the {needed} classes of their "
                f"part of a batch (the smallest {min(short)}): batches with them are shorter than {self.batch_size}; "
                "lower sampler.batch_size, or raise sampler.per_class or sampler.super_labels_per_batch",
                stacklevel=2,
            )

    def draw(self, rng: np.random.Generator) -> list[list[int]]:
        """The batches of one epoch."""
        n, n_super, section = self.section.super_labels_per_batch, len(self._below), self.section
        if section.n_batches is None:
            sets = rng.permutation(
                np.repeat(list(combinations(range(n_super), n)), section.batches_per_pair, axis=0)
            ).tolist()
        else:
            sets = [rng.choice(n_super, n, replace=False).tolist() for _ in range(section.n_batches)]
        drawn = [
            np.concatenate(
                [
                    rng.choice(classes, min(len(classes), self._classes_per_super_label), replace=False)
                    for classes in (self._below[super_label] for super_label in chosen)
                ]
            ).tolist()
            for chosen in sets
        ]
        dealt = deal_images(self.classes, drawn, section.per_class, None, rng)
        return [rng.permutation(batch).tolist() for batch in dealt]

    @property
    def _classes_per_super_label(self) -> int:
        return self.batch_size // self.section.super_labels_per_batch // self.section.per_class

    @property
    def _super_level(self) -> int:
        return self.n_levels - 1 if self.section.super_level is None else self.section.super_level

    @cached_property
    def _below(self) -> list[NDArray[np.int64]]:
        """The classes of each super-label."""
        parent = parents_of(self.classes, column_of(self.labels, self._super_level))
        return [np.flatnonzero(parent == super_label) for super_label in np.unique(parent[parent >= 0])]


class GradedSampler(GroupSampler):
    """Batches in which every item meets others at every distance in the label tree, as far as the tree has them.

    A batch has ``batch_size / per_class`` classes, chosen from the root down: wherever it enters a branch it takes at least
    two of its children, where there are two, and as many as their own needs leave room for. So every item meets
    ``per_class - 1`` others of its class, and at each coarser level one that is related to it there and no closer. Children
    are drawn in proportion to the groups of ``per_class`` images they have left, or as ``class_weights`` says. An image
    comes again in an epoch only where its branch has no other left. A batch is shorter where the tree cannot fill it.

    ``labels`` are (N, L), every class has one parent, and levels finer than ``level`` are left out. Without ``n_batches``
    an epoch ends when most classes of a batch would have no group left, or with other weights than ``size`` after as many
    batches as the groups would fill.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]])
        >>> GradedSampler(labels, SamplerSection(name="graded", batch_size=4, per_class=2)).batches(epoch=0)
        [[2, 3, 1, 0], [4, 5, 7, 6]]
    """

    def __post_init__(self) -> None:
        level, per_class = self.section.level, self.section.per_class
        if level + 1 >= self.n_levels:
            raise InputError(
                f"sampler: graded needs a level above the class; the class is level {level} of {self.n_levels}"
            )
        super().__post_init__()
        needed = per_class * max(self._tree.need[child] for child in self._tree.children[-1])
        if needed > self.batch_size:
            raise InputError(
                f"sampler: batch_size is {self.batch_size}; with {per_class} images a class, positives at each of "
                f"{self.n_levels - level} levels take {needed}; raise batch_size or lower per_class"
            )

    def draw_classes(self, rng: np.random.Generator) -> list[list[int]]:
        """The classes of each batch of an epoch."""
        tree, by_what_is_left = self._tree, self.section.class_weights == "size"
        weights = np.zeros(len(tree.children))
        np.add.at(weights, tree.ancestors, weights_of(self._n_groups, self.section.class_weights)[:, None])
        n_batches = self.section.n_batches or (None if by_what_is_left else int(self._n_groups.sum()) // self._n_classes)
        drawn: list[list[int]] = []
        while n_batches is None or len(drawn) < n_batches:
            batch = tree.draw(self._n_classes, weights, rng)
            if by_what_is_left:
                fresh = [node for node in batch if weights[node] > 0]
                if n_batches is None and 2 * len(fresh) < len(batch):
                    break
                np.add.at(weights, tree.ancestors[fresh], -1)
            drawn.append(batch)
        return drawn

    @cached_property
    def _tree(self) -> "ClassTree":
        return ClassTree(list(self.labels.T[self.section.level :]), self._n_groups)  # two levels or more: a table


class RandomSampler(Sampler):
    """Batches of images in random order, whatever their classes; what does not fill the last one is not used.

    Each epoch has another choice of the ``max_per_class`` images of a class.

    Example:
        >>> RandomSampler(np.array([0, 0, 0, 1, 1]), SamplerSection(name="random", batch_size=2)).batches(epoch=0)
        [[2, 4], [3, 0]]
    """

    reads = ("batch_size", "level", "max_per_class")

    def __post_init__(self) -> None:
        n_images = int(group_counts(self.classes, 1, self.section.max_per_class).sum())
        if self.batch_size > n_images:
            raise InputError(
                f"sampler: batch_size must be at most {n_images}, the images of an epoch, got {self.batch_size}"
            )

    def draw(self, rng: np.random.Generator) -> list[list[int]]:
        """The batches of one epoch."""
        places = rng.permutation(len(self.labels))
        if self.section.max_per_class is not None:
            places = places[n_earlier(self.classes[places]) < self.section.max_per_class]
        return cut(places, [self.batch_size] * (len(places) // self.batch_size))


SAMPLERS: Mapping[str, type[Sampler]] = {
    "class_balanced": ClassBalancedSampler,
    "hierarchical": HierarchicalSampler,
    "graded": GradedSampler,
    "hard_negatives": HardNegativeSampler,
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
    sampler = SAMPLERS[section.name]
    changed = section.model_dump(exclude_defaults=True).keys()
    if refused := sorted(changed - {*sampler.reads, "name", "skip_small_classes"}):
        raise InputError(f"sampler: {section.name!r} has no option {names(refused)}; it has {names(sampler.reads)}")
    return sampler(labels, section, seed)


def views_of(batches: list[list[int]]) -> list[list[int]]:
    """How often each image has come before in the epoch: an image that comes again is another view of it.

    Example:
        >>> views_of([[4, 7, 4], [7, 2, 4]])
        [[0, 0, 1], [1, 0, 2]]
    """
    return cut(n_earlier(np.fromiter(chain.from_iterable(batches), np.int64)), map(len, batches))


def unusable_classes(section: SamplerSection, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The classes of column ``section.level`` that the recipe's sampler would never draw, for want of images.

    Example:
        >>> labels = np.array([[0, 0], [0, 0], [1, 0]])
        >>> unusable_classes(SamplerSection(per_class=2), labels), unusable_classes(SamplerSection(name="random"), labels)
        (array([1]), array([], dtype=int64))
    """
    repeats = section.name in ("hierarchical", "random")  # these take small classes too
    per_class = 0 if repeats else section.per_class
    return np.flatnonzero(np.bincount(column_of(labels, section.level)) < per_class)


def _check_sizes(section: SamplerSection, parts: int = 1) -> None:
    if section.batch_size % (section.per_class * parts):
        of_parts = f" times {parts} super-labels" if parts > 1 else ""
        raise InputError(
            f"sampler: batch_size is {section.batch_size} and per_class {section.per_class}; "
            f"per_class{of_parts} must divide batch_size"
        )


class ClassTree:
    """The classes that have a group of images, and what is above them; classes come first, the root last.

    Attributes:
        children: the nodes below each node; none below a class.
        ancestors: (classes, levels) each class and the nodes above it up to the root; itself throughout if it is left out.
        need: the fewest classes below a node that surely give two children, where there are two, to each node entered.
        room: the classes below a node.
    """

    def __init__(self, columns: list[NDArray[np.int64]], n_groups: NDArray[np.int64]) -> None:
        in_use = n_groups[columns[0]] > 0
        columns = [column[in_use] for column in columns] + [np.zeros(int(in_use.sum()), np.int64)]  # the root last
        sizes = [len(n_groups), *(int(column.max()) + 1 for column in columns[1:])]
        first = np.cumsum([0, *sizes])
        self.ancestors = np.repeat(np.arange(sizes[0])[:, None], len(columns), 1)
        self.ancestors[columns[0]] = np.stack(columns, 1) + first[:-1]
        self.room = np.bincount(self.ancestors.ravel(), minlength=first[-1]).tolist()
        self.children = [np.empty(0, np.int64)] * sizes[0]
        self.need = [1] * sizes[0]
        for level, (below, above) in enumerate(pairwise(columns)):
            parents = parents_of(below, above)
            order = np.argsort(parents, kind="stable")
            starts = np.searchsorted(parents[order], np.arange(sizes[level + 1]))
            for nodes in np.split(first[level] + order, starts)[1:]:  # before the first start: numbers that no item has
                self.children.append(nodes)
                self.need.append(sum(sorted(self.need[node] for node in nodes)[-2:]))

    def draw(self, n_classes: int, weights: NDArray[np.float64], rng: np.random.Generator, node: int = -1) -> list[int]:
        """Distinct classes, two or more children of each node that is entered, as far as there are two.

        Args:
            n_classes: how many; there are fewer where the branches drawn have no more.
            weights: of all nodes; children are drawn in proportion, those of no weight last.
            rng: the generator.
            node: below which; the last is the root.
        """
        children, n_left, room = self.children[node], n_classes, 0
        # Exponential keys divided by weights: the smallest are a weighted draw without replacement.
        keys = rng.exponential(size=len(children)) / np.maximum(weights[children], 1e-9)
        if children[0] < len(self.ancestors):  # classes, of one slot each
            return [int(one) for one in children[np.argpartition(keys, min(n_classes, len(keys)) - 1)[:n_classes]]]
        shares: dict[int, int] = {}
        for child in children[np.argsort(keys)].tolist():
            if not n_left or (weights[child] <= 0 and len(shares) > 1 and room >= n_classes):
                break  # it is full, or those with weight can fill it
            if self.need[child] <= n_left:
                shares[child] = self.need[child]
                n_left -= shares[child]
                room += self.room[child]
        while n_left and (with_room := [child for child in shares if shares[child] < self.room[child]][:n_left]):
            n_left -= len(with_room)
            shares |= {child: shares[child] + 1 for child in with_room}
        return [one for child, n in reversed(shares.items()) for one in self.draw(n, weights, rng, child)]


def column_of(labels: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """(N,) the labels of one level."""
    if labels.dtype == bool:
        raise InputError(
            "sampler: labels must be class numbers, found bool; labels.codes.sampling_classes makes numbers of sets"
        )
    columns: NDArray[np.int64] = np.atleast_2d(labels.T)
    if not 0 <= level < len(columns):
        raise InputError(f"sampler: there is no label level {level}; the labels have {len(columns)}, counted from 0")
    return columns[level, :]


def parents_of(classes: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    """The label above each class; -1 for a number that no item has."""
    parents = np.full(int(classes.max()) + 1, -1)
    parents[classes] = above
    if len(torn := np.flatnonzero(parents[classes] != above)):
        raise InputError(
            f"sampler: the labels do not form a tree: class {classes[torn[0]]} is below more than one coarser label"
        )
    return parents


def group_counts(labels: NDArray[np.int64], per_class: int, max_per_class: int | None) -> NDArray[np.int64]:
    """How many groups of ``per_class`` images each class gives to an epoch."""
    return np.minimum(np.bincount(labels), len(labels) if max_per_class is None else max_per_class) // max(per_class, 1)


def weights_of(n_groups: NDArray[np.int64], class_weights: str) -> NDArray[np.float64]:
    """How much each class counts; 0 without a group."""
    return CLASS_WEIGHTS[class_weights](n_groups.astype(np.float64)) * (n_groups > 0)


def draw_until_used_up(n_groups: NDArray[np.int64], n_classes: int, rng: np.random.Generator) -> list[list[int]]:
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


def draw_from_all(
    weights: NDArray[np.float64], n_classes: int, n_batches: int, rng: np.random.Generator
) -> list[list[int]]:
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


def deal_images(
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
    return cut(images, [len(batch) * per_class for batch in drawn])


def cut(values: NDArray[np.int64], sizes: Iterable[int]) -> list[list[int]]:
    """The values as lists of these sizes, in order; what is left over is left out."""
    rest = iter(values.tolist())
    return [list(islice(rest, size)) for size in sizes]
