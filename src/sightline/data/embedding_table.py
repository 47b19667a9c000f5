"""Ids, vectors, labels, encoder fingerprint: the file every later stage reads."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import UNREADABLE, Manifest, label_columns, table_faults
from sightline.errors import InputError, named_errors, names, raise_faults
from sightline.files import replaced

FORMAT, WITH_INPUTS = "1", "2"
INPUT_COLUMNS = {"features": "scorer_features", "feature maps": "scorer_deviations"}  # of format 2
PIECE = 65_536  # rows read at once


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """A vector for each image of a manifest.

    Attributes:
        manifest: the images, in the order of the vectors.
        vectors: (N, D) float32.
        fingerprint: of the encoder that made them.
        inputs: what else scorers of :mod:`sightline.ood` take, ``features`` and ``feature maps``, an (N, C) array each, as
            :meth:`Encoder.scorer_inputs` returns them; empty in a table of vectors alone.
    """

    manifest: Manifest
    vectors: NDArray[np.float32]
    fingerprint: str
    inputs: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, rows in self.inputs.items():
            if kind not in INPUT_COLUMNS or rows.ndim != 2 or len(rows) != len(self.manifest):
                raise InputError(
                    f"inputs must be (N, C) arrays named {names(INPUT_COLUMNS)}, a row for each of {len(self.manifest)} "
                    f"images, got {kind!r} of shape {rows.shape}"
                )
        if self.vectors.ndim != 2 or len(self.manifest) != len(self.vectors):
            raise InputError(
                f"vectors must be (N, D), a row for each of {len(self.manifest)} images, got shape {self.vectors.shape}"
            )

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def ids(self) -> list[str]:
        """The id of each image."""
        return self.manifest.table["id"].to_list()

    def where(self, rows: pl.Expr) -> "EmbeddingTable":
        """The table of the rows for which the expression holds."""
        kept = self.manifest.table.select(pl.int_range(pl.len()).filter(rows)).to_series().to_numpy()
        inputs = {kind: values[kept] for kind, values in self.inputs.items()}
        return EmbeddingTable(self.manifest.where(rows), self.vectors[kept], self.fingerprint, inputs)

    def scorer_inputs(self, needs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The inputs that a scorer needs, by name; refused if the table has vectors alone."""
        known = {"vectors": self.vectors, **self.inputs}
        if missing := [kind for kind in needs if kind not in known]:
            raise InputError(
                f"{self.manifest.source}: the scorer takes {' and '.join(missing)}, the table has {names(known)}; "
                "embed the images with `sightline embed --scorer-inputs`"
            )
        return {kind: known[kind] for kind in needs}

    def split(self, name: str) -> "EmbeddingTable":
        """The rows of one split; refused if there are none."""
        self.manifest.split(name)
        return self.where(pl.col("split") == name)

    def check_finite(self) -> None:
        """Refuse vectors and other inputs with values that are not finite, by the id of the first such image."""
        is_finite = np.isfinite(self.vectors).all(1)
        for rows in self.inputs.values():
            is_finite &= np.isfinite(rows).all(1)
        if not is_finite.all():
            found = self.ids[int(is_finite.argmin())]
            raise InputError(f"{self.manifest.source}: the vector of {found!r} has values that are not finite")

    def write(self, file: Path) -> Path:
        """Write one Parquet file, complete or not at all: the manifest's columns, ``vector``, and inputs of scorers."""
        further = {INPUT_COLUMNS[kind]: rows for kind, rows in sorted(self.inputs.items())}
        columns = [
            pl.Series(name, rows, dtype=pl.Array(pl.Float32, rows.shape[1]))
            for name, rows in {"vector": self.vectors, **further}.items()
        ]
        described = {
            "sightline_format": WITH_INPUTS if further else FORMAT,
            "fingerprint": self.fingerprint,
            "root": str(self.manifest.root.resolve()),
            "n_levels": str(self.manifest.n_levels),
        }
        described["checksum"] = _checksum(self.manifest.table, [self.vectors, *further.values()], described)
        with replaced(Path(file)) as scratch:
            # Random mantissas do not compress: lz4 keeps the text small and reads at the speed of the disk.
            self.manifest.table.with_columns(columns).write_parquet(scratch, compression="lz4", metadata=described)
        return Path(file)

    @staticmethod
    def is_at(file: Path) -> bool:
        """Whether the file is an embedding table of any format, and not a manifest or a folder."""
        try:
            return Path(file).is_file() and "sightline_format" in pl.read_parquet_metadata(Path(file))
        except (*UNREADABLE, OSError):
            return False

    @classmethod
    def read(cls, file: Path) -> "EmbeddingTable":
        """The table that :meth:`write` wrote."""
        file = Path(file)
        if not file.is_file():
            raise InputError(f"{file}: no such file")
        with table_faults(file, "an embedding table"):
            described = pl.read_parquet_metadata(file)
            table = pl.read_parquet(file)
        found = described.get("sightline_format")
        if found not in (FORMAT, WITH_INPUTS) or "vector" not in table.columns:
            raise InputError(f"{file}: must be an embedding table of format {FORMAT} or {WITH_INPUTS}, found {found}")
        further = {} if found == FORMAT else {k: name for k, name in INPUT_COLUMNS.items() if name in table.columns}
        rows = table.drop("vector", *further.values())
        unusable = (ValueError, KeyError, OverflowError, *UNREADABLE)
        with named_errors(file, "not an embedding table that can be used", *unusable):
            n_levels, root, fingerprint = int(described["n_levels"]), Path(described["root"]), described["fingerprint"]
            words = ["id", "path", "split", *label_columns(min(n_levels, len(rows.columns)))]
            vectors = table["vector"].to_numpy(writable=True)
            inputs = {kind: table[name].to_numpy(writable=True) for kind, name in further.items()}
            missing = [name for name in words if name not in rows.columns or rows[name].null_count()]
            checksum = described.pop("checksum", None)  # None in tables that were written before there was one
            rules = {
                f"its vectors are {vectors.dtype} of shape {vectors.shape}, not rows of float32": vectors.dtype
                == np.float32
                and vectors.ndim == 2,
                f"n_levels is {n_levels}, of {len(rows.columns)} columns": 0 <= n_levels < len(rows.columns),
                f"no column {names(missing)} without empty values": not missing,
            }
            raise_faults(file, [rule for rule, holds in rules.items() if not holds])
            arrays = [vectors, *(inputs[kind] for kind in sorted(inputs))]
            if checksum is not None and checksum != _checksum(rows, arrays, described):
                raise ValueError("the file is damaged: its checksum is wrong")
            manifest = Manifest(file, root, rows.with_columns(pl.col(words).cast(pl.String)), n_levels)
            return cls(manifest, vectors, fingerprint, inputs)


