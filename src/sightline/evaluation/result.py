"""One result as text, JSON and Markdown."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import replaced


@dataclass(frozen=True, eq=False)
class Result:
    """Metrics of a set of rankings.

    Attributes:
        per_query: the value of each metric for each query, (Q,) float64; NaN for a query without a relevant item.

    Example:
        >>> result = Result({"map": np.array([1.0, 0.5, np.nan])})
        >>> result["map"], result.n_queries, result.n_skipped
        (0.75, 3, 1)
    """

    per_query: dict[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> float:
        """The mean of a metric over the queries for which it is defined, in [0, 1]."""
        if name not in self.per_query:
            raise KeyError(f"no metric {name!r}; there are {', '.join(self.per_query)}")
        return float(np.nanmean(self.per_query[name]))

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
        """Queries without a relevant item, left out of every mean."""
        return int(np.isnan(next(iter(self.per_query.values()))).sum())

    def as_text(self) -> str:
        """A table for a terminal, in percent."""
        width = max(map(len, self.per_query))
        lines = [f"{name:<{width}}  {100 * mean:5.1f}" for name, mean in self.means.items()]
        return "\n".join([*lines, self._counts()])

    def as_markdown(self) -> str:
        """A Markdown table of one row, in percent."""
        names = list(self.per_query)
        rows = [names, ["---:"] * len(names), [f"{100 * self[name]:.1f}" for name in names]]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\n{self._counts()}\n"

    def _counts(self) -> str:
        skipped = f", {self.n_skipped} without a relevant item left out" if self.n_skipped else ""
        return f"{self.n_queries} queries{skipped}"

    def write_json(self, file: Path) -> Path:
        """Write means, counts and the value of every query; NaN becomes null."""
        values = {
            name: [None if np.isnan(value) else float(value) for value in column] for name, column in self.per_query.items()
        }
        counts = {"n_queries": self.n_queries, "n_skipped": self.n_skipped}
        with replaced(Path(file)) as scratch:
            scratch.write_text(json.dumps({"metrics": self.means, **counts, "per_query": values}) + "\n")
        return Path(file)

    @classmethod
    def read_json(cls, file: Path) -> "Result":
        """The result that :meth:`write_json` wrote."""
        try:
            stored = json.loads(Path(file).read_text())["per_query"]
            columns = {name: np.array(column, np.float64) for name, column in stored.items()}
            if {column.ndim for column in columns.values()} != {1} or len({len(column) for column in columns.values()}) > 1:
                raise ValueError("a list of values for each metric, all of one length, is needed")
            return cls(columns)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file}: not a result of sightline evaluate: {error}") from error
