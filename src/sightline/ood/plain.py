"""The scorers that are no composition, by name."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from sightline.errors import InputError, choose, nearest
from sightline.ood.distance import KNN, Residual, SoftKNN, ViM
from sightline.ood.logits import DICE, MSP, Energy, KLMatching, MaxLogit, ReAct
from sightline.ood.mixture import GMM, SSD, GMMStd, Mahalanobis
from sightline.ood.odin import ODIN
from sightline.ood.scorer import Scorer

Described = str | Mapping[str, object]
PLAIN: dict[str, type[Scorer]] = {
    scorer.name: scorer
    for scorer in (
        DICE,
        Energy,
        GMM,
        GMMStd,
        KLMatching,
        KNN,
        Mahalanobis,
        MaxLogit,
        MSP,
        ODIN,
        ReAct,
        Residual,
        SoftKNN,
        SSD,
        ViM,
    )
}


def create_from(table: Mapping[str, type[Scorer]], name: str, options: Mapping[str, object]) -> Scorer:
    """The named scorer of a table; an option it does not have is refused."""
    scorer = choose(table, name, "scorer")
    options = {option: int(value) if isinstance(value, np.integer) else value for option, value in options.items()}
    known = [option for option in inspect.signature(scorer.__init__).parameters if option != "self"]
    if unknown := [option for option in options if option not in known]:
        raise InputError(f"scorer {name!r} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    for option, value in options.items():
        if kind := _kind_missed(value, inspect.signature(scorer.__init__).parameters[option].annotation):
            raise InputError(f"scorer {name!r}: {option} is {value!r}; {kind} is needed")
    return scorer(**options)


KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a word"),
    int | None: ((int, type(None)), "a whole number or nothing"),
    str | int: ((str, int), "a word or a whole number"),
    float | Literal["auto"]: ((int, float, str), "a number or 'auto'"),
}


def _kind_missed(value: object, annotation: object) -> str | None:
    """What a value should have been; None where it is that, or where something else is asked for."""
    if annotation not in KINDS:
        return None
    kinds, wanted = KINDS[annotation]
    fits = isinstance(value, kinds) and (annotation is bool or not isinstance(value, bool))
    return None if fits else wanted


def create_described(table: Mapping[str, type[Scorer]], described: Sequence[Described], what: str) -> list[Scorer]:
    """Scorers of names, or of mappings with a name and options."""
    if isinstance(described, str) or not isinstance(described, Sequence) or not described:
        raise InputError(f"{what} is {described!r}; a list of names, or of mappings with a name and options, is needed")
    made = []
    for one in described:
        options = {"name": one} if isinstance(one, str) else dict(one) if isinstance(one, Mapping) else {}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{what}: {one!r} has no name")
        made.append(create_from(table, name, options))
    return made
