"""Things by name: a table of their own, other packages' entry points, and import paths; one check of options for all.

A :class:`Registry` is the one place where a kind of thing is listed. Lists, command line help, recipe validation, reference
pages and generated tests read it. Another package adds names by an entry point in the registry's group; a user names
anything importable as ``package.module:Name``, which is imported only where that is trusted.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from sightline.errors import InputError, nearest

T = TypeVar("T")
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """What makes things of one kind, by name.

    Attributes:
        kind: what such a thing is called in messages, such as ``loss``.
        table: makers by name; an import path in place of one is loaded on first use.
        group: the group of entry points by which other packages add names; a name of the table wins.
        accepts: whether something imported from elsewhere can be a maker of this kind.
        wanted: what that would be, for the message.

    Example:
        >>> shapes = Registry("shape", {"pair": "collections:Counter"}, "example.shapes")
        >>> shapes.names()
        ['pair']
        >>> shapes.find("piar")
        Traceback (most recent call last):
        sightline.errors.InputError: unknown shape 'piar': did you mean 'pair'?
    """

    kind: str
    table: Mapping[str, Callable[..., T] | str]
    group: str
    accepts: Callable[[object], bool] = callable
    wanted: str = "callable"

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.table}

    def names(self) -> list[str]:
        """All names, in alphabetical order."""
        return sorted({*self.table, *self._added})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.table or name in self._added

    def find(self, name: str, *, trust: bool = False) -> Callable[..., T]:
        """What makes the named thing.

        Args:
            name: one of :meth:`names`, or ``package.module:Name``.
            trust: import a path; otherwise it is refused with the name of the module that would be imported.
        """
        own = self.table.get(name)
        if own is not None and not isinstance(own, str):
            return own
        if own is None and name not in self._added:
            if not IMPORT_PATH.fullmatch(name):
                raise InputError(f"unknown {self.kind} {name!r}: {nearest(name, self.names())}")
            if not trust:
                raise InputError(
                    f"{self.kind} {name!r} would import and run the module {name.partition(':')[0]!r}; "
                    "give --trust (in Python trust=True) if you trust it"
                )
            if (here := str(Path.cwd())) not in sys.path:
                sys.path.append(here)  # a console command does not look for modules beside the user's files
        point = self._added.get(name) or EntryPoint(name, own or name, self.group)
        try:
            found: Any = point.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"{self.kind} {name!r}: {point.value!r} cannot be imported: {error}") from error
        if not self.accepts(found):
            raise InputError(f"{self.kind} {name!r} must be {self.wanted}, found {type(found).__name__}")
        return found  # type: ignore[no-any-return]

    def options(self, name: str, *, trust: bool = False) -> dict[str, inspect.Parameter]:
        """The options of the named thing, with their types and defaults."""
        return option_parameters(self.find(name, trust=trust))

    def summary(self, name: str) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.find(name)) or "").partition("\n")[0]

    def create(self, name: str, options: Mapping[str, object], *, trust: bool = False, **known: object) -> T:
        """Make the named thing.

        Args:
            name: as in :meth:`find`.
            options: its own; one it does not have, or of another type, is refused.
            trust: as in :meth:`find`.
            known: handed on where the thing has such an option and it is not among ``options``.
        """
        maker = self.find(name, trust=trust)
        parameters = option_parameters(maker)
        taken = {key: value for key, value in known.items() if key in parameters and value is not None}
        given = {
            key: value.item() if isinstance(value, np.generic) else value for key, value in (taken | dict(options)).items()
        }
        check_options(maker, given, f"{self.kind} {name!r}")
        return maker(**given)


def option_parameters(maker: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class that can be given by name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: one for key, one in inspect.signature(maker).parameters.items() if one.kind in by_name}


def check_options(maker: Callable[..., object], options: Mapping[str, object], what: str) -> None:
    """Refuse options that a function or class does not have, lacks, or has with another type.

    Example:
        >>> def soften(tau: float = 0.1) -> None: ...
        >>> check_options(soften, {"tau": "much"}, "example")
        Traceback (most recent call last):
        sightline.errors.InputError: example: tau must be a valid number, got 'much'
    """
    parameters = option_parameters(maker)
    is_open = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(maker).parameters.values())
    if not is_open and (unknown := [option for option in options if option not in parameters]):
        raise InputError(f"{what} has no option {unknown[0]!r}: {nearest(unknown[0], parameters)}")
    try:
        _options_model(maker, parameters).model_validate(dict(options), strict=True)
    except ValidationError as error:
        faults = error.errors()
        if missing := [str(fault["loc"][0]) for fault in faults if fault["type"] == "missing"]:
            raise InputError(f"{what} needs {' and '.join(missing)}") from error
        alternatives: dict[str, list[str]] = {}
        for fault in faults:  # one for each type that was allowed
            alternatives.setdefault(str(fault["loc"][0]), []).append(fault["msg"].removeprefix("Input should be "))
        sentences = [
            f"{option} must be {' or '.join(dict.fromkeys(wanted))}, got {options[option]!r}"
            for option, wanted in alternatives.items()
        ]
        raise InputError(f"{what}: {'; '.join(sentences)}") from error


def _options_model(maker: Callable[..., object], parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    unknown = inspect.Parameter.empty
    annotations = {key: one.annotation for key, one in parameters.items()}
    hints = {key: Any if hint is unknown or isinstance(hint, str) else hint for key, hint in annotations.items()}
    with suppress(NameError, TypeError):  # of another package, that cannot be resolved: its own checks must do
        hints |= get_type_hints(maker.__init__ if inspect.isclass(maker) else maker, include_extras=True)
    fields: dict[str, Any] = {
        key: (hints[key], ... if one.default is unknown else one.default) for key, one in parameters.items()
    }
    config = ConfigDict(arbitrary_types_allowed=True, extra="allow", protected_namespaces=())
    return create_model("Options", __config__=config, **fields)
