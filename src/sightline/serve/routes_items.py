"""Items: get, add, replace, remove; their images and thumbnails."""

import io
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from sightline.data.images import open_image
from sightline.gallery.gallery import Value, is_utf8
from sightline.serve.answers import SUFFIXES, item_body
from sightline.serve.pictures import LARGEST
from sightline.serve.problems import Problem
from sightline.serve.routes_search import ServiceOf, form_body
from sightline.serve.schemas import ID_SCHEMA, LONGEST_ID, ItemBody, Written, checked_metadata_text
from sightline.serve.service import Served, Service
from sightline.serve.uploads import read_form

router = APIRouter(prefix="/v1/items", tags=["items"])
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


@router.post("", status_code=201, openapi_extra=form_body(NewItem, ["image", "id"]))
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


@router.get("/{id}/image", response_class=Response, responses=PICTURE)
async def item_image(id: ItemId, request: Request, service: ServiceOf, gallery: GalleryName = None) -> Response:
    """The image of an item, encoded anew, at most 2048 pixels wide and high."""
    return await _picture(request, service, service.served(gallery), plain_id(id), LARGEST)


@router.get("/{id}/thumbnail", response_class=Response, responses=PICTURE)
async def item_thumbnail(
    id: ItemId, request: Request, service: ServiceOf, gallery: GalleryName = None, size: Size = 256
) -> Response:
    """The image of an item, small."""
    return await _picture(request, service, service.served(gallery), plain_id(id), size)


@router.get("/{id}")
async def item(id: ItemId, service: ServiceOf, gallery: GalleryName = None) -> ItemBody:
    """What is known of an item."""
    collection, name = service.served(gallery).collection, plain_id(id)
    return item_body(collection, name, await service.aside(lambda: collection.known(name)))


@router.put("/{id}", openapi_extra=form_body(ChangedItem, []), responses={201: {"model": Written}})
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


@router.delete("/{id}", status_code=204)
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
