"""Fashion-MNIST: 70,000 grey images of 28 x 28 in 10 classes, as files with a manifest."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.readers.folder import Record, sources_page, write_collection
from sightline.data.readers.packages import DebianPackage, debian_files
from sightline.errors import InputError
from sightline.progress import tracked

PACKAGE = DebianPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist", "MIT, © Zalando SE")
VERSION = 1
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # the published split: start of the file names, images


def class_split(label: str) -> str:
    """``test`` for the five classes whose names have the lowest hash, ``train`` for the others.

    Example:
        >>> [label for label in CLASSES if class_split(label) == "test"]
        ['trouser', 'pullover', 'dress', 'shirt', 'ankle-boot']
    """
    ordered = sorted(CLASSES, key=lambda name: hashlib.sha256(f"fashion-mnist/{name}".encode()).hexdigest())
    return "test" if ordered.index(label) < len(CLASSES) // 2 else "train"


def write_fashion_mnist(
    folder: Path,
    show_progress: bool = False,
    archives: Path | None = None,
    package: DebianPackage = PACKAGE,
    parts: dict[str, tuple[str, int]] = PARTS,
) -> Path:
    """Write each image as a grey PNG file, and the ``manifest.csv``, whose path is returned.

    Columns: ``path``, ``split``, ``label_0``, ``part``. ``split`` shares no class between ``train`` and ``test``, five
    each, as retrieval needs it; ``part`` is the published split, in which every class is in both.

    Args:
        folder: new, empty, or with this very set, which is then left as it is.
        show_progress: draw a bar.
        archives: a folder with the package's ``.deb``; None takes the installed files or fetches the package.
        package: where the data are.
        parts: of each published part the start of its file names, and how many images it has.
    """
    record: Record = {"data": "fashion-mnist", "version": VERSION, "packages": [package.name]}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with debian_files(package, archives) as (root, version):
            published = {part: _read_part(root, start, n_images) for part, (start, n_images) in parts.items()}
        rows = []
        for part, (images, labels) in published.items():
            names = [CLASSES[label] for label in labels]
            for name in set(names):
                (draft / "images" / part / name).mkdir(parents=True)
            numbered = tracked(enumerate(zip(images, names, strict=True)), f"Writing {part}", len(images), show_progress)
            for number, (pixels, name) in numbered:
                path = f"images/{part}/{name}/{number:05}.png"
                Image.fromarray(pixels).save(draft / path)
                rows.append((path, class_split(name), name, part))
        manifest = pl.DataFrame(rows, ["path", "split", "label_0", "part"], orient="row")
        counts = manifest.group_by("split").agg(pl.len(), pl.col("label_0").unique().sort()).sort("split")
        sentences = [
            f"{len(manifest)} images of 28 x 28 in {manifest['label_0'].n_unique()} classes.",
            *(f"Split {split}: {n} images of {', '.join(labels)}." for split, n, labels in counts.iter_rows()),
            "The column `part` is the published split.",
        ]
        return manifest, sources_page("Fashion-MNIST", sentences, [(package.name, version, package.licence, len(manifest))])

    return write_collection(folder, record, fill)


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
