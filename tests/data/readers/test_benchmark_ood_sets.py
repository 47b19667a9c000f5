import os
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sightline.data.readers.outside import CIFAR_10, CIFAR_100, FOLDER, SVHN, TEXTURES
from sightline.data.readers.pickles import read_pickle
from sightline.data.readers.source import PublishedCounts
from sightline.errors import InputError

PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNTS = {"train": PublishedCounts(10, (2,)), "test": PublishedCounts(2, (2,))}


def batches(seed=0):
    """For each part two images, (2, 3072) as published, and their classes 0 and 1."""
    rng = np.random.default_rng(seed)
    return {part: rng.integers(0, 256, (2, 3072), dtype=np.uint8) for part in PARTS}


def put_cifar_10(tree, binary):
    folder = "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    for part, pixels in batches().items():
        if binary:
            tree.data(f"{folder}/{part}.bin", b"".join(bytes([n]) + row.tobytes() for n, row in enumerate(pixels)))
        else:
            tree.data(f"{folder}/{part}", pickle.dumps({b"data": pixels, b"labels": [0, 1]}, protocol=2))
    if binary:
        tree.text(f"{folder}/batches.meta.txt", "airplane\nautomobile\n\n")
    else:
        tree.data(f"{folder}/batches.meta", pickle.dumps({b"label_names": [b"airplane", b"automobile"]}, protocol=2))
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_cifar_10_in_all_its_forms_gives_the_same_images(tree, rows, binary, packed):
    folder = put_cifar_10(tree, binary)
    if packed:
        tree.archive("cifar-10-binary.tar.gz" if binary else "cifar-10-python.tar.gz", folder)
    manifest = tree.prepare(CIFAR_10, counts=COUNTS)
    test = manifest.split("test")
    assert rows(test, "path", "label_0") == [
        ("set_images/test/airplane/00000.png", "airplane"),
        ("set_images/test/automobile/00001.png", "automobile"),
    ]
    for path, flat in zip(test.paths(), batches()["test_batch"], strict=True):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        for row, column, channel in ((0, 0, 0), (3, 7, 1), (31, 30, 2)):  # channel by channel, row by row
            assert pixels[row, column, channel] == flat[channel * 1024 + row * 32 + column]
    assert sorted(tree.out.parent.iterdir()) == [tree.out, tree.out.parent / "set_images"]


def test_cifar_100_has_two_levels_and_the_binary_form_the_coarse_one_first(tree, rows):
    pixels = batches()["test_batch"]
    for part in ("train", "test"):
        tree.data(
            f"cifar-100-binary/{part}.bin", b"".join(bytes([n, 1 - n]) + row.tobytes() for n, row in enumerate(pixels))
        )
        arrays = {b"data": pixels, b"fine_labels": [1, 0], b"coarse_labels": [0, 1]}
        tree.data(f"python/cifar-100-python/{part}", pickle.dumps(arrays, protocol=2))
    names = {b"fine_label_names": [b"apple", b"bed"], b"coarse_label_names": [b"fruit", b"furniture"]}
    tree.data("python/cifar-100-python/meta", pickle.dumps(names, protocol=2))
    tree.text("cifar-100-binary/fine_label_names.txt", "apple\nbed\n")
    tree.text("cifar-100-binary/coarse_label_names.txt", "fruit\nfurniture\n")
    counts = {"train": PublishedCounts(2, (2, 2)), "test": PublishedCounts(2, (2, 2))}
    found = [rows(tree.prepare(CIFAR_100, counts=counts), "split", "path", "label_0", "label_1")]
    tree.root, tree.out = tree.root / "python", tree.out.with_name("two") / "set.csv"
    found.append(rows(tree.prepare(CIFAR_100, counts=counts), "split", "path", "label_0", "label_1"))
    assert found[0] == found[1]
    assert found[0][:2] == [
        ("test", "set_images/test/apple/00001.png", "apple", "furniture"),
        ("test", "set_images/test/bed/00000.png", "bed", "fruit"),
    ]


def test_cifar_with_faults(tree):
    folder = put_cifar_10(tree, binary=True)
    whole = (tree.root / folder / "data_batch_3.bin").read_bytes()
    tree.data(f"{folder}/data_batch_3.bin", whole[:-1])
    assert "data_batch_3.bin: truncated: 6145 bytes are no whole number of images of 3073" in tree.complaint(CIFAR_10)
    tree.data(f"{folder}/data_batch_3.bin", bytes([2]) + whole[1:])
    assert "labels from 0 to 2, names of 2 classes" in tree.complaint(CIFAR_10)
    (tree.root / folder / "data_batch_3.bin").unlink()
    assert "cifar-10-batches-bin: no 'data_batch_3.bin' in it; it has 'batches.meta.txt'" in tree.complaint(CIFAR_10)
    folder = put_cifar_10(tree, binary=False)
    tree.data(f"{folder}/data_batch_2", pickle.dumps({b"data": np.zeros((1, 7), np.uint8), b"labels": [0]}))
    assert "data_batch_2: (N, 3072) pixels and N labels are needed, found (1, 7) and 1" in tree.complaint(CIFAR_10)
    put_cifar_10(tree, binary=False)
    assert "(train): 10 images, 50000 are published: the file is short" in tree.complaint(CIFAR_10, counts=None)
    tree.archive("cifar-10-python.tar.gz", folder)
    tree.data("cifar-10-python.tar.gz", (tree.root / "cifar-10-python.tar.gz").read_bytes()[:500])
    assert "cifar-10-python.tar.gz: cannot be unpacked" in tree.complaint(CIFAR_10)
    tree.out.with_name("set_images").mkdir(parents=True)
    assert "set_images: already there" in tree.complaint(CIFAR_10)


