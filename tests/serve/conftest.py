"""A small gallery with an encoder, and the service over it."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from page_server import BASE, make_gallery
from starlette.testclient import TestClient

from sightline.gallery.gallery import Gallery
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings


def client_of(**given) -> TestClient:
    app = create_app(read_settings(given=given, environ={}))
    return TestClient(app, base_url=BASE, raise_server_exceptions=False)


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
    with ExitStack() as opened:
        # By torch: tests look at its passes. `client` has the default, ONNX Runtime.
        by_torch = {"backend": "torch"}
        yield lambda *galleries, **given: opened.enter_context(client_of(galleries=[*galleries], **by_torch | given))


@pytest.fixture(scope="module")
def client(shared_gallery):
    """The service over the shared gallery, which nobody may write to."""
    with client_of(galleries=[shared_gallery], read_only=True) as opened:
        yield opened
