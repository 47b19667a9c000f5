"""Put images, or the vectors of an embedding table, into a gallery: only what is new or has changed is embedded."""

import errno
import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from sightline.data.dataset import ImageDataset, consecutive
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import BOX, Manifest, typed_table
from sightline.data.transforms import eval_transform
from sightline.errors import InputError, names
from sightline.files import replaced_folder
from sightline.gallery.gallery import (
    ENCODER_FOLDER,
    HASH,
    PREFIX,
    ROOT,
    Gallery,
    Value,
    create_gallery,
    image_path,
    noted_root,
    some,
    stored_path,
)
from sightline.models.encoder import Encoder
from sightline.progress import tracked
from sightline.ranking.refine import augment_gallery

CHUNK = 512  # images embedded, and kept, at a time
SIZE, TIME = "file_size", "file_mtime_ns"
PLACE = " place"  # of a row in its manifest, until it is written
Rows = list[dict[str, Any]]
Known = dict[str, dict[str, Value]]
Encode = Callable[[Rows], NDArray[np.float32]]


@dataclass
class Indexed:
    """What became of the images of a manifest.

    Attributes:
        added: new items.
        changed: items whose image was embedded anew.
        relabelled: items whose image is the same, and what is known of it is not.
        unchanged: items left as they are.
        pruned: items removed because the manifest lacks them.
        left_out: images not added because their items were removed before.
        broken: a sentence for each image that could not be read, and was skipped.
    """

    added: int = 0
    changed: int = 0
    relabelled: int = 0
    unchanged: int = 0
    pruned: int = 0
    left_out: int = 0
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ("added", "changed", "relabelled", "unchanged", "pruned")
        counts = {name: getattr(self, name) for name in names} | {"broken": len(self.broken)}
        counts["left out as removed before (--restore-removed adds them)"] = self.left_out
        return ", ".join(f"{value} {name}" for name, value in counts.items() if value) or "nothing to do"


class Source:
    """Tells the items of one source, a folder or a manifest's folder, from all others in a gallery.

    Args:
        folder: the gallery's, if it has one.
        root: the source's.
        moved_from: where it was before, if it was moved without the gallery; refused if there is still something.
    """

    def __init__(self, folder: Path | None, root: Path, moved_from: Path | None = None) -> None:
        self.folder = folder
        if moved_from is not None and moved_from.exists():
            raise InputError(f"--moved-from {moved_from}: is still there, so {root} is another folder; use --prefix")
        self.roots = [path.resolve() for path in (root, moved_from) if path is not None]
        resolved = None if folder is None else folder.resolve()
        self.all_noted = [stored_path(resolved, path) for path in self.roots]
        self.noted = self.all_noted[0]
        self._found: dict[str, Path] = {}

    def path_of(self, noted: str) -> Path:
        """The full path of a root as a gallery notes it."""
        if noted not in self._found:  # millions of items share a root
            self._found[noted] = image_path(self.folder, {"path": noted}) or Path(noted)
        return self._found[noted]

    def is_root(self, noted: str) -> bool:
        """Whether a root as a gallery notes it is this source's."""
        return noted == self.noted or self.path_of(noted) in self.roots

    def has(self, id_: str, metadata: Mapping[str, Value]) -> bool:
        """Whether an item came from this source."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.is_root(noted)
        if metadata.get(HASH) is None:  # uploaded, or added in Python
            return False
        file = image_path(self.folder, metadata)
        return file is not None and any(file.is_relative_to(root) for root in self.roots)

    def origin(self, id_: str, metadata: Mapping[str, Value]) -> Path | None:
        """The root of an item, or the folder of its image where that is all that is known; None where nothing is."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.path_of(noted)
        file = image_path(self.folder, metadata) if metadata.get(HASH) is not None else None
        return None if file is None else file.parent


