"""Embedding tables: their roles, and rankings after whitening, augmentation, expansion and re-ranking, step by step."""

import numpy as np
import polars as pl
import pytest
import torch

from ranking_definitions import binary_metrics
from refusals import assert_refused
from sightline import Whitening, evaluate
from sightline.evaluation import statistics
from sightline.evaluation import tables as refined_module
from sightline.evaluation.tables import Steps, evaluate_table
from sightline.ranking.refine import Refinement, augment_gallery, expand_queries, kreciprocal_scores
from sightline.ranking.similarity import unit
from small_tables import small_table

METRICS = ("recall@1", "recall@4", "map@r", "map", "precision@4")
N = 40


def table_of(seed, **columns):
    rng = np.random.default_rng(seed)
    labels = np.arange(N) % 8
    vectors = rng.normal(size=(8, 6))[labels] + 1.3 * rng.normal(size=(N, 6))
    order = rng.permutation(N)
    return small_table(vectors[order], labels[order], **{"id": [f"image {n}" for n in range(N)]} | columns)


def ranked_in_turn(queries, gallery, own, steps):
    """The places of each query's list, best first, one step after the other; each step is tested in tests/ranking."""
    queries, gallery, own = torch.from_numpy(queries).double(), torch.from_numpy(gallery).double(), torch.tensor(own)
    refinement = steps.refinement
    if steps.whitening is not None:
        weight, bias = (getattr(steps.whitening, name).double() for name in ("weight", "bias"))
        queries, gallery = (unit(vectors) @ weight.T + bias for vectors in (queries, gallery))
    if steps.augment:
        gallery = augment_gallery(gallery, steps.augment, refinement.alpha)
    if refinement.expand:
        queries = expand_queries(queries, gallery, refinement.expand, refinement.alpha, own)
    lists = []
    for query, scores, itself in zip(queries, unit(queries) @ unit(gallery).T, own.tolist(), strict=True):
        order = [n for n in (-scores).argsort(stable=True).tolist() if n != itself]
        if refinement.rerank is not None:
            first, ks = order[: refinement.depth], {20: (20, 6), 10: (10, 3)}[refinement.reciprocal]
            again = kreciprocal_scores(query[None], gallery[first][None], *ks)[0]
            order[: refinement.depth] = [first[n] for n in (-again).argsort(stable=True)]
        lists.append(order)
    return lists


STEPS = {
    "none": Steps(),
    "augment": Steps(augment=3),
    "expand": Steps(refinement=Refinement(expand=4)),
    "average": Steps(refinement=Refinement(expand=4, alpha=0.0)),
    "rerank": Steps(refinement=Refinement(rerank="kreciprocal", depth=10)),
    "rerank all": Steps(refinement=Refinement(rerank="kreciprocal", depth=500)),
    "all": Steps(augment=3, refinement=Refinement(5, 3.0, "kreciprocal", 20, 10)),
}


WHOLE, WHITENED = [(name, False, "everyone") for name in STEPS], ("parts", "overlapping", "other table")


@pytest.mark.parametrize(("name", "whitened", "roles"), [*WHOLE, *(("all", True, roles) for roles in WHITENED)])
def test_metrics_are_those_of_the_lists_step_by_step(name, whitened, roles, monkeypatch):
    monkeypatch.setattr(statistics, "SORT_ELEMENTS", 7 * N)  # several blocks
    monkeypatch.setattr(refined_module, "CANDIDATE_ELEMENTS", 200)
    part = {"parts": 25, "overlapping": 15}.get(roles, 0)
    is_query, is_gallery = np.arange(N) < (25 if part else N), np.arange(N) >= part
    table = table_of(0, **({"is_query": is_query, "is_gallery": is_gallery} if part else {}))
    shares_ten = roles == "other table"  # images
    other = table_of(1, id=[f"image {n + 30}" for n in range(N)]) if shares_ten else None
    whitening = Whitening.fit(torch.from_numpy(table_of(2).vectors), dim=5) if whitened else None
    steps = Steps(whitening, STEPS[name].augment, STEPS[name].refinement)
    result = evaluate_table(table, (1, 4), other, METRICS, steps)

    items = other or table
    gallery_ids = list(np.array(items.ids)[is_gallery])
    own = [gallery_ids.index(one) if one in gallery_ids else -1 for one in np.array(table.ids)[is_query]]
    lists = ranked_in_turn(table.vectors[is_query], items.vectors[is_gallery], own, steps)
    labels = table.manifest.table["label_0"].to_numpy()[is_query]
    item_labels = items.manifest.table["label_0"].to_numpy()[is_gallery]
    expected = [binary_metrics(item_labels[row] == label, (1, 4)) for row, label in zip(lists, labels, strict=True)]
    for metric in METRICS:
        np.testing.assert_allclose(result.per_query[metric], [one[metric] for one in expected], atol=1e-9, err_msg=metric)


