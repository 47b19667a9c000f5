"""One result as text, JSON, CSV and Markdown, with an interval; two compared.

Bootstrap intervals and paired tests take values with one row a query and one column a metric; a query is left out of a
metric that is NaN for it. With ``groups``, all queries of a group are drawn, or flipped, together: queries of one class
rank much the same items, so their values rise and fall together, and one by one they would look surer than they are.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from sightline.errors import InputError, choose, names, nearest
from sightline.evaluation.metrics import metric_of, shown_scale
from sightline.files import read_json, replaced
from sightline.progress import html_table

Unit = Literal["queries", "classes"]
UNITS: dict[str, Unit] = {"queries": "queries", "classes": "classes"}

N_RESAMPLES = 2000  # moves an end of a 95 % interval by a fiftieth of its width
N_FLIPS = 9999  # the smallest p is 1 / 10,000
SHOWN_CODES = 10
BLOCK_ELEMENTS = 1 << 22  # weights held at once: 32 MB
Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


class CodeAP(NamedTuple):
    """The average precision of one code: each image that has it queries, and those that have it are the relevant ones.

    Attributes:
        code: of the finest depth, or one that stops above it.
        n_queries: that have it.
        n_items: of the gallery that have it, the queries themselves included.
        ap: mean over the queries; NaN where no other item has it.
    """

    code: str
    n_queries: int
    n_items: int
    ap: float


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, float]):
    """Metrics of a set of rankings: a mapping from each metric's name to its mean, which shows itself as a table.

    Attributes:
        per_query: the value of each metric for each query, (Q,) float64; NaN for a query without a relevant item.
        ids: the name of each query; two results with ids are compared only if these agree.
        labels: (Q,) the class of each query, for intervals and tests over classes.
        fingerprint: of the encoder that made the vectors.
        notes: what a reader of the numbers must know, one sentence each.
        codes: of images with several codes, the average precision of each code.

    Example:
        >>> result = Result({"map": np.array([1.0, 0.5, np.nan])})
        >>> result["map"], result.n_queries, result.n_skipped
        (0.75, 3, 1)
        >>> result
        map   75.0
        3 queries, 1 without a relevant item left out
    """

    per_query: dict[str, NDArray[np.float64]]
    ids: Sequence[str] | None = None
    labels: NDArray[np.generic] | None = None
    fingerprint: str | None = None
    notes: tuple[str, ...] = ()
    codes: tuple[CodeAP, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.per_query, Mapping):
            raise InputError(f"per_query must be a mapping from metric to values, got {type(self.per_query).__name__}")
        columns = {name: np.asarray(column, np.float64) for name, column in self.per_query.items()}
        object.__setattr__(self, "per_query", columns)
        if self.labels is not None:
            object.__setattr__(self, "labels", np.asarray(self.labels))
        shapes = {name: np.shape(column) for name, column in self.per_query.items()}
        if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise InputError(f"per_query must have one metric or more, each of (Q,) values, got {shapes}")
        for what, given in (("ids", self.ids), ("labels", self.labels)):
            if given is not None and np.shape(given) != (self.n_queries,):
                raise InputError(
                    f"{what} must have one for each of the {self.n_queries} queries, got shape {np.shape(given)}"
                )

    def __getitem__(self, name: str) -> float:
        """The mean of a metric over the queries for which it is defined; NaN where there are none."""
        if name not in self.per_query:
            raise KeyError(f"no metric {name!r}: {nearest(str(name), self.per_query)}")
        return _mean(self.per_query[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.per_query)

    def __len__(self) -> int:
        return len(self.per_query)

    def __repr__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        rows = [[name, shown(name, self[name]), _meaning(name)] for name in self]
        header = ["metric", "% (or levels)" if any(shown_scale(name) == 1 for name in self) else "%", "meaning"]
        return html_table([header, *rows], " ".join([self._counts(None, "queries"), *self.notes]))

    @property
    def means(self) -> dict[str, float]:
        """Every metric's mean."""
        return dict(self)

    @property
    def n_queries(self) -> int:
        """Queries asked, with or without a relevant item."""
        return len(next(iter(self.per_query.values())))

    @property
    def n_skipped(self) -> int:
        """Queries without a relevant item, left out of every mean; as the first metric that is defined for all others says.

        Severity is undefined where nothing is wrong, too: by itself it cannot tell.
        """
        columns = [column for name, column in self.per_query.items() if is_total(name)]
        return int(np.isnan((columns or list(self.per_query.values()))[0]).sum())

    def interval(self, name: str, level: float = 0.95, by: Unit = "queries", seed: int = 0) -> Interval:
        """The bootstrap confidence interval of a metric's mean.

        Args:
            name: the metric.
            level: between 0 and 1.
            by: ``queries`` asks how it would vary with other queries of these classes; ``classes``, which needs
                ``labels``, with other classes.
            seed: random seed of the resampling.

        Example:
            >>> low, high = Result({"map": np.linspace(0, 1, 101)}).interval("map")
            >>> f"{low:.2f} {high:.2f}"
            '0.44 0.56'
        """
        values = choose(self.per_query, name, "metric")[:, None]
        low, high = bootstrap_interval(values, self.groups(by), level, seed=seed)[:, 0].tolist()
        return Interval(low, high)

    def groups(self, by: Unit) -> NDArray[np.generic] | None:
        """What to resample by: None for queries, the class of each query for classes."""
        if choose(UNITS, by, "unit") == "queries":
            return None
        if self.labels is None:
            raise InputError("by classes: the result has no class for each query; evaluate with labels")
        return self.labels

    def as_text(self, level: float | None = None, by: Unit = "queries") -> str:
        """A table for a terminal, shares in percent, with intervals if a level is given."""
        width = max(map(len, self.per_query))
        lines = [f"{name:<{width}}  {self._cell(name, level, by, width=5)}" for name in self.per_query]
        return "\n".join([*lines, self._counts(level, by), *self.notes, *self._frequent_codes()])

    def _frequent_codes(self) -> Iterator[str]:
        """A table of the codes with most queries, if there are codes."""
        if self.codes:
            most = sorted(self.codes, key=lambda one: (-one.n_queries, one.code))[:SHOWN_CODES]
            rows = [[one.code, str(one.n_queries), str(one.n_items), shown("map", one.ap)] for one in most]
            yield f"average precision of the {len(most)} most frequent of {len(self.codes)} codes"
            yield text_table([["code", "queries", "items", "AP"], *rows], "<>>>")

    def as_markdown(self, level: float | None = None, by: Unit = "queries") -> str:
        """A Markdown table of one row, shares in percent, with intervals if a level is given."""
        table = markdown_table([list(self.per_query), [self._cell(name, level, by) for name in self.per_query]])
        return "\n\n".join([table, self._counts(level, by), *self.notes]) + "\n"

    def as_csv(self, level: float | None = None, by: Unit = "queries") -> str:
        """One line a metric: its name, its mean and, if a level is given, the ends of its interval; not in percent."""
        lines = [
            [name, mean, *([] if level is None else self.interval(name, level, by))] for name, mean in self.means.items()
        ]
        return _csv([["metric", "mean", *([] if level is None else Interval._fields)], *lines])

    def write_csv(self, file: Path, spreadsheet_safe: bool = False) -> Path:
        """Write one line a query: its id and class where they are known, and its metrics, empty where undefined.

        Args:
            file: where to.
            spreadsheet_safe: put an apostrophe before text that a spreadsheet would take for a formula, such as an id that
                begins with ``=``; False keeps every id as it is.
        """
        given: dict[str, Iterable[object] | None] = {"id": self.ids, "label": self.labels}
        given |= {name: ["" if np.isnan(value) else float(value) for value in c] for name, c in self.per_query.items()}
        columns = {
            name: [_no_formula(cell) if spreadsheet_safe else cell for cell in column]
            for name, column in given.items()
            if column is not None
        }
        with replaced(Path(file)) as scratch:
            scratch.write_text(_csv([list(columns), *zip(*columns.values(), strict=True)]), encoding="utf-8")
        return Path(file)

    def write_codes(self, file: Path) -> Path:
        """Write one line a code as CSV: the code, its queries, its items and its AP, empty where undefined."""
        lines = [[*one[:3], "" if np.isnan(one.ap) else one.ap] for one in self.codes]
        with replaced(Path(file)) as scratch:
            scratch.write_text(_csv([["code", "queries", "items", "ap"], *lines]), encoding="utf-8")
        return Path(file)

    def _cell(self, name: str, level: float | None, by: Unit, width: int = 0) -> str:
        mean = f"{shown(name, self[name]):>{width}}"
        return (
            mean if level is None else f"{mean} [{', '.join(shown(name, end) for end in self.interval(name, level, by))}]"
        )

    def _counts(self, level: float | None, by: Unit) -> str:
        is_counted = self.n_skipped and any(map(is_total, self.per_query))
        skipped = f", {self.n_skipped} without a relevant item left out" if is_counted else ""
        partly = [
            f"; {name} of {np.count_nonzero(~np.isnan(column))}"
            for name, column in self.per_query.items()
            if not is_total(name)
        ]
        intervals = "" if level is None else f"; {100 * level:g} % intervals over {by}"
        return f"{self.n_queries} queries{skipped}{''.join(partly)}{intervals}"

    def write_json(self, file: Path) -> Path:
        """Write means, counts and the value of every query; ids, classes and fingerprint if known; NaN becomes null."""
        stored = {
            "metrics": dict(zip(self.means, _or_none(self.means.values()), strict=True)),
            "n_queries": self.n_queries,
            "n_skipped": self.n_skipped,
            "per_query": {name: _or_none(column) for name, column in self.per_query.items()},
            "ids": None if self.ids is None else list(self.ids),
            "labels": None if self.labels is None else self.labels.tolist(),
            "fingerprint": self.fingerprint,
            "notes": list(self.notes) or None,
            "codes": [[*one[:3], *_or_none([one.ap])] for one in self.codes] or None,
        }
        with replaced(Path(file)) as scratch:
            scratch.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}) + "\n")
        return Path(file)

    @classmethod
    def read_json(cls, file: Path) -> "Result":
        """The result that :meth:`write_json` wrote."""
        try:
            stored = read_json(Path(file))
            return cls(
                {name: np.array(column, np.float64) for name, column in stored["per_query"].items()},
                None if stored.get("ids") is None else list(map(str, stored["ids"])),
                None if stored.get("labels") is None else np.array(stored["labels"]),
                stored.get("fingerprint"),
                tuple(map(str, stored.get("notes", ()))),
                tuple(
                    CodeAP(str(c), int(q), int(n), np.nan if a is None else float(a))
                    for c, q, n, a in stored.get("codes", ())
                ),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(f"{file}: not a result of sightline evaluate: {error}") from error


class Difference(NamedTuple):
    """One metric of two results on the same queries.

    Attributes:
        a: mean of the first over the queries for which both are defined.
        b: mean of the second over these.
        interval: of ``b - a``, by bootstrap.
        p: of the sign-flip test, two-sided, raised for the number of metrics (Holm).
        p_t: of the paired t test, likewise.
        n_queries: for which both are defined.
    """

    a: float
    b: float
    interval: Interval
    p: float
    p_t: float
    n_queries: int


@dataclass(frozen=True)
class Comparison:
    """Two results on the same queries, metric by metric; it shows itself as a table.

    Attributes:
        differences: by metric, those that both results have.
        level: of the intervals; a difference is called real where ``p`` is below ``1 - level``.
        by: what was resampled and flipped.
        titles: what the two results are called.
        pairing: how the queries of the two are known to be the same.
    """

    differences: dict[str, Difference]
    level: float
    by: Unit
    titles: tuple[str, str] = ("a", "b")
    pairing: str = ""

    def is_real(self, name: str) -> bool:
        """Is the difference more than chance would make?"""
        return choose(self.differences, name, "metric").p < 1 - self.level

    def __repr__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        return html_table(self._rows(), self._method())

    def as_text(self) -> str:
        """A table for a terminal, shares in percent, and under it what was done."""
        return f"{text_table(self._rows(), '<>>>>>><')}\n{self._method()}"

    def _rows(self) -> list[list[str]]:
        first, second = self.titles
        rows = [["metric", first, second, f"{second} - {first}", f"{100 * self.level:g} % interval", "p", "t test", ""]]
        for name, (a, b, ends, p, p_t, _) in self.differences.items():
            verdict = f"{second if b > a else first} is higher" if self.is_real(name) else "may be chance"
            interval = f"[{', '.join(shown(name, end, '+') for end in ends)}]"
            means = [shown(name, a), shown(name, b), shown(name, b - a, "+")]
            rows.append([name, *means, interval, f"{p:.4f}", "-" if np.isnan(p_t) else f"{p_t:.4f}", verdict])
        return rows

    def _method(self) -> str:
        """What was compared, and how."""
        counts = sorted({difference.n_queries for difference in self.differences.values()})
        n_queries = " to ".join(map(str, counts[:: max(1, len(counts) - 1)]))
        n_tests = len(self.differences)
        paired = f"{n_queries} queries{f', paired {self.pairing}' if self.pairing else ''}"
        return f"{paired}; resampled by {self.by}; p adjusted for {n_tests} metrics (Holm), intervals are not"


def compare(
    a: Result,
    b: Result,
    level: float = 0.95,
    by: Unit = "queries",
    seed: int = 0,
    titles: tuple[str, str] = ("a", "b"),
) -> Comparison:
    """Which metrics of two results on the same queries differ by more than chance.

    A query for which a metric is undefined in either result is left out of that metric. Metrics that only one of them has
    are left out.

    Args:
        a: a result.
        b: one of the same queries in the same order; refused if their number, ids or classes differ.
        level: confidence, between 0 and 1.
        by: ``queries``, or ``classes`` to hold for other classes as well.
        seed: random seed of the resampling and the sign flips.
        titles: what to call the two in tables.

    Example:
        >>> first, rng = np.random.default_rng(0).random(200) / 2, np.random.default_rng(1)
        >>> second = {"map": first + 0.1 + rng.normal(0, 0.1, 200), "recall@1": 1 - first}
        >>> compared = compare(Result({"map": first, "recall@1": 1 - first}), Result(second))
        >>> compared.is_real("map"), compared.is_real("recall@1")
        (True, False)
    """
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Result):
            raise InputError(
                f"compare takes two results; {name} is a {type(one).__name__}: read a file by Result.read_json"
            )
    pairing = _check_same_queries(a, b)
    shared = [name for name in a.per_query if name in b.per_query]
    if not shared:
        raise InputError(f"the results share no metric: {names(a.per_query)} and {names(b.per_query)}")
    first, second = (np.stack([side.per_query[name] for name in shared], 1) for side in (a, b))
    both = ~np.isnan(first) & ~np.isnan(second)
    difference = np.where(both, second - first, np.nan)
    groups = (b if a.labels is None else a).groups(by)
    ends = bootstrap_interval(difference, groups, level, seed=seed)
    p, p_t = holm(permutation_p(difference, groups, seed=seed)), holm(t_test_p(difference, groups))
    differences = {
        name: Difference(
            _mean(first[both[:, column], column]),
            _mean(second[both[:, column], column]),
            Interval(*ends[:, column].tolist()),
            float(p[column]),
            float(p_t[column]),
            int(both[:, column].sum()),
        )
        for column, name in enumerate(shared)
    }
    return Comparison(differences, level, by, titles, pairing)


