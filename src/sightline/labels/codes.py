"""Items with several codes at several depths of a tree, such as logos with Vienna codes: how much one answers another.

What a query's code is worth to an item grows with every level of it that the item has, so it is a sum over the code's
ancestors; all pairs are then one sparse product, and only the requested rows are made.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from torch import Tensor

from sightline.errors import InputError, choose, raise_faults
from sightline.labels.tree import Tree, grouped

Floats = NDArray[np.float64]
CodeSets = Sequence[Sequence[str]]
T = TypeVar("T", int, str)
GRADES = 120  # divides evenly by 2, 3, 4, 5, 6 and 8; losses and metrics tell at most 126 apart
SYMMETRIES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "harmonic": lambda to, back: np.divide(2 * to * back, to + back, out=np.zeros_like(to), where=to + back > 0),
    "mean": lambda to, back: (to + back) / 2,
    "query": lambda to, back: to,
}
CODE = re.compile(r"\d+(\.\d+)*\.*")


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
        auxiliary_weight: worth of meeting an auxiliary code where the other item has the main code, or the other way round;
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
        worth, weights = self.worth, self.code_weights
        is_rising = len(worth) == self.n_levels and bool((np.diff([0.0, *worth]) >= 0).all())
        # The family of a main code lies within its division: only there do their levels add up.
        not_of_family = [
            f"{code!r} of {main!r}"
            for code, main in self._mains.items()
            if code.count(".") != self.n_levels - 1
            or code.rpartition(".")[0] != main.rpartition(".")[0]
            or main in self._mains
        ]
        rules = {
            f"n_levels must be at least 1, got {self.n_levels}": self.n_levels >= 1,
            f"level_weights must be {self.n_levels} rising numbers from 0 on, the last 1, got {worth}": is_rising
            and abs(max(worth, default=0) - 1) <= 1e-9,
            f"code_weights must be 'idf' or finite weights by code from 0 on, got {weights!r}": all(
                0 <= weight < math.inf for weight in weights.values()
            )
            if isinstance(weights, Mapping)
            else weights in ("idf", None),
            f"threshold must be from 0 to 1, got {self.threshold}": 0 <= self.threshold <= 1,
            f"auxiliary_weight is {self.auxiliary_weight}, not between {self._coarser} and 1": not self.auxiliary
            or self._coarser <= self._family_worth <= 1,
            f"auxiliary: {', '.join(not_of_family)}: a code and its main one, which is auxiliary to none, must have "
            f"{self.n_levels} levels and differ in the last alone": not not_of_family,
        }
        raise_faults("relevance of codes", [rule for rule, holds in rules.items() if not holds])

    @cached_property
    def worth(self) -> tuple[float, ...]:
        """Of sharing 1 to L levels."""
        shares = [(level / self.n_levels) ** self.alpha for level in range(1, self.n_levels + 1)]
        return tuple(map(float, shares if self.level_weights is None else self.level_weights))

    @property
    def _coarser(self) -> float:
        """The worth of sharing all levels but the last."""
        return (0.0, 0.0, *self.worth)[-2]

    @property
    def _family_worth(self) -> float:
        return self._coarser if self.auxiliary_weight is None else self.auxiliary_weight

    def between(self, queries: CodeSets, items: CodeSets | None = None, source: object = "codes") -> "CodePairs":
        """The relevance of the items to the queries, made row by row on access.

        Args:
            queries: the codes of each query.
            items: the codes of each item; None for the queries among themselves.
            source: for messages.
        """
        asked = _normal(queries, self.n_levels, source)
        listed = asked if items is None else _normal(items, self.n_levels, source)
        paths = {code: self._path(code) for codes in chain(asked, listed) for code in codes}
        number = {node: place for place, node in enumerate(dict.fromkeys(node for path in paths.values() for node in path))}
        rarity = Counter(code for codes in listed for code in {*codes})
        weights = {code: self._code_weight(code, rarity[code], len(listed)) for code in paths}
        own = _incidence(asked, paths, number, weights)
        return CodePairs(self, *own, *(own if items is None else _incidence(listed, paths, number, weights)))

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

    def _path(self, code: str) -> dict[str, float]:
        """The code's ancestors and itself, each with the worth of sharing it."""
        nodes = beginnings(code)
        path = dict(zip(nodes, self.worth, strict=False))
        if self.auxiliary and len(nodes) == self.n_levels:
            # A family between a section and its division: the main section and those auxiliary to it.
            full = path.popitem()
            path |= {f"family of {self._mains.get(code, code)}": self._family_worth} | dict([full])
        return path

    @cached_property
    def _mains(self) -> dict[str, str]:
        mains = normal_codes(self.auxiliary.values(), "auxiliary")
        return dict(zip(normal_codes(self.auxiliary, "auxiliary"), mains, strict=True))

    @cached_property
    def _given_weights(self) -> dict[str, float]:
        given = self.code_weights if isinstance(self.code_weights, Mapping) else {}
        return dict(zip(normal_codes(given, "code_weights"), given.values(), strict=True))

    def _code_weight(self, code: str, n_carriers: int, n_items: int) -> float:
        if self.code_weights == "idf":
            return float(np.log((1 + n_items) / (1 + n_carriers)) + 1)
        weights = self._given_weights
        return next((weights[one] for one in reversed(beginnings(code)) if one in weights), 1.0)


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

    def rows(self, queries: NDArray[Any], items: NDArray[Any] | slice = slice(None)) -> Floats:
        """(B, G) exact relevance of all items, or of some, to these queries."""
        there = (self.gives[queries] @ self.item_has[items].T).toarray()
        if self.relevance.symmetry != "query":
            back = (self.has[queries] @ self.item_gives[items].T).toarray()
            there = SYMMETRIES[self.relevance.symmetry](there, back)
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
    return np.where(relevance > 0, np.maximum(np.rint(relevance * grades), 1.0) / grades, 0.0)


