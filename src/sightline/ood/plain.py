"""The scorers that are no composition, by name."""

import inspect
from collections.abc import Mapping, Sequence

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
    known = [option for option in inspect.signature(scorer.__init__).parameters if option != "self"]
    if unknown := [option for option in options if option not in known]:
        raise InputError(f"scorer {name!r} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    return scorer(**options)


def create_described(table: Mapping[str, type[Scorer]], described: Sequence[Described], what: str) -> list[Scorer]:
    """Scorers of names, or of mappings with a name and options."""
    if isinstance(described, str | Mapping) or not described:
        raise InputError(f"{what} is {described!r}; a list of names, or of mappings with a name and options, is needed")
    made = []
    for one in described:
        options = {"name": one} if isinstance(one, str) else dict(one)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{what}: {one!r} has no name")
        made.append(create_from(table, name, options))
    return made
