"""Fourth step: groups of texts in one or several levels, as ``clusters.csv``, nearest to its group's centre first."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.errors import InputError, choose, needs_extra
from sightline.files import write_text
from sightline.hierarchy.collect import CLEAN, CLUSTERS, JOURNAL, MADE_FOR, TERMS, digest, write_step
from sightline.hierarchy.term_vectors import Vectors, read_vectors

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


def suggest_ks(vectors: Vectors, levels: int = 1, seed: int = 0) -> tuple[int, ...]:
    """The number of groups with the best mean silhouette on a sample; at coarser levels fewer, by a constant factor."""
    with needs_extra("grouping", "hierarchy"):
        from sklearn.metrics import silhouette_score
    if len(vectors) < 4:
        raise InputError(f"{len(vectors)} texts are too few to suggest a number of groups; set it with -k")
    sample = vectors[np.sort(np.random.default_rng(seed).choice(len(vectors), min(SAMPLE, len(vectors)), replace=False))]
    found = {}
    for k in sorted({int(k) for k in np.geomspace(2, max(2, len(sample) // 4), 14)}):
        groups = _fit(sample, k, seed, n_init=2).labels_
        if 1 < len(np.unique(groups)) < len(sample):
            found[k] = float(silhouette_score(sample, groups))
    if not found:
        raise InputError(f"the {len(vectors)} texts are all alike: no number of groups can be suggested")
    finest = max(found, key=found.__getitem__)
    return tuple(dict.fromkeys(max(2, round(finest ** (1 - level / levels))) for level in range(levels)))


def find_groups(vectors: Vectors, options: ClusterOptions) -> list[Groups]:
    """(N,) group numbers of each level, finest first; a group is never divided between two coarser ones."""
    split = choose({"agglomerative": _agglomerative, "kmeans": _kmeans}, options.method, "method")
    if options.ks and options.levels != 1:
        raise InputError(
            f"levels is {options.levels} and the numbers of groups are given: give only the numbers, one for each level"
        )
    ks = options.ks or suggest_ks(vectors, options.levels, options.seed)
    if any(k < 1 for k in ks) or any(later >= k for k, later in pairwise(ks)):
        raise InputError(f"numbers of groups must fall and be at least 1, the finest level first, got {list(ks)}")
    if ks[0] > len(vectors):
        raise InputError(f"{ks[0]} groups of {len(vectors)} texts: there can be at most as many groups as texts")
    return [_in_order(groups) for groups in split(vectors, ks, options.seed)]


def _fit(
    points: NDArray[np.floating[Any]],
    k: int,
    seed: int,
    n_init: int = 1,
    max_iter: int = 50,
    sizes: NDArray[np.floating[Any]] | None = None,
) -> Any:
    with needs_extra("grouping", "hierarchy"):
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning
    with warnings.catch_warnings():
        # Texts that are all alike leave groups empty, which are then not numbered.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if len(points) >= LARGE:  # the centres settle on a part of the points at a time
            model = MiniBatchKMeans(k, n_init=1, random_state=seed, max_iter=10, batch_size=max(4096, 2 * k))
        else:
            model = KMeans(k, n_init=n_init, random_state=seed, max_iter=max_iter)
        return model.fit(points, sample_weight=sizes)


def _kmeans(vectors: Vectors, ks: Sequence[int], seed: int) -> list[Groups]:
    found: list[Groups] = []
    points: NDArray[np.floating[Any]] = vectors
    sizes = np.ones(len(vectors))
    for k in ks:
        fitted = _fit(points, min(k, len(points)), seed, RESTARTS, sizes=sizes)
        own = fitted.labels_.astype(np.int64)
        found.append(own[found[-1]] if found else own)
        points = fitted.cluster_centers_
        sizes = np.bincount(own, weights=sizes, minlength=len(points)).astype(np.float64)
    return found


def _agglomerative(vectors: Vectors, ks: Sequence[int], seed: int) -> list[Groups]:
    from scipy.cluster.hierarchy import fcluster, linkage

    owner, points = np.arange(len(vectors)), vectors
    if len(vectors) > DIRECT:
        if ks[0] > DIRECT:
            raise InputError(
                f"{ks[0]} groups: agglomerative makes at most {DIRECT} of more than {DIRECT} texts; use kmeans"
            )
        fitted = _fit(vectors, max(ks[0], DIRECT // 2), seed, max_iter=20)
        owner, points = fitted.labels_.astype(np.int64), fitted.cluster_centers_
    if len(points) == 1:
        return [np.zeros(len(vectors), np.int64) for _ in ks]
    joined = linkage(points.astype(np.float64), "ward")
    return [fcluster(joined, k, "maxclust").astype(np.int64)[owner] for k in ks]


def _in_order(groups: Groups) -> Groups:
    """Numbered without gaps, in the order of first appearance."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(first.argsort().argsort()[inverse], np.int64)


