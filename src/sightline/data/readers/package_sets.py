"""Sets out of packages: emoji by four vendors (npm), Open Clip Art in its folders and Fashion-MNIST (Debian)."""

import gzip
import hashlib
import io
import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import as_rgb, load_image, open_image
from sightline.data.readers.archives import (
    DebianPackage,
    NpmPackage,
    archive_files,
    debian_files,
    need_files,
    npm_archives,
    read_member,
)
from sightline.data.readers.source import Record, layout_faults, sources_page, split_of, write_arrays, write_collection
from sightline.errors import InputError, named_errors
from sightline.progress import tracked

VERSION = 1
EMOJI_PACKAGES = {
    "apple": NpmPackage(
        "emoji-datasource-apple",
        "16.0.0",
        "dVYjsK0FnCry9F+PBtnivhG2K0xdwlmqYaSgiUtztUdAGPYiHYhZcVKvNBqC791g2qyEcFNTBO6utg4eQ3uLTw==",
        "images © Apple Inc., not licensed for commercial use; data MIT",
    ),
    "google": NpmPackage(
        "emoji-datasource-google",
        "16.0.0",
        "ZRexfzs7MVoLnmzZmNsO4TKhnAJp5D++Vm6PpUpH/jEQQlemp3l88CjZ+DoZ2faM9R4QxZkOPJCoT8DlPhfQ3A==",
        "images (Noto) Apache-2.0; data MIT",
    ),
    "twitter": NpmPackage(
        "emoji-datasource-twitter",
        "16.0.0",
        "7F+uCuHH+7Qnrc15P5tnbvKkg9E6tlzi4MnT2uW1RlN4pLYTza6cP/dstIfSDMtpjFLWuZewWg8jBbuL2eyELQ==",
        "images (Twemoji) CC-BY-4.0; data MIT",
    ),
    "facebook": NpmPackage(
        "emoji-datasource-facebook",
        "16.0.0",
        "b9ZxJdB7nMWGckH1vyCjPSosaa6MJYuojPPFiQ0LmDIZS8vlG454XKcmTFKrXIMAA72O4MRJMYFhvWI8pjyciQ==",
        "images © Facebook, Inc., no clear licence; data MIT",
    ),
}
EMOJI_KEYS = ("short_name", "name", "subcategory", "category", "image")
EMOJI_COLUMNS = ("path", "split", "label_0", "label_1", "label_2", "vendor", "name", "pixels")
CLIP_ART = DebianPackage("openclipart-png", "/usr/share/openclipart/png", "public domain")
LONGEST = 256
MOST_PIXELS = 8_000_000  # 18 images have more, up to 623 million: they would take longer than all the others
NO_CLASS = "unsorted"
FASHION_MNIST = DebianPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist", "MIT, © Zalando SE")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # the published split: start of the file names, images


def write_emoji(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    packages: dict[str, NpmPackage] = EMOJI_PACKAGES,
) -> Path:
    """Emoji, each drawn by four vendors: emoji < subcategory < category; needs npm, or its packages in --root.

    Every emoji that all vendors draw, 64 x 64 on white, and its ``manifest.csv``, whose path is returned. The pinned
    packages give 1,857 emoji and 7,428 images. Columns: ``path``, ``split``, ``label_0`` (short name, unique), ``label_1``
    (subcategory), ``label_2`` (category), ``vendor``, ``name`` (Unicode's). No emoji is in two splits.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder of archives made by ``npm pack``; None fetches them.
        packages: the package of each vendor.
    """
    record: Record = {"data": "emoji", "version": VERSION, "packages": [str(package) for package in packages.values()]}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives(list(packages.values()), root, show_progress) as found:
            by_vendor = dict(zip(packages, found, strict=True))
            rows = list(_write_images(draft, by_vendor, _drawn_by_all(by_vendor), show_progress))
        manifest = pl.DataFrame(rows, EMOJI_COLUMNS, orient="row").sort("path")
        alike = manifest.filter(pl.col("label_0").n_unique().over("vendor", "pixels") > 1)["label_0"].n_unique()
        sentences = [
            "Each emoji that all vendors draw, 64 x 64, transparency on white.",
            f"{alike} emoji share a picture, pixel for pixel, with another emoji of the same vendor: "
            "flags of dependent territories above all. They stay, as two classes.",
        ]
        n_of = dict(manifest.group_by("vendor").len().iter_rows())
        listed = [(p.name, p.version, p.licence, n_of[vendor]) for vendor, p in packages.items()]
        return manifest.drop("pixels"), sources_page("Emoji", "emoji < subcategory < category", manifest, sentences, listed)

    return write_collection(out, record, fill)


def _drawn_by_all(by_vendor: dict[str, Path]) -> list[dict[str, Any]]:
    """The entries of ``emoji.json`` that every vendor has an image of, as the first archive lists them."""
    archive = next(iter(by_vendor.values()))
    listed = read_member(archive, dict(archive_files(archive, "emoji.json")), "emoji.json")
    drawn = [f"has_img_{vendor}" for vendor in by_vendor]
    with layout_faults(archive, f"emoji.json with a list of emoji, each with {', '.join((*EMOJI_KEYS, *drawn))}, is"):
        emoji = [{key: entry[key] for key in EMOJI_KEYS} for entry in listed if all(entry[key] for key in drawn)]
    if not emoji:
        raise InputError(f"{archive.name}: emoji.json names no emoji that all of {', '.join(by_vendor)} draw")
    return emoji


