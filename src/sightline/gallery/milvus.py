"""A gallery on Milvus: a server or cluster by its address, or one file with Milvus Lite.

Milvus has no transactions: an ``add`` that fails half-way deletes what it has written, if it still can; one that is killed
half-way leaves a part, which the same ``upsert`` completes. Equal scores have no defined order.

Milvus has three truth values: a comparison with a missing key, or with a value of another type, is neither true nor false,
and ``not`` does not change that. In our filters such a comparison is false, so ``not`` is pushed down to the comparisons.

Milvus finds a value in a list of a JSON field, but not the beginning of one. A list is stored as an object of the list
itself and of all beginnings of its values along their dots, in which ``has`` finds its prefix.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError, needs_extra
from sightline.gallery.filters import HAS, LISTS, FilterTerm, Junction, parse_filter
from sightline.gallery.gallery import (
    AnyEncoder,
    EncoderIdentity,
    Gallery,
    Ranking,
    Scalar,
    Value,
    batches,
    check_known,
    check_new,
    listed_ids,
    some,
)
from sightline.labels.codes import beginnings

FORMAT = 1
ABOUT = "sightline"  # the property of a collection that describes its encoder and metric
LONGEST = 1024  # bytes of an id, and of a partition's value
WRITE_BYTES = 1 << 24  # a message may have 64 MB
READ_IDS = 1000
MOST_RESULTS = 16384  # of one query in Milvus
SEARCH_RESULTS = 100_000  # of one message
WRITES = {"insert", "upsert", "delete", "flush", "compact"}
METRIC_TYPES = {"cosine": "COSINE", "dot": "IP"}
INDEX_TYPES = {  # pattern of the factory string, whose groups are options: Milvus's name, and further options
    r"auto": ("AUTOINDEX", {}),
    r"exact": ("FLAT", {}),
    r"HNSW(?P<M>\d+)": ("HNSW", {"efConstruction": 200}),
    r"IVF(?P<nlist>\d+),Flat": ("IVF_FLAT", {}),
    r"IVF(?P<nlist>\d+),SQ8": ("IVF_SQ8", {}),
    r"IVF(?P<nlist>\d+),PQ(?P<m>\d+)": ("IVF_PQ", {"nbits": 8}),
}
DEFAULT_COLLECTION = "sightline"
SECONDS = 10.0  # timeout when connecting
URI = "'milvus+http://host:19530/collection', 'milvus+https://...' or 'milvus+file:path.db/collection'"
NEVER, ALWAYS = 'id == ""', 'id != ""'  # no id is empty
OPPOSITE = {"==": "!=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# True for all strings, for all numbers, and for all lists.
IS_TEXT, IS_NUMBER, IS_LIST = '{path} >= ""', "{path} >= -1.7976931348623157e308", 'exists {path}["list"]'
PARTS = {LISTS: "list", HAS: "beginnings"}  # of a stored list, by what finds a value in them


@dataclass(frozen=True)
class Address:
    """The address of a collection.

    Attributes:
        uri: what Milvus's client connects to.
        collection: its name.
        token: ``user:password``, or empty.
        shown: the whole address without the password, for messages.
    """

    uri: str
    collection: str
    token: str
    shown: str

    @property
    def is_file(self) -> bool:
        """Whether it is a Milvus Lite file."""
        return not self.uri.startswith("http")

    @classmethod
    def read(cls, text: str) -> "Address":
        """Parse an address.

        Example:
            >>> Address.read("milvus+http://me:secret@host:19530/birds").shown
            'milvus+http://me@host:19530/birds'
            >>> Address.read("milvus+file:/data/birds.db/birds").uri
            '/data/birds.db'
        """
        if file := re.fullmatch(r"(?:milvus\+file:(?://)?)?(.+?\.db)(?:/([^/]+))?", text):
            found = cls(file[1], file[2] or DEFAULT_COLLECTION, "", text)
        elif text.startswith(("milvus+http://", "milvus+https://")):
            parts = urlsplit(text.removeprefix("milvus+"))
            user, host = parts.username or "", parts.netloc.rpartition("@")[2]
            token = f"{user}:{parts.password}" if parts.password else user
            shown = text.replace(f":{parts.password}@", "@")
            found = cls(f"{parts.scheme}://{host}", parts.path.strip("/") or DEFAULT_COLLECTION, token, shown)
        else:
            raise InputError(f"{text}: not a Milvus address; use {URI}")
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", found.collection, re.ASCII):
            raise InputError(
                f"{found.shown}: a collection's name must consist of letters, digits and _, got {found.collection!r}"
            )
        return found


def index_type(text: str) -> tuple[str, dict[str, int]]:
    """Milvus's name for an index and its options.

    Example:
        >>> index_type("IVF1024,PQ64")
        ('IVF_PQ', {'nlist': 1024, 'm': 64, 'nbits': 8})
    """
    for pattern, (name, options) in INDEX_TYPES.items():
        if found := re.fullmatch(pattern, text):
            return name, {option: int(value) for option, value in found.groupdict().items()} | options
    raise InputError(
        f"index on Milvus must be such as auto, exact, HNSW32, IVF1024,Flat, IVF1024,SQ8 or IVF1024,PQ64, got {text!r}"
    )


def open_client(address: Address, must_exist: bool = False) -> tuple[Any, Any]:
    """A client, and Milvus's data types; a missing Milvus Lite file is created unless it must exist."""
    if address.is_file and not (Path(address.uri) if must_exist else Path(address.uri).parent).exists():
        raise InputError(f"{address.shown}: no such {'file' if must_exist else 'parent folder'}")
    with needs_extra("Milvus", "cluster"):
        from pymilvus import DataType, MilvusClient
    with milvus_errors(address.shown, " cannot be reached"):
        return MilvusClient(address.uri, token=address.token, timeout=SECONDS), DataType


