"""Labels corrected by hand: what is stored, what adding the source again keeps, and the manifest for the next training."""

import shutil

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline import Encoder, Gallery, InputError, read_manifest
from sightline.gallery.gallery import labels_of
from sightline.gallery.relabel import corrected_manifest, relabel

FIRST, OTHER = "super0/class00/0.png", ["class04", "super1"]


@pytest.fixture
def images(image_tree, tmp_path):
    return shutil.copytree(image_tree, tmp_path / "images")


@pytest.fixture
def gallery(images, tmp_path):
    with Gallery.create(tmp_path / "gallery", Encoder.create("tiny", embedding_dim=8, image_size=32)) as made:
        made.add_images(images)
        yield made


def stored(gallery, id_=FIRST):
    return gallery.metadata([id_])[0]


def test_coarser_labels_come_from_the_class_and_the_first_ones_can_be_restored(gallery):
    before, vector = stored(gallery), gallery.vectors([FIRST])
    assert labels_of(before) == ["class00", "super0"]
    assert labels_of(stored(gallery, "super1/class04/0.png")) == OTHER
    now, is_new = relabel(gallery, FIRST, " class04 ")
    originals = {"original_label_0": "class00", "original_label_1": "super0"}
    assert (now, is_new) == (before | dict(zip(["label_0", "label_1"], OTHER, strict=True)) | originals, False)
    now, is_new = relabel(gallery, FIRST, "new/one")
    assert (labels_of(now), now["original_label_0"], is_new) == (["new/one", "super1"], "class00", True)
    assert stored(gallery) == now
    assert relabel(gallery, FIRST, "class00") == (before, False)  # its own again
    relabel(gallery, FIRST, "class04")
    assert relabel(gallery, FIRST, None) == (stored(gallery), False) == (before, False)
    np.testing.assert_array_equal(gallery.vectors([FIRST]), vector)
    for label in ("", " ", "x" * 1001, "\ud800"):
        with pytest.raises(InputError):
            relabel(gallery, FIRST, label)
    assert stored(gallery) == before


def test_an_item_without_labels_gets_one_and_loses_it_again(tmp_path):
    with Gallery.create(tmp_path / "plain", Encoder.create("tiny", embedding_dim=8, image_size=32)) as gallery:
        gallery.add(["a"], np.eye(1, 8), [{"year": 2020}])
        assert labels_of(relabel(gallery, "a", "mug")[0]) == ["mug"]
        assert relabel(gallery, "a", None)[0] == {"year": 2020}
        assert relabel(gallery, "a", None)[0] == {"year": 2020}
        assert_refused("label and an image", corrected_manifest, gallery)


def test_a_correction_outlives_its_source_until_that_changes(gallery, images, tmp_path):
    rows = read_manifest(images).table
    manifest = tmp_path / "images" / "manifest.csv"
    rows.write_csv(manifest)
    relabel(gallery, FIRST, "class04")
    corrected = stored(gallery)
    for source in (images, manifest):
        assert gallery.add_images(source).unchanged == len(rows)
        assert stored(gallery) == corrected
    is_first = pl.col("id") == FIRST
    rows.with_columns(label_0=pl.when(is_first).then(pl.lit("class01")).otherwise("label_0")).write_csv(manifest)
    assert gallery.add_images(manifest).relabelled == 1
    assert labels_of(stored(gallery)) == ["class01", "super0"]
    assert gallery.filter("original_label_0 != None") == []


def test_the_manifest_has_every_label_as_corrected_and_trains(gallery, images, tmp_path, sightline):
    relabel(gallery, FIRST, "class04")
    gallery.add(["vector"], np.eye(1, 8), [{"label_0": "a"}])  # no image
    extra = gallery.metadata(["super0/class00/1.png"])[0] | {
        "sold": True,
        "note": 'a "b", c',
        "label_7": "no level",
        "n": None,
    }
    gallery.upsert(["super0/class00/1.png"], np.eye(1, 8), [extra])
    status, out, _ = sightline("index", "manifest", gallery.address, "--out", tmp_path / "corrected.csv")
    n_images = len(read_manifest(images))
    assert (status, out) == (
        0,
        f"{tmp_path / 'corrected.csv'}: {n_images} images, 1 relabelled, 1 left out: no label or no image\n",
    )
    read = read_manifest(tmp_path / "corrected.csv")
    rows = {row["id"]: row for row in read.table.iter_rows(named=True)}
    for row, path in zip(read_manifest(images).table.iter_rows(named=True), read_manifest(images).paths(), strict=True):
        labels = OTHER if row["id"] == FIRST else [row["label_0"], row["label_1"]]
        found = rows[row["id"]]
        assert [found["label_0"], found["label_1"], found["split"], found["path"]] == [*labels, row["split"], str(path)]
    assert (rows[FIRST]["original_label_0"], rows["super0/class00/1.png"]["note"]) == ("class00", 'a "b", c')
    assert not {"file_hash", "file_root", "label_7"} & {*read.table.columns}
    assert sightline("data", "check", tmp_path / "corrected.csv", "--recipe=none")[0] == 0
