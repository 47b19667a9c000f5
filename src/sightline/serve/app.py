"""The HTTP application: search, items and their images, galleries, health, sessions and the page."""

import io
import time
from dataclasses import asdict
from math import isnan
from typing import Annotated, Any, cast
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from sightline import __version__
from sightline.data.images import open_image
from sightline.data.manifest import LONGEST_LISTED, MOST_LISTED
from sightline.errors import InputError
from sightline.gallery.gallery import Item, Value, labels_of, lists_of
from sightline.gallery.query import QueryOptions
from sightline.ood.rejector import POLICIES
from sightline.ranking.refine import Refinement
from sightline.serve.browse import Sort
from sightline.serve.collection import Collection, SearchJob, is_damage, shared_levels
from sightline.serve.guard import COOKIE, LOG, OPEN, check_scope, guarded_app
from sightline.serve.pictures import LARGEST, read_form
from sightline.serve.schemas import (
    ID_SCHEMA,
    LONGEST_KEY,
    MEDIA_TYPE,
    OF_THE_IMAGE,
    RETRY,
    AnswerBody,
    BrowseBody,
    BrowsedItem,
    ChangedItem,
    CodesBody,
    GalleryBody,
    Health,
    IdSearch,
    ItemBody,
    LabelBody,
    NewItem,
    Problem,
    ProblemBody,
    QueryBody,
    Ready,
    Relabelled,
    ResultBody,
    SearchForm,
    SearchOptions,
    Took,
    VectorSearch,
    VerdictBody,
    Written,
    id_in_path,
    problem_response,
)
from sightline.serve.service import Service
from sightline.serve.settings import ServeSettings

STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 503)
IMAGE_TYPES = "image/jpeg, image/png, image/webp, image/gif, image/bmp"
SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp"}
PICTURE: dict[int | str, dict[str, object]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}, "image/png": {}}},
    304: {"description": "Not modified."},
}
router = APIRouter()


