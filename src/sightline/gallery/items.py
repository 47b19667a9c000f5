"""What a gallery holds: items, the identity of the encoder that made their vectors, and the checks on both."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from sightline.errors import InputError, choose, names, raise_faults

if TYPE_CHECKING:
    from sightline.models.encoder import Encoder

Value = str | int | float | bool | None
Metadata = Sequence[Mapping[str, Value]] | pl.DataFrame
METRICS = {"cosine": "angle between vectors, which are stored at length 1", "dot": "inner product of vectors as they are"}
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
    def of(cls, encoder: "Encoder | EncoderIdentity") -> "EncoderIdentity":
        """The identity of an encoder; an identity is its own."""
        if isinstance(encoder, EncoderIdentity):
            return encoder
        return cls(encoder.fingerprint(), encoder.dim, encoder.settings.backbone)

    def check(self, other: "Encoder | EncoderIdentity | str", where: object) -> None:
        """Refuse another encoder, or another's fingerprint, by name."""
        if isinstance(other, str):
            fingerprint, called = other, "the one given"
        else:
            identity = EncoderIdentity.of(other)
            fingerprint, called = identity.fingerprint, f"{identity.name!r}"
        if fingerprint != self.fingerprint:
            raise InputError(
                f"{where}: its vectors are of another encoder: {self.name!r} with the fingerprint {self.fingerprint}; "
                f"{called} has {fingerprint}"
            )


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery: its id, what is known of it, and its (D,) float32 vector."""

    id: str
    metadata: dict[str, Value]
    vector: NDArray[np.float32]


def check_metric(metric: str) -> str:
    """The metric's name, or an error that suggests one."""
    choose(METRICS, metric, "metric")
    return metric


def checked_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list; refused where one is no string, empty, or there twice."""
    listed = listed_ids(ids)
    faults = [f"id {id_!r} is not a string of at least one letter" for id_ in listed if not may_be_id(id_)]
    raise_faults("ids", faults)
    if len(set(listed)) < len(listed):
        twice = [id_ for id_, n in Counter(listed).items() if n > 1]
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


def checked_vectors(ids: Sequence[str], vectors: ArrayLike, dim: int, metric: str) -> NDArray[np.float32]:
    """(N, D) float32, one for each id, at length 1 for cosine; faults are named by id."""
    table = _table(vectors, dim, "vectors")
    if len(table) != len(ids):
        raise InputError(f"{len(table)} vectors for {len(ids)} ids")
    squares = np.einsum("nd,nd->n", table, table)
    doubtful = np.flatnonzero(~((squares > 1e-30) & (squares < 1e30)))  # NaN, or too far from 1 for float32
    wide = table[doubtful].astype(np.float64)
    if (wrong := doubtful[~np.isfinite(wide).all(1)]).size:
        raise InputError(f"NaN or infinity in the vectors of {some([ids[row] for row in wrong.tolist()])}")
    if metric != "cosine":
        return table
    lengths = np.sqrt(squares)
    lengths[doubtful] = np.linalg.norm(wide, axis=1)
    if (short := doubtful[lengths[doubtful] <= SHORTEST]).size:
        raise InputError(f"vectors of length 0 have no cosine: {some([ids[row] for row in short.tolist()])}")
    unit: NDArray[np.float32] = table / lengths[:, None]
    return unit


def checked_queries(queries: ArrayLike, dim: int, metric: str) -> NDArray[np.float32]:
    """(Q, D) float32, at length 1 for cosine; a zero vector stays zero, and is like nothing."""
    table = _table(queries, dim, "queries")
    if not np.isfinite(table).all():
        rows = np.flatnonzero(~np.isfinite(table).all(1)).tolist()
        raise InputError(f"queries: NaN or infinity in {len(rows)} of {len(table)} rows: {some(rows)}")
    if metric != "cosine":
        return table
    wide = table.astype(np.float64)  # squares of what float32 holds may not fit in it
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), SHORTEST), np.float32)


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
    if metadata is None:
        return [{} for _ in ids]
    rows = metadata.to_dicts() if isinstance(metadata, pl.DataFrame) else list(metadata)
    if strange := [f"row {place}: {row!r}" for place, row in enumerate(rows) if not isinstance(row, Mapping)]:
        raise InputError(f"metadata: a dictionary is needed for each item, found {some(strange)}")
    if len(rows) != len(ids):
        raise InputError(f"{len(rows)} rows of metadata for {len(ids)} ids")
    kept = [dict(row) for row in rows]
    keys: set[object] = set().union(*kept)
    faults = [f"the key {key!r} is not a string" for key in keys if not isinstance(key, str) or not key or not is_utf8(key)]
    for id_, row in zip(ids, kept, strict=True):
        if row.pop("id", id_) != id_:
            faults.append(f"{id_!r}: its metadata has another id")
        for key, value in row.items():
            kind = type(value)
            if (kind is str and value.isascii()) or (kind is int and SMALLEST <= value <= LARGEST):
                continue  # most are, and 60,000 items have many
            if isinstance(value, np.generic):
                row[key] = value = value.item()
            if fault := value_fault(key, value):
                faults.append(f"{id_!r}: {fault}")
    raise_faults("metadata", faults)
    return kept


def value_fault(key: object, value: object) -> str | None:
    """A sentence if an item cannot have such a value."""
    if type(value) not in PLAIN:
        return f"{key} is of type {type(value).__name__}, not str, int, float, bool or None"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} is {value}; a number or None is needed"
    if isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        return f"{key} is {value}, which does not fit in 64 bits"
    if isinstance(value, str) and not is_utf8(value):
        return f"{key} is {value!a}, which is not UTF-8"
    return None


def some(words: Sequence[object]) -> str:
    """The words in quotes, cut after ten."""
    return names(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
