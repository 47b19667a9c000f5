"""Sets out of Debian packages, which the tests build with dpkg-deb."""

import gzip
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from package_archives import png
from PIL import Image

from sightline.data.images import check_images, load_image
from sightline.data.manifest import read_manifest
from sightline.data.readers import debian_sets
from sightline.data.readers.debian_sets import CLASSES, write_fashion_mnist, write_openclipart
from sightline.errors import InputError

pytestmark = pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="needs dpkg-deb")


def write_deb(folder, package, files, links=()):
    """A package with the files, by their path below its root; the folder its archive is in."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = f"Package: {package.name}\nVersion: 1-2\nArchitecture: all\nMaintainer: N <n@example.org>\nDescription: x\n"
    (tree / "DEBIAN" / "control").write_text(control)
    root = tree / package.root.lstrip("/")
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    for path, target in links:
        (root / path).symlink_to(target)
    (folder / "debs").mkdir()
    file = folder / "debs" / f"{package.name}_1-2_all.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, file], check=True, capture_output=True)
    return folder / "debs"


def clip_art():
    folders = ["a/b/c", "a/b/c/d", "a/b/other", "a/b", "a", "e/f", "unsorted"]
    files = {f"{folder}/{number}.png": png((40 * number, 9, 9, 128)) for folder in folders for number in range(2)}
    files |= {
        "e/f/broken.png": b"\x89PNG no image at all, though long enough",
        "e/f/short.png": b"x",
        "lonely/one.png": png((1, 2, 3, 4)),
    }
    return files | {"a/wide.png": png((1, 2, 3), 400, "RGB"), "a/notes.txt": b"x", "free.png": png((0, 0, 0, 255))}


def test_folders_of_clip_art_become_three_levels(tmp_path):
    debs = write_deb(tmp_path, debian_sets.CLIP_ART, clip_art(), [("a/link.png", "wide.png")])
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
    assert manifest.table.group_by("label_0").agg(pl.col("split").n_unique())["split"].max() == 1
    assert load_image(tmp_path / "art/images/a/wide.png").size == (256, 256)
    assert load_image(tmp_path / "art/images/a/0.png").getpixel((0, 0)) == pytest.approx((127, 131, 131), abs=1)
    assert sorted(path.name for path in (tmp_path / "art/images").rglob("*.png") if "e" in path.parts) == ["0.png", "1.png"]
    page = (tmp_path / "art" / "SOURCES.md").read_text()
    for line in (
        "13 images, classes 5 < 3 < 2",
        "- files: 20",
        "- left out: links to other images: 1",
        "- left out: in no folder, or in unsorted: 3",
        "- left out: not readable images: 2",
        "- left out: the only image of its folder: 1",
        "| openclipart-png | 1-2 | public domain | 13 |",
    ):
        assert line in page


def test_huge_clip_art_is_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(debian_sets, "MOST_PIXELS", 399 * 400)
    debs = write_deb(tmp_path, debian_sets.CLIP_ART, clip_art())
    write_openclipart(tmp_path / "art", root=debs)
    assert "- left out: of more than 159,600 pixels: 1\n" in (tmp_path / "art" / "SOURCES.md").read_text()
    assert not (tmp_path / "art/images/a/wide.png").exists()


def test_clip_art_without_images_is_refused_and_leaves_nothing(tmp_path):
    debs = write_deb(tmp_path, debian_sets.CLIP_ART, {"a/one.png": png((1, 1, 1, 1)), "b/two.png": b"no"})
    with pytest.raises(InputError, match="openclipart-png: no folder has two readable images"):
        write_openclipart(tmp_path / "out" / "art", root=debs)
    assert list((tmp_path / "out").iterdir()) == []


PARTS = {"train": ("train", 30), "test": ("t10k", 20)}


def idx(values):
    return gzip.compress(
        bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes(), mtime=0
    )


def fashion(n_train=30, n_test=20):
    rng = np.random.default_rng(0)
    files = {}
    for start, n in (("train", n_train), ("t10k", n_test)):
        files[f"{start}-images-idx3-ubyte.gz"] = idx(rng.integers(0, 256, (n, 28, 28), np.uint8))
        files[f"{start}-labels-idx1-ubyte.gz"] = idx(np.arange(n, dtype=np.uint8) % 10)
    return files


def test_fashion_mnist_keeps_pixels_labels_and_the_published_parts(tmp_path):
    files = fashion()
    debs = write_deb(tmp_path, debian_sets.FASHION_MNIST, files)
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
    assert classes["train"] | classes["test"] == set(CLASSES)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", None, "train-images-idx3-ubyte.gz: no such file"),
        ("train-images-idx3-ubyte.gz", b"no", "train-images-idx3-ubyte.gz: cannot be unpacked: Not a gzipped file"),
        (
            "t10k-images-idx3-ubyte.gz",
            fashion()["t10k-images-idx3-ubyte.gz"][:900],
            "cannot be unpacked: Compressed file ended",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            fashion(n_test=19)["t10k-images-idx3-ubyte.gz"],
            "not an IDX file of 20 x 28 x 28 bytes",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(gzip.decompress(fashion()["t10k-labels-idx1-ubyte.gz"])[:-3]),
            "t10k-labels-idx1-ubyte.gz: 17 values, its header says 20",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(gzip.decompress(fashion()["t10k-labels-idx1-ubyte.gz"]) + bytes(40 << 20)),
            "t10k-labels-idx1-ubyte.gz: more values, its header says 20",
        ),
        ("t10k-labels-idx1-ubyte.gz", idx(np.arange(20, dtype=np.uint8)), "class 19, known are 0 to 9"),
    ],
    ids=["missing", "not packed", "cut short", "too few images", "too few labels", "zeros behind", "unknown class"],
)
def test_faults_of_fashion_mnist_are_named_and_leave_nothing(tmp_path, file, content, message):
    files = fashion() | {file: content}
    debs = write_deb(tmp_path, debian_sets.FASHION_MNIST, {path: text for path, text in files.items() if text is not None})
    with pytest.raises(InputError, match=message):
        write_fashion_mnist(tmp_path / "out" / "set", root=debs, parts=PARTS)
    assert list((tmp_path / "out").iterdir()) == []
