"""Image to tensor, for training and for search."""

from collections.abc import Callable

import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import sightline.torchvision_operators  # noqa: F401  (before torchvision)

from torchvision.transforms import v2  # isort: skip

Transform = Callable[[Image.Image], Tensor]
Colour = tuple[float, float, float]


class Preprocessing(BaseModel):
    """What a model expects of an image; saved with it.

    Attributes:
        crop: side of the square the model sees.
        resize: length of the shorter side before the central square is cut out.
        stretch: bring both sides to ``resize``, whatever the image's aspect.
        mean: subtracted from each colour channel, which is in [0, 1].
        std: each colour channel is divided by it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    crop: int = Field(default=224, ge=8)
    resize: int = Field(default=256, ge=8)
    mean: Colour = (0.485, 0.456, 0.406)
    std: Colour = (0.229, 0.224, 0.225)
    stretch: bool = False

    def to_tensor(self) -> v2.Transform:
        """PIL image to normalised (3, H, W) float32."""
        steps = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(self.mean), list(self.std))]
        return v2.Compose(steps)


def eval_transform(preprocessing: Preprocessing) -> Transform:
    """Shorter side, or both, to ``resize``, central square of ``crop``: the same for the same image, always.

    Example:
        >>> eval_transform(Preprocessing(crop=32, resize=40))(Image.new("RGB", (80, 50))).shape
        torch.Size([3, 32, 32])
    """
    sides = 2 if preprocessing.stretch else 1
    cut = [v2.Resize([preprocessing.resize] * sides, antialias=True), v2.CenterCrop(preprocessing.crop)]
    return v2.Compose([*cut, preprocessing.to_tensor()])  # type: ignore[no-any-return]


def train_transform(
    preprocessing: Preprocessing, crop_area: tuple[float, float] = (0.16, 1.0), flip: float = 0.5
) -> Transform:
    """A random part of the image, stretched to ``crop``, mirrored now and then.

    Random choices come from torch's global generator; :class:`~sightline.data.dataset.ImageDataset` seeds it by image.

    Args:
        preprocessing: the model's.
        crop_area: smallest and largest share of the image's area.
        flip: probability of mirroring left and right.
    """
    crop = v2.RandomResizedCrop(preprocessing.crop, scale=crop_area, ratio=(3 / 4, 4 / 3), antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(flip), preprocessing.to_tensor()])  # type: ignore[no-any-return]
