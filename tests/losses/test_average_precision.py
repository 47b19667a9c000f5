import math
from fractions import Fraction

import loss_cases as cases
import pytest
import torch
from hypothesis import given
from loss_cases import E1, E2, E_RELEVANT, LABELS, double, draw, draw_pairs, value_and_gradient
from pytorch_metric_learning import losses as metric_learning
from torch.testing import assert_close

from sightline.losses import SmoothAPLoss, SupAPLoss, smooth_ap_loss, sup_ap_loss
from sightline.ranking import ranks
from sightline.ranking.similarity import cosine_scores

TOY, TOY_RELEVANT = double([[0.50, 0.51, 0.64]]), torch.tensor([[True, True, False]])
near = {"rtol": 0, "atol": 1e-6}


def sup_ap_of_list(yes, no, tau=0.01, rho=100.0, delta=0.05):
    total = 0.0
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(1 for j, other in enumerate(yes) if j != k and other >= score)
        total += rank_plus / (rank_plus + sum(cases.h_minus(other - score, tau, rho, delta) for other in no))
    return 1 - total / len(yes)


def smooth_ap_of_list(yes, no, tau=0.01):
    total = 0.0
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(cases.sigmoid(other - score, tau) for j, other in enumerate(yes) if j != k)
        total += rank_plus / (rank_plus + sum(cases.sigmoid(other - score, tau) for other in no))
    return 1 - total / len(yes)


def exact_ap_of_list(yes, no):
    """As a fraction: nothing is rounded. Equal scores count against the item."""
    total = Fraction(0)
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(1 for j, other in enumerate(yes) if j != k and other >= score)
        total += Fraction(rank_plus, rank_plus + sum(1 for other in no if other >= score))
    return 1 - total / len(yes)


@cases.reproducible
@given(cases.lists(step=0.01, most=10))
def test_both_losses_are_their_definitions_and_sup_ap_is_never_below_one_minus_ap(pairs):
    in_single = pairs[0].float(), *pairs[1:]
    for options in ((), (0.2, 3.0, 0.15)):
        sup = float(cases.mean_over_lists(lambda yes, no, options=options: sup_ap_of_list(yes, no, *options), *pairs))
        smooth = float(cases.mean_over_lists(lambda yes, no, tau=options[:1]: smooth_ap_of_list(yes, no, *tau), *pairs))
        assert_close(sup_ap_loss(*pairs, *options).item(), sup)
        assert_close(smooth_ap_loss(*pairs, *options[:1]).item(), smooth)
        # Scores that are 0.05 apart may be a rounding more or less than delta, where the step is continuous.
        assert_close(sup_ap_loss(*in_single, *options).item(), sup, rtol=1e-4, atol=1e-5)
        assert_close(smooth_ap_loss(*in_single, *options[:1]).item(), smooth, rtol=1e-4, atol=1e-5)
    # The slack is for rounding alone: at ties the two are equal, and the float next to 8/9, for one, is 5e-17 below it.
    exact = cases.mean_over_lists(exact_ap_of_list, *pairs)
    assert sup_ap_loss(*pairs).item() >= exact - Fraction(1, 10**14)
    assert sup_ap_loss(*in_single).item() >= exact - Fraction(1, 10**6)


def test_limits():
    """Where all scores are tied two of three items are irrelevant: 1 - 1/3. Smooth-AP takes half of each: 1 - 1/2."""
    tied, relevant = torch.full((1, 3), 0.3, dtype=torch.float64), torch.tensor([[True, False, False]])
    assert_close(sup_ap_loss(tied, relevant).item(), 2 / 3)
    assert_close(smooth_ap_loss(tied, relevant).item(), 1 / 2)
    for seed in range(3):
        pairs = draw_pairs(seed, apart=True)
        assert_close(smooth_ap_loss(*pairs, tau=1e-6).item(), float(cases.mean_over_lists(exact_ap_of_list, *pairs)))


@pytest.mark.parametrize(
    ("scores", "smooth", "sup", "gradient"),
    [
        (E1, 0.5499982, 0.9170087, [0.916923, -0.890507, 0.026497, 0.026457, -0.079370]),
        (E2, 0.5855907, 0.7757919, [0.881671, -2.809770, 1.452776, 1.156899, -0.681575]),
    ],
    ids=["E1", "E2"],
)
def test_worked_examples(scores, smooth, sup, gradient):
    assert cases.mean_over_lists(exact_ap_of_list, scores, E_RELEVANT, torch.ones(1, 5)) == Fraction(11, 20)
    assert_close(smooth_ap_loss(scores, E_RELEVANT).item(), smooth, **near)
    assert_close(value_and_gradient(sup_ap_loss, scores, E_RELEVANT), (double(sup), double([gradient])), **near)


def test_toy_example():
    value, gradient = value_and_gradient(smooth_ap_loss, TOY, TOY_RELEVANT)
    assert_close((value.item(), gradient[0, :2]), (0.4034459, double([-0.591562, 0.591525])), **near)
    assert_close(gradient[0, 2].item(), 3.75e-5, rtol=0, atol=5e-8)
    exact = 1 - (1 / 2 + 2 / 3) / 2
    assert value < exact  # (a) it is below 1 - AP
    assert_close(-gradient[0, 0], gradient[0, 1], rtol=0, atol=1e-4)  # (b) one relevant item goes down as the other goes up
    assert 0 < gradient[0, 2] < 1e-4 * gradient[0, 1]  # (c) and the irrelevant one stays where it is
    value, gradient = value_and_gradient(sup_ap_loss, TOY, TOY_RELEVANT)
    assert_close((value, gradient), (double(0.8723077), double([[-0.6406859, -0.4540935, 1.0947793]])), **near)
    assert value > exact


