"""Sets that stand for what is not in a collection: Textures, and any folder of images."""

import os

import polars as pl

from sightline.data.manifest import IMAGE_SUFFIXES
from sightline.data.readers.source import Draft, Part, Reader, Source, read_fields, rows_of
from sightline.errors import InputError, names


def read_textures(source: Source) -> Draft:
    """``images/<texture>/<file>.jpg`` and ``labels/{train,val,test}1.txt``, the first of the ten published splits."""
    source = source.unpacked(["dtd-r1.0.1.tar.gz"], unless=["images", "dtd/images"])
    images = source.folder("images", "dtd/images")
    tables, files = [], {}
    for split in ("train", "val", "test"):
        files[split] = listed = source.file(f"labels/{split}1.txt", f"dtd/labels/{split}1.txt")
        paths = [row[0] for row in read_fields(listed, 1)]
        tables.append(rows_of([f"{images}/{path}" for path in paths], split, [[path.partition("/")[0] for path in paths]]))
    return Draft(pl.concat(tables), files)


def read_folder(source: Source) -> Draft:
    """All images below the folder, however deep, as ``test``; the label is the folder they lie in, seen from the root."""
    found = []
    for folder, below, files in os.walk(source.root, followlinks=True):
        below[:] = sorted(name for name in below if not name.startswith("."))  # the walk goes where this list says
        kept = [name for name in sorted(files) if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES]
        found += [(f"{folder}/{name}", os.path.relpath(folder, source.root)) for name in kept if not name.startswith(".")]
    if not found:
        raise InputError(f"{source.root}: no image below this folder; known endings: {names(sorted(IMAGE_SUFFIXES))}")
    labels = [source.root.name if place == "." else place for _, place in found]
    return Draft(rows_of([path for path, _ in found], "test", [labels]), {"test": source.root})


TEXTURES = Reader(
    about="Describable Textures: 47 kinds of texture",
    needs="'dtd-r1.0.1.tar.gz', or 'images' and 'labels' from it (or in 'dtd')",
    read=read_textures,
    counts={split: Part(1880, (47,)) for split in ("train", "val", "test")},
    class_disjoint=False,
)
FOLDER = Reader(
    about="any folder of images, all in 'test', for detecting what is outside: TinyImageNet, LSUN, Places, SUN, ImageNet-O",
    needs="images, in folders or not",
    read=read_folder,
    class_disjoint=False,
)
