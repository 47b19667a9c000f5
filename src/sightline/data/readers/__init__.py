"""Public data sets to manifests: from files on disk, and from packages that anyone can fetch; the readers by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from sightline.data.readers.cars import CARS
from sightline.data.readers.cub import CUB
from sightline.data.readers.dyml import DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE
from sightline.data.readers.emoji import write_emoji
from sightline.data.readers.fashion_mnist import write_fashion_mnist
from sightline.data.readers.inaturalist import INATURALIST_BASE, INATURALIST_FULL
from sightline.data.readers.landmarks import GLDV2, H_GLDV2, LANDMARKS_CLEAN, SFM_120K
from sightline.data.readers.logos import write_logos
from sightline.data.readers.openclipart import write_openclipart
from sightline.data.readers.outside import FOLDER, TEXTURES
from sightline.data.readers.products import IN_SHOP, SOP
from sightline.data.readers.revisited import ROXFORD, ROXFORD_1M, RPARIS, RPARIS_1M
from sightline.data.readers.small_images import CIFAR_10, CIFAR_100, SVHN
from sightline.data.readers.source import Reader

READERS: Mapping[str, Reader] = {
    "cub": CUB,
    "cars": CARS,
    "sop": SOP,
    "inshop": IN_SHOP,
    "inat-base": INATURALIST_BASE,
    "inat-full": INATURALIST_FULL,
    "dyml-vehicle": DYML_VEHICLE,
    "dyml-animal": DYML_ANIMAL,
    "dyml-product": DYML_PRODUCT,
    "gldv2": GLDV2,
    "hgldv2": H_GLDV2,
    "landmarks-clean": LANDMARKS_CLEAN,
    "sfm120k": SFM_120K,
    "roxford5k": ROXFORD,
    "rparis6k": RPARIS,
    "roxford5k-1m": ROXFORD_1M,
    "rparis6k-1m": RPARIS_1M,
    "cifar-10": CIFAR_10,
    "cifar-100": CIFAR_100,
    "svhn": SVHN,
    "textures": TEXTURES,
    "folder": FOLDER,
}


class WriteCollection(Protocol):
    """Writes a collection below a folder and returns its manifest's path."""

    def __call__(self, folder: Path, show_progress: bool = False, archives: Path | None = None) -> Path:
        """Args: the folder to make, whether to draw bars, a folder of archives fetched before (None fetches them)."""
        ...


COLLECTIONS: dict[str, WriteCollection] = {
    "emoji": write_emoji,
    "fashion-mnist": write_fashion_mnist,
    "logos": write_logos,
    "openclipart": write_openclipart,
}
