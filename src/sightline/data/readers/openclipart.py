"""Clip art in the folders that people sorted it into: three levels of labels."""

import math
import os
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import polars as pl
from PIL import Image

from sightline.data.images import load_image
from sightline.data.readers.folder import Record, sources_page, split_of, write_collection
from sightline.data.readers.packages import DebianPackage, debian_files
from sightline.errors import InputError
from sightline.progress import tracked

PACKAGE = DebianPackage("openclipart-png", "/usr/share/openclipart/png", "public domain")
VERSION = 1
DEPTH = 3
LONGEST = 256
MOST_PIXELS = 8_000_000  # 18 images have more, up to 623 million: they would take longer than all the others
NO_CLASS = "unsorted"


def write_openclipart(
    folder: Path, show_progress: bool = False, archives: Path | None = None, package: DebianPackage = PACKAGE
) -> Path:
    """Write the clip art, no side longer than 256, on white, and its ``manifest.csv``, whose path is returned.

    Columns: ``path``, ``split``, ``label_0`` (the folder, cut after three), ``label_1`` (after two), ``label_2`` (the
    first). An image that lies less deep has its own folder as label of the deeper levels too. No folder of ``label_0``
    is in two splits. Left out, and counted in ``SOURCES.md``: links to other images, the folder ``unsorted``, images of
    more than 8 million pixels, files that are not readable images, and the only image of a folder.

    Args:
        folder: new, empty, or with this very set, which is then left as it is.
        show_progress: draw a bar.
        archives: a folder with the package's ``.deb``; None takes the installed files or fetches the package.
        package: where the clip art is.
    """
    record: Record = {"data": "openclipart", "version": VERSION, "packages": [package.name]}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with debian_files(package, archives) as (root, version):
            counts: Counter[str] = Counter()
            files = _sorted_files(root, counts)
            readable = _shrink(root, draft, files, show_progress)
        counts["left out: not readable images"] = len(files) - len(readable)
        n_of = Counter(_labels(file)[0] for file in readable)
        rows = []
        for file in readable:
            labels = _labels(file)
            if n_of[labels[0]] > 1:
                rows.append((f"images/{file}", split_of("openclipart", labels[0]), *labels))
            else:
                counts["left out: the only image of its folder"] += 1
                (draft / "images" / file).unlink()
        if not rows:
            raise InputError(f"{package.name}: no folder has two readable images")
        manifest = pl.DataFrame(rows, ["path", "split", "label_0", "label_1", "label_2"], orient="row")
        return manifest, _sources(manifest, package, version, counts)

    return write_collection(folder, record, fill)


def _sorted_files(root: Path, counts: Counter[str]) -> list[PurePosixPath]:
    """The images as seen from the root, in order, but for links and those that nobody sorted."""
    files = []
    for file in sorted(root.rglob("*.png")):
        inside = PurePosixPath(file.relative_to(root).as_posix())
        counts["files"] += 1
        if file.is_symlink() or not file.is_file():
            counts["left out: links to other images"] += 1
        elif len(inside.parts) == 1 or inside.parts[0] == NO_CLASS:
            counts[f"left out: in no folder, or in {NO_CLASS}"] += 1
        elif _n_pixels(file) > MOST_PIXELS:
            counts[f"left out: of more than {MOST_PIXELS:,} pixels"] += 1
        else:
            files.append(inside)
    return files


def _n_pixels(file: Path) -> int:
    """As the header says: read without the decoder, which warns of the largest images; 0 if there is no header."""
    with file.open("rb") as opened:
        header = opened.read(24)
    return math.prod(struct.unpack(">II", header[16:])) if len(header) == 24 and header[12:16] == b"IHDR" else 0


def _labels(file: PurePosixPath) -> tuple[str, ...]:
    """The folder cut after three, two and one parts."""
    return tuple("/".join(file.parts[:-1][:depth]) for depth in range(DEPTH, 0, -1))


def _shrink(root: Path, draft: Path, files: Sequence[PurePosixPath], show_progress: bool) -> list[PurePosixPath]:
    """Write the images that can be read; which ones these were."""

    def write(file: PurePosixPath) -> bool:
        try:
            image = load_image(root / file)
        except InputError:
            return False
        image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
        target = draft / "images" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target)
        return True

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoding releases the interpreter lock
        written = tracked(pool.map(write, files), "Writing clip art", len(files), show_progress)
        return [file for file, is_written in zip(files, written, strict=True) if is_written]


def _sources(manifest: pl.DataFrame, package: DebianPackage, version: str, counts: Counter[str]) -> str:
    sizes = " < ".join(str(manifest[f"label_{level}"].n_unique()) for level in range(DEPTH))
    splits = manifest.group_by("split").agg(pl.len(), pl.col("label_0").n_unique()).sort("split")
    sentences = [
        f"{len(manifest)} images, classes {sizes}: the folders, cut after three, two and one parts.",
        "Splits share no class: "
        + ", ".join(f"{split} {images} images of {classes} classes" for split, images, classes in splits.iter_rows())
        + ".",
        "",
        *(f"- {what}: {number}" for what, number in counts.items()),
    ]
    return sources_page("Open Clip Art", sentences, [(package.name, version, package.licence, len(manifest))])
