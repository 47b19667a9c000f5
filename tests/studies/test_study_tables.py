"""Tables against numbers worked out by hand, and the published tables beside them."""

import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from refusals import assert_refused
from sightline.evaluation.result import Result
from sightline.studies.cells import Outcome
from sightline.studies.papers import published_tables, published_value, read_published
from sightline.studies.suite import PaperTable, Suite
from sightline.studies.suite_page import as_markdown, beside_published, draw_curves, tables_of, write_page

BASE = {"title": "t", "recipe": "glyphs", "seeds": [0, 1], "metrics": ["map", "severity@1"], "baseline": "A"}
ROWS = [{"name": "A"}, {"name": "B"}, {"name": "C"}]
# By row and seed, the values of four classes, each of one query; worked out by hand below.
MAP = {
    "A": [[0.2, 0.4, 0.6, 0.8], [0.4, 0.4, 0.6, 0.6]],  # seeds 0.5 and 0.5
    "B": [[0.3, 0.5, 0.7, 0.9], [0.5, 0.7, 0.7, 0.9]],  # seeds 0.6 and 0.7
    "C": [[0.1, 0.5, 0.6, 0.8], [0.3, 0.5, 0.6, 0.6]],  # seeds 0.5 and 0.5
}
NAN = float("nan")
SEVERITY = {"A": [[NAN, 2, 2, 2], [NAN, 1, 1, 1]], "B": [[1, 1, NAN, 1], [1, 1, NAN, 1]], "C": [[3, 3, 3, 3], [3, 3, 3, 3]]}
MAP["L_DG*"], SEVERITY["L_DG*"] = MAP["C"], SEVERITY["C"]


def suite_of(**changes):
    return Suite.model_validate(BASE | {"rows": ROWS, "data": [{"name": "d"}]} | changes)


def outcome(row, seed):
    values = {"map": np.array(MAP[row][seed], float), "severity@1": np.array(SEVERITY[row][seed], float)}
    about = {"was_resumed": False, "cpu_seconds": 7.0, "machine": "m", "torch": "2"}
    return Outcome.of(Result(values, labels=np.arange(4), ids=list("abcd"), fingerprint="f"), [*values], about)


def done_of(suite, rows="ABC", seeds=(0, 1)):
    """Results of the rows; a cell here is no more than its names."""
    named = {row.name: row for row in suite.all_rows}
    return {
        Named(row=named[row], data=data.name, seed=seed, title=f"{row}, {data.name}"): outcome(row, seed)
        for data, row, seed in itertools.product(suite.data, rows, seeds)
    }


class Named(SimpleNamespace):
    """Names that can be a key."""

    __hash__ = object.__hash__


def test_mean_deviation_places_and_the_paired_test():
    (table,) = tables_of(suite_of(), done_of(suite_of()))
    map_, severity = ([table.entries()[row][name] for row in "ABC"] for name in ("map", "severity@1"))
    assert [one["mean"] for one in map_] == pytest.approx([0.5, 0.65, 0.5])
    assert [one["deviation"] for one in map_] == pytest.approx([0, 0.05 * 2**0.5, 0], abs=1e-12)
    assert [one["place"] for one in map_] == [2, 1, 2], "equal means share a place"
    assert [one["mean"] for one in severity] == pytest.approx([1.5, 1, 3])
    assert [one["place"] for one in severity] == [2, 1, 3], "lower is better"
    assert table.n_classes == 4
    assert table.frame["seeds"].to_list() == [2] * 6
    # Over seeds: A .3 .4 .6 .7; B .4 .6 .7 .9 is .1 .2 .1 .2 above it; C .2 .5 .6 .7 by -.1 .1 0 0.
    assert map_[0]["difference"] is None
    assert [one["difference"] for one in map_[1:]] == pytest.approx([0.15, 0], abs=1e-7)
    assert [one["p"] for one in map_[1:]] == pytest.approx([2 * 2 / 16, 1])  # 2 of 16 arrangements of signs, two rows
    assert severity[1]["difference"] == pytest.approx(-0.5)  # B is 1, A 1.5, where both have one: two queries


def test_a_suite_under_way_shows_what_there_is():
    suite = suite_of()
    done = done_of(suite, "AB", seeds=[0])
    (table,) = tables_of(suite, done)
    assert list(table.entries()) == ["A", "B"]
    assert table.entries()["A"]["map"]["deviation"] is None
    text = as_markdown(suite, Path("s.toml"), done, 6, {})
    assert re.search(r"4 of 6 runs", text)
    assert re.search(r"[Ww]ithout a result.*: C\.", text)
    both = suite_of(data=[{"name": "d"}, {"name": "e"}])
    assert [table.data for table in tables_of(both, done_of(both))] == ["d", "e"]


