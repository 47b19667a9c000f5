"""``sightline index``: a gallery of images, made and kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sightline.data.manifest import Manifest
    from sightline.models.encoder import Encoder
    from sightline.search.gallery import Gallery

app = typer.Typer(no_args_is_help=True, help="Make a gallery of images, and keep it: build, add, remove, verify.")
GalleryFolder = Annotated[Path, typer.Argument(help="Gallery folder, made by `sightline index build`.")]
Source = Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")]
Split = Annotated[str | None, typer.Option(help="Only this split.")]
Prune = Annotated[bool, typer.Option("--prune", help="Remove items that the manifest or folder lacks.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images in one pass.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read images.")]


@app.command()
def build(
    encoder: Annotated[Path, typer.Argument(help="Encoder folder, such as run/encoder; a copy is kept in the gallery.")],
    source: Source,
    out: Annotated[Path, typer.Option(help="Gallery folder; one that is there already is brought up to date.")],
    index: Annotated[
        str | None, typer.Option(help="exact, auto, or a FAISS factory string: HNSW32, IVF1024,PQ64 ...; at first auto.")
    ] = None,
    recall: Annotated[float | None, typer.Option(help="Share of the true 10 nearest to find; at first 0.95.")] = None,
    split: Split = None,
    prune: Prune = False,
    batch_size: BatchSize = 64,
    workers: Workers = 2,
) -> None:
    """Embed every image that is new or has changed, and build the index."""
    from sightline.models.encoder import Encoder
    from sightline.search.gallery import Gallery

    model = Encoder.from_pretrained(encoder)
    manifest = _manifest(source, split)
    is_there = (out / "gallery.db").exists()
    with Gallery.open(out) if is_there else Gallery.create(out, model, index=index or "auto") as gallery:
        gallery.check_encoder(model)
        _bring_up_to_date(gallery, model, manifest, prune, batch_size, workers)
        _build_index(gallery, index, recall)


@app.command()
def add(
    gallery: GalleryFolder,
    source: Source,
    split: Split = None,
    prune: Prune = False,
    batch_size: BatchSize = 64,
    workers: Workers = 2,
) -> None:
    """Add images; those that are there and have not changed are not embedded again."""
    from sightline.search.gallery import Gallery

    manifest = _manifest(source, split)
    with Gallery.open(gallery) as opened:
        _bring_up_to_date(opened, opened.encoder(), manifest, prune, batch_size, workers)
        stats = opened.stats()
        if stats["items"] + stats["removed"] - stats["index_covers"] > 0.1 * stats["items"]:
            _build_index(opened, None, None)


@app.command()
def remove(
    gallery: GalleryFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids to remove.")] = None,
    where: Annotated[str | None, typer.Option(help="Or a condition: 'label_1 == \"Flags\" and year < 2020'.")] = None,
) -> None:
    """Remove items; if one id is unknown, none is removed."""
    from sightline.errors import InputError
    from sightline.search.gallery import Gallery

    if bool(ids) == bool(where):
        raise InputError("either ids or --where is needed")
    with Gallery.open(gallery) as opened:
        gone = opened.filter(where) if where else ids or []
        opened.remove(gone)
        typer.echo(f"{gallery}: {len(gone)} removed, {len(opened)} left")


@app.command()
def verify(gallery: GalleryFolder) -> None:
    """Hold every item, vector and index against its checksum; status 2 and one line a fault if something is wrong."""
    from sightline.errors import raise_faults
    from sightline.search.gallery import Gallery

    with Gallery.open(gallery, read_only=True) as opened:
        raise_faults(gallery, opened.verify())
        for repair in opened.repairs:
            typer.echo(f"repaired: {repair}")
        typer.echo(f"{gallery}: {len(opened)} items, no fault")


@app.command()
def stats(
    gallery: GalleryFolder, json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False
) -> None:
    """Print what a gallery holds, of which encoder, and how much disk it takes."""
    from json import dumps

    from sightline.search.gallery import Gallery

    with Gallery.open(gallery, read_only=True) as opened:
        found = opened.stats()
    typer.echo(dumps(found, indent=2) if json else "\n".join(f"{name:<15} {value}" for name, value in found.items()))


@app.command()
def compact(gallery: GalleryFolder) -> None:
    """Write the gallery anew without what was removed, and build its index."""
    from sightline.search.gallery import Gallery

    with Gallery.open(gallery) as opened:
        before = opened.stats()["folder_bytes"]
        opened.compact()
        after = opened.stats()["folder_bytes"]
        typer.echo(f"{gallery}: {len(opened)} items, {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after")


def _manifest(source: Path, split: str | None) -> "Manifest":
    from sightline.data.manifest import read_manifest

    manifest = read_manifest(source, labelled=False)
    return manifest if split is None else manifest.split(split)


def _bring_up_to_date(
    gallery: "Gallery", encoder: "Encoder", manifest: "Manifest", prune: bool, batch_size: int, workers: int
) -> None:
    from sightline.search.gallery_images import index_images

    done = index_images(
        gallery, encoder, manifest, prune=prune, batch_size=batch_size, n_workers=workers, show_progress=True
    )
    for fault in done.broken:
        typer.echo(f"skipped: {fault}", err=True)
    typer.echo(f"{gallery.folder}: {len(gallery)} items: {done}")


def _build_index(gallery: "Gallery", index: str | None, recall: float | None) -> None:
    header = gallery.build_index(index, recall=recall, show_progress=True)
    if header is None:
        typer.echo("index: exact")
    else:
        effort = "".join(f", {name} {value}" for name, value in header.effort.items())
        typer.echo(f"index: {header.factory}, recall@10 {header.recall:.4f} against exact{effort}")
