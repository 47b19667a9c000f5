"""Who ranks what: every metric of every protocol against its definition, and what is refused."""

import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from ranking_definitions import metrics_of_list, ranked
from refusals import assert_refused
from sightline import InputError, Relevance
from sightline.evaluation import statistics
from sightline.evaluation.metrics import metric_names
from sightline.evaluation.protocol import evaluate, judged_levels

KS = (1, 3, 20)
NAMES = [
    *(f"{name}@{k}" for name in ("recall", "true_recall", "classical_recall", "precision", "map", "ndcg") for k in KS),
    *(f"{name}@{k}" for name in ("cmc", "severity", "distance", "h_recall", "h_precision") for k in KS),
    "map", "map@r", "r_precision", "set_precision", "h_ap", "weighted_ap", "ndcg", "asi",
]  # fmt: skip
# spec/metrics.md, section 9: unit vectors at these angles, no ties.
M3 = np.stack([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (0, 5, 12, 30, 33, 90)])
M3_LABELS = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])
VECTORS, LABELS = np.eye(4, 3), np.array([0, 0, 1, 1])


def draw(seed, n_items=60, dim=5, copies=0.2):
    """Vectors that lean to their class; 9 classes below 4 below 2, some of them small, a share of the vectors copies."""
    rng = np.random.default_rng(seed)
    fine = rng.choice(9, n_items, p=np.arange(1, 10) / 45)
    labels = np.stack([fine, fine // 2 + 10, fine // 4 + 20], 1)
    means = [rng.normal(size=(30, dim))[column] for column in labels.T]
    vectors = sum(means) + rng.normal(size=(n_items, dim))
    vectors[rng.random(n_items) < copies] = vectors[0]
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


def assert_same(result, expected):
    assert list(result.per_query) == list(expected)
    for name, values in expected.items():
        assert_allclose(result.per_query[name], values, rtol=1e-9, err_msg=name)


def test_every_metric_of_labels_in_levels():
    vectors, labels = draw(0)
    levels = levels_by_definition(labels, labels)
    np.fill_diagonal(levels, -1)
    names = [*NAMES, "map_label_1", "map_label_2", "recall@3_label_1", "map@r_label_2", "set_precision_label_1"]
    result = evaluate(vectors, labels, metrics=names)
    assert list(result.per_query) == names
    assert_by_definition(result, vectors, vectors, levels, 3, names)
    for relevance in ({"name": "weight", "alpha": 2.0}, {"count_self": True}, {"monotone": True}):
        chosen = evaluate(vectors, labels, relevance=Relevance(**relevance))
        assert_by_definition(chosen, vectors, vectors, levels, 3, ["h_ap"], **relevance)
    default = evaluate(vectors, labels, ks=KS)
    assert list(default.per_query) == metric_names(KS, 3)
    assert len(default.per_query) == 3 + 2 + 2 + 4
    assert list(evaluate(vectors, labels[:, 0], ks=[5, 1, 5]).per_query) == ["recall@5", "recall@1", "map@r", "map"]


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


def test_items_labelled_minus_1_are_never_relevant():
    vectors, labels = draw(1)
    labels = np.where(np.random.default_rng(1).random((60, 1)) < 0.3, -1, labels)
    levels = levels_by_definition(labels[:20], labels[20:])
    result = evaluate(vectors[:20], labels[:20], vectors[20:], labels[20:], metrics=NAMES)
    assert_by_definition(result, vectors[:20], vectors[20:], levels, 3)
    half_known = np.where(np.arange(3) == 0, np.where(labels[:, :1] % 2 == 0, -1, labels), labels)
    among = levels_by_definition(half_known, half_known)
    np.fill_diagonal(among, -1)
    assert_by_definition(evaluate(vectors, half_known, metrics=NAMES), vectors, vectors, among, 3)


def test_text_labels_and_groups_are_the_numbers_they_stand_for():
    vectors, labels = draw(2)
    labels = np.where(np.random.default_rng(2).random((60, 1)) < 0.1, -1, labels)
    texts = np.array([[None if one == -1 else f"name {one}" for one in row] for row in labels], object)
    groups = np.arange(60) % 3
    expected = evaluate(vectors, labels, exclude=groups)
    found = evaluate(vectors, texts, exclude=[f"camera {one}" for one in groups])
    assert_same(found, expected.per_query)
    assert found.labels.tolist() == ["" if one == -1 else f"name {one}" for one in labels[:, 0]]
    sides = evaluate(vectors[:20], texts[:20, 0].tolist(), vectors[20:], [text or "" for text in texts[20:, 0]])
    assert_same(sides, evaluate(vectors[:20], labels[:20, 0], vectors[20:], labels[20:, 0]).per_query)
    below_two = evaluate(VECTORS, [("a", "x"), (b"a", "y"), ("a", "x"), ("a", "y")])
    assert below_two.labels.tolist() == ["a < x", "a < y"] * 2
    assert evaluate(VECTORS, [7, "x", 7, "x"])["map"] == evaluate(VECTORS, [0, 1, 0, 1])["map"]
    for names in (pl.Series(["a", "b", "a", "b"]), np.array([b"a", b"b", b"a", b"b"])):
        assert evaluate(VECTORS, names).means == evaluate(VECTORS, [0, 1, 0, 1]).means


@pytest.mark.parametrize("by_levels", [False, True])
def test_items_of_the_same_group_never_count(by_levels):
    vectors, labels = draw(0)
    groups = np.random.default_rng(0).integers(-1, 8, 60)
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
    gallery_ids = [ids[i] for i in order]
    result = evaluate(vectors[:20], labels[:20], vectors[order], labels[order], ids=ids[:20], gallery_ids=gallery_ids)
    among = evaluate(vectors, labels)
    assert_same(result, {name: values[:20] for name, values in among.per_query.items()})
    assert result.ids == ids[:20]
    for given in ({"judgements": np.ones((4, 4))}, {"labels": np.ones((4, 2), bool)}, {"labels": LABELS}):
        assert evaluate(VECTORS, **given, ids=[3, "b", "c", "d"]).ids == ["3", "b", "c", "d"]


@pytest.mark.parametrize("kind", ["matrix", "function", "torch"])
def test_judged_levels_and_junk(kind):
    vectors, _ = draw(0)
    judged = np.random.default_rng(0).integers(-1, 4, (15, 60)).astype(np.int16)
    judged[4] = np.minimum(judged[4], 0)
    given = {"matrix": judged, "function": lambda rows: judged[rows], "torch": torch.from_numpy(judged)}[kind]
    result = evaluate(vectors[:15], gallery=vectors, judgements=given, metrics=NAMES)
    assert_by_definition(result, vectors[:15], vectors, judged, 3, relevant_level=1)
    assert result.n_skipped == 1


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


@pytest.mark.parametrize("dtype", [bool, np.uint64, np.int8, np.int64, np.float32])
def test_levels_judged_in_any_type(dtype):
    table = np.array([[0, 1, 2, 100, -100]]) if np.dtype(dtype).kind in "if" else np.array([[0, 1, 2, 100, 0]])
    rows, values, _ = judged_levels((table * (10 if dtype == np.int64 else 1)).clip(max=100).astype(dtype), 1, 5)
    levels = [int(level) for level in rows(np.arange(1))[0]]
    worth = [-1 if level < 0 else (0, *values)[level] for level in levels]
    expected = {bool: [0, 1, 1, 1, 0], np.int64: [0, 10, 20, 100, -1], np.uint64: [0, 1, 2, 100, 0]}
    assert worth == expected.get(dtype, [0, 1, 2, 100, -1])


@pytest.mark.parametrize("split", [False, True])
def test_equal_to_pytorch_metric_learning(split):
    vectors, labels = draw(0, copies=0)
    labels = labels[:, 0]
    sides = (vectors[:15], labels[:15], vectors[15:], labels[15:]) if split else (vectors, labels)
    names = {"precision_at_1": "recall@1", "r_precision": "r_precision"}
    names |= {"mean_average_precision": "map", "mean_average_precision_at_r": "map@r"}
    given = {"device": torch.device("cpu"), "knn_func": CustomKNN(CosineSimilarity()), "kmeans_func": len}
    theirs = AccuracyCalculator(include=tuple(names), **given).get_accuracy(*sides)
    result = evaluate(*sides, metrics=list(names.values()))
    for name, ours in names.items():
        assert_allclose(result[ours], theirs[name], err_msg=name)


def test_what_changes_no_ranking_changes_nothing():
    rng = np.random.default_rng(3)
    vectors, labels = draw(3, copies=0)
    turned = vectors @ np.linalg.qr(rng.normal(size=(5, 5))).Q * rng.uniform(0.1, 9, (60, 1))
    assert_same(evaluate(turned, labels), evaluate(vectors, labels).per_query)
    vectors, labels = draw(3)
    expected, order = evaluate(vectors, labels).per_query, rng.permutation(60)
    assert_same(evaluate(vectors, 10**12 - labels), expected)
    assert_same(evaluate(vectors[order], labels[order]), {name: values[order] for name, values in expected.items()})
    gallery = evaluate(vectors[:8], labels[:8], vectors, labels).per_query
    assert_same(evaluate(vectors[:8], labels[:8], vectors[order], labels[order]), gallery)


def test_any_kind_of_table_and_labels_is_taken(tmp_path):
    vectors, labels = draw(4)
    expected = evaluate(vectors, labels).per_query
    np.save(tmp_path / "vectors.npy", vectors)
    frozen = labels.copy()
    frozen.flags.writeable = False
    for kind in (
        (vectors.tolist(), labels.tolist()),
        (torch.from_numpy(vectors).requires_grad_(), torch.from_numpy(labels)),
        (np.load(tmp_path / "vectors.npy", mmap_mode="r"), frozen),
        (vectors.astype(">f8"), labels.astype(">i4")),
        (np.asfortranarray(vectors), labels.astype(np.uint8)),
    ):
        assert_same(evaluate(*kind), expected)
    sides = evaluate(vectors[:9], labels[:9], vectors, labels).per_query
    assert_same(evaluate(vectors[:9].astype(np.float32).astype(float), labels[:9], vectors.tolist(), labels), sides)


@pytest.mark.parametrize(
    "setting",
    [{"QUERY_ROWS": 3}, {"TILE_ELEMENTS": 10 * 2560, "SLICE_COLUMNS": 512}, {"KEPT_BYTES": 0}, {"SORT_ELEMENTS": 300}],
)
def test_blocks_and_sorted_rows_equal_the_whole(setting, monkeypatch):
    vectors, labels = draw(0, n_items=1300, copies=0)
    exclude, levels = np.arange(1300) // 3, (labels[:40, :1] == labels[:, 0]).astype(np.int8) - (labels[:, 1] == 12)
    with_ties, with_labels = draw(5)
    judged = np.random.default_rng(0).integers(-1, 3, (60, 60))

    def results():
        yield evaluate(vectors[:300], labels[:300], vectors, labels, exclude=exclude[:300], gallery_exclude=exclude)
        yield evaluate(vectors[:40], gallery=vectors, judgements=levels)
        yield evaluate(with_ties, with_labels, exclude=np.arange(60) // 2, metrics=NAMES)
        yield evaluate(with_ties, with_labels, metrics=["map", "h_ap", "ndcg"], ties="counting")
        yield evaluate(with_ties, judgements=judged, metrics=NAMES)

    whole = list(results())
    for name, size in setting.items():
        monkeypatch.setattr(statistics, name, size)
    if "SORT_ELEMENTS" in setting:  # the way of other devices
        sorting = {name: replace(rule, kernel=None) for name, rule in statistics.TIES.table.items()}
        monkeypatch.setattr(statistics, "TIES", replace(statistics.TIES, table=sorting))
    for found, expected in zip(results(), whole, strict=True):
        assert_same(found, expected.per_query)


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
    assert [process.wait() for process in running] == [0, 0]
    for rank in (0, 1):
        assert_same(evaluate(vectors, labels), dict(np.load(tmp_path / f"result{rank}.npz")))


@pytest.mark.parametrize("judged", [np.eye(4), np.zeros((4, 4))])  # the second is refused
def test_products_are_in_full_precision_and_what_was_allowed_is_so_again(judged):
    seen = []

    def judgements(rows):
        seen.append(torch.get_float32_matmul_precision())
        return judged[rows][:, ::-1]

    before, n_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("medium")
    try:
        with nullcontext() if judged.any() else pytest.raises(InputError, match="4 queries"):
            evaluate(VECTORS, judgements=judgements)
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", n_threads)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["medium", "highest"]  # once to find the levels, once beside the product


def test_a_fine_label_below_two_parents_is_two_classes():
    vectors = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.3]]
    assert [evaluate(vectors, labels)["recall@1"] for labels in ([[7, 0], [7, 1], [7, 0]], [7, 7, 7])] == [0, 1]
    assert evaluate(VECTORS, np.array([[7, 0], [7, 1], [7, 0], [7, 1]])).labels.tolist() == [0, 1, 0, 1]
    assert evaluate(VECTORS, np.array([[7, 0], [8, 0], [7, 0], [8, 0]])).labels.tolist() == [7, 8, 7, 8]


def test_a_finer_level_that_is_worth_less_is_noted():
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    labels = np.array([[0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [2, 1]])
    # Of the first query: three items of level 2, worth 1 / 3 each, and one of level 1, worth 1 / 2.
    result = evaluate(vectors, labels)
    (note,) = result.notes
    assert all(fact in note for fact in ("h_ap", "4 of 6"))
    assert result.as_text().endswith(note)
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


NAN = np.where(np.arange(4)[:, None] == 2, np.nan, VECTORS)
TWO = np.stack([LABELS, LABELS], 1)


def test_what_does_not_fit_is_refused():
    for arguments, options, facts in (
        ((VECTORS, np.arange(4)), {}, ["4 queries", "labels"]),
        ((VECTORS, LABELS, VECTORS[:0], LABELS[:0]), {"exclude": LABELS, "gallery_exclude": LABELS[:0]}, ["4 queries"]),
        ((VECTORS, LABELS, np.eye(4), LABELS), {}, ["dimensions", "3", "4"]),
        ((VECTORS, LABELS[:3]), {}, ["labels", "(3,)"]),
        ((VECTORS, LABELS, VECTORS, TWO), {}, ["labels", "levels", "1 and 2"]),
        ((VECTORS, LABELS.astype(float)), {}, ["labels", "float64"]),
        ((VECTORS, list("aabb"), VECTORS, LABELS), {}, ["gallery_labels", "text", "whole numbers"]),
        ((VECTORS, list("aabb"), VECTORS, [("a", "b")] * 4), {}, ["gallery_labels", "1 and 2"]),
        ((VECTORS, [{1}, {2}, {1}, {2}]), {}, ["labels", "set"]),
        ((VECTORS, [[1], [2, 3], [1], [2]]), {}, ["labels", "table"]),
        (([[1.0, 2.0], [3.0]], [0, 0]), {}, ["vectors", "table"]),
        ((VECTORS.astype(str), LABELS), {}, ["vectors", "<U32"]),
        ((VECTORS[0], LABELS), {}, ["vectors", "(3,)"]),
        ((NAN, LABELS), {}, ["vectors", "1 of 4", "2"]),
        ((VECTORS, LABELS, None, LABELS), {}, ["gallery_labels"]),
        ((VECTORS, LABELS, None, None, [1.5]), {}, ["ks", "1.5"]),
        ((VECTORS, LABELS), {"metrics": ["mpa"]}, ["'mpa'", "'map'"]),
        ((VECTORS, LABELS), {"metrics": ["recall@0"]}, ["'recall@0'"]),
        ((VECTORS, LABELS), {"metrics": []}, ["metrics", "[]"]),
        ((VECTORS, LABELS), {"metrics": "map"}, ["metrics", "'map'"]),
        ((VECTORS, LABELS), {"relevance": "weights"}, ["'weights'", "'weight'"]),
        ((VECTORS, LABELS), {"ties": "best"}, ["'best'"]),
        ((VECTORS, LABELS), {"empty": "none"}, ["'none'"]),
        ((VECTORS, LABELS), {"judgements": np.eye(4)}, ["labels", "judgements"]),
        ((VECTORS, LABELS), {"exclude": np.zeros(4, int)}, ["4 queries"]),
        ((VECTORS, LABELS), {"exclude": TWO}, ["exclude", "2"]),
        ((VECTORS, LABELS), {"ids": list("abc")}, ["ids", "4", "(3,)"]),
        ((VECTORS, LABELS, VECTORS, LABELS), {"ids": list("abcd"), "gallery_ids": list("abc")}, ["gallery_ids", "3"]),
        ((VECTORS, LABELS, VECTORS, LABELS), {"ids": list("abcd"), "gallery_ids": list("abca")}, ["gallery_ids", "1 of 4"]),
        ((VECTORS, np.ones((4, 2), bool), VECTORS, np.ones((4, 3), bool)), {}, ["gallery_labels", "(4, 2)"]),
        ((VECTORS,), {"judgements": np.eye(3)}, ["judgements", "(4, 4)", "(3, 3)"]),
        ((VECTORS,), {"judgements": np.full((4, 4), np.nan)}, ["judgements", "0 to 3"]),
        ((VECTORS,), {"judgements": np.full((4, 4), 200)}, ["judgements", "127"]),
        ((VECTORS,), {"judgements": lambda rows: np.zeros((1, 4))}, ["judgements", "(4, 4)", "(1, 4)"]),
    ):
        assert_refused(facts, evaluate, *arguments, **options)
