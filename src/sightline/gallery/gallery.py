"""The folder people keep: items, vectors and metadata; add, remove, search, verify."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.errors import InputError
from sightline.files import copy_folder, folder_bytes, recovered_folder, replaced_folder
from sightline.gallery.faiss_index import Header, check_index, check_recall
from sightline.gallery.filters import compile_filter
from sightline.gallery.image_paths import noted_root
from sightline.gallery.indexes import Indexes
from sightline.gallery.items import (
    EncoderIdentity,
    Item,
    Metadata,
    Value,
    check_metric,
    checked_ids,
    checked_metadata,
    checked_queries,
    checked_vectors,
    listed_ids,
    may_be_id,
    some,
)
from sightline.gallery.snapshot import Snapshot, extend_table, refreshed, remove_old_tables, table_faults
from sightline.gallery.store import DATABASE, NEWEST, Store

if TYPE_CHECKING:
    from sightline.models.encoder import Encoder

ENCODER_FOLDER, REJECTOR_FOLDER = "encoder", "rejector"
IMAGES = "images"  # inside the gallery's folder: the files of uploaded items, under names that the service gives them
FILTERS_KEPT = 64
RECALL = 0.95


class Gallery:
    """A searchable collection in one folder.

    Several processes may read it while one writes; what is written is seen by all at their next search. A write has
    happened when its call returns, whatever happens to the process or the machine afterwards; before that, none of it has.

    Attributes:
        folder: where it is.
        identity: the encoder its vectors are of.
        metric: ``cosine`` or ``dot``; higher is nearer.
        repairs: what was found damaged in derived files and made anew, one sentence each.

    Example:
        >>> import tempfile
        >>> identity = EncoderIdentity(fingerprint="00ff", dim=2, name="by hand")
        >>> with Gallery.create(Path(tempfile.mkdtemp(), "shapes"), identity) as gallery:
        ...     gallery.add(["a", "b"], np.eye(2), [{"year": 2019}, {"year": 2021}])
        ...     scores, ids = gallery.search(np.array([[1.0, 0.5]]), k=1)
        ...     later = gallery.filter("year >= 2020")
        >>> ids.tolist(), later
        ([['a']], ['b'])
    """

    def __init__(self, store: Store) -> None:
        self.folder = store.folder
        self.identity = store.identity
        self.metric = store.metric
        self.repairs: list[str] = []
        self._store = store
        self._indexes = Indexes(store, self.repairs)
        self._snapshot: Snapshot | None = None
        self._filtered: dict[str, NDArray[np.int64]] = {}
        self._filtered_at = -1

    @classmethod
    def create(
        cls, folder: Path | str, encoder: "Encoder | EncoderIdentity", *, index: str = "auto", metric: str = "cosine"
    ) -> "Gallery":
        """A new, empty gallery; it appears complete or not at all.

        Args:
            folder: must not exist, or be empty; or an address of Milvus, such as ``milvus+http://host:19530/collection``.
            encoder: what will make its vectors; an :class:`sightline.Encoder` is saved in the folder too.
            index: ``exact``, a FAISS factory string such as ``HNSW32``, or ``auto``.
            metric: ``cosine`` or ``dot``.
        """
        if is_cluster(folder):
            from sightline.gallery.milvus import MilvusGallery

            cluster: Any = MilvusGallery.create(str(folder), encoder, index=index, metric=metric)
            return cluster  # type: ignore[no-any-return]
        folder = Path(folder)
        check_metric(metric)
        identity = EncoderIdentity.of(encoder)
        check_index(index, identity.dim)
        with replaced_folder(folder) as scratch:
            Store.create(scratch, identity, metric, index, RECALL).close()
            if not isinstance(encoder, EncoderIdentity):
                encoder.save_pretrained(scratch / ENCODER_FOLDER)
        return cls.open(folder)

    @classmethod
    def open(cls, folder_or_uri: Path | str, *, read_only: bool = False) -> "Gallery":
        """The gallery in a folder, or on a cluster (``milvus+http://host:19530/collection``, or a Milvus Lite file)."""
        if is_cluster(folder_or_uri):
            from sightline.gallery.milvus import MilvusGallery

            cluster: Any = MilvusGallery.open(str(folder_or_uri), read_only=read_only)  # has the same methods
            return cluster  # type: ignore[no-any-return]
        return cls(Store.open(Path(folder_or_uri), read_only))

    @staticmethod
    def is_at(folder_or_uri: Path | str) -> bool:
        """Whether there is a gallery; on a cluster, a collection of that name."""
        if is_cluster(folder_or_uri):
            from sightline.gallery.milvus_connection import collection_is_at

            return collection_is_at(str(folder_or_uri))
        return os.path.lexists(recovered_folder(Path(folder_or_uri)) / DATABASE)

    def close(self) -> None:
        """Let go of the files; may be called twice."""
        self._store.close()
        self._snapshot = None

    def __enter__(self) -> "Gallery":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self._store.state().n_items

    @property
    def generation(self) -> int:
        """A number that changes with every committed write, of whichever process."""
        return self._store.state().generation

    @property
    def newest(self) -> int | None:
        """The generation in which an item was last added, or got another vector; None where an old version added all."""
        with self._store.reading():
            found = self._store.described().get(NEWEST)
        return None if found is None else int(found)  # checked where it is read

    def encoder(self) -> "Encoder":
        """The encoder saved in the gallery."""
        folder = own_folder(self.folder, ENCODER_FOLDER)
        if folder is None:
            raise InputError(f"{self.folder}: no encoder was saved in this gallery; it is of {self.identity.name!r}")
        from sightline.models.encoder import Encoder

        encoder = Encoder.from_pretrained(folder)
        self.check_encoder(encoder)
        return encoder

    def check_encoder(self, encoder: "Encoder | EncoderIdentity | str") -> None:
        """Refuse another encoder than that of the gallery's vectors, given itself or by its fingerprint."""
        self.identity.check(encoder, self.folder)

    def add(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None = None,
        *,
        encoder: "Encoder | EncoderIdentity | str | None" = None,
    ) -> None:
        """Add new items, all of them or none.

        Args:
            ids: none of which is there already.
            vectors: (N, D), of the gallery's encoder.
            metadata: a dictionary for each, or a table; values are str, int, float, bool or None.
            encoder: what made the vectors, or its fingerprint, if it is to be checked.
        """
        self._write(ids, vectors, metadata, encoder, replace=False)

    def upsert(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None = None,
        *,
        encoder: "Encoder | EncoderIdentity | str | None" = None,
    ) -> None:
        """Add items, in place of those that have the same ids; see :meth:`add`."""
        self._write(ids, vectors, metadata, encoder, replace=True)

    def _write(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None,
        encoder: "Encoder | EncoderIdentity | str | None",
        replace: bool,
    ) -> None:
        if encoder is not None:
            self.check_encoder(encoder)
        listed = checked_ids(ids)
        table = checked_vectors(listed, vectors, self.identity.dim, self.metric)
        rows = checked_metadata(listed, metadata)
        if not listed:
            return
        with self._store.writing():
            there = self._store.rows_of(listed)
            if there and not replace:
                raise InputError(f"{self.folder}: {len(there)} ids are there already: {some(list(there))}")
            if self._has_news(listed, table, there):
                self._store.describe(NEWEST, str(self._store.state().generation + 1))
            if there:
                self._store.remove(list(there.values()))
            first = self._store.state().next_row
            self._store.append(listed, table, rows)
            self._store.readmit(listed)
            extend_table(self._store, first)

    def _has_news(self, ids: list[str], vectors: NDArray[np.float32], there: dict[str, int]) -> bool:
        """Whether one of some items is new, or has another vector than before."""
        if len(there) < len(ids):
            return True
        try:
            before = self._store.vectors_of([there[id_] for id_ in ids])
            return not np.allclose(before, vectors, rtol=1e-5, atol=1e-6)  # lengths are made 1 again at each write
        except InputError:  # damaged: this write is what makes it good
            return True

    def writing(self) -> AbstractContextManager[None]:
        """A block in which nobody else writes: what is read there and then written is kept together or not at all."""
        return self._store.writing()

    def remove(self, ids: Sequence[str], *, remember: bool = True) -> None:
        """Take items out, all of them or, if one is unknown, none.

        Args:
            ids: of the items.
            remember: that they were removed, so that images of a folder or manifest are not added again with it.
        """
        listed = checked_ids(ids)
        if not listed:
            return
        with self._store.writing():
            rows = self._known_rows(listed)
            if remember:
                known = self._store.metadata_of(list(rows.values()))
                roots = {id_: noted_root(id_, known[row]) for id_, row in rows.items()}
                self._store.dismiss({id_: root for id_, root in roots.items() if root is not None})
            self._store.remove(list(rows.values()))

    def removed(self) -> dict[str, str]:
        """The ids that were removed and not added again since, with the root, as noted, of the images they were of."""
        with self._store.reading():
            return self._store.dismissed()

    def _known_rows(self, ids: list[str]) -> dict[str, int]:
        rows = self._store.rows_of([id_ for id_ in ids if may_be_id(id_)])
        if missing := [id_ for id_ in ids if id_ not in rows]:
            raise InputError(f"{self.folder}: {len(missing)} unknown ids: {some(missing)}")
        return rows

    def get(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; unknown ones are refused."""
        listed = listed_ids(ids)
        with self._store.reading():
            rows = self._known_rows(listed)
            snapshot = self._refresh()
            metadata = self._store.metadata_of(list(rows.values()))
        return [Item(id_, dict(metadata[rows[id_]]), np.array(snapshot.table[rows[id_]])) for id_ in listed]

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """What is known of the items of these ids, in their order."""
        listed = listed_ids(ids)
        with self._store.reading():
            rows = self._known_rows(listed)
            metadata = self._store.metadata_of(list(rows.values()))
        return [metadata[rows[id_]] for id_ in listed]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as they are stored: at length 1 for cosine."""
        listed = listed_ids(ids)
        with self._store.reading():
            rows = self._known_rows(listed)
            snapshot = self._refresh()
        return np.array(snapshot.table[[rows[id_] for id_ in listed]]).reshape(len(listed), self.identity.dim)

    def ids(self) -> list[str]:
        """All ids, in the order they were added; an item put in place of another counts as new."""
        with self._store.reading():
            return [id_ for _, id_ in self._store.ids_from(0)]

    def filter(self, where: str) -> list[str]:
        """The ids of the items for which a condition holds, in the order they were added.

        Args:
            where: such as ``label_1 == "Flags" and year >= 2020``; see :mod:`sightline.gallery.filters`.
        """
        with self._store.reading():
            snapshot = self._refresh()
            return list(snapshot.ids[self._matching(where)])

    def _matching(self, where: str) -> NDArray[np.int64]:
        """The rows of a filter at the present snapshot; the last filters' are remembered."""
        snapshot = self._refresh()
        if self._filtered_at != snapshot.generation:
            self._filtered, self._filtered_at = {}, snapshot.generation
        if where not in self._filtered:
            condition = compile_filter(where)
            if len(self._filtered) >= FILTERS_KEPT:
                self._filtered.pop(next(iter(self._filtered)))
            self._filtered[where] = self._store.rows_where(condition.sql, condition.values)
        return self._filtered[where]

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        where: str | None = None,
        encoder: "Encoder | EncoderIdentity | str | None" = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.object_]]:
        """The k nearest items of each query, best first; equal scores in the order the items were added.

        Args:
            queries: (Q, D), of the gallery's encoder.
            k: results wanted, at least 1.
            where: only items for which this condition holds; see :meth:`filter`.
            encoder: what made the queries, or its fingerprint, if it is to be checked.

        Returns:
            (Q, K) float32 scores and (Q, K) ids, K being k or, if smaller, the number of items that match.
        """
        if encoder is not None:
            self.check_encoder(encoder)
        table = checked_queries(queries, self.identity.dim, self.metric)
        if k < 1:
            raise InputError(f"k is {k}; at least 1 is needed")
        with self._store.reading():
            snapshot = self._refresh()
            rows = None if where is None else self._matching(where)
        scores, places = self._indexes.nearest(snapshot, table, k, rows)
        return scores, snapshot.ids_at(places)

    def _refresh(self) -> Snapshot:
        """The gallery as it is now; inside the store's ``reading()`` or ``writing()``."""
        self._snapshot = refreshed(self._store, self._snapshot, self.repairs)
        return self._snapshot

    def build_index(
        self, index: str | None = None, *, recall: float | None = None, show_progress: bool = False
    ) -> Header | None:
        """Build the index from the vectors, tune it to the asked recall, measure it, and save it.

        Until then, and for items added later, search is by brute force: exact, and slower.

        Args:
            index: ``exact``, a FAISS factory string or ``auto``; None for what the gallery was created with.
            recall: share of the true 10 nearest to be found, in (0, 1]; None for what was asked before, at first 0.95.
            show_progress: draw a bar.

        Returns:
            What was built, with the recall that was measured; None where search is by brute force: for ``exact``, for
            ``auto`` with few items, and where there are too few to make the index.
        """
        check_recall(recall)
        wanted = {"index": index and check_index(index, self.identity.dim), "recall": recall and str(recall)}
        if any(wanted.values()):
            with self._store.writing():
                for key, value in wanted.items():
                    if value:
                        self._store.describe(key, value)
        with self._store.reading():
            snapshot = self._refresh()
        return self._indexes.build(snapshot, show_progress)

    def compact(self) -> None:
        """Write the items anew without what was removed, give the space back, and build the index anew."""
        with self._store.writing():
            snapshot = self._refresh()
            self._store.compact(snapshot.table, snapshot.rows())
            extend_table(self._store, 0)
        remove_old_tables(self._store)
        self._store.shrink()
        self.build_index()

    def verify(self) -> list[str]:
        """Hold every item, vector and index against its checksum; what is wrong, one sentence each, or nothing."""
        faults = self._store.faults()
        if not faults:
            with self._store.reading():
                faults = table_faults(self._store)
            self._snapshot = None if faults else self._snapshot  # derived: written anew when it is needed next
        return link_faults(self.folder) + faults + self._indexes.faults()

    def stats(self) -> dict[str, Any]:
        """Numbers of the gallery, by name."""
        with self._store.reading():
            state = self._store.state()
            n_blocks = len(self._store.blocks_from(0))
            asked = self._store.described()
        header = self._indexes.header()
        header = header if header and header.epoch == state.epoch else None
        database, log = self._store.size()
        return {
            "items": state.n_items,
            "removed": state.next_row - state.n_items,
            "dim": self.identity.dim,
            "metric": self.metric,
            "encoder": self.identity.name,
            "fingerprint": self.identity.fingerprint,
            "generation": state.generation,
            "blocks": n_blocks,
            "index": asked["index"],
            "index_built": header.factory if header else "exact",
            "index_covers": header.n_rows if header else 0,
            "index_recall": header.recall if header else 1.0,
            "database_bytes": database + log,
            "folder_bytes": folder_bytes(self.folder),
        }

    def backup(self, folder: Path | str) -> None:
        """Copy the gallery as it is at one moment, while others read and write; the folder must not exist, or be empty."""
        with replaced_folder(Path(folder)) as scratch:
            self._store.backup(scratch / DATABASE)
            for name in (ENCODER_FOLDER, REJECTOR_FOLDER):
                if (own := own_folder(self.folder, name)) is not None:
                    copy_folder(own, scratch / name)


def own_folder(folder: Path, name: str) -> Path | None:
    """The folder of that name inside a gallery's, such as its encoder's; None if there is none, and a link is refused."""
    found = recovered_folder(folder / name)
    if found.is_symlink():
        raise InputError(f"{found}: a link; it is not followed")
    return found if found.is_dir() else None


def link_faults(folder: Path) -> list[str]:
    """What there is in a gallery's folder that is neither a file nor a folder of its own, one sentence each."""
    return [
        f"{path.relative_to(folder)}: {'a link, which is not followed' if path.is_symlink() else 'no file and no folder'}"
        for above, folders, files in os.walk(folder)
        for path in (Path(above, name) for name in sorted([*folders, *files]))
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]


def is_cluster(folder_or_uri: Path | str) -> bool:
    """Whether it is an address of Milvus or a file of Milvus Lite."""
    file = Path(folder_or_uri)
    return str(folder_or_uri).startswith("milvus+") or (file.suffix == ".db" and file.name != DATABASE)
