"""``sightline index``: build and maintain a gallery of images."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import ENCODER, Backend, Trust, echo, encoder_for, expand_settings, read_encoder, read_images
from sightline.errors import InputError, raise_faults

if TYPE_CHECKING:
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.ingest import ImageSource
    from sightline.models.encoder import Encoder

app = typer.Typer(no_args_is_help=True, help="Build and maintain a gallery of images.")
GalleryFolder = Annotated[
    str,
    typer.Argument(help="Gallery folder from `sightline index build`, or an address: milvus+http://host:19530/name."),
]
Source = Annotated[
    Path, typer.Argument(help="Folder of images, .csv or .parquet manifest, image file, or table from `sightline embed`.")
]


@dataclass(frozen=True)
class IngestOptions:
    """How images are added to a gallery."""

    split: Annotated[str | None, typer.Option(help="Add only this split.")] = None
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove items of this folder or manifest that are no longer in it.")
    ] = False
    prefix: Annotated[
        str | None,
        typer.Option(help="Put this and a slash before the ids; default: the prefix this source was added with before."),
    ] = None
    moved_from: Annotated[Path | None, typer.Option(help="Folder these images were in before, if they were moved.")] = None
    restore_removed: Annotated[
        bool, typer.Option("--restore-removed", help="Also add images whose items were removed from the gallery.")
    ] = False
    codes: Annotated[
        str | None,
        typer.Option(help="Column of text with several values an image, 26.1.15;5.3.13: split at ';'. Lists need no name."),
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Images in one pass through the model.")] = 64
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images; 0: threads.")] = 0

    def add_images(self, gallery: "Gallery", encoder: "Encoder | None", images: "ImageSource") -> None:
        """Add images to the gallery, and print a summary, with the files of their folder that are not read."""
        from sightline.data.check import files_not_read
        from sightline.data.manifest import Manifest

        done = gallery.add_images(
            images,
            encoder=encoder,
            prune=self.prune,
            prefix=self.prefix,
            moved_from=self.moved_from,
            restore_removed=self.restore_removed,
            codes=self.codes,
            batch_size=self.batch_size,
            n_workers=self.workers,
            show_progress=True,
        )
        for fault in done.unreadable:
            echo(f"skipped: {fault}", err=True)
        if isinstance(images, Manifest) and images.source.is_dir() and (said := files_not_read(images.source)):
            echo(said, err=True)
        echo(f"{gallery.address}: {len(gallery)} items: {done}")


def open_gallery(address: str | Path, *, read_only: bool = False) -> "Gallery":
    """Open the gallery at an address; imported here, because help and wrong options do not need it."""
    from sightline.gallery.gallery import Gallery

    return Gallery.open(address, read_only=read_only)


@app.command()
@expand_settings
def build(
    encoder: Annotated[Path, typer.Argument(help=f"What embeds, copied into the gallery: {ENCODER}.")],
    source: Source,
    options: IngestOptions,
    out: Annotated[str, typer.Option(help="Gallery folder or Milvus address; an existing gallery is updated.")],
    index: Annotated[
        str | None, typer.Option(help="exact, auto, or a FAISS factory string: HNSW32, IVF1024,PQ64 ...; default: auto.")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Share of the true 10 nearest items that the index must find; default: 0.95.")
    ] = None,
    backend: Backend = "auto",
    trust: Trust = False,
) -> None:
    """Embed all new and changed images, and build the search index; the vectors of a table are added as they are."""
    from sightline.gallery.gallery import REJECTOR_FOLDER, Gallery, own_folder
    from sightline.ood.rejector import Rejector

    model = read_encoder(encoder, trust, backend)
    given = own_folder(encoder, REJECTOR_FOLDER)
    rejector = None if given is None else Rejector.load(given, model.fingerprint())
    images = read_images(source, options.split)
    is_there = Gallery.is_at(out)
    with Gallery.open(out) if is_there else Gallery.create(out, model, index=index or "auto", recall=recall) as gallery:
        gallery.check_encoder(model)
        gallery.check_index(index, recall)  # before images are embedded
        options.add_images(gallery, model, images)
        _build_index(gallery, index, recall)
        is_wanted = gallery.capabilities.keeps_models and gallery.model_folder(REJECTOR_FOLDER) is None
        if rejector is not None and is_wanted:
            echo(f"{rejector.save(Path(gallery.address) / REJECTOR_FOLDER)}: {_rejector_text(gallery)}")
        _print_age(gallery)


@app.command()
@expand_settings
def add(
    gallery: GalleryFolder,
    source: Source,
    options: IngestOptions,
    encoder: Annotated[Path | None, typer.Option(help="Encoder folder; default: the one in the gallery's folder.")] = None,
    backend: Backend = "auto",
    trust: Trust = False,
) -> None:
    """Add images or a table; unchanged images are not embedded again."""
    images = read_images(source, options.split)
    with open_gallery(gallery) as opened:
        options.add_images(opened, encoder_for(opened, encoder, trust, backend), images)
        if opened.index_is_behind():
            _build_index(opened, None, None)
        _print_age(opened)


@app.command()
def remove(
    gallery: GalleryFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids to remove.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Remove the items that meet a condition: 'label_1 == \"Flags\" and year < 2020'.")
    ] = None,
) -> None:
    """Remove items; if one id is unknown, none is removed."""
    if bool(ids) == bool(where):
        raise InputError("give either ids or --where")
    with open_gallery(gallery) as opened:
        gone = opened.filter(where) if where else ids or []
        opened.remove(gone)
        if not opened.capabilities.remembers_removals:
            echo("note: this kind of gallery does not remember removals; adding the source again adds them", err=True)
        echo(f"{opened.address}: {len(gone)} removed, {len(opened)} left")


@app.command()
def verify(
    gallery: GalleryFolder,
    repair: Annotated[bool, typer.Option("--repair", help="Rebuild damaged indexes and vector tables.")] = False,
    trust: Trust = False,
) -> None:
    """Check everything against its checksum, and change nothing; exit status 2 if there is a fault."""
    import numpy as np

    from sightline.gallery.gallery import ENCODER_FOLDER, REJECTOR_FOLDER

    with open_gallery(gallery, read_only=not repair) as opened:
        if repair:
            with suppress(InputError):
                opened.search(np.zeros((1, opened.identity.dim), np.float32), 1)  # rebuilds derived files
        faults = opened.verify()
        for folder, load in ((REJECTOR_FOLDER, opened.rejector), (ENCODER_FOLDER, partial(opened.encoder, trust))):
            try:
                if opened.model_folder(folder) is not None:
                    load()
            except InputError as error:
                faults.append(str(error))
        raise_faults(opened.address, faults)
        for sentence in opened.repairs:
            echo(f"repaired: {sentence}")
        has_rejector = opened.model_folder(REJECTOR_FOLDER) is not None
        echo(f"{opened.address}: {len(opened)} items{' and a rejector' if has_rejector else ''}, no fault")
        _print_age(opened)


@app.command()
def stats(
    gallery: GalleryFolder, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Print the number of items, encoder, index, rejector and size of a gallery."""
    with open_gallery(gallery, read_only=True) as opened:
        found = opened.stats() | {"rejector": _rejector_text(opened)}
    echo(dumps(found, indent=2) if json else "\n".join(f"{name:<15} {value}" for name, value in found.items()))