def test_steps_one_by_one():
    whitening = Whitening.fit(torch.from_numpy(table_of(2).vectors))
    steps = Steps(whitening, 3, Refinement(5, 3.0, "kreciprocal", 20, 10))
    plain, expanded = Refinement(alpha=3.0, depth=20, reciprocal=10), Refinement(5, 3.0, None, 20, 10)
    assert steps.one_by_one() == {
        "no step": Steps(refinement=plain),
        "+ whitening": Steps(whitening, refinement=plain),
        "+ augmentation by 3": Steps(whitening, 3, plain),
        "+ expansion by 5": Steps(whitening, 3, expanded),
        "+ re-ranking kreciprocal": steps,
    }
    assert list(Steps(refinement=Refinement(rerank="kreciprocal")).one_by_one()) == ["no step", "+ re-ranking kreciprocal"]


def assert_same(result, expected):
    for name, values in expected.per_query.items():
        np.testing.assert_allclose(result.per_query[name], values, err_msg=name)


def test_every_image_without_a_role_is_query_and_gallery_and_a_column_excludes(tmp_path):
    rng = np.random.default_rng(0)
    vectors, labels, cameras = rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 4, np.arange(20) % 3
    empty, view = pl.Series([None] * 20, dtype=pl.Boolean), vectors[::-1][::-1]
    view.flags.writeable = False
    table = small_table(view, labels, is_query=empty, is_gallery=empty, camera=[f"c{one}" for one in cameras])
    result = evaluate_table(table)
    assert_same(result, evaluate(vectors, labels))
    assert (result.ids, result.fingerprint) == (table.ids, "one")
    assert_same(evaluate_table(table.write(tmp_path / "table.parquet")), result)
    assert_same(evaluate_table(table, exclude="camera"), evaluate(vectors, labels, exclude=cameras))
    other = small_table(vectors, labels, camera=["c0"] * 20)
    given = {"exclude": cameras, "gallery_exclude": np.zeros(20, int), "ids": table.ids, "gallery_ids": table.ids}
    found = evaluate_table(table, gallery=other, exclude="camera")
    assert_same(found, evaluate(vectors, labels, vectors, labels, **given))


def test_where_others_have_a_role_an_image_without_one_is_left_out():
    vectors = [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]
    roles = {"is_query": [True, None, None, True], "is_gallery": [False, True, True, None]}
    result = evaluate_table(small_table(vectors, "abab", **roles))
    assert (result.n_queries, result["recall@1"]) == (2, 0.0)
    assert result.per_query["recall@2"].tolist() == [1.0, 1.0]
    assert evaluate_table(small_table([[1.0, 0.0], [1.0, 0.1], [1.0, 0.3]], "aaa", "xyx"))["recall@1"] == 0


VECTORS, LABELS = np.eye(4, 3), [0, 0, 1, 1]
NAN, TABLE = VECTORS * [[1], [1], [np.nan], [1]], small_table(VECTORS, LABELS)


def test_what_does_not_fit_is_refused():
    assert_refused(["augment", "-1"], Steps, augment=-1)
    whitening, two_levels = Whitening.fit(np.eye(5, 4)), small_table(VECTORS, LABELS, LABELS)
    for table, options, *facts in (
        (small_table(VECTORS), {}, "set.parquet", "labels"),
        (small_table(NAN, LABELS), {}, "set.parquet", "1 of 4", "2"),
        (small_table(VECTORS, LABELS, is_query=[False] * 4), {}, "0 queries"),
        (small_table(VECTORS, LABELS, test_level=["fine"] * 4), {}, "test_level", "evaluate_dyml"),
        (TABLE, {"ks": [0]}, "ks", "[0]"),
        (TABLE, {"exclude": "camera"}, "set.parquet", "'camera'", "'label_0'"),
        (TABLE, {"gallery": small_table(VECTORS, LABELS, fingerprint="another")}, "encoders", "one", "another"),
        (TABLE, {"gallery": two_levels}, "levels", "1", "2"),
        (TABLE, {"steps": Steps(whitening)}, "whitening", "4", "3"),
        (VECTORS, {}, "table", "ndarray", "sl.evaluate"),
        ("nowhere.parquet", {}, "nowhere.parquet"),
    ):
        assert_refused(facts, evaluate_table, table, **options)