def shown(name: str, value: float, sign: str = "-") -> str:
    """A value of the metric as people read it: shares in percent, label levels as they are.

    Example:
        >>> shown("map", 0.254), shown("map", 0.254, sign="+"), shown("severity@1", 1.254)
        ('25.4', '+25.4', '1.25')
    """
    scale = shown_scale(name)
    return f"{scale * value:{sign}.{1 if scale == 100 else 2}f}"


def is_total(name: str) -> bool:
    """Whether a metric is defined for every query that has a relevant item."""
    metric = metric_of(name)
    return metric is None or metric.is_total


def _check_same_queries(a: Result, b: Result) -> str:
    """Refuse results of different queries; how they are known to be the same."""
    if a.n_queries != b.n_queries:
        raise InputError(f"results must be of the same queries to be compared, got {a.n_queries} and {b.n_queries} queries")
    for what, first, second in (("ids", a.ids, b.ids), ("classes", a.labels, b.labels)):
        if first is None or second is None:
            continue
        differ = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
        if differ:
            raise InputError(
                f"the results are of other queries: {len(differ)} of {a.n_queries} {what} differ, "
                f"the first at place {differ[0]}: {str(first[differ[0]])!r} and {str(second[differ[0]])!r}"
            )
    return "by position, as a result has no ids" if a.ids is None or b.ids is None else "by id"


