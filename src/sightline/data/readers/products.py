"""Stanford Online Products and In-Shop clothes: lists of images as text."""

from collections.abc import Iterator

import polars as pl

from sightline.data.readers.source import Draft, PublishedCounts, Reader, SourceFiles, read_fields, read_text
from sightline.errors import names, raise_faults

SOP_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
IN_SHOP_COLUMNS = ("image_name", "item_id", "evaluation_status")
ROLES = ("train", "query", "gallery")


def read_sop(source: SourceFiles) -> Iterator[Draft]:
    """``Ebay_train.txt`` and ``Ebay_test.txt``; a super-class is the folder's name without ``_final``."""
    kinds = ("bicycle_final", "Stanford_Online_Products/bicycle_final")
    source = source.unpacked(["Stanford_Online_Products.zip"], unless=kinds)
    kind = pl.col("path").str.split("/").list.first().str.strip_suffix("_final")
    for split in ("train", "test"):
        listed = source.file(f"Ebay_{split}.txt", f"Stanford_Online_Products/Ebay_{split}.txt")
        rows = read_fields(listed, SOP_COLUMNS, header=1)
        yield Draft(split, listed, rows.select("path", label_0="class_id", label_1=kind), listed.parent)


def read_in_shop(source: SourceFiles) -> Iterator[Draft]:
    """``list_eval_partition.txt`` and ``img/<GENDER>/<Category>/<item>/``: item < category of a gender < gender."""
    listed = source.file("list_eval_partition.txt", "Eval/list_eval_partition.txt")
    source = source.unpacked(["img.zip", "Img/img.zip"], unless=["img", "Img/img"])
    base = source.folder("img", "Img/img").parent
    rows = read_fields(listed, IN_SHOP_COLUMNS, header=2)
    said = read_text(listed).split(maxsplit=1)[0]
    faults = [] if said == str(len(rows)) else [f"line 1 says {said!r} rows, {len(rows)} are there: the file is short"]
    for path, _, role in rows.rows():
        faults += [] if role in ROLES else [f"{path}: {role!r} is not one of {names(ROLES)}"]
        faults += [] if path.count("/") > 3 else [f"{path}: not of the form img/<gender>/<category>/..."]
    raise_faults(listed, faults)
    place = pl.col("image_name").str.split("/").list
    category = place.get(1) + "/" + place.get(2)
    for role in ROLES:
        kept = rows.filter(pl.col("evaluation_status") == role)
        yield Draft(
            role, listed, kept.select(path="image_name", label_0="item_id", label_1=category, label_2=place.get(1)), base
        )


SOP = Reader(
    about="22,634 products on sale < 12 kinds",
    needs="'Stanford_Online_Products.zip', or 'Ebay_train.txt', 'Ebay_test.txt' and folders like 'bicycle_final' from it",
    read=read_sop,
    counts={"train": PublishedCounts(59551, (11318, 12)), "test": PublishedCounts(60502, (11316, 12))},
)
IN_SHOP = Reader(
    about="7,982 pieces of clothing < categories < gender; queries and a gallery",
    needs="'list_eval_partition.txt' (or in 'Eval') and 'img.zip' or the folder 'img' from it (or in 'Img')",
    read=read_in_shop,
    counts={
        "train": PublishedCounts(25882, (3997,)),
        "query": PublishedCounts(14218, (3985,)),
        "gallery": PublishedCounts(12612, (3985,)),
    },
)
