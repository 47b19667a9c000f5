"""DyML-Vehicle, -Animal and -Product: three levels for training, and for testing a set of its own for each level."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest, label_columns
from sightline.data.readers.source import Draft, PublishedCounts, Reader, SourceFiles, check_widths, read_text
from sightline.errors import InputError
from sightline.progress import tracked

LEVELS = ("fine", "middle", "coarse")
TRAIN_COLUMNS = ("fname", "coarse_id", "middle_id", "fine_id")
TEST_COLUMNS = ("fname", "labels")


class LevelSet(NamedTuple):
    """The rows of a manifest that one level's test asks for.

    ``queries`` and ``gallery`` are places in the manifest, ``labels`` the classes of all its rows at that level.
    """

    queries: NDArray[np.int64]
    gallery: NDArray[np.int64]
    labels: NDArray[np.int64]


def level_sets(manifest: Manifest) -> dict[str, LevelSet]:
    """The test of each level, by its name, for :func:`~sightline.evaluation.benchmark_protocols.evaluate_dyml`.

    Args:
        manifest: of a DyML set, or that of an embedding table made from it.
    """
    table = manifest.table
    if "test_level" not in table.columns or manifest.n_levels != len(LEVELS):
        raise InputError(f"{manifest.source}: not the manifest of a DyML set: three levels and 'test_level' are needed")
    labels = manifest.labels()
    sets = {}
    for place, level in enumerate(LEVELS):
        here = table["test_level"].is_in([level, "all"]).fill_null(False).to_numpy()
        rows = [np.flatnonzero(here & table[role].fill_null(False).to_numpy()) for role in ("is_query", "is_gallery")]
        sets[level] = LevelSet(rows[0], rows[1], labels[:, place])
    return sets


def read_dyml(source: SourceFiles, all_in_one: bool) -> Iterator[Draft]:
    """``train/label.csv``, ``train/imgs``, and ``bmk_<level>/{query,gallery}`` or ``mini-bmk_all_in_one``."""
    yield _labelled("train", source.file("train/label.csv"))
    if all_in_one:
        yield _labelled("test", source.file("mini-bmk_all_in_one/label.csv"))
    else:
        yield from (_test_of_level(source, level) for level in LEVELS)


def _labelled(split: str, file: Path) -> Draft:
    is_test = split == "test"
    labels = [pl.lit("test/" * is_test) + pl.col(f"{level}_id") for level in LEVELS]
    rows = read_glued(file, TRAIN_COLUMNS).select(path="fname", **dict(zip(label_columns(3), labels, strict=True)))
    roles = {"is_query": pl.lit(True), "is_gallery": pl.lit(True), "test_level": pl.lit("all")} if is_test else {}
    return Draft(split, file, rows.with_columns(**roles), file.parent / "imgs")


def _test_of_level(source: SourceFiles, level: str) -> Draft:
    """One level's queries and gallery; an image that is in both, by its bytes and label, is one row.

    Its label is known at that level alone, so all three columns hold it.
    """
    listed = {role: source.file(f"bmk_{level}/{role}.csv") for role in ("gallery", "query")}
    folder = listed["gallery"].parent
    label = pl.format(f"{level}/{{}}", "labels")
    rows = pl.concat(
        read_glued(file, TEST_COLUMNS).select(
            path=pl.format(f"{role}/{{}}", "fname"),
            **dict.fromkeys(label_columns(3), label),
            is_query=pl.lit(role == "query"),
            is_gallery=pl.lit(role == "gallery"),
        )
        for role, file in listed.items()
    )
    paths = tracked(rows["path"], f"Comparing {level} images", len(rows), source.show_progress)
    rows = rows.with_columns(digest=pl.Series([_digest(folder / path) for path in paths], dtype=pl.String))
    image = ("digest", "label_0")
    is_first = pl.struct("is_query", *image).is_first_distinct()
    is_twin = is_first & (pl.col("is_query").n_unique().over(image) == 2)
    rows = rows.with_columns(is_twin=is_twin).filter(pl.col("is_gallery") | ~pl.col("is_twin"))
    rows = rows.with_columns(is_query=pl.col("is_query") | pl.col("is_twin"), test_level=pl.lit(level))
    return Draft("test", None, rows.drop("digest", "is_twin"), folder)


def _digest(path: Path) -> str:
    """Of the file's bytes; of a missing file its name, which is reported later."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else str(path)


def read_glued(file: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    """The rows of a CSV file of DyML, whose header may lack its line break: the first row then follows its last name."""
    lines = [[cell.strip() for cell in line.split(",")] for line in read_text(file).splitlines() if line.strip()]
    header = lines[0][: len(columns)] if lines else [""]
    last = next((name for name in columns if header[-1].startswith(name) and name not in header[:-1]), "")
    found = [*header[:-1], last]
    if sorted(found) != sorted(columns):
        raise InputError(f"{file}: the header {', '.join(columns)} is needed, found {', '.join((lines or [['']])[0])!r}")
    glued = header[-1].removeprefix(last)
    rows = [(1, [glued, *lines[0][len(columns) :]])] if glued else []
    rows += enumerate(lines[1:], start=2)
    check_widths(file, rows, len(columns))
    return pl.DataFrame([row for _, row in rows], dict.fromkeys(found, pl.String), orient="row")


def _reader(name: str, classes: tuple[int, ...], all_in_one: bool = False) -> Reader:
    tests = "'mini-bmk_all_in_one'" if all_in_one else "'bmk_fine', 'bmk_middle' and 'bmk_coarse'"
    return Reader(
        about=f"DyML-{name}: {classes[0]:,} fine < {classes[1]} middle < {classes[2]} coarse classes for training",
        needs=f"the folders 'train' and {tests}",
        read=partial(read_dyml, all_in_one=all_in_one),
        counts={"train": PublishedCounts(None, classes)},
    )


DYML_VEHICLE = _reader("Vehicle", (39491, 93, 5))
DYML_ANIMAL = _reader("Animal", (495, 28, 5))
DYML_PRODUCT = _reader("Product", (1639, 171, 36), all_in_one=True)