def _meaning(name: str) -> str:
    metric = metric_of(name)
    return "" if metric is None else metric.meaning


def text_table(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Rows for a terminal, each column as wide as it must be; ``sides`` has ``<`` or ``>`` for each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{word:{side}{width}}" for word, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]], first: str = "---:") -> str:
    """A header and rows of numbers as Markdown; ``first`` is how the first column is aligned."""
    lines = [rows[0], [first, *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _or_none(values: Iterable[float]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _no_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# How sure a mean over queries is, and whether two of them differ. -------------------------------------------------------


def bootstrap_means(
    values: ArrayLike, groups: ArrayLike | None = None, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """The means of the metrics in resamples of the queries, or of whole groups of them.

    Queries that no metric is defined for are left out first. The cost grows with ``n_resamples`` times queries (groups).

    Args:
        values: (Q, M) one row a query, NaN where undefined.
        groups: (Q,) the class of each query, of any type that sorts.
        n_resamples: how many, at least 1.
        seed: of the draws; the same for every metric of one call.

    Returns:
        (n_resamples, M) float64; NaN for a metric that no query of the resample defines.

    Example:
        >>> means = bootstrap_means([[0.0], [1.0], [np.nan]], n_resamples=1000)
        >>> np.unique(means).tolist()
        [0.0, 0.5, 1.0]
    """
    if n_resamples < 1:
        raise InputError(f"n_resamples must be at least 1, got {n_resamples}")
    sums, counts = _units(values, groups)
    if not len(sums):
        return np.full((n_resamples, sums.shape[1]), np.nan)
    rng, n_units = np.random.default_rng(seed), len(sums)
    means = []
    for n_rows in block_sizes(n_resamples, n_units):
        weights = draw_counts(rng, n_rows, np.arange(n_units), n_units)
        with np.errstate(invalid="ignore"):
            means.append((weights @ sums) / (weights @ counts))
    return np.concatenate(means)


def bootstrap_interval(
    values: ArrayLike,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Between which two numbers each metric's mean lies: the middle ``level`` of :func:`bootstrap_means` (percentiles).

    From few queries, or fewer than about 20 groups, it comes out too narrow; where all values are equal it is one point.

    Returns:
        (2, M) float64: lower ends and upper ends.

    Example:
        >>> bootstrap_interval(np.arange(101.0)[:, None]).round().T.tolist()
        [[44.0, 56.0]]
    """
    shares = interval_ends(level)
    means = bootstrap_means(values, groups, n_resamples, seed)
    ends = np.full((2, means.shape[1]), np.nan)
    defined = ~np.isnan(means).all(0)
    ends[:, defined] = np.nanquantile(means[:, defined], shares, axis=0)
    return ends


def interval_ends(level: float) -> list[float]:
    """The quantiles between which the middle ``level`` of resamples lies."""
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level}")
    return [(1 - level) / 2, (1 + level) / 2]


def permutation_p(differences: ArrayLike, groups: ArrayLike | None = None, n_flips: int = N_FLIPS, seed: int = 0) -> Floats:
    """How often a mean difference this far from 0 comes about if only chance decides each sign (two-sided).

    Exact where the signs have at most ``n_flips`` arrangements; otherwise drawn, the one observed among them.

    Args:
        differences: (Q, M) between two results for the same query, NaN where either is undefined.
        groups: (Q,) the class of each query; the sign of a class flips as one.
        n_flips: arrangements to draw at most.
        seed: of the draws.

    Returns:
        (M,) p-values in (0, 1]; 1 where all differences are 0 or undefined.

    Example:
        >>> permutation_p([[0.1], [0.2], [0.3], [0.1]])  # 2 of the 16 arrangements have all signs equal
        array([0.125])
    """
    sums, _ = _units(differences, groups)
    sums = sums[(sums != 0).any(1)]  # the others add 0 with either sign
    # Arrangements that come to the same sum are added in another order: they may differ in the last bits.
    reached = np.abs(sums.sum(0)) - 1e-12 * np.abs(sums).sum(0)
    n_units = len(sums)
    if exact := 2**n_units <= n_flips:
        n_flips = 2**n_units
    rng, first, n_as_far = np.random.default_rng(seed), 0, np.zeros(sums.shape[1])
    for n_rows in block_sizes(n_flips, n_units):
        if exact:
            flips = (np.arange(first, first + n_rows)[:, None] >> np.arange(n_units) & 1).astype(np.uint8)
        else:
            flips = np.unpackbits(rng.integers(256, size=(n_rows, -(-n_units // 8)), dtype=np.uint8), 1, n_units)
        n_as_far += (np.abs((1.0 - 2.0 * flips) @ sums) >= reached).sum(0)
        first += n_rows
    return n_as_far / n_flips if exact else (n_as_far + 1) / (n_flips + 1)


def t_test_p(differences: ArrayLike, groups: ArrayLike | None = None) -> Floats:
    """The paired t test of a mean difference of 0 (two-sided); with groups, of the sums of each group.

    Args:
        differences: (Q, M) between two results for the same query, NaN where either is undefined.
        groups: (Q,) the class of each query.

    Returns:
        (M,) p-values in [0, 1]; 1 where all differences are 0, NaN where fewer than two queries (groups) have one.

    Example:
        >>> t_test_p([[0.1], [0.2], [0.3], [0.1]]).round(4)
        array([0.0354])
    """
    sums, counts = _units(differences, groups)
    defined = counts > 0
    p = np.full(sums.shape[1], np.nan)
    for column in np.flatnonzero(defined.sum(0) > 1):
        found = sums[defined[:, column], column]
        error = found.std(ddof=1) / len(found) ** 0.5
        t = abs(found.mean()) / error if error else np.inf if found.any() else 0.0
        p[column] = 2 * stats.t.sf(t, len(found) - 1)
    return p


def holm(p: ArrayLike) -> Floats:
    """The p-values of several tests, raised so that comparing each with 0.05 errs in any of them 1 time in 20 at most.

    Args:
        p: (M,) p-values; NaN stays NaN and counts as no test.

    Returns:
        (M,) float64, none below ``p``.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p)  # NaN last
    n_left = np.maximum(np.count_nonzero(~np.isnan(p)) - np.arange(len(p)), 1)
    raised = np.empty_like(p)
    raised[order] = np.minimum(np.maximum.accumulate(p[order] * n_left), 1)
    return raised


def _units(values: ArrayLike, groups: ArrayLike | None) -> tuple[Floats, Floats]:
    """(U, M) the sum of each metric over the queries of a unit, and how many define it; a unit is a query or a group."""
    table = np.asarray(values, np.float64)
    if table.ndim != 2:
        raise InputError(f"values must have one row a query and one column a metric, got shape {table.shape}")
    defined = ~np.isnan(table)
    sums, counts = np.where(defined, table, 0.0), defined.astype(np.float64)
    if groups is not None:
        names, group = np.unique(np.asarray(groups), return_inverse=True)
        if group.shape != table.shape[:1]:
            raise InputError(f"groups must have one for each of the {len(table)} queries, got shape {group.shape}")
        members = np.zeros((2, len(names), table.shape[1]))
        np.add.at(members[0], group, sums)
        np.add.at(members[1], group, counts)
        sums, counts = members
    used = counts.any(1)
    return sums[used], counts[used]


def draw_counts(rng: np.random.Generator, n_rows: int, values: NDArray[np.int64], n_values: int) -> Floats:
    """(n_rows, n_values) how often each value occurs in resamples of all ``values``, which are from 0 on."""
    drawn = values[rng.integers(len(values), size=(n_rows, len(values)))] + n_values * np.arange(n_rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=n_rows * n_values).reshape(n_rows, n_values).astype(np.float64)


def block_sizes(n_rows: int, n_columns: int) -> Iterator[int]:
    """How many rows to hold at once, until there are ``n_rows``."""
    most = max(1, BLOCK_ELEMENTS // max(1, n_columns))
    for start in range(0, n_rows, most):
        yield min(most, n_rows - start)
