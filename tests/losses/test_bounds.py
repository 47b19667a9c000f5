"""Losses with SupRank against the metrics of the evaluation: never below one minus the metric, ties or not."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.evaluation.protocol import evaluate
from sightline.losses import create_loss

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=100)
# Of length 1, and every cosine a multiple of a half: what is tied on paper is tied in both computations.
VECTORS = torch.cat([torch.eye(4), -torch.eye(4), torch.tensor(list(itertools.product([0.5, -0.5], repeat=4)))]).double()
BOUNDED = {"sup_ap": "map", "sup_h_ap": "h_ap", "sup_ndcg": "ndcg"}
widths = st.sampled_from([{}, {"tau": 0.5}, {"tau": 0.3, "rho": 0.1, "delta": 0.6}])


def vectors(n_items):
    return st.lists(st.integers(0, len(VECTORS) - 1), min_size=n_items, max_size=n_items).map(lambda index: VECTORS[index])


@reproducible
@given(vectors(10), st.permutations(range(10)), widths)
def test_label_trees(embeddings, order, options):
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [1, 0], [2, 1], [2, 1], [2, 1], [3, 1], [3, 1]])[list(order)]
    exact = evaluate(embeddings, labels, metrics=list(BOUNDED.values()), ties="counting")
    for name, metric in BOUNDED.items():
        assert create_loss(name, **options)(embeddings, labels).item() >= 1 - exact[metric] - 1e-9
        single = create_loss(name, **options)(embeddings.float(), labels).item()  # to the accuracy of the compiled core
        assert single >= 1 - exact[metric] - 1e-5


@reproducible
@given(vectors(7), st.lists(st.integers(0, 4), min_size=49, max_size=49).filter(any), widths)
def test_any_relevance(embeddings, grades, options):
    relevance = torch.tensor([0.0, 0.3, 1.0, 1.7, 4.0])[grades].reshape(7, 7).double().fill_diagonal_(0)
    if relevance.any():
        exact = evaluate(embeddings, judgements=relevance, metrics=list(BOUNDED.values()), ties="counting")
        for name, metric in BOUNDED.items():
            assert create_loss(name, **options)(embeddings, relevance).item() >= 1 - exact[metric] - 1e-9
