"""What the readers of public data sets share: finding files, reading lines of text, and the shape of what they give."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from sightline.data.manifest import UNREADABLE, label_columns
from sightline.data.readers.archives import unpack
from sightline.errors import InputError, names, raise_faults

SHOWN = 12  # names of a folder in a message
Judgements = Mapping[str, Mapping[str, Sequence[str]]]


class Part(NamedTuple):
    """How much a part of a data set has; None, or fewer levels than there are, where that is not known."""

    images: int | None = None
    classes: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Draft:
    """What a reader found.

    Attributes:
        table: the manifest's columns; ``path`` in full.
        files: the file that lists each part (a split, ``query`` or ``gallery``); only these parts are counted.
        judgements: for each query's id, the ids of the items of each kind, such as ``easy``; None where labels say it.
    """

    table: pl.DataFrame
    files: Mapping[str, Path]
    judgements: Judgements | None = None


@dataclass(frozen=True)
class Source:
    """The files of a data set, as the user has them.

    Attributes:
        root: the folder that the user named.
        room: makes a folder for the images that a reader unpacks or writes; called once, and refused if its place is taken.
        show_progress: draw bars.
        bases: where files are looked for.
    """

    root: Path
    room: Callable[[], Path]
    show_progress: bool = False
    bases: tuple[Path, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "bases", self.bases or (self.root,))

    def find(self, choices: Sequence[str], is_it: Callable[[Path], bool]) -> Path | None:
        """The first of the choices that is there."""
        paths = (base / choice for base in self.bases for choice in choices)
        return next((path for path in paths if is_it(path)), None)

    def file(self, *choices: str) -> Path:
        """The first of these files; one error that says what was looked for, and what the folder has."""
        return self.find(choices, Path.is_file) or self._refuse("file", choices)

    def folder(self, *choices: str) -> Path:
        """The first of these folders; refused like :meth:`file`."""
        return self.find(choices, Path.is_dir) or self._refuse("folder", choices)

    def _refuse(self, what: str, choices: Sequence[str]) -> Path:
        found = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(self.root))
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        has = f"it has {names(found[:SHOWN])}{more}" if found else "it is empty"
        raise InputError(f"{self.root}: no {what} {' or '.join(map(repr, choices))} in this folder; {has}")

    def unpacked(self, archives: Sequence[str], unless: Sequence[str]) -> "Source":
        """Where none of the folders ``unless`` is there but an archive is: a source that also looks into the archive."""
        archive = self.find(archives, Path.is_file)
        if archive is None or self.find(unless, Path.is_dir):
            return self
        made = self.room()
        unpack(archive, made)
        return replace(self, bases=(*self.bases, made))


@dataclass(frozen=True)
class Reader:
    """How one data set's files become a manifest.

    Attributes:
        about: what the images are, in a few words.
        needs: the files that the folder must have.
        read: finds, reads and joins them.
        counts: what the published set has: for each split, ``query`` and ``gallery``.
        class_disjoint: no class of the finest level is in two splits.
        labelled: its images have labels.
    """

    about: str
    needs: str
    read: Callable[[Source], Draft]
    counts: Mapping[str, Part] = field(default_factory=dict)
    class_disjoint: bool = True
    labelled: bool = True


def rows_of(paths: Iterable[str | Path], split: str, labels: Sequence[Iterable[str]], **columns: object) -> pl.DataFrame:
    """Rows of one split.

    Args:
        paths: of the images, in full.
        split: of all of them.
        labels: for each level, finest first, the label of each image.
        columns: further ones: a list, or one value for all.
    """
    found: dict[str, Any] = {"path": [str(path) for path in paths]}
    found |= {name: list(level) for name, level in zip(label_columns(len(labels)), labels, strict=True)}
    listed = {name: value for name, value in columns.items() if isinstance(value, list)}
    single = {name: pl.lit(value) for name, value in columns.items() if not isinstance(value, list)}
    table = pl.DataFrame(found | listed).with_columns(split=pl.lit(split), **single)
    return table.select("path", "split", *label_columns(len(labels)), *columns)


def read_text(file: Path) -> str:
    """The file's text; refused if it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_fields(file: Path, n_fields: int, skip: int = 0) -> list[list[str]]:
    """The fields of each line, separated by blanks; lines with another number of them are refused, all at once.

    Args:
        file: of text.
        n_fields: in each line; the last field takes all that is left.
        skip: lines at the top that are no rows.
    """
    lines = list(enumerate(read_text(file).splitlines(), start=1))[skip:]
    rows = [(number, line.strip().split(maxsplit=n_fields - 1)) for number, line in lines if line.strip()]
    raise_faults(
        file,
        [f"line {number}: {n_fields} fields are needed, found {len(row)}" for number, row in rows if len(row) != n_fields],
    )
    return [row for _, row in rows]


def read_columns(file: Path, *choices: Sequence[str]) -> pl.DataFrame:
    """The columns of a CSV file as text, by the first choice of which it has all; refused if it has none of them whole.

    Args:
        file: with a header.
        choices: names of columns; they come back under those of the first choice.
    """
    try:
        table = pl.read_csv(file, infer_schema=False)
    except UNREADABLE as error:
        raise InputError(f"{file}: cannot be read as a table: {str(error).splitlines()[0]}") from error
    for columns in choices:
        if set(columns) <= set(table.columns):
            return table.select(pl.col(column).alias(name) for column, name in zip(columns, choices[0], strict=True))
    needed = " or ".join(names(columns) for columns in choices)
    raise InputError(f"{file}: columns {needed} are needed; the header has {names(table.columns)}")
