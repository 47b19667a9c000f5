"""The finished runs of a suite as tables, curves and a page in Markdown.

Tables have mean and deviation over seeds, places, and paired tests against the baseline.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from cycler import cycler
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from sightline.errors import InputError, names
from sightline.evaluation.metrics import metric_of, shown_scale
from sightline.evaluation.result import holm, permutation_p, shown
from sightline.files import replaced, write_text
from sightline.studies.cells import Outcome
from sightline.studies.findings import paired_effect
from sightline.studies.papers import published_value
from sightline.studies.suite import Cell, PaperTable, Question, Suite, Sweep, slug

# Okabe and Ito's colours, each with its own marker and line: readable with colour blindness and in grey.
STYLES = cycler(linestyle=["-", "--", "-.", ":"]) * (
    cycler(color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00"])
    + cycler(marker=["o", "s", "^", "D", "v", "P", "X"])
)
LEGEND_ROW = 0.2  # inches; the legend is below the axes and takes nothing from them
SETTINGS: Any = {"font.family": "sans-serif", "font.size": 10}


@dataclass(frozen=True, eq=False)
class Table:
    """The table of one data set of a suite.

    Attributes:
        data: its name.
        frame: a line for each ``row`` and ``metric`` with a result, in the order of the suite.
            ``mean`` over ``seeds`` seeds, each the mean over its queries, and their ``deviation`` (n - 1; null with one);
            ``place`` counts from 1, the best, by what is shown to one decimal of a percent, so that equal ones share it;
            ``difference`` to the baseline, over the classes that both define, and ``p`` of its paired test, raised for the
            number of rows (Holm), are null for the baseline. Undefined values are null.
        n_classes: number of classes measured.
    """

    data: str
    frame: pl.DataFrame
    n_classes: int

    def entries(self) -> dict[Any, dict[str, dict[str, Any]]]:
        """The lines of the frame by row and metric."""
        by_row = self.frame.group_by("row", maintain_order=True)
        return {row: {line["metric"]: line for line in lines.iter_rows(named=True)} for (row,), lines in by_row}


def lower_is_better(metric: str) -> bool:
    """True for metrics such as severity, which count the label levels of a mistake."""
    found = metric_of(metric)
    return found is not None and not found.higher_is_better


def tables_of(suite: Suite, done: Mapping[Cell, Outcome]) -> list[Table]:
    """A table for each data set that has results."""
    names_of_data = [data.name for data in suite.data if any(cell.data == data.name for cell in done)]
    return [_table(suite, name, {cell: one for cell, one in done.items() if cell.data == name}) for name in names_of_data]


def _table(suite: Suite, name: str, done: Mapping[Cell, Outcome]) -> Table:
    rows = [row.name for row in suite.all_rows]
    in_order = sorted(done.items(), key=lambda one: rows.index(one[0].row.name))
    lines = [(cell.row.name, metric, outcome.means[metric]) for cell, outcome in in_order for metric in suite.all_metrics]
    values = pl.DataFrame(lines, ["row", "metric", "value"], orient="row").with_columns(pl.col("value").fill_nan(None))
    value = pl.col("value")
    frame = values.group_by("row", "metric", maintain_order=True).agg(
        mean=value.mean(), deviation=value.std(), seeds=pl.len()
    )
    is_low_good = pl.col("metric").is_in([metric for metric in suite.all_metrics if lower_is_better(metric)])
    shown = pl.col("mean").round(4) * pl.when(is_low_good).then(1).otherwise(-1)
    frame = frame.with_columns(place=shown.rank("dense").over("metric"))
    frame = frame.join(_tests(suite, in_order), on=["row", "metric"], how="left", maintain_order="left")
    return Table(name, frame, len(in_order[0][1].class_means[suite.metrics[0]]))


def _tests(suite: Suite, done: Sequence[tuple[Cell, Outcome]]) -> pl.DataFrame:
    """Difference to the baseline and p-value of each row and metric: by class, averaged over seeds."""
    names_of_rows = list(dict.fromkeys(cell.row.name for cell, _ in done))
    averages = {
        (row, metric): np.mean(
            [one.class_means[metric] for cell, one in done if cell.row.name == row], axis=0, dtype=np.float64
        )
        for row in names_of_rows
        for metric in suite.all_metrics
    }
    tests = []
    for (row, metric), values in averages.items():
        if row != suite.baseline and (suite.baseline, metric) in averages:
            differences = pl.Series(values - averages[suite.baseline, metric]).fill_nan(None)
            p = permutation_p(differences.fill_null(np.nan).to_numpy()[:, None])[0]
            tests.append((row, metric, differences.mean(), p))
    schema = {"row": pl.String, "metric": pl.String, "difference": pl.Float64, "p": pl.Float64}
    raised = pl.col("p").map_batches(lambda p: pl.Series(holm(p)), return_dtype=pl.Float64).over("metric")
    return pl.DataFrame(tests, schema, orient="row").with_columns(raised)


def beside_published(table: Table, published: PaperTable) -> pl.DataFrame:
    """A line for each ``dataset``, ``metric`` and ``row`` in both: our mean and the published value, in percent."""
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


def write_page(page: Path, suite: Suite, suite_file: Path, done: Mapping[Cell, Outcome], n_cells: int) -> Path:
    """Write the suite's page, or its section of an existing page, and its curves beside the page.

    The section is between the lines ``<!-- suite NAME -->`` and ``<!-- end of suite NAME -->``; all other text stays.

    Args:
        page: a Markdown file; new, or with these lines.
        suite: the suite.
        suite_file: its file, whose name without suffix is NAME.
        done: finished cells.
        n_cells: number of cells, finished or not.
    """
    begin, end = f"<!-- suite {suite_file.stem} -->", f"<!-- end of suite {suite_file.stem} -->"
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {suite.title}\n\n{begin}\n{end}\n"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        known = names(re.findall(r"<!-- suite (\S+) -->", text))
        raise InputError(
            f"{page}: must have the lines {begin!r} and {end!r}, found those of {known or 'no suite'}; add them"
        )
    part = as_markdown(suite, suite_file, done, n_cells, draw_curves(suite, done, page.parent, suite_file.stem))
    write_text(page, f"{before}{begin}\n\n{part}\n{end}{after}")
    return page


def as_markdown(
    suite: Suite, suite_file: Path, done: Mapping[Cell, Outcome], n_cells: int, pictures: Mapping[str, str]
) -> str:
    """The page: means, tests and published tables, with the best of a column in bold and the second best in italics."""
    environment = Environment(
        loader=PackageLoader("sightline.studies"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = shown
    lower = [metric for metric in suite.metrics if lower_is_better(metric)]
    tables = tables_of(suite, done)
    published = [(paper, table.data, *_beside(paper, table)) for paper in suite.published for table in tables]
    return environment.get_template("suite.md").render(
        suite=suite,
        file=suite_file,
        recipe=Path(suite.recipe).name,
        n_done=len(done),
        n_cells=n_cells,
        runs=[one.about for cell, one in done.items() if cell.row.trained and not one.about["was_resumed"]],
        lower=lower,
        means_header=[*(f"{metric} ↓" if metric in lower else metric for metric in suite.metrics), "seeds"],
        tables=tables,
        pictures=pictures,
        published=[one for one in published if one[2]],
        by_codes=any(one.about.get("recipe", {}).get("data", {}).get("codes") for one in done.values()),
        answers=[answer for table in tables for one in suite.questions if (answer := _answer(one, table.data, done))],
    )


def _answer(question: Question, data: str, done: Mapping[Cell, Outcome]) -> str | None:
    """The answer in a sentence, by the seeds that all its rows have; None where there are fewer than two."""
    rows = [question.better, *question.than]
    found: dict[str, dict[int, NDArray[np.float32]]] = {row: {} for row in rows}
    for cell, outcome in done.items():
        if cell.data == data and cell.row.name in found:
            found[cell.row.name][cell.seed] = outcome.class_means[question.metric]
    seeds = sorted(set.intersection(*({*by_seed} for by_seed in found.values())))
    if len(seeds) < 2:
        return None
    sign = -1 if lower_is_better(question.metric) else 1
    values = {row: sign * np.array([by_seed[seed] for seed in seeds], np.float64) for row, by_seed in found.items()}
    base = max(question.than, key=lambda row: np.nanmean(values[row]))
    differences = values[question.better] - values[base]
    effect = paired_effect(differences[:, ~np.isnan(differences).any(0)])
    low, high, mean, least = (
        shown(question.metric, one, "+") for one in (*effect.interval, effect.mean, effect.detectable_at(question.level))
    )
    says = "Yes" if effect.p_value < question.level and effect.mean > 0 else "No"
    return (
        f"Is {question.better} better than {' and '.join(question.than)} in {question.metric}, p < {question.level:g}? "
        f"**{says}**: {mean} against {base} (95 % interval {low} to {high}, p = {effect.p_value:.2g}, {len(seeds)} seeds). "
        f"Such runs show a difference of {least} in four of five cases."
    )


def _beside(paper: PaperTable, table: Table) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Our numbers and the published ones by column and row; and how well both agree on the order of the rows."""
    found = beside_published(table, paper)
    columns: dict[str, dict[str, str]] = {}
    for row, metric, ours in found.select("row", "metric", "ours").rows():
        columns.setdefault(f"{metric} here", {})[row] = f"{ours:.1f}"
    alike = []
    for (dataset, metric), lines in found.group_by("dataset", "metric", maintain_order=True):
        columns[f"{metric} on {dataset}"] = {row: f"{theirs:g}" for row, theirs in lines.select("row", "theirs").rows()}
        if len(lines) > 2:
            tau, p = stats.kendalltau(lines["ours"], lines["theirs"])
            alike.append(f"{metric} with {dataset} {tau:+.2f} (p = {p:.2f}, {len(lines)} rows)")
    return columns, alike


