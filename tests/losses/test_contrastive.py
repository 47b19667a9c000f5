"""Calibration, contrastive losses and triplets: definitions, pytorch-metric-learning's losses, memory."""

import math
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning import losses as metric_learning
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.miners import DistanceWeightedMiner
from pytorch_metric_learning.utils import loss_and_miner_utils as utils
from torch.testing import assert_close

import loss_cases as cases
from loss_cases import E1, E2, E_RELEVANT, LABELS, double, draw, references, sides, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.losses import contrastive
from sightline.ranking.pairs import batch_pairs

HAND = double([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[True, True, False, False, False]])


def draw_near(seed=0, n_items=10, dtype=torch.float64):
    """Of one half-space, so that cosines are high enough for every loss."""
    return draw(seed, n_items, dtype=dtype) + torch.tensor([1.5, 0, 0, 0], dtype=dtype)


def calibration_by_definition(scores, relevant, mask, alpha=0.9, beta=0.6):
    """Queries without any item are left out."""
    found = []
    for positives, negatives in sides(scores, relevant, mask):
        short, over = [max(0.0, alpha - s) for s in positives], [max(0.0, s - beta) for s in negatives]
        if short or over:
            found.append(sum(sum(side) / len(side) for side in (short, over) if side))
    return sum(found) / len(found) if found else 0.0


def mean_above_zero(terms):
    above = [term for term in terms if term > 1e-12]
    return sum(above) / len(above) if above else 0.0


def contrastive_by_definition(scores, relevant, mask, pos_margin=0.9, neg_margin=0.6):
    queries = list(sides(scores, relevant, mask))
    short = [pos_margin - score for positives, _ in queries for score in positives]
    return mean_above_zero(short) + mean_above_zero([score - neg_margin for _, negatives in queries for score in negatives])


def xbm_by_definition(scores, relevant, mask, neg_margin=0.5):
    total = 0.0
    for positives, negatives in sides(scores, relevant, mask):
        total += sum(1 - score for score in positives if score < 1 - 1e-5)
        total += sum(score for score in negatives if score > neg_margin)
    return total / len(scores)


def sup_con_by_definition(scores, relevant, mask, temperature=0.1):
    def of_list(yes, no):
        total = math.log(sum(math.exp(score / temperature) for score in yes + no))
        return sum(total - score / temperature for score in yes) / len(yes)

    return float(cases.mean_over_lists(of_list, scores, relevant, mask))


def triplet_by_definition(scores, relevant, mask, margin=0.05, mining="semi-hard"):
    terms = []
    for positives, negatives in sides(scores, relevant, mask):
        if mining == "all":
            terms += [n - p + margin for p in positives for n in negatives]
        elif mining == "hard" and positives and negatives:
            terms.append(max(negatives) - min(positives) + margin)
        elif mining == "semi-hard" and positives and (below := [n for n in negatives if n < max(positives)]):
            terms.append(max(below) - max(positives) + margin)
    return mean_above_zero(terms)


CASES = {  # the loss, its definition, and other options of both
    "calibration": (losses.calibration_loss, calibration_by_definition, (0.5, -0.2)),
    "contrastive": (losses.contrastive_loss, contrastive_by_definition, (0.5, -0.25)),
    "sup_con": (losses.sup_con_loss, sup_con_by_definition, (0.5,)),
    "xbm_contrastive": (losses.xbm_contrastive_loss, xbm_by_definition, (0.125,)),
    **{
        mining: (partial(losses.triplet_loss, mining=mining), partial(triplet_by_definition, mining=mining), (0.125,))
        for mining in ("all", "hard", "semi-hard")
    },
}


@pytest.mark.parametrize("name", sorted(CASES))
@cases.reproducible
@given(pairs=cases.lists(), other=st.booleans())
def test_each_is_its_definition_and_pulls_the_right_way(name, pairs, other):
    loss, definition, options = CASES[name]
    options = options if other else ()
    scores, relevant, mask = pairs
    expected = definition(*pairs, *options)
    value, gradient = value_and_gradient(loss, scores, relevant * 0.5, mask, *options)
    assert_close(value.item(), expected)
    assert_close(loss(scores.float(), relevant, mask, *options).item(), expected, rtol=1e-5, atol=1e-6)
    assert gradient.isfinite().all()
    if name != "sup_con":  # of relevant items it pushes down one that is far above the others
        assert (gradient[relevant] <= 0).all()
    assert (gradient[~relevant] >= 0).all()
    assert (gradient[~mask] == 0).all()


