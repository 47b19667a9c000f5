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
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder

needs_milvus = pytest.mark.skipif(importlib.util.find_spec("milvus_lite") is None, reason="needs pymilvus[milvus_lite]")


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", 8, image_size=32)


@pytest.fixture(scope="module")
def table(encoder, image_tree):
    return embed_manifest(encoder, read_manifest(image_tree))


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


@needs_milvus
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and pymilvus
@pytest.mark.parametrize("place", ["g", "milvus+file:{}/lite.db/photos"])
def test_every_kind_of_gallery_adds_what_is_new_and_names_what_cannot_be_read(encoder, photos, tmp_path, place):
    good = sorted(path for path in photos.rglob("*.png") if path.name != "bad.png")
    address = place.format(tmp_path) if "{" in place else tmp_path / place
    with Gallery.create(address, encoder) as gallery:
        done = gallery.add_images(str(photos), encoder=encoder)
        assert (str(done), ["bad.png" in fault for fault in done.unreadable]) == ("6 added, 1 unreadable", [True])
        ids = [path.relative_to(photos).as_posix() for path in good]
        assert gallery.ids() == ids
        np.testing.assert_allclose(gallery.vectors(ids), encoder.encode(good), atol=1e-5)
        assert {row["label_0"] for row in gallery.metadata(ids)} == {"class00"}
        Image.new("RGB", (40, 40), "red").save(good[0])
        good[1].unlink()
        assert str(gallery.add_images(photos, encoder=encoder, prune=True)).startswith("1 changed, 4 unchanged, 1 pruned")


def test_a_broken_image_has_no_other_one_decoded_twice(gallery, photos, monkeypatch):
    decoded, load = [], dataset.load_image
    monkeypatch.setattr(dataset, "load_image", lambda source, *args: decoded.append(source.name) or load(source, *args))
    assert str(gallery.add_images(photos)) == "6 added, 1 unreadable"
    assert sorted(decoded) == sorted(path.name for path in photos.rglob("*.png"))


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


def test_what_cannot_be_added_is_refused_and_nothing_changes(gallery, photos, table, tmp_path):
    foreign = EmbeddingTable(table.manifest, table.vectors, "00ff").write(tmp_path / "foreign.parquet")
    other = Encoder.create("tiny", 8, image_size=32, seed=1)
    (tmp_path / "empty").mkdir()
    refused = [
        (lambda: gallery.add_images(foreign), f"(?s)00ff.*|.*{table.fingerprint}"),
        (lambda: gallery.add_images(tmp_path / "empty"), "no image"),
        (lambda: gallery.add_images("nowhere"), "nowhere: no such file"),
        (lambda: gallery.add_images("nowhere.png"), r"nowhere\.png: no such file"),
        (lambda: gallery.add_images(5), "got int"),
        (lambda: gallery.add_images(["a.png", 5, ""]), "(?s)2 faults.*image 1 .*5.*image 2"),
        (lambda: gallery.add_images(["a.png", "./a.png"]), r"1 more than once: 'a\.png'"),
        (lambda: gallery.add_images([photos / "class00/0.png"], prune=True), "prune"),
        (lambda: gallery.add_images(photos, split="test"), "split 'test'"),
        (lambda: gallery.add_images(photos, encoder=other), other.fingerprint()),
        (lambda: gallery.add_images(photos, moved_from=str(tmp_path)), f"{tmp_path} still exists"),
    ]
    for call, message in refused:
        assert_refused(message, call)
    assert len(gallery) == gallery.generation == 0


def test_a_table_and_its_folder_are_the_same_source(gallery, table, image_tree, tmp_path):
    file = table.write(tmp_path / "table.parquet")
    assert str(gallery.add_images(file)) == "72 added"
    np.testing.assert_allclose(gallery.vectors(table.ids), table.vectors, atol=1e-6)
    assert gallery.metadata(table.ids[:1])[0]["label_1"] == "super0"
    # Its images are of one source with it: they are embedded once, as no hash of theirs was known.
    expected = ["72 unchanged", "72 changed", "72 unchanged", "72 unchanged"]
    assert [str(gallery.add_images(source)) for source in (file, image_tree, table, image_tree)] == expected


def test_other_vectors_and_labels_of_a_table(gallery, table):
    gallery.add_images(table)
    few = table.where(pl.col("label_0") == "class00")
    other = EmbeddingTable(few.manifest, few.vectors[::-1].copy(), few.fingerprint)
    done = gallery.add_images(other, prune=True)
    assert (done.changed, done.pruned, len(gallery)) == (6, 66, 6)
    np.testing.assert_allclose(gallery.vectors(few.ids), other.vectors, atol=1e-6)
    manifest = replace(few.manifest, table=few.manifest.table.with_columns(label_1=pl.lit("other")))
    assert str(gallery.add_images(EmbeddingTable(manifest, other.vectors, few.fingerprint))) == "6 relabelled"
    assert {row["label_1"] for row in gallery.metadata(few.ids)} == {"other"}


@pytest.fixture
def phones(image_tree, tmp_path):
    """Two folders whose images have the same names, and no content in common."""
    places = (("super0/class00", "phoneA"), ("super1/class01", "phoneB"))
    return [shutil.copytree(image_tree / source, tmp_path / name / "2023").parent for source, name in places]


def hashes(gallery):
    return {id_: row["file_hash"] for id_, row in zip(gallery.ids(), gallery.metadata(gallery.ids()), strict=True)}


def test_only_what_is_new_or_changed_is_embedded(gallery, encoder, photos, monkeypatch):
    embedded, encode = [], Encoder.encode_dataset

    def noted(self, data, *rest, **options):
        embedded.extend(data.images)
        return encode(self, data, *rest, **options)

    monkeypatch.setattr(Encoder, "encode_dataset", noted)
    (photos / "class00/bad.png").unlink()
    gallery.add_images(photos)
    embedded.clear()
    os.utime(photos / "class00/0.png", (1, 1))  # compared by its bytes
    assert str(gallery.add_images(photos)) == "1 relabelled, 5 unchanged"
    Image.new("RGB", (40, 40), "red").save(photos / "class00/1.png")
    (photos / "class00/2.png").write_bytes(b"no image")
    assert embedded == []
    assert str(gallery.add_images(photos)) == "1 changed, 4 unchanged, 1 unreadable"
    assert len(gallery) == 6  # the item whose file is broken is kept
    assert photos / "class00/0.png" not in embedded
    found = gallery.vectors(["class00/1.png"])
    np.testing.assert_allclose(found, encoder.encode([photos / "class00/1.png"]), atol=1e-5)


def test_images_of_another_folder_with_the_same_ids_are_refused_or_take_a_prefix(gallery, phones, tmp_path):
    first, second = phones
    gallery.add_images(first)
    before = hashes(gallery)
    for options in ({}, {"prune": True}, {"moved_from": first}):  # it was not moved: it is still there
        with pytest.raises(InputError) as refused:
            gallery.add_images(second, **options)
        assert all(fact in str(refused.value) for fact in (str(first), str(second), "prefix"))
        assert hashes(gallery) == before
    assert str(gallery.add_images(second, prefix="b/")) == "6 added"
    after = hashes(gallery)
    assert after.items() > before.items()
    assert sorted(after.keys() - before.keys()) == [f"b/2023/{n}.png" for n in range(6)]
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
