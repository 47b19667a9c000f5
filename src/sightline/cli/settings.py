"""Options that belong together, as one parameter of a command."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any


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
