"""Items and their images; changes of other processes; backup and restore while serving."""

import errno
import io
import json
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import numpy as np
import pytest
from page_server import encoded, make_gallery, png
from PIL import Image

from sightline.errors import InputError
from sightline.gallery import query as queries
from sightline.gallery.gallery import Gallery
from sightline.gallery.local import LocalGallery, backup_gallery, restore_gallery
from sightline.gallery.query import QueryOptions
from sightline.gallery.store import Store
from sightline.ranking.refine import Refinement
from sightline.serve.collection import Collection, SearchJob

FIRST = "super0/class00/0.png"


def add(client, id_, data, metadata=None):
    form = {"id": id_} | ({} if metadata is None else {"metadata": json.dumps(metadata)})
    return client.post("/v1/items", files={"image": ("x", data)}, data=form)


def put(client, id_, data):
    return client.put(address(id_), files={"image": ("x", data)})


def describe(client, id_, metadata):
    return client.put(address(id_), files={"metadata": (None, json.dumps(metadata))})


def nearest(client, data):
    hit = client.post("/v1/search", files={"image": ("x", data)}, data={"k": 1}).json()["results"][0]
    return hit["id"], hit["score"]


def address(id_):
    return f"/v1/items/{quote(id_, safe='')}"


def shown(client, id_, kind="image"):
    """The picture of an item, at the address that the item names."""
    return Image.open(io.BytesIO(client.get(client.get(address(id_)).json()[kind]).content))


def assert_shows(client, id_, data, box=None):
    assert np.array_equal(shown(client, id_), Image.open(io.BytesIO(data)).crop(box))


def files_in(gallery):
    return list((gallery / "images").iterdir())


@pytest.mark.parametrize("id_", ["ends/image", "ünï a?b#c%2F", "../../etc/passwd"])
def test_an_item_is_added_found_replaced_and_removed(serving, own_gallery, id_):
    client, (first, second) = serving(own_gallery), (png(1), png(2))
    metadata = {"label_0": "noise", "year": 2020, "rare": True, "none": None}
    added = add(client, id_, first, metadata)
    assert (added.status_code, added.json()["item"]["metadata"]) == (201, metadata)
    assert nearest(client, first)[0] == id_
    assert client.get(address(id_)).json() == added.json()["item"]
    assert add(client, id_, second).status_code == 409
    assert_shows(client, id_, first)
    changed = put(client, id_, second)
    assert (changed.status_code, changed.json()["item"]["metadata"]) == (200, metadata)
    assert (nearest(client, second)[0], nearest(client, first)[1] < 0.999) == (id_, True)
    assert describe(client, id_, {"year": 2021}).json()["item"]["metadata"] == {"year": 2021}
    assert nearest(client, second)[0] == id_
    assert_shows(client, id_, second)
    assert len(files_in(own_gallery)) == 1  # that of the first image is gone
    asked = [client.delete, client.get, client.delete]
    assert [ask(address(id_)).status_code for ask in asked] == [204, 404, 404]
    assert files_in(own_gallery) == []
    assert put(client, id_, first).status_code == 201
    files = [file for file in own_gallery.parent.rglob("*") if file.is_file() and own_gallery not in file.parents]
    assert files == []  # nothing was written outside the gallery


def test_an_item_is_relabelled_and_a_refusal_changes_nothing(serving, own_gallery):
    client, relabel, odd = serving(own_gallery), f"{address(FIRST)}/label", "a/b \"quoted\" \\ 'x' é"
    before, other = client.get(address(FIRST)).json(), client.get(address("super1/class04/0.png")).json()["labels"]
    for label in ("", "  ", "a" * 1001, "a\0", "\ud800", 7, ["a"]):
        answer = client.post(relabel, content=json.dumps({"label": label}), headers={"Content-Type": "application/json"})
        assert (answer.status_code, "label" in answer.json()["detail"] + answer.text) == (422, True), label
    assert client.post(relabel, json={}).status_code == 422
    assert client.get(address(FIRST)).json() == before
    assert client.post(f"{address('nobody')}/label", json={"label": "a"}).status_code == 404
    for label, labels, is_new in ((f" {other[0]} ", other, False), (odd, [odd, other[1]], True)):
        answer = client.post(relabel, json={"label": label}).json()
        assert (answer["item"]["labels"], answer["is_new_label"]) == (labels, is_new)
        assert client.get(address(FIRST)).json() == answer["item"]
    assert client.post(relabel, json={"label": None}).json()["item"] == before
    assert serving(own_gallery, read_only=True).post(relabel, json={"label": "a"}).status_code == 403


