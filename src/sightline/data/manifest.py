"""Read and check the table of images: a CSV or Parquet file, or a tree of folders."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from textwrap import shorten

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.errors import InputError, counted, named_errors, names, raise_faults
from sightline.files import replaced

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {name: name for name in SPLITS} | {"validation": "val"}
SUFFIXES = (".parquet", ".csv")
BOX = ("x_1", "y_1", "x_2", "y_2")
FLAGS = ("is_query", "is_gallery")
NUMBER = r"^[+-]?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?$"  # 007 is a name
FLAG_VALUES = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # what broken bytes of a table lead to
MOST_COLUMNS, LONGEST_HEADER = 4096, 1 << 20
SEPARATOR = ";"  # of the values in one field of a CSV file, such as the codes 26.1.15;5.3.13
MOST_LISTED, LONGEST_LISTED = 100, 200  # values in one list, and characters of a value
GALLERY_MARK = "gallery.db"  # in a folder whose images were uploaded
IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
)


@dataclass(frozen=True)
class Manifest:
    """Which images there are, what they show and what each is for.

    Attributes:
        source: the file or folder it was read from, for messages.
        root: what relative paths start from.
        table: one row an image: ``id``, ``path``, ``split``, ``label_0`` (finest) ... ``label_{L-1}``, then ``is_query``,
            ``is_gallery`` and the box ``x_1, y_1, x_2, y_2`` where the source has them, then its other columns unchanged.
        n_levels: L; 0 where the images have no labels.
        places: where each row stands in the source, such as ``line 2``, for messages; None where paths say it all.
    """

    source: Path
    root: Path
    table: pl.DataFrame
    n_levels: int
    places: pl.Series | None = None

    def __len__(self) -> int:
        return len(self.table)

    def where(self, rows: pl.Expr) -> "Manifest":
        """The manifest of the rows for which the expression holds."""
        kept = self.table.select(pl.int_range(pl.len()).filter(rows)).to_series()
        return replace(self, table=self.table[kept], places=None if self.places is None else self.places[kept])

    def split(self, name: str) -> "Manifest":
        """The rows of one split; refused if there are none."""
        part = self.where(pl.col("split") == name)
        if not len(part):
            there = self.table["split"].unique().sort().to_list()
            raise InputError(f"{self.source}: no image in split {name!r}; it has {names(there)}")
        return part

    def paths(self) -> list[Path]:
        """The full path of each image."""
        return [self.root / path for path in self.table["path"]]

    def boxes(self) -> list[tuple[int, int, int, int] | None]:
        """The part of each image that counts, as left, top, right, bottom; None for the whole image."""
        if BOX[0] not in self.table.columns:
            return [None] * len(self)
        return [None if box[0] is None else box for box in self.table.select(BOX).iter_rows()]

    def labels(self) -> NDArray[np.int64]:
        """(N, L) class numbers, finest level first; contiguous from 0 at each level over these rows.

        A name that recurs below two parents is two classes.
        """
        codes = np.empty((len(self), self.n_levels), np.int64)
        for level in range(self.n_levels):
            path = pl.struct(reversed(label_columns(self.n_levels)[level:]))
            codes[:, level] = self.table.select(path.rank("dense") - 1).to_series()
        return codes

    def class_names(self, level: int = 0) -> list[str]:
        """The name of each class of a level, 0 being the finest, in the order of its number."""
        named = zip(self.labels()[:, level].tolist(), self.table[f"label_{level}"], strict=True)
        return [name for _, name in sorted(set(named))]


def hold_out_classes(manifest: Manifest, fraction: float, seed: int) -> tuple[Manifest, Manifest]:
    """Two parts that share no class: one with about ``fraction`` of the finest classes, after the rest.

    Each part has at least two classes, for among images of one every ranking is right; of two or three classes one is held
    out, and a manifest with fewer is refused.

    Returns:
        The larger part, then the part held out.
    """
    codes = manifest.labels()[:, 0]
    classes = np.random.default_rng(seed).permutation(codes.max() + 1)
    if len(classes) < 2:
        raise InputError(
            f"{manifest.source}: all images are of one class, none can be held out; add classes or set data.val_fraction=0"
        )
    least = 2 if len(classes) >= 4 else 1
    n_held_out = min(max(least, round(fraction * len(classes))), len(classes) - least)
    held_out = pl.lit(pl.Series(np.isin(codes, classes[:n_held_out])))
    return manifest.where(~held_out), manifest.where(held_out)


def manifest_statistics(manifest: Manifest) -> pl.DataFrame:
    """How many images and classes each split has at each level, without a look at the images.

    Returns:
        ``split``, ``level`` (0 is the finest; null where there are no labels), ``images``, ``classes``, and of the images
        of a class the ``fewest``, the ``median`` and the ``most``; splits in the order of ``SPLITS``.

    Example:
        >>> table = pl.DataFrame({"split": ["train"] * 3, "label_0": ["a", "a", "b"]})
        >>> manifest_statistics(Manifest(Path("m.csv"), Path(), table, n_levels=1)).rows()
        [('train', 0, 3, 2, 1, 1.5, 2)]
    """
    parts = []
    n = pl.col("len").cast(pl.Int64)
    for level in range(manifest.n_levels) or [None]:
        path = [] if level is None else label_columns(manifest.n_levels)[level:]
        of_classes = {"classes": pl.len().cast(pl.Int64), "fewest": n.min(), "median": n.median(), "most": n.max()}
        known = {name: (number if path else pl.lit(None, pl.Int64)) for name, number in of_classes.items()}
        sizes = manifest.table.group_by("split", *path).len()
        parts.append(sizes.group_by("split").agg(pl.lit(level, pl.Int64).alias("level"), images=n.sum(), **known))
    order = pl.col("split").replace_strict({name: place for place, name in enumerate(SPLITS)}, default=len(SPLITS))
    return pl.concat(parts).with_columns(pl.col("median").cast(pl.Float64)).sort(order, "level")


def classes_in_several_splits(manifest: Manifest) -> list[str]:
    """The finest classes with images in more than one split, by name: no fault, but not what unseen classes measure.

    Example:
        >>> table = pl.DataFrame({"split": ["train", "test", "test"], "label_0": ["a", "a", "b"]})
        >>> classes_in_several_splits(Manifest(Path("m.csv"), Path(), table, n_levels=1))
        ['a']
    """
    if not manifest.n_levels:
        return []
    n_splits = manifest.table.group_by(label_columns(manifest.n_levels)).agg(pl.col("split").n_unique())
    return n_splits.filter(pl.col("split") > 1)["label_0"].sort().to_list()


def typed_table(manifest: Manifest) -> pl.DataFrame:
    """The table, its further columns as numbers or booleans where every value that is not empty is one.

    Only of a CSV file, which has no types: those of other sources stay. Numbers with leading zeros or too large for 64 bits
    are names, and stay text.

    Example:
        >>> table = pl.DataFrame({"id": ["a", "b"], "year": ["2019", None], "sold": ["true", "False"], "no": ["007", "1"]})
        >>> typed_table(Manifest(Path("m.csv"), Path(), table, n_levels=0)).rows()
        [('a', 2019, True, '007'), ('b', None, False, '1')]
    """
    table = manifest.table
    if manifest.source.suffix.lower() != ".csv":
        return table
    known = {"id", "path", "split", *label_columns(manifest.n_levels), *FLAGS, *BOX}
    further = [name for name, kind in table.schema.items() if kind == pl.String and name not in known]
    return table.with_columns(_typed(table[name]) for name in further)


def split_lists(manifest: Manifest, column: str) -> Manifest:
    """The manifest with the text of a column split at ``;`` into a list for each image; a column of lists stays.

    Example:
        >>> table = pl.DataFrame({"id": ["a", "b"], "codes": ["26.1.15; 5.3.13", None]})
        >>> split_lists(Manifest(Path("m.csv"), Path(), table, n_levels=0), "codes").table["codes"].to_list()
        [['26.1.15', '5.3.13'], None]
    """
    known = {"id", "path", "split", *label_columns(manifest.n_levels), *FLAGS, *BOX}
    kinds = {name: kind for name, kind in manifest.table.schema.items() if name not in known}
    if column not in kinds:
        raise InputError(
            f"{manifest.source}: no column {column!r} besides those of every manifest; it has {names(kinds) or 'none'}"
        )
    if isinstance(kinds[column], pl.List):
        return manifest
    if kinds[column] not in (pl.String, pl.Null):
        raise InputError(
            f"{manifest.source}: {column} must be text with {SEPARATOR} or lists of text, found {kinds[column]}"
        )
    text = pl.col(column).cast(pl.String).str.strip_chars().replace("", None)
    lists = text.str.split(SEPARATOR).list.eval(pl.element().str.strip_chars())
    return replace(manifest, table=manifest.table.with_columns(lists))


def check_lists(manifest: Manifest) -> None:
    """Raise InputError if a list of a column is empty, too long, or has a value twice or one that is no text."""
    table = manifest.table
    places = table["id"] if manifest.places is None else manifest.places
    raise_faults(
        manifest.source,
        [
            f"{place}: {name} {fault}"
            for name, kind in table.schema.items()
            if isinstance(kind, pl.List)
            for place, values in zip(places, table[name], strict=True)
            if values is not None and (fault := list_fault(values.to_list()))
        ],
    )


def list_fault(values: Sequence[object]) -> str | None:
    """What is wrong with a list of values, such as the codes of an image; None if it is valid.

    Example:
        >>> list_fault(["26.1.15", "5.3.13"]), list_fault(["26.1.15", "26.1.15"])
        (None, "lists '26.1.15' twice")
    """
    if not values:
        return "is an empty list; leave it out where there is no value"
    if len(values) > MOST_LISTED:
        return f"lists {len(values)} values, at most {MOST_LISTED} fit"
    for place, value in enumerate(values):
        if not isinstance(value, str) or not value or "\0" in value:
            return f"must list text that is not empty, without NUL, got {value!r:.40}"
        if len(value) > LONGEST_LISTED:
            return f"lists {value[:20]!r}... of {len(value)} characters, at most {LONGEST_LISTED} fit"
        if value in values[:place]:
            return f"lists {value!r} twice"
    return None


def _typed(column: pl.Series) -> pl.Series:
    text = column.str.strip_chars().str.to_lowercase()
    text = text.set(text == "", None)
    flags = text.replace_strict({"true": True, "false": False}, default=None, return_dtype=pl.Boolean)
    digits = text.set(~text.str.contains(NUMBER), None)
    whole = digits.cast(pl.Int64, strict=False)
    number = digits.cast(pl.Float64, strict=False)
    number = number.set(number.is_infinite() | (whole.is_null() & ~text.str.contains("[.e]")), None)
    return next((typed for typed in (flags, whole, number) if 0 < typed.count() == text.count()), column)


def label_columns(n_levels: int) -> list[str]:
    """The names of the label columns, finest first."""
    return [f"label_{level}" for level in range(n_levels)]


def read_manifest(source: Path | str, labelled: bool = True) -> Manifest:
    """Read a CSV or Parquet table, or a tree of folders, and check every row.

    In a tree the deepest folder is the finest label and its parents the coarser ones; if all first folders are called
    ``train``, ``val`` or ``test`` they are the splits, otherwise every image is in ``train``. Hidden files and folders are
    left out: those whose names begin with a dot.

    Args:
        source: a ``.csv`` or ``.parquet`` file, or a folder.
        labelled: refuse images without a label; False allows a flat folder or a table without label columns.

    Returns:
        The manifest; all faults of the source are raised together, with their line numbers.
    """
    manifest, faults = scan_manifest(source, labelled)
    raise_faults(source, faults)
    return manifest


def scan_manifest(source: Path | str, labelled: bool = True) -> tuple[Manifest, list[str]]:
    """As :func:`read_manifest`, but faults of single rows or folders do not raise.

    Returns:
        The manifest without the rows at fault, and the faults. Images too deep in a tree stay, with the labels of the
        folder that they should be moved to.
    """
    source = Path(source)
    if source.is_dir():
        return _scan_tree(source, labelled)
    if not source.is_file():
        raise InputError(f"{source}: no such file or folder")
    with table_faults(source):
        if source.suffix.lower() == ".parquet":
            table = pl.read_parquet(source)
            return _scan_table(
                source, table, labelled, "row " + pl.int_range(1, len(table) + 1, eager=True).cast(pl.String)
            )
        if source.suffix.lower() == ".csv":
            _check_header(source)
            table = pl.read_csv(source, infer_schema=False)
            # A row begins on a line of its own, but its text fields may go over several.
            breaks = table.select(pl.sum_horizontal(pl.all().str.count_matches("\n", literal=True))).to_series()
            lines = 2 + pl.int_range(len(table), eager=True) + breaks.cum_sum().shift(1, fill_value=0)
            some = table.select(pl.any_horizontal(pl.all().is_not_null())).to_series()  # not an empty line
            places = "line " + lines.filter(some).rechunk().cast(pl.String)
            return _scan_table(source, table.filter(some), labelled, places)
    raise InputError(f"{source}: must be a .csv or .parquet file or a folder")


def table_faults(file: Path, what: str = "a table") -> AbstractContextManager[None]:
    """One error that names the file, for whatever reading it as a table leads to: on some bytes polars panics."""
    return named_errors(file, f"cannot be read as {what}", *UNREADABLE, OSError)


def read_text_table(file: Path, columns: Sequence[str] = (), separator: str = ",", has_header: bool = True) -> pl.DataFrame:
    """A table whose fields are text without blanks at their ends, empty where there is nothing.

    Args:
        file: a CSV file.
        columns: refused without one of these.
        separator: between fields.
        has_header: its first line has the names of the columns.
    """
    with table_faults(file):
        table = pl.read_csv(file, separator=separator, has_header=has_header, infer_schema=False)
    if missing := [column for column in columns if column not in table.columns]:
        raise InputError(f"{file}: no column {names(missing)}; the header has {names(table.columns)}")
    return table.with_columns(pl.all().fill_null("").str.strip_chars())


def write_table(table: pl.DataFrame, file: Path) -> Path:
    """Write a ``.csv`` or ``.parquet`` file, complete or not at all; refused if it is called otherwise.

    In CSV lists become text with ``;`` between their values.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: the name must end in one of {names(SUFFIXES)}")
    if is_csv := file.suffix.lower() == ".csv":
        lists = [name for name, kind in table.schema.items() if kind == pl.List(pl.String)]
        for name in lists:
            if table[name].explode().str.contains(SEPARATOR, literal=True).any():
                raise InputError(f"{file}: values of {name} have {SEPARATOR!r} in them; write a .parquet file")
        table = table.with_columns(pl.col(lists).list.join(SEPARATOR))
    with replaced(file) as scratch:
        (table.write_csv if is_csv else table.write_parquet)(scratch)
    return file


