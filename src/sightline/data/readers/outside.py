"""Sets that often stand for what is not in a collection: CIFAR-10, CIFAR-100, SVHN, Textures, and any folder of images.

The first three come in arrays and are written as PNG beside the manifest.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import IMAGE_SUFFIXES, image_files
from sightline.data.readers.archives import archive_files, need_files
from sightline.data.readers.source import (
    Draft,
    PublishedCounts,
    Reader,
    SourceFiles,
    layout_faults,
    read_lists,
    write_arrays,
)
from sightline.data.readers.untrusted_files import as_text, read_matlab, read_pickle
from sightline.errors import InputError, names, raise_faults

SIDE = 32
PIXELS = 3 * SIDE * SIDE
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (N, PIXELS), (N, L) class numbers, finest level first


class Cifar(NamedTuple):
    """Where a set keeps its images, in the Python and in the binary version; labels finest first."""

    archives: tuple[str, str]
    folders: tuple[str, str]
    parts: Mapping[str, tuple[str, ...]]
    meta: str
    name_keys: tuple[str, ...]
    name_files: tuple[str, ...]
    label_keys: tuple[str, ...]


CIFAR_10_FILES = Cifar(
    archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    parts={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    meta="batches.meta",
    name_keys=("label_names",),
    name_files=("batches.meta.txt",),
    label_keys=("labels",),
)
CIFAR_100_FILES = Cifar(
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    folders=("cifar-100-python", "cifar-100-binary"),
    parts={"train": ("train",), "test": ("test",)},
    meta="meta",
    name_keys=("fine_label_names", "coarse_label_names"),
    name_files=("fine_label_names.txt", "coarse_label_names.txt"),
    label_keys=("fine_labels", "coarse_labels"),
)


def read_cifar(source: SourceFiles, files: Cifar) -> Iterator[Draft]:
    """The Python or the binary version, as archive or unpacked."""
    made = source.room()
    where, found, suffix = _contents(source, files)
    class_names = _class_names(where, found, files)
    for split, parts in files.parts.items():
        load = _from_binary if suffix else _from_pickle
        arrays = [load(found[part + suffix], where / f"{part}{suffix}", files.label_keys) for part in parts]
        pixels, numbers = (np.concatenate(kind) for kind in zip(*arrays, strict=True))
        for column, known in zip(numbers.T, class_names, strict=True):
            if not 0 <= column.min(initial=0) <= column.max(initial=0) < len(known):
                raise InputError(f"{where}: labels from {column.min()} to {column.max()}, names of {len(known)} classes")
        labels = [[known[number] for number in column] for column, known in zip(numbers.T, class_names, strict=True)]
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        yield Draft(split, where, write_arrays(made, images, split, labels, source.show_progress), made)


def _contents(source: SourceFiles, files: Cifar) -> tuple[Path, dict[str, bytes], str]:
    """Where the files are, what each holds, and their ending: ``.bin`` in the binary version."""
    (test,) = files.parts["test"]
    for folder, archive, suffix in zip(files.folders, files.archives, ("", ".bin"), strict=True):
        wanted = [part + suffix for parts in files.parts.values() for part in parts]
        wanted += files.name_files if suffix else [files.meta]
        unpacked = source.find([f"{folder}/{test}{suffix}", test + suffix])
        where = unpacked.parent if unpacked else source.find([archive])
        if where is None:
            continue
        if unpacked:
            found = {name: (where / name).read_bytes() for name in wanted if (where / name).is_file()}
        else:
            found = {Path(path).name: content for path, content in archive_files(where)}
        need_files(where, found, wanted)
        return where, found, suffix
    source.refuse("file", [*files.archives, *(f"{folder}/{test}" for folder in files.folders)])


def _class_names(where: Path, found: Mapping[str, bytes], files: Cifar) -> list[list[str]]:
    """The names of the classes of each level, each of which can be a folder's."""
    with layout_faults(where, f"class names, UTF-8 text in {names(files.name_keys)}, are"):
        if files.meta in found:
            meta = as_text(read_pickle(found[files.meta], where / files.meta))
            levels = [list(meta[key]) for key in files.name_keys]
        else:
            levels = [found[name].decode().split("\n") for name in files.name_files]
            levels = [[line.strip() for line in lines if line.strip()] for lines in levels]
    wrong = [name for level in levels for name in level if not _names_a_folder(name)]
    raise_faults(where, [f"class name {str(name)[:100]!r} cannot be a folder's" for name in wrong])
    return levels


def _names_a_folder(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 200 and not name.startswith(".") and not set("/\\\0") & set(name)


def _from_pickle(data: bytes, file: Path, keys: Sequence[str]) -> Arrays:
    found = read_pickle(data, file)
    with layout_faults(file, f"{names(('data', *keys))}, (N, {PIXELS}) pixels and N labels as numbers, are"):
        found = {as_text(key): value for key, value in found.items()}
        pixels = np.asarray(found["data"], np.uint8)
        numbers = np.array([found[key] for key in keys], np.int64).T
        if pixels.shape != (len(numbers), PIXELS):
            raise ValueError(f"found {pixels.shape} and {len(numbers)}")
    return pixels, numbers


def _from_binary(data: bytes, file: Path, keys: Sequence[str]) -> Arrays:
    record = len(keys) + PIXELS
    if not data or len(data) % record:
        raise InputError(f"{file}: truncated: {len(data)} bytes are no whole number of images of {record}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, len(keys) :], rows[:, : len(keys)][:, ::-1].astype(np.int64)  # the file has the coarse label first


def read_svhn(source: SourceFiles) -> Iterator[Draft]:
    """``{train,test}_32x32.mat`` with ``X`` (32, 32, 3, N) and ``y``, in which 10 stands for the digit 0."""
    made = source.room()
    for split in ("train", "test"):
        file = source.file(f"{split}_32x32.mat")
        found = read_matlab(file, "X", "y")
        pixels, digits = found["X"], found["y"].ravel()
        wanted = (SIDE, SIDE, 3, len(digits))
        if pixels.shape != wanted or any(array.dtype.kind not in "iu" for array in found.values()):
            raise InputError(f"{file}: must hold X of shape {wanted} and y as whole numbers, found {pixels.shape}")
        labels = [str(digit) for digit in (digits.astype(np.int64) % 10).tolist()]
        images = pixels.astype(np.uint8).transpose(3, 0, 1, 2)
        yield Draft(split, file, write_arrays(made, images, split, [labels], source.show_progress), made)


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
    read=partial(  # the first of the ten published splits
        read_lists,
        files=("labels/{}1.txt", "dtd/labels/{}1.txt"),
        fields=["path"],
        columns={"path": "path", "label_0": pl.col("path").str.split("/").list.first()},
        splits=("train", "val", "test"),
        folders=("images", "dtd/images"),
    ),
    archives=("dtd-r1.0.1.tar.gz",),
    folders=("images", "dtd/images"),
    counts={split: PublishedCounts(1880, (47,)) for split in ("train", "val", "test")},
    class_disjoint=False,
)
FOLDER = Reader(
    about="any folder of images, all in 'test', for out-of-distribution detection: TinyImageNet, LSUN, Places, ImageNet-O",
    needs="images, in folders or not",
    read=read_folder,
    class_disjoint=False,
)
