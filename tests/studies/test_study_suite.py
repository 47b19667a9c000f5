"""Suites: read, refused, and cut into cells."""

import re
from pathlib import Path

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.studies.cells import result_file
from sightline.studies.suite import MAKERS, DataSet, cells_of, find_manifest, read_images, read_suite

SUITES = Path(__file__).parents[2] / "benchmarks/suites"
GOOD = """
title = "t"
recipe = "glyphs"
seeds = [0, 1]
metrics = ["recall@1"]
baseline = "A"
data = [{ name = "noise" }]
rows = [{ name = "A", set = ["loss.name=sup_ap"] }, { name = "B", set = ["loss.name=smooth_ap"] }]
"""
PUBLISHED = """
published = [
    { table = "tpami_table01", title = "", datasets = ["SOP"], metrics = { map = "R@1" }, rows = { A = "Smooth-AP" } },
]
data ="""


@pytest.fixture
def suite(tmp_path):
    """Read the small suite with some of its words replaced."""

    def read(*changes):
        text = GOOD
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "suite.toml").write_text(text)
        return read_suite(tmp_path / "suite.toml")

    return read


@pytest.fixture
def cells(suite, noise, tmp_path):
    """The cells of that suite."""
    return lambda *changes, manifest=noise: cells_of(suite(*changes), {"noise": manifest}, tmp_path, check=False)


@pytest.fixture
def other_manifest(noise, tmp_path):
    """Write a manifest of the same images with another table."""
    (tmp_path / "tree").symlink_to(noise.parent / "tree")

    def write(change):
        change(pl.read_csv(noise)).write_csv(tmp_path / "manifest.csv")
        return tmp_path / "manifest.csv"

    return write


@pytest.fixture
def coded(noise):
    """The same images with codes of three levels in place of labels."""
    number = pl.col("label_0").rank("dense")
    table = pl.read_csv(noise).with_columns(codes=pl.format("{}.1.{};99.9.9", number, number))
    table.drop("label_0", "label_1", "label_2").write_csv(noise.parent / "coded.csv")
    return noise.parent / "coded.csv"


