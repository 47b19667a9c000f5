"""Embedding tables measured: who queries whom is in their columns."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.data.readers.dyml import LEVELS
from sightline.errors import InputError, names
from sightline.evaluation.protocol import DEFAULT_KS, NEVER, by_labels, classes_of, measured, places_of
from sightline.evaluation.refined import Steps, refined
from sightline.evaluation.result import Result
from sightline.evaluation.statistics import Counts
from sightline.evaluation.streaming import Vectors


def evaluate_table(
    table: EmbeddingTable,
    ks: Sequence[int] = DEFAULT_KS,
    gallery: EmbeddingTable | None = None,
    metrics: Sequence[str] | None = None,
    steps: Steps | None = None,
    exclude: str | None = None,
    trust: bool = False,
) -> Result:
    """:func:`evaluate` on an embedding table, or on one that queries another; after whitening, expansion and so on.

    Where a table says which images are queries or gallery (``is_query``, ``is_gallery``; empty means neither), the queries
    rank the gallery; otherwise every image is both. An image that is both, by its id, is never in its own list. ``exclude``
    names a column, such as the camera: images with the query's own value in it are in no list; an empty one is no value.
    ``trust`` imports metrics that are named by a path.
    """
    other = gallery or table
    check_same_encoder(table, other)
    for one in (table, other):
        _check_one_set(one.manifest)
        if not one.manifest.n_levels:
            raise InputError(f"{one.manifest.source}: its images have no labels to evaluate by")
    is_query, is_gallery = has_role(table.manifest, "is_query"), has_role(other.manifest, "is_gallery")
    queries = Vectors(table.vectors, str(table.manifest.source))
    items = queries if gallery is None else Vectors(other.vectors, str(other.manifest.source))
    labels, item_labels = table_labels(table, gallery)
    ids, item_ids = np.array(table.ids)[is_query], np.array(other.ids)[is_gallery]
    queries, items = Vectors(queries.table[is_query], "queries"), Vectors(items.table[is_gallery], "gallery")
    own, rescored = places_of(ids, item_ids), None
    if steps is not None:
        queries, items, rescored = refined(queries, items, own, steps)
    groups = None
    if exclude is not None:
        sources, item_sources = _groups(table, other, exclude)
        groups = sources[is_query], item_sources[is_gallery]
    lists = by_labels(queries, items, labels[is_query], item_labels[is_gallery], own, groups)
    lists = replace(lists, rescored=rescored)
    result = measured(lists, ks, metrics, "population", "exponential", "worst", trust=trust)
    return replace(result, ids=ids.tolist(), labels=classes_of(labels[is_query]), fingerprint=table.fingerprint)


def check_same_encoder(table: EmbeddingTable, other: EmbeddingTable) -> None:
    """Refuse vectors of two encoders."""
    if other.fingerprint != table.fingerprint:
        raise InputError(
            f"{table.manifest.source} and {other.manifest.source}: vectors of two different encoders, "
            f"{table.fingerprint} and {other.fingerprint}, cannot be compared"
        )


def _check_one_set(manifest: Manifest) -> None:
    """Refuse the test images of DyML-Vehicle and DyML-Animal as one set: they are three, one for each label level."""
    rows = manifest.table
    if "test_level" in rows.columns and rows["test_level"].is_in(LEVELS).any():
        raise InputError(
            f"{manifest.source}: its test images are three sets, one for each label level (column 'test_level'); "
            "measure them with level_sets and sl.evaluate_dyml, as docs/data.md shows"
        )


def has_role(manifest: Manifest, role: str) -> NDArray[np.bool_]:
    """(N,) which images have a role, ``is_query`` or ``is_gallery``: all of them where the manifest does not say."""
    rows = manifest.table
    told = role in rows.columns and rows[role].count()
    return rows[role].fill_null(False).to_numpy() if told else np.ones(len(rows), bool)


def _groups(table: EmbeddingTable, other: EmbeddingTable, column: str) -> tuple[Counts, Counts]:
    """The values of a column of both, numbered alike."""
    for one in (table, other):
        if column not in one.manifest.table.columns:
            raise InputError(f"{one.manifest.source}: no column {column!r}; it has {names(one.manifest.table.columns)}")
    both = pl.concat([one.manifest.table[column].cast(pl.String) for one in (table, other)])
    numbers = both.rank("dense").cast(pl.Int64).fill_null(NEVER).to_numpy()
    return numbers[: len(table)], numbers[len(table) :]


def table_labels(table: EmbeddingTable, gallery: EmbeddingTable | None) -> tuple[Counts, Counts]:
    """The labels of both, numbered alike."""
    if gallery is None:
        return (table.manifest.labels(),) * 2
    if table.manifest.n_levels != gallery.manifest.n_levels:
        raise InputError(f"labels of {table.manifest.n_levels} and {gallery.manifest.n_levels} levels cannot be compared")
    columns = [f"label_{level}" for level in range(table.manifest.n_levels)]
    both = [[*table.manifest.table[name], *gallery.manifest.table[name]] for name in columns]
    numbers = np.stack([np.unique(np.array(column, str), return_inverse=True)[1] for column in both], 1)
    return numbers[: len(table)], numbers[len(table) :]
