import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_definitions import binary_metrics
from torch.testing import assert_close

import sightline.torchvision_operators  # noqa: F401  (before torchmetrics, which imports torchvision)
from sightline.evaluation.metrics import METRICS, list_metric, metric_of
from sightline.evaluation.protocol import revisited_precision_at_k, trapezoid_average_precision

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=100)
lists = st.lists(st.booleans(), min_size=1, max_size=12)
M1 = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1]  # spec/metrics.md, section 3
M2 = [0, 0, 1, 0]


def of_one(metric, ranked, **options):
    """The metric of one list, by its name or by a function on (Q, K) bool."""
    rows = torch.tensor([ranked])
    found = list_metric(metric, rows.byte()) if isinstance(metric, str) else metric(rows.bool(), **options)
    assert (found.shape, found.dtype) == ((1,), torch.float64)
    return found.item()


def test_the_specifications_lists():
    near = {"rtol": 0, "atol": 1e-6}
    assert_close([of_one("map", M1), of_one("map@r", M1), of_one("map", M2)], [0.6976190, 0.4833333, 1 / 3], **near)
    assert [of_one(f"recall@{k}", M2) for k in (1, 2, 3)] == [0, 0, 1]
    assert_close(of_one(trapezoid_average_precision, [1, 0, 1, 1]), 0.7638889, **near)
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
    best = sorted(ranked, reverse=True)
    perfect = ["map", "map@r", "recall@1", "r_precision", f"true_recall@{k}", f"map@{k}"]
    assert [of_one(name, best) for name in perfect] == [1] * 6
    expected = binary_metrics(ranked, [k])
    names = ["map", "map@r", "set_precision", "r_precision", *(f"{name}@{k}" for name in AT_K)]
    found = {name: of_one(name, ranked) for name in names}
    assert_close({name: of_one(name, [*ranked, False]) for name in names[:2]}, {name: found[name] for name in names[:2]})
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
    both = torch.tensor([ranked, [False] * len(ranked)])
    assert trapezoid_average_precision(both).isnan().tolist() == [False, True]
    assert revisited_precision_at_k(both, k).isnan().tolist() == [False, True]
    assert revisited_precision_at_k(both[:, :0], k).isnan().all()
    last = max(place for place, relevant in enumerate(ranked, start=1) if relevant)
    k_here = min(last, k)
    assert_close(of_one(revisited_precision_at_k, ranked, k=k), sum(ranked[:k_here]) / k_here)


@pytest.mark.parametrize("name", [*METRICS.names()])
def test_a_query_without_a_relevant_item_is_nan_and_spoils_no_other(name):
    ranked = torch.tensor([[1, 0], [0, 0], [0, 1]])
    name = f"{name}@1" if METRICS.find(name).takes_k == "always" else name
    defined = ~list_metric(name, ranked).isnan()
    assert not defined[1]
    assert metric_of(name).is_total == defined[[0, 2]].all().item()