def _check_header(source: Path) -> None:
    """Refuse an absurd number of columns: each one costs time in every step."""
    with source.open("rb") as opened:
        first = opened.readline(LONGEST_HEADER + 1)
    if len(first) > LONGEST_HEADER or first.count(b",") >= MOST_COLUMNS:
        raise InputError(f"{source}: its first line has more than {MOST_COLUMNS} columns or {LONGEST_HEADER} bytes")


def _scan_tree(root: Path, labelled: bool) -> tuple[Manifest, list[str]]:
    faults: list[str] = []
    files = sorted(image_files(root, lambda error: faults.append(_closed_folder(error))))
    if not files and not faults:
        raise InputError(f"{root}: no image below this folder; images end in one of {names(sorted(IMAGE_SUFFIXES))}")
    faults += [f"{str(file)!a}: the name is not UTF-8; rename it" for file in files if not is_text(file)]
    files, has_splits, beside = _find_splits([file for file in files if is_text(file)])
    folders = [file.parts[has_splits:-1] for file in files]
    n_levels = _common_depth(folders, labelled)
    faults += beside
    if labelled or n_levels:
        faults += _depth_faults([file.parent for file in files], n_levels, has_splits)
    kept = [(file, parts) for file, parts in zip(files, folders, strict=True) if len(parts) >= n_levels]
    kept = kept if n_levels or not labelled else []
    paths = [file.as_posix() for file, _ in kept]
    splits = [SPLIT_NAMES[file.parts[0]] if has_splits else "train" for file, _ in kept]
    # Of a folder too deep the part that it should be moved to.
    labels = {f"label_{level}": [parts[n_levels - 1 - level] for _, parts in kept] for level in range(n_levels)}
    columns = {"id": paths, "path": paths, "split": splits} | labels
    return Manifest(root, root, pl.DataFrame(columns, dict.fromkeys(columns, pl.String)), n_levels), faults


