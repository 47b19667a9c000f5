"""How well every scorer does on a classifier trained for it: the papers' protocol, and half the classes against the others.

`python benchmarks/ood_classifier.py --inside sets/fashion-mnist/manifest.csv --half --fit 10000 --limit 2000 --outside
glyphs=sets/glyphs/manifest.csv --outside emoji=sets/emoji/manifest.csv --work work --out docs` writes the section "Half of
Fashion-MNIST" of docs/ood.md. The seed determines the half, the weights and the batches; results in the work folder are
not computed again.

With your copies of CIFAR-10, SVHN and Textures, read by `sightline data prepare NAME --root R --out NAME.csv`, the same
command runs the papers' protocol: `--inside cifar-10.csv --outside svhn=svhn.csv --outside textures=textures.csv --backbone
resnet34 --size 32 --epochs 200 --title CIFAR-10`. On a CPU that takes days.
"""

import argparse
import json
import shlex
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from measure import table, write_section
from ood_receipts import gains_table, shown
from PIL import Image
from torch import Tensor, nn

from sightline import ood
from sightline.data.manifest import Manifest, read_manifest
from sightline.evaluation.detection import DetectionResult
from sightline.models.backbones import create_backbone, feature_map

OTHERS = "other classes"
PRIORS = ["gmm", "gmm_std", "energy"]
BATCH = 128
PLAIN: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in ("msp", "maxlogit", "energy", "kl_matching", "react", "dice", "mahalanobis")},
    **{name: (name, {}) for name in ("knn", "soft_knn", "vim", "gmm", "gmm_std")},
    "gmm + gmm_std + energy": ("composition", {"scorers": PRIORS}),
}
HEAT = {f"heat-{prior}": prior for prior in PRIORS} | {"heat, all three": "gmm + gmm_std + energy"}


