"""Images, manifests, lists of files and embedding tables added to galleries of every kind."""

import importlib.util
import os
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from PIL import Image

from refusals import assert_refused
from sightline.data import dataset
from sightline.data.embedding_table import EmbeddingTable
from sightline.gallery.gallery import Gallery
from sightline.models.encoder import Encoder

needs_milvus = pytest.mark.skipif(importlib.util.find_spec("milvus_lite") is None, reason="needs pymilvus[milvus_lite]")


@pytest.fixture
def gallery(encoder, tmp_path):
    with Gallery.create(tmp_path / "g", encoder) as made:
        yield made


@pytest.fixture
def photos(image_tree, tmp_path):
    """Six images that may be written to, one of them unreadable."""
    folder = shutil.copytree(image_tree / "super0" / "class00", tmp_path / "photos" / "class00").parent
    (folder / "class00/bad.png").write_bytes(b"no image")
    return folder


MILVUS = pytest.param("milvus+file:{}/lite.db/photos", marks=needs_milvus)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and pymilvus
@pytest.mark.parametrize("place", ["{}/g", MILVUS])
def test_every_kind_of_gallery_adds_what_is_new_and_names_what_cannot_be_read(
    encoder, photos, tmp_path, place, monkeypatch
):
    decoded, load = [], dataset.load_image
    monkeypatch.setattr(dataset, "load_image", lambda source, *args: decoded.append(source) or load(source, *args))
    good = sorted(path for path in photos.rglob("*.png") if path.name != "bad.png")
    ids = [path.relative_to(photos).as_posix() for path in good]
    with Gallery.create(place.format(tmp_path), encoder) as gallery:
        done = gallery.add_images(str(photos), encoder=encoder)
        assert (str(done), ["bad.png" in fault for fault in done.unreadable]) == ("6 added, 1 unreadable", [True])
        assert sorted(decoded) == sorted(photos.rglob("*.png"))  # for a broken one no other is decoded twice
        assert gallery.ids() == ids
        np.testing.assert_allclose(gallery.vectors(ids), encoder.encode(good), atol=1e-5)
        assert {row["label_0"] for row in gallery.metadata(ids)} == {"class00"}
        Image.new("RGB", (40, 40), "red").save(good[0])
        good[1].unlink()
        assert str(gallery.add_images(photos, encoder=encoder, prune=True)).startswith("1 changed, 4 unchanged, 1 pruned")


def test_a_list_of_files_keeps_its_paths_as_ids(gallery, photos, monkeypatch, tmp_path):
    monkeypatch.chdir(photos)
    files = ["class00/0.png", photos / "class00" / "1.png", "./class00/bad.png", "missing.png"]
    done = gallery.add_images(files)
    assert (done.added, len(done.unreadable)) == (2, 2)
    assert gallery.ids() == ["class00/0.png", str(photos / "class00/1.png")]
    assert str(gallery.add_images(files[:2])) == "2 unchanged"
    assert str(gallery.add_images("class00/0.png")) == "1 unchanged"  # one file
    assert str(gallery.add_images([])) == "nothing to do"
    monkeypatch.chdir(tmp_path)
    assert gallery.add_images([photos / "class00/1.png"]).added == 0  # from another working folder
    assert gallery.search_images(photos / "class00/1.png", 1)[0].results[0].score == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_added_is_refused_and_nothing_changes(gallery, photos, table, other_encoder, tmp_path):
    foreign = EmbeddingTable(table.manifest, table.vectors, "00ff").write(tmp_path / "foreign.parquet")
    (tmp_path / "empty").mkdir()
    for source, options, message in (
        (foreign, {}, f"(?s)00ff.*|.*{table.fingerprint}"),
        (tmp_path / "empty", {}, "no image"),
        ("nowhere", {}, "nowhere: no such file"),
        ("nowhere.png", {}, r"nowhere\.png: no such file"),
        (5, {}, "got int"),
        (["a.png", 5, ""], {}, "(?s)2 faults.*image 1 .*5.*image 2"),
        (["a.png", "./a.png"], {}, r"1 more than once: 'a\.png'"),
        ([photos / "class00/0.png"], {"prune": True}, "prune"),
        (photos, {"split": "test"}, "split 'test'"),
        (photos, {"encoder": other_encoder}, other_encoder.fingerprint()),
        (photos, {"moved_from": str(tmp_path)}, f"{tmp_path} still exists"),
    ):
        assert_refused(message, gallery.add_images, source, **options)
    assert len(gallery) == gallery.generation == 0


