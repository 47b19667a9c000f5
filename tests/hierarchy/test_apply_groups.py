"""The manifest that comes out, and the report about it."""

from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.hierarchy.apply import apply_groups, class_sizes, label_groups, report_text, with_groups
from sightline.hierarchy.collect import write_step
from sightline.hierarchy.journal import first_state


@pytest.fixture
def made(tmp_path):
    """A folder of steps, its state and a manifest; label d has no group, e is unknown."""
    kept = pl.DataFrame({"label": list("abcd"), "text": ["cat", "dog", "cat", "ufo"]})
    write_step(tmp_path / "work", "clean.csv", kept)
    groups = pl.DataFrame({"text": ["cat", "dog"], "group_1": ["feline", "canine"], "group_2": ["animal", "animal"]})
    state = first_state(groups, "clusters.csv")
    state.home["ufo"] = None
    rows = [
        f"{label}{n}.png,train,{label},old,{n}"
        for label, n_images in zip("abcde", (4, 2, 1, 1, 1), strict=True)
        for n in range(n_images)
    ]
    (tmp_path / "images").mkdir()
    file = tmp_path / "images/m.csv"
    file.write_text("path,split,label_0,label_1,extra\n" + "\n".join(rows) + "\n")
    return tmp_path / "work", state, read_manifest(file)


def test_labels_get_the_groups_of_their_text_and_those_without_a_group_go_or_stand_alone(made):
    folder, state, manifest = made
    groups = label_groups(folder, state)
    assert groups.rows() == [("a", "feline", "animal"), ("b", "canine", "animal"), ("c", "feline", "animal")]
    found, unplaced = with_groups(manifest, groups)
    assert unplaced == ["d", "e"]
    assert found.table.columns == ["id", "path", "split", "label_0", "label_1", "label_2", "extra"]
    counts = found.table.group_by("label_0", "label_1", "label_2", maintain_order=True).len().rows()
    assert counts == [("a", "feline", "animal", 4), ("b", "canine", "animal", 2), ("c", "feline", "animal", 1)]
    found, unplaced = with_groups(manifest, groups, "alone")
    assert (len(found), unplaced) == (len(manifest), ["d", "e"])
    assert found.table.filter(pl.col("label_0") == "e").select("label_1", "label_2").row(0) == ("e", "e")
    one_level = pl.DataFrame({"label": ["a", "b", "c"], "group_1": ["d", "d", "x"]})  # "d" is the name of a label too
    found = with_groups(manifest, one_level, "alone")[0]
    numbers = dict(zip(found.table["label_0"], found.labels()[:, 1].tolist(), strict=True))
    assert (numbers["a"] == numbers["b"], len({*numbers.values()})) == (True, 4)


@pytest.mark.parametrize("name", ["images/new.csv", "elsewhere/new.parquet"])
def test_the_written_manifest_finds_its_images(made, tmp_path, name):
    folder, state, manifest = made
    apply_groups(folder, state, manifest, tmp_path / name)
    again = read_manifest(tmp_path / name)
    assert again.n_levels == 3
    assert [path.resolve() for path in again.paths()] == [path.resolve() for path in manifest.paths()[:7]]
    assert again.table["extra"].to_list() == manifest.table["extra"].to_list()[:7]
    assert pl.read_csv(folder / "unplaced.csv")["label"].to_list() == ["d", "e"]
    sizes = pl.read_csv(folder / "report.csv").rows()
    assert {("label_1", "feline", "animal", 5), ("label_2", "animal", "animal", 7)} <= {*sizes}
    assert "label_1: 2 classes" in "".join(ElementTree.parse(folder / "report.svg").getroot().itertext())


def test_the_report_says_how_even_the_levels_are(made):
    folder, state, manifest = made
    text = report_text(class_sizes(with_groups(manifest, label_groups(folder, state))[0]))
    header, fine, middle, top, *named = text.splitlines()
    assert header.split() == ["level", "classes", "effective", "smallest", "median", "largest", "imbalance"]
    shares = np.array([5, 2]) / 7
    assert fine.split()[:2] + fine.split()[3:] == ["label_0", "3", "1", "2", "4", f"{4 / (7 / 3):.1f}"]
    assert middle.split()[2] == f"{np.exp(-sum(shares * np.log(shares))):.1f}"
    assert top.split() == ["label_2", "1", "1.0", "7", "7", "7", "1.0"]
    assert named == ["label_1: feline (5), canine (2)", "label_1 in animal: feline (5), canine (2)", "label_2: animal (7)"]


def test_what_does_not_fit_is_refused(made, tmp_path):
    folder, state, manifest = made
    groups = label_groups(folder, state)
    assert_refused(r"new\.txt: .*'\.parquet', '\.csv'", apply_groups, folder, state, manifest, tmp_path / "new.txt")
    twice = pl.DataFrame({"label": ["a", "a", "b", "z", "z"], "group_1": list("pqrst")})
    for other, facts in (
        (groups.with_columns(label=pl.lit("x")), ["in the tree"]),
        (pl.DataFrame({"label": ["a"]}), ["the tree has one level"]),
        (twice, ["'a'", "2 places"]),
    ):
        assert_refused(facts, with_groups, manifest, other)
    assert_refused("unknown rule for labels without a group 'guess'", with_groups, manifest, groups, "guess")
