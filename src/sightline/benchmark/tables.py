"""Results of a suite as numbers: mean and deviation over seeds, ranks, and paired tests against the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sightline.benchmark.grid import Cell
from sightline.benchmark.outcome import Outcome
from sightline.benchmark.suite import PublishedTable, Suite
from sightline.errors import InputError
from sightline.evaluation.metrics import metric_of
from sightline.evaluation.uncertainty import holm, permutation_p
from sightline.papers import published_value

POOLED = "all"


class Entry(NamedTuple):
    """One row and one metric.

    Attributes:
        mean: over the seeds, each the mean over its queries.
        deviation: of the seeds (n - 1); NaN with one seed.
        place: 1 for the best row, 2 for the second best, 0 for the others; equal means share a place.
        difference: to the baseline's mean, over the queries that both define; NaN for the baseline.
        p: of the paired test of that difference, raised for the number of rows (Holm).
    """

    mean: float
    deviation: float
    place: int
    difference: float
    p: float


@dataclass(frozen=True)
class Table:
    """One data set of a suite.

    Attributes:
        data: its name, or ``all`` for the queries of all of them.
        rows: by row and metric, rows in the order of the suite; only rows with a result.
        seeds: how many each row has.
        n_queries: of each run.
        missing: rows of the suite without any result.
    """

    data: str
    rows: dict[str, dict[str, Entry]]
    seeds: dict[str, int]
    n_queries: int
    missing: list[str]


def lower_is_better(metric: str) -> bool:
    """Severity and distance count levels by which results miss."""
    found = metric_of(metric)
    return found is not None and not found.higher_is_better


def tables_of(suite: Suite, done: Mapping[Cell, Outcome]) -> list[Table]:
    """A table for each data set that has results, and where there are several one of all their queries."""
    found: dict[str, dict[str, dict[int, Outcome]]] = {}
    for cell, outcome in done.items():
        found.setdefault(cell.data, {}).setdefault(cell.row.name, {})[cell.seed] = outcome
    tables = [_table(suite, data.name, [found[data.name]]) for data in suite.data if data.name in found]
    if len(suite.data) > 1 and len(tables) == len(suite.data):
        tables.append(_table(suite, POOLED, list(found.values())))
    return tables


def _table(suite: Suite, name: str, sets: Sequence[dict[str, dict[int, Outcome]]]) -> Table:
    """One table over the queries of some data sets; a row needs a result with the same seed in each."""
    seeds = {
        row.name: [seed for seed in suite.seeds if all(seed in one.get(row.name, {}) for one in sets)]
        for row in suite.all_rows
    }
    rows = [row for row, there in seeds.items() if there]
    values = {row: _values(suite, row, seeds[row], sets) for row in rows}
    classes = np.concatenate([_first(one).result.labels for one in sets]) if rows else np.zeros(0)
    entries: dict[str, dict[str, Entry]] = {row: {} for row in rows}
    for column, metric in enumerate(suite.all_metrics):
        by_seed = {row: [_mean(one) for one in values[row][:, :, column]] for row in rows}
        means = {row: _mean(np.array(by_seed[row])) for row in rows}
        places = _places(means, lower_is_better(metric))
        tests = _tests(suite, values, column, classes)
        for row in rows:
            deviation = float(np.std(by_seed[row], ddof=1)) if len(by_seed[row]) > 1 else float("nan")
            entries[row][metric] = Entry(means[row], deviation, places[row], *tests.get(row, (float("nan"),) * 2))
    missing = [row for row, there in seeds.items() if not there]
    return Table(name, entries, {row: len(seeds[row]) for row in rows}, len(classes), missing)


def _first(one: dict[str, dict[int, Outcome]]) -> Outcome:
    return next(iter(next(iter(one.values())).values()))


def _values(
    suite: Suite, row: str, seeds: Sequence[int], sets: Sequence[dict[str, dict[int, Outcome]]]
) -> NDArray[np.float64]:
    """(S, Q, M) the values of a row: seeds, queries of all sets, metrics."""
    for one in sets:
        first = _first(one).result.ids
        if any(one[row][seed].result.ids != first for seed in seeds):
            raise InputError(f"row {row!r}: its queries are not those of the other rows; they cannot be compared")
    return np.stack(
        [
            np.concatenate([_columns(one[row][seed], suite.all_metrics) for one in sets])
            for seed in seeds
        ]
    )  # fmt: skip


def _columns(outcome: Outcome, metrics: Sequence[str]) -> NDArray[np.float64]:
    return np.stack([outcome.result.per_query[metric] for metric in metrics], axis=1)


def _tests(
    suite: Suite, values: Mapping[str, NDArray[np.float64]], column: int, classes: NDArray[np.generic]
) -> dict[str, tuple[float, float]]:
    """For each row but the baseline, the difference to it and its p: per query, each averaged over its seeds."""
    if suite.baseline not in values:
        return {}
    baseline = _over_seeds(values[suite.baseline][:, :, column])
    others = [row for row in values if row != suite.baseline]
    if not others:
        return {}
    differences = {row: _over_seeds(values[row][:, :, column]) - baseline for row in others}
    groups = classes if suite.by == "classes" else None
    p = holm([float(permutation_p(differences[row][:, None], groups)[0]) for row in others])
    return {row: (_mean(differences[row]), float(p[place])) for place, row in enumerate(others)}


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _over_seeds(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q,) the mean of each query over the seeds that define it; NaN where none does."""
    counts = (~np.isnan(values)).sum(0)
    sums = np.nansum(values, axis=0)
    found: NDArray[np.float64] = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return found


def _places(means: Mapping[str, float], lower: bool) -> dict[str, int]:
    """1 and 2 for the best two values, as they are shown to one decimal of a percent; 0 for the rest."""
    shown = {row: round(-mean if lower else mean, 4) for row, mean in means.items() if not np.isnan(mean)}
    best = sorted(set(shown.values()), reverse=True)[:2]
    return {row: best.index(shown[row]) + 1 if shown.get(row) in best else 0 for row in means}


class Beside(NamedTuple):
    """Our numbers and the published ones of one data set and metric, over the rows that both have.

    Attributes:
        dataset: the paper's.
        metric: ours.
        pairs: by row, our mean and the published value, in percent.
        tau: Kendall's rank correlation of the two; NaN with fewer than 3 rows.
        p: of that correlation.
    """

    dataset: str
    metric: str
    pairs: dict[str, tuple[float, float]]
    tau: float
    p: float


def beside_published(table: Table, published: PublishedTable) -> list[Beside]:
    """Our means beside a published table's, and whether both order the rows alike."""
    found = []
    for dataset in published.datasets:
        for metric, theirs in published.metrics.items():
            pairs = {}
            for row, method in published.rows.items():
                value = published_value(published.table, dataset, method, theirs)
                if row in table.rows and metric in table.rows[row] and value is not None:
                    pairs[row] = (100 * table.rows[row][metric].mean, value)
            tau, p = float("nan"), float("nan")
            if len(pairs) > 2:
                tau, p = map(float, stats.kendalltau(*zip(*pairs.values(), strict=True)))
            if pairs:
                found.append(Beside(dataset, metric, pairs, tau, p))
    return found
