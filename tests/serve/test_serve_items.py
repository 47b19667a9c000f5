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
from PIL import Image
from served_galleries import encoded, make_gallery, png

from sightline.errors import InputError
from sightline.gallery import query as queries
from sightline.gallery.gallery import Gallery
from sightline.gallery.local import LocalGallery, backup_gallery, restore_gallery
from sightline.gallery.query import QueryOptions
from sightline.gallery.store import Store
from sightline.ranking.refine import Refinement
from sightline.serve.collection import Collection, SearchJob


def add(client, id_, data, metadata=None, **fields):
    form = {"id": id_, **({} if metadata is None else {"metadata": json.dumps(metadata)}), **fields}
    return client.post("/v1/items", files={"image": ("x", data)}, data=form)


def nearest(client, data):
    return client.post("/v1/search", files={"image": ("x", data)}, data={"k": 1}).json()["results"][0]


def address(id_):
    return f"/v1/items/{quote(id_, safe='')}"


def opened(data):
    return Image.open(io.BytesIO(data))


def assert_shows(client, id_, image):
    answer = client.get(client.get(address(id_)).json()["image"])
    assert np.array_equal(opened(answer.content), image)


@pytest.mark.parametrize("id_", ["ends/image", "ünï a?b#c%2F", "../../etc/passwd"])
def test_an_item_is_added_found_replaced_and_removed(serving, own_gallery, id_):
    client = serving(own_gallery)
    first, second = png(1), png(2)
    added = add(client, id_, first, {"label_0": "noise", "year": 2020, "rare": True, "none": None})
    assert added.status_code == 201
    assert added.json()["item"]["metadata"] == {"label_0": "noise", "year": 2020, "rare": True, "none": None}
    assert nearest(client, first)["id"] == id_
    assert client.get(address(id_)).json() == added.json()["item"]
    assert add(client, id_, second).status_code == 409
    assert_shows(client, id_, opened(first))
    changed = client.put(address(id_), files={"image": ("x", second)})
    assert changed.status_code == 200
    assert changed.json()["item"]["metadata"]["year"] == 2020
    assert nearest(client, second)["id"] == id_
    assert nearest(client, first)["score"] < 0.999
    relabelled = client.put(address(id_), files={"metadata": (None, '{"year": 2021}')})
    assert relabelled.json()["item"]["metadata"] == {"year": 2021}
    assert nearest(client, second)["id"] == id_
    assert_shows(client, id_, opened(second))
    assert len(list((own_gallery / "images").iterdir())) == 1  # that of the first image is gone
    assert client.delete(address(id_)).status_code == 204
    assert client.get(address(id_)).status_code == 404
    assert client.delete(address(id_)).status_code == 404
    assert list((own_gallery / "images").iterdir()) == []
    assert client.put(address(id_), files={"image": ("x", first)}).status_code == 201
    files = [file for file in own_gallery.parent.rglob("*") if file.is_file() and own_gallery not in file.parents]
    assert files == []  # nothing was written outside the gallery


def test_an_item_is_relabelled_and_a_refusal_changes_nothing(serving, own_gallery):
    client, id_ = serving(own_gallery), "super0/class00/0.png"
    before = client.get(address(id_)).json()
    other = client.get(address("super1/class04/0.png")).json()["labels"]
    relabel = f"{address(id_)}/label"
    for label in ("", "  ", "a" * 1001, "a\0", "\ud800", 7, ["a"]):
        answer = client.post(relabel, content=json.dumps({"label": label}), headers={"Content-Type": "application/json"})
        assert (answer.status_code, "label" in answer.json()["detail"] + answer.text) == (422, True), label
    assert client.post(relabel, json={}).status_code == 422
    assert client.get(address(id_)).json() == before
    assert client.post(f"{address('nobody')}/label", json={"label": "a"}).status_code == 404
    answer = client.post(relabel, json={"label": f" {other[0]} "}).json()
    assert (answer["item"]["labels"], answer["is_new_label"]) == (other, False)
    assert client.get(address(id_)).json() == answer["item"]
    odd = "a/b \"quoted\" \\ 'x' é"
    answer = client.post(relabel, json={"label": odd}).json()
    assert (answer["item"]["labels"], answer["is_new_label"]) == ([odd, other[1]], True)
    assert client.post(relabel, json={"label": None}).json()["item"] == before
    closed = serving(own_gallery, read_only=True)
    assert closed.post(relabel, json={"label": "a"}).status_code == 403


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
        assert detail in answer.json()["detail"]
        assert "metadata" not in given or "metadata" in answer.json()["detail"]
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
    assert client.get("/v1/items/new").status_code == 404
    assert list((own_gallery / "images").iterdir()) == []


@pytest.fixture
def two_processes(own_gallery, monkeypatch):
    """The gallery opened twice, and what two writes raise of which each has looked before the other writes."""
    upsert, have_looked = Gallery.upsert, threading.Barrier(2)

    def last_of_all(*args):
        with suppress(threading.BrokenBarrierError):
            have_looked.wait(0.5)
        upsert(*args)

    def at_once(*writes):
        monkeypatch.setattr(Gallery, "upsert", last_of_all)
        with ThreadPoolExecutor(2) as pool:
            return [one.exception() for one in [pool.submit(write) for write in writes]]

    with closing(Collection(own_gallery)) as first, closing(Collection(own_gallery)) as second:
        yield first, second, at_once


