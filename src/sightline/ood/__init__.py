"""Out-of-distribution detection: scorers by name, whose energy is higher for items further out of distribution."""

from sightline.models.pooling import std_pooled
from sightline.ood.classifier import Classifier, classifier_of_proxies
from sightline.ood.composition import Composition, composed
from sightline.ood.heat import Heat
from sightline.ood.recommend import Recommendation, recommend
from sightline.ood.scorer import SCORERS, Scorer, create, list_scorers, load, scorer_options

__all__ = [
    "SCORERS",
    "Classifier",
    "Composition",
    "Heat",
    "Recommendation",
    "Scorer",
    "classifier_of_proxies",
    "composed",
    "create",
    "list_scorers",
    "load",
    "recommend",
    "scorer_options",
    "std_pooled",
]
