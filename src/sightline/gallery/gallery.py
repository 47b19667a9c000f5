"""The interface of all galleries, the checks of what they are given, and the table of gallery kinds by address."""

import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, Union, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from sightline.data.manifest import list_fault
from sightline.errors import InputError, choose, names, raise_faults
from sightline.files import recovered_folder
from sightline.registry import Registry

if TYPE_CHECKING:
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.data.manifest import Manifest
    from sightline.models.encoder import Encoder
    from sightline.ood.rejector import Rejector
    from sightline.ranking.refine import Refinement

T = TypeVar("T")
Scalar = str | int | float | bool | None
Value = Scalar | list[str]
AnyEncoder = Union["Encoder", "EncoderIdentity"]
Metadata = Sequence[Mapping[str, Value]] | pl.DataFrame
Ranking = tuple[NDArray[np.float32], NDArray[np.object_]]
METRICS = {"cosine": "angle between vectors, which are stored at length 1", "dot": "inner product of vectors as they are"}
ENCODER_FOLDER, REJECTOR_FOLDER = "encoder", "rejector"
IMAGES = "images"  # inside the gallery's folder: the files of uploaded items, under names that the service gives them
BESIDE = "../"
ROOT, PREFIX, HASH = "file_root", "file_prefix", "file_hash"  # metadata of items that came from a folder or a manifest
SIZE, TIME = "file_size", "file_mtime_ns"
FILE_KEYS = ("path", SIZE, TIME, HASH, ROOT, PREFIX)  # metadata: where an image is stored
PLAIN = (str, bool, int, float, type(None))
ONE_VALUE = re.compile(r"label_\d+|split|path|file_\w+")  # keys that have no list
SHORTEST = 1e-12
LARGEST_DIM = 1 << 20
SMALLEST, LARGEST = -(2**63), 2**63 - 1
SHOWN = 10


