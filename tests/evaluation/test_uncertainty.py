from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from sightline.errors import InputError
from sightline.evaluation import result as uncertainty
from sightline.evaluation.result import bootstrap_interval, bootstrap_means, holm, permutation_p, t_test_p


def draw(seed, n=40):  # skewed and bounded, as average precision is
    return np.random.default_rng(seed).beta(2, 0.7, n)


def p_by_enumeration(differences):  # every arrangement of the signs, one at a time
    reached = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product([1, -1], repeat=len(differences))
    ]
    return sum(value >= reached - 1e-9 for value in sums) / len(sums)


def holm_by_definition(p):  # reject the smallest while it is below alpha / those left: the least alpha that rejects each
    raised = {}
    for step, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        raised[place] = max([min(1, (len(p) - step) * p[place]), *raised.values()])
    return [raised[i] for i in range(len(p))]


class TestBootstrap:
    @pytest.mark.parametrize(("seed", "level"), [(0, 0.8), (1, 0.95)])
    def test_interval_over_queries_is_that_of_scipy(self, seed, level):
        values = draw(seed)
        options = {"confidence_level": level, "n_resamples": 20000, "method": "percentile", "rng": 1}
        expected = stats.bootstrap((values,), np.mean, **options).confidence_interval
        found = bootstrap_interval(values[:, None], level=level, n_resamples=20000)[:, 0]
        assert_allclose(found, expected, atol=0.03 * (expected[1] - expected[0]))

    def test_of_queries_alike_in_a_class_only_intervals_over_classes_hold_the_truth(self):
        held = {"queries": 0, "classes": 0}
        groups = np.repeat(np.arange(40), 10)
        for seed in range(200):
            values = draw(seed)[groups][:, None]
            for unit, given in (("queries", None), ("classes", groups)):
                low, high = bootstrap_interval(values, given, n_resamples=500)[:, 0]
                held[unit] += low <= 2 / 2.7 <= high
        assert held["queries"] < 0.6 * 200
        assert 0.88 * 200 < held["classes"] < 0.99 * 200

    def test_queries_without_a_value_are_left_out(self):
        values = draw(0)[:, None]
        missing = np.full((7, 1), np.nan)
        assert_array_equal(bootstrap_means(np.concatenate([values, missing])), bootstrap_means(values))
        groups = np.arange(47) // 5
        assert_array_equal(bootstrap_means(np.concatenate([values, missing]), groups), bootstrap_means(values, groups[:40]))

    def test_the_seed_decides_and_blocks_do_not(self, monkeypatch):
        values = draw(0)[:, None]
        whole = bootstrap_means(values)
        assert_array_equal(bootstrap_means(values), whole)
        assert (bootstrap_means(values, seed=1) != whole).any()
        monkeypatch.setattr(uncertainty, "BLOCK_ELEMENTS", 130)
        assert_allclose(bootstrap_means(values), whole, rtol=1e-14)

    def test_edges(self):
        assert np.isnan(bootstrap_interval(np.full((3, 1), np.nan))).all()
        assert_array_equal(bootstrap_interval([[0.25]])[:, 0], [0.25, 0.25])
        values, numbers = draw(0)[:, None], np.arange(40) % 7
        assert_array_equal(bootstrap_means(values, [f"class{n}" for n in numbers]), bootstrap_means(values, numbers))
        for call, facts in (
            (lambda: bootstrap_interval([[1.0]], level=95), r"level.*95"),
            (lambda: bootstrap_means([[1.0]], n_resamples=0), r"n_resamples.*0"),
            (lambda: bootstrap_means([[1.0], [0.0]], [1, 2, 3]), r"groups.*2.*\(3,\)"),
            (lambda: bootstrap_means([1.0, 0.0]), r"values.*\(2,\)"),
        ):
            with pytest.raises(InputError, match=facts):
                call()


class TestPermutation:
    @pytest.mark.parametrize("seed", range(3))
    def test_few_queries_give_the_exact_share_of_arrangements(self, seed):
        rng = np.random.default_rng(seed)
        differences = rng.normal(0.3, 1, 8).round(1)  # rounded: arrangements tie
        assert_allclose(permutation_p(differences[:, None]), p_by_enumeration(differences.tolist()))

    def test_classes_flip_as_one(self):
        groups = np.array([0, 0, 1, 2, 2, 2, 3])
        differences = np.array([0.1, 0.3, 0.2, -0.1, 0.2, 0.1, 0.5])
        expected = p_by_enumeration([0.4, 0.2, 0.2, 0.5])
        assert expected == 2 / 16
        assert_allclose(permutation_p(differences[:, None], groups), expected)

    def test_the_smallest_p_is_not_0_and_without_a_difference_it_is_1(self):
        assert_allclose(permutation_p(np.full((200, 1), 0.1)), 1 / 10000)
        p = permutation_p([[0.0, np.nan, 0.1], [0.0, np.nan, 0.0], [0.0, np.nan, 0.1]])
        assert_array_equal(p, [1, 1, 0.5])

    def test_under_no_difference_p_is_below_a_tenth_one_time_in_ten(self):
        p = permutation_p(np.random.default_rng(0).normal(size=(50, 400)), n_flips=999)
        assert 0.06 < (p < 0.1).mean() < 0.14

    @pytest.mark.parametrize("n", [6, 30])  # all arrangements, and drawn ones
    def test_blocks_change_nothing(self, n, monkeypatch):
        differences = np.random.default_rng(0).normal(0.2, 1, (n, 2))
        whole = permutation_p(differences)
        monkeypatch.setattr(uncertainty, "BLOCK_ELEMENTS", 10 * n)
        assert_array_equal(permutation_p(differences), whole)


class TestT:
    def test_is_that_of_scipy(self):
        first, second = draw(0), draw(50)
        difference = second - first
        expected = stats.ttest_rel(second, first).pvalue
        assert_allclose(t_test_p(np.append(difference, np.nan)[:, None]), expected)
        groups = np.arange(40) % 9
        expected = stats.ttest_1samp(np.bincount(groups, difference), 0).pvalue
        assert_allclose(t_test_p(difference[:, None], groups), expected)

    def test_edges(self):
        p = t_test_p([[0.0, 0.5, 0.1, np.nan], [0.0, 0.5, np.nan, np.nan]])
        assert_array_equal(p, [1, 0, np.nan, np.nan])


class TestHolm:
    @pytest.mark.parametrize("seed", range(2))
    def test_is_the_step_down_procedure(self, seed):
        p = np.random.default_rng(seed).random(6) ** 3
        assert_allclose(holm(p), holm_by_definition(p.tolist()))
        assert_array_equal(holm([0.02, np.nan, 0.5]), [0.04, np.nan, 0.5])
