"""HTTP routes over galleries, their encoders and rejectors."""

from fastapi import FastAPI, Request
from starlette.responses import Response

from sightline import __version__
from sightline.errors import InputError
from sightline.serve import routes
from sightline.serve.guard import OPEN, guarded_app
from sightline.serve.schemas import MEDIA_TYPE, ProblemBody, problem_response
from sightline.serve.service import Service
from sightline.serve.settings import ServeSettings

ROUTERS = (routes.search, routes.items, routes.router)
ABOUT = "Search of image galleries. Errors are problem documents (RFC 9457)."
STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 503)


def create_app(settings: ServeSettings) -> FastAPI:
    """The application over the galleries of some settings; they are closed when it shuts down.

    Args:
        settings: see :func:`sightline.serve.settings.read_settings`.
    """
    service = Service(settings)
    problem = {"$ref": "#/components/schemas/ProblemBody"}
    problems = {status: {"content": {MEDIA_TYPE: {"schema": problem}}, "description": "Problem."} for status in STATUSES}
    app = guarded_app(service, ROUTERS, title="Sightline", version=__version__, description=ABOUT, responses=problems)
    app.state.service = service
    app.add_exception_handler(InputError, _unfit_input)
    _describe(app, [served.collection.identity().dim for served in service.galleries.values()])
    return app


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
