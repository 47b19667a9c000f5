"""Vectors of images at their own size and aspect, at several scales, as papers on landmarks compute them."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import Manifest
from sightline.data.transforms import LARGEST_SIDE
from sightline.errors import InputError, raise_faults
from sightline.models.encoder import Encoder, check_encoder
from sightline.progress import tracked

LEAST_SIDE = 32  # pixels at the smallest scale: what a network halves five times
WINDOW = 64  # images read at once, of which those of one shape are a batch
HALF = 16  # hexadecimal digits of a fingerprint: the first are those of the encoder
SCALES = (1.0, 1 / math.sqrt(2), 0.5)  # of the papers on landmarks


@dataclass(frozen=True)
class OwnSize:
    """How much of an image a network sees: all of it.

    Attributes:
        longest: pixels of the longer side at most; a larger image is reduced, none is enlarged.
        scales: at which each image is embedded; its vector is the mean of theirs.

    Example:
        >>> OwnSize(1024, (1.0, 0.5)).scales
        (1.0, 0.5)
    """

    longest: int = 1024
    scales: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        rules = {
            f"longest must be {LEAST_SIDE} to {LARGEST_SIDE} pixels, got {self.longest}": LEAST_SIDE
            <= self.longest
            <= LARGEST_SIDE,
            f"scales must be different, above 0 and at most 4, got {list(self.scales)}": bool(self.scales)
            and len({*self.scales}) == len(self.scales)
            and all(0 < scale <= 4 for scale in self.scales),
        }
        raise_faults("images at their own size", [rule for rule, holds in rules.items() if not holds])

    def fingerprint(self, encoder: Encoder) -> str:
        """A name for vectors made this way: they are not to be compared with those of squares."""
        of_encoder = encoder.fingerprint()
        about = json.dumps([of_encoder, self.longest, self.scales])
        return of_encoder[:HALF] + hashlib.sha256(about.encode()).hexdigest()[:HALF]


def is_of_encoder(fingerprint: str | None, encoder: Encoder) -> bool:
    """Whether vectors are of this encoder, of squares or of images at their own size."""
    return (fingerprint or "").startswith(encoder.fingerprint()[:HALF])


@torch.inference_mode()
def vectors_at_scales(encoder: Encoder, images: Tensor, scales: Sequence[float] = SCALES) -> Tensor:
    """(B, D) unit vectors: the mean of those at each scale, brought to length 1.

    Args:
        encoder: in evaluation mode.
        images: (B, 3, H, W) normalised, of any aspect.
        scales: of both sides; the image is resized bilinearly. A side stays 32 pixels or more.
    """
    total = torch.zeros(len(images), encoder.dim, device=images.device)
    for scale in scales:
        total += encoder(images if scale == 1 else _scaled(images, scale))
    return F.normalize(total, dim=1)


def _scaled(images: Tensor, scale: float) -> Tensor:
    """The images resized by a factor, with places of pixels as the published code has them: by the factor itself."""
    sides = [math.floor(side * scale) for side in images.shape[2:]]
    if min(sides) >= LEAST_SIDE:
        return F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=False)
    at_least = [max(LEAST_SIDE, side) for side in sides]
    return F.interpolate(images, size=at_least, mode="bilinear", align_corners=False)


def embed_at_own_size(
    encoder: Encoder, manifest: Manifest, size: OwnSize, batch_size: int = 8, show_progress: bool = False
) -> EmbeddingTable:
    """A vector for each image, or its box, seen whole; one error names all images that cannot be read.

    Images are read 64 at a time, and those of one shape are embedded together. The table has a fingerprint of its own, so
    that it is not compared with vectors of squares.

    Args:
        encoder: what embeds, by torch; its network must take images of any shape.
        manifest: the images.
        size: of the images, and scales.
        batch_size: images in one pass through the model, at most.
        show_progress: draw a progress bar.
    """
    check_encoder(encoder)
    vectors, faults = np.zeros((len(manifest), encoder.dim), np.float32), list[str]()
    was_training = encoder.training
    encoder.eval()
    try:
        for places, pixels in _by_shape(manifest, size, batch_size, faults, show_progress):
            images = encoder.settings.preprocessing.normalised(pixels.to(encoder.device))
            try:
                vectors[places] = vectors_at_scales(encoder, images, size.scales).cpu().numpy()
            except (AssertionError, RuntimeError) as error:
                raise InputError(
                    f"backbone {encoder.settings.backbone!r} takes no images of {pixels.shape[2]} x {pixels.shape[1]} "
                    f"pixels, only its own square: {str(error).partition(chr(10))[0]}"
                ) from error
    finally:
        encoder.train(was_training)
    raise_faults(manifest.source, faults)
    return EmbeddingTable(manifest, vectors, size.fingerprint(encoder))


def _by_shape(
    manifest: Manifest, size: OwnSize, batch_size: int, faults: list[str], show_progress: bool
) -> Iterator[tuple[list[int], Tensor]]:
    """The places and (B, H, W, 3) pixels of images of one shape; why others cannot be read is added to ``faults``."""
    paths, boxes = manifest.paths(), manifest.boxes()

    def read(place: int) -> Image.Image | str:
        try:
            image = load_image(paths[place], boxes[place])
        except InputError as error:
            return str(error)
        image.thumbnail((size.longest, size.longest), Image.Resampling.LANCZOS, reducing_gap=None)
        return image

    starts = range(0, len(paths), WINDOW)
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as readers:
        for start in tracked(starts, "Embedding", len(starts), show_progress):
            places = range(start, min(start + WINDOW, len(paths)))
            alike: dict[tuple[int, int], list[tuple[int, Image.Image]]] = {}
            for place, image in zip(places, readers.map(read, places), strict=True):
                if isinstance(image, str):
                    faults.append(image)
                else:
                    alike.setdefault(image.size, []).append((place, image))
            for together in alike.values():
                for first in range(0, len(together), batch_size):
                    part = together[first : first + batch_size]
                    pixels = np.stack([np.asarray(image) for _, image in part])
                    yield [place for place, _ in part], torch.from_numpy(pixels)
