"""The metric table, the classes, the gap, the first results and the curves."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve
from torch.testing import assert_close

from sightline.evaluation.result import Result
from sightline.evaluation.tables import evaluate_table
from sightline.report import numbers
from sightline.report.numbers import (
    EDGES,
    GRID,
    class_rows,
    first_results,
    gaps_by_batch_size,
    measure,
    metric_rows,
    precision_at_recall,
    sampled_curves,
)


def test_each_class_by_definition(random_subject):
    subject, other = random_subject(0), random_subject(1)
    result, before = evaluate_table(subject.table), evaluate_table(other.table)
    found = first_results(subject, 3)
    rows = {row["name"]: row for row in class_rows(subject.table, result, found, before)}
    assert len(rows) == 10
    table = subject.table.manifest.table
    labels = table["label_0"].to_list()
    for name, row in rows.items():
        own = [place for place in range(40) if labels[place] == name]
        assert (row["n_images"], row["parents"]) == (4, tuple(table[f"label_{level}"][own[0]] for level in (1, 2)))
        for column, values in (
            ("precision", result.per_query["map"]),
            ("recall", result.per_query["recall@1"]),
            ("before", before.per_query["map"]),
        ):
            assert_close(row[column], math.fsum(values[own]) / 4)
        wrong = [labels[found.rows[place, 0]] for place in own if labels[found.rows[place, 0]] != name]
        other, n_times = row["mistaken_for"] or (None, 0)
        assert n_times == wrong.count(other) == max(map(wrong.count, wrong), default=0)
    precisions = [row["precision"] for row in class_rows(subject.table, result, found)]
    assert precisions == sorted(precisions)


def test_a_class_of_one_image_has_no_value_and_comes_last(circle):
    subject = circle((0, 10, 20), "aab")
    _, last = rows = class_rows(subject.table, evaluate_table(subject.table), first_results(subject, 2))
    assert [row["name"] for row in rows] == ["a", "b"]
    assert (math.isnan(last["precision"]), last["mistaken_for"]) == (True, ("a", 1))


def test_the_table_says_which_differences_are_real():
    values, labels = np.random.default_rng(0).random(400) / 2, np.arange(400) // 4
    new = Result({"map": values + 0.2, "recall@1": values, "severity@1": 2 - values}, labels=labels)
    old = Result({"map": values, "recall@1": values, "severity@1": 2.3 - values}, labels=labels)
    rows, by = metric_rows({"new": new, "old": old}, ["map", "recall@1", "severity@1"])
    assert (by, [row["verdict"] for row in rows]) == ("classes", ["better", "may be chance", "better"])
    assert [row["difference"][0] for row in rows] == ["+20.0", "+0.0", "-0.30"]
    assert [cell[0] for cell in rows[0]["cells"]] == [f"{100 * new['map']:.1f}", f"{100 * old['map']:.1f}"]
    low, high = map(float, rows[0]["cells"][0][1].split(" – "))
    assert low < 100 * new["map"] < high
    assert [row["verdict"] for row in metric_rows({"old": old, "new": new}, ["map"])[0]] == ["worse"]


def test_every_metric_of_the_table_and_the_curves_is_measured(random_subject):
    subject = random_subject()
    result, names = measure(subject, k=5), numbers.table_metrics(3, 5)
    assert names[-2:] == ["severity@1", "distance@5"]
    assert_close(result["distance@5"], float(first_results(subject, 5).heights.mean()))
    recalls = numbers.label_recalls(result, 3, [1, 2, 4, 8])
    heights = first_results(subject, 8).heights
    expected = [[float((heights[:, :k] <= label).any(1).mean()) for k in (1, 2, 4, 8)] for label in range(3)]
    assert_close(recalls.tolist(), expected)
    assert {row["meaning"] for row in metric_rows({"a": result}, names)[0]} >= {"average precision, by label_2"}


def test_the_gap_ends_at_nothing_for_the_whole_set_and_there_is_none_without_positives(random_subject, circle):
    gaps = gaps_by_batch_size(random_subject())
    assert list(gaps) == [32, 40]
    assert gaps[32].mean > gaps[40].mean == 0
    assert gaps_by_batch_size(circle((0, 1, 2, 3), "abcd")) == {}


def test_the_first_results_and_what_they_share_by_hand(circle):
    #        0    1    2    3    4    5
    found = first_results(circle((0, 10, 25, 60, 62, 100), "abaccb", "xyxyyy"), k=3)
    assert found.rows[[0, 3, 5]].tolist() == [[1, 2, 3], [4, 2, 5], [4, 3, 2]]
    assert found.heights[[0, 3, 5]].tolist() == [[2, 0, 2], [0, 2, 1], [1, 1, 2]]
    assert_close(found.scores[0].tolist(), [math.cos(math.radians(a)) for a in (10, 25, 60)], atol=1e-6, rtol=0)
    found = first_results(circle([30] * 4, "aabb"), k=3)  # of equal scores the worse comes first
    assert found.rows.tolist() == [[2, 3, 1], [2, 3, 0], [0, 1, 3], [0, 1, 2]]
    assert found.heights.tolist() == [[1, 1, 0]] * 4
    found = first_results(circle((0, 10, 30), "aab"), k=5)  # where the table is small the list ends
    assert found.rows.tolist() == [[1, 2, -1], [0, 2, -1], [1, 0, -1]]
    assert found.height_shares(5, n_levels=1).tolist() == [2 / 6, 4 / 6]
    roles = {"is_query": [True, False, False, False], "is_gallery": [True, True, False, True]}
    found = first_results(circle((0, 50, 10, 20), "aaab", **roles), k=2)
    assert (found.queries.tolist(), found.rows.tolist()) == ([0], [[3, 1]])


def test_severity_shares_are_counts_one_by_one(random_subject):
    k, subject = 5, random_subject()
    rows, vectors = subject.table.manifest.table, subject.table.vectors.astype(np.float64)
    paths = list(zip(rows["label_0"], rows["label_1"], rows["label_2"], strict=True))
    scores, counts = vectors @ vectors.T, [0, 0, 0, 0]
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


def test_the_areas_are_the_metrics_and_histograms_hold_every_pair_once(random_subject):
    subject = random_subject()
    curves, result = sampled_curves(subject), evaluate_table(subject.table)
    assert curves.n_queries == 40
    expected = [result[name] for name in ("map", "map_label_1", "map_label_2")]
    assert_close(curves.precision.mean(1).tolist(), expected, atol=5e-3, rtol=0)
    assert_close(float(curves.h_precision.mean()), result["h_ap"], atol=5e-3, rtol=0)
    labels, scores = subject.table.manifest.labels(), subject.table.vectors @ subject.table.vectors.T
    for height in range(4):
        pairs = [scores[a, b] for a in range(40) for b in range(40) if a != b and (labels[a] != labels[b]).sum() == height]
        assert curves.histogram[height].sum() == len(pairs)
        expected = np.histogram(np.clip(pairs, -1, 1), EDGES)[0]
        assert np.abs(curves.histogram[height] - expected).sum() <= 4  # a score on an edge may fall to either side
