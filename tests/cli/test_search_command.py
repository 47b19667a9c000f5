"""Answers with a verdict, galleries that moved, augmented galleries and galleries in Milvus, all by command."""

import importlib.util
import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import gallery_table
from sightline.gallery.query import refined_search
from sightline.models.encoder import Encoder
from sightline.ood.rejector import Rejector, fit_rejector
from sightline.ranking.refine import Refinement, augment_gallery

ID = "super0/class00/0.png"
KNN = ["--scorer", "knn", "--option", "k=3"]


@pytest.fixture
def gallery(encoder, images):
    with Gallery.create(images.parent / "gallery", Encoder.from_pretrained(encoder)) as made:
        made.add_images(images)
    return images.parent / "gallery"


@pytest.fixture
def judged(sightline, gallery):
    """A gallery with a rejector that takes eight tenths of what is in it."""
    status, out, err = sightline("ood", "fit", "--gallery", gallery, *KNN, "--tpr", 0.8)
    facts = f"{gallery / 'rejector'}", f"{Rejector.load(gallery).similarity_threshold:.4f}", "80 %"
    assert (status, err, all(fact in out for fact in facts)) == (0, "", True)
    return gallery


@pytest.fixture
def outlier(tmp_path):
    """Nothing like the blurred patches: its distance to them is checked where it is used."""
    pixels = np.zeros((40, 36, 3), np.uint8)
    pixels[::2] = (255, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "outlier.png")
    return tmp_path / "outlier.png"


@pytest.fixture
def answers(sightline):
    """What ``sightline search --json`` prints."""
    return lambda *words: json.loads(sightline("search", *words, "--json")[1])


def test_outliers_are_rejected_flagged_or_ignored(sightline, answers, encoder, judged, images, outlier, tmp_path):
    rejector, inside = Rejector.load(judged), images / ID
    words = [outlier, inside, "--gallery", judged, "-k", 3, "--reject"]
    with Gallery.open(judged) as opened:
        vector = Encoder.from_pretrained(encoder).encode([outlier])[0].astype(float)
        best = max(opened.vectors(opened.ids()).astype(float) @ vector)
        found = opened.search_images([outlier, inside], 3, reject=True)
    rejected, accepted = answers(*words)
    assert [len(answer.results) for answer in found] == [len(rejected["results"]), len(accepted["results"])] == [0, 3]
    verdict = rejected["verdict"]
    assert (rejected["policy"], verdict["belongs"], accepted["verdict"]["belongs"]) == ("reject", False, True)
    assert verdict["energy"] > rejector.scorer.threshold == verdict["threshold"]
    assert verdict["similarity"] == pytest.approx(best, abs=1e-4)
    assert verdict["matched"] == (best >= rejector.similarity_threshold)
    assert (accepted["verdict"]["matched"], accepted["verdict"]["similarity"]) == (True, pytest.approx(1, abs=1e-5))
    lines = sightline("search", *words)[1].splitlines()
    assert f"{verdict['energy']:.4g}" not in lines[1]  # a number that means nothing to a reader
    share = re.search(r"out-of-distribution: .* ([\d.]+) %", lines[1])[1]
    assert share == f"{int(1000 * verdict['quantile']) / 10:g}"
    assert lines.index(str(inside)) == (2 if verdict["matched"] else 3)  # no result in between
    flagged = sightline("search", *words, "--policy", "flag")[1]
    assert flagged.count("out-of-distribution") == 1
    assert len(re.findall(r"^ +\d  \d\.\d{4}  /", flagged, flags=re.M)) == 6
    ignored = sightline("search", *words, "--policy", "ignore")[1]
    assert ignored == sightline("search", *words[:-1])[1]  # as without --reject
    assert [answer["verdict"]["belongs"] for answer in answers(*words, "--policy", "ignore")] == [False, True]
    for policy, n_pictures in (("reject", 5), ("flag", 8), ("ignore", 8)):
        sightline("search", *words, "--policy", policy, "--html", tmp_path / "sheet.html")
        page = (tmp_path / "sheet.html").read_text()
        assert (page.count("<img "), page.count("out-of-distribution")) == (n_pictures, policy != "ignore")
        assert "nothing found" not in page


