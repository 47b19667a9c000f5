"""Metrics of outlier detection against their definitions and scikit-learn."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from refusals import assert_refused
from sightline.evaluation.detection import METRICS, DetectionResult, detection_identification_rate, detection_metrics, roc

sides = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=30)


def slowly(inside, outside):
    threshold = np.quantile(inside, 0.95)
    thresholds = [-np.inf, *inside, *outside]
    right = [(np.mean([i <= t for i in inside]) + np.mean([e > t for e in outside])) / 2 for t in thresholds]
    truth, energies = [0] * len(inside) + [1] * len(outside), [*inside, *outside]
    return {
        "auroc": roc_auc_score(truth, energies),
        "fpr95": np.mean([e <= threshold for e in outside]),
        "aupr_out": average_precision_score(truth, energies),
        "aupr_in": average_precision_score([1 - t for t in truth], [-e for e in energies]),
        "accuracy": max(right),
    }


@settings(max_examples=100)
@given(sides, sides)
def test_every_metric_by_definition_with_ties(inside, outside):
    found = detection_metrics(inside, outside)
    assert list(found) == list(METRICS)
    assert found == pytest.approx(slowly(inside, outside))
    (accepted_out, accepted_in), truth = roc(inside, outside), [1] * len(inside) + [0] * len(outside)
    fpr, tpr, _ = roc_curve(truth, -np.array(inside + outside), drop_intermediate=False)
    np.testing.assert_allclose([accepted_out, accepted_in], [fpr, tpr], atol=1e-12)


def test_identification_at_a_false_alarm_rate_by_definition():
    rng = np.random.default_rng(0)
    scores, correct, unknown = rng.random(200), rng.random(200) < 0.7, rng.random(100) * 0.9
    for far in (0.0, 0.01, 0.1, 0.5):
        allowed = [t for t in [0.0, *unknown] if (unknown > t).mean() <= far]
        expected = np.mean([c and s > min(allowed) for s, c in zip(scores, correct, strict=True)])
        assert detection_identification_rate(scores, correct, unknown, far) == pytest.approx(expected)
    assert_refused(r"far.*1\.0", detection_identification_rate, scores, correct, unknown, 1.0)
    assert_refused(r"known_correct.*200.*\(3,\)", detection_identification_rate, scores, correct[:3], unknown)


def test_sets_means_intervals_and_files(tmp_path):
    rng = np.random.default_rng(0)
    result = DetectionResult(rng.normal(size=400), {"near": rng.normal(1, 1, 300), "far": rng.normal(4, 1, 200)})
    assert result.means["auroc"] == pytest.approx((result.per_set["near"]["auroc"] + result.per_set["far"]["auroc"]) / 2)
    found = result.intervals(0.9)
    assert list(found) == ["near", "far", "mean"]
    for name, values in {**result.per_set, "mean": result.means}.items():
        for metric, value in values.items():
            low, high = found[name][metric]
            assert low - 0.01 <= value <= high + 0.01
    # as wide as repeating the experiment makes it: 500 new draws of both sets
    again = [detection_metrics(rng.normal(size=400), rng.normal(1, 1, 300))["auroc"] for _ in range(300)]
    width = np.subtract(*np.quantile(again, [0.95, 0.05]))
    assert np.subtract(*found["near"]["auroc"][::-1]) == pytest.approx(width, rel=0.25)
    assert result.intervals(0.9) == found
    assert f"{100 * result.means['auroc']:.1f} [" in result.as_text(0.9).splitlines()[3]
    assert result.as_markdown().splitlines()[1].startswith("| --- | ---:")
    stored = json.loads(result.write_json(tmp_path / "r.json", 0.9).read_text())
    assert stored["per_set"]["near"]["auroc"] == result.per_set["near"]["auroc"]
    assert stored["intervals"]["mean"]["fpr95"] == list(found["mean"]["fpr95"])
    assert stored["n_outside"] == {"near": 300, "far": 200}


def test_what_does_not_fit():
    one = np.ones(2)
    assert_refused(r"inside.*\(0,\)", detection_metrics, [], [1.0])
    assert_refused(r"outside.*1", detection_metrics, [1.0], [1.0, np.nan])
    assert_refused("outlier set", DetectionResult, one, {})
    assert_refused("'mean'", DetectionResult, one, {"mean": one, "a": one})
    assert_refused(r"level.*2", DetectionResult(one, {"a": one}).intervals, 2)
