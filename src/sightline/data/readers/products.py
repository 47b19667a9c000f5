"""Stanford Online Products and In-Shop clothes: lists of images as text."""

from pathlib import Path

import polars as pl

from sightline.data.readers.source import Draft, Part, Reader, Source, read_fields, read_text, rows_of
from sightline.errors import InputError, names, raise_faults

SOP_HEADER = "image_id class_id super_class_id path"
IN_SHOP_HEADER = "image_name item_id evaluation_status"


def read_sop(source: Source) -> Draft:
    """``Ebay_train.txt`` and ``Ebay_test.txt``; a super-class is the folder's name without ``_final``."""
    kinds = ("bicycle_final", "Stanford_Online_Products/bicycle_final")
    source = source.unpacked(["Stanford_Online_Products.zip"], unless=kinds)
    tables, files = [], {}
    for split in ("train", "test"):
        listed = source.file(f"Ebay_{split}.txt", f"Stanford_Online_Products/Ebay_{split}.txt")
        _check_header(listed, SOP_HEADER, line=1)
        rows = read_fields(listed, 4, skip=1)
        folders = [row[3].partition("/")[0].removesuffix("_final") for row in rows]
        tables.append(rows_of([f"{listed.parent}/{row[3]}" for row in rows], split, [[row[1] for row in rows], folders]))
        files[split] = listed
    return Draft(pl.concat(tables), files)


def read_in_shop(source: Source) -> Draft:
    """``list_eval_partition.txt`` and ``img/<GENDER>/<Category>/<item>/``: item < category of a gender < gender."""
    listed = source.file("list_eval_partition.txt", "Eval/list_eval_partition.txt")
    source = source.unpacked(["img.zip", "Img/img.zip"], unless=["img", "Img/img"])
    base = source.folder("img", "Img/img").parent
    _check_header(listed, IN_SHOP_HEADER, line=2)
    rows = read_fields(listed, 3, skip=2)
    said = read_text(listed).split(maxsplit=1)[0]
    faults = [] if said == str(len(rows)) else [f"line 1 says {said!r} rows, {len(rows)} are there: the file is short"]
    roles = ("train", "query", "gallery")
    faults += [f"{row[0]}: {row[2]!r} is not one of {names(roles)}" for row in rows if row[2] not in roles]
    faults += [f"{row[0]}: not of the form img/<gender>/<category>/..." for row in rows if row[0].count("/") < 4]
    raise_faults(listed, faults)
    tables = []
    for role in roles:
        kept = [row for row in rows if row[2] == role]
        places = [row[0].split("/") for row in kept]
        labels = [[row[1] for row in kept], [f"{place[1]}/{place[2]}" for place in places], [place[1] for place in places]]
        paths = [f"{base}/{row[0]}" for row in kept]
        if role == "train":
            tables.append(rows_of(paths, "train", labels))
        else:
            tables.append(rows_of(paths, "test", labels, is_query=role == "query", is_gallery=role == "gallery"))
    return Draft(pl.concat(tables, how="diagonal"), dict.fromkeys(roles, listed))


def _check_header(file: Path, header: str, line: int) -> None:
    lines = read_text(file).splitlines()
    found = lines[line - 1].split() if len(lines) >= line else []
    if found != header.split():
        raise InputError(f"{file}: line {line}: the header {header!r} is needed, found {' '.join(found)!r}")


SOP = Reader(
    about="22,634 products on sale < 12 kinds",
    needs="'Stanford_Online_Products.zip', or 'Ebay_train.txt', 'Ebay_test.txt' and folders like 'bicycle_final' from it",
    read=read_sop,
    counts={"train": Part(59551, (11318, 12)), "test": Part(60502, (11316, 12))},
)
IN_SHOP = Reader(
    about="7,982 pieces of clothing < categories < gender; queries and a gallery",
    needs="'list_eval_partition.txt' (or in 'Eval') and 'img.zip' or the folder 'img' from it (or in 'Img')",
    read=read_in_shop,
    counts={"train": Part(25882, (3997,)), "query": Part(14218, (3985,)), "gallery": Part(12612, (3985,))},
)
