import numpy as np
import pytest
import ranking_definitions as definitions
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torch.testing import assert_close

import sightline.torchvision_operators  # noqa: F401  (before torchmetrics, which imports torchvision)
from sightline.errors import InputError
from sightline.evaluation.metrics import Ranking, h_curves, list_metric, pooled_severity, severity
from sightline.evaluation.statistics import list_statistics
from sightline.labels.relevance import Relevance

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=100)
lists = st.lists(st.integers(0, 3), min_size=1, max_size=10).filter(any)
# spec/metrics.md, section 4: the lists of the papers, and the best order of their levels.
A, B, BEST = [2, 3, 0, 1, 3], [1, 3, 0, 2, 3], [3, 3, 2, 1, 0]
M1 = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1]
WEIGHT = Relevance("weight")


def of_one(name, levels, n_levels=3, **options):
    found = list_metric(name, torch.tensor([levels]), n_levels, **options)
    assert (found.shape, found.dtype) == ((1,), torch.float64)
    return found.item()


def assert_near(found, expected):
    assert_close(torch.tensor(found).double(), torch.tensor(expected).double(), rtol=0, atol=1e-6)


def test_the_papers_examples():
    assert_near([of_one("h_ap", levels, relevance="weight") for levels in (A, B)], [0.7833333, 0.6722222])  # 0.78 and 0.67
    names = ["map", "map_label_1", "map_label_2", "ndcg", "asi", "severity@1", "severity@5", "distance@5"]
    expected = {
        "A": [0.45, 0.8666667, 0.8875, 0.7908150, 0.4791667, 1, 2, 1.2],
        "B": [0.45, 0.5333333, 0.8875, 0.7055051, 0.3958333, 2, 2, 1.2],
    }
    for levels, values in zip((A, B), expected.values(), strict=True):
        assert_near([of_one(name, levels) for name in names], values)
    assert_near([of_one("ndcg@3", A), of_one("asi", M1, n_levels=1)], [0.5741883, 0.7033333])


@pytest.mark.parametrize(
    ("relevance", "expected"),
    [
        (Relevance(), [0.8916667, 0.7458333, 0.9444444]),
        (Relevance(alpha=5), [0.5967391, 0.4844203, 1]),
        (Relevance(count_self=True), [0.91, 0.76, None]),
        (Relevance("sum_wap", weights=(0.2, 0.3, 0.5)), [0.6625, 0.5625, None]),
        (Relevance(monotone=True), [None, None, 1]),
    ],
)
def test_relevances_of_the_specification(relevance, expected):
    for levels, value in zip((A, B, BEST), expected, strict=True):
        if value is not None:
            assert_near(of_one("h_ap", levels, relevance=relevance), value)


def test_severity_is_pooled_over_mistakes_and_nan_without_one():
    stats = list_statistics(torch.tensor([[3, 1, 3], [0, 0, 3], [3, 3, 3], [0, 0, 0]]), 3, [1, 2])
    assert pooled_severity(stats, 2) == ((2 + 3 + 3) / 3, 3)  # the query without a relevant item is left out
    assert pooled_severity(stats, 1) == (3, 1)
    assert np.isnan(pooled_severity(list_statistics(torch.tensor([[3]]), 3, [1]), 1)[0])
    assert np.isnan(severity(Ranking(stats, 3), 1)).tolist() == [True, False, True, True]


