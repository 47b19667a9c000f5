"""Answers against Gallery.search, crops against cropping beforehand, verdicts against the rejector."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from served_galleries import encoded, png

from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.query import refined_search
from sightline.models.embed import embed_manifest
from sightline.ood.rejector import FOLDER, fit_rejector
from sightline.ranking.refine import Refinement


def ask(client, data, **fields):
    answer = client.post("/v1/search", files={"image": ("a", data)}, data=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_and_scores(answer):
    return [hit["id"] for hit in answer["results"]], [hit["score"] for hit in answer["results"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"where": 'label_1 == "super1"'},
        {"expand": 3, "alpha": 1.0},
        {"rerank": "kreciprocal", "where": 'label_1 != "super0"'},
    ],
)
def test_an_upload_finds_what_the_gallery_finds(client, shared_gallery, options):
    data = png(3)
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        vector = gallery.encoder().encode([Image.open(io.BytesIO(data))])
        steps = {key: value for key, value in options.items() if key != "where"}
        scores, ids = refined_search(gallery, vector, 7, Refinement(**steps), where=options.get("where"))
        known = gallery.metadata(ids[0].tolist())
        plain = gallery.search(vector, 7)[1][0].tolist()
    answer = ask(client, data, k=7, **options)
    found, found_scores = ids_and_scores(answer)
    assert found == ids[0].tolist()
    assert (found == plain) == (not options)  # otherwise the options were not heard
    np.testing.assert_allclose(found_scores, scores[0], atol=1e-5)
    assert [hit["labels"] for hit in answer["results"]] == [[row["label_0"], row["label_1"]] for row in known]
    assert answer["query"] == {"id": None, "labels": None}
    assert {hit["relation"] for hit in answer["results"]} == {None}
    assert answer["verdict"] is None
    assert not any("path" in hit["metadata"] or "file_hash" in hit["metadata"] for hit in answer["results"])
    assert str(shared_gallery.parent) not in json.dumps(answer)


def test_an_item_finds_its_neighbours_and_how_they_are_related(client, shared_gallery):
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        id_ = gallery.ids()[20]
        scores, ids = gallery.search(gallery.vectors([id_]), 31)
        own = gallery.metadata([id_])[0]
    assert ids[0][0] == id_
    answer = client.post("/v1/search/id", json={"id": id_, "k": 30}).json()
    found, found_scores = ids_and_scores(answer)
    assert found == ids[0][1:].tolist()
    np.testing.assert_allclose(found_scores, scores[0][1:], atol=1e-5)
    assert answer["query"] == {"id": id_, "labels": [own["label_0"], own["label_1"]]}
    for hit in answer["results"]:
        fine, coarse = hit["labels"]
        assert hit["relation"] == (2 if fine == own["label_0"] else 1 if coarse == own["label_1"] else 0)
    assert {hit["relation"] for hit in answer["results"]} == {0, 1, 2}


def test_a_vector_of_any_length_finds_what_the_gallery_finds(client, shared_gallery):
    vector = np.random.default_rng(0).normal(size=16)
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        _, ids = gallery.search(vector[None], 5)
    answer = client.post("/v1/search/vector", json={"vector": (250 * vector).tolist(), "k": 5}).json()
    assert ids_and_scores(answer)[0] == ids[0].tolist()


@pytest.mark.parametrize(("kind", "orientation"), [("PNG", None), ("JPEG", 6)])
def test_a_crop_equals_cropping_beforehand(client, kind, orientation):
    image = Image.open(io.BytesIO(png(5, (120, 90))))
    options = {}
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options = {"exif": exif, "quality": 95}
    data = encoded(image, kind, **options)
    upright = load_image(Image.open(io.BytesIO(data)))
    assert upright.size == ((90, 120) if orientation else (120, 90))
    box = (upright.width // 5, upright.height // 10, upright.width // 2, upright.height // 2)
    crop = ",".join(str(side / (upright.height if axis % 2 else upright.width)) for axis, side in enumerate(box))
    cut, whole = ask(client, encoded(upright.crop(box)), k=9), ask(client, data, k=9)
    cropped = ask(client, data, k=9, crop=crop)
    assert ids_and_scores(cropped)[0] == ids_and_scores(cut)[0]
    np.testing.assert_allclose(ids_and_scores(cropped)[1], ids_and_scores(cut)[1], atol=1e-5)
    assert ids_and_scores(cropped) != ids_and_scores(whole)


@pytest.mark.parametrize(
    "options", [{"k": 0}, {"k": 201}, {"k": "many"}, {"alpha": "nan"}, {"rerank": "best"}, {"crop": "1,2"}]
)
def test_options_that_do_not_fit_are_refused_by_name(client, options):
    answer = client.post("/v1/search", files={"image": ("a", png())}, data=options)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert next(iter(options)) in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"id": "nobody"}, 404, "has no item"),
        ({"id": "a", "gallery": "other"}, 404, "'shapes'"),
        ({"id": "a", "unknown": 1}, 422, "unknown"),
        ({}, 422, "id"),
    ],
)
def test_searches_by_id_that_do_not_fit(client, body, status, detail):
    answer = client.post("/v1/search/id", json=body)
    assert answer.status_code == answer.json()["status"] == status
    assert detail in answer.json()["detail"]
    assert answer.json().keys() >= {"type", "title", "status", "detail"}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"vector": [1.0] * 15}, "16 numbers are needed, not all 0, found 15"),
        ({"vector": [0.0] * 16}, "not all 0"),
        ({"vector": [1e300] * 16}, "vector"),
        ({"vector": [1.0] * 16, "where": "__import__('os')"}, "__import__"),
        ({"vector": [1.0] * 16, "where": "path >= 'a'"}, "path cannot be asked for"),
        ({"vector": [1.0] * 16, "where": "metadata['path'] >= 'a'"}, "path cannot be asked for"),
        ({"vector": [1.0] * 16, "where": "x == '\\ud800'"}, "is not UTF-8"),
        ({"vector": [1.0] * 16, "where": " or ".join(["x == 1"] * 900)}, "900"),
    ],
)
def test_searches_by_vector_that_do_not_fit(client, body, detail):
    answer = client.post("/v1/search/vector", json=body)
    assert answer.status_code == 422
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [{"k": "5"}, {"k": True}, {"alpha": False}, {"expand": "1"}, {"policy": " "}, {"rerank": "x"}]
)
def test_numbers_and_words_in_json_are_what_the_document_says(client, body):
    assert client.post("/v1/search/id", json={"id": "super0/class00/0.png", **body}).status_code == 422


@pytest.mark.parametrize("size", [5e-324, 1e-200, 1e-13, 1e6])
def test_a_vector_of_any_length_above_0_has_a_direction(client, size):
    found = client.post("/v1/search/vector", json={"vector": [size] * 16, "k": 5}).json()["results"]
    assert found == client.post("/v1/search/vector", json={"vector": [1.0] * 16, "k": 5}).json()["results"]


def test_a_vector_of_another_encoder_is_refused(client, shared_gallery):
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        own = gallery.identity.fingerprint
    body = {"vector": [1.0] * 16, "k": 1}
    assert client.post("/v1/search/vector", json=body | {"fingerprint": own}).status_code == 200
    answer = client.post("/v1/search/vector", json=body | {"fingerprint": "another"})
    assert answer.status_code == 409
    assert all(word in answer.json()["detail"] for word in ("another", own))


def test_json_that_is_nested_without_end_is_refused(client):
    answer = client.post("/v1/search/vector", content=b"[" * 200_000, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_concurrent_queries_share_passes_and_get_their_own_answers(serving, shared_gallery):
    client = serving(shared_gallery, batch_wait=0.3, rate=None, threads=4)
    encoding = next(iter(client.app.state.service._encodings.values()))
    sizes, forward = [], encoding.encoder.forward
    encoding.encoder.forward = lambda images: (sizes.append(len(images)), forward(images))[1]
    alone = [ids_and_scores(ask(client, png(seed), k=3)) for seed in range(8)]
    assert sizes == [1] * 8
    sizes.clear()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: ids_and_scores(ask(client, png(seed), k=3)), range(8)))
    assert sum(sizes) == 8
    assert len(sizes) <= 3
    for (ids, scores), (others, other_scores) in zip(alone, together, strict=True):
        assert ids == others
        np.testing.assert_allclose(scores, other_scores, atol=1e-5)


def test_a_rejector_in_the_gallery_gives_verdicts_by_policy(serving, own_gallery, image_tree):
    client = serving(own_gallery)
    with Gallery.open(own_gallery, read_only=True) as gallery:
        encoder = gallery.encoder()
    assert client.get("/v1/galleries").json()[0]["rejector"] is False
    assert ask(client, png(), k=2, policy="reject")["verdict"] is None
    table = embed_manifest(encoder, read_manifest(image_tree))
    rejector = fit_rejector(table, "knn", tpr=0.9, gallery=table)
    rejector.save(own_gallery / FOLDER)  # while it is served
    assert client.get("/v1/galleries").json()[0]["rejector"] is True
    inside, outside = (image_tree / "super0/class00/0.png").read_bytes(), encoded(Image.new("RGB", (40, 36), (255, 0, 255)))
    for data in (inside, outside):
        vector = encoder.encode([Image.open(io.BytesIO(data))])
        best = float((table.vectors @ vector[0]).max())
        expected = rejector.judge(vector, [best])[0]
        flagged, rejected = ask(client, data, k=2, policy="flag"), ask(client, data, k=2)
        for answer, policy in ((flagged, "flag"), (rejected, "reject")):
            verdict = answer["verdict"]
            assert verdict["policy"] == policy
            assert (verdict["belongs"], verdict["matched"]) == (expected.belongs, expected.matched)
            assert verdict["energy"] == pytest.approx(expected.energy, abs=1e-4)
            assert verdict["similarity"] == pytest.approx(best, abs=1e-4)
        assert len(flagged["results"]) == 2
        assert len(rejected["results"]) == (2 if expected.belongs else 0)
        assert ask(client, data, k=2, policy="ignore")["verdict"] is None
    (own_gallery / FOLDER / "rejector.json").write_text("{}")
    broken = client.post("/v1/search", files={"image": ("a", inside)})
    assert (broken.status_code, broken.headers["retry-after"]) == (503, "1")
    assert "rejector" in broken.json()["detail"]
    assert str(own_gallery) not in broken.text
    assert expected.belongs is False  # of the one outside: otherwise nothing was shown


def test_an_item_that_was_added_after_the_rejector_was_fitted_is_found(serving, own_gallery, image_tree):
    client = serving(own_gallery)
    with Gallery.open(own_gallery, read_only=True) as gallery:
        fit_rejector(embed_manifest(gallery.encoder(), read_manifest(image_tree)), "knn").save(own_gallery / FOLDER)
    outside = encoded(Image.new("RGB", (40, 36), (255, 0, 255)))
    assert ask(client, outside, k=1)["results"] == []
    assert client.post("/v1/items", files={"image": ("x", outside)}, data={"id": "new"}).status_code == 201
    answer = ask(client, outside, k=1)
    assert answer["verdict"]["belongs"]
    assert [hit["id"] for hit in answer["results"]] == ["new"]
    by_id = client.post("/v1/search/id", json={"id": "new", "k": 1}).json()
    assert (by_id["verdict"]["belongs"], len(by_id["results"])) == (True, 1)


def test_the_only_item_is_like_no_other(serving, own_gallery, image_tree):
    with Gallery.open(own_gallery) as gallery:
        table = embed_manifest(gallery.encoder(), read_manifest(image_tree))
        fit_rejector(table, "knn", tpr=0.9, gallery=table).save(own_gallery / FOLDER)
        gallery.remove(gallery.ids()[1:])
        (only,) = gallery.ids()
    answer = serving(own_gallery).post("/v1/search/id", json={"id": only, "policy": "flag"})
    assert (answer.status_code, answer.json()["results"]) == (200, [])
    assert (answer.json()["verdict"]["similarity"], answer.json()["verdict"]["matched"]) == (-1, False)


def test_two_galleries_are_served_side_by_side(serving, shared_gallery, own_gallery):
    client = serving(shared_gallery, own_gallery, read_only=True)
    assert [gallery["name"] for gallery in client.get("/v1/galleries").json()] == ["shapes", "own"]
    assert len(client.app.state.service._encodings) == 1  # the same encoder is held once
    assert ask(client, png())["gallery"] == "shapes"
    assert ask(client, png(), gallery="own")["gallery"] == "own"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_index_is_built_anew_at_the_start_where_the_service_may_write(serving, own_gallery, read_only):
    with Gallery.open(own_gallery) as gallery:
        gallery.build_index("Flat")
    (file,) = own_gallery.glob("index-*.faiss")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    client = serving(own_gallery, read_only=read_only)
    assert len(ask(client, png(), k=5)["results"]) == 5
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert len(gallery.verify()) == read_only
