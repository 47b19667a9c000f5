"""Write a collection as one folder that is there complete or not at all."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from sightline.errors import InputError
from sightline.files import read_json, replaced_folder

MANIFEST = "manifest.csv"
RECORD = "collection.json"
Record = dict[str, str | int | list[str]]


def split_of(collection: str, label: str) -> str:
    """The split of a class, from a hash of its name: half the classes ``test``, a twentieth ``val``, the rest ``train``.

    A class keeps its split whatever else a later version of the collection adds.

    Example:
        >>> split_of("emoji", "grinning")
        'test'
    """
    digest = hashlib.sha256(f"{collection}/{label}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < 0.5 else "val" if place < 0.55 else "train"


def write_collection(folder: Path, record: Record, fill: Callable[[Path], tuple[pl.DataFrame, str]]) -> Path:
    """Write images, ``SOURCES.md`` and ``manifest.csv``, whose path is returned; at once if all is there.

    The folder appears when it is complete: until then the work is in a hidden one beside it, which a failure removes.

    Args:
        folder: new, empty, or with this very collection; any other is refused and left as it is.
        record: what makes this collection this one: its name, the version of its code, its packages.
        fill: given an empty folder, writes the images and returns the manifest and the text of ``SOURCES.md``.
    """
    if _is_finished(folder, record):
        return folder / MANIFEST
    try:
        with replaced_folder(folder) as draft:
            manifest, sources = fill(draft)
            manifest.write_csv(draft / MANIFEST)
            (draft / "SOURCES.md").write_text(sources, encoding="utf-8")
            text = json.dumps(record | {"n_images": len(manifest)}, indent=2) + "\n"
            (draft / RECORD).write_text(text, encoding="utf-8")
    except InputError:
        if not _is_finished(folder, record):  # another process may have been faster
            raise
    return folder / MANIFEST


def _is_finished(folder: Path, record: Record) -> bool:
    """True if the folder holds the collection that the record describes, False if it holds nothing; refused otherwise."""
    if folder.is_dir() and not any(folder.iterdir()):
        return False
    if not folder.exists():
        return False
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no such file, not JSON, not a table
        found = read_json(folder / RECORD, folder)
        if (folder / MANIFEST).is_file() and record.items() <= found.items():
            return True
    raise InputError(f"{folder}: not empty, and not {record['data']!r} as this version makes it; choose another folder")


def sources_page(title: str, sentences: Sequence[str], packages: Sequence[tuple[str, str, str, int]]) -> str:
    """The text of ``SOURCES.md``: what the collection is, then package, version, licence and images of each source."""
    lines = [f"# {title}", "", *sentences, "", "| package | version | licence | images |", "|---|---|---|---|"]
    lines += [f"| {name} | {version} | {licence} | {n_images} |" for name, version, licence, n_images in packages]
    return "\n".join(lines) + "\n"
