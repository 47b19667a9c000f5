"""Fit time and scoring throughput of every scorer of vectors, against scikit-learn where it has the estimator.

`python benchmarks/ood.py --out docs` writes the section "Speed of scorers" of docs/ood.md: each scorer at 50,000 x 512 and
50,000 x 2,048, HEAT's fit at 7,000 x 512, and what scoring adds to the time of embedding a query. `--items`, `--dims` and
`--parts` make it shorter.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import fastest, table, write_section
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from sightline import Encoder, ood
from sightline.ood.heat import ALL_PRIORS

NAMES = ("msp", "maxlogit", "energy", "kl_matching", "react", "mahalanobis", "knn", "soft_knn", "vim", "gmm")
PARTS = ("scorers", "heat", "query")
N_CLASSES = 100
QUERIES = 2000
HEAT_ITEMS, HEAT_DIM, CHANNELS = 7000, 512, 1280
IMAGE_SIZES = (224, 64)
BARELY: dict[str, object] = {"train_steps": 5, "keep": "always"}
QUERY_SCORERS: dict[str, tuple[str, dict[str, object]]] = {
    "gmm": ("gmm", {}),
    "knn": ("knn", {}),
    "heat": ("heat", BARELY),  # a network that is barely trained takes as long to score
    "heat, all three priors": ("heat", BARELY | {"priors": list(ALL_PRIORS)}),
}


def drawn(n_items: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(n_items) % N_CLASSES
    vectors = rng.normal(size=(N_CLASSES, dim))[labels] + rng.normal(size=(n_items, dim))
    return vectors.astype(np.float32), labels


def seconds_of(step: Callable[[], object]) -> float:
    """Of one run; of the fastest of three where that is short."""
    since = time.perf_counter()
    step()
    seconds = time.perf_counter() - since
    return seconds if seconds > 1 else min(seconds, fastest(step, 2))


def scikit_learn(name: str, unit: np.ndarray) -> tuple[Callable[[], object], Callable[[np.ndarray], object]] | None:
    """What fits and what scores as the named scorer does."""
    if name == "knn":
        made = NearestNeighbors(n_neighbors=50, algorithm="brute")
        return lambda: made.fit(unit), lambda q: made.kneighbors(q)
    if name == "gmm":
        mixture = GaussianMixture(1, covariance_type="tied", max_iter=1)
        return lambda: mixture.fit(unit), lambda q: mixture.score_samples(q)
    return None


def measured(name: str, vectors: np.ndarray, labels: np.ndarray) -> list[str]:
    """A row of the table of scorers."""
    made = ood.create(name)
    seconds = seconds_of(lambda: made.fit(vectors, labels))
    queries = vectors[:QUERIES] / np.linalg.norm(vectors[:QUERIES], axis=1, keepdims=True)
    per_second = QUERIES / fastest(lambda: made.score(queries), 3)
    single = fastest(lambda: made.score(queries[:1]), 20)
    size = f"{vectors.shape[0]:,} x {vectors.shape[1]:,}"
    row = [f"`{name}`", size, f"{seconds:.2f}", f"{per_second:,.0f}", f"{1000 * single:.2f}"]
    if other := scikit_learn(name, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)):
        seconds = seconds_of(other[0])
        row += [f"{seconds:.2f}", f"{QUERIES / fastest(lambda: other[1](queries), 1):,.0f}"]
    print(*row, flush=True)  # noqa: T201
    return row + [""] * (7 - len(row))


def processor_seconds(step: Callable[[], object], n_runs: int) -> float:
    """Of the fastest run, after one that does not count: what a busy machine leaves as it is."""
    step()
    seconds = []
    for _ in range(n_runs):
        since = time.process_time()
        step()
        seconds.append(time.process_time() - since)
    return min(seconds)


def query_rows() -> list[list[str]]:
    """What scoring adds to embedding one query, by both backends; of all three priors, on what the encoder gives them."""
    vectors, labels = drawn(HEAT_ITEMS, HEAT_DIM)
    fitted = {
        "vectors": vectors,
        "features": drawn(HEAT_ITEMS, CHANNELS)[0],
        "feature maps": drawn(HEAT_ITEMS, CHANNELS)[0],
    }
    scorers = {key: ood.create(name, **options) for key, (name, options) in QUERY_SCORERS.items()}
    images = np.random.default_rng(0).integers(0, 255, (1, 300, 300, 3), np.uint8)
    given = {key: fitted if len(scorer.needs) > 1 else vectors for key, scorer in scorers.items()}
    for key, scorer in scorers.items():
        scorer.fit(given[key], labels)
    rows = []
    for size in IMAGE_SIZES:
        encoder = Encoder.create("tf_efficientnet_lite0", HEAT_DIM, weights="bundled", image_size=size)
        for backend in ("torch", "onnx"):

            def embed(encoder: Encoder = encoder, backend: str = backend) -> object:
                return encoder.encode(list(images), backend=backend)

            def embed_with_inputs(encoder: Encoder = encoder, backend: str = backend) -> object:
                return encoder.scorer_inputs(list(images), backend=backend)

            embedding = processor_seconds(embed, 25)
            further = max(0.0, processor_seconds(embed_with_inputs, 25) - embedding)
            row = [f"{size}", backend, f"{1000 * embedding:.1f}"]
            for key, scorer in scorers.items():
                one = {kind: items[:1] for kind, items in fitted.items()} if given[key] is fitted else vectors[:1]
                scoring = processor_seconds(lambda one=one, scorer=scorer: scorer.score(one), 100)
                scoring += further * (given[key] is fitted)
                row.append(f"{1000 * scoring:.2f} ({100 * scoring / embedding:.1f} %)")
            print(*row, flush=True)  # noqa: T201
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=None, help="folder of ood.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[list[str]] = []
    if "scorers" in options.parts:
        rows += [measured(name, *drawn(options.items, dim)) for dim in options.dims for name in NAMES]
    if "heat" in options.parts:
        rows.append(measured("heat", *drawn(HEAT_ITEMS, HEAT_DIM)))
    head = ["scorer", "fit set", "fit, s", "scored a second", "one query, ms", "scikit-learn: fit, s", "scored a second"]
    text = f"{torch.get_num_threads()} thread(s), {N_CLASSES} classes. `python benchmarks/ood.py`\n\n{table(head, rows)}"
    if "query" in options.parts:
        head = ["pixels", "backend", "embedding, ms", *(f"`{key}`, ms" for key in QUERY_SCORERS)]
        text += (
            "\n\nMilliseconds of processor time, one thread, of one query: embedding 300 x 300 pixels with "
            "EfficientNet-Lite0, then scoring, also as a share of embedding. Fitted on "
            f"{HEAT_ITEMS:,} items of {HEAT_DIM} dimensions; features and feature maps have {CHANNELS} channels. "
            "What the forward pass takes longer to give them counts as scoring."
            f"\n\n{table(head, query_rows())}"
        )
    if options.out is not None:
        write_section(options.out / "ood.md", "Speed of scorers", text)


if __name__ == "__main__":
    main()