def create_app(settings: ServeSettings) -> FastAPI:
    """The application over the galleries of the settings, which it closes at shutdown.

    Args:
        settings: see :func:`sightline.serve.settings.read_settings`.
    """
    service = Service(settings)
    problem = {"description": "Problem.", "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}}
    app = guarded_app(
        service,
        router,
        "index.html",
        title="Sightline",
        version=__version__,
        description="Search of image galleries. Errors are problem documents (RFC 9457).",
        responses=dict.fromkeys(STATUSES, problem),
    )
    app.state.service = service
    app.exception_handler(InputError)(_refuse_input)
    _describe(app, [collection.identity().dim for collection in service.galleries.values()])
    return app


async def _refuse_input(request: Request, error: InputError) -> Response:
    """422 for an error of the caller, 503 for one of a gallery; messages name galleries, not their folders."""
    names = {str(collection.folder): name for name, collection in request.app.state.service.galleries.items()}
    message = str(error)
    for folder in sorted(names, key=len, reverse=True):  # one folder's path may begin with another's
        message = message.replace(folder, names[folder])
    return problem_response(503, message, RETRY) if is_damage(error) else problem_response(422, message)


def _describe(app: FastAPI, dims: list[int]) -> None:
    """Add to the OpenAPI document what FastAPI does not know: problem bodies, tokens, and the length of vectors."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    schemas["ProblemBody"] = ProblemBody.model_json_schema()
    schemas["VectorSearch"]["properties"]["vector"] |= {"minItems": min(dims), "maxItems": max(dims)}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [{}] if path in OPEN else [{"token": []}, {}]


def form_body(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a multipart body with the fields of a model."""
    schema, encoding = model.model_json_schema(), {"image": {"contentType": IMAGE_TYPES}}
    for name, field in schema["properties"].items():  # form fields are strings; a missing one means None
        kinds = field.pop("anyOf", [{}])
        schema["properties"][name] = {key: value for key, value in field.items() if value is not None} | kinds[0]
    if "metadata" in schema["properties"]:
        encoding["metadata"] = {"contentType": "application/json"}
    content = {"multipart/form-data": {"schema": schema, "encoding": encoding}}
    return {"requestBody": {"required": True, "content": content}}


def find_service(request: Request) -> Service:
    """The service behind a request."""
    return cast(Service, request.app.state.service)


ServiceOf = Annotated[Service, Depends(find_service)]
GalleryName = Annotated[str | None, Query(max_length=200, description="Default: the first gallery.")]
PathId = Annotated[str, Path(description="URL-encoded.", json_schema_extra=ID_SCHEMA), AfterValidator(id_in_path)]
Condition = Annotated[
    str | None,
    Query(max_length=10_000, json_schema_extra={"format": "sightline-filter"}, description="Such as `year >= 2020`."),
]
Size = Annotated[int, Query(ge=16, le=1024, description="Longest side in pixels.")]


def find_collection(service: ServiceOf, gallery: GalleryName = None) -> Collection:
    """The gallery named in a request's address."""
    return service.gallery(gallery)


CollectionOf = Annotated[Collection, Depends(find_collection)]


def item_body(collection: Collection, id_: str, metadata: dict[str, Value]) -> ItemBody:
    """An item without the location of its file, so that its metadata can be sent back."""
    start, end = f"/v1/items/{quote(id_, safe='')}", f"?gallery={quote(collection.name, safe='')}"
    has_image = bool(metadata.get("path"))
    return ItemBody(
        id=id_,
        labels=labels_of(metadata),
        metadata={key: value for key, value in metadata.items() if key not in OF_THE_IMAGE},
        image=f"{start}/image{end}" if has_image else None,
        thumbnail=f"{start}/thumbnail{end}" if has_image else None,
    )


async def _search(
    service: Service,
    collection: Collection,
    options: SearchOptions,
    inputs: dict[str, NDArray[np.float32]],
    own: Item | None = None,
    encode_ms: float = 0.0,
) -> AnswerBody:
    """Search by a vector, with what else the rejector needs; ``own`` is the item it belongs to, if any."""
    refinement = Refinement(expand=options.expand, alpha=options.alpha, rerank=options.rerank)
    wanted = QueryOptions(options.k, options.where, refinement, options.policy)
    id_, labels, lists = (own.id, labels_of(own.metadata), lists_of(own.metadata)) if own else (None, [], {})
    since = time.perf_counter()
    answer = await service.search(collection, SearchJob(inputs.pop("vectors"), wanted, id_, inputs))
    took = Took(encode_ms=encode_ms, search_ms=_milliseconds(since))
    items = [(hit.score, item_body(collection, hit.id, hit.metadata)) for hit in answer.results]
    verdict = None
    if answer.verdict is not None and answer.policy is not None:
        verdict = VerdictBody(**asdict(answer.verdict), policy=POLICIES[answer.policy])
    shared = {name: value for name, value in vars(answer).items() if name in AnswerBody.model_fields}
    own_fields = {
        "gallery": collection.name,
        "query": QueryBody(id=id_, labels=labels or None, lists=lists or None),
        "verdict": verdict,
        "results": [
            ResultBody(**item.model_dump(), score=score, relation=shared_levels(labels, item.labels))
            for score, item in items
        ],
        "took": took,
    }
    return AnswerBody(**(shared | own_fields))


def _milliseconds(since: float) -> float:
    return round(1000 * (time.perf_counter() - since), 2)


@router.post("/v1/search", tags=["search"], openapi_extra=form_body(SearchForm))
async def search_by_image(request: Request, service: ServiceOf) -> AnswerBody:
    """Items similar to an uploaded image, or to a part of it."""
    service.check_waiting()
    form = await read_form(request, SearchForm)
    async with service.accept():
        collection, since = service.gallery(form.gallery), time.perf_counter()
        inputs = await service.encode(collection, form.image, form.part(), is_query=True)
        return await _search(service, collection, form, inputs, encode_ms=_milliseconds(since))


@router.post("/v1/search/id", tags=["search"])
async def search_by_id(body: IdSearch, service: ServiceOf) -> AnswerBody:
    """Items similar to an item, which is left out."""
    async with service.accept():
        collection = service.gallery(body.gallery)
        own = await service.run(lambda: collection.item(body.id))
        return await _search(service, collection, body, {"vectors": own.vector}, own)


@router.post("/v1/search/vector", tags=["search"])
async def search_by_vector(body: VectorSearch, service: ServiceOf) -> AnswerBody:
    """Items nearest to a vector of the gallery's encoder."""
    async with service.accept():
        collection = service.gallery(body.gallery)
        identity = await service.run(collection.identity)
        if body.fingerprint not in (None, identity.fingerprint):
            raise Problem(409, f"fingerprint must be that of the gallery, {identity.fingerprint}, got {body.fingerprint}")
        if await service.run(lambda: collection.needs_images(body.policy)):
            raise Problem(422, "policy must be 'ignore': the gallery's rejector judges images, and a vector is not enough")
        if len(body.vector) != identity.dim or not any(body.vector):
            raise Problem(422, f"vector must have {identity.dim} numbers, not all 0, got {len(body.vector)}")
        vector = np.asarray(body.vector) / np.abs(body.vector).max()  # or squares could underflow
        unit = np.asarray(vector / np.linalg.norm(vector), np.float32)
        return await _search(service, collection, body, {"vectors": unit})


@router.post("/v1/items", tags=["items"], status_code=201, openapi_extra=form_body(NewItem))
async def add_item(request: Request, service: ServiceOf) -> Written:
    """Add an item; 409 if its id exists. Once acknowledged, the item survives a crash."""
    service.check_waiting()
    form = await read_form(request, NewItem)
    async with service.accept():
        collection = service.gallery(form.gallery)
        return (await _write(service, collection, form.id, form.metadata or {}, form.image, replace=False))[1]


@router.get("/v1/items", tags=["items"])
async def browse_items(
    service: ServiceOf,
    collection: CollectionOf,
    where: Condition = None,
    level: Annotated[int, Query(ge=0, le=9, description="Of the labels that are the classes; 0 is the finest.")] = 0,
    sort: Annotated[Sort, Query(description="Least typical first, in each class or among all items.")] = "class",
    offset: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 60,
) -> BrowseBody:
    """The items of the gallery by class, the least typical first, one page at a time."""
    async with service.accept():
        total, found = await service.run(lambda: collection.browse(where or None, level, sort, offset, limit))
    items = [
        BrowsedItem(
            **item_body(collection, item.id, item.metadata).model_dump(), typicality=None if isnan(value) else value
        )
        for item, value in found
    ]
    return BrowseBody(gallery=collection.name, total=total, items=items)


@router.get("/v1/items/{id}/image", tags=["items"], response_class=Response, responses=PICTURE)
async def item_image(id: PathId, request: Request, service: ServiceOf, collection: CollectionOf) -> Response:
    """The image of an item, re-encoded, at most 2048 pixels on the longer side."""
    return await item_thumbnail(id, request, service, collection, LARGEST)


@router.get("/v1/items/{id}/thumbnail", tags=["items"], response_class=Response, responses=PICTURE)
async def item_thumbnail(
    id: PathId, request: Request, service: ServiceOf, collection: CollectionOf, size: Size = 256
) -> Response:
    """The thumbnail of an item."""

    def encode() -> Response:
        metadata = collection.item(id).metadata
        file = service.pictures.file_of(collection.folder, metadata)
        return service.pictures.respond(file, metadata, size, request.headers.get("if-none-match", ""))

    return await service.run(encode)


@router.get("/v1/items/{id}", tags=["items"])
async def item(id: PathId, service: ServiceOf, collection: CollectionOf) -> ItemBody:
    """One item with its labels and metadata."""
    found = await service.run(lambda: collection.item(id))
    return item_body(collection, id, found.metadata)


@router.put("/v1/items/{id}", tags=["items"], openapi_extra=form_body(ChangedItem), responses={201: {"model": Written}})
async def replace_item(
    id: PathId, request: Request, response: Response, service: ServiceOf, collection: CollectionOf
) -> Written:
    """Replace an item's image, metadata or both, or add it; 201 if it is new."""
    service.check_waiting()
    form = await read_form(request, ChangedItem)
    async with service.accept():
        is_new, body = await _write(service, collection, id, form.metadata, form.image, replace=True)
        response.status_code = 201 if is_new else 200
        return body


@router.post("/v1/items/{id}/label", tags=["items"])
async def relabel_item(id: PathId, body: LabelBody, service: ServiceOf, collection: CollectionOf) -> Relabelled:
    """Set an item's finest label; its coarser labels become those of the other items that have it."""
    async with service.accept():
        generation, known, is_new_label = await service.write(lambda: collection.relabel(id, body.label))
    item = item_body(collection, id, known)
    return Relabelled(gallery=collection.name, generation=generation, item=item, is_new_label=is_new_label)


@router.delete("/v1/items/{id}", tags=["items"], status_code=204)
async def remove_item(id: PathId, service: ServiceOf, collection: CollectionOf) -> None:
    """Remove an item."""
    async with service.accept():
        await service.write(lambda: collection.remove(id))


async def _write(
    service: Service,
    collection: Collection,
    id_: str,
    metadata: dict[str, Value] | None,
    data: bytes | None,
    replace: bool,
) -> tuple[bool, Written]:
    """Whether the item is new, and the response."""
    image = None
    if data is not None:
        vector = (await service.encode(collection, data))["vectors"]
        with open_image(io.BytesIO(data)) as opened:  # its header was checked by encode()
            image = data, SUFFIXES[opened.format or ""], vector
    is_new, generation, known = await service.write(lambda: collection.write(id_, metadata, image, replace))
    return is_new, Written(gallery=collection.name, generation=generation, item=item_body(collection, id_, known))


@router.get("/v1/galleries", tags=["galleries"])
async def galleries(request: Request, service: ServiceOf) -> list[GalleryBody]:
    """The galleries, the default first."""
    may_write = "write" in request.state.caller.scopes
    return await service.run(lambda: [gallery_body(collection, may_write) for collection in service.galleries.values()])


def gallery_body(collection: Collection, may_write: bool) -> GalleryBody:
    """A gallery and its fields; reads all items after a change, so call it outside the event loop."""
    fields = collection.fields()
    with collection.gallery() as gallery:
        return GalleryBody(
            name=collection.name,
            items=len(gallery),
            dim=gallery.identity.dim,
            metric=gallery.metric,
            encoder=gallery.identity.name,
            fingerprint=gallery.identity.fingerprint,
            generation=gallery.generation,
            levels=labels_of({field.name: field.name for field in fields}),
            fields=fields,
            rejector=collection.rejector() is not None,
            writable=collection.writable and may_write,
        )


@router.get("/v1/codes", tags=["galleries"])
async def codes(
    service: ServiceOf,
    collection: CollectionOf,
    field: Annotated[str, Query(max_length=LONGEST_KEY, description="A field of kind `list`, such as `codes`.")],
    within: Annotated[
        list[Annotated[str, Field(max_length=LONGEST_LISTED)]],
        Query(max_length=MOST_LISTED, description="Codes to count the next level of, besides the first level."),
    ] = [],  # noqa: B006 -- FastAPI copies it
    where: Condition = None,
) -> CodesBody:
    """How many items have each code of a level, of those that pass the filter."""
    async with service.accept():
        levels = await service.run(lambda: collection.codes(field, within, where or None))
    return CodesBody(gallery=collection.name, field=field, levels=levels)


@router.get("/v1/stats", tags=["galleries"])
async def stats(service: ServiceOf) -> dict[str, Any]:
    """Statistics of each gallery, and the upload limits."""

    def read_stats(collection: Collection) -> dict[str, Any]:
        with collection.gallery() as gallery:
            return gallery.stats()

    found = await service.run(lambda: {name: read_stats(one) for name, one in service.galleries.items()})
    return {"galleries": found, "limits": service.settings.model_dump(include={"upload_bytes", "pixels", "formats"})}


@router.get("/v1/health", tags=["service"])
async def health() -> Health:
    """200 while the process is up."""
    return Health(status="ok")


@router.get("/v1/ready", tags=["service"], responses={503: {"model": Ready}})
async def ready(service: ServiceOf, response: Response) -> Ready:
    """200 if every gallery can be searched, 503 otherwise."""
    found = await service.run(lambda: {name: service.is_ready(one) for name, one in service.galleries.items()})
    if not_ready := [name for name, is_ready in found.items() if not is_ready]:
        LOG.warning(
            "not ready: check with `sightline index verify`, then restart", extra={"fields": {"galleries": not_ready}}
        )
        response.status_code = 503
    return Ready(status="not ready" if not_ready else "ready")


@router.get("/metrics", tags=["service"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(service: ServiceOf) -> Response:
    """Metrics for Prometheus."""
    return Response(await service.run(service.metrics_text), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/v1/session", tags=["service"], status_code=204)
async def begin_session(request: Request, service: ServiceOf) -> Response:
    """Set a cookie that lets the page load images; requires a token if the service does."""
    caller, response = request.state.caller, Response(status_code=204)
    check_scope(caller, "read")
    if caller.token is not None:
        response.set_cookie(
            COOKIE,
            service.tokens.session(caller.token),
            service.settings.session_seconds,
            path="/v1/items",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
    return response


@router.delete("/v1/session", tags=["service"], status_code=204)
async def end_session() -> Response:
    """Delete the cookie."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/v1/items", httponly=True, samesite="strict")
    return response
