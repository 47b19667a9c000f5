from itertools import chain, permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from ranking_definitions import binary_metrics
from refusals import assert_refused
from sightline import decomposability_gap, evaluate
from sightline.evaluation import decomposability
from sightline.evaluation.decomposability import calibrated_gap_bound, class_balanced_partition, gap_bound


def ap_by_definition(scored):  # (score, is relevant) pairs, no two scores alike
    return binary_metrics([relevant for _, relevant in sorted(scored, reverse=True)], ())["map"]


def draw(seed, n=48):
    rng = np.random.default_rng(seed)
    labels = rng.integers(6, size=n)
    labels[0] = 77  # alone in its class
    return rng.normal(size=(n, 3)) + rng.normal(size=(100, 3))[labels], labels


def gap_by_definition(vectors, labels, batches):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gaps, n_counted, n_skipped = [], 0, 0
    for query in range(len(vectors)):

        def value(items, query=query):
            scored = [(unit[query] @ unit[item], labels[item] == labels[query]) for item in items if item != query]
            return ap_by_definition(scored) if any(relevant for _, relevant in scored) else None

        whole = value(range(len(vectors)))
        if whole is not None:
            inside = [found for found in map(value, batches) if found is not None]
            gaps.append(sum(inside) / len(inside) - whole)
            n_counted += len(inside)
            n_skipped += len(batches) - len(inside)
    return sum(gaps) / len(gaps), n_counted, n_skipped


class TestMeasuredGap:
    @pytest.mark.parametrize(("seed", "batch_size", "per_class"), [(0, 8, 2), (1, 12, 4), (2, 7, 3), (3, 2, 1), (4, 40, 4)])
    def test_is_its_definition_on_the_partition(self, seed, batch_size, per_class):
        vectors, labels = draw(seed)
        classes = np.unique(labels, return_inverse=True)[1]
        batches = class_balanced_partition(classes, batch_size, per_class, seed)
        found = decomposability_gap(vectors, labels, batch_size, per_class=per_class, seeds=[seed])
        expected, n_counted, n_skipped = gap_by_definition(vectors, labels, batches)
        assert_allclose(found.mean, expected, atol=1e-12)
        seeds = decomposability_gap(vectors, labels, batch_size, per_class=per_class, seeds=[seed, 9])
        assert seeds.per_seed[0] == found.mean
        assert_allclose(
            [seeds.mean, seeds.deviation], [np.mean(seeds.per_seed), np.std(seeds.per_seed, ddof=1)], atol=1e-15
        )
        assert decomposability_gap(vectors, labels, 1000, seeds=[seed]).mean == 0  # one batch is the whole set
        assert (found.n_counted, found.n_skipped) == (n_counted, n_skipped)
        assert found.deviation == 0

    def test_takes_another_metric_levels_tensors_and_a_known_whole(self):
        vectors, labels = draw(3)
        plain = decomposability_gap(vectors, labels, 12)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decomposability, "BLOCK_ELEMENTS", 60)
            assert_allclose(decomposability_gap(vectors, labels, 12).per_seed, plain.per_seed, atol=1e-12)
        known = decomposability_gap(vectors, labels, 12, whole=evaluate(vectors, labels).per_query["map"])
        assert_allclose(known.per_seed, plain.per_seed)
        two_levels = torch.from_numpy(np.stack([labels, labels % 2], 1))
        assert decomposability_gap(torch.from_numpy(vectors), two_levels, 12) == plain
        assert decomposability_gap(vectors, [f"class{i}" for i in labels], 12) == plain
        inside = decomposability_gap(vectors, labels, 12, metric="map@r", whole=np.zeros(48))
        whole = np.nanmean(evaluate(vectors, labels).per_query["map@r"])
        assert_allclose(decomposability_gap(vectors, labels, 12, metric="map@r").mean, inside.mean - whole)
        labels[5:12] = -1  # nobody's positives
        apart = np.where(labels == -1, 100 + np.arange(len(labels)), labels)
        assert decomposability_gap(vectors, labels, 8) == decomposability_gap(vectors, apart, 8)

    def test_what_does_not_fit_is_refused(self):
        vectors, labels = draw(0)
        for change, *facts in (
            ({"batch_size": 1}, "batch_size", "1"),
            ({"seeds": []}, "seeds", "0"),
            ({"labels": np.arange(48)}, "48 items"),
            ({"whole": np.zeros(3)}, "whole", "48", "(3,)"),
            ({"vectors": np.full((48, 3), np.nan)}, "vectors", "48 of 48"),
        ):
            given = {"vectors": vectors, "labels": labels, "batch_size": 8} | change
            assert_refused(facts, decomposability_gap, **given)


