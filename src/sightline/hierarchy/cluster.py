"""Fourth step: groups of texts in one or several levels, as ``clusters.csv``, nearest to its group's centre first."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.errors import InputError, choose
from sightline.files import replaced
from sightline.hierarchy.collect import CLEAN, CLUSTERS, JOURNAL, MADE_FOR, TERMS, digest, write_step
from sightline.hierarchy.embed import Vectors, read_vectors

Groups = NDArray[np.int64]
SAMPLE = 2000  # texts on which a number of groups is judged
DIRECT = 4000  # texts that are joined two by two; more are gathered into so many small groups first
RESTARTS = 4
LARGE = 20_000  # points from which on k-means works through batches of them, once
WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True)
class ClusterOptions:
    """How texts become groups.

    Attributes:
        method: ``kmeans``: the finest groups by k-means, coarser ones by k-means of their centres; or ``agglomerative``:
            Ward's joining two by two, cut at each level.
        ks: groups at each level, finest first, falling; empty to have them suggested.
        levels: how many levels to suggest where ``ks`` is empty.
        seed: of the random starts.
    """

    method: str = "kmeans"
    ks: tuple[int, ...] = ()
    levels: int = 1
    seed: int = 0


def suggested_k(vectors: Vectors, seed: int = 0) -> tuple[int, dict[int, float]]:
    """The number of groups with the best mean silhouette on a sample, and the silhouette of each number tried."""
    from sklearn.metrics import silhouette_score

    if len(vectors) < 4:
        raise InputError(f"{len(vectors)} texts are too few to suggest a number of groups: give it")
    drawn = np.random.default_rng(seed).choice(len(vectors), min(SAMPLE, len(vectors)), replace=False)
    sample = vectors[np.sort(drawn)]
    tried = sorted({int(k) for k in np.geomspace(2, max(2, len(sample) // 4), 14)})
    found = {}
    for k in tried:
        groups = _fitted(sample, k, seed, n_init=2).labels_
        if 1 < len(np.unique(groups)) < len(sample):
            found[k] = float(silhouette_score(sample, groups))
    if not found:
        raise InputError(f"the {len(vectors)} texts are all alike: no number of groups can be suggested")
    return max(found, key=found.__getitem__), found


def suggested_ks(vectors: Vectors, levels: int, seed: int = 0) -> tuple[int, ...]:
    """The suggested number at the finest level, then fewer by a constant factor."""
    finest = suggested_k(vectors, seed)[0]
    ks = [max(2, round(finest ** (1 - level / levels))) for level in range(levels)]
    return tuple(k for place, k in enumerate(ks) if place == 0 or k < ks[place - 1])


def clustered(vectors: Vectors, options: ClusterOptions) -> list[Groups]:
    """(N,) group numbers of each level, finest first; a group is never divided between two coarser ones."""
    split = choose({"agglomerative": _agglomerative, "kmeans": _kmeans}, options.method, "method")
    if options.ks and options.levels != 1:
        raise InputError(f"levels is {options.levels} and the numbers of groups are given: one for each level says all")
    ks = options.ks or suggested_ks(vectors, options.levels, options.seed)
    if any(k < 1 for k in ks) or any(later >= k for k, later in pairwise(ks)):
        raise InputError(f"numbers of groups are {list(ks)}: falling ones from 1 on are needed, the finest level first")
    if ks[0] > len(vectors):
        raise InputError(f"{ks[0]} groups of {len(vectors)} texts: at most as many groups as texts are possible")
    return [_renumbered(groups) for groups in split(vectors, ks, options.seed)]


def _fitted(
    points: NDArray[np.floating[Any]],
    k: int,
    seed: int,
    n_init: int = 1,
    max_iter: int = 50,
    sizes: NDArray[np.floating[Any]] | None = None,
) -> Any:
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Texts that are all alike leave groups empty, which are then not numbered.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if len(points) >= LARGE:  # the centres settle on a part of the points at a time
            fast = MiniBatchKMeans(k, n_init=1, random_state=seed, max_iter=10, batch_size=max(4096, 2 * k))
            return fast.fit(points, sample_weight=sizes)
        return KMeans(k, n_init=n_init, random_state=seed, max_iter=max_iter).fit(points, sample_weight=sizes)


def _kmeans(vectors: Vectors, ks: Sequence[int], seed: int) -> list[Groups]:
    found: list[Groups] = []
    points: NDArray[np.floating[Any]] = vectors
    sizes: NDArray[np.floating[Any]] = np.ones(len(vectors))
    for k in ks:
        fitted = _fitted(points, min(k, len(points)), seed, RESTARTS, sizes=sizes)
        own = fitted.labels_.astype(np.int64)
        found.append(own if not found else own[found[-1]])
        sizes = np.bincount(own, weights=sizes, minlength=len(fitted.cluster_centers_)).astype(np.float64)
        points = fitted.cluster_centers_
    return found


def _agglomerative(vectors: Vectors, ks: Sequence[int], seed: int) -> list[Groups]:
    from scipy.cluster.hierarchy import fcluster, linkage

    owner, points = np.arange(len(vectors)), vectors
    if len(vectors) > DIRECT:
        if ks[0] > DIRECT:
            raise InputError(
                f"{ks[0]} groups: agglomerative makes at most {DIRECT} of more than {DIRECT} texts; use kmeans"
            )
        fitted = _fitted(vectors, max(ks[0], DIRECT // 2), seed, max_iter=20)
        owner, points = fitted.labels_.astype(np.int64), fitted.cluster_centers_
    if len(points) == 1:
        return [np.zeros(len(vectors), np.int64) for _ in ks]
    joined = linkage(points.astype(np.float64), "ward")
    return [fcluster(joined, k, "maxclust").astype(np.int64)[owner] for k in ks]


def _renumbered(groups: Groups) -> Groups:
    """Without gaps, in the order of first appearance."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    found: Groups = first.argsort().argsort()[inverse]
    return found


