"""A result as a mapping, text, files and HTML; its intervals and p-values; two results compared."""

import json
from collections.abc import Mapping
from itertools import product

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from refusals import assert_refused
from sightline.evaluation import result as results
from sightline.evaluation.result import Result, bootstrap_interval, bootstrap_means, compare, holm, permutation_p, t_test_p


@pytest.fixture
def full():
    return Result(
        {"map": [1.0, 0.25, np.nan, 0.1 + 0.2], "severity@1": np.array([np.nan, 1.0, 2.0, 1.0])},
        ids=["a", "b", "c, d", "<e>"],
        labels=[7, 7, 8, 8],
        fingerprint="f00d",
        notes=("a <word> of caution",),
    )


def test_a_result_is_a_mapping_from_metrics_to_means_over_defined_queries(full):
    assert isinstance(full, Mapping)
    assert dict(full) == full.means == {"map": pytest.approx(1.55 / 3), "severity@1": pytest.approx(4 / 3)}
    assert (list(full), len(full), "map" in full, full.get("recall@1", 0.5)) == (["map", "severity@1"], 2, True, 0.5)
    assert (type(full["map"]), full.n_queries, full.n_skipped) == (float, 4, 1)
    with pytest.raises(KeyError, match=r"'mpa'.*'map'"):
        full["mpa"]
    assert np.isnan(Result({"severity@1": [np.nan]})["severity@1"])


def test_it_shows_itself_as_a_table_whatever_its_size(full):
    wanted = ["map          51.7", "severity@1   1.33"]
    wanted += ["4 queries, 1 without a relevant item left out; severity@1 of 3", "a <word> of caution"]
    assert repr(full).splitlines() == full.as_text().splitlines() == wanted
    assert len(repr(Result({"map": np.linspace(0, 1, 10_000)}))) < 60
    html = full._repr_html_()
    assert "<td>map</td><td>51.7</td><td>average precision</td>" in html
    assert "a &lt;word&gt; of caution" in html
    assert full.as_markdown() == (
        "| map | severity@1 |\n| ---: | ---: |\n| 51.7 | 1.33 |\n\n"
        "4 queries, 1 without a relevant item left out; severity@1 of 3\n\na <word> of caution\n"
    )
    alone = Result({"severity@1": [np.nan, 1.0, np.nan, 2.0]})  # undefined where nothing is wrong
    assert alone.as_text() == "severity@1   1.50\n4 queries; severity@1 of 2"


def test_json_keeps_every_value_and_writes_nan_as_null(full, tmp_path):
    file = full.write_json(str(tmp_path / "new" / "result.json"))
    again = Result.read_json(str(file))
    for name, values in full.per_query.items():
        assert_array_equal(again.per_query[name], values)
        assert again.per_query[name].dtype == np.float64
    assert (again.ids, again.labels.tolist(), again.fingerprint) == (full.ids, [7, 7, 8, 8], "f00d")
    assert (again.notes, again.labels.dtype) == (full.notes, np.int64)
    stored = json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert stored["metrics"] == full.means
    assert (stored["n_queries"], stored["n_skipped"], stored["per_query"]["map"][2]) == (4, 1, None)
    plain = Result({"map": [1.0]}).write_json(tmp_path / "plain.json")
    assert json.loads(plain.read_text()).keys() == {"metrics", "n_queries", "n_skipped", "per_query"}
    assert Result.read_json(plain).ids is None


NO_RESULTS = [
    *(b"no JSON", b"{}", b"[" * 100_000, b"\xff\xfe\x00", b'{"per_query": []}', b'{"per_query": {"map": 1}}'),
    *(b'{"per_query": {"map": [1, "a"]}}', b'{"per_query": {"map": [' + b"9" * 400 + b"]}}"),
    b'{"per_query": {"map": [1], "map@r": [1, 0]}}',
    b'{"per_query": {"map": [1]}, "ids": ["a", "b"]}',
    b'{"per_query": {"map": [1]}, "labels": [[1, 2], 3]}',
    b'{"per_query": {"map": [1]}, "notes": 7}',
]