@app.command()
def compact(gallery: GalleryFolder) -> None:
    """Rewrite the gallery without removed items, and rebuild its index."""
    with open_gallery(gallery) as opened:
        before = opened.stats()
        opened.compact()
        if not opened.capabilities.builds_index:
            echo(f"{opened.address}: {len(opened)} items; the server compacts in the background")
        else:
            n_bytes = [found["folder_bytes"] / 1e6 for found in (before, opened.stats())]
            echo(f"{gallery}: {len(opened)} items, {n_bytes[0]:.1f} MB before, {n_bytes[1]:.1f} MB after")


@app.command()
def augment(
    gallery: GalleryFolder,
    out: Annotated[Path, typer.Option(help="Gallery folder to write; must not exist.")],
    neighbours: Annotated[
        int, typer.Option(min=1, help="Neighbours to average each item with; at most the other images of one object.")
    ] = 3,
    alpha: Annotated[float, typer.Option(min=0, help="Weight neighbours by their similarity to this power.")] = 2.0,
    index: Annotated[str, typer.Option(help="exact, auto, or a FAISS factory string.")] = "auto",
) -> None:
    """Write a gallery whose items are averaged with their neighbours; repeat it after items were added or removed."""
    from sightline.gallery.ingest import write_augmented

    with open_gallery(gallery, read_only=True) as opened:
        n_items = write_augmented(opened, out, neighbours, alpha, index)
    echo(f"{out}: {n_items} items, each with {neighbours} neighbours")
    with open_gallery(out) as written:
        _build_index(written, None, None)


