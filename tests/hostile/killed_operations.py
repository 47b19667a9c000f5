"""What is killed, and how the rest is judged: by readers that share no code with Sightline."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from base_artefacts import TRAIN, write_images
from PIL import Image
from safetensors.numpy import load_file
from sandbox import steps_of

GONE = ["images/0-0.png", "images/3-1.png", "images/7-3.png"]


def gallery_state(folder: Path, scratch: Path):
    """Id, metadata and vector of each item in order, by SQLite and numpy alone; None where there is no gallery.

    What is read is a copy: SQLite would put the log of a process that was killed into the database.
    """
    if not (folder / "gallery.db").exists():
        return None
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in ("gallery.db", "gallery.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, scratch / name)
    with closing(sqlite3.connect(scratch / "gallery.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((dim,),) = connection.execute("SELECT value FROM described WHERE key = 'dim'")
        items = connection.execute("SELECT row, id, metadata FROM items ORDER BY row").fetchall()
        blocks = connection.execute("SELECT start, n, vectors FROM blocks").fetchall()
        ((next_row, n_items),) = connection.execute("SELECT next_row, n_items FROM state")
    rows = {}
    for start, n, vectors in blocks:
        table = np.frombuffer(vectors, "<f4").reshape(n, int(dim))
        rows.update({start + place: vector.tobytes() for place, vector in enumerate(table)})
    assert len(items) == n_items
    assert all(0 <= row < next_row for row, *_ in items)
    return [(id_, json.loads(text), rows[row]) for row, id_, text in items]


def weights(file: Path):
    return {name: tensor.tobytes() for name, tensor in load_file(file).items()}


def table_state(file: Path):
    """Rows and vectors of a Parquet file, the images by their names; None where there is none."""
    if not file.exists():
        return None
    return pl.read_parquet(file).with_columns(path=pl.col("path").str.split("/").list.tail(2)).rows()


def folder_state(folder: Path):
    """All files of a folder by their bytes; None where there is none."""
    if not folder.exists():
        return None
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def same_bits(one: Any, other: Any) -> bool:
    """Whether nested dictionaries and lists of tensors and values are the same to the last bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return one == other


def run_state(folder: Path):
    """What a finished run is: checkpoint, weights and log."""
    if not (folder / "last.pt").exists() or not (folder / "encoder/model.safetensors").exists():
        return None
    log = (folder / "log.csv").read_bytes()
    return [torch.load(folder / "last.pt", weights_only=True), weights(folder / "encoder/model.safetensors"), log]


def of_gallery(folder: Path, name: str = "gallery"):
    return gallery_state(folder / name, folder / "scratch")


@dataclass(frozen=True)
class Operation:
    """A command that is killed."""

    line: str  # the step; IN is the folder of inputs and OUT the one it works in
    copies: str = ""  # what of the inputs must be there before, "from" or "from:to"
    state: Callable[[Path], Any] = of_gallery  # what the folder holds of interest
    checked: str | None = "gallery"  # the gallery that `index verify` must find without fault, if it is there
    middle: Callable[[Any, Any], list[Any]] = lambda before, after: []  # what may be found besides before and after
    again: bool = True  # whether the same command, run again, must end in the state after

    def prepare(self, inputs: Path, folder: Path) -> None:
        for source, _, target in (name.partition(":") for name in self.copies.split()):
            copy = shutil.copytree if (inputs / source).is_dir() else shutil.copy
            copy(inputs / source, folder / (target or source))

    def steps(self, inputs: Path, folder: Path) -> list[tuple[str, ...]]:
        return steps_of(self.line, IN=inputs, OUT=folder)


def unpruned(before, after):
    """New items are there, and those that go are not gone."""
    gone = {item[0] for item in before} - {item[0] for item in after}
    return [[item for item in before if item[0] not in gone]]


def of_files(line: str, copies: str, state: Callable[[Path], Any], at: str) -> Operation:
    """An operation that makes a file or folder which is no gallery."""
    return Operation(line, copies, lambda folder: state(folder / at), checked=None)


BUILD = "index build IN/encoder IN/{} --out OUT/gallery {} --workers 0"
OPERATIONS = {
    "build": Operation(BUILD.format("manifest.csv", "--index HNSW8"), middle=lambda *_: [[]]),
    "add": Operation("index add OUT/gallery IN/more --prefix more --workers 0", "gallery"),
    "remove": Operation(f"index remove OUT/gallery {' '.join(GONE)}", "gallery", again=False),
    "compact": Operation("index compact OUT/gallery", "thinned:gallery"),
    "prune": Operation(BUILD.format("changed/manifest.csv", "--prune"), "galleries/old:gallery", middle=unpruned),
    "backup": Operation(
        "index backup OUT/gallery OUT/copy", "gallery", lambda folder: of_gallery(folder, "copy"), "copy", again=False
    ),
    "restore": Operation("index restore IN/backup OUT/gallery", "thinned:gallery"),
    "restore_new": Operation("index restore IN/backup OUT/gallery"),
    "embed": of_files(
        "embed IN/encoder IN/more --out OUT/table.parquet --workers 0", "table.parquet", table_state, "table.parquet"
    ),
    "encoder": of_files(  # a folder of weights in the place of another
        "whiten IN/encoder IN/table.parquet --out OUT/encoder", "encoder", weights, "encoder/model.safetensors"
    ),
    "prepare": of_files(
        "data prepare cub --root IN/birds --out OUT/birds.parquet --subset", "", table_state, "birds.parquet"
    ),
    "glyphs": of_files("glyphs OUT/glyphs", "", folder_state, "glyphs"),
    "train": of_files(f"{TRAIN.replace('BASE', 'IN').replace('RUN', 'OUT/run')} --resume", "", run_state, "run"),
}


def write_inputs(warm, base: Path, folder: Path) -> Path:
    """What the operations read: the base artefacts, more images, a gallery with items removed, a data set to prepare."""
    for name in ("encoder", "gallery", "backup", "images"):
        shutil.copytree(base / name, folder / name)
    for name in ("manifest.csv", "table.parquet"):
        shutil.copy(base / name, folder / name)
    write_images(folder / "more", n_classes=3, seed=1)
    changed = write_images(folder / "changed", seed=2)
    header, *rows = changed.read_text().splitlines(keepends=True)
    changed.write_text(header + "".join(rows[:-4]))
    old = folder / "galleries" / "old"  # not beside the images, and so copied without them
    warm.call(
        steps_of("index build IN/encoder CHANGED --out OLD --index HNSW8 --workers 0", IN=folder, CHANGED=changed, OLD=old)
    )
    changed.write_text(header + "".join(rows[4:]))
    shutil.copytree(base / "gallery", folder / "thinned")
    warm.call([("command", "index", "remove", folder / "thinned", *GONE)])
    for number, bird in enumerate(("Black_footed_Albatross", "Laysan_Albatross"), start=1):
        (folder / f"birds/images/{number:03}.{bird}").mkdir(parents=True)
        for item in range(3):
            Image.new("RGB", (8, 8)).save(folder / f"birds/images/{number:03}.{bird}/{item}.jpg")
    return folder
