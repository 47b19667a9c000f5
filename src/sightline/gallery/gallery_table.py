"""A gallery's vectors and labels as an embedding table; a gallery whose items are averaged with their neighbours."""

from pathlib import Path

import polars as pl
import torch

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.errors import InputError
from sightline.files import replaced_folder
from sightline.gallery.gallery import ENCODER_FOLDER, Gallery
from sightline.gallery.image_paths import ROOT, image_path, stored_path
from sightline.ranking.refine import augment_gallery


def gallery_table(gallery: Gallery) -> EmbeddingTable:
    """All items of a gallery as a table, in the order they were added.

    It has ``id``, ``path``, ``split`` (``train`` where an item has none) and as many label levels as every item has.
    """
    ids = gallery.ids()
    if not ids:
        raise InputError(f"{gallery.folder}: the gallery is empty")
    known = gallery.metadata(ids)
    columns: dict[str, list[str]] = {
        "id": ids,
        "path": [str(image_path(gallery.folder, row) or "") for row in known],
        "split": [str(row.get("split") or "train") for row in known],
    }
    n_levels = 0
    while all(row.get(f"label_{n_levels}") is not None for row in known):
        columns[f"label_{n_levels}"] = [str(row[f"label_{n_levels}"]) for row in known]
        n_levels += 1
    manifest = Manifest(Path(gallery.folder), Path(gallery.folder), pl.DataFrame(columns), n_levels)
    return EmbeddingTable(manifest, gallery.vectors(ids), gallery.identity.fingerprint)


def write_augmented(gallery: Gallery, folder: Path, k: int, alpha: float = 2.0, index: str = "auto") -> int:
    """Make a gallery in which each item is averaged with its nearest others; it appears complete or not at all.

    All pairs are compared. Ids, metadata and encoder are the same; the rejector is not taken along, as similarities to the
    new items are others.

    Args:
        gallery: stays as it is.
        folder: must not exist, or be empty.
        k: neighbours to add to each item.
        alpha: power of their similarity that they are weighted by.
        index: as in :meth:`Gallery.create`; not built yet.

    Returns:
        The number of items written.
    """
    ids = gallery.ids()
    vectors = augment_gallery(torch.from_numpy(gallery.vectors(ids)), k, alpha).numpy()
    known = [dict(row) for row in gallery.metadata(ids)]
    for row in known:
        if (file := image_path(gallery.folder, row)) is not None:
            row["path"] = stored_path(folder.resolve(), file)
        if (root := image_path(gallery.folder, {"path": row.get(ROOT)})) is not None:
            row[ROOT] = stored_path(folder.resolve(), root)
    has_encoder = isinstance(gallery.folder, Path) and (gallery.folder / ENCODER_FOLDER).is_dir()
    encoder = gallery.encoder() if has_encoder else gallery.identity
    with (
        replaced_folder(folder) as scratch,
        Gallery.create(scratch, encoder, index=index, metric=gallery.metric) as written,
    ):
        written.add(ids, vectors, known)
    return len(ids)
