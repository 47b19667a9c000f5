"""Add images, or the vectors of an embedding table, to a gallery: only new and changed images are embedded."""

import errno
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from sightline.data.dataset import ImageDataset, consecutive
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import (
    BOX,
    IMAGE_SUFFIXES,
    Manifest,
    check_lists,
    read_manifest,
    split_lists,
    typed_table,
)
from sightline.data.transforms import eval_transform
from sightline.errors import InputError, names, raise_faults
from sightline.files import file_hash, replaced_folder
from sightline.gallery.gallery import (
    ENCODER_FOLDER,
    HASH,
    PREFIX,
    ROOT,
    SIZE,
    TIME,
    Gallery,
    Value,
    batches,
    checked_vectors,
    image_path,
    labels_of,
    may_be_id,
    noted_root,
    some,
    stored_path,
)
from sightline.gallery.relabel import keep_correction
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.progress import tracked
from sightline.ranking.refine import augment_gallery
from sightline.ranking.similarity import unit

SAME_IMAGE = 0.99  # cosine of two vectors of an image, by backends of different precision
CHUNK = 512  # images embedded and committed at a time
LIST = Path("the list of images")  # where a manifest of listed files comes from, for messages
Images = Manifest | EmbeddingTable
ImageSource = str | Path | Sequence[str | Path] | Images
Rows = list[dict[str, Any]]
Known = dict[str, dict[str, Value]]
Encode = Callable[[Rows, dict[int, str]], NDArray[np.float32]]


@dataclass
class IngestSummary:
    """What happened to the images of a source; as text, the counts that are not 0.

    Attributes:
        added: new items.
        changed: items whose image changed and was embedded again.
        relabelled: items whose metadata changed and whose image did not.
        unchanged: items left as they are.
        pruned: items removed because the source no longer has them.
        left_out: images not added because their items were removed from the gallery before.
        unreadable: one sentence for each image that was skipped because it could not be read.
    """

    added: int = 0
    changed: int = 0
    relabelled: int = 0
    unchanged: int = 0
    pruned: int = 0
    left_out: int = 0
    unreadable: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in ("added", "changed", "relabelled", "unchanged", "pruned")}
        counts |= {
            "unreadable": len(self.unreadable),
            "left out: removed before (--restore-removed adds them)": self.left_out,
        }
        return ", ".join(f"{value} {name}" for name, value in counts.items() if value) or "nothing to do"


def read_source(source: ImageSource, split: str | None = None) -> Images:
    """The manifest or embedding table that a source describes; see :meth:`Gallery.add_images`.

    Args:
        source: a folder, a manifest or table or its file, one image file, or a list of image files.
        split: keep only this split.
    """
    if isinstance(source, Manifest | EmbeddingTable):
        found: Images = source
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        if EmbeddingTable.is_at(path):
            found = EmbeddingTable.read(path)
        elif path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
            found = _listed_images([path])
        else:
            found = read_manifest(path, labelled=False)
    else:
        found = _listed_images(source)
    return found if split is None else found.split(split)


def _listed_images(files: Sequence[str | Path]) -> Manifest:
    """A manifest of image files; their ids are the paths as given."""
    if not isinstance(files, Iterable):
        raise InputError(f"images must be a path, a list of paths, a manifest or a table, got {type(files).__name__}")
    listed = list(files)
    wrong = [f"image {place} must be a path, got {file!r}" for place, file in enumerate(listed) if not _is_path(file)]
    raise_faults("images", wrong)
    ids = [Path(os.path.normpath(file)).as_posix() for file in listed]
    if twice := [id_ for id_, n in Counter(ids).items() if n > 1]:
        raise InputError(f"images must be unique, got {len(twice)} more than once: {some(twice)}")
    table = pl.DataFrame({"id": ids, "path": ids, "split": ["train"] * len(ids)})
    return Manifest(LIST, Path.cwd(), table, n_levels=0)


def _is_path(file: object) -> bool:
    return isinstance(file, str | Path) and may_be_id(str(file))