def draw_curves(suite: Suite, done: Mapping[Cell, Outcome], folder: Path, prefix: str) -> dict[str, str]:
    """Draw each figure of the suite's sweeps that has a result; error bars are the deviation over seeds.

    Returns:
        A description of each picture by file name.
    """
    pictures = {}
    for figure in dict.fromkeys(sweep.figure for sweep in suite.sweeps):
        sweeps = [sweep for sweep in suite.sweeps if sweep.figure == figure]
        points = [
            (sweep.name, x, shown_scale(sweep.metric) * outcome.means[sweep.metric])
            for sweep in sweeps
            for x, row in zip(sweep.values, sweep.rows(), strict=True)
            for cell, outcome in done.items()
            if cell.row == row
        ]
        if points:
            table = pl.DataFrame(points, ["line", "x", "value"], orient="row")
            file = f"{prefix}-{slug(figure)}.png"
            _draw(sweeps[0], table, folder / file)
            lines = ", ".join(table["line"].unique(maintain_order=True))
            pictures[file] = f"{sweeps[0].metric} against {sweeps[0].label}: {lines}"
    return pictures


def _draw(first: Sweep, points: pl.DataFrame, file: Path) -> None:
    value = pl.col("value")
    means = points.group_by("line", "x", maintain_order=True).agg(value.mean(), spread=value.std().fill_null(0.0))
    with rc_context(SETTINGS):
        n_rows = math.ceil(means["line"].n_unique() / 2)
        figure = Figure(figsize=(7, 3.4 + LEGEND_ROW * n_rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_prop_cycle(STYLES)
        for (name,), line in means.group_by("line", maintain_order=True):
            axes.errorbar(*line.sort("x").select("x", "value", "spread"), capsize=3, label=name)
        axes.set_xlabel(first.label)
        axes.set_ylabel(f"{first.metric} in percent" if shown_scale(first.metric) == 100 else first.metric)
        if first.log:
            axes.set_xscale("log")
            ticks = points["x"].unique().sort()
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.minorticks_off()
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2)  # placing it automatically takes seconds
        with replaced(file) as scratch:
            figure.savefig(scratch, format="png", dpi=120, metadata={"Software": None})
