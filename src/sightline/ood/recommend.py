"""Which scorer suits a collection: some of its classes, held out, stand for outliers."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError
from sightline.ood.classifier import cluster_means
from sightline.ood.heat import ALL_PRIORS, REDUCED
from sightline.ood.scorer import create_named

FOLDS = 3  # each holds out a third of the groups
MOST_ITEMS = 5000
FEWEST_GROUPS, CLUSTERS = 6, 12
FEWEST_ITEMS = 60
TESTED = 0.2
Candidate = tuple[str, dict[str, object]]
# From the cheapest to score with to the dearest: of equals the first is taken.
CANDIDATES: tuple[Candidate, ...] = (
    ("gmm", {}),
    ("gmm", {"shrinkage": "auto"}),
    ("gmm", {"normalise": False}),
    ("energy", {}),
    ("knn", {"k": 5}),
    ("knn", {"k": 50}),
    ("soft_knn", {}),
    ("heat", {}),
)
OF_IMAGES: tuple[Candidate, ...] = (  # of tables that have what they take
    ("gmm_pooled", REDUCED),
    ("gmm_std", REDUCED),
    ("heat", {"priors": list(ALL_PRIORS)}),
)
Rows = Mapping[str, NDArray[np.float32]]  # inputs of scorers, by kind


@dataclass(frozen=True)
class Recommendation:
    """A scorer for :func:`~sightline.ood.create`, and why.

    Attributes:
        name: of the scorer.
        options: of the scorer.
        reason: a sentence.
        auroc: of each candidate, in percent, in the order of preference.
    """

    name: str
    options: dict[str, object]
    reason: str
    auroc: dict[str, float]


def recommend(table: EmbeddingTable, seed: int = 0, show_progress: bool = False, level: int = 0) -> Recommendation:
    """The scorer that best tells held-out classes of a collection from its other images; no outliers are used.

    In each of three folds a third of the classes is left out, of the coarsest level that has six; each candidate is fitted
    on four fifths of the other images, and the remaining fifth is to be accepted, the left-out classes rejected. If what is
    left out is coarser than the finest classes, that fifth is one of finest classes, as queries are of new ones. k-means
    clusters replace the classes of a table without labels. Of candidates whose AUROC is within one standard error of the
    best, over the folds, the one that is cheapest to score with is taken.

    Args:
        table: in-distribution images; at most 5,000 are used. Scorers of images compete if it has what they take.
        seed: random seed of the folds and of the scorers.
        show_progress: draw the progress bars of HEAT.
        level: label level to fit on; 0 is the finest.
    """
    table.check_finite()
    if len(table) < FEWEST_ITEMS:
        reason = f"{len(table)} images are fewer than the {FEWEST_ITEMS} that a comparison takes"
        return Recommendation("gmm", {"shrinkage": "auto"}, reason, {})
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(table))[:MOST_ITEMS])
    inputs = {kind: values[rows] for kind, values in {"vectors": table.vectors, **table.inputs}.items()}
    labels = table.manifest.labels()[rows] if table.manifest.n_levels else None
    groups, what = _groups(inputs["vectors"], labels, seed)
    folds = rng.permutation(int(groups.max()) + 1)[groups] % FOLDS
    is_test = (rng.random(len(rows)) < TESTED)[_finest(labels, groups)]
    labels = None if labels is None else labels[:, level]
    found: dict[str, list[float]] = {}
    made: dict[str, Candidate] = {}
    for name, options in (*CANDIDATES, *(OF_IMAGES if table.inputs else ())):
        shown = _shown(name, options)
        try:
            found[shown] = [
                _auroc(name, options, inputs, labels, folds == fold, is_test, seed, show_progress) for fold in range(FOLDS)
            ]
            made[shown] = name, options
        except InputError:  # too few images for its k, or equal energies
            continue
    if not found:
        raise InputError(f"{table.manifest.source}: no scorer can be fitted on its vectors; do they differ?")
    means = {shown: float(np.mean(ones)) for shown, ones in found.items()}
    best = max(means, key=lambda shown: means[shown])
    error = {shown: float(np.std(np.subtract(found[best], ones), ddof=1)) / FOLDS**0.5 for shown, ones in found.items()}
    chosen = next(shown for shown in means if means[best] - means[shown] <= error[shown])
    ordered = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    listed = ", ".join(f"{shown} {mean:.1f}" for shown, mean in list(ordered.items())[:4])
    why = "is the best" if chosen == best else f"is as good as {best} within the error, and cheaper"
    reason = f"{chosen} {why} at telling held-out {what} from the others; AUROC: {listed}"
    return Recommendation(*made[chosen], reason, ordered)


def _shown(name: str, options: Mapping[str, object]) -> str:
    if "priors" in options:
        return f"{name} of all priors"
    return name + "".join(f", {option}={value}" for option, value in options.items())


def _groups(vectors: NDArray[np.float32], labels: ArrayLike | None, seed: int) -> tuple[NDArray[np.int64], str]:
    """(N,) what is held out together, from 0, and what it is called."""
    levels = [] if labels is None else list(np.asarray(labels).T[::-1])
    for level in levels:
        codes = np.unique(level, return_inverse=True)[1]
        if codes.max() + 1 >= FEWEST_GROUPS:
            return codes.astype(np.int64), "classes"
    return cluster_means(torch.from_numpy(vectors), CLUSTERS, seed)[1].numpy(), "clusters"


def _finest(labels: NDArray[np.int64] | None, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) what is tested together: finest classes, if they are finer than the groups; else each image alone."""
    if labels is not None:
        finest = np.unique(labels[:, 0], return_inverse=True)[1].astype(np.int64)
        if groups.max() < finest.max() < len(finest) - 1:
            return finest
    return np.arange(len(groups))


def _auroc(
    name: str,
    options: dict[str, object],
    inputs: Rows,
    labels: NDArray[np.int64] | None,
    is_outside: NDArray[np.bool_],
    is_test: NDArray[np.bool_],
    seed: int,
    show_progress: bool,
) -> float:
    """In percent, of one candidate in one fold."""
    masks = ~is_outside & ~is_test, ~is_outside & is_test, is_outside
    fitted, inside, outside = ({kind: values[rows] for kind, values in inputs.items()} for rows in masks)
    scorer = create_named(name, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few items
        scorer.fit(fitted, None if labels is None else labels[masks[0]], show_progress=show_progress)
    near, far = scorer.score(inside), scorer.score(outside)
    if not (np.isfinite(near).all() and np.isfinite(far).all()):
        raise InputError(f"scorer {scorer.name!r}: its energies are not finite")
    places = rankdata(np.concatenate([near, far]))[len(near) :] - np.arange(1, len(far) + 1)
    return 100 * float(places.sum()) / (len(near) * len(far))  # Mann and Whitney's U over the number of pairs
