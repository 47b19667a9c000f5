import math

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve
from torch.testing import assert_close

from sightline.evaluation.tables import evaluate_table
from sightline.report.numbers import EDGES, GRID, first_results, precision_at_recall, sampled_curves


def test_the_first_results_and_what_they_share_by_hand(circle):
    #        0    1    2    3    4    5
    found = first_results(circle((0, 10, 25, 60, 62, 100), "abaccb", "xyxyyy"), k=3)
    assert found.rows[[0, 3, 5]].tolist() == [[1, 2, 3], [4, 2, 5], [4, 3, 2]]
    assert found.heights[[0, 3, 5]].tolist() == [[2, 0, 2], [0, 2, 1], [1, 1, 2]]
    assert_close(found.scores[0].tolist(), [math.cos(math.radians(a)) for a in (10, 25, 60)], atol=1e-6, rtol=0)


def test_a_query_is_in_no_list_of_its_own_and_of_equal_scores_the_worse_comes_first(circle):
    found = first_results(circle([30] * 4, "aabb"), k=3)
    assert found.rows.tolist() == [[2, 3, 1], [2, 3, 0], [0, 1, 3], [0, 1, 2]]
    assert found.heights.tolist() == [[1, 1, 0]] * 4


def test_where_the_table_is_small_the_list_ends_and_queries_rank_the_gallery_where_it_has_both(circle):
    found = first_results(circle((0, 10, 30), "aab"), k=5)
    assert found.rows.tolist() == [[1, 2, -1], [0, 2, -1], [1, 0, -1]]
    assert found.height_shares(5, n_levels=1).tolist() == [2 / 6, 4 / 6]
    roles = {"is_query": [True, False, False, False], "is_gallery": [True, True, False, True]}
    found = first_results(circle((0, 50, 10, 20), "aaab", **roles), k=2)
    assert (found.queries.tolist(), found.rows.tolist()) == ([0], [[3, 1]])


def test_severity_shares_are_counts_one_by_one(random_subject):
    k = 5
    subject = random_subject()
    rows = subject.table.manifest.table
    paths = list(zip(rows["label_0"], rows["label_1"], rows["label_2"], strict=True))
    scores = subject.table.vectors.astype(np.float64) @ subject.table.vectors.T.astype(np.float64)
    counts = [0, 0, 0, 0]
    for query in range(40):
        others = sorted((place for place in range(40) if place != query), key=lambda place: -scores[query, place])
        for place in others[:k]:
            shared = 0  # labels, from the coarsest on
            while shared < 3 and paths[query][2 - shared] == paths[place][2 - shared]:
                shared += 1
            counts[3 - shared] += 1
    assert_close(first_results(subject, k).height_shares(k, 3).tolist(), [count / (40 * k) for count in counts])


@pytest.mark.parametrize("seed", range(5))
def test_precision_at_each_recall_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    scores, relevant = rng.permutation(30) / 30, rng.random(30) < 0.3
    relevant[0] = True
    precision, recall, _ = precision_recall_curve(relevant, scores)  # thresholds rise, recall falls
    expected = [precision[np.flatnonzero(recall >= value)[-1]] for value in GRID]
    (found,) = precision_at_recall(torch.from_numpy(relevant[np.argsort(-scores)])[None].to(torch.int8), n_levels=1)
    assert_close(found.tolist(), expected)


def test_the_areas_are_the_metrics(random_subject):
    subject = random_subject()
    curves = sampled_curves(subject)
    result = evaluate_table(subject.table)
    assert curves.n_queries == 40
    expected = [result[name] for name in ("map", "map_label_1", "map_label_2")]
    assert_close(curves.precision.mean(1).tolist(), expected, atol=5e-3, rtol=0)
    assert_close(float(curves.h_precision.mean()), result["h_ap"], atol=5e-3, rtol=0)


def test_histograms_hold_every_pair_once(random_subject):
    subject = random_subject()
    labels, vectors = subject.table.manifest.labels(), subject.table.vectors
    histogram = sampled_curves(subject).histogram
    scores = vectors @ vectors.T
    for height in range(4):
        pairs = [scores[a, b] for a in range(40) for b in range(40) if a != b and (labels[a] != labels[b]).sum() == height]
        assert histogram[height].sum() == len(pairs)
        expected = np.histogram(np.clip(pairs, -1, 1), EDGES)[0]
        assert np.abs(histogram[height] - expected).sum() <= 4  # a score on an edge may fall to either side