class Source:
    """Tells the items of one source, a folder or a manifest's folder, from all others in a gallery.

    Args:
        folder: the gallery's, if it has one.
        root: the source's.
        moved_from: where the source was before, if it was moved without the gallery; it must not exist any more.
    """

    def __init__(self, folder: Path | None, root: Path, moved_from: Path | None = None) -> None:
        if moved_from is not None and moved_from.exists():
            raise InputError(
                f"moved_from (--moved-from) {moved_from} still exists, so {root} is another folder; use prefix (--prefix)"
            )
        self.folder = folder
        self.roots = [path.resolve() for path in (root, moved_from) if path is not None]
        self.noted = [stored_path(folder and folder.resolve(), path) for path in self.roots]
        self._found: dict[str, Path] = {}

    def path_of(self, noted: str) -> Path:
        """The full path of a stored root."""
        if noted not in self._found:  # millions of items share a root
            self._found[noted] = image_path(self.folder, {"path": noted}) or Path(noted)
        return self._found[noted]

    def is_root(self, noted: str) -> bool:
        """Whether a stored root is this source's."""
        return noted in self.noted or self.path_of(noted) in self.roots

    def has(self, id_: str, metadata: Mapping[str, Value]) -> bool:
        """Whether an item came from this source."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.is_root(noted)
        origin = self.origin(id_, metadata)
        return origin is not None and any(origin.is_relative_to(root) for root in self.roots)

    def origin(self, id_: str, metadata: Mapping[str, Value]) -> Path | None:
        """The root of an item, or the folder of its image if no root is stored; None if neither is known."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.path_of(noted)
        file = image_path(self.folder, metadata) if metadata.get(HASH) is not None else None
        return None if file is None else file.parent


def index_images(
    gallery: Gallery,
    encoder: Encoder | None,
    images: Images,
    *,
    prune: bool = False,
    prefix: str | None = None,
    moved_from: Path | None = None,
    restore_removed: bool = False,
    codes: str | None = None,
    batch_size: int = 64,
    n_workers: int = 0,
    show_progress: bool = False,
) -> IngestSummary:
    """Add the images of a manifest or the vectors of a table to a gallery; see :meth:`Gallery.add_images`.

    An image whose file has the same size and time as before is not opened; if only the time differs, its bytes are
    compared by their hash. The vectors of a table are added as they are, and no image is opened. Columns become metadata
    (those of a CSV file as numbers or booleans if all their values are), beside the file's size, time and hash.

    The root of the images is stored with each item. If another source has the same id, InputError is raised before
    anything is written.
    """
    manifest = _with_lists(images, codes)
    if prune and manifest.source == LIST:
        raise InputError("prune compares the gallery with a folder or manifest; images is a list of files")
    source, done = Source(gallery.folder, manifest.root, moved_from), IngestSummary()
    prefix = _prefix_of(gallery, source) if prefix is None else prefix.strip("/")
    rows = _described(manifest, source.noted[0], prefix)
    if isinstance(images, EmbeddingTable):
        gallery.check_encoder(images.fingerprint)
        places = {row["id"]: place for place, row in enumerate(rows)}
        add_rows = partial(_add_vectors, gallery, images.vectors, places)
    else:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        add_rows = partial(_add_images, gallery, partial(_vectors, encoder, batch_size, n_workers))
    known = set(gallery.ids())
    _check_others(gallery, source, manifest, [row for row in rows if row["id"] in known])
    if prune:
        done.pruned = _prune(gallery, source, prefix, sorted(known - {str(row["id"]) for row in rows}))
    if not restore_removed:
        removed = gallery.removed()
        kept = [row for row in rows if row["id"] not in removed or not source.is_root(removed[row["id"]])]
        rows, done.left_out = kept, len(rows) - len(kept)
    parts = list(batches(rows, CHUNK))
    try:
        for part in tracked(parts, "Indexing", len(parts), show_progress):
            old = dict(_known(gallery, [row["id"] for row in part if row["id"] in known]))
            add_rows(part, old, done)
    except InputError as error:
        if not isinstance(error.__cause__, sqlite3.Error):
            raise
        state = f"{len(gallery)} items are in, {done.added + done.changed} of them written just now"
        raise InputError(f"{error}: {state}; the same call continues from there") from error.__cause__
    return done


