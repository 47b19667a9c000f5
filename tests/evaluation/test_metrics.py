import json
import os
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_definitions import binary_metrics
from torch.testing import assert_close

import sightline.torchvision_operators  # noqa: F401  (before torchmetrics, which imports torchvision)
from sightline.errors import InputError
from sightline.evaluation.metrics import (
    average_precision,
    classical_recall_at_k,
    map_at_k,
    map_at_r,
    precision_at_k,
    r_precision,
    recall_at_k,
    revisited_precision_at_k,
    trapezoid_average_precision,
    true_recall_at_k,
)

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=100)
lists = st.lists(st.booleans(), min_size=1, max_size=12)
M1 = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1]  # spec/metrics.md, section 3
M2 = [0, 0, 1, 0]
PLACES = (1, 5, 10)


def recall_by_definition(ranked, k):
    return float(any(ranked[:k]))


def precision_sum(ranked, last_place):  # one place at a time: slow, and hard to get wrong
    total = 0.0
    for place in range(1, last_place + 1):
        if place <= len(ranked) and ranked[place - 1]:
            total += sum(ranked[:place]) / place
    return total


def ap_by_definition(ranked, n_relevant):
    return precision_sum(ranked, len(ranked)) / n_relevant


def map_at_r_by_definition(ranked, n_relevant):
    return precision_sum(ranked, n_relevant) / n_relevant


def of_one(metric, ranked, n_relevant=None, **options):
    """The metric of one list; its relevant items are those in it unless said otherwise."""
    found = metric(
        torch.tensor([ranked]).bool(), torch.tensor([sum(ranked) if n_relevant is None else n_relevant]), **options
    )
    assert found.shape == (1,)
    assert found.dtype == torch.float64
    return found.item()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_missed", [0, 2])  # relevant items that a cut list lacks
def test_metrics_of_a_table_are_those_of_each_list_by_definition(seed, n_missed):
    ranked = torch.rand(6, 11, generator=torch.Generator().manual_seed(seed)) < 0.3
    ranked[:, seed % 11] = True
    n_relevant = ranked.sum(1) + n_missed
    rows = list(zip(ranked.tolist(), n_relevant.tolist(), strict=True))
    expected = torch.tensor([ap_by_definition(*row) for row in rows], dtype=torch.float64)
    assert_close(average_precision(ranked, n_relevant), expected)
    expected = torch.tensor([map_at_r_by_definition(*row) for row in rows], dtype=torch.float64)
    assert_close(map_at_r(ranked, n_relevant), expected)
    for k in (1, 2, 5, 11, 100):
        expected = torch.tensor([recall_by_definition(row, k) for row, _ in rows], dtype=torch.float64)
        assert_close(recall_at_k(ranked, n_relevant, k), expected)


def test_the_specifications_lists():
    assert_close(of_one(average_precision, M1), 0.6976190, rtol=0, atol=1e-6)
    assert_close(of_one(map_at_r, M1), 0.4833333, rtol=0, atol=1e-6)
    assert of_one(recall_at_k, M1, k=1) == 1
    assert_close(of_one(average_precision, M2), 1 / 3)
    assert of_one(map_at_r, M2) == 0
    assert [of_one(recall_at_k, M2, k=k) for k in (1, 2, 3)] == [0, 0, 1]


def test_the_specifications_lists_at_k():
    near = {"rtol": 0, "atol": 1e-6}
    assert_close([of_one(map_at_k, M1, k=k) for k in (3, 7, 100)], [0.5555556, 0.5976190, 0.6976190], **near)
    assert_close([of_one(precision_at_k, M1, k=5), of_one(r_precision, M1)], [0.6, 0.6])
    true_recalls = [of_one(true_recall_at_k, M1, k=k) for k in (1, 2, 3, 5, 7, 10)]
    assert_close(true_recalls, [1.0, 0.5, 0.6666667, 0.6, 0.8, 1.0], **near)
    assert_close([of_one(classical_recall_at_k, M1, k=k) for k in (1, 3, 5)], [0.2, 0.4, 0.6])
    assert of_one(true_recall_at_k, M2, k=3) == 1


AT_K = {
    "recall": recall_at_k,
    "true_recall": true_recall_at_k,
    "classical_recall": classical_recall_at_k,
    "precision": precision_at_k,
    "map": map_at_k,
}


