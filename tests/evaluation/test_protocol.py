import math
from contextlib import nullcontext

import numpy as np
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.metrics import average_precision_score
from torch.testing import assert_close

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.errors import InputError
from sightline.evaluation import statistics
from sightline.evaluation.metrics import list_metric, metric_names
from sightline.evaluation.protocol import evaluate
from sightline.evaluation.tables import evaluate_table

KS = (1, 2, 5)
# spec/metrics.md, section 9: unit vectors at these angles, no ties.
M3 = np.stack([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (0, 5, 12, 30, 33, 90)])
M3_LABELS = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])


def draw(seed, n_items=40, n_classes=7, dim=6):
    """Vectors that lean to their class, in classes of unequal size; the last class has a single item."""
    rng = np.random.default_rng(seed)
    shares = np.arange(1, n_classes) / np.arange(1, n_classes).sum()
    labels = np.append(rng.choice(n_classes - 1, n_items - 1, p=shares), n_classes - 1)
    labels[: n_classes - 1] = range(n_classes - 1)
    return rng.normal(size=(n_classes, dim))[labels] + 1.5 * rng.normal(size=(n_items, dim)), labels


def copies(seed, n_items=30, n_distinct=5, dim=24):
    """Vectors of which many are the same one, so that most scores are ties, and labels that know nothing of it."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, n_distinct, n_items)
    return rng.normal(size=(n_distinct, dim)).astype(np.float32), which, rng.integers(0, 3, n_items)


def metrics_by_definition(scores, relevant, own=None):
    """One query's metrics: the items sorted one by one, of equal scores the irrelevant ones first."""
    places = sorted((i for i in range(len(scores)) if i != own), key=lambda i: (-scores[i], relevant[i]))
    ranked = [relevant[i] for i in places]
    n_relevant = sum(ranked)
    if not n_relevant:
        return dict.fromkeys(metric_names(KS), math.nan)
    precisions = [sum(ranked[:place]) / place if ranked[place - 1] else 0 for place in range(1, len(ranked) + 1)]
    recalls = {f"recall@{k}": float(any(ranked[:k])) for k in KS}
    return {**recalls, "map@r": sum(precisions[:n_relevant]) / n_relevant, "map": sum(precisions) / n_relevant}


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a, b):
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def evaluation_by_definition(vectors, labels, gallery=None, gallery_labels=None):
    items, item_labels = (vectors, labels) if gallery is None else (gallery, gallery_labels)
    rows = [
        metrics_by_definition(
            [cosine(vector, item) for item in items],
            [bool(label == other) for other in item_labels],
            own=query if gallery is None else None,
        )
        for query, (vector, label) in enumerate(zip(vectors, labels, strict=True))
    ]
    return {name: np.array([row[name] for row in rows]) for name in metric_names(KS)}