METADATA = [  # and what the refusal names
    ('{"path": "/etc/passwd"}', "path"),
    ('{"id": "b"}', "id"),
    ('{"x_1": -20000, "y_1": -10000, "x_2": 5, "y_2": 5}', "x_1, x_2, y_1, y_2"),
    ('{"list": [1]}', "list"),
    ('{"list": ["a\\u0000"]}', "list"),
    ('{"list": [[["a"]]]}', "list"),
    (f'{{"a": {2**63}}}', "64 bits"),
    ('{"a": NaN}', "'a'"),
    ('{"lone": "\\ud800"}', "metadata"),
    ('{"a": 1, "a": 2}', "'a'"),
    (json.dumps({str(n): 0 for n in range(101)}), "100"),
    (json.dumps({"k" * 201: 1}), "200"),
    (json.dumps({"a": "x" * 10_001}), "10000"),
    (json.dumps({"a\0b": 1}), "metadata"),
    ("[" * 30_000, "metadata"),
    ("[]", "metadata"),
]


def test_items_that_do_not_fit_are_refused_and_leave_nothing(serving, own_gallery):
    client = serving(own_gallery, rate=None)
    before = client.get("/v1/stats").json()["galleries"]["own"]["items"]
    fields = [({"id": id_}, "id") for id_ in ("", "..", "nul\0", "a" * 1025)] + [({"id": "a", "path": "/etc"}, "path")]
    for given, detail in fields + [({"id": "a", "metadata": text}, detail) for text, detail in METADATA]:
        answer = client.post("/v1/items", files={"image": ("x", png())}, data=given)
        assert (answer.status_code, len(answer.content) < 2000) == (422, True), given
        assert all(named in answer.json()["detail"] for named in (detail, *({"metadata"} & {*given})))
    assert client.get("/v1/stats").json()["galleries"]["own"]["items"] == before
    assert not list(own_gallery.glob("images/*"))


NO_DATABASE, NO_ROOM = InputError("the disk is full"), OSError(errno.ENOSPC, "No space left on device")
NO_DATABASE.__cause__ = sqlite3.OperationalError("full")


@pytest.mark.parametrize(("place", "name", "error"), [(Gallery, "upsert", NO_DATABASE), (Path, "write_bytes", NO_ROOM)])
def test_a_write_that_fails_is_a_problem_and_leaves_no_file(serving, own_gallery, monkeypatch, place, name, error):
    client = serving(own_gallery)
    monkeypatch.setattr(place, name, Mock(side_effect=error))
    answer = add(client, "new", png())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (error.args[-1] in answer.json()["detail"], str(own_gallery) in answer.text) == (True, False)
    assert (client.get("/v1/items/new").status_code, files_in(own_gallery)) == (404, [])


def test_of_two_processes_that_write_an_item_at_once_none_undoes_what_the_other_did(own_gallery, monkeypatch):
    upsert, uploads = Gallery.upsert, [(png(seed), ".png", np.eye(16)[seed]) for seed in range(2)]

    def errors_of(*writes):
        """What two writes raise of which each has looked before the other writes."""
        have_looked = threading.Barrier(2)

        def last_of_all(*args):
            with suppress(threading.BrokenBarrierError):
                have_looked.wait(0.5)
            upsert(*args)

        monkeypatch.setattr(Gallery, "upsert", last_of_all)
        with ThreadPoolExecutor(2) as pool:
            return [running.exception() for running in [pool.submit(*write) for write in writes]]

    with closing(Collection(own_gallery)) as first, closing(Collection(own_gallery)) as second:
        raised = errors_of(*((one.write, "new", {"by": n}, uploads[n], False) for n, one in enumerate((first, second))))
        kept = raised.index(None)
        known = first.item("new").metadata
        assert (raised[1 - kept].status_code, known["by"]) == (409, kept)
        assert files_in(own_gallery) == [own_gallery / known["path"]]
        assert (own_gallery / known["path"]).read_bytes() == png(kept)
        changes = ((first.write, "new", {"year": 2}, None, True), (second.write, "new", None, uploads[1 - kept], True))
        assert errors_of(*changes) == [None, None]
        item = first.item("new")
        assert item.metadata["year"] == 2
        assert (own_gallery / item.metadata["path"]).read_bytes() == png(1 - kept)
        assert np.array_equal(item.vector, uploads[1 - kept][2])


