"""The OpenAPI document: what it says, and that nothing it allows makes the service fail."""

from contextlib import asynccontextmanager

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from sightline.search.gallery import Gallery
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

ROUTES = [
    ("/v1/search", "POST"),
    ("/v1/search/id", "POST"),
    ("/v1/search/vector", "POST"),
    ("/v1/items", "POST"),
    ("/v1/items/{id}", "GET"),
    ("/v1/items/{id}", "PUT"),
    ("/v1/items/{id}", "DELETE"),
    ("/v1/items/{id}/image", "GET"),
    ("/v1/items/{id}/thumbnail", "GET"),
    ("/v1/galleries", "GET"),
    ("/v1/stats", "GET"),
    ("/v1/health", "GET"),
    ("/v1/ready", "GET"),
    ("/v1/session", "POST"),
    ("/v1/session", "DELETE"),
    ("/metrics", "GET"),
]


@asynccontextmanager
async def stays_open(_):
    yield


@pytest.fixture(scope="module")
def served(tmp_path_factory, shared_gallery):
    """A service that may be written to."""
    folder = tmp_path_factory.mktemp("document") / "own"
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        gallery.backup(folder)
    app = create_app(
        read_settings(given={"galleries": [folder], "rate": None, "allowed_hosts": ["localhost", "testserver"]}, environ={})
    )
    app.router.lifespan_context = stays_open  # each call of schemathesis would end the service
    yield app
    app.state.service.close()


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_whatever_the_document_allows_gets_an_answer_it_describes(served, path, method):
    operation = schemathesis.openapi.from_asgi("/openapi.json", served)[path][method]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    def check_answer(case):
        case.call_and_validate(checks=CHECKS)

    check_answer()


def test_the_document_names_every_route_and_the_form_of_errors(served):
    document = served.openapi()
    routes = {(path, method.upper()) for path, ways in document["paths"].items() for method in ways}
    assert routes == set(ROUTES)
    for path, ways in document["paths"].items():
        for method, said in ways.items():
            assert list(said["responses"]["422"]["content"]) == ["application/problem+json"], (path, method)
    form = document["paths"]["/v1/search"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"].keys() == {"image", "gallery", "k", "where", "expand", "alpha", "rerank", "policy", "crop"}
    assert form["required"] == ["image"]
