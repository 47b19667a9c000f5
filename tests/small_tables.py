"""A small embedding table of given vectors, for tests that need no images."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from sightline import EmbeddingTable, Manifest


def small_table(
    vectors: ArrayLike, *labels: Iterable[object], fingerprint: str = "one", folder: Path = Path(), **columns: object
) -> EmbeddingTable:
    """Images named by their places, with the labels of each level, finest first; columns are added or replaced."""
    names = [str(place) for place in range(len(vectors))]
    rows = {"id": names, "path": names, "split": ["test"] * len(names)}
    rows |= {f"label_{level}": list(map(str, column)) for level, column in enumerate(labels)}
    manifest = Manifest(folder / "set.parquet", folder, pl.DataFrame(rows | columns), len(labels))
    return EmbeddingTable(manifest, np.asarray(vectors, np.float32), fingerprint)