def read_pieces(file: Path) -> tuple[str, Callable[[], Iterator[NDArray[np.float32]]]]:
    """The encoder's fingerprint, and what reads the vectors in (N, D) pieces, for a table larger than memory.

    The rows are not compared with the table's checksum.
    """
    if not EmbeddingTable.is_at(file):
        raise InputError(f"{file}: must be an embedding table, written by `sightline embed`")
    pieces = pl.scan_parquet(file).select("vector")
    return pl.read_parquet_metadata(file)["fingerprint"], lambda: (
        piece["vector"].to_numpy(writable=True) for piece in pieces.collect_batches(chunk_size=PIECE, maintain_order=True)
    )


def _checksum(rows: pl.DataFrame, arrays: Sequence[NDArray[np.float32]], described: dict[str, str]) -> str:
    """A hash of what a table says: its rows, vectors, inputs of scorers and description, whatever file they lie in."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, "<f4").data)
    digest.update(repr([(name, described.get(name)) for name in ("fingerprint", "root", "n_levels")]).encode())
    for column in rows:
        digest.update(f"{column.name} {column.dtype}".encode())
        digest.update(column.is_null().to_numpy().tobytes())
        if column.dtype == pl.String:
            digest.update(column.str.len_bytes().fill_null(0).to_numpy().tobytes())
            digest.update("".join(column.drop_nulls()).encode())
        elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
            digest.update(column.fill_null(0).to_numpy().tobytes())
        else:
            digest.update(repr(column.to_list()).encode())
    return digest.hexdigest()[:32]
