"""Galleries, statistics, health, readiness and metrics; the session of a page; the page itself."""

from typing import Any

from fastapi import APIRouter, Request, Response

from sightline.serve.answers import gallery_body
from sightline.serve.guard import COOKIE
from sightline.serve.measures import LOG
from sightline.serve.pictures import web_response
from sightline.serve.problems import Problem
from sightline.serve.routes_search import ServiceOf
from sightline.serve.schemas import GalleryBody, Health, Ready

router = APIRouter()


@router.get("/v1/galleries", tags=["galleries"])
async def galleries(request: Request, service: ServiceOf) -> list[GalleryBody]:
    """The galleries that are served, the default first."""
    may_write = "write" in request.state.caller.scopes
    return await service.aside(lambda: [gallery_body(served, may_write) for served in service.galleries.values()])


@router.get("/v1/stats", tags=["galleries"])
async def stats(service: ServiceOf) -> dict[str, Any]:
    """Numbers of each gallery, and the limits of uploads."""

    def told() -> dict[str, Any]:
        found = {}
        for name, served in service.galleries.items():
            with served.collection.gallery() as gallery:
                found[name] = gallery.stats()
        settings = service.settings
        limits = {"upload_bytes": settings.upload_bytes, "pixels": settings.pixels, "formats": settings.formats}
        return {"galleries": found, "limits": limits}

    return await service.aside(told)


@router.get("/v1/health", tags=["service"])
async def health() -> Health:
    """That the process answers."""
    return Health(status="ok")


@router.get("/v1/ready", tags=["service"], responses={503: {"model": Ready}})
async def ready(service: ServiceOf, response: Response) -> Ready:
    """That every gallery can be searched."""
    found = await service.aside(lambda: {name: service.is_ready(served) for name, served in service.galleries.items()})
    if not_ready := [name for name, is_ready in found.items() if not is_ready]:
        LOG.warning("not ready", extra={"told": {"galleries": not_ready}})
        response.status_code = 503
    return Ready(status="not ready" if not_ready else "ready")


@router.get("/metrics", tags=["service"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(service: ServiceOf) -> Response:
    """Numbers for Prometheus."""
    return Response(await service.aside(service.metrics), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/v1/session", tags=["service"], status_code=204)
async def begin_session(request: Request, service: ServiceOf) -> Response:
    """Set a cookie by which a page's images may be read; needs the token where one is needed."""
    caller, response = request.state.caller, Response(status_code=204)
    if "read" not in caller.scopes:
        raise Problem(
            401, "a token that may read is needed", {"WWW-Authenticate": 'Bearer realm="sightline", scope="read"'}
        )
    token = service.tokens.find(request.headers.get("authorization", "").partition(" ")[2].strip())
    if token is not None:
        value, seconds = service.tokens.session(token), service.settings.session_seconds
        is_secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, value, seconds, path="/v1/items", httponly=True, samesite="strict", secure=is_secure)
    return response


@router.delete("/v1/session", tags=["service"], status_code=204)
async def end_session() -> Response:
    """Take the cookie away."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/v1/items", httponly=True, samesite="strict")
    return response


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page(service: ServiceOf) -> Response:
    """The page."""
    return await static("index.html", service)


@router.api_route("/static/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(name: str, service: ServiceOf) -> Response:
    """A file of the page."""
    return await service.aside(lambda: web_response(name))