def test_a_table_and_its_folder_are_the_same_source(gallery, table, image_tree, tmp_path):
    file = table.write(tmp_path / "table.parquet")
    assert str(gallery.add_images(file)) == "72 added"
    np.testing.assert_allclose(gallery.vectors(table.ids), table.vectors, atol=1e-6)
    assert gallery.metadata(table.ids[:1])[0]["label_1"] == "super0"
    # Its images are of one source with it: they are embedded once, as no hash of theirs was known.
    expected = ["72 unchanged", "72 changed", "72 unchanged", "72 unchanged"]
    assert [str(gallery.add_images(source)) for source in (file, image_tree, table, image_tree)] == expected
    few = table.where(pl.col("label_0") == "class00")  # with other vectors, then other labels
    other = EmbeddingTable(few.manifest, few.vectors[::-1].copy(), few.fingerprint)
    assert str(gallery.add_images(other, prune=True)) == "6 changed, 66 pruned"
    np.testing.assert_allclose(gallery.vectors(few.ids), other.vectors, atol=1e-6)
    manifest = replace(few.manifest, table=few.manifest.table.with_columns(label_1=pl.lit("other")))
    assert str(gallery.add_images(EmbeddingTable(manifest, other.vectors, few.fingerprint))) == "6 relabelled"
    assert {row["label_1"] for row in gallery.metadata(gallery.ids())} == {"other"}


@pytest.fixture
def phones(image_tree, tmp_path):
    """Two folders whose images have the same names, and no content in common."""
    places = (("super0/class00", "phoneA"), ("super1/class01", "phoneB"))
    return [shutil.copytree(image_tree / source, tmp_path / name / "2023").parent for source, name in places]


def hashes(gallery):
    return {id_: row["file_hash"] for id_, row in zip(gallery.ids(), gallery.metadata(gallery.ids()), strict=True)}


def test_only_what_is_new_or_changed_is_embedded(gallery, encoder, photos, monkeypatch):
    embedded, encode, changed = [], Encoder.encode_dataset, photos / "class00/1.png"

    def noted(self, data, *rest, **options):
        embedded.extend(data.images)
        return encode(self, data, *rest, **options)

    monkeypatch.setattr(Encoder, "encode_dataset", noted)
    (photos / "class00/bad.png").unlink()
    gallery.add_images(photos)
    embedded.clear()
    os.utime(photos / "class00/0.png", (1, 1))  # compared by its bytes
    assert (str(gallery.add_images(photos)), embedded) == ("1 relabelled, 5 unchanged", [])
    Image.new("RGB", (40, 40), "red").save(changed)
    (photos / "class00/2.png").write_bytes(b"no image")
    assert str(gallery.add_images(photos)) == "1 changed, 4 unchanged, 1 unreadable"
    assert (len(gallery), photos / "class00/0.png" in embedded) == (6, False)  # the item whose file is broken is kept
    np.testing.assert_allclose(gallery.vectors(["class00/1.png"]), encoder.encode([changed]), atol=1e-5)