@dataclass(frozen=True)
class EncoderIdentity:
    """Which encoder made a gallery's vectors.

    Attributes:
        fingerprint: see :meth:`sightline.Encoder.fingerprint`.
        dim: length of its vectors.
        name: name of its backbone.
    """

    fingerprint: str
    dim: int
    name: str

    def __post_init__(self) -> None:
        if not self.fingerprint or not 1 <= self.dim <= LARGEST_DIM:
            raise InputError(
                f"an encoder must have a fingerprint and 1 to {LARGEST_DIM} dimensions, "
                f"got {self.fingerprint!r} and {self.dim}"
            )

    @classmethod
    def of(cls, encoder: AnyEncoder) -> "EncoderIdentity":
        """The identity of an encoder; an identity is returned unchanged."""
        if isinstance(encoder, EncoderIdentity):
            return encoder
        if not callable(getattr(encoder, "fingerprint", None)):
            raise InputError(
                f"encoder must be an Encoder or an EncoderIdentity, got {type(encoder).__name__}; "
                "load an encoder folder with Encoder.from_pretrained(folder)"
            )
        return cls(encoder.fingerprint(), encoder.dim, encoder.settings.backbone)

    def check(self, other: AnyEncoder | str, where: object) -> None:
        """Raise InputError if another encoder, or its fingerprint, differs from this one."""
        found = EncoderIdentity(other, self.dim, "the one given") if isinstance(other, str) else EncoderIdentity.of(other)
        if found.fingerprint != self.fingerprint:
            raise InputError(
                f"{where}: its vectors come from another encoder: {self.name!r} with fingerprint {self.fingerprint}; "
                f"{found.name!r} has {found.fingerprint}"
            )


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery: id, metadata, and (D,) float32 vector."""

    id: str
    metadata: dict[str, Value]
    vector: NDArray[np.float32]


@dataclass(frozen=True)
class Header:
    """What an index file covers, and the recall it was measured at.

    Attributes:
        factory: FAISS factory string.
        epoch: of the gallery it was built from.
        n_rows: it covers the rows from 0 to this number.
        token: checksum over the blocks of these rows.
        file: its name.
        checksum: of the file's bytes.
        recall: measured share of the true 10 nearest items that it finds, over a sample of the gallery.
        effort: the search parameters that reach this recall.
    """

    factory: str
    epoch: NonNegativeInt
    n_rows: NonNegativeInt
    token: str
    file: Annotated[str, Field(pattern=r"^index-[0-9]+-[0-9]+-[0-9a-f]{1,32}\.faiss$")]
    checksum: str
    recall: float
    effort: dict[Annotated[str, Field(pattern="^(nprobe|efSearch)$")], PositiveInt] = field(default_factory=dict)


@dataclass(frozen=True)
class Capabilities:
    """What a kind of gallery offers beyond items and search.

    Attributes:
        keeps_models: stores its encoder and its rejector in a folder of its own.
        keeps_uploads: stores uploaded image files and has transactions, so it can be served for writing.
        remembers_removals: adding a source again does not bring back items that were removed.
        builds_index: :meth:`Gallery.build_index` builds one; other kinds maintain their index themselves.
    """

    keeps_models: bool = False
    keeps_uploads: bool = False
    remembers_removals: bool = False
    builds_index: bool = False


class Gallery(ABC):
    """A searchable collection of items with vectors of one encoder, in a folder or at an address.

    A kind of gallery is a subclass and a row in :data:`GALLERIES`. It implements the abstract methods; arguments of
    :meth:`write`, :meth:`delete` and :meth:`nearest` are already checked.

    Attributes:
        capabilities: what this kind offers.
        address: where it is, for messages; without a password.
        folder: its folder on this machine; None for a remote gallery.
        identity: the encoder of its vectors.
        metric: ``cosine`` or ``dot``; higher is nearer.
        repairs: derived files that were damaged and written again, one sentence each.

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

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, address: str, identity: EncoderIdentity, metric: str, folder: Path | None = None) -> None:
        self.address = address
        self.folder = folder
        self.identity = identity
        self.metric = metric
        self.repairs: list[str] = []
        self._encoder: Encoder | None = None  # that it was created with, or the one last loaded

    @staticmethod
    def create(
        uri: Path | str,
        encoder: AnyEncoder,
        *,
        index: str = "auto",
        metric: str = "cosine",
        recall: float | None = None,
    ) -> "Gallery":
        """Create an empty gallery; in a folder it appears complete or not at all.

        Args:
            uri: a folder that does not exist or is empty, or an address such as ``milvus+http://host:19530/collection``.
            encoder: the encoder of its vectors; an :class:`sightline.Encoder` is saved in the folder too.
            index: ``exact``, a FAISS factory string such as ``HNSW32``, or ``auto``.
            metric: ``cosine`` or ``dot``.
            recall: share of the true 10 nearest items that an index must find; default: 0.95.
        """
        choose(METRICS, metric, "metric")
        gallery = gallery_kind(uri).make(str(uri), encoder, index=index, metric=metric, recall=recall)
        gallery._encoder = None if isinstance(encoder, EncoderIdentity) else encoder
        return gallery

    @staticmethod
    def open(uri: Path | str, *, read_only: bool = False) -> "Gallery":
        """Open the gallery in a folder, or at an address such as ``milvus+http://host:19530/collection``."""
        return gallery_kind(uri).connect(str(uri), read_only=read_only)

    @staticmethod
    def is_at(uri: Path | str) -> bool:
        """Whether there is a gallery in a folder or at an address."""
        return gallery_kind(uri).exists(str(uri))

    @classmethod
    @abstractmethod
    def make(cls, uri: str, encoder: AnyEncoder, *, index: str, metric: str, recall: float | None) -> "Gallery":
        """Create an empty gallery of this kind; raise InputError first for an index or a recall it cannot have."""

    @classmethod
    @abstractmethod
    def connect(cls, uri: str, *, read_only: bool) -> "Gallery":
        """Open the gallery of this kind at an address."""

    @classmethod
    @abstractmethod
    def exists(cls, uri: str) -> bool:
        """Whether there is a gallery of this kind at an address."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    def __repr__(self) -> str:
        try:
            n_items = f"{len(self):,} items"
        except InputError:  # closed, or its server is gone
            n_items = "closed or unreachable"
        encoder = f"encoder {self.identity.name!r}, {self.identity.dim} dimensions, {self.metric}"
        return f"{type(self).__name__}({self.address!r}, {n_items}, {encoder})"

    def _repr_html_(self) -> str:
        return str(_function_above("display", "gallery_html")(self))

    @property
    def generation(self) -> int:
        """A number that changes with every committed write of any process; 0 if this kind has none."""
        return 0

    @property
    def newest(self) -> int | None:
        """The generation in which an item was last added or its vector last changed; None if unknown."""
        return None

    def model_folder(self, name: str) -> Path | None:
        """The folder of the encoder or rejector inside the gallery; None if there is none. Raises on a link."""
        return None if self.folder is None else own_folder(self.folder, name)

    def encoder(self, trust: bool = False) -> "Encoder":
        """The encoder it was created with, or else the one saved in it, on a GPU where there is one.

        ``trust`` imports the module of a wrapped one.
        """
        if self._encoder is not None and self._encoder.fingerprint() == self.identity.fingerprint:
            return self._encoder
        folder = self.model_folder(ENCODER_FOLDER)
        if folder is None:
            raise InputError(
                f"{self.address}: no encoder is saved in this gallery; pass the one of its vectors, {self.identity.name!r}"
            )
        from sightline.models.embed import own_device
        from sightline.models.encoder import Encoder

        self._encoder = Encoder.from_pretrained(folder, trust=trust).to(own_device())
        self.check_encoder(self._encoder)
        return self._encoder

    def rejector(self) -> "Rejector | None":
        """The rejector saved in the gallery, or None; raises InputError if it is damaged or of another encoder."""
        from sightline.ood.rejector import Rejector

        folder = self.model_folder(REJECTOR_FOLDER)
        return None if folder is None else Rejector.load(folder, self.identity.fingerprint)

    def check_encoder(self, encoder: AnyEncoder | str) -> None:
        """Raise InputError unless an encoder, or a fingerprint, is that of the gallery's vectors."""
        self.identity.check(encoder, self.address)

    def add(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None = None,
        *,
        encoder: AnyEncoder | str | None = None,
    ) -> None:
        """Add new items, all of them or none.

        Args:
            ids: new ids; an id that is in the gallery already raises InputError.
            vectors: (N, D) of the gallery's encoder: a list, array or tensor.
            metadata: one dictionary for each item, or a table; values are str, int, float, bool, None, or a list of str
                such as the codes of a trademark.
            encoder: the encoder of the vectors, or its fingerprint, to check that it is the gallery's.
        """
        self._put(ids, vectors, metadata, encoder, replace=False)

    def upsert(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None = None,
        *,
        encoder: AnyEncoder | str | None = None,
    ) -> None:
        """Add items, replacing those with the same ids; see :meth:`add`."""
        self._put(ids, vectors, metadata, encoder, replace=True)

    def add_images(
        self,
        images: "str | Path | Sequence[str | Path] | Manifest | EmbeddingTable",
        *,
        encoder: "Encoder | None" = None,
        split: str | None = None,
        prune: bool = False,
        prefix: str | None = None,
        moved_from: Path | str | None = None,
        restore_removed: bool = False,
        codes: str | None = None,
        batch_size: int = 64,
        n_workers: int = 0,
        show_progress: bool = False,
    ) -> Any:
        """Embed images and add them with their metadata, as ``sightline index build`` and ``index add`` do.

        New images are added, changed ones embedded again, unchanged ones left alone, and unreadable ones skipped and
        named in the summary. Every 512 images are committed, so a run that was stopped continues where it was. The
        search index is not built: see :meth:`build_index`.

        Args:
            images: a folder, a ``.csv`` or ``.parquet`` manifest, an embedding table written by ``sightline embed``, one
                image file, or a list of image files; a manifest or table that was already read works too. Ids are paths
                from the folder, or the manifest's; for a list of files, the paths as given.
            encoder: the gallery's; default: the one saved in the gallery. A table needs none.
            split: add only this split.
            prune: remove items that came from the same folder or manifest and are no longer in it.
            prefix: put this and a slash before the ids; default: the prefix this source was added with before.
            moved_from: the folder these images were in before, if they were moved.
            restore_removed: also add images whose items were removed from the gallery.
            codes: a column of text with several values for each image, such as ``26.1.15;5.3.13``, which is split at ``;``.
                Columns of lists, as Parquet files have them, need no name.
            batch_size: images in one pass through the model.
            n_workers: processes that read images.
            show_progress: draw a progress bar.

        Returns:
            An :class:`~sightline.gallery.ingest.IngestSummary`: how many were added, changed, relabelled and unchanged,
            and a sentence for each unreadable one.
        """
        return _function_above("ingest", "index_images")(
            self,
            encoder,
            _function_above("ingest", "read_source")(images, split),
            prune=prune,
            prefix=prefix,
            moved_from=None if moved_from is None else Path(moved_from),
            restore_removed=restore_removed,
            codes=codes,
            batch_size=batch_size,
            n_workers=n_workers,
            show_progress=show_progress,
        )

    def _put(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None,
        encoder: AnyEncoder | str | None,
        replace: bool,
    ) -> None:
        if encoder is not None:
            self.check_encoder(encoder)
        listed = checked_ids(ids)
        table = checked_vectors(vectors, self.identity.dim, self.metric, listed)
        rows = checked_metadata(listed, metadata)
        if listed:
            self.write(listed, table, rows, replace)

    @abstractmethod
    def write(self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]], replace: bool) -> None:
        """Add checked items; an id that is there already is replaced or, without ``replace``, raises InputError."""

    def remove(self, ids: Sequence[str], *, remember: bool = True) -> None:
        """Remove items; if one id is unknown, none is removed.

        Args:
            ids: of the items.
            remember: do not add their images again when their folder or manifest is added again.
        """
        if listed := checked_ids(ids):
            self.delete(listed, remember)

    @abstractmethod
    def delete(self, ids: list[str], remember: bool) -> None:
        """Remove items; if one id is unknown, none is removed."""

    def removed(self) -> dict[str, str]:
        """The ids that were removed and not added since, each with the stored root of its image."""
        return {}

    def reading(self) -> AbstractContextManager[None]:
        """A block in which all reads see one state, if this kind has transactions."""
        return nullcontext()

    def writing(self) -> AbstractContextManager[None]:
        """A transaction in which nobody else writes: all of it is kept, or nothing."""
        raise InputError(f"{self.address}: this kind of gallery has no transactions")

    def get(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; an unknown id raises InputError."""
        with self.reading():
            return list(map(Item, listed_ids(ids), self.metadata(ids), self.vectors(ids)))

    @abstractmethod
    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """The metadata of these ids, in their order; an unknown id raises InputError."""

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as stored: at length 1 for cosine."""

    @abstractmethod
    def ids(self) -> list[str]:
        """All ids, in the order they were added; a replaced item counts as new."""

    @abstractmethod
    def filter(self, where: str) -> list[str]:
        """The ids of the items that meet a condition, in the order they were added.

        Args:
            where: such as ``label_1 == "Flags" and year >= 2020``; see :mod:`sightline.gallery.filters`.
        """

    def count(self, where: str | None = None) -> int:
        """The number of items for which a condition holds, or of all items; see :meth:`filter`."""
        return len(self) if where is None else len(self.filter(where))

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        where: str | None = None,
        encoder: AnyEncoder | str | None = None,
    ) -> Ranking:
        """The k nearest items of each query, best first.

        Args:
            queries: (Q, D) of the gallery's encoder: a list, array or tensor.
            k: number of results, at least 1.
            where: only items that meet this condition; see :meth:`filter`.
            encoder: the encoder of the queries, or its fingerprint, to check that it is the gallery's.

        Returns:
            (Q, K) float32 scores and (Q, K) ids. K is k, or the most results of any query if that is less; a query with
            fewer results is padded with -inf and None.
        """
        if encoder is not None:
            self.check_encoder(encoder)
        table = checked_vectors(queries, self.identity.dim, self.metric)
        return self.nearest(table, checked_k(k), where)

    def search_images(
        self,
        queries: Any,
        k: int = 10,
        *,
        where: str | None = None,
        encoder: "Encoder | None" = None,
        reject: bool = False,
        refinement: "Refinement | None" = None,
    ) -> list[Any]:
        """An :class:`~sightline.gallery.query.Answer` for each query image, with scores, metadata and paths.

        Args:
            queries: image files, folders (each image is a query), PIL images, or ids of the gallery, which do not find
                themselves; one, or a list.
            k: number of results, at least 1.
            where: only items that meet this condition; see :meth:`filter`.
            encoder: the gallery's; default: the one saved in the gallery. Ids need none.
            reject: let the gallery's rejector judge whether each query is out-of-distribution.
            refinement: query expansion and re-ranking.
        """
        from sightline.ranking.refine import NOTHING

        rejector = self.rejector() if reject else None
        if reject and rejector is None:
            raise InputError(
                f"{self.address}: no rejector is saved in this gallery; fit one with "
                f"`sightline ood fit --gallery {self.address}`"
            )
        options = _function_above("query", "QueryOptions")(checked_k(k), where, refinement or NOTHING)
        return list(_function_above("query", "ask")(self, queries, options, encoder=encoder, rejector=rejector))

    @abstractmethod
    def nearest(self, queries: NDArray[np.float32], k: int, where: str | None) -> Ranking:
        """What :meth:`search` returns, for checked queries."""

    def check_index(self, index: str | None, recall: float | None) -> None:
        """Raise the InputError of :meth:`build_index`, if any: to be called before images are embedded."""
        if index is not None or recall is not None:
            raise InputError(
                f"{self.address}: this kind of gallery has no choice of index or recall, got {index or recall}"
            )

    def build_index(
        self, index: str | None = None, *, recall: float | None = None, show_progress: bool = False
    ) -> Header | None:
        """Build the index; see :meth:`LocalGallery.build_index`. Other kinds maintain theirs themselves."""
        self.check_index(index, recall)
        return None

    def index_is_behind(self) -> bool:
        """Whether more than a tenth of the items were added after the index was built."""
        return False

    def compact(self) -> None:
        """Free the space of removed items; raises InputError if this kind does so by itself."""
        raise InputError(f"{self.address}: this kind of gallery frees space by itself; there is nothing to compact")

    @abstractmethod
    def verify(self) -> list[str]:
        """The faults of the gallery, one sentence each; empty if there are none."""

    def stats(self) -> dict[str, Any]:
        """Statistics of the gallery, by name."""
        return {
            "items": len(self),
            "dim": self.identity.dim,
            "metric": self.metric,
            "encoder": self.identity.name,
            "fingerprint": self.identity.fingerprint,
        } | self.details()

    def details(self) -> dict[str, Any]:
        """The statistics that only this kind of gallery has; ``index`` is the kind of index."""
        return {"index": "exact"}