def distances(vectors: Vectors, groups: Groups) -> NDArray[np.float64]:
    """(N,) of each row from the mean of its group."""
    total = np.zeros((groups.max() + 1, vectors.shape[1]))
    np.add.at(total, groups, vectors)
    return np.asarray(np.linalg.norm(vectors - (total / np.bincount(groups)[:, None])[groups], axis=1), np.float64)


def group_names(texts: Sequence[str], groups: Groups, central: NDArray[np.float64]) -> list[str]:
    """A name for each group: words frequent in it and rare elsewhere, or its two most central texts; all different.

    Example:
        >>> group_names(["red cat", "old cat", "red dog", "old dog"], np.array([0, 0, 1, 1]), np.zeros(4))
        ['cat', 'dog']
    """
    n_groups = int(groups.max()) + 1
    members: list[list[str]] = [[] for _ in range(n_groups)]
    for place in np.argsort(central, kind="stable").tolist():
        members[groups[place]].append(texts[place])
    counts = [Counter(word for text in own for word in {*WORD.findall(text)}) for own in members]
    spread = Counter(word for one in counts for word in one)
    named: dict[str, None] = {}
    for own, one in zip(members, counts, strict=True):
        worth = {word: n / len(own) * (np.log((1 + n_groups) / spread[word]) + 0.1) for word, n in one.items()}
        best = sorted(worth, key=lambda word: (-worth[word], word))[:2]
        words = [word for word in best if one[word] >= max(2, 0.3 * len(own)) and worth[word] >= 0.5 * worth[best[0]]]
        name = " ".join(words) or ", ".join(own[:2])
        others = (f"{name} ({own[0]}){' +' * n}" for n in count())
        named[next(name for name in chain([name], others) if name not in named)] = None
    return list(named)


def cluster_terms(folder: Path, options: ClusterOptions) -> tuple[int, ...]:
    """Write ``clusters.csv``: ``text``, its counts, ``distance``, ``group_1`` (finest) ...; the groups at each level.

    Refused once a review has begun: its journal belongs to the clusters that are there.
    """
    if (folder / JOURNAL).is_file():
        raise InputError(f"{folder / JOURNAL}: a review of these clusters has begun; move it away to cluster again")
    terms, vectors = read_vectors(folder, of_clean=True)
    levels = find_groups(vectors, options)
    table = terms.select("text", "n_labels", "n_images", distance=pl.Series(distances(vectors, levels[0]).round(4)))
    columns = [f"group_{level}" for level in range(1, len(levels) + 1)]
    for column, groups in zip(columns, levels, strict=True):
        called = group_names(terms["text"].to_list(), groups, distances(vectors, groups))
        table = table.with_columns(pl.Series(column, [called[group] for group in groups]))
    write_step(folder, CLUSTERS, table.sort(*reversed(columns), "distance"))
    made_for = {name: digest(folder / name) for name in (CLEAN, TERMS) if (folder / name).is_file()}
    write_text(folder / MADE_FOR, json.dumps(made_for) + "\n")
    return tuple(int(groups.max()) + 1 for groups in levels)
