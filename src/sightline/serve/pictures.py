"""Uploaded images, checked before they are decoded, and images of items, re-encoded before they are sent."""

import hashlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from sightline.data.images import Box, load_image, open_image, reduce_jpeg
from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery, Value, image_path
from sightline.serve.schemas import Crop, Problem, RequestFields
from sightline.serve.settings import ServeSettings, fault_text, file_stamp

LARGEST = 2048
SAMPLED = 500
LOSSLESS = 128 * 128  # pixels up to which PNG is small enough


class Pictures:
    """Images of items at any size, with a cache of the latest."""

    def __init__(self, roots: tuple[Path, ...], pixels: int, cache_bytes: int) -> None:
        self._roots = [root.resolve() for root in roots]
        self._pixels = pixels
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def file_of(self, folder: Path, metadata: dict[str, Value]) -> Path | None:
        """The image file of an item, if it is below the gallery's folder or a root once links are followed; else None.

        Images that used to be beside the gallery are looked for in the roots.
        """
        found = [image_path(folder, metadata, root) for root in (None, *self._roots)]
        allowed = [folder.resolve(), *self._roots]
        files = [file for file in found if file is not None and any(map(file.is_relative_to, allowed))]
        return next((file for file in files if file.is_file()), files[0] if files else None)

    def respond(self, file: Path | None, metadata: dict[str, Value], size: int, known_etags: str = "") -> Response:
        """The image of an item, its longer side at most ``size``; 304 if the client has it, by ETag."""
        stamp = None if file is None else file_stamp(file)
        if file is None or stamp is None or not file.is_file():
            raise Problem(404, "this item has no image in a folder that may be shown (`sightline serve --images`)")
        content = f"{file} {stamp} {[metadata.get(side) for side in BOX]} {size}"
        etag = f'"{hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()}"'
        headers = {"Cache-Control": "private, max-age=300", "ETag": etag}
        if etag in known_etags:
            return Response(status_code=304, headers=headers)
        with self._lock:
            cached = self._cache.get(etag)
        data, media_type = cached or self._encode(file, metadata, size)
        with self._lock:
            if etag in self._cache:
                self._cache.move_to_end(etag)
            elif len(data) <= self._cache_bytes // 8:
                self._cache[etag] = data, media_type
                self._n_bytes += len(data)
            while self._n_bytes > self._cache_bytes:
                self._n_bytes -= len(self._cache.popitem(last=False)[1][0])
        return Response(data, headers=headers, media_type=media_type)

    def _encode(self, file: Path, metadata: dict[str, Value], size: int) -> tuple[bytes, str]:
        try:
            with open_image(file) as opened:
                if opened.width * opened.height > 4 * self._pixels:
                    raise Problem(404, "the image of this item is too large to show")
                box = _box(metadata)
                if box is not None and not (0 <= box[0] < box[2] and 0 <= box[1] < box[3]):
                    raise ValueError(f"the box {box} is empty or begins outside the image")
                if box is None:
                    opened.draft(None, (2 * size, 2 * size))  # decode a JPEG file no larger than necessary
                image = load_image(opened, box)
        except (InputError, OSError, ValueError, OverflowError, Image.DecompressionBombError) as error:
            raise Problem(404, "the image of this item cannot be read") from error
        image.thumbnail((size, size))
        encoded = io.BytesIO()
        kind = "PNG" if image.width * image.height <= LOSSLESS else "JPEG"
        image.save(encoded, kind, quality=88)
        return encoded.getvalue(), f"image/{kind.lower()}"


def _box(metadata: dict[str, Value]) -> Box | None:
    sides = [metadata.get(side) for side in BOX]
    return None if any(side is None for side in sides) else tuple(int(side) for side in sides)  # type: ignore[arg-type,return-value]


