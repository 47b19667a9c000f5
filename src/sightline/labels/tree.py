"""The label tree: levels, parents, common ancestors, distances, label columns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from sightline.data.manifest import Manifest, label_columns, read_manifest, table_faults
from sightline.errors import InputError, choose, names, nearest, raise_faults
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
        """Write ``child,parent`` rows that :func:`read_edges` reads; names must be unique."""
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


RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
EDGE_HEADERS = {"child": "parent", "hyponym": "hypernym", "synset": "hypernym", "id": "parent_id"}
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
    columns = next(
        ((child, EDGE_HEADERS[child]) for child in EDGE_HEADERS if {child, EDGE_HEADERS[child]} <= {*table.columns}), None
    )
    if columns is None:
        table = _read_table(file, has_header=False)
        if len(table.columns) < 2:
            raise InputError(f"{file}: columns 'child' and 'parent' are needed, found one column")
        columns = table.columns[0], table.columns[1]
    pairs = [(_trim(child), _trim(parent)) for child, parent in table.select(columns).iter_rows()]
    if keep_first:
        first: dict[str, str] = {}
        for child, parent in pairs:
            first.setdefault(child, parent)
        pairs = list(first.items())
    return Tree.from_edges(pairs, file)


def read_taxonomy(file: Path, ranks: Sequence[str] = RANKS, fill: bool = False) -> Tree:
    """The tree of a table with one column a rank, such as kingdom to species; ranks the table lacks are left out.

    Names recur across branches (one genus in two kingdoms), so a path is a node.

    Args:
        file: a ``.csv``, a ``.tsv`` / ``.txt`` with tabs, or ``.json``: a list of records, or iNaturalist's ``categories``.
        ranks: from the coarsest on.
        fill: where a rank is empty, stand in ``<parent> (no <rank>)``; False lists these rows as faults.
    """
    file = Path(file)
    table = _read_json(file) if file.suffix.lower() == ".json" else _read_table(file)
    if "species" in ranks and "species" not in table.columns and "name" in table.columns:
        table = table.rename({"name": "species"})
    there = [rank for rank in ranks if rank in table.columns]
    if not there:
        raise InputError(f"{file}: no column {names(ranks)}; the header has {names(table.columns)}")
    paths, faults = [], []
    for row, values in enumerate(table.select(there).iter_rows(), start=1):
        path = [_trim(value) for value in values]
        for place, rank in enumerate(there):
            if path[place]:
                continue
            if not fill or not place:
                faults.append(f"row {row}: {rank} is empty ({' > '.join(value for value in path if value)})")
            else:
                path[place] = f"{path[place - 1]} (no {rank})"
        paths.append(path)
    raise_faults(file, faults)
    return Tree.from_paths(paths, file, unique=False)


def read_tree(file: Path, kind: str = "auto", several_parents: str = "fault", fill: bool = False) -> Tree:
    """The tree of a file.

    Args:
        file: a table.
        kind: ``edges`` or ``taxonomy``; ``auto`` takes it for a taxonomy if it is JSON or has columns of two ranks.
        several_parents: of edges, as :func:`read_edges` takes it.
        fill: of a taxonomy, as :func:`read_taxonomy` takes it.
    """
    file = Path(file)
    is_taxonomy = _is_taxonomy(file) if kind == "auto" else choose({"edges": False, "taxonomy": True}, kind, "kind of tree")
    if fill and not is_taxonomy:
        raise InputError(f"{file}: only a taxonomy has ranks to fill; it is read as edges")
    if several_parents != "fault" and is_taxonomy:
        raise InputError(f"{file}: only edges have several parents; it is read as a taxonomy")
    return read_taxonomy(file, fill=fill) if is_taxonomy else read_edges(file, several_parents)


def _is_taxonomy(file: Path) -> bool:
    if file.suffix.lower() == ".json":
        return True
    return len({*_read_table(file).columns} & {*RANKS}) > 1


def _trim(value: str | None) -> str:
    return "" if value is None else value.strip()


def _read_table(file: Path, has_header: bool = True) -> pl.DataFrame:
    """The table as text: with commas if it is called .csv, else with tabs."""
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    separator = "," if file.suffix.lower() == ".csv" else "\t"
    with table_faults(file):
        table = pl.read_csv(file, separator=separator, has_header=has_header, infer_schema=False)
    plain = [name.strip().lower() for name in table.columns]  # Kingdom is kingdom
    return table.rename(dict(zip(table.columns, plain, strict=True))) if len({*plain}) == len(plain) else table


def _read_json(file: Path) -> pl.DataFrame:
    import json

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from error
    records = found.get("categories") if isinstance(found, dict) else found
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{file}: a list of records, or one under 'categories', is needed")
    rows = [{key: None if value is None else str(value) for key, value in one.items()} for one in records]
    return pl.DataFrame(rows, infer_schema_length=None)  # a rank that only the last record has is a column too