@pytest.mark.parametrize("file", sorted(SUITES.glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_suites_are_read_and_their_recipes_are_valid(file, noise, coded, other_manifest, tmp_path):
    shipped = read_suite(file)
    if "data.codes=codes" in shipped.set:
        noise = coded
    without_val = other_manifest(lambda table: table.with_columns(pl.col("split").replace("val", "train")))
    given = {data.name: noise if data.val_fraction is None else without_val for data in shipped.data}
    cells = cells_of(shipped, given, tmp_path, check=False)
    untrained = sum(not row.trained for row in shipped.all_rows)
    assert len(cells) == len(shipped.data) * ((len(shipped.all_rows) - untrained) * len(shipped.seeds) + untrained)
    assert len({result_file(tmp_path, cell) for cell in cells}) == len({(cell.data, cell.key) for cell in cells})


def test_the_page_has_a_place_for_every_suite():
    page = "".join((SUITES.parents[1] / "docs" / name).read_text() for name in ("benchmarks.md", "codes.md"))
    begun = re.findall(r"<!-- suite (\S+) -->", page)
    assert begun == re.findall(r"<!-- end of suite (\S+) -->", page)
    assert sorted(begun) == sorted(file.stem for file in SUITES.glob("*.toml") if file.stem != "glyphs-smoke")


def test_the_same_run_has_the_same_key_in_every_suite(cells):
    def key(*options, **changes):
        words = ", ".join(f'"{option}"' for option in ("loss.name=sup_ap", *options))
        return cells(('"loss.name=sup_ap"', words), *changes.items())[0].key

    # Written with and without the values that losses have by default; 1 and 1.0 are one number.
    assert key() == key("loss.rho=100", "loss.tau=1e-2")
    assert key() == key(recall="ndcg"), "another metric is not another run"
    others = [key(more) for more in ("loss.rho=10", "loss.reference=train", "optimizer.lr=1")]
    others.append(key(**{'baseline = "A"': 'baseline = "A"\nsplit = "val"'}))
    assert len({key(), *others}) == 5


def test_the_key_follows_the_row_and_the_images_but_not_their_place(cells, other_manifest):
    before, after = cells(), cells(("loss.name=smooth_ap", 'loss.name=smooth_ap", "loss.tau=0.02'))
    assert [a.key == b.key for a, b in zip(before, after, strict=True)] == [a.row.name == "A" for a in before]
    keys = {cell.key for cell in before}
    assert {cell.key for cell in cells(manifest=other_manifest(lambda table: table))} == keys
    other = other_manifest(lambda table: table.with_columns(split=pl.lit("test")))
    assert not {cell.key for cell in cells(manifest=other)} & keys


def test_recipe_values_of_a_result_are_compared_where_both_versions_know_them(cells):
    cell = cells()[0]
    stored, loss = cell.recipe.model_dump(mode="json"), cell.describe()["loss"]
    assert cell.agrees({"recipe": stored, "loss": loss})
    assert not cell.agrees({"recipe": stored, "loss": loss | {"rho": 10.0}}), "a default of the loss was another one"
    assert not cell.agrees({"recipe": stored, "loss": loss, "key": "another"})
    del stored["optimizer"]["momentum"]  # an option that the earlier version did not have
    assert cell.agrees({"recipe": stored, "loss": {"tau": 0.01}})
    stored["schedule"]["gamma"] = 0.9  # a default that was another one
    assert not cell.agrees({"recipe": stored, "loss": loss})


def test_training_classes_are_held_out_alike_for_all_seeds(noise, other_manifest, tmp_path):
    whole = read_manifest(other_manifest(lambda table: table.filter(pl.col("split") != "val")))
    data = DataSet(name="noise", val_fraction=0.4)
    cut = read_images(data, whole, tmp_path)
    assert all(path.is_file() for path in cut.paths())
    held_out = cut.table.filter(split="val")
    assert held_out["label_0"].n_unique() == 2
    assert set(held_out["label_0"]).isdisjoint(cut.table.filter(split="train")["label_0"])
    assert len(cut.table.filter(split="test")) == len(whole.table.filter(split="test"))
    assert_refused(r"'noise'.*val_fraction", read_images, data, read_manifest(noise), tmp_path)


WRONG = (
    ('baseline = "A"', 'baseline = "C"', "baseline.*'C'"),
    ('"recall@1"', '"recal@1"', "'recal@1'"),
    ('name = "B"', 'name = "A"', "row 'A'.*2"),
    ('"B", set', '"B", trained = false, set', "row 'B'.*trained"),
    ("[0, 1]", "[]", "'seeds'"),
    ("[0, 1]", "[3, 3]", "seed '3'.*2"),
    ('title = "t"', 'titel = "t"', "'title'.*'titel'.*'title'"),
    ('{ name = "B", set', '{ name = "B", sets', "'rows.1.sets'.*'set'"),
    ('recipe = "glyphs"', 'recipe = ["glyphs"', "not TOML"),
    ("data =", PUBLISHED.replace("table01", "table"), "'tpami_table'"),
    ("data =", PUBLISHED.replace("Smooth-AP", "SmoothAP"), "'SmoothAP'"),
    ("data =", PUBLISHED.replace("{ A =", "{ Z ="), "tpami_table01.*'Z'"),
    ("loss.name=sup_ap", "loss.name=sup_pa", "row 'A'.*'sup_pa'.*'sup_ap'"),
    ("loss.name=sup_ap", "loss.tua=1", "row 'A'.*'roadmap'.*'tua'.*'tau'"),
    ("loss.name=sup_ap", "optimizer.rl=1", "row 'A'.*'optimizer.rl'"),
    ('"recall@1"', '"map_label_7"', "'map_label_7'"),
)


def test_a_suite_that_cannot_run_is_refused_before_anything_runs(cells, suite, noise, tmp_path):
    for old, new, facts in WRONG:
        assert_refused(facts, cells, (old, new))
    for given, chosen, facts in (  # a row, seed or data set that the suite lacks
        ({"noise": noise}, {"only": ["a"]}, "row 'a'"),
        ({"noise": noise}, {"seeds": [7]}, r"seed .*'7'.*'0', '1'"),
        ({"nose": noise}, {}, r"--data 'nose'.*'noise'"),
    ):
        assert_refused(facts, cells_of, suite(), given, tmp_path, **chosen)


def test_images_that_are_not_there_are_named(cells, other_manifest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(r"'nothing'.*data/nothing/manifest.csv.*--data nothing=", find_manifest, DataSet(name="nothing"), {})
    assert_refused(r"'glyphs'.*--data glyphs=", find_manifest, DataSet(name="glyphs"), {}, make=False)
    monkeypatch.setitem(MAKERS, "glyphs", lambda folder: folder / "made.csv")
    assert find_manifest(DataSet(name="glyphs"), {}) == Path("data/glyphs/made.csv")
    untested = other_manifest(lambda table: table.filter(pl.col("split") != "test"))
    assert_refused("no image in split 'test'", cells, manifest=untested)
    gone = other_manifest(lambda table: table.with_columns(pl.col("path").str.replace("0.png", "gone.png", literal=True)))
    assert_refused(r"gone\.png", cells, manifest=gone)


def test_what_the_command_cannot_do_is_refused(check_refused, tmp_path):
    words = ["benchmark", SUITES / "glyphs-smoke.toml", "--out", tmp_path]
    check_refused([*words, "--tables", "--repeat"], "--tables", "--repeat")
    check_refused([*words, "--data", "glyphs"], "--data", "'glyphs'")
    assert not list(tmp_path.iterdir())
