"""The images that good artefacts are made of, and the training that makes a run of them."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN = """train images data.manifest=BASE/manifest.csv model.backbone=tiny model.adaptation=full model.weights=none
model.embedding_dim=8 "loss={name='roadmap'}" sampler.batch_size=8 optimizer.lr=0.01 data.image_size=32 data.n_workers=0
schedule.warmup_epochs=1 schedule.epochs=3 checkpoint_every=1 --out RUN""".replace("\n", " ")


def write_images(folder: Path, n_classes: int = 8, per_class: int = 4, seed: int = 0) -> Path:
    """Blurred noise, and the manifest of it: 5 classes to train on, 3 to validate with."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    rows = []
    for number in range(n_classes):
        base = rng.integers(0, 256, (8, 8, 3))
        for item in range(per_class):
            pixels = np.clip(base + rng.integers(-80, 80, base.shape), 0, 255).astype(np.uint8)
            path = f"images/{number}-{item}.png"
            Image.fromarray(pixels).resize((40, 36), Image.Resampling.BILINEAR).save(folder / path)
            rows.append([path, "train" if number < 5 else "val", f"class{number}", f"super{number % 2}"])
    with (folder / "manifest.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([["path", "split", "label_0", "label_1"], *rows])
    return folder / "manifest.csv"
