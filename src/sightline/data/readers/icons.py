"""Icons of one name as many collections draw them, and brands' logos: both from the package in which Iconify gathers them.

Drawings belong together by their names without words of style. One that looks like an earlier drawing but for size, margin
and colour is left out (collections copy each other), and so are drawings that two classes share.
"""

import hashlib
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import as_rgb, open_image
from sightline.data.readers.archives import NpmPackage, archive_files, npm_archives, read_member
from sightline.data.readers.source import Record, sources_page, split_of, write_collection
from sightline.errors import InputError, choose, needs_extra
from sightline.progress import tracked

PACKAGE = NpmPackage(
    "@iconify/json",
    "2.2.535",
    "nAV60ACUSHwnsb6fsp+letHlNkrwO4vzBtcC6B4EDHErQQfezk7E3nJdnwJjve6OCfMNO0uVT5Vrgna9/NCmXw==",
    "of each collection",
)
VERSION = 1
LICENCES = frozenset(  # that let anyone use the drawings, some with attribution
    ("MIT", "ISC", "Apache-2.0", "BSD-3-Clause", "MPL-2.0", "OFL-1.1", "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "Unlicense")
)
STYLE = re.compile(
    r"-(outlined?|fill(ed)?|solid|line|linear|bold|duotone|two-?tone|round(ed)?|sharp|regular|light|thin|broken|bulk|stroke"
    r"|alt|baseline|\d+(px)?)$"
)
VARIANT = re.compile(r"-(icon|logo|dark|light|square|badge|alt|old|original|plain|color|block|solid|mono|default|\d)$")
LOGOS_BESIDE = ("devicon", "skill-icons")  # whose group is programming
CATCH_ALL = frozenset(("general", "other", "misc", "new", "newicon", "android", "common", "unsorted", "regular", "object"))
SHORTEST_NAME = 3  # letters: shorter ones stand for countries, currencies and files alike
MOST_STYLES = 2  # drawings of a class from one collection
MAX_ASPECT = 2.0
UNSORTED = "unsorted"
INK_SIDE, MAX_BITS, MAX_DIFFERENCE, LEAST_INK = 32, 8, 0.05, 0.15  # of near-duplicates
AT_ONCE = 1 << 24  # pairs of hashes compared at once
SPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
BOX = {"left": 0, "top": 0, "width": 16, "height": 16}  # of Iconify, where a collection does not say
COLUMNS = ("path", "split", "label_0", "label_1", "collection", "name")
ABOUT = (
    "Two drawings are near-duplicates if, cut to what is drawn and without colour, at 32 x 32, at most 8 of 64 bits of",
    "their perceptual hash and 0.05 of their mean darkness differ.",
)


@dataclass(frozen=True)
class Drawing:
    """One icon of one collection.

    Attributes:
        collection: its prefix in Iconify.
        name: what the collection calls it.
        key: of its class.
        categories: what collections say it is.
    """

    collection: str
    name: str
    key: str
    categories: tuple[str, ...] = ()


def icon_key(name: str, style: re.Pattern[str] = STYLE) -> str:
    """The name of a drawing without words of style and sizes.

    Example:
        >>> [icon_key(name) for name in ("calendar-outline", "home-24-filled", "arrow-left", "24")]
        ['calendar', 'home', 'arrow-left', '24']
    """
    while (shorter := style.sub("", name)) not in (name, ""):
        name = shorter
    return name


def logo_key(name: str) -> str:
    """The name of a brand without words of style; ``vue-js``, ``vuedotjs`` and ``vuejs`` are alike.

    Example:
        >>> [logo_key(name) for name in ("vuedotjs", "vue-js", "vuejs-icon", "apache-kafka")]
        ['vuejs', 'vuejs', 'vuejs', 'apachekafka']
    """
    return re.sub(r"(?<=\w)dot(js|io|com|ai|org|net|dev|app)$", r"\1", icon_key(name, VARIANT).replace("-", ""))


@dataclass(frozen=True)
class IconRule:
    """How a set is made of the package.

    Attributes:
        title: the set's name.
        levels: what its labels are.
        key: of a drawing's class, from its name.
        of_logos: takes the collections of logos, or all others.
        least: drawings that a class has.
        least_sorted: classes that a category has.
        about: more sentences for ``SOURCES.md``.
    """

    title: str
    levels: str
    key: Callable[[str], str]
    of_logos: bool
    least: int
    least_sorted: int
    about: tuple[str, ...] = ABOUT


ICONS = IconRule("Icons", "name < category", icon_key, False, 4, 20)
LOGOS = IconRule(
    "Logos",
    "brand < category",
    logo_key,
    True,
    2,
    2,
    (*ABOUT, "The logos are trademarks of their owners, whatever the licence of the drawing."),
)


def write_icons(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    size: Literal["small", "full"] = "small",
    side: int = 64,
    package: NpmPackage = PACKAGE,
) -> Path:
    """Icons of one name drawn by at least four collections: name < category; needs npm, or its package in --root.

    Drawn on white, with ``manifest.csv``, whose path is returned. Columns: ``path``, ``split``, ``label_0`` (name),
    ``label_1`` (category), ``collection``, ``name`` (the drawing's, in its collection). No name is in two splits; half of
    the names are ``test``. Collections with a licence that lets anyone use them, with attribution in ``SOURCES.md``.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder with the archive made by ``npm pack``; None fetches it.
        size: ``full``, or ``small`` for every fifth name.
        side: of the square images, in pixels.
        package: the version to read.
    """
    share = choose({"small": 5, "full": 1}, size, "size of icons")
    return _write(ICONS, out, root, side, package, show_progress, share)


def write_logos(
    out: Path, show_progress: bool = False, root: Path | None = None, side: int = 128, package: NpmPackage = PACKAGE
) -> Path:
    """Brands, each drawn by several collections: brand < category; needs npm, or its package in --root.

    The collections of :func:`write_icons` that hold logos, brands of which at least two drawings differ.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder with the archive made by ``npm pack``; None fetches it.
        side: of the square images, in pixels.
        package: the version to read.
    """
    return _write(LOGOS, out, root, side, package, show_progress)


def _write(
    rule: IconRule, out: Path, root: Path | None, side: int, package: NpmPackage, show_progress: bool, share: int = 1
) -> Path:
    name = rule.title.lower()
    record: Record = {"data": name, "version": VERSION, "package": f"{package.name}@{package.version}"}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives([package], root, show_progress) as (archive,):
            infos = icon_collections(archive, rule)
            counts = Counter({"collections": len(infos)})
            drawings = _of_several(icon_drawings(archive, infos, rule), rule.least, share, counts)
            svgs = icon_svgs(archive, drawings)
        kept = distinct_drawings(drawings, svgs, rule.least, side, counts, show_progress)
        if not kept:
            raise InputError(f"{package.name}: no class has {rule.least} drawings that differ")
        category_of = _categories([drawing for drawing, _ in kept], rule.least_sorted)
        rows = []
        for drawing, png in tracked(kept, "Writing images", len(kept), show_progress):
            path = f"images/{drawing.key}/{drawing.collection}-{drawing.name}.png"
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_bytes(png)
            labels = (drawing.key, category_of.get(drawing.key, UNSORTED))
            rows.append((path, split_of(name, drawing.key), *labels, drawing.collection, drawing.name))
        manifest = pl.DataFrame(rows, COLUMNS, orient="row").sort("path")
        listed = attributions(infos, package, Counter(manifest["collection"]))
        return manifest, sources_page(rule.title, rule.levels, manifest, rule.about, listed, counts)

    return write_collection(out, record | {"side": side, "share": share}, fill)


def attributions(infos: Mapping[str, Any], package: NpmPackage, n_of: Mapping[str, int]) -> list[tuple[str, str, str, int]]:
    """For ``SOURCES.md``: name and author, version, licence and number of images of each collection that has some."""
    return [
        (f"{info['name']} ({prefix}), by {info['author']['name']}", package.version, info["license"]["spdx"], n_of[prefix])
        for prefix, info in infos.items()
        if prefix in n_of
    ]


def icon_collections(archive: Path, rule: IconRule) -> dict[str, dict[str, Any]]:
    """What the package says of the collections of a set, by prefix."""
    infos: dict[str, dict[str, Any]] = read_member(
        archive, dict(islice(archive_files(archive, "collections.json"), 1)), "collections.json"
    )
    return {
        prefix: info
        for prefix, info in infos.items()
        if info["license"].get("spdx") in LICENCES
        and (info.get("category") == "Logos" or prefix in LOGOS_BESIDE) == rule.of_logos
    }


def _read_collections(archive: Path, prefixes: Container[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, content in archive_files(archive, "json/"):
        if (prefix := Path(path).stem) in prefixes:
            yield prefix, read_member(archive, {path: content}, path)


def icon_drawings(archive: Path, infos: Mapping[str, Any], rule: IconRule) -> list[Drawing]:
    """Of each class at most two drawings from each collection (often an outline and a filled one): the plainest names."""
    found: dict[tuple[str, str], list[Drawing]] = defaultdict(list)
    for prefix, listed in _read_collections(archive, infos):
        groups: dict[str, list[str]] = defaultdict(list)
        for group, names in listed.get("categories", {}).items():
            for name in names:
                groups[name].append(group)
        for name, icon in sorted(listed["icons"].items(), key=lambda item: (len(item[0]), item[0])):
            key = rule.key(name)
            if len(key) >= SHORTEST_NAME and not icon.get("hidden") and len(found[key, prefix]) < MOST_STYLES:
                found[key, prefix].append(Drawing(prefix, name, key, tuple(groups[name])))
    return [drawing for styles in found.values() for drawing in styles]


def _of_several(drawings: list[Drawing], least: int, share: int, counts: Counter[str]) -> list[Drawing]:
    """The drawings of classes that enough collections have; of small sets one class of several, by a hash of its name."""
    n_collections = Counter(key for key, _ in {(drawing.key, drawing.collection) for drawing in drawings})
    counts["names"], counts["drawings"] = len(n_collections), len(drawings)
    taken = {
        key
        for key, n in n_collections.items()
        if n >= least and int.from_bytes(hashlib.sha256(key.encode()).digest()[-4:], "big") % share == 0
    }
    chosen = [drawing for drawing in drawings if drawing.key in taken]
    counts[f"drawings of names in at least {least} collections"] = len(chosen)
    return sorted(chosen, key=lambda drawing: (drawing.key, drawing.collection))


def icon_svgs(archive: Path, drawings: list[Drawing]) -> list[str]:
    places = [(drawing.collection, drawing.name) for drawing in drawings]
    wanted = {*places}
    svgs = {
        (prefix, name): iconify_svg(listed, icon)
        for prefix, listed in _read_collections(archive, {prefix for prefix, _ in wanted})
        for name, icon in listed["icons"].items()
        if (prefix, name) in wanted
    }
    return [svgs[place] for place in places]


def distinct_drawings(
    drawings: list[Drawing], svgs: list[str], least: int, side: int, counts: Counter[str], show_progress: bool
) -> list[tuple[Drawing, bytes]]:
    """The drawings that can be used, with their images; why each other cannot goes into the counts."""
    usable: list[tuple[Drawing, bytes]] = []
    inks: list[Ink] = []
    for drawing, image in zip(drawings, render_all(svgs, side, show_progress), strict=True):
        ink = ink_of(image) if image else None
        if image is None or ink is None:
            counts["left out: cannot be rendered, or blank on white"] += 1
        elif not 1 / MAX_ASPECT <= ink.aspect <= MAX_ASPECT:
            counts["left out: more than twice as wide as high, or the reverse"] += 1
        else:
            packed = io.BytesIO()
            image.save(packed, "png")
            usable.append((drawing, packed.getvalue()))
            inks.append(ink)
    keys, pairs = [drawing.key for drawing, _ in usable], alike_pairs(inks)
    shared = {number for i, j in pairs if keys[i] != keys[j] for number in (i, j)}
    counts["left out: like a drawing of another class"] = len(shared)
    kept = {*range(len(usable))} - shared
    for i, j in sorted(pairs, key=lambda pair: pair[::-1]):  # what is earlier than j is decided on
        if i in kept and j in kept:
            kept.remove(j)
            counts["left out: near-duplicates of an earlier drawing of the class"] += 1
    n_of = Counter(keys[number] for number in kept)
    numbers = [number for number in sorted(kept) if n_of[keys[number]] >= least]
    counts["left out: of classes with too few drawings left"] = len(kept) - len(numbers)
    return [usable[number] for number in numbers]


def _categories(drawings: list[Drawing], least: int) -> dict[str, str]:
    """The category that most drawings of each class have, of those that enough classes have; spelled alike."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for drawing in drawings:
        plain = (re.sub(r"[^a-z]+", "-", word.lower()).strip("-").removesuffix("s") for word in drawing.categories)
        votes[drawing.key].update(word for word in plain if word and word not in CATCH_ALL)
    n_classes = Counter(word for found in votes.values() for word in found)
    common = {key: [(n, word) for word, n in found.items() if n_classes[word] >= least] for key, found in votes.items()}
    return {key: max(found)[1] for key, found in common.items() if found}


def iconify_svg(collection: Mapping[str, Any], icon: Mapping[str, Any]) -> str:
    """The SVG file of an icon of a collection as Iconify's packages list it; its own sides go before the collection's.

    Example:
        >>> iconify_svg({"height": 24}, {"body": "<path/>", "width": 20}).partition("viewBox=")[2]
        '"0 0 20 24" width="20" height="24"><path/></svg>'
    """
    left, top, width, height = (icon.get(side, collection.get(side, default)) for side, default in BOX.items())
    box = f'viewBox="{left} {top} {width} {height}" width="{width}" height="{height}"'
    return f"<svg {SPACES} {box}>{icon['body']}</svg>"


def render_svg(svg: str, side: int) -> Image.Image | None:
    """The drawing in the middle of a white square; None if it cannot be rendered."""
    import resvg_py

    try:
        content = resvg_py.svg_to_bytes(svg_string=svg, width=side, skip_system_fonts=True)
    except ValueError:
        return None
    image = as_rgb(open_image(io.BytesIO(content)))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (side, side), "white")
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def render_all(drawings: Sequence[str], side: int, show_progress: bool = False) -> Iterator[Image.Image | None]:
    """What :func:`render_svg` gives for each of the drawings, in parallel."""
    with needs_extra("reading SVG drawings", "svg"):
        import resvg_py  # noqa: F401
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = pool.map(partial(render_svg, side=side), drawings)
        yield from tracked(images, "Rendering drawings", len(drawings), show_progress)


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
    spare = [max(cut.shape) - side for side in cut.shape]
    square = np.pad(cut / cut.max(), [(margin // 2, margin - margin // 2) for margin in spare])
    pixels = np.asarray(Image.fromarray(square).resize((INK_SIDE, INK_SIDE), Image.Resampling.BOX))
    fields = pixels.reshape(8, INK_SIDE // 8, 8, INK_SIDE // 8).mean((1, 3)).ravel()
    bits = fields > fields.mean()  # not of frequencies: in a symmetric drawing half of them are 0 and their bits noise
    return Ink(cut.shape[1] / cut.shape[0], pixels, np.packbits(bits).view(">u8").astype(np.uint64)[0])


def alike_pairs(inks: list[Ink]) -> list[tuple[int, int]]:
    """The pairs ``(i, j)``, ``i < j``, of near-duplicates: at most 8 of 64 bits and 0.05 of mean darkness apart."""
    hashes = np.array([ink.hash for ink in inks], np.uint64)
    pixels = np.stack([ink.pixels for ink in inks]) if inks else np.empty((0, INK_SIDE, INK_SIDE), np.float32)
    pairs: list[tuple[int, int]] = []
    n_rows = max(1, AT_ONCE // max(1, len(inks)))
    for start in range(0, len(inks), n_rows):
        first, second = np.nonzero(np.bitwise_count(hashes[start : start + n_rows, None] ^ hashes) <= MAX_BITS)
        first += start
        first, second = first[first < second], second[first < second]
        for part in range(0, len(first), AT_ONCE // INK_SIDE**2):
            one, other = (numbers[part : part + AT_ONCE // INK_SIDE**2] for numbers in (first, second))
            near = np.abs(pixels[one] - pixels[other]).mean((1, 2)) <= MAX_DIFFERENCE
            pairs += zip(one[near].tolist(), other[near].tolist(), strict=True)
    return pairs
