"""The weights `icons`: which drawings they learn from, and the file that ships.

    python benchmarks/drawings.py choose icons/manifest.csv logos/manifest.csv emoji/manifest.csv --out drawings.csv
    sightline train benchmarks/recipes/drawings.toml --out runs/drawings
    python benchmarks/drawings.py pack runs/drawings/encoder --out src/sightline/models/weights/icons.safetensors

`choose` leaves out of the set `icons` whatever could show a test image: collections of logos, emoji, flags and file types;
names of the test classes of logos and emoji, with and without words such as `logo`; and drawings that look like a test
image by the rule with which the set `icons` finds near-duplicates.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import torch
import typer
from safetensors.torch import save_file

import sightline as sl
from sightline.data.images import load_image
from sightline.data.readers.archives import archive_files, npm_archives, read_member
from sightline.data.readers.icons import MAX_BITS, MAX_DIFFERENCE, PACKAGE, Ink, ink_of, logo_key
from sightline.models.backbones import BUNDLED, create_backbone

KINDS_LEFT_OUT = ("Emoji", "Logos", "Programming")
WORDS_LEFT_OUT = ("brand", "emoji", "flag", "logo")  # in a collection's name
SAYS_NOTHING = {"brand", "brands", "emoji", "file", "filetype", "flag", "folder", "icon", "logo", "logos", "social", "type"}

app = typer.Typer(add_completion=False)


def plain(name: str) -> str:
    """A name as letters and digits, without words of style and words that say what kind of drawing it is."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in SAYS_NOTHING]
    return logo_key("-".join(words))


def inks_of(paths: list[Path]) -> list[Ink]:
    return [ink for path in paths if (ink := ink_of(load_image(path))) is not None]


def looks_like_any(ink: Ink | None, hashes: np.ndarray, pixels: np.ndarray) -> bool:
    if ink is None:
        return False
    near = np.flatnonzero(np.bitwise_count(hashes ^ ink.hash) <= MAX_BITS)
    return bool(len(near) and (np.abs(pixels[near] - ink.pixels).mean((1, 2)) <= MAX_DIFFERENCE).any())


@app.command()
def choose(
    icons: Path,
    tests: list[Path],
    out: Annotated[Path, typer.Option()] = Path("drawings.csv"),
    root: Annotated[Path, typer.Option(help="Folder of the package that `icons` was made from.")] = Path("data"),
) -> None:
    """Write the manifest of training and validation images, and print why each of the others is left out."""
    with npm_archives([PACKAGE], root, False) as (archive,):
        infos = read_member(archive, dict(archive_files(archive, "collections.json")), "collections.json")
    called = {prefix: f"{prefix} {info['name']}".lower() for prefix, info in infos.items()}
    of_kind = {prefix for prefix, info in infos.items() if info.get("category") in KINDS_LEFT_OUT}
    foreign = of_kind | {prefix for prefix, name in called.items() if any(word in name for word in WORDS_LEFT_OUT)}
    table, counts = pl.read_csv(icons, infer_schema=False), Counter[str]()
    taken, inks = set[str](), []
    for test in tests:
        part = pl.read_csv(test, infer_schema=False).filter(pl.col("split") == "test")
        taken |= {plain(name) for column in ("label_0", "name") if column in part.columns for name in part[column]}
        inks += inks_of([test.parent / path for path in part["path"]])
    hashes, pixels = np.array([ink.hash for ink in inks]), np.stack([ink.pixels for ink in inks])
    kept = []
    for row in table.iter_rows(named=True):
        counts["drawings"] += 1
        file = (icons.parent / row["path"]).resolve()
        if row["collection"] in foreign:
            counts["of collections of logos, emoji, flags or file types"] += 1
        elif {plain(row["label_0"]), plain(row["name"])} & taken:
            counts["of names of test classes"] += 1
        elif looks_like_any(ink_of(load_image(file)), hashes, pixels):
            counts["like a test image"] += 1
        else:
            kept.append({**row, "path": str(file), "split": "val" if row["split"] == "val" else "train"})
    chosen = pl.DataFrame(kept)
    chosen = chosen.filter(pl.len().over("label_0") >= 4)
    counts["of names with fewer than 4 drawings left"] = len(kept) - len(chosen)
    for split, part in chosen.group_by("split"):
        counts[f"{split[0]}: drawings"], counts[f"{split[0]}: names"] = len(part), part["label_0"].n_unique()
    chosen.write_csv(out)
    used = Counter(chosen.filter(pl.col("split") == "train")["collection"])
    lines = ["| collection | author | licence | drawings |", "|---|---|---|---:|"]
    for prefix, n in sorted(used.items()):
        info = infos[prefix]
        lines.append(f"| {info['name']} ({prefix}) | {info['author']['name']} | {info['license']['spdx']} | {n} |")
    out.with_suffix(".md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    typer.echo(json.dumps(counts | {"collections": len(used)}, indent=1))


@app.command()
def pack(encoder: Path, out: Annotated[Path, typer.Option()]) -> None:
    """Write what training changed: a byte a weight and a scale for each row of a matrix, other tensors in 16 bits."""
    before = create_backbone(BUNDLED, "bundled").state_dict()
    packed = {}
    for name, tensor in sl.Encoder.from_pretrained(encoder).backbone.state_dict().items():
        change = tensor - before[name]
        if not change.any():
            continue
        if change.ndim == 1:
            packed[name] = change.half()
            continue
        scale = change.abs().amax(tuple(range(1, change.ndim)), keepdim=True).clamp(min=1e-12) / 127
        packed[name], packed[f"{name}.scale"] = (change / scale).round().to(torch.int8), scale
    save_file(packed, out)
    typer.echo(f"{out}: {len(packed)} tensors, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    app()