def test_the_page_marks_best_and_second_best():
    suite = suite_of(about="\nWhy?\n", set=["optimizer.lr=1"], rows=[*ROWS[:2], {"name": "L_DG*"}])
    done = done_of(suite, ["A", "B", "L_DG*"])
    text = as_markdown(suite, Path("s.toml"), done, 6, {"s-f.png": "map against f: A"})
    assert "| A | _50.0 ± 0.0_ | _1.50 ± 0.71_ | 2 |" in text
    assert "| B | **65.0 ± 7.1** | **1.00 ± 0.00** | 2 |" in text
    assert r"| L_DG\* | _50.0 ± 0.0_ | 3.00 ± 0.00 | 2 |" in text
    assert "| B | +15.0 (p = 0.2500) |" in text
    assert "severity@1 ↓" in text
    assert "7 s of processor time" in text
    assert text.startswith("Why?\n")
    assert all(part in text for part in ("`glyphs` with `optimizer.lr=1`", "### Against A", "![map against f: A](s-f.png)"))


def test_our_means_stand_beside_the_published_ones():
    suite = suite_of()
    (table,) = tables_of(suite, done_of(suite))
    rows = {"A": "Fast-AP", "B": "ROADMAP", "C": "Smooth-AP"}
    given = {"table": "tpami_table01", "title": "I", "datasets": ("SOP", "iNaturalist"), "metrics": {"map": "mAP@R"}}
    published = PaperTable(**given, rows=rows)
    values = {(dataset, row): found for dataset, _, row, *found in beside_published(table, published).rows()}
    assert values["SOP", "B"] == pytest.approx([65.0, 55.7])
    assert values["iNaturalist", "C"] == pytest.approx([50.0, 26.5])
    text = as_markdown(suite_of(published=[published]), Path("s.toml"), done_of(suite), 6, {})
    assert "|  | map here | map on SOP | map on iNaturalist |\n| --- | ---: | ---: | ---: |\n| A | 50.0 |" in text
    assert "| C | 50.0 | 54.3 | 26.5 |" in text
    # Ours: A = C < B; theirs: A < C < B. Two of three pairs agree, one is tied here: tau-b is 2 / sqrt(2 * 3) = 0.82.
    assert "map with SOP +0.82 (p = " in text
    metrics, rows = {"map": "R@1", "severity@1": "R@10"}, {"A": "ProxyNCA", "B": "Triplet SH"}
    published = PaperTable(table="tpami_table04", title="IV", datasets=("SOP",), metrics=metrics, rows=rows)
    text = as_markdown(suite_of(published=[published]), Path("s.toml"), done_of(suite), 6, {})
    assert "Too few rows to say" in text
    assert "| A | 50.0 | – | 73.7 | – |" in text


def test_the_page_keeps_what_people_wrote(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- suite s -->\nreplaced by the command\n<!-- end of suite s -->\n\nAfter.\n")
    for _ in range(2):  # renewing what is new changes nothing
        write_page(page, suite_of(), Path("s.toml"), done_of(suite_of()), 6)
        part = as_markdown(suite_of(), Path("s.toml"), done_of(suite_of()), 6, {})
        assert page.read_text() == f"Before.\n\n<!-- suite s -->\n\n{part}\n<!-- end of suite s -->\n\nAfter.\n"
    assert_refused(r"<!-- suite other -->.*'s'", write_page, page, suite_of(), Path("other.toml"), {}, 6)


def test_sweeps_become_rows_and_a_picture(tmp_path):
    sweep = {"name": "R", "key": "loss.weight", "values": [0.1, 1], "label": "w", "figure": "f λ", "metric": "map"}
    suite = suite_of(rows=[], sweeps=[sweep | {"log": True}], baseline="R, w 0.1")
    rows = suite.all_rows
    assert {row.name: row.set for row in rows} == {"R, w 0.1": ("loss.weight=0.1",), "R, w 1": ("loss.weight=1",)}
    each = itertools.product(zip("AB", rows, strict=True), (0, 1))
    done = {Named(row=row, data="d", seed=seed): outcome(values, seed) for (values, row), seed in each}
    assert draw_curves(suite, done, tmp_path, "s") == {"s-f.png": "map against w: R"}
    written = (tmp_path / "s-f.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    draw_curves(suite, done, tmp_path, "s")
    assert (tmp_path / "s-f.png").read_bytes() == written, "the same numbers make the same file"


def test_all_published_tables_are_read():
    tables = published_tables()
    assert len(tables) == 56
    assert sum(len(read_published(table)) for table in tables) > 2500
    assert all(math.isfinite(row.value) for table in tables for row in read_published(table))
    assert published_value("tpami_table04", "CUB", "ProxyNCA", "R@100") is None
    assert_refused(["'tpami_table01'", "'CUB'"], published_value, "tpami_table01", "CUB", "ROADMAP", "R@1")
    assert_refused("unknown published table 'tpami_table99'", read_published, "tpami_table99")
