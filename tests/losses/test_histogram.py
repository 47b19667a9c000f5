import math
from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as metric_learning
from torch.autograd import gradcheck
from torch.testing import assert_close

from loss_cases import double, draw, draw_pairs, gradient_of, mean_over_lists, references, value_and_gradient
from ranking_definitions import binary_metrics
from refusals import assert_refused
from sightline import losses
from sightline.losses.histogram import TIES, class_balanced_weights
from sightline.ranking.similarity import cosine_scores

# Oracles: one item, one bin at a time.


def share(score, centre, spacing, low, high):
    return max(1 - abs(min(max(score, low), high) - centre) / spacing, 0.0)


def ap_of_list(items, n_bins, low=-1.0, high=1.0, ties="quantised"):
    """AP of the (score, relevant) items of one list."""
    spacing = (high - low) / (n_bins - 1)
    n_relevant = sum(relevant for _, relevant in items)
    ap = before = relevant_before = 0.0
    for number in range(n_bins):
        shares = [(share(score, high - number * spacing, spacing, low, high), relevant) for score, relevant in items]
        here, relevant_here = sum(part for part, _ in shares), sum(part for part, relevant in shares if relevant)
        if ties == "quantised":
            precision = (relevant_before + relevant_here) / (before + here) if before + here > 0 else 0.0
        elif ties == "simplified":
            precision = (1 + relevant_here + 2 * relevant_before) / (1 + here + 2 * before)
        else:
            rho = max(relevant_here - 1, 0) / (max(here - 1, 0) + 1e-8)
            log = math.log((before + here + 1) / (before + 1))
            precision = (here * rho + (relevant_before + 1 - rho * (before + 1)) * log) / (here + 1e-8)
        ap += precision * relevant_here / n_relevant
        before, relevant_before = before + here, relevant_before + relevant_here
    return ap


def exact_ap(items):
    return binary_metrics([relevant for _, relevant in sorted(items, key=lambda item: -item[0])], ())["map"]


@pytest.mark.parametrize("ties", sorted(TIES))
@pytest.mark.parametrize(("n_bins", "low", "high"), [(20, -1.0, 1.0), (25, 0.0, 1.0), (2, -1.0, 1.0), (7, -0.3, 0.4)])
def test_loss_is_its_definition_and_fast_ap_that_of_pytorch_metric_learning(n_bins, low, high, ties):
    assert len(TIES) == 3
    scores, relevant, mask = draw_pairs(0, 8)
    pairs = scores * 2.973, relevant, mask  # within and beyond the range

    def loss_of_list(yes, no):
        return 1 - ap_of_list([(score, True) for score in yes] + [(score, False) for score in no], n_bins, low, high, ties)

    assert_close(losses.softbin_ap_loss(*pairs, n_bins, low, high, ties).item(), mean_over_lists(loss_of_list, *pairs))
    assert_close(losses.fast_ap_loss(*pairs, n_bins), losses.softbin_ap_loss(*pairs, n_bins + 1), atol=0, rtol=0)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4])
    ours, theirs = losses.FastAPLoss(n_bins), metric_learning.FastAPLoss(num_bins=n_bins)
    assert_close(*(value_and_gradient(loss, draw(n_bins, 12, 5), labels) for loss in (ours, theirs)))


V1 = double([[0.9, 0.8, 0.55, 0.3, -0.2]])
V_RELEVANT = torch.tensor([[True, False, True, False, True]])


def test_worked_examples():
    assert_near = partial(assert_close, atol=1e-9, rtol=0)
    for ties, ap in (("quantised", 0.7116816953), ("simplified", 0.7399370205), ("integral", 0.6408814757)):
        assert_near(1 - losses.softbin_ap_loss(V1, V_RELEVANT, n_bins=20, ties=ties), double(ap))
    assert_near(1 - losses.SoftBinAPLoss()(V3, V3_LABELS), double(0.5017571815))
    assert_near(1 - losses.SoftBinAPLoss(class_balanced=True)(V3, V3_LABELS), double(0.4911936768))
    assert_near(losses.FastAPLoss()(V3, V3_LABELS), double(0.5143780296))
    assert_near(1 - losses.SoftBinAPLoss(include_self=True)(V3, V3_LABELS), double(0.7782330087))
    weights = class_balanced_weights(V3_LABELS, torch.tensor([True] * 5 + [False]))
    assert_close(weights, double([1 / 6, 1 / 6, 1 / 4, 1 / 4, 1 / 6, 0]))


ANGLES = double([0, 20, 50, 90, 110, 170]).deg2rad()
V3 = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
V3_LABELS = torch.tensor([0, 0, 1, 1, 0, 2])