def _function_above(module: str, name: str) -> Any:
    """A function of a module that builds on this one, found by name as the kinds of gallery below are."""
    return getattr(import_module(f"sightline.gallery.{module}"), name)


LOCAL, MILVUS = "sightline.gallery.local:LocalGallery", "sightline.gallery.milvus:MilvusGallery"
GALLERIES: Registry[Gallery] = Registry(
    "gallery",
    {  # by the scheme of an address; by the ending of a file's name; without either it is a folder
        "": LOCAL,
        "file": LOCAL,
        ".db": MILVUS,
        "milvus+file": MILVUS,
        "milvus+http": MILVUS,
        "milvus+https": MILVUS,
    },
    "sightline.galleries",
    lambda found: isinstance(found, type) and issubclass(found, Gallery),
    "a subclass of sightline.Gallery",
)


def gallery_kind(uri: Path | str) -> type[Gallery]:
    """The class of the gallery at an address."""
    if not isinstance(uri, str | os.PathLike):
        raise InputError(f"a gallery's address must be a str or Path, got {type(uri).__name__}")
    scheme = re.match(r"([A-Za-z][\w+.-]*):(//)?", str(uri))
    is_file = Path(uri).suffix in GALLERIES and Path(uri).name != "gallery.db"  # which is inside the folder of a local one
    name = Path(uri).suffix if is_file else ""
    if scheme and (scheme[2] or scheme[1] in GALLERIES):
        name = scheme[1]
    return cast(type[Gallery], GALLERIES.find(name))


