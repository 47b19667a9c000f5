"""Sets whose classes are hard to tell apart: birds (CUB-200-2011), cars (Cars196) and species (iNaturalist-2018)."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sightline.data.manifest import UNREADABLE, image_files, label_columns
from sightline.data.readers.matlab import read_matlab
from sightline.data.readers.source import Draft, PublishedCounts, Reader, SourceFiles, read_fields, read_text
from sightline.errors import InputError, raise_faults

BODIES = ("Cab", "Convertible", "Coupe", "Hatchback", "Minivan", "SUV", "Sedan", "Van", "Wagon")
BODY_OF = {  # of the models whose names do not say
    "Acura Integra Type R 2001": "Coupe",
    "Acura TL Type-S 2008": "Sedan",
    "Buick Regal GS 2012": "Sedan",
    "Chevrolet Cobalt SS 2010": "Coupe",
    "Chevrolet Corvette Ron Fellows Edition Z06 2007": "Coupe",
    "Chevrolet Corvette ZR1 2012": "Coupe",
    "Chevrolet HHR SS 2010": "Wagon",
    "Chevrolet TrailBlazer SS 2009": "SUV",
    "Chrysler 300 SRT-8 2010": "Sedan",
    "Dodge Challenger SRT8 2011": "Coupe",
    "Dodge Charger SRT-8 2009": "Sedan",
    "FIAT 500 Abarth 2012": "Hatchback",
    "Ford Ranger SuperCab 2011": "Cab",
    "Jaguar XK XKR 2012": "Coupe",
    "Lamborghini Gallardo LP 570-4 Superleggera 2012": "Coupe",
}
RANKS = ("genus", "family", "order", "class", "phylum", "kingdom")


def bird_families() -> pl.DataFrame:
    """Family and order of the 200 birds of CUB-200-2011, which the data set itself does not give.

    After the checklist of the American Ornithological Society. The table released with HAPPIER has one family more: it puts
    the red-legged kittiwake, a gull, next to the kingfishers.

    Example:
        >>> bird_families().row(0)
        ('Horned_Lark', 'Alaudidae', 'Passeriformes')
    """
    return pl.read_csv(Path(__file__).with_name("bird_families.csv"))


def read_cub(source: SourceFiles) -> Iterator[Draft]:
    """``images/<001.Name>/<file>.jpg``, by ``images.txt`` where it is there; or the published archive.

    The first half of the classes is for training.
    """
    source = source.unpacked(["CUB_200_2011.tgz"], unless=["images", "CUB_200_2011/images"])
    images = source.folder("images", "CUB_200_2011/images")
    listed = images.parent / "images.txt"
    if listed.is_file():
        paths = read_fields(listed, ("number", "path"))["path"]
    else:
        listed = images
        paths = pl.Series("path", [path.as_posix() for path in image_files(images) if len(path.parts) == 2], pl.String)
    folder = pl.col("path").str.split("/").list.first()
    birds = bird_families().rename({"family": "label_1", "order": "label_2"})
    rows = paths.sort().to_frame().with_columns(label_0=folder, species=folder.str.replace(r"^[^.]*\.?", ""))
    rows = rows.join(birds, on="species", how="left", maintain_order="left").drop("species")
    unknown = rows.filter(pl.col("label_1").is_null())["label_0"].unique(maintain_order=True)
    raise_faults(listed, [f"class {name!r}: not one of the 200 birds of this set" for name in unknown])
    classes = rows["label_0"].unique(maintain_order=True)
    for part, chosen in (("train", classes[: len(classes) // 2]), ("test", classes[len(classes) // 2 :])):
        yield Draft(part, listed, rows.filter(pl.col("label_0").is_in(chosen.to_list())), images)


def body_of(model: str) -> str | None:
    """The kind of body that the model's name says last; None if it says none.

    Example:
        >>> body_of("Ram C/V Cargo Van Minivan 2012"), body_of("Jaguar XK XKR 2012"), body_of("Trabant 601")
        ('Minivan', 'Coupe', None)
    """
    said = [word for word in model.split() if word in BODIES]
    return BODY_OF.get(model) or (said[-1] if said else None)


def read_cars(source: SourceFiles) -> Iterator[Draft]:
    """``cars_annos.mat`` with ``annotations`` and ``class_names``, and the images in ``car_ims`` or its archive.

    The first half of the classes, 1 to 98, is for training.
    """
    source = source.unpacked(["car_ims.tgz"], unless=["car_ims"])
    listed = source.file("cars_annos.mat")
    found = read_matlab(listed, "annotations", "class_names")
    try:
        models = [str(cell[0]) for cell in found["class_names"].ravel()]
        pictures = found["annotations"].ravel()
        paths = [str(picture["relative_im_path"].item()) for picture in pictures]
        numbers = [int(picture["class"].item()) for picture in pictures]
        rows = pl.DataFrame({"path": paths, "number": numbers}, {"path": pl.String, "number": pl.Int64})
    except (ValueError, IndexError, TypeError, OverflowError, *UNREADABLE) as error:
        needed = "'class_names' of text and 'annotations' with relative_im_path and class"
        raise InputError(f"{listed}: {needed} are needed: {error}") from error
    raise_faults(listed, [f"class {model!r}: its kind of body is not known" for model in models if body_of(model) is None])
    wrong = rows.filter(~pl.col("number").is_between(1, len(models)))
    raise_faults(listed, [f"class {number} of {path!r}: there are {len(models)}" for path, number in wrong.rows()])
    labels = pl.DataFrame({"label_0": models, "label_1": [body_of(model) for model in models]})
    labels = labels.with_columns(number=pl.int_range(1, pl.len() + 1))
    rows = rows.join(labels, on="number", maintain_order="left")
    is_train = pl.col("number") <= len(models) // 2
    for part, chosen in (("train", is_train), ("test", ~is_train)):
        yield Draft(part, listed, rows.filter(chosen).drop("number"), source.folder("car_ims").parent)


def read_inaturalist(source: SourceFiles, full: bool) -> Iterator[Draft]:
    """The lists of paths ``train_val2018/<super-category>/<category>/<file>.jpg``.

    Args:
        source: the files.
        full: seven levels from the categories of ``train2018.json``; otherwise species and super-category.
    """
    categories = source.file("train2018.json", "categories.json") if full else Path()
    taxonomy = _categories(categories) if full else pl.DataFrame()
    base = source.folder("train_val2018").parent
    for split in ("train", "test"):
        listed = source.file(f"Inat_dataset_splits/Inaturalist_{split}_set1.txt", f"Inaturalist_{split}_set1.txt")
        rows, place = read_fields(listed, ["path"]), pl.col("path").str.split("/")
        wrong = rows.filter(place.list.len() != 4)["path"]
        raise_faults(
            listed, [f"{path}: not of the form train_val2018/<super-category>/<category>/<file>" for path in wrong]
        )
        rows = rows.with_columns(label_0=place.list.get(2), label_1=place.list.get(1))
        if full:
            rows = rows.drop("label_1").join(taxonomy, on="label_0", how="left", maintain_order="left")
            unknown = rows.filter(pl.col("label_1").is_null())["label_0"].unique().sort()
            raise_faults(listed, [f"category {number!r} is not in {categories.name}" for number in unknown])
        yield Draft(split, listed, rows, base)


def _categories(file: Path) -> pl.DataFrame:
    """Each category's number, and what is above it."""
    try:
        found: Any = json.loads(read_text(file))
        entries = found["categories"] if isinstance(found, dict) else found
        above = {str(entry["id"]): [str(entry[rank]) for rank in RANKS] for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        ranks = ", ".join(("id", *RANKS))
        raise InputError(f"{file}: 'categories', each with {ranks}, are needed: {type(error).__name__} {error}") from error
    labels = dict.fromkeys(label_columns(1 + len(RANKS)), pl.String)
    return pl.DataFrame([[number, *ranks] for number, ranks in above.items()], labels, orient="row")


CUB = Reader(
    about="200 species of birds < 37 families < 13 orders",
    needs="'CUB_200_2011.tgz', or 'images' and 'images.txt' from it",
    read=read_cub,
    counts={"train": PublishedCounts(5864, (100, 29, 13)), "test": PublishedCounts(5924, (100, 20, 6))},
)
CARS = Reader(
    about="196 models of cars < 9 kinds of body",
    needs="'cars_annos.mat', and 'car_ims.tgz' or the folder 'car_ims' from it",
    read=read_cars,
    counts={"train": PublishedCounts(8054, (98,)), "test": PublishedCounts(8131, (98,))},
)
_LISTS = "'Inat_dataset_splits/Inaturalist_train_set1.txt', '..._test_set1.txt' and the folder 'train_val2018'"
INATURALIST_BASE = Reader(
    about="iNaturalist-2018: 8,142 species < super-categories",
    needs=_LISTS,
    read=partial(read_inaturalist, full=False),
    counts={"train": PublishedCounts(325846, (5690, 13)), "test": PublishedCounts(136093, (2452,))},
)
INATURALIST_FULL = Reader(
    about="iNaturalist-2018: 8,142 species < genus < family < order < class < phylum < kingdom",
    needs=f"{_LISTS}, and 'train2018.json'",
    read=partial(read_inaturalist, full=True),
    # Genera share names across kingdoms, and it is not published whether such a name was counted once or twice.
    counts={"train": PublishedCounts(325846, (5690, None, 961, 249, 54, 23, 5)), "test": PublishedCounts(136093, (2452,))},
)