@reproducible
@given(lists.filter(any), st.integers(1, 14))
def test_metrics_at_k_by_definition(ranked, k):
    expected = binary_metrics(ranked, [k])
    assert_close(
        {f"{name}@{k}": of_one(metric, ranked, k=k) for name, metric in AT_K.items()},
        {f"{name}@{k}": expected[f"{name}@{k}"] for name in AT_K},
        check_dtype=False,
    )
    assert_close(of_one(r_precision, ranked), expected["r_precision"])
    assert of_one(true_recall_at_k, ranked, k=k) >= of_one(classical_recall_at_k, ranked, k=k)


def trapezoid_by_definition(ranked):
    places = [place for place, relevant in enumerate(ranked) if relevant]
    terms = [((1 if p == 0 else j / p) + (j + 1) / (p + 1)) / 2 for j, p in enumerate(places)]
    return sum(terms) / len(places)


@reproducible
@given(lists.filter(any), st.integers(1, 14))
def test_revisited_metrics_by_definition(ranked, k):
    assert_close(of_one(trapezoid_average_precision, ranked), trapezoid_by_definition(ranked))
    last = max(place for place, relevant in enumerate(ranked, start=1) if relevant)
    k_here = min(last, k)
    assert_close(of_one(revisited_precision_at_k, ranked, k=k), sum(ranked[:k_here]) / k_here)


def test_trapezoid_ap_of_the_specification():
    assert_close(of_one(trapezoid_average_precision, [1, 0, 1, 1]), 0.7638889, rtol=0, atol=1e-6)
    assert_close(of_one(average_precision, [1, 0, 1, 1]), 0.8055556, rtol=0, atol=1e-6)
    # spec/listwise-and-blackbox.md, V10: beside the finite sum of the first.
    lists = [1, 0, 1, 0, 0, 1], [0, 1], [1, 1, 0, 0, 1]
    found = [of_one(trapezoid_average_precision, ranked) for ranked in lists]
    assert_close(found, [0.6777777778, 0.25, 0.85], rtol=0, atol=1e-9)
    assert_close(of_one(average_precision, lists[0]), 0.7222222222, rtol=0, atol=1e-9)


def test_the_orders_of_a_tie_in_the_specification():
    values = [of_one(average_precision, list(order)) for order in permutations([1, 1, 0])]
    assert_close([min(values), sum(values) / len(values), max(values)], [0.5833333, 0.8055556, 1.0], rtol=0, atol=1e-6)


def drawn_list(seed):
    """(25,) scores, above 0: else torchmetrics takes them for irrelevant; (25,) which items are relevant."""
    rng = np.random.default_rng(seed)
    scores, relevant = rng.random(25), rng.random(25) < 0.3
    relevant[0] = True
    return scores, relevant


@pytest.mark.parametrize("seed", range(10))
def test_equal_to_torchmetrics_where_it_defines_the_same(seed):
    from torchmetrics.functional import retrieval

    scores, relevant = drawn_list(seed)
    ranked = relevant[(-scores).argsort()].tolist()
    theirs = torch.from_numpy(scores), torch.from_numpy(relevant)
    pairs = [
        (of_one(average_precision, ranked), retrieval.retrieval_average_precision(*theirs)),
        (of_one(r_precision, ranked), retrieval.retrieval_r_precision(*theirs)),
    ]
    for k in PLACES:
        pairs += [
            (of_one(recall_at_k, ranked, k=k), retrieval.retrieval_hit_rate(*theirs, top_k=k)),
            (of_one(precision_at_k, ranked, k=k), retrieval.retrieval_precision(*theirs, top_k=k)),
            (of_one(classical_recall_at_k, ranked, k=k), retrieval.retrieval_recall(*theirs, top_k=k)),
        ]
    for ours, value in pairs:
        assert_close(ours, value.item(), rtol=1e-5, atol=0)


BY_RANX = """
import json, ranx, sys
names = sys.argv[1:]
for run, judged in json.load(sys.stdin):
    print(json.dumps(ranx.evaluate(ranx.Qrels({"q": judged}), ranx.Run({"q": run}), names)))
"""


