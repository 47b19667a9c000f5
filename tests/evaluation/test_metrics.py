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
from sightline.evaluation.metrics import METRICS, Metric, Ranking, list_metric, metric_of, read_metric_name
from sightline.evaluation.protocol import revisited_precision_at_k, trapezoid_average_precision
from sightline.evaluation.statistics import list_statistics

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


def of_one(metric, ranked, **options):
    """The metric of one list, by its name or by a function on (Q, K) bool."""
    rows = torch.tensor([ranked])
    found = list_metric(metric, rows.byte()) if isinstance(metric, str) else metric(rows.bool(), **options)
    assert (found.shape, found.dtype) == ((1,), torch.float64)
    return found.item()


@pytest.mark.parametrize("seed", range(20))
def test_metrics_of_a_table_are_those_of_each_list_by_definition(seed):
    ranked = torch.rand(6, 11, generator=torch.Generator().manual_seed(seed)) < 0.3
    ranked[:, seed % 11] = True
    rows = list(zip(ranked.tolist(), ranked.sum(1).tolist(), strict=True))
    expected = {
        "map": [ap_by_definition(*row) for row in rows],
        "map@r": [map_at_r_by_definition(*row) for row in rows],
        **{f"recall@{k}": [recall_by_definition(row, k) for row, _ in rows] for k in (1, 2, 5, 11, 100)},
    }
    for name, values in expected.items():
        assert_close(list_metric(name, ranked.byte()), torch.tensor(values, dtype=torch.float64))


def test_the_specifications_lists():
    assert_close(of_one("map", M1), 0.6976190, rtol=0, atol=1e-6)
    assert_close(of_one("map@r", M1), 0.4833333, rtol=0, atol=1e-6)
    assert of_one("recall@1", M1) == 1
    assert_close(of_one("map", M2), 1 / 3)
    assert of_one("map@r", M2) == 0
    assert [of_one(f"recall@{k}", M2) for k in (1, 2, 3)] == [0, 0, 1]


def test_the_specifications_lists_at_k():
    near = {"rtol": 0, "atol": 1e-6}
    assert_close([of_one(f"map@{k}", M1) for k in (3, 7, 100)], [0.5555556, 0.5976190, 0.6976190], **near)
    assert_close([of_one("precision@5", M1), of_one("r_precision", M1)], [0.6, 0.6])
    true_recalls = [of_one(f"true_recall@{k}", M1) for k in (1, 2, 3, 5, 7, 10)]
    assert_close(true_recalls, [1.0, 0.5, 0.6666667, 0.6, 0.8, 1.0], **near)
    assert_close([of_one(f"classical_recall@{k}", M1) for k in (1, 3, 5)], [0.2, 0.4, 0.6])
    assert of_one("true_recall@3", M2) == 1


AT_K = ("recall", "true_recall", "classical_recall", "precision", "map")


@reproducible
@given(lists.filter(any), st.integers(1, 14))
def test_metrics_at_k_by_definition(ranked, k):
    expected = binary_metrics(ranked, [k])
    names = ["r_precision", *(f"{name}@{k}" for name in AT_K)]
    found = {name: of_one(name, ranked) for name in names}
    assert_close(found, {name: expected[name] for name in names}, check_dtype=False)
    assert found[f"true_recall@{k}"] >= found[f"classical_recall@{k}"]


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
    assert_close(of_one("map", [1, 0, 1, 1]), 0.8055556, rtol=0, atol=1e-6)
    # spec/listwise-and-blackbox.md, V10: beside the finite sum of the first.
    lists = [1, 0, 1, 0, 0, 1], [0, 1], [1, 1, 0, 0, 1]
    found = [of_one(trapezoid_average_precision, ranked) for ranked in lists]
    assert_close(found, [0.6777777778, 0.25, 0.85], rtol=0, atol=1e-9)
    assert_close(of_one("map", lists[0]), 0.7222222222, rtol=0, atol=1e-9)


