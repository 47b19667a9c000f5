"""The sets of the retrieval papers: birds, cars, species, products, clothes, and DyML with a test for each level."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest, image_files, label_columns
from sightline.data.readers.source import (
    Draft,
    PublishedCounts,
    Reader,
    SourceFiles,
    check_widths,
    layout_faults,
    read_fields,
    read_lists,
    read_text,
)
from sightline.data.readers.untrusted_files import read_matlab
from sightline.errors import InputError, names, raise_faults
from sightline.progress import tracked

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
IN_SHOP_PARTS = ("train", "query", "gallery")
LEVELS = ("fine", "middle", "coarse")  # of DyML
DYML_COLUMNS = ("fname", "coarse_id", "middle_id", "fine_id")
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
    """``images/<001.Name>/<file>.jpg``, by ``images.txt`` where it is there; or the published archive."""
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
    rows = _join_parents(rows, birds, "species", listed, "the 200 birds of this set").drop("species")
    yield from _halves(rows, rows["label_0"].unique(maintain_order=True).to_list(), listed, images)


def _join_parents(rows: pl.DataFrame, parents: pl.DataFrame, on: str, listed: object, known: str) -> pl.DataFrame:
    """The rows with the coarser labels of their class; classes that the table of parents lacks are refused."""
    rows = rows.join(parents, on=on, how="left", maintain_order="left")
    unknown = rows.filter(pl.col("label_1").is_null())["label_0"].unique().sort()
    raise_faults(listed, [f"class {name!r} is not in {known}" for name in unknown])
    return rows


def _halves(rows: pl.DataFrame, classes: Sequence[str], listed: Path, folder: Path) -> Iterator[Draft]:
    """The first half of the classes for training, the second for testing."""
    half = len(classes) // 2
    for part, chosen in (("train", classes[:half]), ("test", classes[half:])):
        yield Draft(part, listed, rows.filter(pl.col("label_0").is_in(chosen)), folder)


def body_of(model: str) -> str | None:
    """The kind of body that the model's name says last; None if it says none.

    Example:
        >>> body_of("Ram C/V Cargo Van Minivan 2012"), body_of("Jaguar XK XKR 2012"), body_of("Trabant 601")
        ('Minivan', 'Coupe', None)
    """
    said = [word for word in model.split() if word in BODIES]
    return BODY_OF.get(model) or (said[-1] if said else None)


def read_cars(source: SourceFiles) -> Iterator[Draft]:
    """``cars_annos.mat`` with ``annotations`` and ``class_names``, and the images in ``car_ims`` or its archive."""
    listed = source.file("cars_annos.mat")
    found = read_matlab(listed, "annotations", "class_names")
    with layout_faults(listed, "'class_names' of text and 'annotations' with relative_im_path and class are"):
        models = [str(cell[0]) for cell in found["class_names"].ravel()]
        pictures = found["annotations"].ravel()
        pairs = [(str(picture["relative_im_path"].item()), int(picture["class"].item())) for picture in pictures]
    faults = [f"class {model!r}: its kind of body is not known" for model in models if body_of(model) is None]
    faults += [f"class {n} of {path!r}: there are {len(models)}" for path, n in pairs if not 1 <= n <= len(models)]
    raise_faults(listed, faults)
    labelled = [(path, models[number - 1], body_of(models[number - 1])) for path, number in pairs]
    rows = pl.DataFrame(labelled, dict.fromkeys(("path", "label_0", "label_1"), pl.String), orient="row")
    yield from _halves(rows, models, listed, source.folder("car_ims").parent)


_PARTS = pl.col("path").str.split("/").list
_INATURALIST_LISTS = partial(
    read_lists,
    files=("Inat_dataset_splits/Inaturalist_{}_set1.txt", "Inaturalist_{}_set1.txt"),
    fields=["path"],
    columns={"path": "path", "label_0": _PARTS.get(2), "label_1": _PARTS.get(1)},
    form="train_val2018/<super-category>/<category>/<file>",
    folders=["."],
)


def read_inaturalist_full(source: SourceFiles) -> Iterator[Draft]:
    """The lists of paths, with the seven levels that the categories of ``train2018.json`` give."""
    file = source.file("train2018.json", "categories.json")
    ranks = ("id", *RANKS)
    with layout_faults(file, f"'categories', each with {', '.join(ranks)}, are"):
        found: Any = json.loads(read_text(file))
        entries = found["categories"] if isinstance(found, dict) else found
        above = [[str(entry[rank]) for rank in ranks] for entry in entries]
    taxonomy = pl.DataFrame(above, dict.fromkeys(label_columns(len(ranks)), pl.String), orient="row")
    taxonomy = taxonomy.unique("label_0", keep="last")
    for draft in _INATURALIST_LISTS(source):
        rows = _join_parents(draft.rows.drop("label_1"), taxonomy, "label_0", draft.file, file.name)
        yield replace(draft, rows=rows)


def read_in_shop(source: SourceFiles) -> Iterator[Draft]:
    """``list_eval_partition.txt`` and ``img/<GENDER>/<Category>/<item>/``: item < category of a gender < gender."""
    listed = source.file("list_eval_partition.txt", "Eval/list_eval_partition.txt")
    base = source.folder("img", "Img/img").parent
    rows = read_fields(listed, ("image_name", "item_id", "evaluation_status"), header=2).rename({"image_name": "path"})
    n_rows = read_text(listed).split(maxsplit=1)[0]
    faults = [] if n_rows == str(len(rows)) else [f"line 1 says {n_rows!r} rows, {len(rows)} are there: the file is short"]
    wrong = rows.filter(~pl.col("evaluation_status").is_in(IN_SHOP_PARTS) | (_PARTS.len() < 5)).rows()
    faults += [
        f"{path}, {part!r}: must be 'img/<gender>/<category>/<item>/<file>' and one of {names(IN_SHOP_PARTS)}"
        for path, _, part in wrong
    ]
    raise_faults(listed, faults)
    gender, category = _PARTS.get(1), _PARTS.get(2)
    labels = rows.select("path", label_0="item_id", label_1=gender + "/" + category, label_2=gender)
    for part in IN_SHOP_PARTS:
        yield Draft(part, listed, labels.filter(rows["evaluation_status"] == part), base)


class LevelSet(NamedTuple):
    """The rows of a manifest that one level's test asks for.

    ``queries`` and ``gallery`` are places in the manifest, ``labels`` the classes of all its rows at that level.
    """

    queries: NDArray[np.int64]
    gallery: NDArray[np.int64]
    labels: NDArray[np.int64]


def level_sets(manifest: Manifest) -> dict[str, LevelSet]:
    """The test of each level, by its name, for :func:`~sightline.evaluation.benchmark_protocols.evaluate_dyml`.

    Args:
        manifest: of a DyML set, or that of an embedding table made from it.
    """
    table = manifest.table
    if "test_level" not in table.columns or manifest.n_levels != len(LEVELS):
        raise InputError(f"{manifest.source}: not the manifest of a DyML set, which has three levels and 'test_level'")

    def places(level: str, flag: str) -> NDArray[np.int64]:
        is_here = pl.col("test_level").is_in([level, "all"]) & pl.col(flag)
        return np.flatnonzero(table.select(is_here.fill_null(False)).to_series())

    labels = dict(zip(LEVELS, manifest.labels().T, strict=True))
    return {level: LevelSet(places(level, "is_query"), places(level, "is_gallery"), labels[level]) for level in LEVELS}


def read_dyml(source: SourceFiles, all_in_one: bool) -> Iterator[Draft]:
    """``train/label.csv``, ``train/imgs``, and ``bmk_<level>/{query,gallery}`` or ``mini-bmk_all_in_one``."""
    yield _labelled("train", source.file("train/label.csv"))
    if all_in_one:
        yield _labelled("test", source.file("mini-bmk_all_in_one/label.csv"))
    else:
        yield from (_test_of_level(source, level) for level in LEVELS)


def _labelled(split: str, file: Path) -> Draft:
    is_test = split == "test"
    labels = [pl.lit("test/" * is_test) + pl.col(f"{level}_id") for level in LEVELS]
    rows = read_glued(file, DYML_COLUMNS).select(path="fname", **dict(zip(label_columns(3), labels, strict=True)))
    roles = {"is_query": pl.lit(True), "is_gallery": pl.lit(True), "test_level": pl.lit("all")} if is_test else {}
    return Draft(split, file, rows.with_columns(**roles), file.parent / "imgs")


def _test_of_level(source: SourceFiles, level: str) -> Draft:
    """One level's queries and gallery; an image that is in both, by its bytes and label, is one row.

    Its label is known at that level alone, so all three columns hold it.
    """
    listed = {role: source.file(f"bmk_{level}/{role}.csv") for role in ("gallery", "query")}
    folder = listed["gallery"].parent
    rows = pl.concat(
        read_glued(file, ("fname", "labels")).select(
            path=pl.format(f"{role}/{{}}", "fname"),
            **dict.fromkeys(label_columns(3), pl.format(f"{level}/{{}}", "labels")),
            is_query=pl.lit(role == "query"),
            is_gallery=pl.lit(role == "gallery"),
        )
        for role, file in listed.items()
    )
    paths = tracked(rows["path"], f"Comparing {level} images", len(rows), source.show_progress)
    digests = pl.Series([_digest(folder / path) for path in paths], dtype=pl.String)
    image = ("digest", "label_0")
    is_first = pl.struct("is_query", *image).is_first_distinct()
    rows = (
        rows.with_columns(digest=digests)
        .with_columns(is_twin=is_first & (pl.col("is_query").n_unique().over(image) == 2))
        .filter(pl.col("is_gallery") | ~pl.col("is_twin"))
        .with_columns(is_query=pl.col("is_query") | pl.col("is_twin"), test_level=pl.lit(level))
    )
    return Draft("test", None, rows.drop("digest", "is_twin"), folder)


def _digest(path: Path) -> str:
    """Of the file's bytes; of a missing file its name, which is reported later."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else str(path)


