"""An average precision for each label of the query: the loss against its definition, the metric, and sup_ap."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

import sightline as sl
from loss_cases import HALVES, both, draw, references, reproducible, value_and_gradient
from refusals import assert_refused
from sightline.losses import EachLabelAPLoss, create_loss, each_label_ap_loss
from sightline.ranking import profile
from sightline.ranking.similarity import cosine_scores
from step_definitions import sup_ap_of_list

# The specification's vector: of the query {a, b}, AP_a is 5 / 6 and AP_b 53 / 90.
SCORES = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]], dtype=torch.float64)
QUERY = torch.tensor([[True, True]])
ITEMS = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0], [0, 1]]).bool()


def draw_lists(seed, n_queries=6, n_items=9, n_labels=4):
    """Scores in steps of 0.05, many of them equal, with any sets and mask; query 0 has no label, label 3 no carrier."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-8, 9, (n_queries, n_items), generator=generator).double() / 20
    labels, ref_labels, mask = (
        torch.rand(shape, generator=generator) < share
        for shape, share in (((n_queries, n_labels), 0.5), ((n_items, n_labels), 0.4), ((n_queries, n_items), 0.8))
    )
    labels[0] = False
    ref_labels[:, 3] = False
    return scores, labels, ref_labels, mask


def draw_batch(seed, n_items=9, dtype=torch.float64):
    return draw(seed, n_items, dtype=dtype), torch.rand(n_items, 4, generator=torch.Generator().manual_seed(seed)) < 0.4


def by_definition(scores, labels, ref_labels, mask, tau=0.01, rho=100.0, delta=0.05, weights=None):
    """One query, one label, one item at a time."""
    of_queries = []
    for row, own, listed in zip(scores.tolist(), labels.tolist(), mask.tolist(), strict=True):
        items = [(score, item) for score, item, present in zip(row, ref_labels.tolist(), listed, strict=True) if present]
        total = weight = 0.0
        for label in (label for label, has in enumerate(own) if has):
            yes = [score for score, item in items if item[label]]
            no = [score for score, item in items if not item[label]]
            importance = 1 if weights is None else weights[label]
            if not yes or not importance:
                continue
            total += importance * sup_ap_of_list(yes, no, tau, rho, delta)
            weight += importance
        if weight:
            of_queries.append(total / weight)
    return sum(of_queries) / len(of_queries) if of_queries else 0.0


@pytest.mark.parametrize("options", [{}, {"tau": 0.2, "rho": 3.0, "delta": 0.15}])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0, 7.0), (0, 1, 3, 0)])
def test_loss_is_its_definition(options, weights):
    for seed in range(10):
        scores, *rest = draw_lists(seed)
        expected = by_definition(scores, *rest, **options, weights=weights)
        assert_close(each_label_ap_loss(scores, *rest, **options, label_weights=weights).item(), expected)
        single = each_label_ap_loss(scores.float(), *rest, **options, label_weights=weights)
        assert single.dtype == torch.float32
        assert_close(single.item(), expected, rtol=1e-4, atol=1e-5)


def test_the_specifications_vector():
    everything = torch.ones(1, 5, dtype=torch.bool)
    assert_close(each_label_ap_loss(SCORES, QUERY, ITEMS).item(), by_definition(SCORES, QUERY, ITEMS, everything))
    gallery = np.stack([SCORES[0].numpy(), np.sqrt(1 - SCORES[0].numpy() ** 2)], 1)
    for sets, exact in ((QUERY, 0.7111111111), (QUERY & torch.tensor([True, False]), 0.8333333333)):
        assert sl.evaluate_each_label([[1.0, 0.0]], sets, gallery, ITEMS)["map"] == pytest.approx(exact, abs=1e-10)
    for weights in ([1e-30, 2e-30], [1e300, 2e300], torch.tensor([1, 2])):  # their ratio alone counts
        found = each_label_ap_loss(SCORES, QUERY, ITEMS, label_weights=weights)
        assert_close(found, each_label_ap_loss(SCORES, QUERY, ITEMS, label_weights=(1, 2)))
    b_alone = each_label_ap_loss(SCORES, QUERY, ITEMS, label_weights=(0, 1))
    assert_close(b_alone, each_label_ap_loss(SCORES, QUERY & torch.tensor([False, True]), ITEMS))
    # A narrow sigmoid and a flat line: an item above counts 1.5, one below 0.
    ap_a, ap_b = (1 + 2 / 3.5) / 2, (1 / 2.5 + 2 / 3.5 + 3 / 6) / 3
    assert_close(each_label_ap_loss(SCORES, QUERY, ITEMS, tau=1e-4, rho=1e-12).item(), 1 - (ap_a + ap_b) / 2)


@reproducible
@given(
    st.lists(st.integers(0, len(HALVES) - 1), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=32, max_size=32),
    st.sampled_from([{}, {"tau": 0.5}, {"tau": 0.3, "rho": 0.1, "delta": 0.6}]),
)
def test_loss_is_never_below_one_minus_the_metric(index, has, options):
    embeddings, sets = HALVES[index], torch.tensor(has).reshape(8, 4)
    if not (sets.sum(0) > 1).any():
        return
    exact = 1 - sl.evaluate_each_label(embeddings, sets, ties="counting")["map"]
    assert create_loss("each_label_ap", **options)(embeddings, sets).item() >= exact - 1e-9
    assert create_loss("each_label_ap", **options)(embeddings.float(), sets).item() >= exact - 1e-5