def _write_images(
    draft: Path, by_vendor: dict[str, Path], emoji: list[dict[str, Any]], show_progress: bool
) -> Iterator[tuple[str, ...]]:
    """One row of the manifest for each image, and a hash of its pixels."""
    for vendor, archive in by_vendor.items():
        start = f"img/{vendor}/64/"
        files = dict(archive_files(archive, start))
        need_files(archive, files, [start + entry["image"] for entry in emoji])
        for entry in tracked(emoji, f"Writing {vendor}", len(emoji), show_progress):
            what = f"{start}{entry['image']} is not a readable image"
            with named_errors(archive.name, what, Exception):  # on broken bytes Pillow's decoders raise anything
                image = as_rgb(open_image(io.BytesIO(files[start + entry["image"]])))
            path = f"images/{Path(entry['image']).stem}/{vendor}.png"
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            image.save(draft / path)
            labels = (entry["short_name"], entry["subcategory"], entry["category"])
            pixels = hashlib.sha256(image.tobytes()).hexdigest()
            yield path, split_of("emoji", labels[0]), *labels, vendor, entry["name"].lower(), pixels


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
        with debian_files(package, root) as (folder, version):
            files = sorted(folder.rglob("*.png"))
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoding releases the interpreter lock
                faults = pool.map(partial(_shrink, root=folder, out=draft / "images"), files)
                reasons = list(tracked(faults, "Writing clip art", len(files), show_progress))
            written = [file.relative_to(folder) for file, reason in zip(files, reasons, strict=True) if reason is None]
        counts = Counter({"files": len(files)})
        counts.update(f"left out: {reason}" for reason in reasons if reason is not None)
        rows = [(f"images/{file}", *("/".join(file.parts[:-1][:depth]) for depth in (3, 2, 1))) for file in written]
        every = pl.DataFrame(rows, dict.fromkeys(("path", "label_0", "label_1", "label_2"), pl.String), orient="row")
        for path in every.filter(~pl.col("label_0").is_duplicated())["path"]:
            (draft / path).unlink()
            counts["left out: the only image of its folder"] += 1
        manifest = every.filter(pl.col("label_0").is_duplicated())
        if not len(manifest):
            raise InputError(f"{package.name}: no folder has two readable images")
        manifest.insert_column(1, pl.Series("split", [split_of("openclipart", label) for label in manifest["label_0"]]))
        listed = [(package.name, version, package.licence, len(manifest))]
        about = "the folders, cut after three < two < one parts"
        return manifest, sources_page("Open Clip Art", about, manifest, [], listed, counts)

    return write_collection(out, record, fill)


def _shrink(file: Path, root: Path, out: Path) -> str | None:
    """Write an image at the size of the set; if it is left out, why."""
    inside = file.relative_to(root)
    if file.is_symlink() or not file.is_file():
        return "links to other images"
    if len(inside.parts) == 1 or inside.parts[0] == NO_CLASS:
        return f"in no folder, or in {NO_CLASS}"
    if _n_pixels(file) > MOST_PIXELS:
        return f"of more than {MOST_PIXELS:,} pixels"
    try:
        image = load_image(file)
    except InputError:
        return "not readable images"
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    (out / inside).parent.mkdir(parents=True, exist_ok=True)
    image.save(out / inside)
    return None


def _n_pixels(file: Path) -> int:
    """As the header says: read without the decoder, which warns of the largest images; 0 if there is no header."""
    with file.open("rb") as opened:
        header = opened.read(24)
    return math.prod(struct.unpack(">II", header[16:])) if len(header) == 24 and header[12:16] == b"IHDR" else 0


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
        tables = []
        with debian_files(package, root) as (folder, version):
            for part, (start, n_images) in parts.items():
                images = _read_idx(folder / f"{start}-images-idx3-ubyte.gz", (n_images, 28, 28))
                numbers = _read_idx(folder / f"{start}-labels-idx1-ubyte.gz", (n_images,))
                if numbers.max() >= len(CLASSES):
                    raise InputError(f"{start}-labels-idx1-ubyte.gz: classes must be 0 to 9, got {numbers.max()}")
                labels = [CLASSES[number] for number in numbers]
                rows = write_arrays(draft / "images", images, part, [labels], show_progress)
                tables.append(rows.with_columns(pl.format("images/{}", "path").alias("path"), part=pl.lit(part)))
        manifest = pl.concat(tables)
        manifest.insert_column(1, pl.Series("split", [class_split(label) for label in manifest["label_0"]]))
        sentences = ["Grey images of 28 x 28. The column `part` is the published split, in which every class is in both."]
        listed = [(package.name, version, package.licence, len(manifest))]
        return manifest, sources_page("Fashion-MNIST", "kinds of clothes", manifest, sentences, listed)

    return write_collection(out, record, fill)


def _read_idx(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The bytes of an IDX file of the given shape: two zeros, 8 for bytes, the number of sides, each side, the values."""
    start = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    with named_errors(file.name, "cannot be unpacked", OSError, EOFError, zlib.error), gzip.open(file) as opened:
        content = opened.read(len(start) + math.prod(shape) + 1)
    if content[: len(start)] != start or len(content) != len(start) + math.prod(shape):
        raise InputError(f"{file.name}: not an IDX file of {' x '.join(map(str, shape))} bytes")
    return np.frombuffer(content, np.uint8, offset=len(start)).reshape(shape)