def read_glued(file: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    """The rows of a CSV file of DyML, whose header may lack its line break: the first row then follows its last name."""
    lines = [[cell.strip() for cell in line.split(",")] for line in read_text(file).splitlines() if line.strip()]
    header = lines[0][: len(columns)] if lines else [""]
    last = next((name for name in columns if header[-1].startswith(name) and name not in header[:-1]), "")
    found = [*header[:-1], last]
    if sorted(found) != sorted(columns):
        raise InputError(f"{file}: the header must be {', '.join(columns)}, found {', '.join((lines or [['']])[0])!r}")
    glued = header[-1].removeprefix(last)
    rows = [(1, [glued, *lines[0][len(columns) :]])] if glued else []
    rows += enumerate(lines[1:], start=2)
    check_widths(file, rows, len(columns))
    return pl.DataFrame([row for _, row in rows], dict.fromkeys(found, pl.String), orient="row")


def _dyml(name: str, classes: tuple[int, ...], all_in_one: bool = False) -> Reader:
    tests = "'mini-bmk_all_in_one'" if all_in_one else "'bmk_fine', 'bmk_middle' and 'bmk_coarse'"
    return Reader(
        about=f"DyML-{name}: {classes[0]:,} fine < {classes[1]} middle < {classes[2]} coarse classes for training",
        needs=f"the folders 'train' and {tests}",
        read=partial(read_dyml, all_in_one=all_in_one),
        counts={"train": PublishedCounts(None, classes)},
    )


_LISTS = "'Inat_dataset_splits/Inaturalist_train_set1.txt', '..._test_set1.txt' and the folder 'train_val2018'"
CUB = Reader(
    about="200 species of birds < 37 families < 13 orders",
    needs="'CUB_200_2011.tgz', or 'images' and 'images.txt' from it",
    read=read_cub,
    archives=("CUB_200_2011.tgz",),
    folders=("images", "CUB_200_2011/images"),
    counts={"train": PublishedCounts(5864, (100, 29, 13)), "test": PublishedCounts(5924, (100, 20, 6))},
)
CARS = Reader(
    about="196 models of cars < 9 kinds of body",
    needs="'cars_annos.mat', and 'car_ims.tgz' or the folder 'car_ims' from it",
    read=read_cars,
    archives=("car_ims.tgz",),
    folders=("car_ims",),
    counts={"train": PublishedCounts(8054, (98,)), "test": PublishedCounts(8131, (98,))},
)
INATURALIST_BASE = Reader(
    about="iNaturalist-2018: 8,142 species < super-categories",
    needs=_LISTS,
    read=_INATURALIST_LISTS,
    counts={"train": PublishedCounts(325846, (5690, 13)), "test": PublishedCounts(136093, (2452,))},
)
INATURALIST_FULL = Reader(
    about="iNaturalist-2018: 8,142 species < genus < family < order < class < phylum < kingdom",
    needs=f"{_LISTS}, and 'train2018.json'",
    read=read_inaturalist_full,
    # Genera share names across kingdoms, and it is not published whether such a name was counted once or twice.
    counts={"train": PublishedCounts(325846, (5690, None, 961, 249, 54, 23, 5)), "test": PublishedCounts(136093, (2452,))},
)
SOP = Reader(
    about="22,634 products on sale < 12 kinds",
    needs="'Stanford_Online_Products.zip', or 'Ebay_train.txt', 'Ebay_test.txt' and folders like 'bicycle_final' from it",
    read=partial(
        read_lists,
        files=("Ebay_{}.txt", "Stanford_Online_Products/Ebay_{}.txt"),
        fields=("image_id", "class_id", "super_class_id", "path"),
        columns={"path": "path", "label_0": "class_id", "label_1": _PARTS.first().str.strip_suffix("_final")},
        header=1,
    ),
    archives=("Stanford_Online_Products.zip",),
    folders=("bicycle_final", "Stanford_Online_Products/bicycle_final"),
    counts={"train": PublishedCounts(59551, (11318, 12)), "test": PublishedCounts(60502, (11316, 12))},
)
IN_SHOP = Reader(
    about="7,982 pieces of clothing < categories < gender; queries and a gallery",
    needs="'list_eval_partition.txt' (or in 'Eval') and 'img.zip' or the folder 'img' from it (or in 'Img')",
    read=read_in_shop,
    archives=("img.zip", "Img/img.zip"),
    folders=("img", "Img/img"),
    counts={
        "train": PublishedCounts(25882, (3997,)),
        "query": PublishedCounts(14218, (3985,)),
        "gallery": PublishedCounts(12612, (3985,)),
    },
)
DYML_VEHICLE = _dyml("Vehicle", (39491, 93, 5))
DYML_ANIMAL = _dyml("Animal", (495, 28, 5))
DYML_PRODUCT = _dyml("Product", (1639, 171, 36), all_in_one=True)
