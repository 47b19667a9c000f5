"""The compiled way and the sorted way to the statistics, against the definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from ranking_definitions import counting_metrics, metrics_of_list, ranked
from sklearn.metrics import average_precision_score

from sightline.evaluation import statistics
from sightline.evaluation.metrics import Ranking, average_precision, h_ap, ndcg, read_metric_name
from sightline.evaluation.statistics import Statistics, join_statistics, list_statistics
from sightline.kernels import counting
from sightline.labels.relevance import Relevance

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=150)
KS = (1, 2, 5, 20)
PLACES = tuple(sorted({*KS, *(k - 1 for k in KS)}))  # the item at place k is what the place before it lacks


def counted(scores, levels, n_levels, ks=PLACES, by_counting=False):
    """The compiled kernel on ready scores and levels."""
    tile, levels = np.array(scores), np.array(levels, np.int8)
    out = statistics._Outputs.empty(len(tile), n_levels, len(ks))
    out.length[:] = (levels >= 0).sum(1)
    n_most = max(1, int((levels > 0).sum(1).max()))
    state = statistics._State(torch.empty(1, 1, dtype=torch.from_numpy(tile).dtype), n_most)
    empty = np.zeros((len(tile), n_levels), np.int64)
    outputs = statistics._tables(tile.shape[1]), np.array(ks), by_counting, out.table, out.first, out.at_ks, out.counts
    counting.rank_tile(tile, levels, empty, empty, *state.arrays, *outputs)
    return out.statistics(tuple(ks))


def by_sorting(scores, levels, n_levels, ks=PLACES, by_counting=False):
    levels = torch.tensor(np.array(levels, np.int8))
    rule = statistics.TIES.find("counting" if by_counting else "worst")
    return rule(torch.tensor(np.array(scores)), levels, n_levels, ks)


WAYS = [counted, by_sorting]


def assert_metrics(stats, scores, levels, n_levels, ks=KS, **relevance):
    expected = [
        metrics_of_list(ranked(*row), n_levels, ks, **relevance)
        for row in zip(scores.tolist(), levels.tolist(), strict=True)
    ]
    assert len(expected[0]) > 30
    for name in expected[0]:
        metric, k, label = read_metric_name(name, n_levels)
        found = metric(Ranking(stats, n_levels - label, Relevance(**relevance)), k)
        assert_allclose(found, [row[name] for row in expected], rtol=1e-12, atol=1e-13, err_msg=name)


def kind_of_scores(kind, rng, shape):
    scores = rng.normal(size=shape)
    if kind == "rounded":
        return np.round(scores, 1)
    if kind == "two values":
        return np.where(scores > 0, 0.25, -0.5)
    if kind == "equal":
        return np.full(shape, 0.3)
    if kind == "zeros of both signs":
        return np.where(scores > 0.5, 0.7, np.where(scores > 0, 0.0, -0.0))
    if kind == "far tight clusters":
        return np.where(scores > 0, 0.9, -0.9) + 1e-6 * rng.normal(size=shape)
    if kind == "denormal":
        return scores * 1e-310
    if kind == "outliers":
        return np.where(rng.random(shape) < 0.02, scores * 1e6, scores * 1e-3)
    return scores


KINDS = [
    "plain", "rounded", "two values", "equal", "zeros of both signs", "far tight clusters", "denormal", "outliers",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_levels", [1, 2, 4])
@pytest.mark.parametrize("share", [0.03, 0.5])  # few relevant items, many
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_ways_by_definition(kind, n_levels, share, dtype):
    rng = np.random.default_rng(n_levels)
    scores = kind_of_scores(kind, rng, (4, 230)).astype(dtype)
    levels = np.where(rng.random(scores.shape) < share, rng.integers(1, n_levels + 1, scores.shape), 0)
    levels[rng.random(scores.shape) < 0.1] = -1
    levels[3] = 0  # a query without a relevant item
    for way in WAYS:
        assert_metrics(way(scores, levels, n_levels), scores, levels, n_levels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_counted_ties_by_definition(kind, way):
    rng = np.random.default_rng(5)
    scores = kind_of_scores(kind, rng, (3, 90))
    levels = rng.integers(-1, 4, scores.shape)
    stats = way(scores, levels, 3, by_counting=True)
    expected = [counting_metrics(*row, 3) for row in zip(scores.tolist(), levels.tolist(), strict=True)]
    for name in expected[0]:
        metric, k, label = read_metric_name(name, 3)
        found = metric(Ranking(stats, 3 - label), k)
        assert_allclose(found, [row[name] for row in expected], rtol=1e-12, err_msg=name)


@reproducible
@given(st.data())
def test_small_lists_with_ties_by_definition(data):
    n_items, n_levels = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    scores = np.array([data.draw(st.lists(st.integers(-2, 2), min_size=n_items, max_size=n_items))], np.float32)
    levels = np.array([data.draw(st.lists(st.integers(-1, n_levels), min_size=n_items, max_size=n_items))])
    if (levels < 0).all():
        levels[0, 0] = 0
    for way in WAYS:
        assert_metrics(way(scores, levels, n_levels), scores, levels, n_levels)


@pytest.mark.parametrize("kind", KINDS)
def test_large_rows_the_two_ways_agree(kind):
    rng = np.random.default_rng(0)
    scores = kind_of_scores(kind, rng, (2, 20_000)).astype(np.float32)
    levels = np.where(rng.random(scores.shape) < 0.3, rng.integers(1, 3, scores.shape), 0)
    one, other = (way(scores, levels, 2) for way in WAYS)
    for name in Statistics.__annotations__:
        assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_counted_ties_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    scores, levels = np.round(rng.normal(size=(1, 50)), 1), (rng.random((1, 50)) < 0.3).astype(int)
    stats = counted(scores, levels, 1, by_counting=True)
    assert_allclose(average_precision(Ranking(stats, 1)), average_precision_score(levels[0], scores[0]))


@pytest.mark.parametrize("scores", [[0.5, 0.5, 0.5], [0.9, 0.9, 0.5]])
@pytest.mark.parametrize("way", WAYS)
def test_tied_lists_of_the_specification(scores, way):
    levels = [[1, 1, 0]] if scores[0] == 0.5 else [[1, 0, 1]]
    ap = {ties: way([scores], levels, 1, by_counting=ties).precision.item() / 2 for ties in (False, True)}
    assert_allclose(ap[False], 0.5833333, atol=1e-6)
    assert_allclose(ap[True], 0.6666667 if scores[0] == 0.5 else 0.5833333, atol=1e-6)


@reproducible
@given(st.data())
def test_counted_ties_are_never_below_the_worst_order_but_in_ndcg_never_above(data):
    n_items = data.draw(st.integers(1, 9))
    scores = np.array([data.draw(st.lists(st.integers(0, 2), min_size=n_items, max_size=n_items))], np.float32)
    levels = np.array([data.draw(st.lists(st.integers(0, 2), min_size=n_items, max_size=n_items).filter(any))])
    worst, counting_ties = (by_sorting(scores, levels, 2, by_counting=ties) for ties in (False, True))
    assert average_precision(Ranking(worst, 1)) <= average_precision(Ranking(counting_ties, 1)) + 1e-12
    assert h_ap(Ranking(worst, 2, Relevance("weight"))) <= h_ap(Ranking(counting_ties, 2, Relevance("weight"))) + 1e-12
    assert ndcg(Ranking(worst, 1)) >= ndcg(Ranking(counting_ties, 1)) - 1e-12


@pytest.mark.parametrize("way", WAYS)
def test_two_tied_items_alone_both_take_the_second_place_where_ties_are_counted(way):
    stats = way([[0.5, 0.5]], [[1, 1]], 1, by_counting=True)
    assert_allclose(ndcg(Ranking(stats, 1)), 2 / np.log2(3) / (1 + 1 / np.log2(3)))
    assert_allclose(average_precision(Ranking(stats, 1)), 1)


def test_parts_are_joined_in_the_order_asked_for():
    lists = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    parts = [list_statistics(lists[:1], 1, [1]), list_statistics(lists[1:], 1, [1])]
    assert_array_equal(join_statistics(parts).first[:, 0], [1, 2, 3])
    assert_array_equal(join_statistics(parts, np.array([2, 0, 1])).first[:, 0], [3, 1, 2])
