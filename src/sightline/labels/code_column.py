"""The column of a manifest that holds several codes an image: read once, checked, and compared with a tree of codes.

In CSV the codes of a row are one text, ``26.1.15;5.3.13``; in Parquet that text or a list. What is read is a list.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from sightline.data.manifest import Manifest, label_columns, split_lists
from sightline.errors import InputError, counted, raise_faults
from sightline.labels.codes import is_code, normal_codes, sampling_paths, tree_of_codes
from sightline.labels.tree import NOTHING, Tree, read_tree


@dataclass(frozen=True, eq=False)
class CodeTree:
    """The codes that there are.

    Attributes:
        tree: of codes, each below its beginning.
        leaves: refuse images with a code that has others below it.
    """

    tree: Tree
    leaves: bool = True

    @cached_property
    def codes_below(self) -> dict[str, int]:
        """How many codes stand just below each code."""
        counts = np.bincount(self.tree.parents[self.tree.parents != NOTHING], minlength=len(self.tree))
        return dict(zip(self.tree.names, counts.tolist(), strict=True))

    def fault(self, code: str) -> str | None:
        """Why an image may not have the code, or None."""
        n_levels, source = self.tree.n_levels, self.tree.source
        if code.count(".") >= n_levels:
            return f"{code!r} is deeper than the {counted(n_levels, 'level')} of {source}"
        if code not in self.codes_below:
            return f"{code!r} is not in {source}"
        if self.leaves and self.codes_below[code]:
            return f"{code!r} is no leaf of {source}, which has {counted(self.codes_below[code], 'code')} just below it"
        return None


def read_code_tree(file: Path, leaves: bool = True) -> CodeTree:
    """The codes of a table that :func:`~sightline.labels.tree.read_tree` reads; each must be below its own beginning."""
    given = read_tree(file)
    codes = normal_codes(given.names, file)
    above = [None if parent == NOTHING else codes[parent] for parent in given.parents.tolist()]
    pairs = zip(codes, above, strict=True)
    raise_faults(
        file,
        [
            f"{code!r} is below {parent!r}, which is not its beginning {code.rpartition('.')[0]!r}"
            for code, parent in pairs
            if parent not in (None, code.rpartition(".")[0])
        ],
    )
    return CodeTree(tree_of_codes(codes, file), leaves)


def read_codes(manifest: Manifest, column: str, known: CodeTree | None = None) -> Manifest:
    """The manifest with the column as lists of codes in one spelling; raises InputError with all faults of its rows.

    A fault is a row without a code, text that is no dotted code, a code twice in a row, and, with a tree, a code that is
    deeper than it, outside it, or no leaf.

    Args:
        manifest: of images.
        column: text such as ``26.1.15;5.3.13``, or lists of text.
        known: the codes that there are; None for any, at any depth.
    """
    manifest = split_lists(manifest, column)
    found = manifest.table[column]
    if found.dtype != pl.List(pl.String):
        raise InputError(f"{manifest.source}: {column} must be lists of text, found {found.dtype}")
    distinct = found.explode().drop_nulls().unique().to_list()
    fitting = [text for text in distinct if is_code(text)]
    spelled = dict(zip(fitting, normal_codes(fitting), strict=True))
    unfit = {} if known is None else {code: fault for code in spelled.values() if (fault := known.fault(code))}
    rows = [[] if row is None else row for row in found.to_list()]
    places = [f"image {name!r}" for name in manifest.table["id"]] if manifest.places is None else manifest.places.to_list()
    raise_faults(
        manifest.source,
        [
            f"{place}: {column} {fault}"
            for place, row in zip(places, rows, strict=True)
            for fault in _row_faults(row, spelled, unfit)
        ],
    )
    lists = pl.Series(column, [[spelled[text] for text in row] for row in rows], dtype=pl.List(pl.String))
    return replace(manifest, table=manifest.table.with_columns(lists))


def _row_faults(row: Sequence[str | None], spelled: dict[str, str], unfit: dict[str, str]) -> Iterator[str]:
    if not row:
        yield "is empty"
    codes = [spelled.get(text or "") for text in row]
    for place, (text, code) in enumerate(zip(row, codes, strict=True)):
        if code is None:
            yield f"has {text!r}, no dotted code such as 26.1.15"
        elif code in codes[:place]:
            yield f"has {code!r} twice"
        elif code in unfit:
            yield f"has {unfit[code]}"


def code_lists(manifest: Manifest, column: str) -> list[list[str]]:
    """The codes of each image, of a column that :func:`read_codes` has read."""
    return manifest.table[column].to_list()


def attach_codes(manifest: Manifest, column: str, known: CodeTree | None = None) -> Manifest:
    """The manifest with the label levels of one code of each image: its rarest that other images have too.

    For what needs one label an image; training and evaluation read the codes themselves, which stay, as lists.

    Args:
        manifest: its label levels, if it has some, are replaced.
        column: of several codes an image.
        known: the codes that there are; None for any.
    """
    read = read_codes(manifest, column, known)
    sets = code_lists(read, column)
    n_levels = deepest(sets) if known is None else known.tree.n_levels
    paths = [[node.rstrip(".") for node in reversed(path)] for path in sampling_paths(sets, n_levels)]
    columns = label_columns(n_levels)
    labels = pl.DataFrame(paths, dict.fromkeys(columns, pl.String), orient="row")
    table = read.table.drop(label_columns(manifest.n_levels)).hstack(labels)
    first = ["id", "path", "split", *columns]
    return replace(read, table=table.select(*first, pl.exclude(first)), n_levels=n_levels)


def deepest(*sets: Sequence[Sequence[str]]) -> int:
    """Levels of the deepest code of all.

    Example:
        >>> deepest([["26.1", "3"]], [["5.3.13"]])
        3
    """
    return max((code.count(".") + 1 for side in sets for codes in side for code in codes), default=1)


def hold_out_codes(manifest: Manifest, column: str, fraction: float, seed: int) -> tuple[Manifest, Manifest]:
    """Two parts: images with a code that is held out, about ``fraction`` of all, after those without any such code.

    Codes come in random order. One is held out if the images with a held-out code then are at most ``fraction`` of all; so
    no image of the larger part has a code that is held out, and common codes, such as those of colours, stay on both sides.
    Codes of a single image are passed over: there is nothing to find.

    Returns:
        The larger part, then the part held out; refused where no code can be held out.
    """
    sets = code_lists(manifest, column)
    carriers: dict[str, list[int]] = {}
    for item, codes in enumerate(sets):
        for code in codes:
            carriers.setdefault(code, []).append(item)
    held_out = np.zeros(len(sets), bool)
    codes = sorted(carriers)
    for place in np.random.default_rng(seed).permutation(len(codes)):
        items = carriers[codes[place]]
        larger = held_out.copy()
        larger[items] = True
        if len(items) > 1 and larger.sum() <= max(fraction * len(sets), 2):
            held_out = larger
    if not held_out.any() or held_out.all():
        raise InputError(
            f"{manifest.source}: no code can be held out for validation: each is of one image, or of more than "
            f"{fraction:g} of them; raise data.val_fraction, or set it to 0"
        )
    rows = pl.lit(pl.Series(held_out))
    return manifest.where(~rows), manifest.where(rows)
