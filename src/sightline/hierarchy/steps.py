"""The files between the steps that build a tree: tables in one folder that a person can open and change."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from sightline.data.manifest import table_faults
from sightline.errors import InputError, names
from sightline.files import replaced

LABELS, CLEAN, DROPPED = "labels.csv", "clean.csv", "dropped.csv"
TERMS, VECTORS, CLUSTERS = "terms.csv", "vectors.safetensors", "clusters.csv"
MADE_FOR = "clusters.json"  # what the files held that the clusters were made for
JOURNAL, REVIEW, AGREED, CONFLICTS = "journal.jsonl", "review.csv", "agreed.csv", "conflicts.csv"
REPORT, PLOT, UNPLACED = "report.csv", "report.svg", "unplaced.csv"
MADE_BY = {LABELS: "collect", CLEAN: "clean", TERMS: "embed", VECTORS: "embed", CLUSTERS: "cluster"}


def read_step(folder: Path, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """A table of an earlier step, all text; where it is missing the message says which command makes it."""
    file = Path(folder) / name
    if not file.is_file():
        raise InputError(f"{file}: no such file; `sightline hierarchy {MADE_BY[name]}` makes it")
    return read_words(file, columns)


def read_words(file: Path, columns: Sequence[str]) -> pl.DataFrame:
    """A CSV file as text, empty where a field is; the columns asked for must be there."""
    with table_faults(file):
        table = pl.read_csv(file, infer_schema=False).with_columns(pl.all().fill_null("").str.strip_chars())
    if missing := [column for column in columns if column not in table.columns]:
        raise InputError(f"{file}: no column {names(missing)}; the header has {names(table.columns)}")
    return table


def write_step(folder: Path, name: str, table: pl.DataFrame) -> Path:
    """Write a step's table, complete or not at all."""
    file = Path(folder) / name
    with replaced(file) as scratch:
        table.write_csv(scratch)
    return file


def write_clusters(folder: Path, table: pl.DataFrame) -> None:
    """Write ``clusters.csv``, then of which ``clean.csv`` and ``terms.csv`` it is."""
    write_step(folder, CLUSTERS, table)
    told = {name: digest(folder / name) for name in (CLEAN, TERMS) if (folder / name).is_file()}
    with replaced(folder / MADE_FOR) as scratch:
        scratch.write_text(json.dumps(told) + "\n", encoding="utf-8")


def read_clusters(folder: Path) -> pl.DataFrame:
    """The table of clusters; refused where ``clean.csv`` or ``terms.csv`` is no longer the one it was made for."""
    table = read_step(folder, CLUSTERS, ("text", "group_1"))
    file = folder / MADE_FOR
    told = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name, made_for in told.items():
        if not (folder / name).is_file() or digest(folder / name) != made_for:
            raise InputError(f"{folder / CLUSTERS}: made for another {name}: run `sightline hierarchy cluster` again")
    return table


def digest(file: Path) -> str:
    """What a file holds, as a short text: another one shows that it was changed since."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def whole_numbers(table: pl.DataFrame, column: str, file: Path) -> pl.Series:
    """A column of counts; a field that is none is refused with its line."""
    numbers = table[column].cast(pl.Int64, strict=False)
    wrong = table.with_row_index("row").filter(numbers.is_null())
    if len(wrong):
        row, found = wrong["row"][0] + 2, wrong[column][0]
        raise InputError(f"{file}: line {row}: {column} is {found!r}, not a whole number")
    return numbers
