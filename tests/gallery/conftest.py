"""A tiny encoder, another, and the vectors of the image tree by the first; for reading only."""

import pytest

from sightline.data.manifest import read_manifest
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder


@pytest.fixture(scope="session")
def encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32)


@pytest.fixture(scope="session")
def other_encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32, seed=1)


@pytest.fixture(scope="session")
def table(encoder, image_tree):
    return embed_manifest(encoder, read_manifest(image_tree))
