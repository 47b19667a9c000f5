"""Draws a mark from its parts: layouts of pictures, shapes and words on white."""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageOps

from sightline.data.images import open_image
from sightline.data.readers.glyphs import font_file
from sightline.data.readers.trademarks.marks import SHAPES, Mark, Picture

Box = tuple[float, float]
GRAIN = 5  # pixels drawn for each pixel of the image, on each side
EM = 120  # type size at which words are drawn before they are scaled
FILLED = 0.92  # of the side of an image
ROOM = {  # of a frame: the largest picture in it, as a share of its shorter side, and the largest word, of both sides
    "circle": (0.62, (0.76, 0.40)),
    "ellipse": (0.66, (0.72, 0.44)),
    "square": (0.72, (0.82, 0.40)),
    "rectangle": (0.76, (0.84, 0.60)),
    "rhombus": (0.50, (0.60, 0.34)),
    "pentagon": (0.54, (0.66, 0.30)),
    "hexagon": (0.62, (0.68, 0.40)),
    "octagon": (0.70, (0.84, 0.40)),
    "shield": (0.60, (0.78, 0.32)),
}
FLAT = {"shield": 0.85}  # height of a frame around a word, for a width of 1, where it is not 0.62


@dataclass(frozen=True)
class Piece:
    """A part where it is drawn.

    Attributes:
        mask: how much of each pixel it covers.
        centre: in hundredths of the side.
        paint: number of the paint; None for white.
        is_writing: never mirrored.
    """

    mask: Image.Image
    centre: Box
    paint: int | None = 0
    is_writing: bool = False


