"""A gallery in a folder on this machine: SQLite stores items and vectors, a mapped table and FAISS make search fast."""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files import copy_folder, folder_bytes, own_file, recovered_folder, replaced_folder
from sightline.gallery.filters import compile_filter
from sightline.gallery.gallery import (
    ENCODER_FOLDER,
    IMAGES,
    REJECTOR_FOLDER,
    AnyEncoder,
    Capabilities,
    EncoderIdentity,
    Gallery,
    Header,
    Ranking,
    Value,
    check_known,
    check_new,
    listed_ids,
    may_be_id,
    noted_root,
    own_folder,
)
from sightline.gallery.index import Indexes, check_index, read_header
from sightline.gallery.snapshot import Snapshot, extend_table, refresh, remove_tables, table_faults
from sightline.gallery.store import DATABASE, Store

FILTERS_KEPT = 64
RECALL = 0.95


class LocalGallery(Gallery):
    """A searchable collection in one folder.

    Several processes may read it while one writes; all of them see a write at their next search. Writes are atomic and
    durable: once the call has returned, the write survives a crash of the process or the machine; until then, none of it
    is visible. Equal scores are ordered by the time the items were added.
    """

    capabilities = Capabilities(keeps_models=True, keeps_uploads=True, remembers_removals=True, builds_index=True)
    folder: Path

    def __init__(self, store: Store) -> None:
        super().__init__(str(store.folder), store.identity, store.metric, store.folder)
        self._store = store
        self._indexes = Indexes(store, self.repairs)
        self._snapshot: Snapshot | None = None
        self._matching = lru_cache(FILTERS_KEPT)(self._rows_where)  # of the present snapshot

    @classmethod
    def make(cls, uri: str, encoder: AnyEncoder, *, index: str, metric: str, recall: float | None) -> "LocalGallery":
        """Create an empty gallery in a folder that does not exist or is empty; it appears complete or not at all."""
        folder, identity = _folder(uri), EncoderIdentity.of(encoder)
        check_index(index, recall, identity.dim)
        with replaced_folder(folder) as scratch:
            Store.create(scratch, identity, metric, index, RECALL if recall is None else recall)
            if not isinstance(encoder, EncoderIdentity):
                encoder.save_pretrained(scratch / ENCODER_FOLDER)
        return cls.connect(uri)

    @classmethod
    def connect(cls, uri: str, *, read_only: bool = False) -> "LocalGallery":
        """Open the gallery in a folder."""
        return cls(Store.open(_folder(uri), read_only))

    @classmethod
    def exists(cls, uri: str) -> bool:
        """Whether the folder has a gallery's database."""
        return os.path.lexists(recovered_folder(_folder(uri)) / DATABASE)

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._store.close()
        self._snapshot = None

    def __len__(self) -> int:
        return self._store.state().n_items

    @property
    def generation(self) -> int:
        """A number that changes with every committed write of any process."""
        return self._store.state().generation

    @property
    def newest(self) -> int | None:
        """The generation in which an item was last added or its vector last changed; None if an old version wrote all."""
        return self._store.described().newest

    def write(self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]], replace: bool) -> None:
        """Add checked items, all of them or none."""
        with self._store.writing():
            there = self._store.rows_of(ids)
            check_new(self.folder, {} if replace else there)
            if self._has_new_vectors(ids, vectors, there):
                self._store.describe(newest=self._store.state().generation + 1)
            self._store.remove(list(there.values()))
            first = self._store.state().next_row
            self._store.append(ids, vectors, metadata)
            self._store.readmit(ids)
            extend_table(self._store, first)

    def _has_new_vectors(self, ids: list[str], vectors: NDArray[np.float32], there: dict[str, int]) -> bool:
        """Whether one of the items is new, or its vector differs from the stored one."""
        if len(there) < len(ids):
            return True
        try:
            # With a tolerance: each write normalises lengths again.
            return not np.allclose(self._store.vectors_of([there[id_] for id_ in ids]), vectors, rtol=1e-5, atol=1e-6)
        except InputError:  # damaged: this write repairs it
            return True

    def reading(self) -> AbstractContextManager[None]:
        """A block in which all reads see one state."""
        return self._store.reading()

    def writing(self) -> AbstractContextManager[None]:
        """A transaction in which nobody else writes: all of it is kept, or nothing."""
        return self._store.writing()

    def delete(self, ids: list[str], remember: bool) -> None:
        """Remove items; if one id is unknown, none is removed."""
        with self._store.writing():
            rows = self._known_rows(ids)
            if remember:
                known = self._store.metadata_of(list(rows.values()))
                roots = {id_: noted_root(id_, known[row]) for id_, row in rows.items()}
                self._store.dismiss({id_: root for id_, root in roots.items() if root is not None})
            self._store.remove(list(rows.values()))

    def removed(self) -> dict[str, str]:
        """The ids that were removed and not added since, each with the stored root of its image."""
        return self._store.dismissed()

    def _known_rows(self, ids: list[str]) -> dict[str, int]:
        rows = self._store.rows_of([id_ for id_ in ids if may_be_id(id_)])
        check_known(self.folder, ids, rows)
        return rows

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """The metadata of these ids, in their order."""
        listed = listed_ids(ids)
        with self._store.reading():
            rows = self._known_rows(listed)
            metadata = self._store.metadata_of(list(rows.values()))
        return [metadata[rows[id_]] for id_ in listed]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as stored: at length 1 for cosine."""
        listed = listed_ids(ids)
        with self._store.reading():
            rows = self._known_rows(listed)
            snapshot = self._refresh()
        return np.array(snapshot.table[[rows[id_] for id_ in listed]]).reshape(len(listed), self.identity.dim)

    def ids(self) -> list[str]:
        """All ids, in the order they were added; a replaced item counts as new."""
        return [id_ for _, id_ in self._store.ids_from(0)]

    def filter(self, where: str) -> list[str]:
        """The ids of the items that meet a condition, in the order they were added."""
        with self._store.reading():
            return list(self._refresh().ids[self._matching(where)])

    def count(self, where: str | None = None) -> int:
        """The number of items for which a condition holds, or of all items; a condition asked before is not run again."""
        if where is None:
            return len(self)
        with self._store.reading():
            self._refresh()
            return len(self._matching(where))

    def _rows_where(self, where: str) -> NDArray[np.int64]:
        """The rows of a filter in the current snapshot."""
        condition = compile_filter(where)
        return self._store.rows_where(condition.sql, condition.values)

    def nearest(self, queries: NDArray[np.float32], k: int, where: str | None) -> Ranking:
        """The k nearest items of each query, from the index if there is one."""
        with self._store.reading():
            snapshot = self._refresh()
            rows = None if where is None else self._matching(where)
        scores, places = self._indexes.nearest(snapshot, queries, k, rows)
        return scores, np.where(places >= 0, snapshot.ids[places], np.array(None, object))

    def _refresh(self) -> Snapshot:
        """The current snapshot; inside the store's ``reading()`` or ``writing()``."""
        snapshot = refresh(self._store, self._snapshot, self.repairs)
        if snapshot is not self._snapshot:
            self._matching.cache_clear()
        self._snapshot = snapshot
        return snapshot

    def check_index(self, index: str | None, recall: float | None) -> None:
        """Raise InputError unless the index is a FAISS factory string and the recall in (0, 1]."""
        check_index(index, recall, self.identity.dim)

    def build_index(
        self, index: str | None = None, *, recall: float | None = None, show_progress: bool = False
    ) -> Header | None:
        """Build the index from the vectors, tune it to the target recall, measure it, and save it.

        Without an index, and for items added later, search is by brute force: exact, and slower.

        Args:
            index: ``exact``, a FAISS factory string or ``auto``; default: what the gallery was created with.
            recall: share of the true 10 nearest items to find, in (0, 1]; default: that of the last build, or 0.95.
            show_progress: draw a progress bar.

        Returns:
            The index with its measured recall; None if search is by brute force: for ``exact``, for ``auto`` with few
            items, and with too few items to train the index.
        """
        self.check_index(index, recall)
        if wanted := {key: value for key, value in {"index": index, "recall": recall}.items() if value}:
            with self._store.writing():
                self._store.describe(**wanted)
        with self._store.reading():
            snapshot = self._refresh()
        return self._indexes.build(snapshot, show_progress)

    def index_is_behind(self) -> bool:
        """Whether more than a tenth of the items were added after the index was built."""
        state, header = self._store.state(), self._header()
        return state.next_row - (header.n_rows if header else 0) > 0.1 * state.n_items

    def _header(self) -> Header | None:
        """The header of the index, unless the gallery was compacted after it was built."""
        header = read_header(self.folder)
        return header if header and header.epoch == self._store.state().epoch else None

    def compact(self) -> None:
        """Rewrite the gallery without removed items, free their space, and rebuild the index."""
        with self._store.writing():
            snapshot = self._refresh()
            self._store.compact(snapshot.table, np.flatnonzero(snapshot.alive))
            extend_table(self._store, 0)
        remove_tables(self._store, below=self._store.state().epoch)
        self._store.shrink()
        self.build_index()

    def verify(self) -> list[str]:
        """Compare every item, vector and index with its checksum; the faults, one sentence each."""
        faults = self._store.faults() or table_faults(self._store)
        self._snapshot = None  # derived: damaged parts are written again at the next search
        return link_faults(self.folder) + faults + self._indexes.faults()

    def details(self) -> dict[str, Any]:
        """Counts of removed items and writes, the index, and the size on disk."""
        with self._store.reading():
            state, n_blocks = self._store.state(), len(self._store.blocks_from(0))
        header = self._header()
        return {
            "removed": state.next_row - state.n_items,
            "generation": state.generation,
            "blocks": n_blocks,
            "index": self._store.described().index,
            "index_built": header.factory if header else "exact",
            "index_covers": header.n_rows if header else 0,
            "index_recall": header.recall if header else 1.0,
            "database_bytes": self._store.size(),
            "folder_bytes": folder_bytes(self.folder),
        }

    def backup(self, folder: Path | str) -> None:
        """Copy a consistent state of the gallery, while others read and write; the folder must not exist, or be empty.

        Encoder, rejector and uploaded images are copied too.
        """
        with replaced_folder(Path(folder)) as scratch:
            # Images before the items and again after: a file is written before its item, and deleted after it.
            _copy_images(self.folder, scratch / IMAGES)
            self._store.backup(scratch / DATABASE)
            _copy_images(self.folder, scratch / IMAGES)
            for name in (ENCODER_FOLDER, REJECTOR_FOLDER):
                if (own := own_folder(self.folder, name)) is not None:
                    copy_folder(own, scratch / name)


