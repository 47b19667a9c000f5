import warnings
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from sightline.data.manifest import read_manifest
from sightline.data.readers import READERS


@pytest.fixture
def pictures(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "pictures" / name)
    return tmp_path / "pictures"


def test_prepare_from_files_on_disk(sightline, pictures, tmp_path, monkeypatch):
    out = tmp_path / "m.csv"
    assert sightline("data", "prepare", "folder", "--root", pictures, "--out", out)[:2] == (0, f"{out}\n")
    assert read_manifest(out).table["path"].to_list() == ["pictures/a/1.png", "pictures/a/2.png", "pictures/b/3.png"]
    status, said, _ = sightline("data", "check", out)
    assert (status, "3 images, 1 label level, no fault" in said) == (0, True)
    monkeypatch.chdir(tmp_path)
    assert sightline("data", "prepare", "folder", "--root", pictures)[:2] == (0, "data/folder.parquet\n")
    assert len(read_manifest(tmp_path / "data/folder.parquet")) == 3


def test_prepare_asks_for_the_published_counts_unless_for_a_subset(sightline, check_refused, tmp_path):
    header = "image_id class_id super_class_id path\n"
    (tmp_path / "Ebay_train.txt").write_text(header + "1 1 1 chair_final/1_0.JPG\n")
    (tmp_path / "Ebay_test.txt").write_text(header + "2 2 1 chair_final/2_0.JPG\n")
    (tmp_path / "chair_final").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "chair_final" / "1_0.JPG")
    words = ["data", "prepare", "sop", "--root", tmp_path, "--out", tmp_path / "sop.parquet"]
    missing = "1 of 2 images are missing: 'chair_final/2_0.JPG'"
    check_refused(words, "Ebay_train.txt (train): 1 images, 59551 are published", missing)
    assert not list(tmp_path.glob("*sop*"))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = sightline(*words, "--subset")
    assert (status, f"left out: {missing}" in err) == (0, True)
    assert pl.read_parquet(tmp_path / "sop.parquet")["path"].to_list() == ["chair_final/1_0.JPG"]


def test_prepare_names_what_is_missing_or_not_read(check_refused, tmp_path):
    out = ["--out", tmp_path / "x.csv"]
    check_refused(["data", "prepare", "sop", *out], "sop: --root is missing", "needs 'Stanford_Online_Products.zip'")
    check_refused(["data", "prepare", "sop", "--root", tmp_path, *out, "--seed", 1], "'sop' has no option 'seed'")
    check_refused(["data", "prepare", "glyphs", "--root", tmp_path, *out], "'glyphs' has no option 'root'")
    check_refused(["data", "prepare", "roxfrd5k", *out], "unknown data set 'roxfrd5k': did you mean 'roxford5k'?")


def test_prepare_hands_a_collection_its_folder(sightline, tmp_path, monkeypatch):
    asked = []

    def write(out: Path, show_progress: bool = False, root: Path | None = None) -> Path:
        asked.append((out, show_progress, root))
        return out / "manifest.csv"

    monkeypatch.setitem(READERS.table, "emoji", write)
    own = tmp_path / "emoji"
    assert sightline("data", "prepare", "emoji", "--out", own)[:2] == (0, f"{own / 'manifest.csv'}\n")
    assert sightline("data", "prepare", "emoji", "--root", tmp_path)[:2] == (0, "data/emoji/manifest.csv\n")
    assert asked == [(own, True, None), (Path("data/emoji"), True, tmp_path)]


def test_list_has_every_set_on_one_line(sightline):
    status, out, _ = sightline("data", "list")
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert (status, sorted(names)) == (0, READERS.names())
    assert len(names) == 29


def test_stats_by_split_and_level(sightline, tmp_path):
    rows = [("train", "a", "x"), ("train", "a", "x"), ("train", "b", "x"), ("train", "b", "y"), ("test", "c", "y")]
    table = pl.DataFrame(rows, ["split", "label_0", "label_1"], orient="row")
    table.with_columns(path=pl.format("{}.png", pl.int_range(pl.len())), is_query=pl.lit(True)).write_csv(
        tmp_path / "m.csv"
    )
    status, out, _ = sightline("data", "stats", tmp_path / "m.csv")
    assert status == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["split", "level", "images", "classes", "fewest", "median", "most"],
        ["train", "0", "4", "3", "1", "1", "2"],
        ["train", "1", "4", "2", "1", "2", "3"],
        ["test", "0", "1", "1", "1", "1", "1"],
        ["test", "1", "1", "1", "1", "1", "1"],
        ["is_query:", "5", "images"],
    ]


def test_stats_of_large_sets_and_without_labels(sightline, tmp_path):
    table = pl.select(path=pl.int_range(4569)).with_columns(split=pl.lit("train"), label=pl.col("path") < 2)
    table.write_parquet(tmp_path / "m.parquet")
    status, out, _ = sightline("data", "stats", tmp_path / "m.parquet")
    assert (status, out.splitlines()[-1].split()) == (0, ["train", "0", "4,569", "2", "2", "2,284.5", "4,567"])
    table.drop("label").write_parquet(tmp_path / "m.parquet")
    status, out, _ = sightline("data", "stats", tmp_path / "m.parquet")
    assert (status, out.splitlines()[2].split()) == (0, ["train", "-", "4,569"])
    assert "'label_0'" in out.splitlines()[3]
