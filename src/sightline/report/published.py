"""The papers' numbers for a known data set, in the names of Sightline's metrics."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.data.manifest import Manifest
from sightline.errors import InputError, names
from sightline.studies.papers import read_published

# The data sets that papers report on: names of manifests and of folders they are in, and the tables with their numbers.
KNOWN = {
    "SOP": (("sop", "stanfordonlineproducts"), ("tpami_table04", "tpami_table05")),
    "CUB": (("cub", "cub2002011"), ("tpami_table04",)),
    "In-Shop": (("inshop", "deepfashion", "deepfashioninshop"), ("rambo_table4_inshop",)),
    "iNaturalist": (("inaturalist", "inaturalist2018", "inat", "inat2018"), ("tpami_table04",)),
    "iNat-base": (("inatbase",), ("tpami_table05",)),
    "iNat-full": (("inatfull",), ("tpami_table05", "tpami_table06")),
    "DyML-Product": (("dymlproduct",), ("tpami_table08",)),
    "DyML-Vehicle": (("dymlvehicle",), ("tpami_table08",)),
    "DyML-Animal": (("dymlanimal",), ("tpami_table08",)),
    "H-GLDv2": (("gldv2", "hgldv2"), ("tpami_table07",)),
}
METRICS = {"mAP@R": "map@r", "AP": "map", "AP_fine": "map", "H-AP": "h_ap", "NDCG": "ndcg", "ASI": "asi", "mAP": "map"}


@dataclass(frozen=True)
class PublishedTable:
    """What one table says of one data set: shares in percent by method and metric."""

    table: str
    dataset: str
    metrics: list[str]
    rows: list[tuple[str, list[float | None]]]


def metric_of(column: str) -> str | None:
    """The name here of a metric of the papers; None for one that is not measured here.

    Example:
        >>> metric_of("R@10"), metric_of("mAP@R"), metric_of("minutes/epoch")
        ('recall@10', 'map@r', None)
    """
    found = re.fullmatch(r"R@(\d+)", column)
    return f"recall@{found[1]}" if found else METRICS.get(column)


def places_of(manifest: Manifest) -> list[Path]:
    """What may bear the name of a data set: the manifest without its suffix, and the folder that all images are in."""
    source = manifest.source.absolute()
    images = os.path.commonpath([path.absolute().parent for path in manifest.paths()])
    return [source.parent / source.stem, Path(os.path.normpath(images))]


def known_dataset(place: Path) -> str | None:
    """The data set of a folder or manifest, by its name or that of a folder above it.

    Example:
        >>> known_dataset(Path("/data/Stanford_Online_Products/images")), known_dataset(Path("/data/photos"))
        ('SOP', None)
    """
    for part in reversed(place.parts):
        plain = re.sub("[^a-z0-9]", "", part.lower())
        for dataset, (folders, _) in KNOWN.items():
            if plain in folders:
                return dataset
    return None


def published_tables_of(places: Sequence[Path], table: str | None, measured: list[str]) -> list[PublishedTable]:
    """The tables to show beside a result.

    Args:
        places: whose names may say which data set it is, the most telling first; see :func:`places_of`.
        table: the name of one table; None for those of the data set that the images are of, if it is known.
        measured: metrics of the result; others are left out.
    """
    dataset = next((found for place in places if (found := known_dataset(place))), None)
    if table is None:
        return [] if dataset is None else [_read(name, dataset, measured) for name in KNOWN[dataset][1]]
    there = sorted({row.dataset for row in read_published(table)})
    if dataset not in there and len(there) > 1:
        raise InputError(
            f"published table {table!r} is of {names(there)}, and the folder {str(places[-1])!r} does not say "
            "which of them these images are; put the set in a folder of its name"
        )
    return [_read(table, dataset if dataset in there else there[0], measured)]


def _read(table: str, dataset: str, measured: list[str]) -> PublishedTable:
    rows: dict[str, dict[str, float]] = {}
    for one in read_published(table):
        metric = metric_of(one.metric)
        if one.dataset == dataset and metric in measured:
            rows.setdefault(one.method, {}).setdefault(metric, one.value)
    metrics = [name for name in measured if any(name in row for row in rows.values())]
    return PublishedTable(table, dataset, metrics, [(m, [row.get(name) for name in metrics]) for m, row in rows.items()])
