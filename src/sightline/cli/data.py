"""``sightline data``: check a set of images, count it, or make one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.printing import echo

if TYPE_CHECKING:
    from sightline.data.manifest import Manifest
    from sightline.data.readers import WriteCollection

app = typer.Typer(no_args_is_help=True, help="Check a set of images, count it, or make one.")

GLYPHS = "glyphs"
SHOWN = 5  # classes in a message
MADE = {
    GLYPHS: "characters drawn from fonts: code point < base letter < script; needs nothing",
    "emoji": "emoji, each drawn by four vendors: emoji < subcategory < category; needs npm, or its packages in --root",
    "logos": "brands, each drawn by several collections: brand < category; needs npm, or its packages in --root",
    "fashion-mnist": "70,000 pictures of clothes, 10 classes; needs apt, or the package dataset-fashion-mnist in --root",
    "openclipart": "clip art by its tree of folders; needs apt, or the package openclipart-png in --root",
}


@app.command()
def check(
    source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")],
    labelled: Annotated[bool, typer.Option(help="Refuse images without a label.")] = True,
) -> None:
    """Read the table and decode every image; list all faults."""
    from sightline.data.images import check_images
    from sightline.data.manifest import classes_in_several_splits, read_manifest
    from sightline.errors import names

    manifest = read_manifest(source, labelled)
    check_images(manifest, show_progress=True)
    counts = manifest.table.group_by("split").len().sort("split").rows()
    echo(f"{source}: {len(manifest)} images, {manifest.n_levels} label levels, no fault")
    for split, n_images in counts:
        part = manifest.split(split)
        sizes = " < ".join(str(int(column.max()) + 1) for column in part.labels().T) if manifest.n_levels else ""
        echo(f"  {split:<5} {n_images:>8} images" + (f"  {sizes} classes" if sizes else ""))
    if shared := classes_in_several_splits(manifest):
        more = f" and {len(shared) - SHOWN} more" if len(shared) > SHOWN else ""
        count = "1 class" if len(shared) == 1 else f"{len(shared)} classes"
        echo(f"  in more than one split: {count} of label_0: {names(shared[:SHOWN])}{more}")


@app.command()
def stats(source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")]) -> None:
    """Images, classes and images per class of each split and level; no image is opened."""
    from sightline.data.manifest import read_manifest

    manifest = read_manifest(source, labelled=False)
    echo(f"{source}: {len(manifest):,} images, {manifest.n_levels} label levels")
    for line in _statistics(manifest):
        echo(line)


def _statistics(manifest: "Manifest") -> list[str]:
    from sightline.data.manifest import FLAGS, manifest_statistics

    lines = [f"{'split':<6}{'level':>6}{'images':>12}{'classes':>10}{'fewest':>9}{'median':>11}{'most':>11}"]
    for split, level, n_images, n_classes, fewest, median, most in manifest_statistics(manifest).rows():
        sizes = "" if level is None else f"{n_classes:>10,}{fewest:>9,}{f'{median:,.1f}'.removesuffix('.0'):>11}{most:>11,}"
        lines.append(f"{split:<6}{'-' if level is None else level:>6}{n_images:>12,}{sizes}")
    there = [flag for flag in FLAGS if flag in manifest.table.columns]
    return lines + [f"{flag}: {manifest.table[flag].sum():,} images" for flag in there]


@app.command("list")
def list_sets() -> None:
    """The data sets that `prepare` knows: what each is, and what it needs."""
    from sightline.data.readers import READERS

    echo("Made or fetched: sightline data prepare NAME")
    for name in (GLYPHS, *_collections()):
        echo(f"  {name:<17} {MADE[name]}")
    echo("From your copy of the published files: sightline data prepare NAME --root FOLDER --out NAME.parquet")
    for name, reader in READERS.items():
        echo(f"  {name:<17} {reader.about}; needs {reader.needs}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="The data set: a name that `sightline data list` prints.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to (data/NAME), or of published files the manifest (data/NAME.parquet)."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Your folder of the published files, or of packages fetched before.")
    ] = None,
    subset: Annotated[
        bool, typer.Option("--subset", help="With --root: leave out images that are not there, check no counts.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(help="glyphs: small (about 4,000 images, the default) or full (about 35,000).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="glyphs: another seed draws other pictures; 0 by default.")
    ] = None,
) -> None:
    """Make, fetch or read a data set, and print its manifest's path."""
    from sightline.data.readers import READERS
    from sightline.data.readers.glyphs import write_glyphs
    from sightline.data.readers.prepare import prepare_benchmark
    from sightline.errors import InputError, choose, names

    known = dict.fromkeys((GLYPHS, *_collections(), *READERS))
    choose(known, name, "data set")
    given = {"--root": root is not None, "--subset": subset, "--size": size is not None, "--seed": seed is not None}
    read = {"--root", "--subset"} if name in READERS else {"--size", "--seed"} if name == GLYPHS else {"--root"}
    if unread := [option for option, is_given in given.items() if is_given and option not in read]:
        raise InputError(f"{name}: no option {names(unread)}" + (f"; it has {names(sorted(read))}" if read else ""))
    if out is None:
        out = Path("data", f"{name}.parquet" if name in READERS else name)
    if name == GLYPHS:
        echo(write_glyphs(out, size or "small", seed or 0, show_progress=True))
    elif name in READERS:
        if root is None:
            raise InputError(f"{name}: --root is needed: a folder with {READERS[name].needs}")
        echo(prepare_benchmark(READERS[name], root, out, subset=subset, show_progress=True))
    else:
        echo(_collections()[name](out, show_progress=True, archives=root))


def _collections() -> "dict[str, WriteCollection]":
    from sightline.data.readers import COLLECTIONS

    return COLLECTIONS
