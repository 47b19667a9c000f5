"""One result as text, JSON, CSV and Markdown, with an interval; two compared."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError, choose, names
from sightline.evaluation.metrics import metric_of, shown_scale
from sightline.evaluation.uncertainty import bootstrap_interval, holm, permutation_p, t_test_p
from sightline.files import read_json, replaced

Unit = Literal["queries", "classes"]
UNITS: dict[str, Unit] = {"queries": "queries", "classes": "classes"}


class Interval(NamedTuple):
    """Between which two numbers a mean lies."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics of a set of rankings.

    Attributes:
        per_query: the value of each metric for each query, (Q,) float64; NaN for a query without a relevant item.
        ids: the name of each query; two results with ids are compared only if these agree.
        labels: (Q,) the class of each query, for intervals and tests over classes.
        fingerprint: of the encoder that made the vectors.
        notes: what a reader of the numbers must know, one sentence each.

    Example:
        >>> result = Result({"map": np.array([1.0, 0.5, np.nan])})
        >>> result["map"], result.n_queries, result.n_skipped
        (0.75, 3, 1)
    """

    per_query: dict[str, NDArray[np.float64]]
    ids: Sequence[str] | None = None
    labels: NDArray[np.generic] | None = None
    fingerprint: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len({np.shape(column) for column in self.per_query.values()}) != 1:
            shapes = {name: np.shape(column) for name, column in self.per_query.items()}
            raise InputError(f"per_query: at least one metric, each of (Q,) values, is needed, found {shapes}")
        for what, given in (("ids", self.ids), ("labels", self.labels)):
            if given is not None and np.shape(given) != (self.n_queries,):
                raise InputError(f"{what}: one for each of the {self.n_queries} queries is needed, found {np.shape(given)}")

    def __getitem__(self, name: str) -> float:
        """The mean of a metric over the queries for which it is defined; NaN where there are none."""
        if name not in self.per_query:
            raise KeyError(f"no metric {name!r}; there are {', '.join(self.per_query)}")
        return _mean(self.per_query[name])

    @property
    def means(self) -> dict[str, float]:
        """Every metric's mean."""
        return {name: self[name] for name in self.per_query}

    @property
    def n_queries(self) -> int:
        """Queries asked, with or without a relevant item."""
        return len(next(iter(self.per_query.values())))

    @property
    def n_skipped(self) -> int:
        """Queries without a relevant item, left out of every mean; as the first metric that is defined for all others says.

        Severity is undefined where nothing is wrong, too: by itself it cannot tell.
        """
        columns = [column for name, column in self.per_query.items() if _is_total(name)]
        return int(np.isnan((columns or list(self.per_query.values()))[0]).sum())

    def interval(self, name: str, level: float = 0.95, by: Unit = "queries", seed: int = 0) -> Interval:
        """Where a metric's mean lies with a confidence of ``level``, by bootstrap.

        Args:
            name: the metric.
            level: between 0 and 1.
            by: ``queries`` asks how it would vary with other queries of these classes; ``classes``, which needs
                ``labels``, with other classes.
            seed: of the resampling.

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
            raise InputError("by classes: the result does not say which class each query is of")
        return self.labels

    def as_text(self, level: float | None = None, by: Unit = "queries") -> str:
        """A table for a terminal, shares in percent, with intervals if a level is given."""
        width = max(map(len, self.per_query))
        lines = [f"{name:<{width}}  {self._cell(name, level, by, width=5)}" for name in self.per_query]
        return "\n".join([*lines, self._counts(level, by), *self.notes])

    def as_markdown(self, level: float | None = None, by: Unit = "queries") -> str:
        """A Markdown table of one row, shares in percent, with intervals if a level is given."""
        cells = [self._cell(name, level, by) for name in self.per_query]
        rows = [list(self.per_query), ["---:"] * len(cells), cells]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        return "\n\n".join([table, self._counts(level, by), *self.notes]) + "\n"

    def as_csv(self, level: float | None = None, by: Unit = "queries") -> str:
        """One line a metric: its name, its mean and, if a level is given, the ends of its interval; not in percent."""
        header = ["metric", "mean", *([] if level is None else Interval._fields)]
        lines = [
            [name, mean, *([] if level is None else self.interval(name, level, by))] for name, mean in self.means.items()
        ]
        return _csv([header, *lines])

    def write_csv(self, file: Path, spreadsheet_safe: bool = False) -> Path:
        """Write one line a query: its id and class where they are known, and its metrics, empty where undefined.

        Args:
            file: where to.
            spreadsheet_safe: put an apostrophe before text that a spreadsheet would take for a formula, such as an id that
                begins with ``=``; False keeps every id as it is.
        """
        told = {name: column for name, column in (("id", self.ids), ("label", self.labels)) if column is not None}
        values = {name: ["" if np.isnan(value) else float(value) for value in c] for name, c in self.per_query.items()}
        columns: dict[str, Iterable[object]] = {**told, **values}
        if spreadsheet_safe:
            columns = {name: [_no_formula(value) for value in column] for name, column in columns.items()}
        with replaced(Path(file)) as scratch:
            scratch.write_text(_csv([list(columns), *zip(*columns.values(), strict=True)]), encoding="utf-8")
        return Path(file)

    def _cell(self, name: str, level: float | None, by: Unit, width: int = 0) -> str:
        mean = f"{shown(name, self[name]):>{width}}"
        return (
            mean if level is None else f"{mean} [{', '.join(shown(name, end) for end in self.interval(name, level, by))}]"
        )

    def _counts(self, level: float | None, by: Unit) -> str:
        is_told = self.n_skipped and any(map(_is_total, self.per_query))
        skipped = f", {self.n_skipped} without a relevant item left out" if is_told else ""
        partly = [
            f"; {name} of {np.count_nonzero(~np.isnan(column))}"
            for name, column in self.per_query.items()
            if not _is_total(name)
        ]
        intervals = "" if level is None else f"; {100 * level:g} % intervals over {by}"
        return f"{self.n_queries} queries{skipped}{''.join(partly)}{intervals}"

    def write_json(self, file: Path) -> Path:
        """Write means, counts and the value of every query; ids, classes and fingerprint if known; NaN becomes null."""
        values = {name: [_or_none(value) for value in column] for name, column in self.per_query.items()}
        stored = {
            "metrics": {name: _or_none(mean) for name, mean in self.means.items()},
            "n_queries": self.n_queries,
            "n_skipped": self.n_skipped,
            "per_query": values,
            "ids": None if self.ids is None else list(self.ids),
            "labels": None if self.labels is None else self.labels.tolist(),
            "fingerprint": self.fingerprint,
            "notes": list(self.notes) or None,
        }
        with replaced(Path(file)) as scratch:
            scratch.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}) + "\n")
        return Path(file)

    @classmethod
    def read_json(cls, file: Path) -> "Result":
        """The result that :meth:`write_json` wrote."""
        try:
            stored = read_json(Path(file))
            columns = {name: np.array(column, np.float64) for name, column in stored["per_query"].items()}
            if {column.ndim for column in columns.values()} != {1} or len({len(column) for column in columns.values()}) > 1:
                raise ValueError("a list of values for each metric, all of one length, is needed")
            labels = stored.get("labels")
            classes, notes = None if labels is None else np.array(labels), tuple(map(str, stored.get("notes", ())))
            ids = None if stored.get("ids") is None else list(map(str, stored["ids"]))
            return cls(columns, ids, classes, stored.get("fingerprint"), notes)
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
    """Two results on the same queries, metric by metric.

    Attributes:
        differences: by metric, those that both results have.
        level: of the intervals; a difference is called real where ``p`` is below ``1 - level``.
        by: what was resampled and flipped.
    """

    differences: dict[str, Difference]
    level: float
    by: Unit

    def is_real(self, name: str) -> bool:
        """Is the difference more than chance would make?"""
        return choose(self.differences, name, "metric").p < 1 - self.level

    def as_text(self) -> str:
        """A table for a terminal, shares in percent, and under it what was done."""
        header = ["metric", "a", "b", "b - a", f"{100 * self.level:g} % interval", "p", "t test", ""]
        rows = []
        for name, (a, b, ends, p, p_t, _) in self.differences.items():
            verdict = ("b is higher" if b > a else "a is higher") if self.is_real(name) else "may be chance"
            interval = f"[{', '.join(shown(name, end, '+') for end in ends)}]"
            means = [shown(name, a), shown(name, b), shown(name, b - a, "+")]
            rows.append([name, *means, interval, f"{p:.4f}", "-" if np.isnan(p_t) else f"{p_t:.4f}", verdict])
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        aligned = ["<", *">>>>>>", "<"]
        lines = [
            "  ".join(f"{word:{side}{width}}" for word, side, width in zip(row, aligned, widths, strict=True)).rstrip()
            for row in [header, *rows]
        ]
        counts = sorted({difference.n_queries for difference in self.differences.values()})
        n_queries = " to ".join(map(str, counts[:: max(1, len(counts) - 1)]))
        how = f"{n_queries} queries; over {self.by}; each interval by itself, p raised for {len(rows)} metrics (Holm)"
        return "\n".join([*lines, how])


def compare(a: Result, b: Result, level: float = 0.95, by: Unit = "queries", seed: int = 0) -> Comparison:
    """Which metrics of two results on the same queries differ by more than chance.

    A query for which a metric is undefined in either result is left out of that metric. Metrics that only one of them has
    are left out.

    Args:
        a: a result.
        b: one of the same queries in the same order; refused if their number, ids or classes differ.
        level: confidence, between 0 and 1.
        by: ``queries``, or ``classes`` to hold for other classes as well.
        seed: of the resampling and the flips.

    Example:
        >>> first, rng = np.random.default_rng(0).random(200) / 2, np.random.default_rng(1)
        >>> second = {"map": first + 0.1 + rng.normal(0, 0.1, 200), "recall@1": 1 - first}
        >>> compared = compare(Result({"map": first, "recall@1": 1 - first}), Result(second))
        >>> compared.is_real("map"), compared.is_real("recall@1")
        (True, False)
    """
    _check_same_queries(a, b)
    shared = [name for name in a.per_query if name in b.per_query]
    if not shared:
        raise InputError(f"the results share no metric: {names(a.per_query)} and {names(b.per_query)}")
    first, second = (np.stack([side.per_query[name] for name in shared], 1) for side in (a, b))
    both = ~np.isnan(first) & ~np.isnan(second)
    difference = np.where(both, second - first, np.nan)
    groups = (b if a.labels is None else a).groups(by)
    ends = bootstrap_interval(difference, groups, level, seed=seed)
    p, p_t = holm(permutation_p(difference, groups, seed=seed)), holm(t_test_p(difference, groups))
    differences = {}
    for column, name in enumerate(shared):
        rows = both[:, column]
        interval = Interval(*map(float, ends[:, column]))
        mean_a, mean_b = _mean(first[rows, column]), _mean(second[rows, column])
        differences[name] = Difference(mean_a, mean_b, interval, float(p[column]), float(p_t[column]), int(rows.sum()))
    return Comparison(differences, level, by)


def shown(name: str, value: float, sign: str = "-") -> str:
    """A value of the metric as people read it: shares in percent, label levels as they are.

    Example:
        >>> shown("map", 0.254), shown("map", 0.254, sign="+"), shown("severity@1", 1.254)
        ('25.4', '+25.4', '1.25')
    """
    scale = shown_scale(name)
    return f"{scale * value:{sign}.{1 if scale == 100 else 2}f}"


def _is_total(name: str) -> bool:
    """Whether a metric is defined for every query that has a relevant item."""
    metric = metric_of(name)
    return metric is None or metric.is_total


def _check_same_queries(a: Result, b: Result) -> None:
    if a.n_queries != b.n_queries:
        raise InputError(
            f"results of {a.n_queries} and {b.n_queries} queries cannot be compared: the same queries are needed"
        )
    for what, first, second in (("ids", a.ids, b.ids), ("classes", a.labels, b.labels)):
        if first is None or second is None:
            continue
        differ = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
        if differ:
            raise InputError(
                f"the results are of other queries: {len(differ)} of {a.n_queries} {what} differ, "
                f"the first at place {differ[0]}: {str(first[differ[0]])!r} and {str(second[differ[0]])!r}"
            )


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _no_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
