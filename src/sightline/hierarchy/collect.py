"""First two steps: the labels with what is known about each, then one text a label; and the tables between all steps.

A step writes tables into one folder that a person can open and change. Columns of ``labels.csv``: ``label``; ``category``,
several separated by ``|``; ``description``; ``n_images``; ``examples``, full paths separated by ``|``. ``clean.csv`` has
the labels that are kept with their ``text``, ``dropped.csv`` the others with the reason.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from sightline.data.manifest import Manifest, read_manifest, read_text_table, write_table
from sightline.errors import InputError, choose, names, raise_faults

LABELS, CLEAN, DROPPED = "labels.csv", "clean.csv", "dropped.csv"
TERMS, VECTORS, CLUSTERS = "terms.csv", "vectors.safetensors", "clusters.csv"
MADE_FOR = "clusters.json"  # what the files held that the clusters were made for
JOURNAL, REVIEW, AGREED, CONFLICTS = "journal.jsonl", "review.csv", "agreed.csv", "conflicts.csv"
REPORT, PLOT, UNPLACED = "report.csv", "report.svg", "unplaced.csv"
MADE_BY = {LABELS: "collect", CLEAN: "clean", TERMS: "embed", VECTORS: "embed", CLUSTERS: "cluster"}
COLUMNS = ("label", "category", "description", "n_images", "examples")
N_EXAMPLES = 6
BETWEEN = "|"
META = (r"wikimedia .*", r"wikipedia:.*", r".*disambiguation.*", r"list of .*", r"(unknown|other|misc\.?|n/?a|none|\?+)")
TEXTS = {
    "category": pl.col("values").list.first(),
    "description": pl.col("description"),
    "name": pl.col("label").str.replace_all(r"[_\-]+", " "),
}


def read_step(folder: Path, name: str, columns: Sequence[str], counts: Sequence[str] = ()) -> pl.DataFrame:
    """A table of an earlier step as text, but for the columns of counts."""
    file = check_made(folder, name)
    return with_counts(file, read_text_table(file, (*columns, *counts)), counts)


def check_made(folder: Path, name: str) -> Path:
    """The file of an earlier step; where it is missing the message says which command makes it."""
    file = folder / name
    if not file.is_file():
        raise InputError(f"{file}: no such file; `sightline hierarchy {MADE_BY[name]}` makes it")
    return file


def with_counts(file: Path, table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The table with these columns as whole numbers; a field that is none is refused with its line."""
    numbers = table.select(pl.col(columns).cast(pl.Int64, strict=False))
    faults = [
        f"line {line}: {column} is {word!r}, not a whole number"
        for column in columns
        for line, (word, number) in enumerate(zip(table[column], numbers[column], strict=True), start=2)
        if number is None
    ]
    raise_faults(file, faults)
    return table.with_columns(numbers)


def check_filled(file: Path, table: pl.DataFrame, column: str) -> None:
    """Refuse a table without a row, or with a row that has nothing in a column."""
    raise_faults(file, [f"line {line}: {column} is empty" for line, word in enumerate(table[column], start=2) if not word])
    if not len(table):
        raise InputError(f"{file}: the table has no row")


def write_step(folder: Path, name: str, table: pl.DataFrame) -> Path:
    """Write a step's table, complete or not at all."""
    return write_table(table, folder / name)


def check_made_for(folder: Path, name: str, made_for: Mapping[str, str]) -> None:
    """Refuse a step's file where one of the files it was made for, given by digest, is no longer the same."""
    if changed := [one for one, was in made_for.items() if not (folder / one).is_file() or digest(folder / one) != was]:
        raise InputError(f"{folder / name}: made for another {changed[0]}: run `sightline hierarchy {MADE_BY[name]}` again")


