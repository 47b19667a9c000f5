"""Does an item belong? Scorers by name: an energy, higher for what is further out; calibrated, saved and loaded."""

import inspect
from pathlib import Path

from sightline.errors import choose
from sightline.ood.classifier import Classifier, classifier_of_proxies
from sightline.ood.composition import composed
from sightline.ood.heat import Composition, Heat
from sightline.ood.mixture import std_pooled
from sightline.ood.plain import PLAIN, create_from
from sightline.ood.scorer import Scorer, read_scorer

SCORERS: dict[str, type[Scorer]] = PLAIN | {Composition.name: Composition, Heat.name: Heat}


def list_scorers() -> list[str]:
    """The names :func:`create` knows, in alphabetical order.

    Example:
        >>> [name for name in list_scorers() if name.startswith("gmm")]
        ['gmm', 'gmm_std']
    """
    return sorted(SCORERS)


def scorer_options(name: str) -> list[str]:
    """The options the named scorer takes.

    Example:
        >>> scorer_options("knn")
        ['k', 'bank_size', 'seed']
    """
    parameters = inspect.signature(choose(SCORERS, name, "scorer").__init__).parameters
    return [option for option in parameters if option != "self"]


def create(name: str, **options: object) -> Scorer:
    """The named scorer, to be fitted.

    Args:
        name: one of :func:`list_scorers`.
        options: the scorer's own settings; one it does not have is refused.

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal([5, 0, 0, 0], 1, (300, 4))
        >>> scorer = create("gmm").fit(vectors[:200])
        >>> threshold = scorer.calibrate(vectors[200:], tpr=0.95)
        >>> scorer.is_outlier(np.array([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]]))
        array([False,  True])
    """
    return create_from(SCORERS, name, options)


def load(folder: Path | str, **not_stored: object) -> Scorer:
    """The scorer that :meth:`Scorer.save` wrote there.

    Args:
        folder: of two files.
        not_stored: what cannot be saved: the ``model`` of ``odin``.
    """
    return read_scorer(Path(folder), SCORERS, **not_stored)


__all__ = [
    "SCORERS",
    "Classifier",
    "Composition",
    "Heat",
    "Scorer",
    "classifier_of_proxies",
    "composed",
    "create",
    "list_scorers",
    "load",
    "scorer_options",
    "std_pooled",
]
