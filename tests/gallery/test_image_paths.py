"""The stored paths of images, and how images are found again; what is served stays below the roots."""

from pathlib import Path

from sightline.gallery.gallery import image_path, stored_path
from sightline.serve.pictures import Pictures


def test_what_is_beside_a_gallery_is_stored_relative_to_it_and_found_again():
    for gallery, image, stored in (
        ("/data/gallery", "/data/images/a b.png", "../images/a b.png"),
        ("/data/gallery", "/data/gallery2/a.png", "../gallery2/a.png"),
        ("/data/gallery", "/data/gallery/images/a.png", "/data/gallery/images/a.png"),  # else removed as if uploaded
        ("/data/gallery", "/database/a.png", "/database/a.png"),
        ("/gallery", "/images/a.png", "/images/a.png"),  # everything is below /
    ):
        assert stored_path(Path(gallery), Path(image)) == stored
        assert image_path(Path(gallery), {"path": stored}) == Path(image)


def test_only_what_lay_beside_is_looked_for_in_the_root():
    folder, root = Path("/data/gallery"), Path("/new")
    assert image_path(folder, {"path": "../images/a.png"}, root) == Path("/new/images/a.png")
    assert image_path(folder, {"path": "images/upload.png"}, root) == Path("/data/gallery/images/upload.png")
    assert image_path(folder, {"path": "/else/a.png"}, root) == Path("/else/a.png")
    assert [image_path(folder, {"path": path}) for path in (None, "", 3)] == [None] * 3
    assert image_path(folder, {}) is None


def test_paths_of_galleries_without_a_folder_or_behind_links(tmp_path):
    assert stored_path(None, Path("/images/a.png")) == "/images/a.png"
    assert image_path(None, {"path": "/images/a.png"}) == Path("/images/a.png")
    (tmp_path / "real" / "gallery").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "gallery")
    assert image_path(tmp_path / "link", {"path": "../a.png"}) == tmp_path.resolve() / "real/a.png"
    (tmp_path / "circle.png").symlink_to("circle.png")
    assert image_path(tmp_path, {"path": "circle.png"}) is not None
    assert image_path(tmp_path, {"path": "a\0b.png"}) is None  # no file can have such a name


def test_served_images_are_found_in_the_roots_and_never_outside_them(tmp_path):
    tmp_path = tmp_path.resolve()
    gallery, old, new = tmp_path / "copy" / "gallery", tmp_path / "copy/images/a.png", tmp_path / "new/images/a.png"
    for file in (gallery / "gallery.db", new, tmp_path / "secret.png", gallery / "images/upload.png"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def found(path, *roots):
        return Pictures(roots, 1000, 1000).file_of(gallery, {"path": path})

    assert found("../images/a.png") is None  # without roots, only what lies in the gallery
    assert found("../images/a.png", tmp_path / "copy") == old  # not there, and said so later
    assert found("../images/a.png", tmp_path / "other", tmp_path / "new") == new
    assert found("images/upload.png", tmp_path / "new") == gallery / "images/upload.png"
    for path in ("../../secret.png", "../../../secret.png", str(tmp_path / "secret.png"), "../images/../../secret.png"):
        assert found(path, tmp_path / "new") is None
    assert found("../../secret.png") is None
