"""Search an embedding table by image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import label_columns
from sightline.errors import InputError
from sightline.models.encoder import Encoder, ImageInput
from sightline.ranking.nearest import top_k


@dataclass(frozen=True)
class Hit:
    """One result: the image's id, full path, labels (finest first) and similarity to the query."""

    id: str
    path: Path
    labels: tuple[str, ...]
    score: float


def search_images(encoder: Encoder, table: EmbeddingTable, images: Sequence[ImageInput], k: int) -> list[list[Hit]]:
    """The k nearest images of the table for each query image, best first; refused if another encoder made the table."""
    if encoder.fingerprint() != table.fingerprint:
        raise InputError(
            f"{table.manifest.source}: its vectors are of another encoder: "
            f"they have the fingerprint {table.fingerprint}, this one {encoder.fingerprint()}"
        )
    scores, places = top_k(torch.from_numpy(encoder.encode(images)), torch.from_numpy(table.vectors), k)
    rows, labels = table.manifest.table, label_columns(table.manifest.n_levels)
    paths = table.manifest.paths()
    return [
        [
            Hit(rows["id"][place], paths[place], tuple(rows[label][place] for label in labels), score)
            for place, score in zip(row_places, row_scores, strict=True)
        ]
        for row_places, row_scores in zip(places.tolist(), scores.tolist(), strict=True)
    ]
