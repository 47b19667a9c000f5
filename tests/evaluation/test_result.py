"""A result as a mapping, text, files and HTML, with intervals; two results compared."""

import json
from collections.abc import Mapping

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from sightline.errors import InputError
from sightline.evaluation.result import Result, compare


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
    assert type(full["map"]) is float
    assert (full.n_queries, full.n_skipped) == (4, 1)
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


@pytest.mark.parametrize(
    "text",
    [
        b"no JSON",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe\x00",
        b'{"per_query": []}',
        b'{"per_query": {"map": 1}}',
        b'{"per_query": {"map": [1, "a"]}}',
        b'{"per_query": {"map": [1], "map@r": [1, 0]}}',
        b'{"per_query": {"map": [1]}, "ids": ["a", "b"]}',
        b'{"per_query": {"map": [1]}, "labels": [[1, 2], 3]}',
        b'{"per_query": {"map": [1]}, "notes": 7}',
        b'{"per_query": {"map": [' + b"9" * 400 + b"]}}",
        None,
    ],
)
def test_a_file_that_is_no_result_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "other.json").write_bytes(text)
    with pytest.raises(InputError, match=r"other\.json: not a result of sightline evaluate: ."):
        Result.read_json(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"per_query": {}}, ["per_query"]),
        ({"per_query": [1.0]}, ["per_query", "list"]),
        ({"per_query": {"map": np.zeros(2), "map@r": np.zeros(3)}}, ["'map': (2,)", "'map@r': (3,)"]),
        ({"per_query": {"map": [1.0, 0.5]}, "ids": ["a"]}, ["ids", "2", "(1,)"]),
        ({"per_query": {"map": [1.0, 0.5]}, "labels": np.zeros((2, 1), int)}, ["labels", "2", "(2, 1)"]),
    ],
)
def test_parts_that_do_not_fit_are_refused(given, facts):
    with pytest.raises(InputError) as refused:
        Result(**given)
    assert all(fact in str(refused.value) for fact in facts)


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
    with pytest.raises(InputError, match="class"):
        Result(values).interval("map", by="classes")
    with pytest.raises(InputError, match=r"'class'.*'classes'"):
        result.interval("map", by="class")
    with pytest.raises(InputError, match=r"'mpa'.*'map'"):
        result.interval("mpa")


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

    def test_a_query_counts_where_both_define_the_metric(self):
        a, b = Result({"severity@1": [1.0, np.nan, 2.0, 1.0]}), Result({"severity@1": [1.0, 1.0, np.nan, 2.0]})
        found = compare(a, b).differences["severity@1"]
        assert (found.a, found.b, found.n_queries) == (1.0, 1.5, 2)
        assert compare(a, Result({"severity@1": np.full(4, np.nan)})).differences["severity@1"].n_queries == 0

    def test_by_classes_one_class_is_no_evidence(self, pair):
        compared = compare(Result(pair[0].per_query, labels=np.zeros(300, int)), pair[1], by="classes")
        assert compared.differences["map"].p == 1
        assert not compared.is_real("map")
        assert np.isnan(compared.differences["map"].p_t)

    def test_the_table_names_both_and_how_queries_are_paired(self):
        base, known = np.linspace(0, 0.5, 101), {"labels": np.arange(101) // 2, "ids": list(map(str, range(101)))}
        a, b = Result({"map": base, "severity@1": base}, **known), Result({"map": base + 0.25, "severity@1": base}, **known)
        compared = compare(a, b, by="classes", titles=("old", "new"))
        assert repr(compared).splitlines()[:3] == [
            "metric       old   new  new - old   95 % interval       p  t test",
            "map         25.0  50.0      +25.0  [+25.0, +25.0]  0.0002  0.0000  new is higher",
            "severity@1  0.25  0.25      +0.00  [+0.00, +0.00]  1.0000  1.0000  may be chance",
        ]
        how = repr(compared).splitlines()[3]
        assert all(fact in how for fact in ("101 queries", "paired by id", "classes", "2 metrics", "Holm"))
        assert "<th>new - old</th>" in compared._repr_html_()
        assert "a is higher" in repr(compare(b, a))
        assert "paired by position" in repr(compare(Result(a.per_query), b))

    @pytest.mark.parametrize(
        ("a", "b", "facts"),
        [
            ({}, {"per_query": {"map": [1.0]}}, ["2 and 1"]),
            ({"ids": ["a", "b"]}, {"ids": ["a", "c"]}, ["1 of 2 ids", "'b'", "'c'"]),
            ({"labels": [0, 1]}, {"labels": [1, 0]}, ["2 of 2 classes", "'0'", "'1'"]),
            ({}, {"per_query": {"map@r": [1.0, 0.5]}}, ["'map'", "'map@r'"]),
        ],
    )
    def test_other_queries_are_refused(self, a, b, facts):
        values = {"per_query": {"map": [1.0, 0.5]}}
        with pytest.raises(InputError) as refused:
            compare(Result(**values | a), Result(**values | b))
        assert all(fact in str(refused.value) for fact in facts)

    def test_only_results_are_compared(self, pair):
        with pytest.raises(InputError, match=r"str.*read_json"):
            compare(pair[0], "b.json")
