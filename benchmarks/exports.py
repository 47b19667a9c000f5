"""Which timm models ONNX Runtime runs as torch does; writes its section of docs/export.md.

python benchmarks/exports.py [MODEL ...] [--write]

Weights are random and images have the model's own size. A model that cannot be exported is run by torch with ``auto``.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import typer
from measure import table, write_section

from sightline import Encoder, InputError
from sightline.models.inference import open_backend

import timm  # isort: skip  (after Sightline, which makes it importable beside any torch)

FAMILIES = [
    "vit_small_patch16_dinov3", "vit_base_patch32_siglip_256", "vit_pe_core_tiny_patch16_384",
    "vit_base_patch14_reg1_tipsv2", "vit_base_patch32_clip_224", "eva02_tiny_patch14_224",
    "swin_tiny_patch4_window7_224", "convnext_tiny", "resnet50", "tf_efficientnet_lite0",
]  # fmt: skip
PAGE = Path(__file__).parent.parent / "docs" / "export.md"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*", help="default: one of each large family, and timm's own test models")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/export.md")
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SIGHTLINE_CACHE"] = cache
        for name in given.models or [*FAMILIES, *timm.list_models("test_*")]:
            rows.append([f"`{name}`", *outcome(name)])
            typer.echo(" | ".join(rows[-1]))
    section = (
        "`python benchmarks/exports.py --write`: random weights, images of the model's own size, 64 dimensions. "
        f"timm {timm.__version__}, torch {torch.__version__}. "
        "One of each large family, then timm's own small models (`test_*`). "
        "What cannot be exported, or differs by more than 1e-4, is run by torch with `auto`, which says so.\n\n"
        + table(["model", "run by", "largest difference", "export, s of processor time"], rows)
    )
    if given.write:
        write_section(PAGE, "Which models ONNX Runtime runs", section)


def outcome(name: str) -> list[str]:
    """What runs the model with ``auto``, the difference of a coordinate on noise or why there is none, and the time."""
    encoder = Encoder.create(name, 64).eval()
    side, since = encoder.settings.preprocessing.crop, time.process_time()
    try:
        exported = open_backend(encoder, "onnx")
    except InputError as error:
        return ["torch", str(error)[:120].replace("|", "/"), ""]
    seconds = time.process_time() - since
    noise = torch.randint(256, (3, side, side, 3), generator=torch.Generator().manual_seed(1)).byte()
    difference = np.abs(exported.run(noise) - open_backend(encoder, "torch").run(noise)).max()
    return ["ONNX Runtime", f"{difference:.0e}", f"{seconds:.0f}"]


if __name__ == "__main__":
    main()
