"""Tiny trees in the layout of the published files."""

import re
import shutil
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refusals import assert_refused
from sightline.data.manifest import Manifest, read_manifest

ROOT = Path(__file__).parents[3]


class Tree:
    """A folder to put files in, and what preparing it gives."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root.parent / "out" / "set.parquet"
        root.mkdir(exist_ok=True)

    def text(self, path: str, text: str) -> None:
        self.data(path, text.encode())

    def data(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def images(self, *paths: str) -> None:
        """Different from each other, so that their bytes are too."""
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(zlib.crc32(path.encode())).integers(256, size=(5, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.root / path)

    def archive(self, name: str, folder: str) -> None:
        """Pack a folder of the tree and remove it."""
        packed = self.root / name
        if packed.suffix == ".zip":
            shutil.make_archive(str(packed.with_suffix("")), "zip", self.root, folder)
        else:
            with tarfile.open(packed, "w:gz") as tar:
                tar.add(self.root / folder, folder)
        shutil.rmtree(self.root / folder)

    def prepare(self, reader, **options) -> Manifest:
        """The manifest that was written and read again; all its images are there. No counts unless they are given."""
        counts = options.pop("counts", {})
        asked = reader if counts is None else replace(reader, counts=counts)
        written = asked(options.pop("out", self.out), self.root, **options)
        manifest = read_manifest(written, labelled=reader.labelled)
        assert all(path.is_file() for path in manifest.paths())
        return manifest

    def complaint(self, reader, *facts: str, **options) -> str:
        """What is said of the tree, without the root's name: it has each of the facts, and nothing is left behind."""
        before = sorted(self.out.parent.rglob("*"))
        message = assert_refused("", self.prepare, reader, **options)
        assert sorted(self.out.parent.rglob("*")) == before
        message = message.replace(str(self.root.resolve()), "ROOT").replace(str(self.root), "ROOT")
        assert [fact for fact in facts if fact not in message] == [], message
        return message


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path / "files")


@pytest.fixture
def rows():
    """Gives the rows of some columns of a manifest, sorted."""
    return lambda manifest, *names: sorted(manifest.table.select(names).rows())


@pytest.fixture(scope="session")
def page() -> dict:
    """The functions of ``docs/data.md``."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/data.md").read_text(), flags=re.S | re.M)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block, names)
    return names
