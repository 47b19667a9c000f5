"""What a loss equals at the end of its options, as ``docs/losses.md`` says, and the metric that it bounds, ties or not."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from loss_cases import HALVES, draw, draw_pairs
from sightline import losses
from sightline.evaluation.protocol import evaluate
from sightline.losses import create_loss
from sightline.ranking.similarity import cosine_scores

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3])  # no item alone in its class: on a coarser level it would have answers
TREE = torch.stack([LABELS, LABELS // 2], 1)
SIZES = {"n_classes": 4, "embedding_dim": 4}


def test_combined_losses_in_the_limit():
    for term in ("calibration", "proxy"):
        happier, roadmap = (losses.create_loss(name, decomposability=term, **SIZES) for name in ("happier", "roadmap"))
        assert_close(happier(draw(0, 9), LABELS), roadmap(draw(0, 9), LABELS))  # of one level
    expected = roadmap(draw(0, 9), LABELS)  # with proxies
    far, near = (abs(losses.HappierFLoss(**SIZES, alpha=alpha)(draw(0, 9), TREE) - expected) for alpha in (1.0, 60.0))
    assert near < 1e-6 < far
    for name, rank in (("roadmap", "ap"), ("rod_recall", "recall"), ("happier", "h_ap"), ("rod_ndcg", "ndcg")):
        alone = losses.create_loss(f"sup_{rank}")(draw(0, 9), TREE)
        assert_close(losses.create_loss(name, weight=0.0, **SIZES)(draw(0, 9), TREE), alone)


def test_proxy_losses_in_the_limit():
    embeddings, proxies, paths = draw(0, 9), draw(1, 4), torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]])
    cosines, tables = cosine_scores(embeddings, proxies), (embeddings, LABELS, proxies)
    own = cosines.gather(1, LABELS[:, None])[:, 0]
    assert_close(losses.arcface_loss(*tables, 0.0, 20.0), losses.norm_softmax_loss(*tables, 0.05))
    assert_close(1e-5 * losses.norm_softmax_loss(*tables, 1e-5), (cosines.amax(1) - own).mean())
    hinges = [
        (cosines.masked_fill(inside, -math.inf).amax(1) - own + margin).relu()
        for margin, inside in ((0.25, LABELS[:, None] == paths[:, 0]), (0.45, LABELS[:, None] // 2 == paths[:, 1]))
    ]
    assert_close(losses.csl_loss(embeddings, TREE, proxies, paths, gamma=1e6) / 1e6, sum(hinges).mean(), rtol=0, atol=1e-5)


def test_blackbox_losses_and_ndcg_in_the_limit():
    scores, relevant, _ = draw_pairs(apart=True)
    worst = scores.masked_fill(relevant, -math.inf).amax(1, keepdim=True)
    share_below = ((scores < worst) & relevant).sum(1) / relevant.sum(1)
    assert_close(losses.blackbox_recall_loss(scores, relevant, margin=0.0, weights=(1.0,)), share_below.double().mean())
    leaf = scores.clone().requires_grad_()
    losses.blackbox_ap_loss(leaf, relevant, strength=1e-9).backward()
    assert (leaf.grad == 0).all()
    one = scores[:, :1], relevant[:, :1]
    assert_close(losses.all_classes_ap_loss(*one), losses.class_map_loss(*one))
    perfect = torch.tensor([[0.9, 0.6, 0.3]], dtype=torch.float64), torch.tensor([[3.0, 1.0, 0.0]])
    assert 0 < losses.sup_ndcg_loss(*perfect).item() < 1e-5


BOUNDED = {"sup_ap": "map", "sup_h_ap": "h_ap", "sup_ndcg": "ndcg"}
widths = st.sampled_from([{}, {"tau": 0.5}, {"tau": 0.3, "rho": 0.1, "delta": 0.6}])


def vectors(n_items):
    return st.lists(st.integers(0, len(HALVES) - 1), min_size=n_items, max_size=n_items).map(lambda index: HALVES[index])


@given(vectors(10), st.permutations(range(10)), widths)
def test_label_trees(embeddings, order, options):
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [1, 0], [2, 1], [2, 1], [2, 1], [3, 1], [3, 1]])[list(order)]
    exact = evaluate(embeddings, labels, metrics=list(BOUNDED.values()), ties="counting")
    for name, metric in BOUNDED.items():
        assert create_loss(name, **options)(embeddings, labels).item() >= 1 - exact[metric] - 1e-9
        single = create_loss(name, **options)(embeddings.float(), labels).item()  # to the accuracy of the compiled core
        assert single >= 1 - exact[metric] - 1e-5


@given(vectors(7), st.lists(st.integers(0, 4), min_size=49, max_size=49).filter(any), widths)
def test_any_relevance(embeddings, grades, options):
    relevance = torch.tensor([0.0, 0.3, 1.0, 1.7, 4.0])[grades].reshape(7, 7).double().fill_diagonal_(0)
    if relevance.any():
        exact = evaluate(embeddings, judgements=relevance, metrics=list(BOUNDED.values()), ties="counting")
        for name, metric in BOUNDED.items():
            assert create_loss(name, **options)(embeddings, relevance).item() >= 1 - exact[metric] - 1e-9
