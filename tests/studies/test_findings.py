"""Effects of paired runs: the error counts seeds and classes, and verdicts follow the stated rules."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sightline.studies.findings import Effect, paired_effect, verdict
from sightline.studies.papers import published_value
from sightline.studies.suite import read_suite

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("of_seeds", "of_classes"), [(0.3, 2.0), (1.0, 0.0), (0.0, 2.0), (0.0, 0.0)])
def test_no_effect_is_found_no_more_often_than_the_level_allows(of_seeds, of_classes):
    rng = np.random.default_rng(0)
    n_runs, n_found = 300, 0
    for _ in range(n_runs):
        differences = of_seeds * rng.standard_normal((5, 1)) + of_classes * rng.standard_normal((1, 60))
        n_found += paired_effect(differences + 3 * rng.standard_normal((5, 60))).p_value < 0.05
    assert n_found <= stats.binom.ppf(0.9999, n_runs, 0.065)


def test_with_equal_classes_it_is_the_paired_t_test_of_the_seeds():
    of_seeds = np.array([0.5, 1.0, 0.2, 0.9])
    effect = paired_effect(np.repeat(of_seeds[:, None], 7, 1))
    expected = stats.ttest_1samp(of_seeds, 0)
    assert_allclose(effect.p_value, expected.pvalue)
    assert_allclose(effect.interval, expected.confidence_interval())


def test_the_detectable_effect_is_found_in_four_of_five_cases():
    rng = np.random.default_rng(1)
    noise = [rng.standard_normal((5, 40)) + rng.standard_normal((5, 1)) for _ in range(400)]
    size = np.mean([paired_effect(one).detectable for one in noise])
    found = np.mean([paired_effect(one + size).p_value < 0.05 for one in noise])
    assert 0.7 < found < 0.95


@pytest.mark.parametrize(
    ("means", "p_values", "published", "expected"),
    [
        ([2.0, 1.5], [0.01, 0.02], [1.0, 1.0], "reproduced"),
        ([-2.0, -1.5], [0.01, 0.02], [1.0, 1.0], "reversed"),
        ([2.0, 1.5], [0.01, 0.2], [1.0, 1.0], "undecided"),
        ([0.1, 0.1], [0.8, 0.8], [5.0, 5.0], "not there"),
        ([0.1, 0.1], [0.8, 0.8], [0.1, 5.0], "undecided"),
        ([0.1, 0.9], [0.8, 0.1], [5.0, 1.6], "undecided"),  # the second interval holds the published size
        ([2.0], [0.01], [1.0], "undecided"),  # one set is not enough
        ([-2.0, 0.1], [0.01, 0.8], [0.1, 5.0], "not there"),
        ([-2.0, 2.0], [0.01, 0.01], [1.0, 1.0], "undecided"),
    ],
)
def test_verdicts(means, p_values, published, expected):
    assert verdict([Effect(mean, 0.5, 30) for mean in means], p_values, published) == expected


def test_every_question_of_the_scoreboard_names_rows_and_published_numbers():
    asked = tomllib.loads((BENCHMARKS / "findings.toml").read_text())
    findings, names = asked["findings"], asked["metrics"]
    assert len(findings) >= 12
    for finding in findings:
        metric = names.get(finding.get("metric", "map@r"))
        for suite in finding["suites"]:
            read = read_suite(BENCHMARKS / f"suites/{suite}.toml")
            assert {finding["better"], finding["base"]} <= {row.name for row in read.all_rows}
            assert finding.get("metric", "map@r") in [*read.metrics, "gap at 64"]
        for one in finding["published"]:
            sides = [one["decrease"]] if "decrease" in one else [one["better"], one["base"]]
            values = [published_value(one["table"], one["dataset"], side, one.get("metric", metric)) for side in sides]
            assert min(values) > 0, finding["claim"]
            assert values == sorted(values, reverse=True), finding["claim"]
