"""What scorers take of every set of the out-of-distribution receipts, one file for each encoder and set.

`python benchmarks/ood_inputs.py --sets sets --work work` writes `work/inputs/SETTING/SET.npz`; a file that is there is not
made again. Of retrieval encoders it also writes `SET.parquet`, as `sightline embed` does. `sets` holds `emoji`, `logos`,
`openclipart`, `fashion-mnist`, `glyphs` and `icons`, each the output of `sightline data prepare NAME --out sets/NAME`;
`cub.parquet`; and `cifar/train/CLASS/*.jpg`, `cifar/test/CLASS/*.jpg`. `work` holds `cub-upper`, the run of
`sightline train benchmarks/recipes/upper.toml data.manifest=sets/cub.parquet`, and the networks of `ood_networks.py`.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from ood_networks import SIZE, SmallResNet, own_classes, pixels

from sightline.data.manifest import Manifest, read_manifest
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder

NOISE, CIFAR, OTHER_HALF = "noise", "cifar10", "cifar10, other half"
ANIMALS, VEHICLES = ("cat", "deer", "dog", "frog", "horse"), ("airplane", "automobile", "ship", "truck")  # birds are in CUB
ALSO_ACCEPTED = ("glyphs", "icons")  # sets of `ood_acceptance.py` alone, by the encoder of emoji
MOST_INSIDE, MOST_OUTSIDE, MOST_FITTED = 3000, 1000, 5000
FEWEST_A_CLASS = 20  # images on average, of the label level that scorers are fitted on


@dataclass(frozen=True)
class Setting:
    """An in-distribution set, an encoder, and outlier sets from near to far."""

    inside: str
    encoder: str
    training: str
    image_size: int
    outside: dict[str, str]


SETTINGS = {
    "logos": Setting(
        "logos", "icons", "retrieval, on icons of other names", 96,
        {"icons": "near", "emoji": "near", "openclipart": "mid", CIFAR: "far"},
    ),
    "emoji": Setting(
        "emoji", "bundled", "ImageNet, not trained further", 96,
        {"logos": "near", "openclipart": "mid", "glyphs": "mid"},
    ),
    "cub": Setting(
        "cub", "cub-upper", "retrieval, on the other 100 species", 128,
        {"cifar10, animals": "near", "cifar10, vehicles": "mid", "emoji": "far"},
    ),
    "cifar10": Setting(
        CIFAR, "cifar10-seed0", "classifier, cross-entropy", SIZE,
        {"cub": "near", "emoji": "mid", "fashion-mnist": "far", NOISE: "far"},
    ),
    "cifar10-half": Setting(
        "cifar10, half", "cifar10-half-seed0", "classifier, cross-entropy", SIZE,
        {OTHER_HALF: "near", "cub": "mid", "fashion-mnist": "far"},
    ),
}  # fmt: skip


def drawn(manifest: Manifest, n_items: int) -> Manifest:
    """That many at random, the same at every call."""
    kept = np.zeros(len(manifest), bool)
    kept[np.random.default_rng(0).permutation(len(manifest))[:n_items]] = True
    return manifest.where(pl.lit(pl.Series(kept)))


def cifar_manifest(sets: Path, part: str, names: tuple[str, ...]) -> Manifest:
    """Images of some classes."""
    manifest = read_manifest(sets / "cifar" / part)
    return manifest.where(pl.col("label_0").is_in(names)) if names else manifest


def manifest_of(sets: Path, name: str) -> Manifest:
    """The images of a set that encoders were not trained on."""
    if name.startswith(CIFAR):
        names = tuple(sorted(folder.name for folder in (sets / "cifar" / "test").iterdir()))
        half = own_classes(True, 0)
        chosen = {
            "cifar10, animals": ANIMALS,
            "cifar10, vehicles": VEHICLES,
            OTHER_HALF: tuple(names[code] for code in range(10) if code not in half),
            "cifar10, half": tuple(names[code] for code in half),
        }.get(name, names)
        return cifar_manifest(sets, "test", chosen)
    file = sets / "cub.parquet" if name == "cub" else sets / name / "manifest.csv"
    manifest = read_manifest(file, labelled=False)
    return manifest.split("test") if name in ("cub", "logos") else manifest


def labels_of(manifest: Manifest) -> np.ndarray:
    """(N, 2): the finest classes, which are never both fitted and tested; and those of the level to fit on."""
    levels = manifest.labels()
    fitted = next((k for k in range(levels.shape[1]) if len(levels) >= FEWEST_A_CLASS * len(np.unique(levels[:, k]))), -1)
    return levels[:, [0, fitted]]


def network_inputs(network: SmallResNet, images: torch.Tensor) -> dict[str, np.ndarray]:
    """The mean and the standard deviation over positions."""
    maps = torch.cat([network.maps(part) for part in images.split(500)])
    return {"vectors": maps.mean((2, 3)).numpy(), "feature maps": maps.flatten(2).std(2, correction=0).numpy()}


def read_network(work: Path, name: str) -> SmallResNet:
    """What `ood_networks.py` trained."""
    network = SmallResNet(len(json.loads((work / "networks" / f"{name}.json").read_text())["classes"]))
    network.load_state_dict(torch.load(work / "networks" / f"{name}.pt")["model"])
    return network.eval().requires_grad_(False)


def save(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Complete or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".part.npz")
    np.savez(scratch, **arrays)
    scratch.replace(file)
    print(file, len(arrays["vectors"]), flush=True)  # noqa: T201


def of_network(sets: Path, work: Path, setting: Setting, folder: Path) -> None:
    """Inputs by a classifier trained on CIFAR-10: images it was trained on to fit, test images to test."""
    network = read_network(work, setting.encoder)
    for name in (setting.inside, "train", *setting.outside):
        file = folder / f"{name}.npz"
        if file.is_file():
            continue
        if name == NOISE:
            noise = torch.randint(256, (MOST_OUTSIDE, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0))
            save(file, network_inputs(network, noise.to(torch.uint8)))
            continue
        if name == "train":
            names = tuple(sorted(set(manifest_of(sets, setting.inside).class_names())))
            manifest = drawn(cifar_manifest(sets, "train", names), 2 * MOST_FITTED)
        else:
            manifest = drawn(manifest_of(sets, name), MOST_INSIDE if name == setting.inside else MOST_OUTSIDE)
        found = network_inputs(network, pixels([Path(path) for path in manifest.paths()]))
        save(file, {**found, **({"labels": labels_of(manifest)} if name in (setting.inside, "train") else {})})
    save(folder / "head.npz", {"vectors": network.head.weight.numpy(), "bias": network.head.bias.numpy()})


def of_encoder(sets: Path, work: Path, setting: Setting, folder: Path) -> None:
    """Inputs by a retrieval encoder: vectors alone."""
    if setting.encoder == "cub-upper":
        encoder = Encoder.from_pretrained(work / "cub-upper" / "encoder")
    else:
        encoder = Encoder.create("tf_efficientnet_lite0", None, weights=setting.encoder, image_size=setting.image_size)
    for name in ALSO_ACCEPTED if setting.inside == "emoji" else ():
        if not (table := folder / f"{name}, inside.parquet").is_file():
            embed_manifest(encoder, drawn(manifest_of(sets, name), MOST_INSIDE)).write(table)
    for name in (setting.inside, *setting.outside):
        file = folder / f"{name}.npz"
        if not file.is_file():
            inside = name == setting.inside
            embedded = embed_manifest(encoder, drawn(manifest_of(sets, name), MOST_INSIDE if inside else MOST_OUTSIDE))
            embedded.write(folder / f"{name}.parquet")  # for ood_acceptance.py and the command line
            save(file, {"vectors": embedded.vectors, **({"labels": labels_of(embedded.manifest)} if inside else {})})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS], default=[*SETTINGS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for key in options.only:
        setting, folder = SETTINGS[key], options.work / "inputs" / key
        folder.mkdir(parents=True, exist_ok=True)
        make = of_network if setting.image_size == SIZE else of_encoder
        make(options.sets, options.work, setting, folder)


if __name__ == "__main__":
    main()
