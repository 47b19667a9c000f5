"""A small table with images of known places on a circle."""

import math

import numpy as np
import polars as pl
import pytest
from PIL import Image

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.report.subject import Subject


def circle_table(folder, angles, *labels, **columns):
    """One image of its own colour for each angle, in degrees; labels finest first, a string or list each."""
    names, turned = [f"{place}.png" for place in range(len(angles))], [math.radians(angle) for angle in angles]
    for place, name in enumerate(names):
        Image.new("RGB", (200, 100), (place % 256, 0, 200)).save(folder / name)
    levels = {f"label_{level}": list(column) for level, column in enumerate(labels)}
    rows = pl.DataFrame({"id": names, "path": names, "split": ["test"] * len(names), **levels, **columns})
    vectors = np.array([[math.cos(angle), math.sin(angle)] for angle in turned], np.float32)
    return EmbeddingTable(Manifest(folder, folder, rows, len(labels)), vectors, "f")


@pytest.fixture
def circle(tmp_path):
    """Makes a :class:`Subject` of :func:`circle_table` in a folder of the test."""
    folder = tmp_path / "images"
    folder.mkdir()

    def make(angles, *labels, name="model", **columns):
        return Subject(name, circle_table(folder, angles, *labels, **columns))

    return make


def tree_subject(folder, seed=0, name="model"):
    """40 images, 10 classes below 3 parents below 2, at random angles."""
    angles = np.random.default_rng(seed).uniform(0, 180, 40)
    fine = [f"c{place % 10}" for place in range(40)]
    middle = [f"m{place % 10 % 3}" for place in range(40)]
    coarse = ["even" if place % 10 % 3 == 0 else "odd" for place in range(40)]
    return Subject(name, circle_table(folder, angles, fine, middle, coarse))


@pytest.fixture
def random_subject(tmp_path):
    """Makes subjects of :func:`tree_subject` on the same images."""
    folder = tmp_path / "tree"
    folder.mkdir()
    return lambda seed=0, name="model": tree_subject(folder, seed, name)


@pytest.fixture(scope="session")
def two_subjects(tmp_path_factory):
    """``new`` and ``old`` on the same images; read them, do not change them."""
    folder = tmp_path_factory.mktemp("two")
    return tree_subject(folder, 0, "new"), tree_subject(folder, 1, "old")
