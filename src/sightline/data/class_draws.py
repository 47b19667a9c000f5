"""Classes drawn for batches, from a list or down a tree, and their images dealt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.errors import InputError

CLASS_WEIGHTS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "size": lambda n_groups: n_groups,
    "sqrt": np.sqrt,
    "uniform": np.ones_like,
}


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