def _refuse_recall(shown: str, recall: float | None) -> None:
    if recall is not None:
        raise InputError(f"{shown}: Milvus does not tune its index to a recall; leave recall out, got {recall}")


@contextmanager
def milvus_errors(where: str, what: str = "") -> Iterator[None]:
    """Turn Milvus's errors into one-line InputErrors, and silence its own log of them."""
    from grpc import RpcError
    from pymilvus import MilvusException

    log = getLogger("pymilvus")
    level = log.level
    log.setLevel("CRITICAL")
    try:
        yield
    except (MilvusException, RpcError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise InputError(f"{where}:{what or ' Milvus failed'}: {str(reason).splitlines()[0]}") from error
    finally:
        log.setLevel(level)


class MilvusGallery(Gallery):
    """A gallery in one Milvus collection.

    Milvus maintains its derived data itself: :attr:`repairs` is always empty.

    Attributes:
        partition: the metadata key by whose value items are partitioned; None for no partitions.
    """

    def __init__(self, address: Address, client: Any, about: dict[str, Any], read_only: bool) -> None:
        super().__init__(address.shown, EncoderIdentity(about["fingerprint"], about["dim"], about["name"]), about["metric"])
        self.partition: str | None = about["partition"]
        self._collection = address.collection
        self._client = client
        self._read_only = read_only

    @classmethod
    def make(
        cls,
        uri: str,
        encoder: AnyEncoder,
        *,
        index: str = "auto",
        metric: str = "cosine",
        recall: float | None = None,
        partition: str | None = None,
    ) -> "MilvusGallery":
        """Create an empty collection.

        Args:
            uri: ``milvus+http://host:19530/collection``, or ``milvus+file:path.db/collection`` for Milvus Lite.
            encoder: the encoder of its vectors.
            index: ``auto`` or ``exact``, or as for FAISS ``HNSW32``, ``IVF1024,Flat``, ``IVF1024,SQ8``, ``IVF1024,PQ64``.
            metric: ``cosine`` or ``dot``.
            recall: must be None: Milvus does not tune its index.
            partition: a metadata key, such as ``label_1``: items with the same value are stored together, and a search with
                a filter that fixes the value reads only these.
        """
        address, identity = Address.read(uri), EncoderIdentity.of(encoder)
        _refuse_recall(address.shown, recall)
        kind, options = index_type(index)
        client, data_type = open_client(address)
        about = {"format": FORMAT, **asdict(identity), "metric": metric, "partition": partition}
        with milvus_errors(address.shown):
            if client.has_collection(address.collection):
                client.close()
                raise InputError(f"{address.shown}: the collection exists already; open it, or choose another name")
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=json.dumps(about))
            schema.add_field("id", data_type.VARCHAR, is_primary=True, max_length=LONGEST)
            schema.add_field("vector", data_type.FLOAT_VECTOR, dim=identity.dim)
            schema.add_field("metadata", data_type.JSON)
            schema.add_field("added", data_type.INT64)
            if partition is not None:
                schema.add_field("partition", data_type.VARCHAR, max_length=LONGEST, is_partition_key=True)
            indexes = client.prepare_index_params()
            indexes.add_index("vector", index_type=kind, metric_type=METRIC_TYPES[metric], params=options)
            client.create_collection(
                address.collection,
                schema=schema,
                index_params=indexes,
                properties={ABOUT: json.dumps(about)},
                consistency_level="Strong",
            )
        return cls(address, client, about, read_only=False)

    @classmethod
    def connect(cls, uri: str, *, read_only: bool = False) -> "MilvusGallery":
        """Open the gallery at an address; raises InputError for a collection that Sightline did not create."""
        address = Address.read(uri)
        client, _ = open_client(address, must_exist=True)
        try:
            with milvus_errors(address.shown):
                if not client.has_collection(address.collection):
                    raise InputError(
                        f"{address.shown}: no such collection; existing: {some(client.list_collections()) or 'none'}"
                    )
                described = client.describe_collection(address.collection)
                # A server may drop properties it does not know, and Milvus Lite drops descriptions.
                about = json.loads(described.get("properties", {}).get(ABOUT) or described["description"])
                if about["format"] != FORMAT:
                    raise InputError(f"{address.shown}: its format must be {FORMAT}, found {about['format']!r}")
                client.load_collection(address.collection)
            return cls(address, client, about, read_only)
        except BaseException as error:
            client.close()
            if isinstance(error, KeyError | TypeError | json.JSONDecodeError):
                raise InputError(f"{address.shown}: the collection was not created by Sightline") from error
            raise

    @classmethod
    def exists(cls, uri: str) -> bool:
        """Whether there is a collection at an address, created by Sightline or not."""
        address = Address.read(uri)
        if address.is_file and not Path(address.uri).exists():
            return False
        with closing(open_client(address)[0]) as client, milvus_errors(address.shown):
            return bool(client.has_collection(address.collection))

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __len__(self) -> int:
        return self.count()

    def count(self, where: str | None = None) -> int:
        """The number of items for which a condition holds, or of all items, counted by Milvus."""
        condition = "" if where is None else milvus_filter(where, self.partition)
        return int(self._call("query", filter=condition, output_fields=["count(*)"])[0]["count(*)"])

    def write(self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]], replace: bool) -> None:
        """Add checked items; without ``replace``, none is added if one exists already or the server fails."""
        check_new(self.address, {} if replace else self._rows_of(ids, ["id"]))
        written: list[str] = []
        try:
            for part in self._messages(ids, vectors, metadata):
                written += [row["id"] for row in part]
                self._call("upsert" if replace else "insert", data=part)
        except BaseException:
            self._delete([] if replace else written)
            raise

    def _messages(
        self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]]
    ) -> Iterator[Sequence[dict[str, Any]]]:
        """The items as Milvus's rows, in parts that fit into one message."""
        first = time.time_ns()
        rows: list[dict[str, Any]] = [
            {"id": id_, "vector": vector, "metadata": _stored(row), "added": first + place}
            for place, (id_, vector, row) in enumerate(zip(ids, vectors, metadata, strict=True))
        ]
        for row in rows if self.partition is not None else []:
            value = row["metadata"].get(self.partition)
            row["partition"] = value if isinstance(value, str) else ""
        texts = [(row["id"], text) for row in rows for text in (row["id"], row.get("partition", ""))]
        if long := [id_ for id_, text in texts if len(text.encode()) > LONGEST]:
            raise InputError(f"{self.address}: ids and partition values must have at most {LONGEST} bytes: {some(long)}")
        largest = 4 * self.identity.dim + 8 * LONGEST + max(len(json.dumps(row["metadata"])) for row in rows)
        return batches(rows, max(1, WRITE_BYTES // largest))

    def delete(self, ids: list[str], remember: bool) -> None:
        """Remove items; if one id is unknown, none is removed. A collection does not remember removals."""
        self._known(ids, "id")
        self._delete(ids)

    def _delete(self, ids: list[str]) -> None:
        for part in batches(ids, READ_IDS):
            self._call("delete", ids=part)

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """The metadata of these ids, in their order."""
        return [_as_given(known) for known in self._known(ids, "metadata")]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as stored: at length 1 for cosine."""
        return np.array(self._known(ids, "vector"), np.float32).reshape(len(ids), self.identity.dim)

    def ids(self) -> list[str]:
        """All ids, in the order they were added, by the clocks of the clients."""
        return self._found("")

    def filter(self, where: str) -> list[str]:
        """The ids of the items that meet a condition, in the order of :meth:`ids`."""
        return self._found(milvus_filter(where, self.partition))

    def _found(self, condition: str) -> list[str]:
        rows: list[tuple[int, str]] = []
        with milvus_errors(self.address):
            pages = self._client.query_iterator(
                self._collection, filter=condition, output_fields=["id", "added"], batch_size=READ_IDS
            )
            while page := pages.next():
                rows += [(row["added"], row["id"]) for row in page]
            pages.close()
        return [id_ for _, id_ in sorted(rows)]

    def nearest(self, queries: NDArray[np.float32], k: int, where: str | None) -> Ranking:
        """The k nearest items of each query, at most 16,384, best first."""
        if k > MOST_RESULTS:
            raise InputError(f"k must be at most {MOST_RESULTS} on Milvus, got {k}")
        condition = "" if where is None else milvus_filter(where, self.partition)
        n_rows = max(1, min(READ_IDS, SEARCH_RESULTS // k))
        found: list[Any] = []
        for first in range(0, len(queries), n_rows):
            found += self._call(
                "search", data=queries[first : first + n_rows], limit=k, filter=condition, output_fields=["id"]
            )
        width = max((len(row) for row in found), default=0)
        scores, ids = np.full((len(queries), width), -np.inf, np.float32), np.full((len(queries), width), None, object)
        for place, row in enumerate(found):
            scores[place, : len(row)] = [hit["distance"] for hit in row]
            ids[place, : len(row)] = [hit["id"] for hit in row]
        return scores, ids

    def check_index(self, index: str | None, recall: float | None) -> None:
        """Raise InputError for a recall, or for another index than the one the collection was created with."""
        _refuse_recall(self.address, recall)
        if index is None:
            return
        kind, options = index_type(index)
        built = self._index()
        known = {name: built[name] for name in ("index_type", *options) if name in built}  # Milvus Lite has no options
        if any(str(value) != str({"index_type": kind, **options}[name]) for name, value in known.items()):
            there = ", ".join(f"{name} {value}" for name, value in known.items())
            raise InputError(
                f"{self.address}: its index is {there}, set when the collection was created; {index!r} requires a new one"
            )

    def _index(self) -> dict[str, Any]:
        return self._call("describe_index", "vector") or {}

    def compact(self) -> None:
        """Let Milvus merge its segments and drop removed items; this continues in the background."""
        self._call("flush")
        self._call("compact")

    def verify(self) -> list[str]:
        """The faults of the collection, one sentence each; Milvus checks the vectors itself."""
        fields = {field["name"]: field for field in self._call("describe_collection")["fields"]}
        checks = {
            "dimensions of its vectors": (fields["vector"]["params"]["dim"], self.identity.dim),
            "metric of its index": (self._index().get("metric_type"), METRIC_TYPES[self.metric]),
            "number of listed items": (len(set(self.ids())), len(self)),
        }
        return [
            f"{self.address}: {what}: expected {expected}, found {found}"
            for what, (found, expected) in checks.items()
            if found != expected
        ]

    def details(self) -> dict[str, Any]:
        """The kind of index, and the number of partitions."""
        return {"index": self._index().get("index_type"), "partitions": len(self._call("list_partitions"))}

    def _rows_of(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Some fields of the items of these ids; unknown ids are left out."""
        parts = [self._call("get", ids=list(part), output_fields=fields) for part in batches(listed_ids(ids), READ_IDS)]
        return {row["id"]: row for part in parts for row in part}

    def _known(self, ids: Sequence[str], field: str) -> list[Any]:
        """A field of the items of these ids, in their order; an unknown id raises InputError."""
        found = self._rows_of(ids, ["id", field])
        check_known(self.address, ids, found)
        return [found[id_][field] for id_ in ids]

    def _call(self, name: str, *values: Any, **options: Any) -> Any:
        if self._client is None:
            raise InputError(f"{self.address}: the gallery was closed")
        if self._read_only and name in WRITES:
            raise InputError(f"{self.address}: was opened with read_only=True")
        with milvus_errors(self.address):
            return getattr(self._client, name)(self._collection, *values, **options)


def _stored(metadata: dict[str, Value]) -> dict[str, Any]:
    """Metadata as Milvus stores it: each list as an object."""
    return {
        key: {
            PARTS[LISTS]: value,
            PARTS[HAS]: list(dict.fromkeys(part for one in value for part in beginnings(one))),
        }
        if isinstance(value, list)
        else value
        for key, value in metadata.items()
    }


def _as_given(stored: dict[str, Any]) -> dict[str, Value]:
    """The metadata of :func:`_stored`."""
    return {key: value[PARTS[LISTS]] if isinstance(value, dict) else value for key, value in stored.items()}


def milvus_filter(text: str, partition: str | None = None) -> str:
    """A filter in Milvus's language, with the errors of :func:`~sightline.gallery.filters.compile_filter`.

    Args:
        text: the filter.
        partition: the key that the collection is partitioned by: if the filter fixes its value, Milvus searches only that
            partition.

    Example:
        >>> milvus_filter('year >= 2020 and not label_1 == "Flags"')
        '(metadata["year"] >= 2020 and (not (exists metadata["label_1"]) or not (metadata["label_1"] == "Flags")))'
    """
    tree = parse_filter(text)
    fixed = None if partition is None else _fixed(tree, partition)
    condition = _condition(tree)
    return condition if fixed is None else f"partition == {_literal(fixed)} and {condition}"


def _literal(value: Scalar) -> str:
    return json.dumps(value, ensure_ascii=False)


def _condition(condition: FilterTerm | Junction) -> str:
    if isinstance(condition, Junction):
        return _join(condition.by_and, [_condition(part) for part in condition.parts])
    if not condition.values:
        return NEVER if condition.holds else ALWAYS
    symbol = "==" if condition.symbol == "in" else condition.symbol
    parts = [_comparison(condition.key, symbol, value, condition.holds) for value in condition.values]
    return _join(not condition.holds, parts)


def _join(by_and: bool, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({(' and ' if by_and else ' or ').join(parts)})"


def _comparison(key: str, symbol: str, value: Scalar, holds: bool) -> str:
    if key == "id":
        of_text = f"id {symbol if holds else OPPOSITE[symbol]} {_literal(value)}"
        other = NEVER if holds else ALWAYS
        return of_text if isinstance(value, str) else other
    path = f'metadata["{key}"]'  # parse_filter allows no quotes in a key
    if value is None:
        return f"{'not ' if holds else ''}(exists {path})"
    if symbol in PARTS:
        values = f'{path}["{PARTS[symbol]}"]'
        found = f"json_contains({values}, {_literal(value)})"
        return found if holds else f"(not (exists {values}) or not {found})"
    text = _literal(int(value) if isinstance(value, bool) and symbol != "==" else value)
    if holds:
        return f"{path} {symbol} {text}"
    if symbol == "==":
        return f"(not (exists {path}) or not ({path} == {text}))"
    other_types = f"{IS_NUMBER if isinstance(value, str) else IS_TEXT} or {IS_LIST}".format(path=path)
    return f"(not (exists {path}) or {path} {OPPOSITE[symbol]} {text} or {other_types})"


def _fixed(condition: FilterTerm | Junction, key: str) -> str | None:
    """The string that a key must equal for the condition to hold, if the condition says so explicitly."""
    if isinstance(condition, Junction):
        found = [_fixed(part, key) for part in condition.parts] if condition.by_and else []
        return next((text for text in found if text is not None), None)
    is_equal = condition.key == key and condition.symbol == "in" and condition.holds and len(condition.values) == 1
    value = condition.values[0] if is_equal else None
    return value if isinstance(value, str) else None
