"""Labels corrected by hand: what is stored, what adding the source again keeps, and the manifest for the next training."""

import shutil

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline import Gallery, read_manifest
from sightline.gallery.gallery import labels_of
from sightline.gallery.relabel import corrected_manifest, relabel

FIRST, SECOND, OTHER = "super0/class00/0.png", "super0/class00/1.png", ["class04", "super1"]


@pytest.fixture
def images(image_tree, tmp_path):
    return shutil.copytree(image_tree, tmp_path / "images")


@pytest.fixture
def gallery(encoder, images, tmp_path):
    with Gallery.create(tmp_path / "gallery", encoder) as made:
        made.add_images(images)
        yield made


def stored(gallery, id_=FIRST):
    return gallery.metadata([id_])[0]


def test_coarser_labels_come_from_the_class_and_the_first_ones_can_be_restored(gallery):
    before, vector = stored(gallery), gallery.vectors([FIRST])
    assert (labels_of(before), labels_of(stored(gallery, "super1/class04/0.png"))) == (["class00", "super0"], OTHER)
    originals = {"original_label_0": "class00", "original_label_1": "super0"}
    relabelled = before | {"label_0": "class04", "label_1": "super1"} | originals
    for label, expected, is_new in (
        (" class04 ", relabelled, False),
        ("new/one", relabelled | {"label_0": "new/one"}, True),
        ("class00", before, False),  # its own again
        ("class04", relabelled, False),
        (None, before, False),
    ):
        assert relabel(gallery, FIRST, label) == (expected, is_new)
        assert stored(gallery) == expected
    np.testing.assert_array_equal(gallery.vectors([FIRST]), vector)
    for label in ("", " ", "x" * 1001, "\ud800"):
        assert_refused("label", relabel, gallery, FIRST, label)
    assert stored(gallery) == before


def test_an_item_without_labels_gets_one_and_loses_it_again(encoder, tmp_path):
    with Gallery.create(tmp_path / "plain", encoder) as gallery:
        gallery.add(["a"], np.eye(1, 8), [{"year": 2020}])
        assert labels_of(relabel(gallery, "a", "mug")[0]) == ["mug"]
        for _ in range(2):
            assert relabel(gallery, "a", None)[0] == {"year": 2020}
        assert_refused("label and an image", corrected_manifest, gallery)


def test_a_correction_outlives_its_source_until_that_changes(gallery, images):
    rows, manifest = read_manifest(images).table, images / "manifest.csv"
    rows.write_csv(manifest)
    corrected, _ = relabel(gallery, FIRST, "class04")
    for source in (images, manifest):
        assert (gallery.add_images(source).unchanged, stored(gallery)) == (len(rows), corrected)
    is_first = pl.col("id") == FIRST
    rows.with_columns(label_0=pl.when(is_first).then(pl.lit("class01")).otherwise("label_0")).write_csv(manifest)
    assert gallery.add_images(manifest).relabelled == 1
    assert labels_of(stored(gallery)) == ["class01", "super0"]
    assert gallery.filter("original_label_0 != None") == []


def test_the_manifest_has_every_label_as_corrected_and_trains(gallery, images, tmp_path, sightline):
    file, source = tmp_path / "corrected.csv", read_manifest(images)
    relabel(gallery, FIRST, "class04")
    gallery.add(["vector"], np.eye(1, 8), [{"label_0": "a"}])  # no image
    extra = {"sold": True, "note": 'a "b", c', "label_7": "no level", "n": None}
    gallery.upsert([SECOND], np.eye(1, 8), [stored(gallery, SECOND) | extra])
    status, out, _ = sightline("index", "manifest", gallery.address, "--out", file)
    counts = f"{len(source)} images, 1 relabelled, 1 left out: no label or no image"
    assert (status, out) == (0, f"{file}: {counts}\n")
    table = read_manifest(file).table
    found = {row["id"]: row for row in table.iter_rows(named=True)}
    for row, path in zip(source.table.iter_rows(named=True), source.paths(), strict=True):
        labels = OTHER if row["id"] == FIRST else [row["label_0"], row["label_1"]]
        columns = [found[row["id"]][name] for name in ("label_0", "label_1", "split", "path")]
        assert columns == [*labels, row["split"], str(path)]
    assert (found[FIRST]["original_label_0"], found[SECOND]["note"]) == ("class00", 'a "b", c')
    assert not {"file_hash", "file_root", "label_7"} & {*table.columns}
    assert sightline("data", "check", file, "--recipe=none")[0] == 0
