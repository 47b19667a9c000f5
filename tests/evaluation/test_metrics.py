"""Metrics of lists: the specification's and the papers' examples, definitions, scikit-learn and torchmetrics."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torch.testing import assert_close

import ranking_definitions as definitions
import sightline.torchvision_operators  # noqa: F401  (before torchmetrics, which imports torchvision)
from refusals import assert_refused
from sightline.evaluation.benchmark_protocols import revisited_precision_at_k, trapezoid_average_precision
from sightline.evaluation.metrics import METRICS, Ranking, h_curves, list_metric, metric_of, pooled_severity, severity
from sightline.evaluation.statistics import list_statistics
from sightline.labels.relevance import Relevance

M1 = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1]  # spec/metrics.md, section 3
M2 = [0, 0, 1, 0]


def of_one(metric, ranked, **options):
    """The metric of one list, by its name or by a function of the places of what is relevant."""
    if not isinstance(metric, str):
        return metric(np.flatnonzero(ranked), **options)
    found = list_metric(metric, torch.tensor([ranked]).byte())
    assert (found.shape, found.dtype) == ((1,), torch.float64)
    return found.item()


def test_the_specifications_lists():
    near = {"rtol": 0, "atol": 1e-6}
    assert_close([of_one("map", M1), of_one("map@r", M1), of_one("map", M2)], [0.6976190, 0.4833333, 1 / 3], **near)
    assert [of_one(f"recall@{k}", M2) for k in (1, 2, 3)] == [0, 0, 1]
    assert_close(of_one(trapezoid_average_precision, [1, 0, 1, 1]), 0.7638889, **near)
    assert_close([of_one(f"map@{k}", M1) for k in (3, 7, 100)], [0.5555556, 0.5976190, 0.6976190], **near)
    assert_close([of_one("precision@5", M1), of_one("r_precision", M1)], [0.6, 0.6])
    true_recalls = [of_one(f"true_recall@{k}", M1) for k in (1, 2, 3, 5, 7, 10)]
    assert_close(true_recalls, [1.0, 0.5, 0.6666667, 0.6, 0.8, 1.0], **near)
    assert_close([of_one(f"classical_recall@{k}", M1) for k in (1, 3, 5)], [0.2, 0.4, 0.6])
    assert of_one("true_recall@3", M2) == 1


def trapezoid_by_definition(ranked):
    places = [place for place, relevant in enumerate(ranked) if relevant]
    terms = [((1 if p == 0 else j / p) + (j + 1) / (p + 1)) / 2 for j, p in enumerate(places)]
    return sum(terms) / len(places)


@given(st.lists(st.booleans(), min_size=1, max_size=12).filter(any), st.integers(1, 14))
def test_revisited_metrics_by_definition(ranked, k):
    assert_close(of_one(trapezoid_average_precision, ranked), trapezoid_by_definition(ranked))
    none = [False] * len(ranked)
    assert np.isnan([of_one(trapezoid_average_precision, none), of_one(revisited_precision_at_k, none, k=k)]).all()
    last = max(place for place, relevant in enumerate(ranked, start=1) if relevant)
    k_here = min(last, k)
    assert_close(of_one(revisited_precision_at_k, ranked, k=k), sum(ranked[:k_here]) / k_here)


def test_a_query_without_a_relevant_item_is_nan_and_spoils_no_other():
    ranked = torch.tensor([[1, 0], [0, 0], [0, 1]])
    for name in METRICS.names():
        name = f"{name}@1" if METRICS.find(name).takes_k == "always" else name
        defined = ~list_metric(name, ranked).isnan()
        assert not defined[1], name
        assert metric_of(name).is_total == defined[[0, 2]].all().item(), name


level_lists = st.lists(st.integers(0, 3), min_size=1, max_size=10).filter(any)
# spec/metrics.md, section 4: the lists of the papers, and the best order of their levels.
A, B, BEST = [2, 3, 0, 1, 3], [1, 3, 0, 2, 3], [3, 3, 2, 1, 0]
WEIGHT = Relevance("weight")


def of_levels(name, levels, n_levels=3, **options):
    found = list_metric(name, torch.tensor([levels]), n_levels, **options)
    assert (found.shape, found.dtype) == ((1,), torch.float64)
    return found.item()


def assert_near(found, expected):
    assert_close(torch.tensor(found).double(), torch.tensor(expected).double(), rtol=0, atol=1e-6)


def test_the_papers_examples():
    assert_near([of_levels("h_ap", levels, relevance="weight") for levels in (A, B)], [0.7833333, 0.6722222])
    names = ["map", "map_label_1", "map_label_2", "ndcg", "asi", "severity@1", "severity@5", "distance@5"]
    expected = {
        "A": [0.45, 0.8666667, 0.8875, 0.7908150, 0.4791667, 1, 2, 1.2],
        "B": [0.45, 0.5333333, 0.8875, 0.7055051, 0.3958333, 2, 2, 1.2],
    }
    for levels, values in zip((A, B), expected.values(), strict=True):
        assert_near([of_levels(name, levels) for name in names], values)
    assert_near([of_levels("ndcg@3", A), of_levels("asi", M1, n_levels=1)], [0.5741883, 0.7033333])


def test_relevances_of_the_specification():
    for relevance, *expected in (
        (Relevance(), 0.8916667, 0.7458333, 0.9444444),
        (Relevance(alpha=5), 0.5967391, 0.4844203, 1),
        (Relevance(count_self=True), 0.91, 0.76),
        (Relevance("sum_wap", weights=(0.2, 0.3, 0.5)), 0.6625, 0.5625),
    ):
        found = [of_levels("h_ap", levels, relevance=relevance) for levels in (A, B, BEST)[: len(expected)]]
        assert_near(found, expected)
    assert_near(of_levels("h_ap", BEST, relevance=Relevance(monotone=True)), 1)


def test_severity_is_pooled_over_mistakes_and_nan_without_one():
    stats = list_statistics(torch.tensor([[3, 1, 3], [0, 0, 3], [3, 3, 3], [0, 0, 0]]), 3, [1, 2])
    assert pooled_severity(stats, 2) == ((2 + 3 + 3) / 3, 3)  # the query without a relevant item is left out
    assert pooled_severity(stats, 1) == (3, 1)
    assert np.isnan(pooled_severity(list_statistics(torch.tensor([[3]]), 3, [1]), 1)[0])
    assert np.isnan(severity(Ranking(stats, 3), 1)).tolist() == [True, False, True, True]


OPTIONS = [
    {},
    {"name": "weight", "alpha": 2.0},
    {"alpha": 3.0, "count_self": True},
    {"monotone": True},
    {"name": "sum_wap", "weights": (0.2, 0.3, 0.5)},
]


@given(level_lists, st.integers(1, 14))
def test_every_metric_by_definition(levels, k):
    expected = definitions.metrics_of_list(levels, 3, [k])
    assert len(expected) > 30
    near = partial(pytest.approx, rel=1e-9, abs=1e-12, nan_ok=True)
    assert {name: of_levels(name, levels) for name in expected} == near(expected)
    for metric in ("map", "map@r", "h_ap", "ndcg", "asi"):
        for ending in (0, -1):  # one more irrelevant item, or one that is in no list
            assert of_levels(metric, [*levels, ending]) == near(of_levels(metric, levels))
    recall, precision = (side[0] for side in h_curves(torch.tensor([levels]), 3))
    steps = torch.diff(recall, prepend=torch.zeros(1))
    assert_close((steps * precision.nan_to_num()).sum().item(), of_levels("h_ap", levels))
    best, perfect = sorted(levels, reverse=True), ["ndcg", "asi"]
    if 3 in levels:
        perfect += ["map", "map@r", "recall@1", "r_precision", f"true_recall@{k}", f"map@{k}"]
        aps, weights = [of_levels(name, levels) for name in ("map_label_2", "map_label_1", "map")], (0.2, 0.3, 0.5)
        weighted = sum(weight * ap for weight, ap in zip(weights, aps, strict=True))
        assert of_levels("h_ap", levels, relevance=Relevance("sum_wap", weights=weights)) == near(weighted)
        assert of_levels("weighted_ap", levels, relevance=Relevance(weights=weights)) == near(weighted)
        assert of_levels("weighted_ap", levels) == near(sum(aps) / 3)
    found = [of_levels("h_ap", best, relevance=WEIGHT), *(of_levels(name, best) for name in perfect)]
    assert found == near([1.0] * len(found))
    for options in OPTIONS:
        worth = definitions.worth_of_levels(levels, 3, **options)
        assert_close(of_levels("h_ap", levels, relevance=Relevance(**options)), definitions.h_ap(levels, worth))
        gain = of_levels("ndcg", levels, gain=Relevance(**options))  # gains that do not rise with the level among them
        assert_close(gain, definitions.ndcg(levels, worth))


def test_ndcg_is_that_of_scikit_learn_and_torchmetrics_where_nothing_ties():
    from torchmetrics.functional.retrieval import retrieval_normalized_dcg

    for seed in range(3):
        rng = np.random.default_rng(seed)
        levels, scores = rng.integers(0, 4, (1, 20)), rng.normal(size=(1, 20))
        ranked = levels[0, (-scores[0]).argsort()].tolist()
        assert_close(of_levels("ndcg", ranked), ndcg_score(2.0**levels - 1, scores))
        assert_close(of_levels("ndcg@5", ranked), ndcg_score(2.0**levels - 1, scores, k=5))
        raw = of_levels("ndcg", ranked, gain=Relevance(values=(1, 2, 3)))  # gains as they are given
        assert_close(raw, ndcg_score(levels, scores))
        theirs = retrieval_normalized_dcg(torch.from_numpy(scores[0]), torch.from_numpy(levels[0]))
        assert_close(raw, theirs.item(), rtol=1e-5, atol=0)


def test_a_relevance_that_means_nothing_and_levels_beyond_the_finest_are_refused():
    for options, *facts in (
        ({"name": "populatoin"}, "populatoin", "population"),
        ({"name": "sum_wap", "weights": (0.5, 0.5)}, "2 weights", "3 levels"),
        ({"values": (0.5, 0.5)}, "2 values", "3 levels"),
        ({"values": (0.5, -1.0, 1.0)}, "values", "-1.0"),
        ({"name": "weight", "alpha": np.nan}, "alpha", "nan"),
        ({"name": "sum_wap", "weights": (np.inf, 1.0, 1.0)}, "weights", "inf"),
    ):
        assert_refused(facts, lambda options=options: of_levels("h_ap", A, relevance=Relevance(**options)))
    assert_refused(["2", "3"], list_metric, "asi", torch.tensor([A]), 2)
    assert_refused(["2", "3"], h_curves, torch.tensor([A]), 2)
