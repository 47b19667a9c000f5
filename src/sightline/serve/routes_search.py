"""Search by upload, by id and by vector."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ValidationError

from sightline.gallery.gallery import labels_of
from sightline.serve.answers import answer_body, checked_vector, search_job
from sightline.serve.problems import Problem
from sightline.serve.schemas import AnswerBody, IdSearch, UploadOptions, VectorSearch, metadata_schema
from sightline.serve.service import Service, timed
from sightline.serve.uploads import read_form

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp")
router = APIRouter(prefix="/v1/search", tags=["search"])


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


@router.post("", openapi_extra=form_body(UploadOptions, ["image"]))
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


@router.post("/id")
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


@router.post("/vector")
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
