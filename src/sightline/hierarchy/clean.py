"""Second step: one text a label, as ``clean.csv``; what is dropped is listed with its reason in ``dropped.csv``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from sightline.errors import InputError, choose
from sightline.hierarchy.collect import BETWEEN, CLEAN, COLUMNS, DROPPED, LABELS, read_step, whole_numbers, write_step

META = (r"wikimedia .*", r"wikipedia:.*", r".*disambiguation.*", r"list of .*", r"(unknown|other|misc\.?|n/?a|none|\?+)")
TEXTS = ("category", "description", "name")


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
        choose(dict.fromkeys(TEXTS), self.text, "text")
        for pattern in self.meta:
            try:
                re.compile(pattern)
                pl.select(pl.lit("").str.contains(pattern))  # which knows fewer patterns, such as none that look ahead
            except (re.error, pl.exceptions.PolarsError) as error:
                lines = str(error).splitlines()
                told = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
                raise InputError(f"meta: {pattern!r} is no pattern: {told}") from error


def cleaned(labels: pl.DataFrame, rules: CleanRules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The labels kept, with their ``text``, and those dropped, with their ``reason``.

    Example:
        >>> labels = pl.DataFrame({"label": ["Notre-Dame", "X"], "category": ["Church  building", "list of X"],
        ...     "description": "", "n_images": 3, "examples": ""})
        >>> kept, dropped = cleaned(labels, CleanRules())
        >>> kept["text"].to_list(), dropped["reason"].to_list()
        (['church building'], ['says nothing: list of X'])
    """
    values = pl.col("category").str.split(BETWEEN).list.eval(pl.element().str.strip_chars()).list.drop_nulls()
    table = labels.with_columns(values=values.list.eval(pl.element().filter(pl.element() != "")))
    distinct = pl.col("values").list.eval(_key(pl.element())).list.n_unique()
    if rules.text == "category":
        raw = pl.col("values").list.first()
    elif rules.text == "description":
        raw = pl.col("description")
    else:
        raw = pl.col("label").str.replace_all(r"[_\-]+", " ")
    table = table.with_columns(raw=raw.fill_null("")).with_columns(text=_key(pl.col("raw")))
    reason: Any = pl.when(pl.col("text") == "").then(pl.lit(f"no {rules.text}"))
    if rules.ambiguous and rules.text == "category":
        reason = reason.when(distinct > 1).then("ambiguous: " + pl.col("values").list.join(BETWEEN))
    if rules.meta:
        pattern = "^(?:" + "|".join(f"(?:{one})" for one in rules.meta) + ")$"
        reason = reason.when(pl.col("text").str.contains(pattern)).then("says nothing: " + pl.col("raw"))
    reason = reason.when(pl.col("n_images") < rules.min_images).then(
        pl.format("{} images, fewer than {}", pl.col("n_images"), pl.lit(rules.min_images))
    )
    table = table.with_columns(reason=reason.otherwise(None)).select("label", "text", "n_images", "examples", "reason")
    kept = table.filter(pl.col("reason").is_null()).drop("reason")
    return kept, table.filter(pl.col("reason").is_not_null()).select("label", "text", "reason")


def clean(folder: Path, rules: CleanRules) -> tuple[int, pl.DataFrame]:
    """Write ``clean.csv`` and ``dropped.csv``; how many labels are kept, and the dropped ones."""
    labels = read_step(folder, LABELS, COLUMNS)
    labels = labels.with_columns(n_images=whole_numbers(labels, "n_images", Path(folder) / LABELS))
    kept, dropped = cleaned(labels, rules)
    write_step(folder, DROPPED, dropped)
    if not len(kept):
        reasons = dropped["reason"].str.split(":").list.first().value_counts(sort=True).rows()
        told = ", ".join(f"{n} {reason}" for reason, n in reasons)
        raise InputError(
            f"{Path(folder) / LABELS}: no label is left ({told}); another --text may have more: {', '.join(TEXTS)}"
        )
    write_step(folder, CLEAN, kept)
    return len(kept), dropped


def _key(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(r"\s+", " ").str.strip_chars().str.to_lowercase()
