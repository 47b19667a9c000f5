"""Run an encoder over a manifest into a table."""

import os
from pathlib import Path

import polars as pl
import torch

from sightline.data.dataset import ImageDataset
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest, read_manifest
from sightline.data.transforms import eval_transform
from sightline.errors import InputError
from sightline.models.encoder import Encoder, check_encoder
from sightline.models.scorer_inputs import ScorerInputs, split_rows


def embed_manifest(
    encoder: Encoder,
    manifest: Manifest | Path | str,
    batch_size: int = 64,
    n_workers: int = 0,
    show_progress: bool = False,
    backend: str | None = None,
    scorer_inputs: bool = False,
) -> EmbeddingTable:
    """A vector for each image of the manifest, in its order; one error names all images that cannot be read.

    Args:
        encoder: what embeds.
        manifest: the images; or a ``.csv`` or ``.parquet`` file, or a folder of images, with or without labels.
        batch_size: images in one pass through the model.
        n_workers: processes that read images ahead; 0 reads them in threads.
        show_progress: draw a progress bar.
        backend: what computes; see :meth:`Encoder.encode`.
        scorer_inputs: also store what scorers of :mod:`sightline.ood` take besides vectors, computed in the same pass.
    """
    check_encoder(encoder)
    if isinstance(manifest, str | Path):
        manifest = read_manifest(Path(manifest), labelled=False)
    if not isinstance(manifest, Manifest):
        raise InputError(
            f"manifest must be a Manifest, a file or a folder of images, got {type(manifest).__name__}; "
            "Encoder.encode takes a list of images"
        )
    dataset = ImageDataset.of(manifest, eval_transform(encoder.settings.preprocessing))
    rows = encoder.encode_dataset(dataset, batch_size, n_workers, show_progress, backend, scorer_inputs=scorer_inputs)
    inputs = split_rows(rows, ScorerInputs(encoder).widths) if scorer_inputs else {"vectors": rows}
    return EmbeddingTable(manifest, inputs.pop("vectors"), encoder.fingerprint(), inputs)


def own_part(manifest: Manifest, out: Path) -> tuple[Manifest, Path]:
    """The images that this process of ``torchrun`` has to embed, and the file for them; alone, all and the file given.

    Of four processes the second takes the second quarter and writes ``table-00001-of-00004.parquet``. Each part is a table
    of its own, so that a process that fails is started again by itself.
    """
    rank, n_processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if n_processes == 1:
        return manifest, out
    first, last = (len(manifest) * edge // n_processes for edge in (rank, rank + 1))
    part = manifest.where(pl.int_range(pl.len()).is_between(first, last, closed="left"))
    return part, out.with_name(f"{out.stem}-{rank:05}-of-{n_processes:05}{out.suffix}")


def own_device() -> torch.device:
    """The GPU of this process of ``torchrun``, or the first; the CPU where there is none."""
    place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    return torch.device(place)
