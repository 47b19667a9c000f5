"""Open one image as it should be seen, and find the ones that cannot be opened."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageOps
from rich.progress import track

from sightline.data.manifest import Manifest
from sightline.errors import InputError, raise_faults

WHITE = (255, 255, 255, 255)
Box = tuple[int, int, int, int]


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, turned as its camera says, transparency on white."""
    image = ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image.convert("RGB")


def load_image(path: Path, box: Box | None = None) -> Image.Image:
    """The decoded image in RGB, cut to the box if one is given; one error that names the file if it cannot be."""
    try:
        with Image.open(path) as file:
            image = as_rgb(file)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what Pillow's decoders raise
        raise InputError(f"{path}: not a readable image: {error}") from error
    if box is None:
        return image
    if box[2] > image.width or box[3] > image.height:
        raise InputError(f"{path}: the box {box} leaves the image, which is {image.width} x {image.height}")
    return image.crop(box)


def check_images(manifest: Manifest, show_progress: bool = False) -> None:
    """Decode every image of the manifest, in parallel; raise one error that names all those that fail."""

    def fault(item: tuple[Path, Box | None]) -> str | None:
        try:
            load_image(*item)
        except InputError as error:
            return str(error)
        return None

    items = list(zip(manifest.paths(), manifest.boxes(), strict=True))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoding releases the interpreter lock
        outcomes = track(pool.map(fault, items), "Checking images", len(items), disable=not show_progress)
        raise_faults(manifest.source, [message for message in outcomes if message])
