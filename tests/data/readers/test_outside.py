import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sightline.data.readers.outside import CIFAR_10, CIFAR_100, FOLDER, SVHN, TEXTURES

PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


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
    manifest = tree.prepare(CIFAR_10)
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
        written = b"".join(bytes([n, 1 - n]) + row.tobytes() for n, row in enumerate(pixels))
        tree.data(f"cifar-100-binary/{part}.bin", written)
        arrays = {b"data": pixels, b"fine_labels": [1, 0], b"coarse_labels": [0, 1]}
        tree.data(f"python/cifar-100-python/{part}", pickle.dumps(arrays, protocol=2))
    names = {b"fine_label_names": [b"apple", b"bed"], b"coarse_label_names": [b"fruit", b"furniture"]}
    tree.data("python/cifar-100-python/meta", pickle.dumps(names, protocol=2))
    tree.text("cifar-100-binary/fine_label_names.txt", "apple\nbed\n")
    tree.text("cifar-100-binary/coarse_label_names.txt", "fruit\nfurniture\n")
    found = [rows(tree.prepare(CIFAR_100), "split", "path", "label_0", "label_1")]
    tree.root, tree.out = tree.root / "python", tree.out.with_name("two") / "set.csv"
    found.append(rows(tree.prepare(CIFAR_100), "split", "path", "label_0", "label_1"))
    assert found[0] == found[1]
    assert found[0][:2] == [
        ("test", "set_images/test/apple/00001.png", "apple", "furniture"),
        ("test", "set_images/test/bed/00000.png", "bed", "fruit"),
    ]


def test_cifar_with_faults(tree):
    folder = put_cifar_10(tree, binary=True)
    third = tree.root / folder / "data_batch_3.bin"
    whole = third.read_bytes()
    third.write_bytes(whole[:-1])
    tree.complaint(CIFAR_10, "data_batch_3.bin", "6145 bytes", "3073")
    third.write_bytes(bytes([2]) + whole[1:])
    tree.complaint(CIFAR_10, "0 to 2", "2 classes")
    third.unlink()
    tree.complaint(CIFAR_10, "has no data_batch_3.bin")
    folder = put_cifar_10(tree, binary=False)
    for labels in ([0, [1]], ["a", 1], [0, None], [0, 2**64]):  # no numbers
        tree.data(f"{folder}/data_batch_2", pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": labels}))
        tree.complaint(CIFAR_10, "data_batch_2: ")
    tree.data(f"{folder}/data_batch_2", pickle.dumps({b"data": np.zeros((1, 7), np.uint8), b"labels": [0]}))
    tree.complaint(CIFAR_10, "found (1, 7) and 1")
    put_cifar_10(tree, binary=False)
    tree.complaint(CIFAR_10, "10 images", "50000", counts=None)
    for name in (b"../../outside", b"a\0b", b"", 7, b"a" * 300):  # leads elsewhere
        tree.data(f"{folder}/batches.meta", pickle.dumps({b"label_names": [b"airplane", name]}, protocol=2))
        tree.complaint(CIFAR_10, "class name")
    tree.archive("cifar-10-python.tar.gz", folder)
    tree.data("cifar-10-python.tar.gz", (tree.root / "cifar-10-python.tar.gz").read_bytes()[:500])
    tree.complaint(CIFAR_10, "cifar-10-python.tar.gz", "unpacked")
    (tree.out.with_name("set_images") / "mine").mkdir(parents=True)
    tree.complaint(CIFAR_10, "set_images", "empty")


def test_svhn(tree, rows):
    rng = np.random.default_rng(0)
    pixels = {split: rng.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8) for split in ("train", "test")}
    for split, images in pixels.items():
        savemat(tree.root / f"{split}_32x32.mat", {"X": images, "y": np.array([[10], [3], [10]], np.uint8)})
    assert rows(tree.prepare(SVHN).split("test"), "path", "label_0") == [
        ("set_images/test/0/00000.png", "0"),
        ("set_images/test/0/00002.png", "0"),
        ("set_images/test/3/00001.png", "3"),
    ]
    with Image.open(tree.out.parent / "set_images/test/3/00001.png") as image:
        np.testing.assert_array_equal(np.asarray(image), pixels["test"][:, :, :, 1])
    tree.out = tree.out.with_name("other.csv")
    savemat(tree.root / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)})
    tree.complaint(SVHN, "train_32x32.mat", "(32, 32, 3, 3)")


@pytest.mark.parametrize("packed", [True, False])
def test_textures(tree, rows, packed):
    for number, split in enumerate(("train", "val", "test")):
        tree.text(f"dtd/labels/{split}1.txt", f"banded/{number}.jpg\ndotted/{number}.jpg\n")
        tree.images(f"dtd/images/banded/{number}.jpg", f"dtd/images/dotted/{number}.jpg")
    if packed:
        tree.archive("dtd-r1.0.1.tar.gz", "dtd")
    assert rows(tree.prepare(TEXTURES), "split", "label_0") == [
        (split, kind) for split in ("test", "train", "val") for kind in ("banded", "dotted")
    ]


def test_any_folder(tree, rows):
    tree.images("a.png", "deep/er/b.JPEG", "deep/c.png", ".hidden/d.png")
    tree.text("notes.txt", "")
    expected = {"a.png": "files", "deep/c.png": "deep", "deep/er/b.JPEG": "deep/er"}
    found = rows(tree.prepare(FOLDER), "path", "split", "label_0")
    assert found == [(f"../files/{path}", "test", label) for path, label in expected.items()]