def _find_splits(files: list[Path]) -> tuple[list[Path], bool, list[str]]:
    """The files, whether their first folders are the splits, and a fault if others lie beside these; they are left out."""
    first = {file.parts[0] if len(file.parts) > 1 else "." for file in files}
    splits, others = sorted(first & SPLIT_NAMES.keys()), sorted(first - SPLIT_NAMES.keys())
    if not others or len(splits) < 2:  # one folder called train beside others is a class
        return files, bool(splits) and not others, []
    fault = (
        f"{names(splits)} look like splits, but {len(others)} other folders or images lie beside them "
        f"({names(others[:5])}); move these into a split"
    )
    return [file for file in files if file.parts[0] in splits], True, [fault]


def _common_depth(folders: list[tuple[str, ...]], labelled: bool) -> int:
    """As deep as most images lie, the deeper of two depths that are as frequent; 0 for any depth if labels are optional."""
    counts = Counter(map(len, folders))
    if not labelled and len(counts) > 1:
        return 0
    return max(counts, key=lambda depth: (counts[depth], depth), default=0)


def _depth_faults(folders: list[Path], n_levels: int, has_splits: bool) -> Iterator[str]:
    """A sentence for each folder whose images lie too deep or not deep enough, and where to move them."""
    for folder, n_images in sorted(Counter(folders).items()):
        depth = len(folder.parts) - has_splits
        found = f"{folder}: {counted(n_images, 'image')}"
        into = "a folder named after the class" if n_levels - depth <= 1 else f"{n_levels - depth} folders, coarsest first"
        if not depth:
            yield f"{found} in no folder that could be the label; move into {into}"
        elif depth < n_levels:
            yield f"{found} {counted(depth, 'folder')} deep, most images {n_levels}; move into {into}"
        elif depth > n_levels:
            target = Path(*folder.parts[: n_levels + has_splits])
            yield f"{found} {depth} folders deep, most images {n_levels}; move up to {target}"


