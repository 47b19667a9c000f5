"""Image to tensor, for training and for search."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import sightline.torchvision_operators  # noqa: F401  (before torchvision)
from sightline.data.images import Box
from sightline.kernels.row_loops import look_up, resample

from torchvision.transforms import v2  # isort: skip

Colour = tuple[float, float, float]
LARGEST_SIDE = 8192  # pixels
N_DRAWS = 10  # of a part, until one fits in the image
WEIGHT_BITS = 22  # Pillow's: a weight of 1 is 2 ** 22, so that a sum of bytes stays below 2 ** 31
RADIUS = {"bilinear": 1.0, "bicubic": 2.0}  # of a filter, in pixels of the smaller image


class Preprocessing(BaseModel):
    """What a model expects of an image; saved with it.

    Attributes:
        crop: side of the square the model sees.
        resize: length of the shorter side before the central square is cut out.
        stretch: bring both sides to ``resize``, whatever the image's aspect.
        mean: subtracted from each colour channel, which is in [0, 1].
        std: each colour channel is divided by it.
        interpolation: of the resizing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    crop: int = Field(default=224, ge=8, le=LARGEST_SIDE)
    resize: int = Field(default=256, ge=8, le=LARGEST_SIDE)
    mean: Colour = (0.485, 0.456, 0.406)
    std: Colour = (0.229, 0.224, 0.225)
    stretch: bool = False
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def to_tensor(self, image: Image.Image) -> Tensor:
        """(3, H, W) float32 of an RGB image."""
        return self.normalised(torch.from_numpy(np.array(image))[None])[0]

    def normalised(self, pixels: Tensor, planes: bool = False) -> Tensor:
        """(B, 3, H, W) float32 of (B, H, W, 3) uint8.

        Args:
            pixels: of images.
            planes: lay each channel out by itself; otherwise the channels of a pixel stay beside each other in memory.
        """
        if pixels.device.type == "cpu":
            n_images, height, width, _ = pixels.shape
            # NumPy asks for large pages: a batch in small ones takes longer to come by than to compute.
            found = np.empty((n_images, 3, height, width) if planes else pixels.shape, np.float32)
            by_channel = found if planes else found.transpose(0, 3, 1, 2)
            flat = by_channel.reshape(n_images, 3, height * width)  # shares the memory of ``found``
            look_up(pixels.contiguous().numpy().reshape(n_images, -1, 3), self._values.numpy(), flat)
            return torch.from_numpy(by_channel)
        mean, std = (255 * torch.tensor(colour, device=pixels.device) for colour in (self.mean, self.std))
        images = ((pixels - mean) / std).permute(0, 3, 1, 2)
        return images.contiguous() if planes else images

    @cached_property
    def _values(self) -> Tensor:
        """(256, 3) what each byte becomes in each channel."""
        return (torch.arange(256.0)[:, None] - 255 * torch.tensor(self.mean)) / (255 * torch.tensor(self.std))


