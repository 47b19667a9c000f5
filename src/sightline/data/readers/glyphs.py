"""The embedded data set ``glyphs``: characters drawn from the fonts that matplotlib ships.

Needs no download, and its label tree is known: each character (``U+00E9``) has one base letter (``latin e``) and each
base letter one script (``latin``); what is no letter has a family (``arrow left``) and a kind (``arrow``). No character
is in two splits. Each image has its own colours, pose, blur and noise, so that comparing pixels does not solve it.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from sightline.data.readers.source import Record, write_collection
from sightline.errors import InputError, choose, needs_extra
from sightline.progress import tracked

VERSION = 1  # of pictures and manifest: what another version wrote is not taken for this one
SIDE = 64  # pixels


@dataclass(frozen=True)
class GlyphSize:
    """How much of the set to draw: characters, and at most so many typefaces for each; None means all there are."""

    n_characters: int | None
    n_typefaces: int | None


SIZES = {"small": GlyphSize(500, 8), "full": GlyphSize(None, None)}
STYLES = ("", "-bold", "-italic", "-bold-italic")  # oblique ones are called italic too
FAMILIES = {  # the files in the order of the styles
    "dejavu-sans": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    "dejavu-serif": ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    "dejavu-mono": ("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    "dejavu-sans-display": ("DejaVuSansDisplay",),
    "dejavu-serif-display": ("DejaVuSerifDisplay",),
    "stix": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    "computer-modern": ("cmr10", "cmb10", "cmti10"),
    "computer-modern-sans": ("cmss10",),
    "computer-modern-typewriter": ("cmtt10",),
}
TYPEFACES = {name + style: file for name, files in FAMILIES.items() for style, file in zip(STYLES, files, strict=False)}
PLAIN = "dejavu-sans"  # characters are compared in this one: it has them all
LEAST_TYPEFACES = 7
EMPTY = {"dejavu-mono-italic": "\u1d3d"}  # what a typeface claims to have and leaves blank

EM = 200  # type size in pixels at which glyphs are measured and compared
SAME_SHAPE = 0.99  # overlap above which two ink boxes of one size show the same; one letter with two accents is below
SAME_SIZE = 0.12  # em; a difference between ink boxes that the jitter of sizes hides
LETTER = re.compile(r"(LATIN|GREEK|COPTIC|CYRILLIC|ARMENIAN|GEORGIAN|LAO) (.*?)(?: (?:WITH|PRECEDED) .*)?")
UNSCRIPTED_LETTER = re.compile(r".*\b(?:CAPITAL|SMALL) (?:\w+ )?([A-Z])")  # TURNED CAPITAL F does not say it is Latin
BESIDE_THE_LETTER = re.compile(
    r"\b(?:CAPITAL|SMALL|LETTER|LIGATURE|DIGRAPH|SYMBOL|MODIFIER|SUBSCRIPT|EPIGRAPHIC|TURNED|REVERSED|INVERTED|SIDEWAYS"
    r"|OPEN|CLOSED|BARRED|BAR|DOTLESS|DOTTED|DIAERESIZED|SCRIPT|LONGA?|SHORT|FINAL|LUNATE|ARCHAIC|INSULAR|BROKEN|HALF|TOP"
    r"|BOTTOM|STRETCHED|SQUAT|LOOP|TAILLESS|STRAIGHT|IOTIFIED|BIG|BASHKIR|AFRICAN|[A-Z-]+IAN|EGYPTOLOGICAL) ?\b"
)
# Characters other than letters: kinds known by name, kinds known by Unicode category, and the families of a kind.
SHAPES = r"\b(\w+ANGLE|CIRCLE|LOZENGE|STAR|DIAMOND|SQUARE)\b(?! (OP|EQ|SUIT|IMAGE|ORIGINAL|ROOT|CAP|CUP|BRACKET))"
SHOWN = {"arrow": r"ARROW|HARPOON", "block": r"BLOCK$|^QUADRANT|SHADE$", "shape": SHAPES}
KINDS = {"N": "number", "L": "mark", "Sk": "mark", "Sc": "currency", "P": "punctuation", "Sm": "maths", "So": "symbol"}
FAMILIES_OF = SHOWN | {
    "arrow": r"(NORTH|SOUTH) (EAST|WEST)|LEFT RIGHT|UP DOWN|LEFT|RIGHT|UP|DOWN|ANTICLOCKWISE|CLOCKWISE",
    "number": r"FRACTION|ROMAN|\w+$",
    "currency": r"SIGN|SYMBOL",
    "mark": r"TONE BAR|RING|TILDE|ACCENT|MACRON|PSILI|DASIA|DIALYTIKA|PRIME|COMMA|APOSTROPHE|STOP|LINE|COLON",
    "punctuation": r"QUOTATION|APOSTROPHE|COMMA|BRACKET|PARENTHESIS|CEILING|FLOOR|DASH|HYPHEN|LINE|EXCLAMATION|QUESTION"
    r"|INTERROBANG|PRIME|STOP|COLON|ELLIPSIS|DOT|BULLET|ASTERISK|SOLIDUS|DAGGER|PILCROW|\bPER\b",
    "maths": r"LESS-THAN|GREATER-THAN|PRECEDE|SUCCEED|SUBSET|SUPERSET|IMAGE|ORIGINAL|SUBGROUP|TILDE|ALMOST|EQUAL"
    r"|EQUIVALENT|IDENTICAL|INTEGRAL|CIRCLED|SQUARED|PLUS|MINUS|TACK|TURNSTILE|TRUE|ELEMENT|CONTAIN|LOGICAL|UNION|CUP"
    r"|INTERSECTION|CAP\b|MULTISET|PRODUCT|ROOT|ANGLE|PARENTHESIS|BRACKET|DOT|DIVISION|EXIST",
    "symbol": r"SUIT|NOTE|MUSIC|FACE|SUN|MOON|DIE|APL|CORNER|CROP|DEGREE|COPYRIGHT|NOT|ERASE|BOX",
}


def glyph_labels(character: str) -> tuple[str, str]:
    """Base letter and script of a character, whatever its case, accents and turning; else its family and its kind.

    Example:
        >>> glyph_labels("E"), glyph_labels(chr(0xE9)), glyph_labels(chr(0x219F))
        (('latin e', 'latin'), ('latin e', 'latin'), ('arrow up', 'arrow'))
    """
    parts = [part for part in unicodedata.normalize("NFKD", character) if unicodedata.category(part)[0] not in "MZ"]
    root = parts[0] if len(parts) == 1 else character  # a ligature or a fraction stays whole
    name, category = unicodedata.name(root), unicodedata.category(root)
    if category[0] == "L" and (letter := LETTER.fullmatch(name)):
        kind, family = letter[1], BESIDE_THE_LETTER.sub("", letter[2]).strip()
    elif unscripted := UNSCRIPTED_LETTER.fullmatch(name):
        kind, family = "latin", unscripted[1]
    elif name.startswith("BRAILLE"):
        kind, family = "braille", f"{len(name.partition('-')[2])} dots"
    elif name.startswith("BOX DRAWINGS"):
        arms = name.replace("VERTICAL", "UP DOWN").replace("HORIZONTAL", "LEFT RIGHT").split()
        kind, family = "box", f"{len({'UP', 'DOWN', 'LEFT', 'RIGHT'}.intersection(arms))} arms"
    else:
        shown = (kind for kind, words in SHOWN.items() if re.search(words, name))
        kind = next(shown, KINDS.get(category) or KINDS[category[0]])
        family = (re.search(FAMILIES_OF[kind], name) or ("other",))[0]
    return f"{kind} {family}".lower(), kind.lower()


@functools.cache
def font_file(typeface: str) -> str:
    """The path of a typeface that matplotlib ships, by its name in ``TYPEFACES``."""
    with needs_extra("drawing glyphs", "report"):
        import matplotlib
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{choose(TYPEFACES, typeface, 'typeface')}.ttf"))


@functools.cache
def _characters_of(typeface: str) -> frozenset[str]:
    """What a typeface draws, without spaces, combining marks, controls and private characters."""
    file = font_file(typeface)
    from matplotlib.ft2font import FT2Font

    charmap = FT2Font(file).get_charmap()
    known = {chr(code) for code in charmap} - set(EMPTY.get(typeface, ""))
    if typeface.startswith("computer-modern"):  # older than Unicode: other glyphs are not what their codes say
        return frozenset(character for character in known if character.isascii() and character.isalnum())
    return frozenset(character for character in known if unicodedata.category(character)[0] not in "ZMC")


def _ink(character: str, typeface: str, type_size: int) -> Image.Image:
    """A glyph in white on black, cut to its ink; 0 pixels wide if it has none."""
    font = ImageFont.truetype(font_file(typeface), type_size, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), character, fill=255, font=font)
    return canvas.crop(canvas.getbbox() or (0, 0, 0, 0))


@functools.cache
def _distinct_characters() -> tuple[str, ...]:
    """The characters of the set by code point: those that enough typefaces have and that look like no earlier one."""
    n_typefaces = Counter(itertools.chain.from_iterable(_characters_of(typeface) for typeface in TYPEFACES))
    common = sorted(_characters_of(PLAIN) & {character for character, n in n_typefaces.items() if n >= LEAST_TYPEFACES})
    inks = {character: glyph for character in common if (glyph := _ink(character, PLAIN, EM)).width}
    shapes = np.stack([np.asarray(ImageOps.pad(glyph, (48, 48)), np.float32).ravel() / 255 for glyph in inks.values()])
    areas = np.square(shapes).sum(1)
    overlap = 2 * (shapes @ shapes.T) / (areas[:, None] + areas)  # Dice: 1 if equal
    sides = np.array([min(max(glyph.size) / EM, 1.0) for glyph in inks.values()])
    twins = (overlap >= SAME_SHAPE) & (abs(sides[:, None] - sides) < SAME_SIZE)
    # Latin, Greek and Cyrillic A are one picture, and no model can tell them apart: the lowest code point stays.
    kept: dict[int, str] = {}
    for number, character in enumerate(inks):
        if not twins[number, list(kept)].any():
            kept[number] = character
    return tuple(kept.values())


def _generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seeds))


def draw_glyph(character: str, typeface: str, seed: int = 0) -> Image.Image:
    """One character as a 64 x 64 RGB image; the three arguments determine every pixel.

    How far the images of a character differ is set so that an ImageNet network finds some of them without training, and
    has much to learn: EfficientNet-Lite0 reaches a mAP@R of 0.30 on the test split of ``small`` and 0.16 on ``full``.

    Args:
        character: one that the typeface has.
        typeface: a name in ``TYPEFACES``.
        seed: 0 or more; another one gives other colours, pose, blur and noise.

    Example:
        >>> draw_glyph("g", "stix-italic").size
        (64, 64)
    """
    if character not in _characters_of(typeface):
        raise InputError(f"typeface {typeface!r} has no character {character!r}")
    rng = _generator(seed, ord(character), 1 + list(TYPEFACES).index(typeface))  # from 1: a 0 would not change the seed
    coverage = _posed(character, typeface, rng)[:, :, None]
    loud = rng.random() < 0.1  # strong colours, and half of them light on dark
    dark = _wash(rng.uniform(0.0, 0.4 if loud else 0.15, (2, 3)), rng)
    light = _wash(rng.uniform(0.6 if loud else 0.9, 1.0, (2, 3)), rng)
    paint, ground = (light, dark) if loud and rng.random() < 0.5 else (dark, light)
    sharp = _as_image(ground + coverage * (paint - ground))
    blurred = np.asarray(sharp.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.5)))) / 255
    return _as_image(blurred + rng.normal(0.0, rng.uniform(0.03, 0.05), blurred.shape))


def _posed(character: str, typeface: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """(64, 64) in [0, 1], the share of each pixel that the glyph covers: turned, slanted and shifted, never cut off."""
    frame = 2 * SIDE  # reduced at the end, for smooth edges
    glyph = _ink(character, typeface, EM)
    ink_side = max(glyph.size) / EM
    longest = frame * (0.58 + 0.34 * min(ink_side, 1.0)) * rng.uniform(0.95, 1.05)  # more for more ink: O is not o
    if longest > max(glyph.size):  # drawn again, not enlarged
        glyph = _ink(character, typeface, round(longest / ink_side))
    angle = np.deg2rad(rng.uniform(-6, 6))
    turn = longest / max(glyph.size) * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pose = turn @ [[1.0, rng.uniform(-0.06, 0.06)], [0.0, 1.0]] @ np.diag(rng.uniform(0.96, 1.04, 2))
    reach = np.abs(pose) @ glyph.size / 2 + 2  # from the glyph's centre to the edges of its posed box, and a margin
    shrink = min(1.0, *(frame / 2 / reach))
    centre = frame / 2 + rng.uniform(-1, 1, 2) * np.minimum(frame / 2 - shrink * reach, 6)
    back = np.linalg.inv(shrink * pose)  # Pillow asks where in the glyph a pixel of the frame comes from
    matrix = np.column_stack((back, np.array(glyph.size) / 2 + 2 - back @ centre)).ravel().tolist()
    bordered = ImageOps.expand(glyph, 2)  # so that the outermost edges are smooth too
    moved = bordered.transform((frame, frame), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(2)) / 255


def _wash(colours: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """The first colour, (1, 1, 3), or for one in four a gradient from it to the second, (64, 64, 3)."""
    if rng.random() > 0.25:
        return colours[:1, None]
    angle = rng.uniform(0, 2 * np.pi)
    across = np.linspace(-0.7, 0.7, SIDE)[:, None]
    share: NDArray[np.float64] = np.clip(0.5 + across.T * np.cos(angle) + across * np.sin(angle), 0, 1)[:, :, None]
    return colours[:1] + share * np.diff(colours, axis=0)


def _as_image(values: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(values * 255), 0, 255).astype(np.uint8))


def _varied_typefaces(character: str, n_typefaces: int | None, rng: np.random.Generator) -> list[str]:
    """Some typefaces that have the character: one of each family, then a second of each, and so on."""
    families = [[family + style for style in STYLES if family + style in TYPEFACES] for family in FAMILIES]
    having = [[typeface for typeface in family if character in _characters_of(typeface)] for family in families]
    shuffled = [rng.permutation(family).tolist() for family in having if family]
    turns = itertools.zip_longest(*(shuffled[number] for number in rng.permutation(len(shuffled))))
    return list(itertools.islice(filter(None, itertools.chain.from_iterable(turns)), n_typefaces))


def glyph_manifest(size: str = "small", seed: int = 0) -> polars.DataFrame:
    """The table of the images; draws none of them.

    About half of the characters are in ``train``, a tenth in ``val``, the rest in ``test``. With one seed a character
    is in the same split in all sizes, and all images of a smaller size are in a larger one.

    Args:
        size: a name in ``SIZES``.
        seed: 0 or more; chooses characters, typefaces and splits.

    Returns:
        ``path`` below the folder, ``split``, ``label_0`` (code point), ``label_1`` (base letter), ``label_2`` (script),
        ``name`` (Unicode's) and ``typeface``; ordered by code point, then typeface.

    Example:
        >>> glyph_manifest("small").columns
        ['path', 'split', 'label_0', 'label_1', 'label_2', 'name', 'typeface']
    """
    wanted = choose(SIZES, size, "size of glyphs")
    # A generator for each character: if a new font has one more, the others stay where they are.
    generators = {character: _generator(seed, ord(character)) for character in _distinct_characters()}
    draws = {character: rng.random(2).tolist() for character, rng in generators.items()}
    chosen = sorted(draws, key=lambda character: draws[character][0])[: wanted.n_characters]
    rows: list[tuple[str, ...]] = []
    for character in sorted(chosen):
        code, place = f"{ord(character):04X}", draws[character][1]
        split = "train" if place < 0.5 else "val" if place < 0.6 else "test"
        labels = (f"U+{code}", *glyph_labels(character), unicodedata.name(character).lower())
        typefaces = sorted(_varied_typefaces(character, wanted.n_typefaces, generators[character]))
        rows.extend((f"images/{code}/{typeface}.png", split, *labels, typeface) for typeface in typefaces)
    return polars.DataFrame(rows, ["path", "split", "label_0", "label_1", "label_2", "name", "typeface"], orient="row")


def write_glyphs(out: Path, size: str = "small", seed: int = 0, show_progress: bool = False) -> Path:
    """Characters drawn from fonts: code point < base letter < script; needs nothing.

    Draws the images below a folder and writes its ``manifest.csv``, whose path is returned; at once if all is there. The
    folder appears when it is complete: until then the work is in a hidden one beside it, which a failure removes.

    Args:
        out: a folder, new, empty, or with this very set; any other is refused and left as it is.
        size: a name in ``SIZES``.
        seed: 0 or more; chooses characters, typefaces, splits and how each image looks.
        show_progress: draw a bar.
    """
    record: Record = {"data": "glyphs", "version": VERSION, "size": size, "seed": seed}

    def fill(draft: Path) -> tuple[polars.DataFrame, str]:
        manifest = glyph_manifest(size, seed)
        rows = manifest.select("path", "label_0", "typeface").rows()
        for path, label, typeface in tracked(rows, "Drawing glyphs", len(rows), show_progress):
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            draw_glyph(chr(int(label[2:], 16)), typeface, seed).save(draft / path)
        return manifest, ""

    return write_collection(out, record, fill, record_name="glyphs.json")
