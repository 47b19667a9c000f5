"""``sightline data``: check a set of images, or make one."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Check a set of images, or make one.")


@app.command()
def check(
    source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")],
    labelled: Annotated[bool, typer.Option(help="Refuse images without a label.")] = True,
) -> None:
    """Read the table and decode every image; list all faults."""
    from sightline.data.images import check_images
    from sightline.data.manifest import read_manifest

    manifest = read_manifest(source, labelled)
    check_images(manifest, show_progress=True)
    counts = manifest.table.group_by("split").len().sort("split").rows()
    typer.echo(f"{source}: {len(manifest)} images, {manifest.n_levels} label levels, no fault")
    for split, n_images in counts:
        part = manifest.split(split)
        sizes = " < ".join(str(int(column.max()) + 1) for column in part.labels().T) if manifest.n_levels else ""
        typer.echo(f"  {split:<5} {n_images:>8} images" + (f"  {sizes} classes" if sizes else ""))


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="The data set to make: glyphs.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    size: Annotated[str, typer.Option(help="small (about 4,000 images) or full (about 35,000).")] = "small",
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other pictures.")] = 0,
) -> None:
    """Make a data set and print its manifest's path."""
    from sightline.data.glyphs import write_glyphs
    from sightline.errors import choose

    write = choose({"glyphs": write_glyphs}, name, "data set")
    typer.echo(write(out, size, seed, show_progress=True))
