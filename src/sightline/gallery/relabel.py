"""Correct the labels of a gallery's items by hand, and write all items as a manifest for the next training."""

from collections.abc import Mapping
from itertools import count
from re import match

import polars as pl

from sightline.data.manifest import label_columns
from sightline.errors import InputError
from sightline.gallery.gallery import FILE_KEYS, Gallery, Value, image_path, labels_of, lists_of

LONGEST_LABEL = 1000  # characters
ORIGINAL = "original_"  # of a relabelled item, the labels from before: original_label_0, original_label_1, ...
MARK = f"{ORIGINAL}label_0"


def relabel(gallery: Gallery, id_: str, label: str | None) -> tuple[dict[str, Value], bool]:
    """Set the finest label of an item; all of it is kept, or nothing.

    Its coarser labels become those of another item with that label, or stay if there is none. The labels from before are
    kept as ``original_label_0`` and so on.

    Args:
        gallery: open for writing.
        id_: of the item.
        label: the class it belongs to; None, or its label from before, takes the correction back.

    Returns:
        The item's metadata, and whether no other item has this label.
    """
    if label is not None and not 0 < len(label := label.strip()) <= LONGEST_LABEL:
        raise InputError(f"label must have 1 to {LONGEST_LABEL} characters, blanks around it aside, got {len(label)}")
    with gallery.writing():
        before = gallery.metadata([id_])[0]
        current, original = _labels(before), _labels(before, ORIGINAL)
        source = original or current or {"label_0": None}
        wanted = source["label_0"] if label is None else label
        others = [] if wanted is None else [one for one in gallery.filter(f"label_0 == {wanted!r}") if one != id_]
        if wanted == source["label_0"]:
            labels: dict[str, Value] = {key: value for key, value in source.items() if value is not None}
        else:
            labels = (_labels(gallery.metadata(others[:1])[0]) if others else current) | {"label_0": wanted}
            labels |= {ORIGINAL + key: value for key, value in source.items()}
        plain = {key: value for key, value in before.items() if key.removeprefix(ORIGINAL) not in current | original}
        gallery.upsert([id_], gallery.vectors([id_]), [plain | labels])
        return plain | labels, not others


def keep_correction(row: dict[str, Value], before: Mapping[str, Value]) -> dict[str, Value]:
    """The row of an image with the labels that its item was given by hand, unless its source has changed them since."""
    original = _labels(before, ORIGINAL)
    from_source = _labels(row)
    if not original or from_source != {key: value for key, value in original.items() if value is not None}:
        return row
    marks = {ORIGINAL + key: value for key, value in original.items()}
    return {key: value for key, value in row.items() if key not in from_source} | _labels(before) | marks


def corrected_manifest(gallery: Gallery) -> tuple[pl.DataFrame, int]:
    """The items of a gallery as a manifest, with all their metadata, and how many were left out.

    Left out are items without a label or an image. The levels are those that all others have; ``original_label_0`` tells
    which were relabelled.
    """
    rows = list(zip(gallery.ids(), gallery.metadata(gallery.ids()), strict=True))
    kept = [(id_, row) for id_, row in rows if labels_of(row) and row.get("path")]
    if not kept:
        raise InputError(f"{gallery.address}: no item has a label and an image, so there is nothing to train on")
    levels = label_columns(min(len(labels_of(row)) for _, row in kept))
    own = {"id", "path", "split", *levels}
    names = dict.fromkeys(
        key for _, row in kept for key in row if key not in FILE_KEYS and not match(r"label(_\d+)?$", key)
    )
    listed = {name for _, row in kept for name in lists_of(row)}
    table: list[dict[str, str | list[str] | None]] = [
        {
            "id": id_,
            "path": str(image_path(gallery.folder, row)),
            "split": str(row.get("split") or "train"),
            **{level: str(row[level]) for level in levels},
            **{name: _as_field(row.get(name), name in listed) for name in names if name not in own},
        }
        for id_, row in kept
    ]
    return pl.DataFrame(table, infer_schema_length=None), len(rows) - len(kept)


def _labels(metadata: Mapping[str, Value], start: str = "") -> dict[str, Value]:
    """``label_0``, ``label_1`` and so on with the values that they have after this start of their keys."""
    n_levels = next(level for level in count() if f"{start}label_{level}" not in metadata)
    return {f"label_{level}": metadata[f"{start}label_{level}"] for level in range(n_levels)}


def _as_field(value: Value, is_list: bool) -> str | list[str] | None:
    """The field of a table: text, or a list where other items have one."""
    if value is None or isinstance(value, list):
        return value
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [text] if is_list else text
