"""How alike two label trees over the same labels are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError

TRIPLETS = 200_000


@dataclass(frozen=True)
class Agreement:
    """Two trees compared.

    Attributes:
        adjusted_rand: for each level of the true tree above its leaves, finest first, the adjusted Rand index of the built
            tree's level of the same number: 1 for the same groups, about 0 for groups drawn at random.
        lca: of the triplets of labels of which two are nearer to each other in the true tree than to the third, the share
            in which the built tree says the same; a triplet that it leaves open counts a third.
        n_triplets: how many of those drawn the true tree decides.
    """

    adjusted_rand: list[float]
    lca: float
    n_triplets: int


def tree_agreement(
    true: NDArray[np.int64], built: NDArray[np.int64], n_triplets: int = TRIPLETS, seed: int = 0
) -> Agreement:
    """Compare two trees by their label columns.

    Args:
        true: (N, L) class numbers of each label, finest first; the first column is the label itself.
        built: (N, M) of the same labels in the same order.
        n_triplets: labels are drawn in threes this often.
        seed: of the draw.

    Example:
        >>> columns = np.array([[0, 0], [1, 0], [2, 1], [3, 1]])
        >>> tree_agreement(columns, columns).adjusted_rand, tree_agreement(columns, columns).lca
        ([1.0], 1.0)
    """
    from sklearn.metrics import adjusted_rand_score

    if len(true) != len(built) or len(true) < 3:
        raise InputError(f"trees over {len(true)} and {len(built)} labels: the same labels, at least 3, are needed")
    paired = range(1, min(true.shape[1], built.shape[1]))
    rand = [float(adjusted_rand_score(true[:, level], built[:, level])) for level in paired]
    drawn = np.random.default_rng(seed).integers(0, len(true), (n_triplets, 3))
    drawn = drawn[(drawn[:, 0] != drawn[:, 1]) & (drawn[:, 0] != drawn[:, 2]) & (drawn[:, 1] != drawn[:, 2])]
    asked, answer = _odd_one(true, drawn), _odd_one(built, drawn)
    decided = asked >= 0
    if not decided.any():
        return Agreement(rand, float("nan"), 0)
    agrees = np.where(answer[decided] < 0, 1 / 3, answer[decided] == asked[decided])
    return Agreement(rand, float(agrees.mean()), int(decided.sum()))


def _odd_one(columns: NDArray[np.int64], triplets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of three labels is further from both others than these are from each other; -1 where none is."""
    first, second, third = columns[triplets.T]
    shared = np.stack([_shared(second, third), _shared(first, third), _shared(first, second)], 1)
    best = shared.argmax(1)
    alone = (shared == shared.max(1, keepdims=True)).sum(1) == 1
    return np.where(alone, best, -1)


def _shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Levels that two paths share, from the coarsest on."""
    equal = (one == other)[:, ::-1]
    found: NDArray[np.int64] = np.logical_and.accumulate(equal, axis=1).sum(1)
    return found
