"""Sets out of Debian packages: Open Clip Art in the folders that people sorted it into, and Fashion-MNIST."""

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import load_image
from sightline.data.readers.archives import DebianPackage, debian_files
from sightline.data.readers.source import Record, sources_page, split_of, write_collection
from sightline.errors import InputError
from sightline.progress import tracked

VERSION = 1
CLIP_ART = DebianPackage("openclipart-png", "/usr/share/openclipart/png", "public domain")
LONGEST = 256
MOST_PIXELS = 8_000_000  # 18 images have more, up to 623 million: they would take longer than all the others
NO_CLASS = "unsorted"
FASHION_MNIST = DebianPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist", "MIT, © Zalando SE")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # the published split: start of the file names, images


def write_openclipart(
    out: Path, show_progress: bool = False, root: Path | None = None, package: DebianPackage = CLIP_ART
) -> Path:
    """Clip art by its tree of folders; needs apt, or the package openclipart-png in --root.

    No side is longer than 256, on white; the path of ``manifest.csv`` is returned. Columns: ``path``, ``split``,
    ``label_0`` (the folder, cut after three), ``label_1`` (after two), ``label_2`` (the first). An image that lies less
    deep has its own folder as label of the deeper levels too. No folder of ``label_0`` is in two splits. Left out, and
    counted in ``SOURCES.md``: links to other images, the folder ``unsorted``, images of more than 8 million pixels,
    files that are not readable images, and the only image of a folder.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw a bar.
        root: a folder with the package's ``.deb``; None takes the installed files or fetches the package.
        package: where the clip art is.
    """
    record: Record = {"data": "openclipart", "version": VERSION, "packages": [package.name]}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        counts: Counter[str] = Counter()
        with debian_files(package, root) as (folder, version):
            files = _sorted_files(folder, counts)
            readable = _shrink(folder, draft, files, show_progress)
        counts["left out: not readable images"] = len(files) - len(readable)
        rows = [(f"images/{file}", *_labels(file)) for file in readable]
        every = pl.DataFrame(rows, dict.fromkeys(("path", "label_0", "label_1", "label_2"), pl.String), orient="row")
        alone = every.filter(~pl.col("label_0").is_duplicated())["path"]
        for path in alone:
            (draft / path).unlink()
            counts["left out: the only image of its folder"] += 1
        manifest = every.filter(pl.col("label_0").is_duplicated())
        if not len(manifest):
            raise InputError(f"{package.name}: no folder has two readable images")
        splits = pl.Series([split_of("openclipart", label) for label in manifest["label_0"]])
        manifest = manifest.select("path", splits.alias("split"), "label_0", "label_1", "label_2")
        levels = "the folders, cut after three < two < one parts"
        listed = [(package.name, version, package.licence, len(manifest))]
        return manifest, sources_page("Open Clip Art", levels, manifest, [], listed, counts)

    return write_collection(out, record, fill)


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
    return tuple("/".join(file.parts[:-1][:depth]) for depth in (3, 2, 1))


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


def class_split(label: str) -> str:
    """``test`` for the five classes whose names have the lowest hash, ``train`` for the others.

    Example:
        >>> [label for label in CLASSES if class_split(label) == "test"]
        ['trouser', 'pullover', 'dress', 'shirt', 'ankle-boot']
    """
    ordered = sorted(CLASSES, key=lambda name: hashlib.sha256(f"fashion-mnist/{name}".encode()).hexdigest())
    return "test" if ordered.index(label) < len(CLASSES) // 2 else "train"


def write_fashion_mnist(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    package: DebianPackage = FASHION_MNIST,
    parts: dict[str, tuple[str, int]] = PARTS,
) -> Path:
    """70,000 pictures of clothes, 10 classes; needs apt, or the package dataset-fashion-mnist in --root.

    Grey PNG files, and ``manifest.csv``, whose path is returned. Columns: ``path``, ``split``, ``label_0``, ``part``.
    ``split`` shares no class between ``train`` and ``test``, five each, as retrieval needs it; ``part`` is the published
    split, in which every class is in both.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw a bar.
        root: a folder with the package's ``.deb``; None takes the installed files or fetches the package.
        package: where the data are.
        parts: of each published part the start of its file names, and how many images it has.
    """
    record: Record = {"data": "fashion-mnist", "version": VERSION, "packages": [package.name]}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with debian_files(package, root) as (folder, version):
            published = {part: _read_part(folder, start, n_images) for part, (start, n_images) in parts.items()}
        rows = []
        for part, (images, labels) in published.items():
            for label in set(labels.tolist()):
                (draft / "images" / part / CLASSES[label]).mkdir(parents=True)
            numbered = enumerate(zip(images, labels.tolist(), strict=True))
            for number, (pixels, label) in tracked(numbered, f"Writing {part}", len(images), show_progress):
                path = f"images/{part}/{CLASSES[label]}/{number:05}.png"
                Image.fromarray(pixels).save(draft / path)
                rows.append((path, class_split(CLASSES[label]), CLASSES[label], part))
        manifest = pl.DataFrame(rows, ["path", "split", "label_0", "part"], orient="row")
        sentences = ["Grey images of 28 x 28. The column `part` is the published split, in which every class is in both."]
        listed = [(package.name, version, package.licence, len(manifest))]
        return manifest, sources_page("Fashion-MNIST", "kinds of clothes", manifest, sentences, listed)

    return write_collection(out, record, fill)


def _read_part(root: Path, start: str, n_images: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(N, 28, 28) pixels and (N,) class numbers of a published part."""
    images = _read_idx(root / f"{start}-images-idx3-ubyte.gz", (n_images, 28, 28))
    labels = _read_idx(root / f"{start}-labels-idx1-ubyte.gz", (n_images,))
    if labels.max() >= len(CLASSES):
        raise InputError(f"{start}-labels-idx1-ubyte.gz: class {labels.max()}, known are 0 to {len(CLASSES) - 1}")
    return images, labels


def _read_idx(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes of an IDX file of the given shape: two zeros, 8 for bytes, the number of sides, each side, the values."""
    start = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    try:
        with gzip.open(file) as opened:
            content = opened.read(len(start) + math.prod(shape) + 1)
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.name}: cannot be unpacked: {error}") from error
    if content[: len(start)] != start:
        raise InputError(f"{file.name}: not an IDX file of {' x '.join(map(str, shape))} bytes")
    values = np.frombuffer(content, np.uint8, offset=len(start))
    if len(values) != math.prod(shape):
        found = f"{len(values):,}" if len(values) < math.prod(shape) else "more"
        raise InputError(f"{file.name}: {found} values, its header says {math.prod(shape):,}")
    return values.reshape(shape)
