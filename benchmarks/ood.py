"""Fit time and scoring throughput of every scorer of vectors, against scikit-learn where it has the estimator.

`python benchmarks/ood.py --out docs` writes the section "Speed of scorers" of docs/performance.md; `--items` and `--dims`
make it shorter.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import fastest, table, write_section
from sklearn.covariance import EmpiricalCovariance
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from sightline import ood

NAMES = ("msp", "energy", "kl_matching", "react", "dice", "mahalanobis", "ssd", "knn", "soft_knn", "residual", "vim", "gmm")
N_CLASSES = 100
QUERIES = 2000


def drawn(n_items: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(n_items) % N_CLASSES
    vectors = rng.normal(size=(N_CLASSES, dim))[labels] + rng.normal(size=(n_items, dim))
    return vectors.astype(np.float32), labels


def scikit_learn(name: str, vectors: np.ndarray) -> tuple[Callable[[], object], Callable[[np.ndarray], object]] | None:
    """What fits and what scores as the named scorer does."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    if name == "knn":
        made = NearestNeighbors(n_neighbors=50, algorithm="brute").fit(unit)
        return lambda: NearestNeighbors(n_neighbors=50, algorithm="brute").fit(unit), lambda q: made.kneighbors(q)
    if name == "ssd":
        one = EmpiricalCovariance().fit(unit)
        return lambda: EmpiricalCovariance().fit(unit), lambda q: one.mahalanobis(q)
    if name == "gmm":
        mixture = GaussianMixture(1, covariance_type="tied", max_iter=1).fit(unit)
        return lambda: GaussianMixture(1, covariance_type="tied", max_iter=1).fit(unit), lambda q: mixture.score_samples(q)
    return None


def measured(n_items: int, dim: int, with_heat: bool) -> list[list[str]]:
    vectors, labels = drawn(n_items, dim)
    queries = vectors[:QUERIES] / np.linalg.norm(vectors[:QUERIES], axis=1, keepdims=True)
    rows = []
    for name in (*NAMES, "heat") if with_heat else NAMES:
        made = ood.create(name)
        fit = lambda name=name: ood.create(name).fit(vectors, labels)  # noqa: E731
        made.fit(vectors, labels)
        seconds = fastest(fit, 1) if name != "heat" else fastest_once(fit)
        per_second = QUERIES / fastest(lambda made=made: made.score(queries), 3)
        single = fastest(lambda made=made: made.score(queries[:1]), 20)
        row = [f"`{name}`", f"{n_items:,} x {dim}", f"{seconds:.2f}", f"{per_second:,.0f}", f"{1000 * single:.2f}"]
        if other := scikit_learn(name, vectors):
            rate = QUERIES / fastest(lambda score=other[1]: score(queries), 1)
            row += [f"{fastest(other[0], 1):.2f}", f"{rate:,.0f}"]
        rows.append(row + [""] * (7 - len(row)))
    return rows


def fastest_once(step: Callable[[], object]) -> float:
    """Seconds of one run; a second one would take minutes."""
    import time

    since = time.perf_counter()
    step()
    return time.perf_counter() - since


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--heat", action="store_true", help="also HEAT: minutes")
    parser.add_argument("--out", type=Path, default=None, help="folder of performance.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for dim in options.dims for row in measured(options.items, dim, options.heat)]
    head = ["scorer", "fit set", "fit, s", "scored a second", "one query, ms", "scikit-learn: fit, s", "scored a second"]
    text = f"{torch.get_num_threads()} thread(s), {N_CLASSES} classes. `python benchmarks/ood.py`\n\n{table(head, rows)}"
    print(text)  # noqa: T201
    if options.out is not None:
        write_section(options.out / "performance.md", "Speed of scorers", text)


if __name__ == "__main__":
    main()
