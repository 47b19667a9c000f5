"""From a folder of images to a gallery that is maintained, and to answers as text, JSON and a page."""

import json
import os
import re
import shutil
from typing import get_args

import numpy as np
import pytest
import torch

from sightline.cli.console import BACKENDS
from sightline.gallery.gallery import Gallery
from sightline.models.encoder import Encoder
from sightline.models.inference import BackendName, torch_backend

ID, ALONE = "super0/class00/0.png", ["--workers", 0]


@pytest.fixture
def built(sightline, encoder, images, tmp_path):
    status, out, _ = sightline("index", "build", encoder, images, "--out", tmp_path / "gallery", *ALONE)
    assert (status, out) == (0, f"{tmp_path / 'gallery'}: 72 items: 72 added\nindex: exact\n")
    return tmp_path / "gallery"


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_search_by_image_folder_and_id(sightline, encoder, images, built):
    query, where = images / ID, ["--gallery", built, "-k"]
    model, paths = Encoder.from_pretrained(encoder), sorted(images.rglob("*.png"))
    vectors = np.concatenate([model.encode([path]) for path in paths]).astype(float)
    expected = [str(paths[place]) for place in np.argsort(-(vectors @ model.encode([query])[0]))[:4]]
    status, out, _ = sightline("search", query, *where, 4)
    first, *hits = out.splitlines()
    assert (status, first, [hit.split()[2] for hit in hits]) == (0, str(query), expected)
    assert hits[0].split()[1:] == ["1.0000", str(query), "class00", "<", "super0"]

    (answer,) = json.loads(sightline("search", ID, *where, 3, "--json")[1])
    results = [hit["metadata"] for hit in answer["results"]]
    assert (answer["query"], [one["path"] for one in results]) == (ID, expected[1:])  # it does not find itself
    assert results[0]["file_size"] == os.path.getsize(expected[1])
    assert len(sightline("search", images / "super0/class00", *where, 1)[1].splitlines()) == 12
    found = json.loads(sightline("search", query, *where, 99, "--where", 'label_0 == "class03"', "--json")[1])[0]["results"]
    assert [hit["metadata"]["label_0"] for hit in found] == ["class03"] * 6
    for options in (["--expand", 3, "--alpha", 0], ["--rerank", "kreciprocal"]):
        assert len(sightline("search", query, *where, 5, *options)[1].splitlines()) == 6
    long = "x" * 300  # no file has such a name
    with Gallery.open(built) as gallery:
        gallery.add([long], np.eye(8)[:1])
    assert sightline("search", long, *where, 1)[1].splitlines()[0] == long


def test_a_contact_sheet_has_every_picture_inside(sightline, images, built, tmp_path):
    query, nasty, sheet = images / ID, images / "super0/class00/<b>&.png", tmp_path / "sheet.html"
    shutil.copy(query, nasty)
    sightline("index", "add", built, images, *ALONE)
    words = ["search", query, "--gallery", built, "-k", 5, "--html", sheet]
    assert sightline(*words)[:2] == (0, f"{sheet}\n")
    page = sheet.read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 6
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert ("class00 &lt; super0" in page, "<b>" in page, "&lt;b&gt;&amp;.png" in page) == (True, False, True)
    nasty.unlink()
    sightline(*words)
    assert sheet.read_text().count("no image") == 1
    words = ["search", ID, "--gallery", built, "--where"]  # a filter that nothing passes names what no item has
    assert sightline(*words, 'label_1 == "none"')[1] == f"{ID}\n      nothing found\n"
    out = sightline(*words, 'label_1 == "super0" and labl == "x" and shade > 3')[1]
    assert out.endswith("      nothing found: no item has 'labl', 'shade'\n")
    sightline(*words, 'labl == "x"', "--html", sheet)
    assert "no item has &#39;labl&#39;" in sheet.read_text()


def test_commands_that_encode_take_a_backend_and_use_the_gpu(sightline, encoder, images, built, tmp_path, monkeypatch):
    used, by_torch = [], "sightline.models.encoder.open_backend"
    monkeypatch.setattr(by_torch, lambda encoder, name, *_: used.append(name) or torch_backend(encoder))
    monkeypatch.setattr("sightline.models.embed.own_device", lambda: used.append("gpu") or torch.device("cpu"))
    for words in (
        ["embed", encoder, images, "--out", tmp_path / "t.parquet"],
        ["whiten", encoder, images, "--out", tmp_path / "white"],
        ["index", "build", encoder, images, "--out", tmp_path / "g"],
        ["index", "add", tmp_path / "g", images, "--prefix", "again"],
        ["search", images / ID, "--gallery", built],
    ):
        used.clear()
        assert (sightline(*words, "--backend", "torch-bf16")[0], set(used)) == (0, {"gpu", "torch-bf16"}), words
        status, _, err = sightline(*words, "--backend", "torch-bf61")
        assert (status, "'torch-bf16'" in err) == (2, True)
    assert [name for name in get_args(BackendName) if name not in BACKENDS] == []


