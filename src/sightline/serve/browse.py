"""Browse a gallery without a query: its items by class, the least typical of each class first; counts of their codes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.gallery.gallery import Gallery, Item, labels_of, lists_of
from sightline.labels.codes import beginnings

AT_ONCE = 5000  # items read at a time: others read in between
SHORTEST = 1e-12  # length of a vector below which it has no direction
Sort = Literal["class", "least_typical"]
Found = TypeVar("Found")


def read_existing(gallery: Gallery, ids: Sequence[str], read: Callable[[Sequence[str]], list[Found]]) -> list[Found]:
    """What ``read`` returns for these ids; items that were removed in the meantime are left out."""
    try:
        return read(ids)
    except InputError:
        there = set(gallery.ids())
        return read([id_ for id_ in ids if id_ in there])


def read_all(gallery: Gallery, read: Callable[[Sequence[str]], list[Found]]) -> Iterator[list[Found]]:
    """What ``read`` returns for all items, some at a time."""
    ids = gallery.ids()
    for start in range(0, len(ids), AT_ONCE):
        yield read_existing(gallery, ids[start : start + AT_ONCE], read)


@dataclass(frozen=True, eq=False)
class Listing:
    """Every item of a gallery with its class and how typical it is of that class.

    Attributes:
        ids: (N,) in the order they were added.
        classes: (N,) the label of each item; empty where it has none.
        typicality: (N,) cosine to the mean of the other items of the class; NaN where there is no other.
    """

    ids: NDArray[np.object_]
    classes: NDArray[np.object_]
    typicality: NDArray[np.float64]

    def order(self, sort: Sort) -> NDArray[np.int64]:
        """(N,) places of the items, least typical first; for ``class`` inside each class, unlabelled items last.

        Items that are alone in their class come after the others.
        """
        return self._by_typicality if sort == "least_typical" else self._by_class

    @cached_property
    def _by_typicality(self) -> NDArray[np.int64]:
        return np.argsort(self.typicality, kind="stable")  # NaN last

    @cached_property
    def _by_class(self) -> NDArray[np.int64]:
        is_unlabelled = self.classes == ""
        codes = np.unique(self.classes.astype(str), return_inverse=True)[1] + is_unlabelled * (len(self.ids) + 1)
        return self._by_typicality[np.argsort(codes[self._by_typicality], kind="stable")]

    def page(self, sort: Sort, among: Sequence[str] | None, offset: int, limit: int) -> tuple[int, NDArray[np.int64]]:
        """The number of items to page through, and the places of those on one page.

        Args:
            sort: see :meth:`order`.
            among: ids to list; None for all. Those that the listing does not have yet are left out.
            offset: items before the page.
            limit: items on the page, at most.
        """
        order = self.order(sort)
        if among is not None:
            wanted = set(among)
            order = order[np.array([id_ in wanted for id_ in self.ids], bool)[order]]
        return len(order), order[offset : offset + limit]


def read_listing(gallery: Gallery, level: int = 0) -> Listing:
    """The listing of a gallery; reads all vectors twice, some at a time, and needs no more than a mean for each class.

    Args:
        gallery: of any kind.
        level: of the labels, 0 being the finest.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, int] = {}
    for items in read_all(gallery, gallery.get):
        for item, vector in zip(items, _unit_vectors(items), strict=True):
            name = _class_of(item, level)
            sums[name] = sums[name] + vector if name in sums else vector
            counts[name] = counts.get(name, 0) + 1
    ids, classes, typicality = [], [], []
    for items in read_all(gallery, gallery.get):
        for item, vector in zip(items, _unit_vectors(items), strict=True):
            name = _class_of(item, level)
            others = sums.get(name, vector) - vector
            length = float(np.linalg.norm(others))
            has_others = counts.get(name, 0) > 1 and length > SHORTEST
            ids.append(item.id)
            classes.append(name)
            typicality.append(float(vector @ others) / length if has_others else np.nan)
    return Listing(np.array(ids, object), np.array(classes, object), np.array(typicality, np.float64))


def read_lists(gallery: Gallery) -> dict[str, dict[str, list[str]]]:
    """The lists in the metadata of all items, such as their codes: by field and id."""
    found: dict[str, dict[str, list[str]]] = {}
    for items in read_all(gallery, lambda ids: list(zip(ids, gallery.metadata(ids), strict=True))):
        for id_, metadata in items:
            for field, values in lists_of(metadata).items():
                found.setdefault(field, {})[id_] = values
    return found


def count_codes(lists: Iterable[Sequence[str]], within: str = "") -> tuple[Counter[str], set[str]]:
    """How many items have each code one level below a code, or a code below that; and the codes that have further ones.

    Args:
        lists: the codes of each item.
        within: the code; empty for the first level.

    Example:
        >>> lists = [["26.1.15", "5.3"], ["26.1"], ["26.10", "26.1.2"]]
        >>> counts, with_more = count_codes(lists)
        >>> counts, sorted(with_more), count_codes(lists, "26")[0]
        (Counter({'26': 3, '5': 1}), ['26', '5'], Counter({'26.1': 3, '26.10': 1}))
    """
    counts: Counter[str] = Counter()
    with_more: set[str] = set()
    for codes in lists:
        paths = [["", *beginnings(code)] for code in codes]
        below = [path[path.index(within) + 1 :] for path in paths if within in path]
        counts.update({path[0] for path in below if path})
        with_more |= {path[0] for path in below if len(path) > 1}
    return counts, with_more


def _unit_vectors(items: Sequence[Item]) -> NDArray[np.float64]:
    vectors = np.array([item.vector for item in items], np.float64)
    unit: NDArray[np.float64] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SHORTEST)
    return unit


def _class_of(item: Item, level: int) -> str:
    labels = labels_of(item.metadata)
    return labels[level] if level < len(labels) else ""
