"""The data set ``trademarks``.

The classification has three depths and follows the Vienna one: ``codes.csv`` names its nodes, and the icons that show what
a leaf is of. Held-out marks have icons, words and typefaces that training never saw; held-out queries are copies
of such marks as an infringer would make them, and new marks that copy none.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from sightline.data.readers.archives import NpmPackage, npm_archives
from sightline.data.readers.glyphs import FAMILIES, TYPEFACES
from sightline.data.readers.icons import (
    ICONS,
    PACKAGE,
    Drawing,
    attributions,
    distinct_drawings,
    icon_collections,
    icon_drawings,
    icon_svgs,
)
from sightline.data.readers.source import MANIFEST, Record, judgements_file, packages_page, write_collection
from sightline.data.readers.trademarks.composing import CONSONANTS, Pool, Query, compose, copies_of, word_of
from sightline.data.readers.trademarks.drawing import draw_mark
from sightline.data.readers.trademarks.marks import Mark, Picture, codes_of
from sightline.errors import InputError, choose, raise_faults
from sightline.progress import tracked

VERSION = 1
SIZES = {"small": 5_000, "full": 50_000}  # marks, without the queries
SPLIT_SHARES = {"train": 0.6, "val": 0.1, "test": 0.3}
QUERY_SHARE = 0.5  # queries for each held-out mark
ICON_SPLITS = ("train", "test", "val", "train", "test", "train")  # of the first, second ... icon of a leaf
FONT_SPLITS = {  # whole families, so that a held-out one is no bold or italic of one in training
    "train": ("dejavu-sans", "dejavu-mono", "stix"),
    "val": ("dejavu-serif",),
    "test": ("computer-modern", "computer-modern-sans", "computer-modern-typewriter"),
}
MOST_DRAWINGS = 8  # of an icon
PICTURE_SIDE = 192
MARKS_OF_A_WORD = 1.6  # on average: registers hold several marks of one owner
TREE = "codes.csv"
LEAST_SIDE = 32  # pixels, to distinguish marks
ONSETS = ("b", "br", "c", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pr", "qu", "r", "s", "st",
          "t", "tr", "v")  # fmt: skip
NUCLEI = ("a", "e", "i", "o", "u", "ia", "eo", "ai")
CODAS = ("", "", "", "l", "n", "r", "s", "x", "m")
WORD_LENGTHS = (4, 8)


def write_trademarks(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    size: Literal["small", "full"] = "small",
    side: int = 96,
    seed: int = 0,
    package: NpmPackage = PACKAGE,
) -> Path:
    """Marks of icons, shapes and words, 1 to 6 codes each, and copies; needs npm, or its package in --root.

    Writes ``manifest.csv``, whose path is returned, the classification ``codes.csv`` and ``manifest.judgements.json``: for
    each held-out query the mark that it copies (``easy``) and other marks with its word or its picture (``hard``). Columns:
    ``path``, ``split``, ``codes`` (separated by ``;``), ``is_query``, ``is_gallery``, ``copy`` (how a query copies) and
    ``copy_of``, then the parts from ``layout`` to ``colours``.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder with the archive made by ``npm pack``; None fetches it.
        size: ``small`` or ``full``: 5,000 or 50,000 marks.
        side: of the square images, in pixels.
        seed: 0 or more; another one composes other marks of the same icons and typefaces.
        package: the version to read.
    """
    n_marks = choose(SIZES, size, "size of trademarks")
    least = {"side": (side, LEAST_SIDE), "seed": (seed, 0)}
    raise_faults(
        "trademarks", [f"{name} must be at least {n}, got {value}" for name, (value, n) in least.items() if value < n]
    )
    record: Record = {"data": "trademarks", "version": VERSION, "package": f"{package.name}@{package.version}"}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        counts: Counter[str] = Counter()
        with npm_archives([package], root, show_progress) as (archive,):
            infos = {prefix: info for prefix, info in icon_collections(archive, ICONS).items() if not info.get("palette")}
            pictures = _pictures(archive, infos, counts, show_progress)
        rows, drawn = [], []
        for split, pool in _pools(pictures, n_marks, seed).items():
            marks, queries = _compose_split(pool, split, n_marks, seed)
            rows += _rows(split, marks, queries)
            drawn += [*marks, *(query.mark for query in queries)]
        manifest = pl.DataFrame(rows, infer_schema_length=None)
        for folder in {(draft / path).parent for path in manifest["path"]}:
            folder.mkdir(parents=True)
        for path, mark in tracked(zip(manifest["path"], drawn, strict=True), "Drawing marks", len(drawn), show_progress):
            draw_mark(mark, side).save(draft / path)
        classification().select(child="code", parent="parent", name="name").write_csv(draft / TREE)
        judged = json.dumps(judge(manifest)) + "\n"
        judgements_file(draft / MANIFEST).write_text(judged, encoding="utf-8")
        used = Counter(name.partition(":")[0] for names in manifest["drawings"].drop_nulls() for name in names.split(";"))
        return manifest, packages_page("Trademarks", _about(manifest), attributions(infos, package, used), counts)

    return write_collection(out, record | {"size": size, "side": side, "seed": seed}, fill)


@cache
def classification() -> pl.DataFrame:
    """The nodes of the classification: ``code``, ``parent``, ``name``, and the ``icons`` of a leaf, separated by blanks.

    Example:
        >>> classification().row(2)
        ('1.1.1', '1.1', 'Stars', 'star stars shooting-star sparkles sparkle star-half')
    """
    listed = pl.read_csv(Path(__file__).with_name("codes.csv"), infer_schema=False)
    above = pl.col("code").str.extract(r"^(.*)\.\d+$").alias("parent")
    return listed.select("code", above, "name", "icons")


def _pictures(
    archive: Path, infos: Mapping[str, object], counts: Counter[str], show_progress: bool
) -> dict[str, list[Picture]]:
    """The usable drawings of the classification's icons, by the icon's name."""
    listed = classification().filter(pl.col("icons") != "").select("code", "icons").rows()
    code_of = {name: code for code, icons in listed for name in icons.split()}
    found: dict[str, list[Drawing]] = defaultdict(list)
    for drawing in icon_drawings(archive, infos, ICONS):
        if drawing.key in code_of:
            found[drawing.key].append(drawing)
    # By a hash, so that the collections which are listed first do not draw everything.
    some = [drawing for name in sorted(found) for drawing in sorted(found[name], key=_order)[:MOST_DRAWINGS]]
    counts["icons of the classification"], counts["of these drawn by a collection"] = len(code_of), len(found)
    counts["drawings"] = len(some)
    kept = distinct_drawings(some, icon_svgs(archive, some), 1, PICTURE_SIDE, counts, show_progress)
    pictures: dict[str, list[Picture]] = defaultdict(list)
    for drawing, png in kept:
        name = f"{drawing.collection}:{drawing.name}"
        pictures[drawing.key].append(Picture(drawing.key, name, code_of[drawing.key], png))
    return pictures


def _order(drawing: Drawing) -> str:
    return _hash_of(f"{drawing.collection}:{drawing.name}")


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _pools(pictures: Mapping[str, Sequence[Picture]], n_marks: int, seed: int) -> dict[str, Pool]:
    """What the marks of each split are made of; refused if a split has no picture."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(pictures, key=_hash_of):
        names[pictures[name][0].code].append(name)
    by_split: dict[str, dict[str, list[Picture]]] = {split: defaultdict(list) for split in SPLIT_SHARES}
    for code, several in names.items():
        for name, split in zip(several, cycle(ICON_SPLITS), strict=False):
            by_split[split][code] += pictures[name]
    if empty := [split for split, found in by_split.items() if not found]:
        raise InputError(
            f"the package has no drawing of an icon for {', '.join(empty)}: a leaf needs three icons for these"
        )
    n_of = {split: share * n_marks for split, share in SPLIT_SHARES.items()}
    words = _invent(_word, {split: n / MARKS_OF_A_WORD for split, n in n_of.items()}, np.random.default_rng([seed, 3]))
    initials = _invent(_initials, {split: 8 + n / 12 for split, n in n_of.items()}, np.random.default_rng([seed, 4]))
    texts = {split: {word_of(text) for text in (*words[split], *initials[split])} for split in SPLIT_SHARES}
    return {
        split: Pool(
            by_split[split],
            words[split],
            initials[split],
            [typeface for typeface, file in TYPEFACES.items() if _family(file) in FONT_SPLITS[split]],
            frozenset().union(*(texts[other] for other in texts if other != split)),
        )
        for split in SPLIT_SHARES
    }