def test_what_is_no_result_is_refused(tmp_path):
    file = tmp_path / "other.json"
    assert_refused(["other.json", "sightline evaluate"], Result.read_json, file)
    for content in NO_RESULTS:
        file.write_bytes(content)
        assert_refused(["other.json", "sightline evaluate"], Result.read_json, file)
    two = {"per_query": {"map": [1.0, 0.5]}}
    for given, *facts in (
        ({"per_query": {}}, "per_query"),
        ({"per_query": [1.0]}, "per_query", "list"),
        ({"per_query": {"map": np.zeros(2), "map@r": np.zeros(3)}}, "'map': (2,)", "'map@r': (3,)"),
        (two | {"ids": ["a"]}, "ids", "2", "(1,)"),
        (two | {"labels": np.zeros((2, 1), int)}, "labels", "2", "(2, 1)"),
    ):
        assert_refused(facts, Result, **given)


def test_csv_of_the_means_and_of_every_query(full, tmp_path):
    assert Result({"map": np.array([1.0, 0.5])}).as_csv() == "metric,mean\nmap,0.75\n"
    low, high = full.interval("map", 0.9)
    assert full.as_csv(level=0.9).splitlines()[:2] == ["metric,mean,low,high", f"map,{full['map']},{low},{high}"]
    assert full.write_csv(tmp_path / "q.csv").read_text().splitlines()[:4] == [
        "id,label,map,severity@1", "a,7,1.0,", "b,7,0.25,1.0", '"c, d",8,,2.0',
    ]  # fmt: skip
    ids = ['=HYPERLINK("http://a.example")', "+1", "-1", "@SUM(1)", "\tx", "plain", "a=b"]
    result = Result({"map": -np.arange(7.0)}, ids=ids)
    exact = pl.read_csv(result.write_csv(tmp_path / "a.csv"))
    assert exact["id"].to_list() == ids
    safe = pl.read_csv(result.write_csv(tmp_path / "b.csv", spreadsheet_safe=True))
    assert safe["id"].to_list() == [*(f"'{name}" for name in ids[:5]), *ids[5:]]
    assert safe["map"].to_list() == exact["map"].to_list()


