"""How well out-of-distribution items are detected, and known queries identified among unknown ones.

An energy is high for an outlier. In-distribution items should be accepted, outliers rejected. Ties count one half in
AUROC; equal energies are one threshold everywhere.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray

from sightline.data.embedding_table import EmbeddingTable
from sightline.errors import InputError
from sightline.evaluation.result import Interval, block_sizes, draw_counts, interval_ends, markdown_table, text_table
from sightline.files import replaced
from sightline.ranking.similarity import score_blocks

Floats = NDArray[np.float64]
METRICS = ("auroc", "fpr95", "aupr_out", "aupr_in", "accuracy")
N_RESAMPLES = 1000
BLOCK_ELEMENTS = 1 << 22
TPR = 0.95


def detection_metrics(inside: ArrayLike, outside: ArrayLike) -> dict[str, float]:
    """Every metric of how energies separate outliers from in-distribution items.

    - ``auroc``: the probability that an outlier's energy is above an in-distribution item's; ties count one half.
    - ``fpr95``: the share of outliers at or below the threshold that accepts 95 % of the in-distribution items,
      interpolated between two energies.
    - ``aupr_out``, ``aupr_in``: average precision with outliers, or with in-distribution items, as the positives.
    - ``accuracy``: the largest mean of the shares of both kinds that a threshold gets right.

    Args:
        inside: (N,) energies of in-distribution items.
        outside: (M,) energies of outliers.

    Returns:
        Fractions in [0, 1], by name.

    Example:
        >>> detection_metrics([0.1, 0.2, 0.3], [0.25, 0.9])["auroc"]
        0.8333333333333334
    """
    return {name: float(values[0]) for name, values in _Counts.of(inside, outside).metrics().items()}


def detection_identification_rate(
    known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike, far: float = 0.01
) -> float:
    """The share of queries with a match that are detected and identified, at a rate of false alarms.

    The threshold is the lowest that no more than a share ``far`` of queries without a match exceeds.

    Args:
        known_scores: (Q,) similarity to the best item, of queries that have a match in the gallery.
        known_correct: (Q,) bool, whether that item is a match.
        unknown_scores: (U,) similarity to the best item, of queries that have none.
        far: false-alarm rate, from 0 to below 1.

    Example:
        >>> detection_identification_rate([0.9, 0.8, 0.4], [True, False, True], [0.5, 0.3], far=0.0)
        0.3333333333333333
    """
    scores, unknown = _energies(known_scores, "known_scores"), _energies(unknown_scores, "unknown_scores")
    correct = np.asarray(known_correct, bool)
    if correct.shape != scores.shape:
        raise InputError(f"known_correct must have one for each of the {len(scores)} queries, got shape {correct.shape}")
    if not 0 <= far < 1:
        raise InputError(f"far must be from 0 to below 1, got {far}")
    n_alarms = int(far * len(unknown) + 1e-9)
    threshold = np.sort(unknown)[::-1][n_alarms]
    return float((correct & (scores > threshold)).mean())


def identification_rates(
    queries: EmbeddingTable, gallery: EmbeddingTable, unknown: Mapping[str, EmbeddingTable], far: float = 0.01
) -> dict[str, float]:
    """:func:`detection_identification_rate` of queries in a gallery, against each set of queries that it does not know.

    A match is an item of the query's own class, at the finest level, and not the query itself (by id). Queries without
    one are left out.

    Args:
        queries: some of whose classes the gallery has.
        gallery: labelled.
        unknown: sets of which no image has a match, by name.
        far: false-alarm rate, from 0 to below 1.
    """
    if not queries.manifest.n_levels or not gallery.manifest.n_levels:
        raise InputError("identification needs labels of the queries and of the gallery")
    labels = [table.manifest.table["label_0"].cast(pl.String).to_numpy() for table in (queries, gallery)]
    best, found, known = _best_items(queries, gallery, labels[0], labels[1])
    if not known.any():
        raise InputError(f"no query of {queries.manifest.source} has an image of its class in {gallery.manifest.source}")
    return {
        name: detection_identification_rate(best[known], found[known], _best_items(table, gallery, None, None)[0], far)
        for name, table in unknown.items()
    }


@dataclass(frozen=True, eq=False)
class DetectionResult:
    """One scorer's energies of an in-distribution set and of outlier sets.

    Attributes:
        inside: (N,) energies of the in-distribution set.
        outside: energies of each outlier set, by its name.

    Example:
        >>> result = DetectionResult(np.array([0.1, 0.2]), {"a": np.array([0.3]), "b": np.array([0.15, 0.3])})
        >>> result.per_set["b"]["auroc"], result.means["auroc"]
        (0.75, 0.875)
    """

    inside: Floats
    outside: Mapping[str, Floats]

    def __post_init__(self) -> None:
        if not self.outside:
            raise InputError("no outlier set to evaluate on")
        if "mean" in self.outside:
            raise InputError(
                "an outlier set must not be called 'mean', the name of the mean over the sets: give it another name"
            )

    @cached_property
    def per_set(self) -> dict[str, dict[str, float]]:
        """The metrics of each outlier set."""
        return {name: detection_metrics(self.inside, energies) for name, energies in self.outside.items()}

    @property
    def means(self) -> dict[str, float]:
        """The mean of each metric over the sets, each counting the same."""
        return {metric: float(np.mean([values[metric] for values in self.per_set.values()])) for metric in METRICS}

    def intervals(
        self, level: float = 0.95, n_resamples: int = N_RESAMPLES, seed: int = 0
    ) -> dict[str, dict[str, Interval]]:
        """Between which two numbers each metric of each set, and its mean (``mean``), lies, by bootstrap.

        In-distribution items and outliers are resampled separately; the resamples of the former are the same for every set.
        """
        ends = interval_ends(level)
        drawn: dict[str, dict[str, Floats]] = {}
        for name, energies in self.outside.items():
            parts = [part.metrics() for part in _Counts.of(self.inside, energies).resample(n_resamples, seed)]
            drawn[name] = {metric: np.concatenate([part[metric] for part in parts]) for metric in METRICS}
        drawn["mean"] = {metric: np.mean([values[metric] for values in drawn.values()], 0) for metric in METRICS}
        return {
            name: {metric: Interval(*np.quantile(values, ends).tolist()) for metric, values in metrics.items()}
            for name, metrics in drawn.items()
        }

    def rows(self, level: float | None = None, metrics: Sequence[str] = METRICS) -> list[list[str]]:
        """A header, a line for each set and their mean, in percent, with intervals if a level is given."""
        found = None if level is None else self.intervals(level)

        def cell(name: str, metric: str, value: float) -> str:
            ends = "" if found is None else " [{:.1f}, {:.1f}]".format(*(100 * end for end in found[name][metric]))
            return f"{100 * value:.1f}{ends}"

        sets = self.per_set | ({"mean": self.means} if len(self.outside) > 1 else {})
        lines = [[name, *(cell(name, metric, values[metric]) for metric in metrics)] for name, values in sets.items()]
        return [["set", *metrics], *lines]

    def as_text(self, level: float | None = None) -> str:
        """A table for a terminal, in percent."""
        sizes = ", ".join(f"{len(energies)} of {name}" for name, energies in self.outside.items())
        note = "" if level is None else f"; {100 * level:g} % intervals"
        table = text_table(self.rows(level), "<" + ">" * len(METRICS))
        return f"{table}\n{len(self.inside)} in-distribution images against {sizes}{note}"

    def as_markdown(self, level: float | None = None) -> str:
        """A Markdown table, in percent."""
        return markdown_table(self.rows(level), first="---") + "\n"

    def write_json(self, file: Path, level: float | None = 0.95) -> Path:
        """Write the metrics of each set, their means, counts, and intervals if a level is given."""
        stored: dict[str, object] = {
            "per_set": self.per_set,
            "means": self.means,
            "n_inside": len(self.inside),
            "n_outside": {name: len(energies) for name, energies in self.outside.items()},
        }
        if level is not None:
            stored |= {"level": level, "intervals": self.intervals(level)}
        with replaced(Path(file)) as scratch:
            scratch.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
        return Path(file)


def roc(inside: ArrayLike, outside: ArrayLike) -> tuple[Floats, Floats]:
    """The shares of outliers and of in-distribution items that are accepted, for every threshold from none to all."""
    counts = _Counts.of(inside, outside)
    shares = [np.concatenate([[0.0], np.cumsum(side[0]) / side[0].sum()]) for side in (counts.outside, counts.inside)]
    return shares[0], shares[1]


@dataclass(frozen=True, eq=False)
class _Counts:
    """How often each energy occurs: (V,) distinct energies, rising; (R, V) counts of both kinds, one row a resample."""

    values: Floats
    inside: Floats
    outside: Floats

    @classmethod
    def of(cls, inside: ArrayLike, outside: ArrayLike) -> "_Counts":
        both = _energies(inside, "inside"), _energies(outside, "outside")
        values = np.unique(np.concatenate(both))
        counted = [np.bincount(np.searchsorted(values, side), minlength=len(values))[None].astype(float) for side in both]
        return cls(values, *counted)

    def resample(self, n_resamples: int, seed: int) -> Iterator["_Counts"]:
        draws = [np.random.default_rng([seed, kind]) for kind in (0, 1)]
        items = [np.repeat(np.arange(len(self.values)), side[0].astype(int)) for side in (self.inside, self.outside)]
        for n_rows in block_sizes(n_resamples, len(self.values)):
            sides = [draw_counts(rng, n_rows, one, len(self.values)) for rng, one in zip(draws, items, strict=True)]
            yield _Counts(self.values, *sides)

    def metrics(self) -> dict[str, Floats]:
        """(R,) each metric of every row."""
        n_in, n_out = self.inside.sum(1), self.outside.sum(1)
        up_to_in, up_to_out = self.inside.cumsum(1), self.outside.cumsum(1)
        below_in = up_to_in - self.inside
        from_in, from_out = n_in[:, None] - below_in, n_out[:, None] - (up_to_out - self.outside)
        sure_out = from_out / np.maximum(from_out + from_in, 1)
        sure_in = up_to_in / np.maximum(up_to_in + up_to_out, 1)
        rates = (up_to_in / n_in[:, None] + 1 - up_to_out / n_out[:, None]) / 2
        return {
            "auroc": (self.outside * (below_in + self.inside / 2)).sum(1) / (n_in * n_out),
            "fpr95": self._accepted(up_to_in, up_to_out),
            "aupr_out": (self.outside * sure_out).sum(1) / n_out,
            "aupr_in": (self.inside * sure_in).sum(1) / n_in,
            "accuracy": np.maximum(rates.max(1), 0.5),
        }

    def _accepted(self, up_to_in: Floats, up_to_out: Floats) -> Floats:
        """(R,) the share of outliers at or below the threshold."""
        place = (up_to_in[0, -1] - 1) * TPR
        low, high = (
            self.values[(up_to_in <= end).sum(1)] for end in (np.floor(place + 1e-9), np.ceil(place - 1e-9))
        )  # the energies at both places, in order
        threshold = low + (high - low) * (place - np.floor(place + 1e-9))
        n_values = np.searchsorted(self.values, threshold, side="right")  # from 1 on: the threshold is no lower than all
        n_accepted: Floats = up_to_out[np.arange(len(up_to_out)), n_values - 1]
        return n_accepted / up_to_out[:, -1]


def _best_items(
    queries: EmbeddingTable, gallery: EmbeddingTable, own: NDArray[np.str_] | None, others: NDArray[np.str_] | None
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """(Q,) the similarity of the best item that is not the query; whether it is of its class; whether any item is."""
    ids = [np.array(table.ids, object) for table in (queries, gallery)]
    parts = []
    for rows, scores in score_blocks(torch.from_numpy(queries.vectors), torch.from_numpy(gallery.vectors), BLOCK_ELEMENTS):
        other = ids[0][rows, None] != ids[1][None]
        kept = np.where(other, scores.double().numpy(), -np.inf)
        same = np.zeros_like(other) if own is None or others is None else other & (own[rows, None] == others[None])
        parts.append((kept.max(1), same[np.arange(len(kept)), kept.argmax(1)], same.any(1)))
    best, found, known = zip(*parts, strict=True)
    return np.concatenate(best), np.concatenate(found), np.concatenate(known)


def _energies(values: ArrayLike, what: str) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{what} must be a list of one number or more, got shape {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"{what} must be numbers: item {int(np.isnan(array).argmax())} is NaN")
    return array
