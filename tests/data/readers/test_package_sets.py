"""Emoji of tiny npm packages; clip art and Fashion-MNIST of Debian packages that dpkg-deb builds."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from package_archives import needs_dpkg, png, write_deb, write_npm
from PIL import Image

from refusals import assert_refused
from sightline.data.images import check_images, load_image
from sightline.data.manifest import read_manifest
from sightline.data.readers import package_sets
from sightline.data.readers.package_sets import CLIP_ART, FASHION_MNIST, write_emoji, write_fashion_mnist, write_openclipart
from sightline.data.readers.source import split_of

VENDORS = ("apple", "google")
NAMES = [f"face-{number}" for number in range(40)]


def entries():
    """40 emoji that both vendors draw, one that only the first does."""
    return [
        {"short_name": name, "name": name.upper(), "subcategory": f"sub-{n % 4}", "category": f"cat-{n % 2}"}
        | {"image": f"{n:04x}.png", "has_img_apple": True, "has_img_google": name != "lonely"}
        for n, name in enumerate([*NAMES, "lonely"])
    ]


def emoji_files(vendor):
    """Half transparent, another colour for each; two emoji of apple look alike."""
    rows = entries()
    shades = {row["image"]: (0 if number == 1 and vendor == "apple" else 5 * number) for number, row in enumerate(rows)}
    drawn = {f"img/{vendor}/64/{image}": png((shade, 100, 0, 128)) for image, shade in shades.items()}
    return {"emoji.json": json.dumps(rows).encode()} | drawn


def one_split_each(table):
    return table.group_by("label_0").agg(pl.col("split").n_unique())["split"].max() == 1


@pytest.fixture
def packages(tmp_path):
    return {vendor: write_npm(tmp_path / "npm", f"emoji-{vendor}", emoji_files(vendor)) for vendor in VENDORS}


def test_images_of_all_vendors_with_their_tree(tmp_path, packages):
    written = write_emoji(tmp_path / "emoji", root=tmp_path / "npm", packages=packages)
    manifest = read_manifest(written)
    check_images(manifest)
    assert (len(manifest), manifest.n_levels) == (80, 3)
    table = manifest.table
    assert set(table["label_0"]) == set(NAMES)  # "lonely" has one drawing: it could not be found
    assert table.group_by("label_0").agg(pl.col("vendor").sort())["vendor"].to_list() == [sorted(VENDORS)] * 40
    assert one_split_each(table)
    page = (tmp_path / "emoji" / "SOURCES.md").read_text()
    for line in ("80 images, classes 40 < 4 < 2", "| emoji-apple | 1.0.0 | CC0-1.0 | 40 |", "\n2 emoji share a picture"):
        assert line in page
    seven = table.filter(pl.col("label_0") == "face-7").row(0, named=True)
    assert (seven["label_1"], seven["label_2"], seven["name"]) == ("sub-3", "cat-1", "face-7")
    pixel = Image.open(tmp_path / "emoji" / seven["path"]).getpixel((0, 0))
    assert pixel == pytest.approx((255 - 128 / 255 * (255 - 35), 255 - 128 / 255 * 155, 255 - 128 / 255 * 255), abs=1)


def test_splits_never_change():
    for name in NAMES:
        place = int(hashlib.sha256(f"emoji/{name}".encode()).hexdigest()[:16], 16) / 16**16
        assert split_of("emoji", name) == ("test" if place < 0.5 else "val" if place < 0.55 else "train")
    many = [split_of("emoji", str(number)) for number in range(20_000)]
    shares = [many.count(split) / 20_000 for split in ("test", "val", "train")]
    assert shares == pytest.approx([0.5, 0.05, 0.45], abs=0.01)


IMAGE = "img/google/64/0003.png"


@pytest.mark.parametrize(
    ("vendor", "path", "content", "message"),
    [
        ("apple", "emoji.json", None, r"emoji-apple-1.0.0.tgz: 1 fault\n  has no emoji.json"),
        ("apple", "emoji.json", b"[{", "emoji.json is not JSON"),
        ("apple", "emoji.json", b'[{"a": 1}]', "emoji-apple-1.0.0.tgz: .*has_img_apple"),
        ("apple", "emoji.json", b"[]", "names no emoji that all of apple, google draw"),
        ("google", IMAGE, None, rf"emoji-google-1.0.0.tgz: 1 fault\n  has no {IMAGE}"),
        ("google", IMAGE, png((9, 9, 9, 9))[:48], f"{IMAGE} is not a readable image"),
    ],
)
def test_wrong_content_is_named_and_leaves_nothing(tmp_path, packages, vendor, path, content, message):
    files = emoji_files(vendor) | {path: content}
    if content is None:
        del files[path]
    packages |= {vendor: write_npm(tmp_path / "npm", f"emoji-{vendor}", files)}
    assert_refused(message, write_emoji, tmp_path / "out" / "emoji", root=tmp_path / "npm", packages=packages)
    assert list((tmp_path / "out").iterdir()) == []


def clip_art():
    folders = ["a/b/c", "a/b/c/d", "a/b/other", "a/b", "a", "e/f", "unsorted"]
    files = {f"{folder}/{number}.png": png((40 * number, 9, 9, 128)) for folder in folders for number in range(2)}
    files |= {"a/wide.png": png((1, 2, 3), 400, "RGB"), "a/huge.png": png((1, 2, 3), 401, "RGB"), "a/notes.txt": b"x"}
    files |= {"e/f/broken.png": b"\x89PNG no image at all, though long enough", "e/f/short.png": b"x"}
    return files | {"lonely/one.png": png((1, 2, 3, 4)), "free.png": png((0, 0, 0, 255))}


@needs_dpkg
def test_folders_of_clip_art_become_three_levels(tmp_path, monkeypatch):
    monkeypatch.setattr(package_sets, "MOST_PIXELS", 400 * 400)
    debs = write_deb(tmp_path, CLIP_ART, clip_art(), [("a/link.png", "wide.png")])
    manifest = read_manifest(write_openclipart(tmp_path / "art", root=debs))
    check_images(manifest)
    labels = {Path(row[0]).parent.as_posix(): row[1:] for row in manifest.table.select("path", r"^label_\d$").iter_rows()}
    assert labels == {
        "images/a/b/c": ("a/b/c", "a/b", "a"),
        "images/a/b/c/d": ("a/b/c", "a/b", "a"),  # deeper than three
        "images/a/b/other": ("a/b/other", "a/b", "a"),
        "images/a/b": ("a/b", "a/b", "a"),
        "images/a": ("a", "a", "a"),
        "images/e/f": ("e/f", "e/f", "e"),
    }
    assert len(manifest) == 13
    assert one_split_each(manifest.table)
    assert load_image(tmp_path / "art/images/a/wide.png").size == (256, 256)
    assert load_image(tmp_path / "art/images/a/0.png").getpixel((0, 0)) == pytest.approx((127, 131, 131), abs=1)
    assert sorted(path.name for path in (tmp_path / "art/images").rglob("*.png") if "e" in path.parts) == ["0.png", "1.png"]
    page = (tmp_path / "art" / "SOURCES.md").read_text()
    left_out = {"of more than 160,000 pixels": 1, "links to other images": 1, "in no folder, or in unsorted": 3}
    left_out |= {"not readable images": 2, "the only image of its folder": 1}
    lines = ["13 images, classes 5 < 3 < 2", "- files: 21", "| openclipart-png | 1-2 | public domain | 13 |"]
    for line in [*lines, *(f"- left out: {why}: {n}" for why, n in left_out.items())]:
        assert line in page


@needs_dpkg
def test_clip_art_without_images_is_refused_and_leaves_nothing(tmp_path):
    debs = write_deb(tmp_path, CLIP_ART, {"a/one.png": png((1, 1, 1, 1)), "b/two.png": b"no"})
    assert_refused(["openclipart-png"], write_openclipart, tmp_path / "out" / "art", root=debs)
    assert list((tmp_path / "out").iterdir()) == []


PARTS = {"train": ("train", 30), "test": ("t10k", 20)}


def idx(values):
    header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(header + values.tobytes(), mtime=0)


def fashion(n_train=30, n_test=20):
    rng = np.random.default_rng(0)
    files = {}
    for start, n in (("train", n_train), ("t10k", n_test)):
        files[f"{start}-images-idx3-ubyte.gz"] = idx(rng.integers(0, 256, (n, 28, 28), np.uint8))
        files[f"{start}-labels-idx1-ubyte.gz"] = idx(np.arange(n, dtype=np.uint8) % 10)
    return files


@needs_dpkg
def test_fashion_mnist_keeps_pixels_labels_and_the_published_parts(tmp_path):
    files = fashion()
    debs = write_deb(tmp_path, FASHION_MNIST, files)
    manifest = read_manifest(write_fashion_mnist(tmp_path / "set", root=debs, parts=PARTS))
    table = manifest.table
    assert (len(table), manifest.n_levels) == (50, 1)
    assert dict(table.group_by("part").len().iter_rows()) == {"train": 30, "test": 20}
    content = gzip.decompress(files["t10k-images-idx3-ubyte.gz"])[16:]
    thirteenth = table.filter(pl.col("path").str.contains("images/test/.*/00013.png")).row(0, named=True)
    assert thirteenth["label_0"] == "dress"  # the published name of class 3
    assert Image.open(tmp_path / "set" / thirteenth["path"]).tobytes() == content[13 * 784 : 14 * 784]
    classes = {split: set(part["label_0"]) for (split,), part in table.group_by("split")}
    assert {split: len(part) for split, part in classes.items()} == {"train": 5, "test": 5}
    assert classes["train"] | classes["test"] == set(package_sets.CLASSES)


IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (IMAGES, None, "no such file"),
        (IMAGES, b"no", "cannot be unpacked: Not a gzipped file"),
        (IMAGES, fashion()[IMAGES][:900], "cannot be unpacked: Compressed file ended"),
        (IMAGES, fashion(n_test=19)[IMAGES], "not an IDX file of 20 x 28 x 28 bytes"),
        (LABELS, gzip.compress(gzip.decompress(fashion()[LABELS])[:-3], mtime=0), "not an IDX file of 20 bytes"),
        (
            LABELS,
            gzip.compress(gzip.decompress(fashion()[LABELS]) + bytes(40 << 20), mtime=0),
            "not an IDX file of 20 bytes",
        ),
        (LABELS, idx(np.arange(20, dtype=np.uint8)), "classes must be 0 to 9, got 19"),
    ],
    ids=["missing", "not packed", "cut short", "too few images", "too few labels", "zeros behind", "unknown class"],
)
@needs_dpkg
def test_faults_of_fashion_mnist_are_named_and_leave_nothing(tmp_path, file, content, message):
    files = {path: written for path, written in (fashion() | {file: content}).items() if written is not None}
    debs = write_deb(tmp_path, FASHION_MNIST, files)
    assert_refused(f"{file}: {message}", write_fashion_mnist, tmp_path / "out" / "set", root=debs, parts=PARTS)
    assert list((tmp_path / "out").iterdir()) == []
