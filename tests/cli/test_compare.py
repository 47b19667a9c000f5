import numpy as np
import pytest

from sightline import Result


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    base, labels = rng.random(200), np.arange(200) // 4
    a = {"map": base, "recall@1": (base < 0.5) * 1.0}
    b = {"map": base + rng.normal(0.05, 0.1, 200), "recall@1": (rng.random(200) < 0.5) * 1.0}
    return [
        Result(side, labels=labels).write_json(tmp_path / name / "test.json") for name, side in (("old", a), ("new", b))
    ]


@pytest.mark.parametrize("by", ["queries", "classes"])
def test_prints_which_differences_are_real(sightline, files, by):
    status, out, err = sightline("compare", *files, "--by", by)
    header, first, second, how = out.splitlines()
    assert (status, err, header.split()[:3]) == (0, "", ["metric", "old/test", "new/test"])
    assert (first.split()[0], second.split()[0]) == ("map", "recall@1")
    assert (first.endswith("new/test is higher"), second.endswith("may be chance")) == (True, True)
    assert all(fact in how for fact in ("200 queries", "paired by position", by))
    assert "test (1)" in sightline("compare", files[0], files[0])[1]


def test_mistakes_are_one_message(check_refused, files, tmp_path):
    (tmp_path / "no.json").write_text("no JSON")
    short = Result({"map": np.array([1.0])}).write_json(tmp_path / "short.json")
    plain = Result(Result.read_json(files[0]).per_query).write_json(tmp_path / "plain.json")
    for words, fact in (
        ([files[0], tmp_path / "no.json"], "no.json: not a result of sightline evaluate"),
        ([files[0], tmp_path / "none.json"], "none.json: not a result of sightline evaluate"),
        ([*files, "--by", "class"], "unknown unit 'class': did you mean 'classes'?"),
        ([*files, "--level", 95], "95.0"),
        ([files[0], short], "200 and 1 queries"),
        ([plain, plain, "--by", "classes"], "class"),
    ):
        check_refused(["compare", *words], fact)
