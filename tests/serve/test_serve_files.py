"""Which files the service reads, shows and removes: those of the gallery and of folders that the operator named."""

import os
from pathlib import Path

import numpy as np
from page_server import png

from sightline.gallery.gallery import Gallery
from sightline.serve.pictures import hidden_folders

ITEM = "/v1/items/super0%2Fclass00%2F0.png"


def noted(gallery_folder: Path, **paths: str) -> None:
    """Items whose metadata says that their images lie there."""
    with Gallery.open(gallery_folder) as gallery:
        gallery.upsert(list(paths), np.eye(16)[: len(paths)], [{"path": path} for path in paths.values()])


def outside_of(folder: Path) -> dict[str, str]:
    """A path of each kind that leads from `images/` to a file outside, which is made, or is a link that does."""
    outside, images = folder.parent / "keep", folder / "images"
    (outside / "deep").mkdir(parents=True)
    (images / "sub").mkdir(parents=True)
    for name in ("up.png", "deep/absolute.png", "linked.png", "in_folder.png", "hard.png"):
        (outside / name).write_bytes(png())
    (images / "link.png").symlink_to(outside / "linked.png")
    (images / "folder").symlink_to(outside)
    return {
        "up": "images/../../keep/up.png",
        "absolute": str(outside / "deep" / "absolute.png"),
        "link": "images/link.png",
        "folder": "images/folder/in_folder.png",
    }


def test_an_item_removes_no_file_outside_of_the_gallerys_images(own_gallery, serving):
    paths, keep = outside_of(own_gallery), own_gallery.parent / "keep"
    (own_gallery / "images" / "own.png").write_bytes(png())
    more = {"own": "own.png", "none": "", "database": "../gallery.db", "dots": "..", "zero": "\0"}
    noted(own_gallery, **paths, **{id_: f"images/{name}" for id_, name in more.items()})
    kept = {file: file.stat().st_ino for file in keep.rglob("*")}
    client = serving(own_gallery)
    for id_ in (*paths, *more):
        assert client.delete(f"/v1/items/{id_}").status_code == 204, id_
    assert client.post("/v1/search/id", json={"id": "super0/class00/0.png"}).status_code == 200
    assert {file: file.stat().st_ino for file in keep.rglob("*")} == kept
    images = [own_gallery / "images" / name for name in ("own.png", "link.png")]
    assert [os.path.lexists(image) for image in images] == [False, True]


def test_images_that_are_a_link_are_neither_written_nor_removed_through(own_gallery, tmp_path, serving):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "there.png").write_bytes(png())
    (own_gallery / "images").symlink_to(elsewhere)
    noted(own_gallery, there="images/there.png")
    client = serving(own_gallery)
    answer = client.post("/v1/items", files={"image": ("x", png())}, data={"id": "new"})
    assert (answer.status_code, "images" in answer.json()["detail"]) == (503, True)
    assert client.delete("/v1/items/there").status_code == 204
    assert [file.name for file in elsewhere.iterdir()] == ["there.png"]


def test_only_images_of_the_gallery_and_of_named_folders_are_shown(own_gallery, image_tree, serving):
    paths = outside_of(own_gallery)
    os.mkfifo(own_gallery / "images" / "pipe.png")
    noted(own_gallery, **paths, pipe="images/pipe.png", device="/dev/zero")

    def shown(client):
        items = {id_: f"/v1/items/{id_}" for id_ in (*paths, "pipe", "device", "new")} | {"tree": ITEM}
        answers = {id_: client.get(f"{path}/image").status_code for id_, path in items.items()}
        assert set(answers.values()) <= {200, 404}
        return {id_ for id_, status in answers.items() if status == 200}

    client = serving(own_gallery)
    assert client.post("/v1/items", files={"image": ("x", png())}, data={"id": "new"}).status_code == 201
    assert shown(client) == {"new"}
    assert shown(serving(own_gallery, image_roots=[image_tree / "super1"])) == {"new"}
    roots = [image_tree / "super0", own_gallery.parent / "keep" / "deep"]
    assert shown(serving(own_gallery, image_roots=roots)) == {"new", "tree", "absolute"}


def test_the_start_names_the_options_by_which_images_are_shown(sightline, own_gallery, image_tree, monkeypatch):
    with Gallery.open(own_gallery) as gallery:
        gallery.add(["elsewhere"], np.eye(16)[:1], [{"path": "/nowhere/photos/0.png"}])
    monkeypatch.chdir(own_gallery)  # folders below this one would be named from here
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    monkeypatch.setattr("logging.config.dictConfig", lambda settings: None)
    status, out, _ = sightline("serve", own_gallery, "--port", 0)
    _, note = out.splitlines()  # after its address
    facts = (str(own_gallery), f"--images {image_tree}", "--images /nowhere/photos")
    assert (status, [fact for fact in facts if fact not in note]) == (0, [])
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert hidden_folders(gallery, [image_tree, Path("/nowhere")]) == []


OF_ITEMS = ["%2e%2e%2f%2e%2e%2fkeep.txt/image", "%252e%252e%252fkeep.txt", "%2e%2e/image", "images%2F..%2F..%2Fkeep.txt"]
STATIC = ["../settings.py", "..%2Fsettings.py", "%2Fetc%2Fpasswd", "%00", "a" * 500]
PATHS = [f"/v1/items/{name}" for name in (*OF_ITEMS, "%00", "%ff")] + [f"/static/{name}" for name in STATIC]


def test_no_spelling_of_a_path_reaches_a_file(client):
    for path in (*PATHS, "//v1/../../etc/passwd"):
        answer = client.get(path)
        assert answer.status_code in (404, 422), path
        assert answer.headers["content-type"] == "application/problem+json"
