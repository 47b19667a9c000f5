"""The gain of the decomposability term by batch size: SupAP with and without it on the embedded characters.

The backbone stays frozen and the head learns from its features, so that a run takes seconds; every run sees the same number
of images. `python benchmarks/batch_size.py --out docs` writes the picture and the section "Batch size" of docs/training.md.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from measure import table, write_section

from sightline.data.manifest import read_manifest
from sightline.data.readers.glyphs import write_glyphs
from sightline.evaluation.tables import evaluate_table
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.training.recipe import read_recipe
from sightline.training.run import train

LOSSES = {"SupAP": "sup_ap", "SupAP with L_DG": "roadmap"}
INTRODUCTION = """
The papers say that the average precision of a batch overestimates that of the whole set, the more the smaller the batch,
and that a decomposability term makes up for it. On the embedded characters (test mAP@R in percent, classes never seen; mean
and deviation of {seeds} seeds; a head of 128 dimensions on a frozen EfficientNet-Lite0, {epochs} epochs whatever the
batch, so that a small batch makes more steps):

![Test mAP@R against batch size](batch_size.png)

{table}

The larger the batch the better, as the papers say; the table says what the term adds. With a frozen backbone and few seeds
no more can be read from it.

One run is `sightline train glyphs model.adaptation=frozen loss.name=sup_ap sampler.batch_size=16`; all of them
`python benchmarks/batch_size.py --out docs`.
"""


def measured(manifest: Path, loss: str, batch_size: int, seed: int, epochs: int, folder: Path) -> float:
    """Test mAP@R of one run, in percent."""
    overrides = [f"data.manifest={manifest}", f"loss.name={loss}", f"sampler.batch_size={batch_size}", f"seed={seed}"]
    overrides += ["model.adaptation=frozen", f"schedule.epochs={epochs}", "data.check_images=false", "data.val_fraction=0"]
    encoder = Encoder.from_pretrained(train(read_recipe("glyphs", overrides), folder))
    return 100 * evaluate_table(embed_manifest(encoder, read_manifest(manifest).split("test"), n_workers=1))["map@r"]


def draw_picture(found: dict[str, dict[int, list[float]]], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for (label, points), style in zip(found.items(), ("o--", "s-"), strict=True):
        values = np.array(list(points.values()))
        axes.errorbar(list(points), values.mean(1), values.std(1), fmt=style, capsize=3, label=label)
    sizes = list(next(iter(found.values())))
    axes.set(xscale="log", xlabel="images in a batch", ylabel="test mAP@R in percent")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=None, help="folder of training.md and the picture")
    options = parser.parse_args()
    found: dict[str, dict[int, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_glyphs(Path(folder) / "glyphs")
        for label, loss in LOSSES.items():
            for size in options.sizes:
                for seed in range(options.seeds):
                    run = Path(folder) / f"{loss}-{size}-{seed}"
                    value = measured(manifest, loss, size, seed, options.epochs, run)
                    found.setdefault(label, {}).setdefault(size, []).append(value)
                    print(f"{label}, batch {size}, seed {seed}: {value:.1f}", flush=True)  # noqa: T201
    head = ["batch", *found]
    rows = [
        [str(size), *(f"{np.mean(points[size]):.1f} ± {np.std(points[size]):.1f}" for points in found.values())]
        for size in options.sizes
    ]
    print(table(head, rows))  # noqa: T201
    if options.out is not None:
        draw_picture(found, options.out / "batch_size.png")
        text = INTRODUCTION.format(seeds=options.seeds, epochs=options.epochs, table=table(head, rows))
        write_section(options.out / "training.md", "Batch size", text)


if __name__ == "__main__":
    main()
