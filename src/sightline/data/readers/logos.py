"""The same brand's logo as several icon collections draw it: brand < category.

Drawings are read out of icon packages, rendered, joined by brand, and left out where they look like an earlier one but for
size, margin and colour.
"""

import io
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import as_rgb, open_image
from sightline.data.readers.archives import NpmPackage, npm_archives, read_archive, read_member
from sightline.data.readers.source import Record, sources_page, split_of, write_collection
from sightline.errors import InputError
from sightline.progress import tracked

PACKAGES = {  # of two drawings that look alike the one of the earlier package stays
    "logos": NpmPackage(
        "@iconify-json/logos",
        "1.2.18",
        "Qehd7RmUbYM4LSXNHFqulgvmdmqldOxQ3VDbCmzos5IGlo40+cChVdX7GnG9VODBU0H3+Bb8npYOkplooJZvtQ==",
        "CC0-1.0",
    ),
    "devicon": NpmPackage(
        "devicon",
        "2.17.0",
        "2nKUdjobJlmRSaCHa50PGsVq0VDURnq9gVzQoJggsM/NKN0tLhC/Uq2zmy2pH36Q/1q3gvYwp/GjTgv/R0Ysbg==",
        "MIT",
    ),
    "simple-icons": NpmPackage(
        "simple-icons",
        "16.36.0",
        "+VNPPkqSOLidFeSgBKUWX4n50WPpDC09hav+BgS26anIF1oQOlGBb8LvwGR+6fYRjo+B6CiKzNBceMPkSVXANQ==",
        "CC0-1.0",
    ),
    "thesvg": NpmPackage(
        "@thesvg/icons",
        "3.3.8",
        "3NbRF2NT7LMURWY8eVqQiVdsi5PVjV+9g8182IuNgMAvJcaDgB5pCjy+DhNyazwQrvFBpWB8vafNF7n3YSf6Fw==",
        "MIT",
    ),
    "skill-icons": NpmPackage(
        "@iconify-json/skill-icons",
        "1.2.4",
        "S6iRKHGlGCb/zfx3Isv1TBe5PunbDE5FEwJcaXji60+yRZMrcFFtYEI1xivKqaGKXyVZ508yjGDItsehQdJmSg==",
        "MIT",
    ),
    "streamline-logos": NpmPackage(
        "@iconify-json/streamline-logos",
        "1.2.0",
        "eEMC8BvJTCUiR/xdAjKuJwRGnKV5v9Prp2wgONFLKILq1om/5Pz+EUsFXVqYSVeIAUfguaB2tjy1wM7wJbs0IQ==",
        "CC-BY-4.0",
    ),
    "fa7-brands": NpmPackage(
        "@iconify-json/fa7-brands",
        "1.2.4",
        "60acXyxhQl1lddBH5YGzfQLkzlP9jqNcblFmgel7lJpgsVx/4QmrXAL90ARb8XhHX7dFMGRDmlqER9mq8aaz2g==",
        "CC-BY-4.0",
    ),
    "bxl": NpmPackage(
        "@iconify-json/bxl",
        "1.2.4",
        "R6gVQSxB1+XeVClK7KdACnk1SfP8xiAu6LHuKZmp6Ro5zwMQbpe9vFBv30F6eHMDL8lZ7eXuac5SRJ9C8DKehQ==",
        "MIT",
    ),
    "cib": NpmPackage(
        "@iconify-json/cib",
        "1.2.3",
        "MMvRXVTHt82z3bYN19JDAjv/X8OBNC/1B3I334SV/1nyhdPeeyvJZVoI1cGuNqYznBjMnWxKPtIhhiVgGQ1CzQ==",
        "CC0-1.0",
    ),
}
VERSION = 1
SIDE = 128
MAX_ASPECT = 2.0
UNSORTED = "unsorted"
ABOUT = (
    "Two drawings are near-duplicates if, cut to what is drawn and without colour, at 32 x 32, at most 8 of 64 bits of",
    "their perceptual hash and 0.05 of their mean darkness differ.",
    "The logos are trademarks of their owners, whatever the licence of the drawing.",
)
TELLS_CATEGORY = {"thesvg": 0, "devicon": 1}  # before the others
VARIANT = re.compile(r"-(icon|logo|dark|light|square|badge|alt|old)$|^square-")
STREAMLINE_VARIANT = re.compile(r"-logo(-\d)?(-block|-solid)?$")
SPELLED = {"+": "plus", "&": "and", "#": "sharp"}
CATCH_ALL = frozenset(("Software", "General", "Other", "Platform", "Services", "Business"))
INK_SIDE, MAX_BITS, MAX_DIFFERENCE, LEAST_INK, BLOCK = 32, 8, 0.05, 0.15, 2048  # of near-duplicates