def own_folder(folder: Path, name: str) -> Path | None:
    """The folder of that name inside a gallery's, such as its encoder's; None if there is none. Raises on a link."""
    found = recovered_folder(folder / name)
    if found.is_symlink():
        raise InputError(f"{found}: is a link; links inside a gallery are not followed")
    return found if found.is_dir() else None


def labels_of(metadata: Mapping[str, Value]) -> list[str]:
    """The labels of an item, finest first.

    Example:
        >>> labels_of({"label_0": "oak", "label_1": "tree", "year": 2020})
        ['oak', 'tree']
    """
    found: list[str] = []
    while (label := metadata.get(f"label_{len(found)}")) is not None:
        found.append(str(label))
    return found


def lists_of(metadata: Mapping[str, Value]) -> dict[str, list[str]]:
    """The lists in the metadata of an item, such as its codes, by key."""
    return {key: value for key, value in metadata.items() if isinstance(value, list)}


def stored_path(folder: Path | None, file: Path) -> str:
    """The path that a gallery stores for an image: relative if the image is beside the gallery, otherwise absolute.

    A gallery and the images beside it can then be moved together. Images inside the gallery's own folder are stored with
    their absolute path: relative paths inside it belong to uploads, which are deleted with their item.

    Args:
        folder: the gallery's, resolved; None for a gallery without a folder.
        file: the image, resolved.

    Example:
        >>> stored_path(Path("/data/gallery"), Path("/data/images/a.png"))
        '../images/a.png'
        >>> stored_path(Path("/data/gallery"), Path("/elsewhere/a.png"))
        '/elsewhere/a.png'
    """
    if folder is None or folder.parent == Path(folder.anchor):  # below / is everything
        return str(file)
    is_beside = file.is_relative_to(folder.parent) and not file.is_relative_to(folder)
    return BESIDE + file.relative_to(folder.parent).as_posix() if is_beside else str(file)


