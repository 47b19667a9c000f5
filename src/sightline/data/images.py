"""Open one image as it should be seen, and find the ones that cannot be opened."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import IO, NamedTuple

import numpy as np
import polars as pl
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from sightline.data.manifest import Manifest
from sightline.errors import InputError, named_errors, raise_faults
from sightline.progress import tracked

# What is decoded, whatever a file is called: no format for which Pillow starts a program, as it does for EPS, and none
# that is rare in collections of photos. "JPEG" takes in the double images of phones.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
HEIF_SUFFIXES = frozenset((".heic", ".heif"))
WHITE = (255, 255, 255, 255)
CHUNK = 4096  # images handed to the threads at once: a million waiting ones take 1.5 GB
LARGE = 50_000_000  # pixels: more than any camera in common use, and slow to decode in every epoch
Box = tuple[int, int, int, int]
BROKEN = "not a readable image"  # on such bytes Pillow's decoders raise anything, struct.error and MemoryError among them


def open_image(source: Path | IO[bytes]) -> Image.Image:
    """Read an image's header, if it is of one of ``FORMATS`` or, with pillow-heif, HEIC; the file must be a regular one.

    A link may lead to it.
    Pixels are decoded when they are used; more than 179 million are refused, by Pillow's limit against decompression bombs.
    """
    if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
        raise OSError("not a regular file")  # a pipe would be waited for
    try:
        return Image.open(source, formats=_formats())
    except UnidentifiedImageError:
        if isinstance(source, Path) and source.suffix.lower() in HEIF_SUFFIXES and "HEIF" not in _formats():
            raise OSError("HEIC images need pillow-heif: pip install 'sightline[heic]'") from None
        raise


@cache
def _formats() -> tuple[str, ...]:
    """``FORMATS``, and HEIC where pillow-heif is installed, which then registers its decoder with Pillow."""
    if find_spec("pillow_heif") is None:
        return FORMATS
    import pillow_heif

    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, turned as its camera says, transparency on white, 16 bits of grey as 8.

    Grey of 32 bits, whole numbers or not, has no black and white of its own: the lowest value becomes black, the highest
    white; NaN is black, infinity white.
    """
    is_16_bit = image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM")
    if not _is_upright(image):
        image = ImageOps.exif_transpose(image)
    if is_16_bit:  # Pillow would cut its values off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        image = _stretched(image)
    if image.mode in ("RGBa", "La"):
        image = image.convert(image.mode.upper())
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image.convert("RGB")


def _stretched(image: Image.Image) -> Image.Image:
    values = np.asarray(image, np.float64)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    share = np.nan_to_num((values - low) / (high - low if high > low else 1), nan=0, posinf=1, neginf=0)
    return Image.fromarray((share * 255).round().astype(np.uint8))


def _is_upright(image: Image.Image) -> bool:
    return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)


def load_image(source: Path | Image.Image, box: Box | None = None, at_least: int | None = None) -> Image.Image:
    """The decoded image in RGB, cut to the box if one is given; one error that names the file if it cannot be.

    Args:
        source: a file, or an image.
        box: left, top, right and bottom in pixels.
        at_least: of a file without a box; see :func:`reduce_jpeg`. None for all pixels.
    """
    name = source if isinstance(source, Path) else getattr(source, "filename", "") or "an image in memory"
    with (
        named_errors(name, BROKEN, Exception),
        open_image(source) if isinstance(source, Path) else nullcontext(source) as file,
    ):
        if at_least is not None and box is None and isinstance(source, Path):
            reduce_jpeg(file, at_least)
        image = as_rgb(file)
    if box is None:
        return image
    if box[2] > image.width or box[3] > image.height:
        raise InputError(f"{name}: the box {box} leaves the image, which is {image.width} x {image.height}")
    return image.crop(box)


