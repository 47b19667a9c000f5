"""Read, check, count and sample an epoch of a manifest as large as H-GLDv2: 1.4 million rows, three levels.

Run ``python benchmarks/manifest.py``; prints seconds and peak memory of each step, in a process that does nothing else.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from measure import peak_megabytes

from sightline.data.manifest import manifest_statistics, read_manifest
from sightline.data.samplers import SamplerSection, create_sampler

T = TypeVar("T")


def write_manifest(file: Path, n_images: int, seed: int = 0) -> None:
    """Landmarks of a long-tailed number of images, in 78 groups below 2 roots; a third of the landmarks are for testing."""
    rng = np.random.default_rng(seed)
    n_landmarks = max(1, n_images // 14)
    landmark = rng.permutation(np.repeat(np.arange(n_landmarks), _long_tail(n_images, n_landmarks, rng)))
    group = rng.integers(78, size=n_landmarks)[landmark]
    number = pl.Series(rng.permutation(np.arange(n_images, dtype=np.uint64) * 11_400_714_819_323_198_485))  # all distinct
    name = pl.select(number.cast(pl.String).str.zfill(20)).to_series()
    table = pl.DataFrame({"name": name, "landmark": landmark, "group": group}).select(
        path=pl.format("images/{}/{}/{}/{}.jpg", *(pl.col("name").str.slice(at, 1) for at in (17, 18, 19)), pl.col("name")),
        split=pl.when(pl.col("landmark") % 3 > 0).then(pl.lit("train")).otherwise(pl.lit("test")),
        label_0=pl.format("landmark {}", "landmark"),
        label_1=pl.format("group {}", "group"),
        label_2=pl.when(pl.col("group") % 4 > 0).then(pl.lit("human-made")).otherwise(pl.lit("natural")),
    )
    if file.suffix == ".csv":
        table.write_csv(file)
    else:
        table.write_parquet(file)


def _long_tail(n_images: int, n_landmarks: int, rng: np.random.Generator) -> np.ndarray:
    weights = rng.pareto(1.2, n_landmarks) + 0.1
    return 1 + rng.multinomial(n_images - n_landmarks, weights / weights.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_400_000)
    parser.add_argument("--suffix", choices=(".parquet", ".csv"), default=".parquet")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"landmarks{asked.suffix}")
        write_manifest(file, asked.images)
        since = time.perf_counter()
        manifest = timed("read", lambda: read_manifest(file))
        statistics = timed("statistics", lambda: manifest_statistics(manifest))
        train = timed("split", lambda: manifest.split("train"))
        labels = timed("labels", train.labels)
        batches = timed("epoch", lambda: create_sampler(SamplerSection(batch_size=256), labels, seed=0).batches(epoch=0))
        print(f"{len(manifest)} images, {len(batches)} batches: {time.perf_counter() - since:.1f} s")  # noqa: T201
        print(statistics)  # noqa: T201


def timed(name: str, step: Callable[[], T]) -> T:
    """What the step gives; its time and peak memory are printed."""
    results: list[T] = []
    since, cpu = time.perf_counter(), time.process_time()
    peak = peak_megabytes(lambda: results.append(step()))[1]
    spent = time.perf_counter() - since, time.process_time() - cpu
    print(f"{name:<12}{spent[0]:6.2f} s{spent[1]:8.2f} s of CPU, peak {peak:6.0f} MB")  # noqa: T201
    return results[0]


if __name__ == "__main__":
    main()