def upload(seed):
    """An image with its vector, as an upload comes."""
    return png(seed), ".png", np.eye(16)[seed]


def test_of_two_processes_that_add_the_same_id_one_is_refused(own_gallery, two_processes):
    first, second, at_once = two_processes
    raised = at_once(
        lambda: first.write("new", {"by": 0}, upload(0), replace=False),
        lambda: second.write("new", {"by": 1}, upload(1), replace=False),
    )
    kept = raised.index(None)
    assert raised[1 - kept].status_code == 409
    known = first.item("new").metadata
    assert known["by"] == kept
    assert [file.read_bytes() for file in (own_gallery / "images").iterdir()] == [png(kept)]
    assert (own_gallery / known["path"]).read_bytes() == png(kept)


def test_of_two_processes_that_change_an_item_none_undoes_what_the_other_did(own_gallery, two_processes):
    first, second, at_once = two_processes
    first.write("new", {"year": 1}, upload(0), replace=False)
    raised = at_once(
        lambda: first.write("new", {"year": 2}, None, replace=True),
        lambda: second.write("new", None, upload(1), replace=True),
    )
    assert raised == [None, None]
    known = first.item("new").metadata
    assert known["year"] == 2
    assert (own_gallery / known["path"]).read_bytes() == png(1)
    assert np.array_equal(first.item("new").vector, np.eye(16)[1])


def test_nothing_is_written_to_a_gallery_whose_files_are_gone(serving, own_gallery):
    client = serving(own_gallery)
    away = own_gallery.rename(own_gallery.with_name("away"))
    answer = add(client, "lost", png())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.get("/v1/ready").json() == {"status": "not ready"}
    away.rename(own_gallery)
    assert client.put("/v1/items/after", files={"metadata": (None, "{}")}).status_code == 404  # a new one has an image
    assert add(client, "after", png()).status_code == 201
    assert client.get("/v1/ready").status_code == 200


@pytest.mark.parametrize("path", ["/v1/items/a", "/metrics"])
def test_a_fault_of_a_gallery_that_is_read_names_it_and_not_its_folder(serving, own_gallery, monkeypatch, path):
    client = serving(own_gallery)

    def damaged(*_):
        raise InputError(f"{own_gallery}: the database is damaged") from sqlite3.DatabaseError("malformed")

    for name in ("state", "reading"):
        monkeypatch.setattr(Store, name, damaged)
    answer = client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["detail"] == "own: the database is damaged"


