"""Which scorer suits a collection: some of its classes, held out, and blends of its images stand for outliers."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError
from sightline.ood.classifier import cluster_means
from sightline.ood.heat import ALL_PRIORS, REDUCED
from sightline.ood.scorer import create_named

FOLDS = (3, 2)  # of one level, and of each of two
MOST_ITEMS = 5000
FEWEST_GROUPS, CLUSTERS = 6, 12
FEWEST_ITEMS = 60
TESTED = 0.2
AVERAGED = 3
Candidate = tuple[str, dict[str, object]]
# From the cheapest to score with to the dearest: of equals the first is taken.
CANDIDATES: tuple[Candidate, ...] = (
    ("gmm", {}),
    ("gmm", {"shrinkage": "auto"}),
    ("gmm", {"normalise": False}),
    ("gmm_relative", {"shrinkage": "auto"}),
    ("energy", {}),
    ("pnml", {}),
    ("knn", {"k": 5}),
    ("knn", {"k": 50}),
    ("soft_knn", {}),
    ("heat", {}),
)
OF_IMAGES: tuple[Candidate, ...] = (
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


@dataclass(frozen=True)
class _Fold:
    """What candidates are fitted on, what they should accept, and what stands for outliers, each kind by itself."""

    fitted: Rows
    labels: NDArray[np.int64] | None
    inside: Rows
    outside: tuple[Rows, ...]

    def energies(self, candidate: Candidate, show_progress: bool) -> list[NDArray[np.float64]]:
        """Of the images to accept, then of each kind of outliers, in deviations from the mean of the fit set."""
        scorer = create_named(*candidate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about few items
            scorer.fit(self.fitted, self.labels, show_progress=show_progress)
        own = scorer.score(self.fitted)
        found = [scorer.score(rows) for rows in (self.inside, *self.outside)]
        if not all(np.isfinite(one).all() for one in (own, *found)) or not own.std() > 1e-12 * np.abs(own).max():
            raise InputError(f"scorer {scorer.name!r}: energies are not finite, or all equal")
        return [(one - own.mean()) / own.std() for one in found]


def recommend(table: EmbeddingTable, seed: int = 0, show_progress: bool = False, level: int = 0) -> Recommendation:
    """The scorer that best tells stand-ins for outliers from the images of a collection; no outliers are used.

    Classes are held out, of the coarsest label level that has six and, in folds of their own, of the finest level but one,
    if that is another: outliers may differ in kind or in detail. Each candidate is fitted on four fifths of the other
    images; the remaining fifth is to be accepted. If what is held out is coarser than the finest classes, that fifth is one
    of finest classes, as queries are of new ones. k-means clusters replace the classes of a table without labels. Blends of
    two images to accept, of different classes, are the other stand-ins: with the mean and the covariance of the images, but
    of no class. A candidate's AUROC is the mean over both kinds.

    Stand-ins are not the outliers that will come, so the mean energy of the three best, of different names, is recommended
    unless it is worse than the best by more than one standard error over the folds. Else it is the candidate that is
    cheapest to score with, of those within that error of the best.

    Args:
        table: in-distribution images, at most 5,000 are used; with inputs of scorers, those that take them compete too.
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
    inputs = {kind: values[rows] for kind, values in ({"vectors": table.vectors} | dict(table.inputs)).items()}
    labels = table.manifest.labels()[rows] if table.manifest.n_levels else None
    groupings, what = _groupings(inputs["vectors"], labels, seed)
    folds = [fold for groups in groupings for fold in _folds(inputs, labels, level, groups, FOLDS[len(groupings) - 1], rng)]
    made: dict[str, Candidate] = {}
    energies: dict[str, list[list[NDArray[np.float64]]]] = {}
    for name, options in (*CANDIDATES, *(OF_IMAGES if table.inputs else ())):
        shown = _shown(name, options)
        try:
            energies[shown] = [fold.energies((name, options), show_progress) for fold in folds]
        except InputError:  # too few images for its k, or a library that is missing
            continue
        made[shown] = name, options
    if not made:
        raise InputError(f"{table.manifest.source}: no scorer can be fitted on its vectors; do they differ?")
    return _chosen(made, energies, what)


def _shown(name: str, options: Mapping[str, object]) -> str:
    if "priors" in options:
        return f"{name} of all priors"
    return name + "".join(f", {option}={value}" for option, value in options.items())


