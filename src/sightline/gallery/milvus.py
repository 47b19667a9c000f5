"""A gallery on Milvus: a cluster by its address, or one file by way of Milvus Lite.

Milvus has no transactions: an ``add`` that fails half-way takes back what it has written, if it still can, and one that is
killed half-way leaves a part, which the same ``upsert`` completes. Equal scores come in any order.

Milvus knows a third truth value: what compares with a missing key, or one of another type, is neither true nor false, and
``not`` leaves it so. In our filters such a comparison is false, so ``not`` is carried inwards to the comparisons.
"""

import ast
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.gallery.filters import MIRRORED, ORDERED, compile_filter, key_of
from sightline.gallery.gallery import EncoderIdentity, Gallery, Ranking, Value, listed_ids, some

if TYPE_CHECKING:
    from sightline.models.encoder import Encoder

FORMAT = 1
ABOUT = "sightline"  # the property of a collection that says whose vectors it holds
LONGEST_ID = 1024
LONGEST_PARTITION = 1024
WRITE_BYTES = 1 << 24  # a message may have 64 MB
READ_IDS = 1000
MOST_RESULTS = 16384  # of one query in Milvus
SEARCH_RESULTS = 100_000  # of one message
METRIC_TYPES = {"cosine": "COSINE", "dot": "IP"}
DEFAULT_COLLECTION = "sightline"
SECONDS = 10.0  # to wait for an answer when connecting
URI = "'milvus+http://host:19530/collection', 'milvus+https://...' or 'milvus+file:path.db/collection'"
NEVER, ALWAYS = 'id == ""', 'id != ""'  # no id is empty
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# True of all texts and of all numbers.
IS_TEXT, IS_NUMBER = '{path} >= ""', "{path} >= -1.7976931348623157e308"


@dataclass(frozen=True)
class Address:
    """Where a collection is.

    Attributes:
        uri: what Milvus's client connects to.
        collection: its name.
        token: ``user:password``, or empty.
        shown: the whole as people may read it, without the password.
    """

    uri: str
    collection: str
    token: str
    shown: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file of Milvus Lite."""
        return not self.uri.startswith("http")

    @classmethod
    def read(cls, text: str) -> "Address":
        """The parts of an address.

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
            host, user = parts.netloc.rpartition("@")[2], parts.username or ""
            token = f"{user}:{parts.password}" if parts.password else user
            where = f"{parts.scheme}://{host}"
            shown = f"milvus+{parts.scheme}://{user + '@' if user else ''}{host}{parts.path}"
            found = cls(where, parts.path.strip("/") or DEFAULT_COLLECTION, token, shown)
        else:
            raise InputError(f"{text}: not an address of Milvus; what fits: {URI}")
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", found.collection, re.ASCII):
            raise InputError(f"{found.shown}: a collection's name is of letters, digits and _, found {found.collection!r}")
        return found


def index_type(text: str) -> tuple[str, dict[str, int]]:
    """Milvus's name for an index and its options.

    Example:
        >>> index_type("IVF1024,PQ64")
        ('IVF_PQ', {'nlist': 1024, 'm': 64, 'nbits': 8})
    """
    if text in ("auto", "exact"):
        return {"auto": "AUTOINDEX", "exact": "FLAT"}[text], {}
    if graph := re.fullmatch(r"HNSW(\d+)", text):
        return "HNSW", {"M": int(graph[1]), "efConstruction": 200}
    if lists := re.fullmatch(r"IVF(\d+),(?:(Flat)|(SQ8)|PQ(\d+))", text):
        n_lists = {"nlist": int(lists[1])}
        if lists[4]:
            return "IVF_PQ", {**n_lists, "m": int(lists[4]), "nbits": 8}
        return ("IVF_FLAT" if lists[2] else "IVF_SQ8"), n_lists
    raise InputError(f"index {text!r} is not one of Milvus: auto, exact, HNSW32, IVF1024,Flat, IVF1024,SQ8, IVF1024,PQ64")