def reduce_jpeg(file: Image.Image, at_least: int) -> None:
    """Have an open JPEG file decoded at the smallest scale, 1, 1/2, 1/4 or 1/8, at which its sides are still so long.

    At 1/n a pixel is about the mean of n x n, and the decoder skips what that does not need.
    """
    n = next((n for n in (8, 4, 2) if min(file.size) >= n * at_least), 1)
    if n > 1 and file.format in ("JPEG", "MPO"):
        file.draft(None, (file.width // n, file.height // n))


def load_part(source: Path | Image.Image, box: Box | None, part: Callable[[int, int], Box], at_least: int) -> Image.Image:
    """A part of what :func:`load_image` gives, at the smallest scale at which its sides are still ``at_least`` so long.

    Scales are 1, 1/2, 1/4 and 1/8, and other than 1 for upright JPEG files without a box alone: their decoder skips what a
    smaller picture does not need. At 1/n a pixel is about the mean of n x n, and the part begins and ends at a multiple of
    n pixels, no more than n - 1 outside the one asked for: less than a pixel, once it is ``at_least`` so long.

    Args:
        source: a file, or an image.
        box: what counts as the image; None for all of it.
        part: given width and height, which part.
        at_least: pixels; where the part itself is smaller it comes as it is.
    """
    if isinstance(source, Path) and box is None:
        with named_errors(source, BROKEN, Exception), open_image(source) as file:
            if file.format == "JPEG" and _is_upright(file):
                left, top, right, bottom = part(*file.size)
                n = next((n for n in (8, 4, 2) if min(right - left, bottom - top) >= n * at_least), 1)
                if n > 1:
                    file.draft(None, (max(1, file.width // n), max(1, file.height // n)))
                reduced = file.crop((left // n, top // n, -(-right // n), -(-bottom // n)))
                return reduced if reduced.mode == "RGB" else reduced.convert("RGB")
            whole = as_rgb(file)
    else:
        whole = load_image(source, box)
    return whole.crop(part(*whole.size))


class ImageFacts(NamedTuple):
    """What decoding one image showed.

    Attributes:
        width: in pixels, as stored; 0 where the header cannot be read.
        height: in pixels, as stored; 0 where the header cannot be read.
        fault: why it cannot be used, with its file and its line in the manifest; None for a sound image.
    """

    width: int
    height: int
    fault: str | None


def inspect_images(manifest: Manifest, show_progress: bool = False) -> list[ImageFacts]:
    """Decode every image of the manifest, in parallel; the facts are in its order."""
    one_large = Lock()  # of the largest allowed, one takes a gigabyte

    def inspect(path: Path, box: Box | None, place: str | None) -> ImageFacts:
        size = (0, 0)
        try:
            with named_errors(path, BROKEN, Exception), open_image(path) as opened:
                size = opened.size
                with one_large if size[0] * size[1] > LARGE else nullcontext():
                    load_image(opened, box)
        except InputError as error:
            return ImageFacts(*size, str(error) if place is None else f"{place}: {error}")
        return ImageFacts(*size, None)

    places = [None] * len(manifest) if manifest.places is None else manifest.places.to_list()
    columns = (manifest.paths(), manifest.boxes(), places)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoding releases the interpreter lock
        chunks = ([column[start : start + CHUNK] for column in columns] for start in range(0, len(manifest), CHUNK))
        outcomes = chain.from_iterable(pool.map(inspect, *chunk) for chunk in chunks)
        return list(tracked(outcomes, "Checking images", len(manifest), show_progress))


def check_images(manifest: Manifest, show_progress: bool = False) -> None:
    """Decode every image of the manifest; raise one error that names all those that fail, and their lines."""
    raise_faults(manifest.source, [one.fault for one in inspect_images(manifest, show_progress) if one.fault])


def readable_images(manifest: Manifest, show_progress: bool = False) -> tuple[Manifest, list[str]]:
    """The manifest of the images that can be decoded, and a sentence for each of the others."""
    faults = [one.fault for one in inspect_images(manifest, show_progress)]
    is_sound = pl.lit(pl.Series([fault is None for fault in faults], dtype=pl.Boolean))
    return manifest.where(is_sound), [fault for fault in faults if fault]