def _family(file: str) -> str:
    return next(family for family, files in FAMILIES.items() if file in files)


def _invent(
    make: Callable[[np.random.Generator], str], numbers: Mapping[str, float], rng: np.random.Generator
) -> dict[str, list[str]]:
    """About so many texts for each split, all different."""
    made: dict[str, None] = {}
    while len(made) < sum(map(round, numbers.values())):
        made.setdefault(make(rng))
    texts = iter(made)
    return {split: [next(texts) for _ in range(round(number))] for split, number in numbers.items()}


def _word(rng: np.random.Generator) -> str:
    """An invented word of two or three syllables."""
    while True:
        syllables = [[rng.choice(sounds) for sounds in (ONSETS, NUCLEI, CODAS)] for _ in range(rng.integers(2, 4))]
        word = "".join(sound for syllable in syllables for sound in syllable)
        if WORD_LENGTHS[0] <= len(word) <= WORD_LENGTHS[1]:
            return word


def _initials(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list(CONSONANTS), rng.integers(2, 4), replace=False)).upper()


def _compose_split(pool: Pool, split: str, n_marks: int, seed: int) -> tuple[list[Mark], list[Query]]:
    """The marks of a split and its queries, which training has none of."""
    number = list(SPLIT_SHARES).index(split)
    n_of_split = round(SPLIT_SHARES[split] * n_marks)
    marks = [compose(pool, np.random.default_rng([seed, number, place])) for place in range(n_of_split)]
    if split == "train":
        return marks, []
    rng = np.random.default_rng([seed, number, n_of_split])
    return marks, copies_of(marks, pool, round(QUERY_SHARE * n_of_split), rng)


