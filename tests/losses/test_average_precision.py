import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as metric_learning
from torch.testing import assert_close

from sightline.losses.average_precision import (
    SmoothAPLoss,
    SupAPLoss,
    smooth_ap_loss,
    sup_ap_loss,
)
from sightline.ranking import ranks
from sightline.ranking.similarity import cosine_scores

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=200)

E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5], [0.62, 0.60, 0.59, 0.585, 0.50]
E_RELEVANT = torch.tensor([[False, True, False, False, True]])
TOY = [0.50, 0.51, 0.64]
TOY_RELEVANT = torch.tensor([[True, True, False]])


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def table(rows):
    return torch.tensor(rows, dtype=torch.bool)


def draw(seed, n_queries=5, n_items=9):
    """Scores in steps of 0.05, so that many are equal; a third relevant; a sixth masked."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-8, 9, (n_queries, n_items), generator=generator).double() / 20
    relevant = torch.rand(n_queries, n_items, generator=generator) < 0.33
    return scores, relevant, torch.rand(n_queries, n_items, generator=generator) < 0.83


def draw_apart(seed, n_queries=3, n_items=7, gap=0.0021):
    """As draw, with scores that are all different: multiples of a gap that meets neither 0 nor delta."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.stack([torch.randperm(60, generator=generator)[:n_items] for _ in range(n_queries)]).double() * gap
    return scores, *draw(seed, n_queries, n_items)[1:]


@st.composite
def lists(draw_value):
    """Scores with two decimals, so that some are equal, with any relevance and any mask."""
    n_queries, n_items = draw_value(st.integers(1, 3)), draw_value(st.integers(1, 8))
    width = draw_value(st.sampled_from([2, 10, 100]))  # in hundredths: many ties, some, few
    row = {"min_size": n_items, "max_size": n_items}
    rows = {"min_size": n_queries, "max_size": n_queries}
    scores = draw_value(st.lists(st.lists(st.integers(-width, width), **row), **rows))
    relevant, mask = (draw_value(st.lists(st.lists(st.booleans(), **row), **rows)) for _ in range(2))
    return double(scores) / 100, table(relevant), table(mask)


# The definitions, one item at a time.


def sigmoid(gap, tau):
    return 1 / (1 + math.exp(-gap / tau)) if gap >= 0 else math.exp(gap / tau) / (1 + math.exp(gap / tau))


def h_minus(gap, tau, rho, delta):
    if gap < 0:
        return sigmoid(gap, tau)
    if gap <= delta:
        return sigmoid(gap, tau) + 0.5
    return rho * (gap - delta) + sigmoid(delta, tau) + 0.5


def mean_over_lists(loss_of_list, scores, relevant, mask):
    """The mean of ``loss_of_list(relevant scores, irrelevant scores)`` over the lists with a relevant item."""
    found = []
    for row, is_relevant, listed in zip(scores.tolist(), relevant.tolist(), mask.tolist(), strict=True):
        yes = [score for score, good, present in zip(row, is_relevant, listed, strict=True) if present and good]
        no = [score for score, good, present in zip(row, is_relevant, listed, strict=True) if present and not good]
        if yes:
            found.append(loss_of_list(yes, no))
    return sum(found) / len(found) if found else 0


def sup_ap_of_list(yes, no, tau=0.01, rho=100.0, delta=0.05):
    total = 0.0
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(1 for j, other in enumerate(yes) if j != k and other >= score)
        total += rank_plus / (rank_plus + sum(h_minus(other - score, tau, rho, delta) for other in no))
    return 1 - total / len(yes)


def smooth_ap_of_list(yes, no, tau=0.01):
    total = 0.0
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(sigmoid(other - score, tau) for j, other in enumerate(yes) if j != k)
        total += rank_plus / (rank_plus + sum(sigmoid(other - score, tau) for other in no))
    return 1 - total / len(yes)


def exact_ap_of_list(yes, no):
    """As a fraction: nothing is rounded. Equal scores count against the item."""
    total = Fraction(0)
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(1 for j, other in enumerate(yes) if j != k and other >= score)
        total += Fraction(rank_plus, rank_plus + sum(1 for other in no if other >= score))
    return 1 - total / len(yes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("tau", "rho", "delta"), [(0.01, 100.0, 0.05), (0.2, 3.0, 0.15)])
