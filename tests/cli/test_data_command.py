import warnings
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from sightline.data.manifest import read_manifest
from sightline.data.readers import READERS


def draw(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)
    return folder


def test_prepare_from_files_on_disk(sightline, tmp_path, monkeypatch):
    out, pictures = tmp_path / "m.csv", draw(tmp_path / "pictures", "a/1.png", "a/2.png", "b/3.png")
    assert sightline("data", "prepare", "folder", "--root", pictures, "--out", out)[:2] == (0, f"{out}\n")
    assert read_manifest(out).table["path"].to_list() == ["pictures/a/1.png", "pictures/a/2.png", "pictures/b/3.png"]
    status, said, _ = sightline("data", "check", out)
    assert (status, "3 images, 1 label level, no fault" in said) == (0, True)
    monkeypatch.chdir(tmp_path)
    assert sightline("data", "prepare", "folder", "--root", pictures)[:2] == (0, "data/folder.parquet\n")
    assert len(read_manifest(tmp_path / "data/folder.parquet")) == 3


def test_prepare_asks_for_the_published_counts_unless_for_a_subset(sightline, check_refused, tmp_path):
    for part, row in (("train", "1 1 1 chair_final/1_0.JPG"), ("test", "2 2 1 chair_final/2_0.JPG")):
        (tmp_path / f"Ebay_{part}.txt").write_text(f"image_id class_id super_class_id path\n{row}\n")
    draw(tmp_path, "chair_final/1_0.JPG")
    words = ["data", "prepare", "sop", "--root", tmp_path, "--out", tmp_path / "sop.parquet"]
    missing = "1 of 2 images are missing: 'chair_final/2_0.JPG'"
    check_refused(words, "Ebay_train.txt (train): 1 images, 59551 are published", missing)
    assert not list(tmp_path.glob("*sop*"))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = sightline(*words, "--subset")
    assert (status, f"left out: {missing}" in err) == (0, True)
    assert pl.read_parquet(tmp_path / "sop.parquet")["path"].to_list() == ["chair_final/1_0.JPG"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["sop"], ["sop: --root is missing", "needs 'Stanford_Online_Products.zip'"]),
        (["sop", "--root", ".", "--seed", 1], ["'sop' has no option 'seed'"]),
        (["glyphs", "--root", "."], ["'glyphs' has no option 'root'"]),
        (["roxfrd5k"], ["unknown data set 'roxfrd5k': did you mean 'roxford5k'?"]),
    ],
)
def test_prepare_names_what_is_missing_or_not_read(check_refused, tmp_path, words, facts):
    check_refused(["data", "prepare", *words, "--out", tmp_path / "x.csv"], *facts)


def test_prepare_hands_a_collection_its_folder_and_list_has_every_set(sightline, tmp_path, monkeypatch):
    asked = []

    def write(out: Path, show_progress: bool = False, root: Path | None = None) -> Path:
        asked.append((out, show_progress, root))
        return out / "manifest.csv"

    status, out, _ = sightline("data", "list")
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert (status, sorted(names), len(names)) == (0, READERS.names(), 29)
    monkeypatch.setitem(READERS.table, "emoji", write)
    own = tmp_path / "emoji"
    assert sightline("data", "prepare", "emoji", "--out", own)[:2] == (0, f"{own / 'manifest.csv'}\n")
    assert sightline("data", "prepare", "emoji", "--root", tmp_path)[:2] == (0, "data/emoji/manifest.csv\n")
    assert asked == [(own, True, None), (Path("data/emoji"), True, tmp_path)]


def test_stats_by_split_and_level_of_large_sets_and_without_labels(sightline, tmp_path):
    def stats(table):
        table.write_parquet(tmp_path / "m.parquet")
        status, out, _ = sightline("data", "stats", tmp_path / "m.parquet")
        assert status == 0
        return [line.split() for line in out.splitlines()[1:]]

    rows = [("train", "a", "x"), ("train", "a", "x"), ("train", "b", "x"), ("train", "b", "y"), ("test", "c", "y")]
    table = pl.DataFrame(rows, ["split", "label_0", "label_1"], orient="row")
    assert stats(table.with_columns(path=pl.format("{}.png", pl.int_range(pl.len())), is_query=pl.lit(True))) == [
        ["split", "level", "images", "classes", "fewest", "median", "most"],
        ["train", "0", "4", "3", "1", "1", "2"],
        ["train", "1", "4", "2", "1", "2", "3"],
        ["test", "0", "1", "1", "1", "1", "1"],
        ["test", "1", "1", "1", "1", "1", "1"],
        ["is_query:", "5", "images"],
    ]
    table = pl.select(path=pl.int_range(4569)).with_columns(split=pl.lit("train"), label=pl.col("path") < 2)
    assert stats(table)[-1] == ["train", "0", "4,569", "2", "2", "2,284.5", "4,567"]
    _, row, remark = stats(table.drop("label"))
    assert (row, "'label_0'" in " ".join(remark)) == (["train", "-", "4,569"], True)
