"""The same brand's logo as several icon collections draw it: brand < category."""

import io
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from PIL import Image

from sightline.data.images import as_rgb, open_image
from sightline.data.readers.folder import Record, sources_page, split_of, write_collection
from sightline.data.readers.logo_drawings import Drawing, joined_names, read_drawings, same_brands
from sightline.data.readers.near_duplicates import Ink, alike_pairs, ink_of
from sightline.data.readers.packages import NpmPackage, npm_archives
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
TELLS_CATEGORY = {"thesvg": 0, "devicon": 1}  # before the others


@dataclass(frozen=True)
class _Rendered:
    drawing: Drawing
    png: bytes  # packed: all the images at once would take a gigabyte
    ink: Ink


def write_logos(
    folder: Path,
    show_progress: bool = False,
    archives: Path | None = None,
    packages: dict[str, NpmPackage] = PACKAGES,
) -> Path:
    """Write every brand of which at least two drawings differ, 128 x 128 on white; returns the path of ``manifest.csv``.

    Columns: ``path``, ``split``, ``label_0`` (brand), ``label_1`` (category), ``collection``, ``name`` (the drawing's,
    in its collection). No brand is in two splits. Brands of different packages are matched by name, alias, and by
    drawings that look alike where one name is part of the other. Left out, and counted in ``SOURCES.md``: drawings that
    cannot be rendered, that are blank on white, that are more than twice as wide as high or the reverse (wordmarks),
    that look like an earlier drawing of their brand, and that look like a drawing of another brand.

    Args:
        folder: new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        archives: a folder of archives made by ``npm pack``; None fetches them.
        packages: the package of each collection, by its name in ``logo_drawings.READERS``.
    """
    record: Record = {
        "data": "logos",
        "version": VERSION,
        "packages": [f"{package.name}@{package.version}" for package in packages.values()],
    }

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives(list(packages.values()), archives, show_progress) as found:
            drawings = [d for name, file in zip(packages, found, strict=True) for d in read_drawings(name, file)]
        counts = Counter({"drawings": len(drawings)})
        rendered = _render_all(_of_several(drawings), counts, show_progress)
        kept = _distinct(rendered, counts)
        if not kept:
            raise InputError(f"{', '.join(packages)}: no brand has two drawings that differ")
        category_of: dict[str, str] = {}
        for item in kept:
            category_of.setdefault(item.drawing.brand, next(iter(item.drawing.categories), UNSORTED))
        rows = []
        for item in tracked(kept, "Writing logos", len(kept), show_progress):
            brand, collection, name = item.drawing.brand, item.drawing.collection, item.drawing.name
            path = f"images/{brand}/{collection}-{name}.png"
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_bytes(item.png)
            rows.append((path, split_of("logos", brand), brand, category_of[brand], collection, name))
        columns = ["path", "split", "label_0", "label_1", "collection", "name"]
        manifest = pl.DataFrame(rows, columns, orient="row").sort("path")
        return manifest, _sources(manifest, packages, counts)

    return write_collection(folder, record, fill)


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


def _sources(manifest: pl.DataFrame, packages: dict[str, NpmPackage], counts: Counter[str]) -> str:
    splits = manifest.group_by("split").agg(pl.len(), pl.col("label_0").n_unique()).sort("split")
    sizes = f"{manifest['label_0'].n_unique()} < {manifest['label_1'].n_unique()}"
    sentences = [
        f"{len(manifest)} images, classes {sizes} (brand < category).",
        "Splits share no brand: "
        + ", ".join(f"{split} {images} images of {brands} brands" for split, images, brands in splits.iter_rows())
        + ".",
        "Two drawings are near-duplicates if, cut to what is drawn and without colour, at 32 x 32, at most 8 of 64 bits of",
        "their perceptual hash and 0.05 of their mean darkness differ.",
        "The logos are trademarks of their owners, whatever the licence of the drawing.",
        "",
        *(f"- {what}: {number}" for what, number in counts.items()),
    ]
    n_of = dict(manifest.group_by("collection").len().iter_rows())
    return sources_page("Logos", sentences, [(p.name, p.version, p.licence, n_of.get(c, 0)) for c, p in packages.items()])