def _chosen(made: dict[str, Candidate], energies: dict[str, list[list[NDArray[np.float64]]]], what: str) -> Recommendation:
    """The mean of the best if it is as good as the best alone, else the cheapest that is."""
    found = {shown: [_auroc(*of_kinds) for of_kinds in of_folds] for shown, of_folds in energies.items()}
    means = {shown: float(np.mean(ones)) for shown, ones in found.items()}
    ordered = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    best = next(iter(ordered))
    best_of_names = {made[shown][0]: shown for shown in reversed(ordered)}
    together = sorted(best_of_names.values(), key=lambda shown: -means[shown])[:AVERAGED]
    averaged = [
        _auroc(*(np.mean(kind, 0) for kind in zip(*of_members, strict=True)))
        for of_members in zip(*(energies[shown] for shown in together), strict=True)
    ]
    listed = ", ".join(f"{shown} {mean:.1f}" for shown, mean in list(ordered.items())[:4])
    task = f"at telling held-out {what} and blends of images from the others"
    if len(together) > 1 and means[best] - np.mean(averaged) <= _error(found[best], averaged):
        members = [{"name": made[shown][0]} | made[shown][1] for shown in together]
        name = f"mean of {' and '.join(together)}"
        reason = f"the {name} is as good as {best} within the error {task}; AUROC: {float(np.mean(averaged)):.1f}, {listed}"
        ordered = dict(sorted([*ordered.items(), (name, float(np.mean(averaged)))], key=lambda pair: -pair[1]))
        return Recommendation("composition", {"scorers": members}, reason, ordered)
    chosen = next(shown for shown in means if means[best] - means[shown] <= _error(found[best], found[shown]))
    why = "is the best" if chosen == best else f"is as good as {best} within the error, and cheaper"
    return Recommendation(*made[chosen], f"{chosen} {why} {task}; AUROC: {listed}", ordered)


def _error(best: list[float], other: list[float]) -> float:
    """One standard error of the difference, over the folds."""
    error: float = float(np.std(np.subtract(best, other), ddof=1)) / len(best) ** 0.5
    return error


def _groupings(
    vectors: NDArray[np.float32], labels: NDArray[np.int64] | None, seed: int
) -> tuple[list[NDArray[np.int64]], str]:
    """(N,) what is held out together, from 0, in one or two ways; and what it is called."""
    levels = [] if labels is None else [np.unique(level, return_inverse=True)[1].astype(np.int64) for level in labels.T]
    usable = [codes for codes in levels if codes.max() + 1 >= FEWEST_GROUPS]
    if not usable:
        return [cluster_means(torch.from_numpy(vectors), CLUSTERS, seed)[1].numpy()], "clusters"
    coarser = usable[1:] or usable
    return ([coarser[-1], coarser[0]] if coarser[-1].max() < coarser[0].max() else [coarser[-1]]), "classes"


def _folds(
    inputs: Rows,
    labels: NDArray[np.int64] | None,
    level: int,
    groups: NDArray[np.int64],
    n_folds: int,
    rng: np.random.Generator,
) -> Iterator[_Fold]:
    """Folds that each hold out another third of the groups."""
    thirds = rng.permutation(int(groups.max()) + 1)[groups] % FOLDS[0]
    is_test = (rng.random(len(groups)) < TESTED)[_finest(labels, groups)]
    for fold in range(n_folds):
        outside = thirds == fold
        inside, fitted = ~outside & is_test, ~outside & ~is_test
        chosen: list[Rows] = [{kind: values[rows] for kind, values in inputs.items()} for rows in (fitted, inside, outside)]
        blends = _blends(chosen[1], groups[inside], rng)
        others = (chosen[2], blends) if len(blends["vectors"]) else (chosen[2],)
        yield _Fold(chosen[0], None if labels is None else labels[fitted, level], chosen[1], others)


def _blends(rows: Rows, groups: NDArray[np.int64], rng: np.random.Generator) -> Rows:
    """Sums of two images of different groups, less their mean over the root of two, which keeps mean and covariance.

    Each has the mean length of its two images.
    """
    partner = rng.permutation(len(groups))
    apart = groups != groups[partner]
    found = {}
    for kind, values in rows.items():
        one, other, middle = values[apart], values[partner[apart]], values.mean(0)
        blend = middle + (one + other - 2 * middle) / 2**0.5
        lengths = [np.linalg.norm(part, axis=1, keepdims=True) for part in (one, other, blend)]
        found[kind] = (blend * (lengths[0] + lengths[1]) / (2 * np.maximum(lengths[2], 1e-12))).astype(values.dtype)
    return found


def _finest(labels: NDArray[np.int64] | None, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) what is tested together: finest classes, if they are finer than the groups; else each image alone."""
    if labels is not None:
        finest = np.unique(labels[:, 0], return_inverse=True)[1].astype(np.int64)
        if groups.max() < finest.max() < len(finest) - 1:
            return finest
    return np.arange(len(groups))


def _auroc(inside: NDArray[np.float64], *outside: NDArray[np.float64]) -> float:
    """In percent, the mean over the kinds of outliers."""
    found = []
    for far in outside:
        places = rankdata(np.concatenate([inside, far]))[len(inside) :] - np.arange(1, len(far) + 1)
        found.append(100 * float(places.sum()) / (len(inside) * len(far)))  # Mann and Whitney's U over the number of pairs
    return float(np.mean(found))