def _print_age(gallery: "Gallery") -> None:
    """Print a note if items were added after the gallery's rejector was fitted."""
    rejector = gallery.rejector()
    if rejector is not None and rejector.generation is not None and (gallery.newest or 0) > rejector.generation:
        again = f"`sightline ood fit --gallery {gallery.address}`"
        echo(f"note: the rejector is older than the newest items; fit it again: {again}")


def _rejector_text(gallery: "Gallery") -> str | None:
    """One line about a gallery's rejector; None if it has none."""
    rejector = gallery.rejector()
    if rejector is None:
        return None
    limit = rejector.similarity_threshold
    matches = "" if limit is None else f", match threshold {limit:.4f}"
    return f"{rejector.scorer.name}, accepts {100 * (rejector.scorer.acceptance or 0):g} %{matches}, {rejector.policy}"


def _build_index(gallery: "Gallery", index: str | None, recall: float | None) -> None:
    header = gallery.build_index(index, recall=recall, show_progress=True)
    if header is None:
        stats = gallery.stats()
        wanted, built = stats["index"], stats.get("index_built", stats["index"])
        why = "" if wanted in ("auto", built) else f"; {stats['items']} items are too few for {wanted}"
        echo(f"index: {built}{why}")
    else:
        effort = "".join(f", {name} {value}" for name, value in header.effort.items())
        echo(f"index: {header.factory}, recall@10 {header.recall:.4f} against exact{effort}")


@app.command()
def manifest(
    gallery: GalleryFolder,
    out: Annotated[Path, typer.Option(help="The .csv or .parquet file to write.")],
) -> None:
    """Write the items as a manifest, with the labels that were corrected on the page, for the next training."""
    from sightline.data.manifest import write_table
    from sightline.gallery.relabel import MARK, corrected_manifest

    with open_gallery(gallery, read_only=True) as opened:
        table, n_left_out = corrected_manifest(opened)
    write_table(table, out)
    n_relabelled = table[MARK].count() if MARK in table.columns else 0
    left_out = f", {n_left_out} left out: no label or no image" if n_left_out else ""
    echo(f"{out}: {len(table)} images, {n_relabelled} relabelled{left_out}")


@app.command()
def backup(
    gallery: Annotated[Path, typer.Argument(help="Gallery folder; it may be in use meanwhile.")],
    copy: Annotated[Path, typer.Argument(help="Folder for the copy; must not exist.")],
) -> None:
    """Write a consistent copy of a gallery, with its encoder, rejector and uploaded images."""
    from sightline.gallery.local import backup_gallery

    echo(f"{copy}: {backup_gallery(gallery, copy)} items")


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="Folder from `sightline index backup`.")],
    gallery: Annotated[Path, typer.Argument(help="Gallery folder to replace or create; it may be in use meanwhile.")],
) -> None:
    """Replace a gallery by a backup; later writes are lost."""
    from sightline.gallery.local import restore_gallery

    echo(f"{gallery}: {restore_gallery(copy, gallery)} items")
