"""Items with several codes at several depths of a tree, such as logos with Vienna codes: how much one answers another.

What a query's code is worth to an item grows with every level of it that the item has, so it is a sum over the code's
ancestors; all pairs are then one sparse product, and only the rows asked for are made.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from torch import Tensor

from sightline.data.manifest import Manifest
from sightline.errors import InputError, choose, names, raise_faults
from sightline.labels.tree import Tree

Floats = NDArray[np.float64]
CodeSets = Sequence[Sequence[str]]
T = TypeVar("T", int, str)
GRADES = 120  # divides evenly by 2, 3, 4, 5, 6 and 8; losses and metrics tell at most 126 apart
SYMMETRIES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "harmonic": lambda to, back: np.divide(2 * to * back, to + back, out=np.zeros_like(to), where=to + back > 0),
    "mean": lambda to, back: (to + back) / 2,
    "query": lambda to, back: to,
}
CODE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class CodeRelevance:
    """How much an item with some codes answers a query with some codes, from 0 to 1.

    For each code of the query the item's nearest code counts, by how many levels the two share; the query's codes are
    averaged, evenly where all weigh 0. Codes that the item has beyond these are free. A query's code that stops above the
    finest level is fully met by itself and by any code below it.

    Attributes:
        n_levels: L, the depth of the tree; no code is deeper.
        level_weights: worth of sharing 1, 2, ... L levels: rising to 1. None for ``(l / L) ** alpha``.
        alpha: above 1 only near matches count much.
        code_weights: how much a code of the query counts beside its others; ``idf`` for the logarithm of how rare the code
            is among the items, or a weight by code (or by a beginning of it, the longest decides), 1 for the rest.
        symmetry: ``query`` asks how much of the query the item has; ``mean`` and ``harmonic`` join it with the way back.
        auxiliary: the main code of each auxiliary one.
        auxiliary_weight: worth of meeting an auxiliary code where its main code is asked for, or the other way round;
            between sharing L - 1 and L levels.
        threshold: what is below it is 0.

    Example:
        >>> relevance = CodeRelevance(n_levels=3)
        >>> query, item = ["3.6.3", "26.1.15", "29.1.1"], ["3.6.1", "26.1.15"]
        >>> relevance.matrix([query], [item]).round(4), relevance.matrix([item], [query]).round(4)
        (array([[0.5556]]), array([[0.8333]]))
    """

    n_levels: int = 3
    level_weights: tuple[float, ...] | None = None
    alpha: float = 1.0
    code_weights: Mapping[str, float] | str | None = None
    symmetry: str = "query"
    auxiliary: Mapping[str, str] = field(default_factory=dict)
    auxiliary_weight: float | None = None
    threshold: float = 0.0

    def __post_init__(self) -> None:
        choose(SYMMETRIES, self.symmetry, "symmetry")
        if self.n_levels < 1:
            raise InputError(f"n_levels is {self.n_levels}: at least 1 is needed")
        steps = np.diff([0.0, *self.worth])
        if len(self.worth) != self.n_levels or not (steps >= 0).all() or abs(self.worth[-1] - 1) > 1e-9:
            raise InputError(f"level_weights are {self.worth}: {self.n_levels} are needed, from 0 on, rising, the last 1")
        if isinstance(self.code_weights, str) and self.code_weights != "idf":
            raise InputError(f"code_weights are {self.code_weights!r}: 'idf', or weights by code, are needed")
        if isinstance(self.code_weights, Mapping) and not all(0 <= one < math.inf for one in self.code_weights.values()):
            raise InputError("code_weights: finite weights from 0 on are needed")
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}: a number from 0 to 1 is needed")
        if self.auxiliary and self.auxiliary_weight is not None and not self._coarser <= self.auxiliary_weight <= 1:
            raise InputError(f"auxiliary_weight is {self.auxiliary_weight}, not between {self._coarser} and 1")
        # The family of a main code lies within its division: only there do their levels add up.
        wrong = [
            f"{code!r} of {main!r}"
            for code, main in self._mains.items()
            if code.count(".") != self.n_levels - 1
            or code.rpartition(".")[0] != main.rpartition(".")[0]
            or main in self._mains
        ]
        raise_faults(f"auxiliary: two codes of {self.n_levels} levels that differ in the last, to a main one", wrong)

    @cached_property
    def worth(self) -> tuple[float, ...]:
        """Of sharing 1 to L levels."""
        if self.level_weights is not None:
            return tuple(float(weight) for weight in self.level_weights)
        return tuple((level / self.n_levels) ** self.alpha for level in range(1, self.n_levels + 1))

    @property
    def _coarser(self) -> float:
        return self.worth[-2] if self.n_levels > 1 else 0.0

    def between(self, queries: CodeSets, items: CodeSets | None = None, source: object = "codes") -> "CodePairs":
        """The relevance of the items to the queries, made row by row when asked for.

        Args:
            queries: the codes of each query.
            items: the codes of each item; None for the queries among themselves.
            source: for messages.
        """
        asked = _normal(queries, self.n_levels, source)
        listed = asked if items is None else _normal(items, self.n_levels, source)
        number: dict[str, int] = {}
        has = [_incidence(side, self._paths, number) for side in (asked, listed)]
        rarity = Counter(code for codes in listed for code in dict.fromkeys(codes))
        gives = [self._weights(side, number, rarity, len(listed)) for side in (asked, listed)]
        n_nodes = len(number)
        for table in (*has, *gives):
            table.resize(table.shape[0], n_nodes)
        return CodePairs(self, gives[0], has[0], gives[1], has[1])

    def matrix(self, queries: CodeSets, items: CodeSets | None = None) -> Floats:
        """(Q, G) the whole table, exact; for large sets ask :meth:`between` for rows."""
        pairs = self.between(queries, items)
        return pairs.rows(np.arange(pairs.gives.shape[0]))

    def batch(self, queries: CodeSets, items: CodeSets | None = None, grades: int | None = GRADES) -> Tensor:
        """(Q, G) float32 as ranking losses take it in place of labels, in so many grades.

        Example:
            >>> import sightline.losses
            >>> relevance = CodeRelevance(3).batch([["1.1.1"], ["1.1.2"], ["2.5.1"]])
            >>> sightline.losses.create_loss("sup_h_ap")(torch.eye(3), relevance).isfinite()
            tensor(True)
        """
        return torch.from_numpy(graded(self.matrix(queries, items), grades)).float()

    def _paths(self, code: str) -> list[tuple[str, float]]:
        """The code's ancestors and itself, each with the worth of sharing it."""
        parts = code.split(".")
        nodes = [(".".join(parts[:depth]), self.worth[depth - 1]) for depth in range(1, len(parts) + 1)]
        if self.auxiliary and len(parts) == self.n_levels:
            # A family between a section and its division: the main section and those auxiliary to it.
            family = f"family of {self._mains.get(code, code)}"
            nodes.insert(-1, (family, self._coarser if self.auxiliary_weight is None else self.auxiliary_weight))
        return nodes

    @cached_property
    def _mains(self) -> dict[str, str]:
        both = zip(
            normal_codes(self.auxiliary, "auxiliary"), normal_codes(self.auxiliary.values(), "auxiliary"), strict=True
        )
        return dict(both)

    @cached_property
    def _given_weights(self) -> dict[str, float]:
        if not isinstance(self.code_weights, Mapping):
            return {}
        return dict(zip(normal_codes(self.code_weights, "code_weights"), self.code_weights.values(), strict=True))

    def _code_weight(self, code: str, rarity: Counter[str], n_items: int) -> float:
        if self.code_weights == "idf":
            return float(np.log((1 + n_items) / (1 + rarity[code])) + 1)
        parts = code.split(".")
        beginnings = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return next((self._given_weights[one] for one in beginnings if one in self._given_weights), 1.0)

    def _weights(self, sets: CodeSets, number: dict[str, int], rarity: Counter[str], n_items: int) -> sparse.csr_array:
        rows, columns, values = [], [], []
        for row, codes in enumerate(sets):
            distinct = list(dict.fromkeys(codes))
            shares = np.array([self._code_weight(code, rarity, n_items) for code in distinct])
            shares = shares if shares.any() else np.ones(len(distinct))
            for code, share in zip(distinct, shares / shares.sum(), strict=True):
                path = self._paths(code)
                full = path[-1][1]
                below = 0.0
                for node, worth in path:
                    rows.append(row)
                    columns.append(number[node])
                    values.append(share * ((worth - below) / full if full else float(node == code)))
                    below = worth
        return sparse.csr_array((values, (rows, columns)), shape=(len(sets), len(number)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CodePairs:
    """Rows of relevance between two sets of items; call it with query numbers, as ``evaluate(judgements=...)`` does.

    Attributes:
        relevance: the rule.
        gives: (Q, nodes) what each node is worth to each query.
        has: (Q, nodes) which nodes each query has.
        item_gives: (G, nodes).
        item_has: (G, nodes).
        grades: values are rounded to this many in a call; :meth:`rows` is exact.
    """

    relevance: CodeRelevance
    gives: sparse.csr_array
    has: sparse.csr_array
    item_gives: sparse.csr_array
    item_has: sparse.csr_array
    grades: int | None = GRADES

    def rows(self, queries: NDArray[Any]) -> Floats:
        """(B, G) exact relevance of all items to these queries."""
        there = (self.gives[queries] @ self.item_has.T).toarray()
        if self.relevance.symmetry != "query":
            there = SYMMETRIES[self.relevance.symmetry](there, (self.has[queries] @ self.item_gives.T).toarray())
        return np.where(there < self.relevance.threshold, 0.0, there)

    def __call__(self, queries: NDArray[Any]) -> Floats:
        return graded(self.rows(queries), self.grades)


def graded(relevance: Floats, grades: int | None = GRADES) -> Floats:
    """Relevance rounded to ``grades`` equal steps, none above 0 to 0; None leaves it, but for the last bits.

    Example:
        >>> graded(np.array([0.0, 0.001, 0.26, 1.0]), grades=4)
        array([0.  , 0.25, 0.25, 1.  ])
    """
    if grades is None:
        return relevance.round(9)
    steps = np.maximum(np.rint(relevance * grades), 1.0)
    return np.where(relevance > 0, steps / grades, 0.0)


def read_code_sets(manifest: Manifest, column: str = "codes") -> list[list[str]]:
    """The codes of each image, from a column that holds them with spaces, ``;``, ``|`` or ``,`` between."""
    if column not in manifest.table.columns:
        raise InputError(f"{manifest.source}: no column {column!r}; it has {names(manifest.table.columns)}")
    found = manifest.table[column].cast(str).fill_null("").str.replace_all(r"[;|,\s]+", " ").str.strip_chars()
    sets = [text.split() for text in found]
    raise_faults(manifest.source, [f"row {row}: {column} is empty" for row, codes in enumerate(sets, 1) if not codes])
    return _normal(sets, None, manifest.source)


def sampling_labels(sets: CodeSets, n_levels: int, min_items: int = 2) -> NDArray[np.int64]:
    """(N, L) one path of class numbers an item, finest first, for samplers: that of a rare code which enough items have.

    A batch drawn by it has several items of a code even where most items also carry a common one, or one of their own.

    Args:
        sets: the codes of each item.
        n_levels: L, the depth of the tree.
        min_items: items that a code must bring together, such as a sampler's ``per_class``; an item none of whose codes do
            has its rarest.
    """
    number: dict[str, int] = {}
    normal = _normal(sets, n_levels, "codes")
    table = np.empty((len(normal), n_levels), np.int64)
    for row, code in enumerate(_rare_and_shared(normal, min_items)):
        parts = code.split(".")
        for depth in range(1, n_levels + 1):
            table[row, n_levels - depth] = number.setdefault(
                ".".join(parts[:depth]) + "." * max(0, depth - len(parts)), len(number)
            )
    return table


def sampling_classes(label_sets: ArrayLike | Tensor, min_items: int = 2) -> NDArray[np.int64]:
    """(N,) one class an item of flat sets, (N, C) bool, for samplers: a rare label that enough items have.

    As :func:`sampling_labels`; an item without a label is a class of its own.

    Example:
        >>> sampling_classes([[True, True, False], [True, True, False], [True, False, True], [True, False, False]])
        array([1, 1, 0, 0])
    """
    sets = np.asarray(label_sets)
    if sets.dtype != bool or sets.ndim != 2:
        raise InputError(f"label_sets: (N, C) bool is needed, found {sets.dtype} {sets.shape}")
    alone = sets.shape[1] + np.arange(len(sets))
    own = [np.flatnonzero(row).tolist() or [int(other)] for row, other in zip(sets, alone, strict=True)]
    return np.array(_rare_and_shared(own, min_items), np.int64)


def _rare_and_shared(sets: Sequence[Sequence[T]], min_items: int) -> list[T]:
    """One label an item: rarest first, each label takes the items left that have it, if those are enough."""
    if min_items < 1:
        raise InputError(f"min_items is {min_items}: at least 1 is needed")
    carriers: dict[T, list[int]] = {}
    for item, labels in enumerate(sets):
        for label in dict.fromkeys(labels):
            carriers.setdefault(label, []).append(item)
    # Of equally rare ones the first in order, so that items which carry both meet.
    place = {label: n for n, label in enumerate(sorted(carriers, key=lambda label: (len(carriers[label]), label)))}
    chosen: dict[int, T] = {}
    for label in place:
        left = [item for item in carriers[label] if item not in chosen]
        if len(left) >= min_items:
            chosen.update(dict.fromkeys(left, label))
    in_use = {*chosen.values()}
    for item in (item for item in range(len(sets)) if item not in chosen):
        chosen[item] = min(sets[item], key=lambda label: (label not in in_use, place[label]))
    return [chosen[item] for item in range(len(sets))]


def _normal(sets: Iterable[Sequence[str]], n_levels: int | None, source: object) -> list[list[str]]:
    given = [list(codes) for codes in sets]
    flat = normal_codes((code for codes in given for code in codes), source)
    if n_levels is not None:
        deep = [f"{code!r} has {code.count('.') + 1} levels" for code in dict.fromkeys(flat) if code.count(".") >= n_levels]
        raise_faults(f"{source}: at most {n_levels} levels are expected", deep)
    ends = np.cumsum([len(codes) for codes in given]).tolist()
    found = [flat[end - len(codes) : end] for codes, end in zip(given, ends, strict=True)]
    raise_faults(source, [f"item {place}: no code" for place, codes in enumerate(found, start=1) if not codes])
    return found


def _incidence(sets: CodeSets, paths: Callable[[str], list[tuple[str, float]]], number: dict[str, int]) -> sparse.csr_array:
    rows, columns = [], []
    for row, codes in enumerate(sets):
        nodes = dict.fromkeys(node for code in codes for node, _ in paths(code))
        rows += [row] * len(nodes)
        columns += [number.setdefault(node, len(number)) for node in nodes]
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(sets), max(len(number), 1)), dtype=np.float64)