def test_intervals_where_asked_and_over_classes_wider_where_they_are_alike():
    result = Result({"map": np.linspace(0, 1, 101), "severity@1": np.linspace(0, 2, 101)}, labels=np.arange(101) // 2)
    assert result.as_text(level=0.95) == (
        "map          50.0 [44.4, 55.6]\nseverity@1   1.00 [0.89, 1.11]\n"
        "101 queries; severity@1 of 101; 95 % intervals over queries"
    )
    assert "| 50.0 [44.4, 55.6] | 1.00 [0.89, 1.11] |" in result.as_markdown(level=0.95)
    values = {"map": np.random.default_rng(0).random(30)[np.arange(300) // 10]}
    result = Result(values, labels=np.arange(300) // 10)
    narrow, wide = result.interval("map"), result.interval("map", by="classes")
    assert narrow.low < result["map"] < narrow.high
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(10**0.5, rel=0.15)
    assert_refused("class", Result(values).interval, "map", by="classes")
    assert_refused(r"'class'.*'classes'", result.interval, "map", by="class")
    assert_refused(r"'mpa'.*'map'", result.interval, "mpa")


class TestCompare:
    @pytest.fixture
    def pair(self):
        rng = np.random.default_rng(0)
        base = rng.random(300) / 2
        a = {"map": base, "recall@1": rng.random(300) < 0.5, "only_a": base}
        b = {"map": base + rng.normal(0.1, 0.1, 300), "recall@1": rng.random(300) < 0.5, "only_b": base}
        return Result(a), Result(b)

    def test_finds_a_difference_beyond_chance(self, pair):
        compared = compare(*pair)
        assert [compared.is_real(name) for name in compared.differences] == [True, False]
        found = compared.differences["map"]
        assert (found.a, found.b, found.n_queries) == (pair[0]["map"], pair[1]["map"], 300)
        assert found.interval.low < found.b - found.a < found.interval.high
        assert found.p == pytest.approx(2 / 10000)  # twice the smallest: Holm over two metrics
        assert found.p_t < 1e-20
        forth, back = compared.differences["recall@1"], compare(*pair[::-1]).differences["recall@1"]
        assert (forth.a, forth.b, forth.p, forth.p_t) == (back.b, back.a, back.p, back.p_t)
        assert forth.interval == pytest.approx((-back.interval.high, -back.interval.low))

    def test_a_query_counts_where_both_define_the_metric_and_one_class_is_no_evidence(self, pair):
        a, b = Result({"severity@1": [1.0, np.nan, 2.0, 1.0]}), Result({"severity@1": [1.0, 1.0, np.nan, 2.0]})
        found = compare(a, b).differences["severity@1"]
        assert (found.a, found.b, found.n_queries) == (1.0, 1.5, 2)
        assert compare(a, Result({"severity@1": np.full(4, np.nan)})).differences["severity@1"].n_queries == 0
        compared = compare(Result(pair[0].per_query, labels=np.zeros(300, int)), pair[1], by="classes")
        found = compared.differences["map"]
        assert (found.p, compared.is_real("map"), np.isnan(found.p_t)) == (1, False, True)

    def test_the_table_names_both_and_how_queries_are_paired(self):
        base, known = np.linspace(0, 0.5, 101), {"labels": np.arange(101) // 2, "ids": list(map(str, range(101)))}
        a, b = Result({"map": base, "severity@1": base}, **known), Result({"map": base + 0.25, "severity@1": base}, **known)
        compared = compare(a, b, by="classes", titles=("old", "new"))
        *table, how = repr(compared).splitlines()[:4]
        assert table == [
            "metric       old   new  new - old   95 % interval       p  t test",
            "map         25.0  50.0      +25.0  [+25.0, +25.0]  0.0002  0.0000  new is higher",
            "severity@1  0.25  0.25      +0.00  [+0.00, +0.00]  1.0000  1.0000  may be chance",
        ]
        assert all(fact in how for fact in ("101 queries", "paired by id", "classes", "2 metrics", "Holm"))
        assert "<th>new - old</th>" in compared._repr_html_()
        assert "a is higher" in repr(compare(b, a))
        assert "paired by position" in repr(compare(Result(a.per_query), b))

    def test_other_queries_are_refused(self, pair):
        two = {"per_query": {"map": [1.0, 0.5]}}
        for a, b, *facts in (
            ({}, {"per_query": {"map": [1.0]}}, "2 and 1"),
            ({"ids": ["a", "b"]}, {"ids": ["a", "c"]}, "1 of 2 ids", "'b'", "'c'"),
            ({"labels": [0, 1]}, {"labels": [1, 0]}, "2 of 2 classes", "'0'", "'1'"),
            ({}, {"per_query": {"map@r": [1.0, 0.5]}}, "'map'", "'map@r'"),
        ):
            assert_refused(facts, compare, Result(**two | a), Result(**two | b))
        assert_refused(r"str.*read_json", compare, pair[0], "b.json")


def draw(seed, n=40):  # skewed and bounded, as average precision is
    return np.random.default_rng(seed).beta(2, 0.7, n)


def p_by_enumeration(differences):  # every arrangement of the signs, one at a time
    arrangements = product([1, -1], repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in arrangements]
    return sum(value >= abs(sum(differences)) - 1e-9 for value in sums) / len(sums)


def holm_by_definition(p):  # reject the smallest while it is below alpha / those left: the least alpha that rejects each
    raised = {}
    for step, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        raised[place] = max([min(1, (len(p) - step) * p[place]), *raised.values()])
    return [raised[i] for i in range(len(p))]


class TestBootstrap:
    @pytest.mark.parametrize(("seed", "level"), [(0, 0.8), (1, 0.95)])
    def test_interval_over_queries_is_that_of_scipy(self, seed, level):
        values = draw(seed)
        options = {"confidence_level": level, "n_resamples": 20000, "method": "percentile", "rng": 1}
        expected = stats.bootstrap((values,), np.mean, **options).confidence_interval
        found = bootstrap_interval(values[:, None], level=level, n_resamples=20000)[:, 0]
        assert_allclose(found, expected, atol=0.03 * (expected[1] - expected[0]))

    def test_of_queries_alike_in_a_class_only_intervals_over_classes_hold_the_truth(self):
        held = {"queries": 0, "classes": 0}
        groups = np.repeat(np.arange(40), 10)
        for seed in range(200):
            values = draw(seed)[groups][:, None]
            for unit, given in (("queries", None), ("classes", groups)):
                low, high = bootstrap_interval(values, given, n_resamples=500)[:, 0]
                held[unit] += low <= 2 / 2.7 <= high
        assert held["queries"] < 0.6 * 200
        assert 0.88 * 200 < held["classes"] < 0.99 * 200

    def test_the_seed_decides_and_neither_blocks_nor_queries_without_a_value(self, monkeypatch):
        values, groups = draw(0)[:, None], np.arange(47) // 5
        whole, with_missing = bootstrap_means(values), np.concatenate([values, np.full((7, 1), np.nan)])
        assert_array_equal(bootstrap_means(values), whole)
        assert (bootstrap_means(values, seed=1) != whole).any()
        assert_array_equal(bootstrap_means(with_missing), whole)
        assert_array_equal(bootstrap_means(with_missing, groups), bootstrap_means(values, groups[:40]))
        monkeypatch.setattr(results, "BLOCK_ELEMENTS", 130)
        assert_allclose(bootstrap_means(values), whole, rtol=1e-14)

    def test_edges(self):
        assert np.isnan(bootstrap_interval(np.full((3, 1), np.nan))).all()
        assert_array_equal(bootstrap_interval([[0.25]])[:, 0], [0.25, 0.25])
        values, numbers = draw(0)[:, None], np.arange(40) % 7
        assert_array_equal(bootstrap_means(values, [f"class{n}" for n in numbers]), bootstrap_means(values, numbers))
        assert_refused(r"level.*95", bootstrap_interval, [[1.0]], level=95)
        assert_refused(r"n_resamples.*0", bootstrap_means, [[1.0]], n_resamples=0)
        assert_refused(r"groups.*2.*\(3,\)", bootstrap_means, [[1.0], [0.0]], [1, 2, 3])
        assert_refused(r"values.*\(2,\)", bootstrap_means, [1.0, 0.0])


class TestPermutation:
    def test_few_queries_give_the_exact_share_of_arrangements(self):
        for seed in range(3):
            differences = np.random.default_rng(seed).normal(0.3, 1, 8).round(1)  # rounded: arrangements tie
            assert_allclose(permutation_p(differences[:, None]), p_by_enumeration(differences.tolist()))

    def test_worked_cases(self):
        groups = np.array([0, 0, 1, 2, 2, 2, 3])
        differences = np.array([0.1, 0.3, 0.2, -0.1, 0.2, 0.1, 0.5])
        assert p_by_enumeration([0.4, 0.2, 0.2, 0.5]) == 2 / 16
        assert_allclose(permutation_p(differences[:, None], groups), 2 / 16)
        assert_allclose(permutation_p(np.full((200, 1), 0.1)), 1 / 10000)
        p = permutation_p([[0.0, np.nan, 0.1], [0.0, np.nan, 0.0], [0.0, np.nan, 0.1]])
        assert_array_equal(p, [1, 1, 0.5])
        p = permutation_p(np.random.default_rng(0).normal(size=(50, 400)), n_flips=999)
        assert 0.06 < (p < 0.1).mean() < 0.14

    @pytest.mark.parametrize("n", [6, 30])  # all arrangements, and drawn ones
    def test_blocks_change_nothing(self, n, monkeypatch):
        differences = np.random.default_rng(0).normal(0.2, 1, (n, 2))
        whole = permutation_p(differences)
        monkeypatch.setattr(results, "BLOCK_ELEMENTS", 10 * n)
        assert_array_equal(permutation_p(differences), whole)


def test_the_t_test_is_that_of_scipy():
    first, second = draw(0), draw(50)
    difference, groups = second - first, np.arange(40) % 9
    expected = stats.ttest_rel(second, first).pvalue
    assert_allclose(t_test_p(np.append(difference, np.nan)[:, None]), expected)
    expected = stats.ttest_1samp(np.bincount(groups, difference), 0).pvalue
    assert_allclose(t_test_p(difference[:, None], groups), expected)
    p = t_test_p([[0.0, 0.5, 0.1, np.nan], [0.0, 0.5, np.nan, np.nan]])
    assert_array_equal(p, [1, 0, np.nan, np.nan])


def test_holms_correction_is_the_step_down_procedure():
    for seed in range(2):
        p = np.random.default_rng(seed).random(6) ** 3
        assert_allclose(holm(p), holm_by_definition(p.tolist()))
    assert_array_equal(holm([0.02, np.nan, 0.5]), [0.04, np.nan, 0.5])