def _with_lists(images: Images, codes: str | None) -> Manifest:
    """The manifest of the images, the text of the column ``codes`` split into lists, and all lists checked."""
    manifest = images.manifest if isinstance(images, EmbeddingTable) else images
    manifest = manifest if codes is None else split_lists(manifest, codes)
    check_lists(manifest)
    return manifest


def _prefix_of(gallery: Gallery, source: Source) -> str:
    """The prefix of the items of a source; empty if they have none."""
    of_root = f"{ROOT} in {source.noted!r}"
    prefixed = gallery.filter(f"{of_root} and {PREFIX} != None")
    if not prefixed:
        return ""
    found = {str(row[PREFIX]) for row in gallery.metadata(prefixed)}
    if len(found) > 1 or gallery.filter(f"{of_root} and {PREFIX} == None"):
        raise InputError(
            f"{source.roots[0]}: {gallery.address} has its images under several prefixes, such as {some(sorted(found))}; "
            "choose one with prefix (--prefix), '' for none"
        )
    return found.pop()


def _check_others(gallery: Gallery, source: Source, manifest: Manifest, rows: Rows) -> None:
    """Raise InputError if another source's images have the same ids: they would be replaced."""
    known = _known(gallery, [row["id"] for row in rows])
    pairs = [(row, before) for row, (_, before) in zip(rows, known, strict=True) if not _is_same(source, row, before)]
    others = {row["id"]: source.origin(row["id"], before) for row, before in pairs}
    if others:
        first, origin = next(iter(others.items()))
        shown = names(list(others)[:3])
        is_gone = origin is not None and not origin.exists()
        hint = f"; if the images were moved, give moved_from (--moved-from {origin})" if is_gone else ""
        raise InputError(
            f"{gallery.address}: {len(others)} ids of {manifest.source} belong to other images there, such as {shown}. "
            f"{first!r} there {'was uploaded or added as a vector' if origin is None else f'is from {origin}'}, here it is "
            f"from {source.roots[0]}. Nothing was changed; prefix (--prefix NAME) puts NAME/ before the new ids{hint}"
        )


def _is_same(source: Source, row: dict[str, Any], before: dict[str, Value]) -> bool:
    """Whether an image is that of the item with its id, changed or not."""
    has_file = before.get(HASH) is not None
    if source.has(row["id"], before) or (has_file and image_path(source.folder, before) == Path(row["path"])):
        return True
    origin = source.origin(row["id"], before)
    if has_file and origin is not None and not origin.exists():
        with suppress(OSError):  # its folder is gone; if this is its image, it was moved
            return _file_known(row, before)[HASH] == before[HASH]
    return False


