"""Class means on a plane by t-SNE, coloured by their coarsest label."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from sightline.report.curves import Panel
from sightline.report.style import CLASSES, GREY, MARKERS, ON_DARK, drawing, dress
from sightline.report.subject import Subject

MOST_CLASSES = 2000  # points of a map; more are drawn at random
MOST_DIMS = 32  # kept of the class means before t-SNE
N_ROUNDS = 500
DECIMALS = 6  # of class means; those that agree in all of them are one point
N_NEAR = 10  # class means that are asked for their coarsest label
SIZE = 400  # of the map in the page, in its own units

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A coarsest label: how its points look."""

    name: str
    colour: str
    marker: str


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Points on a plane, one a class.

    Attributes:
        names: of the classes.
        kinds: the coarsest labels, by size.
        kind_of: (C,) the kind of each class.
        points: by model, (C, 2) between 0 and 1; not of a model for which all classes are the same.
        n_classes: in the table, of which these may be a part.
        purity: by model, as :func:`neighbour_purity` gives it; none where there is one label level.
    """

    names: list[str]
    kinds: list[Kind]
    kind_of: NDArray[np.int64]
    points: dict[str, Floats]
    n_classes: int
    purity: dict[str, float]


def class_means(subject: Subject) -> Floats:
    """(C, D) the mean of the unit vectors of each finest class, at length 1."""
    codes = subject.table.manifest.labels()[:, 0]
    longest = np.abs(subject.table.vectors).max(1, keepdims=True)  # first, for the squares of large numbers overflow
    vectors = subject.table.vectors / np.where(longest > 0, longest, 1)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    sums = np.zeros((codes.max() + 1, vectors.shape[1]))
    np.add.at(sums, codes, vectors)
    means: Floats = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return means


def class_map(subjects: list[Subject], seed: int = 0) -> ClassMap:
    """The classes of one table as one or two models see them."""
    manifest = subjects[0].table.manifest
    labels = manifest.labels()
    n_classes = int(labels[:, 0].max()) + 1
    shown = np.sort(np.random.default_rng(seed).permutation(n_classes)[:MOST_CLASSES])
    coarse = np.zeros(n_classes, np.int64)
    coarse[labels[:, 0]] = labels[:, -1]
    kinds, kind_of = _kinds(coarse[shown], manifest.class_names(manifest.n_levels - 1), manifest.n_levels)
    names = manifest.class_names(0)
    means = {subject.name: class_means(subject)[shown] for subject in subjects}
    planes = {name: _plane(own, seed) for name, own in means.items()}
    points = {name: plane for name, plane in planes.items() if plane is not None}
    is_graded = manifest.n_levels > 1 and len(shown) > 1
    purity = {name: neighbour_purity(own, coarse[shown]) for name, own in means.items()} if is_graded else {}
    return ClassMap([names[code] for code in shown], kinds, kind_of, points, n_classes, purity)


def neighbour_purity(means: Floats, coarse: NDArray[np.int64], n_near: int = N_NEAR) -> float:
    """How many of the nearest class means, by their vectors and not by the map, share the coarsest label, as a mean share.

    Example:
        >>> neighbour_purity(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), np.array([0, 0, 1]), n_near=1)
        0.6666666666666666
    """
    scores = means @ means.T
    np.fill_diagonal(scores, -np.inf)
    near = np.argsort(-scores, axis=1, kind="stable")[:, : min(n_near, len(means) - 1)]
    return float((coarse[near] == coarse[:, None]).mean())


def _kinds(coarse: NDArray[np.int64], names: list[str], n_levels: int) -> tuple[list[Kind], NDArray[np.int64]]:
    """The labels with the most classes each get a colour and a marker of their own; the rest are grey."""
    if n_levels == 1:
        return [Kind("class", CLASSES[0], MARKERS[0])], np.zeros(len(coarse), np.int64)
    codes, counts = np.unique(coarse, return_counts=True)
    by_size = codes[np.argsort(-counts, kind="stable")]
    looks = [(colour, marker) for marker in MARKERS for colour in CLASSES[:-1]]
    kinds = [Kind(names[code], *look) for code, look in zip(by_size, looks, strict=False)]
    if len(by_size) > len(looks):
        kinds.append(Kind(f"{len(by_size) - len(looks)} others", GREY, MARKERS[0]))
    rank = np.zeros(int(codes.max()) + 1, np.int64)
    rank[by_size] = np.minimum(np.arange(len(by_size)), len(looks))
    return kinds, rank[coarse]


def kind_styles(kinds: list[Kind]) -> str:
    """The colour of each kind's points, as CSS."""
    rules = [f".k{number} {{ fill: {kind.colour}; }}" for number, kind in enumerate(kinds)]
    dark = [
        f"@media (prefers-color-scheme: dark) {{ .k{number} {{ fill: {ON_DARK[kind.colour]}; }} }}"
        for number, kind in enumerate(kinds)
        if kind.colour in ON_DARK
    ]
    return "\n".join([*rules, *dark])


def _plane(means: Floats, seed: int) -> Floats | None:
    """(C, 2) places of the classes, those with the same mean at the same place; None if all of several are the same."""
    distinct, which = np.unique(means.round(DECIMALS), axis=0, return_inverse=True)  # t-SNE crashes on coincident points
    if len(distinct) == 1 < len(means):
        return None
    return _spread(distinct, seed)[which]


def _spread(means: Floats, seed: int) -> Floats:
    if len(means) < 4:  # too few for neighbours: on a line
        return np.stack([np.linspace(0, 1, len(means)), np.full(len(means), 0.5)], 1)
    kept = min(MOST_DIMS, *means.shape)
    reduced = PCA(kept, random_state=seed).fit_transform(means)
    reduced = (reduced / np.abs(reduced).max()).astype(np.float32)  # the squares of small differences vanish
    perplexity = min(30.0, (len(means) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", max_iter=N_ROUNDS, angle=0.7, random_state=seed)
    points = tsne.fit_transform(reduced).astype(np.float64)
    low, high = points.min(0), points.max(0)
    scaled: Floats = (points - low) / np.maximum(high - low, 1e-9)
    return scaled


def map_panel(found: ClassMap, name: str) -> Panel:
    """One model's map as a figure, with a legend where there are kinds."""
    with drawing(6.4, 5.0) as (figure, axes):
        for number, kind in enumerate(found.kinds):
            own = found.points[name][found.kind_of == number]
            axes.scatter(*own.T, s=9, color=kind.colour, marker=kind.marker, linewidths=0, label=kind.name)
        dress(axes, f"Class means of {name} (t-SNE)", "")
        axes.set_xticks([])
        axes.set_yticks([])
        if len(found.kinds) > 1:
            figure.legend(loc="outside right upper", fontsize=8, markerscale=2)
    return Panel(f"tsne-{name}", f"t-SNE of the class means of {name}", figure)


def marks(found: ClassMap, name: str) -> list[tuple[int, str, str]]:
    """What the page draws for each class: its kind, the path of its marker and its place."""
    marked = []
    for kind, (x, y) in zip(found.kind_of.tolist(), found.points[name].tolist(), strict=True):
        across, down = 8 + x * (SIZE - 16), 8 + (1 - y) * (SIZE - 16)
        marked.append((kind, SHAPES[found.kinds[kind].marker], f"{across:.1f} {down:.1f}"))
    return marked


SHAPES = {  # drawn from the point, relative
    "o": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "^": "m0-4l3.6 6.6h-7.2z",
    "s": "m-2.8-2.8h5.6v5.6h-5.6z",
    "D": "m0-4l4 4l-4 4l-4-4z",
}
