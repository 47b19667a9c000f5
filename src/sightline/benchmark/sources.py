"""The images of a suite: found or made, checked once, and cut as its rows ask."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import polars as pl

from sightline.benchmark.suite import DataSet
from sightline.data.images import check_images
from sightline.data.manifest import Manifest, read_manifest
from sightline.data.readers.emoji import write_emoji
from sightline.data.readers.glyphs import write_glyphs
from sightline.errors import InputError, names, nearest
from sightline.files import replaced

SOURCES = Path("data")  # where a set is looked for, and made, if no manifest is given
MAKERS: dict[str, Callable[[Path], Path]] = {"emoji": write_emoji, "glyphs": write_glyphs}


class Images(NamedTuple):
    """What a run reads.

    Attributes:
        manifest: its file.
        fingerprint: a hash of its rows and of the sizes of its files; where they lie does not matter.
        training: the same of the rows that training reads.
        n_levels: of the labels.
    """

    manifest: Path
    fingerprint: str
    training: str
    n_levels: int


def parse_data(given: list[str]) -> dict[str, Path]:
    """``name=manifest`` pairs of the command line.

    Example:
        >>> parse_data(["emoji=sets/emoji.csv"])["emoji"].name
        'emoji.csv'
    """
    pairs = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path):
            raise InputError(f"--data {one!r}: a name and a manifest are needed, such as emoji=sets/emoji/manifest.csv")
        pairs[name] = Path(path)
    return pairs


def find_manifest(data: DataSet, given: Mapping[str, Path], make: bool = True) -> Path:
    """The manifest that was given for a set, or ``data/<set>/manifest.csv``, made if it is not there and may be."""
    source = data.source or data.name
    if source in given:
        return given[source]
    usual = SOURCES / source / "manifest.csv"
    if usual.is_file():
        return usual
    if source not in MAKERS or not make:
        why = "nothing is made now" if source in MAKERS else f"it cannot be made ({nearest(source, MAKERS)})"
        raise InputError(f"data set {source!r}: {usual} is not there and {why}; give --data {source}=<manifest>")
    return MAKERS[source](usual.parent)


def read_images(data: DataSet, manifest_file: Path, split: str, without_queries: bool, folder: Path) -> Images:
    """Cut a manifest as the suite asks; the cut is written to the folder under its fingerprint, the images stay.

    Args:
        data: what to cut.
        manifest_file: of the whole set.
        split: that is measured.
        without_queries: leave images like the queries out of the other splits.
        folder: where to write.
    """
    manifest = read_manifest(manifest_file)
    if not data.query:
        manifest.split(split)  # refused here, not after hours of training
        return Images(manifest_file, _fingerprint(manifest), _training(manifest), manifest.n_levels)
    if unknown := [column for column in data.query if column not in manifest.table.columns]:
        known = names(manifest.table.columns)
        raise InputError(f"{manifest_file}: data set {data.name!r} asks for column {names(unknown)}; it has {known}")
    is_query = pl.all_horizontal(pl.col(column) == value for column, value in data.query.items())
    measured = pl.col("split") == split
    for what, rows in (("query", is_query), ("gallery image", ~is_query)):
        if not len(manifest.where(measured & rows)):
            told = ", ".join(f"{column} {value!r}" for column, value in data.query.items())
            raise InputError(f"{manifest_file}: data set {data.name!r}: split {split!r} has no {what} for {told}")
    kept = manifest.where(measured | ~is_query) if without_queries else manifest
    table = kept.table.with_columns(
        pl.when(measured).then(is_query).alias("is_query"), pl.when(measured).then(~is_query).alias("is_gallery")
    )
    cut = Manifest(manifest.source, manifest.root, table, manifest.n_levels)
    fingerprint = _fingerprint(cut)
    file = folder / f"{data.name}-{fingerprint[:12]}.parquet"
    if not file.is_file():
        root = manifest.root.resolve()
        with replaced(file) as scratch:
            table.with_columns(pl.Series("path", [str(root / path) for path in table["path"]])).write_parquet(scratch)
    return Images(file, fingerprint, _training(cut), manifest.n_levels)


def check_once(manifest_file: Path, folder: Path, show_progress: bool = False) -> None:
    """Decode every image of a manifest, unless that was done for these files before."""
    manifest = read_manifest(manifest_file)
    done = folder / f"checked-{_fingerprint(manifest)[:12]}"
    if not done.is_file():
        check_images(manifest, show_progress)
        with replaced(done) as scratch:
            scratch.write_text(f"{len(manifest)} images\n", encoding="utf-8")


def _training(manifest: Manifest) -> str:
    """The fingerprint of what training reads: ``train`` and, for the choice of an encoder, ``val``."""
    return _fingerprint(manifest.where(pl.col("split").is_in(["train", "val"])))


def _fingerprint(manifest: Manifest) -> str:
    """A hash of the rows and of the sizes of their files."""
    sizes = []
    for path in manifest.paths():
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError as error:
            raise InputError(f"{manifest.source}: {path}: no such file") from error
    table = manifest.table.with_columns(pl.Series("bytes", sizes, dtype=pl.Int64))
    return hashlib.sha256(table.write_csv().encode()).hexdigest()
