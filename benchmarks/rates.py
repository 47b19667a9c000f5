"""Images per second on one core for each backbone, image size and adaptation, to estimate the cost of a run.

`python benchmarks/rates.py --out docs/plan-your-run.md` replaces the section "Measured rates" of that page.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import table, write_section

from sightline import Encoder, create_loss
from sightline.models.stages import UpperEncoder
from sightline.training.large_batch import keep_freed_memory

BATCH = 64
RUNS = (("tf_efficientnet_lite0", 64), ("tf_efficientnet_lite0", 96), ("tf_efficientnet_lite0", 128),
        ("tf_efficientnet_lite0", 224), ("resnet50", 224), ("vit_small_patch16_224", 224))  # fmt: skip
UPPER = {"tf_efficientnet_lite0": "upper:3"}  # that of the recipe `images`; otherwise about a third of the stages
HEAD = ["backbone", "side", "embed", "cache features", "train `upper`", "train `full`"]
TEXT = """
Images a second of processor time of one core (torch {torch}, batches of {batch}, loss `roadmap`, reading images not
included). Made by `python benchmarks/rates.py --out docs/plan-your-run.md`.

{table}
"""


def rate(step: Callable[[], object], n_images: int) -> str:
    """Images a second of processor time, best of three runs after one that does not count."""
    step()
    seconds = []
    for _ in range(3):
        since = time.process_time()
        step()
        seconds.append(time.process_time() - since)
    return f"{n_images / min(seconds):.0f}"


def row(backbone: str, side: int) -> list[str]:
    """The rates of one backbone at one image size."""
    encoder = Encoder.create(backbone, 512, image_size=side)
    upper, loss = UpperEncoder(encoder, UPPER.get(backbone, "upper")), create_loss("roadmap")
    images, labels = torch.randn(BATCH, 3, side, side), torch.arange(BATCH) // 4
    with torch.no_grad():
        features = upper.resting(images)
        embed = rate(lambda: encoder.eval()(images), BATCH)
        cache = rate(lambda: upper.resting(images), BATCH)
    learn = rate(lambda: loss(upper.train()(features), labels).backward(), BATCH)
    encoder.requires_grad_()
    return [
        f"`{backbone}`",
        str(side),
        embed,
        cache,
        learn,
        rate(lambda: loss(encoder.train()(images), labels).backward(), BATCH),
    ]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = [row(*run) for run in RUNS]
    write_section(out, "Measured rates", TEXT.format(torch=torch.__version__, batch=BATCH, table=table(HEAD, rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args().out)
