"""How many images of classes that a collection lacks does its rejector accept, where 95 % is promised?

`python benchmarks/ood_acceptance.py emoji.parquet glyphs.parquet` takes tables of `sightline embed`. A third of the classes
is kept away, five times; a rejector is fitted on the others and calibrated on held-out classes, or on held-out images.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import torch
from measure import table

from sightline import EmbeddingTable
from sightline.ood.rejector import HoldOut, fit_rejector

SCORERS: dict[str, dict[str, object]] = {"gmm": {"shrinkage": "auto"}, "knn": {"k": 5}}
HOLD_OUTS: tuple[HoldOut, ...] = ("classes", "images")


def accepted(embedded: EmbeddingTable, scorer: str, hold_out: HoldOut, seed: int) -> float:
    """In percent, of the images of a third of the classes."""
    labels = embedded.manifest.labels()[:, 0]
    classes = np.random.default_rng(100 + seed).permutation(np.unique(labels))
    is_new = np.isin(labels, classes[: len(classes) // 3])
    new = pl.lit(pl.Series(is_new))
    rejector = fit_rejector(embedded.where(~new), scorer, hold_out=hold_out, seed=seed, **SCORERS[scorer])
    return 100 * float(np.mean([verdict.belongs for verdict in rejector.judge(embedded.vectors[is_new])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for file in options.tables:
        embedded = EmbeddingTable.read(file)
        for scorer in SCORERS:
            cells = []
            for hold_out in HOLD_OUTS:
                found = [accepted(embedded, scorer, hold_out, seed) for seed in range(options.seeds)]
                cells.append(f"{np.mean(found):.1f} ± {np.std(found):.1f}")
            n_classes = len(np.unique(embedded.manifest.labels()[:, 0]))
            rows.append([file.stem, f"{len(embedded):,}", f"{n_classes:,}", f"`{scorer}`", *cells])
            print(*rows[-1], flush=True)  # noqa: T201
    print(table(["set", "images", "classes", "scorer", "held-out classes", "held-out images"], rows))  # noqa: T201


if __name__ == "__main__":
    main()
