"""Items with several codes, measured one query and one code at a time; in blocks, between tables and by command."""

import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from ranking_definitions import binary_metrics, h_ap, ndcg
from refusals import assert_refused
from sightline import CodeRelevance, EmbeddingTable, Refinement, Result, evaluate, evaluate_table
from sightline.evaluation import protocol
from sightline.evaluation.tables import Steps
from small_tables import small_table

N = 40


def draw_sets(seed, n_items):
    """One to four codes of three depths."""
    rng = np.random.default_rng(seed)
    sets = ({".".join(map(str, rng.integers(1, 4, 3))) for _ in range(rng.integers(1, 5))} for _ in range(n_items))
    return [sorted(one) for one in sets]


def draw_vectors(seed, n_items):
    return np.random.default_rng(seed).normal(size=(n_items, 6))


def shared_depth(code, other):
    return next((n for n, pair in enumerate(zip(code.split("."), other.split("."), strict=True)) if len({*pair}) > 1), 3)


def shares(one, other, depth):
    return any(shared_depth(code, others) >= depth for code in one for others in other)


def worth(query, item, alpha):
    """The thesis's relevance, in 120 grades."""
    value = sum((max(shared_depth(code, other) for other in item) / 3) ** alpha for code in query) / len(query)
    return max(round(value * 120), 1) / 120 if value > 0 else 0.0


def by_definition(scores, codes, item_codes, left_out, alpha=1.0):
    """The metrics of one query."""
    order = [item for item in sorted(range(len(scores)), key=lambda item: -scores[item]) if item not in left_out]
    found = {}
    for depth in (3, 2, 1):
        flat = binary_metrics([shares(codes, item_codes[item], depth) for item in order], [1, 2])
        found |= (
            {"map": flat["map"], "recall@1": flat["recall@1"]} if depth == 3 else {f"map_label_{3 - depth}": flat["map"]}
        )
    values = [worth(codes, item_codes[item], alpha) for item in order]
    found |= {"h_ap": h_ap(range(len(order)), values), "ndcg": ndcg(range(len(order)), values)}
    each = {code: binary_metrics([code in item_codes[item] for item in order], [])["map"] for code in codes}
    defined = [ap for ap in each.values() if not math.isnan(ap)]
    return found | {"map_each_code": sum(defined) / len(defined) if defined else math.nan}, each


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_every_metric_is_that_of_the_definition_in_blocks(alpha, monkeypatch):
    monkeypatch.setattr(protocol, "CODE_QUERIES", 7)
    queries, items = draw_sets(0, N), draw_sets(1, N + 9)
    vectors, gallery = draw_vectors(2, N), draw_vectors(3, N + 9)
    ids, gallery_ids = [f"q{n}" for n in range(N)], [f"q{n}" if n < 5 else f"g{n}" for n in range(N + 9)]
    groups, gallery_groups = np.arange(N) % 3, np.arange(N + 9) % 3
    groups[0] = -1
    relevance = CodeRelevance(3, alpha=alpha)
    beside = {"ids": ids, "gallery_ids": gallery_ids, "exclude": groups, "gallery_exclude": gallery_groups}
    unit, of_gallery = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (vectors, gallery))
    among = evaluate(vectors, codes=queries, relevance=relevance)
    across = evaluate(vectors, codes=queries, gallery=gallery, gallery_codes=items, relevance=relevance, **beside)
    for result, theirs, others in ((among, queries, unit), (across, items, of_gallery)):
        of_codes = {}
        for query in range(N):
            of_group = {n for n in range(N + 9) if n % 3 == groups[query] or n == query < 5}
            left_out = {query} if result is among else of_group
            expected, each = by_definition((others @ unit[query]).tolist(), queries[query], theirs, left_out, alpha)
            found = {name: result.per_query[name][query] for name in expected}
            assert found == pytest.approx(expected, nan_ok=True, abs=1e-12)
            for code, ap in each.items():
                of_codes.setdefault(code, []).append(ap)
        assert [one.code for one in result.codes] == sorted(of_codes)
        for code, n_queries, n_items, ap in result.codes:
            assert (n_queries, n_items) == (len(of_codes[code]), sum(code in one for one in theirs))
            defined = [value for value in of_codes[code] if not math.isnan(value)]
            assert ap == pytest.approx(np.mean(defined) if defined else math.nan, nan_ok=True)


