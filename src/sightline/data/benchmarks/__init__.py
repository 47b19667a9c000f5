"""Public data sets on disk to one manifest: the readers by name."""

from collections.abc import Mapping

from sightline.data.benchmarks.cars import CARS
from sightline.data.benchmarks.cub import CUB
from sightline.data.benchmarks.dyml import DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE
from sightline.data.benchmarks.inaturalist import INATURALIST_BASE, INATURALIST_FULL
from sightline.data.benchmarks.landmarks import GLDV2, H_GLDV2, LANDMARKS_CLEAN, SFM_120K
from sightline.data.benchmarks.outside import FOLDER, TEXTURES
from sightline.data.benchmarks.products import IN_SHOP, SOP
from sightline.data.benchmarks.revisited import ROXFORD, ROXFORD_1M, RPARIS, RPARIS_1M
from sightline.data.benchmarks.small_images import CIFAR_10, CIFAR_100, SVHN
from sightline.data.benchmarks.source import Reader

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
