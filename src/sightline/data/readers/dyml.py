"""DyML-Vehicle, -Animal and -Product: three levels for training, and for testing a set of its own for each level."""

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest
from sightline.data.readers.source import Draft, Part, Reader, Source, read_text, rows_of
from sightline.errors import InputError, raise_faults
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


def read_dyml(source: Source, all_in_one: bool) -> Draft:
    """``train/label.csv``, ``train/imgs``, and ``bmk_<level>/{query,gallery}`` or ``mini-bmk_all_in_one``."""
    labels_file = source.file("train/label.csv")
    tables = [_labelled(labels_file, "train", "")]
    files = {"train": labels_file}
    if all_in_one:
        files["test"] = source.file("mini-bmk_all_in_one/label.csv")
        both = {"is_query": True, "is_gallery": True, "test_level": "all"}
        tables.append(_labelled(files["test"], "test", "test/").with_columns(**{k: pl.lit(v) for k, v in both.items()}))
    else:
        tables += [_test_of_level(source, level) for level in LEVELS]
    return Draft(pl.concat(tables, how="diagonal"), files)


def _labelled(file: Path, split: str, prefix: str) -> pl.DataFrame:
    rows = read_glued(file, TRAIN_COLUMNS)
    labels = [[prefix + row[f"{level}_id"] for row in rows] for level in LEVELS]
    return rows_of([file.parent / "imgs" / row["fname"] for row in rows], split, labels)


def _test_of_level(source: Source, level: str) -> pl.DataFrame:
    """One level's queries and gallery; an image that is in both, by its bytes and label, is one row.

    Its label is known at that level alone, so all three columns hold it.
    """
    listed = {role: source.file(f"bmk_{level}/{role}.csv") for role in ("gallery", "query")}
    rows = {role: read_glued(file, TEST_COLUMNS) for role, file in listed.items()}
    paths = {role: [listed[role].parent / role / row["fname"] for row in rows[role]] for role in listed}
    labels = {role: [f"{level}/{row['labels']}" for row in rows[role]] for role in listed}
    title, total = f"Comparing {level} images", len(paths["gallery"]) + len(paths["query"])
    every = tracked([*paths["gallery"], *paths["query"]], title, total, source.show_progress)
    digests = [_digest(path) for path in every]
    keys = list(zip(digests, [*labels["gallery"], *labels["query"]], strict=True))
    n_items = len(paths["gallery"])
    seen = {key: place for place, key in reversed(list(enumerate(keys[:n_items])))}  # of equal ones the first
    is_query = [False] * n_items
    outside = []
    for place, key in enumerate(keys[n_items:]):
        twin = seen.get(key)
        if twin is None or is_query[twin]:
            outside.append(place)
        else:
            is_query[twin] = True
    gallery = rows_of(paths["gallery"], "test", [labels["gallery"]] * 3, is_query=is_query, is_gallery=True)
    rest = [paths["query"][place] for place in outside]
    alone = rows_of(rest, "test", [[labels["query"][place] for place in outside]] * 3, is_query=True, is_gallery=False)
    return pl.concat([gallery, alone]).with_columns(test_level=pl.lit(level))


def _digest(path: Path) -> bytes | str:
    """Of the file's bytes; of a missing file its name, which is reported later."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest() if path.is_file() else str(path)


def read_glued(file: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV file of DyML, whose header may lack its line break: the first row then follows its last name."""
    lines = [[cell.strip() for cell in line.split(",")] for line in read_text(file).splitlines() if line.strip()]
    header = lines[0][: len(columns)] if lines else []
    last = next((name for name in columns if header and header[-1].startswith(name) and name not in header[:-1]), "")
    names_found = [*header[:-1], last]
    if sorted(names_found) != sorted(columns):
        raise InputError(
            f"{file}: the header {', '.join(columns)} is needed, found {', '.join(lines[0]) if lines else ''!r}"
        )
    glued = header[-1].removeprefix(last)
    rows = [(1, [glued, *lines[0][len(columns) :]])] if glued else []
    rows += list(enumerate(lines[1:], start=2))
    faults = [
        f"line {number}: {len(columns)} fields are needed, found {len(row)}"
        for number, row in rows
        if len(row) != len(columns)
    ]
    raise_faults(file, faults)
    return [dict(zip(names_found, row, strict=True)) for _, row in rows]


def _reader(name: str, classes: tuple[int, ...], all_in_one: bool = False) -> Reader:
    tests = "'mini-bmk_all_in_one'" if all_in_one else "'bmk_fine', 'bmk_middle' and 'bmk_coarse'"
    return Reader(
        about=f"DyML-{name}: {classes[0]:,} fine < {classes[1]} middle < {classes[2]} coarse classes for training",
        needs=f"the folders 'train' and {tests}",
        read=partial(read_dyml, all_in_one=all_in_one),
        counts={"train": Part(None, classes)},
    )


DYML_VEHICLE = _reader("Vehicle", (39491, 93, 5))
DYML_ANIMAL = _reader("Animal", (495, 28, 5))
DYML_PRODUCT = _reader("Product", (1639, 171, 36), all_in_one=True)
