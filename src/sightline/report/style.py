"""How figures and pages look: colours that colour-blind readers can tell apart, a panel as SVG or PNG, templates."""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sightline.files import replaced

# Okabe and Ito's palette without black and yellow, which a white page or a dark one would swallow.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
GREY = "#999999"
INK = "#6b7280"
CLASSES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY)  # with another marker each time they run out
MARKERS = ("o", "^", "s", "D")
MODELS = ((BLUE, "-"), (ORANGE, "--"))  # colour and line of the model shown, and of the one it is compared with
PANEL = (4.5, 3.2)  # inches: small, so that words are large enough on a phone
SETTINGS: Any = {  # Any: matplotlib wants the keys as literals
    "svg.hashsalt": "sightline",
    "svg.fonttype": "none",
    "image.composite_image": False,  # else an SVG holds one large picture of a gallery, made pixel by pixel
    "font.family": "sans-serif",
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,  # one grey that is readable on white and on black
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
}
# What a dark page shows in another shade; in files the colours stay as they are.
PAGE_COLOURS = {INK: "var(--soft)", BLUE: "var(--blue)"}
ON_DARK = {BLUE: "#3d87e8"}  # of points on a map, where the page's light blue would be mistaken for SKY


@contextmanager
def drawing(width: float = PANEL[0], height: float = PANEL[1], **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes (one, or an array of them where ``nrows`` or ``ncols`` is given), in the house style."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(**grid)


def template(name: str) -> Template:
    """A template of this part; what it is given is escaped, and a name that it is not given is an error."""
    environment = Environment(
        loader=PackageLoader("sightline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def level_colours(n_levels: int) -> list[str]:
    """The colour of each height of a common ancestor: green 0, the same finest label; oranges; vermillion, nothing shared.

    Example:
        >>> level_colours(1)
        ['#009e73', '#d55e00']
    """
    near, far = np.array([0xB0, 0x74, 0x00]), np.array([0xF0, 0xC2, 0x4B])
    shares = [height / max(1, n_levels - 2) for height in range(n_levels - 1)]
    oranges = ["#" + "".join(f"{round(part):02x}" for part in near + share * (far - near)) for share in shares]
    return [GREEN, *oranges, VERMILLION]


def level_lines(n_levels: int) -> list[str]:
    """The line of each height: solid, dashed, dotted; so that no meaning hangs on colour alone."""
    return ["-", *["--"] * (n_levels - 1), ":"]


def level_names(n_levels: int) -> list[str]:
    """What each height of a common ancestor means.

    Example:
        >>> level_names(3)
        ['same label_0', 'shares label_1', 'shares label_2', 'nothing shared']
        >>> level_names(1)
        ['same class', 'another class']
    """
    if n_levels == 1:
        return ["same class", "another class"]
    return ["same label_0", *(f"shares label_{height}" for height in range(1, n_levels)), "nothing shared"]


def code_level_names(depth: int) -> list[str]:
    """What each height means where results are coloured by the deepest code they share with their query.

    Example:
        >>> code_level_names(2)
        ['shares a code of depth 2', 'shares a code of depth 1', 'no code shared']
    """
    return [*(f"shares a code of depth {level}" for level in range(depth, 0, -1)), "no code shared"]


def as_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as one SVG element of a page: no two have an id in common, and colours follow the page's mode."""
    text = io.StringIO()
    with rc_context(SETTINGS):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*", "", text.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{re.sub('[^a-z0-9]', '-', name.lower())}-", svg)
    for colour, variable in PAGE_COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def write_figure(
    figure: Figure, folder: Path, name: str, formats: tuple[str, ...] = ("png", "svg"), dpi: int = 200
) -> list[Path]:
    """Write ``folder/name.png`` and ``folder/name.svg``, on white; the name as a file can have it."""
    files = [folder / f"{re.sub('[^A-Za-z0-9@._-]+', '-', name)}.{kind}" for kind in formats]
    for file in files:
        kind = file.suffix[1:]
        with replaced(file) as scratch, rc_context(SETTINGS):
            figure.savefig(scratch, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    return files
