"""The facts of a run and of a result for the model card."""

import inspect
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.manifest import Manifest, label_columns
from sightline.evaluation.result import Interval, Result, bootstrap_interval
from sightline.losses import LOSSES
from sightline.models.card import Account, DataFacts, EvaluationFacts, Measure, TrainingFacts
from sightline.training.recipe import Recipe

LEVEL = 0.95


def evaluation_facts(result: Result, on: str, chose: bool = False) -> EvaluationFacts:
    """A result's means and their intervals.

    Args:
        result: at least one metric.
        on: a description of the images.
        chose: whether this result selected the encoder.

    Example:
        >>> evaluation_facts(Result({"map": np.array([1.0, 0.5])}), "test images").metrics["map"].mean
        0.75
    """
    ends = _intervals(result)
    metrics = {
        name: Measure(mean=_defined(mean), low=_defined(ends[name].low), high=_defined(ends[name].high))
        for name, mean in result.means.items()
    }
    return EvaluationFacts(
        on=on, chose=chose, n_queries=result.n_queries, n_skipped=result.n_skipped, level=LEVEL, metrics=metrics
    )


def _intervals(result: Result) -> dict[str, Interval]:
    """:meth:`Result.interval` of every metric, computed together for metrics with the same defined queries."""
    alike = defaultdict(list)
    for name, values in result.per_query.items():
        alike[np.isnan(values).tobytes()].append(name)
    ends: dict[str, Interval] = {}
    for together in alike.values():
        columns = np.stack([result.per_query[name] for name in together], 1)
        lows, highs = bootstrap_interval(columns, level=LEVEL).tolist()
        ends |= {name: Interval(low, high) for name, low, high in zip(together, lows, highs, strict=True)}
    return ends


def account_of_run(
    recipe: Recipe, train_part: Manifest, val_part: Manifest | None, validation: Result | None, epoch: int
) -> Account:
    """The card's facts on an encoder at the end of an epoch, counted from 1; without validation there are no metrics."""
    codes = recipe.data.codes
    data = DataFacts.of(train_part, codes)
    start, weights = recipe.model.start, recipe.model.weights
    if start is not None:
        weights = "/".join(start.resolve().parts[-2:])  # such as photos/encoder; the rest is a path of this machine
    training = TrainingFacts(
        loss=recipe.loss.name,
        loss_options=loss_settings(recipe.loss.name, recipe.loss.options()),
        weights=weights if start is not None or weights is None else Path(weights).name,
        adaptation=recipe.model.adaptation,
        epoch=epoch,
        epochs=recipe.schedule.epochs,
        batch_size=recipe.sampler.batch_size,
        optimizer=recipe.optimizer.name,
        lr=recipe.optimizer.lr,
        precision=recipe.precision,
        seed=recipe.seed,
    )
    if val_part is None or validation is None:
        return Account(data=data, training=training)
    classes, trained = (_classes(part, codes) for part in (val_part, train_part))
    n_known = len(classes & trained)
    seen = "none of them trained on" if not n_known else f"{n_known} of them trained on"
    what = "classes" if codes is None else "codes"
    on = f"validation images of {data.manifest} ({len(val_part)} images, {len(classes)} {what}, {seen})"
    chose = recipe.schedule.epochs > recipe.validation.every
    return Account(data=data, training=training, evaluation=evaluation_facts(validation, on, chose))


def _classes(manifest: Manifest, codes: str | None) -> set[Any]:
    """The classes of the images, as paths of labels, or their codes."""
    if codes is not None:
        return {*manifest.table[codes].explode()}
    return {*manifest.table.select(label_columns(manifest.n_levels)).rows()}


def loss_settings(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a loss that are set or have a default, as JSON values; those that are None are left out.

    Example:
        >>> loss_settings("sup_ap", {"tau": 0.02})["tau"]
        0.02
    """
    parameters = LOSSES.options(name).values() if name in LOSSES else ()
    defaults = {option.name: option.default for option in parameters if option.default is not inspect.Parameter.empty}
    known = {option: value for option, value in (defaults | given).items() if value is not None}
    settings: dict[str, Any] = json.loads(json.dumps(known, default=str))
    return settings


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