def image_path(folder: Path | None, metadata: Mapping[str, Value], root: Path | None = None) -> Path | None:
    """The full path of an item's image, whether or not it exists; None if the metadata has no path.

    Args:
        folder: the gallery's, if it has one.
        metadata: the item's.
        root: where to look for images that were beside the gallery, instead of the folder the gallery is in now.

    Example:
        >>> image_path(Path("/data/gallery"), {"path": "../images/a.png"}, root=Path("/new")).as_posix()
        '/new/images/a.png'
    """
    path = metadata.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    is_beside = root is not None and path.startswith(BESIDE)
    file = Path(root or "", path.removeprefix(BESIDE)) if is_beside else Path(folder or "", path)
    return Path(os.path.realpath(file))  # unlike Path.resolve, works for circular links too


def noted_root(id_: str, metadata: Mapping[str, Value]) -> str | None:
    """The stored root of the source that an item came from; None for uploads and items added as vectors.

    Galleries of earlier versions store no root: there it is the part of the path before the id.

    Example:
        >>> noted_root("2023/a.png", {"path": "../photos/2023/a.png", "file_hash": "00ff"})
        '../photos'
    """
    root, path = metadata.get(ROOT), metadata.get("path")
    if isinstance(root, str):
        return root
    is_old = metadata.get(HASH) is not None and isinstance(path, str) and path.endswith(f"/{id_}")
    return str(path)[: -len(id_) - 1] or "/" if is_old else None


