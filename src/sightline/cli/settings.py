"""Options that belong together, as one parameter of a command."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sightline.ranking.refine import Refinement


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