def test_images_are_small_cached_and_without_what_the_file_held_besides(serving, own_gallery):
    client = serving(own_gallery)
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    photo = Image.effect_mandelbrot((900, 600), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    add(client, "photo", encoded(photo, "JPEG", exif=exif))
    small = client.get("/v1/items/photo/thumbnail")
    assert opened(small.content).size == (256, 171)
    assert small.headers["content-type"] == "image/jpeg"
    assert opened(client.get("/v1/items/photo/thumbnail?size=64").content).size == (64, 43)
    whole = client.get("/v1/items/photo/image")
    assert opened(whole.content).size == (900, 600)
    assert b"a secret place" not in whole.content
    again = client.get("/v1/items/photo/thumbnail", headers={"If-None-Match": small.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    client.put("/v1/items/photo", files={"image": ("x", png())})
    assert client.get("/v1/items/photo/thumbnail", headers={"If-None-Match": small.headers["etag"]}).status_code == 200
    (file,) = (own_gallery / "images").iterdir()
    file.write_bytes(encoded(Image.new("1", (20_000, 20_000))))  # far too large by now
    assert client.get("/v1/items/photo/thumbnail").status_code == 404


def in_a_box(folder, tmp_path, *sides):
    """An item of an image of 40 x 36 of which a part counts."""
    (tmp_path / "boxed.png").write_bytes(png(1))
    known = dict(zip(("x_1", "y_1", "x_2", "y_2"), sides, strict=True)) | {"path": "../boxed.png", "year": 1}
    with Gallery.open(folder) as gallery:
        gallery.upsert(["boxed"], np.eye(16)[:1], [known])


def test_a_box_goes_with_its_image_and_is_not_drawn_if_it_is_no_part_of_it(serving, own_gallery, tmp_path):
    in_a_box(own_gallery, tmp_path, 4, 3, 24, 13)
    client = serving(own_gallery, image_roots=[tmp_path])
    found = client.get("/v1/items/boxed").json()["metadata"]
    client.put("/v1/items/boxed", files={"metadata": (None, json.dumps(found | {"year": 2}))})  # what was sent is sent back
    assert client.get("/v1/items/boxed").json()["metadata"] == {"year": 2}
    assert_shows(client, "boxed", opened(png(1)).crop((4, 3, 24, 13)))
    client.put("/v1/items/boxed", files={"image": ("x", png(2))})  # is searched by as a whole, and so shown
    assert_shows(client, "boxed", opened(png(2)))
    for sides in ((-20000, -10000, 5, 5), (0, 0, 0, 0), (0, 0, 41, 9), ("a", 0, 5, 5)):
        in_a_box(own_gallery, tmp_path, *sides)
        assert client.get("/v1/items/boxed/image").status_code == 404, sides


def test_fields_say_what_to_filter_by(serving, own_gallery):
    known = [{"year": 2019, "rare": True}, {"year": 2021.5, "rare": False, "note": "n"}]
    with Gallery.open(own_gallery) as gallery:
        gallery.add(["x", "y"], np.eye(16)[:2], known)
    described = serving(own_gallery).get("/v1/galleries").json()[0]
    by_name = {field["name"]: field for field in described["fields"]}
    assert list(by_name) == ["label_0", "label_1", "note", "rare", "split", "year"]
    assert described["levels"] == ["label_0", "label_1"]
    assert by_name["label_1"]["values"] == [{"value": f"super{n}", "count": 24} for n in range(3)]
    assert (by_name["year"]["kind"], by_name["year"]["min"], by_name["year"]["max"]) == ("number", 2019, 2021.5)
    assert by_name["rare"]["values"] == [{"value": False, "count": 1}, {"value": True, "count": 1}]
    assert described["items"] == 74


def test_a_gallery_is_backed_up_and_restored_while_it_is_served(serving, own_gallery, tmp_path):
    client = serving(own_gallery)
    add(client, "kept", png(1), {"year": 1})
    copy = tmp_path / "copy"
    assert backup_gallery(own_gallery, copy) == 73
    add(client, "later", png(2))
    client.delete("/v1/items/kept")
    assert nearest(client, png(2))["id"] == "later"
    assert restore_gallery(copy, own_gallery) == 73
    assert nearest(client, png(1))["id"] == "kept"
    assert client.get("/v1/items/later").status_code == 404
    assert client.get("/v1/items/kept/image").status_code == 200
    assert add(client, "again", png(3)).status_code == 201  # the writer has the restored gallery too
    assert nearest(client, png(3))["id"] == "again"
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert gallery.verify() == []
        assert len(gallery) == 74
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def removed_but_open():
    """Files of galleries that are gone from the disk and held open by this process, which the system lists."""
    files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists() or entry.is_symlink()]
    return [file for file in files if file.endswith(" (deleted)") and "gallery.db" in file]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's list of open files")
def test_a_gallery_that_was_replaced_is_closed_after_the_last_search_in_it(own_gallery, tmp_path, monkeypatch):
    served = Collection(own_gallery)
    backup_gallery(own_gallery, tmp_path / "copy")
    with Gallery.open(own_gallery) as other:
        vector = other.vectors(["super0/class00/0.png"])[0]
        other.remove(["super0/class00/0.png"])
    search, is_searching, may_end = queries.refined_search, threading.Event(), threading.Event()

    def slowly(*args, **kwargs):
        is_searching.set()
        assert may_end.wait(30)
        return search(*args, **kwargs)

    monkeypatch.setattr(queries, "refined_search", slowly)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(served.search, [SearchJob(vector, QueryOptions(1))])
        assert is_searching.wait(30)
        restore_gallery(tmp_path / "copy", own_gallery)
        assert served.item("super0/class00/0.png")  # of the restored one
        assert removed_but_open()
        may_end.set()
        (found,) = early.result()
    assert [hit.id for hit in found.results] != ["super0/class00/0.png"]  # of the one before
    assert removed_but_open() == []
    (found,) = served.search([SearchJob(vector, QueryOptions(1))])
    assert [hit.id for hit in found.results] == ["super0/class00/0.png"]
    served.close()


def test_a_restored_gallery_of_another_encoder_is_searched_by_that_one(serving, own_gallery, image_tree, tmp_path):
    client = serving(own_gallery)
    make_gallery(tmp_path / "other", image_tree, seed=1)
    restore_gallery(tmp_path / "other", own_gallery)
    hit = nearest(client, (image_tree / "super0/class00/3.png").read_bytes())
    assert hit["id"] == "super0/class00/3.png"
    assert hit["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("name", "refinement"), [("metadata", Refinement()), ("vectors", Refinement(expand=2))])
def test_an_item_that_vanishes_during_a_search_costs_a_second_try_alone(own_gallery, monkeypatch, name, refinement):
    unchanged = getattr(LocalGallery, name)
    with closing(Collection(own_gallery)) as served, Gallery.open(own_gallery) as other:
        query = other.vectors(["super0/class00/0.png"])[0]

        def removed_meanwhile(gallery, ids):
            if "super0/class00/0.png" in other.ids():
                other.remove(["super0/class00/0.png"])
            return unchanged(gallery, ids)

        monkeypatch.setattr(LocalGallery, name, removed_meanwhile)
        (answer,) = served.search([SearchJob(query, QueryOptions(3, refinement=refinement))])
    assert len(answer.results) == 3
    assert "super0/class00/0.png" not in [hit.id for hit in answer.results]
