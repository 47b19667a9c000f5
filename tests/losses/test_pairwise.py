import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses.pairwise import CalibrationLoss, calibration_loss
from sightline.ranking.relevance import batch_pairs

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=200)

E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5], [0.62, 0.60, 0.59, 0.585, 0.50]
E_RELEVANT = torch.tensor([[False, True, False, False, True]])


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def calibration_by_definition(scores, relevant, mask, alpha=0.9, beta=0.6):
    """One pair at a time; queries without any item are left out."""
    found = []
    for row, is_relevant, listed in zip(scores.tolist(), relevant.tolist(), mask.tolist(), strict=True):
        short = [max(0.0, alpha - s) for s, good, present in zip(row, is_relevant, listed, strict=True) if present and good]
        over = [
            max(0.0, s - beta) for s, good, present in zip(row, is_relevant, listed, strict=True) if present and not good
        ]
        if short or over:
            found.append(sum(sum(side) / len(side) for side in (short, over) if side))
    return sum(found) / len(found) if found else 0.0


@st.composite
def lists(draw_value):
    n_queries, n_items = draw_value(st.integers(1, 4)), draw_value(st.integers(1, 7))
    row = {"min_size": n_items, "max_size": n_items}
    rows = {"min_size": n_queries, "max_size": n_queries}
    scores = draw_value(st.lists(st.lists(st.integers(-10, 10), **row), **rows))
    relevant, mask = (draw_value(st.lists(st.lists(st.booleans(), **row), **rows)) for _ in range(2))
    return double(scores) / 10, torch.tensor(relevant), torch.tensor(mask)


@reproducible
@given(lists(), st.sampled_from([(0.9, 0.6), (0.5, -0.2), (1.0, 0.9)]))
def test_calibration_is_its_definition(pairs, marks):
    alpha, beta = marks
    assert_close(calibration_loss(*pairs, alpha=alpha, beta=beta).item(), calibration_by_definition(*pairs, alpha, beta))
    scores, relevant, mask = pairs
    in_single = calibration_loss(scores.float(), relevant, mask, alpha, beta)
    assert_close(in_single.item(), calibration_by_definition(*pairs, alpha, beta), rtol=1e-5, atol=1e-6)


def test_calibration_worked_by_hand():
    """Shortfall (0 + 0.2) / 2, excess (0.05 + 0 + 0.01) / 3."""
    scores, relevant = double([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[True, True, False, False, False]])
    assert_close(calibration_loss(scores, relevant).item(), 0.12)


def test_mean_of_nonzero_terms_worked_by_hand():
    """Shortfall 0.2 of one pair, excess (0.05 + 0.01) / 2; with a second row, all pairs of the table together."""
    scores, relevant = double([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[True, True, False, False, False]])
    assert_close(calibration_loss(scores, relevant, reduction="nonzero").item(), 0.23)
    two = double([[0.95, 0.70, 0.65, 0.30, 0.61], [0.50, 0.90, 0.60, 0.50, 0.90]]), relevant.expand(2, -1)
    assert_close(calibration_loss(*two, reduction="nonzero").item(), (0.2 + 0.4) / 2 + (0.05 + 0.01 + 0.3) / 3)
    within = double([[0.95, 0.9, 0.6, 0.30, 0.1]]).requires_grad_()
    calibration_loss(within, relevant, reduction="nonzero").backward()
    assert (within.grad == 0).all()
    with pytest.raises(InputError, match=r"^unknown reduction 'nonzeros': did you mean 'nonzero'\?$"):
        calibration_loss(scores, relevant, reduction="nonzeros")


@pytest.mark.parametrize(("scores", "expected"), [(E1, 0.3833333), (E2, 0.3566667)], ids=["E1", "E2"])
def test_worked_examples(scores, expected):
    assert_close(calibration_loss(double([scores]), E_RELEVANT).item(), expected, rtol=0, atol=1e-6)


