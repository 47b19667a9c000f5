"""Images that come in, refused before they are decoded if unfit, and files that go out: images encoded again, pages."""

import hashlib
import io
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from sightline.data.images import Box, load_image, open_image
from sightline.data.manifest import BOX
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery, Value, image_path
from sightline.serve.schemas import Crop, Problem
from sightline.serve.settings import ServeSettings

LARGEST = 2048
SAMPLED = 500
WEB = Path(__file__).parent / "web"
WEB_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
LOSSLESS = 128 * 128  # pixels up to which PNG is small enough


@dataclass(frozen=True)
class Picture:
    """An image to send: its bytes, its type and a name for exactly these bytes."""

    data: bytes
    media_type: str
    etag: str


class Pictures:
    """Makes images of items at any size, and remembers the last ones."""

    def __init__(self, roots: tuple[Path, ...], pixels: int, cache_bytes: int) -> None:
        self._roots = [root.resolve() for root in roots]
        self._pixels = pixels
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[str, Picture] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def file_of(self, folder: Path, metadata: dict[str, Value]) -> Path | None:
        """Where an item's image is: below the gallery's folder or a root, once links are followed; None elsewhere.

        Images that lay beside the gallery and do so no more are looked for in the roots.
        """
        found = [image_path(folder, metadata, root) for root in (None, *self._roots)]
        files = [file for file in found if file is not None and is_below(file, (folder.resolve(), *self._roots))]
        return next((file for file in files if file.is_file()), files[0] if files else None)

    def etag(self, file: Path, metadata: dict[str, Value], size: int) -> str:
        """A name for the image of an item at a size; changes with its file."""
        try:
            found = file.stat()
        except OSError as error:
            raise Problem(404, "the image of this item is not there any more") from error
        if not stat.S_ISREG(found.st_mode):
            raise Problem(404, "the image of this item is not a regular file")
        said = f"{file} {found.st_mtime_ns} {found.st_size} {[metadata.get(side) for side in BOX]} {size}"
        return f'"{hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()}"'

    def picture(self, file: Path, metadata: dict[str, Value], size: int) -> Picture:
        """The image of an item, its longer side at most ``size``."""
        etag = self.etag(file, metadata, size)
        with self._lock:
            if etag in self._cache:
                self._cache.move_to_end(etag)
                return self._cache[etag]
        made = self._made(file, metadata, size, etag)
        with self._lock:
            if etag not in self._cache and len(made.data) <= self._cache_bytes // 8:
                self._cache[etag] = made
                self._n_bytes += len(made.data)
            while self._n_bytes > self._cache_bytes:
                self._n_bytes -= len(self._cache.popitem(last=False)[1].data)
        return made

    def _made(self, file: Path, metadata: dict[str, Value], size: int, etag: str) -> Picture:
        try:
            with open_image(file) as opened:
                if opened.width * opened.height > 4 * self._pixels:
                    raise Problem(404, "the image of this item is too large to be shown")
                box = _box(metadata)
                if box is not None and not (0 <= box[0] < box[2] and 0 <= box[1] < box[3]):
                    raise ValueError(f"the box {box} is empty or begins outside the image")
                if box is None:
                    opened.draft(None, (2 * size, 2 * size))  # no larger than needed, of a JPEG file
                image = load_image(opened, box)
        except (InputError, OSError, ValueError, OverflowError, Image.DecompressionBombError) as error:
            raise Problem(404, "the image of this item cannot be read any more") from error
        image.thumbnail((size, size))
        encoded = io.BytesIO()
        kind = "PNG" if image.width * image.height <= LOSSLESS else "JPEG"
        image.save(encoded, kind, quality=88)
        return Picture(encoded.getvalue(), f"image/{kind.lower()}", etag)


def _box(metadata: dict[str, Value]) -> Box | None:
    sides = [metadata.get(side) for side in BOX]
    return None if any(side is None for side in sides) else tuple(int(side) for side in sides)  # type: ignore[arg-type,return-value]


def is_below(file: Path, roots: Iterable[Path]) -> bool:
    """Whether a resolved path lies below one of some resolved folders."""
    return any(file.is_relative_to(root) for root in roots)


def hidden_folders(gallery: Gallery, roots: Iterable[Path]) -> list[Path]:
    """The folders of images that are not shown because they lie neither below the gallery nor below a root.

    Found by up to 500 items: for each folder below ``/``, what all paths in it have in common.
    """
    folder = Path(gallery.address).resolve()
    ids = gallery.ids()
    rows = gallery.metadata(ids[:: 1 + len(ids) // SAMPLED])
    files = [file for row in rows if (file := image_path(folder, row)) is not None]
    allowed = (folder, *(root.resolve() for root in roots))
    tops: dict[str, list[Path]] = {}
    for file in files:
        if not is_below(file, allowed):
            tops.setdefault(file.parts[1], []).append(file.parent)
    return [Path(os.path.commonpath(parents)) for parents in tops.values()]


def web_response(name: str) -> Response:
    """A file of a page. Its name is looked up among those there are; it never makes a path."""
    file = next((file for file in WEB.iterdir() if file.name == name and file.suffix in WEB_TYPES), None)
    if file is None:
        raise Problem(404, "the page has no such file")
    return Response(file.read_bytes(), headers={"Cache-Control": "no-cache"}, media_type=WEB_TYPES[file.suffix])


MOST_FIELDS = 16
FIELD_BYTES = 65_536
LONGEST_ASPECT = 40  # a longer strip, its shorter side brought to 256 pixels, would take gigabytes
MOST_SCANS = 64  # of a JPEG file; each costs a pass over all pixels, and takes a few bytes
ACTIVE = (b"<script", b"<html", b"<!doctype html", b"<?php", b"<iframe", b"javascript:")


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
