"""Public data sets to manifests, by name: from files on disk, from packages that anyone can fetch, or drawn.

A data set is one callable and one row in :data:`READERS`. It takes ``out`` and returns the path of the manifest that it
wrote; the further parameters that it has (``root``, ``subset``, ``size``, ``side``, ``seed``, ``show_progress``) are
options of ``sightline data prepare``, and the first line of its documentation is what ``sightline data list`` prints.
"""

from pathlib import Path

from sightline.registry import Registry

_HERE = "sightline.data.readers"
READERS: Registry[Path] = Registry(
    "data set",
    {
        "cub": f"{_HERE}.retrieval_sets:CUB",
        "cars": f"{_HERE}.retrieval_sets:CARS",
        "sop": f"{_HERE}.retrieval_sets:SOP",
        "inshop": f"{_HERE}.retrieval_sets:IN_SHOP",
        "inat-base": f"{_HERE}.retrieval_sets:INATURALIST_BASE",
        "inat-full": f"{_HERE}.retrieval_sets:INATURALIST_FULL",
        "dyml-vehicle": f"{_HERE}.retrieval_sets:DYML_VEHICLE",
        "dyml-animal": f"{_HERE}.retrieval_sets:DYML_ANIMAL",
        "dyml-product": f"{_HERE}.retrieval_sets:DYML_PRODUCT",
        "gldv2": f"{_HERE}.landmarks:GLDV2",
        "hgldv2": f"{_HERE}.landmarks:H_GLDV2",
        "landmarks-clean": f"{_HERE}.landmarks:LANDMARKS_CLEAN",
        "sfm120k": f"{_HERE}.landmarks:SFM_120K",
        "roxford5k": f"{_HERE}.landmarks:ROXFORD",
        "rparis6k": f"{_HERE}.landmarks:RPARIS",
        "roxford5k-1m": f"{_HERE}.landmarks:ROXFORD_1M",
        "rparis6k-1m": f"{_HERE}.landmarks:RPARIS_1M",
        "cifar-10": f"{_HERE}.outside:CIFAR_10",
        "cifar-100": f"{_HERE}.outside:CIFAR_100",
        "svhn": f"{_HERE}.outside:SVHN",
        "textures": f"{_HERE}.outside:TEXTURES",
        "folder": f"{_HERE}.outside:FOLDER",
        "glyphs": f"{_HERE}.glyphs:write_glyphs",
        "emoji": f"{_HERE}.package_sets:write_emoji",
        "icons": f"{_HERE}.icons:write_icons",
        "logos": f"{_HERE}.icons:write_logos",
        "trademarks": f"{_HERE}.trademarks.reader:write_trademarks",
        "fashion-mnist": f"{_HERE}.package_sets:write_fashion_mnist",
        "openclipart": f"{_HERE}.package_sets:write_openclipart",
    },
    "sightline.readers",
    wanted="a function that takes 'out' and returns the path of the manifest it wrote",
)
