"""``sightline search``."""

from pathlib import Path
from typing import Annotated

import typer


def search(
    images: Annotated[list[Path], typer.Argument(help="Images to search for.")],
    table: Annotated[Path, typer.Option(help="Where to search: an embedding table, written by `sightline embed`.")],
    encoder: Annotated[Path, typer.Option(help="The encoder folder the table was made with.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each image.")] = 10,
) -> None:
    """Print the nearest images of a table: place, similarity, path, labels."""
    from sightline.embedding.table import EmbeddingTable
    from sightline.models.encoder import Encoder
    from sightline.search.images import search_images

    for image, hits in zip(
        images, search_images(Encoder.from_pretrained(encoder), EmbeddingTable.read(table), images, k), strict=True
    ):
        typer.echo(f"{image}")
        for place, hit in enumerate(hits, start=1):
            typer.echo(f"{place:>4}  {hit.score:.4f}  {hit.path}  {' < '.join(hit.labels)}".rstrip())