def test_nothing_is_written_to_a_gallery_whose_files_are_gone(serving, own_gallery):
    client = serving(own_gallery)
    away = own_gallery.rename(own_gallery.with_name("away"))
    answer = add(client, "lost", png())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.get("/v1/ready").json() == {"status": "not ready"}
    away.rename(own_gallery)
    assert describe(client, "after", {}).status_code == 404  # a new one has an image
    assert add(client, "after", png()).status_code == 201
    assert client.get("/v1/ready").status_code == 200


def test_a_fault_of_a_gallery_that_is_read_names_it_and_not_its_folder(serving, own_gallery, monkeypatch):
    client, damage = serving(own_gallery), InputError(f"{own_gallery}: the database is damaged")
    damage.__cause__ = sqlite3.DatabaseError("malformed")
    for name in ("state", "reading"):
        monkeypatch.setattr(Store, name, Mock(side_effect=damage))
    for path in ("/v1/items/a", "/metrics"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"] == "own: the database is damaged"


def test_images_are_small_cached_and_without_what_the_file_held_besides(serving, own_gallery):
    client, exif = serving(own_gallery), Image.Exif()
    exif[0x010E] = "a secret place"
    photo = Image.effect_mandelbrot((900, 600), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    add(client, "photo", encoded(photo, "JPEG", exif=exif))
    small = client.get("/v1/items/photo/thumbnail")
    assert small.headers["content-type"] == "image/jpeg"
    sizes = {"thumbnail": (256, 171), "thumbnail?size=64": (64, 43), "image": (900, 600)}
    contents = {name: client.get(f"/v1/items/photo/{name}").content for name in sizes}
    assert {name: Image.open(io.BytesIO(data)).size for name, data in contents.items()} == sizes
    assert b"a secret place" not in contents["image"]
    known = {"If-None-Match": small.headers["etag"]}
    again = client.get("/v1/items/photo/thumbnail", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    put(client, "photo", png())
    assert client.get("/v1/items/photo/thumbnail", headers=known).status_code == 200
    (file,) = files_in(own_gallery)
    file.write_bytes(encoded(Image.new("1", (20_000, 20_000))))  # far too large by now
    assert client.get("/v1/items/photo/thumbnail").status_code == 404


def test_a_box_goes_with_its_image_and_is_not_drawn_if_it_is_no_part_of_it(serving, own_gallery, tmp_path):
    (tmp_path / "boxed.png").write_bytes(png(1))

    def store(*box):
        """An item of an image of 40 x 36 of which a part counts."""
        known = dict(zip(("x_1", "y_1", "x_2", "y_2"), box, strict=True)) | {"path": "../boxed.png", "year": 1}
        with Gallery.open(own_gallery) as gallery:
            gallery.upsert(["boxed"], np.eye(16)[:1], [known])

    store(4, 3, 24, 13)
    client = serving(own_gallery, image_roots=[tmp_path])
    found = client.get("/v1/items/boxed").json()["metadata"]
    describe(client, "boxed", found | {"year": 2})  # what was sent is sent back
    assert client.get("/v1/items/boxed").json()["metadata"] == {"year": 2}
    assert_shows(client, "boxed", png(1), (4, 3, 24, 13))
    put(client, "boxed", png(2))  # is searched by as a whole, and so shown
    assert_shows(client, "boxed", png(2))
    for box in ((-20000, -10000, 5, 5), (0, 0, 0, 0), (0, 0, 41, 9), ("a", 0, 5, 5)):
        store(*box)
        assert client.get("/v1/items/boxed/image").status_code == 404, box


def test_fields_say_what_to_filter_by(serving, own_gallery):
    with Gallery.open(own_gallery) as gallery:
        gallery.add(["x", "y"], np.eye(16)[:2], [{"year": 2019, "rare": True}, {"year": 2021.5, "rare": False, "note": ""}])
    described = serving(own_gallery).get("/v1/galleries").json()[0]
    assert (described["items"], described["levels"]) == (74, ["label_0", "label_1"])
    by_name = {field["name"]: field for field in described["fields"]}
    assert list(by_name) == ["label_0", "label_1", "note", "rare", "split", "year"]
    assert by_name["label_1"]["values"] == [{"value": f"super{n}", "count": 24} for n in range(3)]
    assert [by_name["year"][fact] for fact in ("kind", "min", "max")] == ["number", 2019, 2021.5]
    assert by_name["rare"]["values"] == [{"value": False, "count": 1}, {"value": True, "count": 1}]


def test_a_gallery_is_backed_up_and_restored_while_it_is_served(serving, own_gallery, image_tree, tmp_path):
    client, copy = serving(own_gallery), tmp_path / "copy"
    add(client, "kept", png(1), {"year": 1})
    assert backup_gallery(own_gallery, copy) == 73
    add(client, "later", png(2))
    client.delete("/v1/items/kept")
    assert nearest(client, png(2))[0] == "later"
    assert restore_gallery(copy, own_gallery) == 73
    assert nearest(client, png(1))[0] == "kept"
    assert [client.get(f"/v1/items/{path}").status_code for path in ("later", "kept/image")] == [404, 200]
    assert add(client, "again", png(3)).status_code == 201  # the writer has the restored gallery too
    assert nearest(client, png(3))[0] == "again"
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert (gallery.verify(), len(gallery)) == ([], 74)
    assert not list(tmp_path.glob(".*"))
    restore_gallery(make_gallery(tmp_path / "other", image_tree, seed=1), own_gallery)  # searched by its own encoder
    id_, score = nearest(client, (image_tree / "super0/class00/3.png").read_bytes())
    assert (id_, score) == ("super0/class00/3.png", pytest.approx(1, abs=1e-5))


def removed_but_open():
    """Files of galleries that are gone from the disk and held open by this process, which the system lists."""
    files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists() or entry.is_symlink()]
    return [file for file in files if file.endswith(" (deleted)") and "gallery.db" in file]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's list of open files")
def test_a_gallery_that_was_replaced_is_closed_after_the_last_search_in_it(own_gallery, tmp_path, monkeypatch):
    backup_gallery(own_gallery, tmp_path / "copy")
    with Gallery.open(own_gallery) as other:
        job = SearchJob(other.vectors([FIRST])[0], QueryOptions(1))
        other.remove([FIRST])
    search, is_searching, may_end = queries.refined_search, threading.Event(), threading.Event()

    def slowly(*args, **kwargs):
        is_searching.set()
        assert may_end.wait(30)
        return search(*args, **kwargs)

    monkeypatch.setattr(queries, "refined_search", slowly)
    with closing(Collection(own_gallery)) as served:
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(served.search, [job])
            assert is_searching.wait(30)
            restore_gallery(tmp_path / "copy", own_gallery)
            assert served.item(FIRST)  # of the restored one
            assert removed_but_open()
            may_end.set()
            (found,) = early.result()
        assert [hit.id for hit in found.results] != [FIRST]  # of the one before
        assert removed_but_open() == []
        (found,) = served.search([job])
        assert [hit.id for hit in found.results] == [FIRST]


@pytest.mark.parametrize(("name", "refinement"), [("metadata", Refinement()), ("vectors", Refinement(expand=2))])
def test_an_item_that_vanishes_during_a_search_costs_a_second_try_alone(own_gallery, monkeypatch, name, refinement):
    unchanged = getattr(LocalGallery, name)
    with closing(Collection(own_gallery)) as served, Gallery.open(own_gallery) as other:
        query = other.vectors([FIRST])[0]

        def removed_meanwhile(gallery, ids):
            if FIRST in other.ids():
                other.remove([FIRST])
            return unchanged(gallery, ids)

        monkeypatch.setattr(LocalGallery, name, removed_meanwhile)
        (answer,) = served.search([SearchJob(query, QueryOptions(3, refinement=refinement))])
    assert (len(answer.results), FIRST in [hit.id for hit in answer.results]) == (3, False)
