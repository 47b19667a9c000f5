"""Ids, vectors, labels, encoder fingerprint: the file every later stage reads."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import UNREADABLE, Manifest, label_columns, table_faults
from sightline.errors import InputError, named_errors, names, raise_faults
from sightline.files import replaced

FORMAT = "1"
PIECE = 65_536  # rows read at once


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """A vector for each image of a manifest.

    Attributes:
        manifest: the images, in the order of the vectors.
        vectors: (N, D) float32.
        fingerprint: of the encoder that made them.
    """

    manifest: Manifest
    vectors: NDArray[np.float32]
    fingerprint: str

    def __post_init__(self) -> None:
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
        return EmbeddingTable(self.manifest.where(rows), self.vectors[kept], self.fingerprint)

    def split(self, name: str) -> "EmbeddingTable":
        """The rows of one split; refused if there are none."""
        self.manifest.split(name)
        return self.where(pl.col("split") == name)

    def check_finite(self) -> None:
        """Refuse vectors with values that are not finite, by the id of the first such image."""
        is_finite = np.isfinite(self.vectors).all(1)
        if not is_finite.all():
            found = self.ids[int(is_finite.argmin())]
            raise InputError(f"{self.manifest.source}: the vector of {found!r} has values that are not finite")

    def write(self, file: Path) -> Path:
        """Write one Parquet file, complete or not at all: the manifest's columns and ``vector``."""
        column = pl.Series("vector", self.vectors, dtype=pl.Array(pl.Float32, self.vectors.shape[1]))
        described = {
            "sightline_format": FORMAT,
            "fingerprint": self.fingerprint,
            "root": str(self.manifest.root.resolve()),
            "n_levels": str(self.manifest.n_levels),
        }
        described["checksum"] = _checksum(self.manifest.table, self.vectors, described)
        with replaced(Path(file)) as scratch:
            # Random mantissas do not compress: lz4 keeps the text small and reads at the speed of the disk.
            self.manifest.table.with_columns(column).write_parquet(scratch, compression="lz4", metadata=described)
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
        if found != FORMAT or "vector" not in table.columns:
            raise InputError(f"{file}: must be an embedding table of format {FORMAT}, found {found}")
        rows = table.drop("vector")
        unusable = (ValueError, KeyError, OverflowError, *UNREADABLE)
        with named_errors(file, "not an embedding table that can be used", *unusable):
            n_levels, root, fingerprint = int(described["n_levels"]), Path(described["root"]), described["fingerprint"]
            words = ["id", "path", "split", *label_columns(min(n_levels, len(rows.columns)))]
            vectors = table["vector"].to_numpy(writable=True)
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
            if checksum is not None and checksum != _checksum(rows, vectors, described):
                raise ValueError("the file is damaged: its checksum is wrong")
            return cls(
                Manifest(file, root, rows.with_columns(pl.col(words).cast(pl.String)), n_levels), vectors, fingerprint
            )


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


def _checksum(rows: pl.DataFrame, vectors: NDArray[np.float32], described: dict[str, str]) -> str:
    """A hash of what a table says: its rows, vectors and description, whatever file they lie in."""
    digest = hashlib.sha256(np.ascontiguousarray(vectors, "<f4").data)
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