def _rows(split: str, marks: Sequence[Mark], queries: Sequence[Query]) -> list[dict[str, object]]:
    """Of the manifest; in training no image has a role."""
    path = f"images/{split}/{{}}{{:05d}}.png".format
    has_role = [False, True] if queries else [None, None]
    rows = [_row(path("", place), split, mark, *has_role) for place, mark in enumerate(marks)]
    for place, query in enumerate(queries):
        original = None if query.original is None else path("", query.original)
        rows.append(_row(path("q", place), split, query.mark, True, False, query.kind, original))
    return rows


def _row(
    path: str,
    split: str,
    mark: Mark,
    is_query: bool | None,
    is_gallery: bool | None,
    copy: str | None = None,
    copy_of: str | None = None,
) -> dict[str, object]:
    return {
        "path": path,
        "split": split,
        "codes": ";".join(codes_of(mark)),
        "is_query": is_query,
        "is_gallery": is_gallery,
        "copy": copy,
        "copy_of": copy_of,
        "layout": mark.layout,
        "pictures": ";".join(picture.name for picture in mark.pictures) or None,
        "drawings": ";".join(picture.drawing for picture in mark.pictures) or None,
        "shape": mark.shape or None,
        "word": mark.word or None,
        "typeface": mark.typeface or None,
        "is_outlined": mark.outlined if mark.word else None,
        "arrangement": mark.arrangement if mark.word else None,
        "n_lines": mark.n_lines if mark.word else None,
        "colours": ";".join(paint.name for paint in mark.paints),
    }


def judge(manifest: pl.DataFrame) -> dict[str, dict[str, list[str]]]:
    """Of each query the mark it copies (``easy``) and others with a word or picture of the two (``hard``)."""
    by_part: dict[tuple[str, str], list[str]] = defaultdict(list)
    parts_of: dict[str, set[str]] = {}
    for path, split, is_gallery, pictures, word in manifest.select(
        "path", "split", "is_gallery", "pictures", "word"
    ).rows():
        parts = {f"picture {name}" for name in (pictures or "").split(";") if name} | {f"word {word_of(word or '')}"}
        parts_of[path] = parts - {"word "}
        for part in parts_of[path] if is_gallery else ():
            by_part[split, part].append(path)
    judged = {}
    for path, split, original in manifest.filter(pl.col("is_query")).select("path", "split", "copy_of").rows():
        parts = parts_of[path] | (parts_of[original] if original else set())
        near = {item for part in parts for item in by_part[split, part]} - {original}
        judged[path] = {"easy": [original] if original else [], "hard": sorted(near), "junk": []}
    return judged


def _about(manifest: pl.DataFrame) -> list[str]:
    """The sentences of ``SOURCES.md``: how much there is of everything."""
    n_of_split = manifest.group_by("split", "is_query").len().sort("split", "is_query", nulls_last=True).rows()
    per_mark = manifest["codes"].str.split(";").list.len().value_counts().sort("codes").rows()
    per_code = Counter(code for codes in manifest["codes"] for code in codes.split(";"))
    n_items = np.array(sorted(per_code.values()))
    kinds = manifest["copy"].drop_nulls().value_counts().sort("copy").rows()
    return [
        f"{len(manifest)} images: "
        + ", ".join(f"{n} {'queries' if is_query else 'marks'} in {split}" for split, is_query, n in n_of_split)
        + ".",
        f"Codes of an image: {', '.join(f'{n_codes} ({n} images)' for n_codes, n in per_mark)}.",
        f"{len(per_code)} codes; images of a code: {n_items[0]} to {n_items[-1]}, median {int(np.median(n_items))}.",
        f"Queries: {', '.join(f'{kind} {n}' for kind, n in kinds)}.",
        "The words are invented; one that is a name somewhere is so by chance. They are drawn with fonts that",
        "matplotlib ships: DejaVu (licence of Bitstream Vera), STIX (OFL-1.1) and Computer Modern (BaKoMa licence).",
    ]
