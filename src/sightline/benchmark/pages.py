"""A suite's page as Markdown and as one HTML file that needs nothing but itself."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from sightline.benchmark.curves import draw_curves
from sightline.benchmark.grid import Cell
from sightline.benchmark.layout import Block, Code, Grid, Heading, Paragraph, Picture, Value, blocks_of
from sightline.benchmark.runs import finished
from sightline.benchmark.suite import Suite
from sightline.errors import InputError, names
from sightline.files import replaced

MARKS = {0: "{}", 1: "**{}**", 2: "_{}_"}


def write_pages(suite: Suite, suite_file: Path, cells: Sequence[Cell], out: Path) -> list[Path]:
    """Write ``tables.md``, ``index.html`` and the curves of what is finished into the suite's folder."""
    done = finished(out, cells)
    pictures = draw_curves(suite, done, out, suite_file.stem)
    blocks = blocks_of(suite, suite_file, done, len(cells), pictures)
    texts = {
        out / "tables.md": f"# {suite.title}\n\n{as_markdown(blocks)}",
        out / "index.html": as_html(suite.title, blocks, out),
    }
    for file, text in texts.items():
        with replaced(file) as scratch:
            scratch.write_text(text, encoding="utf-8")
    return list(texts)


def update_page(page: Path, suite: Suite, suite_file: Path, cells: Sequence[Cell], out: Path) -> Path:
    """Renew the part of a Markdown page between ``<!-- suite NAME -->`` and ``<!-- end of suite NAME -->``.

    All other text stays. Curves are written beside the page.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = f"<!-- suite {suite_file.stem} -->", f"<!-- end of suite {suite_file.stem} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        known = names(re.findall(r"<!-- suite (\S+) -->", text))
        raise InputError(f"{page}: no lines {begin!r} and {end!r} to write between; it has {known or 'none'}")
    done = finished(out, cells)
    blocks = blocks_of(suite, suite_file, done, len(cells), draw_curves(suite, done, page.parent, suite_file.stem))
    with replaced(page) as scratch:
        scratch.write_text(f"{before}{begin}\n\n{as_markdown(blocks)}\n{end}{after}", encoding="utf-8")
    return page


def as_markdown(blocks: Sequence[Block]) -> str:
    """The blocks as Markdown; the best of a column in bold, the second best in italics."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"### {text}"
        case Paragraph(text):
            return text
        case Code(text):
            return f"```sh\n{text}\n```"
        case Picture(file, text):
            return f"![{text}]({file})"
        case Grid(header, rows):
            lines = [header, ["---", *["---:"] * (len(header) - 1)], *([_marked(value) for value in row] for row in rows)]
            return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _marked(value: Value) -> str:
    return MARKS[value.place].format(value.text.replace("|", "\\|").replace("*", "\\*"))


def as_html(title: str, blocks: Sequence[Block], folder: Path) -> str:
    """The blocks as one page; pictures of the folder are inside it."""
    environment = Environment(
        loader=PackageLoader("sightline.benchmark"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sources = {
        block.file: "data:image/png;base64," + base64.b64encode((folder / block.file).read_bytes()).decode()
        for block in blocks
        if isinstance(block, Picture)
    }
    kinds = [(type(block).__name__, block) for block in blocks]
    return environment.get_template("suite.html").render(title=title, blocks=kinds, sources=sources)
