"""The published tables of the papers, one tidy CSV file each, to stand beside one's own numbers."""

from importlib import resources
from typing import NamedTuple

import polars as pl

from sightline.errors import choose


class Published(NamedTuple):
    """One number of a published table; shares are in percent.

    Attributes:
        dataset: as the paper calls it, like the next two.
        method: the row.
        metric: the column.
        value: as printed, its deviation left out.
    """

    dataset: str
    method: str
    metric: str
    value: float


class ProtocolTable(NamedTuple):
    """Where papers print what a protocol measures.

    Attributes:
        table: its name.
        dataset: as the paper calls it, or the beginning of several names.
        columns: the setup, or None for the mean of all, and Sightline's metric of each of its columns.
    """

    table: str
    dataset: str
    columns: dict[str, tuple[str | None, str]]

    def rows(self, suffix: str = "") -> dict[str, dict[str, float]]:
        """The table's numbers by method and column, of the set with this suffix; of several sets with the set's name."""
        found: dict[str, dict[str, float]] = {}
        rows = [row for row in read_published(self.table) if row.metric in self.columns]
        is_one = any(row.dataset == self.dataset for row in rows)
        for row in rows:
            if row.dataset == self.dataset + suffix or (not is_one and row.dataset.startswith(self.dataset)):
                found.setdefault(row.method if is_one else f"{row.method}, {row.dataset}", {})[row.metric] = row.value
        return found


_REVISITED: dict[str, tuple[str | None, str]] = {"mAP-medium": ("medium", "map"), "mAP-hard": ("hard", "map")}
_LANDMARK = {"mAP@100": "map@100", "H-AP": "h_ap", "ASI": "asi", "NDCG": "ndcg"}
_DYML = {"mAP": "map", "ASI": "asi", "R@1": "recall@1"}
PROTOCOL_TABLES = {
    "roxford5k": ProtocolTable("listwise_table3_sota", "ROxford", _REVISITED),
    "rparis6k": ProtocolTable("listwise_table3_sota", "RParis", _REVISITED),
    "gldv2": ProtocolTable("tpami_table07", "H-GLDv2", {name: ("landmark", one) for name, one in _LANDMARK.items()}),
    "dyml": ProtocolTable("tpami_table08", "DyML-", {name: (None, one) for name, one in _DYML.items()}),
}


def published_tables() -> list[str]:
    """The names :func:`read_published` knows, in alphabetical order.

    Example:
        >>> published_tables()[-1]
        'tpami_table11'
    """
    return sorted(_files())


def read_published(name: str) -> list[Published]:
    """The numbers of one table; cells that are no number, such as a formula or a range, are left out.

    Args:
        name: one of :func:`published_tables`.

    Example:
        >>> read_published("tpami_table01")[0]
        Published(dataset='SOP', method='Fast-AP', metric='R@1', value=77.8)
    """
    table = pl.read_csv(choose(_files(), name, "published table").read_bytes(), infer_schema=False)
    number = pl.col("value").str.split("±").list.first().str.strip_chars().cast(pl.Float64, strict=False)
    return [Published(*row) for row in table.select("dataset", "method", "metric", number).drop_nulls("value").rows()]


def published_value(table: str, dataset: str, method: str, metric: str) -> float | None:
    """One number of a table; None where the paper prints none for this metric. The first, where it prints several.

    A data set, method or metric that the table does not have at all is refused.

    Example:
        >>> published_value("tpami_table01", "SOP", "ROADMAP", "mAP@R")
        55.7
    """
    rows = read_published(table)
    for field, asked in (("dataset", dataset), ("method", method), ("metric", metric)):
        choose({getattr(row, field): row for row in rows}, asked, f"{field} of published table {table!r}")
    return next((row.value for row in rows if row[:3] == (dataset, method, metric)), None)


def _files() -> dict[str, "resources.abc.Traversable"]:
    return {file.name[:-4]: file for file in resources.files(__package__).iterdir() if file.name.endswith(".csv")}
