"""The routes: search, items and their images, galleries, health, sessions and the page."""

import io
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote, unquote

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.data.images import open_image
from sightline.gallery.gallery import Value, is_utf8, labels_of
from sightline.gallery.query import Answer, QueryOptions
from sightline.ood.rejector import POLICIES
from sightline.ranking.refine import Refinement
from sightline.serve.collection import Collection, SearchJob, relation
from sightline.serve.guard import COOKIE, LOG
from sightline.serve.pictures import LARGEST, read_form, web_response
from sightline.serve.schemas import (
    ID_SCHEMA,
    LONGEST_ID,
    OF_THE_IMAGE,
    AnswerBody,
    GalleryBody,
    Health,
    IdSearch,
    ItemBody,
    JudgedOptions,
    Problem,
    QueryBody,
    Ready,
    ResultBody,
    Took,
    UploadOptions,
    VectorSearch,
    VerdictBody,
    Written,
    checked_metadata_text,
    metadata_schema,
)
from sightline.serve.service import Served, Service, timed

SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp"}


def item_body(collection: Collection, id_: str, metadata: dict[str, Value]) -> ItemBody:
    """An item as it is shown: without where its file lies, so that its metadata can be sent back."""
    start, end = f"/v1/items/{quote(id_, safe='')}", f"?gallery={quote(collection.name, safe='')}"
    has_image = bool(metadata.get("path"))
    return ItemBody(
        id=id_,
        labels=labels_of(metadata),
        metadata={key: value for key, value in metadata.items() if key not in OF_THE_IMAGE},
        image=f"{start}/image{end}" if has_image else None,
        thumbnail=f"{start}/thumbnail{end}" if has_image else None,
    )


def answer_body(
    collection: Collection, answer: Answer, took: dict[str, float], id_: str | None = None, labels: list[str] | None = None
) -> AnswerBody:
    """What was found for a query; its id and labels where it is an item."""
    results = []
    for hit in answer.results:
        item = item_body(collection, hit.id, hit.metadata)
        results.append(ResultBody(**item.model_dump(), score=hit.score, relation=relation(labels, item.labels)))
    verdict = None
    if answer.verdict is not None and answer.policy is not None:
        verdict = VerdictBody(**asdict(answer.verdict), policy=POLICIES[answer.policy])
    return AnswerBody(
        gallery=collection.name,
        generation=answer.generation,
        query=QueryBody(id=id_, labels=labels or None),
        verdict=verdict,
        results=results,
        took=Took(encode_ms=took.get("encode", 0.0), search_ms=took.get("search", 0.0)),
    )


def search_job(options: JudgedOptions, vector: NDArray[np.float32], own: str | None = None) -> SearchJob:
    """The query that some options and a vector make."""
    refinement = Refinement(expand=options.expand, alpha=options.alpha, rerank=options.rerank)
    return SearchJob(vector, QueryOptions(options.k, options.where, refinement, options.policy), own)


def checked_vector(values: list[float], dim: int) -> NDArray[np.float32]:
    """(D,) at length 1, as encoders give them."""
    if len(values) != dim:
        raise Problem(422, f"vector: {dim} numbers are needed, found {len(values)}")
    vector = np.asarray(values, np.float64)
    if not vector.any():
        raise Problem(422, "vector: its length is 0; it has no direction")
    vector = vector / np.abs(vector).max()  # so that no square is too small
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def gallery_body(served: Served, may_write: bool) -> GalleryBody:
    """A gallery as a page needs it; reads all items where they changed, so not for the event loop."""
    with served.collection.gallery() as gallery:
        identity = gallery.identity
        return GalleryBody(
            name=served.collection.name,
            items=len(gallery),
            dim=identity.dim,
            metric=gallery.metric,
            encoder=identity.name,
            fingerprint=identity.fingerprint,
            generation=gallery.generation,
            levels=served.fields.levels(gallery),
            fields=served.fields.of(gallery),
            rejector=served.collection.rejector() is not None,
            writable=served.collection.writable and may_write,
        )


IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp")
search = APIRouter(prefix="/v1/search", tags=["search"])


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