def checked_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list; raises InputError if one is not a string, is empty, or is there twice."""
    listed = listed_ids(ids)
    raise_faults("ids", [f"an id must be a non-empty string, got {id_!r}" for id_ in listed if not may_be_id(id_)])
    if twice := [id_ for id_, n in Counter(listed).items() if n > 1]:
        raise InputError(f"ids must be unique, got {len(twice)} more than once: {some(twice)}")
    return listed


def listed_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list; raises InputError for a single string."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InputError(f"ids must be a list of strings, got {type(ids).__name__} {ids!r}")
    return [str(id_) if isinstance(id_, str) else id_ for id_ in ids]  # numpy's strings are str, but not to SQLite


def checked_k(k: int) -> int:
    """The number of results as an int; raises InputError if it is not a whole number of at least 1."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    return int(k)


def may_be_id(id_: object) -> bool:
    """Whether this is a valid id."""
    return isinstance(id_, str) and id_ != "" and "\0" not in id_ and (id_.isascii() or is_utf8(id_))


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded: False if it holds bytes that Python could not decode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def checked_vectors(vectors: ArrayLike, dim: int, metric: str, ids: Sequence[str] | None = None) -> NDArray[np.float32]:
    """(N, D) float32, at length 1 for cosine.

    Args:
        vectors: a list, array or tensor.
        dim: of the gallery.
        metric: of the gallery.
        ids: of the items, for messages; None for queries, where a zero vector stays zero and scores 0 with every item.
    """
    name = "queries" if ids is None else "vectors"
    table = _table(vectors, dim, name)
    rows: Sequence[object] = range(len(table)) if ids is None else ids
    if len(table) != len(rows):
        raise InputError(f"ids and vectors must be as many as each other, got {len(rows)} ids and {len(table)} vectors")
    lengths = _lengths(table)
    if (wrong := np.flatnonzero(~np.isfinite(lengths))).size:
        shown = some([rows[row] for row in wrong.tolist()])
        raise InputError(f"{name} must be finite; NaN or infinity in {len(wrong)} of {len(table)} rows: {shown}")
    if metric != "cosine":
        return table
    if ids is not None and (short := np.flatnonzero(lengths <= SHORTEST)).size:
        raise InputError(f"vectors of length 0 have no cosine similarity: {some([ids[row] for row in short.tolist()])}")
    return np.divide(table, np.maximum(lengths, SHORTEST)[:, None], out=np.empty_like(table), casting="same_kind")


