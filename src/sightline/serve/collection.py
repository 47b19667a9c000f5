"""One served gallery: batched search, browsing and writes; follows changes on disk."""

import json
import os
import sqlite3
import stat
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, takewhile
from operator import eq
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import replaced
from sightline.gallery.filters import filter_names
from sightline.gallery.gallery import (
    FILE_KEYS,
    IMAGES,
    REJECTOR_FOLDER,
    EncoderIdentity,
    Gallery,
    Item,
    Scalar,
    Value,
    labels_of,
)
from sightline.gallery.query import Answer, QueryOptions, query
from sightline.gallery.relabel import relabel
from sightline.gallery.store import DATABASE, DamagedError
from sightline.ood.rejector import SETTINGS_FILE, Rejector
from sightline.serve.browse import Listing, Sort, count_codes, read_all, read_existing, read_listing, read_lists
from sightline.serve.schemas import OF_THE_IMAGE, RETRY, CodeCount, FieldBody, Problem, ValueCount
from sightline.serve.settings import file_stamp

MOST_VALUES = 200
FRESH_SECONDS = 5.0  # a gallery that is written to all the time is not read in full for each request
KINDS = {str: "text", bool: "bool", int: "number", float: "number", list: "list"}
Upload = tuple[bytes, str, NDArray[np.float32]]
Made = TypeVar("Made")


def shared_levels(query: list[str] | None, item: list[str]) -> int | None:
    """How many label levels an item shares with a query, counted from the coarsest; None if the query has no labels.

    Example:
        >>> shared_levels(["oak", "tree"], ["elm", "tree"]), shared_levels(["oak", "tree"], ["oak", "name"])
        (1, 0)
    """
    if not query:
        return None
    equal = map(eq, reversed(query), reversed(item)) if len(query) == len(item) else ()
    return len(list(takewhile(bool, equal)))


def summarise_fields(rows: Iterable[dict[str, Value]]) -> list[FieldBody]:
    """The metadata fields of these items: kind, most frequent values or range; labels first, then by name."""
    counts: dict[str, Counter[tuple[type, Scalar]]] = defaultdict(Counter)  # by type: True and 1 are equal
    for row in rows:
        for name, value in row.items():
            if value is not None and name not in OF_THE_IMAGE:
                counts[name][type(value), None if isinstance(value, list) else value] += 1
    levels = labels_of({name: name for name in counts})
    return [_summarise_field(name, counts[name]) for name in [*levels, *sorted(counts.keys() - {*levels})]]


def _summarise_field(name: str, counts: Counter[tuple[type, Scalar]]) -> FieldBody:
    kinds = {KINDS[kind] for kind, _ in counts}
    if "list" in kinds:
        return FieldBody(name=name, kind="list", values=None, min=None, max=None)
    if kinds == {"number"}:
        numbers = [float(value) for _, value in counts if value is not None]
        return FieldBody(name=name, kind="number", values=None, min=min(numbers), max=max(numbers))
    frequent = sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0][1])))[:MOST_VALUES]
    is_bool = kinds == {"bool"}
    values = [ValueCount(value=value is True if is_bool else str(value), count=count) for (_, value), count in frequent]
    return FieldBody(name=name, kind="bool" if is_bool else "text", values=values, min=None, max=None)