class CodeTable(NamedTuple):
    """Which codes of one depth items have; a code that stops above that depth stands for itself.

    Attributes:
        names: of the C codes.
        has: (N, C) float32, 1 where an item has a code.
    """

    names: tuple[str, ...]
    has: sparse.csr_array


def code_tables(sets: CodeSets, n_levels: int, source: object = "codes") -> tuple[CodeTable, ...]:
    """The table of each depth, finest first.

    Example:
        >>> [table.names for table in code_tables([["1.2", "1.3"], ["4"]], n_levels=2)]
        [('1.2', '1.3', '4'), ('1', '4')]
    """
    paths = [[_padded(code, n_levels) for code in codes] for codes in _normal(sets, n_levels, source)]
    tables = []
    for depth in reversed(range(n_levels)):
        rows = [dict.fromkeys(path[depth] for path in row) for row in paths]
        number = {name: place for place, name in enumerate(sorted(dict.fromkeys(chain.from_iterable(rows))))}
        ends = np.cumsum([0, *map(len, rows)])
        columns = [number[name] for row in rows for name in row]
        shape = (len(rows), len(number))
        has = sparse.csr_array((np.ones(len(columns), np.float32), columns, ends), shape=shape)
        tables.append(CodeTable(tuple(name.rstrip(".") for name in number), has))
    return tuple(tables)


def sampling_labels(sets: CodeSets, n_levels: int, min_items: int = 2) -> NDArray[np.int64]:
    """(N, L) one path of class numbers an item, finest first, for samplers: that of a rare code which enough items have.

    A batch drawn by it has several items of a code even where most items also carry a common one, or one of their own. An
    item whose codes were all used up gets items of one back from classes that have more than enough.

    Args:
        sets: the codes of each item.
        n_levels: L, the depth of the tree.
        min_items: items that a code must bring together, such as a sampler's ``per_class``; an item none of whose codes do
            has its rarest.
    """
    number: dict[str, int] = {}
    rows = [[number.setdefault(node, len(number)) for node in path] for path in sampling_paths(sets, n_levels, min_items)]
    return np.fliplr(np.array(rows, np.int64).reshape(-1, n_levels))


def sampling_paths(sets: CodeSets, n_levels: int, min_items: int = 2) -> list[list[str]]:
    """The names behind :func:`sampling_labels`: for each item a node of each level, coarsest first.

    Example:
        >>> sampling_paths([["1.2", "3.1"], ["1.2"]], n_levels=2)
        [['1', '1.2'], ['1', '1.2']]
    """
    return [_padded(code, n_levels) for code in _rare_and_shared(_normal(sets, n_levels, "codes"), min_items)]


def sampling_classes(label_sets: ArrayLike | Tensor, min_items: int = 2) -> NDArray[np.int64]:
    """(N,) one class an item of flat sets, (N, C) bool, for samplers: a rare label that enough items have.

    As :func:`sampling_labels`; an item without a label is a class of its own.

    Example:
        >>> sampling_classes([[True, True, False], [True, True, False], [True, False, True], [True, False, False]])
        array([1, 1, 0, 0])
    """
    sets = np.asarray(label_sets)
    if sets.dtype != bool or sets.ndim != 2:
        raise InputError(f"label_sets must be (N, C) bool, found {sets.dtype} {sets.shape}")
    own = [np.flatnonzero(row).tolist() or [sets.shape[1] + place] for place, row in enumerate(sets)]
    return np.array(_rare_and_shared(own, min_items), np.int64)


