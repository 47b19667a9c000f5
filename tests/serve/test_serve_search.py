"""Answers against Gallery.search, crops against cropping beforehand, verdicts against the rejector."""

import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from page_server import encoded, png
from PIL import Image

from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.query import refined_search
from sightline.models.embed import embed_manifest
from sightline.ood.rejector import FOLDER, fit_rejector
from sightline.ranking.refine import Refinement

OUTSIDE = encoded(Image.new("RGB", (40, 36), (255, 0, 255)))  # unlike any image of the tree


def ask(client, data, **fields):
    answer = client.post("/v1/search", files={"image": ("a", data)}, data=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ranked(answer):
    """Ids and scores of the results."""
    return [hit["id"] for hit in answer["results"]], [hit["score"] for hit in answer["results"]]


def assert_same(found, expected):
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


RERANKED = {"rerank": "kreciprocal", "where": 'label_1 != "super0"'}


@pytest.mark.parametrize("options", [{}, {"expand": 3, "alpha": 1.0}, RERANKED])
def test_an_upload_finds_what_the_gallery_finds(client, shared_gallery, options):
    data, where = png(3), options.get("where")
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        vector = gallery.encoder().encode([Image.open(io.BytesIO(data))])
        steps = Refinement(**{key: value for key, value in options.items() if key != "where"})
        (scores,), (ids,) = refined_search(gallery, vector, 7, steps, where=where)
        labels = [[row["label_0"], row["label_1"]] for row in gallery.metadata(ids.tolist())]
        plain, n_candidates = gallery.search(vector, 7)[1][0].tolist(), gallery.count(where)
    answer = ask(client, data, k=7, **options)
    assert_same(ranked(answer), (ids.tolist(), scores))
    assert (ids.tolist() == plain) == (not options)  # otherwise the options were ignored
    assert [hit["labels"] for hit in answer["results"]] == labels
    assert answer["query"] == {"id": None, "labels": None, "lists": None}
    assert (answer["verdict"], answer["candidates"]) == (None, n_candidates)
    assert {hit["relation"] for hit in answer["results"]} == {None}
    assert not any("path" in hit["metadata"] or "file_hash" in hit["metadata"] for hit in answer["results"])
    assert str(shared_gallery.parent) not in json.dumps(answer)


def test_an_item_finds_its_neighbours_and_how_they_are_related(client, shared_gallery):
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        id_ = gallery.ids()[20]
        (scores,), (ids,) = gallery.search(gallery.vectors([id_]), 31)
        own = [gallery.metadata([id_])[0][level] for level in ("label_0", "label_1")]
    assert ids[0] == id_
    answer = client.post("/v1/search/id", json={"id": id_, "k": 30}).json()
    assert_same(ranked(answer), (ids[1:].tolist(), scores[1:]))
    assert answer["query"] == {"id": id_, "labels": own, "lists": None}
    for hit in answer["results"]:
        assert hit["relation"] == (2 if hit["labels"][0] == own[0] else 1 if hit["labels"][1] == own[1] else 0)
    assert {hit["relation"] for hit in answer["results"]} == {0, 1, 2}


def test_a_vector_of_any_length_finds_what_the_gallery_finds_unless_of_another_encoder(client, shared_gallery):
    vector = np.random.default_rng(0).normal(size=16)
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        ids, own = gallery.search(vector[None], 5)[1][0].tolist(), gallery.identity.fingerprint
    for scale in (1e-200, 250):
        body = {"vector": (scale * vector).tolist(), "k": 5, "fingerprint": own}
        assert ranked(client.post("/v1/search/vector", json=body).json())[0] == ids
    answer = client.post("/v1/search/vector", json=body | {"fingerprint": "another"})
    assert answer.status_code == 409
    assert all(word in answer.json()["detail"] for word in ("another", own))


@pytest.mark.parametrize(("kind", "orientation"), [("PNG", None), ("JPEG", 6)])
def test_a_crop_equals_cropping_beforehand(client, kind, orientation):
    image, options = Image.open(io.BytesIO(png(5, (120, 90)))), {}
    if orientation:
        options = {"exif": Image.Exif(), "quality": 95}
        options["exif"][0x0112] = orientation
    data = encoded(image, kind, **options)
    upright = load_image(Image.open(io.BytesIO(data)))
    assert upright.size == ((90, 120) if orientation else (120, 90))
    box = (upright.width // 5, upright.height // 10, upright.width // 2, upright.height // 2)
    crop = ",".join(str(side / upright.size[axis % 2]) for axis, side in enumerate(box))
    cut, whole = ask(client, encoded(upright.crop(box)), k=9), ask(client, data, k=9)
    cropped = ask(client, data, k=9, crop=crop)
    assert_same(ranked(cropped), ranked(cut))
    assert ranked(cropped) != ranked(whole)


WRONG = [  # the kind of search, what is sent, the status and what the answer names
    ("id", {"id": "nobody"}, 404, "'shapes'"),
    ("id", {"id": "a", "gallery": "other"}, 404, "'shapes'"),
    ("id", {"id": "a", "unknown": 1}, 422, "unknown"),
    ("vector", {"vector": [1.0] * 15}, 422, "16 numbers, not all 0, got 15"),
    ("vector", {"vector": [0.0] * 16}, 422, "not all 0"),
    ("vector", {"vector": [1.0] * 16, "k": "5"}, 422, "k"),
    ("vector", {"vector": [1.0] * 16, "where": "__import__('os')"}, 422, "__import__"),
    ("vector", {"vector": [1.0] * 16, "where": "metadata['path'] >= 'a'"}, 422, "path"),
]
FORMS = [{"k": 0}, {"k": "many"}, {"alpha": "nan"}, {"crop": "1,2"}, {"crop": "0.5,0,0.5,1"}]


def test_searches_that_do_not_fit_are_refused_by_name(client):
    answers = [(client.post(f"/v1/search/{kind}", json=body), *expected) for kind, body, *expected in WRONG]
    upload = {"image": ("a", png())}
    answers += [(client.post("/v1/search", files=upload, data=form), 422, next(iter(form))) for form in FORMS]
    for answer, status, named in answers:
        assert answer.status_code == answer.json()["status"] == status, named
        assert answer.headers["content-type"] == "application/problem+json"
        assert named in answer.json()["detail"]
        assert answer.json().keys() >= {"type", "title", "status", "detail"}


def test_concurrent_queries_share_passes_and_get_their_own_answers(serving, shared_gallery):
    client = serving(shared_gallery, batch_wait=0.0, rate=None, threads=4)
    ask(client, png(9), k=3)  # answered after the pass that the thread begins with, which is not to be counted
    encoding = next(iter(client.app.state.service._encodings.values()))
    sizes, forward, gathers = [], encoding.encoder.forward, threading.Event()

    def forward_late(images):
        """The first pass ends once all other images wait for the next."""
        sizes.append(len(images))
        while gathers.is_set() and len(sizes) == 1 and encoding.batcher.n_waiting() < 8 - sizes[0]:
            time.sleep(0.001)
        return forward(images)

    encoding.encoder.forward = forward_late
    alone = [ranked(ask(client, png(seed), k=3)) for seed in range(8)]
    assert sizes == [1] * 8
    sizes.clear()
    gathers.set()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: ranked(ask(client, png(seed), k=3)), range(8)))
    assert (sum(sizes), len(sizes)) == (8, 2)
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


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
    inside = (image_tree / "super0/class00/0.png").read_bytes()
    for data, belongs in ((inside, True), (OUTSIDE, False)):
        vector = encoder.encode([Image.open(io.BytesIO(data))])
        best = float((table.vectors @ vector[0]).max())
        (expected,) = rejector.judge(vector, [best])
        for fields, policy, n_results in (({"policy": "flag"}, "flag", 2), ({}, "reject", 2 if belongs else 0)):
            answer = ask(client, data, k=2, **fields)
            verdict = answer["verdict"]
            found = [verdict[name] for name in ("policy", "belongs", "matched")]
            assert found == [policy, expected.belongs, expected.matched] == [policy, belongs, expected.matched]
            assert verdict["energy"] == pytest.approx(expected.energy, abs=1e-4)
            assert verdict["similarity"] == pytest.approx(best, abs=1e-4)
            assert verdict["quantile"] == pytest.approx(expected.quantile, abs=0.1)
            assert len(answer["results"]) == n_results
        assert ask(client, data, k=2, policy="ignore")["verdict"] is None
    assert client.post("/v1/items", files={"image": ("x", OUTSIDE)}, data={"id": "new"}).status_code == 201
    answer = ask(client, OUTSIDE, k=1)  # an item belongs, even if it was added after the rejector was fitted
    assert (answer["verdict"]["belongs"], ranked(answer)[0]) == (True, ["new"])
    counted, of = client.get("/metrics").text, f'gallery="{own_gallery.name}"'
    for line in (  # two images, each flagged and rejected, and one that has become an item
        f'sightline_verdicts_total{{{of},verdict="refused"}} 2.0',
        f'sightline_verdicts_total{{{of},verdict="accepted"}} 3.0',
        f"sightline_energy_quantile_count{{{of}}} 5.0",
        f"sightline_refused_share_alarm{{{of}}} 0.0",
    ):
        assert line in counted
    (own_gallery / FOLDER / "rejector.json").write_text("{}")
    broken = client.post("/v1/search", files={"image": ("a", inside)})
    assert (broken.status_code, broken.headers["retry-after"]) == (503, "1")
    assert ("rejector" in broken.json()["detail"], str(own_gallery) in broken.text) == (True, False)


def test_two_galleries_are_served_side_by_side(serving, shared_gallery, own_gallery):
    client = serving(shared_gallery, own_gallery, read_only=True)
    assert [gallery["name"] for gallery in client.get("/v1/galleries").json()] == ["shapes", "own"]
    assert len(client.app.state.service._encodings) == 1  # the same encoder is held once
    assert [ask(client, png())["gallery"], ask(client, png(), gallery="own")["gallery"]] == ["shapes", "own"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_index_is_rebuilt_at_the_start_where_the_service_may_write(serving, own_gallery, read_only):
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
