"""A suite: which losses meet on which data with which seeds, and how their results are laid out."""

import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.errors import InputError, names, nearest, raise_faults
from sightline.evaluation.metrics import read_metric_name
from sightline.papers import published_value

MOST_LEVELS = 127  # of labels; the manifest says later how many there are


class Part(BaseModel):
    """A part of a suite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSet(Part):
    """A set of images to train and measure on.

    Attributes:
        name: in tables and file names.
        source: the set it is made from, by the name that ``--data`` gives a manifest for; None: as ``name``.
        query: columns of the manifest and the value that makes an image of the measured split a query; the others of that
            split are the gallery. None: every image queries the others.
    """

    name: str
    source: str | None = None
    query: dict[str, str] | None = None


class Row(Part):
    """What is compared: one recipe, run with every seed.

    Attributes:
        name: in tables; what ``--only`` takes.
        set: laid over the suite's recipe, such as ``loss.name=sup_ap``.
        trained: False measures the pretrained features alone: averaged, without projection, once.
        train_without_queries: leave images like the queries (``query`` of the data) out of training.
        x: where it stands on the axis of its sweep.
        sweep: the sweep that it is a point of.
    """

    name: str
    set: tuple[str, ...] = ()
    trained: bool = True
    train_without_queries: bool = False
    x: float | None = None
    sweep: str | None = None


class Sweep(Part):
    """A row for each value of one hyper-parameter, drawn as one line of a picture.

    Attributes:
        name: of the line; a row is called by it and the value.
        key: of the recipe, such as ``loss.weight``.
        values: one a row.
        label: of the axis.
        figure: sweeps of the same figure share a picture.
        metric: that is drawn.
        log: a logarithmic axis.
        set: as of a row.
    """

    name: str
    key: str
    values: tuple[float, ...] = Field(min_length=1)
    label: str
    figure: str
    metric: str
    log: bool = False
    set: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """A row for each value."""
        return [
            Row(
                name=f"{self.name}, {self.label} {value:g}",
                set=(*self.set, f"{self.key}={value:g}"),
                x=value,
                sweep=self.name,
            )
            for value in self.values
        ]


class PublishedTable(Part):
    """A published table that asks the same question.

    Attributes:
        table: its name in the package, such as ``tpami_table01``.
        title: what people call it.
        datasets: the paper's, each a column for each metric.
        metrics: ours, and what the table calls it.
        rows: ours, and what the table calls it.
    """

    table: str
    title: str
    datasets: tuple[str, ...] = Field(min_length=1)
    metrics: dict[str, str] = Field(min_length=1)
    rows: dict[str, str] = Field(min_length=1)


class Suite(Part):
    """A grid of runs on one budget.

    Attributes:
        title: of its page.
        about: what it asks.
        recipe: a shipped recipe, or a file beside the suite.
        set: laid over the recipe for all rows: the budget.
        data: the sets of images.
        seeds: of the runs.
        split: whose images are measured; ``val`` where hyper-parameters are chosen.
        metrics: columns of the tables.
        baseline: the row that others are tested against.
        by: what the paired test flips: ``queries``, or whole ``classes`` of them.
        threads: of each run; the last bits of a sum depend on them, so they are a part of the budget.
        rows: what is compared.
        sweeps: more rows, drawn as curves.
        published: tables of papers to stand beside.
    """

    title: str
    about: str = ""
    recipe: str
    set: tuple[str, ...] = ()
    data: tuple[DataSet, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    split: Literal["val", "test"] = "test"
    metrics: tuple[str, ...] = Field(min_length=1)
    baseline: str
    by: Literal["queries", "classes"] = "classes"
    threads: int = Field(default=1, ge=1)
    rows: tuple[Row, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    published: tuple[PublishedTable, ...] = ()

    @cached_property
    def all_rows(self) -> list[Row]:
        """Rows and the points of sweeps, in the order of the file."""
        return [*self.rows, *(row for sweep in self.sweeps for row in sweep.rows())]

    @property
    def all_metrics(self) -> list[str]:
        """The metrics of tables and pictures, and those that published tables have too."""
        published = (metric for table in self.published for metric in table.metrics)
        return list(dict.fromkeys([*self.metrics, *(sweep.metric for sweep in self.sweeps), *published]))


def read_suite(file: Path) -> Suite:
    """Read a suite and check what can be checked without its images; all faults are raised together."""
    if not file.is_file():
        raise InputError(f"{file}: no such suite file")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not TOML: {error}") from error
    try:
        suite = Suite.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{file}: " + "; ".join(_sentence(fault) for fault in error.errors())) from error
    raise_faults(file, _faults(suite))
    if (beside := file.parent / suite.recipe).suffix == ".toml":
        suite = suite.model_copy(update={"recipe": str(beside)})
    return suite


def _faults(suite: Suite) -> list[str]:
    rows = [row.name for row in suite.all_rows]
    named = {"row": rows, "data set": [data.name for data in suite.data], "seed": [str(seed) for seed in suite.seeds]}
    faults = [
        f"{what} {name!r} is there {given.count(name)} times"
        for what, given in named.items()
        for name in dict.fromkeys(given)
        if given.count(name) > 1
    ]
    faults += [
        f"row {row.name!r} is not trained: it has nothing to set" for row in suite.rows if not row.trained and row.set
    ]
    if any(row.train_without_queries for row in suite.rows):
        faults += [
            f"data set {one.name!r} needs 'query': a row is trained without it" for one in suite.data if not one.query
        ]
    if suite.baseline not in rows:
        faults.append(f"baseline: unknown row {suite.baseline!r}: {nearest(suite.baseline, rows)}")
    for metric in suite.all_metrics:
        faults += _refused(read_metric_name, metric, MOST_LEVELS)
    for table in suite.published:
        faults += [
            f"published {table.table}: unknown row {row!r}: {nearest(row, rows)}" for row in table.rows if row not in rows
        ]
        for dataset in table.datasets:
            for method in table.rows.values():
                for metric in table.metrics.values():
                    faults += _refused(published_value, table.table, dataset, method, metric)
    return list(dict.fromkeys(faults))


def _refused(call: Callable[..., object], *arguments: object) -> list[str]:
    try:
        call(*arguments)
    except InputError as error:
        return [str(error)]
    return []


def _sentence(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        fields: dict[str, Any] = {"data": DataSet, "rows": Row, "sweeps": Sweep, "published": PublishedTable}
        known = fields.get(str(fault["loc"][0]), Suite) if len(fault["loc"]) > 1 else Suite
        return f"unknown key {where!r}: {nearest(str(fault['loc'][-1]), known.model_fields)}"
    if fault["type"] == "missing":
        return f"{where!r} is missing"
    return f"{where!r} is {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def only_rows(suite: Suite, only: list[str]) -> list[Row]:
    """The rows of these names, all if none is given; an unknown one is refused."""
    known = {row.name: row for row in suite.all_rows}
    if unknown := [name for name in only if name not in known]:
        raise InputError(f"unknown row {names(unknown)}: {nearest(unknown[0], known)}")
    return [row for row in suite.all_rows if not only or row.name in only]
