"""CIFAR-10, CIFAR-100 and SVHN: images that come in arrays and are written as PNG beside the manifest."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.readers.archives import archive_faults, tar_files, tar_stream
from sightline.data.readers.matlab import read_matlab
from sightline.data.readers.pickles import as_text, read_pickle
from sightline.data.readers.source import Draft, Part, Reader, Source, rows_of
from sightline.errors import InputError, names, raise_faults
from sightline.progress import tracked

SIDE = 32
PIXELS = 3 * SIDE * SIDE
Bytes = NDArray[np.uint8]


class Cifar(NamedTuple):
    """Where a set keeps its images: parts of each split, files of class names, keys of labels, finest first."""

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


def read_cifar(source: Source, files: Cifar) -> Draft:
    """The Python or the binary version, as archive or unpacked."""
    made = source.room()
    where, load, binary = _opened(source, files)
    try:
        if binary:
            tables = [load(name).decode().split("\n") for name in files.text_names]
            class_names = [[line.strip() for line in table if line.strip()] for table in tables]
        else:
            meta = as_text(read_pickle(load(files.meta), where / files.meta))
            class_names = [_entry(meta, key, where / files.meta) for key in files.meta_keys]
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: class names that are not UTF-8: {error}") from error
    drafts, listed = [], {}
    for split, parts in (("train", files.train), ("test", (files.test,))):
        stacks, numbers = [], []
        for part in parts:
            name = f"{part}.bin" if binary else part
            pixels, found = (_binary if binary else _pickled)(load(name), where / name, files.label_keys)
            stacks.append(pixels)
            numbers.append(found)
        images = np.concatenate(stacks).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        labels = _named(np.concatenate(numbers), class_names, where)
        drafts.append(rows_of(_written(made, images, split, labels[0], source.show_progress), split, labels))
        listed[split] = where
    return Draft(pl.concat(drafts), listed)


def _opened(source: Source, files: Cifar) -> tuple[Path, Callable[[str], bytes], bool]:
    """Where the files are, how to load one by its name, and whether it is the binary version."""
    for folder, archive, suffix in zip(files.folders, files.archives, ("", ".bin"), strict=True):
        probe = files.test + suffix
        unpacked = source.find([f"{folder}/{probe}", probe], Path.is_file)
        if unpacked is not None:
            return unpacked.parent, partial(_loaded, unpacked.parent), bool(suffix)
        packed = source.find([archive], Path.is_file)
        if packed is not None:
            with archive_faults(packed), tar_stream(packed) as stream:
                loaded = {Path(name).name: file.read() for name, file in tar_files(stream)}
            return packed, partial(_member, loaded, packed), bool(suffix)
    sought = source.file(*files.archives, *(f"{folder}/{files.test}" for folder in files.folders))  # says what is missing
    raise InputError(f"{sought}: not a file of this data set")


def _loaded(folder: Path, name: str) -> bytes:
    if not (folder / name).is_file():
        raise InputError(f"{folder}: no {name!r} in this folder; it has {names(sorted(os.listdir(folder)))}")
    return (folder / name).read_bytes()


def _member(loaded: dict[str, bytes], archive: Path, name: str) -> bytes:
    if name not in loaded:
        raise InputError(f"{archive}: no {name!r} in this archive; it has {names(sorted(loaded))}")
    return loaded[name]


def _entry(found: object, key: str, file: Path) -> list[str]:
    if not isinstance(found, dict) or key not in found:
        raise InputError(f"{file}: no {key!r} in it")
    if not isinstance(found[key], list):
        raise InputError(f"{file}: {key!r} is no list")
    return list(found[key])


def _pickled(data: bytes, file: Path, keys: Sequence[str]) -> tuple[Bytes, NDArray[np.int64]]:
    found = as_text_keys(read_pickle(data, file))
    if missing := [key for key in ("data", *keys) if key not in found]:
        raise InputError(f"{file}: no {names(missing)} in it")
    try:
        pixels = np.asarray(found["data"], np.uint8)
        numbers = np.array([found[key] for key in keys], np.int64).T
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: pixels and labels are needed as numbers: {error}") from error
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(pixels) != len(numbers):
        raise InputError(f"{file}: (N, {PIXELS}) pixels and N labels are needed, found {pixels.shape} and {len(numbers)}")
    return pixels, numbers


def as_text_keys(found: object) -> dict[str, object]:
    """A dictionary under text keys; pixels stay as they are."""
    return {as_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _binary(data: bytes, file: Path, keys: Sequence[str]) -> tuple[Bytes, NDArray[np.int64]]:
    record = len(keys) + PIXELS
    if not data or len(data) % record:
        raise InputError(f"{file}: truncated: {len(data)} bytes are no whole number of images of {record}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, len(keys) :], rows[:, : len(keys)][:, ::-1].astype(np.int64)  # the file has the coarse label first


def _named(numbers: NDArray[np.int64], class_names: Sequence[Sequence[str]], file: Path) -> list[list[str]]:
    named = []
    for column, known in zip(numbers.T, class_names, strict=True):
        faults = [f"class name {str(name)[:100]!r} cannot be a folder's" for name in known if not _names_a_folder(name)]
        raise_faults(file, faults)
        if len(column) and not 0 <= column.min() <= column.max() < len(known):
            raise InputError(f"{file}: labels from {column.min()} to {column.max()}, names of {len(known)} classes")
        named.append([known[number] for number in column.tolist()])
    return named


def _names_a_folder(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 200 and not name.startswith(".") and not set("/\\\0") & set(name)


def _written(made: Path, images: Bytes, split: str, labels: Sequence[str], show_progress: bool) -> list[Path]:
    """Write (N, 32, 32, 3) as ``<split>/<label>/<number>.png``."""
    paths = [made / split / label / f"{number:05d}.png" for number, label in enumerate(labels)]
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True)
    pairs = zip(paths, images, strict=True)
    for path, image in tracked(pairs, f"Writing {split} images", len(paths), show_progress):
        Image.fromarray(np.ascontiguousarray(image)).save(path)
    return paths


def read_svhn(source: Source) -> Draft:
    """``{train,test}_32x32.mat`` with ``X`` (32, 32, 3, N) and ``y``, in which 10 stands for the digit 0."""
    made = source.room()
    drafts, listed = [], {}
    for split in ("train", "test"):
        listed[split] = file = source.file(f"{split}_32x32.mat")
        found = read_matlab(file, "X", "y")
        if any(found[name].dtype.kind not in "iu" for name in ("X", "y")):
            raise InputError(f"{file}: X and y are needed as whole numbers")
        pixels, digits = found["X"], found["y"].ravel().astype(np.int64) % 10
        if pixels.shape != (SIDE, SIDE, 3, len(digits)):
            raise InputError(f"{file}: X of shape ({SIDE}, {SIDE}, 3, {len(digits)}) is needed, found {pixels.shape}")
        labels = [str(digit) for digit in digits.tolist()]
        images = pixels.astype(np.uint8).transpose(3, 0, 1, 2)
        drafts.append(rows_of(_written(made, images, split, labels, source.show_progress), split, [labels]))
    return Draft(pl.concat(drafts), listed)


def _cifar(files: Cifar, about: str, classes: tuple[int, ...]) -> Reader:
    return Reader(
        about=about,
        needs=" or ".join(repr(name) for name in (*files.archives, *files.folders)),
        read=partial(read_cifar, files=files),
        counts={"train": Part(50000, classes), "test": Part(10000, classes)},
        class_disjoint=False,
    )


CIFAR_10 = _cifar(CIFAR_10_FILES, "small photos of 10 kinds of things", (10,))
CIFAR_100 = _cifar(CIFAR_100_FILES, "small photos of 100 kinds of things < 20 groups", (100, 20))
SVHN = Reader(
    about="house numbers: 10 digits",
    needs="'train_32x32.mat' and 'test_32x32.mat'",
    read=read_svhn,
    counts={"train": Part(73257, (10,)), "test": Part(26032, (10,))},
    class_disjoint=False,
)
