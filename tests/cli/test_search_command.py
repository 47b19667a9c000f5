"""Answers with a verdict, galleries that moved, augmented galleries and galleries in Milvus, all by command."""

import importlib.util
import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import gallery_table
from sightline.gallery.query import refined_search
from sightline.models.encoder import Encoder
from sightline.ood.rejector import Rejector
from sightline.ranking.refine import Refinement


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path_factory.mktemp("e") / "encoder")


@pytest.fixture
def images(image_tree, tmp_path):
    return shutil.copytree(image_tree, tmp_path / "home" / "images")


@pytest.fixture
def gallery(sightline, encoder, images):
    folder = images.parent / "gallery"
    assert sightline("index", "build", encoder, images, "--out", folder, "--workers", 0)[0] == 0
    return folder


@pytest.fixture
def judged(sightline, gallery):
    """A gallery with a rejector that takes eight tenths of what is in it."""
    words = ["ood", "fit", "--gallery", gallery, "--scorer", "knn", "--option", "k=3", "--tpr", 0.8]
    status, out, err = sightline(*words)
    assert (status, err) == (0, "")
    assert out.startswith(f"{gallery / 'rejector'}: knn, energies up to ")
    assert re.search(r"similarities from [\d.]+ on are a match \(80 %\)", out)
    return gallery


@pytest.fixture
def outlier(tmp_path):
    """Nothing like the blurred patches: its distance to them is checked where it is used."""
    pixels = np.zeros((40, 36, 3), np.uint8)
    pixels[::2] = (255, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "outlier.png")
    return tmp_path / "outlier.png"


def distances(gallery, vector):
    """Squared, ascending, one item at a time."""
    with Gallery.open(gallery) as opened:
        return sorted(float(((item.vector.astype(float) - vector) ** 2).sum()) for item in opened.get(opened.ids()))


def test_fit_from_a_gallery_calibrates_both_thresholds_on_what_it_was_not_fitted_on(judged):
    rejector = Rejector.load(judged)
    with Gallery.open(judged) as opened:
        table = gallery_table(opened)
        rows = np.random.default_rng(0).permutation(72)
        held_out, fitted = rows[:14], rows[14:]
        vectors, labels = table.vectors.astype(float), [row["label_0"] for row in opened.metadata(table.ids)]
        assert rejector.fingerprint == opened.identity.fingerprint
    energies = [sorted(((vectors[fitted] - vectors[row]) ** 2).sum(1))[2] for row in held_out]
    assert rejector.scorer.threshold == pytest.approx(np.quantile(energies, 0.8), rel=1e-4)
    own = [
        max(vectors[row] @ vectors[other] for other in range(72) if other != row and labels[other] == labels[row])
        for row in held_out
    ]
    assert rejector.similarity_threshold == pytest.approx(np.quantile(own, 0.2, method="lower"), abs=1e-5)


