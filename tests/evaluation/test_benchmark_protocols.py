"""The protocols of particular benchmarks: several labels an item, DyML, revisited Oxford and Paris, Google Landmarks."""

from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from refusals import assert_refused
from sightline import RetrievalSet, evaluate, evaluate_dyml, evaluate_each_label, evaluate_gldv2, evaluate_revisited
from sightline.evaluation import benchmark_protocols, statistics


def draw(seed, n_items=60):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_items, 5)), rng.random((n_items, 6)) < 0.3, rng.integers(0, 6, (n_items, 1)) // [1, 2, 3]


def angles(kinds):
    """A query and items whose ranking is the order they are given in."""
    turned = np.radians(np.linspace(0, 80, len(kinds)))
    return np.array([[1.0, 0.0]]), np.stack([np.cos(turned), np.sin(turned)], 1)


def test_an_ap_for_each_label_of_the_query():
    vectors, sets, _ = draw(3)
    found = evaluate_each_label(vectors, sets).per_query["map"]
    aps = []
    for label in range(6):
        judged = np.broadcast_to(sets[:, label], (60, 60)).astype(int)
        aps.append(np.where(sets[:, label], evaluate(vectors, judgements=judged, metrics=["map"]).per_query["map"], np.nan))
    has_any = sets.any(1)
    assert_allclose(found[has_any], np.nanmean(np.array(aps)[:, has_any], 0))
    assert np.isnan(found[~has_any]).all()
    assert len(evaluate_each_label(vectors[:9], sets[:9], vectors[9:], sets[9:]).per_query["map"]) == 9


def test_dyml_measures_each_level_alone_and_means_them():
    vectors, _, labels = draw(4)
    sets = {name: RetrievalSet(vectors, labels[:, level]) for level, name in enumerate(("fine", "middle", "coarse"))}
    results, means = evaluate_dyml(sets)
    for level, result in enumerate(results.values()):
        alone = evaluate(vectors, labels[:, level], metrics=["map", "recall@1", "asi"])
        assert alone.means == {name: result[name] for name in alone.per_query}
    assert_allclose(means["asi"], np.mean([result["asi"] for result in results.values()]))


def test_revisited_ranking_of_the_specification():  # spec/listwise-and-blackbox.md, V10
    ranking = [7, 3, 1, 9, 0, 5, 2, 8, 4, 6]
    query, ordered = angles(ranking)
    results = evaluate_revisited(query, ordered[np.argsort(ranking)], [[3, 0]], [[1, 8]], [[7, 5]])
    expected = {
        "easy": (0.7916666667, 1, 0.6666666667, 0.6666666667),
        "medium": (0.8354166667, 1, 0.6, 0.6666666667),
        "hard": (0.7083333333, 1, 0.5, 0.5),
    }
    for setup, values in expected.items():
        found = [results[setup][name] for name in ("map", "mp@1", "mp@5", "mp@10")]
        assert_allclose(found, values, atol=1e-9, err_msg=setup)
    results = evaluate_revisited(*angles("ENN"), [[0]], [[]], [[]])
    assert (results["easy"]["map"], results["hard"].n_skipped) == (1.0, 1)


@pytest.mark.parametrize("kind", ["mapped", "tensor"])
def test_revisited_read_in_pieces_equals_the_whole(kind, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    queries, items = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(70, 4)).astype(np.float32)
    items[40:50] = items[:10]  # copies, which tie
    places = rng.permuted(np.tile(np.arange(70), (5, 1)), axis=1)
    lists = places[:, :6], places[:, 6:12], places[:, 12:20]
    whole = evaluate_revisited(queries, items, *lists)
    np.save(tmp_path / "items.npy", items)
    given = torch.from_numpy(items) if kind == "tensor" else np.load(tmp_path / "items.npy", mmap_mode="r")
    monkeypatch.setattr(benchmark_protocols, "HELD_ELEMENTS", 140)
    monkeypatch.setattr(statistics, "SLICE_COLUMNS", 48)
    monkeypatch.setattr(statistics, "KEPT_BYTES", 0)
    found = evaluate_revisited(queries, given, *lists)
    for setup, result in whole.items():
        for name, values in result.per_query.items():
            assert_allclose(found[setup].per_query[name], values)


@pytest.mark.parametrize("k", [1, 3, 100])
def test_landmarks_by_their_official_lists(k):
    rng = np.random.default_rng(k)
    queries, items = rng.normal(size=(6, 4)), rng.normal(size=(30, 4))
    solution = [rng.choice(30, size, replace=False) for size in (1, 2, 5, 12, 30, 0)]
    found = evaluate_gldv2(queries, items, solution, ks=[k])
    for query, relevant, value in zip(queries, solution, found.per_query[f"map@{k}"], strict=True):
        best_first = sorted(range(30), key=lambda item: -(query @ items[item]) / np.linalg.norm(items[item]))[:k]
        hits = [place for place, item in enumerate(best_first, start=1) if item in relevant]
        precision = sum(n / place for n, place in enumerate(hits, start=1))
        assert_allclose(value, precision / min(k, len(relevant)) if len(relevant) else np.nan)
    assert found.n_skipped == 1


QUERY, ITEMS = angles("ENN")
VECTORS, SETS, _ = draw(0, n_items=9)


def test_what_does_not_fit_is_refused():
    for call, *given, facts in (
        (evaluate_each_label, VECTORS, SETS.astype(int), ["label_sets", "int64"]),
        (evaluate_each_label, VECTORS, SETS, VECTORS, ["gallery_sets"]),
        (evaluate_each_label, VECTORS, SETS, VECTORS[:, :4], SETS, ["dimensions", "5", "4"]),
        (evaluate_each_label, VECTORS, np.eye(9, dtype=bool), ["9 queries"]),
        (evaluate_dyml, {}, ["sets"]),
        (evaluate_revisited, QUERY, ITEMS, [[]], [[]], [[1]], ["1 queries", "easy and hard"]),
        (evaluate_revisited, QUERY, ITEMS, [[0, 1]], [[]], [[1]], ["query 0", "[1]"]),
        (evaluate_revisited, QUERY, ITEMS, [[0.5]], [[]], [[]], ["easy", "query 0", "[0.5]"]),
        (evaluate_revisited, QUERY, ITEMS, [[0]], [[3]], [[]], ["hard", "query 0", "[3]"]),
        (evaluate_revisited, QUERY, ITEMS, [[0]], [[]], [[], []], ["junk", "2"]),
        (partial(evaluate_revisited, ks=[0]), QUERY, ITEMS, [[0]], [[]], [[]], ["ks", "[0]"]),
        (evaluate_gldv2, QUERY, ITEMS, [[0], [1]], ["relevant", "2"]),
        (evaluate_gldv2, QUERY, ITEMS, [[3]], ["relevant", "query 0", "[3]"]),
        (evaluate_gldv2, QUERY, ITEMS, [[]], ["1 queries"]),
        (partial(evaluate_gldv2, ks=[0]), QUERY, ITEMS, [[0]], ["ks", "[0]"]),
    ):
        assert_refused(facts, call, *given)