@cases.reproducible
@given(cases.lists(step=0.01, most=10))
def test_gradients_sum_to_zero_vanish_off_the_list_and_have_the_right_signs(pairs):
    scores, relevant, mask = pairs
    for loss in (smooth_ap_loss, sup_ap_loss):
        gradient = value_and_gradient(loss, scores, relevant, mask)[1]
        assert gradient.isfinite().all()
        assert_close(gradient.sum(1), torch.zeros(len(scores), dtype=torch.float64), rtol=0, atol=1e-9)
        assert (gradient[~mask] == 0).all()
        assert (gradient[~(relevant & mask).any(1)] == 0).all()
    # Of SupAP: relevant items never go down, irrelevant ones never up; every relevant item that is not first goes up.
    assert (gradient[relevant] <= 0).all()
    assert (gradient[~relevant] >= 0).all()
    highest = scores.masked_fill(~mask | relevant, -math.inf).amax(1, keepdim=True)
    assert (gradient[mask & relevant & (scores <= highest)] < 0).all()


def test_sup_ap_gradients_worked_by_hand():
    """rho rank+ / (P (rank+ + rank-)^2): one irrelevant item more than delta above both relevant ones."""
    above = 100 * (0.6 - 0.05) + cases.sigmoid(0.05) + 0.5, 100 * (0.5 - 0.05) + cases.sigmoid(0.05) + 0.5
    first, second = 100 * 2 / (2 * (2 + above[0]) ** 2), 100 * 1 / (2 * (1 + above[1]) ** 2)
    found = value_and_gradient(sup_ap_loss, double([[0.1, 0.2, 0.7]]), TOY_RELEVANT)[1]
    assert_close(found, double([[-first, -second, first + second]]))
    # At a tie the slope is that to the right: 1 - 1 / (1 + H), H = 1, slope 25.
    found = value_and_gradient(sup_ap_loss, double([[0.4, 0.4]]), torch.tensor([[True, False]]))[1]
    assert_close(found, double([[-25 / 4, 25 / 4]]))
    # None comes through the rank among relevant items; the irrelevant one is out of reach.
    found = value_and_gradient(sup_ap_loss, double([[0.4, 0.399, 0.401, -5.0]]), torch.tensor([[True, True, True, False]]))[
        1
    ]
    assert_close(found, torch.zeros(1, 4, dtype=torch.float64), rtol=0, atol=1e-100)


def cosine_by_definition(one, other):
    length = math.sqrt(math.fsum(a * a for a in one) * math.fsum(b * b for b in other))
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / length


@pytest.mark.parametrize(
    ("module", "loss_of_list"),
    [
        (SupAPLoss(), sup_ap_of_list),
        (SupAPLoss(0.05, 20.0, 0.1), lambda yes, no: sup_ap_of_list(yes, no, 0.05, 20.0, 0.1)),
        (SmoothAPLoss(0.05), lambda yes, no: smooth_ap_of_list(yes, no, 0.05)),
    ],
)
def test_modules_rank_each_item_against_the_others(module, loss_of_list):
    vectors = draw().tolist()
    scores = double([[cosine_by_definition(one, other) for other in vectors] for one in vectors])
    expected = cases.mean_over_lists(loss_of_list, scores, LABELS[:, None] == LABELS, ~torch.eye(10).bool())
    assert_close(module(draw(), LABELS).item(), expected)


@pytest.mark.parametrize(("n_classes", "tau"), [(3, 0.01), (4, 0.2), (5, 0.01)])
def test_smooth_ap_agrees_with_pytorch_metric_learning(n_classes, tau):
    """There each query is in its own list, and neighbours in the batch are taken for a class: the two agree where a batch
    sorted by class has as many items a class as classes."""
    embeddings, labels = draw(n_classes, n_classes**2, 5), torch.arange(n_classes).repeat_interleave(n_classes)
    theirs = value_and_gradient(metric_learning.SmoothAPLoss(temperature=tau), embeddings, labels)
    ours = value_and_gradient(
        lambda leaf: smooth_ap_loss(cosine_scores(leaf, leaf), labels[:, None] == labels, tau=tau), embeddings
    )
    assert ours[1].abs().max() > 1e-3
    assert_close(ours, (theirs[0].double(), theirs[1]), rtol=1e-5, atol=1e-6)  # they store AP in single precision


@pytest.mark.parametrize("module", [SupAPLoss(), SmoothAPLoss()])
@pytest.mark.parametrize(("n_classes", "largest_allowed"), [(64, 256 * 3 * 256), (4, ranks.WORKSPACE_ELEMENTS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, and by operators
def test_no_tensor_of_queries_by_items_by_items(module, n_classes, largest_allowed, dtype, largest_tensor):
    """16.8 million elements for a batch of 256. Four items a class need 3 targets a query, 64 are done in blocks."""
    with largest_tensor as largest:
        gradient = value_and_gradient(module, draw(0, 256, 8, dtype), torch.arange(256) % n_classes)[1]
    assert gradient.abs().sum() > 0
    assert 256 * 256 <= largest.n_elements <= largest_allowed  # it saw the scores, and nothing too large
