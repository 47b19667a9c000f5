"""The metrics by the names that results carry: ``map``, ``recall@10``, ``map_label_1``."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sightline.errors import InputError, nearest
from sightline.evaluation import graded
from sightline.evaluation.graded import Relevance
from sightline.evaluation.statistics import Floats, Statistics

# Relevant or not: at k and of the whole list, each at a level.
AT_K: dict[str, Callable[[Statistics, int, int], Floats]] = {
    "recall": graded.hit_rate_of,
    "cmc": graded.hit_rate_of,
    "true_recall": graded.true_recall_of,
    "classical_recall": graded.classical_recall_of,
    "precision": graded.precision_of,
    "map": graded.map_at_k_of,
}
WHOLE: dict[str, Callable[[Statistics, int], Floats]] = {
    "map": graded.ap_of,
    "map@r": graded.map_at_r_of,
    "r_precision": graded.r_precision_of,
    "set_precision": graded.set_precision_of,
}
# In levels.
GRADED_AT_K: dict[str, Callable[[Statistics, int], Floats]] = {
    "severity": graded.severity_of,
    "distance": graded.hierarchical_distance_of,
}
WORTH_AT_K: dict[str, Callable[[Statistics, int, Relevance], Floats]] = {
    "h_recall": graded.h_recall_of,
    "h_precision": graded.h_precision_of,
}
GRADED = ("h_ap", "weighted_ap", "ndcg", "asi")
TOLD_OF_LEVELS = ("h_ap", "ndcg", "asi", "severity@1")  # where nothing else is asked for


class Asked(NamedTuple):
    """A metric's name taken apart; ``label`` counts levels from the finest, which is 0."""

    base: str
    k: int | None
    label: int


def metric_names(ks: Sequence[int] = (1, 2, 4, 8), n_levels: int = 1) -> list[str]:
    """The metrics :func:`~sightline.evaluation.protocol.evaluate` gives for these places and so many levels of labels.

    Example:
        >>> metric_names([1, 10])
        ['recall@1', 'recall@10', 'map@r', 'map']
        >>> metric_names([1], n_levels=2)
        ['recall@1', 'map@r', 'map', 'map_label_1', 'h_ap', 'ndcg', 'asi', 'severity@1']
    """
    flat = [*(f"recall@{k}" for k in dict.fromkeys(ks)), "map@r", "map"]
    return flat if n_levels == 1 else [*flat, *(f"map_label_{n}" for n in range(1, n_levels)), *TOLD_OF_LEVELS]


def read_name(name: str, n_levels: int) -> Asked:
    """A metric's name taken apart; one that is not known is refused with the nearest that is.

    Example:
        >>> read_name("recall@10_label_1", n_levels=2)
        Asked(base='recall', k=10, label=1)
    """
    found = re.fullmatch(r"([a-z_]+?(?:@r)?)(?:@(\d+))?(?:_label_(\d+))?", name)
    if found:
        base, k, label = found[1], None if found[2] is None else int(found[2]), int(found[3] or 0)
        binary = base in (WHOLE if k is None else AT_K)
        in_levels = base in (GRADED if k is None else (*GRADED_AT_K, *WORTH_AT_K, "ndcg"))
        if ((binary and label < n_levels) or (in_levels and found[3] is None)) and k != 0:
            return Asked(base, k, label)
    known = [*WHOLE, *GRADED, *(f"{base}@10" for base in (*AT_K, *GRADED_AT_K, *WORTH_AT_K, "ndcg"))]
    known += [f"{base}_label_{label}" for base in known[: len(WHOLE)] for label in range(1, n_levels)]
    raise InputError(f"unknown metric {name!r}: {nearest(name, known)}")


def places(asked: Sequence[Asked]) -> list[int]:
    """The k's for which statistics are needed; the item at place k is what the place before it lacks."""
    found = {one.k for one in asked if one.k is not None and AT_K.get(one.base) is not graded.hit_rate_of}
    return sorted(found | {one.k - 1 for one in asked if one.k is not None and one.base == "h_precision"})


def value(asked: Asked, stats: Statistics, relevance: Relevance, gain: Relevance, finest: int) -> Floats:
    """A metric of every query; ``finest`` is the level that makes an item relevant, where relevant or not is asked."""
    base, k, level = asked.base, asked.k, finest - asked.label
    if base in GRADED_AT_K and k is not None:
        return GRADED_AT_K[base](stats, k)
    if base in WORTH_AT_K and k is not None:
        return WORTH_AT_K[base](stats, k, relevance)
    if base == "ndcg":
        return graded.ndcg_of(stats, gain, k)
    if k is not None:
        return AT_K[base](stats, k, level)
    if base in WHOLE:
        return WHOLE[base](stats, level)
    if base == "h_ap":
        return graded.h_ap_of(stats, relevance)
    return graded.asi_of(stats) if base == "asi" else graded.weighted_ap_of(stats, relevance.weights)
