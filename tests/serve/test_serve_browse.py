"""Items without a query: by class, the least typical first, filtered and paged."""

import numpy as np
import pytest

from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.query import QueryOptions, query
from sightline.serve import collection as module
from sightline.serve.browse import read_listing

ANGLES = {"oak": [0, 10, 80], "elm": [200, 201], "fir": [90], "": [300, 310]}


@pytest.fixture
def gallery(tmp_path):
    """Vectors on a circle: classes of 3, 2 and 1, and two items without a label."""
    with Gallery.create(tmp_path / "trees", EncoderIdentity("00ff", 2, "by hand"), metric="dot") as made:
        for name, angles in ANGLES.items():
            ids = [f"{name or 'none'} {angle}" for angle in angles]
            turned = np.radians(angles)
            labels = {"label_0": name, "label_1": "tree"} if name else {}
            vectors = np.stack([np.cos(turned), np.sin(turned)], 1) * (1 + len(name))  # lengths do not count
            made.add(ids, vectors, [labels | {"angle": angle} for angle in angles])
        yield made


def test_typicality_is_the_cosine_to_the_mean_of_the_others_of_the_class(gallery, tmp_path):
    listing = read_listing(gallery)
    found = dict(zip(listing.ids, listing.typicality, strict=True))
    # The mean of two unit vectors points halfway between them.
    expected = {"oak 0": 45, "oak 10": 30, "oak 80": 75, "elm 200": 1, "elm 201": 1, "none 300": 10, "none 310": 10}
    assert np.isnan(found.pop("fir 90"))  # alone in its class
    assert found == pytest.approx({name: np.cos(np.radians(angle)) for name, angle in expected.items()})
    order = ["elm 200", "elm 201", "fir 90", "oak 80", "oak 0", "oak 10", "none 300", "none 310"]
    assert listing.ids[listing.order("class")].tolist() == order  # by name, unlabelled items last
    *least, last = listing.ids[listing.order("least_typical")]
    assert (least[:3], last) == (["oak 80", "oak 0", "oak 10"], "fir 90")
    coarser = read_listing(gallery, level=1)
    assert ({*coarser.classes}, np.isnan(coarser.typicality).any()) == ({"tree", ""}, False)
    among = [*gallery.filter("angle < 250 and label_0 != 'fir'"), "added since"]  # pages do not overlap
    pages = [listing.page("class", among, offset, 2) for offset in (0, 2, 4, 6)]
    assert {total for total, _ in pages} == {5}
    shown = [id_ for _, places in pages for id_ in listing.ids[places]]
    assert shown == ["elm 200", "elm 201", "oak 80", "oak 0", "oak 10"]
    with Gallery.create(tmp_path / "few", EncoderIdentity("00ff", 2, "by hand")) as made:
        assert read_listing(made).page("class", None, 0, 5)[0] == 0
        made.add(["a", "b", "c"], np.array([[1.0, 0], [0, 1], [0, -1]]), [{"label_0": "x"}] * 3)
        assert np.isnan(read_listing(made).typicality[0])  # opposite vectors have no mean


def test_items_that_are_removed_while_they_are_read_are_left_out(gallery, monkeypatch):
    ids = gallery.ids()
    gallery.remove(["oak 0"])
    monkeypatch.setattr(gallery, "ids", iter([ids, gallery.ids(), ids, gallery.ids()]).__next__)
    assert read_listing(gallery).ids.tolist() == [id_ for id_ in ids if id_ != "oak 0"]


def test_the_service_browses_by_class_and_follows_writes(serving, own_gallery, monkeypatch):
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    client = serving(own_gallery)

    def browsed(**params):
        answer = client.get("/v1/items", params={"limit": 200} | params).json()
        return answer["total"], [item["id"] for item in answer["items"]], answer["items"][0]

    with Gallery.open(own_gallery) as gallery:
        listing = read_listing(gallery)
        total, ids, first = browsed()
        assert (total, ids) == (len(gallery), listing.ids[listing.order("class")].tolist())
        assert first["typicality"] == pytest.approx(dict(zip(listing.ids, listing.typicality, strict=True))[ids[0]])
        assert first.keys() == {"id", "labels", "metadata", "image", "thumbnail", "typicality"}
        condition = f"label_0 == {first['labels'][0]!r}"
        page = browsed(where=condition, sort="least_typical", offset=1, limit=1)
        assert page[:2] == (gallery.count(condition), ids[1:2])
        gallery.remove(ids[:1])
        listing = read_listing(gallery)
        _, ids, _ = browsed()
        assert ids == listing.ids[listing.order("class")].tolist()
        found = client.post("/v1/search/id", json={"id": ids[0], "where": condition, "k": 1}).json()
        assert (len(found["results"]), found["candidates"]) == (1, gallery.count(condition))
        assert query(gallery, gallery.vectors(ids[:1]), QueryOptions())[0].candidates == len(gallery)


def test_codes_are_counted_at_each_depth_among_what_passes_the_filter(serving, own_gallery, monkeypatch):
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    client = serving(own_gallery)

    def counts(*within, **params):
        answer = client.get("/v1/codes", params={"field": "codes", "within": within, **params}).json()
        return {above: {one["code"]: one["count"] for one in found} for above, found in answer["levels"].items()}, answer

    with Gallery.open(own_gallery) as gallery:
        marks = [["26.1.15", "26.1.2", "5.3"], ["26.1"], ["26.10", ".a", "5"], ["x y"]]
        gallery.add(["a", "b", "c", "d"], np.eye(16)[:4], [{"codes": codes, "year": n} for n, codes in enumerate(marks)])
        levels, answer = counts("26", "26.1", "7")
        deeper = {"26": {"26.1": 2, "26.10": 1}, "26.1": {"26.1.15": 1, "26.1.2": 1}, "7": {}}
        assert levels == {"": {"26": 3, "5": 2, ".a": 1, "x y": 1}, **deeper}
        assert [one["code"] for one in answer["levels"][""] if one["has_more"]] == ["26", "5"]
        assert counts("26", where="year > 0 and label_0 == None")[0]["26"] == {"26.1": 1, "26.10": 1}
        gallery.remove(["b"])
        assert counts("26")[0]["26"] == {"26.1": 1, "26.10": 1}


def test_what_cannot_be_browsed_is_refused_by_name(client):
    for status, path, params, named in (
        (404, "codes", {"field": "year"}, "year"),
        (404, "codes", {"field": "path"}, "path"),
        (422, "codes", {}, "field"),
        (422, "codes", {"field": "codes", "where": "path == 'x'"}, "path"),
        (422, "items", {"where": "path == 'x'"}, "path"),
        (422, "items", {"where": "year >>> 1"}, "year"),
        (422, "items", {"sort": "size"}, "sort"),
        (422, "items", {"limit": 0}, "limit"),
    ):
        answer = client.get(f"/v1/{path}", params=params)
        assert (answer.status_code, named in answer.json()["detail"]) == (status, True), params