def test_worked_examples():
    for loss, first, second in ((losses.xbm_contrastive_loss, 2.9, 2.695), (losses.triplet_loss, 0.0, 0.04)):
        assert_close((loss(E1, E_RELEVANT).item(), loss(E2, E_RELEVANT).item()), (first, second), rtol=0, atol=1e-9)
    assert_refused(r"'distance-weighted'.*TripletLoss", losses.triplet_loss, E1, E_RELEVANT, mining="distance-weighted")
    # Each pair beyond its mark pulls by one over the size of its side; those within pull not at all.
    assert_close(value_and_gradient(losses.calibration_loss, *HAND)[1], double([[0.0, -1 / 2, 1 / 3, 0.0, 1 / 3]]))
    # Over nonzero pairs: shortfall 0.2 of one pair, excess (0.05 + 0.01) / 2; of two rows, all pairs together.
    two = torch.cat([HAND[0], double([[0.50, 0.90, 0.60, 0.50, 0.90]])]), HAND[1].expand(2, -1)
    found = losses.calibration_loss(*two, reduction="nonzero").item()
    assert_close(found, (0.2 + 0.4) / 2 + (0.05 + 0.01 + 0.3) / 3)
    # Two classes of one item: nothing relevant, nothing above beta; if parallel, 1 - 0.6.
    assert losses.CalibrationLoss()(torch.eye(2), [0, 1]).item() == 0
    assert_close(losses.CalibrationLoss()(torch.ones(2, 2), [0, 1]).item(), 0.4)


def calibration_by_autograd(scores, relevant, mask, reduction):
    """All pairs at once, in tables of their own."""
    short = torch.where(relevant & mask, 0.9 - scores, 0).relu()
    over = torch.where(~relevant & mask, scores - 0.6, 0).relu()
    if reduction == "nonzero":
        return sum(side.sum() / max(1, int((side > 0).sum())) for side in (short, over))
    parts = short.sum(1) / (relevant & mask).sum(1).clamp(min=1) + over.sum(1) / (~relevant & mask).sum(1).clamp(min=1)
    return parts[mask.any(1)].mean()


