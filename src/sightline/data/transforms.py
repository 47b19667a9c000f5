"""Image to tensor, for training and for search."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import sightline.torchvision_operators  # noqa: F401  (before torchvision)
from sightline.data.images import Box
from sightline.kernels.row_loops import look_up

from torchvision.transforms import v2  # isort: skip

Colour = tuple[float, float, float]
LARGEST_SIDE = 8192  # pixels
N_DRAWS = 10  # of a part, until one fits in the image


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
        sides = [wanted.resize if wanted.stretch else int(wanted.resize * side / shorter) for side in image.size]
        kept = [min(side, wanted.crop) for side in sides]
        starts = [round((side - n) / 2) for side, n in zip(sides, kept, strict=True)]
        (left, right), (top, bottom) = (
            (start * given / side, min((start + n) * given / side, given))
            for start, n, given, side in zip(starts, kept, image.size, sides, strict=True)
        )
        # Rows, then columns, in any version of Pillow; only what is kept is computed, by filters that reach beyond the box.
        filter_ = Image.Resampling[wanted.interpolation.upper()]
        narrow = image.resize((kept[0], image.height), filter_, (left, 0, right, image.height))
        found = np.array(narrow.resize((kept[0], kept[1]), filter_, (0, top, kept[0], bottom)))
        missing = [wanted.crop - side for side in reversed(kept)]
        if any(missing):  # smaller than the square: black around it
            found = np.pad(found, [*((n // 2, n - n // 2) for n in missing), (0, 0)])
        return torch.from_numpy(found)

    def __call__(self, image: Image.Image) -> Tensor:
        return self.preprocessing.normalised(self.pixels(image)[None])[0]


def eval_transform(preprocessing: Preprocessing) -> EvalTransform:
    """Shorter side, or both, to ``resize``, central square of ``crop``: the same for the same image, always.

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