def test_a_code_that_stops_above_the_finest_depth_stands_for_itself():
    codes = [["1.2"], ["1.2"], ["1.2.1"], ["1.3.1"]]
    result = evaluate(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1], [0.0, 1.0]]), codes=codes, ks=[1])
    assert (result.per_query["map"][0], result.per_query["map_label_1"][0]) == (0.5, 1.0)
    assert [one[:3] for one in result.codes] == [("1.2", 2, 2), ("1.2.1", 1, 1), ("1.3.1", 1, 1)]


@pytest.fixture
def table():
    return small_table(draw_vectors(5, N), codes=[";".join(codes) for codes in draw_sets(4, N)])


def test_the_command_measures_tables_and_writes_every_code(table, sightline, check_refused, tmp_path):
    file, tree = table.write(tmp_path / "t.parquet"), tmp_path / "tree.csv"
    words = ["evaluate", file, "--codes", "codes", "--json", tmp_path / "r.json", "--code-table", tmp_path / "codes.csv"]
    status, out, err = sightline(*words, "--code-alpha", "2")
    assert (status, err) == (0, "")
    sets = [text.split(";") for text in table.manifest.table["codes"]]
    expected = evaluate(table.vectors, codes=sets, relevance=CodeRelevance(3, alpha=2))
    stored = Result.read_json(tmp_path / "r.json")
    assert stored.means == pytest.approx(expected.means)
    assert str(stored.codes) == str(expected.codes)
    assert json.loads((tmp_path / "r.json").read_text())["metrics"]["h_ap"] == pytest.approx(expected["h_ap"])
    lines = (tmp_path / "codes.csv").read_text().splitlines()
    assert lines[0] == "code,queries,items,ap"
    assert len(lines) == 1 + len(expected.codes)
    most = max(expected.codes, key=lambda one: one.n_queries)
    assert f"\n{most.code} " in out
    assert evaluate_table(table, codes="codes")["h_ap"] > expected["h_ap"]
    tree.write_text("child,parent\n1.1.1,1.1\n1.1,1\n")
    check_refused([*words, "--code-tree", tree], "t.parquet", "is not in", "tree.csv")
    check_refused([*words, "--trec", tmp_path / "trec"], "--trec", "codes")
    check_refused(["evaluate", file, "--code-alpha", "2"], "--codes")
    check_refused(["evaluate", file, "--codes", "tags"], "t.parquet", "'tags'", "'codes'")
    check_refused(["evaluate", file], "no labels")


def test_codes_that_do_not_fit_the_vectors_are_refused():
    vectors = draw_vectors(0, 3)
    for codes, facts in (
        ([["1.1"]], ["codes", "3"]),
        (["1.1", "1.2", "1.3"], ["codes", "lists"]),
        ([["1.1"], ["x"], ["1.1"]], ["'x'"]),
        ([["1.1"], [], ["1.1"]], ["item 2"]),
        ([["1.1"], ["2.1"], ["3.1"]], ["no", "relevant"]),
    ):
        assert_refused(facts, evaluate, vectors, codes=codes)
    assert_refused(["one of labels"], evaluate, vectors, [0, 0, 1], codes=[["1.1"]] * 3)
    assert_refused(["CodeRelevance"], evaluate, vectors, codes=[["1.1"]] * 3, relevance="weight")
    assert_refused(["codes"], evaluate, vectors, [0, 0, 1], relevance=CodeRelevance(2))


def test_one_code_an_image_is_one_label_also_after_re_ranking_and_between_tables(table, monkeypatch):
    monkeypatch.setattr(protocol, "CODE_QUERIES", 7)
    classes = [str(1 + n % 4) for n in range(N)]
    rows = table.manifest.table.with_columns(
        codes=pl.Series(classes), label_0=pl.Series(classes), camera=pl.Series(range(N)) // 3
    )
    whole = EmbeddingTable(replace(table.manifest, table=rows, n_levels=1), table.vectors, "one")
    parts = whole.where(pl.int_range(pl.len()) < 15), whole.where(pl.int_range(pl.len()) >= 10)
    steps = Steps(refinement=Refinement(expand=2, rerank="kreciprocal", depth=12))
    for one, given in ((whole, {"steps": steps, "exclude": "camera"}), (parts[0], {"gallery": parts[1], "steps": steps})):
        of_codes, of_labels = evaluate_table(one, codes="codes", **given), evaluate_table(one, **given)
        for name, same in {"map": "map", "recall@1": "recall@1", "h_ap": "map", "map_each_code": "map"}.items():
            np.testing.assert_allclose(of_codes.per_query[name], of_labels.per_query[same], atol=1e-12)
        assert of_codes.ids == of_labels.ids
