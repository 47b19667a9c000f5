"""What every reader does: paths, missing images, old manifests; and ``docs/data.md`` says what they assert."""

import os
import re
from pathlib import Path

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.data.readers import READERS
from sightline.data.readers.retrieval_sets import SOP
from sightline.data.readers.source import PublishedCounts, Reader

HEADER = "image_id class_id super_class_id path\n"
COUNTS = {"train": PublishedCounts(2, (1, 1)), "test": PublishedCounts(1, (1, 1))}


@pytest.fixture
def sop(tree):
    tree.text("Ebay_train.txt", HEADER + "1 1 1 bicycle_final/1_0.JPG\n2 1 1 bicycle_final/1_1.JPG\n")
    tree.text("Ebay_test.txt", HEADER + "3 2 1 bicycle_final/2_0.JPG\n")
    tree.images("bicycle_final/1_0.JPG", "bicycle_final/1_1.JPG", "bicycle_final/2_0.JPG")
    return tree


@pytest.mark.parametrize("file", ["out/set.csv", "files/set.parquet", "files/deep/er/set.csv", "set.parquet"])
def test_paths_lead_from_the_manifest_to_the_images(sop, tmp_path, file):
    manifest = sop.prepare(SOP, counts=COUNTS, out=tmp_path / file)
    assert [os.path.isabs(path) for path in manifest.table["path"]] == [False] * 3
    assert {path.resolve() for path in manifest.paths()} == set((sop.root.resolve() / "bicycle_final").iterdir())
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert all(path.is_file() for path in read_manifest(moved / file).paths())
    moved.rename(tmp_path)


def test_missing_images_are_counted_and_named_and_a_subset_does_without(sop):
    (sop.root / "bicycle_final" / "1_1.JPG").unlink()
    sop.complaint(SOP, "3 images", "'bicycle_final/1_1.JPG'")
    with pytest.warns(UserWarning, match=r"left out: 1 of 3 images are missing: 'bicycle_final/1_1\.JPG'"):
        assert len(sop.prepare(SOP, subset=True, counts=COUNTS)) == 2
    for file in (sop.root / "bicycle_final").iterdir():
        file.unlink()
    sop.complaint(SOP, "3 images", subset=True)


def test_what_does_not_fit_is_named(sop, tmp_path):
    sop.text("Ebay_test.txt", HEADER + "3 1 1 bicycle_final/2_0.JPG\n" * 2)
    twice = "listed more than once (1): 'bicycle_final/2_0.JPG'"
    sop.complaint(SOP, twice, "class '1' is in the splits 'test', 'train'")
    sop.complaint(SOP, "'.parquet'", "'.csv'", out=tmp_path / "m.txt")
    assert_refused(["gone", "'Stanford_Online_Products.zip'"], SOP, tmp_path / "m.csv", tmp_path / "gone")


def test_an_old_manifest_stays_if_the_new_one_fails(sop):
    sop.prepare(SOP)
    assert pl.read_parquet(sop.out).columns == ["path", "split", "label_0", "label_1"]
    before = sop.out.read_bytes()
    sop.text("Ebay_test.txt", HEADER + "3 2 1\n")
    sop.complaint(SOP, "Ebay_test.txt", "line 2", "4 fields")
    assert sop.out.read_bytes() == before


PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
FOUND = {name: READERS.find(name) for name in READERS}
ON_DISK = {name: reader for name, reader in FOUND.items() if isinstance(reader, Reader)}


def test_every_reader_says_what_it_is_and_refuses_an_empty_or_wrong_folder(tree):
    assert (len(FOUND), len(ON_DISK)) == (29, 22)
    for name in FOUND:
        assert ("; needs " in READERS.summary(name), "out" in READERS.options(name)) == (True, True), name
    for reader in ON_DISK.values():
        assert tree.complaint(reader).startswith("ROOT: no ")
    assert tree.complaint(SOP).endswith("in this folder; it is empty")
    tree.images("images/a.png")
    tree.text("README", "")
    sought = "'Ebay_train.txt' or 'Stanford_Online_Products/Ebay_train.txt'"
    assert tree.complaint(SOP) == f"ROOT: no file {sought} in this folder; it has 'README', 'images/'"


def asserted(reader):
    """As the page writes it."""
    parts = []
    for name, part in reader.counts.items():
        images = "-" if part.images is None else f"{part.images:,}"
        classes = " < ".join("-" if n is None else f"{n:,}" for n in part.classes)
        parts.append(f"{name} {images}" + (f": {classes}" if classes else ""))
    return "; ".join(parts)


def test_the_table_has_every_reader_and_its_numbers():
    rows = dict(re.findall(r"^\| `([\w-]+)` \|[^|]*\| ?(.*?) ?\|$", PAGE, flags=re.MULTILINE))
    assert rows == {name: asserted(reader) for name, reader in ON_DISK.items()}


def test_a_data_set_of_your_own_as_the_page_says(tree, rows, page):
    tree.text("train.txt", "a.jpg one\nb.jpg one\n")
    tree.text("test.txt", "c.jpg two\nd.jpg two\n")
    tree.images("a.jpg", "b.jpg", "c.jpg", "d.jpg")
    manifest = tree.prepare(page["SHOP"], counts=None)
    assert rows(manifest, "split", "label_0") == [("test", "two"), ("test", "two"), ("train", "one"), ("train", "one")]
    tree.text("test.txt", "c.jpg two\n")
    tree.complaint(page["SHOP"], "test.txt", "1 images", counts=None)
