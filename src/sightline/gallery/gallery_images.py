"""Put the images of a manifest into a gallery, embedding only what is new or has changed."""

import errno
import hashlib
import os
import sqlite3
import stat
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
from sightline.errors import InputError, names
from sightline.gallery.gallery import Gallery
from sightline.gallery.image_paths import HASH, PREFIX, ROOT, Source, image_path, stored_path
from sightline.gallery.items import Value, some
from sightline.models.encoder import Encoder
from sightline.progress import tracked

CHUNK = 512  # images embedded, and kept, at a time
SIZE, TIME = "file_size", "file_mtime_ns"


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


def index_images(
    gallery: Gallery,
    encoder: Encoder,
    manifest: Manifest,
    *,
    prune: bool = False,
    prefix: str | None = None,
    moved_from: Path | None = None,
    restore_removed: bool = False,
    batch_size: int = 64,
    n_workers: int = 0,
    show_progress: bool = False,
) -> Indexed:
    """Bring a gallery to a manifest: new images are added, changed ones embedded anew, broken ones skipped and told.

    An image whose file has the size and time it had before is not opened; if only its time differs, it is compared by a
    hash of its bytes. Each 512 images are kept as they are done, so that a run that was stopped goes on where it was.

    The manifest's root is noted with each item. An id that another source has already is refused before anything is
    written. What :meth:`Gallery.remove` took out is left out.

    Args:
        gallery: of this encoder.
        encoder: what embeds.
        manifest: the images; its columns become metadata, those of a CSV file as numbers and booleans where they
            hold nothing else, beside the file's size, time and hash.
        prune: remove items of this root that the manifest lacks.
        prefix: goes before the ids of this manifest, with a slash; None for the one that items of this root have.
        moved_from: the root that these images had before, if they were moved.
        restore_removed: add what was removed before, too.
        batch_size: images in one pass through the model.
        n_workers: processes that read images.
        show_progress: draw a progress bar.
    """
    gallery.check_encoder(encoder)
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
            _index_part(gallery, encoder, part, old, done, batch_size, n_workers)
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
            f"{source.roots[0]}: {gallery.folder} has its images with more than one prefix, {some(sorted(found))} among "
            f"them; say which by --prefix, '' for none"
        )
    return found.pop()


def _check_others(gallery: Gallery, source: Source, manifest: Manifest, rows: list[dict[str, Any]]) -> None:
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
            f"{gallery.folder}: has {len(others)} ids of {manifest.source} already, of other images, such as {shown}. "
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


def _described(manifest: Manifest, root: str, prefix: str) -> list[dict[str, Any]]:
    """The rows of a manifest with full paths, and where they come from."""
    paths = map(os.path.realpath, manifest.paths())  # also where links go in a circle
    origin = {ROOT: root, **({PREFIX: prefix} if prefix else {})}
    rows = []
    for row, path in zip(typed_table(manifest).iter_rows(named=True), paths, strict=True):
        id_ = f"{prefix}/{row['id']}" if prefix else row["id"]
        rows.append({**row, "id": id_, "path": path, **origin})
    return rows


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
            row |= _file_known(row, before)
        except OSError as error:
            done.broken.append(f"{row['path']}: {error.strerror}")
            continue
        now = {key: value for key, value in _stored(folder, row).items() if key != "id"}
        if before and ROOT not in before and before == {key: value for key, value in now.items() if key != ROOT}:
            done.unchanged += 1  # of a version that noted no root: not worth writing all items again
            continue
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


def _file_known(row: dict[str, Any], before: dict[str, Value]) -> dict[str, Value]:
    """Size, time and hash of an image's file; it is not read if size and time are those that its item has."""
    file = Path(row["path"]).stat()
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", row["path"])
    touched = before.get(SIZE) != file.st_size or before.get(TIME) != file.st_mtime_ns
    known = _hash(Path(row["path"])) if touched else before[HASH]
    return {SIZE: file.st_size, TIME: file.st_mtime_ns, HASH: known}


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