class TestPartition:
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(2, 12), st.integers(1, 5), st.integers(0, 9))
    def test_every_item_is_in_one_batch_of_the_size(self, labels, batch_size, per_class, seed):
        classes = np.unique(labels, return_inverse=True)[1]
        batches = class_balanced_partition(classes, batch_size, per_class, seed)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(labels)))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= batch_size

    def test_where_sizes_are_multiples_classes_come_in_whole_groups_spread_evenly(self):
        batches = class_balanced_partition(np.arange(160) % 10, 40, 4, seed=1)  # 4 groups a class, 4 batches of 10 groups
        counts = np.stack([np.bincount(batch % 10, minlength=10) for batch in batches])
        assert_array_equal(counts, 4)


@st.composite
def perfect_batches(draw, max_batches=4):
    """Batches of (score, is relevant), in each the relevant items first; and thresholds alpha >= beta."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=max_batches))
    if not any(n_positives for n_positives, _ in sizes):
        sizes[0] = (1, sizes[0][1])
    scores = draw(st.permutations(range(sum(map(sum, sizes)))))
    batches, first = [], 0
    for n_positives, n_negatives in sizes:
        best_first = sorted(scores[first : first + n_positives + n_negatives], reverse=True)
        batches.append([(score, place < n_positives) for place, score in enumerate(best_first)])
        first += n_positives + n_negatives
    beta, alpha = sorted(draw(st.tuples(*[st.integers(-1, len(scores))] * 2)))
    return batches, alpha, beta


def counts(batches, alpha, beta):
    """Positives, negatives, positives from alpha on and negatives above beta, of each batch."""
    return (
        [sum(relevant for _, relevant in batch) for batch in batches],
        [sum(not relevant for _, relevant in batch) for batch in batches],
        [sum(relevant and score >= alpha for score, relevant in batch) for batch in batches],
        [sum(not relevant and score > beta for score, relevant in batch) for batch in batches],
    )


def gap_bound_in_order(positives, negatives, high_positives=None, high_negatives=None):
    """TPAMI's Eq. 27 as printed for batches in this order, or Eq. 26 if nothing is known of scores."""
    rows = zip(positives, negatives, high_positives or positives, high_negatives or negatives, strict=True)
    before, total = (0, 0, 0, 0), 0.0
    for row in rows:
        n_positives, _, n_high, _ = row
        total += sum((before[2] + i) / (before[2] + i + before[3]) for i in range(1, n_high + 1))
        total += sum((before[0] + i) / (before[0] + i + before[1]) for i in range(n_high + 1, n_positives + 1))
        before = tuple(map(sum, zip(before, row, strict=True)))
    return 1 - total / sum(positives)


def largest_by_orders(*columns):
    rows = list(zip(*columns, strict=True))
    return max(gap_bound_in_order(*zip(*order, strict=True)) for order in permutations(rows))


class TestBounds:
    def test_the_counter_example_breaks_the_printed_order_and_not_the_maximum(self):
        batches = [[(0.50, True), (0.40, False)], [(0.95, True), (0.80, False)]]
        assert_allclose([gap_bound([2, 2], [2, 2]), gap_bound([4] * 4, [60] * 4)], [0.1833333, 0.6868997], atol=5e-8)
        assert_allclose(calibrated_gap_bound([2, 2], [2, 2], [1, 2], [0, 1]), 0.1458333, atol=5e-8)
        found = counts(batches, alpha=0.9, beta=0.6)
        gap = 1 - ap_by_definition(chain(*batches))
        assert_allclose(gap, 1 / 6)
        assert_allclose(gap_bound_in_order(*found), 0, atol=1e-15)
        assert_allclose(gap_bound_in_order(*(column[::-1] for column in found)), 1 / 6)
        assert_allclose(calibrated_gap_bound(*found), 1 / 6)

    @given(perfect_batches())
    def test_hold_where_each_batch_is_perfect_and_are_the_maximum_over_orders(self, case):
        found = counts(*case)
        gap = 1 - ap_by_definition(chain(*case[0]))
        plain, calibrated = gap_bound(*found[:2]), calibrated_gap_bound(*found)
        assert gap <= min(plain, calibrated) + 1e-12
        assert_allclose(plain, largest_by_orders(*found[:2]), atol=1e-12)
        assert_allclose(calibrated, largest_by_orders(*found), atol=1e-12)

    @given(perfect_batches(max_batches=6))
    def test_for_many_batches_hold_as_well(self, case):
        found = counts(*case)
        gap = 1 - ap_by_definition(chain(*case[0]))
        largest = gap_bound(*found[:2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decomposability, "MOST_STEPS", 0)
            assert gap <= min(gap_bound(*found[:2]), calibrated_gap_bound(*found)) + 1e-12
            assert largest <= gap_bound(*found[:2]) + 1e-12

    @pytest.mark.parametrize(
        "columns", [([1, 2], [1]), ([1.5], [1]), ([1, -1], [1, 1]), ([1], [1], [2], [0]), ([0, 0], [1, 1])]
    )
    def test_what_does_not_fit_is_refused(self, columns):
        bound = gap_bound if len(columns) == 2 else calibrated_gap_bound
        assert_refused(["counts of batches"], bound, *columns)
