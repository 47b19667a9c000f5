"""``sightline index``: a gallery of images, made and kept."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import Trust, echo, encoder_for, expand_settings, read_encoder, read_images
from sightline.errors import InputError, raise_faults

if TYPE_CHECKING:
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.ingest import Images
    from sightline.models.encoder import Encoder

app = typer.Typer(no_args_is_help=True, help="Make a gallery of images, and keep it: build, add, remove, verify.")
GalleryFolder = Annotated[
    str,
    typer.Argument(help="Gallery folder, made by `sightline index build`, or an address: milvus+http://host:19530/name."),
]
Source = Annotated[
    Path, typer.Argument(help="A .csv or .parquet manifest, a folder of images, or a table by `sightline embed`.")
]


@dataclass(frozen=True)
class IngestOptions:
    """Which images go into a gallery, and how."""

    split: Annotated[str | None, typer.Option(help="Only this split.")] = None
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove items that came from this manifest or folder and are not in it.")
    ] = False
    prefix: Annotated[
        str | None,
        typer.Option(help="Put this and a slash before the ids of this source; default: as it was added before."),
    ] = None
    moved_from: Annotated[
        Path | None, typer.Option(help="Folder that these images were in before, if they were moved.")
    ] = None
    restore_removed: Annotated[
        bool, typer.Option("--restore-removed", help="Also add images that were removed before.")
    ] = False
    batch_size: Annotated[int, typer.Option(min=1, help="Images in one pass.")] = 64
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images.")] = 2

    def index(self, gallery: "Gallery", encoder: "Encoder | None", images: "Images") -> None:
        """Bring the gallery to the images, and print what became of them."""
        from sightline.gallery.ingest import index_images

        done = index_images(
            gallery,
            encoder,
            images,
            prune=self.prune,
            prefix=self.prefix,
            moved_from=self.moved_from,
            restore_removed=self.restore_removed,
            batch_size=self.batch_size,
            n_workers=self.workers,
            show_progress=True,
        )
        for fault in done.broken:
            echo(f"skipped: {fault}", err=True)
        echo(f"{gallery.address}: {len(gallery)} items: {done}")


def open_gallery(address: str | Path, *, read_only: bool = False) -> "Gallery":
    """The gallery at an address; importing takes a second, which help and faults in options do without."""
    from sightline.gallery.gallery import Gallery

    return Gallery.open(address, read_only=read_only)


@app.command()
@expand_settings
def build(
    encoder: Annotated[Path, typer.Argument(help="Encoder folder, such as run/encoder; a copy is kept in the gallery.")],
    source: Source,
    options: IngestOptions,
    out: Annotated[
        str, typer.Option(help="Gallery folder or address of Milvus; one that is there already is brought up to date.")
    ],
    index: Annotated[
        str | None, typer.Option(help="exact, auto, or a FAISS factory string: HNSW32, IVF1024,PQ64 ...; default: auto.")
    ] = None,
    recall: Annotated[float | None, typer.Option(help="Share of the true 10 nearest to find; default: 0.95.")] = None,
    trust: Trust = False,
) -> None:
    """Embed every image that is new or has changed, and build the index; a table's vectors are taken as they are."""
    from sightline.gallery.gallery import REJECTOR_FOLDER, Gallery, own_folder
    from sightline.ood.rejector import Rejector

    model = read_encoder(encoder, trust)
    given = own_folder(encoder, REJECTOR_FOLDER)
    rejector = None if given is None else Rejector.load(given, model.fingerprint())
    images = read_images(source, options.split)
    is_there = Gallery.is_at(out)
    with Gallery.open(out) if is_there else Gallery.create(out, model, index=index or "auto", recall=recall) as gallery:
        gallery.check_encoder(model)
        gallery.check_index(index, recall)  # before images are embedded
        options.index(gallery, model, images)
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
    encoder: Annotated[Path | None, typer.Option(help="Encoder folder; a gallery's folder has its own.")] = None,
    trust: Trust = False,
) -> None:
    """Add images or a table; images that are there and have not changed are not embedded again."""
    images = read_images(source, options.split)
    with open_gallery(gallery) as opened:
        options.index(opened, encoder_for(opened, encoder, trust), images)
        if opened.index_is_behind():
            _build_index(opened, None, None)
        _print_age(opened)


@app.command()
def remove(
    gallery: GalleryFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids to remove.")] = None,
    where: Annotated[str | None, typer.Option(help="Or a condition: 'label_1 == \"Flags\" and year < 2020'.")] = None,
) -> None:
    """Remove items; if one id is unknown, none is removed."""
    if bool(ids) == bool(where):
        raise InputError("either ids or --where is needed")
    with open_gallery(gallery) as opened:
        gone = opened.filter(where) if where else ids or []
        opened.remove(gone)
        if not opened.capabilities.remembers_removals:
            echo("note: this kind of gallery does not remember removals; their source adds them again", err=True)
        echo(f"{opened.address}: {len(gone)} removed, {len(opened)} left")


