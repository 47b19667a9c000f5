"""Queries with their results, framed by the labels they share with the query; answers of a gallery as a page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.files import write_text
from sightline.gallery.query import Answer
from sightline.labels.codes import beginnings
from sightline.report.numbers import FirstResults
from sightline.report.style import INK, PURPLE, drawing, level_colours, level_lines, template

THUMBNAIL = 112  # pixels; displayed at 72, so that it is sharp on high-density screens
SHEET_THUMBNAIL = 320  # the same in a contact sheet, displayed at 160
N_QUERIES = 8

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShownImage:
    """One image of a row.

    Attributes:
        row: of the table; -1 for none.
        name: shown on hover and to screen readers.
        label: its finest label.
        score: similarity to the query; None for the query itself.
        height: of the common ancestor with the query: 0 for the same finest label, L for nothing shared. With codes, how
            far the deepest shared one is above the deepest of the table.
        shared: the deepest code that it shares with the query; empty without.
    """

    row: int
    name: str
    label: str
    score: float | None = None
    height: int = 0
    shared: str = ""


@dataclass(frozen=True)
class ShownQuery:
    """One query and, for each model, its results and average precision."""

    query: ShownImage
    found: dict[str, list[ShownImage]]
    precision: dict[str, float]


@dataclass(frozen=True)
class QueryGallery:
    """Queries selected for a reason."""

    name: str
    title: str
    reason: str
    rows: list[ShownQuery]


@dataclass(eq=False)
class Thumbnails:
    """Thumbnails of a table's images, each read once; None if unreadable."""

    table: EmbeddingTable
    _images: dict[int, Image.Image | None] = field(default_factory=dict)

    def image(self, row: int) -> Image.Image | None:
        """At most ``THUMBNAIL`` wide and high."""
        if row not in self._images:
            values = self.table.manifest.table.row(row, named=True)
            box = None if values.get(BOX[0]) is None else tuple(values[side] for side in BOX)
            self._images[row] = read_thumbnail(self.table.manifest.root / values["path"], THUMBNAIL, box)
        return self._images[row]

    def uri(self, row: int) -> str | None:
        """As WebP inside a data URI."""
        image = self.image(row)
        return None if image is None else data_uri(image, "WEBP", 82)

    @property
    def missing(self) -> set[int]:
        """Requested rows that cannot be read."""
        return {row for row, image in self._images.items() if image is None}


def read_thumbnail(path: Path, size: int, box: Any = None) -> Image.Image | None:
    """The image, at most ``size`` wide and high; None where it cannot be read."""
    try:
        image = load_image(path, box)
    except InputError:
        return None
    image.thumbnail((size, size))
    return image


def data_uri(image: Image.Image, kind: str, quality: int) -> str:
    """The image as a data URI."""
    encoded = io.BytesIO()
    image.save(encoded, kind, quality=quality)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(encoded.getvalue()).decode()}"


def choose_queries(values: Floats, classes: Counts, n_queries: int = N_QUERIES) -> Counts:
    """Positions of the queries with the lowest values, one per class, lowest first; NaN are left out.

    Example:
        >>> choose_queries(np.array([0.3, 0.1, 0.2, np.nan]), np.array([0, 1, 1, 2])).tolist()
        [1, 0]
    """
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    first = np.sort(np.unique(classes[order], return_index=True)[1])
    return order[first][:n_queries]


def galleries(
    table: EmbeddingTable,
    found: dict[str, FirstResults],
    precision: dict[str, Floats],
    n_queries: int = N_QUERIES,
    seed: int = 0,
    codes: Sequence[Sequence[str]] | None = None,
) -> list[QueryGallery]:
    """The hardest, most severe, most changed and random queries, one per class in each gallery.

    Args:
        table: the images.
        found: the first results by model; the first model decides which queries are shown.
        precision: by model, the average precision of each query.
        n_queries: per gallery.
        seed: random seed of the random gallery.
        codes: of each image, whose deepest shared one then sets the height of a result; None for labels.
    """
    name = next(iter(found))
    own, mine = found[name], precision[name]
    classes = table.manifest.labels()[own.queries, 0]
    counted = ~np.isnan(mine)
    chosen = {
        ("hardest", "Hardest", f"The lowest average precision of {name}."): mine,
        (
            "severe",
            "Most severe",
            "The first results share the fewest labels with the query; the most confident mistakes first.",
        ): np.where(counted & (own.heights[:, 0] > 0), _severity_order(own), np.nan),
    }
    for other in list(found)[1:]:
        gain = mine - precision[other]
        for key, verb, change in (("improved", "rose", -gain), ("worsened", "fell", gain)):
            reason = f"Average precision {verb} the most from {other} to {name}."
            chosen[key, f"Most {key}", reason] = np.where(change < 0, change, np.nan)
    drawn = np.random.default_rng(seed).permutation(len(mine)).astype(np.float64)
    chosen["random", "Random", "Drawn at random, one per class."] = np.where(counted, drawn, np.nan)
    places = {why: choose_queries(values, classes, n_queries).tolist() for why, values in chosen.items()}
    return [
        QueryGallery(*why, [_asked(table, found, precision, place, codes) for place in own_places])
        for why, own_places in places.items()
        if own_places
    ]


