"""A suite's page in Markdown, from what is finished of it, and its curves."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from cycler import cycler
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from sightline.errors import InputError, names
from sightline.evaluation.metrics import shown_scale
from sightline.evaluation.result import shown
from sightline.files import replaced
from sightline.studies.run import Outcome
from sightline.studies.suite import Cell, PaperTable, Suite, Sweep, slug
from sightline.studies.tables import Table, beside_published, lower_is_better, tables_of

# Okabe and Ito's colours, with another marker and line each: readable to colour-blind people and in grey.
STYLES = (
    cycler(color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"])
    + cycler(marker=["o", "s", "^", "D", "v"])
    + cycler(linestyle=["-", "--", "-.", ":", "-"])
)
SETTINGS: Any = {"font.family": "sans-serif", "font.size": 10}


def write_page(page: Path, suite: Suite, suite_file: Path, done: Mapping[Cell, Outcome], n_cells: int) -> Path:
    """Write the suite's page, or its part of a page that is there, and its curves beside the page.

    The part is between the lines ``<!-- suite NAME -->`` and ``<!-- end of suite NAME -->``; all other text stays.

    Args:
        page: a Markdown file; new, or with these lines.
        suite: what was asked.
        suite_file: its file, whose name without suffix is NAME.
        done: what is finished of it.
        n_cells: how many cells there are, finished or not.
    """
    begin, end = f"<!-- suite {suite_file.stem} -->", f"<!-- end of suite {suite_file.stem} -->"
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {suite.title}\n\n{begin}\n{end}\n"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        known = names(re.findall(r"<!-- suite (\S+) -->", text))
        raise InputError(f"{page}: no lines {begin!r} and {end!r} to write between; it has {known or 'none'}")
    part = as_markdown(suite, suite_file, done, n_cells, draw_curves(suite, done, page.parent, suite_file.stem))
    with replaced(page) as scratch:
        scratch.write_text(f"{before}{begin}\n\n{part}\n{end}{after}", encoding="utf-8")
    return page


def as_markdown(
    suite: Suite, suite_file: Path, done: Mapping[Cell, Outcome], n_cells: int, pictures: Mapping[str, str]
) -> str:
    """What the page says: means, tests and published tables, the best of a column in bold, the second best in italics."""
    environment = Environment(
        loader=PackageLoader("sightline.studies"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = shown
    lower = [metric for metric in suite.metrics if lower_is_better(metric)]
    tables = tables_of(suite, done)
    published = [(paper, *_beside(paper, tables[-1])) for paper in suite.published if tables]
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
        published=[one for one in published if one[1]],
    )


def _beside(paper: PaperTable, table: Table) -> tuple[dict[str, dict[str, str]], list[str]]:
    """By column and row, our numbers and the published ones; and how well both agree on the order of the rows."""
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
    """Draw a picture for each figure of the suite's sweeps that has a result; error bars are the deviation over seeds.

    Returns:
        What each picture shows, by its file's name in the folder.
    """
    pictures = {}
    for figure in dict.fromkeys(sweep.figure for sweep in suite.sweeps):
        sweeps = [sweep for sweep in suite.sweeps if sweep.figure == figure]
        points = [
            (sweep.name, x, shown_scale(sweep.metric) * outcome.result[sweep.metric])
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
        figure = Figure(figsize=(6, 3.8), layout="constrained")
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
        figure.legend(loc="outside lower center", ncols=2)  # a search for the best place takes seconds
        with replaced(file) as scratch:
            figure.savefig(scratch, format="png", dpi=120, metadata={"Software": None})