@app.command()
def verify(
    gallery: GalleryFolder,
    repair: Annotated[bool, typer.Option("--repair", help="Make damaged indexes and tables of vectors again.")] = False,
    trust: Trust = False,
) -> None:
    """Hold all against checksums and encoder, and change nothing; status 2 if something is wrong."""
    import numpy as np

    from sightline.gallery.gallery import ENCODER_FOLDER, REJECTOR_FOLDER

    with open_gallery(gallery, read_only=not repair) as opened:
        if repair:
            with suppress(InputError):
                opened.search(np.zeros((1, opened.identity.dim), np.float32), 1)  # makes derived files again
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
    gallery: GalleryFolder, json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False
) -> None:
    """Print what a gallery holds, of which encoder, and how much disk it takes."""
    with open_gallery(gallery, read_only=True) as opened:
        found = opened.stats() | {"rejector": _rejector_text(opened)}
    echo(dumps(found, indent=2) if json else "\n".join(f"{name:<15} {value}" for name, value in found.items()))


@app.command()
def compact(gallery: GalleryFolder) -> None:
    """Rewrite the gallery without what was removed, and rebuild its index."""
    with open_gallery(gallery) as opened:
        before = opened.stats()
        opened.compact()
        if not opened.capabilities.builds_index:
            echo(f"{opened.address}: {len(opened)} items; its server goes on with it")
        else:
            n_bytes = [found["folder_bytes"] / 1e6 for found in (before, opened.stats())]
            echo(f"{gallery}: {len(opened)} items, {n_bytes[0]:.1f} MB before, {n_bytes[1]:.1f} MB after")


@app.command()
def augment(
    gallery: GalleryFolder,
    out: Annotated[Path, typer.Option(help="Gallery folder to write; must not exist.")],
    neighbours: Annotated[
        int, typer.Option(min=1, help="Average each item with so many: at most the other images of one thing.")
    ] = 3,
    alpha: Annotated[float, typer.Option(min=0, help="Power of their similarity that they are weighted by.")] = 2.0,
    index: Annotated[str, typer.Option(help="exact, auto, or a FAISS factory string.")] = "auto",
) -> None:
    """Write a gallery whose items are averaged with their neighbours; make it again when items have come or gone."""
    from sightline.gallery.ingest import write_augmented

    with open_gallery(gallery, read_only=True) as opened:
        n_items = write_augmented(opened, out, neighbours, alpha, index)
    echo(f"{out}: {n_items} items, each with {neighbours} neighbours")
    with open_gallery(out) as written:
        _build_index(written, None, None)


def _print_age(gallery: "Gallery") -> None:
    """Say so if items were added since the gallery's rejector was fitted on it."""
    rejector = gallery.rejector()
    if rejector is not None and rejector.generation is not None and (gallery.newest or 0) > rejector.generation:
        again = f"`sightline ood fit --gallery {gallery.address}`"
        echo(f"note: the rejector is older than the newest items; {again} fits it to them")


def _rejector_text(gallery: "Gallery") -> str | None:
    """What a gallery's rejector is, in a few words; None where it has none."""
    rejector = gallery.rejector()
    if rejector is None:
        return None
    matches = "" if rejector.similarity_threshold is None else f", a match from {rejector.similarity_threshold:.4f} on"
    return f"{rejector.scorer.name}, accepts {100 * (rejector.scorer.acceptance or 0):g} %{matches}, {rejector.policy}"


def _build_index(gallery: "Gallery", index: str | None, recall: float | None) -> None:
    header = gallery.build_index(index, recall=recall, show_progress=True)
    if header is None:
        stats = gallery.stats()
        asked, built = stats["index"], stats.get("index_built", stats["index"])
        why = "" if asked in ("auto", built) else f"; {stats['items']} items are too few for {asked}"
        echo(f"index: {built}{why}")
    else:
        effort = "".join(f", {name} {value}" for name, value in header.effort.items())
        echo(f"index: {header.factory}, recall@10 {header.recall:.4f} against exact{effort}")


@app.command()
def backup(
    gallery: Annotated[Path, typer.Argument(help="Gallery folder; it may be served and written to meanwhile.")],
    copy: Annotated[Path, typer.Argument(help="Folder for the copy; must not exist.")],
) -> None:
    """Copy a gallery as it is at one moment, with its encoder, rejector and uploaded images."""
    from sightline.gallery.local import backup_gallery

    echo(f"{copy}: {backup_gallery(gallery, copy)} items")


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="Written by `sightline index backup`.")],
    gallery: Annotated[Path, typer.Argument(help="Gallery folder that is replaced, or made; it may be served meanwhile.")],
) -> None:
    """Put a copy in the place of a gallery; what was written since the copy is lost."""
    from sightline.gallery.local import restore_gallery

    echo(f"{gallery}: {restore_gallery(copy, gallery)} items")