class SmallBackbone(nn.Module):
    """Three convolutions, 128 channels out: a minute on a CPU, enough for small grey images."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            for before, after in pairwise((3, 32, 64, self.num_features))
        ]
        self.layers = nn.Sequential(blocks[0], nn.MaxPool2d(2), blocks[1], nn.MaxPool2d(2), blocks[2])

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Classifying(nn.Module):
    """A backbone, the mean over positions, and a linear layer."""

    def __init__(self, backbone: str | None, n_classes: int) -> None:
        super().__init__()
        self.backbone = SmallBackbone() if backbone is None else create_backbone(backbone)
        if hasattr(self.backbone, "maxpool"):  # a ResNet, for small images: a stem of 3 x 3, no pooling
            width = self.backbone.conv1.out_channels
            self.backbone.conv1, self.backbone.maxpool = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.Identity()
        self.head = nn.Linear(self.backbone.num_features, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(feature_map(self.backbone, images).mean((2, 3)))


def pixels(manifest: Manifest, size: int) -> Tensor:
    """(N, 3, S, S) bytes."""
    stack = np.empty((len(manifest), size, size, 3), np.uint8)
    for place, path in enumerate(manifest.paths()):
        with Image.open(path) as image:
            stack[place] = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def drawn(manifest: Manifest, n_items: int | None) -> Manifest:
    """That many at random, the same at every call; None for all."""
    if n_items is None or len(manifest) <= n_items:
        return manifest
    kept = np.zeros(len(manifest), bool)
    kept[np.random.default_rng(0).choice(len(manifest), n_items, replace=False)] = True
    return manifest.where(pl.lit(pl.Series(kept)))


def trained(model: Classifying, images: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    """Stochastic gradient descent with flips and a cosine schedule."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    n_steps = epochs * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(BATCH):
            flipped = torch.rand(len(rows), 1, 1, 1, generator=generator) < 0.5
            batch = torch.where(flipped, images[rows].flip(3), images[rows])
            loss = F.cross_entropy(model(batch), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval().requires_grad_(False)


def inputs_of(model: Classifying, images: Tensor) -> dict[str, Tensor]:
    """All that a scorer may need."""
    with torch.no_grad():
        maps = torch.cat([feature_map(model.backbone, part) for part in images.split(256)])
    return {"images": images, "feature maps": maps, "vectors": maps.mean((2, 3))}


def one_seed(options: argparse.Namespace, seed: int) -> dict[str, dict]:
    """Metrics of every scorer on every set, and the classifier's accuracy."""
    inside = read_manifest(options.inside)
    part = "part" if "part" in inside.table.columns else "split"  # Fashion-MNIST keeps the published split in `part`
    names = np.random.default_rng(seed).permutation(inside.class_names())
    own = sorted(names[: len(names) // 2].tolist()) if options.half else sorted(names.tolist())
    is_own, is_train = pl.col("label_0").is_in(own), pl.col(part) == "train"
    fit_set, test_set = drawn(inside.where(is_own & is_train), options.fit), inside.where(is_own & (pl.col(part) == "test"))
    outside = {name: read_manifest(Path(file), labelled=False).split("test") for name, file in options.outside.items()}
    if options.half:
        outside = {OTHERS: inside.where(~is_own & (pl.col(part) == "test")), **outside}
    raw = pixels(fit_set, options.size).float()
    mean, deviation = raw.mean((0, 2, 3), keepdim=True), raw.std((0, 2, 3), keepdim=True)
    labels, test_labels = (
        torch.tensor([own.index(name) for name in m.table["label_0"].to_list()]) for m in (fit_set, test_set)
    )
    torch.manual_seed(seed)
    model = Classifying(options.backbone, len(own))
    trained(model, (raw - mean) / deviation, labels, options.epochs, seed)

    fitted = inputs_of(model, (raw - mean) / deviation)
    tested = inputs_of(model, (pixels(test_set, options.size) - mean) / deviation)
    others = {
        name: inputs_of(model, (pixels(drawn(m, options.limit), options.size) - mean) / deviation)
        for name, m in outside.items()
    }
    correct = model.head(tested["vectors"]).argmax(1) == test_labels
    found: dict[str, dict] = {"classifier": {"accuracy": float(correct.float().mean()), "items": len(fit_set)}}
    head = ood.Classifier(model.head.weight, model.head.bias)

    def measure(key: str, scorer: ood.Scorer) -> None:
        result = DetectionResult(scorer.score(tested), {name: scorer.score(given) for name, given in others.items()})
        found[key] = {**result.per_set, "mean": result.means}
        print(f"{key} seed {seed}: {100 * result.means['auroc']:.1f}", flush=True)  # noqa: T201

    for key, (name, settings) in PLAIN.items():
        measure(key, ood.create(name, **settings).fit(fitted, labels, head))
    heat = ood.create("heat", priors=PRIORS, seed=seed).fit(fitted, labels, head)
    for key, member in zip(HEAT, (*heat.members, heat), strict=True):
        measure(key, member)
    return found


def write(options: argparse.Namespace, seeds: list[dict[str, dict]]) -> None:
    sets = [name for name in seeds[0]["msp"] if name != "mean"]
    accuracy = 100 * np.array([one["classifier"]["accuracy"] for one in seeds])
    kind = "a small convolutional network" if options.backbone is None else options.backbone
    whom = "Half the classes against the other half, and other sets" if options.half else "All classes against other sets"
    intro = (
        f"{whom}: {kind}, trained on {seeds[0]['classifier']['items']:,} images, right on {accuracy.mean():.1f} % of the "
        f"test images of its classes. AUROC / FPR95 in percent, mean and deviation over seeds. `{options.command}`"
    )
    rows = []
    for key in (*PLAIN, *HEAT):
        cells = [
            f"{shown([s[key] for s in seeds], n, 'auroc')} / {shown([s[key] for s in seeds], n, 'fpr95')}" for n in sets
        ]
        mean = f"{shown([s[key] for s in seeds], 'mean', 'auroc')} / {shown([s[key] for s in seeds], 'mean', 'fpr95')}"
        rows.append([f"`{key}`", *cells, mean, str(len(seeds))])
    gains = gains_table(HEAT, lambda key: [one[key] for one in seeds], sets)
    text = f"{intro}\n\n{table(['scorer', *sets, 'mean', 'seeds'], rows)}\n\n{gains}"
    write_section(options.out / "ood.md", options.title, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", type=Path, required=True, help="manifest of the set that belongs")
    parser.add_argument("--half", action="store_true", help="half the classes belong, the other half do not")
    parser.add_argument("--outside", action="append", default=[], metavar="NAME=MANIFEST")
    parser.add_argument("--fit", type=int, default=None, help="images to fit on; all if not given")
    parser.add_argument("--limit", type=int, default=None, help="images of each set that does not belong; all if not given")
    parser.add_argument("--backbone", default=None, help="a timm name; a small network if not given")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--title", default="Half of Fashion-MNIST", help="section of ood.md to write")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=None, help="folder of ood.md")
    options = parser.parse_args()
    options.command = "python benchmarks/ood_classifier.py " + shlex.join(sys.argv[1:])
    options.outside = dict(word.split("=", 1) for word in options.outside)
    warnings.simplefilter("ignore", UserWarning)
    options.work.mkdir(parents=True, exist_ok=True)
    seeds = []
    for seed in range(options.seeds):
        file = options.work / f"{options.title.replace(' ', '-')}-{seed}.json"
        if not file.is_file():
            file.write_text(json.dumps(one_seed(options, seed)) + "\n")
        seeds.append(json.loads(file.read_text()))
    if options.out is not None:
        write(options, seeds)


if __name__ == "__main__":
    main()