@pytest.mark.parametrize("reduction", ["mean", "nonzero"])
def test_rows_at_a_time_are_all_at_once(reduction, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    relevant, mask = torch.rand(7, 9, generator=generator) < 0.4, torch.rand(7, 9, generator=generator) < 0.8
    mask[2] = False
    for block, dtype in product((1, 20, 1 << 19), (torch.float32, torch.float64)):  # a row, two rows, the whole table
        monkeypatch.setattr(contrastive, "BLOCK_ELEMENTS", block)
        scores = torch.rand(7, 9, generator=generator, dtype=dtype)
        expected = value_and_gradient(lambda *t: 3 * calibration_by_autograd(*t, reduction), scores, relevant, mask)
        masked = scores.masked_fill(~mask, torch.nan)
        found = value_and_gradient(lambda *t: 3 * losses.calibration_loss(*t, reduction=reduction), masked, relevant, mask)
        assert_close(found, expected)


def test_a_byte_a_pair_is_kept_for_the_gradient():
    kept, pairs = [], batch_pairs(draw(0, 60, dtype=torch.float32), torch.arange(60) // 4)
    pairs = pairs._replace(scores=pairs.scores.detach().requires_grad_())
    hooks = (lambda t: kept.append(t.numel() * t.element_size()) or t), (lambda t: t)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        losses.CalibrationLoss().of_pairs(pairs)
    assert 3600 <= sum(kept) < 3600 + 60 * 20


@pytest.mark.parametrize("against", [{}, references(draw_near(50, 12), torch.arange(12) % 5)], ids=["batch", "references"])
def test_equal_to_pytorch_metric_learning(against, monkeypatch):
    cosine = {"distance": CosineSimilarity()}
    for ours, theirs in (
        (losses.ContrastiveLoss(0.9, 0.6), metric_learning.ContrastiveLoss(0.9, 0.6, **cosine)),
        (losses.SupConLoss(0.2), metric_learning.SupConLoss(0.2, **cosine)),
        (losses.TripletLoss(0.05, "all"), metric_learning.TripletMarginLoss(0.05, **cosine)),
    ):
        found, expected = (value_and_gradient(loss, draw_near(), LABELS, **against) for loss in (ours, theirs))
        assert_close(found, expected)
    # Negatives are as likely, by what both give to the draw: of each query, one probability for each item.
    given = []
    monkeypatch.setattr(utils, "get_random_triplet_indices", lambda *_, weights, **__: given.append(weights) or ((),) * 3)
    DistanceWeightedMiner()(draw_near(), LABELS, **against)
    pairs = batch_pairs(draw_near(), LABELS, **against)
    weights = contrastive.rarity(pairs.scores.masked_fill(pairs.relevant | ~pairs.mask, -torch.inf), 4)
    drawn = weights.any(1)
    assert drawn.sum() >= 8
    assert len(weights.unique()) > 20
    assert_close(weights[drawn] / weights[drawn].sum(1, keepdim=True), given[0][drawn])
    assert not given[0][~drawn].nan_to_num().any()


def test_triplets_are_drawn_as_often_as_their_weights_say():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    pairs, n_drawn = batch_pairs(draw_near(0, 6), labels), torch.zeros(6, 6, 6)
    torch.manual_seed(0)
    for _ in range(3000):
        triplets = torch.stack(contrastive._draw_triplets(pairs, 4))
        n_drawn += torch.zeros(6, 6, 6).index_put_(tuple(triplets), torch.ones(triplets.shape[1]), accumulate=True)
    weights = contrastive.rarity(pairs.scores, 4).where(pairs.mask & ~pairs.relevant, 0)
    of_class = torch.tensor([3, 3, 3, 2, 2, 0]).double()  # of one item there is no pair
    positive = pairs.relevant / pairs.relevant.sum(1, keepdim=True).clamp(min=1)
    expected = 3000 * of_class[:, None, None] * positive[:, :, None] * (weights / weights.sum(1, keepdim=True))[:, None]
    assert expected.max() > 1000
    assert_close(n_drawn.double(), expected, rtol=0, atol=150)


def test_distance_weighted_mining_of_hard_batches():
    """None of a near negative; and a close pair whose weight, e^370 times that of others, float32 cannot hold."""
    labels, apart = torch.tensor([0, 0, 1]), torch.ones(3, 2)
    apart[2] = -1
    for case in ((apart, labels), (torch.ones(3, 2), labels, None, -torch.ones(3, 2), torch.tensor([0, 1, 1]))):
        value, gradient = value_and_gradient(losses.TripletLoss(mining="distance-weighted"), *case)
        assert value.item() == 0
        assert (gradient == 0).all()
    embeddings = draw(0, 24, 512, torch.float32) + 0.3  # most cosines above 0.02
    embeddings[1] = embeddings[0]  # of two classes
    torch.manual_seed(0)
    gradient = value_and_gradient(losses.TripletLoss(2.0, "distance-weighted"), embeddings, torch.arange(24) % 8)[1]
    assert (gradient != 0).any(1).all()
    values = []  # names below two parents are two classes
    for labels in ([[0, 0], [0, 0], [0, 1], [0, 1]], [0, 0, 1, 1]):
        torch.manual_seed(0)
        values.append(losses.TripletLoss(1.0, "distance-weighted")(draw_near(0, 4), labels))
    assert_close(*values)
    assert values[0].item() > 0


def test_xbm_leaves_out_the_item_itself():
    """A memory that holds the batch: the same as a memory without it where others of the class are absent."""
    embeddings, labels = torch.eye(3), torch.arange(3)
    assert losses.XBMContrastiveLoss()(embeddings, labels, **references(embeddings.clone(), labels)).item() == 0
    near = references(torch.tensor([[1.0, 1e-3, 0.0]]), labels[:1])  # cosine 1 - 5e-7
    assert losses.XBMContrastiveLoss()(embeddings[:1], labels[:1], **near).item() == 0
    assert losses.XBMContrastiveLoss(epsilon=1e-7)(embeddings[:1], labels[:1], **near).item() > 0
