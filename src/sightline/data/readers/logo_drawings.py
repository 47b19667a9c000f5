"""Read the drawings of brands out of icon packages: whose logo each is, and its SVG."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sightline.data.readers.packages import read_archive, read_json
from sightline.errors import InputError

Files = dict[str, bytes]
VARIANT = re.compile(r"-(icon|logo|dark|light|square|badge|alt|old)$|^square-")
STREAMLINE_VARIANT = re.compile(r"-logo(-\d)?(-block|-solid)?$")
SPELLED = {"+": "plus", "&": "and", "#": "sharp"}
CATCH_ALL = frozenset(("Software", "General", "Other", "Platform", "Services", "Business"))


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
    for entry in cast(list[dict[str, Any]], read_json(archive, files, "devicon.json")):
        for version in entry["versions"]["svg"]:
            path = f"icons/{entry['name']}/{entry['name']}-{version}.svg"
            if "wordmark" not in version and path in files:
                key, tags = brand_key(entry["name"]), tuple(entry["tags"])
                name = f"{entry['name']}-{version}"
                yield Drawing("devicon", name, key, files[path].decode(), tags, _keys(entry["altnames"]))


def _simple_icons(archive: Path) -> Iterator[Drawing]:
    files = read_archive(archive, lambda path: path == "data/simple-icons.json" or path.startswith("icons/"))
    for entry in cast(list[dict[str, Any]], read_json(archive, files, "data/simple-icons.json")):
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


def _iconify(collection: str, variant: re.Pattern[str] = VARIANT) -> Callable[[Path], Iterator[Drawing]]:
    """The reader of a package of Iconify; where a name is there with ``-icon`` too, without it is the wordmark."""

    def read(archive: Path) -> Iterator[Drawing]:
        files = read_archive(archive, lambda path: path in ("icons.json", "metadata.json"))
        listed = cast(dict[str, Any], read_json(archive, files, "icons.json"))
        metadata = cast(dict[str, Any], json.loads(files.get("metadata.json", b"{}")))
        category_of = {name: group for group, found in metadata.get("categories", {}).items() for name in found}
        for name, icon in listed["icons"].items():
            if f"{name}-icon" in listed["icons"]:
                continue
            left, top, width, height = (
                icon.get(side, listed.get(side, default))
                for side, default in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
            )
            box = f'viewBox="{left} {top} {width} {height}" width="{width}" height="{height}"'
            linked = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
            svg = f"<svg {linked} {box}>{icon['body']}</svg>"
            categories = (category_of[name],) if name in category_of else ()
            yield Drawing(collection, name, brand_key(_without_variant(name, variant)), svg, categories)

    return read


READERS: dict[str, Callable[[Path], Iterator[Drawing]]] = {
    "logos": _iconify("logos"),
    "devicon": _devicon,
    "thesvg": _thesvg,
    "skill-icons": _iconify("skill-icons"),
    "simple-icons": _simple_icons,
    "streamline-logos": _iconify("streamline-logos", STREAMLINE_VARIANT),
    "fa7-brands": _iconify("fa7-brands"),
    "bxl": _iconify("bxl"),
    "cib": _iconify("cib"),
}


def read_drawings(collection: str, archive: Path) -> list[Drawing]:
    """All drawings of one package but those of the brand's name in letters (wordmarks), where it tells them apart.

    Args:
        collection: a name in ``READERS``.
        archive: its checked archive.
    """
    try:
        drawings = list(READERS[collection](archive))
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
