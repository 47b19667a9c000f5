"""The label tree: levels, parents, common ancestors, distances, label columns."""

import html
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from sightline.data.manifest import Manifest, label_columns, read_manifest, read_text_table
from sightline.errors import SHOWN_FAULTS, InputError, choose, named_errors, names, nearest, raise_faults
from sightline.files import write_text

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
Numbers = NDArray[np.int64]
SHOWN_NODES = 500  # in a notebook
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

    def __repr__(self) -> str:
        return f"Tree({self.source!r}: {len(self)} nodes, {' > '.join(map(str, self.level_sizes()))} by level)"

    def _repr_html_(self) -> str:
        """The nodes as nested lists to open and close, the first 500 of them."""
        shown = set(np.argsort(self.depths, kind="stable")[:SHOWN_NODES].tolist())

        def lines(node: int) -> str:
            inner = "".join(lines(child) for child in self.children(node) if child in shown)
            name = html.escape(self.names[node])
            return (
                f"<li>{name}</li>"
                if not inner
                else f"<li><details><summary>{name}</summary><ul>{inner}</ul></details></li>"
            )

        roots = "".join(lines(node) for node in self.children(NOTHING) if node in shown)
        return f"<p>{html.escape(repr(self))}</p><ul>{roots}</ul>"

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str, str | None]], source: object = "edges") -> "Tree":
        """The tree of ``(child, parent)`` pairs, in any order; None or "" as the parent makes the child a root.

        A name is one node. Cycles and children of two parents are refused, all at once; so is a row without a child.
        """
        pairs = [(child, parent or None) for child, parent in edges]
        if not pairs:
            raise InputError(f"{source}: no row")
        above = grouped(pair for pair in pairs if pair[0])
        faults = [f"row {row}: the child is empty" for row, (child, _) in enumerate(pairs, start=1) if not child]
        faults += _parent_faults(above)
        faults += [f"a cycle: {' < '.join(map(repr, circle))}" for circle in _cycles(above)]
        raise_faults(source, faults)
        parent_of = {child: found[0] for child, found in above.items()}
        parent_of |= {parent: None for parent in parent_of.values() if parent is not None and parent not in parent_of}
        depths: dict[str | None, int] = {None: -1}
        for name in TopologicalSorter({child: [parent] for child, parent in parent_of.items() if parent}).static_order():
            depths[name] = depths[parent_of[name]] + 1
        order = sorted(parent_of, key=lambda name: depths.get(name, 0))
        number: dict[str | None, int] = {None: NOTHING} | {name: place for place, name in enumerate(order)}
        return cls(tuple(order), np.array([number[parent_of[name]] for name in order], np.int64), str(source))

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
        whole = [path for path in distinct if path and all(path)]
        faults = [f"{' > '.join(path) or 'a row'}: a level is missing" for path in distinct if not path or not all(path)]
        raise_faults(source, faults + (_name_faults(whole) if unique else []))
        order = sorted(dict.fromkeys(path[:depth] for path in whole for depth in range(1, len(path) + 1)), key=len)
        number = {(): NOTHING} | {path: place for place, path in enumerate(order)}
        return cls(
            tuple(path[-1] for path in order), np.array([number[path[:-1]] for path in order], np.int64), str(source)
        )

    @cached_property
    def depths(self) -> Numbers:
        """(N,) int64: 0 for a root."""
        return np.asarray((self._ancestors >= 0).sum(1) - 1, np.int64)

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
        return [int(n) for n in np.bincount(self.depths)]

    def find(self, name: str) -> int:
        """The number of the node of that name; the nearest name is suggested, and a name of several nodes refused."""
        found = self._by_name.get(name, [])
        if not found:
            raise InputError(f"{self.source}: no node {name!r}: {nearest(name, self.names)}")
        if len(found) > 1:
            paths = "; ".join(" > ".join(self.path(node)) for node in found[:5])
            raise InputError(f"{self.source}: {len(found)} nodes are called {name!r}: {paths}")
        return found[0]

    def path(self, node: int) -> list[str]:
        """The names from the root to the node."""
        return [self.names[place] for place in self._ancestors[node] if place >= 0]

    def children(self, node: int) -> list[int]:
        """The numbers of the nodes just below; of -1, the roots."""
        return np.flatnonzero(self.parents == node).tolist()

    def shared_levels(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """How many levels two nodes share, from the root on; the arguments broadcast. 0 where they have no common root."""
        own, theirs = self._ancestors[np.asarray(nodes)], self._ancestors[np.asarray(others)]
        # Two paths that part never meet again: what agrees is a beginning.
        return np.asarray(((own == theirs) & (own >= 0)).sum(-1), np.int64)

    def common_ancestor(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """The deepest node above (or equal to) both; -1 where they share no root. The arguments broadcast."""
        own, theirs = self._ancestors[np.asarray(nodes)], self._ancestors[np.asarray(others)]
        return np.asarray(np.where(own == theirs, own, NOTHING).max(-1), np.int64)  # a child's number is above its parent's

    def distance(self, nodes: ArrayLike, others: ArrayLike) -> Numbers:
        """Steps from one node to the other through their common ancestor, or the nameless top. The arguments broadcast."""
        both = self.depths[np.asarray(nodes)] + self.depths[np.asarray(others)] + 2
        return np.asarray(both - 2 * self.shared_levels(nodes, others), np.int64)

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
        """Write ``child,parent`` rows that :func:`read_edges` reads; names must be unique."""
        self._check_unique()
        above = ["" if parent == NOTHING else self.names[parent] for parent in self.parents.tolist()]
        write_text(Path(file), pl.DataFrame({"child": self.names, "parent": above}).write_csv())
        return Path(file)

    def _check_deepest(self, leaves: Numbers) -> None:
        shallow = leaves[self.depths[leaves] < self.n_levels - 1].tolist()
        is_short = "{!r} is a leaf of {} levels, others have {}".format
        raise_faults(self.source, [is_short(self.names[leaf], self.depths[leaf] + 1, self.n_levels) for leaf in shallow])

    def _check_unique(self) -> None:
        twice = [f"{len(nodes)} nodes are called {name!r}" for name, nodes in self._by_name.items() if len(nodes) > 1]
        raise_faults(self.source, twice)

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        return grouped((name, place) for place, name in enumerate(self.names))

    @cached_property
    def _ancestors(self) -> Numbers:
        """(N, L) each node's path from its root, then -1."""
        paths: list[list[int]] = []
        for node, parent in enumerate(self.parents.tolist()):
            paths.append([*(paths[parent] if parent != NOTHING else ()), node])
        return np.array(list(zip_longest(*paths, fillvalue=NOTHING)), np.int64).T


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The distinct values of each key, both in the order in which they come.

    Example:
        >>> grouped([("a", 1), ("b", 2), ("a", 3), ("a", 1)])
        {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in dict.fromkeys(pairs):
        found.setdefault(key, []).append(value)
    return found


def _parent_faults(above: Mapping[str, Sequence[str | None]]) -> list[str]:
    return [
        f"{name!r} has {len(found)} parents: {', '.join('none (a root)' if one is None else repr(one) for one in found)}"
        for name, found in above.items()
        if len(found) > 1
    ]


def _cycles(above: Mapping[str, Sequence[str | None]]) -> list[list[str]]:
    """Cycles from child to parent, one after another, an edge of each taken out; as many as a message shows."""
    graph = {child: {parent for parent in parents if parent is not None} for child, parents in above.items()}
    found: list[list[str]] = []
    while len(found) < SHOWN_FAULTS:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1]  # each name before its child
            graph[circle[1]].remove(circle[0])
            found.append(circle[::-1])
        else:
            break
    return found


def _name_faults(paths: list[tuple[str, ...]]) -> list[str]:
    """Names below two parents or at two levels, and paths of another length than most."""
    nodes = [(name, depth, path[depth - 1] if depth else None) for path in paths for depth, name in enumerate(path)]
    levels = [
        grouped((name, parent) for name, level, parent in nodes if level == depth)
        for depth in range(max(map(len, paths), default=0))
    ]
    faults = [fault for level in levels for fault in _parent_faults(level)]
    faults += [
        f"{name!r} is a name at levels {', '.join(map(str, sorted(levels)))}"
        for name, levels in grouped((name, depth + 1) for name, depth, _ in nodes).items()
        if len(levels) > 1
    ]
    usual = max(Counter(map(len, paths)).items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))[0]
    return faults + [f"{' > '.join(path)}: {len(path)} levels, most have {usual}" for path in paths if len(path) != usual]


RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
EDGE_HEADERS = (("child", "parent"), ("hyponym", "hypernym"), ("synset", "hypernym"), ("id", "parent_id"))
SEVERAL_PARENTS = {"fault": False, "first": True}


def tree_of_manifest(manifest: Manifest, unique: bool = True) -> Tree:
    """The tree of a manifest's label columns; a folder of folders is read as a manifest first.

    Args:
        manifest: with at least one label level.
        unique: refuse names below two parents or at two levels; False makes each path a node, as losses and metrics do.
    """
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels to make a tree of")
    table = manifest.table.select(reversed(label_columns(manifest.n_levels))).unique(maintain_order=True)
    return Tree.from_paths(table.iter_rows(), manifest.source, unique)


def tree_of_folders(root: Path, unique: bool = True) -> Tree:
    """The tree of a folder of images: the deepest folder is the leaf."""
    return tree_of_manifest(read_manifest(Path(root)), unique)


def read_edges(file: Path, several_parents: str = "fault") -> Tree:
    """The tree of a table of ``child,parent`` rows (or ``hyponym,hypernym``); an empty parent is a root.

    Args:
        file: ``.csv``, or ``.tsv`` / ``.txt`` with tabs. Without a known header the first two columns are child and parent.
        several_parents: ``fault``; or ``first``: the first parent of a child counts, as for WordNet's second hypernyms.
    """
    file = Path(file)
    keep_first = choose(SEVERAL_PARENTS, several_parents, "rule for several parents")
    table = _read_table(file)
    columns = next((pair for pair in EDGE_HEADERS if {*pair} <= {*table.columns}), None)
    if columns is None:
        table = _read_table(file, has_header=False)
        if len(table.columns) < 2:
            raise InputError(f"{file}: must have the columns 'child' and 'parent', found one column")
        columns = table.columns[0], table.columns[1]
    table = table.select(columns)
    return Tree.from_edges(
        (table.unique(columns[0], keep="first", maintain_order=True) if keep_first else table).rows(), file
    )


def read_taxonomy(file: Path, ranks: Sequence[str] = RANKS, fill: bool = False) -> Tree:
    """The tree of a table with one column a rank, such as kingdom to species; ranks the table lacks are left out.

    Names recur across branches (one genus in two kingdoms), so a path is a node.

    Args:
        file: a ``.csv``, a ``.tsv`` / ``.txt`` with tabs, or ``.json``: a list of records, or iNaturalist's ``categories``.
        ranks: from the coarsest on.
        fill: where a rank is empty, stand in ``<parent> (no <rank>)``; False lists these rows as faults.
    """
    file = Path(file)
    table = _read_table(file)
    if "species" in ranks and "species" not in table.columns and "name" in table.columns:
        table = table.rename({"name": "species"})
    there = [rank for rank in ranks if rank in table.columns]
    if not there:
        raise InputError(f"{file}: no column {names(ranks)}; the header has {names(table.columns)}")
    table = table.select(there)
    faults = [
        f"row {row}: {rank} is empty ({' > '.join(filter(None, path))})"
        for row, path in enumerate(table.iter_rows(), start=1)
        for rank, name in zip(there, path, strict=True)
        if not name and not (fill and rank != there[0])
    ]
    raise_faults(file, faults)
    for above, rank in pairwise(there):
        stand_in = pl.format(f"{{}} (no {rank})", above)
        table = table.with_columns(pl.when(pl.col(rank) == "").then(stand_in).otherwise(rank).alias(rank))
    return Tree.from_paths(table.iter_rows(), file, unique=False)


def read_tree(file: Path, kind: str = "auto", several_parents: str = "fault", fill: bool = False) -> Tree:
    """The tree of a file.

    Args:
        file: a table.
        kind: ``edges`` or ``taxonomy``; ``auto`` takes it for a taxonomy if it is JSON or has columns of two ranks.
        several_parents: of edges, as :func:`read_edges` takes it.
        fill: of a taxonomy, as :func:`read_taxonomy` takes it.
    """
    file = Path(file)
    if kind == "auto":
        is_taxonomy = file.suffix.lower() == ".json" or len({*_read_table(file).columns} & {*RANKS}) > 1
    else:
        is_taxonomy = choose({"edges": False, "taxonomy": True}, kind, "kind of tree")
    if fill and not is_taxonomy:
        raise InputError(f"{file}: only a taxonomy has ranks to fill; it is read as edges")
    if several_parents != "fault" and is_taxonomy:
        raise InputError(f"{file}: only edges have several parents; it is read as a taxonomy")
    return read_taxonomy(file, fill=fill) if is_taxonomy else read_edges(file, several_parents)


def _read_table(file: Path, has_header: bool = True) -> pl.DataFrame:
    """The table as text: JSON, with commas if it is called .csv, else with tabs."""
    if file.suffix.lower() == ".json":
        return _read_records(file)
    table = read_text_table(file, separator="," if file.suffix.lower() == ".csv" else "\t", has_header=has_header)
    plain = [name.strip().lower() for name in table.columns]  # Kingdom is kingdom
    return table.rename(dict(zip(table.columns, plain, strict=True))) if len({*plain}) == len(plain) else table


def _read_records(file: Path) -> pl.DataFrame:
    with named_errors(file, "cannot be read as JSON", OSError, ValueError, RecursionError):
        found = json.loads(file.read_text(encoding="utf-8"))
    records = found.get("categories") if isinstance(found, dict) else found
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{file}: must hold a list of records, or one under 'categories'")
    columns = dict.fromkeys(key for one in records for key in one)  # a rank that only the last record has is one too
    texts = {key: ["" if one.get(key) is None else str(one[key]).strip() for one in records] for key in columns}
    return pl.DataFrame(texts)
