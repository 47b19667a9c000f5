"""HTTP routes over galleries, their encoders and rejectors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from sightline import __version__
from sightline.errors import InputError
from sightline.serve import routes_items, routes_search, routes_status
from sightline.serve.guard import OPEN, Guard
from sightline.serve.problems import MEDIA_TYPE, problem_response
from sightline.serve.schemas import ProblemBody
from sightline.serve.service import Service
from sightline.serve.settings import ServeSettings

ROUTERS = (routes_search.router, routes_items.router, routes_status.router)
ABOUT = "Search of image galleries. Errors are problem documents (RFC 9457)."
STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 503)


def create_app(settings: ServeSettings) -> FastAPI:
    """The application over the galleries of some settings; they are closed when it shuts down.

    Args:
        settings: see :func:`sightline.serve.settings.read_settings`.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"end_arrivals": service.arrivals.end}
        service.close()

    problems: dict[int | str, dict[str, Any]] = {
        status: {
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
            "description": "Problem.",
        }
        for status in STATUSES
    }
    app = FastAPI(
        title="Sightline",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        responses=problems,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Guard, service=service)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(InputError, _unfit_input)
    _describe(app, [served.collection.identity().dim for served in service.galleries.values()])
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # a path has a route for each method, and each knows of its own alone
        routes = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
        matched = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({*chain(*matched)}))
    return problem_response(error.status_code, str(error.detail), headers)


async def _unfit(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{"where": ".".join(map(str, fault["loc"]))[:200], "what": fault["msg"]} for fault in error.errors()[:20]]
    return problem_response(422, "; ".join(f"{fault['where']}: {fault['what']}" for fault in faults), errors=faults)


async def _unfit_input(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    service: Service = request.app.state.service
    told = [served.collection for served in service.galleries.values() if str(served.collection.folder) in str(error)]
    if not told:
        return problem_response(422, str(error))
    collection = max(told, key=lambda one: len(str(one.folder)))  # one folder's path may begin with another's
    problem = collection.problem_of(error)
    return problem_response(problem.status_code, problem.detail, problem.headers)


def _describe(app: FastAPI, dims: list[int]) -> None:
    """Say in the OpenAPI document what FastAPI does not know: the form of problems, tokens, and how long vectors are."""
    made = app.openapi()
    parts = made.setdefault("components", {})
    parts.setdefault("schemas", {})["ProblemBody"] = ProblemBody.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(unused, None)
    parts["schemas"]["VectorSearch"]["properties"]["vector"] |= {"minItems": min(dims), "maxItems": max(dims)}
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in made["paths"].items():
        for operation in operations.values():
            operation["security"] = [{}] if path in OPEN else [{"token": []}, {}]
            said = operation["responses"].get("422", {}).get("content", {})
            said.pop("application/json", None)
