"""Check what a reader found against what was published, and write one manifest."""

import json
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import polars as pl

from sightline.data.manifest import label_columns
from sightline.data.readers.judgements import judgements_file
from sightline.data.readers.source import Draft, Judgements, Part, Reader, Source
from sightline.errors import InputError, names, raise_faults
from sightline.files import replaced, replaced_folder
from sightline.progress import tracked

SHOWN_PATHS = 5
SUFFIXES = (".parquet", ".csv")


def prepare_benchmark(
    reader: Reader,
    root: Path,
    out: Path,
    counts: Mapping[str, Part] | None = None,
    subset: bool = False,
    show_progress: bool = False,
) -> Path:
    """Write the manifest of a public data set that is on disk; it appears complete or not at all.

    Images that come in an archive or an array are written to a folder beside the manifest, ``<its name>_images``, and
    judgements to ``<its name>.judgements.json``. Every image is looked for, none is decoded.

    Args:
        reader: one of ``READERS``.
        root: the folder with the published files.
        out: a ``.parquet`` or ``.csv`` file; paths in it are relative to its folder.
        counts: what each part must have; None for the published counts.
        subset: leave out images that are not there, and check no counts.
        show_progress: draw bars.

    Returns:
        ``out``.
    """
    root, out = Path(root), Path(out)
    if out.suffix not in SUFFIXES:
        raise InputError(f"{out}: the manifest's name must end in one of {names(SUFFIXES)}")
    if not root.is_dir():
        found = "it is a file; give the folder it lies in" if root.exists() else "no such folder"
        raise InputError(f"{root}: {found}; needed is a folder with {reader.needs}")
    images = out.with_name(f"{out.stem}_images")
    made: list[Path] = []
    with ExitStack() as at_the_end:

        def room() -> Path:
            if images.exists():
                raise InputError(f"{images}: already there, and images would go there: remove it or choose another name")
            made.append(at_the_end.enter_context(replaced_folder(images)).resolve())
            return made[0]

        draft = reader.read(Source(root.resolve(), room, show_progress))
        table = _checked(reader, root, draft, reader.counts if counts is None else counts, subset, show_progress)
        # What was made comes last: its folder may lie below the root.
        places = {root.resolve(): os.path.relpath(root.resolve(), out.parent.resolve())}
        table = _relative(table, places | dict.fromkeys(made, images.name))
    if draft.judgements is not None:
        with replaced(judgements_file(out)) as draft_file:
            draft_file.write_text(json.dumps(_judged(draft.judgements, table["id"])), encoding="utf-8")
    with replaced(out) as draft_file:
        if out.suffix == ".csv":
            table.write_csv(draft_file)
        else:
            table.write_parquet(draft_file)
    return out


def _judged(judgements: Judgements, ids: pl.Series) -> Judgements:
    """Without the queries and items that were left out."""
    there = set(ids)
    return {
        query: {kind: [item for item in items if item in there] for kind, items in kinds.items()}
        for query, kinds in judgements.items()
        if query in there
    }


def _checked(
    reader: Reader, root: Path, draft: Draft, counts: Mapping[str, Part], subset: bool, show_progress: bool
) -> pl.DataFrame:
    """The table with its columns in order; all faults at once."""
    table = draft.table
    first = ["path", "split", *(name for name in label_columns(len(table.columns)) if name in table.columns)]
    table = table.select(*first, *(name for name in table.columns if name not in first))
    missing = _missing(table["path"], show_progress)
    if subset and len(missing):
        if len(missing) == len(table):
            raise InputError(f"{root}: none of its {len(table)} images is there; needed is a folder with {reader.needs}")
        left_out = f"{root}: {len(missing)} of {len(table)} images are not there and left out: {_some(missing, root)}"
        warnings.warn(left_out, stacklevel=3)
        table = table.filter(~pl.col("path").is_in(missing.implode()))
    faults = [] if subset else [*_count_faults(table, draft, counts, root)]
    if len(missing) and not subset:
        faults.append(f"{len(missing)} of {len(table)} images are not there: {_some(missing, root)}")
    twice = table.filter(pl.col("path").is_duplicated())["path"].unique(maintain_order=True)
    if len(twice):
        faults.append(
            f"{len(twice)} {'path is' if len(twice) == 1 else 'paths are'} listed more than once: {_some(twice, root)}"
        )
    if reader.class_disjoint and reader.labelled:
        n_splits = table.group_by("label_0").agg(pl.col("split").unique().sort()).filter(pl.col("split").list.len() > 1)
        faults += [
            f"class {label!r} is in the splits {names(splits)}, which share no class as published"
            for label, splits in n_splits.sort("label_0").rows()
        ]
    raise_faults(root, faults)
    return table


def _missing(paths: pl.Series, show_progress: bool) -> pl.Series:
    listed = tracked(paths, "Looking for images", len(paths), show_progress and len(paths) > 0)
    return pl.Series([path for path in listed if not os.path.isfile(path)], dtype=pl.String)


def _some(paths: pl.Series, root: Path) -> str:
    more = f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else ""
    return names(os.path.relpath(path, root.resolve()) for path in paths.head(SHOWN_PATHS)) + more


def _count_faults(table: pl.DataFrame, draft: Draft, counts: Mapping[str, Part], root: Path) -> list[str]:
    """Where the parts are not as large as they should be: the file that lists them, what was found, what was published."""
    faults = []
    for part, wanted in counts.items():
        if part not in draft.files:
            continue
        rows = table.filter(pl.col(f"is_{part}") if f"is_{part}" in table.columns else pl.col("split") == part)
        where = f"{os.path.relpath(draft.files[part], root.resolve())} ({part})"
        if wanted.images is not None and len(rows) != wanted.images:
            faults.append(f"{where}: {len(rows)} images, {wanted.images} are published: {_short(len(rows), wanted.images)}")
        for level, n_wanted in enumerate(wanted.classes):
            n_found = rows[f"label_{level}"].n_unique()
            if n_wanted is not None and n_found != n_wanted:
                faults.append(f"{where}: {n_found} classes in label_{level}, {n_wanted} are published")
    return faults


def _short(n_found: int, n_wanted: int) -> str:
    return "the file is short" if n_found < n_wanted else "it has rows that do not belong to it"


def _relative(table: pl.DataFrame, places: Mapping[Path, str]) -> pl.DataFrame:
    """Paths as seen from the manifest: each folder's place put for the folder itself."""
    path = pl.col("path")
    for folder, place in places.items():
        below = f"{folder}{os.sep}"
        start = "" if place == "." else f"{Path(place).as_posix()}/"
        moved = pl.lit(start) + pl.col("path").str.slice(len(below))
        path = pl.when(pl.col("path").str.starts_with(below)).then(moved).otherwise(path)
    return table.with_columns(path=path)
