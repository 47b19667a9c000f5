"""The OpenAPI document: what it says, and that nothing it allows makes the service fail."""

from contextlib import asynccontextmanager

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from sightline.gallery.gallery import Gallery
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

REPEATABLE = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
PATHS = {
    "GET": "/metrics /v1/codes /v1/items /v1/items/{id} /v1/items/{id}/image /v1/items/{id}/thumbnail /v1/galleries"
    " /v1/stats /v1/health /v1/ready",
    "POST": "/v1/search /v1/search/id /v1/search/vector /v1/items /v1/items/{id}/label /v1/session",
    "PUT": "/v1/items/{id}",
    "DELETE": "/v1/items/{id} /v1/session",
}
ROUTES = [(path, method) for method, paths in PATHS.items() for path in paths.split()]


@asynccontextmanager
async def stays_open(_):
    yield


@pytest.fixture(scope="module")
def served(tmp_path_factory, shared_gallery):
    """A service that may be written to."""
    folder = tmp_path_factory.mktemp("document") / "own"
    with Gallery.open(shared_gallery, read_only=True) as gallery:
        gallery.backup(folder)
    given = {"galleries": [folder], "rate": None, "allowed_hosts": ["localhost", "testserver"]}
    app = create_app(read_settings(given=given, environ={}))
    app.router.lifespan_context = stays_open  # each call of schemathesis would end the service
    yield app
    app.state.service.close()


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_whatever_the_document_allows_gets_an_answer_it_describes(served, path, method):
    operation = schemathesis.openapi.from_asgi("/openapi.json", served)[path][method]

    @given(case=operation.as_strategy())
    @settings(REPEATABLE, max_examples=25, phases=[Phase.explicit, Phase.generate])
    def check_answer(case):
        case.call_and_validate(checks=CHECKS)

    check_answer()


def test_another_method_gets_405_and_all_that_the_path_has(client):
    for path, methods in (("/v1/items/a", "DELETE, GET, PUT"), ("/", "GET, HEAD")):
        answer = client.patch(path)
        assert (answer.status_code, answer.headers["allow"], answer.json()["status"]) == (405, methods, 405)
    assert client.get("/v1/galleries/", follow_redirects=False).status_code == 404


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