def hidden_folders(gallery: Gallery, roots: Iterable[Path]) -> list[Path]:
    """Folders whose images are not shown because they are neither below the gallery nor below a root.

    Estimated from up to 500 items: for each folder below ``/``, the common path of its images.
    """
    folder = Path(gallery.address).resolve()
    allowed = [folder, *(root.resolve() for root in roots)]
    ids = gallery.ids()
    files = [image_path(folder, row) for row in gallery.metadata(ids[:: 1 + len(ids) // SAMPLED])]
    hidden = sorted({file.parent for file in files if file and not any(map(file.is_relative_to, allowed))})
    tops = groupby(hidden, key=lambda parent: parent.parts[:2])
    return [Path(os.path.commonpath(list(parents))) for _, parents in tops]


MOST_FIELDS = 16
FIELD_BYTES = 65_536
LONGEST_ASPECT = 40  # resized to 256 pixels on its shorter side, a longer strip would take gigabytes
MOST_SCANS = 64  # of a JPEG file; each takes a few bytes and costs a pass over all pixels
ACTIVE = (b"<script", b"<html", b"<!doctype html", b"<?php", b"<iframe", b"javascript:")
Form = TypeVar("Form", bound=RequestFields)


async def read_form(request: Request, model: type[Form]) -> Form:
    """The fields of a multipart request: ``image`` is a file, all others are text.

    The guard limits its size and time; this limits its parts and fields.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Problem(415, "the request must be of type multipart/form-data")
    fields: dict[str, str | bytes] = {}
    try:
        async with request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=FIELD_BYTES) as form:
            for name, value in form.multi_items():
                if name in fields or isinstance(value, UploadFile) != (name == "image"):
                    raise Problem(422, f"{name[:100]!r}: fields must be unique, and only 'image' must be a file")
                fields[name] = await value.read() if isinstance(value, UploadFile) else value
        return model.model_validate(fields)
    except UnicodeError as error:
        raise Problem(400, "the form cannot be decoded with the charset in its Content-Type") from error
    except ValidationError as error:
        raise Problem(422, fault_text(error.errors())) from error


def decode_upload(
    data: bytes, settings: ServeSettings, crop: Crop | None = None, at_least: int | None = None
) -> Image.Image:
    """The image in RGB, upright, and cropped if asked.

    Args:
        data: the bytes of a file.
        settings: limits and formats.
        crop: left, top, right and bottom as fractions of width and height.
        at_least: of an image that is not cropped; see :func:`~sightline.data.images.reduce_jpeg`. None for all pixels.
    """
    if fault := foreign_content(data):
        raise Problem(415, f"image: {fault}")
    formats = (
        *settings.formats,
        *(("MPO",) if "JPEG" in settings.formats else ()),
    )  # two JPEG images in one file, from phones
    try:
        with Image.open(io.BytesIO(data), formats=formats) as opened:
            _check_size(opened.width, opened.height, settings.pixels)
            if opened.format in ("JPEG", "MPO") and data.count(b"\xff\xda") > MOST_SCANS:
                raise Problem(415, f"image: a JPEG file must have at most {MOST_SCANS} scans")
            if crop is None and at_least is not None:
                reduce_jpeg(opened, at_least)
            image = load_image(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Problem(413, f"image must have at most {settings.pixels} pixels") from error
    except Problem:
        raise
    except Exception as error:  # a malformed file may raise anything
        raise Problem(415, f"image: not a readable image; accepted formats: {', '.join(settings.formats)}") from error
    if crop is None:
        return image
    box = pixel_box(crop, image.width, image.height)
    _check_size(box[2] - box[0], box[3] - box[1], settings.pixels)
    return image.crop(box)


def _check_size(width: int, height: int, pixels: int) -> None:
    if width * height > pixels:
        raise Problem(413, f"image must have at most {pixels} pixels, got {width} x {height}")
    if min(width, height) < 1 or max(width, height) > LONGEST_ASPECT * min(width, height):
        raise Problem(
            422, f"image: the longer side must be at most {LONGEST_ASPECT} times the shorter, got {width} x {height}"
        )


def pixel_box(crop: Crop, width: int, height: int) -> tuple[int, int, int, int]:
    """The pixel box of a crop: edges rounded, at least one pixel wide and high.

    Example:
        >>> pixel_box((0.25, 0.0, 0.75, 1.0), 40, 30)
        (10, 0, 30, 30)
    """
    left, top = min(round(crop[0] * width), width - 1), min(round(crop[1] * height), height - 1)
    return left, top, max(left + 1, round(crop[2] * width)), max(top + 1, round(crop[3] * height))


def foreign_content(data: bytes) -> str | None:
    """What else the file is that a browser or a shell could execute; None if nothing."""
    lowered = data.lower()
    kinds = {
        "markup or a script": any(word in lowered for word in ACTIVE),
        "a PDF document": b"%PDF-" in data[:1024],
        "a ZIP archive": b"PK\x05\x06" in data[-65_557:] and b"PK\x03\x04" in data,
    }
    return next((f"the file also contains {kind}" for kind, is_there in kinds.items() if is_there), None)
