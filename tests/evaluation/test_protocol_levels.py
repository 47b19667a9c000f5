"""Protocols beside plain labels: levels, distractors, groups, ids, judgements, label sets, benchmarks, processes."""

import math
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose
from ranking_definitions import counting_metrics, metrics_of_list, ranked

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.errors import InputError
from sightline.evaluation import protocol, statistics
from sightline.evaluation.metrics import metric_names
from sightline.evaluation.protocol import (
    RetrievalSet,
    evaluate,
    evaluate_dyml,
    evaluate_each_label,
    evaluate_gldv2,
    evaluate_revisited,
    judged_levels,
)
from sightline.evaluation.tables import evaluate_table
from sightline.labels.relevance import Relevance

KS = (1, 3, 20)
NAMES = [
    *(f"{name}@{k}" for name in ("recall", "true_recall", "classical_recall", "precision", "map", "ndcg") for k in KS),
    *(f"{name}@{k}" for name in ("cmc", "severity", "distance", "h_recall", "h_precision") for k in KS),
    "map", "map@r", "r_precision", "set_precision", "h_ap", "weighted_ap", "ndcg", "asi",
]  # fmt: skip
# spec/metrics.md, section 9: unit vectors at these angles, no ties.
M3 = np.stack([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (0, 5, 12, 30, 33, 90)])
M3_LABELS = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])