def missing_levels(manifest: Manifest) -> str:
    """Why a manifest without label levels has none, in one sentence."""
    if not manifest.source.is_dir():
        return "no label levels: the table has no column 'label' or 'label_0'"
    folders = [Path(path).parent.parts for path in manifest.table["path"]]
    has_splits = all(parts and parts[0] in SPLIT_NAMES for parts in folders)
    depths = sorted(Counter(len(parts) - has_splits for parts in folders).items())
    if len(depths) == 1:
        return "no label levels: the images lie in no folder that could be their label"
    found = ", ".join(f"{n_images:,} at depth {depth}" for depth, n_images in depths)
    return f"no label levels: the images lie at different depths ({found}); `sightline data check` says which to move"


def is_text(file: Path) -> bool:
    """Whether a file's name is UTF-8: Python holds bytes that it cannot decode as halves of characters."""
    return not re.search("[\ud800-\udfff]", str(file))


def _closed_folder(error: OSError) -> str:
    return f"{error.filename}: cannot be read: {error.strerror}"


def _refuse(error: OSError) -> None:
    raise InputError(_closed_folder(error)) from error


def image_files(root: Path, on_error: Callable[[OSError], None] = _refuse) -> Iterator[Path]:
    """The images below a folder, known by their suffix; see :func:`visible_files`."""
    return (file for file in visible_files(root, on_error) if file.suffix.lower() in IMAGE_SUFFIXES)


