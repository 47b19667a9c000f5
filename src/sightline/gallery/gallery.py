"""What a gallery is: items with vectors of one encoder; what each kind of gallery offers; which kind is at an address."""

import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, Union, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from sightline.errors import InputError, choose, names, raise_faults
from sightline.files import recovered_folder
from sightline.registry import Registry

if TYPE_CHECKING:
    from sightline.models.encoder import Encoder
    from sightline.ood.rejector import Rejector

T = TypeVar("T")
Value = str | int | float | bool | None
AnyEncoder = Union["Encoder", "EncoderIdentity"]
Metadata = Sequence[Mapping[str, Value]] | pl.DataFrame
Ranking = tuple[NDArray[np.float32], NDArray[np.object_]]
METRICS = {"cosine": "angle between vectors, which are stored at length 1", "dot": "inner product of vectors as they are"}
ENCODER_FOLDER, REJECTOR_FOLDER = "encoder", "rejector"
IMAGES = "images"  # inside the gallery's folder: the files of uploaded items, under names that the service gives them
BESIDE = "../"
ROOT, PREFIX, HASH = "file_root", "file_prefix", "file_hash"  # metadata of items that came from a folder or a manifest
PLAIN = (str, bool, int, float, type(None))
SHORTEST = 1e-12
LARGEST_DIM = 1 << 20
SMALLEST, LARGEST = -(2**63), 2**63 - 1
SHOWN = 10