def connected(address: Address, must_exist: bool = False) -> tuple[Any, Any]:
    """A client, and Milvus's data types; a file of Milvus Lite is made if it need not be there."""
    if address.is_file and not (Path(address.uri) if must_exist else Path(address.uri).parent).exists():
        raise InputError(f"{address.shown}: no such {'file' if must_exist else 'folder to put it in'}")
    try:
        from pymilvus import DataType, MilvusClient
    except ImportError as error:
        raise InputError("Milvus needs the package pymilvus: pip install 'sightline[cluster]'") from error
    with milvus_errors(address.shown, " cannot be reached"):
        return MilvusClient(address.uri, token=address.token, timeout=SECONDS), DataType


def _refuse_recall(shown: str, recall: float | None) -> None:
    if recall is not None:
        raise InputError(f"{shown}: Milvus does not tune its index to a recall, {recall} was asked for")


@contextmanager
def milvus_errors(where: str, what: str = "") -> Iterator[None]:
    """Milvus's errors as ours, in one line, and without its own report of them on standard error."""
    from grpc import RpcError
    from pymilvus import MilvusException

    log = getLogger("pymilvus")
    level = log.level
    log.setLevel("CRITICAL")
    try:
        yield
    except (MilvusException, RpcError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise InputError(f"{where}:{what or ' Milvus says'}: {str(reason).splitlines()[0]}") from error
    finally:
        log.setLevel(level)


class MilvusGallery(Gallery):
    """Items with vectors and metadata in one Milvus collection, with the encoder they are of.

    What Milvus derives it looks after itself: :attr:`repairs` is always empty.

    Attributes:
        partition: the metadata key whose value decides in which part of the collection an item is; None for none.
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
        encoder: "Encoder | EncoderIdentity",
        *,
        index: str = "auto",
        metric: str = "cosine",
        recall: float | None = None,
        partition: str | None = None,
    ) -> "MilvusGallery":
        """A new, empty collection.

        Args:
            uri: ``milvus+http://host:19530/collection``, or ``milvus+file:path.db/collection`` for Milvus Lite.
            encoder: what will make its vectors.
            index: ``auto`` or ``exact``, or as for FAISS ``HNSW32``, ``IVF1024,Flat``, ``IVF1024,SQ8``, ``IVF1024,PQ64``.
            metric: ``cosine`` or ``dot``.
            recall: refused, as Milvus does not tune its index.
            partition: a metadata key, such as ``label_1``: items of one value are kept together, and a search with a filter
                that fixes it reads these alone.
        """
        address, identity = Address.read(uri), EncoderIdentity.of(encoder)
        _refuse_recall(address.shown, recall)
        kind, options = index_type(index)
        client, data_type = connected(address)
        about = {"format": FORMAT, **asdict(identity), "metric": metric, "partition": partition}
        with milvus_errors(address.shown):
            if client.has_collection(address.collection):
                client.close()
                raise InputError(f"{address.shown}: is there already; it is left as it is")
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=json.dumps(about))
            schema.add_field("id", data_type.VARCHAR, is_primary=True, max_length=LONGEST_ID)
            schema.add_field("vector", data_type.FLOAT_VECTOR, dim=identity.dim)
            schema.add_field("metadata", data_type.JSON)
            schema.add_field("added", data_type.INT64)
            if partition is not None:
                schema.add_field("partition", data_type.VARCHAR, max_length=LONGEST_PARTITION, is_partition_key=True)
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
        """The gallery at an address; a collection that Sightline has not made is refused."""
        address = Address.read(uri)
        client, _ = connected(address, must_exist=True)
        with milvus_errors(address.shown):
            if not client.has_collection(address.collection):
                known = client.list_collections()
                client.close()
                raise InputError(f"{address.shown}: no such collection; there are {some(known) or 'none'}")
            described = client.describe_collection(address.collection)
        try:
            # A server may drop properties it does not know, and Milvus Lite drops descriptions.
            about = json.loads(described.get("properties", {}).get(ABOUT) or described["description"])
            if about["format"] != FORMAT:
                raise InputError(
                    f"{address.shown}: of format {about['format']!r}; this version of Sightline reads {FORMAT}"
                )
            gallery = cls(address, client, about, read_only)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            client.close()
            raise InputError(f"{address.shown}: a collection that Sightline has not made") from error
        with milvus_errors(address.shown):
            client.load_collection(address.collection)
        return gallery

    @classmethod
    def exists(cls, uri: str) -> bool:
        """Whether there is a collection at an address, made by Sightline or not."""
        address = Address.read(uri)
        if address.is_file and not Path(address.uri).exists():
            return False
        client, _ = connected(address)
        try:
            with milvus_errors(address.shown):
                return bool(client.has_collection(address.collection))
        finally:
            client.close()

    def close(self) -> None:
        """Let go of the connection; may be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __len__(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def write(self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]], replace: bool) -> None:
        """Add checked items; without ``replace``, none if one is there already, or if the server fails."""
        rows = self._rows(ids, vectors, metadata)
        if replace:
            for part in self._messages(rows):
                self._call("upsert", data=part)
            return
        if there := self._known(ids, ["id"]):
            raise InputError(f"{self.address}: {len(there)} ids are there already: {some(list(there))}")
        written: list[str] = []
        try:
            for part in self._messages(rows):
                written += [row["id"] for row in part]
                self._call("insert", data=part)
        except BaseException:
            self._delete(written)
            raise

    def _rows(self, ids: list[str], vectors: NDArray[np.float32], metadata: list[dict[str, Value]]) -> list[dict[str, Any]]:
        self._check_writable()
        if long := [id_ for id_ in ids if len(id_.encode()) > LONGEST_ID]:
            raise InputError(f"{self.address}: ids of more than {LONGEST_ID} bytes: {some(long)}")
        first = time.time_ns()
        rows = [
            {"id": id_, "vector": vector, "metadata": row, "added": first + place}
            for place, (id_, vector, row) in enumerate(zip(ids, vectors, metadata, strict=True))
        ]
        if self.partition is not None:
            for row in rows:
                value = row["metadata"].get(self.partition)
                row["partition"] = value if isinstance(value, str) else ""
                if len(row["partition"].encode()) > LONGEST_PARTITION:
                    raise InputError(f"{row['id']!r}: {self.partition} has more than {LONGEST_PARTITION} bytes")
        return rows

    def _messages(self, rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The rows in parts that one message can hold."""
        part: list[dict[str, Any]] = []
        n_bytes = 0
        for row in rows:
            size = 4 * self.identity.dim + len(json.dumps(row["metadata"])) + 8 * LONGEST_ID
            if part and n_bytes + size > WRITE_BYTES:
                yield part
                part, n_bytes = [], 0
            part.append(row)
            n_bytes += size
        if part:
            yield part

    def delete(self, ids: list[str], remember: bool) -> None:
        """Take items out; if one is unknown, none. A collection has no place to remember them."""
        self._check_writable()
        self._all_known(ids, ["id"])
        self._delete(ids)

    def _delete(self, ids: list[str]) -> None:
        for first in range(0, len(ids), READ_IDS):
            self._call("delete", ids=ids[first : first + READ_IDS])

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Value]]:
        """What is known of the items of these ids, in their order."""
        known = self._all_known(ids, ["id", "metadata"])
        return [dict(known[id_]["metadata"]) for id_ in ids]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) the vectors of these ids, in their order, as they are stored: at length 1 for cosine."""
        known = self._all_known(ids, ["id", "vector"])
        return np.array([known[id_]["vector"] for id_ in ids], np.float32).reshape(len(ids), self.identity.dim)

    def ids(self) -> list[str]:
        """All ids, in the order they were added by the clocks of those who added them."""
        return self._found("")

    def filter(self, where: str) -> list[str]:
        """The ids of the items for which a condition holds, in the order of :meth:`ids`."""
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
        """The k nearest items of each query, from 1 to 16,384, best first."""
        if k > MOST_RESULTS:
            raise InputError(f"k is {k}; Milvus takes from 1 to {MOST_RESULTS}")
        condition = "" if where is None else milvus_filter(where, self.partition)
        n_rows = max(1, min(READ_IDS, SEARCH_RESULTS // k))
        found: list[Any] = []
        for first in range(0, len(queries), n_rows):
            part = queries[first : first + n_rows]
            found += self._call("search", data=part, limit=k, filter=condition, output_fields=["id"])
        width = max((len(row) for row in found), default=0)
        scores, ids = np.full((len(queries), width), -np.inf, np.float32), np.full((len(queries), width), None, object)
        for place, row in enumerate(found):
            scores[place, : len(row)] = [hit["distance"] for hit in row]
            ids[place, : len(row)] = [hit["id"] for hit in row]
        return scores, ids

    def check_index(self, index: str | None, recall: float | None) -> None:
        """Refuse another index than the collection's, which was chosen when it was made, and a recall."""
        _refuse_recall(self.address, recall)
        if index is None:
            return
        kind, options = index_type(index)
        built = self._index()
        known = {name: str(built[name]) for name in options if name in built}  # Milvus Lite says nothing of them
        if built.get("index_type") != kind or any(value != str(options[name]) for name, value in known.items()):
            is_there = ", ".join([str(built.get("index_type")), *(f"{name} {value}" for name, value in known.items())])
            raise InputError(
                f"{self.address}: its index is {is_there}, chosen when it was made; {index!r} needs a new collection"
            )

    def _index(self) -> dict[str, Any]:
        with milvus_errors(self.address):
            return self._client.describe_index(self._collection, "vector") or {}

    def compact(self) -> None:
        """Have Milvus merge its segments and drop what was removed; it goes on in the background."""
        self._check_writable()
        self._call("flush")
        self._call("compact")

    def verify(self) -> list[str]:
        """What is wrong with the collection, one sentence each; vectors and their checksums are Milvus's own affair."""
        with milvus_errors(self.address):
            fields = {field["name"]: field for field in self._client.describe_collection(self._collection)["fields"]}
        faults = []
        if (found := fields["vector"]["params"]["dim"]) != self.identity.dim:
            faults.append(f"{self.address}: vectors of {found} dimensions, its encoder has {self.identity.dim}")
        if (metric := self._index().get("metric_type")) != METRIC_TYPES[self.metric]:
            faults.append(f"{self.address}: its index ranks by {metric}, the gallery by {METRIC_TYPES[self.metric]}")
        if (n_listed := len(set(self.ids()))) != len(self):
            faults.append(f"{self.address}: {len(self)} items are counted, {n_listed} listed")
        return faults

    def details(self) -> dict[str, Any]:
        """The kind of index, and how many partitions there are."""
        with milvus_errors(self.address):
            n_partitions = len(self._client.list_partitions(self._collection))
        return {"index": self._index().get("index_type"), "partitions": n_partitions}

    def _check_writable(self) -> None:
        if self._read_only:
            raise InputError(f"{self.address}: opened to be read only")

    def _known(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for first in range(0, len(ids), READ_IDS):
            rows = self._call("get", ids=list(ids[first : first + READ_IDS]), output_fields=fields)
            found.update({row["id"]: row for row in rows})
        return found

    def _all_known(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        found = self._known(listed_ids(ids), fields)
        if missing := [id_ for id_ in ids if id_ not in found]:
            raise InputError(f"{self.address}: {len(missing)} unknown ids: {some(missing)}")
        return found

    def _call(self, name: str, **options: Any) -> Any:
        if self._client is None:
            raise InputError(f"{self.address}: the gallery was closed")
        with milvus_errors(self.address):
            return getattr(self._client, name)(self._collection, **options)


def milvus_filter(text: str, partition: str | None = None) -> str:
    """The condition in Milvus's language; what :func:`~sightline.gallery.filters.compile_filter` refuses is refused alike.

    Args:
        text: the condition.
        partition: the key that the collection is partitioned by: a condition that fixes it is told to Milvus, which then
            searches one partition alone.

    Example:
        >>> milvus_filter('year >= 2020 and not label_1 == "Flags"')
        '(metadata["year"] >= 2020 and (not (exists metadata["label_1"]) or not (metadata["label_1"] == "Flags")))'
    """
    compile_filter(text)
    tree = ast.parse(text.strip(), mode="eval").body
    condition = _condition(tree, True, text)
    fixed = None if partition is None else _fixed(tree, partition)
    return condition if fixed is None else f"partition == {literal(fixed, text)} and {condition}"


def literal(value: Value, text: str = "") -> str:
    """A value as Milvus writes it, strings in quotes with their quotes escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(ESCAPED)}"'
    if isinstance(value, float) and not np.isfinite(value):
        raise InputError(f"filter {text!r}: {value} is not a number that Milvus can compare with")
    return repr(value)


def _condition(node: ast.expr, wanted: bool, text: str) -> str:
    """The condition, or where ``wanted`` is False its opposite."""
    if isinstance(node, ast.BoolOp):
        return _joined(isinstance(node.op, ast.And) == wanted, [_condition(part, wanted, text) for part in node.values])
    if isinstance(node, ast.UnaryOp):
        return _condition(node.operand, not wanted, text)
    node = cast(ast.Compare, node)  # nothing else is in the language
    sides = [node.left, *node.comparators]
    steps = zip(sides[:-1], node.ops, sides[1:], strict=True)
    return _joined(wanted, [_comparison(left, operator, right, wanted, text) for left, operator, right in steps])


def _joined(by_and: bool, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({(' and ' if by_and else ' or ').join(parts)})"


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, wanted: bool, text: str) -> str:
    if isinstance(operator, ast.In | ast.NotIn):
        wanted = wanted == isinstance(operator, ast.In)
        values = ast.literal_eval(right)
        parts = [_equal(_key(left), value, wanted, text) for value in values]
        return _joined(not wanted, parts) if parts else (NEVER if wanted else ALWAYS)
    mirrored = key_of(right) is not None
    name, value = (right, ast.literal_eval(left)) if mirrored else (left, ast.literal_eval(right))
    if isinstance(operator, ast.Eq | ast.NotEq):
        return _equal(_key(name), value, wanted == isinstance(operator, ast.Eq), text)
    symbol = ORDERED[type(operator)]
    return _ordered(_key(name), MIRRORED[symbol] if mirrored else symbol, value, wanted, text)


def _key(name: ast.expr) -> str:
    return cast(str, key_of(name))


def _path(key: str) -> str:
    return f'metadata["{key}"]'  # no quotes in it: compile_filter has looked


def _equal(key: str, value: Value, wanted: bool, text: str) -> str:
    if key == "id":
        if not isinstance(value, str):
            return NEVER if wanted else ALWAYS
        return f"id {'==' if wanted else '!='} {literal(value)}"
    path = _path(key)
    if value is None:
        return f"{'not ' if wanted else ''}(exists {path})"
    same = f"{path} == {literal(value, text)}"
    return same if wanted else f"(not (exists {path}) or not ({same}))"


def _ordered(key: str, symbol: str, value: Value, wanted: bool, text: str) -> str:
    if key == "id":
        if not isinstance(value, str):
            return NEVER if wanted else ALWAYS
        return f"id {symbol if wanted else OPPOSITE[symbol]} {literal(value)}"
    path = _path(key)
    value = int(value) if isinstance(value, bool) else value
    if wanted:
        return f"{path} {symbol} {literal(value, text)}"
    other_type = (IS_NUMBER if isinstance(value, str) else IS_TEXT).format(path=path)
    return f"(not (exists {path}) or {path} {OPPOSITE[symbol]} {literal(value, text)} or {other_type})"


def _fixed(node: ast.expr, key: str) -> str | None:
    """The text that a key must be equal to for the condition to hold, where it says so in so many words."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return next((found for part in node.values if (found := _fixed(part, key)) is not None), None)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        sides = [node.left, node.comparators[0]]
        for name, value in (sides, sides[::-1]):
            if key_of(name) == key and isinstance(value, ast.Constant):
                return value.value if isinstance(value.value, str) else None
    return None