def visible_files(root: Path, on_error: Callable[[OSError], None] = _refuse) -> Iterator[Path]:
    """The files below a folder, as seen from it, without hidden ones and those of galleries.

    Links are followed, and each folder is read once: by its own name if it has one below the root, else by the first link.

    Args:
        root: the folder.
        on_error: called for a folder that cannot be read; by default an error.
    """
    known: set[tuple[int, int]] = set()
    links = [root]
    while links:
        for folder, below, found in os.walk(links.pop(0), onerror=on_error):
            place = os.stat(folder)
            if (place.st_dev, place.st_ino) in known or (GALLERY_MARK in found and Path(folder) != root):
                below.clear()
                continue
            known.add((place.st_dev, place.st_ino))
            below[:] = sorted(name for name in below if not name.startswith("."))  # the walk goes where this list says
            links += [Path(folder, name) for name in below if Path(folder, name).is_symlink()]
            for name in found:
                if not name.startswith("."):
                    yield Path(folder, name).relative_to(root)


Check = tuple[pl.Expr, str, str]  # where it is wrong, the column whose value the message shows, and the message


def _scan_table(source: Path, table: pl.DataFrame, labelled: bool, places: pl.Series) -> tuple[Manifest, list[str]]:
    """Bring the columns to their types and order; leave out the rows at fault."""
    header = table.columns
    called = {} if "label_0" in header else {"label": "label_0"}
    table = table.rename(called, strict=False)
    labels = label_columns(next(n for n in count() if f"label_{n}" not in table.columns))
    _check_columns(source, table, header, labels, labelled)
    words = ["path", "split", *labels, *(["id"] if "id" in header else [])]
    boxes, flags = ([column for column in known if column in header] for known in (BOX, FLAGS))
    table = _clean_text(source, table, [*words, *boxes, *flags])
    if "id" not in header:
        several = pl.col("path").is_duplicated() if boxes else pl.lit(False)
        marked = pl.concat_str(["path", *boxes], separator=" ", ignore_nulls=True)
        table = table.with_columns(id=pl.when(several).then(marked).otherwise("path"))

    faults = []
    for condition, column, message in _checks(words, flags, boxes):
        rows = table.select(pl.int_range(pl.len()).filter(condition), pl.col(column).filter(condition).alias("found"))
        faults += [(row, message.format(value)) for row, value in rows.iter_rows()]
    as_in_file = {f"{label} is empty": f"{name} is empty" for name, label in called.items()}
    sentences = [f"{places[row]}: {as_in_file.get(message, message)}" for row, message in sorted(faults)]
    if faults:
        is_sound = pl.Series(np.isin(np.arange(len(table)), [row for row, _ in faults], invert=True))
        table, places = table.filter(is_sound), places.filter(is_sound)

    table = table.with_columns(
        *(pl.col(c).str.to_lowercase().replace_strict(FLAG_VALUES, return_dtype=pl.Boolean) for c in flags),
        *(pl.col(c).cast(pl.Float64).cast(pl.Int64) for c in boxes),
    )
    first = ["id", "path", "split", *labels, *flags, *boxes]
    return Manifest(source, source.parent, table.select(*first, pl.exclude(first)), len(labels), places), sentences


