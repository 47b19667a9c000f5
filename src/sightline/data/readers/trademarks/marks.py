"""Simple trademarks as parts, and the codes that follow from these.

A :class:`Mark` names its parts. Its codes and its drawing are made of nothing else, so they agree.
"""

import colorsys
import io
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sightline.data.images import open_image

Rgb = tuple[int, int, int]
LEAST_MIRRORED = 0.06  # mean difference of darkness between a drawing and its mirror image
BLACK = "black"  # without a code, as in registers, where black on white is the absence of a colour
LIVING = ("3.", "5.")  # beginnings of the codes of animals and plants: a frame around these has an item of its own
SHAPES = {  # section of the classification, and height for a width of 1
    "circle": ("26.1", 1.0),
    "ellipse": ("26.1", 0.6),
    "triangle": ("26.3", 0.9),
    "square": ("26.4", 1.0),
    "rectangle": ("26.4", 0.5),
    "rhombus": ("26.4", 0.8),
    "pentagon": ("26.5", 1.0),
    "hexagon": ("26.5", 0.9),
    "octagon": ("26.5", 1.0),
    "shield": ("24.1", 1.1),
}
STRAIGHT = "straight"
ARRANGED = {"curve": "27.1.1", "circle": "27.1.2", "down": "27.1.3", "slope": "27.1.4"}
HUES = {  # code, hues in degrees, saturation, brightness
    "red": ("29.1.1", (346, 366), (0.72, 0.95), (0.70, 0.92)),
    "yellow": ("29.1.2", (44, 54), (0.80, 1.00), (0.85, 0.97)),
    "green": ("29.1.3", (100, 160), (0.60, 0.95), (0.40, 0.72)),
    "blue": ("29.1.4", (200, 235), (0.65, 0.95), (0.50, 0.90)),
    "violet": ("29.1.5", (265, 295), (0.50, 0.85), (0.45, 0.75)),
    "grey": ("29.1.6", (0, 360), (0.00, 0.03), (0.50, 0.68)),
    "brown": ("29.1.7", (18, 28), (0.60, 0.80), (0.30, 0.46)),
    "orange": ("29.1.8", (20, 30), (0.88, 1.00), (0.90, 1.00)),
}


@dataclass(frozen=True)
class Picture:
    """An icon that a mark shows.

    Attributes:
        name: what it shows, such as ``owl``.
        drawing: which one of that name: its collection and what that calls it.
        code: of what it shows.
        png: the drawing, dark on white.
    """

    name: str
    drawing: str
    code: str
    png: bytes

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether it looks like its mirror image."""
        dark = np.asarray(open_image(io.BytesIO(self.png)).convert("L"), np.float64) / 255
        return bool(np.abs(dark - dark[:, ::-1]).mean() < LEAST_MIRRORED)


@dataclass(frozen=True)
class Paint:
    """A colour: its name, which has a code, and its shade."""

    name: str
    shade: Rgb


@dataclass(frozen=True)
class Mark:
    """What a mark consists of.

    Attributes:
        layout: a name in ``LAYOUTS``.
        paints: one or two.
        pictures: none, one or two.
        shape: a name in ``SHAPES``: the frame, or the figure itself; empty for none.
        filled: the frame is a surface, its content white; else a line.
        word: as it is drawn; empty for none.
        typeface: of the word.
        outlined: the letters are drawn as lines.
        arrangement: of the letters: ``STRAIGHT`` or a name in ``ARRANGED``.
        n_lines: lines under the word.
        proportions: seed of sizes and sides.
        mirrored: pictures and their places, not the writing.
        angle: degrees by which the whole is turned, against the clock.
    """

    layout: str
    paints: tuple[Paint, ...]
    pictures: tuple[Picture, ...] = ()
    shape: str = ""
    filled: bool = False
    word: str = ""
    typeface: str = ""
    outlined: bool = False
    arrangement: str = STRAIGHT
    n_lines: int = 0
    proportions: int = 0
    mirrored: bool = False
    angle: float = 0.0

    @property
    def n_tones(self) -> int:
        """How many paints its layout shows: one of a single part, and where all else is white in a frame."""
        several = {
            "picture": False,
            "pattern": False,
            "word": self.n_lines > 0,
            "ring": bool(self.word),
            "badge": not self.filled,
            "initials": bool(self.shape) and not self.filled,
            "emblem": bool(self.word) or not self.filled,
        }
        return 2 if several.get(self.layout, True) else 1


def codes_of(mark: Mark) -> list[str]:
    """The codes of a mark, in order; each follows from one of its parts. A plain word in black has none.

    Example:
        >>> codes_of(Mark("word", (Paint("red", (200, 20, 20)),), word="Velora", typeface="stix-italic"))
        ['27.5.1', '29.1.1']
    """
    found = {picture.code for picture in mark.pictures}
    found |= {HUES[paint.name][0] for paint in mark.paints if paint.name != BLACK}
    if mark.shape:
        found.add(f"{SHAPES[mark.shape][0]}.{_content(mark)}")
    if mark.layout == "pattern":
        found.add("25.7.1" if mark.shape else "25.7.2")
    if mark.layout == "ring":
        found.add("25.7.3")
    if mark.n_lines:
        found.add("26.11.1" if mark.n_lines == 1 else "26.11.2")
    if mark.word:
        if style := lettering(mark.typeface, mark.outlined):
            found.add(style)
        if mark.arrangement != STRAIGHT:
            found.add(ARRANGED[mark.arrangement])
        if mark.layout == "letter":
            found.add("27.3.1")
        if is_initials(mark.word):
            found.add("27.7.1")
        if any(map(str.isdigit, mark.word)):
            found.add("27.7.2")
    return sorted(found, key=lambda code: [int(part) for part in code.split(".")])


def _content(mark: Mark) -> int:
    """The item of a frame, within its section: by what is in it."""
    if mark.layout in ("badge", "initials"):
        return 18
    if mark.layout in ("emblem", "seal"):
        return 15 if mark.pictures[0].code.startswith(LIVING) else 16
    return 1


def is_initials(word: str) -> bool:
    """Whether a word is read letter by letter: it has no vowel."""
    return word.isalpha() and not set("aeiouy") & set(word.lower())


def lettering(typeface: str, outlined: bool = False) -> str:
    """The code of a style of letters, of several that hold the one seen first; plain upright letters have none.

    Example:
        >>> [lettering(typeface) for typeface in ("dejavu-mono", "dejavu-mono-bold", "stix-italic", "stix")]
        ['27.5.3', '27.5.2', '27.5.1', '']
    """
    rules = {
        "27.5.4": outlined,
        "27.5.1": typeface.endswith("italic"),
        "27.5.2": typeface.endswith("bold"),
        "27.5.3": "mono" in typeface or "typewriter" in typeface,
    }
    return next((code for code, holds in rules.items() if holds), "")


def paint_of(name: str, rng: np.random.Generator) -> Paint:
    """A colour in one of its shades; black is always the same."""
    if name == BLACK:
        return Paint(name, (20, 20, 20))
    _, *ranges = HUES[name]
    hue, saturation, brightness = (rng.uniform(*span) for span in ranges)
    channels = colorsys.hsv_to_rgb(hue / 360 % 1, saturation, brightness)
    red, green, blue = (round(255 * channel) for channel in channels)
    return Paint(name, (red, green, blue))