def form_body(model: type[BaseModel], needed: list[str]) -> dict[str, Any]:
    """The OpenAPI description of a multipart body: an image beside the fields of a model."""
    schema = model.model_json_schema()
    encoding = {"image": {"contentType": ", ".join(IMAGE_TYPES)}}
    properties: dict[str, Any] = {
        "image": {"type": "string", "format": "binary", "description": "JPEG, PNG, WebP, GIF or BMP."}
    }
    for name, field in schema["properties"].items():
        # A form has texts; one that is left out is none.
        kinds = [kind for kind in field.pop("anyOf", []) if kind.get("type") != "null"]
        kind = _joined(kinds)
        properties[name] = {key: value for key, value in field.items() if value is not None} | kind
    if "metadata" in properties:
        properties["metadata"] = metadata_schema()
        encoding["metadata"] = {"contentType": "application/json"}
    body = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": body, "encoding": encoding}}}}


def _joined(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """One description of what may be one of several: their choices together."""
    choices = [choice for kind in kinds for choice in kind.get("enum", [kind["const"]] if "const" in kind else [])]
    if choices:
        return {"type": "string", "enum": choices}
    return kinds[0] if kinds else {}


def checked_form(model: type[UploadOptions], fields: dict[str, str]) -> UploadOptions:
    """The fields of a form as a model, or a problem that says what does not fit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))[:100]}: {fault['msg']}" for fault in error.errors()]
        raise Problem(422, "; ".join(faults)) from error


@search.post("", openapi_extra=form_body(UploadOptions, ["image"]))
async def search_by_image(request: Request, service: ServiceOf) -> AnswerBody:
    """The items that resemble an uploaded image, or a part of it."""
    service.check_waiting()
    data, fields = await read_form(request)
    with service.accepted():
        options = checked_form(UploadOptions, fields)
        served, crop = service.served(options.gallery), options.part()
        if data is None:
            raise Problem(422, "image: a file is needed")
        took: dict[str, float] = {}
        async with timed(took, "encode"):
            vector = await service.encoded(served, data, crop)
        async with timed(took, "search"):
            found = await service.searched(served, search_job(options, vector))
        return answer_body(served.collection, found, took)


@search.post("/id")
async def search_by_id(body: IdSearch, service: ServiceOf) -> AnswerBody:
    """The items that resemble an item, itself left out."""
    with service.accepted():
        served = service.served(body.gallery)
        vector = await service.aside(lambda: served.collection.vector(body.id))
        took: dict[str, float] = {}
        async with timed(took, "search"):
            found = await service.searched(served, search_job(body, vector, body.id))
        metadata = await service.aside(lambda: served.collection.known(body.id))
        return answer_body(served.collection, found, took, body.id, labels_of(metadata))


@search.post("/vector")
async def search_by_vector(body: VectorSearch, service: ServiceOf) -> AnswerBody:
    """The items nearest to a vector of the gallery's encoder."""
    with service.accepted():
        served = service.served(body.gallery)
        identity = await service.aside(served.collection.identity)
        if body.fingerprint not in (None, identity.fingerprint):
            told = f"the vector is of encoder {body.fingerprint}, the gallery's are of {identity.fingerprint}"
            raise Problem(409, f"fingerprint: {told}")
        vector = checked_vector(body.vector, identity.dim)
        took: dict[str, float] = {}
        async with timed(took, "search"):
            found = await service.searched(served, search_job(body, vector))
        return answer_body(served.collection, found, took)


items = APIRouter(prefix="/v1/items", tags=["items"])
ItemId = Annotated[str, Path(description="URL-encoded.", json_schema_extra=ID_SCHEMA)]
GalleryName = Annotated[str | None, Query(max_length=200, description="The first by default.")]
Size = Annotated[int, Query(ge=16, le=1024, description="Longer side in pixels, at most.")]
PICTURE: dict[int | str, dict[str, object]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}, "image/png": {}}},
    304: {"description": "As before."},
}


