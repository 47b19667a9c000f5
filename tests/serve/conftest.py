"""A small gallery with an encoder, and the service over it."""

from pathlib import Path

import pytest
from served_galleries import BASE, make_gallery
from starlette.testclient import TestClient

from sightline.gallery.gallery import Gallery
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings


@pytest.fixture(scope="session")
def shared_gallery(tmp_path_factory, image_tree) -> Path:
    """Read it, do not write to it."""
    return make_gallery(tmp_path_factory.mktemp("served") / "shapes", image_tree)


@pytest.fixture
def own_gallery(tmp_path, shared_gallery) -> Path:
    """One for a test that writes."""
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        gallery.backup(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def serving():
    """A function that starts a service in this process and gives a client of it."""
    opened = []

    def start(*galleries: Path, **settings) -> TestClient:
        # By torch: tests look at its passes. `client` has the default, ONNX Runtime.
        app = create_app(read_settings(given={"galleries": list(galleries), "backend": "torch", **settings}, environ={}))
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