def test_an_empty_side_is_zero_and_an_empty_list_left_out():
    scores = double([[0.5, 0.8], [0.5, 0.8], [0.5, 0.8], [0.5, 0.8]])
    relevant = torch.tensor([[True, True], [False, False], [True, False], [True, False]])
    mask = torch.tensor([[True, True], [True, True], [True, True], [False, False]])
    # Shortfall alone (0.4 + 0.1) / 2; excess alone (0 + 0.2) / 2; both 0.4 + 0.2; not counted.
    assert_close(calibration_loss(scores, relevant, mask).item(), (0.25 + 0.1 + 0.6) / 3)


def test_gradient_worked_by_hand():
    """Each pair beyond its mark pulls by one over the size of its side; those within pull not at all."""
    scores = double([[0.95, 0.70, 0.65, 0.30, 0.61]]).requires_grad_()
    calibration_loss(scores, torch.tensor([[True, True, False, False, False]])).backward()
    assert_close(scores.grad, double([[0.0, -1 / 2, 1 / 3, 0.0, 1 / 3]]))


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_the_finite_difference(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(3, 6, generator=generator, dtype=torch.float64).requires_grad_()
    relevant, mask = torch.rand(3, 6, generator=generator) < 0.5, torch.rand(3, 6, generator=generator) < 0.8
    assert min((scores - mark).abs().min() for mark in (0.9, 0.6)) > 1e-5  # off the corners of the hinges
    assert gradcheck(lambda scores: calibration_loss(scores, relevant, mask), scores)


@reproducible
@given(lists())
def test_gradient_signs(pairs):
    scores, relevant, mask = pairs
    leaf = scores.clone().requires_grad_()
    calibration_loss(leaf, relevant, mask).backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[relevant] <= 0).all()
    assert (leaf.grad[~relevant] >= 0).all()
    assert (leaf.grad[~mask] == 0).all()
    assert ((leaf.grad != 0) == mask & torch.where(relevant, scores < 0.9, scores > 0.6)).all()


@pytest.mark.parametrize("seed", range(5))
def test_module_compares_each_item_with_the_others(seed):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.rand(8, 3, generator=generator, dtype=torch.float64)  # of one octant: cosines are high
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    scores, relevant = batch_pairs(embeddings, labels).scores, labels[:, None] == labels
    expected = calibration_by_definition(scores, relevant, ~torch.eye(8, dtype=torch.bool))
    assert_close(CalibrationLoss()(embeddings, labels).item(), expected)
    expected = calibration_by_definition(scores, relevant, ~torch.eye(8, dtype=torch.bool), 0.8, 0.7)
    assert_close(CalibrationLoss(0.8, 0.7)(embeddings, labels).item(), expected)


def test_module_counts_a_query_whose_class_is_alone():
    """Two orthogonal classes of one item each: nothing relevant, nothing above beta; two parallel ones: 1 - 0.6."""
    labels = torch.tensor([0, 1])
    assert CalibrationLoss()(torch.eye(2), labels).item() == 0
    assert_close(CalibrationLoss()(torch.ones(2, 2), labels).item(), 0.4)


def test_module_compares_with_a_reference_set_whole():
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    references, ref_labels = torch.tensor([[3.0, 4.0], [1.0, 0.0], [8.0, 6.0]]), torch.tensor([0, 0, 1])
    # Query 0: relevant 0.6 and 1.0, the other 0.8. Query 1: relevant 0.6, the others 0.8 and 0.0.
    loss = CalibrationLoss()(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
    assert_close(loss.item(), ((0.3 + 0.0) / 2 + 0.2 + 0.3 + (0.2 + 0.0) / 2) / 2)


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.5, 0.6), (0.6, 0.6), (math.nan, 0.6), (0.9, math.nan), (math.inf, 0.6), (0.9, -math.inf)]
)
def test_alpha_must_be_above_beta(alpha, beta):
    message = rf"^alpha is {alpha}, beta is {beta}; alpha must be above beta, and both finite$"
    with pytest.raises(InputError, match=message):
        calibration_loss(double([[0.5, 0.6]]), torch.tensor([[True, False]]), alpha=alpha, beta=beta)
    with pytest.raises(InputError, match=message):
        CalibrationLoss(alpha, beta)(torch.eye(3), torch.tensor([0, 0, 1]))