@dataclass(frozen=True)
class Drawing:
    """One SVG of one brand.

    Attributes:
        collection: the package it is from.
        name: what the package calls it, unique there.
        brand: :func:`brand_key` of the name without the words that say which variant it is.
        svg: the text of the file.
        categories: what the package says the brand is, most important first.
        aliases: keys of other names of the brand.
    """

    collection: str
    name: str
    brand: str
    svg: str
    categories: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def brand_key(name: str) -> str:
    """The letters and digits of a name, in lower case and without accents; ``.js`` and ``dotjs`` are alike.

    Example:
        >>> [brand_key(name) for name in ("Vue.js", "vuedotjs", "vue-js", "C++", "Citroën")]
        ['vuejs', 'vuejs', 'vuejs', 'cplusplus', 'citroen']
    """
    for sign, word in SPELLED.items():
        name = name.replace(sign, word)
    plain = unicodedata.normalize("NFKD", name.lower())
    key = "".join(letter for letter in plain if letter.isalnum())
    return re.sub(r"(?<=\w)dot(js|io|com|ai|org|net|dev|app)$", r"\1", key)


def _keys(words: object) -> tuple[str, ...]:
    return tuple(filter(None, (brand_key(str(word)) for word in words))) if isinstance(words, list) else ()


def _without_variant(name: str, variant: re.Pattern[str] = VARIANT) -> str:
    while (shorter := variant.sub("", name)) not in (name, ""):
        name = shorter
    return name


def _devicon(archive: Path) -> Iterator[Drawing]:
    files = read_archive(archive, lambda path: path == "devicon.json" or path.startswith("icons/"))
    for entry in cast(list[dict[str, Any]], read_member(archive, files, "devicon.json")):
        for version in entry["versions"]["svg"]:
            path = f"icons/{entry['name']}/{entry['name']}-{version}.svg"
            if "wordmark" not in version and path in files:
                key, tags = brand_key(entry["name"]), tuple(entry["tags"])
                name = f"{entry['name']}-{version}"
                yield Drawing("devicon", name, key, files[path].decode(), tags, _keys(entry["altnames"]))


def _simple_icons(archive: Path) -> Iterator[Drawing]:
    files = read_archive(archive, lambda path: path == "data/simple-icons.json" or path.startswith("icons/"))
    for entry in cast(list[dict[str, Any]], read_member(archive, files, "data/simple-icons.json")):
        slug = entry["slug"]
        if content := files.get(f"icons/{slug}.svg"):
            coloured = content.decode().replace("<svg ", f'<svg fill="#{entry["hex"]}" ', 1)
            other_names = entry.get("aliases", {}).get("aka", [])
            yield Drawing("simple-icons", slug, brand_key(slug), coloured, (), _keys([*other_names, entry["title"]]))


def _thesvg(archive: Path) -> Iterator[Drawing]:
    """Modules of JavaScript, one a brand, whose values are JSON but for the SVG, which stands between backticks.

    Its aliases are left out: it calls the worker of Kubernetes ``node``.
    """
    files = read_archive(archive, lambda path: path.startswith("dist/") and path.endswith(".js"))
    for path, content in sorted(files.items()):
        text, slug = content.decode(), Path(path).stem
        listed = re.search(r"^export const categories = (\[.*\]);$", text, re.M)
        categories = json.loads(listed[1]) if listed else []
        telling = [word for word in categories if word not in CATCH_ALL] or categories
        variants = text.partition("export const variants = ")[2]
        for variant, svg in re.findall(r'^  "([\w-]+)": `((?:[^`\\]|\\.)*)`', variants, re.M):
            if variant in ("default", "mono", "light", "dark", "color", "line"):
                drawn = re.sub(r"\\(.)", r"\1", svg)
                brand = brand_key(_without_variant(slug))
                yield Drawing("thesvg", f"{slug}-{variant}", brand, drawn, tuple(telling))


