"""Suites: read, refused, and cut into cells."""

import re
from pathlib import Path

import polars as pl
import pytest

from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.studies.cells import result_file
from sightline.studies.suite import DataSet, cells_of, find_manifest, read_images, read_suite

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


def written(folder: Path, text: str) -> Path:
    file = folder / "suite.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("file", sorted(SUITES.glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_suites_are_read_and_their_recipes_are_valid(file, noise, tmp_path):
    suite = read_suite(file)
    with_val, without = noise, tmp_path / "manifest.csv"
    (tmp_path / "tree").symlink_to(noise.parent / "tree")
    pl.read_csv(noise).with_columns(pl.col("split").replace("val", "train")).write_csv(without)
    given = {data.name: with_val if data.val_fraction is None else without for data in suite.data}
    cells = cells_of(suite, given, tmp_path, check=False)
    untrained = sum(not row.trained for row in suite.all_rows)
    n_rows = len(suite.all_rows)
    assert len(cells) == len(suite.data) * ((n_rows - untrained) * len(suite.seeds) + untrained)
    assert len({result_file(tmp_path, cell) for cell in cells}) == len({cell.key for cell in cells})


def test_the_same_run_has_the_same_key_in_every_suite(noise, tmp_path):
    def key(*options, **changes):
        words = ", ".join(f'"{option}"' for option in options)
        text = GOOD.replace('"loss.name=sup_ap"', words)
        for old, new in changes.items():
            text = text.replace(old, new)
        return cells_of(read_suite(written(tmp_path, text)), {"noise": noise}, tmp_path, check=False)[0].key

    # Written with and without the values that losses have by default; 1 and 1.0 are one number.
    assert key("loss.name=sup_ap") == key("loss.name=sup_ap", "loss.rho=100", "loss.tau=1e-2")
    assert key("loss.name=sup_ap") == key("loss.name=sup_ap", recall="ndcg"), "another metric is not another run"
    others = [key("loss.name=sup_ap", more) for more in ("loss.rho=10", "loss.reference=train", "optimizer.lr=1")]
    others.append(key("loss.name=sup_ap", **{'baseline = "A"': 'baseline = "A"\nsplit = "val"'}))
    assert len({key("loss.name=sup_ap"), *others}) == 5


def test_the_page_has_a_place_for_every_suite():
    page = (SUITES.parents[1] / "docs/benchmarks.md").read_text()
    begun = re.findall(r"<!-- suite (\S+) -->", page)
    assert begun == re.findall(r"<!-- end of suite (\S+) -->", page)
    assert sorted(begun) == sorted(file.stem for file in SUITES.glob("*.toml") if file.stem != "glyphs-smoke")


def test_training_classes_are_held_out_alike_for_all_seeds(noise, tmp_path):
    (tmp_path / "tree").symlink_to(noise.parent / "tree")
    whole = pl.read_csv(noise).filter(pl.col("split") != "val")
    whole.write_csv(tmp_path / "manifest.csv")
    data = DataSet(name="noise", val_fraction=0.4)
    cut = read_images(data, read_manifest(tmp_path / "manifest.csv"), tmp_path)
    assert all(path.is_file() for path in cut.paths())
    held_out = cut.table.filter(split="val")
    assert held_out["label_0"].n_unique() == 2
    assert set(held_out["label_0"]).isdisjoint(cut.table.filter(split="train")["label_0"])
    assert len(cut.table.filter(split="test")) == len(whole.filter(split="test"))
    with pytest.raises(InputError, match="has a split val"):
        read_images(data, read_manifest(noise), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('baseline = "A"', 'baseline = "C"', "unknown row as baseline 'C'"),
        ('"recall@1"', '"recal@1"', "unknown metric 'recal@1'"),
        ('"recall@1"', '"map_label_x"', "unknown metric 'map_label_x'"),
        ('name = "B"', 'name = "A"', "row 'A' is there 2 times"),
        ("[0, 1]", "[]", "'seeds' is .*: "),
        ("[0, 1]", "[3, 3]", "seed '3' is there 2 times"),
        ('title = "t"', 'titel = "t"', "'title' is missing; unknown key 'titel': did you mean 'title'"),
        ('{ name = "B", set', '{ name = "B", sets', "unknown key 'rows.1.sets': did you mean 'set'"),
        ('recipe = "glyphs"', 'recipe = ["glyphs"', "not TOML"),
        ("data =", PUBLISHED.replace("table01", "table"), "unknown published table 'tpami_table'"),
        ("data =", PUBLISHED.replace("Smooth-AP", "SmoothAP"), "unknown method of published table .* 'SmoothAP'"),
        ("data =", PUBLISHED.replace("{ A =", "{ Z ="), "unknown row of published tpami_table01 'Z'"),
    ],
)  # fmt: skip
def test_a_suite_that_does_not_fit_is_refused(old, new, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_suite(written(tmp_path, GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loss.name=sup_ap", "loss.name=sup_pa", "row 'A': unknown loss 'sup_pa': did you mean 'sup_ap'"),
        ("loss.name=sup_ap", "loss.tua=1", "row 'A': unknown option of loss 'roadmap': 'tua': did you mean 'tau'"),
        ("loss.name=sup_ap", "optimizer.rl=1", "row 'A': glyphs: unknown key 'optimizer.rl'"),
        ('"recall@1"', '"map_label_7"', "unknown metric 'map_label_7'"),
    ],
)
def test_a_row_that_cannot_run_is_refused_before_anything_runs(old, new, message, noise, tmp_path):
    suite = read_suite(written(tmp_path, GOOD.replace(old, new, 1)))
    with pytest.raises(InputError, match=message):
        cells_of(suite, {"noise": noise}, tmp_path, check=False)


def test_a_row_seed_or_data_set_that_the_suite_lacks_is_refused(noise, tmp_path):
    suite = read_suite(written(tmp_path, GOOD))
    with pytest.raises(InputError, match="unknown row 'a'"):
        cells_of(suite, {"noise": noise}, tmp_path, only=["a"])
    with pytest.raises(InputError, match=r"unknown seed .*'7': known: '0', '1'"):
        cells_of(suite, {"noise": noise}, tmp_path, seeds=[7])
    with pytest.raises(InputError, match="unknown data set of --data 'nose': did you mean 'noise'"):
        cells_of(suite, {"nose": noise}, tmp_path)


def test_a_data_set_that_is_nowhere_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"data set 'nothing': data/nothing/manifest.csv is not there .* give --data nothing="
    ):
        find_manifest(DataSet(name="nothing"), {})
    with pytest.raises(InputError, match=r"data set 'glyphs': .* is not there and nothing is made now"):
        find_manifest(DataSet(name="glyphs"), {}, make=False)