def _severity_order(found: FirstResults) -> Floats:
    """The rank of each query by how little its first result shares, then the others, then by the first score."""
    others = np.where(found.heights >= 0, found.heights, np.nan)
    order = np.lexsort((-found.scores[:, 0], -np.nanmean(others, 1), -found.heights[:, 0]))
    return np.argsort(order).astype(np.float64)


def deepest_shared(codes: Sequence[str], others: Sequence[str]) -> str:
    """The deepest code that both lists have, or have codes below; empty if there is none.

    Example:
        >>> deepest_shared(["26.1.15", "5.3.1"], ["26.10", "5.3.13"])
        '5.3'
    """
    there = {one for code in others for one in beginnings(code)}
    return max((one for code in codes for one in beginnings(code) if one in there), key=depth_of, default="")


def depth_of(code: str) -> int:
    """The number of levels of a code; 0 for none."""
    return len(beginnings(code))


def _asked(
    table: EmbeddingTable,
    found: dict[str, FirstResults],
    precision: dict[str, Floats],
    place: int,
    codes: Sequence[Sequence[str]] | None,
) -> ShownQuery:
    rows = {
        name: [
            picture_of(table, row, score, height)
            for row, score, height in zip(
                one.rows[place].tolist(), one.scores[place].tolist(), one.heights[place].tolist(), strict=True
            )
            if row >= 0
        ]
        for name, one in found.items()
    }
    query = int(next(iter(found.values())).queries[place])
    if codes is not None:
        deepest = deepest_code(codes)
        for name, pictures in rows.items():
            shared = [deepest_shared(codes[query], codes[picture.row]) for picture in pictures]
            rows[name] = [
                replace(picture, height=deepest - depth_of(code), shared=code)
                for picture, code in zip(pictures, shared, strict=True)
            ]
    return ShownQuery(picture_of(table, query), rows, {name: float(values[place]) for name, values in precision.items()})


def deepest_code(codes: Sequence[Sequence[str]]) -> int:
    """The number of levels of the deepest code, at least 1."""
    return max((depth_of(code) for own in codes for code in own), default=1)


def picture_of(table: EmbeddingTable, row: int, score: float | None = None, height: int = 0) -> ShownImage:
    """The image at a row of the table, for a gallery."""
    row_values = table.manifest.table.row(row, named=True)
    return ShownImage(row, str(row_values.get("name") or row_values["path"]), row_values["label_0"], score, height)


def gallery_figure(gallery: QueryGallery, thumbnails: Thumbnails, n_levels: int) -> Figure:
    """The gallery as in papers: the query, then its framed results, one line per model.

    Args:
        gallery: to draw.
        thumbnails: its images.
        n_levels: of the labels, or of the codes, that set the heights.
    """
    colours, lines = level_colours(n_levels), level_lines(n_levels)
    n_columns = 1 + max(len(pictures) for asked in gallery.rows for pictures in asked.found.values())
    n_lines = sum(len(asked.found) for asked in gallery.rows)
    with drawing(n_columns * 0.8 + 1.2, n_lines * 0.8) as (figure, axes):
        down = 0.0
        for asked in gallery.rows:
            _place(axes, thumbnails.image(asked.query.row), 0, down + (len(asked.found) - 1) / 2, PURPLE, "-")
            for name, pictures in asked.found.items():
                axes.text(1.6, down + 0.5, name, fontsize=8, color=INK, ha="right", va="center")
                for column, picture in enumerate(pictures):
                    look = colours[picture.height], lines[picture.height]
                    _place(axes, thumbnails.image(picture.row), 1.7 + column, down, *look)
                down += 1
        axes.set(xlim=(-0.05, n_columns + 0.75), ylim=(down + 0.05, -0.05), aspect="equal")
        axes.set_axis_off()
    return figure


def _place(axes: Axes, image: Image.Image | None, across: float, down: float, colour: str, line: str) -> None:
    """One framed picture in a unit square; grey if there is none."""
    wide, high = (1, 1) if image is None else (side / max(image.size) for side in image.size)
    left, top = across + (1 - 0.84 * wide) / 2, down + (1 - 0.84 * high) / 2
    pixels = np.full((1, 1, 3), 225, np.uint8) if image is None else np.asarray(image)
    axes.imshow(pixels, extent=(left, left + 0.84 * wide, top + 0.84 * high, top))
    frame = Rectangle((across + 0.05, down + 0.05), 0.9, 0.9, fill=False, edgecolor=colour, linestyle=line, linewidth=2)
    axes.add_patch(frame)


def write_contact_sheet(file: Path, answers: Sequence[Answer], title: str) -> Path:
    """A self-contained HTML file with thumbnails of queries and results."""
    if file.is_dir():
        raise InputError(f"{file}: must be a file, got a folder; try {file / 'results.html'}")
    write_text(file, template("contact_sheet.html").render(title=title, answers=answers, picture=_picture))
    return file


def _picture(path: Path | str | None, name: str) -> str:
    """An image element, or text if there is no image."""
    image = None if path is None else read_thumbnail(Path(path), SHEET_THUMBNAIL)
    return (
        Markup("no image") if image is None else Markup('<img src="{}" alt="{}">').format(data_uri(image, "JPEG", 85), name)
    )
