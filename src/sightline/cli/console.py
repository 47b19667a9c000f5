"""What commands share: the one way to print, reading what they are given, options that belong together as one parameter."""

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


def echo(message: object, err: bool = False) -> None:
    """Print a line to standard output, or to standard error, by way of :func:`sightline.progress.printable`."""
    typer.echo(printable(str(message)), err=err)


@dataclass(frozen=True)
class RefineOptions:
    """What is done after the first ranking."""

    expand: Annotated[
        int, typer.Option(min=0, help="Expand each query by so many neighbours: at most the other images of one thing.")
    ] = 0
    alpha: Annotated[float, typer.Option(min=0, help="Power of their similarity that neighbours are weighted by.")] = 2.0
    rerank: Annotated[str | None, typer.Option(help="Re-rank the first results: kreciprocal.")] = None
    depth: Annotated[int, typer.Option(min=1, help="How many of them, at least those that are shown.")] = 100
    reciprocal: Annotated[
        int, typer.Option(min=1, help="Neighbours that re-ranking looks at: about the images of one thing.")
    ] = 20

    def refinement(self) -> "Refinement":
        """The same, as search and evaluation take it."""
        from sightline.ranking.refine import Refinement

        return Refinement(self.expand, self.alpha, self.rerank, self.depth, self.reciprocal)


def named_values(option: str, words: list[str]) -> dict[str, str]:
    """What ``name=value`` words of an option say."""
    if wrong := [word for word in words if not all(word.partition("="))]:
        raise InputError(f"{option} {wrong[0]!r}: name=value is needed")
    found = dict(word.split("=", 1) for word in words)
    if len(found) < len(words):
        raise InputError(f"{option} {' '.join(words)}: a name is given twice")
    return found


def read_encoder(folder: Path, trust: bool = False) -> "Encoder":
    """The encoder of a folder; imported here, for help and faults in options need no torch."""
    from sightline.models.encoder import Encoder

    return Encoder.from_pretrained(folder, trust=trust)


def encoder_for(gallery: "Gallery", folder: Path | None, trust: bool) -> "Encoder | None":
    """The encoder of the folder given, or the gallery's own with ``trust``; None lets the gallery load its own."""
    if folder is not None:
        return read_encoder(folder, trust)
    return gallery.encoder(trust) if trust else None


def read_table(file: Path, split: str | None = None) -> "EmbeddingTable":
    """A table by ``sightline embed``; one split of it, None for all."""
    from sightline.data.embedding_table import EmbeddingTable

    table = EmbeddingTable.read(file)
    return table if split is None else table.split(split)


def read_images(source: Path, split: str | None) -> "Images":
    """A manifest or a folder of images, or a table by ``sightline embed``; one split of it, None for all."""
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.data.manifest import read_manifest

    if EmbeddingTable.is_at(source):
        return read_table(source, split)
    manifest = read_manifest(source, labelled=False)
    return manifest if split is None else manifest.split(split)


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
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)}) for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