def _folder(uri: str) -> Path:
    return Path(re.sub("^file:(//)?", "", uri))


def link_faults(folder: Path) -> list[str]:
    """The links, pipes and devices in a gallery's folder, one sentence each."""
    return [
        f"{path.relative_to(folder)}: {'is a link, which is not followed' if path.is_symlink() else 'is no regular file'}"
        for above, folders, files in os.walk(folder)
        for path in (Path(above, name) for name in sorted([*folders, *files]))
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]


def backup_gallery(folder: Path, copy: Path) -> int:
    """Copy a consistent state of a gallery: items, vectors, encoder, rejector, and uploaded images.

    Images outside the gallery's folder are not copied, nor is the index, which :func:`restore_gallery` rebuilds.

    Args:
        folder: the gallery, which may be served meanwhile.
        copy: a folder that does not exist, or is empty; it appears complete or not at all.

    Returns:
        The number of items copied.
    """
    if copy.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{copy}: is inside the gallery and would be lost with it; choose a folder outside {folder}")
    with LocalGallery.connect(str(folder), read_only=True) as gallery:
        gallery.backup(copy)
    with LocalGallery.connect(str(copy), read_only=True) as copied:
        return len(copied)


def restore_gallery(copy: Path, folder: Path) -> int:
    """Replace a gallery by a backup, or create it from one; a running service continues with the restored gallery.

    Writes after the backup are lost.

    Args:
        copy: written by :func:`backup_gallery`; not changed.
        folder: a gallery, which is replaced, or a folder that does not exist.

    Returns:
        The number of items restored.
    """
    if copy.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{copy}: is {folder} or inside it and would be lost when that is replaced; move it first")
    with replaced_folder(folder, DATABASE, "a gallery") as scratch:
        with LocalGallery.connect(str(copy), read_only=True) as gallery:
            if faults := gallery.verify():
                raise InputError(f"{copy}: the backup is damaged, nothing was restored: {'; '.join(faults[:3])}")
            gallery.backup(scratch)
        with LocalGallery.connect(str(scratch)) as restored:
            restored.build_index()
            return len(restored)


def _copy_images(folder: Path, to: Path) -> None:
    """Copy uploaded images that are not copied yet; files appear complete, under names that are never used again."""
    images = own_folder(folder, IMAGES)
    if images is None:
        return
    to.mkdir(exist_ok=True)
    for file in images.iterdir():
        if not file.name.startswith(".") and not (to / file.name).exists():
            with suppress(FileNotFoundError):  # its item was removed meanwhile
                shutil.copyfile(own_file(file), to / file.name, follow_symlinks=False)