def _rare_and_shared(sets: Sequence[Sequence[T]], min_items: int) -> list[T]:
    """One label an item: rarest first, each label takes the items left that have it, if those are enough."""
    if min_items < 1:
        raise InputError(f"min_items must be at least 1, got {min_items}")
    carriers = grouped((label, item) for item, labels in enumerate(sets) for label in labels)
    # Of equally rare ones the first in order, so that items which carry both meet.
    place = {label: n for n, label in enumerate(sorted(carriers, key=lambda label: (len(carriers[label]), label)))}
    chosen: dict[int, T] = {}
    for label in place:
        left = [item for item in carriers[label] if item not in chosen]
        if len(left) >= min_items:
            chosen.update(dict.fromkeys(left, label))
    in_use = {*chosen.values()}
    for item, labels in enumerate(sets):  # an item that is left joins a label in use where it has one
        if item not in chosen and (shared := [label for label in labels if label in in_use]):
            chosen[item] = min(shared, key=place.__getitem__)
    sizes = Counter(chosen.values())
    for item, labels in enumerate(sets):
        for label in sorted(labels, key=place.__getitem__):
            if item not in chosen:
                taken = _spared(carriers[label], chosen, sizes, min_items)
                sizes.subtract(chosen[one] for one in taken if one in chosen)
                sizes[label] += len(taken)
                chosen.update(dict.fromkeys(taken, label))
    return [chosen[item] if item in chosen else min(sets[item], key=place.__getitem__) for item in range(len(sets))]


def _spared(carriers: Sequence[int], chosen: Mapping[int, T], sizes: Mapping[T, int], min_items: int) -> list[int]:
    """Items of a label that are left, with as many from larger classes as it takes; none where those cannot spare them."""
    taken, used = [item for item in carriers if item not in chosen], Counter[T]()
    for item in carriers:
        if len(taken) < min_items and item in chosen and sizes[chosen[item]] - used[chosen[item]] > min_items:
            used[chosen[item]] += 1
            taken.append(item)
    return taken if len(taken) >= min_items else []


def _normal(sets: Iterable[Sequence[str]], n_levels: int, source: object) -> list[list[str]]:
    """Codes in one spelling; refused where an item has none, or one of more levels than there are."""
    given = [list(codes) for codes in sets]
    distinct = list(dict.fromkeys(chain.from_iterable(given)))
    spelled = dict(zip(distinct, normal_codes(distinct, source), strict=True))
    faults = [f"item {place}: no code" for place, codes in enumerate(given, start=1) if not codes]
    depths = {code: code.count(".") + 1 for code in spelled.values()}
    faults += [f"{code!r} has {n} levels, at most {n_levels} are expected" for code, n in depths.items() if n > n_levels]
    raise_faults(source, faults)
    return [[spelled[code] for code in codes] for codes in given]


def beginnings(code: str) -> list[str]:
    """The beginnings of a code along its dots, coarsest first, and the code itself.

    Example:
        >>> beginnings("26.1.15")
        ['26', '26.1', '26.1.15']
    """
    parts = code.split(".")
    return [one for depth in range(1, len(parts) + 1) if (one := ".".join(parts[:depth]))]


def _padded(code: str, n_levels: int) -> list[str]:
    """A node of each depth, coarsest first: the code's beginnings, then the code itself with a dot more at each."""
    return beginnings(code + "." * (n_levels - 1 - code.count(".")))


def _incidence(
    sets: CodeSets, paths: Mapping[str, Mapping[str, float]], number: Mapping[str, int], weights: Mapping[str, float]
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """(N, nodes) what each node is worth to each item, and which nodes each item has."""
    rows, columns, values = [], [], []
    for row, codes in enumerate(sets):
        distinct = list(dict.fromkeys(codes))
        shares = np.array([weights[code] for code in distinct])
        shares = shares if shares.any() else np.ones(len(distinct))
        for code, share in zip(distinct, shares / shares.sum(), strict=True):
            worth = np.array([0.0, *paths[code].values()])
            steps = np.diff(worth) / worth[-1] if worth[-1] else np.eye(len(worth) - 1)[-1]
            rows += [row] * len(steps)
            columns += [number[node] for node in paths[code]]
            values += (share * steps).tolist()
    shape = (len(sets), max(len(number), 1))
    gives = sparse.csr_array((values, (rows, columns)), shape=shape, dtype=np.float64)
    has = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape, dtype=np.float64)
    has.data[:] = 1  # ancestors that several of an item's codes share count once
    return gives, has


def is_code(text: str) -> bool:
    """Whether a text is a dotted code, in any spelling."""
    return bool(CODE.fullmatch(text.strip()))


def normal_codes(codes: Iterable[str], source: object = "codes") -> list[str]:
    """Dotted codes without spaces and leading zeros; all that are none are listed at once.

    Example:
        >>> normal_codes([" 26.01.15 "])
        ['26.1.15']
    """
    given = list(codes)
    raise_faults(source, [f"{code!r} is no dotted code such as 26.1.15" for code in given if not is_code(code)])
    return [".".join(str(int(part)) for part in code.strip().rstrip(".").split(".")) for code in given]


def tree_of_codes(codes: Iterable[str], source: object = "codes") -> Tree:
    """The tree of dotted codes such as the Vienna classification's; each beginning of a code is a node above it.

    Example:
        >>> tree_of_codes(["26.1.15", "26.01.03", "3.9"]).level_sizes()
        [2, 2, 2]
    """
    nodes = (node for code in normal_codes(codes, source) for node in reversed(beginnings(code)))
    return Tree.from_edges(((node, node.rpartition(".")[0]) for node in dict.fromkeys(nodes)), source)
