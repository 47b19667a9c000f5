"""A small gallery with an encoder, and the service over it."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from sightline.data.manifest import read_manifest
from sightline.models.encoder import Encoder
from sightline.search.gallery import Gallery
from sightline.search.gallery_images import index_images
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings

BASE = "http://127.0.0.1:8000"


def make_gallery(folder: Path, image_tree: Path, seed: int = 0) -> Path:
    """The images of the tree, embedded by a tiny encoder."""
    encoder = Encoder.create("tiny", embedding_dim=16, image_size=32, seed=seed)
    with Gallery.create(folder, encoder) as gallery:
        index_images(gallery, encoder, read_manifest(image_tree))
    return folder


@pytest.fixture(scope="session")
def shared_gallery(tmp_path_factory, image_tree) -> Path:
    """Read it, do not write to it."""
    return make_gallery(tmp_path_factory.mktemp("served") / "shapes", image_tree)


@pytest.fixture
def own_gallery(tmp_path, image_tree) -> Path:
    """One for a test that writes."""
    return make_gallery(tmp_path / "own", image_tree)


@pytest.fixture
def serving():
    """A function that starts a service in this process and gives a client of it."""
    opened = []

    def start(*galleries: Path, **settings) -> TestClient:
        app = create_app(read_settings(given={"galleries": list(galleries), **settings}, environ={}))
        client = TestClient(app, base_url=BASE, raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def client(shared_gallery):
    """The service over the shared gallery, which nobody may write to."""
    settings = read_settings(given={"galleries": [shared_gallery], "read_only": True}, environ={})
    with TestClient(create_app(settings), base_url=BASE, raise_server_exceptions=False) as opened:
        yield opened


def png(seed: int = 0, size: tuple[int, int] = (40, 36)) -> bytes:
    """An image of noise as a PNG file."""
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)))


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
