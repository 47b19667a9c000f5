"""Agreement of trees: all triplets, one at a time."""

import runpy
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from refusals import assert_refused

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "tree_agreement.py"
tree_agreement = runpy.run_path(str(SCRIPT))["tree_agreement"]


def draw_columns(seed, n_labels=14):
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 5, n_labels)
    return np.stack([np.arange(n_labels), fine, np.array([0, 0, 1, 1, 2])[fine]], 1)


def nearest_pair(columns, triplet):
    """The pair of three labels with the deepest common ancestor; None where two pairs tie."""

    def shared(one, other):
        n = 0
        for level in reversed(range(columns.shape[1])):
            if columns[one, level] != columns[other, level]:
                break
            n += 1
        return n

    depth = {pair: shared(*pair) for pair in combinations(triplet, 2)}
    best = [pair for pair in depth if depth[pair] == max(depth.values())]
    return best[0] if len(best) == 1 else None


@pytest.mark.parametrize("seed", range(3))
def test_agreement_is_that_of_all_triplets(seed):
    true, built = draw_columns(seed), draw_columns(seed + 10)
    worth = []
    for triplet in combinations(range(len(true)), 3):
        asked, answer = nearest_pair(true, triplet), nearest_pair(built, triplet)
        if asked is not None:
            worth.append(1 / 3 if answer is None else asked == answer)
    found = tree_agreement(true, built, n_triplets=200_000)
    assert found.lca == pytest.approx(np.mean(worth), abs=0.01)
    assert found.adjusted_rand == [adjusted_rand_score(true[:, level], built[:, level]) for level in (1, 2)]


def test_the_same_tree_agrees_wholly_and_one_without_groups_by_a_third():
    true = draw_columns(0)
    assert tree_agreement(true, true).lca == 1
    assert tree_agreement(true, true[:, :1]).lca == pytest.approx(1 / 3)
    assert np.isnan(tree_agreement(true[:, :1], true).lca)
    assert_refused(["14", "3"], tree_agreement, true, true[:3])
