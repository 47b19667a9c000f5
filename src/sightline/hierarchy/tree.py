"""The label tree: levels, parents, common ancestors, distances, label columns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from sightline.data.manifest import label_columns
from sightline.errors import InputError, nearest, raise_faults
from sightline.files import replaced

Numbers = NDArray[np.int64]
NOTHING = -1  # the parent of a root, and the common ancestor of two nodes that share none


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes by number, parents before their children; several roots are one tree whose top has no name.

    Attributes:
        names: of the nodes.
        parents: (N,) int64, the number of each node's parent; -1 for a root.
        source: where it comes from, for messages.

    Example:
        >>> tree = Tree.from_edges([("cat", "mammal"), ("dog", "mammal"), ("eagle", "bird")])
        >>> tree.names[tree.common_ancestor(tree.find("cat"), tree.find("dog"))]
        'mammal'
        >>> int(tree.distance(tree.find("cat"), tree.find("dog"))), int(tree.distance(tree.find("cat"), tree.find("eagle")))
        (2, 4)
    """

    names: tuple[str, ...]
    parents: Numbers
    source: str = "tree"

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str, str | None]], source: object = "edges") -> "Tree":
        """The tree of ``(child, parent)`` pairs, in any order; None or "" as the parent makes the child a root.

        A name is one node. Cycles and children of two parents are refused, all at once; so is a row without a child.
        """
        pairs = list(edges)
        faults = [f"row {row}: the child is empty" for row, (child, _) in enumerate(pairs, start=1) if not child]
        above: dict[str, dict[str | None, None]] = {}
        for child, parent in pairs:
            if child:
                above.setdefault(child, {})[parent or None] = None
        faults += [
            f"{child!r} has {len(found)} parents: {_listed(found)}" for child, found in above.items() if len(found) > 1
        ]
        faults += [f"a cycle: {' < '.join(map(repr, circle))}" for circle in _cycles(above)]
        raise_faults(source, faults)
        if not above:
            raise InputError(f"{source}: no row")
        parent_of = {child: parent for child, found in above.items() for parent in found}
        for parent in list(parent_of.values()):
            if parent is not None:
                parent_of.setdefault(parent, None)
        depths = _depths(parent_of)
        order = sorted(parent_of, key=depths.__getitem__)
        number = {name: place for place, name in enumerate(order)}
        parents = [NOTHING if (parent := parent_of[name]) is None else number[parent] for name in order]
        return cls(tuple(order), np.array(parents, np.int64), str(source))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[str]], source: object = "paths", unique: bool = True) -> "Tree":
        """The tree of paths from the coarsest name to the finest.

        Args:
            paths: one a leaf, or one an image: repeated ones are one.
            source: for messages.
            unique: refuse a name that stands below two parents or at two levels, and paths of different lengths, all at
                once. False makes nodes of them: a path is a node, and its last name is how it is called.
        """
        distinct = list(dict.fromkeys(tuple(path) for path in paths))
        if not distinct:
            raise InputError(f"{source}: no row")
        faults = [f"{' > '.join(path) or 'a row'}: a level is missing" for path in distinct if not all(path) or not path]
        whole = [path for path in distinct if path and all(path)]
        if unique and whole:
            faults += _name_faults(whole)
        raise_faults(source, faults)
        nodes = dict.fromkeys(path[:depth] for path in whole for depth in range(1, len(path) + 1))
        order = sorted(nodes, key=len)
        number = {path: place for place, path in enumerate(order)}
        parents = [number[path[:-1]] if len(path) > 1 else NOTHING for path in order]
        return cls(tuple(path[-1] for path in order), np.array(parents, np.int64), str(source))

    @cached_property
    def depths(self) -> Numbers:
        """(N,) int64: 0 for a root."""
        found: Numbers = (self._ancestors >= 0).sum(1) - 1
        return found

    @cached_property
    def leaves(self) -> Numbers:
        """The nodes without a child, by number."""
        return np.setdiff1d(np.arange(len(self)), self.parents)

    @cached_property
    def n_levels(self) -> int:
        """Nodes on the longest path from a root to a leaf."""
        return int(self._ancestors.shape[1])

    def level_sizes(self) -> list[int]:
        """How many nodes there are at each depth, roots first."""
        sizes: list[int] = np.bincount(self.depths, minlength=self.n_levels).tolist()
        return sizes

    def find(self, name: str) -> int:
        """The number of the node of that name; the nearest name is suggested, and a name of several nodes refused."""
        found = self._by_name.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            paths = "; ".join(" > ".join(self.path(node)) for node in found[:5])
            raise InputError(f"{self.source}: {len(found)} nodes are called {name!r}: {paths}")
        raise InputError(f"{self.source}: no node {name!r}: {nearest(name, self.names)}")

    def find_all(self, wanted: Iterable[str]) -> Numbers:
        """The numbers of the nodes of those names; all that are not there are named at once."""
        words = list(wanted)
        raise_faults(self.source, [f"no node {name!r}" for name in dict.fromkeys(words) if name not in self._by_name])
        return np.array([self.find(name) for name in words], np.int64)

    def path(self, node: int) -> list[str]:
        """The names from the root to the node."""
        return [self.names[place] for place in self._ancestors[node] if place >= 0]

    def children(self, node: int) -> list[int]:
        """The numbers of the nodes just below; of -1, the roots."""
        return np.flatnonzero(self.parents == node).tolist()

    def shared_levels(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """How many levels two nodes share, from the root on; the arguments broadcast. 0 where they have no common root."""
        own, theirs = self._ancestors[np.asarray(nodes)], self._ancestors[np.asarray(others)]
        agree = (own == theirs) & (own >= 0)
        # Two paths that part never meet again: what agrees is a beginning.
        found: Numbers = agree.sum(-1)
        return found

    def common_ancestor(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """The deepest node above (or equal to) both; -1 where they share no root. The arguments broadcast."""
        shared = self.shared_levels(nodes, others)
        table = np.broadcast_to(self._ancestors[np.asarray(nodes)], (*shared.shape, self.n_levels))
        found = np.take_along_axis(table, np.maximum(shared - 1, 0)[..., None], -1)[..., 0]
        return np.where(shared > 0, found, NOTHING)

    def distance(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """Steps from one node to the other through their common ancestor, or the nameless top. The arguments broadcast."""
        found: Numbers = self.depths[np.asarray(nodes)] + self.depths[np.asarray(others)] + 2
        return found - 2 * self.shared_levels(nodes, others)

    def levelled(self) -> "Tree":
        """The tree with all leaves at the deepest level: shorter branches repeat their leaf's name downwards."""
        paths = [self.path(leaf) for leaf in self.leaves.tolist()]
        return Tree.from_paths([[*p, *[p[-1]] * (self.n_levels - len(p))] for p in paths], self.source, unique=False)

    def columns(self) -> pl.DataFrame:
        """One row a leaf: ``label_0`` (the leaf) to ``label_{L-1}`` (the root); leaves of different depth are refused."""
        self._check_deepest(self.leaves)
        called = np.array(self.names, object)[self._ancestors[self.leaves]]
        return pl.DataFrame(
            {name: called[:, -1 - level] for level, name in enumerate(label_columns(self.n_levels))}, strict=False
        )

    def labels(self, leaves: ArrayLike) -> Numbers:
        """(M, L) node numbers of the leaves' paths, finest first, as losses and metrics take them.

        Leaves of different depth are refused: :meth:`levelled` makes them equal.
        """
        nodes = np.asarray(leaves, np.int64)
        self._check_deepest(nodes)
        return np.ascontiguousarray(self._ancestors[nodes][:, ::-1])

    def codes(self) -> dict[str, str]:
        """A dotted code for each name, such as 2.1.3: the third child of the first child of the second root.

        So that items with several names of any tree have a relevance: ``CodeRelevance`` takes codes.

        Example:
            >>> Tree.from_edges([("cat", "mammal"), ("dog", "mammal"), ("eagle", "bird")]).codes()["dog"]
            '1.2'
        """
        self._check_unique()
        place, found = Counter[int](), dict[int, str]()
        for node, parent in enumerate(self.parents.tolist()):
            place[parent] += 1
            found[node] = f"{found[parent]}.{place[parent]}" if parent != NOTHING else str(place[parent])
        return {self.names[node]: code for node, code in found.items()}

    def write(self, file: Path) -> Path:
        """Write ``child,parent`` rows that :func:`sightline.hierarchy.sources.read_edges` reads; names must be unique."""
        self._check_unique()
        above = ["" if parent == NOTHING else self.names[parent] for parent in self.parents.tolist()]
        with replaced(Path(file)) as scratch:
            pl.DataFrame({"child": self.names, "parent": above}).write_csv(scratch)
        return Path(file)

    def _check_deepest(self, leaves: Numbers) -> None:
        shallow = leaves[self.depths[leaves] < self.n_levels - 1].tolist()
        n = self.n_levels
        told = [f"{self.names[leaf]!r} is a leaf of {self.depths[leaf] + 1} levels, others have {n}" for leaf in shallow]
        raise_faults(self.source, told)

    def _check_unique(self) -> None:
        twice = [f"{len(nodes)} nodes are called {name!r}" for name, nodes in self._by_name.items() if len(nodes) > 1]
        raise_faults(self.source, twice)

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, name in enumerate(self.names):
            found.setdefault(name, []).append(place)
        return found

    @cached_property
    def _ancestors(self) -> Numbers:
        """(N, L) each node's path from its root, then -1."""
        depths = np.zeros(len(self), np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = 0 if parent == NOTHING else depths[parent] + 1
        table = np.full((len(self), int(depths.max()) + 1), NOTHING, np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != NOTHING:
                table[node] = table[parent]
            table[node, depths[node]] = node
        return table


def _listed(found: Iterable[str | None]) -> str:
    return ", ".join("none (a root)" if name is None else repr(name) for name in found)


def _cycles(above: dict[str, dict[str | None, None]]) -> list[list[str]]:
    """A cycle for each edge that leads a walk upwards, by every parent, back to where it has been."""
    circles: list[list[str]] = []
    walked: set[str] = set()
    for start in above:
        trail = {} if start in walked else {start: iter(above[start])}
        while trail:
            name, parents = next(reversed(trail.items()))
            parent = next((parent for parent in parents if parent is not None), None)
            if parent is None:
                walked.add(name)
                del trail[name]
            elif parent in trail:
                names = list(trail)
                circles.append([*names[names.index(parent) :], parent])
            elif parent not in walked:
                trail[parent] = iter(above.get(parent, ()))
    return circles


def _depths(parent_of: dict[str, str | None]) -> dict[str, int]:
    """The depth of each name, where there is no cycle."""
    depths: dict[str, int] = {}
    for start in parent_of:
        trail: list[str] = []
        name: str | None = start
        while name is not None and name not in depths:
            trail.append(name)
            name = parent_of[name]
        depth = -1 if name is None else depths[name]
        for passed in reversed(trail):
            depth += 1
            depths[passed] = depth
    return depths


def _name_faults(paths: list[tuple[str, ...]]) -> list[str]:
    above: dict[tuple[int, str], dict[str | None, None]] = {}
    levels: dict[str, dict[int, None]] = {}
    for path in paths:
        for depth, name in enumerate(path):
            above.setdefault((depth, name), {})[path[depth - 1] if depth else None] = None
            levels.setdefault(name, {})[depth] = None
    faults = [
        f"{name!r} has {len(found)} parents: {_listed(found)}" for (_, name), found in above.items() if len(found) > 1
    ]
    faults += [
        f"{name!r} is a name at levels {', '.join(str(depth + 1) for depth in sorted(found))}"
        for name, found in levels.items()
        if len(found) > 1
    ]
    usual = max(Counter(map(len, paths)).items(), key=lambda pair: (pair[1], pair[0]))[0]
    odd = [path for path in paths if len(path) != usual]
    return faults + [f"{' > '.join(path)}: {len(path)} levels, most have {usual}" for path in odd]