def _lengths(table: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N,) the length of each row; NaN or infinity if one of its values is."""
    squares = np.einsum("nd,nd->n", table, table).astype(np.float64)
    doubtful = ~((squares > 1e-30) & (squares < 1e30))  # NaN, or too far from 1 for squares in float32
    squares[doubtful] = np.square(table[doubtful], dtype=np.float64).sum(1)
    return np.asarray(np.sqrt(squares), np.float64)


def _table(vectors: ArrayLike, dim: int, name: str) -> NDArray[np.float32]:
    given: Any = vectors
    if hasattr(given, "detach"):  # a tensor: on any device, of any float type, with or without a gradient
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() else given
    try:
        table = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} must be numbers of shape (N, {dim}), got rows that differ in length: {error}") from error
    if table.ndim != 2 or table.dtype.kind != "f":
        raise InputError(f"{name} must be floating point numbers of shape (N, {dim}), got {table.dtype} {table.shape}")
    if table.shape[1] != dim:
        raise InputError(f"{name} must have the gallery's {dim} dimensions, got {table.shape[1]}")
    with np.errstate(over="ignore"):  # becomes infinity, which the caller checks for
        return np.ascontiguousarray(table, np.float32)


def checked_metadata(ids: Sequence[str], metadata: Metadata | None) -> list[dict[str, Value]]:
    """One dictionary of plain values for each id; a key ``id`` must equal the id, and is dropped."""
    given = [{}] * len(ids) if metadata is None else metadata
    if not isinstance(given, Iterable):
        raise InputError(f"metadata must be a list of dictionaries or a table, got {type(given).__name__}")
    rows = given.to_dicts() if isinstance(given, pl.DataFrame) else list(given)
    if wrong := [f"row {place}: {row!r}" for place, row in enumerate(rows) if not isinstance(row, Mapping)]:
        raise InputError(f"metadata must be a dictionary for each item, got {some(wrong)}")
    if len(rows) != len(ids):
        raise InputError(f"metadata must have one row for each id, got {len(rows)} rows for {len(ids)} ids")
    kept = [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items() if key != "id"}
        for row in rows
    ]
    keys: set[object] = set().union(*kept)
    faults = [
        f"a key must be a non-empty string, got {key!r}"
        for key in keys
        if not isinstance(key, str) or not key or not is_utf8(key)
    ]
    faults += [
        f"{id_!r}: its metadata has the id {row['id']!r}"
        for id_, row in zip(ids, rows, strict=True)
        if row.get("id", id_) != id_
    ]
    for id_, row in zip(ids, kept, strict=True):
        faults += [f"{id_!r}: {fault}" for key, value in row.items() if (fault := value_fault(key, value))]
    raise_faults("metadata", faults)
    return kept


def value_fault(key: object, value: object) -> str | None:
    """What is wrong with a metadata value; None if it is valid."""
    if isinstance(value, str) and type(value) is str:
        return None if value.isascii() or is_utf8(value) else f"{key} is {value!a}, which is not UTF-8"
    if isinstance(value, list):
        fault = "must have one value, got a list" if ONE_VALUE.fullmatch(str(key)) else list_fault(value)
        return f"{key} {fault}" if fault else next((odd for one in value if (odd := value_fault(key, one))), None)
    if type(value) not in PLAIN:
        return f"{key} must be str, int, float, bool, None or a list of str, got {type(value).__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} must be a finite number or None, got {value}"
    if isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        return f"{key} is {value}, which does not fit in 64 bits"
    return None


def check_known(where: object, ids: Sequence[str], known: Mapping[str, object]) -> None:
    """Raise InputError if some ids are not in a gallery."""
    if missing := [id_ for id_ in ids if id_ not in known]:
        raise InputError(f"{where}: {len(missing)} unknown ids: {some(missing)}")


def check_new(where: object, known: Mapping[str, object]) -> None:
    """Raise InputError if some ids are in a gallery already."""
    if known:
        raise InputError(f"{where}: {len(known)} ids exist already: {some(list(known))}; upsert replaces them")


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, at most ``size`` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def some(words: Sequence[object]) -> str:
    """The words in quotes, cut after ten."""
    return names(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
