"""Queries with their nearest images, small enough to stand inside a page."""

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.images import load_image
from sightline.data.manifest import BOX
from sightline.embedding.table import EmbeddingTable
from sightline.search.exact import top_k

THUMBNAIL = 72


@dataclass(frozen=True)
class Picture:
    """One image of a row.

    Attributes:
        source: the image as a data URI.
        name: what it is called, for people who hover or cannot see it.
        label: its finest label.
        score: similarity to the query; None for the query itself.
        right: does it share the query's finest label?
    """

    source: str
    name: str
    label: str
    score: float | None = None
    right: bool = True


def draw_queries(table: EmbeddingTable, n_queries: int, seed: int) -> NDArray[np.int64]:
    """Places of queries drawn at random, each of another finest class that has at least two images."""
    codes = table.manifest.labels()[:, 0]
    order = np.random.default_rng(seed).permutation(len(codes))
    first_of_class = order[np.sort(np.unique(codes[order], return_index=True)[1])]
    return first_of_class[np.bincount(codes)[codes[first_of_class]] > 1][:n_queries]


def nearest_pictures(table: EmbeddingTable, queries: NDArray[np.int64], k: int) -> list[list[Picture]]:
    """For each query its k nearest images of the table, itself left out, best first."""
    vectors = torch.from_numpy(table.vectors)
    scores, places = top_k(vectors[queries], vectors, k + 1)
    codes = table.manifest.labels()[:, 0]
    rows = []
    for query, row_scores, row_places in zip(queries.tolist(), scores.tolist(), places.tolist(), strict=True):
        others = [(place, score) for place, score in zip(row_places, row_scores, strict=True) if place != query][:k]
        rows.append([picture_of(table, p, s, bool(codes[p] == codes[query])) for p, s in others])
    return rows


def picture_of(table: EmbeddingTable, place: int, score: float | None = None, right: bool = True) -> Picture:
    """The image at a place of the table, as it stands in a row."""
    row = table.manifest.table.row(place, named=True)
    box = tuple(row[side] for side in BOX) if row.get(BOX[0]) is not None else None
    image = load_image(table.manifest.root / row["path"], box)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    source = "data:image/png;base64," + base64.b64encode(encoded.getvalue()).decode()
    return Picture(source, str(row.get("name") or row["path"]), row["label_0"], score, right)