def draw_mark(mark: Mark, side: int) -> Image.Image:
    """A mark on a white square; the two arguments determine every pixel."""
    unit = side * GRAIN / 100
    pieces = LAYOUTS[mark.layout](mark, Canvas(unit, np.random.default_rng(mark.proportions)))
    if mark.mirrored:
        pieces = [_mirrored(piece, mark.layout) for piece in pieces]
    corners = [
        (unit * piece.centre[0] - piece.mask.width / 2, unit * piece.centre[1] - piece.mask.height / 2) for piece in pieces
    ]
    left, top = (min(corner[axis] for corner in corners) for axis in (0, 1))
    places = [(round(x - left), round(y - top)) for x, y in corners]
    size = [
        max(place[axis] + piece.mask.size[axis] for place, piece in zip(places, pieces, strict=True)) for axis in (0, 1)
    ]
    whole = Image.new("RGB", (size[0], size[1]), "white")
    for place, piece in zip(places, pieces, strict=True):
        shade = (255, 255, 255) if piece.paint is None else mark.paints[min(piece.paint, len(mark.paints) - 1)].shade
        whole.paste(shade, place, piece.mask)
    if mark.angle:
        whole = whole.rotate(mark.angle, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    whole = whole.crop(ImageOps.invert(whole.convert("L")).getbbox())  # masks and corners have empty borders
    inner = round(FILLED * side)
    whole = ImageOps.contain(whole, (inner, inner), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (side, side), "white")
    square.paste(whole, ((side - whole.width) // 2, (side - whole.height) // 2))
    return square


def _mirrored(piece: Piece, layout: str) -> Piece:
    centre = piece.centre if layout == "letter" else (100 - piece.centre[0], piece.centre[1])
    mask = piece.mask if piece.is_writing else ImageOps.mirror(piece.mask)
    return Piece(mask, centre, piece.paint, piece.is_writing)


@dataclass(frozen=True)
class Canvas:
    """Makes masks of sizes in hundredths of the side.

    Attributes:
        unit: pixels of a hundredth.
        rng: of proportions.
    """

    unit: float
    rng: np.random.Generator

    def picture(self, picture: Picture, size: float) -> Image.Image:
        """The ink of a picture, its longer side of the given size."""
        return self.fit(ImageOps.invert(open_image(io.BytesIO(picture.png)).convert("L")), (size, size))

    def fit(self, mask: Image.Image, box: Box) -> Image.Image:
        """A mask cut to what it covers and scaled to the largest size inside a box."""
        mask = mask.crop(mask.getbbox())
        scale = min(self.unit * box[0] / mask.width, self.unit * box[1] / mask.height)
        size = (max(1, round(scale * mask.width)), max(1, round(scale * mask.height)))
        return mask.resize(size, Image.Resampling.LANCZOS)

    def shape(self, shape: str, width: float, filled: bool, height: float | None = None) -> Image.Image:
        """A surface, a line or a double line in the shape, whose height is that of ``SHAPES`` if not given."""
        size = (self.unit * width, self.unit * (SHAPES[shape][1] * width if height is None else height))
        mask = _surface(shape, size, 1.0)
        if not filled:
            edges = ((1.0, 0.88),) if self.rng.random() < 0.65 else ((1.0, 0.93), (0.87, 0.83))
            mask = Image.new("L", mask.size)
            for outer, inner in edges:
                ring = ImageChops.subtract(_surface(shape, size, outer), _surface(shape, size, inner))
                mask = ImageChops.lighter(mask, ring)
        return mask

    def word(self, mark: Mark, box: Box) -> Image.Image:
        """The word in its arrangement."""
        arrange = {"curve": _curved, "circle": _curved, "down": _downwards}.get(mark.arrangement, _straight)
        mask = arrange(mark)
        if mark.arrangement == "slope":
            mask = mask.rotate(14, Image.Resampling.BICUBIC, expand=True)
        return self.fit(mask, box)


def _surface(shape: str, size: Box, share: float) -> Image.Image:
    """A shape in the middle of a mask, filling a share of it; drawn large and reduced, for smooth edges."""
    width, height = (max(2, round(2 * length)) for length in size)
    mask = Image.new("L", (width, height))
    corners = [(width / 2 + share * x * width / 2, height / 2 + share * y * height / 2) for x, y in _outline(shape)]
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    return mask.reduce(2)


@cache
def _outline(shape: str) -> list[Box]:
    """The corners of a shape, from -1 to 1."""
    if shape in ("square", "rectangle"):
        return [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    if shape == "shield":
        sides = [(1 - 0.96 * t**2.6, -0.1 + 1.1 * t) for t in np.linspace(0, 1, 24).tolist()]
        right = [(0.0, -0.86), (0.5, -0.9), (1.0, -1.0), *sides]
        return [*right, *((-x, y) for x, y in reversed(right))]
    n_corners = {"triangle": 3, "rhombus": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}.get(shape, 180)
    start = {"hexagon": 0.0, "octagon": math.pi / 8}.get(shape, -math.pi / 2)
    turned = [start + 2 * math.pi * n / n_corners for n in range(n_corners)]
    points = np.array([(math.cos(angle), math.sin(angle)) for angle in turned])
    low, high = points.min(0), points.max(0)
    return [(x, y) for x, y in (2 * (points - low) / (high - low) - 1).tolist()]


def _glyphs(text: str, mark: Mark, size: Box, at: Box, anchor: str) -> Image.Image:
    """Letters drawn at a place of a mask."""
    font = ImageFont.truetype(font_file(mark.typeface), EM, layout_engine=ImageFont.Layout.BASIC)
    mask = Image.new("L", (math.ceil(size[0]), math.ceil(size[1])))
    stroke = 7 if mark.outlined else 0
    ImageDraw.Draw(mask).text(at, text, fill=255, font=font, anchor=anchor, stroke_width=stroke)
    if mark.outlined:
        inner = Image.new("L", mask.size)
        ImageDraw.Draw(inner).text(at, text, fill=255, font=font, anchor=anchor)
        mask = ImageChops.subtract(mask, inner)
    return mask


def _advance(text: str, typeface: str) -> float:
    return ImageFont.truetype(font_file(typeface), EM, layout_engine=ImageFont.Layout.BASIC).getlength(text)


def _straight(mark: Mark) -> Image.Image:
    return _glyphs(mark.word, mark, (_advance(mark.word, mark.typeface) + EM, 2 * EM), (EM / 2, 1.4 * EM), "ls")


def _downwards(mark: Mark) -> Image.Image:
    """Letters one below the other."""
    step = 1.02 * EM
    mask = Image.new("L", (2 * EM, math.ceil(step * (len(mark.word) + 1))))
    for number, letter in enumerate(mark.word):
        at = (EM, step * (number + 1))
        mask = ImageChops.lighter(mask, _glyphs(letter, mark, mask.size, at, "ms"))
    return mask


def _curved(mark: Mark) -> Image.Image:
    """Letters on the upper part of a circle: flat for a curve; for a circle, of the radius that ``_seal`` expects."""
    spacing = 1.18
    widths = [spacing * _advance(letter, mark.typeface) for letter in mark.word]
    radius = RING_RADIUS * EM if mark.arrangement == "circle" else sum(widths) / math.radians(105)
    mask = Image.new("L", (round(2 * radius + 3 * EM),) * 2)
    middle, done = mask.width / 2, -sum(widths) / 2
    for letter, width in zip(mark.word, widths, strict=True):
        angle = (done + width / 2) / radius
        done += width
        tile = _glyphs(letter, mark, (2 * EM, 2 * EM), (EM, EM), "ms")
        tile = tile.rotate(-math.degrees(angle), Image.Resampling.BICUBIC)
        left = round(middle + radius * math.sin(angle) - EM)
        top = round(middle - radius * math.cos(angle) - EM)
        box = (left, top, left + tile.width, top + tile.height)
        mask.paste(ImageChops.lighter(mask.crop(box), tile), box)  # neighbours overlap
    if mark.arrangement == "circle":  # cut around the circle's centre, so that the mask can be placed by it
        reach = round(radius + 1.1 * EM)
        border = Image.new("L", mask.size)
        ImageDraw.Draw(border).rectangle([middle - reach, middle - reach, middle + reach, middle + reach], fill=255)
        return ImageChops.multiply(mask, border)
    return mask


RING_RADIUS = 2.6  # of a circle of letters, in type sizes
Layout = Callable[[Mark, Canvas], list[Piece]]


def _beside(mark: Mark, canvas: Canvas) -> list[Piece]:
    """A picture or figure at one side of the word."""
    size = canvas.rng.uniform(28, 40)
    word = canvas.word(mark, (62, 26))
    figure = _figure(mark, canvas, size)
    gap, wide = 5, word.width / canvas.unit
    at_left = canvas.rng.random() < 0.75
    width = figure.width / canvas.unit
    x_figure, x_word = (width / 2, width + gap + wide / 2) if at_left else (wide + gap + width / 2, wide / 2)
    return [Piece(figure, (x_figure, 50)), Piece(word, (x_word, 50), 1, is_writing=True)]


def _above(mark: Mark, canvas: Canvas) -> list[Piece]:
    """A picture, two, or a figure over the word."""
    size = canvas.rng.uniform(46, 60)
    parts = _row(mark, canvas, size) if len(mark.pictures) > 1 else [Piece(_figure(mark, canvas, size), (50, size / 2))]
    if not mark.word:
        return parts
    bottom = max(piece.centre[1] + piece.mask.height / canvas.unit / 2 for piece in parts)
    word = canvas.word(mark, (canvas.rng.uniform(76, 96), 26))
    return [*parts, Piece(word, (50, bottom + 6 + word.height / canvas.unit / 2), 1, is_writing=True)]


def _row(mark: Mark, canvas: Canvas, size: float) -> list[Piece]:
    """Two pictures side by side, in two colours."""
    size = min(size, 48)
    return [
        Piece(canvas.picture(picture, size), (50 + place * (size / 2 + 3), size / 2), number)
        for number, (picture, place) in enumerate(zip(mark.pictures, (-1, 1), strict=True))
    ]


def _figure(mark: Mark, canvas: Canvas, size: float) -> Image.Image:
    """The picture, or where there is none the shape."""
    if mark.pictures:
        return canvas.picture(mark.pictures[0], size)
    return canvas.shape(mark.shape, size, mark.filled)


def _emblem(mark: Mark, canvas: Canvas) -> list[Piece]:
    """A picture in a frame, with or without a word below."""
    width = 64.0
    height = width * max(SHAPES[mark.shape][1], 0.8)
    frame = canvas.shape(mark.shape, width, mark.filled, height)
    inside = canvas.picture(mark.pictures[0], ROOM[mark.shape][0] * min(width, height))
    y = 50 - (5 if mark.shape == "shield" else -3 if mark.shape == "pentagon" else 0) * width / 100
    pieces = [Piece(frame, (50, 50)), Piece(inside, (50, y), None if mark.filled else 1)]
    if mark.word:
        word = canvas.word(mark, (96, 24))
        pieces.append(Piece(word, (50, 50 + height / 2 + 6 + word.height / canvas.unit / 2), 1, is_writing=True))
    return pieces


def _seal(mark: Mark, canvas: Canvas) -> list[Piece]:
    """A picture in a circle, and the word around it."""
    ring = RING_RADIUS
    reach = 46.0
    scale = reach / (ring + 0.95)  # units of a type size
    mask = _curved(mark)
    mask = mask.resize([max(1, round(length * scale * canvas.unit / EM)) for length in mask.size], Image.Resampling.LANCZOS)
    inner = 2 * scale * (ring - 0.35)
    is_large = not mark.filled and canvas.rng.random() < 0.5  # around the word too
    frame = canvas.shape("circle", 2.4 * reach if is_large else inner, mark.filled)
    inside = canvas.picture(mark.pictures[0], 0.64 * inner)
    word = Piece(mask, (50, 50), 1, is_writing=True)
    return [Piece(frame, (50, 50)), Piece(inside, (50, 50), None if mark.filled else 1), word]


def _word(mark: Mark, canvas: Canvas) -> list[Piece]:
    """The word alone, or with lines below."""
    word = canvas.word(mark, (96, 96) if mark.arrangement == "down" else (96, 60))
    width, height = word.width / canvas.unit, word.height / canvas.unit
    thick = canvas.rng.uniform(2.5, 4.5)
    lines = [
        Piece(canvas.shape("rectangle", width, True, thick), (50, 50 + height / 2 + 5 + 2 * thick * number))
        for number in range(mark.n_lines)
    ]
    return [Piece(word, (50, 50), 1, is_writing=True), *lines]


def _badge(mark: Mark, canvas: Canvas) -> list[Piece]:
    """A word or initials in a frame; initials alone where there is none."""
    if not mark.shape:
        return [Piece(canvas.word(mark, (80, 70)), (50, 50), is_writing=True)]
    width = 96.0
    flat = len(mark.word) > 3
    is_whole = not flat or mark.shape == "circle"
    height = width * (SHAPES[mark.shape][1] if is_whole else min(SHAPES[mark.shape][1], FLAT.get(mark.shape, 0.62)))
    wide, high = ROOM[mark.shape][1]
    frame = canvas.shape(mark.shape, width, mark.filled, height)
    word = canvas.word(mark, (wide * width * (0.94 if flat else 0.8), high * height * (1.0 if flat else 1.15)))
    y = 50 + {"shield": -0.08, "pentagon": 0.06}.get(mark.shape, 0.0) * height
    return [Piece(frame, (50, 50)), Piece(word, (50, y), None if mark.filled else 1, is_writing=True)]


def _letter(mark: Mark, canvas: Canvas) -> list[Piece]:
    """The word with a picture in place of one letter, the same place in a copy with another word."""
    place = int(canvas.rng.integers(len(mark.word)))
    height = 24.0
    left = 0.0
    pieces: list[Piece] = []
    for text in (mark.word[:place], "", mark.word[place + 1 :]):
        is_picture = not text and len(pieces) == (1 if place else 0)
        if not text and not is_picture:
            continue
        part = Mark(mark.layout, mark.paints, word=text, typeface=mark.typeface, outlined=mark.outlined)
        mask = canvas.picture(mark.pictures[0], 1.15 * height) if is_picture else canvas.fit(_straight(part), (999, height))
        width = mask.width / canvas.unit
        pieces.append(Piece(mask, (left + width / 2, 50), 0 if is_picture else 1, is_writing=not is_picture))
        left += width + 2.5
    return pieces


def _pattern(mark: Mark, canvas: Canvas) -> list[Piece]:
    """One picture or shape many times over a surface."""
    n = int(canvas.rng.integers(3, 5))
    step = 100 / n
    mask = _figure(mark, canvas, 0.74 * step)
    shifted = canvas.rng.random() < 0.5
    return [
        Piece(mask, (step * (column + 0.5 + (0.5 if shifted and row % 2 else 0)), step * (row + 0.5)))
        for row in range(n)
        for column in range(n - (shifted and row % 2))
    ]


def _ring(mark: Mark, canvas: Canvas) -> list[Piece]:
    """One picture or shape several times in a circle, with or without initials in the middle."""
    n = int(canvas.rng.integers(6, 9))
    mask = _figure(mark, canvas, 23)
    pieces = [
        Piece(
            mask.rotate(-360 * number / n, Image.Resampling.BICUBIC, expand=True),
            (50 + 37 * math.sin(2 * math.pi * number / n), 50 - 37 * math.cos(2 * math.pi * number / n)),
        )
        for number in range(n)
    ]
    if mark.word:
        pieces.append(Piece(canvas.word(mark, (36, 30)), (50, 50), 1, is_writing=True))
    return pieces


LAYOUTS: Mapping[str, Layout] = {
    "picture": _above,
    "beside": _beside,
    "above": _above,
    "pair": _above,
    "figure": _above,
    "emblem": _emblem,
    "seal": _seal,
    "word": _word,
    "badge": _badge,
    "initials": _badge,
    "letter": _letter,
    "pattern": _pattern,
    "ring": _ring,
}