def test_a_query_that_belongs_and_has_no_match_gets_its_results(sightline, answers, judged):
    with Gallery.open(judged) as opened:
        vectors, ids = opened.vectors(opened.ids()).astype(float), opened.ids()
    cosines = vectors @ vectors.T - 2 * np.eye(72)
    limit = Rejector.load(judged).similarity_threshold
    words = ["--gallery", judged, "-k", 1, "--reject", "--policy", "flag"]
    found = answers(*ids, *words)
    assert [answer["verdict"]["matched"] for answer in found] == (cosines.max(1) >= limit).tolist()  # itself left out
    assert {len(answer["results"]) for answer in found} == {1}
    lonely = next(answer for answer in found if not answer["verdict"]["matched"])
    out = sightline("search", lonely["query"], *words)[1]
    assert re.search(rf"no match: .*{lonely['verdict']['similarity']:.4f} .*{limit:.4f}", out)
    assert ("out-of-distribution" in out) != lonely["verdict"]["belongs"]


def test_a_rejector_goes_with_its_gallery(sightline, check_refused, encoder, judged, images, tmp_path):
    assert sightline("index", "verify", judged)[:2] == (0, f"{judged}: 72 items and a rejector, no fault\n")
    rejector = Rejector.load(judged)
    with Gallery.open(judged) as opened:
        expected = fit_rejector(gallery_table(opened), "knn", 0.8, gallery=gallery_table(opened), k=3)
    assert (rejector.fingerprint, rejector.similarity_threshold) == (expected.fingerprint, expected.similarity_threshold)
    assert rejector.scorer.threshold == expected.scorer.threshold
    text = json.loads(sightline("index", "stats", judged, "--json")[1])["rejector"]
    assert all(fact in text for fact in ("knn", "80 %", f"{rejector.similarity_threshold:.4f}", "reject"))
    assert sightline("index", "backup", judged, tmp_path / "copy")[0] == 0
    assert sightline("index", "restore", tmp_path / "copy", tmp_path / "again")[0] == 0
    for copy in ("copy", "again"):
        assert Rejector.load(tmp_path / copy).scorer.threshold == rejector.scorer.threshold
    own = shutil.copytree(encoder, tmp_path / "own")  # an encoder's is copied into a gallery that has none
    rejector.policy = "flag"
    rejector.save(own / "rejector")
    build = ["index", "build", own, images, "--workers", 0, "--out"]
    for out, policy in ((tmp_path / "new", "flag"), (judged, "reject")):
        assert (sightline(*build, out)[0], Rejector.load(out).policy) == (0, policy)
    rejector.fingerprint = "b" * 32
    rejector.save(own / "rejector")
    check_refused([*build, tmp_path / "other"], "b" * 32)
    assert not (tmp_path / "other").exists()
    (judged / "rejector" / "rejector.json").write_text("{}")
    check_refused(["index", "verify", judged], "1 fault", "rejector")


def test_a_gallery_without_labels_has_no_match_threshold(sightline, answers, encoder, image_tree, tmp_path):
    with Gallery.create(tmp_path / "g", Encoder.from_pretrained(encoder)) as opened:
        opened.add_images(sorted(image_tree.rglob("*.png")))
    status, out, _ = sightline("ood", "fit", "--gallery", tmp_path / "g", "--scorer", "knn", "--out", tmp_path / "r")
    assert (status, "share a label" in out) == (0, True)
    words = ["--gallery", tmp_path / "g", "-k", 1, "--reject", "--rejector", tmp_path / "r"]
    assert {answer["verdict"]["matched"] for answer in answers(image_tree / "super0/class00", *words)} == {None}