def test_what_does_not_belong_is_refused_flagged_or_let_be(sightline, encoder, judged, images, outlier, tmp_path):
    rejector = Rejector.load(judged)
    vector = Encoder.from_pretrained(encoder).encode([outlier])[0].astype(float)
    best = 1 - distances(judged, vector)[0] / 2  # a cosine, of unit vectors
    inside = images / "super0/class00/0.png"
    words = ["search", outlier, inside, "--gallery", judged, "-k", 3, "--reject"]

    status, out, _ = sightline(*words, "--json")
    refused, accepted = json.loads(out)
    assert (status, refused["policy"], refused["results"], len(accepted["results"])) == (0, "reject", [], 3)
    assert (refused["verdict"]["belongs"], accepted["verdict"]["belongs"]) == (False, True)
    assert refused["verdict"]["energy"] > rejector.scorer.threshold == refused["verdict"]["threshold"]
    assert refused["verdict"]["similarity"] == pytest.approx(best, abs=1e-4)
    assert refused["verdict"]["matched"] == (best >= rejector.similarity_threshold)
    assert (accepted["verdict"]["matched"], accepted["verdict"]["similarity"]) == (True, pytest.approx(1, abs=1e-5))

    remark = f"      does not belong: energy {refused['verdict']['energy']:.4g}, accepted up to "
    lines = sightline(*words)[1].splitlines()
    assert lines[1].startswith(remark)
    assert lines.index(str(inside)) == (2 if refused["verdict"]["matched"] else 3)  # no result in between
    flagged = sightline(*words, "--policy", "flag")[1]
    assert flagged.count("does not belong") == 1
    assert len(re.findall(r"^ +\d  \d\.\d{4}  /", flagged, flags=re.M)) == 6
    ignored = sightline(*words, "--policy", "ignore")[1]
    assert ignored == sightline(*words[:-1])[1]  # as if not asked
    said = json.loads(sightline(*words, "--policy", "ignore", "--json")[1])
    assert [answer["verdict"]["belongs"] for answer in said] == [False, True]

    for policy, n_pictures in (("reject", 5), ("flag", 8), ("ignore", 8)):
        sightline(*words, "--policy", policy, "--html", tmp_path / "sheet.html")
        page = (tmp_path / "sheet.html").read_text()
        assert page.count("<img ") == n_pictures
        assert page.count("does not belong") == (policy != "ignore")
        assert "nothing found" not in page


def test_no_match_is_not_said_of_what_does_not_belong_alone(sightline, judged, images):
    """A query that belongs, without its match in the gallery: nothing is withheld."""
    with Gallery.open(judged) as opened:
        vectors, ids = opened.vectors(opened.ids()).astype(float), opened.ids()
        cosines = vectors @ vectors.T - 2 * np.eye(72)
    limit = Rejector.load(judged).similarity_threshold
    said = json.loads(sightline("search", *ids, "--gallery", judged, "-k", 1, "--reject", "--policy", "flag", "--json")[1])
    assert [answer["verdict"]["matched"] for answer in said] == (cosines.max(1) >= limit).tolist()  # itself left out
    kinds = {(answer["verdict"]["belongs"], answer["verdict"]["matched"]) for answer in said}
    assert (True, True) in kinds
    lonely = next(answer for answer in said if not answer["verdict"]["matched"])
    out = sightline("search", lonely["query"], "--gallery", judged, "-k", 1, "--reject", "--policy", "flag")[1]
    assert f"      no match: similarity {lonely['verdict']['similarity']:.4f}, a match from {limit:.4f} on" in out
    assert ("does not belong" in out) != lonely["verdict"]["belongs"]
    assert all(len(answer["results"]) == 1 for answer in said)


def test_the_rejector_is_verified_counted_and_copied_with_its_gallery(sightline, judged, tmp_path):
    assert sightline("index", "verify", judged)[:2] == (0, f"{judged}: 72 items and a rejector, no fault\n")
    told = json.loads(sightline("index", "stats", judged, "--json")[1])["rejector"]
    assert re.fullmatch(r"knn, accepts 80 %, a match from 0\.\d{4} on, reject", told)
    with Gallery.open(judged) as opened:
        opened.backup(tmp_path / "by hand")
    assert sightline("index", "backup", judged, tmp_path / "copy")[0] == 0
    assert sightline("index", "restore", tmp_path / "copy", tmp_path / "again")[0] == 0
    for copy in ("by hand", "copy", "again"):
        assert Rejector.load(tmp_path / copy).scorer.threshold == Rejector.load(judged).scorer.threshold
    (judged / "rejector" / "rejector.json").write_text("{}")
    status, out, err = sightline("index", "verify", judged)
    assert (status, out) == (2, "")
    assert "1 fault" in err
    assert "a rejector of format None" in err


