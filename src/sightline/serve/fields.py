"""What people can filter a gallery by: the fields of its metadata, their values and ranges."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery, Value
from sightline.serve.schemas import HIDDEN, FieldBody, ValueCount

MOST_VALUES = 200
AT_ONCE = 5000  # items read at a time: others read in between
FRESH_SECONDS = 5.0  # a gallery that is written to all the time is not read through for each question


def relation(query: list[str] | None, item: list[str]) -> int | None:
    """How many label levels an item shares with a query, from the coarsest on; None where the query has no labels.

    Example:
        >>> relation(["oak", "tree"], ["elm", "tree"]), relation(["oak", "tree"], ["oak", "name"])
        (1, 0)
    """
    if not query:
        return None
    if len(query) != len(item):
        return 0
    n_shared = 0
    for ours, theirs in zip(reversed(query), reversed(item), strict=True):
        if ours != theirs:
            break
        n_shared += 1
    return n_shared


def summarised(rows: Iterable[dict[str, Value]]) -> list[FieldBody]:
    """The fields of these items: kind, most frequent values or range; labels first, then by name."""
    values: dict[str, Counter[Value]] = {}
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if value is None or name in HIDDEN or name in BOX:
                continue
            # True and 1 are equal, and would be counted as one.
            values.setdefault(name, Counter())[str(value) if isinstance(value, bool) else value] += 1
            kinds.setdefault(name, set()).add(_kind(value))
    return [_field(name, kinds[name], values[name]) for name in sorted(values, key=_order)]


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def _order(name: str) -> tuple[bool, int, str]:
    number = name.removeprefix("label_")
    is_label = name.startswith("label_") and number.isdecimal()
    return not is_label, int(number) if is_label else 0, name


def _field(name: str, kinds: set[str], values: Counter[Value]) -> FieldBody:
    if kinds == {"number"}:
        numbers = [float(value) for value in values if value is not None]
        return FieldBody(name=name, kind="number", values=None, min=min(numbers), max=max(numbers))
    frequent = sorted(values.items(), key=lambda pair: (-pair[1], str(pair[0])))[:MOST_VALUES]
    is_bool = kinds == {"bool"}
    counted = [ValueCount(value=value == "True" if is_bool else str(value), count=count) for value, count in frequent]
    return FieldBody(name=name, kind="bool" if is_bool else "text", values=counted, min=None, max=None)


def _rows(gallery: Gallery) -> Iterator[dict[str, Value]]:
    """What is known of each item, some at a time."""
    ids = gallery.ids()
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        try:
            found = gallery.metadata(part)
        except InputError:  # one was removed meanwhile
            there = set(gallery.ids())
            found = gallery.metadata([id_ for id_ in part if id_ in there])
        yield from found


@dataclass
class Fields:
    """The fields of one gallery, remembered until it changes."""

    _generation: int = -1
    _since: float = 0.0
    _found: list[FieldBody] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def of(self, gallery: Gallery) -> list[FieldBody]:
        """The gallery's fields, at most some seconds old."""
        with self._lock:
            is_fresh = time.monotonic() - self._since < FRESH_SECONDS
            if self._found is None or (gallery.generation != self._generation and not is_fresh):
                self._generation = gallery.generation
                self._found, self._since = summarised(_rows(gallery)), time.monotonic()
            return self._found

    def levels(self, gallery: Gallery) -> list[str]:
        """The names of the label levels, finest first."""
        named = [field.name for field in self.of(gallery)]
        n_levels = 0
        while f"label_{n_levels}" in named:
            n_levels += 1
        return named[:n_levels]
