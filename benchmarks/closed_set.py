"""Two manifests to measure one encoder on classes that it was trained on and on classes that it has never seen.

``python benchmarks/closed_set.py data/cub.parquet`` writes ``data/cub-closed.parquet`` and ``data/cub-open.parquet``
beside it. Both train on the same images, every other image of each training class; ``closed`` tests on the remaining images
of those classes, ``open`` on the classes of the test split. The suite ``cub-closed-set`` compares losses on both.
"""

import argparse
from pathlib import Path

import polars as pl

from sightline.data.manifest import read_manifest


def split_classes(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The two tables; the images of a class are taken in the order of their paths."""
    place = pl.int_range(pl.len()).over("label_0", "split")
    is_training = pl.col("split") == "train"
    ordered = table.sort("path")
    kept = ordered.filter(is_training & (place % 2 == 0))
    rest = ordered.filter(is_training & (place % 2 == 1)).with_columns(split=pl.lit("test"))
    return {"closed": pl.concat([kept, rest]), "open": pl.concat([kept, ordered.filter(pl.col("split") == "test")])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path)
    file = parser.parse_args().manifest
    manifest = read_manifest(file)
    for name, table in split_classes(manifest.table).items():
        table.write_parquet(file.with_name(f"{file.stem}-{name}.parquet"))


if __name__ == "__main__":
    main()
