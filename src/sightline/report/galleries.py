"""Queries with what they find, framed by what each result shares with the query."""

import base64
import io
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.report.rankings import FirstResults
from sightline.report.style import INK, PURPLE, drawing, level_colours, level_lines

THUMBNAIL = 112  # pixels at most; shown at 72, so that screens with fine pixels show it sharp
N_QUERIES = 8

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShownImage:
    """One image of a row.

    Attributes:
        row: of the table; -1 for none.
        name: what it is called, for people who hover or cannot see it.
        label: its finest label.
        score: similarity to the query; None for the query itself.
        height: of the common ancestor with the query: 0 the same finest label, L nothing shared.
    """

    row: int
    name: str
    label: str
    score: float | None = None
    height: int = 0


@dataclass(frozen=True)
class ShownQuery:
    """One query and, for each model, what it finds and how well: the average precision."""

    query: ShownImage
    found: dict[str, list[ShownImage]]
    precision: dict[str, float]


@dataclass(frozen=True)
class QueryGallery:
    """Some queries, chosen for a reason."""

    name: str
    title: str
    reason: str
    rows: list[ShownQuery]


@dataclass(eq=False)
class Thumbnails:
    """Small pictures of a table's images, each read once; one that cannot be read is counted, and None."""

    table: EmbeddingTable
    missing: set[int] = field(default_factory=set)
    _images: dict[int, Image.Image | None] = field(default_factory=dict)

    def image(self, row: int) -> Image.Image | None:
        """At most ``THUMBNAIL`` wide and high."""
        if row not in self._images:
            row_values = self.table.manifest.table.row(row, named=True)
            box = tuple(row_values[side] for side in BOX) if row_values.get(BOX[0]) is not None else None
            try:
                image = load_image(self.table.manifest.root / row_values["path"], box)
                image.thumbnail((THUMBNAIL, THUMBNAIL))
                self._images[row] = image
            except InputError:
                self.missing.add(row)
                self._images[row] = None
        return self._images[row]

    def uri(self, row: int) -> str | None:
        """As WebP inside a data URI."""
        image = self.image(row)
        if image is None:
            return None
        encoded = io.BytesIO()
        image.save(encoded, "WEBP", quality=82)
        return "data:image/webp;base64," + base64.b64encode(encoded.getvalue()).decode()


def choose_queries(values: Floats, classes: Counts, n_queries: int = N_QUERIES) -> Counts:
    """Places of the queries with the lowest values, each of another class, best first; NaN are left out.

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
) -> list[QueryGallery]:
    """The hardest, the most severe, the most changed and random queries, each of another class.

    Args:
        table: the images.
        found: the first results by model; the first model decides which queries are shown.
        precision: by model, the average precision of each query.
        n_queries: in each gallery.
        seed: of the random ones.
    """
    name = next(iter(found))
    own, mine = found[name], precision[name]
    classes = table.manifest.labels()[own.queries, 0]
    counted = ~np.isnan(mine)
    chosen = {
        ("hardest", "Hardest", f"The lowest average precision of {name}."): mine,
        ("severe", "Most severe", "The first results share the least with the query; the surest mistakes first."): np.where(
            counted & (own.heights[:, 0] > 0), _severity_order(own), np.nan
        ),
    }
    for other in list(found)[1:]:
        gain = mine - precision[other]
        chosen["improved", "Most improved", f"Average precision rose the most from {other} to {name}."] = np.where(
            gain > 0, -gain, np.nan
        )
        chosen["worsened", "Most worsened", f"Average precision fell the most from {other} to {name}."] = np.where(
            gain < 0, gain, np.nan
        )
    drawn = np.random.default_rng(seed).permutation(len(mine)).astype(np.float64)
    chosen["random", "Random", "Drawn at random, each of another class."] = np.where(counted, drawn, np.nan)
    shown = []
    for (key, title, reason), values in chosen.items():
        places = choose_queries(values, classes, n_queries)
        if len(places):
            shown.append(
                QueryGallery(key, title, reason, [_asked(table, found, precision, place) for place in places.tolist()])
            )
    return shown


def _severity_order(found: FirstResults) -> Floats:
    """The place of each query by how little its first result shares, then its others, then by how sure the first is."""
    others = np.where(found.heights >= 0, found.heights, np.nan)
    order = np.lexsort((-found.scores[:, 0], -np.nanmean(others, 1), -found.heights[:, 0]))
    places = np.empty(len(order))
    places[order] = np.arange(len(order))
    return places


def _asked(table: EmbeddingTable, found: dict[str, FirstResults], precision: dict[str, Floats], place: int) -> ShownQuery:
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
    return ShownQuery(picture_of(table, query), rows, {name: float(values[place]) for name, values in precision.items()})


def picture_of(table: EmbeddingTable, row: int, score: float | None = None, height: int = 0) -> ShownImage:
    """The image at a row of the table, as it stands in a gallery."""
    row_values = table.manifest.table.row(row, named=True)
    return ShownImage(row, str(row_values.get("name") or row_values["path"]), row_values["label_0"], score, height)


def level_styles(n_levels: int) -> str:
    """The frame and the mark of each height, as CSS."""
    lines = ["solid", *["dashed"] * (n_levels - 1), "dotted"]
    inks = ["#fff", *["#000"] * (n_levels - 1), "#fff"]
    return "\n".join(
        f".h{height} {{ border-color: {colour} !important; border-style: {line} !important; }} "
        f"b.m{height} {{ background: {colour}; color: {ink}; }}"
        for height, (colour, line, ink) in enumerate(zip(level_colours(n_levels), lines, inks, strict=True))
    )


def gallery_figure(gallery: QueryGallery, thumbnails: Thumbnails, n_levels: int) -> Figure:
    """The gallery as papers print it: the query, then the results in their frames, a line for each model."""
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
        axes.set_xlim(-0.05, n_columns + 0.75)
        axes.set_ylim(down + 0.05, -0.05)
        axes.set_aspect("equal")
        axes.set_axis_off()
    return figure


def _place(axes: Axes, image: Image.Image | None, across: float, down: float, colour: str, line: str) -> None:
    """One picture in its frame, in a square of side 1, or a grey square."""
    wide, high = (1, 1) if image is None else (side / max(image.size) for side in image.size)
    left, top = across + (1 - 0.84 * wide) / 2, down + (1 - 0.84 * high) / 2
    pixels = np.full((1, 1, 3), 225, np.uint8) if image is None else np.asarray(image)
    axes.imshow(pixels, extent=(left, left + 0.84 * wide, top + 0.84 * high, top))
    frame = Rectangle((across + 0.05, down + 0.05), 0.9, 0.9, fill=False, edgecolor=colour, linestyle=line, linewidth=2)
    axes.add_patch(frame)
