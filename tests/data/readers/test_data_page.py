"""``docs/data.md`` says what the readers assert, and its functions work on what they write."""

import pickle
import re
from pathlib import Path

import numpy as np

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.readers import READERS
from sightline.data.readers.landmarks import ROXFORD
from sightline.data.readers.source import Reader

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")


def on_disk():
    readers = {name: READERS.find(name) for name in READERS}
    return {name: reader for name, reader in readers.items() if isinstance(reader, Reader)}


def asserted(reader):
    """As the page writes it."""
    parts = []
    for name, part in reader.counts.items():
        images = "-" if part.images is None else f"{part.images:,}"
        classes = " < ".join("-" if n is None else f"{n:,}" for n in part.classes)
        parts.append(f"{name} {images}" + (f": {classes}" if classes else ""))
    return "; ".join(parts)


def test_the_table_has_every_reader_and_its_numbers():
    rows = dict(re.findall(r"^\| `([\w-]+)` \|[^|]*\| ?(.*?) ?\|$", PAGE, flags=re.MULTILINE))
    assert rows == {name: asserted(reader) for name, reader in on_disk().items()}


def test_revisited_as_the_page_says(tree, page):
    truth = [{"bbx": [0, 0, 3, 3], "easy": [1], "hard": [], "junk": [0]}]
    tree.data("gnd_roxford5k.pkl", pickle.dumps({"imlist": ["a", "b", "c"], "qimlist": ["q"], "gnd": truth}))
    tree.images(*(f"jpg/{name}.jpg" for name in "abcq"))
    manifest = tree.prepare(ROXFORD)
    vectors = np.array([[1, 0], [1, 0], [0.8, 0.6], [0.6, 0.8]], np.float32)  # the query, then a (junk), b (easy), c
    table = EmbeddingTable(manifest, vectors, "made").write(tree.out.with_name("vectors.parquet"))
    results = page["measure_revisited"](tree.out, table)
    assert (results["easy"]["map"], results["medium"]["map"]) == (1, 1)


def test_a_data_set_of_your_own_as_the_page_says(tree, rows, page):
    tree.text("train.txt", "a.jpg one\nb.jpg one\n")
    tree.text("test.txt", "c.jpg two\nd.jpg two\n")
    tree.images("a.jpg", "b.jpg", "c.jpg", "d.jpg")
    manifest = tree.prepare(page["SHOP"], counts=None)
    assert rows(manifest, "split", "label_0") == [("test", "two"), ("test", "two"), ("train", "one"), ("train", "one")]
    tree.text("test.txt", "c.jpg two\n")
    assert "test.txt (test): 1 images, 2 are published" in tree.complaint(page["SHOP"], counts=None)
