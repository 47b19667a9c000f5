"""The compiled way and the sorted way to the statistics, against the definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from ranking_definitions import counting_metrics, metrics_of_list, ranked
from sightline.evaluation import statistics
from sightline.evaluation.metrics import Ranking, read_metric_name
from sightline.evaluation.statistics import Statistics
from sightline.kernels import counting
from sightline.labels.relevance import Relevance

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


KINDS = {
    "plain": lambda scores: scores,
    "rounded": lambda scores: np.round(scores, 1),
    "two values": lambda scores: np.where(scores > 0, 0.25, -0.5),
    "equal": lambda scores: np.full_like(scores, 0.3),
    "zeros of both signs": lambda scores: np.where(scores > 0.5, 0.7, np.where(scores > 0, 0.0, -0.0)),
    "far tight clusters": lambda scores: np.where(scores > 0, 0.9, -0.9) + 1e-6 * scores,
    "denormal": lambda scores: scores * 1e-310,
    "outliers": lambda scores: np.where(np.abs(scores) > 2.3, scores * 1e6, scores * 1e-3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_levels", "share", "dtype"),
    [(1, 0.03, np.float32), (2, 0.5, np.float32), (4, 0.03, np.float64), (1, 0.5, np.float64)],
)
def test_both_ways_by_definition(kind, n_levels, share, dtype):
    rng = np.random.default_rng(n_levels)
    scores = KINDS[kind](rng.normal(size=(4, 230))).astype(dtype)
    levels = np.where(rng.random(scores.shape) < share, rng.integers(1, n_levels + 1, scores.shape), 0)
    levels[rng.random(scores.shape) < 0.1] = -1
    levels[3] = 0  # a query without a relevant item
    for way in WAYS:
        assert_metrics(way(scores, levels, n_levels), scores, levels, n_levels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_counted_ties_by_definition(kind, way):
    rng = np.random.default_rng(5)
    scores = KINDS[kind](rng.normal(size=(3, 90)))
    levels = rng.integers(-1, 4, scores.shape)
    stats = way(scores, levels, 3, by_counting=True)
    expected = [counting_metrics(*row, 3) for row in zip(scores.tolist(), levels.tolist(), strict=True)]
    for name in expected[0]:
        metric, k, label = read_metric_name(name, 3)
        found = metric(Ranking(stats, 3 - label), k)
        assert_allclose(found, [row[name] for row in expected], rtol=1e-12, err_msg=name)


@settings(max_examples=150)
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
    scores = KINDS[kind](rng.normal(size=(2, 20_000))).astype(np.float32)
    levels = np.where(rng.random(scores.shape) < 0.3, rng.integers(1, 3, scores.shape), 0)
    one, other = (way(scores, levels, 2) for way in WAYS)
    for name in Statistics.__annotations__:
        assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, err_msg=name)
