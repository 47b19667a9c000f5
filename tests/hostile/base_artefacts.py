"""One good artefact of each kind, small, from which cases are copied."""

import csv
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sandbox import steps_of

TRAIN = """train images data.manifest=BASE/manifest.csv model.backbone=tiny model.adaptation=full model.weights=none
model.embedding_dim=8 "loss={name='roadmap'}" sampler.batch_size=8 optimizer.lr=0.01 data.image_size=32 data.n_workers=0
schedule.warmup_epochs=1 schedule.epochs=3 checkpoint_every=1 --out RUN""".replace("\n", " ")
MAKE = """
encoder BASE/encoder
embed BASE/encoder BASE/manifest.csv --out BASE/table.parquet --workers 0
ood fit BASE/table.parquet --out BASE/rejector --scorer knn --option k=2
index build BASE/encoder BASE/manifest.csv --out BASE/gallery --index HNSW8 --workers 0
upload BASE/gallery
ood fit --gallery BASE/gallery --scorer knn --option k=2
index verify BASE/gallery
index backup BASE/gallery BASE/backup
"""


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


def write_all(warm, base: Path) -> Path:
    """Images, encoder, table, gallery, backup, rejector and a run that was stopped after some steps."""
    write_images(base)
    warm.call(steps_of(MAKE, BASE=base))
    warm.call(steps_of(f"{TRAIN} --max-minutes 0", BASE=base, RUN=base / "run"))
    assert (base / "run" / "last.pt").is_file()
    with tempfile.TemporaryDirectory() as scratch:  # what is compiled the first time is, before processor time counts
        finished = shutil.copytree(base / "run", Path(scratch, "run"))
        report = "evaluate BASE/table.parquet\nreport BASE/table.parquet --out OUT/report.html"
        warm.call(steps_of(f"{TRAIN} --resume\n{report}", BASE=base, RUN=finished, OUT=scratch))
    return base