class Nasty:
    def __reduce__(self):
        return os.mkdir, ("made_by_a_pickle",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_nothing(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"a\.pkl: not a readable pickle: it would run (posix|nt|os)\.mkdir"):
        read_pickle(pickle.dumps({"a": Nasty()}, protocol), tmp_path / "a.pkl")
    assert list(tmp_path.iterdir()) == []
    hidden = b"cnumpy\nsave\n(S'x'\nI1\ntR."  # a function of numpy that writes a file
    with pytest.raises(InputError, match=r"it would run numpy\.save"):
        read_pickle(hidden, tmp_path / "a.pkl")


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_come_back_whole(tmp_path, protocol):
    data = {"a": [1, 2.5, None, True, "ü", b"b"], "b": (np.arange(6.0).reshape(2, 3), np.int64(7))}
    found = read_pickle(pickle.dumps(data, protocol), tmp_path / "a.pkl")
    assert found["a"] == data["a"]
    np.testing.assert_array_equal(found["b"][0], data["b"][0])
    assert found["b"][1] == 7


def test_svhn(tree, rows):
    rng = np.random.default_rng(0)
    pixels = {split: rng.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8) for split in ("train", "test")}
    for split, images in pixels.items():
        savemat(tree.root / f"{split}_32x32.mat", {"X": images, "y": np.array([[10], [3], [10]], np.uint8)})
    manifest = tree.prepare(SVHN, counts={"train": PublishedCounts(3, (2,)), "test": PublishedCounts(3, (2,))})
    assert rows(manifest.split("test"), "path", "label_0") == [
        ("set_images/test/0/00000.png", "0"),
        ("set_images/test/0/00002.png", "0"),
        ("set_images/test/3/00001.png", "3"),
    ]
    with Image.open(tree.out.parent / "set_images/test/3/00001.png") as image:
        np.testing.assert_array_equal(np.asarray(image), pixels["test"][:, :, :, 1])


def test_svhn_with_faults(tree):
    savemat(tree.root / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)})
    assert "train_32x32.mat: X of shape (32, 32, 3, 3) is needed, found (32, 32, 3, 2)" in tree.complaint(SVHN)
    savemat(tree.root / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.ones((1, 1), np.uint8)})
    assert "no file 'test_32x32.mat' in this folder; it has 'train_32x32.mat'" in tree.complaint(SVHN)


@pytest.mark.parametrize("packed", [True, False])
def test_textures(tree, rows, packed):
    for number, split in enumerate(("train", "val", "test")):
        tree.text(f"dtd/labels/{split}1.txt", f"banded/{number}.jpg\ndotted/{number}.jpg\n")
        tree.images(f"dtd/images/banded/{number}.jpg", f"dtd/images/dotted/{number}.jpg")
    if packed:
        tree.archive("dtd-r1.0.1.tar.gz", "dtd")
    manifest = tree.prepare(TEXTURES, counts={split: PublishedCounts(2, (2,)) for split in ("train", "val", "test")})
    assert rows(manifest, "split", "label_0") == [
        (split, kind) for split in ("test", "train", "val") for kind in ("banded", "dotted")
    ]
    if not packed:
        (tree.root / "dtd/labels/val1.txt").unlink()
        assert "no file 'labels/val1.txt' or 'dtd/labels/val1.txt'" in tree.complaint(TEXTURES)


def test_any_folder(tree, rows):
    tree.images("a.png", "deep/er/b.JPEG", "deep/c.png", ".hidden/d.png")
    tree.text("notes.txt", "")
    assert rows(tree.prepare(FOLDER), "path", "split", "label_0") == [
        ("../files/a.png", "test", "files"),
        ("../files/deep/c.png", "test", "deep"),
        ("../files/deep/er/b.JPEG", "test", "deep/er"),
    ]


@pytest.mark.parametrize("name", [b"../../outside", b"/outside", b"a\0b", b"", 7, b"a" * 300])
def test_a_class_name_that_leads_elsewhere_is_refused(tree, name):
    folder = put_cifar_10(tree, binary=False)
    tree.data(f"{folder}/batches.meta", pickle.dumps({b"label_names": [b"airplane", name]}, protocol=2))
    assert "class name" in tree.complaint(CIFAR_10)


@pytest.mark.parametrize("labels", [[0, [1]], ["a", 1], [0, None], [0, 2**64]])
def test_labels_that_are_no_numbers_are_refused(tree, labels):
    folder = put_cifar_10(tree, binary=False)
    pixels = np.zeros((2, 3072), np.uint8)
    tree.data(f"{folder}/data_batch_2", pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))
    assert "data_batch_2: " in tree.complaint(CIFAR_10)
