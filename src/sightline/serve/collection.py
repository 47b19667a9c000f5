"""One served gallery: its search in batches, what is known of its items, and its writes, kept up with changes on disk."""

import json
import os
import sqlite3
import stat
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.files import replaced
from sightline.gallery.filters import filter_names
from sightline.gallery.gallery import IMAGES, REJECTOR_FOLDER, EncoderIdentity, Gallery, Value, open_gallery
from sightline.gallery.query import Answer, QueryOptions, query
from sightline.gallery.store import DATABASE, DamagedError
from sightline.ood.rejector import SETTINGS_FILE, Rejector
from sightline.serve.schemas import HIDDEN, OF_THE_IMAGE, FieldBody, Problem, ValueCount

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


DAMAGE = (sqlite3.Error, json.JSONDecodeError)  # causes of errors that are not the caller's
Upload = tuple[bytes, str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class SearchJob:
    """A query: its (D,) vector and what is asked; ``own`` is its id where it is an item."""

    vector: NDArray[np.float32]
    options: QueryOptions
    own: str | None = None


@dataclass(eq=False)
class Held:
    """An open gallery, how many use it just now, and whether another folder has taken its place."""

    gallery: Gallery
    n_users: int = 0
    is_past: bool = False


class Collection:
    """A gallery by name. Reading and writing have a connection each: a writer that waits keeps no reader waiting.

    Where another folder takes the gallery's place, as a restored one does, that one is opened; the one before is closed
    when the last who used it is done.
    """

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        self.folder = folder.absolute()  # which stands in messages for nothing else, as "." would
        self.name = folder.resolve().name
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._inode = self._inode_now()
        self._reader = Held(open_gallery(self.folder, read_only=True))
        self.writable = not read_only and self._reader.gallery.capabilities.keeps_uploads
        self._writer: Held | None = None
        self._past: list[Held] = []  # in use still
        self._rejector: Rejector | None = None
        self._rejector_stamp: tuple[int, int] | None = None

    @contextmanager
    def gallery(self) -> Iterator[Gallery]:
        """The gallery to read, which stays open for the block; beyond it, it may be closed."""
        with self._lock:
            self._keep_up()
            held = self._reader
            held.n_users += 1
        try:
            yield held.gallery
        finally:
            self._let_go(held)

    def identity(self) -> EncoderIdentity:
        """The encoder of its vectors."""
        with self.gallery() as gallery:
            return gallery.identity

    @contextmanager
    def _for_writing(self) -> Iterator[Gallery]:
        """The gallery to write to, which stays open for the block."""
        if not self.writable:
            raise Problem(403, f"gallery {self.name!r} is served to be read only")
        with self._lock:
            self._keep_up()
            if not self.is_there():
                raise Problem(503, f"the files of gallery {self.name!r} are gone", {"Retry-After": "1"})
            if self._writer is None:
                self._writer = Held(open_gallery(self.folder))
            held = self._writer
            held.n_users += 1
        try:
            yield held.gallery
        finally:
            self._let_go(held)

    def _keep_up(self) -> None:
        """Open what has taken the gallery's place, if something has; inside the lock."""
        inode = self._inode_now()
        if inode in (None, self._inode):
            return
        before = [held for held in (self._reader, self._writer) if held is not None]
        self._reader, self._writer, self._inode = Held(open_gallery(self.folder, read_only=True)), None, inode
        self._past += before
        for held in before:
            held.is_past = True
            self._close_unused(held)

    def is_there(self) -> bool:
        """Whether its files are; what was opened before can be read on when they are gone, and writes would be lost."""
        return self._inode_now() is not None

    def _inode_now(self) -> int | None:
        """The number of the database's file, which no other has while it is open; None where it is gone."""
        try:
            return (self.folder / DATABASE).stat().st_ino
        except OSError:  # gone, or links in a circle
            return None

    def _let_go(self, held: Held) -> None:
        with self._lock:
            held.n_users -= 1
            self._close_unused(held)

    def _close_unused(self, held: Held) -> None:
        if held.is_past and not held.n_users:
            self._past.remove(held)
            held.gallery.close()

    def rejector(self) -> Rejector | None:
        """The rejector in the gallery's folder, if there is one; read again when it changes."""
        try:
            file = (self.folder / REJECTOR_FOLDER / SETTINGS_FILE).stat()
        except OSError:
            return None
        stamp = file.st_mtime_ns, file.st_ino
        with self._lock:
            if stamp != self._rejector_stamp:
                try:
                    self._rejector = self._reader.gallery.rejector()
                except InputError as error:
                    message = str(error).replace(str(self.folder), self.name)
                    raise Problem(503, f"the rejector cannot be used: {message}", {"Retry-After": "1"}) from error
                self._rejector_stamp = stamp
            return self._rejector

    def warm(self) -> None:
        """Read what the first search would read, and say what is wrong with it."""
        with self.gallery() as gallery:
            any_query = np.zeros((1, gallery.identity.dim), np.float32)
            gallery.search(any_query, 1)
            is_damaged = bool(gallery.repairs)  # its index: a reader may not build it anew
        if is_damaged and self.writable:
            with suppress(InputError), self._for_writing() as writer:
                writer.search(any_query, 1)
        self.rejector()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            for held in (self._reader, self._writer, *self._past):
                if held is not None:
                    held.gallery.close()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors as problems, which name the gallery and not its folder."""
        try:
            yield
        except InputError as error:
            raise self.problem_of(error) from error
        except OSError as error:
            told = f"gallery {self.name!r} cannot be read or written: {error.strerror or type(error).__name__}"
            raise Problem(503, told, {"Retry-After": "1"}) from error

    def problem_of(self, error: InputError) -> Problem:
        """What is told of an error: the caller's, or one of the gallery, which may be over the next time."""
        message = str(error).replace(str(self.folder), self.name)
        if _is_damage(error):
            return Problem(503, message, {"Retry-After": "1"})
        return Problem(422, message)

    def search(self, jobs: Sequence[SearchJob]) -> list[Answer | Exception]:
        """Answers in the order of the jobs; those that ask the same are searched together."""
        groups: dict[QueryOptions, list[int]] = {}
        for place, job in enumerate(jobs):
            groups.setdefault(job.options, []).append(place)
        answers: list[Answer | Exception] = [Problem(500, "not searched")] * len(jobs)
        for options, places in groups.items():
            try:
                found: Sequence[Answer | Exception] = self._answers(options, [jobs[place] for place in places])
            except Exception as error:  # each of those who asked gets it
                found = [error] * len(places)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def _answers(self, options: QueryOptions, jobs: list[SearchJob]) -> list[Answer]:
        with self.told(), self.gallery() as gallery:
            check_filter(options.where)
            vectors, rejector = np.stack([job.vector for job in jobs]), self.rejector()
            if rejector is not None and (options.policy or rejector.policy) == "ignore":
                rejector = None
            return query(gallery, vectors, options, own=[job.own for job in jobs], rejector=rejector)

    def known(self, id_: str) -> dict[str, Value]:
        """What is known of an item."""
        with self.gallery() as gallery:
            return self._known_in(gallery, id_)

    def _known_in(self, gallery: Gallery, id_: str) -> dict[str, Value]:
        found = self._found_in(gallery, id_)
        if found is None:
            raise Problem(404, f"gallery {self.name!r} has no item of this id")
        return found

    def _found_in(self, gallery: Gallery, id_: str) -> dict[str, Value] | None:
        """What is known of an item; None where there is none of this id."""
        try:
            return gallery.metadata([id_])[0]
        except InputError as error:
            if _is_damage(error):
                raise
            return None

    def vector(self, id_: str) -> NDArray[np.float32]:
        """The vector of an item."""
        self.known(id_)
        with self.gallery() as gallery:
            found: NDArray[np.float32] = gallery.vectors([id_])[0]
        return found

    def write(
        self,
        id_: str,
        metadata: dict[str, Value] | None,
        image: Upload | None,
        replace: bool,
    ) -> tuple[bool, int, dict[str, Value]]:
        """Add an item, or put it in the place of another; what is not given stays as it was.

        Args:
            id_: the item's.
            metadata: without the keys that say where its image is, and which part of it counts.
            image: the bytes of its file, how such files' names end, and its vector.
            replace: whether an item of that id may be, and is then replaced.

        Returns:
            Whether it is new, the generation that has it, and its metadata.
        """
        with self.told(), self._write_lock, self._for_writing() as gallery:
            with self._uploaded(image) as new_image, gallery.writing():
                before = self._found_in(gallery, id_)
                if before is not None and not replace:
                    raise Problem(409, f"gallery {self.name!r} has an item of this id already; PUT replaces it")
                if before is None and image is None:
                    raise Problem(404, f"gallery {self.name!r} has no item of this id, and a new one needs an image")
                old_image = {key: value for key, value in (before or {}).items() if key in OF_THE_IMAGE}
                plain = {key: value for key, value in (before or {}).items() if key not in OF_THE_IMAGE}
                now = (plain if metadata is None else metadata) | (new_image or old_image)
                gallery.upsert([id_], gallery.vectors([id_]) if image is None else image[2][None], [now])
            if new_image:
                self._drop_file(old_image)
            return before is None, gallery.generation, now

    @contextmanager
    def _uploaded(self, image: Upload | None) -> Iterator[dict[str, Value]]:
        """What an item is to know of a new image; its file is there for the block, and stays if that raises nothing."""
        if image is None:
            yield {}
            return
        file = self.folder / IMAGES / f"{uuid.uuid4().hex}{image[1]}"
        if file.parent.is_symlink():
            raise Problem(503, f"gallery {self.name!r} cannot take images: its folder {IMAGES!r} is a link")
        with replaced(file) as scratch:
            scratch.write_bytes(image[0])
        try:
            yield {"path": f"{IMAGES}/{file.name}"}
        except BaseException:
            file.unlink(missing_ok=True)
            raise

    def remove(self, id_: str) -> int:
        """Take an item out, and the file of its image if it was uploaded; the generation that lacks it."""
        with self.told(), self._write_lock, self._for_writing() as gallery:
            with gallery.writing():
                before = self._known_in(gallery, id_)
                gallery.remove([id_])
            self._drop_file(before)
            return gallery.generation

    def _drop_file(self, metadata: dict[str, Value]) -> None:
        """Remove an uploaded file that no item has any more; files that lie elsewhere and links are not ours.

        Galleries may come from somebody else, so a path is only ever a name in the folder of uploaded images.
        """
        folder, _, name = str(metadata.get("path")).partition("/")
        if folder != IMAGES or name in ("", ".", "..") or "/" in name or "\0" in name:
            return
        with suppress(FileNotFoundError, NotADirectoryError):  # O_NOFOLLOW: or the folder is a link
            images = os.open(self.folder / IMAGES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.stat(name, dir_fd=images, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=images)
            finally:
                os.close(images)


def _is_damage(error: InputError) -> bool:
    """Whether an error is the gallery's, and not that of who asked."""
    return isinstance(error, DamagedError) or isinstance(error.__cause__, DAMAGE)


def check_filter(where: str | None) -> None:
    """Refuse a condition on what is not shown."""
    if where is not None and (hidden := sorted({*filter_names(where)} & {*HIDDEN})):
        raise Problem(422, f"where: {', '.join(hidden)} cannot be asked for")
