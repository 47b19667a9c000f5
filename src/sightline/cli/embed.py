"""``sightline embed``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def embed(
    encoder: Annotated[Path, typer.Argument(help="Encoder folder, such as run/encoder.")],
    source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")],
    out: Annotated[Path, typer.Option(help="Embedding table to write (.parquet).")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in one pass.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images.")] = 2,
) -> None:
    """Write a vector for every image, with its id and labels, to one file; under torchrun to one for each process."""
    from sightline.data.manifest import read_manifest
    from sightline.models.embed import embed_manifest, own_device, own_part
    from sightline.models.encoder import Encoder

    manifest = read_manifest(source, labelled=False)
    manifest, out = own_part(manifest if split is None else manifest.split(split), out)
    model = Encoder.from_pretrained(encoder).to(own_device())
    table = embed_manifest(model, manifest, batch_size, workers, show_progress=True)
    echo(f"{table.write(out)}: {len(table)} vectors of {table.vectors.shape[1]}")