def test_the_rejector_of_an_encoder_is_copied_into_a_gallery_that_has_none(sightline, encoder, judged, images, tmp_path):
    own = shutil.copytree(encoder, tmp_path / "own")
    rejector = Rejector.load(judged)
    rejector.policy = "flag"
    rejector.save(own / "rejector")
    for out, policy in ((tmp_path / "new", "flag"), (judged, "reject")):
        assert sightline("index", "build", own, images, "--out", out, "--workers", 0)[0] == 0
        assert Rejector.load(out).policy == policy
    rejector.fingerprint = "b" * 32
    rejector.save(own / "rejector")
    status, _, err = sightline("index", "build", own, images, "--out", tmp_path / "other", "--workers", 0)
    assert (status, (tmp_path / "other").exists()) == (2, False)
    assert f"{own / 'rejector'}: the rejector was fitted on vectors of encoder bbb" in err


def test_a_gallery_without_labels_has_no_match_threshold(sightline, encoder, images, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for place, file in enumerate(sorted(images.rglob("*.png"))):
        shutil.copy(file, flat / f"{place}.png")
    sightline("index", "build", encoder, flat, "--out", tmp_path / "g", "--workers", 0)
    status, out, _ = sightline("ood", "fit", "--gallery", tmp_path / "g", "--scorer", "knn", "--out", tmp_path / "r")
    assert status == 0
    assert "no two items share a label" in out
    out = sightline(
        "search", flat, "--gallery", tmp_path / "g", "-k", 1, "--reject", "--rejector", tmp_path / "r", "--json"
    )[1]
    assert {answer["verdict"]["matched"] for answer in json.loads(out)} == {None}


def test_mistakes_are_one_message_and_status_2(sightline, judged, images, tmp_path):
    plain = shutil.copytree(judged, tmp_path / "plain", ignore=shutil.ignore_patterns("rejector"))
    foreign = Rejector.load(judged)
    foreign.fingerprint = "b" * 32
    foreign.save(tmp_path / "foreign")
    with Gallery.open(judged) as opened:
        Gallery.create(tmp_path / "empty", opened.identity).close()
    search = ["search", images / "super0/class00/0.png"]
    other_encoder = f"/gallery of 'tiny': the rejector was fitted on vectors of encoder {'b' * 32}"
    mistakes = [
        ([*search, "--gallery", plain, "--reject"], "no rejector is saved in this gallery"),
        ([*search, "--gallery", judged, "--policy", "flag"], "--policy and --rejector say how to --reject"),
        ([*search, "--gallery", judged, "--reject", "--policy", "flog"], "unknown policy 'flog'"),
        ([*search, "--gallery", judged, "--reject", "--rejector", tmp_path / "foreign"], other_encoder),
        ([*search, "--table", "x", "--encoder", "y", "--reject"], "takes none of the options"),
        (["ood", "fit", "--scorer", "knn"], "--gallery"),
        (["ood", "fit", "table.parquet", "--gallery", judged], "--gallery"),
        (["ood", "fit", "--gallery", judged, "--gallery-table", "x"], "--gallery"),
        (["ood", "fit", "--gallery", tmp_path / "empty"], "the gallery is empty"),
        (["ood", "fit", "--gallery", judged, "--out", tmp_path / "r", "--option", "tpr=1"], "--option tpr: not one of the"),
        (
            ["ood", "fit", "--gallery", judged, "--out", tmp_path / "r", "--option", "k"],
            "'k'",
        ),
        (["index", "augment", judged, "--out", plain], "exists and is not empty"),
    ]
    for words, message in mistakes:
        status, out, err = sightline(*words)
        assert (status, out) == (2, ""), words
        assert message in err
        assert "Traceback" not in err


def test_depth_and_reciprocal_reach_the_re_ranking(sightline, gallery):
    id_ = "super0/class00/0.png"
    with Gallery.open(gallery) as opened:
        for depth, reciprocal in ((10, 3), (60, 5)):
            steps = Refinement(rerank="kreciprocal", depth=depth, reciprocal=reciprocal)
            expected = refined_search(opened, opened.vectors([id_]), 8, steps, own=[id_])[1][0].tolist()
            words = ["--rerank", "kreciprocal", "--depth", depth, "--reciprocal", reciprocal]
            out = sightline("search", id_, "--gallery", gallery, "-k", 8, *words, "--json")[1]
            assert [hit["id"] for hit in json.loads(out)[0]["results"]] == expected


def test_augment_averages_each_item_with_its_nearest_others(sightline, gallery, images, tmp_path):
    status, out, _ = sightline("index", "augment", gallery, "--out", tmp_path / "more", "--neighbours", 2, "--alpha", 3)
    assert (status, out) == (0, f"{tmp_path / 'more'}: 72 items, each with 2 neighbours\nindex: exact\n")
    with Gallery.open(gallery) as before, Gallery.open(tmp_path / "more") as after:
        ids = before.ids()
        assert after.ids() == ids
        vectors = before.vectors(ids).astype(float)
        for row, found in enumerate(after.vectors(ids)):
            cosines = [vectors[row] @ other for other in vectors]
            near = sorted((other for other in range(72) if other != row), key=lambda other: -cosines[other])[:2]
            total = vectors[row] + sum(max(cosines[other], 0) ** 3 * vectors[other] for other in near)
            np.testing.assert_allclose(found, total / np.linalg.norm(total), atol=1e-5)
        after.check_encoder(before.encoder())
        assert after.encoder().fingerprint() == before.identity.fingerprint
    out = sightline("search", ids[0], "--gallery", tmp_path / "more", "-k", 1, "--json")[1]
    assert json.loads(out)[0]["query_path"] == str(images / ids[0])


def test_a_gallery_and_its_images_move_together(sightline, gallery, images, tmp_path):
    id_ = "super0/class00/0.png"
    words = [id_, "-k", 4, "--json"]

    def pictures(folder, *options):
        (answer,) = json.loads(sightline("search", "--gallery", folder, *words, *options)[1])
        return [answer["query_path"], *(hit["metadata"]["path"] for hit in answer["results"])]

    before = pictures(gallery)
    assert before[0] == str(images / id_)
    assert all(path.startswith(str(images)) for path in before)
    with Gallery.open(gallery) as opened:
        assert opened.metadata([id_])[0]["path"] == f"../images/{id_}"
    new = gallery.parent.rename(tmp_path / "new")
    moved = [path.replace(str(images), str(new / "images")) for path in before]
    assert pictures(new / "gallery") == moved
    sightline("search", id_, "--gallery", new / "gallery", "-k", 4, "--html", tmp_path / "sheet.html")
    assert (tmp_path / "sheet.html").read_text().count("<img ") == 5
    assert "72 items: 72 unchanged\n" in sightline("index", "add", new / "gallery", new / "images", "--workers", 0)[1]

    (tmp_path / "far").mkdir()  # the gallery alone
    alone = shutil.move(new / "gallery", tmp_path / "far" / "gallery")
    assert pictures(alone, "--root", new) == moved
    told = sightline("index", "add", alone, new / "images", "--workers", 0)[1]
    assert "72 relabelled" in told  # paths from here, nothing embedded again
    assert pictures(alone) == moved


@pytest.mark.skipif(importlib.util.find_spec("milvus_lite") is None, reason="needs pymilvus[milvus_lite]")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and pymilvus
def test_a_gallery_in_milvus_by_the_same_commands(sightline, encoder, gallery, images, tmp_path):
    address = f"milvus+file:{tmp_path}/lite.db/patches"
    build = ["index", "build", encoder, images, "--out", address, "--workers", 0]
    assert sightline(*build, "--recall", 0.9)[0] == 2
    assert not (tmp_path / "lite.db").exists()
    assert sightline(*build, "--index", "exact")[:2] == (0, f"{address}: 72 items: 72 added\nindex: FLAT\n")
    assert sightline(*build)[:2] == (0, f"{address}: 72 items: 72 unchanged\nindex: FLAT\n")
    status, out, err = sightline(*build, "--index", "HNSW32")
    assert (status, out) == (2, "")
    assert "FLAT" in err
    assert "HNSW32" in err

    query = images / "super0/class00/0.png"
    words = ["search", query, "-k", 5, "--where", 'label_1 == "super0"', "--expand", 2, "--encoder", encoder]
    from_milvus, from_folder = (sightline(*words, "--gallery", where)[1] for where in (address, gallery))
    assert from_milvus == from_folder
    assert len(from_milvus.splitlines()) == 6
    assert "no encoder is saved" in sightline("search", query, "--gallery", address)[2]

    Image.new("RGB", (40, 40), "red").save(images / "super0/class00/new.png")
    add = ["index", "add", address, images, "--workers", 0]
    assert "no encoder is saved" in sightline(*add)[2]
    assert sightline(*add, "--encoder", encoder)[:2] == (0, f"{address}: 73 items: 1 added, 72 unchanged\n")
    assert sightline("index", "remove", address, "super0/class00/new.png")[1] == f"{address}: 1 removed, 72 left\n"
    assert sightline("index", "remove", address, "--where", 'label_1 == "super1"')[1] == f"{address}: 24 removed, 48 left\n"
    assert sightline("index", "verify", address)[:2] == (0, f"{address}: 48 items, no fault\n")
    told = json.loads(sightline("index", "stats", address, "--json")[1])
    assert (told["items"], told["index"], told["encoder"], told["rejector"]) == (48, "FLAT", "tiny", None)
    assert sightline("index", "compact", address)[0] == 0

    fit = ["ood", "fit", "--gallery", address, "--scorer", "knn", "--option", "k=3"]
    assert "--out" in sightline(*fit)[2]
    assert sightline(*fit, "--out", tmp_path / "rejector")[0] == 0
    words = ["search", query, "--gallery", address, "--encoder", encoder, "-k", 1, "--reject"]
    assert "no rejector is saved in this gallery" in sightline(*words)[2]
    (answer,) = json.loads(sightline(*words, "--rejector", tmp_path / "rejector", "--json")[1])
    assert (answer["verdict"]["matched"], answer["policy"]) == (True, "reject")


@pytest.fixture
def outlier_added(sightline, judged, outlier, images):
    """A gallery with an item that its rejector, fitted before, does not take; what was printed, and the item's id."""
    shutil.copy(outlier, images / "super0/class00/new.png")
    status, out, _ = sightline("index", "add", judged, images, "--workers", 0)
    assert (status, "1 added" in out) == (0, True)
    return judged, out, "super0/class00/new.png"


def test_what_is_in_the_gallery_is_never_withheld(sightline, outlier_added, outlier, tmp_path):
    gallery, _, id_ = outlier_added
    smaller = Image.open(outlier).convert("P", palette=Image.Palette.ADAPTIVE)  # the same picture in another file
    smaller.save(tmp_path / "copy.png", optimize=True)
    words = [outlier, tmp_path / "copy.png", id_, "--gallery", gallery, "-k", 2, "--reject", "--json"]
    for answer in json.loads(sightline("search", *words)[1]):
        assert answer["policy"] == "reject"
        assert answer["verdict"]["energy"] > answer["verdict"]["threshold"]  # by its kind alone it would be
        assert (answer["verdict"]["belongs"], len(answer["results"])) == (True, 2)


def test_a_rejector_that_is_older_than_items_is_said_to_be(sightline, judged, outlier_added, images):
    gallery, told, _ = outlier_added
    note = f"older than the newest items; `sightline ood fit --gallery {gallery}`"
    assert note in told
    status, out, _ = sightline("index", "verify", gallery)
    assert (status, note in out, "no fault" in out) == (0, True, True)
    sightline("index", "compact", gallery)
    assert note in sightline("index", "verify", gallery)[1]
    assert sightline("ood", "fit", "--gallery", gallery, "--scorer", "knn", "--option", "k=3")[0] == 0
    os.utime(images / "super0/class00/0.png", (1, 1))  # written again with the same vector
    out = sightline("index", "add", gallery, images, "--workers", 0)[1]
    assert ("1 relabelled" in out, note in out) == (True, False)
    sightline("index", "remove", gallery, "super0/class00/0.png")
    assert note not in sightline("index", "verify", gallery)[1]
    Image.new("RGB", (40, 40), "red").save(images / "super0/class00/1.png")
    assert note in sightline("index", "add", gallery, images, "--workers", 0)[1]