def test_mistakes_are_one_message(check_refused, judged, images, tmp_path):
    plain = shutil.copytree(judged, tmp_path / "plain", ignore=shutil.ignore_patterns("rejector"))
    foreign = Rejector.load(judged)
    foreign.fingerprint = "b" * 32
    foreign.save(tmp_path / "foreign")
    search, fit = ["search", images / ID], ["ood", "fit", "--gallery", judged]
    for words, fact in (
        ([*search, "--gallery", plain, "--reject"], "no rejector is saved in this gallery"),
        ([*search, "--gallery", judged, "--policy", "flag"], "--reject"),
        ([*search, "--gallery", judged, "--reject", "--policy", "flog"], "'flog'"),
        ([*search, "--gallery", judged, "--reject", "--rejector", tmp_path / "foreign"], "b" * 32),
        ([*search, "--table", "x", "--encoder", "y", "--reject"], "--table"),
        (["ood", "fit", "--scorer", "knn"], "--gallery"),
        (["ood", "fit", "table.parquet", "--gallery", judged], "--gallery"),
        ([*fit, "--gallery-table", "x"], "--gallery"),
        ([*fit, "--out", tmp_path / "r", "--option", "tpr=1"], "--option tpr"),
        ([*fit, "--out", tmp_path / "r", "--option", "k"], "'k'"),
    ):
        check_refused(words, fact)


def test_options_of_refinement_and_augmentation_arrive(sightline, answers, gallery, images, tmp_path):
    with Gallery.open(gallery) as opened:
        for depth, reciprocal in ((10, 3), (60, 5)):
            steps = Refinement(rerank="kreciprocal", depth=depth, reciprocal=reciprocal)
            expected = refined_search(opened, opened.vectors([ID]), 8, steps, own=[ID])[1][0].tolist()
            words = ["--rerank", "kreciprocal", "--depth", depth, "--reciprocal", reciprocal]
            (answer,) = answers(ID, "--gallery", gallery, "-k", 8, *words)
            assert [hit["id"] for hit in answer["results"]] == expected
    more = tmp_path / "more"
    status, out, _ = sightline("index", "augment", gallery, "--out", more, "--neighbours", 2, "--alpha", 3)
    assert (status, out) == (0, f"{more}: 72 items, each with 2 neighbours\nindex: exact\n")
    with Gallery.open(gallery) as before, Gallery.open(more) as after:
        ids = before.ids()
        assert (after.ids(), after.encoder().fingerprint()) == (ids, before.identity.fingerprint)
        expected = augment_gallery(torch.from_numpy(before.vectors(ids)), 2, 3.0)
        assert_close(torch.from_numpy(after.vectors(ids)), torch.nn.functional.normalize(expected), rtol=0, atol=1e-5)
    assert answers(ids[0], "--gallery", more, "-k", 1)[0]["query_path"] == str(images / ids[0])


def test_a_gallery_and_its_images_move_together(sightline, answers, gallery, images, tmp_path):
    def pictures(folder, *options):
        (answer,) = answers("--gallery", folder, ID, "-k", 4, *options)
        return [answer["query_path"], *(hit["metadata"]["path"] for hit in answer["results"])]

    moved = [path.replace(str(images), str(tmp_path / "new/images")) for path in pictures(gallery)]
    new = gallery.parent.rename(tmp_path / "new")
    assert pictures(new / "gallery") == moved
    assert "72 items: 72 unchanged\n" in sightline("index", "add", new / "gallery", new / "images", "--workers", 0)[1]
    alone = shutil.move(new / "gallery", tmp_path / "far")  # the gallery alone
    assert pictures(alone, "--root", new) == moved
    assert "72 relabelled" in sightline("index", "add", alone, new / "images", "--workers", 0)[1]  # nothing embedded again
    assert pictures(alone) == moved