def index_images(
    gallery: Gallery,
    encoder: Encoder | None,
    images: Manifest | EmbeddingTable,
    *,
    prune: bool = False,
    prefix: str | None = None,
    moved_from: Path | None = None,
    restore_removed: bool = False,
    batch_size: int = 64,
    n_workers: int = 0,
    show_progress: bool = False,
) -> Indexed:
    """Bring a gallery to a manifest: new images are added, changed ones embedded again, broken ones skipped and named.

    An image whose file has the size and time it had before is not opened; if only its time differs, it is compared by a
    hash of its bytes. Each 512 images are kept as they are done, so that a run that was stopped goes on where it was.
    Of an embedding table the vectors are taken as they are, and no image is opened.

    The root of the images is noted with each item. An id that another source has already is refused before anything is
    written. What :meth:`Gallery.remove` took out is left out.

    Args:
        gallery: of this encoder.
        encoder: what embeds; None for the one saved in the gallery. A table needs none.
        images: a manifest or a table; its columns become metadata, those of a CSV file as numbers and booleans where they
            hold nothing else, beside the file's size, time and hash.
        prune: remove items of this root that the manifest lacks.
        prefix: goes before the ids of this manifest, with a slash; None for the one that items of this root have.
        moved_from: the root that these images had before, if they were moved.
        restore_removed: add what was removed before, too.
        batch_size: images in one pass through the model.
        n_workers: processes that read images.
        show_progress: draw a progress bar.
    """
    if isinstance(images, EmbeddingTable):
        gallery.check_encoder(images.fingerprint)
        manifest, bring = images.manifest, partial(_bring_vectors, gallery, images.vectors)
    else:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        manifest, bring = images, partial(_bring_images, gallery, partial(_vectors, encoder, batch_size, n_workers))
    done = Indexed()
    source = Source(gallery.folder, manifest.root, moved_from)
    prefix = _prefix_of(gallery, source) if prefix is None else prefix.strip("/")
    rows = _described(manifest, source.noted, prefix)
    known = set(gallery.ids())
    _check_others(gallery, source, manifest, [row for row in rows if row["id"] in known])
    if prune:
        done.pruned = _prune(gallery, source, prefix, sorted(known - {str(row["id"]) for row in rows}))
    if not restore_removed:
        removed = gallery.removed()
        kept = [row for row in rows if row["id"] not in removed or not source.is_root(removed[row["id"]])]
        rows, done.left_out = kept, len(rows) - len(kept)
    starts = range(0, len(rows), CHUNK)
    try:
        for start in tracked(starts, "Indexing", len(starts), show_progress):
            part = rows[start : start + CHUNK]
            before = [row["id"] for row in part if row["id"] in known]
            old = dict(zip(before, gallery.metadata(before), strict=True))
            bring(part, old, done)
    except InputError as error:
        if not isinstance(error.__cause__, sqlite3.Error):
            raise
        state = f"{len(gallery)} items are in, {done.added + done.changed} of them written just now"
        raise InputError(f"{error}: {state}; the same command goes on from there") from error.__cause__
    return done


def _prefix_of(gallery: Gallery, source: Source) -> str:
    """The prefix of the items of a source; empty where they have none."""
    of_root = f"{ROOT} in {source.all_noted!r}"
    prefixed = gallery.filter(f"{of_root} and {PREFIX} != None")
    if not prefixed:
        return ""
    found = {str(row[PREFIX]) for row in gallery.metadata(prefixed)}
    if len(found) > 1 or gallery.filter(f"{of_root} and {PREFIX} == None"):
        raise InputError(
            f"{source.roots[0]}: {gallery.address} has its images with more than one prefix, {some(sorted(found))} among "
            f"them; say which by --prefix, '' for none"
        )
    return found.pop()


def _check_others(gallery: Gallery, source: Source, manifest: Manifest, rows: Rows) -> None:
    """Refuse ids that another source's images have: they would be replaced."""
    others: dict[str, Path | None] = {}
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        for row, before in zip(part, gallery.metadata([row["id"] for row in part]), strict=True):
            if not _is_same(source, row, before):
                others[row["id"]] = source.origin(row["id"], before)
    if others:
        first, origin = next(iter(others.items()))
        shown = names(list(others)[:3])
        is_gone = origin is not None and not origin.exists()
        hint = f"; if they are the same images, moved: --moved-from {origin}" if is_gone else ""
        raise InputError(
            f"{gallery.address}: has {len(others)} ids of {manifest.source} already, of other images, such as {shown}. "
            f"{first!r} there {'was uploaded or added in Python' if origin is None else f'is of {origin}'}, here it is of "
            f"{source.roots[0]}. Nothing was changed. --prefix NAME puts NAME/ before the ids of {manifest.source}{hint}"
        )


def _is_same(source: Source, row: dict[str, Any], before: dict[str, Value]) -> bool:
    """Whether an image is the one that an item of its id is of, as it is or as it was before it changed."""
    if source.has(row["id"], before):
        return True
    if before.get(HASH) is None:
        return False
    if image_path(source.folder, before) == Path(row["path"]):
        return True
    origin = source.origin(row["id"], before)
    if origin is None or origin.exists():
        return False
    try:  # its folder is gone, and this is its image: moved
        return _file_known(row, before)[HASH] == before[HASH]
    except OSError:
        return False


def _prune(gallery: Gallery, source: Source, prefix: str, ids: list[str]) -> int:
    """Remove those of some items that came from a source with this prefix; how many."""
    gone = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        known = zip(part, gallery.metadata(part), strict=True)
        gone += [id_ for id_, row in known if source.has(id_, row) and (row.get(PREFIX) or "") == prefix]
    gallery.remove(gone, remember=False)
    return len(gone)


def _described(manifest: Manifest, root: str, prefix: str) -> Rows:
    """The rows of a manifest with full paths, where they come from, and their places in it."""
    origin = {ROOT: root, **({PREFIX: prefix} if prefix else {})}
    rows = zip(typed_table(manifest).iter_rows(named=True), manifest.paths(), strict=True)
    return [
        {
            **row,
            "id": f"{prefix}/{row['id']}" if prefix else row["id"],
            "path": os.path.realpath(path),
            **origin,
            PLACE: place,
        }
        for place, (row, path) in enumerate(rows)
    ]


