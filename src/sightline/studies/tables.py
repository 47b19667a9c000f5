"""Results of a suite as numbers: mean and deviation over seeds, places, and paired tests against the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from sightline.errors import InputError
from sightline.evaluation.metrics import metric_of
from sightline.evaluation.result import holm, permutation_p
from sightline.studies.papers import published_value
from sightline.studies.run import Outcome
from sightline.studies.suite import Cell, PaperTable, Suite

POOLED = "all"


@dataclass(frozen=True, eq=False)
class Table:
    """One data set of a suite.

    Attributes:
        data: its name, or ``all`` for the queries of all of them.
        frame: a line for each ``row`` and ``metric``, rows in the order of the suite, those without a result left out.
            ``mean`` over ``seeds`` seeds, each the mean over its queries, and their ``deviation`` (n - 1; null with one);
            ``place`` counts from 1, the best, by what is shown to one decimal of a percent, so that equal ones share it;
            ``difference`` to the baseline's mean, over the queries that both define, and ``p`` of its paired test, raised
            for the number of rows (Holm), are null for the baseline. Null is what no query defines.
        n_queries: of each run.
    """

    data: str
    frame: pl.DataFrame
    n_queries: int

    def entries(self) -> dict[Any, dict[str, dict[str, Any]]]:
        """The lines of the frame by row and metric."""
        by_row = self.frame.group_by("row", maintain_order=True)
        return {row: {line["metric"]: line for line in lines.iter_rows(named=True)} for (row,), lines in by_row}


def lower_is_better(metric: str) -> bool:
    """Severity and distance count levels by which results miss."""
    found = metric_of(metric)
    return found is not None and not found.higher_is_better


def tables_of(suite: Suite, done: Mapping[Cell, Outcome]) -> list[Table]:
    """A table for each data set that has results, and where there are several one of all their queries.

    In that one a row needs a result with the same seed in each data set.
    """
    rows, parts, queries = [row.name for row in suite.all_rows], [], dict[str, str]()
    for cell, outcome in sorted(done.items(), key=lambda one: rows.index(one[0].row.name)):
        if queries.setdefault(cell.data, outcome.about["queries"]) != outcome.about["queries"]:
            raise InputError(f"{cell.title}: its queries are not those of the other rows; they cannot be compared")
        columns = {metric: outcome.result.per_query[metric] for metric in suite.all_metrics}
        part = pl.DataFrame(columns | {"class": outcome.result.labels}).with_row_index("query")
        parts.append(part.with_columns(data=pl.lit(cell.data), row=pl.lit(cell.row.name), seed=pl.lit(cell.seed)))
    if not parts:
        return []
    index = ["row", "seed", "data", "query", "class"]
    values = pl.concat(parts).unpivot(index=index, variable_name="metric").with_columns(pl.col("value").fill_nan(None))
    tables = [_table(suite, data.name, values.filter(data=data.name)) for data in suite.data if data.name in queries]
    if len(tables) == len(suite.data) > 1:
        in_all = pl.col("data").n_unique().over("row", "seed") == len(tables)
        tables.append(_table(suite, POOLED, values.filter(in_all)))
    return tables


def _table(suite: Suite, name: str, values: pl.DataFrame) -> Table:
    value = pl.col("value")
    means = values.group_by("row", "metric", "seed", maintain_order=True).agg(value.mean())
    frame = means.group_by("row", "metric", maintain_order=True).agg(
        mean=value.mean(), deviation=value.std(), seeds=pl.len()
    )
    is_low_good = pl.col("metric").is_in([metric for metric in suite.all_metrics if lower_is_better(metric)])
    shown = pl.col("mean").round(4) * pl.when(is_low_good).then(1).otherwise(-1)
    frame = frame.with_columns(place=shown.rank("dense").over("metric"))
    frame = frame.join(_tests(suite, values), on=["row", "metric"], how="left", maintain_order="left")
    return Table(name, frame, values.select("data", "query").n_unique())


def _tests(suite: Suite, values: pl.DataFrame) -> pl.DataFrame:
    """For each row but the baseline and each metric, the difference to it and its p: per query, averaged over its seeds."""
    query = ["metric", "data", "query", "class"]
    averaged = values.group_by("row", *query, maintain_order=True).agg(pl.col("value").mean())
    baseline = averaged.filter(row=suite.baseline).select(*query, base="value")
    paired = averaged.filter(pl.col("row") != suite.baseline).join(baseline, on=query, maintain_order="left")
    tests = []
    for (row, metric), group in paired.group_by("row", "metric", maintain_order=True):
        difference = group["value"] - group["base"]
        classes = group["class"].to_numpy() if suite.by == "classes" else None
        p = permutation_p(difference.fill_null(float("nan")).to_numpy()[:, None], classes)[0]
        tests.append((row, metric, difference.mean(), p))
    schema = {"row": pl.String, "metric": pl.String, "difference": pl.Float64, "p": pl.Float64}
    raised = pl.col("p").map_batches(lambda p: pl.Series(holm(p)), return_dtype=pl.Float64).over("metric")
    return pl.DataFrame(tests, schema, orient="row").with_columns(raised)


def beside_published(table: Table, published: PaperTable) -> pl.DataFrame:
    """A line for each ``dataset``, ``metric`` and ``row`` that both have: our mean and the published value, in percent."""
    means = {(row, metric): mean for row, metric, mean in table.frame.select("row", "metric", "mean").rows()}
    lines = [
        (dataset, metric, row, 100 * means[row, metric], value)
        for dataset in published.datasets
        for metric, theirs in published.metrics.items()
        for row, method in published.rows.items()
        if (value := published_value(published.table, dataset, method, theirs)) is not None
        and means.get((row, metric)) is not None
    ]
    return pl.DataFrame(lines, ["dataset", "metric", "row", "ours", "theirs"], orient="row")
