import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from pytorch_metric_learning import losses as metric_learning
from torch.testing import assert_close

import loss_cases as cases
from loss_cases import E1, E2, E_RELEVANT, LABELS, both, double, draw, draw_pairs, value_and_gradient
from sightline.losses import SmoothAPLoss, SupAPLoss, create_loss, smooth_ap_loss, sup_ap_loss
from sightline.losses.base import PRESETS
from sightline.ranking import ranks
from sightline.ranking.similarity import cosine_scores
from step_definitions import sigmoid, sup_ap_of_list

near = {"rtol": 0, "atol": 2e-6}


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


def test_worked_examples():
    for scores, *expected in ((E1, 0.5499982, 0.9170087), (E2, 0.5855907, 0.7757919)):
        assert cases.mean_over_lists(exact_ap_of_list, scores, E_RELEVANT, torch.ones(1, 5)) == Fraction(11, 20)
        assert_close([loss(scores, E_RELEVANT).item() for loss in (smooth_ap_loss, sup_ap_loss)], expected, **near)
    gradient = double([[0.916923, -0.890507, 0.026497, 0.026457, -0.079370]])
    assert_close(value_and_gradient(sup_ap_loss, E1, E_RELEVANT)[1], gradient, **near)
    # At a tie the slope is that to the right: 1 - 1 / (1 + H), H = 1, slope 25.
    found = value_and_gradient(sup_ap_loss, double([[0.4, 0.4]]), torch.tensor([[True, False]]))[1]
    assert_close(found, double([[-25 / 4, 25 / 4]]))
    # None comes through the rank among relevant items; the irrelevant one is out of reach.
    scores, relevant = double([[0.4, 0.399, 0.401, -5.0]]), torch.tensor([[True, True, True, False]])
    assert value_and_gradient(sup_ap_loss, scores, relevant)[1].abs().max() < 1e-100


# With the query itself as the last item, of score 1.
WITH_SELF = [torch.cat([scores, torch.ones(1, 1)], 1) for scores in (E1, E2)]
RELEVANT = torch.cat([E_RELEVANT, torch.ones(1, 1).bool()], 1)


@both
def test_worked_examples_with_the_query_in_its_own_list(dtype):
    two = torch.tensor([[0.5, 0.5]], dtype=dtype), torch.tensor([[True, False]])
    assert len(PRESETS) == 3
    for preset, tied, *expected in (
        ("paper", 1 / 2, 0.5721839, 0.4472045),  # only the paper's step is a bound at a tie, where 1 - AP is 1/2
        ("released-code", 1 / 3, 0.5716471, 0.4468710),
        ("released-code-inaturalist", 1 / 3, 0.5669555, 0.4178160),
    ):
        for scores, loss in zip(WITH_SELF, expected, strict=True):
            assert_close(sup_ap_loss(scores.to(dtype), RELEVANT, preset=preset).item(), loss, **near)
            assert_close(smooth_ap_loss(scores, RELEVANT, tau=1e-5).item(), 0.2777778, **near)  # 1 - AP
        assert_close(sup_ap_loss(*two, preset=preset).item(), tied)


@both
def test_delta_of_none_is_where_the_sigmoid_comes_to_099(dtype):
    scores, relevant = torch.cat(WITH_SELF).to(dtype), RELEVANT.expand(2, -1)
    derived = 0.01 * math.log(99)
    assert_close(derived, 0.0459512, **near)
    for tau in (0.01, 0.02):
        expected = sup_ap_loss(scores, relevant, tau=tau, delta=100 * tau * derived)
        assert_close(sup_ap_loss(scores, relevant, tau=tau, delta=None), expected)
    assert_close(*(create_loss("sup_ap", delta=delta)(draw(dtype=dtype), LABELS) for delta in (None, derived)))


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


@pytest.mark.parametrize(("n_classes", "tau"), [(3, 0.01), (4, 0.2), (5, 0.01)])
def test_smooth_ap_agrees_with_pytorch_metric_learning(n_classes, tau):
    """There each query is in its own list, and neighbours in the batch are taken for a class: the two agree where a batch
    sorted by class has as many items a class as classes."""
    labels, theirs = torch.arange(n_classes).repeat_interleave(n_classes), metric_learning.SmoothAPLoss(temperature=tau)
    embeddings, relevant = draw(n_classes, n_classes**2, 5), labels[:, None] == labels
    value, gradient = value_and_gradient(theirs, embeddings, labels)
    ours = value_and_gradient(lambda leaf: smooth_ap_loss(cosine_scores(leaf, leaf), relevant, tau=tau), embeddings)
    assert ours[1].abs().max() > 1e-3
    assert_close(ours, (value.double(), gradient), rtol=1e-5, atol=1e-6)  # they store AP in single precision


@pytest.mark.parametrize("module", [SupAPLoss(), SmoothAPLoss()])
@pytest.mark.parametrize(("n_classes", "largest_allowed"), [(64, 256 * 3 * 256), (4, ranks.WORKSPACE_ELEMENTS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled, and by operators
def test_no_tensor_of_queries_by_items_by_items(module, n_classes, largest_allowed, dtype, largest_tensor):
    """16.8 million elements for a batch of 256. Four items a class need 3 targets a query, 64 are done in blocks."""
    with largest_tensor as largest:
        gradient = value_and_gradient(module, draw(0, 256, 8, dtype), torch.arange(256) % n_classes)[1]
    assert gradient.abs().sum() > 0
    assert 256 * 256 <= largest.n_elements <= largest_allowed  # it saw the scores, and nothing too large