@reproducible
@given(lists)
def test_every_metric_by_definition(levels):
    gains = definitions.worth_of_levels(levels, 3, "exponential")
    assert_close(of_one("ndcg", levels), definitions.ndcg(levels, gains))
    assert_close(of_one("ndcg@4", levels), definitions.ndcg(levels, gains, 4))
    assert_close(of_one("asi", levels), definitions.asi(levels))
    for metric in ("h_ap", "ndcg", "asi"):
        for ending in (0, -1):  # one more irrelevant item, or one that is in no list
            assert_close(of_one(metric, [*levels, ending]), of_one(metric, levels))
    best = sorted(levels, reverse=True)
    assert_close([of_one("h_ap", best, relevance=WEIGHT), of_one("ndcg", best), of_one("asi", best)], [1.0] * 3)
    for options in (
        {},
        {"name": "weight", "alpha": 2.0},
        {"alpha": 3.0, "count_self": True},
        {"monotone": True},
        {"name": "sum_wap", "weights": (0.2, 0.3, 0.5)},
    ):
        worth = definitions.worth_of_levels(levels, 3, **options)
        assert_close(of_one("h_ap", levels, relevance=Relevance(**options)), definitions.h_ap(levels, worth))
        gain = of_one("ndcg", levels, gain=Relevance(**options))  # gains that do not rise with the level among them
        assert_close(gain, definitions.ndcg(levels, worth))


@reproducible
@given(lists)
def test_the_curves_give_hierarchical_ap(levels):
    recall, precision = (side[0] for side in h_curves(torch.tensor([levels]), 3))
    steps = torch.diff(recall, prepend=torch.zeros(1))
    assert_close((steps * precision.nan_to_num()).sum().item(), of_one("h_ap", levels))


@reproducible
@given(lists.filter(lambda levels: 3 in levels))
def test_the_weighted_sum_of_level_aps_is_hierarchical_ap(levels):
    weights = (0.2, 0.3, 0.5)
    aps = [of_one(f"map_label_{3 - level}" if level < 3 else "map", levels) for level in (1, 2, 3)]
    expected = sum(weight * ap for weight, ap in zip(weights, aps, strict=True))
    assert_close(of_one("h_ap", levels, relevance=Relevance("sum_wap", weights=weights)), expected, rtol=0, atol=1e-12)
    assert_close(of_one("weighted_ap", levels, relevance=Relevance(weights=weights)), expected, rtol=0, atol=1e-12)
    assert_close(of_one("weighted_ap", levels), sum(aps) / 3, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ndcg_is_that_of_scikit_learn_and_torchmetrics_where_nothing_ties(seed):
    from torchmetrics.functional.retrieval import retrieval_normalized_dcg

    rng = np.random.default_rng(seed)
    levels, scores = rng.integers(0, 4, (1, 20)), rng.normal(size=(1, 20))
    ranked = np.take_along_axis(levels, (-scores).argsort(1), 1)
    gains = 2.0**levels - 1
    assert_close(of_one("ndcg", ranked[0].tolist()), ndcg_score(gains, scores))
    assert_close(of_one("ndcg@5", ranked[0].tolist()), ndcg_score(gains, scores, k=5))
    raw = of_one("ndcg", ranked[0].tolist(), gain=Relevance(values=(1, 2, 3)))
    assert_close(raw, ndcg_score(levels, scores))
    theirs = torch.from_numpy(scores[0]), torch.from_numpy(levels[0])  # gains as they are given
    assert_close(raw, retrieval_normalized_dcg(*theirs).item(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"name": "populatoin"}, ["populatoin", "population"]),
        ({"name": "sum_wap", "weights": (0.5, 0.5)}, ["2 weights", "3 levels"]),
        ({"values": (0.5, 0.5)}, ["2 values", "3 levels"]),
        ({"values": (0.5, -1.0, 1.0)}, ["values", "-1.0"]),
        ({"name": "weight", "alpha": np.nan}, ["alpha", "nan"]),
        ({"name": "sum_wap", "weights": (np.inf, 1.0, 1.0)}, ["weights", "inf"]),
    ],
)
def test_a_relevance_that_means_nothing_is_refused(options, facts):
    with pytest.raises(InputError) as refused:
        of_one("h_ap", A, relevance=Relevance(**options))
    assert all(fact in str(refused.value) for fact in facts)


def test_levels_beyond_the_finest_are_refused():
    for call in (lambda: list_metric("asi", torch.tensor([A]), 2), lambda: h_curves(torch.tensor([A]), 2)):
        with pytest.raises(InputError, match=r"2.*3"):
            call()
