"""Put the images of a manifest into a gallery, embedding only what is new or has changed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.dataset import ImageDataset, consecutive
from sightline.data.images import load_image
from sightline.data.manifest import BOX, Manifest, typed_table
from sightline.data.transforms import eval_transform
from sightline.errors import InputError
from sightline.models.encoder import Encoder
from sightline.progress import tracked
from sightline.search.gallery import Gallery
from sightline.search.image_paths import stored_path
from sightline.search.items import Value

CHUNK = 512  # images embedded, and kept, at a time
SIZE, TIME, HASH = "file_size", "file_mtime_ns", "file_hash"
FILE_KEYS = (SIZE, TIME, HASH)


@dataclass
class Indexed:
    """What became of the images of a manifest.

    Attributes:
        added: new items.
        changed: items whose image was embedded anew.
        relabelled: items whose image is the same, and what is known of it is not.
        unchanged: items left as they are.
        pruned: items removed because the manifest lacks them.
        broken: a sentence for each image that could not be read, and was skipped.
    """

    added: int = 0
    changed: int = 0
    relabelled: int = 0
    unchanged: int = 0
    pruned: int = 0
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = {name: value for name, value in vars(self).items() if name != "broken"} | {"broken": len(self.broken)}
        return ", ".join(f"{value} {name}" for name, value in counts.items() if value) or "nothing to do"


def index_images(
    gallery: Gallery,
    encoder: Encoder,
    manifest: Manifest,
    *,
    prune: bool = False,
    batch_size: int = 64,
    n_workers: int = 0,
    show_progress: bool = False,
) -> Indexed:
    """Bring a gallery to a manifest: new images are added, changed ones embedded anew, broken ones skipped and told.

    An image whose file has the size and time it had before is not opened; if only its time differs, it is compared by a
    hash of its bytes. Each 512 images are kept as they are done, so that a run that was stopped goes on where it was.

    Args:
        gallery: of this encoder.
        encoder: what embeds.
        manifest: the images; its columns become metadata, those of a CSV file as numbers and booleans where they
            hold nothing else, beside the file's size, time and hash.
        prune: remove items that the manifest lacks.
        batch_size: images in one pass through the model.
        n_workers: processes that read images.
        show_progress: draw a progress bar.
    """
    gallery.check_encoder(encoder)
    done = Indexed()
    rows = _described(manifest)
    known = set(gallery.ids())
    if prune and (gone := sorted(known - {str(row["id"]) for row in rows})):
        gallery.remove(gone)
        done.pruned = len(gone)
    starts = range(0, len(rows), CHUNK)
    for start in tracked(starts, "Indexing", len(starts), show_progress):
        part = rows[start : start + CHUNK]
        before = [row["id"] for row in part if row["id"] in known]
        old = dict(zip(before, gallery.metadata(before), strict=True))
        _index_part(gallery, encoder, part, old, done, batch_size, n_workers)
    return done


def _described(manifest: Manifest) -> list[dict[str, Any]]:
    """The rows of a manifest with full paths."""
    paths = [str(path.resolve()) for path in manifest.paths()]
    return [{**row, "path": path} for row, path in zip(typed_table(manifest).iter_rows(named=True), paths, strict=True)]


def _stored(folder: Path | str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as the gallery keeps it: it and the images beside it can be moved together."""
    return {**row, "path": stored_path(folder, Path(row["path"]))}


def _index_part(
    gallery: Gallery,
    encoder: Encoder,
    rows: list[dict[str, Any]],
    old: dict[str, dict[str, Value]],
    done: Indexed,
    batch_size: int,
    n_workers: int,
) -> None:
    to_embed, to_relabel = [], []
    folder: Path | str = gallery.folder
    folder = folder.resolve() if isinstance(folder, Path) else folder  # an address of Milvus
    for row in rows:
        before = old.get(row["id"], {})
        try:
            file = Path(row["path"]).stat()
            row |= {SIZE: file.st_size, TIME: file.st_mtime_ns}
            touched = before.get(SIZE) != row[SIZE] or before.get(TIME) != row[TIME]
            row[HASH] = _hash(Path(row["path"])) if touched else before[HASH]
        except OSError as error:
            done.broken.append(f"{row['path']}: {error.strerror}")
            continue
        now = {key: value for key, value in _stored(folder, row).items() if key != "id"}
        seen = (HASH, *BOX)
        if not before or any(before.get(key) != now.get(key) for key in seen):
            to_embed.append(row)
        elif before != now:
            to_relabel.append(row)
        else:
            done.unchanged += 1
    kept, vectors = _embedded(encoder, to_embed, done.broken, batch_size, n_workers)
    same = [row["id"] for row in to_relabel]
    if written := kept + to_relabel:
        # One write for both, so that a reader never sees a part of them.
        table = np.concatenate([vectors, gallery.vectors(same)])
        gallery.upsert([row["id"] for row in written], table, [_stored(folder, row) for row in written])
    n_changed = sum(row["id"] in old for row in kept)
    done.changed, done.added = done.changed + n_changed, done.added + len(kept) - n_changed
    done.relabelled += len(to_relabel)


def _embedded(
    encoder: Encoder, rows: list[dict[str, Any]], broken: list[str], batch_size: int, n_workers: int
) -> tuple[list[dict[str, Any]], NDArray[np.float32]]:
    """The rows whose images can be read, and their vectors."""
    try:
        return rows, _vectors(encoder, rows, batch_size, n_workers)
    except InputError:  # some are broken: find out which
        readable = []
        for row in rows:
            try:
                load_image(Path(row["path"]), _box(row))
                readable.append(row)
            except InputError as error:
                broken.append(str(error))
        return readable, _vectors(encoder, readable, batch_size, n_workers)


def _vectors(encoder: Encoder, rows: Sequence[dict[str, Any]], batch_size: int, n_workers: int) -> NDArray[np.float32]:
    if not rows:
        return np.empty((0, encoder.dim), np.float32)
    transform = eval_transform(encoder.settings.preprocessing)
    dataset = ImageDataset([Path(row["path"]) for row in rows], transform, [_box(row) for row in rows])
    return encoder.encode_dataset(dataset, batch_size, min(n_workers, len(consecutive(len(rows), batch_size))))


def _box(row: dict[str, Any]) -> tuple[int, int, int, int] | None:
    left, top, right, bottom = (row.get(side) for side in BOX)
    return None if left is None else (left, top, right, bottom)  # type: ignore[return-value]


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()[:32]
