"""The metric table, the classes and the gap."""

import math

import numpy as np
from torch.testing import assert_close

from sightline.evaluation.result import Result
from sightline.evaluation.tables import evaluate_table
from sightline.report import numbers
from sightline.report.numbers import class_rows, first_results, gaps_by_batch_size, measure, metric_rows


def test_each_class_by_definition(random_subject):
    subject, other = random_subject(0), random_subject(1)
    result, before = evaluate_table(subject.table), evaluate_table(other.table)
    found = first_results(subject, 3)
    rows = {row["name"]: row for row in class_rows(subject.table, result, found, before)}
    assert len(rows) == 10
    labels = subject.table.manifest.table["label_0"].to_list()
    for name, row in rows.items():
        own = [place for place in range(40) if labels[place] == name]
        assert row["n_images"] == 4
        assert row["parents"] == tuple(subject.table.manifest.table[f"label_{level}"][own[0]] for level in (1, 2))
        assert_close(row["precision"], math.fsum(result.per_query["map"][own]) / 4)
        assert_close(row["recall"], math.fsum(result.per_query["recall@1"][own]) / 4)
        assert_close(row["before"], math.fsum(before.per_query["map"][own]) / 4)
        wrong = [labels[found.rows[place, 0]] for place in own if labels[found.rows[place, 0]] != name]
        other, n_times = row["mistaken_for"] or (None, 0)
        assert n_times == wrong.count(other) == max(map(wrong.count, wrong), default=0)
    precisions = [row["precision"] for row in class_rows(subject.table, result, found)]
    assert precisions == sorted(precisions)


def test_a_class_of_one_image_has_no_value_and_comes_last(circle):
    subject = circle((0, 10, 20), "aab")
    rows = class_rows(subject.table, evaluate_table(subject.table), first_results(subject, 2))
    assert [row["name"] for row in rows] == ["a", "b"]
    assert math.isnan(rows[1]["precision"])
    assert rows[1]["mistaken_for"] == ("a", 1)


def test_the_table_says_which_differences_are_real():
    values = np.random.default_rng(0).random(400) / 2
    new = Result({"map": values + 0.2, "recall@1": values, "severity@1": 2 - values}, labels=np.arange(400) // 4)
    old = Result({"map": values, "recall@1": values, "severity@1": 2.3 - values}, labels=np.arange(400) // 4)
    rows, by = metric_rows({"new": new, "old": old}, ["map", "recall@1", "severity@1"])
    assert by == "classes"
    assert [row["verdict"] for row in rows] == ["better", "may be chance", "better"]
    assert [row["difference"][0] for row in rows] == ["+20.0", "+0.0", "-0.30"]
    assert [cell[0] for cell in rows[0]["cells"]] == [f"{100 * new['map']:.1f}", f"{100 * old['map']:.1f}"]
    low, high = map(float, rows[0]["cells"][0][1].split(" – "))
    assert low < 100 * new["map"] < high
    assert [row["verdict"] for row in metric_rows({"old": old, "new": new}, ["map"])[0]] == ["worse"]


def test_every_metric_of_the_table_and_the_curves_is_measured(random_subject):
    subject = random_subject()
    result = measure(subject, k=5)
    names = numbers.table_metrics(3, 5)
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
    assert gaps[40].mean == 0
    assert gaps[32].mean > 0
    assert gaps_by_batch_size(circle((0, 1, 2, 3), "abcd")) == {}
