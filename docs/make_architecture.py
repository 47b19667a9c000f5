"""Update ``architecture.md`` and ``bands.svg`` from the code: ``python docs/make_architecture.py``."""

import ast
import re
import runpy
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
SOURCE = ROOT / "src" / "sightline"
PAGE = FOLDER / "architecture.md"
BANDS: dict[str, tuple[str, ...]] = runpy.run_path(str(ROOT / "tests" / "test_layers.py"))["BANDS"]
BEGIN, END = "<!-- parts: python docs/make_architecture.py -->", "<!-- end of parts -->"
INK, LINE, COLOURS = "#1f2933", "#52606d", ("#e3e8f8", "#e3f4e6", "#fff4d6")
WIDTH, BOX, HIGH, GAP = 860, 118, 34, 10


def parts() -> dict[str, list[str]]:
    """The parts of each band, highest band first."""
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    found = {band: [part for part in names if part in there and part != "__main__"] for band, names in BANDS.items()}
    return dict(reversed(found.items()))


def promise(part: str) -> str:
    """The first sentence of a part's docstring."""
    file = SOURCE / f"{part}.py"
    source = (file if file.is_file() else SOURCE / part / "__init__.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source))
    sentence = (text or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
    return sentence.replace("|", "\\|")


def uses() -> dict[str, set[str]]:
    """Which parts each part imports from."""
    found: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sightline."):
                found.setdefault(part, set()).add(str(node.module).split(".")[1])
            elif isinstance(node, ast.ImportFrom) and node.module == "sightline":
                found.setdefault(part, set()).update(alias.name for alias in node.names)
    return {part: others - {part, "__version__"} for part, others in found.items()}


def table() -> str:
    """A row for each part: band, purpose, and the parts it imports."""
    imported, known = uses(), parts()
    always = set(known["foundations"]) - {"kernels"}  # nearly every part imports some of these
    lines = ["| band | part | purpose | imports |", "|---|---|---|---|"]
    for band, names in known.items():
        for part in names:
            others = sorted(imported.get(part, set()) - always)
            lines.append(f"| {band} | `{part}` | {promise(part)} | {', '.join(f'`{other}`' for other in others)} |")
    return "\n".join(lines)


def page() -> str:
    """The page with an up-to-date table of parts."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n\n{table()}\n\n{END}", text, flags=re.S)


def picture() -> str:
    """The bands one above the other, with their parts; imports go downwards."""
    shapes, top = [], 14
    for (band, names), colour in zip(parts().items(), reversed(COLOURS), strict=True):
        a_row = (WIDTH - 150) // (BOX + GAP)
        n_rows = -(-len(names) // a_row)
        height = n_rows * (HIGH + GAP) + GAP
        shapes.append(f'<rect x="10" y="{top}" width="{WIDTH - 20}" height="{height}" rx="8" fill="{colour}"/>')
        shapes.append(f'<text x="24" y="{top + height / 2 + 5}" font-weight="600" fill="{INK}">{band}</text>')
        for place, name in enumerate(names):
            x, y = 150 + place % a_row * (BOX + GAP), top + GAP + place // a_row * (HIGH + GAP)
            shapes.append(f'<rect x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="5" fill="#fff" stroke="{LINE}"/>')
            size = 10 if len(name) > 14 else 13
            middle = f'x="{x + BOX / 2}" y="{y + HIGH / 2 + 4.5}" text-anchor="middle" font-size="{size}"'
            shapes.append(f'<text {middle} fill="{INK}">{escape(name)}</text>')
        top += height + 22
    tops = [int(match) for match in re.findall(r'y="(\d+)" width="840"', " ".join(shapes))][1:]
    arrow = '<path d="M{x} {y}v18m-5 -6 5 7 5 -7" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    shapes += [arrow.format(x=WIDTH / 2, y=y - 21, colour=LINE) for y in tops]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="Applications import from domain, domain from foundations">'
        f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>{"".join(shapes)}</svg>\n'
    )


FILES = {"architecture.md": page, "bands.svg": picture}

if __name__ == "__main__":
    for name, make in FILES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