def assert_same(result, expected):
    assert list(result.per_query) == list(expected)
    for name, values in expected.items():
        assert_allclose(result.per_query[name], values, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_every_item_queries_the_others_by_definition(seed):
    vectors, labels = draw(seed)
    result = evaluate(vectors, labels, ks=KS)
    expected = evaluation_by_definition(vectors.tolist(), labels.tolist())
    assert_same(result, expected)
    n_skipped = int((np.bincount(labels)[labels] == 1).sum())
    assert (result.n_queries, result.n_skipped) == (40, n_skipped)
    assert n_skipped >= 1
    assert_close(result["map"], float(np.nanmean(expected["map"])))


@pytest.mark.parametrize("seed", range(3))
def test_queries_against_a_gallery_by_definition(seed):
    vectors, labels = draw(seed)
    sides = vectors[:15], labels[:15], vectors[15:], labels[15:]
    assert_same(evaluate(*sides, ks=KS), evaluation_by_definition(*(side.tolist() for side in sides)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_queries", [1, 3, 30])
def test_of_copies_the_irrelevant_come_first(seed, n_queries):
    # The scores of the oracle come from a table of the distinct vectors, so those of copies are equal for certain.
    distinct, which, labels = copies(seed)
    table = [[cosine(a, b) for b in distinct.tolist()] for a in distinct.tolist()]
    rows = [
        metrics_by_definition([table[which[q]][i] for i in which], (labels == labels[q]).tolist()) for q in range(n_queries)
    ]
    result = evaluate(distinct[which[:n_queries]], labels[:n_queries], distinct[which], labels, ks=KS)
    assert_same(result, {name: [row[name] for row in rows] for name in metric_names(KS)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_galleries_alike_each_place_is_shared(seed, dtype):
    # Each irrelevant item is a copy of a relevant one, and before it: at the n-th relevant item precision is n / 2n.
    rng = np.random.default_rng(seed)
    base, order = rng.normal(size=(1500, 384)).astype(dtype), rng.permutation(3000)
    gallery, labels = np.concatenate([base, base])[order], np.repeat([0, 1], 1500)[order]
    result = evaluate(rng.normal(size=(8, 384)).astype(dtype), [0] * 8, gallery, labels, metrics=["map"])
    assert_close(result.per_query["map"], np.full(8, 0.5), rtol=0, atol=1e-14)


def test_numbers_of_another_byte_order_are_the_same_numbers():
    vectors, labels = draw(0)
    swapped = evaluate(vectors.astype(">f8"), labels.astype(">i4"))
    assert swapped.means == evaluate(vectors, labels).means


def test_the_specifications_vectors_among_themselves():
    result = evaluate(M3, M3_LABELS[:, 0])
    expected = {"recall@1": 0.5, "recall@2": 0.6666667, "map": 0.6722222, "map@r": 0.5}
    assert_close({name: result[name] for name in expected}, expected, rtol=0, atol=1e-6)
    assert_close(evaluate(M3, M3_LABELS[:, 1])["map"], 0.8064815, rtol=0, atol=1e-6)


def test_the_specifications_vectors_against_a_gallery():
    result = evaluate(M3[::2], M3_LABELS[::2, 0], M3[1::2], M3_LABELS[1::2, 0])
    expected = {"recall@1": 0.3333333, "recall@2": 0.6666667, "map": 0.6111111, "map@r": 0.3333333}
    assert_close({name: result[name] for name in expected}, expected, rtol=0, atol=1e-6)
    coarse = evaluate(M3[::2], M3_LABELS[::2, 1], M3[1::2], M3_LABELS[1::2, 1])
    assert_close(coarse["map"], 0.7777778, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("split", [False, True])
def test_equal_to_pytorch_metric_learning(seed, split):
    vectors, labels = draw(seed)
    sides = (vectors[:15], labels[:15], vectors[15:], labels[15:]) if split else (vectors, labels)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision"),
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
        kmeans_func=len,  # never called
    )
    theirs = calculator.get_accuracy(*sides)
    result = evaluate(*sides, metrics=["recall@1", "map", "map@r", "r_precision"])
    assert_close(result["recall@1"], theirs["precision_at_1"])
    assert_close(result["r_precision"], theirs["r_precision"])
    assert_close(result["map"], theirs["mean_average_precision"])
    assert_close(result["map@r"], theirs["mean_average_precision_at_r"])


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_scikit_learns_where_nothing_ties(seed):
    rng = np.random.default_rng(seed)
    scores, relevant = rng.normal(size=(5, 20)), rng.random((5, 20)) < 0.3
    relevant[:, 0] = True
    ranked = statistics.ranked_levels(torch.from_numpy(scores), torch.from_numpy(relevant.astype(np.int8)))
    expected = [average_precision_score(*row) for row in zip(relevant, scores, strict=True)]
    assert_close(list_metric("map", ranked), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_rotating_stretching_and_renaming_change_nothing(seed):
    vectors, labels = draw(seed)
    expected = evaluate(vectors, labels).per_query
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(6, 6))).Q
    assert_same(evaluate(vectors @ rotation, labels), expected)
    assert_same(evaluate(vectors * rng.uniform(0.1, 9, (40, 1)), labels), expected)
    assert_same(evaluate(vectors, 10**12 - labels), expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_items_changes_nothing(seed):
    distinct, which, labels = copies(seed)
    order = np.random.default_rng(seed).permutation(len(which))
    vectors = distinct[which]
    straight, shuffled = evaluate(vectors, labels).per_query, evaluate(vectors[order], labels[order])
    assert_same(shuffled, {name: values[order] for name, values in straight.items()})
    gallery = evaluate(vectors[:8], labels[:8], vectors, labels).per_query
    assert_same(evaluate(vectors[:8], labels[:8], vectors[order], labels[order]), gallery)


def test_a_class_apart_is_retrieved_perfectly():
    result = evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9], [0.05, 0.95]], [5, 5, 2, 2, 2])
    assert set(result.means.values()) == {1.0}
    assert result.n_skipped == 0


@pytest.mark.parametrize(
    "setting", [{"QUERY_ROWS": 3}, {"TILE_ELEMENTS": 10 * 2560, "SLICE_COLUMNS": 512}, {"KEPT_BYTES": 0}]
)
def test_blocks_equal_the_whole(setting, monkeypatch):
    vectors, labels = draw(0, n_items=2500)
    labels = np.stack([labels, labels // 2], 1)
    exclude, levels = np.arange(2500) // 3, (labels[:40, :1] == labels[:, 0]).astype(np.int8) - (labels[:, 1] == 2)
    calls = [
        lambda: evaluate(vectors, labels, exclude=exclude),
        lambda: evaluate(vectors[:40], labels[:40], vectors[15:], labels[15:]),
        lambda: evaluate(vectors[:40], gallery=vectors, judgements=levels),
    ]
    for call in calls:
        monkeypatch.undo()
        whole = call().per_query
        for name, size in setting.items():
            monkeypatch.setattr(statistics, name, size)
        assert_same(call(), whole)


def test_any_kind_of_table_and_labels_is_taken(tmp_path):
    vectors, labels = draw(0)
    expected = evaluate(vectors, labels).per_query
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    frozen = labels.copy()
    frozen.flags.writeable = False
    kinds = [
        (vectors.tolist(), labels.tolist()),
        (torch.from_numpy(vectors), torch.from_numpy(labels)),
        (torch.from_numpy(vectors).requires_grad_(), labels.astype(np.uint8)),
        (mapped, frozen),
        (vectors.astype(np.float32), labels.astype(np.int16)),
        (np.asfortranarray(vectors), labels[:, None]),
    ]
    for kind in kinds:
        assert_same(evaluate(*kind), expected)
    backwards = evaluate(vectors[::-1], labels[::-1])
    assert_same(backwards, {name: values[::-1] for name, values in expected.items()})


def test_the_two_sides_may_differ_in_precision():
    vectors, labels = draw(0)
    expected = evaluate(vectors[:9], labels[:9], vectors, labels).per_query
    assert_same(evaluate(vectors[:9].astype(np.float32), labels[:9], vectors.tolist(), labels), expected)


def test_scores_are_taken_in_full_precision_inside_autocast():
    # 40 directions a degree apart: bfloat16 cannot tell their cosines from one another.
    angles, labels = torch.arange(40).deg2rad(), torch.arange(40) // 2
    vectors = torch.stack([angles.cos(), angles.sin()], 1)
    expected = evaluate(vectors, labels)
    assert expected["recall@1"] > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(evaluate(vectors, labels), expected.per_query)


@pytest.mark.parametrize("judged", [np.eye(4), np.zeros((4, 4))])  # the second is refused
def test_products_are_in_full_precision_and_what_was_allowed_is_so_again(judged):
    seen = []

    def judgements(rows):
        seen.append(torch.get_float32_matmul_precision())
        return judged[rows][:, ::-1]

    before, n_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("medium")
    try:
        with nullcontext() if judged.any() else pytest.raises(InputError, match="none of the 4 queries"):
            evaluate(VECTORS, judgements=judgements)
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", n_threads)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["medium", "highest"]  # once to find the levels, once beside the product


def test_a_fine_label_below_two_parents_is_two_classes():
    vectors = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.3]]
    assert evaluate(vectors, [[7, 0], [7, 1], [7, 0]])["recall@1"] == 0
    assert evaluate(vectors, [7, 7, 7])["recall@1"] == 1


def test_a_place_asked_for_twice_is_given_once():
    vectors, labels = draw(0)
    result = evaluate(vectors, labels, ks=[5, 1, 5])
    assert list(result.per_query) == ["recall@5", "recall@1", "map@r", "map"]
    assert {len(values) for values in result.per_query.values()} == {40}


VECTORS, LABELS = np.eye(4, 3), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VECTORS, np.arange(4)), "none of the 4 queries has a relevant item: no two labels agree$"),
        ((VECTORS, LABELS, VECTORS, LABELS + 9), "none of the 4 queries has a relevant item"),
        ((VECTORS[:0], LABELS[:0]), "none of the 0 queries"),
        ((VECTORS, LABELS, VECTORS[:0], LABELS[:0]), "none of the 4 queries"),
        ((VECTORS, LABELS, np.eye(4), LABELS), "vectors have 3 dimensions, the gallery 4"),
        ((VECTORS, LABELS[:3]), r"labels.*\(4,\) or \(4, L\).*\(3,\)"),
        ((VECTORS, LABELS, VECTORS, LABELS[:2]), r"gallery_labels.*\(4,\) or \(4, L\).*\(2,\)"),
        ((VECTORS, LABELS, VECTORS, np.stack([LABELS, LABELS], 1)), "labels of 1 and 2 levels cannot be compared"),
        ((VECTORS, LABELS.astype(float)), r"labels.*torch\.float64"),
        ((VECTORS, ["a", "a", "b", "b"]), "labels: not a table of numbers: <U1"),
        (([[1.0, 2.0], [3.0]], [0, 0]), "vectors: not a table of numbers"),
        ((VECTORS.astype(int), LABELS), "vectors: .* floating point table is needed, found int64"),
        ((VECTORS[0], LABELS), r"vectors: .* is needed, found float64 \(3,\)"),
        ((VECTORS, LABELS, VECTORS), "gallery_labels"),
        ((VECTORS, LABELS, None, LABELS), "gallery_labels"),
        ((VECTORS, LABELS, None, None, []), r"ks are \[\]; places from 1 on are needed"),
        ((VECTORS, LABELS, None, None, [1, 0]), r"ks are \[1, 0\]; places from 1 on are needed"),
        ((VECTORS, LABELS, None, None, 5), "ks are 5; places from 1 on are needed"),
        ((VECTORS, LABELS, None, None, [1.5]), r"ks are \[1.5\]; places from 1 on are needed"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(*arguments)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_no_numbers_are_named(value):
    spoilt = VECTORS.copy()
    spoilt[1, 0] = spoilt[3, 2] = value
    with pytest.raises(InputError, match=r"vectors: 2 of 4 rows hold NaN or infinity: 1, 3$"):
        evaluate(spoilt, LABELS)
    with pytest.raises(InputError, match=r"gallery: 2 of 4 rows hold NaN or infinity: 1, 3$"):
        evaluate(VECTORS, LABELS, spoilt, LABELS)


def table_of(vectors, labels, **columns):
    names = [str(place) for place in range(len(vectors))]
    rows = {"id": names, "path": names, "split": ["test"] * len(names)}
    for level, column in enumerate(labels):
        rows[f"label_{level}"] = [str(label) for label in column]
    manifest = Manifest("set.parquet", "images", pl.DataFrame({**rows, **columns}), len(labels))
    return EmbeddingTable(manifest, np.asarray(vectors, np.float32), "fingerprint")


def test_a_table_without_roles_has_every_image_query_the_others():
    vectors, labels = draw(0)
    vectors = vectors.astype(np.float32)
    assert_same(evaluate_table(table_of(vectors, [labels]), ks=KS), evaluate(vectors, labels, ks=KS).per_query)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("roles", [("is_query",), ("is_gallery",), ("is_query", "is_gallery")])
def test_queries_rank_the_gallery_and_never_themselves(seed, roles):
    vectors, labels = draw(seed)
    vectors = vectors.astype(np.float32)
    rng = np.random.default_rng(seed)
    flags = {role: (rng.random(len(vectors)) < 0.6).tolist() for role in roles}
    queries, gallery = (
        [i for i, wanted in enumerate(flags.get(role, [True] * len(vectors))) if wanted]
        for role in ("is_query", "is_gallery")
    )
    assert not flags.keys() >= {"is_query", "is_gallery"} or 0 < len(set(queries) & set(gallery)) < len(queries)
    rows = [
        metrics_by_definition(
            [cosine(vectors[query].tolist(), vectors[item].tolist()) for item in gallery],
            [bool(labels[query] == labels[item]) for item in gallery],
            own=gallery.index(query) if query in gallery else None,
        )
        for query in queries
    ]
    result = evaluate_table(table_of(vectors, [labels], **flags), ks=KS)
    assert_same(result, {name: [row[name] for row in rows] for name in metric_names(KS)})


def test_an_image_without_a_role_is_query_and_gallery():
    vectors, labels = draw(0)
    empty = pl.Series([None] * len(vectors), dtype=pl.Boolean)
    result = evaluate_table(table_of(vectors, [labels], is_query=empty, is_gallery=empty))
    assert_same(result, evaluate(vectors.astype(np.float32), labels).per_query)


def test_where_others_have_a_role_an_image_without_one_is_left_out():
    vectors, labels = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]], ["abab"]
    roles = {"is_query": [True, None, None, True], "is_gallery": [False, True, True, None]}
    result = evaluate_table(table_of(vectors, labels, **roles))
    assert (result.n_queries, result["recall@1"]) == (2, 0.0)
    assert result.per_query["recall@2"].tolist() == [1.0, 1.0]