class Cached(Generic[Made]):
    """What is computed from all items of a gallery: again where they changed, but not more often than every 5 seconds."""

    def __init__(self, compute: Callable[[Gallery], Made]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._kept: tuple[Made, int, float] | None = None  # with its generation, and when it was computed

    def of(self, gallery: Gallery) -> Made:
        """The value for the gallery as it is, or was some seconds ago; not for the event loop."""
        with self._lock:
            if self._kept is None or (
                self._kept[1] != gallery.generation and time.monotonic() - self._kept[2] >= FRESH_SECONDS
            ):
                generation = gallery.generation
                self._kept = self._compute(gallery), generation, time.monotonic()
            return self._kept[0]


@dataclass(frozen=True, eq=False)
class SearchJob:
    """A query: its (D,) vector and options; ``own`` is its id if it is an item of the gallery.

    ``inputs`` is what a rejector needs besides the vector, by name.
    """

    vector: NDArray[np.float32]
    options: QueryOptions
    own: str | None = None
    inputs: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(eq=False)
class Held:
    """An open gallery and its number of users; the collection itself is one until the folder is replaced."""

    gallery: Gallery
    n_users: int = 1

    def leave(self) -> None:
        """Close the gallery after its last user; call with the collection's lock held."""
        self.n_users -= 1
        if not self.n_users:
            self.gallery.close()


class Collection:
    """A gallery by name. Reads and writes have a connection each, so that a waiting writer blocks no reader.

    When the gallery's folder is replaced, as by a restore, the new one is opened and the old one is closed after its last
    user.
    """

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        self.folder = folder.absolute()  # unique in messages, unlike "."
        self.name = folder.resolve().name
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._inode = self.inode()
        self._open: dict[bool, Held] = {}  # by whether it is for writing
        self._rejector: Rejector | None = None
        self._rejector_stamp: tuple[int, int] | None = None
        self._fields = Cached(lambda gallery: summarise_fields(chain(*read_all(gallery, gallery.metadata))))
        self._lists = Cached(read_lists)
        self._listings: dict[int, Cached[Listing]] = {}  # by label level
        with self.gallery() as gallery:
            self.writable = not read_only and gallery.capabilities.keeps_uploads

    @contextmanager
    def gallery(self, *, writing: bool = False) -> Iterator[Gallery]:
        """The gallery, open for the duration of the block."""
        if writing and not self.writable:
            raise Problem(403, f"gallery {self.name!r} is read-only")
        if writing and self.inode() is None:
            raise Problem(503, f"gallery {self.name!r}: its files are missing", RETRY)
        with self._lock:
            if self.inode() not in (None, self._inode):  # the folder was replaced
                self._leave_all()
                self._inode = self.inode()
            if writing not in self._open:
                self._open[writing] = Held(Gallery.open(self.folder, read_only=not writing))
            held = self._open[writing]
            held.n_users += 1
        try:
            yield held.gallery
        finally:
            with self._lock:
                held.leave()

    def _leave_all(self) -> None:
        for held in self._open.values():
            held.leave()
        self._open.clear()

    def close(self) -> None:
        """Close the files after their last user."""
        with self._lock:
            self._leave_all()

    def inode(self) -> int | None:
        """The inode of the database file, unique while it is open.

        None if the file is missing: an open gallery can still be read, but writes would be lost.
        """
        stamp = file_stamp(self.folder / DATABASE)
        return None if stamp is None else stamp[1]

    def identity(self) -> EncoderIdentity:
        """The identity of the encoder that made the vectors."""
        with self.gallery() as gallery:
            return gallery.identity

    def fields(self) -> list[FieldBody]:
        """The metadata fields, at most some seconds old; reads all items after a change."""
        with self.gallery() as gallery:
            return self._fields.of(gallery)

    def browse(
        self, where: str | None, level: int, sort: Sort, offset: int, limit: int
    ) -> tuple[int, list[tuple[Item, float]]]:
        """The number of items that meet a condition, and those on one page with their typicality, NaN where undefined."""
        check_where(where)
        with self._named_failures(), self.gallery() as gallery:
            with self._lock:
                cached = self._listings.setdefault(level, Cached(partial(read_listing, level=level)))
            listing = cached.of(gallery)
            n_items, places = listing.page(sort, None if where is None else gallery.filter(where), offset, limit)
            typicality = dict(zip(listing.ids[places].tolist(), listing.typicality[places].tolist(), strict=True))
            items = read_existing(gallery, list(typicality), gallery.get)
            return n_items, [(item, typicality[item.id]) for item in items]

    def codes(self, field: str, within: Sequence[str], where: str | None) -> dict[str, list[CodeCount]]:
        """The codes of the items that meet a condition: of the first level, and one level below each of these codes."""
        check_where(where)
        with self._named_failures(), self.gallery() as gallery:
            known = self._lists.of(gallery).get(field)
            if known is None:
                raise Problem(404, f"gallery {self.name!r} has no field {field!r} with lists")
            ids = known.keys() if where is None else gallery.filter(where)
        lists = [known[id_] for id_ in ids if id_ in known]
        levels = {}
        for code in dict.fromkeys(["", *within]):
            counts, with_more = count_codes(lists, code)
            frequent = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_VALUES]
            levels[code] = [CodeCount(code=one, count=count, has_more=one in with_more) for one, count in frequent]
        return levels

    def rejector(self) -> Rejector | None:
        """The rejector in the gallery's folder, if any; read again when it changes."""
        stamp = file_stamp(self.folder / REJECTOR_FOLDER / SETTINGS_FILE)
        with self.gallery() as gallery, self._lock:
            if stamp is not None and stamp != self._rejector_stamp:
                try:
                    self._rejector = gallery.rejector()
                except InputError as error:
                    raise DamagedError(f"the rejector cannot be loaded: {error}") from error
                self._rejector_stamp = stamp
            return None if stamp is None else self._rejector

    def needs_images(self, policy: str | None = "reject") -> bool:
        """Whether the rejector takes more of a query than its vector; not with the policy ``ignore``."""
        rejector = self.rejector()
        return rejector is not None and rejector.needs_images and (policy or rejector.policy) != "ignore"

    @property
    def acceptance(self) -> float:
        """What the rejector that judged last promises."""
        return (self._rejector.scorer.acceptance if self._rejector else None) or 0.95

    @property
    def threshold(self) -> float | None:
        """Of the rejector that judged last; of all labels together, where they have their own."""
        return self._rejector.scorer.threshold if self._rejector else None

    def warm(self) -> None:
        """Load what the first search needs, and rebuild a damaged index; raises what is wrong."""
        with self.gallery() as gallery:
            any_query = np.zeros((1, gallery.identity.dim), np.float32)
            gallery.search(any_query, 1)
            is_damaged = bool(gallery.repairs)  # a read-only connection cannot rebuild the index
        if is_damaged and self.writable:
            with suppress(InputError), self.gallery(writing=True) as writer:
                writer.search(any_query, 1)
        self.rejector()

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        """Turn disk errors into a problem that names the gallery, not its folder."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Problem(503, f"gallery {self.name!r} cannot be read or written: {reason}", RETRY) from error

    def search(self, jobs: Sequence[SearchJob]) -> list[Answer | Exception]:
        """Answers in the order of the jobs; jobs with equal options are searched together."""
        answers: dict[SearchJob, Answer | Exception] = {}
        for options in {job.options for job in jobs}:
            alike = [job for job in jobs if job.options == options]
            try:
                answers |= zip(alike, self._answer(options, alike), strict=True)
            except Exception as error:  # every caller gets it
                answers |= dict.fromkeys(alike, error)
        return [answers[job] for job in jobs]

    def _answer(self, options: QueryOptions, jobs: list[SearchJob]) -> list[Answer]:
        check_where(options.where)
        with self._named_failures(), self.gallery() as gallery:
            rejector = self.rejector()
            if rejector is not None and (options.policy or rejector.policy) == "ignore":
                rejector = None
            vectors, images = np.stack([job.vector for job in jobs]), [job for job in jobs if job.own is None]
            kinds = set.intersection(*(set(job.inputs) for job in images)) if images else set()
            inputs = {kind: np.stack([job.inputs[kind] for job in images]) for kind in kinds}
            return query(gallery, vectors, options, own=[job.own for job in jobs], rejector=rejector, inputs=inputs)

    def item(self, id_: str) -> Item:
        """The item with this id."""
        with self.gallery() as gallery:
            return self._check_found(self._find(gallery, id_))

    def _check_found(self, item: Item | None) -> Item:
        if item is None:
            raise Problem(404, f"gallery {self.name!r} has no item with this id")
        return item

    def _find(self, gallery: Gallery, id_: str) -> Item | None:
        """The item with this id, or None."""
        try:
            return gallery.get([id_])[0]
        except InputError as error:
            if is_damage(error):
                raise
            return None

    def write(
        self, id_: str, metadata: dict[str, Value] | None, image: Upload | None, replace: bool
    ) -> tuple[bool, int, dict[str, Value]]:
        """Add or replace an item; what is not given keeps its value.

        Args:
            id_: of the item.
            metadata: without the keys for the image's file and bounding box.
            image: the file's bytes, its suffix, and the vector.
            replace: whether the id may exist already.

        Returns:
            Whether the item is new, the generation that has it, and its metadata.
        """
        with self._named_failures(), self._write_lock, self.gallery(writing=True) as gallery:
            with self._store_upload(image) as new_image, gallery.writing():
                before = self._find(gallery, id_)
                if before is not None and not replace:
                    raise Problem(409, f"gallery {self.name!r} already has an item with this id; replace it with PUT")
                if before is None and image is None:
                    raise Problem(404, f"gallery {self.name!r} has no item with this id; a new item requires an image")
                known = {} if before is None else before.metadata
                old_image = {key: value for key, value in known.items() if key in OF_THE_IMAGE}
                plain = {key: value for key, value in known.items() if key not in OF_THE_IMAGE}
                now = (plain if metadata is None else metadata) | (new_image or old_image)
                gallery.upsert([id_], gallery.vectors([id_]) if image is None else image[2][None], [now])
            if new_image:
                self._drop_file(old_image)
            return before is None, gallery.generation, now

    def relabel(self, id_: str, label: str | None) -> tuple[int, dict[str, Value], bool]:
        """The generation that has the item's new label, its metadata, and whether no other item has that label."""
        with self._named_failures(), self._write_lock, self.gallery(writing=True) as gallery:
            self._check_found(self._find(gallery, id_))
            metadata, is_new_label = relabel(gallery, id_, label)
            return gallery.generation, metadata, is_new_label

    @contextmanager
    def _store_upload(self, image: Upload | None) -> Iterator[dict[str, Value]]:
        """Metadata for a new image; its file exists in the block, and is removed if the block raises."""
        if image is None:
            yield {}
            return
        file = self.folder / IMAGES / f"{uuid.uuid4().hex}{image[1]}"
        if file.parent.is_symlink():
            raise Problem(503, f"gallery {self.name!r} cannot store images: its folder {IMAGES!r} is a symbolic link")
        with replaced(file) as scratch:
            scratch.write_bytes(image[0])
        try:
            yield {"path": f"{IMAGES}/{file.name}"}
        except BaseException:
            file.unlink(missing_ok=True)
            raise

    def remove(self, id_: str) -> None:
        """Remove an item and, if its image was uploaded, the file."""
        with self._named_failures(), self._write_lock, self.gallery(writing=True) as gallery:
            with gallery.writing():
                before = self._check_found(self._find(gallery, id_))
                gallery.remove([id_])
            self._drop_file(before.metadata)

    def _drop_file(self, metadata: dict[str, Value]) -> None:
        """Remove an uploaded file that no item uses any more; other files and links are left alone.

        A gallery may come from somebody else, so a path counts only as a name in the folder of uploads.
        """
        folder, _, name = str(metadata.get("path")).partition("/")
        if folder != IMAGES or name in ("", ".", "..") or "/" in name or "\0" in name:
            return
        with suppress(FileNotFoundError, NotADirectoryError):  # O_NOFOLLOW: not if the folder is a link
            images = os.open(self.folder / IMAGES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.stat(name, dir_fd=images, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=images)
            finally:
                os.close(images)


def check_where(where: str | None) -> None:
    """Refuse a filter on where image files are stored."""
    if where is not None and (hidden := sorted({*filter_names(where)} & {*FILE_KEYS})):
        raise Problem(422, f"where: {', '.join(hidden)} cannot be used in a filter")


def is_damage(error: InputError) -> bool:
    """Whether an error is a fault of the gallery rather than of the request."""
    return isinstance(error, DamagedError) or isinstance(error.__cause__, sqlite3.Error | json.JSONDecodeError)