def _noted(folder: Path | None, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a gallery keeps it: it and the images beside its resolved folder can be moved together."""
    return {**row, "path": stored_path(folder, Path(row["path"]))}


def _is_as_before(before: dict[str, Value], row: dict[str, Any]) -> bool:
    """Whether an item is as it was; one of a version that noted no root is not worth writing again for that."""
    now = {key: value for key, value in row.items() if key != "id" and (key != ROOT or ROOT in before)}
    return before == now


def _bring_images(gallery: Gallery, encode: Encode, rows: Rows, old: Known, done: Indexed) -> None:
    to_embed, to_relabel, folder = [], [], gallery.folder and gallery.folder.resolve()
    for row in rows:
        before = old.get(row["id"], {})
        del row[PLACE]
        try:
            row |= _file_known(row, before)
        except OSError as error:
            done.broken.append(f"{row['path']}: {error.strerror}")
            continue
        if not before or any(before.get(key) != row.get(key) for key in (HASH, *BOX)):
            to_embed.append(row)
        elif not _is_as_before(before, _noted(folder, row)):
            to_relabel.append(row)
        else:
            done.unchanged += 1
    kept, vectors = _embedded(encode, to_embed, done.broken)
    _write(gallery, kept, vectors, to_relabel, old, done)


def _bring_vectors(gallery: Gallery, table: NDArray[np.float32], rows: Rows, old: Known, done: Indexed) -> None:
    vectors = table[[row.pop(PLACE) for row in rows]]
    there = dict(zip(old, gallery.vectors(list(old)), strict=True))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if gallery.metric == "cosine" else 1.0
    stored = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    new, to_relabel, folder = [], [], gallery.folder and gallery.folder.resolve()
    for place, row in enumerate(rows):
        before = old.get(row["id"])
        if before is None or not np.allclose(stored[place], there[row["id"]], rtol=1e-5, atol=1e-6):
            new.append(place)
            continue
        row |= {key: before[key] for key in (SIZE, TIME, HASH) if key in before}  # of the same image, as it was indexed
        if _is_as_before(before, _noted(folder, row)):
            done.unchanged += 1
        else:
            to_relabel.append(row)
    _write(gallery, [rows[place] for place in new], vectors[new], to_relabel, old, done)


def _write(
    gallery: Gallery, embedded: Rows, vectors: NDArray[np.float32], relabelled: Rows, old: Known, done: Indexed
) -> None:
    """One write for both, so that a reader never sees a part of them."""
    if written := embedded + relabelled:
        table = np.concatenate([vectors, gallery.vectors([row["id"] for row in relabelled])])
        folder = gallery.folder and gallery.folder.resolve()
        gallery.upsert([row["id"] for row in written], table, [_noted(folder, row) for row in written])
    n_changed = sum(row["id"] in old for row in embedded)
    done.changed, done.added = done.changed + n_changed, done.added + len(embedded) - n_changed
    done.relabelled += len(relabelled)


def _file_known(row: dict[str, Any], before: dict[str, Value]) -> dict[str, Value]:
    """Size, time and hash of an image's file; it is not read if size and time are those that its item has."""
    file = Path(row["path"]).stat()
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", row["path"])
    touched = before.get(SIZE) != file.st_size or before.get(TIME) != file.st_mtime_ns
    known = _hash(Path(row["path"])) if touched else before[HASH]
    return {SIZE: file.st_size, TIME: file.st_mtime_ns, HASH: known}


def _embedded(encode: Encode, rows: Rows, broken: list[str]) -> tuple[Rows, NDArray[np.float32]]:
    """The rows whose images can be read, and their vectors."""
    try:
        return rows, encode(rows)
    except InputError:  # some are broken: find out which
        readable = []
        for row in rows:
            try:
                load_image(Path(row["path"]), _box(row))
                readable.append(row)
            except InputError as error:
                broken.append(str(error))
        return readable, encode(readable)


def _vectors(encoder: Encoder, batch_size: int, n_workers: int, rows: Rows) -> NDArray[np.float32]:
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


def gallery_table(gallery: Gallery) -> EmbeddingTable:
    """All items of a gallery as a table, in the order they were added.

    It has ``id``, ``path``, ``split`` (``train`` where an item has none) and as many label levels as every item has.
    """
    ids = gallery.ids()
    if not ids:
        raise InputError(f"{gallery.address}: the gallery is empty")
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
    manifest = Manifest(Path(gallery.address), Path(gallery.address), pl.DataFrame(columns), n_levels)
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
    encoder = gallery.identity if gallery.model_folder(ENCODER_FOLDER) is None else gallery.encoder()
    with (
        replaced_folder(folder) as scratch,
        create_gallery(scratch, encoder, index=index, metric=gallery.metric) as written,
    ):
        written.add(ids, vectors, known)
    return len(ids)
