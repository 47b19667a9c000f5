"""What marks consist of: parts of a pool, chosen at random for a layout; and what becomes of them in a copy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from sightline.data.readers.trademarks.drawing import ROOM
from sightline.data.readers.trademarks.marks import (
    BLACK,
    HUES,
    SHAPES,
    STRAIGHT,
    Mark,
    Paint,
    Picture,
    codes_of,
    is_initials,
    lettering,
    paint_of,
)

CONSONANTS = "bcdfghjklmnpqrstvwxz"
SOUNDS_LIKE = ("aeo", "iey", "ou", "ckq", "szx", "vwf", "bp", "dt", "gj", "mn", "lr")
MOST_TRIES = 20
PLAIN_SHARE, BLACK_WEIGHT, TWO_PAINTS_SHARE = 0.6, 10.0, 0.35
NEW = "new"


@dataclass(frozen=True)
class Rule:
    """What marks of a layout have.

    Attributes:
        weight: how often it is chosen.
        n_pictures: in it.
        shapes: one of these is its frame, or stands where a picture would; empty for none.
        share_with_shape: how often it has one.
        writing: ``word`` or ``initials``; empty for none.
        share_with_writing: how often it has that.
        arrangements: of its letters.
        most_lines: below its word.
    """

    weight: int
    n_pictures: int = 0
    shapes: tuple[str, ...] = ()
    share_with_shape: float = 1.0
    writing: str = ""
    share_with_writing: float = 1.0
    arrangements: tuple[str, ...] = (STRAIGHT,)
    most_lines: int = 0


FRAMES, FIGURES = tuple(ROOM), tuple(shape for shape in SHAPES if shape != "shield")
RULES = {
    "picture": Rule(8, 1),
    "beside": Rule(14, 1, writing="word"),
    "above": Rule(14, 1, writing="word", arrangements=(STRAIGHT, STRAIGHT, "slope")),
    "pair": Rule(6, 2, writing="word", share_with_writing=0.6),
    "figure": Rule(6, shapes=tuple(SHAPES), writing="word"),
    "emblem": Rule(14, 1, shapes=tuple(shape for shape in FRAMES if shape not in ("ellipse", "rectangle")), writing="word",
                   share_with_writing=0.5),
    "seal": Rule(6, 1, shapes=("circle",), writing="word", arrangements=("circle",)),
    "word": Rule(10, writing="word", arrangements=(STRAIGHT, STRAIGHT, "curve", "slope", "down"), most_lines=3),
    "badge": Rule(7, shapes=FRAMES, writing="word"),
    "initials": Rule(6, shapes=FRAMES, share_with_shape=0.75, writing="initials"),
    "letter": Rule(5, 1, writing="word"),
    "pattern": Rule(4, 1, shapes=FIGURES, share_with_shape=0.4),
    "ring": Rule(5, 1, shapes=FIGURES, share_with_shape=0.4, writing="initials", share_with_writing=0.5),
}  # fmt: skip


@dataclass(frozen=True)
class Pool:
    """What the marks of a split are made of; no two splits share any of it.

    Attributes:
        pictures: by code.
        words: invented.
        initials: two or three letters.
        typefaces: by name.
        taken: words and initials of the other splits, in small letters.
    """

    pictures: Mapping[str, Sequence[Picture]]
    words: Sequence[str]
    initials: Sequence[str]
    typefaces: Sequence[str]
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Query:
    """A held-out query.

    Attributes:
        mark: what it shows.
        kind: of copy, a name in ``COPIES``; ``new`` for a mark that copies none.
        original: number of the copied mark in its split; None for a new one.
    """

    mark: Mark
    kind: str
    original: int | None


def word_of(text: str) -> str:
    """The word that a mark shows, however it is written and without its numeral.

    Example:
        >>> word_of("Velora54")
        'velora'
    """
    return text.lower().rstrip("0123456789")


def compose(pool: Pool, rng: np.random.Generator) -> Mark:
    """A mark with a code, of a layout chosen at random and of parts that the layout has."""
    while not codes_of(mark := _any_mark(pool, rng)):
        pass
    return mark


def _any_mark(pool: Pool, rng: np.random.Generator) -> Mark:
    weights = np.array([rule.weight for rule in RULES.values()])
    layout = str(rng.choice(list(RULES), p=weights / weights.sum()))
    rule = RULES[layout]
    shape = str(rng.choice(rule.shapes)) if rule.shapes and rng.random() < rule.share_with_shape else ""
    is_instead = shape and layout in ("pattern", "ring")
    pictures = [] if is_instead else [_choose_picture(pool, rng) for _ in range(rule.n_pictures)]
    has_word = rule.writing and rng.random() < rule.share_with_writing
    arrangement = str(rng.choice(rule.arrangements)) if has_word else STRAIGHT
    word = _cased(pool, layout, arrangement, rng) if has_word else ""
    mark = Mark(
        layout,
        (),
        tuple(pictures),
        shape,
        filled=bool(rng.random() < 0.5),
        word=word,
        typeface=_choose_typeface(pool, rng) if word else "",
        outlined=bool(word) and bool(rng.random() < 0.1),
        arrangement=arrangement,
        n_lines=int(rng.integers(0, rule.most_lines + 1)) if arrangement == STRAIGHT else 0,
        proportions=int(rng.integers(1 << 31)),
    )
    return replace(mark, paints=_choose_paints(mark.n_tones, rng))


def _cased(pool: Pool, layout: str, arrangement: str, rng: np.random.Generator) -> str:
    """A word or initials as they are written."""
    if RULES[layout].writing == "initials":
        return str(rng.choice(pool.initials))
    word = str(rng.choice(pool.words))
    if layout in ("word", "badge") and arrangement != "down" and rng.random() < 0.2:
        word += str(rng.integers(10, 100))
    if layout in ("letter", "seal") or arrangement == "down":
        return word.upper()
    return (word.upper, word.capitalize, word.lower)[rng.choice(3, p=(0.45, 0.35, 0.2))]()


def _choose_typeface(pool: Pool, rng: np.random.Generator) -> str:
    """A plain one more often than not, as on marks."""
    is_plain = rng.random() < PLAIN_SHARE
    return str(rng.choice([typeface for typeface in pool.typefaces if (not lettering(typeface)) == is_plain]))


def _choose_picture(pool: Pool, rng: np.random.Generator, code: str = "", without: Picture | None = None) -> Picture:
    """A picture of a code, or of one chosen at random, those with many drawings more often; each icon alike."""
    if not code:
        weights = np.sqrt([len(found) for found in pool.pictures.values()])
        code = str(rng.choice(list(pool.pictures), p=weights / weights.sum()))
    found = [picture for picture in pool.pictures[code] if without is None or picture.drawing != without.drawing]
    names = sorted({picture.name for picture in found})
    if without is not None and len(names) > 1:
        names = [name for name in names if name != without.name]
    name = rng.choice(names)
    of_name = [picture for picture in found if picture.name == name]
    return of_name[rng.integers(len(of_name))]


def _choose_paints(n_tones: int, rng: np.random.Generator, without: Sequence[str] = ()) -> tuple[Paint, ...]:
    """One or two colours; black is the most frequent, as in registers."""
    free = [name for name in (BLACK, *HUES) if name not in without]
    weights = np.array([BLACK_WEIGHT if name == BLACK else 1.0 for name in free])
    n_paints = 2 if n_tones > 1 and rng.random() < TWO_PAINTS_SHARE else 1
    names = rng.choice(free, n_paints, replace=False, p=weights / weights.sum()).tolist()
    return tuple(paint_of(name, rng) for name in names)


def _turned(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    return replace(mark, angle=float(rng.choice((-1, 1)) * rng.uniform(12, 40)))


def _mirrored(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """Pictures and places from left to right, the word as it was; None where nothing would change."""
    is_seen = mark.layout in ("beside", "pair") or any(not picture.is_symmetric for picture in mark.pictures)
    return replace(mark, mirrored=True) if is_seen else None


def _recoloured(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    names = [paint.name for paint in mark.paints]
    while len(paints := _choose_paints(mark.n_tones, rng, names)) != len(names):
        pass
    return replace(mark, paints=paints)


def _other_picture(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """The first picture exchanged for another one of its code."""
    if not mark.pictures or len(pool.pictures[mark.pictures[0].code]) < 2:
        return None
    other = _choose_picture(pool, rng, mark.pictures[0].code, mark.pictures[0])
    return replace(mark, pictures=(other, *mark.pictures[1:]))


def _other_shape(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """The frame or figure exchanged for one of another section."""
    free = [shape for shape in RULES[mark.layout].shapes if mark.shape and SHAPES[shape][0] != SHAPES[mark.shape][0]]
    return replace(mark, shape=str(rng.choice(free))) if free else None


def _other_letters(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """The word in a typeface of another style."""
    code = lettering(mark.typeface)
    free = [typeface for typeface in pool.typefaces if mark.word and lettering(typeface) != code]
    return replace(mark, typeface=str(rng.choice(free)), outlined=False) if free else None


def _other_word(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """Two letters of a word exchanged for others that sound like them; of initials, one for any other."""
    likes, n_letters = ((CONSONANTS,), 1) if is_initials(mark.word) else (SOUNDS_LIKE, 2)
    like_of = {letter: like for like in likes for letter in like}
    places = [place for place, letter in enumerate(mark.word) if letter.lower() in like_of]
    for _ in range(MOST_TRIES if places else 0):
        letters = list(mark.word)
        for place in rng.choice(places, min(len(places), n_letters), replace=False):
            like = like_of[letters[place].lower()].replace(letters[place].lower(), "")
            other = str(rng.choice(list(like)))
            letters[place] = other.upper() if letters[place].isupper() else other
        word = "".join(letters)
        if word_of(word) not in pool.taken:
            return replace(mark, word=word)
    return None


def _several(mark: Mark, pool: Pool, rng: np.random.Generator) -> Mark | None:
    """Recoloured, and one other change."""
    changes = [_turned, _other_picture, _other_shape, _other_word, _other_letters]
    changed = (changes[place](mark, pool, rng) for place in rng.permutation(len(changes)))
    return _recoloured(next(copy for copy in changed if copy), pool, rng)


COPIES: Mapping[str, Callable[[Mark, Pool, np.random.Generator], Mark | None]] = {
    "rotated": _turned,
    "mirrored": _mirrored,
    "recoloured": _recoloured,
    "picture": _other_picture,
    "shape": _other_shape,
    "word": _other_word,
    "letters": _other_letters,
    "several": _several,
}


def copies_of(marks: Sequence[Mark], pool: Pool, number: int, rng: np.random.Generator) -> list[Query]:
    """So many queries, each with a code: as many of each kind of copy, no two of one mark, and as many new marks."""
    left = rng.permutation(len(marks)).tolist()
    queries: list[Query] = []
    for kind, _ in zip(cycle([*COPIES, NEW]), range(number), strict=False):
        if kind == NEW:
            queries.append(Query(compose(pool, rng), NEW, None))
            continue
        for place in left:
            copy = COPIES[kind](marks[place], pool, rng)
            if copy is not None and codes_of(copy):
                left.remove(place)
                queries.append(Query(copy, kind, place))
                break
    return queries