def test_what_is_not_read_is_counted_or_named_and_labels_change_without_embedding(sightline, encoder, images, tmp_path):
    for name in ("clip.mov", "super0/class00/raw.DNG", "notes"):
        (images / name).touch()
    status, out, err = sightline("index", "build", encoder, images, "--out", tmp_path / "g", *ALONE)
    assert (status, "72 added" in out) == (0, True)
    assert all(part in err for part in ("3 files not read", "1 .mov", "1 .dng", "1 without a suffix", "'.heic'"))
    sightline("embed", encoder, images, "--out", tmp_path / "t.safetensors", *ALONE)  # a table has no other files
    assert "not read" not in sightline("index", "add", tmp_path / "g", tmp_path / "t.safetensors", "--prefix", "t")[2]

    manifest, first = images.parent / "m.csv", f"images/{ID}"
    (images / "bad.png").write_bytes(b"no image")
    rows = f"path,split,label,year\n{first},test,a,2001\nimages/bad.png,test,a,2001\n"
    manifest.write_text(rows)
    words = ["index", "build", encoder, manifest, "--out", tmp_path / "m", *ALONE]
    status, out, err = sightline(*words)
    assert (status, "1 added, 1 unreadable" in out, err.count("skipped: "), "bad.png" in err) == (0, True, 1, True)
    manifest.write_text(rows.replace("test,a", "test,b", 1))
    assert "1 relabelled" in sightline(*words)[1]
    with Gallery.open(tmp_path / "m") as gallery:
        assert gallery.filter('label_0 == "b" and split == "test" and year == 2001') == [first]


def test_options_of_add_reach_the_gallery(sightline, built, images, tmp_path):
    add = ["index", "add", built, images, *ALONE]
    sightline("index", "remove", built, ID)
    (images / "super0/class00/1.png").unlink()
    assert "70 unchanged, 1 pruned, 1 left out" in sightline(*add, "--prune", "--split", "train")[1]
    assert "1 added" in sightline(*add, "--restore-removed", "--batch-size", 8)[1]
    moved = images.rename(tmp_path / "moved")
    assert "71 relabelled" in sightline("index", "add", built, moved, "--moved-from", images, *ALONE)[1]
    assert "71 added" in sightline("index", "add", built, moved, "--prefix", "b", *ALONE)[1]


def test_remove_verify_stats_compact(sightline, check_refused, built):
    remove = ["index", "remove", built]
    assert sightline(*remove, ID, "super0/class00/1.png")[1] == f"{built}: 2 removed, 70 left\n"
    assert sightline(*remove, "--where", 'label_1 == "super1"')[1] == f"{built}: 24 removed, 46 left\n"
    check_refused(remove)
    assert sightline("index", "verify", built)[:2] == (0, f"{built}: 46 items, no fault\n")
    stats = json.loads(sightline("index", "stats", built, "--json")[1])
    assert (stats["items"], stats["removed"], stats["dim"], stats["encoder"]) == (46, 26, 8, "tiny")
    assert "46 items" in sightline("index", "compact", built)[1]
    assert re.search(r"removed +0\n", sightline("index", "stats", built)[1])
    file, (weights,) = built / "gallery.db", (built / "encoder").glob("*.safetensors")
    flip(file, file.read_bytes().index(b'"label_0": "class05"') + 14)
    flip(weights, -5)
    check_refused(["index", "verify", built], "2 faults", "/class05/", built / "encoder")


def test_an_index_is_measured_and_a_damaged_one_rebuilt(sightline, check_refused, encoder, images, tmp_path):
    words = ["index", "build", encoder, images, "--out", tmp_path / "g", *ALONE]
    out = sightline(*words, "--index", "IVF4,Flat", "--recall", 1)[1]
    assert re.search(r"^index: IVF4,Flat, recall@10 1\.0000 against exact, nprobe \d$", out, flags=re.M)
    assert "72 items are too few for IVF256,Flat" in sightline(*words, "--index", "IVF256,Flat")[1]
    assert sightline(*words, "--index", "HNSW8")[0] == 0
    (file,) = (tmp_path / "g").glob("index-*.faiss")
    query = ["search", ID, "--gallery", tmp_path / "g"]
    expected = sightline(*query)
    assert expected[2] == ""
    flip(file, file.stat().st_size // 2)
    status, out, err = sightline(*query)
    assert (status, out, file.name in err, "brute force" in err) == (*expected[:2], True, True)
    check_refused(["index", "verify", tmp_path / "g"], file.name, "--repair")
    status, out, _ = sightline("index", "verify", tmp_path / "g", "--repair")
    assert (status, file.name in out, "rebuilt" in out, sightline(*query)) == (0, True, True, expected)


def test_mistakes_are_one_message_and_change_nothing(check_refused, encoder, images, built, tmp_path):
    other = Encoder.create("tiny", 8, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    search, build = ["search", images / ID, "--gallery"], ["index", "build", encoder, images, *ALONE, "--out"]
    for words, message in (
        (["search", "x.png", "--gallery", "nowhere"], "nowhere: not a gallery"),
        (["search", "x.png", "--gallery", built], "'x.png'"),
        (["search", "x.png"], "--gallery"),
        ([*search, built / "gallery.db"], "it is a file"),
        ([*search, built, "--html", "."], "folder"),
        ([*search, built, "--where", "label_0 == class00"], "strings in quotes"),
        ([*search, built, "--encoder", other], "another encoder"),
        ([*build, built, "--recall", 95], "95"),  # before images are embedded
        ([*build, tmp_path / "new", "--index", "flat"], "'flat'"),
        (["index", "remove", built, "nobody", "super0/class00/2.png"], "'nobody'"),
    ):
        check_refused(words, message)
    assert not (tmp_path / "new").exists()
    with Gallery.open(built) as gallery:
        assert (len(gallery), gallery.verify()) == (72, [])