def _iconify(archive: Path, collection: str, variant: re.Pattern[str] = VARIANT) -> Iterator[Drawing]:
    """A package of Iconify; where a name is there with ``-icon`` too, without it is the wordmark."""
    files = read_archive(archive, lambda path: path in ("icons.json", "metadata.json"))
    listed = cast(dict[str, Any], read_member(archive, files, "icons.json"))
    metadata = cast(dict[str, Any], json.loads(files.get("metadata.json", b"{}")))
    category_of = {name: group for group, found in metadata.get("categories", {}).items() for name in found}
    for name, icon in listed["icons"].items():
        if f"{name}-icon" in listed["icons"]:
            continue
        sides = {"left": 0, "top": 0, "width": 16, "height": 16}
        left, top, width, height = (icon.get(side, listed.get(side, default)) for side, default in sides.items())
        box = f'viewBox="{left} {top} {width} {height}" width="{width}" height="{height}"'
        linked = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        svg = f"<svg {linked} {box}>{icon['body']}</svg>"
        categories = (category_of[name],) if name in category_of else ()
        yield Drawing(collection, name, brand_key(_without_variant(name, variant)), svg, categories)


DRAWINGS: dict[str, Callable[[Path], Iterator[Drawing]]] = {
    "devicon": _devicon,
    "thesvg": _thesvg,
    "simple-icons": _simple_icons,
    "streamline-logos": partial(_iconify, collection="streamline-logos", variant=STREAMLINE_VARIANT),
    **{name: partial(_iconify, collection=name) for name in ("logos", "skill-icons", "fa7-brands", "bxl", "cib")},
}


def read_drawings(collection: str, archive: Path) -> list[Drawing]:
    """All drawings of one package but those of the brand's name in letters (wordmarks), where it tells them apart.

    Args:
        collection: a name in ``DRAWINGS``.
        archive: its checked archive.
    """
    try:
        drawings = list(DRAWINGS[collection](archive))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{archive.name}: not laid out as {collection} is: {type(error).__name__} {error}") from error
    if not drawings:
        raise InputError(f"{archive.name}: has no drawing where {collection} keeps them")
    return drawings


def same_brands(drawings: list[Drawing]) -> dict[str, str]:
    """What each brand key stands for, from aliases and from names that differ by ``js`` or ``apache`` alone.

    An alias counts unless the package that gives it draws a brand of that name too.
    """
    keys_of: dict[str, set[str]] = {}
    for drawing in drawings:
        keys_of.setdefault(drawing.collection, set()).add(drawing.brand)
    keys = set().union(*keys_of.values())
    shorter = [(key, short) for key in sorted(keys) for short in (key.removesuffix("js"), key.removeprefix("apache"))]
    pairs = [(key, short) for key, short in shorter if len(short) > 1 and short in keys]
    pairs += [
        (alias, drawing.brand)
        for drawing in drawings
        for alias in drawing.aliases
        if alias in keys and alias not in keys_of[drawing.collection]
    ]
    return joined_names(pairs) | {key: key for key in keys - {key for pair in pairs for key in pair}}


