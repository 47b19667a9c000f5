"""Revisited Oxford and Paris, with or without a million distractors; judgements of easy, hard and junk images."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from PIL import ExifTags

from sightline.data.images import open_image
from sightline.data.manifest import BOX
from sightline.data.readers.pickles import as_text, read_pickle
from sightline.data.readers.source import Draft, Part, Reader, Source, read_text, rows_of
from sightline.errors import InputError, raise_faults

KINDS = ("easy", "hard", "junk")


def read_revisited(source: Source, name: str, distractors: bool) -> Draft:
    """``gnd_<name>.pkl`` with ``imlist``, ``qimlist`` and ``gnd``, images in ``jpg``; distractors in ``revisitop1m``."""
    listed = source.file(f"gnd_{name}.pkl", f"{name}/gnd_{name}.pkl")
    found = read_pickle(listed.read_bytes(), listed)
    images = source.folder("jpg", f"{name}/jpg")
    try:
        truth = as_text(found)
        items, queries = ([str(name) for name in truth[key]] for key in ("imlist", "qimlist"))
        judged = list(truth["gnd"])
        boxes = [[round(float(side)) for side in entry["bbx"]] for entry in judged]
        lists = [{kind: [int(place) for place in entry[kind]] for kind in KINDS} for entry in judged]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{listed}: imlist, qimlist and gnd with bbx, {', '.join(KINDS)} are needed: {error!r}") from error
    faults = [] if len(queries) == len(judged) else [f"{len(queries)} queries, judgements of {len(judged)}"]
    faults += [] if queries else ["no query"]
    faults += [
        f"query {query}: bbx has {len(box)} sides" for query, box in zip(queries, boxes, strict=False) if len(box) != 4
    ]
    faults += [
        f"query {query}: {kind} has place {place}, there are {len(items)} images"
        for query, entry in zip(queries, lists, strict=False)
        for kind in KINDS
        for place in entry[kind]
        if not 0 <= place < len(items)
    ]
    raise_faults(listed, faults)
    query_paths = [images / f"{query}.jpg" for query in queries]
    sides: dict[str, Any] = dict(zip(BOX, map(list, zip(*map(_pixels, query_paths, boxes), strict=True)), strict=True))
    tables = [
        rows_of(
            query_paths, "test", [], is_query=True, is_gallery=False, id=[f"query/{query}" for query in queries], **sides
        ),
        rows_of([images / f"{item}.jpg" for item in items], "test", [], is_query=False, is_gallery=True, id=items),
    ]
    if distractors:
        base = source.folder("revisitop1m", "../revisitop1m")
        lines = [line.strip() for line in read_text(source.file(f"{base}/revisitop1m.txt")).splitlines() if line.strip()]
        ids = [f"distractor/{line}" for line in lines]
        tables.append(
            rows_of([f"{base}/jpg/{line}" for line in lines], "test", [], is_query=False, is_gallery=True, id=ids)
        )
    named = {
        f"query/{query}": {kind: [items[place] for place in entry[kind]] for kind in KINDS}
        for query, entry in zip(queries, lists, strict=True)
    }
    return Draft(pl.concat(tables, how="diagonal"), {"query": listed, "gallery": listed}, named)


def _pixels(path: Path, box: Sequence[int]) -> tuple[int, int, int, int]:
    """The box in whole pixels, within the image where that can be read.

    Boxes are of the stored pixels; images are turned as their cameras say when they are opened, and the box with them.
    """
    left, top, right, bottom = box
    try:
        with open_image(path) as image:
            width, height = image.size
            turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # whatever its bytes lead to; missing images are reported together
        return left, top, right, bottom
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    if turn in (2, 3, 7, 8):
        left, right = width - right, width - left
    if turn in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return (top, left, bottom, right) if turn in (5, 6, 7, 8) else (left, top, right, bottom)


def _reader(name: str, city: str, n_images: int, distractors: bool) -> Reader:
    more, folder = (" and a million distractors", " and the folder 'revisitop1m'") if distractors else ("", "")
    return Reader(
        about=f"70 queries of landmarks in {city}, judged easy, hard or junk{more}",
        needs=f"'{name}/gnd_{name}.pkl', the folder '{name}/jpg'{folder}",
        read=partial(read_revisited, name=name, distractors=distractors),
        counts={"query": Part(70), "gallery": Part(n_images + 1_001_001 * distractors)},
        labelled=False,
    )


ROXFORD = _reader("roxford5k", "Oxford", 4993, distractors=False)
RPARIS = _reader("rparis6k", "Paris", 6322, distractors=False)
ROXFORD_1M = _reader("roxford5k", "Oxford", 4993, distractors=True)
RPARIS_1M = _reader("rparis6k", "Paris", 6322, distractors=True)