@pytest.mark.parametrize("ties", sorted(TIES))
def test_gradient_is_the_finite_difference(ties):
    _, relevant, mask = draw_pairs(0, 3, 7)
    generator = torch.Generator().manual_seed(0)
    inside = torch.rand(3, 7, generator=generator).double() * 0.08 + 0.01  # centres are multiples of 0.1
    scores = (torch.randint(-10, 10, (3, 7), generator=generator) / 10 + inside).requires_grad_()
    assert gradcheck(lambda leaf: losses.softbin_ap_loss(leaf, relevant, mask, 21, ties=ties), scores, atol=1e-7, rtol=1e-5)
    # On a centre and outside the range it is 0.
    scores = double([[1.0, 0.5, 0.0, -0.5, -1.0, 1.7, -3.0, 0.3]])
    relevant = torch.tensor([[False, True, False, True, True, False, True, True]])
    gradient = gradient_of(lambda leaf: losses.softbin_ap_loss(leaf, relevant, n_bins=5), scores)
    assert (gradient[0, :7] == 0).all()
    assert gradient[0, 7] < 0
    # A bin of next to nothing: negative distances of which all but nothing leaks out of the first bin.
    scores, relevant = torch.tensor([[-0.9999999, -1e-38, -1e-38]]), torch.tensor([[True, True, False]])
    assert gradient_of(lambda leaf: losses.softbin_ap_loss(leaf, relevant, None, 5, -1.0, 0.0), scores).isfinite().all()


@pytest.mark.parametrize("seed", range(3))
def test_one_item_on_each_centre_gives_exact_ap_and_isolated_scores_are_within_the_bound(seed):
    generator = torch.Generator().manual_seed(seed)
    scores, relevant = (torch.randperm(21, generator=generator)[None, :9] / 10 - 1).double(), torch.arange(9)[None] < 4
    expected = 1 - exact_ap(list(zip(scores[0].tolist(), relevant[0].tolist(), strict=True)))
    for ties in ("quantised", "simplified"):
        found = losses.softbin_ap_loss(scores, relevant, n_bins=21, ties=ties).item()
        assert_close(found, expected, atol=1e-6, rtol=0)
    places = torch.randperm(60, generator=generator)[None, :8] / 30 - 1 + torch.rand(1, 8, generator=generator) * 0.01
    scores, relevant = places.double(), torch.arange(8)[None] < 3  # at least 0.023 apart
    expected = 1 - exact_ap(list(zip(scores[0].tolist(), relevant[0].tolist(), strict=True)))
    assert -1e-12 <= losses.softbin_ap_loss(scores, relevant, n_bins=200).item() - expected <= 1.5 - math.sqrt(2)
    # The bound is reached where the share of the upper bin is sqrt(2) - 1.
    scores = double([[0.5, 0.2 - 0.01 * (2 - math.sqrt(2))]])
    found = losses.softbin_ap_loss(scores, torch.tensor([[False, True]]), n_bins=201)
    assert_close(found - 0.5, double(1.5 - math.sqrt(2)))


def test_weights_are_shares_of_the_mean():
    scores, relevant, mask = draw_pairs(0, 3)
    relevant[0, 0] = mask[0, 0] = relevant[1, 0] = mask[1, 0] = True
    relevant[2] = False
    first, second = (losses.softbin_ap_loss(scores[[row]], relevant[[row]], mask[[row]]) for row in (0, 1))
    weighted = partial(losses.softbin_ap_loss, scores, relevant, mask)
    assert_close(weighted(weights=torch.tensor([1.0, 3.0, 50.0])), 0.25 * first + 0.75 * second)
    assert_close(weighted(weights=torch.tensor([0, 2, 9])), second)
    assert weighted(weights=torch.zeros(3)) == 0
    assert_close(weighted(weights=torch.ones(3)), weighted())
    for weights in (torch.ones(2), torch.tensor([1.0, -1.0, 0.0]), torch.tensor([1.0, math.nan, 0.0])):
        assert_refused(r"weights.*\(3,\)", weighted, weights=weights)


def test_class_balance_is_the_mean_over_classes():
    embeddings = draw(0, 9)
    labels = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1], [0, 1], [0, 1], [2, 1], [2, 1], [3, 1]])  # a 0 below two parents
    levels = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 3])
    scores, relevant, others = cosine_scores(embeddings, embeddings), levels[:, None] == levels, ~torch.eye(9).bool()
    means = [losses.softbin_ap_loss(*(t[levels == c] for t in (scores, relevant, others))) for c in range(3)]
    assert_close(losses.SoftBinAPLoss(class_balanced=True)(embeddings, labels), torch.stack(means).mean())
    apart = losses.SoftBinAPLoss(class_balanced=True)(embeddings[:3], labels[:3], **references(embeddings[3:], labels[3:]))
    # Only the third has relevant references.
    assert_close(apart, losses.softbin_ap_loss(scores[2:3, 3:], relevant[2:3, 3:]))


def test_no_tensor_of_queries_by_items_by_bins(largest_tensor):
    with largest_tensor as largest:
        gradient_of(lambda leaf: losses.softbin_ap_loss(leaf, leaf > 0.5, n_bins=20), torch.rand(10, 100))
    assert largest.n_elements == 1000
