"""``sightline embed`` and ``sightline whiten``."""

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


def whiten(
    encoder: Annotated[Path, typer.Argument(help="Encoder folder, such as run/encoder.")],
    source: Annotated[Path, typer.Argument(help="Training images: a table by `sightline embed`, a manifest or a folder.")],
    out: Annotated[Path, typer.Option(help="Encoder folder to write, or a .safetensors file for the whitening alone.")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Dimensions to keep; all that vary if not given.")] = None,
    power: Annotated[float, typer.Option(help="0 rotates, 0.25 is square-rooted, 0.5 brings all variances to 1.")] = 0.25,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images.")] = 2,
) -> None:
    """Fit a PCA whitening on an encoder's vectors and write the encoder that applies it."""
    import torch

    from sightline.data.embedding_table import EmbeddingTable
    from sightline.data.manifest import read_manifest
    from sightline.errors import InputError
    from sightline.models.embed import embed_manifest
    from sightline.models.encoder import Encoder
    from sightline.models.heads import Whitening

    plain = Encoder.from_pretrained(encoder)
    if EmbeddingTable.is_at(source):
        table = EmbeddingTable.read(source)
        table = table if split is None else table.split(split)
        if table.fingerprint != plain.fingerprint():
            raise InputError(
                f"{source}: its vectors are of another encoder, {table.fingerprint}, not {plain.fingerprint()}"
            )
    else:
        manifest = read_manifest(source, labelled=False)
        manifest = manifest if split is None else manifest.split(split)
        table = embed_manifest(plain, manifest, n_workers=workers, show_progress=True)
    whitening = Whitening.fit(torch.from_numpy(table.vectors), dim, power)
    whitened = plain.whitened(whitening)
    written = whitening.save(out) if out.suffix == ".safetensors" else whitened.save_pretrained(out)
    n_kept, n_given = whitening.weight.shape
    echo(f"{written}: fitted on {len(table)} vectors, {n_given} dimensions to {n_kept}, power {power:g}")