def _known(gallery: Gallery, ids: Sequence[str]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Ids with the metadata of their items, read in parts."""
    for part in batches(ids, CHUNK):
        yield from zip(part, gallery.metadata(part), strict=True)


def _prune(gallery: Gallery, source: Source, prefix: str, ids: list[str]) -> int:
    """Remove the items that came from a source with this prefix; returns how many."""
    gone = [id_ for id_, row in _known(gallery, ids) if source.has(id_, row) and (row.get(PREFIX) or "") == prefix]
    gallery.remove(gone, remember=False)
    return len(gone)


def _described(manifest: Manifest, root: str, prefix: str) -> Rows:
    """The rows of a manifest with full paths and their root."""
    start, origin = (f"{prefix}/", {ROOT: root, PREFIX: prefix}) if prefix else ("", {ROOT: root})
    rows = zip(typed_table(manifest).iter_rows(named=True), manifest.paths(), strict=True)
    return [{**row, "id": f"{start}{row['id']}", "path": os.path.realpath(path), **origin} for row, path in rows]


def _add_images(gallery: Gallery, encode: Encode, rows: Sequence[dict[str, Any]], old: Known, done: IngestSummary) -> None:
    readable: Rows = []
    for row in rows:
        try:
            readable.append(row | _file_known(row, old.get(row["id"], {})))
        except OSError as error:
            done.unreadable.append(f"{row['path']}: {error.strerror}")
    same = [row for row in readable if _has_same_image(row, old.get(row["id"], {}))]
    others = [row for row in readable if not _has_same_image(row, old.get(row["id"], {}))]
    _write(gallery, *_embedded(encode, others, done.unreadable), same, old, done)


def _has_same_image(row: dict[str, Any], before: dict[str, Value]) -> bool:
    return all(before.get(key) == row.get(key) for key in (HASH, *BOX))


def _add_vectors(
    gallery: Gallery,
    table: NDArray[np.float32],
    places: dict[str, int],
    rows: Sequence[dict[str, Any]],
    old: Known,
    done: IngestSummary,
) -> None:
    vectors = table[[places[row["id"]] for row in rows]]
    stored = checked_vectors(vectors, gallery.identity.dim, gallery.metric)
    there = dict(zip(old, gallery.vectors(list(old)), strict=True))
    same, new = [], []
    for place, row in enumerate(rows):
        before = old.get(row["id"])
        if before is None or not np.allclose(stored[place], there[row["id"]], rtol=1e-5, atol=1e-6):
            new.append(place)
        else:  # the same image: keep the size, time and hash it was indexed with
            same.append(row | {key: before[key] for key in (SIZE, TIME, HASH) if key in before})
    _write(gallery, [rows[place] for place in new], vectors[new], same, old, done)


def _write(
    gallery: Gallery, embedded: Rows, vectors: NDArray[np.float32], same: Rows, old: Known, done: IngestSummary
) -> None:
    """Write new vectors, and new metadata of images that did not change: in one call, so no reader sees a part."""
    folder = gallery.folder and gallery.folder.resolve()
    kept = [keep_correction(row, old[row["id"]]) for row in same]
    rows = [{**row, "path": stored_path(folder, Path(row["path"]))} for row in embedded + kept]
    relabelled = [row for row in rows[len(embedded) :] if not _is_as_before(old[row["id"]], row)]
    if written := rows[: len(embedded)] + relabelled:
        table = np.concatenate([vectors, gallery.vectors([row["id"] for row in relabelled])])
        gallery.upsert([row["id"] for row in written], table, written)
    n_changed = sum(row["id"] in old for row in embedded)
    done.changed += n_changed
    done.added += len(embedded) - n_changed
    done.relabelled += len(relabelled)
    done.unchanged += len(same) - len(relabelled)


def _is_as_before(before: dict[str, Value], row: dict[str, Any]) -> bool:
    """Whether an item did not change; a root that an earlier version did not store is no change."""
    return before == {key: value for key, value in row.items() if key != "id" and (key != ROOT or ROOT in before)}


def _file_known(row: dict[str, Any], before: dict[str, Value]) -> dict[str, Value]:
    """Size, time and hash of an image's file; it is not read if size and time are as stored."""
    file = Path(row["path"]).stat()
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", row["path"])
    touched = before.get(SIZE) != file.st_size or before.get(TIME) != file.st_mtime_ns
    return {
        SIZE: file.st_size,
        TIME: file.st_mtime_ns,
        HASH: file_hash(Path(row["path"])) if touched else before[HASH],
    }


def _embedded(encode: Encode, rows: Rows, unreadable: list[str]) -> tuple[Rows, NDArray[np.float32]]:
    """The rows whose images can be read, and their vectors."""
    broken: dict[int, str] = {}
    vectors = encode(rows, broken)
    unreadable += [broken[place] for place in sorted(broken)]
    kept = [place for place in range(len(rows)) if place not in broken]
    return [rows[place] for place in kept], vectors[kept]


def _vectors(encoder: Encoder, batch_size: int, n_workers: int, rows: Rows, broken: dict[int, str]) -> NDArray[np.float32]:
    if not rows:
        return np.empty((0, encoder.dim), np.float32)
    transform = eval_transform(encoder.settings.preprocessing)
    dataset = ImageDataset([Path(row["path"]) for row in rows], transform, [_box(row) for row in rows])
    n_workers = min(n_workers, len(consecutive(len(rows), batch_size)))
    return encoder.encode_dataset(dataset, batch_size, n_workers, broken=broken)


def _box(row: dict[str, Any]) -> tuple[int, int, int, int] | None:
    left, top, right, bottom = (row.get(side) for side in BOX)
    return None if left is None else (left, top, right, bottom)  # type: ignore[return-value]


def gallery_table(gallery: Gallery) -> EmbeddingTable:
    """All items of a gallery as a table, in the order they were added.

    It has ``id``, ``path``, ``split`` (``train`` if an item has none) and the label levels that every item has.
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
    labels = list(map(labels_of, known))
    n_levels = min(map(len, labels))
    columns |= {f"label_{level}": [row[level] for row in labels] for level in range(n_levels)}
    manifest = Manifest(Path(gallery.address), Path(gallery.address), pl.DataFrame(columns), n_levels)
    return EmbeddingTable(manifest, gallery.vectors(ids), gallery.identity.fingerprint)


def with_scorer_inputs(gallery: Gallery, table: EmbeddingTable, encoder: Encoder) -> EmbeddingTable:
    """The table of a gallery's items with what scorers take besides vectors, from their images.

    Args:
        gallery: left as it is.
        table: by :func:`gallery_table`.
        encoder: the gallery's.
    """
    missing = [id_ for id_, path in zip(table.ids, table.manifest.table["path"], strict=True) if not path]
    if missing:
        raise InputError(f"{gallery.address}: {len(missing)} items have no image, the first is {missing[0]!r}")
    known = gallery.metadata(table.ids)
    boxes = [pl.Series(side, [row.get(side) for row in known], pl.Int64, strict=False) for side in BOX]
    manifest = replace(table.manifest, table=table.manifest.table.with_columns(boxes))
    found = embed_manifest(encoder, manifest, show_progress=True, scorer_inputs=True)
    far = (unit(torch.from_numpy(found.vectors)) * unit(torch.from_numpy(table.vectors))).sum(1) < SAME_IMAGE
    if far.any():
        first = table.ids[int(far.nonzero()[0])]
        raise InputError(
            f"{gallery.address}: {int(far.sum())} images are no longer those of its vectors, the first is {first!r}; "
            "index them again with `sightline index add`"
        )
    return replace(table, inputs=found.inputs)


def write_augmented(gallery: Gallery, folder: Path, k: int, alpha: float = 2.0, index: str = "auto") -> int:
    """Write a gallery in which each item is averaged with its nearest others; it appears complete or not at all.

    All pairs are compared. Ids, metadata and encoder are copied; the rejector is not, because similarities to the averaged
    items differ.

    Args:
        gallery: not changed.
        folder: must not exist, or be empty.
        k: neighbours to average each item with.
        alpha: neighbours are weighted by their similarity to this power.
        index: as in :meth:`Gallery.create`; not built yet.

    Returns:
        The number of items written.
    """
    ids = gallery.ids()
    vectors = augment_gallery(torch.from_numpy(gallery.vectors(ids)), k, alpha).numpy()
    known = [dict(row) for row in gallery.metadata(ids)]
    for row in known:
        for key in ("path", ROOT):
            if (path := image_path(gallery.folder, {"path": row.get(key)})) is not None:
                row[key] = stored_path(folder.resolve(), path)
    encoder = gallery.identity if gallery.model_folder(ENCODER_FOLDER) is None else gallery.encoder()
    with (
        replaced_folder(folder) as scratch,
        Gallery.create(scratch, encoder, index=index, metric=gallery.metric) as written,
    ):
        written.add(ids, vectors, known)
    return len(ids)
