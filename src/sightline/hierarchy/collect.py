"""First step: the labels, with what is known about each, as ``labels.csv``; and the tables between all steps.

A step writes tables into one folder that a person can open and change. Columns of ``labels.csv``: ``label``; ``category``,
several separated by ``|``; ``description``; ``n_images``; ``examples``, full paths separated by ``|``.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from sightline.data.manifest import Manifest, table_faults
from sightline.errors import InputError, names, raise_faults
from sightline.files import replaced

LABELS, CLEAN, DROPPED = "labels.csv", "clean.csv", "dropped.csv"
TERMS, VECTORS, CLUSTERS = "terms.csv", "vectors.safetensors", "clusters.csv"
MADE_FOR = "clusters.json"  # what the files held that the clusters were made for
JOURNAL, REVIEW, AGREED, CONFLICTS = "journal.jsonl", "review.csv", "agreed.csv", "conflicts.csv"
REPORT, PLOT, UNPLACED = "report.csv", "report.svg", "unplaced.csv"
MADE_BY = {LABELS: "collect", CLEAN: "clean", TERMS: "embed", VECTORS: "embed", CLUSTERS: "cluster"}
COLUMNS = ("label", "category", "description", "n_images", "examples")
N_EXAMPLES = 6
BETWEEN = "|"


def read_step(folder: Path, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """A table of an earlier step, all text."""
    return read_words(check_made(folder, name), columns)


def check_made(folder: Path, name: str) -> Path:
    """The file of an earlier step; where it is missing the message says which command makes it."""
    file = Path(folder) / name
    if not file.is_file():
        raise InputError(f"{file}: no such file; `sightline hierarchy {MADE_BY[name]}` makes it")
    return file


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


def check_made_for(folder: Path, name: str, made_for: Mapping[str, str]) -> None:
    """Refuse a step's file where one of the files it was made for, given by digest, is no longer the same."""
    changed = [one for one, was in made_for.items() if not (folder / one).is_file() or digest(folder / one) != was]
    if changed:
        again = f"run `sightline hierarchy {MADE_BY[name]}` again"
        raise InputError(f"{folder / name}: made for another {changed[0]}: {again}")


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


def labels_of_manifest(manifest: Manifest, description: str | None = None, category: str | None = None) -> pl.DataFrame:
    """One row a finest label of a manifest, with its images counted and some of them as examples.

    Args:
        manifest: with labels.
        description: the column that says what a label is; where rows of a label differ, the most frequent counts.
        category: the column with its category; where rows differ, all of them are kept, so that cleaning sees them.
    """
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels")
    for column in (description, category):
        if column is not None and column not in manifest.table.columns:
            raise InputError(f"{manifest.source}: no column {column!r}; it has {names(manifest.table.columns)}")
    root = manifest.root.resolve()
    full = pl.Series("full", [str(root / path) for path in manifest.table["path"]], dtype=pl.String)
    grouped = (
        manifest.table.with_columns(full)
        .group_by("label_0", maintain_order=True)
        .agg(
            category=_joined(category),
            description=pl.lit("")
            if description is None
            else pl.col(description).cast(str).drop_nulls().mode().sort().first(),
            n_images=pl.len(),
            examples=pl.col("full").head(N_EXAMPLES).str.join(BETWEEN),
        )
    )
    return grouped.rename({"label_0": "label"}).with_columns(pl.col(pl.String).fill_null(""))


def _joined(column: str | None) -> pl.Expr:
    if column is None:
        return pl.lit("")
    return pl.col(column).cast(str).str.strip_chars().drop_nulls().unique(maintain_order=True).str.join(BETWEEN)


def read_labels(file: Path) -> pl.DataFrame:
    """One row a label from a CSV with a column ``label`` (or ``landmark_id``) and any of the others.

    Rows of one label are joined: its categories are listed, so that cleaning sees an ambiguous one.
    """
    table = read_words(Path(file), ())
    if "label" not in table.columns and "landmark_id" in table.columns:
        table = table.rename({"landmark_id": "label"})
    if "label" not in table.columns:
        raise InputError(f"{file}: no column 'label'; the header has {names(table.columns)}")
    empty = table.with_row_index("row").filter(pl.col("label") == "")["row"]
    raise_faults(file, [f"line {row + 2}: label is empty" for row in empty])
    if not len(table):
        raise InputError(f"{file}: the table has no row")
    absent = [pl.lit("1" if name == "n_images" else "").alias(name) for name in COLUMNS if name not in table.columns]
    table = table.with_columns(absent).with_columns(pl.col("n_images").replace("", "1"))
    table = table.with_columns(n_images=whole_numbers(table, "n_images", Path(file)))
    several = [
        pl.col(name).filter(pl.col(name) != "").unique(maintain_order=True).str.join(BETWEEN)
        for name in ("category", "examples")
    ]
    return table.group_by("label", maintain_order=True).agg(
        several[0],
        pl.col("description").filter(pl.col("description") != "").first().fill_null(""),
        pl.col("n_images").sum(),
        several[1],
    )


def with_categories(labels: pl.DataFrame, found: Iterable[list[str]]) -> pl.DataFrame:
    """The labels with the categories looked up for each."""
    return labels.with_columns(category=pl.Series([BETWEEN.join(values) for values in found], dtype=pl.String))


def write_labels(folder: Path, labels: pl.DataFrame) -> Path:
    """Write ``labels.csv``."""
    return write_step(folder, LABELS, labels.select(COLUMNS))
