"""CUB-200-2011: 200 species of birds, their families and orders; the first half of the classes is for training."""

from itertools import groupby
from pathlib import Path

import polars as pl

from sightline.data.manifest import IMAGE_SUFFIXES
from sightline.data.readers.bird_families import FAMILIES
from sightline.data.readers.source import Draft, Part, Reader, Source, read_fields, rows_of
from sightline.errors import raise_faults

FAMILY_OF = {species: (family, order) for family, (order, birds) in FAMILIES.items() for species in birds.split()}


def read_cub(source: Source) -> Draft:
    """``images/<001.Name>/<file>.jpg``, by ``images.txt`` where it is there; or the published archive."""
    source = source.unpacked(["CUB_200_2011.tgz"], unless=["images", "CUB_200_2011/images"])
    images = source.folder("images", "CUB_200_2011/images")
    listed = images.parent / "images.txt"
    if listed.is_file():
        paths = sorted(row[1] for row in read_fields(listed, 2))
    else:
        listed = images
        paths = sorted(f"{file.parent.name}/{file.name}" for file in images.glob("*/*") if _is_image(file))
    classes = [folder for folder, _ in groupby(paths, lambda path: path.partition("/")[0])]
    birds = {folder: folder.partition(".")[2] for folder in classes}
    raise_faults(
        listed,
        [f"class {folder!r}: not one of the 200 birds of this set" for folder in classes if birds[folder] not in FAMILY_OF],
    )
    tables = []
    for split, chosen in (("train", set(classes[: len(classes) // 2])), ("test", set(classes[len(classes) // 2 :]))):
        kept = [path for path in paths if path.partition("/")[0] in chosen]
        folders = [path.partition("/")[0] for path in kept]
        families = [FAMILY_OF[birds[folder]] for folder in folders]
        labels = [folders, [family for family, _ in families], [order for _, order in families]]
        tables.append(rows_of([f"{images}/{path}" for path in kept], split, labels))
    return Draft(pl.concat(tables), {"train": listed, "test": listed})


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


CUB = Reader(
    about="200 species of birds < 37 families < 13 orders",
    needs="'CUB_200_2011.tgz', or 'images' and 'images.txt' from it",
    read=read_cub,
    counts={"train": Part(5864, (100, 29, 13)), "test": Part(5924, (100, 20, 6))},
)
