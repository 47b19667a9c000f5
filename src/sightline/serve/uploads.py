"""Images that strangers send: what is too large, not an image or not only an image is refused before it is decoded."""

import io

from PIL import Image
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from sightline.data.images import load_image
from sightline.errors import InputError
from sightline.serve.problems import Problem
from sightline.serve.settings import ServeSettings

MOST_FIELDS = 16
FIELD_BYTES = 65_536
LONGEST_ASPECT = 40  # a longer strip, its shorter side brought to 256 pixels, would take gigabytes
MOST_SCANS = 64  # of a JPEG file; each costs a pass over all pixels, and takes a few bytes
ACTIVE = (b"<script", b"<html", b"<!doctype html", b"<?php", b"<iframe", b"javascript:")
Crop = tuple[float, float, float, float]


async def read_form(request: Request) -> tuple[bytes | None, dict[str, str]]:
    """The image of a multipart request, if it has one, and its other fields.

    The guard has bounded its bytes and its time already; here its parts and fields are.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Problem(415, "a request of type multipart/form-data is needed")
    form = await _form(request)
    try:
        return await _parts(form.multi_items())
    finally:
        await form.close()


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=FIELD_BYTES)
    except UnicodeError as error:
        raise Problem(400, "the form cannot be read in the charset that its Content-Type names") from error


async def _parts(items: list[tuple[str, UploadFile | str]]) -> tuple[bytes | None, dict[str, str]]:
    image: bytes | None = None
    fields: dict[str, str] = {}
    for name, value in items:
        if isinstance(value, str):
            if name == "image":
                raise Problem(422, "image: a file is needed, with a file name; found a text")
            if name in fields:
                raise Problem(422, f"{name[:100]!r} is there twice")
            fields[name] = value
        elif name == "image":
            image = await value.read()
        else:
            raise Problem(422, f"{name[:100]!r} is a file; only 'image' may be one")
    return image, fields


def decoded(data: bytes, settings: ServeSettings, crop: Crop | None = None) -> Image.Image:
    """The image in RGB, upright, cut to a part if one is given.

    Args:
        data: the bytes of a file.
        settings: what is accepted.
        crop: left, top, right and bottom of the part as shares of width and height.
    """
    if not data:
        raise Problem(422, "image: the file is empty")
    if fault := foreign_content(data):
        raise Problem(415, f"image: {fault}")
    formats = (*settings.formats, *(("MPO",) if "JPEG" in settings.formats else ()))  # two JPEGs in one file, of phones
    fits = ", ".join(settings.formats)
    try:
        opened = Image.open(io.BytesIO(data), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Problem(413, f"image: more than {settings.pixels} pixels") from error
    except Exception as error:  # whatever a header's bytes lead to
        raise Problem(415, f"image: not a readable image of these formats: {fits}") from error
    with opened:
        _check_size(opened.width, opened.height, settings.pixels)
        if opened.format in ("JPEG", "MPO") and data.count(b"\xff\xda") > MOST_SCANS:
            raise Problem(415, f"image: a JPEG file of more than {MOST_SCANS} scans")
        try:
            image = load_image(opened)
        except InputError as error:
            raise Problem(415, "image: its header is readable, its content is broken or cut off") from error
    return image if crop is None else _cropped(image, crop)


def _check_size(width: int, height: int, pixels: int) -> None:
    if width < 1 or height < 1:
        raise Problem(415, f"image: {width} x {height} pixels")
    if width * height > pixels:
        raise Problem(413, f"image: {width} x {height} pixels, more than {pixels}")
    if max(width, height) > LONGEST_ASPECT * min(width, height):
        raise Problem(422, f"image: {width} x {height} pixels; the longer side may be {LONGEST_ASPECT} times the shorter")


def _cropped(image: Image.Image, crop: Crop) -> Image.Image:
    box = pixel_box(crop, image.width, image.height)
    _check_size(box[2] - box[0], box[3] - box[1], image.width * image.height)
    return image.crop(box)


def pixel_box(crop: Crop, width: int, height: int) -> tuple[int, int, int, int]:
    """The pixels of a part: its edges rounded to the nearest ones, at least one pixel wide and high.

    Example:
        >>> pixel_box((0.25, 0.0, 0.75, 1.0), 40, 30)
        (10, 0, 30, 30)
    """
    left, top = min(round(crop[0] * width), width - 1), min(round(crop[1] * height), height - 1)
    return left, top, max(left + 1, round(crop[2] * width)), max(top + 1, round(crop[3] * height))


def foreign_content(data: bytes) -> str | None:
    """A sentence if the file is, besides an image, something that a browser or a shell would act upon."""
    lowered = data.lower()
    if found := next((word for word in ACTIVE if word in lowered), None):
        return f"the file contains {found.decode()!r}"
    if b"%PDF-" in data[:1024]:
        return "the file is a PDF document too"
    if b"PK\x05\x06" in data[-65_557:] and b"PK\x03\x04" in data:
        return "the file is a ZIP archive too"
    return None