def draw(seed, n_items=60, dim=5):
    """Vectors that lean to their class; 9 classes below 4 below 2, some of them small, some vectors copies."""
    rng = np.random.default_rng(seed)
    fine = rng.choice(9, n_items, p=np.arange(1, 10) / 45)
    labels = np.stack([fine, fine // 2 + 10, fine // 4 + 20], 1)
    means = [rng.normal(size=(30, dim))[column] for column in labels.T]
    vectors = sum(means) + rng.normal(size=(n_items, dim))
    vectors[rng.random(n_items) < 0.2] = vectors[0]
    return vectors, labels


def level(path, other):
    """How many levels two label paths share, from the coarsest on; -1 is shared by none."""
    shared = 0
    for one, two in zip(path[::-1], other[::-1], strict=True):
        if one != two or one == -1:
            break
        shared += 1
    return shared


def levels_by_definition(labels, item_labels):
    return np.array([[level(path, other) for other in item_labels.tolist()] for path in labels.tolist()])


def assert_by_definition(result, vectors, items, levels, n_levels, names=NAMES, relevant_level=None, **relevance):
    # The scores of copies are equal for certain: distinct vectors are compared once.
    distinct, which = np.unique(np.concatenate([vectors, items]), axis=0, return_inverse=True)
    unit = distinct / np.linalg.norm(distinct, axis=1, keepdims=True)
    scores = (unit @ unit.T)[which[: len(vectors)]][:, which[len(vectors) :]]
    rows = [
        metrics_of_list(ranked(*row), n_levels, KS, relevant_level, **relevance)
        for row in zip(scores.tolist(), levels.tolist(), strict=True)
    ]
    for name in names:
        assert_allclose(result.per_query[name], [row[name] for row in rows], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_of_labels_in_levels(seed):
    vectors, labels = draw(seed)
    levels = levels_by_definition(labels, labels)
    np.fill_diagonal(levels, -1)
    names = [*NAMES, "map_label_1", "map_label_2", "recall@3_label_1", "map@r_label_2", "set_precision_label_1"]
    result = evaluate(vectors, labels, metrics=names)
    assert list(result.per_query) == names
    assert_by_definition(result, vectors, vectors, levels, 3, names)
    default = evaluate(vectors, labels, ks=KS)
    assert list(default.per_query) == metric_names(KS, 3)
    assert len(default.per_query) == 3 + 2 + 2 + 4


@pytest.mark.parametrize(
    "relevance", [{"name": "weight", "alpha": 2.0}, {"count_self": True}, {"monotone": True}, {"alpha": 5.0}]
)
def test_relevance_is_chosen(relevance):
    vectors, labels = draw(0)
    levels = levels_by_definition(labels[:20], labels[20:])
    result = evaluate(vectors[:20], labels[:20], vectors[20:], labels[20:], relevance=Relevance(**relevance))
    assert_by_definition(result, vectors[:20], vectors[20:], levels, 3, ["h_ap"], **relevance)


def test_the_specifications_vectors_among_themselves_and_against_a_gallery():
    expected = {
        "recall@1": (0.5, 0.3333333), "recall@2": (0.6666667, 0.6666667), "true_recall@2": (0.6666667, 0.6666667),
        "precision@2": (0.3333333, 0.3333333), "map": (0.6722222, 0.6111111), "map_label_1": (0.8064815, 0.7777778),
        "map@r": (0.5, 0.3333333), "map@2": (0.5833333, 0.5), "h_ap": (0.7393519, 0.7222222),
        "weighted_ap": (0.7393519, 0.6944444), "ndcg": (0.8047118, 0.7655692), "asi": (0.6481481, 0.5),
        "severity@1": (1.6666667, 1.5),
    }  # fmt: skip
    sides = M3[::2], M3_LABELS[::2], M3[1::2], M3_LABELS[1::2]
    results = evaluate(M3, M3_LABELS, metrics=list(expected)), evaluate(*sides, metrics=list(expected))
    for name, values in expected.items():
        assert_allclose([result[name] for result in results], values, atol=1e-6, err_msg=name)
    n_mistakes = [int(np.isfinite(result.per_query["severity@1"]).sum()) for result in results]
    assert n_mistakes == [3, 2]
    assert_allclose(evaluate(M3[::2], M3_LABELS[::2], M3[1:4:2], M3_LABELS[1:4:2], empty="zero")["map"], 0.5)  # 90° lost
    weighted = evaluate(M3, M3_LABELS, relevance="weight"), evaluate(*sides, relevance="weight")
    assert_allclose([result["h_ap"] for result in weighted], [0.7729167, 0.7222222], atol=1e-6)


def test_ties_are_counted_if_asked():
    rng = np.random.default_rng(0)
    vectors, labels = np.eye(4)[rng.integers(0, 4, 40)] + 0.0, rng.integers(0, 3, (40, 1)) // [1, 3]
    result = evaluate(vectors[:10], labels[:10], vectors, labels, ties="counting")
    rows = [
        counting_metrics(*row, 2)
        for row in zip((vectors[:10] @ vectors.T).tolist(), levels_by_definition(labels[:10], labels).tolist(), strict=True)
    ]
    for name in ("map", "map_label_1", "h_ap", "ndcg"):
        assert_allclose(result.per_query[name], [row[name] for row in rows], err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_items_labelled_minus_1_are_never_relevant(seed):
    vectors, labels = draw(seed)
    labels = np.where(np.random.default_rng(seed).random((60, 1)) < 0.3, -1, labels)
    levels = levels_by_definition(labels[:20], labels[20:])
    result = evaluate(vectors[:20], labels[:20], vectors[20:], labels[20:], metrics=NAMES)
    assert_by_definition(result, vectors[:20], vectors[20:], levels, 3)
    half_known = np.where(np.arange(3) == 0, np.where(labels[:, :1] % 2 == 0, -1, labels), labels)
    among = levels_by_definition(half_known, half_known)
    np.fill_diagonal(among, -1)
    assert_by_definition(evaluate(vectors, half_known, metrics=NAMES), vectors, vectors, among, 3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_levels", [False, True])
def test_items_of_the_same_group_never_count(seed, by_levels):
    vectors, labels = draw(seed)
    groups = np.random.default_rng(seed).integers(-1, 8, 60)
    same = (groups[:, None] == groups) & (groups[:, None] != -1)
    np.fill_diagonal(same, True)
    levels = np.where(same, -1, levels_by_definition(labels, labels))
    if by_levels:
        result = evaluate(vectors, judgements=np.maximum(levels, 0), exclude=groups, metrics=NAMES)
        assert_by_definition(result, vectors, vectors, levels, 3, ["map", "ndcg", "h_ap"], relevant_level=1)
    else:
        assert_by_definition(evaluate(vectors, labels, exclude=groups, metrics=NAMES), vectors, vectors, levels, 3)
    sides = vectors[:20], labels[:20], vectors[20:], labels[20:]
    split = evaluate(*sides, exclude=groups[:20], gallery_exclude=groups[20:], metrics=NAMES)
    levels = np.where(same[:20, 20:], -1, levels_by_definition(labels[:20], labels[20:]))
    assert_by_definition(split, vectors[:20], vectors[20:], levels, 3)


def test_a_gallery_that_holds_the_queries_leaves_each_out_by_its_id():
    vectors, labels = draw(0)
    ids = [f"image {place}" for place in range(60)]
    order = np.random.default_rng(0).permutation(60)
    result = evaluate(
        vectors[:20], labels[:20], vectors[order], labels[order], ids=ids[:20], gallery_ids=[ids[i] for i in order]
    )
    among = evaluate(vectors, labels)
    for name, values in result.per_query.items():
        assert_allclose(values, among.per_query[name][:20], err_msg=name)
    assert result.ids == ids[:20]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["matrix", "function", "torch"])
def test_judged_levels_and_junk(seed, kind):
    vectors, _ = draw(seed)
    judged = np.random.default_rng(seed).integers(-1, 4, (15, 60)).astype(np.int16)
    judged[4] = np.minimum(judged[4], 0)
    given = {"matrix": judged, "function": lambda rows: judged[rows], "torch": torch.from_numpy(judged)}[kind]
    result = evaluate(vectors[:15], gallery=vectors, judgements=given, metrics=NAMES)
    assert_by_definition(result, vectors[:15], vectors, judged, 3, relevant_level=1)
    assert result.n_skipped == 1


def test_judged_relevance_values_are_the_worth_of_the_items():
    vectors, _ = draw(1)
    judged = np.random.default_rng(1).choice([0, 0.1, 0.5, 2.5], (15, 60))
    result = evaluate(vectors[:15], gallery=vectors, judgements=judged)
    assert list(result.per_query) == [*metric_names(), "h_ap", "ndcg", "asi"]
    levels = np.searchsorted([0.1, 0.5, 2.5], judged, side="right")
    values = Relevance(values=(0.1, 0.5, 2.5))
    same = evaluate(vectors[:15], gallery=vectors, judgements=levels, relevance=values, gain=values)
    for name, column in same.per_query.items():
        assert_allclose(result.per_query[name], column, err_msg=name)


def test_sets_of_labels_share_as_many_as_are_in_both():
    vectors, _ = draw(2)
    sets = np.random.default_rng(2).random((60, 6)) < 0.3
    shared = (sets[:, None] & sets).sum(2)
    np.fill_diagonal(shared, -1)
    n_levels = shared.max()
    result = evaluate(vectors, sets, metrics=["map", "recall@1", "ndcg", "asi"])
    assert_by_definition(result, vectors, vectors, shared, n_levels, list(result.per_query), relevant_level=1)
    split = evaluate(vectors[:9], torch.from_numpy(sets[:9]), vectors[9:], sets[9:], metrics=["map"])
    assert_by_definition(split, vectors[:9], vectors[9:], (sets[:9, None] & sets[9:]).sum(2), 6, ["map"], relevant_level=1)


def test_an_ap_for_each_label_of_the_query():
    vectors, _ = draw(3)
    sets = np.random.default_rng(3).random((60, 6)) < 0.3
    found = evaluate_each_label(vectors, sets).per_query["map"]
    aps = []
    for label in range(6):
        judged = np.broadcast_to(sets[:, label], (60, 60)).astype(int)
        aps.append(np.where(sets[:, label], evaluate(vectors, judgements=judged, metrics=["map"]).per_query["map"], np.nan))
    has_any = sets.any(1)
    assert_allclose(found[has_any], np.nanmean(np.array(aps)[:, has_any], 0))
    assert np.isnan(found[~has_any]).all()
    split = evaluate_each_label(vectors[:9], sets[:9], vectors[9:], sets[9:]).per_query["map"]
    assert len(split) == 9
    with pytest.raises(InputError, match=r"label_sets: \(60, C\) bool is needed, found int64"):
        evaluate_each_label(vectors, sets.astype(int))
    with pytest.raises(InputError, match="vectors have 5 dimensions, the gallery 4"):
        evaluate_each_label(vectors[:9], sets[:9], vectors[9:, :4], sets[9:])


def test_dyml_measures_each_level_alone_and_means_them():
    vectors, labels = draw(4)
    sets = {name: RetrievalSet(vectors, labels[:, level]) for level, name in enumerate(("fine", "middle", "coarse"))}
    results, means = evaluate_dyml(sets)
    for level, result in enumerate(results.values()):
        alone = evaluate(vectors, labels[:, level], metrics=["map", "recall@1", "asi"])
        assert alone.means == {name: result[name] for name in alone.per_query}
    assert_allclose(means["asi"], np.mean([result["asi"] for result in results.values()]))
    with pytest.raises(InputError, match="sets: at least one level is needed, found none"):
        evaluate_dyml({})


def angles(levels):
    """A query and items whose ranking is the order they are given in."""
    turned = np.radians(np.linspace(0, 80, len(levels)))
    return np.array([[1.0, 0.0]]), np.stack([np.cos(turned), np.sin(turned)], 1)


def test_revisited_lists_of_the_specification():
    kinds = "EJNHJENH"
    places = {kind: [[place for place, other in enumerate(kinds) if other == kind]] for kind in "EHJ"}
    results = evaluate_revisited(*angles(kinds), places["E"], places["H"], places["J"])
    expected = {"easy": 0.7916667, "medium": 0.73125, "hard": 0.3333333}
    for setup, value in expected.items():
        assert_allclose(results[setup]["map"], value, atol=1e-6)
    # Easy without junk and hard items: E N E N. Hard: N H N H.
    assert_allclose([results["easy"]["mp@10"], results["hard"]["mp@10"], results["hard"]["mp@1"]], [2 / 3, 0.5, 0])


def test_revisited_queries_without_a_relevant_item_are_left_out():
    query, items = angles("ENN")
    results = evaluate_revisited(query, items, [[0]], [[]], [[]])
    assert (results["easy"]["map"], results["hard"].n_skipped) == (1.0, 1)
    with pytest.raises(InputError, match=r"hard of query 0: whole numbers from 0 to 2 are needed, found \[3\]"):
        evaluate_revisited(query, items, [[0]], [[3]], [[]])
    with pytest.raises(InputError, match="junk: a list for each of the 1 queries is needed, found 2"):
        evaluate_revisited(query, items, [[0]], [[]], [[], []])


@pytest.mark.parametrize("kind", ["array", "mapped", "tensor"])
def test_revisited_read_in_pieces_equals_the_whole(kind, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    queries, items = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(70, 4)).astype(np.float32)
    items[40:50] = items[:10]  # copies, which tie
    places = rng.permuted(np.tile(np.arange(70), (5, 1)), axis=1)
    lists = places[:, :6], places[:, 6:12], places[:, 12:20]
    whole = evaluate_revisited(queries, items, *lists)
    given = {"array": items, "tensor": torch.from_numpy(items)}.get(kind)
    if given is None:
        np.save(tmp_path / "items.npy", items)
        given = np.load(tmp_path / "items.npy", mmap_mode="r")
    monkeypatch.setattr(protocol, "HELD_ELEMENTS", 140)
    monkeypatch.setattr(statistics, "SLICE_COLUMNS", 48)
    monkeypatch.setattr(statistics, "KEPT_BYTES", 0)
    found = evaluate_revisited(queries, given, *lists)
    for setup, result in whole.items():
        for name, values in result.per_query.items():
            assert_allclose(found[setup].per_query[name], values)


def test_revisited_lists_that_do_not_fit_are_refused():
    query, items = angles("ENN")
    with pytest.raises(InputError, match="none of the 1 queries has a relevant item: easy and hard are empty"):
        evaluate_revisited(query, items, [[]], [[]], [[1]])
    with pytest.raises(InputError, match=r"query 0: items \[1\] are in more than one of easy, hard and junk"):
        evaluate_revisited(query, items, [[0, 1]], [[]], [[1]])
    with pytest.raises(InputError, match=r"easy of query 0: whole numbers .* found \[0\.5\]"):
        evaluate_revisited(query, items, [[0.5]], [[]], [[]])
    with pytest.raises(InputError, match=r"hard of query 0: whole numbers .* found .False"):
        evaluate_revisited(query, items, [[0]], [[False, True, False]], [[]])
    with pytest.raises(InputError, match=r"ks are \[0\]; places from 1 on are needed"):
        evaluate_revisited(query, items, [[0]], [[]], [[]], ks=[0])
    with pytest.raises(InputError, match="vectors have 1 dimensions, the gallery 2"):
        evaluate_revisited(query[:, :1], items, [[0]], [[]], [[]])


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


@pytest.mark.parametrize("k", [1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
def test_landmarks_by_their_official_lists(seed, k):
    rng = np.random.default_rng(seed)
    queries, items = rng.normal(size=(6, 4)), rng.normal(size=(30, 4))
    solution = [rng.choice(30, size, replace=False) for size in (1, 2, 5, 12, 30, 0)]
    found = evaluate_gldv2(queries, items, solution, ks=[k])
    for query, relevant, value in zip(queries, solution, found.per_query[f"map@{k}"], strict=True):
        best_first = sorted(range(30), key=lambda item: -(query @ items[item]) / np.linalg.norm(items[item]))[:k]
        hits = [place for place, item in enumerate(best_first, start=1) if item in relevant]
        precision = sum(n / place for n, place in enumerate(hits, start=1))
        assert_allclose(value, precision / min(k, len(relevant)) if len(relevant) else np.nan)
    assert found.n_skipped == 1


def test_landmarks_lists_that_do_not_fit_are_refused():
    query, items = angles("ENN")
    assert evaluate_gldv2(query, items, [[0]]).means == {"map@100": 1.0}
    with pytest.raises(InputError, match="relevant: a list for each of the 1 queries is needed, found 2"):
        evaluate_gldv2(query, items, [[0], [1]])
    with pytest.raises(InputError, match=r"relevant of query 0: whole numbers from 0 to 2 are needed, found \[3\]"):
        evaluate_gldv2(query, items, [[3]])
    with pytest.raises(InputError, match=r"none of the 1 queries has a relevant item in its list$"):
        evaluate_gldv2(query, items, [[]])
    with pytest.raises(InputError, match=r"ks are \[0\]; places from 1 on are needed"):
        evaluate_gldv2(query, items, [[0]], ks=[0])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint64, np.int8, np.int64, np.float32])
def test_levels_judged_in_any_type(dtype):
    table = np.array([[0, 1, 2, 100, -100]]) if np.dtype(dtype).kind in "if" else np.array([[0, 1, 2, 100, 0]])
    rows, values, _ = judged_levels((table * (10 if dtype == np.int64 else 1)).clip(max=100).astype(dtype), 1, 5)
    levels = [int(level) for level in rows(np.arange(1))[0]]
    worth = [-1 if level < 0 else (0, *values)[level] for level in levels]
    expected = {
        bool: [0, 1, 1, 1, 0],
        np.int64: [0, 10, 20, 100, -1],
        np.int8: [0, 1, 2, 100, -1],
        np.float32: [0, 1, 2, 100, -1],
    }
    assert worth == expected.get(dtype, [0, 1, 2, 100, 0])


def test_rows_of_judged_levels_are_held_in_bytes():
    rows, _, _ = judged_levels(np.ones((300, 5000), bool), 300, 5000)
    tracemalloc.start()
    assert rows(np.arange(300)).dtype == np.int8
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 300 * 5000  # not 8 bytes a pair and more


def test_sorting_whole_rows_gives_the_same(monkeypatch):  # the way of other devices
    vectors, labels = draw(5)
    groups, judged = np.arange(60) // 2, np.random.default_rng(0).integers(-1, 3, (60, 60))
    calls = [
        lambda: evaluate(vectors, labels, exclude=groups, metrics=NAMES),
        lambda: evaluate(vectors, labels, metrics=["map", "h_ap", "ndcg"], ties="counting"),
        lambda: evaluate(vectors, judgements=judged, metrics=NAMES),
    ]
    for call in calls:
        monkeypatch.undo()
        expected = call().per_query
        sorting = {name: replace(rule, kernel=None) for name, rule in statistics.TIES.table.items()}
        monkeypatch.setattr(statistics, "TIES", replace(statistics.TIES, table=sorting))
        monkeypatch.setattr(statistics, "SORT_ELEMENTS", 300)
        found = call().per_query
        for name, values in expected.items():
            assert_allclose(found[name], values, rtol=1e-9, err_msg=name)


def test_no_tensor_is_as_large_as_all_scores(largest_tensor):
    rng = np.random.default_rng(0)
    vectors, labels = torch.from_numpy(rng.normal(size=(6000, 4))), rng.integers(0, 50, 6000)
    with largest_tensor:
        evaluate(vectors, labels)
    assert largest_tensor.n_elements <= statistics.QUERY_ROWS * 6144


PROCESS = """
import sys, numpy as np, torch.distributed as dist
from sightline import evaluate
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
data = np.load(f"{folder}/data.npz")
result = evaluate(data["vectors"], data["labels"])
np.savez(f"{folder}/result{rank}.npz", **result.per_query)
dist.destroy_process_group()
"""


def test_two_processes_equal_one(tmp_path):
    vectors, labels = draw(6)
    np.savez(tmp_path / "data.npz", vectors=vectors, labels=labels)
    running = [subprocess.Popen([sys.executable, "-c", PROCESS, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    expected = evaluate(vectors, labels).per_query
    for rank in (0, 1):
        found = np.load(tmp_path / f"result{rank}.npz")
        assert sorted(found) == sorted(expected)
        for name, values in expected.items():
            assert_allclose(found[name], values, rtol=1e-9, err_msg=name)


VECTORS, LABELS = np.eye(4, 3), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["mpa"]}, "unknown metric 'mpa': did you mean 'map'"),
        ({"metrics": ["map_label_1"]}, "unknown metric 'map_label_1'"),
        ({"metrics": ["recall@0"]}, "unknown metric 'recall@0'"),
        ({"relevance": "weights"}, "unknown relevance 'weights': did you mean 'weight'"),
        ({"gain": "exp"}, "unknown relevance 'exp'"),
        ({"ties": "best"}, "unknown tie rule 'best'"),
        ({"judgements": np.eye(4)}, "either labels or judgements are needed, not both"),
        ({"metrics": []}, r"metrics: a list of one name or more is needed, found \[\]"),
        ({"metrics": "map"}, "metrics: a list .* found 'map'"),
        ({"exclude": np.zeros(4, int)}, "none of the 4 queries has a relevant item in its list$"),
        ({"metrics": ["cmc@0"]}, "unknown metric 'cmc@0'"),
        ({"metrics": ["h_recall@3_label_1"]}, "unknown metric 'h_recall@3_label_1'"),
        ({"exclude": np.stack([LABELS, LABELS], 1)}, "exclude of 2"),
        ({"ids": list("abc")}, r"ids: one for each of the 4 queries is needed, found \(3,\)"),
        ({"gallery_ids": list("abcd")}, "gallery_ids"),
        ({"exclude": [0, 0, 1]}, r"exclude.*\(4,\) or \(4, L\).*\(3,\)"),
        ({"gallery_exclude": [0, 0, 1, 1]}, "gallery_exclude"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        evaluate(VECTORS, LABELS, **options)


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        (np.eye(3), r"judgements: \(4, 4\) is needed, found \(3, 3\)"),
        (np.full((4, 4), np.nan), "judgements: NaN or infinity in the rows of queries 0 to 3"),
        (np.where(np.eye(4), np.inf, 1.0), "judgements: NaN or infinity in the rows of queries 0 to 3"),
        (np.zeros((4, 4)), "none of the 4 queries has a relevant item in its list$"),
        (np.full((4, 4), 200), "more than 127 levels"),
        (lambda rows: np.zeros((1, 4)), r"judgements: \(4, 4\) is needed for 4 queries, found \(1, 4\)"),
    ],
)
def test_judgements_that_do_not_fit_are_refused(judgements, message):
    with pytest.raises(InputError, match=message):
        evaluate(VECTORS, judgements=judgements)


def test_an_empty_gallery_of_groups_is_refused():
    none = np.zeros(0, int)
    with pytest.raises(InputError, match="none of the 4 queries has a relevant item"):
        evaluate(VECTORS, LABELS, VECTORS[:0], none, exclude=LABELS, gallery_exclude=none)


@pytest.mark.parametrize("given", [{"judgements": np.ones((4, 4))}, {"labels": np.ones((4, 2), bool)}, {"labels": LABELS}])
def test_a_result_names_its_queries_however_they_were_judged(given):
    assert evaluate(VECTORS, **given, ids=[3, "b", "c", "d"]).ids == ["3", "b", "c", "d"]


def test_a_fine_label_below_two_parents_is_two_classes_to_resample():
    assert evaluate(VECTORS, np.array([[7, 0], [7, 1], [7, 0], [7, 1]])).labels.tolist() == [0, 1, 0, 1]
    assert evaluate(VECTORS, np.array([[7, 0], [8, 0], [7, 0], [8, 0]])).labels.tolist() == [7, 8, 7, 8]


def test_what_belongs_to_a_gallery_and_does_not_fit_is_refused():
    with pytest.raises(InputError, match="gallery_labels"):
        evaluate(VECTORS, gallery=VECTORS, gallery_labels=LABELS, judgements=np.eye(4))
    with pytest.raises(InputError, match="gallery_ids"):
        evaluate(VECTORS, LABELS, VECTORS, LABELS, ids=list("abcd"))
    with pytest.raises(InputError, match="gallery_ids: 4 and 4 are needed, found 4 and 3"):
        evaluate(VECTORS, LABELS, VECTORS, LABELS, ids=list("abcd"), gallery_ids=list("abc"))
    with pytest.raises(InputError, match="gallery_ids: 1 of 4 are there twice"):
        evaluate(VECTORS, LABELS, VECTORS, LABELS, ids=list("abcd"), gallery_ids=list("abca"))
    with pytest.raises(InputError, match=r"gallery_labels: \(4, 2\) bool is needed, found"):
        evaluate(VECTORS, np.ones((4, 2), bool), VECTORS, np.ones((4, 3), bool))


def table_of(vectors, labels, ids, fingerprint="one"):
    rows = {"id": ids, "path": ids, "split": ["test"] * len(ids)}
    rows |= {f"label_{level}": [str(label) for label in column] for level, column in enumerate(labels.T)}
    manifest = Manifest("set.parquet", "images", pl.DataFrame(rows), labels.shape[1])
    return EmbeddingTable(manifest, vectors.astype(np.float32), fingerprint)


def test_a_table_queries_another_of_the_same_encoder_alone():
    vectors, labels = draw(7)
    ids = [str(place) for place in range(60)]
    queries = table_of(vectors[:25], labels[:25], ids[:25])
    result = evaluate_table(queries, gallery=table_of(vectors[10:], labels[10:], ids[10:]))
    sides = vectors[:25].astype(np.float32), labels[:25], vectors[10:].astype(np.float32), labels[10:]
    expected = evaluate(*sides, ids=ids[:25], gallery_ids=ids[10:])
    for name, values in expected.per_query.items():
        assert_allclose(result.per_query[name], values, err_msg=name)
    assert (result.ids, result.fingerprint) == (ids[:25], "one")
    with pytest.raises(InputError, match="vectors of two different encoders, one and another, cannot be compared"):
        evaluate_table(queries, gallery=table_of(vectors, labels, ids, "another"))
    with pytest.raises(InputError, match="labels of 3 and 1 levels cannot be compared"):
        evaluate_table(queries, gallery=table_of(vectors, labels[:, :1], ids))


def test_the_code_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the last block writes files
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/metrics.md").read_text(), flags=re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3
    assert 0 < names["result"]["h_ap"] < 1
    assert names["low"] < names["a"]["map"] < names["high"]


def test_a_finer_level_that_is_worth_less_is_noted():
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    labels = np.array([[0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [2, 1]])
    # Of the first query: three items of level 2, worth 1 / 3 each, and one of level 1, worth 1 / 2.
    result = evaluate(vectors, labels)
    assert result.notes == (
        "h_ap: for 4 of 6 queries an item of a finer level is worth less than one of a coarser level; see docs/metrics.md",
    )
    assert result.as_text().endswith(result.notes[0])
    assert evaluate(vectors, labels, relevance=Relevance(monotone=True)).notes == ()
    assert evaluate(vectors, labels, metrics=["map"]).notes == ()


@pytest.mark.parametrize("as_judgements", [False, True])
def test_queries_without_a_relevant_item_count_as_zero_if_asked(as_judgements):
    vectors, labels = np.random.default_rng(0).normal(size=(5, 4)), np.array([0, 0, 1, 1, 2])
    given = {"judgements": labels[:, None] == labels} if as_judgements else {"labels": labels}
    usual, zeros = evaluate(vectors, **given), evaluate(vectors, **given, empty="zero")
    assert usual.n_skipped == 1
    assert zeros.n_skipped == 0
    assert zeros["map"] == pytest.approx(usual["map"] * 4 / 5)
    if not as_judgements:
        right = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [1.0, 1.0]])  # no first hit is wrong
        assert np.isnan(evaluate(right, labels, metrics=["map", "severity@1"], empty="zero")["severity@1"])
    with pytest.raises(InputError, match="unknown rule for queries without a relevant item 'none'"):
        evaluate(vectors, labels, empty="none")
