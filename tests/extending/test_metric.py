"""A metric and a tie rule from another package, in Python, on the command line and in a report."""

import numpy as np
from PIL import Image

from small_tables import small_table

CODE = '''
import torch
import sightline as sl
from sightline.evaluation.statistics import TieRule, list_statistics

def mean_reciprocal_rank(ranking):
    """One over the place of the first relevant item."""
    return ranking.share(1.0, ranking.first)

MRR = sl.Metric(mean_reciprocal_rank, "one over the place of the first image of the class")

def best_order(scores, levels, n_levels, ks):
    """The statistics of one strict list, of equal scores the higher level first."""
    higher_first = levels.argsort(dim=1, descending=True, stable=True)
    sorted_scores = scores.masked_fill(levels < 0, -torch.inf).gather(1, higher_first)
    order = higher_first.gather(1, sorted_scores.argsort(dim=1, descending=True, stable=True))
    return list_statistics(levels.gather(1, order), n_levels, ks)

BEST = TieRule("Of equal scores the item of the higher level comes first.", best_order)
'''
METRIC = """
import sys
import sightline as sl
table = sl.EmbeddingTable.read(sys.argv[1])
print("mrr" in sl.list_metrics())
print(sl.evaluate(table.vectors, table.manifest.labels(), metrics=["mrr"])["mrr"])
print(sl.evaluate_table(table, metrics=["mrr"]).per_query["mrr"].tolist())
"""
TIES = """
import sightline as sl
from sightline.evaluation.statistics import TIES
vectors, labels = [[1.0, 0.0]] * 3 + [[0.0, 1.0]], [0, 0, 1, 2]  # three copies: every list of theirs is one tie
print(TIES.names())
for ties, trust in (("worst", False), ("best", False), ("others:BEST", True)):
    print(sl.evaluate(vectors, labels, metrics=["map"], ties=ties, trust=trust)["map"])
for ties in ("bset", "others:BEST"):
    try:
        sl.evaluate(vectors, labels, ties=ties)
    except sl.InputError as error:
        print(error)
"""


def write_table(folder):
    """Four images at 0, 10, 50 and 60 degrees, of the classes a, b, b and a."""
    Image.new("RGB", (8, 8)).save(folder / "i.png")
    angles = np.radians([0.0, 10.0, 50.0, 60.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    return small_table(vectors, "abba", folder=folder, path=["i.png"] * 4).write(folder / "t.parquet")


def test_a_metric_of_another_package_is_measured_and_shown(other_package, tmp_path):
    python, table_file = other_package(CODE, metrics="mrr = others:MRR"), write_table(tmp_path)
    # From 0 degrees: 10, 50, 60 (third is right); from 10: 0, 50 (second); the other two alike.
    listed, mean, each = python("-c", METRIC, table_file).stdout.splitlines()
    assert (listed, mean) == ("True", str((1 / 3 + 1 / 2) / 2))
    assert each == str([1 / 3, 1 / 2, 1 / 2, 1 / 3])
    by_path = ["-m", "sightline", "evaluate", table_file, "--metric", "others:MRR"]
    refused = python(*by_path, status=2).stderr
    assert "'others'" in refused
    assert "--trust" in refused
    assert python(*by_path, "--trust").stdout.split()[:2] == ["others:MRR", "41.7"]
    python("-m", "sightline", "report", table_file, "--out", tmp_path / "page.html", "-k", 2)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith('<tr><th scope="row">mrr'))
    assert "41.7" in row
    assert "one over the place of the first image of the class" in row


def test_a_tie_rule_of_another_package_orders_equal_scores(other_package):
    found = other_package(CODE, ties="best = others:BEST")("-c", TIES).stdout.splitlines()
    names, worst, best, by_path, misspelt, untrusted = found
    assert names == "['best', 'counting', 'worst']"
    assert [worst, best, by_path] == ["0.5", "1.0", "1.0"]
    for message, facts in ((misspelt, ["'bset'", "'best'"]), (untrusted, ["'others'", "trust"])):
        assert all(fact in message for fact in facts), message
