"""What one cell found: a small file that is there complete or not at all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sightline.errors import InputError
from sightline.evaluation.result import Result
from sightline.files import replaced

ABOUT = "sightline_cell"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The values of every query, and how they came about.

    Attributes:
        result: with ids, classes and the encoder's fingerprint.
        about: name, seed, recipe, seconds and what it ran on.
    """

    result: Result
    about: dict[str, Any]

    def write(self, file: Path) -> Path:
        """Write one Parquet file: a row a query, a column a metric."""
        columns: dict[str, Any] = {"id": self.result.ids, "class": self.result.labels, **self.result.per_query}
        described = {ABOUT: json.dumps(self.about | {"fingerprint": self.result.fingerprint})}
        with replaced(file) as scratch:
            pl.DataFrame(columns).write_parquet(scratch, compression="zstd", metadata=described)
        return file

    @classmethod
    def read(cls, file: Path) -> "Outcome":
        """The outcome that :meth:`write` wrote."""
        try:
            about = json.loads(pl.read_parquet_metadata(file)[ABOUT])
            table = pl.read_parquet(file)
            ids, classes = table["id"].to_list(), table["class"].to_numpy()
        except (pl.exceptions.PolarsError, OSError, KeyError, ValueError) as error:
            raise InputError(f"{file}: not the result of a benchmark's run: {str(error).splitlines()[0]}") from error
        values = {name: table[name].to_numpy().astype(np.float64) for name in table.columns if name not in ("id", "class")}
        return cls(Result(values, ids, classes, about["fingerprint"]), about)

    def only(self, metrics: Sequence[str]) -> "Outcome":
        """With these metrics alone."""
        return replace(self, result=replace(self.result, per_query={name: self.result.per_query[name] for name in metrics}))

    def differences(self, other: "Outcome") -> list[str]:
        """What is not the same to the last bit, one sentence each."""
        found = []
        if self.result.fingerprint != other.result.fingerprint:
            found.append(f"the encoder: {self.result.fingerprint} and {other.result.fingerprint}")
        if self.result.ids != other.result.ids:
            found.append("the queries")
        for name, values in self.result.per_query.items():
            others = other.result.per_query.get(name)
            if others is None or not np.array_equal(values, others, equal_nan=True):
                found.append(f"{name}: {self.result[name]!r} and {'none' if others is None else repr(other.result[name])}")
        return found
