"""``sightline data``: check, count or prepare a set of images."""

from inspect import Parameter, getdoc
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import echo
from sightline.errors import SHOWN_FAULTS, InputError, counted

app = typer.Typer(no_args_is_help=True, help="Check, count or prepare a set of images.")


@app.command()
def check(
    source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Values of the recipe to change, as in `train`.")] = None,
    labelled: Annotated[bool, typer.Option(help="Report images without a label as a fault.")] = True,
    recipe: Annotated[
        str, typer.Option(help="Recipe whose needs to check: a .toml file, a shipped recipe, or none.")
    ] = "images",
    all_: Annotated[bool, typer.Option("--all", help="Print every image concerned, not the first 20.")] = False,
) -> None:
    """Decode every image; list faults, which stop training (status 2), and warnings."""
    from sightline.training.data_check import check_data

    report = check_data(source, None if recipe == "none" else recipe, overrides or [], labelled, show_progress=True)
    text = report.as_text(None if all_ else SHOWN_FAULTS)
    if report.faults:
        raise InputError(text)
    echo(text)


@app.command()
def stats(source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")]) -> None:
    """Count images, classes and images per class of each split and level; open no image."""
    from sightline.data.manifest import FLAGS, manifest_statistics, missing_levels, read_manifest

    manifest = read_manifest(source, labelled=False)
    echo(f"{source}: {len(manifest):,} images, {counted(manifest.n_levels, 'label level')}")
    echo(f"{'split':<6}{'level':>6}{'images':>12}{'classes':>10}{'fewest':>9}{'median':>11}{'most':>11}")
    for split, level, n_images, n_classes, fewest, median, most in manifest_statistics(manifest).rows():
        sizes = "" if level is None else f"{n_classes:>10,}{fewest:>9,}{f'{median:,.1f}'.removesuffix('.0'):>11}{most:>11,}"
        echo(f"{split:<6}{'-' if level is None else level:>6}{n_images:>12,}{sizes}")
    for flag in (flag for flag in FLAGS if flag in manifest.table.columns):
        echo(f"{flag}: {manifest.table[flag].sum():,} images")
    if not manifest.n_levels:
        echo(missing_levels(manifest))


@app.command("list")
def list_sets() -> None:
    """List the data sets that `prepare` knows, and what each needs."""
    from sightline.data.readers import READERS

    on_disk = [name for name in READERS if _needs_root(READERS.options(name))]
    echo("Drawn or fetched: sightline data prepare NAME")
    for name in sorted(READERS, key=on_disk.__contains__):
        if name == on_disk[0]:
            echo("From your copy of the published files: sightline data prepare NAME --root FOLDER --out NAME.parquet")
        echo(f"  {name:<17} {READERS.summary(name).removesuffix('.')}")


def _needs_root(options: dict[str, Parameter]) -> bool:
    return "root" in options and options["root"].default is options["root"].empty


@app.command()
def prepare(
    name: Annotated[
        str, typer.Argument(help="The data set: a name that `sightline data list` prints, or package.module:Name.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to (default: data/NAME); for published files the manifest (default: data/NAME.parquet)."
        ),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the published files, or of packages fetched before.")] = None,
    subset: Annotated[
        bool, typer.Option("--subset", help="With --root: leave out missing images, check no counts.")
    ] = False,
    size: Annotated[
        str | None,
        typer.Option(
            help="glyphs, icons, trademarks: small (4,000, 15,000, 6,000 images; default) or full (40,000, 64,000, 60,000)."
        ),
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(min=8, help="icons, logos, trademarks: side of the images in pixels (default: 64, 128, 96)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="glyphs, trademarks: random seed (default: 0).")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import and run the module of a data set named package.module:Name.")
    ] = False,
) -> None:
    """Draw, fetch or read a data set; write its manifest and print the path."""
    from sightline.data.readers import READERS

    reader, known = READERS.find(name, trust=trust), READERS.options(name, trust=trust)
    if root is None and _needs_root(known):
        raise InputError(f"{name}: --root is missing: {(getdoc(reader) or 'a folder').splitlines()[0]}")
    given = {"root": root, "subset": subset or None, "size": size, "side": side, "seed": seed}
    if out is None:
        out = Path("data", name.rpartition(":")[2] + getattr(reader, "suffix", ""))
    options = {option: value for option, value in given.items() if value is not None}
    echo(READERS.create(name, options, trust=trust, out=out, show_progress=True))