def normal_code(code: str) -> str:
    """A dotted code without spaces and leading zeros.

    Example:
        >>> normal_code(" 26.01.15 ")
        '26.1.15'
    """
    text = code.strip().rstrip(".")
    if not CODE.fullmatch(text):
        raise InputError(f"{code!r} is no dotted code such as 26.1.15")
    return ".".join(str(int(part)) for part in text.split("."))


def normal_codes(codes: Iterable[str], source: object = "codes") -> list[str]:
    """Each code as :func:`normal_code` gives it; all that are none are listed at once."""
    found, faults = [], []
    for code in codes:
        try:
            found.append(normal_code(code))
        except InputError as error:
            faults.append(str(error))
    raise_faults(source, faults)
    return found


def tree_of_codes(codes: Iterable[str], source: object = "codes") -> Tree:
    """The tree of dotted codes such as the Vienna classification's; each beginning of a code is a node above it.

    Example:
        >>> tree_of_codes(["26.1.15", "26.01.03", "3.9"]).level_sizes()
        [2, 2, 2]
    """
    edges: dict[str, str] = {}
    for code in normal_codes(codes, source):
        parts = code.split(".")
        for depth in range(len(parts), 0, -1):
            edges[".".join(parts[:depth])] = ".".join(parts[: depth - 1])
    return Tree.from_edges(edges.items(), source)
