"""Draw ``data-flow.svg``, the picture of the architecture page: ``python docs/make_data_flow.py``."""

import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH, ROW, BOX, HIGH = 860, 92, 178, 54
LEFT = (16, 232, 448, 664)  # of the four columns
INK, LINE, PART, FILE = "#1f2933", "#52606d", "#e3e8f8", "#fff4d6"

# A box: column, row, what is written in it, the line below, whether it is a file that a person keeps.
BOXES = {
    "images": (0, 0, "images", "folder, CSV, Parquet", True),
    "data": (1, 0, "data", "checks, reads, samples", False),
    "manifest": (2, 0, "manifest", "path, split, labels", True),
    "hierarchy": (3, 0, "hierarchy", "coarser labels", False),
    "recipe": (0, 1, "recipe.toml", "all settings of a run", True),
    "training": (1, 1, "training", "batches and losses", False),
    "run": (2, 1, "run folder", "checkpoint and logs", True),
    "encoder": (3, 1, "encoder", "weights and fingerprint", True),
    "embedding": (3, 2, "models", "a vector for each image", False),
    "table": (2, 2, "table.parquet", "ids, vectors, labels", True),
    "evaluation": (1, 2, "evaluation", "metrics, intervals, tests", False),
    "report": (0, 2, "report.html", "one page, offline", True),
    "ood": (1, 3, "ood", "out-of-distribution", False),
    "search": (3, 3, "gallery", "exact, FAISS, Milvus", False),
    "gallery": (2, 3, "gallery folder", "items, index, rejector", True),
    "serve": (2, 4, "serve", "HTTP API and a page", False),
    "answers": (3, 4, "answers", "results and verdict", True),
}
ARROWS = [
    ("images", "data"),
    ("data", "manifest"),
    ("hierarchy", "manifest"),
    ("manifest", "training"),
    ("recipe", "training"),
    ("training", "run"),
    ("run", "encoder"),
    ("encoder", "embedding"),
    ("embedding", "table"),
    ("table", "evaluation"),
    ("evaluation", "report"),
    ("table", "ood"),
    ("table", "gallery"),
    ("search", "gallery"),
    ("ood", "gallery"),
    ("gallery", "serve"),
    ("serve", "answers"),
]


def picture() -> str:
    """The drawing as SVG; yellow boxes are files, blue ones parts of the package."""
    height = 5 * ROW + 44
    marker = (
        f'<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Images and a recipe become a run, an encoder, a table of vectors, a gallery and answers</title>",
        f'<defs>{marker}</defs><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<g font-family="system-ui, sans-serif" font-size="12" text-anchor="middle" fill="{INK}">',
        *(_arrow(*arrow) for arrow in ARROWS),
        *(_box(*box) for box in BOXES.values()),
        _legend(16, height - 34, FILE, "a file or folder that you keep", 18),
        _legend(448, height - 34, PART, "a part of the package", 4),
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(column: int, row: int, name: str, below: str, is_file: bool) -> str:
    x, y = LEFT[column], 16 + ROW * row
    middle, corner, colour = x + BOX / 2, 18 if is_file else 4, FILE if is_file else PART
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="{corner}" fill="{colour}" stroke="{LINE}"/>'
        f'<text x="{middle}" y="{y + 23}" font-size="15" font-weight="600">{escape(name)}</text>'
        f'<text x="{middle}" y="{y + 42}">{escape(below)}</text>'
    )


def _arrow(start: str, end: str) -> str:
    (column, row, *_), (to_column, to_row, *_) = BOXES[start], BOXES[end]
    y, to_y = 16 + ROW * row, 16 + ROW * to_row
    if row == to_row:  # sideways
        forward = to_column > column
        x = LEFT[column] + (BOX if forward else 0)
        to_x = LEFT[to_column] + (0 if forward else BOX)
        y = to_y = y + HIGH / 2
    else:  # down, from the middle of the lower side to that of the upper one
        x, to_x = LEFT[column] + BOX / 2, LEFT[to_column] + BOX / 2
        y += HIGH
    return (
        f'<path d="M{x:g} {y:g} {to_x:g} {to_y:g}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#tip)"/>'
    )


def _legend(x: int, y: int, colour: str, text: str, corner: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="30" height="18" rx="{corner / 2:g}" fill="{colour}" stroke="{LINE}"/>'
        f'<text x="{x + 40}" y="{y + 14}" text-anchor="start">{escape(text)}</text>'
    )


FILES = {"data-flow.svg": picture}

if __name__ == "__main__":
    for file, make in FILES.items():
        (FOLDER / file).write_text(make(), encoding="utf-8")
    sys.stdout.write(", ".join(FILES) + "\n")