@both
def test_one_label_an_item_is_sup_ap(dtype):
    """Sets, with or without weights, for one label alone is the whole mean of its query; classes; levels of a tree."""
    embeddings, others, eye = draw(0, 9, dtype=dtype), draw(1, 6, dtype=dtype), torch.eye(4).bool()
    classes, ref_classes = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3]), torch.tensor([0, 1, 1, 3, 3, 0])
    options = {"tau": 0.05, "rho": 20.0, "delta": 0.3}
    sup_ap, plain = create_loss("sup_ap", **options), create_loss("each_label_ap", **options)
    expected = value_and_gradient(sup_ap, embeddings, classes)
    against = value_and_gradient(sup_ap, embeddings, classes, **references(others, ref_classes))
    weighted = EachLabelAPLoss(**options, label_weights=(1, 2, 3, 4))
    for loss, labels, ref_labels in (
        (plain, eye[classes], eye[ref_classes]),
        (weighted, eye[classes], eye[ref_classes]),
        (plain, classes, ref_classes),
        (plain, torch.stack([classes, classes // 2], 1), torch.stack([ref_classes, ref_classes // 2], 1)),
    ):
        assert_close(value_and_gradient(loss, embeddings, labels), expected)
        assert_close(value_and_gradient(loss, embeddings, labels, **references(others, ref_labels)), against)
    assert_close(value_and_gradient(plain, embeddings, (classes[:, None] == classes).to(dtype)), expected)


@both
def test_module_is_the_function_on_cosines(dtype, monkeypatch):
    (embeddings, sets), (others, ref_sets) = draw_batch(2, 9, dtype), draw_batch(3, 12, dtype)
    weights, not_itself = (1.0, 0.5, 2.0, 4.0), ~torch.eye(9).bool()
    loss = EachLabelAPLoss(label_weights=weights)

    def of_function(leaf, items, of_items, mask):
        scores = cosine_scores(leaf, leaf if items is None else items)
        return each_label_ap_loss(scores, sets, of_items, mask, label_weights=weights)

    alone = value_and_gradient(of_function, embeddings, None, sets, not_itself)
    against = value_and_gradient(of_function, embeddings, others, ref_sets, None)
    assert alone[0] > 0
    for n_elements in (profile.BLOCK_ELEMENTS, 30):  # all, and a few rows at a time: weights go with their rows
        monkeypatch.setattr(profile, "BLOCK_ELEMENTS", n_elements)
        assert_close(value_and_gradient(loss, embeddings, sets), alone)
        assert_close(value_and_gradient(loss, embeddings, sets, **references(others, ref_sets)), against)


def test_gradient_is_the_finite_difference():
    (embeddings, sets), (others, ref_sets) = draw_batch(4, 6), draw_batch(5, 5)
    leaves = embeddings.requires_grad_(), others.requires_grad_()
    loss = EachLabelAPLoss(tau=0.3, rho=3.0, delta=0.4, label_weights=(1.0, 0.5, 2.0, 4.0))
    assert gradcheck(lambda emb: loss(emb, sets), leaves[0], rtol=1e-4)
    assert gradcheck(lambda emb, ref: loss(emb, sets, None, ref, ref_sets), leaves, rtol=1e-4)


def test_order_of_queries_items_and_labels_does_not_matter_and_what_is_left_out_has_no_gradient():
    scores, labels, ref_labels, mask = draw_lists(1)
    value, gradient = value_and_gradient(each_label_ap_loss, scores, labels, ref_labels, mask)
    assert value > 0
    assert (gradient[0] == 0).all()
    assert (gradient[~mask] == 0).all()
    scores[~mask] = math.nan
    assert_close(value_and_gradient(each_label_ap_loss, scores, labels, ref_labels, mask), (value, gradient))
    generator = torch.Generator().manual_seed(0)
    rows, columns, names = (torch.randperm(n, generator=generator) for n in (*scores.shape, labels.shape[1]))
    tables = scores[rows][:, columns], labels[rows][:, names], ref_labels[columns][:, names], mask[rows][:, columns]
    assert_close(value_and_gradient(each_label_ap_loss, *tables), (value, gradient[rows][:, columns]))


@both
def test_nothing_that_counts_is_zero_with_a_zero_gradient(dtype):
    loss, embeddings = EachLabelAPLoss(label_weights=(1, 1, 1, 0)), draw(0, 9, dtype=dtype)
    apart, only_the_last = torch.zeros(9, 4).bool(), torch.zeros(9, 4).bool()
    apart[[0, 1, 2], [0, 1, 2]] = True
    only_the_last[:, 3] = True
    cases = [(loss, embeddings, labels) for labels in (apart, only_the_last, apart & False, apart | True)]
    cases += [(loss, embeddings[:1], apart[:1]), (EachLabelAPLoss(), embeddings, torch.zeros(9, 0).bool())]
    for case in cases:
        value, gradient = value_and_gradient(*case)
        assert value.item() == 0
        assert (gradient == 0).all()


def test_bad_input_is_refused():
    scores, labels, ref_labels, mask = draw_lists(0)
    for weights in ("idf", (1, math.nan), (0, 0), (), 3):
        assert_refused("label_weights", sl.create_loss, "each_label_ap", label_weights=weights)
    for said, *tables in (
        (r"labels.*torch\.int64 \(6, 4\)", labels.long(), ref_labels, mask),
        (r"labels.*\(9, 3\)", labels, ref_labels[:, 1:], mask),
        (r"labels.*\(6, C\).*\(5, 4\)", labels[1:], ref_labels, mask),
        (r"mask.*\(6, 9\)", labels, ref_labels, mask.T),
        ("label_weights.* 4.* 2", labels, ref_labels, mask, 0.01, 100.0, 0.05, (1, 2)),
    ):
        assert_refused(said, each_label_ap_loss, scores, *tables)
    assert_refused(r"label_weights.*bool.*int64", EachLabelAPLoss(label_weights=(1, 2)), draw(0, 9), torch.arange(9))
