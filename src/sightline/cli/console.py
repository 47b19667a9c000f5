"""What commands share: printing, reading their inputs, and groups of options as one parameter."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.errors import InputError
from sightline.progress import printable

if TYPE_CHECKING:
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.ingest import Images
    from sightline.models.encoder import Encoder
    from sightline.ranking.refine import Refinement


Trust = Annotated[bool, typer.Option("--trust", help="Import and run the module that a wrapped encoder names.")]
BACKENDS = "auto, torch, torch-fp16, torch-bf16, torch-compiled, onnx or openvino"
Backend = Annotated[str, typer.Option(help=f"What runs the encoder: {BACKENDS}.")]
ENCODER = "an encoder folder such as run/encoder, `bundled`, `icons` (for drawings), timm:NAME or owner/name on a hub"


def echo(message: object, err: bool = False) -> None:
    """Print a line to standard output or standard error, escaped by :func:`sightline.progress.printable`."""
    typer.echo(printable(str(message)), err=err)


@dataclass(frozen=True)
class RefineOptions:
    """Query expansion and re-ranking."""

    expand: Annotated[
        int, typer.Option(min=0, help="Expand each query by this many neighbours; at most the other images of a class.")
    ] = 0
    alpha: Annotated[float, typer.Option(min=0, help="Weight neighbours by this power of their similarity.")] = 2.0
    rerank: Annotated[str | None, typer.Option(help="Re-rank the first results; the method is kreciprocal.")] = None
    depth: Annotated[int, typer.Option(min=1, help="Results to re-rank, at least as many as are returned.")] = 100
    reciprocal: Annotated[
        int, typer.Option(min=1, help="Neighbours that re-ranking compares; about the images of a class.")
    ] = 20

    def refinement(self) -> "Refinement":
        """The options as search and evaluation take them."""
        from sightline.ranking.refine import Refinement

        return Refinement(self.expand, self.alpha, self.rerank, self.depth, self.reciprocal)


def named_values(option: str, words: list[str]) -> dict[str, str]:
    """The values of an option that is given as ``name=value`` words, by name."""
    if wrong := [word for word in words if not all(word.partition("="))]:
        raise InputError(f"{option} must be name=value, got {wrong[0]!r}")
    found = dict(word.split("=", 1) for word in words)
    if len(found) < len(words):
        raise InputError(f"{option} gives a name twice: {' '.join(words)}")
    return found


def read_encoder(folder: Path, trust: bool = False, backend: str = "auto") -> "Encoder":
    """The encoder by that name, on a GPU where there is one.

    Imports torch here, so that help and faulty options answer without it.
    """
    from sightline.models.embed import own_device
    from sightline.models.encoder import Encoder
    from sightline.models.inference import check_backend

    check_backend(backend)
    encoder = Encoder.from_pretrained(str(folder), trust=trust).to(own_device())
    encoder.backend = backend
    return encoder


def encoder_for(gallery: "Gallery", folder: Path | None, trust: bool, backend: str) -> "Encoder | None":
    """The encoder of the folder given, or the gallery's own; None lets the gallery load its own once it must."""
    if folder is not None:
        return read_encoder(folder, trust, backend)
    from sightline.models.inference import check_backend

    check_backend(backend)
    if not trust and backend == "auto":
        return None
    encoder = gallery.encoder(trust)
    encoder.backend = backend
    return encoder


def read_table(file: Path, split: str | None = None) -> "EmbeddingTable":
    """A table by ``sightline embed``; one split of it, None for all."""
    from sightline.data.embedding_table import EmbeddingTable

    table = EmbeddingTable.read(file)
    return table if split is None else table.split(split)


def read_images(source: Path, split: str | None) -> "Images":
    """A folder of images, a manifest, or a table from ``sightline embed``; one split of it, None for all."""
    from sightline.gallery.ingest import read_source

    return read_source(source, split)


def expand_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of a parameter whose type is a dataclass.

    A field is declared as a parameter would be: ``depth: Annotated[int, typer.Option(help="...")] = 100``. The parameter
    itself has no default.
    """
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)
    }
    parameters = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in signature.parameters.items()
        for part in (inspect.signature(groups[name]).parameters.values() if name in groups else [one])
    ]

    @wraps(command)
    def run(**given: object) -> None:
        settings = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)}) for name, group in groups.items()
        }
        command(**given, **settings)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
