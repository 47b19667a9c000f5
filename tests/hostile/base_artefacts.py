"""One good artefact of each kind, small, from which cases are copied."""

import csv
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

RECIPE = ["model.backbone=tiny", "model.adaptation=full", "model.weights=none", "model.embedding_dim=8"]
RECIPE += ["loss={name='roadmap'}", "sampler.batch_size=8", "optimizer.lr=0.01", "data.image_size=32", "data.n_workers=0"]
RECIPE += ["schedule.warmup_epochs=1", "schedule.epochs=3", "checkpoint_every=1"]


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


def train_words(base: Path, out: Path):
    """The command that trains, and with ``--resume`` goes on."""
    return ["train", "images", f"data.manifest={base / 'manifest.csv'}", *RECIPE, "--out", out]


def write_all(warm, base: Path) -> Path:
    """Images, encoder, table, gallery, backup, rejector and a run that was stopped after some steps."""
    manifest = write_images(base)
    encoder, gallery, table, run = base / "encoder", base / "gallery", base / "table.parquet", base / "run"
    knn = ["--scorer", "knn", "--option", "k=2"]
    warm.call(
        ("encoder", encoder),
        ("command", "embed", encoder, manifest, "--out", table, "--workers", 0),
        ("command", "ood", "fit", table, "--out", base / "rejector", *knn),
        ("command", "index", "build", encoder, manifest, "--out", gallery, "--index", "HNSW8", "--workers", 0),
        ("upload", gallery),
        ("command", "ood", "fit", "--gallery", gallery, *knn),
        ("command", "index", "verify", gallery),
        ("command", "index", "backup", gallery, base / "backup"),
    )
    warm.call(("command", *train_words(base, run), "--max-minutes", 0))
    assert (run / "last.pt").is_file()
    with tempfile.TemporaryDirectory() as scratch:  # what is compiled the first time is, before processor time counts
        finished = shutil.copytree(run, Path(scratch, "run"))
        warm.call(
            ("command", *train_words(base, finished), "--resume"),
            ("command", "evaluate", table),
            ("command", "report", table, "--out", Path(scratch, "report.html")),
        )
    return base
