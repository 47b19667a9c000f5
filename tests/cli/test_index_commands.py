"""From a folder of images to a gallery that is kept, and to answers as a table, as JSON and as a page."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from sightline.gallery.gallery import Gallery
from sightline.models.encoder import Encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path_factory.mktemp("e") / "encoder")


@pytest.fixture
def images(image_tree, tmp_path):
    """A copy that may be written to."""
    return shutil.copytree(image_tree, tmp_path / "images")


@pytest.fixture
def built(sightline, encoder, images, tmp_path):
    status, out, _ = sightline("index", "build", encoder, images, "--out", tmp_path / "gallery", "--workers", 0)
    assert (status, out) == (0, f"{tmp_path / 'gallery'}: 72 items: 72 added\nindex: exact\n")
    return tmp_path / "gallery"


def flip(file, place):
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def nearest_by_hand(encoder, images, query, k):
    """Paths by falling cosine, each image embedded by itself."""
    model = Encoder.from_pretrained(encoder)
    paths = sorted(images.rglob("*.png"))
    vectors = np.concatenate([model.encode([path]) for path in paths]).astype(float)
    cosines = vectors @ model.encode([query])[0].astype(float)
    return [str(paths[place]) for place in np.argsort(-cosines)[:k]]


def test_search_by_image_folder_and_id(sightline, encoder, images, built):
    query = images / "super0/class00/0.png"
    expected = nearest_by_hand(encoder, images, query, 4)
    status, out, _ = sightline("search", query, "--gallery", built, "-k", 4)
    first, *hits = out.splitlines()
    assert (status, first) == (0, str(query))
    assert [hit.split()[2] for hit in hits] == expected
    assert hits[0].split()[1:] == ["1.0000", str(query), "class00", "<", "super0"]

    status, out, _ = sightline("search", "super0/class00/0.png", "--gallery", built, "-k", 3, "--json")
    (answer,) = json.loads(out)
    assert answer["query"] == "super0/class00/0.png"
    assert [hit["metadata"]["path"] for hit in answer["results"]] == expected[1:]  # it does not find itself
    assert answer["results"][0]["metadata"]["file_size"] == os.path.getsize(expected[1])

    status, out, _ = sightline("search", images / "super0/class00", "--gallery", built, "-k", 1)
    assert (status, len(out.splitlines())) == (0, 12)

    status, out, _ = sightline("search", query, "--gallery", built, "--where", 'label_0 == "class03"', "-k", 99, "--json")
    assert {hit["metadata"]["label_0"] for hit in json.loads(out)[0]["results"]} == {"class03"}
    assert len(json.loads(out)[0]["results"]) == 6

    for options in (["--expand", 3], ["--expand", 3, "--alpha", 0], ["--rerank", "kreciprocal"]):
        status, out, _ = sightline("search", query, "--gallery", built, "-k", 5, *options)
        assert (status, len(out.splitlines())) == (0, 6)


def test_a_contact_sheet_has_every_picture_inside(sightline, images, built, tmp_path):
    query = images / "super0/class00/0.png"
    nasty = images / "super0/class00/<b>&.png"
    shutil.copy(query, nasty)
    sightline("index", "add", built, images, "--workers", 0)
    status, out, _ = sightline("search", query, "--gallery", built, "-k", 5, "--html", tmp_path / "sheet.html")
    assert (status, out.strip()) == (0, str(tmp_path / "sheet.html"))
    page = (tmp_path / "sheet.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 6
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "class00 &lt; super0" in page
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;.png" in page
    nasty.unlink()
    sightline("search", query, "--gallery", built, "-k", 5, "--html", tmp_path / "sheet.html")
    assert (tmp_path / "sheet.html").read_text().count("no image") == 1


def test_only_what_is_new_or_changed_is_embedded(sightline, encoder, images, built, monkeypatch):
    embedded = []
    encode = Encoder.encode_dataset

    def watched(self, dataset, *args):
        embedded.extend(path.name for path in dataset.images)
        return encode(self, dataset, *args)

    monkeypatch.setattr(Encoder, "encode_dataset", watched)

    def add(*options):
        embedded.clear()
        status, out, err = sightline("index", "add", built, images, "--workers", 0, *options)
        assert status == 0
        return out.partition("items: ")[2].splitlines()[0], err

    assert add()[0] == "72 unchanged"
    assert embedded == []
    os.utime(images / "super0/class00/0.png", (1, 1))  # touched: compared by its bytes
    assert add()[0] == "1 relabelled, 71 unchanged"
    assert embedded == []
    assert add()[0] == "72 unchanged"

    Image.new("RGB", (40, 40), "red").save(images / "super0/class00/1.png")
    Image.new("RGB", (40, 40), "blue").save(images / "super0/class00/new.png")
    (images / "super0/class00/2.png").write_bytes(b"no image")
    (images / "super0/class00/bad.png").write_bytes(b"no image")
    told, err = add()
    assert told == "1 added, 1 changed, 70 unchanged, 2 broken"
    assert err.count("skipped: ") == 2
    assert "2.png: not a readable image" in err
    with Gallery.open(built) as gallery:
        assert len(gallery) == 73  # the item whose file broke is kept as it was
        found = gallery.vectors(["super0/class00/1.png", "super0/class00/new.png"])
        paths = [images / "super0/class00/1.png", images / "super0/class00/new.png"]
        np.testing.assert_allclose(found, Encoder.from_pretrained(encoder).encode(paths), atol=1e-5)

    shutil.rmtree(images / "super1")
    told, _ = add("--prune")
    assert told == "48 unchanged, 24 pruned, 2 broken"


def test_labels_that_change_are_taken_without_embedding(sightline, encoder, images, tmp_path):
    manifest = tmp_path / "m.csv"
    manifest.write_text("path,split,label,year\nimages/super0/class00/0.png,test,a,2001\n")
    words = ["index", "build", encoder, manifest, "--out", tmp_path / "g", "--workers", 0]
    assert "1 added" in sightline(*words)[1]
    manifest.write_text("path,split,label,year\nimages/super0/class00/0.png,test,b,2001\n")
    assert "1 relabelled" in sightline(*words)[1]
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.filter('label_0 == "b" and split == "test"') == ["images/super0/class00/0.png"]


def test_remove_verify_stats_compact(sightline, built):
    status, out, _ = sightline("index", "remove", built, "super0/class00/0.png", "super0/class00/1.png")
    assert (status, out) == (0, f"{built}: 2 removed, 70 left\n")
    status, out, _ = sightline("index", "remove", built, "--where", 'label_1 == "super1"')
    assert (status, out) == (0, f"{built}: 24 removed, 46 left\n")
    status, _, err = sightline("index", "remove", built, "nobody", "super0/class00/2.png")
    assert (status, "1 unknown ids: 'nobody'" in err) == (2, True)
    assert sightline("index", "remove", built)[0] == 2
    assert sightline("index", "verify", built)[:2] == (0, f"{built}: 46 items, no fault\n")
    stats = json.loads(sightline("index", "stats", built, "--json")[1])
    assert (stats["items"], stats["removed"], stats["dim"], stats["encoder"]) == (46, 26, 8, "tiny")
    status, out, _ = sightline("index", "compact", built)
    assert (status, "46 items" in out) == (0, True)
    assert re.search(r"removed +0\n", sightline("index", "stats", built)[1])


def test_verify_tells_of_damage_with_status_2(sightline, built):
    file, (weights,) = built / "gallery.db", (built / "encoder").glob("*.safetensors")
    flip(file, file.read_bytes().index(b'"label_0": "class05"') + 14)
    status, out, err = sightline("index", "verify", built)
    assert (status, out) == (2, "")
    told = r"  item 'super\d/class05/\d.png' in row \d+: the checksum of its id and metadata"
    assert re.search(rf"gallery: 1 fault\n{told}", err)
    flip(weights, -5)
    status, out, err = sightline("index", "verify", built)
    assert (status, out) == (2, "")
    assert re.search(rf"gallery: 2 faults\n{told}", err)
    assert str(built / "encoder") in err


def test_a_long_id_is_no_file(sightline, built):
    with Gallery.open(built) as gallery:
        gallery.add(["x" * 300], np.eye(8)[:1])
    status, out, _ = sightline("search", "x" * 300, "--gallery", built, "-k", 1)
    assert (status, out.splitlines()[0]) == (0, "x" * 300)


def test_a_damaged_index_is_told_by_search_and_verify_and_built_anew_by_repair(sightline, encoder, images, tmp_path):
    words = ["index", "build", encoder, images, "--out", tmp_path / "g", "--workers", 0, "--index", "HNSW8"]
    assert sightline(*words)[0] == 0
    (file,) = (tmp_path / "g").glob("index-*.faiss")
    query = ["search", "super0/class00/0.png", "--gallery", tmp_path / "g"]
    expected = sightline(*query)
    assert expected[2] == ""
    flip(file, file.stat().st_size // 2)
    status, out, err = sightline(*query)
    told = f"{file.name}: damaged or missing; "
    assert (status, out, err) == (*expected[:2], f"sightline: {tmp_path / 'g'}: {told}searched by brute force\n")
    status, out, err = sightline("index", "verify", tmp_path / "g")
    assert (status, out, file.name in err, "--repair" in err) == (2, "", True, True)
    assert sightline("index", "verify", tmp_path / "g", "--repair")[:2] == (
        0,
        f"repaired: {told}rebuilt\n{tmp_path / 'g'}: 72 items, no fault\n",
    )
    assert sightline("index", "verify", tmp_path / "g")[1] == f"{tmp_path / 'g'}: 72 items, no fault\n"
    assert sightline(*query) == expected


def test_a_filter_that_nothing_passes_says_so_and_names_what_no_item_has(sightline, built, tmp_path):
    words = ["search", "super0/class00/0.png", "--gallery", built]
    status, out, _ = sightline(*words, "--where", 'label_1 == "none"')
    assert (status, out) == (0, "super0/class00/0.png\n      nothing found\n")
    _, out, _ = sightline(*words, "--where", 'label_1 == "super0" and labl == "x" and shade > 3')
    assert out.endswith("      nothing found: no item has 'labl', 'shade'\n")
    sightline(*words, "--where", 'labl == "x"', "--html", tmp_path / "sheet.html")
    assert "nothing found: no item has &#39;labl&#39;" in (tmp_path / "sheet.html").read_text()


def test_what_cannot_be_built_is_refused_before_images_are_embedded(sightline, encoder, images, built, tmp_path):
    for options in (["--recall", 95], ["--index", "flat"]):
        for out in (built, tmp_path / "new"):
            status, said, _ = sightline("index", "build", encoder, images, "--out", out, "--workers", 0, *options)
            assert (status, said) == (2, "")
    assert not (tmp_path / "new").exists()
    words = ["index", "build", encoder, images, "--out", built, "--workers", 0, "--index", "IVF256,Flat"]
    assert sightline(*words)[1].endswith("\nindex: exact; 72 items are too few for IVF256,Flat\n")


def test_a_faiss_index_prints_the_recall_it_was_measured_at(sightline, encoder, images, tmp_path):
    words = ["index", "build", encoder, images, "--out", tmp_path / "g", "--workers", 0]
    status, out, _ = sightline(*words, "--index", "IVF4,Flat", "--recall", 1)
    assert status == 0
    assert re.search(r"^index: IVF4,Flat, recall@10 1\.0000 against exact, nprobe \d$", out, flags=re.M)
    status, _, err = sightline(*words, "--index", "HNWS32")
    assert (status, "index 'HNWS32' is no FAISS factory string" in err) == (2, True)


def test_mistakes_are_one_message_and_status_2(sightline, encoder, images, built, tmp_path):
    other = Encoder.create("tiny", 8, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    search = ["search", images / "super0/class00/0.png", "--gallery"]
    mistakes = [
        (["search", "x.png", "--gallery", "nowhere"], "nowhere: not a gallery"),
        (["search", "x.png", "--gallery", built], "1 unknown ids: 'x.png'; and there is no image or folder of"),
        (["search", "x.png"], "either --gallery or --table is needed"),
        (["search", "", "--gallery", built], "nothing to search for"),
        ([*search, built / "gallery.db"], "it is a file, and a gallery is a folder"),
        ([*search, built, "--html", "."], ".: must be a file, got a folder"),
        ([*search, built, "--where", "label_0 == class00"], "strings in quotes"),
        ([*search, built, "--where", "import os"], "filter 'import os': cannot be read"),
        ([*search, built, "--encoder", other], "another encoder"),
        ([*search, built, "--rerank", "x"], "unknown re-ranking 'x'"),
        (["index", "build", other, images, "--out", built], "another encoder"),
        (["index", "build", encoder, images, "--out", images], "exists and is not empty"),
        (["index", "add", built, "nowhere"], "nowhere: no such file or folder"),
        (["index", "stats", images], "not a gallery"),
    ]
    for words, message in mistakes:
        status, out, err = sightline(*words)
        assert (status, out) == (2, ""), words
        assert message in err
        assert "Traceback" not in err
    with Gallery.open(built) as gallery:
        assert (len(gallery), gallery.verify()) == (72, [])


@pytest.fixture
def phones(images, tmp_path):
    """Two folders whose images have the same names, and no content in common."""
    one, two = images / "super0" / "class00", images / "super1" / "class01"
    return [shutil.copytree(folder, tmp_path / name / "2023").parent for folder, name in ((one, "phoneA"), (two, "phoneB"))]


def summary(out):
    return out.partition("items: ")[2].splitlines()[0]


def hashes(folder):
    with Gallery.open(folder, read_only=True) as gallery:
        return {id_: row["file_hash"] for id_, row in zip(gallery.ids(), gallery.metadata(gallery.ids()), strict=True)}


def test_images_of_another_folder_with_the_same_ids_are_refused_or_take_a_prefix(sightline, encoder, phones, tmp_path):
    gallery, (first, second) = tmp_path / "g", phones
    assert sightline("index", "build", encoder, first, "--out", gallery, "--workers", 0)[0] == 0
    before = hashes(gallery)
    for words in (["index", "add", gallery, second], ["index", "build", encoder, second, "--out", gallery, "--prune"]):
        status, out, err = sightline(*words, "--workers", 0)
        assert (status, out) == (2, "")
        assert all(fact in err for fact in ("'2023/0.png'", str(first), str(second), "--prefix"))
        assert "--moved-from" not in err
        assert hashes(gallery) == before
    add = ["index", "add", gallery, second, "--workers", 0]
    status, _, err = sightline(*add, "--moved-from", first)  # it was not: it is still there
    assert (status, str(first) in err, hashes(gallery) == before) == (2, True, True)
    assert summary(sightline(*add, "--prefix", "b/")[1]) == "6 added"
    after = hashes(gallery)
    assert after.items() > before.items()
    assert sorted(after.keys() - before.keys()) == [f"b/2023/{n}.png" for n in range(6)]
    assert summary(sightline(*add)[1]) == "6 unchanged"  # with the prefix that it has
    (second / "2023/0.png").unlink()
    assert summary(sightline(*add, "--prune")[1]) == "5 unchanged, 1 pruned"
    assert hashes(gallery).keys() == after.keys() - {"b/2023/0.png"}
    moved = second.rename(tmp_path / "moved")
    told = sightline("index", "add", gallery, moved, "--moved-from", second, "--workers", 0)[1]
    assert summary(told) == "5 relabelled"  # with its prefix
    moved.rename(second)
    assert summary(sightline(*add, "--moved-from", moved)[1]) == "5 relabelled"
    assert summary(sightline(*add, "--prefix", "c")[1]) == "5 added"
    status, _, err = sightline(*add)
    assert (status, "'b', 'c'" in err, "--prefix" in err) == (2, True, True)


def test_images_that_moved_are_taken_for_the_same_by_their_bytes_or_if_that_is_said(sightline, encoder, phones, tmp_path):
    gallery, (first, _) = tmp_path / "g", phones
    assert sightline("index", "build", encoder, first, "--out", gallery, "--workers", 0)[0] == 0
    new = first.rename(tmp_path / "elsewhere")
    assert summary(sightline("index", "add", gallery, new, "--workers", 0)[1]) == "6 relabelled"
    newer = new.rename(tmp_path / "newer")
    Image.new("RGB", (40, 40), "red").save(newer / "2023/1.png")
    (newer / "2023/2.png").unlink()
    status, _, err = sightline("index", "add", gallery, newer, "--workers", 0)
    assert (status, f"--moved-from {new}" in err) == (2, True)
    words = ["index", "add", gallery, newer, "--moved-from", new, "--prune", "--workers", 0]
    assert summary(sightline(*words)[1]) == "1 changed, 4 relabelled, 1 pruned"


def test_ids_that_were_uploaded_or_added_in_python_are_refused_too(sightline, encoder, phones, tmp_path):
    with Gallery.create(tmp_path / "g", Encoder.from_pretrained(encoder)) as gallery:
        gallery.add(["2023/3.png"], np.eye(8)[:1], [{"path": str(phones[0] / "2023/3.png")}])
    status, _, err = sightline("index", "add", tmp_path / "g", phones[0], "--workers", 0)
    assert (status, "'2023/3.png'" in err, "--prefix" in err, "--moved-from" in err) == (2, True, True, False)
    words = ["index", "add", tmp_path / "g", phones[0], "--workers", 0, "--prune", "--prefix", "a"]
    assert summary(sightline(*words)[1]) == "6 added"  # nothing pruned: it did not come from there


def without_roots(folder):
    """The gallery as versions wrote it that noted no root."""
    with Gallery.open(folder) as gallery:
        ids = gallery.ids()
        known = [{key: value for key, value in row.items() if key != "file_root"} for row in gallery.metadata(ids)]
        gallery.upsert(ids, gallery.vectors(ids), known)


def test_a_gallery_that_notes_no_roots_knows_them_by_its_paths(sightline, encoder, phones, tmp_path):
    gallery, (first, second) = tmp_path / "g", phones
    sightline("index", "build", encoder, first, "--out", gallery, "--workers", 0)
    without_roots(gallery)
    assert sightline("index", "add", gallery, second, "--workers", 0)[0] == 2
    assert summary(sightline("index", "add", gallery, first, "--workers", 0)[1]) == "6 unchanged"
    assert summary(sightline("index", "add", gallery, second, "--prefix", "b", "--workers", 0)[1]) == "6 added"
    (first / "2023/0.png").unlink()
    assert summary(sightline("index", "add", gallery, first, "--prune", "--workers", 0)[1]) == "5 unchanged, 1 pruned"


def test_a_manifest_with_ids_of_its_own_updates_a_gallery_that_notes_no_roots(sightline, encoder, images, tmp_path):
    manifest = tmp_path / "m.csv"
    manifest.write_text(
        "id,path,split,label\none,images/super0/class00/0.png,test,a\ntwo,images/super0/class00/1.png,test,b\n"
    )
    words = ["index", "build", encoder, manifest, "--out", tmp_path / "g", "--workers", 0]
    sightline(*words)
    without_roots(tmp_path / "g")
    manifest.write_text("id,path,split,label\none,images/super0/class00/2.png,test,a\n")
    assert summary(sightline(*words, "--prune")[1]) == "1 changed, 1 pruned"


def test_pruning_and_removing_as_the_tutorial_does_keep_what_they_should(sightline, encoder, phones, tmp_path):
    gallery, (photos, new_photos) = tmp_path / "g", phones
    build = ["index", "build", encoder, photos, "--out", gallery, "--workers", 0]
    sightline(*build)
    (new_photos / "2023").rename(new_photos / "2024")
    assert summary(sightline("index", "add", gallery, new_photos, "--workers", 0)[1]) == "6 added"
    sightline("index", "remove", gallery, "2023/0.png")
    told = summary(sightline(*build, "--prune")[1])
    assert told.startswith("5 unchanged, 1 left out")
    assert "--restore-removed" in told
    assert len(hashes(gallery)) == 11
    assert "2023/0.png" not in hashes(gallery)
    sightline("index", "compact", gallery)
    assert "1 left out" in sightline(*build)[1]
    assert summary(sightline(*build, "--restore-removed")[1]) == "1 added, 5 unchanged"
    assert summary(sightline(*build)[1]) == "6 unchanged"

    away = (photos / "2023/1.png").rename(tmp_path / "away.png")
    assert summary(sightline(*build, "--prune")[1]) == "5 unchanged, 1 pruned"
    away.rename(photos / "2023/1.png")
    assert summary(sightline(*build, "--prune")[1]) == "1 added, 5 unchanged"  # pruned is not removed

    sightline("index", "remove", gallery, "2023/1.png")
    with Gallery.open(gallery) as opened:
        opened.add(["2023/1.png"], np.eye(8)[:1])
        opened.remove(["2023/1.png"])
    assert summary(sightline(*build)[1]) == "1 added, 5 unchanged"  # added by hand since it was removed


def test_a_removed_item_of_a_gallery_that_moved_with_its_images_stays_removed(sightline, encoder, phones, tmp_path):
    (tmp_path / "all").mkdir()
    photos = shutil.move(phones[0], tmp_path / "all" / "photos")
    sightline("index", "build", encoder, photos, "--out", tmp_path / "all" / "g", "--workers", 0)
    sightline("index", "remove", tmp_path / "all" / "g", "2023/0.png")
    there = (tmp_path / "all").rename(tmp_path / "there")
    told = summary(sightline("index", "add", there / "g", there / "photos", "--prune", "--workers", 0)[1])
    assert told.startswith("5 unchanged, 1 left out")
