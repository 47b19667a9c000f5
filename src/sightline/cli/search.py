"""``sightline search``."""

from pathlib import Path
from typing import Annotated

import typer


def search(
    queries: Annotated[list[str], typer.Argument(help="Images, folders of images, or ids of the gallery.")],
    gallery: Annotated[str | None, typer.Option(help="Where to search: a gallery's folder, or milvus+http://...")] = None,
    table: Annotated[Path | None, typer.Option(help="Or an embedding table, written by `sightline embed`.")] = None,
    encoder: Annotated[Path | None, typer.Option(help="Encoder folder; a gallery has its own.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each query.")] = 10,
    where: Annotated[str | None, typer.Option(help='Only items such as: label_1 == "Flags" and year >= 2020')] = None,
    expand: Annotated[int, typer.Option(min=0, help="Expand each query by this many neighbours; 0 does not.")] = 0,
    alpha: Annotated[float, typer.Option(help="Power of similarity that these are weighted by.")] = 2.0,
    rerank: Annotated[str | None, typer.Option(help="Order the first results anew: kreciprocal.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all metadata.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures instead.")] = None,
) -> None:
    """Print the nearest images of a gallery or a table: place, similarity, path, labels."""
    from sightline.errors import InputError
    from sightline.models.encoder import Encoder
    from sightline.search import answers
    from sightline.search.gallery import Gallery
    from sightline.search.refine import Refinement

    if (gallery is None) == (table is None):
        raise InputError("either --gallery or --table is needed")
    if table is not None:
        if encoder is None or where is not None or json or html is not None or expand or rerank is not None:
            raise InputError("--table needs --encoder, and takes none of --where, --expand, --rerank, --json and --html")
        _search_table(queries, table, encoder, k)
        return
    refinement = Refinement(expand=expand, alpha=alpha, rerank=rerank)
    with Gallery.open(str(gallery), read_only=True) as opened:
        model = None if encoder is None else Encoder.from_pretrained(encoder)
        found = answers.ask(opened, queries, k, encoder=model, where=where, refinement=refinement)
    if html is not None:
        typer.echo(answers.write_contact_sheet(html, found, f"Found in {gallery}"))
    else:
        typer.echo(answers.as_json(found) if json else answers.as_text(found))


def _search_table(images: list[str], table: Path, encoder: Path, k: int) -> None:
    from sightline.embedding.table import EmbeddingTable
    from sightline.models.encoder import Encoder
    from sightline.search.images import search_images

    found = search_images(Encoder.from_pretrained(encoder), EmbeddingTable.read(table), images, k)
    for image, hits in zip(images, found, strict=True):
        typer.echo(f"{image}")
        for place, hit in enumerate(hits, start=1):
            typer.echo(f"{place:>4}  {hit.score:.4f}  {hit.path}  {' < '.join(hit.labels)}".rstrip())