def digest(file: Path) -> str:
    """What a file holds, as a short text: another one shows that it was changed since."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def collect_labels(source: Path, description: str | None = None, category: str | None = None) -> pl.DataFrame:
    """One row a label of a manifest, a folder of images, or a CSV file with a column ``label``.

    Args:
        source: a CSV file with a column ``path`` is a manifest.
        description: as :func:`labels_of_manifest` takes it.
        category: as :func:`labels_of_manifest` takes it.
    """
    is_manifest = source.is_dir() or source.suffix.lower() == ".parquet" or "path" in read_text_table(source).columns
    return labels_of_manifest(read_manifest(source), description, category) if is_manifest else read_labels(source)


def labels_of_manifest(manifest: Manifest, description: str | None = None, category: str | None = None) -> pl.DataFrame:
    """One row a finest label of a manifest, with its images counted and some of them as examples.

    Args:
        manifest: with labels.
        description: the column that says what a label is; where rows of a label differ, the most frequent counts.
        category: the column with its category; where rows differ, all of them are kept, so that cleaning sees them.
    """
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels")
    table, root, none = manifest.table, manifest.root.resolve(), pl.lit("")
    if missing := [column for column in (description, category) if column not in (None, *table.columns)]:
        raise InputError(f"{manifest.source}: no column {names(missing)}; it has {names(table.columns)}")
    found = table.with_columns(
        label=pl.col("label_0"), full=pl.Series([str(root / path) for path in table["path"]], dtype=pl.String)
    )
    return (
        found.group_by("label", maintain_order=True)
        .agg(
            category=none if category is None else _distinct(pl.col(category).cast(str).str.strip_chars().drop_nulls()),
            description=none if description is None else pl.col(description).cast(str).drop_nulls().mode().sort().first(),
            n_images=pl.len(),
            examples=pl.col("full").head(N_EXAMPLES).str.join(BETWEEN),
        )
        .with_columns(pl.col(pl.String).fill_null(""))
    )


def read_labels(file: Path) -> pl.DataFrame:
    """One row a label from a CSV with a column ``label`` (or ``landmark_id``) and any of the others.

    Rows of one label are joined: its categories are listed, so that cleaning sees an ambiguous one.
    """
    table = read_text_table(file)
    name = "label" if "label" in table.columns else "landmark_id"
    if name not in table.columns:
        raise InputError(f"{file}: no column 'label'; the header has {names(table.columns)}")
    table = table.rename({name: "label"})
    check_filled(file, table, "label")
    table = table.with_columns(pl.lit("").alias(column) for column in COLUMNS if column not in table.columns)
    table = with_counts(file, table.with_columns(pl.col("n_images").replace("", "1")), ["n_images"])
    words = {column: pl.col(column).filter(pl.col(column) != "") for column in COLUMNS}
    return table.group_by("label", maintain_order=True).agg(
        category=_distinct(words["category"]),
        description=words["description"].first().fill_null(""),
        n_images=pl.col("n_images").sum(),
        examples=_distinct(words["examples"]),
    )


def _distinct(words: pl.Expr) -> pl.Expr:
    return words.unique(maintain_order=True).str.join(BETWEEN)


@dataclass(frozen=True)
class CleanRules:
    """What text stands for a label, and what is dropped.

    Attributes:
        text: ``category``, ``description`` or ``name``: the label itself with ``_`` and ``-`` as spaces. A label
            without it is dropped.
        meta: patterns of texts that say nothing about the label, whole and in lower case.
        ambiguous: drop labels with more than one category; False keeps the first.
        min_images: drop labels with fewer.
    """

    text: str = "category"
    meta: Sequence[str] = META
    ambiguous: bool = True
    min_images: int = 0

    def __post_init__(self) -> None:
        choose(TEXTS, self.text, "text")
        for pattern in self.meta:
            try:
                pl.select(pl.lit("").str.contains(pattern))
            except pl.exceptions.PolarsError as error:
                raise InputError(f"meta: {pattern!r} is not a valid pattern: {' '.join(str(error).split())}") from error


def choose_texts(labels: pl.DataFrame, rules: CleanRules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The labels kept, with their ``text``, and those dropped, with their ``reason``.

    Example:
        >>> labels = pl.DataFrame({"label": ["Notre-Dame", "X"], "category": ["Church  building", "list of X"],
        ...     "description": "", "n_images": 3, "examples": ""})
        >>> kept, dropped = choose_texts(labels, CleanRules())
        >>> kept["text"].to_list(), dropped["reason"].to_list()
        (['church building'], ['says nothing: list of X'])
    """
    values = pl.col("category").str.split(BETWEEN).list.eval(pl.element().str.strip_chars())
    table = labels.with_columns(values=values.list.eval(pl.element().filter(pl.element() != "")))
    table = table.with_columns(raw=TEXTS[rules.text].fill_null("")).with_columns(text=_key(pl.col("raw")))
    is_ambiguous = pl.col("values").list.eval(_key(pl.element())).list.n_unique() > 1
    is_meta = pl.col("text").str.contains("^(?:" + "|".join(f"(?:{one})" for one in rules.meta or ["$^"]) + ")$")
    reason = (
        pl.when(pl.col("text") == "")
        .then(pl.lit(f"no {rules.text}"))
        .when(is_ambiguous & (rules.ambiguous and rules.text == "category"))
        .then("ambiguous: " + pl.col("values").list.join(BETWEEN))
        .when(is_meta)
        .then("says nothing: " + pl.col("raw"))
        .when(pl.col("n_images") < rules.min_images)
        .then(pl.format("{} images, fewer than {}", "n_images", pl.lit(rules.min_images)))
    )
    table = table.with_columns(reason=reason)
    kept = table.filter(pl.col("reason").is_null()).select("label", "text", "n_images", "examples")
    return kept, table.filter(pl.col("reason").is_not_null()).select("label", "text", "reason")


def clean_labels(folder: Path, rules: CleanRules) -> tuple[int, dict[str, int]]:
    """Write ``clean.csv`` and ``dropped.csv``; how many labels are kept, and how many dropped for each kind of reason."""
    kept, dropped = choose_texts(read_step(folder, LABELS, COLUMNS, ["n_images"]), rules)
    write_step(folder, DROPPED, dropped)
    reasons = dict(dropped["reason"].str.split(":").list.first().value_counts(sort=True).iter_rows())
    if not len(kept):
        why = ", ".join(f"{n} {reason}" for reason, n in reasons.items())
        raise InputError(f"{folder / LABELS}: no label is left ({why}); try another --text: {', '.join(TEXTS)}")
    write_step(folder, CLEAN, kept)
    return len(kept), reasons


def _key(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(r"\s+", " ").str.strip_chars().str.to_lowercase()
