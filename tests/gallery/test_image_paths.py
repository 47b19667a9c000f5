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
        (None, "/images/a.png", "/images/a.png"),
    ):
        folder = gallery and Path(gallery)
        assert stored_path(folder, Path(image)) == stored
        assert image_path(folder, {"path": stored}) == Path(image)


def test_only_what_lay_beside_is_looked_for_in_the_root(tmp_path):
    for stored, found in (
        ("../images/a.png", "/new/images/a.png"),
        ("images/upload.png", "/data/gallery/images/upload.png"),
        ("/else/a.png", "/else/a.png"),
        *((nothing, None) for nothing in (None, "", 3, "a\0b.png")),  # no file can have such a name
    ):
        assert image_path(Path("/data/gallery"), {"path": stored}, Path("/new")) == (found and Path(found))
    assert image_path(Path("/data/gallery"), {}) is None
    (tmp_path / "real" / "gallery").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "gallery")
    assert image_path(tmp_path / "link", {"path": "../a.png"}) == tmp_path.resolve() / "real/a.png"
    (tmp_path / "circle.png").symlink_to("circle.png")
    assert image_path(tmp_path, {"path": "circle.png"}) is not None


def test_served_images_are_found_in_the_roots_and_never_outside_them(tmp_path):
    tmp_path = tmp_path.resolve()
    gallery, old, new = tmp_path / "copy" / "gallery", tmp_path / "copy/images/a.png", tmp_path / "new/images/a.png"
    for file in (gallery / "gallery.db", new, tmp_path / "secret.png", gallery / "images/upload.png"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for path, roots, expected in (
        ("../images/a.png", [], None),  # without roots, only what lies in the gallery
        ("../images/a.png", ["copy"], old),  # not there, and said so later
        ("../images/a.png", ["other", "new"], new),
        ("images/upload.png", ["new"], gallery / "images/upload.png"),
        *((path, ["new"], None) for path in ("../../secret.png", "../../../secret.png", str(tmp_path / "secret.png"))),
        ("../images/../../secret.png", ["new"], None),
        ("../../secret.png", [], None),
    ):
        found = Pictures([tmp_path / root for root in roots], 1000, 1000).file_of(gallery, {"path": path})
        assert found == expected, (path, roots)