def test_the_orders_of_a_tie_in_the_specification():
    values = [of_one("map", list(order)) for order in permutations([1, 1, 0])]
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
        (of_one("map", ranked), retrieval.retrieval_average_precision(*theirs)),
        (of_one("r_precision", ranked), retrieval.retrieval_r_precision(*theirs)),
    ]
    for k in PLACES:
        pairs += [
            (of_one(f"recall@{k}", ranked), retrieval.retrieval_hit_rate(*theirs, top_k=k)),
            (of_one(f"precision@{k}", ranked), retrieval.retrieval_precision(*theirs, top_k=k)),
            (of_one(f"classical_recall@{k}", ranked), retrieval.retrieval_recall(*theirs, top_k=k)),
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
    kinds = {"hit_rate": "recall", "precision": "precision", "recall": "classical_recall"}
    names = ["map", "r-precision", *(f"{kind}@{k}" for kind in kinds for k in PLACES)]
    cases, expected = [], []
    for seed in range(10):
        scores, relevant = drawn_list(seed)
        ranked = relevant[(-scores).argsort()].tolist()
        judged = {str(place): 1 for place in np.flatnonzero(relevant)}
        cases.append(({str(place): float(score) for place, score in enumerate(scores)}, judged))
        ours = ["map", "r_precision", *(f"{name}@{k}" for name in kinds.values() for k in PLACES)]
        expected.append([of_one(name, ranked) for name in ours])
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


@pytest.mark.parametrize("name", [*METRICS.names()])
def test_a_query_without_a_relevant_item_is_nan_and_spoils_no_other(name):
    ranked = torch.tensor([[1, 0], [0, 0], [0, 1]])
    name = f"{name}@1" if METRICS.find(name).takes_k == "always" else name
    defined = ~list_metric(name, ranked).isnan()
    assert not defined[1]
    assert metric_of(name).is_total == defined[[0, 2]].all().item()


def test_revisited_metrics_without_a_relevant_item_or_without_a_list():
    ranked = torch.tensor([[True, False], [False, False]])
    for values in (trapezoid_average_precision(ranked), revisited_precision_at_k(ranked, 1)):
        assert_close(values, torch.tensor([1.0, torch.nan], dtype=torch.float64), equal_nan=True)
    assert revisited_precision_at_k(ranked[:, :0], 1).isnan().all()


@pytest.mark.parametrize(
    "name", ["recall@0", "recall@-1", "recall", "map@r@3", "asi@3", "h_ap_label_1", "map_label_1", "mpa"]
)
def test_names_that_mean_nothing_are_refused(name):
    with pytest.raises(InputError, match=f"unknown metric '{name}'"):
        list_metric(name, torch.tensor([M1]))


def test_a_row_of_the_table_is_a_metric_from_elsewhere_too(tmp_path, monkeypatch):
    (tmp_path / "my_metrics.py").write_text(
        "import numpy as np\nfrom sightline import Metric\n"
        "MRR = Metric(lambda ranking: ranking.share(1.0, ranking.first), 'reciprocal of the first right place')\n"
        "NUMBER = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="my_metrics"):
        read_metric_name("my_metrics:MRR", 1)
    metric, k, label = read_metric_name("my_metrics:MRR_label_1", 2, trust=True)
    assert (k, label, isinstance(metric, Metric)) == (None, 1, True)
    stats = list_statistics(torch.tensor([M2, M1[:4], [0] * 4]), 1)
    np.testing.assert_array_equal(metric(Ranking(stats, 1)), [1 / 3, 1, np.nan])
    with pytest.raises(InputError, match="Metric"):
        read_metric_name("my_metrics:NUMBER", 1, trust=True)


@reproducible
@given(lists.filter(any))
def test_map_at_r_is_never_above_average_precision_and_both_are_fractions(ranked):
    assert 0 <= of_one("map@r", ranked) <= of_one("map", ranked) <= 1


@reproducible
@given(lists.filter(any))
def test_recall_never_falls_with_k(ranked):
    values = [of_one(f"recall@{k}", ranked) for k in range(1, len(ranked) + 2)]
    assert values == sorted(values)
    assert values[-1] == 1


@reproducible
@given(lists.filter(any))
def test_the_perfect_order_scores_1(ranked):
    best = sorted(ranked, reverse=True)
    assert of_one("map", best) == of_one("map@r", best) == of_one("recall@1", best) == 1
    assert of_one("r_precision", best) == of_one(trapezoid_average_precision, best) == 1
    for k in range(1, len(best) + 1):
        assert of_one(f"true_recall@{k}", best) == of_one(f"map@{k}", best) == 1
        assert of_one(revisited_precision_at_k, best, k=k) == 1


@pytest.mark.parametrize("metric", ["map", "map@r"])
def test_the_perfect_order_backwards_is_the_worst_of_all_orders(metric):
    ranked = [True, True, False, False, False, True]
    values = [of_one(metric, list(order)) for order in set(permutations(ranked))]
    assert of_one(metric, sorted(ranked)) == min(values) < max(values) == 1


@reproducible
@given(lists.filter(any))
def test_one_more_irrelevant_item_at_the_end_changes_nothing(ranked):
    for metric in ("map", "map@r"):
        assert_close(of_one(metric, [*ranked, False]), of_one(metric, ranked))