def joined_names(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What each name of the pairs is called when those of a pair are one: the second name of the pair that joined them.

    Example:
        >>> joined_names([("vuejs", "vue"), ("vue3", "vuejs")])
        {'vue': 'vue', 'vuejs': 'vue', 'vue3': 'vue'}
    """
    name_of: dict[str, str] = {}

    def last(name: str) -> str:
        while name_of.setdefault(name, name) != name:
            name = name_of[name]
        return name

    for one, other in pairs:
        name_of[last(one)] = last(other)
    return {name: last(name) for name in name_of}


@dataclass(frozen=True)
class Ink:
    """What the drawing is without its colours.

    Attributes:
        aspect: width of what is drawn, in heights.
        pixels: (32, 32) float32 in [0, 1]: how dark, white being 0 and the darkest 1; cut to what is drawn, in a square.
        hash: 64 bits, one for each of 8 x 8 fields: darker than their mean or not.
    """

    aspect: float
    pixels: NDArray[np.float32]
    hash: np.uint64


def ink_of(image: Image.Image) -> Ink | None:
    """The ink of an image on white; None if it is blank, or so pale that it cannot be seen."""
    darkness = 1 - np.asarray(image.convert("L"), np.float32) / 255
    if darkness.max() < LEAST_INK:
        return None
    rows, columns = (np.flatnonzero((darkness > darkness.max() / 10).any(axis)) for axis in (1, 0))
    cut = darkness[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = cut.shape
    side = max(height, width)
    square = np.zeros((side, side), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = cut / cut.max()
    pixels = np.asarray(Image.fromarray(square).resize((INK_SIDE, INK_SIDE), Image.Resampling.BOX))
    fields = pixels.reshape(8, INK_SIDE // 8, 8, INK_SIDE // 8).mean((1, 3)).ravel()
    bits = fields > fields.mean()  # not of frequencies: in a symmetric drawing half of them are 0 and their bits noise
    return Ink(width / height, pixels, np.packbits(bits).view(">u8").astype(np.uint64)[0])


def alike_pairs(inks: list[Ink]) -> list[tuple[int, int]]:
    """The pairs ``(i, j)``, ``i < j``, of near-duplicates: at most 8 of 64 bits and 0.05 of mean darkness apart."""
    hashes = np.array([ink.hash for ink in inks], np.uint64)
    pixels = np.stack([ink.pixels for ink in inks]) if inks else np.empty((0, INK_SIDE, INK_SIDE), np.float32)
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(inks), BLOCK):
        apart = np.bitwise_count(hashes[start : start + BLOCK, None] ^ hashes)
        first, second = np.nonzero(apart <= MAX_BITS)
        first += start
        first, second = first[first < second], second[first < second]
        for part in range(0, len(first), 16 * BLOCK):
            one, other = first[part : part + 16 * BLOCK], second[part : part + 16 * BLOCK]
            near = np.abs(pixels[one] - pixels[other]).mean((1, 2)) <= MAX_DIFFERENCE
            pairs += zip(one[near].tolist(), other[near].tolist(), strict=True)
    return pairs


@dataclass(frozen=True)
class _Rendered:
    drawing: Drawing
    png: bytes  # packed: all the images at once would take a gigabyte
    ink: Ink


def write_logos(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    packages: dict[str, NpmPackage] = PACKAGES,
) -> Path:
    """Brands, each drawn by several collections: brand < category; needs npm, or its packages in --root.

    Every brand of which at least two drawings differ, 128 x 128 on white, and ``manifest.csv``, whose path is returned.
    Columns: ``path``, ``split``, ``label_0`` (brand), ``label_1`` (category), ``collection``, ``name`` (the drawing's,
    in its collection). No brand is in two splits. Brands of different packages are matched by name, alias, and by
    drawings that look alike where one name is part of the other. Left out, and counted in ``SOURCES.md``: drawings that
    cannot be rendered, that are blank on white, that are more than twice as wide as high or the reverse (wordmarks),
    that look like an earlier drawing of their brand, and that look like a drawing of another brand.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder of archives made by ``npm pack``; None fetches them.
        packages: the package of each collection, by its name in ``DRAWINGS``.
    """
    pinned = [f"{package.name}@{package.version}" for package in packages.values()]
    record: Record = {"data": "logos", "version": VERSION, "packages": pinned}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives(list(packages.values()), root, show_progress) as found:
            drawings = [d for name, file in zip(packages, found, strict=True) for d in read_drawings(name, file)]
        counts = Counter({"drawings": len(drawings)})
        kept = _distinct(_render_all(_of_several(drawings), counts, show_progress), counts)
        if not kept:
            raise InputError(f"{', '.join(packages)}: no brand has two drawings that differ")
        category_of = {item.drawing.brand: (*item.drawing.categories, UNSORTED)[0] for item in reversed(kept)}
        rows = []
        for item in tracked(kept, "Writing logos", len(kept), show_progress):
            brand, collection, name = item.drawing.brand, item.drawing.collection, item.drawing.name
            path = f"images/{brand}/{collection}-{name}.png"
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_bytes(item.png)
            rows.append((path, split_of("logos", brand), brand, category_of[brand], collection, name))
        columns = ["path", "split", "label_0", "label_1", "collection", "name"]
        manifest = pl.DataFrame(rows, columns, orient="row").sort("path")
        n_of = dict(manifest.group_by("collection").len().iter_rows())
        listed = [(p.name, p.version, p.licence, n_of.get(name, 0)) for name, p in packages.items()]
        return manifest, sources_page("Logos", "brand < category", manifest, ABOUT, listed, counts)

    return write_collection(out, record, fill)


def _of_several(drawings: list[Drawing]) -> list[Drawing]:
    """The drawings under their brand's one key and category, without the brands drawn once."""
    stands_for = same_brands(drawings)
    n_of = Counter(stands_for[drawing.brand] for drawing in drawings)
    category_of: dict[str, tuple[str, ...]] = {}
    for drawing in sorted(drawings, key=lambda drawing: TELLS_CATEGORY.get(drawing.collection, len(TELLS_CATEGORY))):
        if drawing.categories:
            category_of.setdefault(stands_for[drawing.brand], drawing.categories[:1])
    return [
        replace(drawing, brand=brand, categories=category_of.get(brand, ()))
        for drawing in drawings
        if n_of[brand := stands_for[drawing.brand]] > 1
    ]


def _render(drawing: Drawing) -> Image.Image | None:
    """The drawing in the middle of a white square; None if it cannot be rendered."""
    import resvg_py

    try:
        content = resvg_py.svg_to_bytes(svg_string=drawing.svg, width=SIDE, skip_system_fonts=True)
    except ValueError:
        return None
    image = as_rgb(open_image(io.BytesIO(content)))
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (SIDE, SIDE), "white")
    square.paste(image, ((SIDE - image.width) // 2, (SIDE - image.height) // 2))
    return square


def _render_all(drawings: list[Drawing], counts: Counter[str], show_progress: bool) -> list[_Rendered]:
    """The drawings that can be used; why each other cannot goes into the counts."""
    try:
        import resvg_py  # noqa: F401
    except ImportError as error:
        raise InputError("logos are drawings: resvg-py is needed to render them; pip install 'sightline[svg]'") from error
    rendered: list[_Rendered] = []
    counts["of brands drawn at least twice"] = len(drawings)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = tracked(pool.map(_render, drawings), "Rendering logos", len(drawings), show_progress)
        for drawing, image in zip(drawings, images, strict=True):
            ink = ink_of(image) if image else None
            if image is None:
                counts["left out: cannot be rendered"] += 1
            elif ink is None:
                counts["left out: blank on white"] += 1
            elif not 1 / MAX_ASPECT <= ink.aspect <= MAX_ASPECT:
                counts["left out: wordmarks, more than twice as wide as high or the reverse"] += 1
            else:
                packed = io.BytesIO()
                image.save(packed, "png")
                rendered.append(_Rendered(drawing, packed.getvalue(), ink))
    return rendered


def _distinct(rendered: list[_Rendered], counts: Counter[str]) -> list[_Rendered]:
    """Brands whose drawings show that they are one joined, near-duplicates removed, brands with two drawings left."""
    pairs = alike_pairs([item.ink for item in rendered])
    brands = {tuple(sorted((rendered[i].drawing.brand, rendered[j].drawing.brand), key=len)) for i, j in pairs}
    within = sorted((long, short) for short, long in brands if short != long and len(short) > 2 and short in long)
    joined = joined_names(within)
    counts["brands joined, for a name within a name and drawings alike"] = len(joined) - len(set(joined.values()))
    items = [
        replace(item, drawing=replace(item.drawing, brand=joined.get(item.drawing.brand, item.drawing.brand)))
        for item in rendered
    ]
    alike: dict[int, list[int]] = {}
    shared: set[int] = set()
    for i, j in pairs:
        if items[i].drawing.brand == items[j].drawing.brand:
            alike.setdefault(j, []).append(i)
        else:
            shared |= {i, j}
    counts["left out: like a drawing of another brand"] = len(shared)
    kept: set[int] = set()
    for number in range(len(items)):
        if number in shared:
            continue
        if any(other in kept for other in alike.get(number, [])):
            counts["left out: near-duplicates of an earlier drawing of the brand"] += 1
        else:
            kept.add(number)
    n_of = Counter(items[number].drawing.brand for number in kept)
    counts["left out: the only drawing left of its brand"] = sum(n == 1 for n in n_of.values())
    return [items[number] for number in sorted(kept) if n_of[items[number].drawing.brand] > 1]
