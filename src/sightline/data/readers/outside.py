"""Sets that often stand for what is not in a collection: CIFAR-10, CIFAR-100, SVHN, Textures, and any folder of images.

The first three come in arrays and are written as PNG beside the manifest.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.manifest import IMAGE_SUFFIXES, image_files
from sightline.data.readers.archives import archive_faults, tar_files, tar_stream
from sightline.data.readers.matlab import read_matlab
from sightline.data.readers.pickles import as_text, read_pickle
from sightline.data.readers.source import Draft, PublishedCounts, Reader, SourceFiles, read_fields
from sightline.errors import InputError, names, raise_faults
from sightline.progress import tracked

SIDE = 32
PIXELS = 3 * SIDE * SIDE
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (N, PIXELS), (N, L) class numbers, finest level first


class Cifar(NamedTuple):
    """Where a set keeps its images, in the Python and in the binary version; labels finest first."""

    archives: tuple[str, str]
    folders: tuple[str, str]
    train: tuple[str, ...]
    test: str
    meta: str
    meta_keys: tuple[str, ...]
    text_names: tuple[str, ...]
    label_keys: tuple[str, ...]


CIFAR_10_FILES = Cifar(
    archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    meta_keys=("label_names",),
    text_names=("batches.meta.txt",),
    label_keys=("labels",),
)
CIFAR_100_FILES = Cifar(
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    folders=("cifar-100-python", "cifar-100-binary"),
    train=("train",),
    test="test",
    meta="meta",
    meta_keys=("fine_label_names", "coarse_label_names"),
    text_names=("fine_label_names.txt", "coarse_label_names.txt"),
    label_keys=("fine_labels", "coarse_labels"),
)


def read_cifar(source: SourceFiles, files: Cifar) -> Iterator[Draft]:
    """The Python or the binary version, as archive or unpacked."""
    made = source.room()
    where, found, suffix = _contents(source, files)
    class_names = _class_names(where, found, files, is_binary=bool(suffix))
    for split, parts in (("train", files.train), ("test", (files.test,))):
        load = _from_binary if suffix else _from_pickle
        arrays = [load(found[part + suffix], where / f"{part}{suffix}", files.label_keys) for part in parts]
        images = np.concatenate([pixels for pixels, _ in arrays]).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        numbers = np.concatenate([column for _, column in arrays])
        labels = [_named(column, known, where) for column, known in zip(numbers.T, class_names, strict=True)]
        yield Draft(split, where, _written(made, images, split, labels, source.show_progress), made)


def _contents(source: SourceFiles, files: Cifar) -> tuple[Path, dict[str, bytes], str]:
    """Where the files are, what each holds, and their ending: ``.bin`` in the binary version."""
    for folder, archive, suffix in zip(files.folders, files.archives, ("", ".bin"), strict=True):
        wanted = [part + suffix for part in (*files.train, files.test)]
        wanted += files.text_names if suffix else [files.meta]
        if unpacked := source.find([f"{folder}/{files.test}{suffix}", files.test + suffix]):
            where = unpacked.parent
            there = sorted(os.listdir(where))
            found = {name: (where / name).read_bytes() for name in wanted if (where / name).is_file()}
        elif packed := source.find([archive]):
            where = packed
            with archive_faults(packed), tar_stream(packed) as stream:
                found = {Path(name).name: file.read() for name, file in tar_files(stream)}
            there = sorted(found)
        else:
            continue
        if missing := [name for name in wanted if name not in found]:
            raise InputError(f"{where}: no {names(missing)} in it; it has {names(there)}")
        return where, found, suffix
    sought = source.file(*files.archives, *(f"{folder}/{files.test}" for folder in files.folders))  # says what is missing
    raise InputError(f"{sought}: not a file of this data set")


def _class_names(where: Path, found: dict[str, bytes], files: Cifar, is_binary: bool) -> list[list[str]]:
    """The names of the classes of each level, each of which can be a folder's."""
    meta = {} if is_binary else read_pickle(found[files.meta], where / files.meta)
    try:
        if is_binary:
            levels = [
                [line.strip() for line in found[name].decode().split("\n") if line.strip()] for name in files.text_names
            ]
        else:
            levels = [list(as_text(meta)[key]) for key in files.meta_keys]
    except (UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{where}: class names are needed, UTF-8 text in {names(files.meta_keys)}: {error!r}") from error
    wrong = [name for level in levels for name in level if not _names_a_folder(name)]
    raise_faults(where, [f"class name {str(name)[:100]!r} cannot be a folder's" for name in wrong])
    return levels


def _names_a_folder(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 200 and not name.startswith(".") and not set("/\\\0") & set(name)


def _from_pickle(data: bytes, file: Path, keys: Sequence[str]) -> Arrays:
    found = read_pickle(data, file)
    found = {as_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    try:
        pixels = np.asarray(found["data"], np.uint8)
        numbers = np.array([found[key] for key in keys], np.int64).T
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: {names(('data', *keys))} are needed as numbers: {error!r}") from error
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(pixels) != len(numbers):
        raise InputError(f"{file}: (N, {PIXELS}) pixels and N labels are needed, found {pixels.shape} and {len(numbers)}")
    return pixels, numbers


def _from_binary(data: bytes, file: Path, keys: Sequence[str]) -> Arrays:
    record = len(keys) + PIXELS
    if not data or len(data) % record:
        raise InputError(f"{file}: truncated: {len(data)} bytes are no whole number of images of {record}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, len(keys) :], rows[:, : len(keys)][:, ::-1].astype(np.int64)  # the file has the coarse label first


def _named(numbers: NDArray[np.int64], known: Sequence[str], file: Path) -> list[str]:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(known):
        raise InputError(f"{file}: labels from {numbers.min()} to {numbers.max()}, names of {len(known)} classes")
    return [known[number] for number in numbers.tolist()]


def _written(
    made: Path, images: NDArray[np.uint8], split: str, labels: Sequence[Sequence[str]], show_progress: bool
) -> pl.DataFrame:
    """Write (N, 32, 32, 3) as ``<split>/<label>/<number>.png``; the rows."""
    for name in set(labels[0]):
        (made / split / name).mkdir(parents=True)
    paths = [f"{split}/{name}/{number:05d}.png" for number, name in enumerate(labels[0])]
    pairs = zip(paths, images, strict=True)
    for path, image in tracked(pairs, f"Writing {split} images", len(paths), show_progress):
        Image.fromarray(np.ascontiguousarray(image)).save(made / path)
    return pl.DataFrame({"path": paths} | {f"label_{level}": list(column) for level, column in enumerate(labels)})


def read_svhn(source: SourceFiles) -> Iterator[Draft]:
    """``{train,test}_32x32.mat`` with ``X`` (32, 32, 3, N) and ``y``, in which 10 stands for the digit 0."""
    made = source.room()
    for split in ("train", "test"):
        file = source.file(f"{split}_32x32.mat")
        found = read_matlab(file, "X", "y")
        if any(array.dtype.kind not in "iu" for array in found.values()):
            raise InputError(f"{file}: X and y are needed as whole numbers")
        pixels, digits = found["X"], found["y"].ravel().astype(np.int64) % 10
        if pixels.shape != (SIDE, SIDE, 3, len(digits)):
            raise InputError(f"{file}: X of shape ({SIDE}, {SIDE}, 3, {len(digits)}) is needed, found {pixels.shape}")
        images = pixels.astype(np.uint8).transpose(3, 0, 1, 2)
        rows = _written(made, images, split, [[str(digit) for digit in digits.tolist()]], source.show_progress)
        yield Draft(split, file, rows, made)


def read_textures(source: SourceFiles) -> Iterator[Draft]:
    """``images/<texture>/<file>.jpg`` and ``labels/{train,val,test}1.txt``, the first of the ten published splits."""
    source = source.unpacked(["dtd-r1.0.1.tar.gz"], unless=["images", "dtd/images"])
    images = source.folder("images", "dtd/images")
    for split in ("train", "val", "test"):
        listed = source.file(f"labels/{split}1.txt", f"dtd/labels/{split}1.txt")
        rows = read_fields(listed, ["path"]).with_columns(label_0=pl.col("path").str.split("/").list.first())
        yield Draft(split, listed, rows, images)


def read_folder(source: SourceFiles) -> Iterator[Draft]:
    """All images below the folder, however deep, as ``test``; the label is the folder they lie in, seen from the root."""
    paths = sorted(image_files(source.root), key=lambda path: (path.parent, path.name))
    if not paths:
        raise InputError(f"{source.root}: no image below this folder; known endings: {names(sorted(IMAGE_SUFFIXES))}")
    labels = [path.parent.as_posix() if len(path.parts) > 1 else source.root.name for path in paths]
    rows = pl.DataFrame({"path": [path.as_posix() for path in paths], "label_0": labels})
    yield Draft("test", source.root, rows, source.root)


def _cifar(files: Cifar, about: str, classes: tuple[int, ...]) -> Reader:
    return Reader(
        about=about,
        needs=" or ".join(repr(name) for name in (*files.archives, *files.folders)),
        read=partial(read_cifar, files=files),
        counts={"train": PublishedCounts(50000, classes), "test": PublishedCounts(10000, classes)},
        class_disjoint=False,
    )


CIFAR_10 = _cifar(CIFAR_10_FILES, "small photos of 10 kinds of things", (10,))
CIFAR_100 = _cifar(CIFAR_100_FILES, "small photos of 100 kinds of things < 20 groups", (100, 20))
SVHN = Reader(
    about="house numbers: 10 digits",
    needs="'train_32x32.mat' and 'test_32x32.mat'",
    read=read_svhn,
    counts={"train": PublishedCounts(73257, (10,)), "test": PublishedCounts(26032, (10,))},
    class_disjoint=False,
)
TEXTURES = Reader(
    about="Describable Textures: 47 kinds of texture",
    needs="'dtd-r1.0.1.tar.gz', or 'images' and 'labels' from it (or in 'dtd')",
    read=read_textures,
    counts={split: PublishedCounts(1880, (47,)) for split in ("train", "val", "test")},
    class_disjoint=False,
)
FOLDER = Reader(
    about="any folder of images, all in 'test', for detecting what is outside: TinyImageNet, LSUN, Places, SUN, ImageNet-O",
    needs="images, in folders or not",
    read=read_folder,
    class_disjoint=False,
)
