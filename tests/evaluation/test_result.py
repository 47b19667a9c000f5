import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sightline.errors import InputError
from sightline.evaluation.result import Result


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
        "[]",
        "{}",
        '{"per_query": []}',
        '{"per_query": {}}',
        '{"per_query": {"map": 1}}',
        '{"per_query": {"map": ["high"]}}',
        '{"per_query": {"map": [[1]]}}',
        '{"per_query": {"map": [1], "map@r": [1, 0]}}',
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