class NewItem(BaseModel):
    """Fields of a form that adds an item: its id, its metadata as a JSON object, the gallery's name."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(json_schema_extra=ID_SCHEMA)
    metadata: str | None = None
    gallery: str | None = Field(default=None, max_length=200)


class ChangedItem(BaseModel):
    """Fields of a form that replaces an item; what is left out stays as it was."""

    model_config = ConfigDict(extra="forbid")

    metadata: str | None = None


def plain_id(encoded: str) -> str:
    """The id that stands in a path."""
    try:
        return checked_id(unquote(encoded, errors="strict"))
    except UnicodeDecodeError as error:
        raise Problem(422, "id: not UTF-8") from error


def checked_id(id_: str) -> str:
    """An id that a gallery can hold and an address can name."""
    if not id_ or len(id_) > LONGEST_ID or "\0" in id_ or id_ in (".", "..") or not is_utf8(id_):
        raise Problem(422, f"id: 1 to {LONGEST_ID} letters are needed, no NUL among them, and neither '.' nor '..'")
    return id_


@items.post("", status_code=201, openapi_extra=form_body(NewItem, ["image", "id"]))
async def add_item(request: Request, service: ServiceOf) -> Written:
    """Add an item; 409 if its id is there already. Once this is answered, the item survives whatever happens."""
    service.check_waiting()
    data, fields = await read_form(request)
    with service.accepted():
        if unknown := sorted(fields.keys() - NewItem.model_fields.keys()):
            raise Problem(422, f"unknown fields: {', '.join(name[:100] for name in unknown)}")
        served = service.served(fields.get("gallery") or None)
        id_ = checked_id(fields.get("id", ""))
        metadata = checked_metadata_text(fields.get("metadata") or None)
        if data is None:
            raise Problem(422, "image: a file is needed")
        _, body = await _written(service, served, id_, metadata or {}, data, replace=False)
        return body


@items.get("/{id}/image", response_class=Response, responses=PICTURE)
async def item_image(id: ItemId, request: Request, service: ServiceOf, gallery: GalleryName = None) -> Response:
    """The image of an item, encoded anew, at most 2048 pixels wide and high."""
    return await _picture(request, service, service.served(gallery), plain_id(id), LARGEST)


@items.get("/{id}/thumbnail", response_class=Response, responses=PICTURE)
async def item_thumbnail(
    id: ItemId, request: Request, service: ServiceOf, gallery: GalleryName = None, size: Size = 256
) -> Response:
    """The image of an item, small."""
    return await _picture(request, service, service.served(gallery), plain_id(id), size)


@items.get("/{id}")
async def item(id: ItemId, service: ServiceOf, gallery: GalleryName = None) -> ItemBody:
    """What is known of an item."""
    collection, name = service.served(gallery).collection, plain_id(id)
    return item_body(collection, name, await service.aside(lambda: collection.known(name)))


@items.put("/{id}", openapi_extra=form_body(ChangedItem, []), responses={201: {"model": Written}})
async def replace_item(
    id: ItemId, request: Request, response: Response, service: ServiceOf, gallery: GalleryName = None
) -> Written:
    """Replace an item's image, metadata or both, or add it; 201 where it is new."""
    service.check_waiting()
    data, fields = await read_form(request)
    with service.accepted():
        if unknown := sorted(fields.keys() - ChangedItem.model_fields.keys()):
            raise Problem(422, f"unknown fields: {', '.join(name[:100] for name in unknown)}")
        served, name = service.served(gallery), plain_id(id)
        metadata = checked_metadata_text(fields.get("metadata") or None)
        is_new, body = await _written(service, served, name, metadata, data, replace=True)
        response.status_code = 201 if is_new else 200
        return body


@items.delete("/{id}", status_code=204)
async def remove_item(id: ItemId, service: ServiceOf, gallery: GalleryName = None) -> None:
    """Take an item out."""
    with service.accepted():
        collection, name = service.served(gallery).collection, plain_id(id)
        await service.written(lambda: collection.remove(name))


async def _written(
    service: Service, served: Served, id_: str, metadata: dict[str, Value] | None, data: bytes | None, replace: bool
) -> tuple[bool, Written]:
    collection = served.collection
    if not collection.writable:
        raise Problem(403, f"gallery {collection.name!r} is served to be read only")
    image = None
    if data is not None:
        vector = await service.encoded(served, data)
        with open_image(io.BytesIO(data)) as opened:  # a header that was read before
            image = data, SUFFIXES[opened.format or ""], vector
    is_new, generation, kept = await service.written(lambda: collection.write(id_, metadata, image, replace))
    return is_new, Written(gallery=collection.name, generation=generation, item=item_body(collection, id_, kept))


async def _picture(request: Request, service: Service, served: Served, id_: str, size: int) -> Response:
    known = request.headers.get("if-none-match", "")

    def made() -> Response:
        metadata = served.collection.known(id_)
        file = service.pictures.file_of(served.collection.folder, metadata)
        if file is None:
            raise Problem(404, "this item has no image, or none in a folder that may be shown (`sightline serve --images`)")
        headers = {"Cache-Control": "private, max-age=300", "ETag": service.pictures.etag(file, metadata, size)}
        if headers["ETag"] in known:
            return Response(status_code=304, headers=headers)
        picture = service.pictures.picture(file, metadata, size)
        return Response(picture.data, headers=headers, media_type=picture.media_type)

    return await service.aside(made)


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