def test_equal_to_ranx_where_it_defines_the_same():
    kinds = {"hit_rate": recall_at_k, "precision": precision_at_k, "recall": classical_recall_at_k}
    names = ["map", "r-precision", *(f"{kind}@{k}" for kind in kinds for k in PLACES)]
    cases, expected = [], []
    for seed in range(10):
        scores, relevant = drawn_list(seed)
        ranked = relevant[(-scores).argsort()].tolist()
        for missing in (0, 1):  # a relevant item that the list lacks
            judged = {str(place): 1 for place in np.flatnonzero(relevant)} | ({"missing": 1} if missing else {})
            cases.append(({str(place): float(score) for place, score in enumerate(scores)}, judged))
            n_relevant = len(judged)
            ours = [of_one(average_precision, ranked, n_relevant), of_one(r_precision, ranked, n_relevant)]
            ours += [of_one(metric, ranked, n_relevant, k=k) for metric in kinds.values() for k in PLACES]
            expected.append(ours)
    done = subprocess.run(
        [sys.executable, "-c", BY_RANX, *names],
        input=json.dumps(cases),
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},  # ranx takes minutes to compile
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [[json.loads(line)[name] for name in names] for line in done.stdout.splitlines()]
    assert_close(torch.tensor(expected, dtype=torch.float64), torch.tensor(found, dtype=torch.float64))


def test_a_query_without_a_relevant_item_is_nan_and_spoils_no_other():
    ranked, n_relevant = torch.tensor([[True, False], [False, False]]), torch.tensor([1, 0])
    for values in (average_precision(ranked, n_relevant), map_at_r(ranked, n_relevant), recall_at_k(ranked, n_relevant, 1)):
        assert_close(values, torch.tensor([1.0, torch.nan], dtype=torch.float64), equal_nan=True)


def test_an_empty_list_misses_everything():
    ranked, n_relevant = torch.empty(1, 0, dtype=torch.bool), torch.tensor([3])
    assert average_precision(ranked, n_relevant).item() == 0
    assert map_at_r(ranked, n_relevant).item() == 0
    assert recall_at_k(ranked, n_relevant, 1).item() == 0
    assert revisited_precision_at_k(ranked, n_relevant, 1).item() == 0


@pytest.mark.parametrize("metric", [*AT_K.values(), revisited_precision_at_k])
@pytest.mark.parametrize("k", [0, -1])
def test_a_place_before_the_first_is_refused(metric, k):
    with pytest.raises(InputError, match=f"k is {k}; at least 1 is needed"):
        of_one(metric, M1, k=k)


@reproducible
@given(lists.filter(any))
def test_map_at_r_is_never_above_average_precision_and_both_are_fractions(ranked):
    assert 0 <= of_one(map_at_r, ranked) <= of_one(average_precision, ranked) <= 1


@reproducible
@given(lists.filter(any))
def test_recall_never_falls_with_k(ranked):
    values = [of_one(recall_at_k, ranked, k=k) for k in range(1, len(ranked) + 2)]
    assert values == sorted(values)
    assert values[-1] == 1


@reproducible
@given(lists.filter(any))
def test_the_perfect_order_scores_1(ranked):
    best = sorted(ranked, reverse=True)
    assert of_one(average_precision, best) == of_one(map_at_r, best) == of_one(recall_at_k, best, k=1) == 1
    assert of_one(r_precision, best) == of_one(trapezoid_average_precision, best) == 1
    for k in range(1, len(best) + 1):
        assert of_one(true_recall_at_k, best, k=k) == of_one(map_at_k, best, k=k) == 1
        assert of_one(revisited_precision_at_k, best, k=k) == 1


@pytest.mark.parametrize("metric", [average_precision, map_at_r])
def test_the_perfect_order_backwards_is_the_worst_of_all_orders(metric):
    ranked = [True, True, False, False, False, True]
    values = [of_one(metric, list(order)) for order in set(permutations(ranked))]
    assert of_one(metric, sorted(ranked)) == min(values) < max(values) == 1


@reproducible
@given(lists.filter(any))
def test_one_more_irrelevant_item_at_the_end_changes_nothing(ranked):
    for metric in (average_precision, map_at_r):
        assert_close(of_one(metric, [*ranked, False]), of_one(metric, ranked))