def distances(vectors: Vectors, groups: Groups) -> NDArray[np.float64]:
    """(N,) of each row from the mean of its group."""
    total = np.zeros((groups.max() + 1, vectors.shape[1]))
    np.add.at(total, groups, vectors)
    means = total / np.bincount(groups)[:, None]
    found: NDArray[np.float64] = np.linalg.norm(vectors - means[groups], axis=1)
    return found


def group_names(texts: Sequence[str], groups: Groups, central: NDArray[np.float64]) -> list[str]:
    """A name for each group: words frequent in it and rare elsewhere, or its two most central texts; all different.

    Example:
        >>> group_names(["red cat", "old cat", "red dog", "old dog"], np.array([0, 0, 1, 1]), np.zeros(4))
        ['cat', 'dog']
    """
    n_groups = int(groups.max()) + 1
    counts: list[Counter[str]] = [Counter() for _ in range(n_groups)]
    typical: list[list[str]] = [[] for _ in range(n_groups)]
    for place in np.argsort(central, kind="stable").tolist():
        group = int(groups[place])
        counts[group].update({*WORD.findall(texts[place])})
        if len(typical[group]) < 2:
            typical[group].append(texts[place])
    spread = Counter(word for one in counts for word in one)
    sizes = np.bincount(groups)
    named: list[str] = []
    taken: set[str] = set()
    for group, one in enumerate(counts):
        worth = {word: n / sizes[group] * (np.log((1 + n_groups) / spread[word]) + 0.1) for word, n in one.items()}
        best = sorted(worth, key=lambda word: (-worth[word], word))
        words = [
            word for word in best[:2] if one[word] >= max(2, 0.3 * sizes[group]) and worth[word] >= 0.5 * worth[best[0]]
        ]
        name = " ".join(words) if words else ", ".join(typical[group])
        if name in taken:
            name = f"{name} ({typical[group][0]})"
        while name in taken:
            name = f"{name} +"
        taken.add(name)
        named.append(name)
    return named


def cluster(folder: Path, options: ClusterOptions) -> tuple[int, ...]:
    """Write ``clusters.csv``: ``text``, its counts, ``distance``, ``group_1`` (finest) ...; the groups at each level.

    Refused once a review has begun: its journal belongs to the clusters that are there.
    """
    folder = Path(folder)
    if (folder / JOURNAL).is_file():
        raise InputError(f"{folder / JOURNAL}: a review of these clusters has begun; move it away to cluster again")
    terms, vectors = read_vectors(folder, of_clean=True)
    levels = clustered(vectors, options)
    texts = terms["text"].to_list()
    central = distances(vectors, levels[0])
    columns = {"distance": pl.Series(central.round(4))}
    for level, groups in enumerate(levels, start=1):
        called = group_names(texts, groups, distances(vectors, groups))
        columns[f"group_{level}"] = pl.Series([called[group] for group in groups.tolist()])
    table = terms.select("text", "n_labels", "n_images").with_columns(**columns)
    order = [f"group_{level}" for level in range(len(levels), 0, -1)]
    write_step(folder, CLUSTERS, table.sort(*order, "distance"))
    made_for = {name: digest(folder / name) for name in (CLEAN, TERMS) if (folder / name).is_file()}
    with replaced(folder / MADE_FOR) as scratch:
        scratch.write_text(json.dumps(made_for) + "\n", encoding="utf-8")
    return tuple(int(groups.max()) + 1 for groups in levels)