def test_images_of_another_folder_with_the_same_ids_are_refused_or_take_a_prefix(gallery, phones, tmp_path):
    first, second = phones
    gallery.add_images(first)
    before = hashes(gallery)
    for options in ({}, {"prune": True}, {"moved_from": first}):  # it was not moved: it is still there
        assert_refused([str(first), str(second), "prefix"], gallery.add_images, second, **options)
    assert (hashes(gallery), str(gallery.add_images(second, prefix="b/"))) == (before, "6 added")
    after = hashes(gallery)
    assert after == before | {id_: after.get(id_) for id_ in (f"b/2023/{n}.png" for n in range(6))}
    assert str(gallery.add_images(second)) == "6 unchanged"  # with the prefix that it has
    (second / "2023/0.png").unlink()
    assert str(gallery.add_images(second, prune=True)) == "5 unchanged, 1 pruned"
    assert hashes(gallery).keys() == after.keys() - {"b/2023/0.png"}
    moved = second.rename(tmp_path / "moved")
    assert str(gallery.add_images(moved, moved_from=str(second))) == "5 relabelled"  # with its prefix
    assert str(gallery.add_images(moved, prefix="c")) == "5 added"
    assert_refused("'b', 'c'", gallery.add_images, moved)
    gallery.add(["2023/9.png"], np.eye(8)[:1])  # as a vector
    shutil.copy(first / "2023/0.png", first / "2023/9.png")
    assert_refused(r"'2023/9\.png'.*vector", gallery.add_images, first)
    assert str(gallery.add_images(first, prefix="a", prune=True)) == "7 added"  # what came from elsewhere stays


def test_images_that_moved_are_known_by_their_bytes_or_if_that_is_said(gallery, phones, tmp_path):
    gallery.add_images(phones[0])
    new = phones[0].rename(tmp_path / "elsewhere")
    assert str(gallery.add_images(new)) == "6 relabelled"
    newer = new.rename(tmp_path / "newer")
    Image.new("RGB", (40, 40), "red").save(newer / "2023/1.png")
    (newer / "2023/2.png").unlink()
    assert_refused(f"--moved-from {new}", gallery.add_images, newer)
    assert str(gallery.add_images(newer, moved_from=new, prune=True)) == "1 changed, 4 relabelled, 1 pruned"


def test_a_gallery_that_stores_no_roots_knows_them_by_its_paths(gallery, phones, tmp_path):
    first, second = phones
    manifest = tmp_path / "m.csv"
    manifest.write_text("id,path,split,label\none,phoneB/2023/0.png,test,a\ntwo,phoneB/2023/1.png,test,b\n")
    gallery.add_images(first)
    gallery.add_images(manifest)
    ids = gallery.ids()
    known = [{key: value for key, value in row.items() if key != "file_root"} for row in gallery.metadata(ids)]
    gallery.upsert(ids, gallery.vectors(ids), known)  # as earlier versions wrote it
    assert_refused("prefix", gallery.add_images, second)
    assert str(gallery.add_images(first)) == "6 unchanged"
    (first / "2023/0.png").unlink()
    assert str(gallery.add_images(first, prune=True)) == "5 unchanged, 1 pruned"
    manifest.write_text("id,path,split,label\none,phoneB/2023/2.png,test,a\n")
    assert str(gallery.add_images(manifest, prune=True)).startswith("1 changed")


def test_removed_items_stay_removed_and_pruned_ones_do_not(encoder, phones, tmp_path):
    photos = shutil.move(phones[0], tmp_path / "all" / "photos")
    with Gallery.create(tmp_path / "all" / "g", encoder) as gallery:
        gallery.add_images(photos)
        gallery.remove(["2023/0.png"])
        done = gallery.add_images(photos, prune=True)
        assert (done.unchanged, done.left_out, "--restore-removed" in str(done)) == (5, 1, True)
        gallery.compact()
    there = (tmp_path / "all").rename(tmp_path / "there")  # moved with its images
    photos = there / "photos"
    with Gallery.open(there / "g") as gallery:
        assert gallery.add_images(photos).left_out == 1
        assert str(gallery.add_images(photos, restore_removed=True)) == "1 added, 5 unchanged"
        away = (photos / "2023/1.png").rename(tmp_path / "away.png")
        assert str(gallery.add_images(photos, prune=True)) == "5 unchanged, 1 pruned"
        away.rename(photos / "2023/1.png")
        assert str(gallery.add_images(photos)) == "1 added, 5 unchanged"
        gallery.remove(["2023/1.png"])
        gallery.add(["2023/1.png"], np.eye(8)[:1])
        gallery.remove(["2023/1.png"])
        assert str(gallery.add_images(photos)) == "1 added, 5 unchanged"  # added as a vector after it was removed
