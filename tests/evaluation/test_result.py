import json

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from sightline.errors import InputError
from sightline.evaluation.result import Result, compare


@pytest.fixture
def result():
    return Result({"recall@1": np.array([1.0, 0.0, np.nan, 1.0]), "map": np.array([1.0, 0.25, np.nan, 0.5])})


def test_means_and_counts_leave_out_queries_without_an_answer(result):
    assert result.means == {"recall@1": 2 / 3, "map": 1.75 / 3}
    assert type(result["map"]) is float
    assert (result.n_queries, result.n_skipped) == (4, 1)


def test_an_unknown_metric_names_those_there_are(result):
    with pytest.raises(KeyError, match=r"no metric 'mpa'; there are recall@1, map"):
        result["mpa"]


def test_text_is_in_percent_with_its_counts(result):
    assert result.as_text() == "recall@1   66.7\nmap        58.3\n4 queries, 1 without a relevant item left out"
    assert Result({"map": np.array([1.0])}).as_text() == "map  100.0\n1 queries"


def test_markdown_is_one_table_with_its_counts(result):
    assert result.as_markdown() == (
        "| recall@1 | map |\n| ---: | ---: |\n| 66.7 | 58.3 |\n\n4 queries, 1 without a relevant item left out\n"
    )


def test_json_keeps_every_value_and_writes_nan_as_null(result, tmp_path):
    result.per_query["map"][1] = 0.1 + 0.2  # has no short decimal form
    file = result.write_json(tmp_path / "new" / "result.json")
    again = Result.read_json(file)
    assert list(again.per_query) == ["recall@1", "map"]
    for name, values in result.per_query.items():
        assert_array_equal(again.per_query[name], values)
        assert again.per_query[name].dtype == np.float64
    stored = json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert stored["metrics"] == result.means
    assert (stored["n_queries"], stored["n_skipped"]) == (4, 1)
    assert stored["per_query"]["recall@1"] == [1.0, 0.0, None, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "{}",
        "[" * 100_000,
        '{"per_query": []}',
        '{"per_query": {}}',
        '{"per_query": {"map": 1}}',
        '{"per_query": {"map": [1, "a"]}}',
        '{"per_query": {"map": [1, [2]]}}',
        '{"per_query": {"map": [1], "map@r": [1, 0]}}',
        '{"per_query": {"map": [1]}, "ids": 7}',
        '{"per_query": {"map": [1]}, "labels": [[1, 2], 3]}',
        '{"per_query": {"map": [1]}, "notes": 7}',
        '{"per_query": {"map": [' + "9" * 400 + "]}}",
    ],
)
def test_a_file_that_is_no_result_is_refused(text, tmp_path):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(InputError, match=r"other\.json: not a result of sightline evaluate: ."):
        Result.read_json(tmp_path / "other.json")


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: not a result of sightline evaluate: .*No such file"):
        Result.read_json(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bytes\.json: not a result"):
        Result.read_json(tmp_path / "bytes.json")


@pytest.fixture
def full():
    return Result(
        {"map": np.array([1.0, 0.25, np.nan, 0.5]), "severity@1": np.array([np.nan, 1.0, 2.0, 1.0])},
        ids=["a", "b", "c, d", "e"],
        labels=np.array([7, 7, 8, 8]),
        fingerprint="f00d",
        notes=("a word of caution",),
    )


def test_json_keeps_ids_classes_fingerprint_and_notes(full, result, tmp_path):
    again = Result.read_json(full.write_json(tmp_path / "full.json"))
    assert (again.ids, again.labels.tolist(), again.fingerprint) == (full.ids, [7, 7, 8, 8], "f00d")
    assert again.notes == full.notes
    assert again.labels.dtype == np.int64
    again = Result.read_json(result.write_json(tmp_path / "plain.json"))
    assert (again.ids, again.labels, again.fingerprint) == (None, None, None)
    assert json.loads((tmp_path / "plain.json").read_text()).keys() == {"metrics", "n_queries", "n_skipped", "per_query"}


def test_a_metric_that_no_query_defines_has_no_mean_and_is_null(tmp_path):
    result = Result({"map": np.array([1.0]), "severity@1": np.array([np.nan])})
    assert np.isnan(result["severity@1"])
    stored = json.loads(result.write_json(tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert stored["metrics"] == {"map": 1.0, "severity@1": None}


def test_ids_and_classes_of_another_number_are_refused(tmp_path):
    values = {"map": np.array([1.0, 0.5])}
    with pytest.raises(InputError, match=r"ids: one for each of the 2 queries is needed, found \(1,\)"):
        Result(values, ids=["a"])
    with pytest.raises(InputError, match=r"labels: one for each of the 2 queries is needed, found \(2, 1\)"):
        Result(values, labels=np.zeros((2, 1), int))
    (tmp_path / "r.json").write_text('{"per_query": {"map": [1]}, "ids": ["a", "b"]}')
    with pytest.raises(InputError, match=r"r\.json: not a result of sightline evaluate: ids: one for each"):
        Result.read_json(tmp_path / "r.json")


def test_queries_without_a_mistake_are_not_said_to_lack_a_relevant_item(full):
    mistakes = {"severity@1": np.array([np.nan, 1.0, np.nan, 2.0])}
    assert Result(mistakes).as_text() == "severity@1   1.50\n4 queries; severity@1 of 2"
    both = Result({**mistakes, "map": np.array([1.0, 0.5, np.nan, 0.5])})
    assert both.n_skipped == 1
    assert both.as_text().endswith("\n4 queries, 1 without a relevant item left out; severity@1 of 2")


def test_notes_are_in_the_text_and_in_markdown():
    result = Result({"map": np.array([1.0])}, notes=("a word of caution",))
    assert result.as_text() == "map  100.0\n1 queries\na word of caution"
    assert result.as_markdown() == "| map |\n| ---: |\n| 100.0 |\n\n1 queries\n\na word of caution\n"


def test_metrics_of_other_numbers_of_queries_are_refused():
    with pytest.raises(InputError, match=r"at least one metric, each of \(Q,\) values, is needed, found \{\}"):
        Result({})
    with pytest.raises(InputError, match=r"is needed, found \{'map': \(2,\), 'map@r': \(3,\)\}"):
        Result({"map": np.zeros(2), "map@r": np.zeros(3)})


def test_csv_of_the_means_and_of_every_query(full, tmp_path):
    assert Result({"map": np.array([1.0, 0.5])}).as_csv() == "metric,mean\nmap,0.75\n"
    low, high = full.interval("map", 0.9)
    assert full.as_csv(level=0.9).splitlines()[:2] == ["metric,mean,low,high", f"map,{1.75 / 3},{low},{high}"]
    assert full.write_csv(tmp_path / "q.csv").read_text() == (
        'id,label,map,severity@1\na,7,1.0,\nb,7,0.25,1.0\n"c, d",8,,2.0\ne,8,0.5,1.0\n'
    )


def test_text_that_a_spreadsheet_would_take_for_a_formula(tmp_path):
    ids = ['=HYPERLINK("http://a.example")', "+1", "-1", "@SUM(1)", "\tx", "plain", "a=b"]
    result = Result({"map": -np.arange(7.0)}, ids=ids)
    exact = pl.read_csv(result.write_csv(tmp_path / "a.csv"))
    assert exact["id"].to_list() == ids
    safe = pl.read_csv(result.write_csv(tmp_path / "b.csv", spreadsheet_safe=True))
    assert safe["id"].to_list() == [*(f"'{name}" for name in ids[:5]), *ids[5:]]
    assert safe["map"].to_list() == exact["map"].to_list()


def test_intervals_in_text_and_markdown_where_asked():
    result = Result({"map": np.linspace(0, 1, 101), "severity@1": np.linspace(0, 2, 101)}, labels=np.arange(101) // 2)
    assert result.as_text(level=0.95) == (
        "map          50.0 [44.4, 55.6]\nseverity@1   1.00 [0.89, 1.11]\n"
        "101 queries; severity@1 of 101; 95 % intervals over queries"
    )
    told = "| 50.0 [44.4, 55.6] | 1.00 [0.89, 1.11] |\n\n101 queries; severity@1 of 101; 95 %"
    assert told in result.as_markdown(level=0.95)
    assert result.as_text(0.9, by="classes").endswith("90 % intervals over classes")


def test_an_interval_over_classes_is_wider_where_they_are_alike_and_needs_them(full):
    values = {"map": np.random.default_rng(0).random(30)[np.arange(300) // 10]}
    result = Result(values, labels=np.arange(300) // 10)
    narrow, wide = result.interval("map"), result.interval("map", by="classes")
    assert narrow.low < result["map"] < narrow.high
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(10**0.5, rel=0.15)
    with pytest.raises(InputError, match=r"by classes: the result does not say which class each query is of"):
        Result(values).interval("map", by="classes")
    with pytest.raises(InputError, match=r"unknown unit 'class': did you mean 'classes'\?"):
        result.interval("map", by="class")
    with pytest.raises(InputError, match=r"unknown metric 'mpa': did you mean 'map'\?"):
        result.interval("mpa")


class TestCompare:
    @pytest.fixture
    def pair(self):
        rng = np.random.default_rng(0)
        base = rng.random(300) / 2
        a = {"map": base, "recall@1": rng.random(300) < 0.5, "only_a": base}
        b = {"map": base + rng.normal(0.1, 0.1, 300), "recall@1": rng.random(300) < 0.5, "only_b": base}
        return tuple(Result({name: np.asarray(column, np.float64) for name, column in side.items()}) for side in (a, b))

    def test_tells_a_difference_from_chance(self, pair):
        compared = compare(*pair)
        assert list(compared.differences) == ["map", "recall@1"]
        assert [compared.is_real(name) for name in compared.differences] == [True, False]
        found = compared.differences["map"]
        assert (found.a, found.b, found.n_queries) == (pair[0]["map"], pair[1]["map"], 300)
        assert found.interval.low < found.b - found.a < found.interval.high
        assert found.p == pytest.approx(2 / 10000)  # twice the smallest: Holm over two metrics
        assert found.p_t < 1e-20

    def test_the_other_way_round_is_the_same_with_the_other_sign(self, pair):
        forth, back = compare(*pair).differences["recall@1"], compare(*pair[::-1]).differences["recall@1"]
        assert (forth.a, forth.b, forth.p, forth.p_t) == (back.b, back.a, back.p, back.p_t)
        assert forth.interval == pytest.approx((-back.interval.high, -back.interval.low))

    def test_a_query_counts_where_both_define_the_metric(self):
        a = Result({"severity@1": np.array([1.0, np.nan, 2.0, 1.0])})
        b = Result({"severity@1": np.array([1.0, 1.0, np.nan, 2.0])})
        found = compare(a, b).differences["severity@1"]
        assert (found.a, found.b, found.n_queries) == (1.0, 1.5, 2)
        assert compare(a, Result({"severity@1": np.full(4, np.nan)})).differences["severity@1"].n_queries == 0

    def test_by_classes_one_class_is_no_evidence(self, pair):
        one = Result(pair[0].per_query, labels=np.zeros(300, int))
        compared = compare(one, pair[1], by="classes")
        assert compared.differences["map"].p == 1
        assert not compared.is_real("map")
        assert np.isnan(compared.differences["map"].p_t)
        with pytest.raises(InputError, match="by classes: the result does not say"):
            compare(*pair, by="classes")

    def test_the_table(self):
        base = np.linspace(0, 0.5, 101)
        labels = np.arange(101) // 2
        a = Result({"map": base, "severity@1": base}, labels=labels)
        b = Result({"map": base + 0.25, "severity@1": base}, labels=labels)
        assert compare(a, b, by="classes").as_text().splitlines() == [
            "metric         a     b  b - a   95 % interval       p  t test",
            "map         25.0  50.0  +25.0  [+25.0, +25.0]  0.0002  0.0000  b is higher",
            "severity@1  0.25  0.25  +0.00  [+0.00, +0.00]  1.0000  1.0000  may be chance",
            "101 queries; over classes; each interval by itself, p raised for 2 metrics (Holm)",
        ]
        assert "0.0002  0.0000  a is higher" in compare(b, a).as_text()

    def test_other_queries_are_refused(self):
        values = {"map": np.array([1.0, 0.5])}
        with pytest.raises(InputError, match=r"results of 2 and 1 queries cannot be compared: the same queries are needed"):
            compare(Result(values), Result({"map": np.array([1.0])}))
        with pytest.raises(InputError, match=r"1 of 2 ids differ, the first at place 1: 'b' and 'c'"):
            compare(Result(values, ids=["a", "b"]), Result(values, ids=["a", "c"]))
        with pytest.raises(InputError, match=r"2 of 2 classes differ, the first at place 0: '0' and '1'"):
            compare(Result(values, labels=np.array([0, 1])), Result(values, labels=np.array([1, 0])))
        with pytest.raises(InputError, match=r"share no metric: 'map' and 'map@r'"):
            compare(Result(values), Result({"map@r": values["map"]}))