def test_sup_ap_is_its_definition(seed, tau, rho, delta):
    expected = mean_over_lists(lambda yes, no: sup_ap_of_list(yes, no, tau, rho, delta), *draw(seed))
    assert_close(sup_ap_loss(*draw(seed), tau=tau, rho=rho, delta=delta).item(), expected)
    scores, relevant, mask = draw(seed)
    in_single = sup_ap_loss(scores.float(), relevant, mask, tau, rho, delta)
    assert in_single.dtype == torch.float32
    # The jump at 0 and the rounding of scores: only equal scores stay equal, others are 0.05 apart.
    assert_close(in_single.item(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [0.01, 0.2])
def test_smooth_ap_is_its_definition(seed, tau):
    expected = mean_over_lists(lambda yes, no: smooth_ap_of_list(yes, no, tau), *draw(seed))
    assert_close(smooth_ap_loss(*draw(seed), tau=tau).item(), expected)
    scores, relevant, mask = draw(seed)
    assert_close(smooth_ap_loss(scores.float(), relevant, mask, tau).item(), expected, rtol=1e-4, atol=1e-5)


@reproducible
@given(lists())
def test_both_losses_are_their_definitions_on_any_list(pairs):
    assert_close(sup_ap_loss(*pairs).item(), float(mean_over_lists(sup_ap_of_list, *pairs)))
    assert_close(smooth_ap_loss(*pairs).item(), float(mean_over_lists(smooth_ap_of_list, *pairs)))
    in_single = pairs[0].float(), *pairs[1:]
    near = {"rtol": 1e-4, "atol": 1e-5}
    assert_close(sup_ap_loss(*in_single).item(), float(mean_over_lists(sup_ap_of_list, *pairs)), **near)
    assert_close(smooth_ap_loss(*in_single).item(), float(mean_over_lists(smooth_ap_of_list, *pairs)), **near)


@reproducible
@given(lists())
def test_sup_ap_is_never_below_one_minus_ap(pairs):
    """The slack is for rounding alone: at ties the two are equal, and the float next to 8/9, for one, is 5e-17 below it."""
    assert sup_ap_loss(*pairs).item() >= mean_over_lists(exact_ap_of_list, *pairs) - Fraction(1, 10**14)
    assert sup_ap_loss(pairs[0].float(), *pairs[1:]).item() >= mean_over_lists(exact_ap_of_list, *pairs) - Fraction(
        1, 10**6
    )


def test_sup_ap_equals_one_minus_ap_where_every_score_is_tied():
    """Two of three items are irrelevant: 1 - 1/3. Smooth-AP takes half of each: 1 - 1/2."""
    scores, relevant = torch.full((1, 3), 0.3, dtype=torch.float64), table([[1, 0, 0]])
    assert_close(sup_ap_loss(scores, relevant).item(), 2 / 3)
    assert_close(smooth_ap_loss(scores, relevant).item(), 1 / 2)


@pytest.mark.parametrize("seed", range(5))
def test_smooth_ap_tends_to_one_minus_ap_as_tau_falls(seed):
    pairs = draw_apart(seed)
    assert_close(smooth_ap_loss(*pairs, tau=1e-6).item(), float(mean_over_lists(exact_ap_of_list, *pairs)))


# Worked examples.


@pytest.mark.parametrize(
    ("scores", "exact", "smooth", "sup", "gradient"),
    [
        (E1, 0.55, 0.5499982, 0.9170087, [0.916923, -0.890507, 0.026497, 0.026457, -0.079370]),
        (E2, 0.55, 0.5855907, 0.7757919, [0.881671, -2.809770, 1.452776, 1.156899, -0.681575]),
    ],
    ids=["E1", "E2"],
)
def test_worked_examples(scores, exact, smooth, sup, gradient):
    scores = double([scores]).requires_grad_()
    assert (
        mean_over_lists(exact_ap_of_list, scores, E_RELEVANT, table([[1] * 5])) == Fraction(11, 20) == Fraction(str(exact))
    )
    loss = sup_ap_loss(scores, E_RELEVANT)
    loss.backward()
    assert_close(smooth_ap_loss(scores, E_RELEVANT).item(), smooth, rtol=0, atol=1e-6)
    assert_close(loss.item(), sup, rtol=0, atol=1e-6)
    assert_close(scores.grad, double([gradient]), rtol=0, atol=1e-6)


def toy_gradient(loss_of_scores):
    scores = double([TOY]).requires_grad_()
    loss = loss_of_scores(scores)
    loss.backward()
    return loss.item(), scores.grad[0]


def test_toy_example_smooth_ap():
    value, (first, second, irrelevant) = toy_gradient(lambda scores: smooth_ap_loss(scores, TOY_RELEVANT))
    assert_close(value, 0.4034459, rtol=0, atol=1e-6)
    assert_close(torch.stack([first, second]), double([-0.591562, 0.591525]), rtol=0, atol=1e-6)
    assert_close(irrelevant.item(), 3.75e-5, rtol=0, atol=5e-8)
    assert value < 1 - (1 / 2 + 2 / 3) / 2  # (a) it is below 1 - AP
    assert second > 0  # (b) pushes a relevant item down,
    assert_close(-first.item(), second.item(), rtol=0, atol=1e-4)  # as hard as the other up,
    assert 0 < irrelevant < 1e-4 * second  # (c) and leaves the irrelevant one where it is


def test_toy_example_sup_ap():
    value, gradient = toy_gradient(lambda scores: sup_ap_loss(scores, TOY_RELEVANT))
    assert_close(value, 0.8723077, rtol=0, atol=1e-6)
    assert_close(gradient, double([-0.6406859, -0.4540935, 1.0947793]), rtol=0, atol=1e-6)
    assert value > 1 - (1 / 2 + 2 / 3) / 2
    assert gradient.sign().tolist() == [-1.0, -1.0, 1.0]  # (e)


# Gradients.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", [sup_ap_loss, smooth_ap_loss])
@pytest.mark.parametrize("tau", [0.01, 0.1])
def test_gradient_in_single_precision_is_that_in_double(loss, seed, tau):
    """Which the finite differences vouch for."""
    scores, relevant, mask = draw_apart(seed, 6, 40)
    gradients = []
    for leaf in (scores.float().requires_grad_(), scores.clone().requires_grad_()):
        loss(leaf, relevant, mask, tau=tau).backward()
        gradients.append(leaf.grad)
    assert gradients[0].dtype == torch.float32
    assert gradients[1].abs().max() > 1e-2
    assert_close(gradients[0].double(), gradients[1], rtol=1e-3, atol=1e-5)


@reproducible
@given(lists())
def test_gradients_are_finite_sum_to_zero_and_vanish_off_the_list(pairs):
    scores, relevant, mask = pairs
    for loss in (sup_ap_loss, smooth_ap_loss):
        leaf = scores.clone().requires_grad_()
        loss(leaf, relevant, mask).backward()
        assert leaf.grad.isfinite().all()
        assert_close(leaf.grad.sum(1), torch.zeros(len(scores), dtype=torch.float64), rtol=0, atol=1e-9)
        assert (leaf.grad[~mask] == 0).all()
        assert (leaf.grad[~(relevant & mask).any(1)] == 0).all()


@reproducible
@given(lists())
def test_sup_ap_gradients_have_the_right_signs(pairs):
    """Relevant items never go down, irrelevant ones never up; and every relevant item that is not first goes up."""
    scores, relevant, mask = pairs
    leaf = scores.clone().requires_grad_()
    sup_ap_loss(leaf, relevant, mask).backward()
    assert (leaf.grad[relevant] <= 0).all()
    assert (leaf.grad[~relevant] >= 0).all()
    for query, row in enumerate(scores.tolist()):
        others = [row[j] for j in range(len(row)) if mask[query, j] and not relevant[query, j]]
        for k in range(len(row)):
            if mask[query, k] and relevant[query, k] and any(other >= row[k] for other in others):
                assert leaf.grad[query, k] < 0


def test_sup_ap_gradient_of_a_pair_far_apart():
    """rho rank+ / (P (rank+ + rank-)^2): one irrelevant item more than delta above both relevant ones."""
    scores = double([[0.1, 0.2, 0.7]]).requires_grad_()
    sup_ap_loss(scores, TOY_RELEVANT).backward()
    above = 100 * (0.6 - 0.05) + sigmoid(0.05, 0.01) + 0.5, 100 * (0.5 - 0.05) + sigmoid(0.05, 0.01) + 0.5
    first, second = 100 * 2 / (2 * (2 + above[0]) ** 2), 100 * 1 / (2 * (1 + above[1]) ** 2)
    assert_close(scores.grad, double([[-first, -second, first + second]]))


def test_sup_ap_gradient_at_a_tie_is_the_slope_to_the_right():
    scores = double([[0.4, 0.4]]).requires_grad_()
    sup_ap_loss(scores, table([[1, 0]])).backward()
    assert_close(scores.grad, double([[-25 / 4, 25 / 4]]))  # 1 - 1 / (1 + H), H = 1, slope 25


def test_sup_ap_carries_no_gradient_through_the_rank_among_relevant_items():
    scores = double([[0.4, 0.399, 0.401, -5.0]]).requires_grad_()  # the irrelevant one is out of reach
    sup_ap_loss(scores, table([[1, 1, 1, 0]])).backward()
    assert_close(scores.grad, torch.zeros(1, 4, dtype=torch.float64), rtol=0, atol=1e-100)


# Batches.


def cosine_by_definition(one, other):
    length = math.sqrt(math.fsum(a * a for a in one) * math.fsum(b * b for b in other))
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / length


def batch_by_definition(embeddings, labels, references=None, ref_labels=None):
    """Scores, relevance and mask; without references each item is ranked against the others."""
    others, other_labels = (embeddings, labels) if references is None else (references, ref_labels)
    scores = [[cosine_by_definition(one, other) for other in others.tolist()] for one in embeddings.tolist()]
    relevant = [[one == other for other in other_labels.tolist()] for one in labels.tolist()]
    mask = [[references is not None or i != j for j in range(len(others))] for i in range(len(embeddings))]
    return double(scores), table(relevant), table(mask)


MODULES = [
    (SupAPLoss(), sup_ap_of_list),
    (SupAPLoss(0.05, 20.0, 0.1), lambda yes, no: sup_ap_of_list(yes, no, 0.05, 20.0, 0.1)),
    (SmoothAPLoss(), smooth_ap_of_list),
    (SmoothAPLoss(0.05), lambda yes, no: smooth_ap_of_list(yes, no, 0.05)),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("module", "loss_of_list"), MODULES)
def test_modules_rank_each_item_against_the_others(module, loss_of_list, seed):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 2, 3, 3, 0])[torch.randperm(10, generator=generator)]  # 2 is alone
    expected = mean_over_lists(loss_of_list, *batch_by_definition(embeddings, labels))
    assert_close(module(embeddings, labels).item(), expected)
    assert_close(module(embeddings, labels[:, None]).item(), expected)
    assert_close(module(embeddings, torch.stack([labels, labels // 2], 1)).item(), expected)


# Against pytorch-metric-learning. Reading its source: Q = G = the batch, the query included and relevant to itself; and
# `num_classes_batch` is in truth the items a class, so that what it takes for one class is a run of as many items as the
# batch has classes. The two agree where a batch sorted by class has as many items a class as classes.


def with_self_in_the_list(embeddings, relevant, tau):
    return smooth_ap_loss(cosine_scores(embeddings, embeddings), relevant, tau=tau)


@pytest.mark.parametrize("n_classes", [3, 4, 5])
@pytest.mark.parametrize("tau", [0.01, 0.2])
def test_smooth_ap_agrees_with_pytorch_metric_learning(n_classes, tau):
    generator = torch.Generator().manual_seed(n_classes)
    embeddings = torch.randn(n_classes**2, 5, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.arange(n_classes).repeat_interleave(n_classes)
    theirs = metric_learning.SmoothAPLoss(temperature=tau)(embeddings, labels)
    ours = with_self_in_the_list(embeddings, labels[:, None] == labels, tau)
    assert_close(ours.item(), theirs.item(), rtol=0, atol=1e-6)  # they store AP in single precision
    gradients = [torch.autograd.grad(loss, embeddings)[0] for loss in (ours, theirs)]
    assert gradients[0].abs().max() > 1e-3
    assert_close(*gradients, rtol=1e-5, atol=1e-6)


# Memory.


@pytest.mark.parametrize("module", [SupAPLoss(), SmoothAPLoss()])
@pytest.mark.parametrize(("n_classes", "largest_allowed"), [(64, 256 * 3 * 256), (4, ranks.WORKSPACE_ELEMENTS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, and by operators
def test_no_tensor_of_queries_by_items_by_items(module, n_classes, largest_allowed, dtype, largest_tensor):
    """16.8 million elements for a batch of 256. Four items a class need 3 targets a query, 64 are done in blocks."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(256, 8, generator=generator, dtype=dtype, requires_grad=True)
    with largest_tensor as largest:
        module(embeddings, torch.arange(256) % n_classes).backward()
    assert embeddings.grad.abs().sum() > 0
    assert 256 * 256 <= largest.n_elements <= largest_allowed  # it saw the scores, and nothing too large


# Parts.