@pytest.mark.skipif(importlib.util.find_spec("milvus_lite") is None, reason="needs pymilvus[milvus_lite]")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and pymilvus
def test_a_gallery_in_milvus_by_the_same_commands(sightline, answers, check_refused, encoder, gallery, images, tmp_path):
    address = f"milvus+file:{tmp_path}/lite.db/patches"
    build = ["index", "build", encoder, images, "--out", address, "--workers", 0]
    check_refused([*build, "--recall", 0.9])
    assert not (tmp_path / "lite.db").exists()
    assert sightline(*build, "--index", "exact")[:2] == (0, f"{address}: 72 items: 72 added\nindex: FLAT\n")
    check_refused([*build, "--index", "HNSW32"], "FLAT", "HNSW32")

    query = images / ID
    words = ["search", query, "-k", 5, "--where", 'label_1 == "super0"', "--expand", 2, "--encoder", encoder]
    from_milvus, from_folder = (sightline(*words, "--gallery", where)[1] for where in (address, gallery))
    assert (from_milvus, len(from_milvus.splitlines())) == (from_folder, 6)
    add = ["index", "add", address, images, "--workers", 0]
    for words in (["search", query, "--gallery", address], add):
        check_refused(words, "no encoder is saved")
    for words in ([*add, "--encoder", encoder], build):
        assert "72 unchanged" in sightline(*words)[1]
    _, out, err = sightline("index", "remove", address, "--where", 'label_1 == "super1"')
    assert (out, "does not remember" in err) == (f"{address}: 24 removed, 48 left\n", True)
    assert sightline("index", "verify", address)[:2] == (0, f"{address}: 48 items, no fault\n")
    stats = json.loads(sightline("index", "stats", address, "--json")[1])
    assert (stats["items"], stats["index"], stats["encoder"], stats["rejector"]) == (48, "FLAT", "tiny", None)
    assert sightline("index", "compact", address)[0] == 0

    fit = ["ood", "fit", "--gallery", address, *KNN]
    check_refused(fit, "--out")
    assert sightline(*fit, "--out", tmp_path / "rejector")[0] == 0
    words = [query, "--gallery", address, "--encoder", encoder, "-k", 1, "--reject"]
    check_refused(["search", *words], "no rejector is saved in this gallery")
    (answer,) = answers(*words, "--rejector", tmp_path / "rejector")
    assert (answer["verdict"]["matched"], answer["policy"]) == (True, "reject")


def test_items_newer_than_the_rejector_are_never_withheld(sightline, answers, judged, outlier, images, tmp_path):
    id_, note = "super0/class00/new.png", f"`sightline ood fit --gallery {judged}`"
    add = ["index", "add", judged, images, "--workers", 0]
    shutil.copy(outlier, images / id_)
    out = sightline(*add)[1]
    assert ("1 added" in out, note in out) == (True, True)
    smaller = Image.open(outlier).convert("P", palette=Image.Palette.ADAPTIVE)  # the same picture in another file
    smaller.save(tmp_path / "copy.png", optimize=True)
    for answer in answers(outlier, tmp_path / "copy.png", id_, "--gallery", judged, "-k", 2, "--reject"):
        assert answer["verdict"]["energy"] > answer["verdict"]["threshold"]  # by its kind alone it would be
        assert (answer["policy"], answer["verdict"]["belongs"], len(answer["results"])) == ("reject", True, 2)
    sightline("index", "compact", judged)
    status, out, _ = sightline("index", "verify", judged)
    assert (status, note in out, "no fault" in out) == (0, True, True)
    assert sightline("ood", "fit", "--gallery", judged, *KNN)[0] == 0
    os.utime(images / ID, (1, 1))  # written again with the same vector
    out = sightline(*add)[1]
    assert ("1 relabelled" in out, note in out) == (True, False)
    sightline("index", "remove", judged, ID)
    assert note not in sightline("index", "verify", judged)[1]
    Image.new("RGB", (40, 40), "red").save(images / "super0/class00/1.png")
    assert note in sightline(*add)[1]