def test_a_changed_row_changes_its_key_and_no_other(noise, tmp_path):
    before = cells_of(read_suite(written(tmp_path, GOOD)), {"noise": noise}, tmp_path, check=False)
    changed = GOOD.replace("loss.name=smooth_ap", 'loss.name=smooth_ap", "loss.tau=0.02')
    after = cells_of(read_suite(written(tmp_path, changed)), {"noise": noise}, tmp_path, check=False)
    assert [a.key == b.key for a, b in zip(before, after, strict=True)] == [a.row.name == "A" for a in before]


def test_the_key_follows_the_images_and_not_their_place(noise, tmp_path):
    suite = read_suite(written(tmp_path, GOOD))

    def keys(manifest):
        return [cell.key for cell in cells_of(suite, {"noise": manifest}, tmp_path, check=False)]

    moved = tmp_path / "moved"
    moved.mkdir()
    for file in noise.parent.iterdir():
        (moved / file.name).symlink_to(file)
    assert keys(moved / noise.name) == keys(noise)
    other = tmp_path / "other"
    other.mkdir()
    for file in noise.parent.iterdir():
        (other / file.name).symlink_to(file)
    table = pl.read_csv(noise)
    (other / noise.name).unlink()
    table.with_columns(split=pl.lit("test")).write_csv(other / noise.name)
    assert not set(keys(other / noise.name)) & set(keys(noise))


def test_recipe_values_of_a_result_are_compared_where_both_versions_know_them(noise, tmp_path):
    cell = cells_of(read_suite(written(tmp_path, GOOD)), {"noise": noise}, tmp_path, check=False)[0]
    stored = cell.recipe.model_dump(mode="json")
    loss = cell.describe()["loss"]
    assert cell.agrees({"recipe": stored, "loss": loss})
    assert not cell.agrees({"recipe": stored, "loss": loss | {"rho": 10.0}}), "a default of the loss was another one"
    assert not cell.agrees({"recipe": stored, "loss": loss, "key": "another"})
    del stored["optimizer"]["momentum"]  # an option that the earlier version did not have
    assert cell.agrees({"recipe": stored, "loss": {"tau": 0.01}})
    stored["schedule"]["gamma"] = 0.9  # a default that was another one
    assert not cell.agrees({"recipe": stored, "loss": loss})


def test_a_split_that_is_not_there_is_refused_before_anything_runs(noise, tmp_path):
    pl.read_csv(noise).filter(pl.col("split") != "test").write_csv(tmp_path / "manifest.csv")
    (tmp_path / "tree").symlink_to(noise.parent / "tree")
    with pytest.raises(InputError, match="no image in split 'test'"):
        cells_of(read_suite(written(tmp_path, GOOD)), {"noise": tmp_path / "manifest.csv"}, tmp_path, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--tables", "--repeat"], "--repeat"), (["--data", "glyphs"], "'glyphs'")],
)
def test_what_the_command_cannot_do_is_refused(words, message, sightline, tmp_path):
    status, _, err = sightline("benchmark", SUITES / "glyphs-smoke.toml", "--out", tmp_path, *words)
    assert (status, message in err) == (2, True)
    assert not list(tmp_path.iterdir())