@dataclass(frozen=True)
class EvalTransform:
    """See :func:`eval_transform`. A loader decodes no more of a large JPEG file than ``at_least`` asks for."""

    preprocessing: Preprocessing

    @property
    def at_least(self) -> int:
        """Pixels that the shorter side of a file must keep: twice what it is resized to."""
        return 2 * self.preprocessing.resize

    def pixels(self, image: Image.Image) -> Tensor:
        """(crop, crop, 3) uint8 of an RGB image."""
        wanted, shorter = self.preprocessing, min(image.size)
        width, height = (wanted.resize if wanted.stretch else int(wanted.resize * side / shorter) for side in image.size)
        columns = _taps(image.width, width, wanted.crop, wanted.interpolation)
        rows = _taps(image.height, height, wanted.crop, wanted.interpolation)
        # By our own loop: Pillow takes three times as long, and resizing a box differs in bits that move vectors by 2e-4.
        found = np.empty((len(rows[0]), len(columns[0]), 3), np.uint8)
        resample(np.asarray(image), *columns, *rows, WEIGHT_BITS, found)
        missing = [max(0, wanted.crop - side) for side in found.shape[:2]]
        if any(missing):  # smaller than the square: black around it
            found = np.pad(found, [*((n // 2, n - n // 2) for n in missing), (0, 0)])
        return torch.from_numpy(found)

    def __call__(self, image: Image.Image) -> Tensor:
        return self.preprocessing.normalised(self.pixels(image)[None])[0]


@lru_cache(64)  # most images of a collection have one of few sizes
def _taps(n_given: int, n_wanted: int, n_kept: int, interpolation: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Of which pixels each of the middle ``n_kept`` of ``n_wanted`` is the mean, with which weights: Pillow's, to the bit.

    Returns:
        (M,) the first pixel of each, and (M, T) the weights of the T from there.
    """
    n_kept = min(n_kept, n_wanted)
    scale = n_given / n_wanted
    stretch = max(scale, 1.0)
    centre = (round((n_wanted - n_kept) / 2) + np.arange(n_kept) + 0.5) * scale
    support = RADIUS[interpolation] * stretch
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), n_given)
    n_taps = int((last - first).max())
    start = np.minimum(first, n_given - n_taps)  # so that as many pixels follow each
    places = start[:, None] + np.arange(n_taps)
    distance = np.abs((places - centre[:, None] + 0.5) * (1 / stretch))
    if interpolation == "bilinear":
        weights = np.maximum(1 - distance, 0)
    else:  # a cubic with the slope -1/2 at 1
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = (((distance - 5) * distance + 8) * distance - 4) * -0.5
        weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    weights[(places < first[:, None]) | (places >= last[:, None])] = 0
    weights /= weights.cumsum(1)[:, -1:]  # summed from left to right, as Pillow does
    scaled = weights * (1 << WEIGHT_BITS)
    return start, (scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)


def eval_transform(preprocessing: Preprocessing) -> EvalTransform:
    """Shorter side, or both, to ``resize``, central square of ``crop``: the same for the same image, always.

    The pixels are those of Pillow's ``resize``, first along the rows and then along the columns, and of a cut; only those
    inside the cut are computed. (Pillow 13 begins with the columns where the image is more than twice as high as wide.)

    Example:
        >>> eval_transform(Preprocessing(crop=32, resize=40))(Image.new("RGB", (80, 50))).shape
        torch.Size([3, 32, 32])
    """
    return EvalTransform(preprocessing)


@dataclass(frozen=True)
class TrainTransform:
    """See :func:`train_transform`. A loader asks for the part first, and decodes no more than that needs."""

    preprocessing: Preprocessing
    crop_area: tuple[float, float] | None
    flip: float
    draft: bool
    colour_jitter: float = 0.0
    rotation: float = 0.0
    resize: int | tuple[int, int] | None = None

    def part(self, width: int, height: int) -> Box:
        """Left, top, right and bottom of a random part of an image of that size; the middle where ten draws do not fit."""
        *draws, across, down = torch.rand(2 * N_DRAWS + 2).tolist()
        if self.crop_area is None:
            side = min(self.preprocessing.crop, width, height)
            left, top = int(across * (width - side + 1)), int(down * (height - side + 1))
            return left, top, left + side, top + side
        smallest, largest = self.crop_area
        for share, shape in zip(draws[::2], draws[1::2], strict=True):
            area, ratio = (smallest + share * (largest - smallest)) * width * height, (4 / 3) ** (2 * shape - 1)
            n_columns, n_rows = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
            if n_columns <= width and n_rows <= height:
                left, top = int(across * (width - n_columns + 1)), int(down * (height - n_rows + 1))
                return left, top, left + n_columns, top + n_rows
        n_columns, n_rows = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
        left, top = (width - n_columns) // 2, (height - n_rows) // 2
        return left, top, left + n_columns, top + n_rows

    def pixels_of_part(self, image: Image.Image) -> Tensor:
        """(crop, crop, 3) uint8 of a part that was cut out."""
        side = self.preprocessing.crop
        if self.rotation:
            image = v2.RandomRotation(self.rotation, v2.InterpolationMode.BILINEAR)(image)
        if self.colour_jitter:
            image = v2.ColorJitter(self.colour_jitter, self.colour_jitter, self.colour_jitter)(image)
        pixels = torch.from_numpy(np.array(image))[None].permute(0, 3, 1, 2)  # channels last, which is faster
        resized = F.interpolate(pixels, (side, side), mode=self.preprocessing.interpolation, antialias=True)[0].permute(
            1, 2, 0
        )
        return resized.flip(1) if torch.rand(()) < self.flip else resized

    def pixels(self, image: Image.Image) -> Tensor:
        """(crop, crop, 3) uint8 of an image."""
        if self.resize is not None:
            image = v2.Resize(self.resize, antialias=True)(image)
        return self.pixels_of_part(image.crop(self.part(*image.size)))

    def __call__(self, image: Image.Image) -> Tensor:
        return self.preprocessing.normalised(self.pixels(image)[None])[0]


Transform = EvalTransform | TrainTransform


def train_transform(
    preprocessing: Preprocessing,
    crop_area: tuple[float, float] | None = (0.16, 1.0),
    flip: float = 0.5,
    draft: bool = True,
    colour_jitter: float = 0.0,
    rotation: float = 0.0,
    resize: int | tuple[int, int] | None = None,
) -> TrainTransform:
    """A random part of the image, of sides 3 : 4 to 4 : 3, stretched to ``crop``, mirrored now and then.

    Random choices come from torch's global generator; :class:`~sightline.data.dataset.ImageDataset` seeds it by image.

    Args:
        preprocessing: the model's.
        crop_area: smallest and largest share of the image's area; None: a square of ``crop``, not stretched.
        flip: probability of mirroring left and right.
        draft: decode a JPEG file at a half, a quarter or an eighth where the part, so reduced, still covers ``crop``, or
            the image ``resize``; the pixels are then not quite those of the whole image, but the same each time.
        colour_jitter: brightness, contrast and saturation change by up to this share.
        rotation: the part is turned by up to so many degrees; its corners are then black.
        resize: length of the shorter side, or height and width, before the part is cut out: a small part is then blurred
            as in protocols that resize first. None: the part is cut out of the image as it is.
    """
    return TrainTransform(preprocessing, crop_area, flip, draft, colour_jitter, rotation, resize)
