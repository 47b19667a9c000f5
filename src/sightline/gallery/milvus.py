"""A gallery on Milvus: a cluster by its address, or one file by way of Milvus Lite; the interface of ``Gallery``.

Milvus has no transactions: an ``add`` that fails half-way takes back what it has written, if it still can, and one that is
killed half-way leaves a part, which the same ``upsert`` completes. Equal scores come in any order.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.errors import InputError
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
    some,
)
from sightline.gallery.milvus_connection import Address, check_index, connected, index_type, told
from sightline.gallery.milvus_filter import milvus_filter

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


class MilvusGallery:
    """Items with vectors and metadata in one Milvus collection, with the encoder they are of.

    Attributes:
        folder: its address, without a password.
        identity: the encoder its vectors are of.
        metric: ``cosine`` or ``dot``; higher is nearer.
        partition: the metadata key whose value decides in which part of the collection an item is; None for none.
        repairs: always empty: what Milvus derives it looks after itself.
    """

    def __init__(self, address: Address, client: Any, about: dict[str, Any], read_only: bool) -> None:
        self.folder = address.shown
        self.identity = EncoderIdentity(about["fingerprint"], about["dim"], about["name"])
        self.metric: str = about["metric"]
        self.partition: str | None = about["partition"]
        self.repairs: list[str] = []
        self._collection = address.collection
        self._client = client
        self._read_only = read_only

    @classmethod
    def create(
        cls,
        uri: str,
        encoder: "Encoder | EncoderIdentity",
        *,
        index: str = "auto",
        metric: str = "cosine",
        partition: str | None = None,
    ) -> "MilvusGallery":
        """A new, empty collection.

        Args:
            uri: ``milvus+http://host:19530/collection``, or ``milvus+file:path.db/collection`` for Milvus Lite.
            encoder: what will make its vectors.
            index: ``auto`` or ``exact``, or as for FAISS ``HNSW32``, ``IVF1024,Flat``, ``IVF1024,SQ8``, ``IVF1024,PQ64``.
            metric: ``cosine`` or ``dot``.
            partition: a metadata key, such as ``label_1``: items of one value are kept together, and a search with a filter
                that fixes it reads these alone.
        """
        address, identity = Address.read(str(uri)), EncoderIdentity.of(encoder)
        kind, options = index_type(index)
        client, data_type = connected(address)
        about = {"format": FORMAT, **asdict(identity), "metric": check_metric(metric), "partition": partition}
        with told(address.shown):
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
    def open(cls, uri: str, *, read_only: bool = False) -> "MilvusGallery":
        """The gallery at an address; a collection that Sightline has not made is refused."""
        address = Address.read(str(uri))
        client, _ = connected(address, must_exist=True)
        with told(address.shown):
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
        with told(address.shown):
            client.load_collection(address.collection)
        return gallery

    def close(self) -> None:
        """Let go of the connection; may be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> "MilvusGallery":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def encoder(self) -> "Encoder":
        """Always refused: Milvus keeps no encoders."""
        raise InputError(f"{self.folder}: no encoder is saved in Milvus, give that of its vectors, {self.identity.name!r}")

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
        """Add new items; if one is there already, or the server fails, none.

        Args:
            ids: none of which is there already.
            vectors: (N, D), of the gallery's encoder.
            metadata: a dictionary for each, or a table; values are str, int, float, bool or None.
            encoder: what made the vectors, or its fingerprint, if it is to be checked.
        """
        rows = self._rows(ids, vectors, metadata, encoder)
        if there := self._known([row["id"] for row in rows], ["id"]):
            raise InputError(f"{self.folder}: {len(there)} ids are there already: {some(list(there))}")
        written: list[str] = []
        try:
            for part in self._messages(rows):
                written += [row["id"] for row in part]
                self._call("insert", data=part)
        except BaseException:
            for first in range(0, len(written), READ_IDS):
                self._call("delete", ids=written[first : first + READ_IDS])
            raise

    def upsert(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None = None,
        *,
        encoder: "Encoder | EncoderIdentity | str | None" = None,
    ) -> None:
        """Add items, in place of those that have the same ids; see :meth:`add`."""
        for part in self._messages(self._rows(ids, vectors, metadata, encoder)):
            self._call("upsert", data=part)

    def _rows(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Metadata | None,
        encoder: "Encoder | EncoderIdentity | str | None",
    ) -> list[dict[str, Any]]:
        self._check_writable()
        if encoder is not None:
            self.check_encoder(encoder)
        listed = checked_ids(ids)
        if long := [id_ for id_ in listed if len(id_.encode()) > LONGEST_ID]:
            raise InputError(f"{self.folder}: ids of more than {LONGEST_ID} bytes: {some(long)}")
        table = checked_vectors(listed, vectors, self.identity.dim, self.metric)
        first = time.time_ns()
        rows = [
            {"id": id_, "vector": vector, "metadata": row, "added": first + place}
            for place, (id_, vector, row) in enumerate(zip(listed, table, checked_metadata(listed, metadata), strict=True))
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

    def remove(self, ids: Sequence[str], *, remember: bool = True) -> None:
        """Take items out; if one is unknown, none. Milvus does not ``remember`` which: see :meth:`removed`."""
        self._check_writable()
        listed = checked_ids(ids)
        self._all_known(listed, ["id"])
        for first in range(0, len(listed), READ_IDS):
            self._call("delete", ids=listed[first : first + READ_IDS])

    def removed(self) -> dict[str, str]:
        """Nothing: a collection has no place for what was removed, so a folder that is given again adds it again."""
        return {}

    def get(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; unknown ones are refused."""
        known = self._all_known(ids, ["id", "metadata", "vector"])
        return [Item(id_, dict(known[id_]["metadata"]), np.array(known[id_]["vector"], np.float32)) for id_ in ids]

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
        """The ids of the items for which a condition holds, in the order of :meth:`ids`.

        Args:
            where: such as ``label_1 == "Flags" and year >= 2020``; see :mod:`sightline.gallery.filters`.
        """
        return self._found(milvus_filter(where, self.partition))

    def _found(self, condition: str) -> list[str]:
        rows: list[tuple[int, str]] = []
        with told(self.folder):
            pages = self._client.query_iterator(
                self._collection, filter=condition, output_fields=["id", "added"], batch_size=READ_IDS
            )
            while page := pages.next():
                rows += [(row["added"], row["id"]) for row in page]
            pages.close()
        return [id_ for _, id_ in sorted(rows)]

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        where: str | None = None,
        encoder: "Encoder | EncoderIdentity | str | None" = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.object_]]:
        """The k nearest items of each query, best first.

        Args:
            queries: (Q, D), of the gallery's encoder.
            k: results wanted, from 1 to 16,384.
            where: only items for which this condition holds; see :meth:`filter`.
            encoder: what made the queries, or its fingerprint, if it is to be checked.

        Returns:
            (Q, K) float32 scores and (Q, K) ids, K being k or, if smaller, the most that any query found; -inf and None
            where another has found fewer.
        """
        if encoder is not None:
            self.check_encoder(encoder)
        if not 1 <= k <= MOST_RESULTS:
            raise InputError(f"k is {k}; Milvus takes from 1 to {MOST_RESULTS}")
        table = checked_queries(queries, self.identity.dim, self.metric)
        condition = "" if where is None else milvus_filter(where, self.partition)
        n_rows = max(1, min(READ_IDS, SEARCH_RESULTS // k))
        found: list[Any] = []
        for first in range(0, len(table), n_rows):
            part = table[first : first + n_rows]
            found += self._call("search", data=part, limit=k, filter=condition, output_fields=["id"])
        width = max((len(row) for row in found), default=0)
        scores, ids = np.full((len(table), width), -np.inf, np.float32), np.full((len(table), width), None, object)
        for place, row in enumerate(found):
            scores[place, : len(row)] = [hit["distance"] for hit in row]
            ids[place, : len(row)] = [hit["id"] for hit in row]
        return scores, ids

    def build_index(self, index: str | None = None, *, recall: float | None = None, show_progress: bool = False) -> None:
        """Nothing: Milvus builds its index itself. Another than the collection's is refused, and so is a recall."""
        if recall is not None:
            raise InputError(f"{self.folder}: Milvus does not tune its index to a recall, {recall} was asked for")
        if index is not None:
            with told(self.folder):
                built = self._client.describe_index(self._collection, "vector") or {}
            check_index(index, built, self.folder)

    def compact(self) -> None:
        """Have Milvus merge its segments and drop what was removed; it goes on in the background."""
        self._check_writable()
        self._call("flush")
        self._call("compact")

    def verify(self) -> list[str]:
        """What is wrong with the collection, one sentence each; vectors and their checksums are Milvus's own affair."""
        with told(self.folder):
            fields = {field["name"]: field for field in self._client.describe_collection(self._collection)["fields"]}
            index = self._client.describe_index(self._collection, "vector")
        faults = []
        if (found := fields["vector"]["params"]["dim"]) != self.identity.dim:
            faults.append(f"{self.folder}: vectors of {found} dimensions, its encoder has {self.identity.dim}")
        if (metric := (index or {}).get("metric_type")) != METRIC_TYPES[self.metric]:
            faults.append(f"{self.folder}: its index ranks by {metric}, the gallery by {METRIC_TYPES[self.metric]}")
        if (n_listed := len(set(self.ids()))) != len(self):
            faults.append(f"{self.folder}: {len(self)} items are counted, {n_listed} listed")
        return faults

    def stats(self) -> dict[str, Any]:
        """Numbers of the gallery, by name."""
        with told(self.folder):
            index = self._client.describe_index(self._collection, "vector")
            n_partitions = len(self._client.list_partitions(self._collection))
        return {
            "items": len(self),
            "dim": self.identity.dim,
            "metric": self.metric,
            "encoder": self.identity.name,
            "fingerprint": self.identity.fingerprint,
            "index": (index or {}).get("index_type"),
            "partitions": n_partitions,
        }

    def _check_writable(self) -> None:
        if self._read_only:
            raise InputError(f"{self.folder}: opened to be read only")

    def _known(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for first in range(0, len(ids), READ_IDS):
            rows = self._call("get", ids=list(ids[first : first + READ_IDS]), output_fields=fields)
            found.update({row["id"]: row for row in rows})
        return found

    def _all_known(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        found = self._known(listed_ids(ids), fields)
        if missing := [id_ for id_ in ids if id_ not in found]:
            raise InputError(f"{self.folder}: {len(missing)} unknown ids: {some(missing)}")
        return found

    def _call(self, name: str, **options: Any) -> Any:
        if self._client is None:
            raise InputError(f"{self.folder}: the gallery was closed")
        with told(self.folder):
            return getattr(self._client, name)(self._collection, **options)