def test_a_table_may_hold_a_view_that_cannot_be_written():
    vectors, labels = draw(0)
    view = vectors.astype(np.float32)[::-1]
    view.flags.writeable = False
    table = table_of(vectors, [labels[::-1]])
    table = EmbeddingTable(table.manifest, view, "fingerprint")
    assert_same(evaluate_table(table), evaluate(view.copy(), labels[::-1].copy()).per_query)


def test_a_tables_coarser_levels_part_classes_of_one_name():
    table = table_of([[1.0, 0.0], [1.0, 0.1], [1.0, 0.3]], ["aaa", "xyx"])
    assert evaluate_table(table)["recall@1"] == 0


def test_a_table_that_cannot_be_evaluated_is_refused():
    with pytest.raises(InputError, match=r"set\.parquet: its images have no labels"):
        evaluate_table(table_of(VECTORS, []))
    with pytest.raises(InputError, match=r"set\.parquet: 1 of 4 rows hold NaN or infinity: 2$"):
        evaluate_table(table_of(np.where(np.arange(4)[:, None] == 2, np.nan, VECTORS), [LABELS]))
    with pytest.raises(InputError, match="none of the 0 queries"):
        evaluate_table(table_of(VECTORS, [LABELS], is_query=[False] * 4))
    with pytest.raises(InputError, match=r"ks are \[0\]; places from 1 on"):
        evaluate_table(table_of(VECTORS, [LABELS]), ks=[0])