def _check_columns(source: Path, table: pl.DataFrame, header: list[str], labels: list[str], labelled: bool) -> None:
    """Refuse a table without rows, or without the columns that it must have or that belong to others that it has."""
    missing = [column for column in ("path", "split") if column not in table.columns]
    if any(re.fullmatch(r"label_\d+", column) and column not in labels for column in table.columns):
        missing.append(f"label_{len(labels)}")  # a level left out
    elif labelled and not labels:
        missing.append("label")
    partial_box = [column for column in BOX if column not in table.columns]
    missing += partial_box if len(partial_box) < len(BOX) else []
    if missing:
        there = shorten(names(header), 800, placeholder=" ...")
        raise InputError(f"{source}: no column {names(missing)}; the header has {there}")
    if not len(table):
        raise InputError(f"{source}: the table has no row")


def _clean_text(source: Path, table: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """These columns as text without blanks at its ends, null where nothing is left; splits by their usual names."""
    if nested := [column for column in columns if table[column].dtype.is_nested()]:
        raise InputError(f"{source}: {names(nested)} must be text or numbers, found {table[nested[0]].dtype}")
    text = pl.col(columns).cast(pl.String).str.strip_chars()
    return table.with_columns(text.replace("", None)).with_columns(pl.col("split").replace(SPLIT_NAMES))


def _checks(words: list[str], flags: list[str], boxes: list[str]) -> Iterator[Check]:
    for column in words:
        yield pl.col(column).is_null(), column, f"{column} is empty"
    yield pl.col("path").str.contains("\0", literal=True), "path", "path {!r} has a zero byte"
    yield ~pl.col("split").is_in(SPLITS), "split", f"split is {{!r}}, not one of {names(SPLITS)}"
    is_twice = "id {!r} occurs more than once" if "id" in words else "path {!r} occurs more than once; add a column 'id'"
    yield pl.col("id").is_duplicated() & pl.col("id").is_not_null(), "id", is_twice
    for column in flags:
        fits = pl.col(column).str.to_lowercase().is_in(list(FLAG_VALUES))
        yield ~fits, column, f"{column} is {{!r}}, not true or false"
    for column in boxes:
        number = pl.col(column).cast(pl.Float64, strict=False)
        fits = number.is_between(0, 2**31) & (number == number.round())
        yield pl.col(column).is_not_null() & ~fits.fill_null(False), column, f"{column} is {{!r}}, no pixel"
    if boxes:
        some = pl.any_horizontal(pl.col(boxes).is_null()) & pl.any_horizontal(pl.col(boxes).is_not_null())
        yield some, "path", "the box of {!r} has an empty side"
        left, top, right, bottom = (pl.col(column).cast(pl.Float64, strict=False) for column in BOX)
        yield (left >= right) | (top >= bottom), "path", "the box of {!r} is empty: x_1 must be below x_2, y_1 below y_2"
