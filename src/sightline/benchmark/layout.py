"""What a suite's page says, as blocks that Markdown and HTML are made from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sightline.benchmark.grid import Cell
from sightline.benchmark.outcome import Outcome
from sightline.benchmark.suite import PublishedTable, Suite
from sightline.benchmark.tables import POOLED, Beside, Entry, Table, beside_published, lower_is_better, tables_of
from sightline.evaluation.result import shown

SMALLEST_P = 1e-4


class Value(NamedTuple):
    """What stands in a field of a grid; place 1 is the best of its column, 2 the second best."""

    text: str
    place: int = 0


class Heading(NamedTuple):
    """A title inside a page."""

    text: str


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class Code(NamedTuple):
    """A command."""

    text: str


class Grid(NamedTuple):
    """A table."""

    header: list[str]
    rows: list[list[Value]]


class Picture(NamedTuple):
    """A picture beside the page, by its file name."""

    file: str
    text: str


Block = Heading | Paragraph | Code | Grid | Picture


def blocks_of(suite: Suite, file: Path, done: Mapping[Cell, Outcome], n_cells: int, pictures: list[Picture]) -> list[Block]:
    """The whole page of a suite, from what is finished of it."""
    blocks: list[Block] = [Paragraph(suite.about.strip())] if suite.about.strip() else []
    blocks += [Code(f"sightline benchmark benchmarks/suites/{file.name} --out {file.stem}")]
    blocks += [Paragraph(_budget(suite, done, n_cells))]
    tables = tables_of(suite, done)
    for table in tables:
        title = f"All {len(tables) - 1} data sets together" if table.data == POOLED and len(tables) > 1 else table.data
        if len(tables) > 1:
            blocks.append(Heading(title))
        blocks += [_means(suite, table), Paragraph(_legend(suite, table))]
        if suite.baseline in table.rows and len(table.rows) > 1:
            blocks += [Heading(f"Against {suite.baseline}" + (f": {title}" if len(tables) > 1 else ""))]
            blocks += [_differences(suite, table), Paragraph(_test_legend(suite))]
    blocks += pictures
    for published in suite.published if tables else ():
        blocks += _published(published, tables[-1])
    return blocks


def _budget(suite: Suite, done: Mapping[Cell, Outcome], n_cells: int) -> str:
    laid_over = f" with `{' '.join(suite.set)}`" if suite.set else ""
    said = f"Recipe `{Path(suite.recipe).name}`{laid_over}; "
    said += f"{len(suite.seeds)} seeds, measured on the {suite.split} classes."
    runs = [outcome.about for cell, outcome in done.items() if cell.row.trained and not outcome.about["was_resumed"]]
    if runs:
        mean, where = sum(about["cpu_seconds"] for about in runs) / len(runs), runs[0]
        said += f" A run takes {mean:.0f} s of processor time ({where['machine']}, torch {where['torch']})."
    if len(done) < n_cells:
        said += f" **{n_cells - len(done)} of {n_cells} runs are not finished yet.**"
    return said


def _means(suite: Suite, table: Table) -> Grid:
    header = ["", *(f"{metric}{' ↓' if lower_is_better(metric) else ''}" for metric in suite.metrics), "seeds"]
    rows = [
        [
            Value(row),
            *(Value(_mean(metric, entries[metric]), entries[metric].place) for metric in suite.metrics),
            Value(str(table.seeds[row])),
        ]
        for row, entries in table.rows.items()
    ]
    return Grid(header, rows)


def _mean(metric: str, entry: Entry) -> str:
    if math.isnan(entry.mean):
        return "–"
    spread = "" if math.isnan(entry.deviation) else f" ± {shown(metric, entry.deviation)}"
    return shown(metric, entry.mean) + spread


def _legend(suite: Suite, table: Table) -> str:
    said = f"{table.n_queries} queries; mean ± standard deviation over seeds, in percent; best bold, second best italic."
    if any(map(lower_is_better, suite.metrics)):
        said += " ↓: lower is better, in label levels."
    return said + (f" Without a result yet: {', '.join(table.missing)}." if table.missing else "")


def _differences(suite: Suite, table: Table) -> Grid:
    rows = [
        [Value(row), *(Value(_difference(metric, entries[metric])) for metric in suite.metrics)]
        for row, entries in table.rows.items()
        if row != suite.baseline
    ]
    return Grid(["", *suite.metrics], rows)


def _difference(metric: str, entry: Entry) -> str:
    if math.isnan(entry.difference):
        return "–"
    p = f"p < {SMALLEST_P:.4f}" if entry.p < SMALLEST_P else f"p = {entry.p:.4f}"
    return f"{shown(metric, entry.difference, '+')} ({p})"


def _test_legend(suite: Suite) -> str:
    return (
        f"Mean difference over queries, each query averaged over seeds first; two-sided sign-flip test over {suite.by}, "
        "p raised for the number of rows (Holm). The test asks about other such queries, the deviation above about other "
        "seeds: believe a difference that is large beside both."
    )


def _published(published: PublishedTable, table: Table) -> list[Block]:
    found = beside_published(table, published)
    metrics = list(dict.fromkeys(one.metric for one in found))
    if not found:
        return []
    header = ["", *(f"{metric} here" for metric in metrics), *(f"{one.metric} on {one.dataset}" for one in found)]
    rows = []
    for row in published.rows:
        if not any(row in one.pairs for one in found):
            continue
        ours = [
            next((f"{one.pairs[row][0]:.1f}" for one in found if one.metric == m and row in one.pairs), "–")
            for m in metrics
        ]
        theirs = [f"{one.pairs[row][1]:g}" if row in one.pairs else "–" for one in found]
        rows.append([Value(row), *map(Value, ours), *map(Value, theirs)])
    return [Heading(f"Beside {published.title}"), Grid(header, rows), Paragraph(_agreement(found))]


def _agreement(found: list[Beside]) -> str:
    said = [
        f"{one.metric} with {one.dataset} {one.tau:+.2f} (p = {one.p:.2f}, {len(one.pairs)} rows)"
        for one in found
        if not math.isnan(one.tau)
    ]
    if not said:
        return "Too few rows to say whether both order them alike."
    return "Do both order the rows alike? Kendall's τ, 1 for the same order, -1 for the opposite: " + "; ".join(said) + "."
