"""iNaturalist-2018 with the retrieval splits: species by their folders, coarser levels by folder or by the taxonomy."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sightline.data.readers.source import Draft, Part, Reader, Source, read_text, rows_of
from sightline.errors import InputError, raise_faults

RANKS = ("genus", "family", "order", "class", "phylum", "kingdom")
NEEDS = "'Inat_dataset_splits/Inaturalist_train_set1.txt', '..._test_set1.txt' and the folder 'train_val2018'"


def read_inaturalist(source: Source, full: bool) -> Draft:
    """The lists of paths ``train_val2018/<super-category>/<category>/<file>.jpg``.

    Args:
        source: the files.
        full: seven levels from the categories of ``train2018.json``; otherwise species and super-category.
    """
    categories = source.file("train2018.json", "categories.json") if full else Path()
    taxonomy = _categories(categories) if full else {}
    base = source.folder("train_val2018").parent
    tables, files = [], {}
    for split in ("train", "test"):
        name = f"Inaturalist_{split}_set1.txt"
        files[split] = listed = source.file(f"Inat_dataset_splits/{name}", name)
        paths = [line.strip() for line in read_text(listed).splitlines() if line.strip()]
        places = [path.split("/") for path in paths]
        faults = [
            f"{path}: not of the form train_val2018/<super-category>/<category>/<file>"
            for path, place in zip(paths, places, strict=True)
            if len(place) != 4
        ]
        raise_faults(listed, faults)
        if full:
            unknown = sorted({place[2] for place in places} - taxonomy.keys())
            raise_faults(listed, [f"category {number!r} is not in {categories.name}" for number in unknown])
            above = [[taxonomy[place[2]][level] for place in places] for level in range(len(RANKS))]
        else:
            above = [[place[1] for place in places]]
        labels = [[place[2] for place in places], *above]
        tables.append(rows_of([f"{base}/{path}" for path in paths], split, labels))
    return Draft(pl.concat(tables), files)


def _categories(file: Path) -> dict[str, list[str]]:
    """For each category's number, what is above it."""
    try:
        found: Any = json.loads(read_text(file))
        entries = found["categories"] if isinstance(found, dict) else found
        return {str(entry["id"]): [str(entry[rank]) for rank in RANKS] for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        ranks = ", ".join(("id", *RANKS))
        raise InputError(f"{file}: 'categories', each with {ranks}, are needed: {type(error).__name__} {error}") from error


INATURALIST_BASE = Reader(
    about="iNaturalist-2018: 8,142 species < super-categories",
    needs=NEEDS,
    read=partial(read_inaturalist, full=False),
    counts={"train": Part(325846, (5690, 13)), "test": Part(136093, (2452,))},
)
INATURALIST_FULL = Reader(
    about="iNaturalist-2018: 8,142 species < genus < family < order < class < phylum < kingdom",
    needs=NEEDS + ", and 'train2018.json'",
    read=partial(read_inaturalist, full=True),
    # Genera share names across kingdoms, and it is not published whether such a name was counted once or twice.
    counts={"train": Part(325846, (5690, None, 961, 249, 54, 23, 5)), "test": Part(136093, (2452,))},
)