@dataclass(frozen=True)
class EncoderIdentity:
    """Which encoder made a gallery's vectors.

    Attributes:
        fingerprint: the encoder's, see :meth:`sightline.Encoder.fingerprint`.
        dim: length of its vectors.
        name: what people call it.
    """

    fingerprint: str
    dim: int
    name: str

    def __post_init__(self) -> None:
        if not self.fingerprint or not 1 <= self.dim <= LARGEST_DIM:
            raise InputError(
                f"an encoder needs a fingerprint and from 1 to {LARGEST_DIM} dimensions: {self.fingerprint!r}, {self.dim}"
            )

    @classmethod
    def of(cls, encoder: AnyEncoder) -> "EncoderIdentity":
        """The identity of an encoder; an identity is its own."""
        if isinstance(encoder, EncoderIdentity):
            return encoder
        return cls(encoder.fingerprint(), encoder.dim, encoder.settings.backbone)

    def check(self, other: AnyEncoder | str, where: object) -> None:
        """Refuse another encoder, or another's fingerprint, by name."""
        found = EncoderIdentity(other, self.dim, "the one given") if isinstance(other, str) else EncoderIdentity.of(other)
        if found.fingerprint != self.fingerprint:
            raise InputError(
                f"{where}: its vectors are of another encoder: {self.name!r} with the fingerprint {self.fingerprint}; "
                f"{found.name!r} has {found.fingerprint}"
            )


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery: its id, what is known of it, and its (D,) float32 vector."""

    id: str
    metadata: dict[str, Value]
    vector: NDArray[np.float32]


@dataclass(frozen=True)
class Header:
    """What an index file is of, and how good it was measured to be.

    Attributes:
        factory: FAISS's name for the kind of index.
        epoch: of the gallery it was built from.
        n_rows: rows from 0 that it covers.
        token: a checksum over the blocks of these rows.
        file: its name.
        checksum: of the file's bytes.
        recall: share of the true 10 nearest that it finds, over some items of the gallery.
        effort: search parameters that were needed for it.
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
        keeps_models: its encoder and its rejector, in a folder of its own.
        keeps_uploads: image files of items, and writes of several steps as one: it can be served for writing.
        remembers_removals: what was removed, so that its source does not add it again.
        builds_index: when it is asked to; others look after their index themselves.
    """

    keeps_models: bool = False
    keeps_uploads: bool = False
    remembers_removals: bool = False
    builds_index: bool = False


class Gallery(ABC):
    """A searchable collection: what every kind of gallery has, and how one is made or opened by its address.

    A kind of gallery is a subclass and a row in :data:`GALLERIES`. It implements the abstract methods; what is given to
    :meth:`write`, :meth:`delete` and :meth:`nearest` was checked before.

    Attributes:
        capabilities: what this kind offers.
        address: where it is, for messages; without a password.
        folder: where it is on this machine; None where it is elsewhere.
        identity: the encoder its vectors are of.
        metric: ``cosine`` or ``dot``; higher is nearer.
        repairs: what was found damaged in derived files and made again, one sentence each.

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

    @staticmethod
    def create(
        uri: Path | str,
        encoder: AnyEncoder,
        *,
        index: str = "auto",
        metric: str = "cosine",
        recall: float | None = None,
    ) -> "Gallery":
        """A new, empty gallery; in a folder it appears complete or not at all.

        Args:
            uri: a folder that does not exist or is empty, or an address such as ``milvus+http://host:19530/collection``.
            encoder: what will make its vectors; an :class:`sightline.Encoder` is saved in the folder too.
            index: ``exact``, a FAISS factory string such as ``HNSW32``, or ``auto``.
            metric: ``cosine`` or ``dot``.
            recall: share of the true 10 nearest that an index is to find; default: 0.95.
        """
        choose(METRICS, metric, "metric")
        return gallery_kind(uri).make(str(uri), encoder, index=index, metric=metric, recall=recall)

    @staticmethod
    def open(uri: Path | str, *, read_only: bool = False) -> "Gallery":
        """The gallery in a folder, or at an address such as ``milvus+http://host:19530/collection``."""
        return gallery_kind(uri).connect(str(uri), read_only=read_only)

    @staticmethod
    def is_at(uri: Path | str) -> bool:
        """Whether there is a gallery in a folder or at an address."""
        return gallery_kind(uri).exists(str(uri))

    @classmethod
    @abstractmethod
    def make(cls, uri: str, encoder: AnyEncoder, *, index: str, metric: str, recall: float | None) -> "Gallery":
        """A new, empty gallery of this kind; an index or a recall that it cannot have is refused first."""

    @classmethod
    @abstractmethod
    def connect(cls, uri: str, *, read_only: bool) -> "Gallery":
        """The gallery of this kind at an address."""

    @classmethod
    @abstractmethod
    def exists(cls, uri: str) -> bool:
        """Whether there is something of this kind at an address."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @property
    def generation(self) -> int:
        """A number that changes with every committed write, of whichever process; 0 where this kind has none."""
        return 0

    @property
    def newest(self) -> int | None:
        """The generation in which an item was last added, or got another vector; None where it is not known."""
        return None

    def model_folder(self, name: str) -> Path | None:
        """The folder of the encoder or rejector inside the gallery; None if there is none, and a link is refused."""
        return None if self.folder is None else own_folder(self.folder, name)

    def encoder(self, trust: bool = False) -> "Encoder":
        """The encoder saved in the gallery; ``trust`` imports the module of a wrapped one."""
        folder = self.model_folder(ENCODER_FOLDER)
        if folder is None:
            raise InputError(
                f"{self.address}: no encoder is saved in this gallery, give that of its vectors, {self.identity.name!r}"
            )
        from sightline.models.encoder import Encoder

        encoder = Encoder.from_pretrained(folder, trust=trust)
        self.check_encoder(encoder)
        return encoder

    def rejector(self) -> "Rejector | None":
        """The rejector saved in the gallery, if there is one; one that is damaged or of another encoder is refused."""
        from sightline.ood.rejector import Rejector

        folder = self.model_folder(REJECTOR_FOLDER)
        return None if folder is None else Rejector.load(folder, self.identity.fingerprint)

    def check_encoder(self, encoder: AnyEncoder | str) -> None:
        """Refuse another encoder than that of the gallery's vectors, given itself or by its fingerprint."""
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
            ids: none of which is there already.
            vectors: (N, D), of the gallery's encoder.
            metadata: a dictionary for each, or a table; values are str, int, float, bool or None.
            encoder: what made the vectors, or its fingerprint, if it is to be checked.
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
        """Add items, in place of those that have the same ids; see :meth:`add`."""
        self._put(ids, vectors, metadata, encoder, replace=True)

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
        """Add checked items; those that are there already are replaced or, without ``replace``, refused."""

    def remove(self, ids: Sequence[str], *, remember: bool = True) -> None:
        """Take items out, all of them or, if one is unknown, none.

        Args:
            ids: of the items.
            remember: that they were removed, so that images of a folder or manifest are not added again with it.
        """
        if listed := checked_ids(ids):
            self.delete(listed, remember)

    @abstractmethod
    def delete(self, ids: list[str], remember: bool) -> None:
        """Take items out; if one is unknown, none."""

    def removed(self) -> dict[str, str]:
        """The ids that were removed and not added again since, with the root, as noted, of the images they were of."""
        return {}

    def reading(self) -> AbstractContextManager[None]:
        """A block in which all that is read is of one moment, where this kind has transactions."""
        return nullcontext()

    def writing(self) -> AbstractContextManager[None]:
        """A block in which nobody else writes: what is read there and then written is kept together or not at all."""
        raise InputError(f"{self.address}: this kind of gallery has no transactions")

    def get(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; unknown ones are refused."""
        with self.reading():
            return list(map(Item, listed_ids(ids), self.metadata(ids), self.vectors(ids)))

    @abstractmethod
    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """What is known of the items of these ids, in their order; unknown ones are refused."""

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as they are stored: at length 1 for cosine."""

    @abstractmethod
    def ids(self) -> list[str]:
        """All ids, in the order they were added; an item put in place of another counts as new."""

    @abstractmethod
    def filter(self, where: str) -> list[str]:
        """The ids of the items for which a condition holds, in the order they were added.

        Args:
            where: such as ``label_1 == "Flags" and year >= 2020``; see :mod:`sightline.gallery.filters`.
        """

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
            queries: (Q, D), of the gallery's encoder.
            k: results wanted, at least 1.
            where: only items for which this condition holds; see :meth:`filter`.
            encoder: what made the queries, or its fingerprint, if it is to be checked.

        Returns:
            (Q, K) float32 scores and (Q, K) ids, K being k or, if smaller, the most that any query found; -inf and None
            where another has found fewer.
        """
        if encoder is not None:
            self.check_encoder(encoder)
        table = checked_vectors(queries, self.identity.dim, self.metric)
        if k < 1:
            raise InputError(f"k is {k}; at least 1 is needed")
        return self.nearest(table, k, where)

    @abstractmethod
    def nearest(self, queries: NDArray[np.float32], k: int, where: str | None) -> Ranking:
        """What :meth:`search` returns, for checked queries."""

    def check_index(self, index: str | None, recall: float | None) -> None:
        """Refuse an index or a recall that :meth:`build_index` would refuse: to be called before images are embedded."""
        if index is not None or recall is not None:
            raise InputError(f"{self.address}: this kind of gallery has no choice of index: {index or recall}")

    def build_index(
        self, index: str | None = None, *, recall: float | None = None, show_progress: bool = False
    ) -> Header | None:
        """Build the index from the vectors; see :meth:`LocalGallery.build_index`. Others look after theirs themselves."""
        self.check_index(index, recall)
        return None

    def index_is_behind(self) -> bool:
        """Whether more than a tenth of the items were added since the index was built."""
        return False

    def compact(self) -> None:
        """Give back the space of what was removed; refused where this kind does so itself."""
        raise InputError(f"{self.address}: this kind of gallery is never compacted")

    @abstractmethod
    def verify(self) -> list[str]:
        """What is wrong with the gallery, one sentence each, or nothing."""

    def stats(self) -> dict[str, Any]:
        """Numbers of the gallery, by name."""
        return {
            "items": len(self),
            "dim": self.identity.dim,
            "metric": self.metric,
            "encoder": self.identity.name,
            "fingerprint": self.identity.fingerprint,
        } | self.details()

    def details(self) -> dict[str, Any]:
        """What :meth:`stats` says of this kind of gallery alone; ``index`` is the kind of index."""
        return {"index": "exact"}


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
    """The class of the galleries at such an address."""
    scheme = re.match(r"([A-Za-z][\w+.-]*):(//)?", str(uri))
    is_file = Path(uri).suffix in GALLERIES and Path(uri).name != "gallery.db"  # which is inside the folder of a local one
    name = Path(uri).suffix if is_file else ""
    if scheme and (scheme[2] or scheme[1] in GALLERIES):
        name = scheme[1]
    return cast(type[Gallery], GALLERIES.find(name))


def own_folder(folder: Path, name: str) -> Path | None:
    """The folder of that name inside a gallery's, such as its encoder's; None if there is none, and a link is refused."""
    found = recovered_folder(folder / name)
    if found.is_symlink():
        raise InputError(f"{found}: a link; it is not followed")
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


def stored_path(folder: Path | None, file: Path) -> str:
    """What a gallery notes of an image: its path from the gallery if it lies beside it, otherwise its full path.

    So a gallery and its images can be moved together. Images inside the gallery's own folder keep their full path: those
    noted by a path inside it were uploaded, and are removed with their item.

    Args:
        folder: the gallery's, resolved; None for one that has none, and lies beside nothing.
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
    """The full path of an item's image, whether it is there or not; None where the metadata says nothing.

    Args:
        folder: the gallery's, if it has one.
        metadata: the item's.
        root: where to look for images that lay beside the gallery, in place of the folder that it lies in now.

    Example:
        >>> image_path(Path("/data/gallery"), {"path": "../images/a.png"}, root=Path("/new")).as_posix()
        '/new/images/a.png'
    """
    path = metadata.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    is_beside = root is not None and path.startswith(BESIDE)
    file = Path(root or "", path.removeprefix(BESIDE)) if is_beside else Path(folder or "", path)
    return Path(os.path.realpath(file))  # unlike Path.resolve also where links go in a circle


def noted_root(id_: str, metadata: Mapping[str, Value]) -> str | None:
    """The root of the source that an item came from, as a gallery notes it; None for what was uploaded or added in Python.

    Galleries of earlier versions note no root: there it is what stands before the id in the path, if the path ends in it.

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
    """The ids as a list; refused where one is no string, empty, or there twice."""
    listed = listed_ids(ids)
    raise_faults("ids", [f"id {id_!r} is not a string of at least one letter" for id_ in listed if not may_be_id(id_)])
    if twice := [id_ for id_, n in Counter(listed).items() if n > 1]:
        raise InputError(f"{len(twice)} ids are there more than once in one call: {some(twice)}")
    return listed


def listed_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list; one string is none."""
    if isinstance(ids, str):
        raise InputError(f"a list of ids is needed, found the single string {ids!r}")
    return list(ids)


def may_be_id(id_: object) -> bool:
    """Whether an item can have such an id."""
    return isinstance(id_, str) and id_ != "" and "\0" not in id_ and (id_.isascii() or is_utf8(id_))


def is_utf8(text: str) -> bool:
    """False where Python holds bytes that it could not decode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def checked_vectors(vectors: ArrayLike, dim: int, metric: str, ids: Sequence[str] | None = None) -> NDArray[np.float32]:
    """(N, D) float32, at length 1 for cosine.

    Args:
        vectors: as they were given.
        dim: of the gallery.
        metric: of the gallery.
        ids: of the items, by which faults are named; None for queries, where a zero vector stays zero and is like nothing.
    """
    name = "queries" if ids is None else "vectors"
    table = _table(vectors, dim, name)
    rows: Sequence[object] = range(len(table)) if ids is None else ids
    if len(table) != len(rows):
        raise InputError(f"{len(table)} vectors for {len(rows)} ids")
    lengths = _lengths(table)
    if (wrong := np.flatnonzero(~np.isfinite(lengths))).size:
        shown = some([rows[row] for row in wrong.tolist()])
        raise InputError(f"{name}: NaN or infinity in {len(wrong)} of {len(table)} rows: {shown}")
    if metric != "cosine":
        return table
    if ids is not None and (short := np.flatnonzero(lengths <= SHORTEST)).size:
        raise InputError(f"vectors of length 0 have no cosine: {some([ids[row] for row in short.tolist()])}")
    return np.divide(table, np.maximum(lengths, SHORTEST)[:, None], out=np.empty_like(table), casting="same_kind")


def _lengths(table: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N,) the length of each row; NaN or infinity where one of its values is."""
    squares = np.einsum("nd,nd->n", table, table).astype(np.float64)
    doubtful = ~((squares > 1e-30) & (squares < 1e30))  # NaN, or too far from 1 for squares in float32
    squares[doubtful] = np.square(table[doubtful], dtype=np.float64).sum(1)
    return np.asarray(np.sqrt(squares), np.float64)


def _table(vectors: ArrayLike, dim: int, name: str) -> NDArray[np.float32]:
    try:
        table = np.asarray(vectors)
    except ValueError as error:
        raise InputError(f"{name}: a table (N, {dim}) is needed, found rows of different lengths") from error
    if table.ndim != 2 or table.dtype.kind != "f":
        raise InputError(
            f"{name}: a table of floating point numbers (N, {dim}) is needed, found {table.dtype} {table.shape}"
        )
    if table.shape[1] != dim:
        raise InputError(f"{name} have {table.shape[1]} dimensions, the gallery {dim}")
    with np.errstate(over="ignore"):  # becomes infinity, which is refused by those who ask
        return np.ascontiguousarray(table, np.float32)


def checked_metadata(ids: Sequence[str], metadata: Metadata | None) -> list[dict[str, Value]]:
    """One dictionary of plain values for each id; ``id`` among its keys may only repeat the id, and is left out."""
    given = [{}] * len(ids) if metadata is None else metadata
    rows = given.to_dicts() if isinstance(given, pl.DataFrame) else list(given)
    if strange := [f"row {place}: {row!r}" for place, row in enumerate(rows) if not isinstance(row, Mapping)]:
        raise InputError(f"metadata: a dictionary is needed for each item, found {some(strange)}")
    if len(rows) != len(ids):
        raise InputError(f"{len(rows)} rows of metadata for {len(ids)} ids")
    kept = [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items() if key != "id"}
        for row in rows
    ]
    keys: set[object] = set().union(*kept)
    faults = [f"the key {key!r} is not a string" for key in keys if not isinstance(key, str) or not key or not is_utf8(key)]
    faults += [
        f"{id_!r}: its metadata has another id" for id_, row in zip(ids, rows, strict=True) if row.get("id", id_) != id_
    ]
    for id_, row in zip(ids, kept, strict=True):
        faults += [f"{id_!r}: {fault}" for key, value in row.items() if (fault := value_fault(key, value))]
    raise_faults("metadata", faults)
    return kept


def value_fault(key: object, value: object) -> str | None:
    """A sentence if an item cannot have such a value."""
    if isinstance(value, str) and type(value) is str:
        return None if value.isascii() or is_utf8(value) else f"{key} is {value!a}, which is not UTF-8"
    if type(value) not in PLAIN:
        return f"{key} is of type {type(value).__name__}, not str, int, float, bool or None"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} is {value}; a number or None is needed"
    if isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        return f"{key} is {value}, which does not fit in 64 bits"
    return None


def check_known(where: object, ids: Sequence[str], known: Mapping[str, object]) -> None:
    """Refuse ids that are not among those of a gallery."""
    if missing := [id_ for id_ in ids if id_ not in known]:
        raise InputError(f"{where}: {len(missing)} unknown ids: {some(missing)}")


def check_new(where: object, known: Mapping[str, object]) -> None:
    """Refuse ids that are there already."""
    if known:
        raise InputError(f"{where}: {len(known)} ids are there already: {some(list(known))}")


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, some at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def some(words: Sequence[object]) -> str:
    """The words in quotes, cut after ten."""
    return names(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
