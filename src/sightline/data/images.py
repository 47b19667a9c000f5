"""Open one image as it should be seen, and find the ones that cannot be opened."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from sightline.data.manifest import Manifest
from sightline.errors import InputError, raise_faults
from sightline.progress import tracked

WHITE = (255, 255, 255, 255)
CHUNK = 4096  # images handed to the threads at once: a million waiting ones take 1.5 GB
Box = tuple[int, int, int, int]


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, turned as its camera says, transparency on white, 16 bits of grey as 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow would cut its values off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image.convert("RGB")


def load_image(source: Path | Image.Image, box: Box | None = None) -> Image.Image:
    """The decoded image in RGB, cut to the box if one is given; one error that names the file if it cannot be."""
    name = source if isinstance(source, Path) else getattr(source, "filename", "") or "an image in memory"
    try:
        if isinstance(source, Image.Image):
            image = as_rgb(source)
        else:
            with Image.open(source) as file:
                image = as_rgb(file)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file") from error
    except Exception as error:  # on broken bytes Pillow's decoders raise anything, struct.error and MemoryError among them
        raise InputError(f"{name}: not a readable image: {str(error) or type(error).__name__}") from error
    if box is None:
        return image
    if box[2] > image.width or box[3] > image.height:
        raise InputError(f"{name}: the box {box} leaves the image, which is {image.width} x {image.height}")
    return image.crop(box)


def check_images(manifest: Manifest, show_progress: bool = False) -> None:
    """Decode every image of the manifest, in parallel; raise one error that names all those that fail, and their lines."""

    def fault(path: Path, box: Box | None, place: str | None) -> str | None:
        try:
            load_image(path, box)
        except InputError as error:
            return str(error) if place is None else f"{place}: {error}"
        return None

    def outcomes(pool: ThreadPoolExecutor) -> Iterator[str | None]:
        for start in range(0, len(manifest), CHUNK):
            yield from pool.map(fault, *(column[start : start + CHUNK] for column in columns))

    places = [None] * len(manifest) if manifest.places is None else manifest.places.to_list()
    columns = (manifest.paths(), manifest.boxes(), places)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoding releases the interpreter lock
        checked = tracked(outcomes(pool), "Checking images", len(manifest), show_progress)
        raise_faults(manifest.source, [message for message in checked if message])
