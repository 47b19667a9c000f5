"""Recall with smooth ranks: the spec's vectors, the limit of narrow sigmoids, and points mixed of two items."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from loss_cases import E1, E2, E_RELEVANT, both, draw, references
from refusals import assert_refused
from sightline import losses
from sightline.losses.base import flat_rank_loss
from sightline.losses.recall import mixed_pairs, recall_objective
from sightline.ranking.pairs import Pairs, batch_pairs
from sightline.ranking.ranks import SigmoidStep

close = {"rtol": 0, "atol": 2e-6}


@both
def test_recall_of_the_worked_examples(dtype):
    for loss, scores, *expected in (
        (losses.sup_recall_loss, E1, 0.9984888, 0.9979514, 0.9852490),
        (losses.sup_recall_loss, E2, 0.8620193, 0.8484062, 0.6186232),
        (losses.smooth_recall_loss, E1, 0.7130716, 0.7262860, 0.4251263),
        (losses.smooth_recall_loss, E2, 0.7732130, 0.7674269, 0.4448516),
    ):
        found = [loss(scores.to(dtype), E_RELEVANT, ks=ks).item() for ks in ([1], [2], [4], [1, 2, 4])]
        assert_close(found, [*expected, sum(expected) / 3], **close)
        assert_close(loss(scores, E_RELEVANT, ks=[1000]).item(), 0.0, rtol=0, atol=1e-3)  # beyond the list


# The spec's batch V6: six directions in the plane, two classes of three.
ANGLES = torch.tensor([1.3, 47.9, 88.2, 22.1, 62.2, 113.7], dtype=torch.float64).deg2rad()
BATCH, CLASSES = torch.stack([ANGLES.cos(), ANGLES.sin()], 1), torch.tensor([0, 0, 0, 1, 1, 1])
KS = [1, 2, 4]


@both
def test_worked_batch(dtype):
    pairs = batch_pairs(BATCH.to(dtype), CLASSES)
    rows = zip(*(table.split(1) for table in (pairs.scores, pairs.relevant, pairs.mask)), strict=True)
    recall = torch.tensor([0.43878910, 0.32539647, 0.26512447, 0.26512440, 0.32541013, 0.43878910], dtype=dtype)
    assert_close(1 - torch.stack([losses.smooth_recall_loss(*row, KS) for row in rows]), recall, **close)
    for options, expected in (
        ({}, 0.6568943889),
        ({"normalise": "positives"}, 0.6913482721),
        ({"include_query": True}, 0.8043485164),
    ):
        loss = losses.create_loss("smooth_recall", ks=KS, **options)
        assert_close(loss(BATCH.to(dtype), CLASSES).item(), expected, **close)


def mixed_loss(embeddings, weights, levels=None, include_query=False):
    levels = batch_pairs(embeddings, CLASSES).flat if levels is None else levels
    scores, levels = mixed_pairs(embeddings, levels, weights)
    if include_query:
        levels.fill_diagonal_(0)
    return flat_rank_loss(Pairs(scores, levels, 1, 1), SigmoidStep(0.01), recall_objective(KS, 1.0, sup=False))


@both
@pytest.mark.parametrize(("include_query", "expected"), [(False, 0.6452878263), (True, 0.7263790039)])
def test_worked_batch_with_mixup(include_query, expected, dtype, monkeypatch):
    assert_close(mixed_loss(BATCH.to(dtype), torch.full((6,), 0.25), include_query=include_query).item(), expected, **close)
    monkeypatch.setattr(torch, "rand", lambda n, generator: torch.full((n,), 0.25))
    module = losses.SmoothRecallLoss(KS, mixup=True, include_query=include_query)
    assert_close(module(BATCH.to(dtype), CLASSES).item(), expected, **close)


def test_points_are_mixed_of_two_items_and_hand_on_their_gradient():
    # Pairs (0, 1), (0, 2), (1, 2) of either class: the first of each, or the second.
    first, second = torch.tensor([0, 0, 1, 3, 3, 4]), torch.tensor([1, 2, 2, 4, 5, 5])
    pairs = batch_pairs(draw(0, 6), CLASSES)
    for weight, items in ((1.0, first), (0.0, second)):
        scores, levels = mixed_pairs(draw(0, 6), pairs.flat, torch.full((6,), weight))
        copies = torch.cat([torch.arange(6), items])
        expected = batch_pairs(draw(0, 6)[copies], CLASSES[copies])
        assert_close(scores, expected.scores)
        assert_close(levels, expected.flat, rtol=0, atol=0)
    # Similarities mixed, bilinear for two points, are those of the unscaled mean of two unit vectors.
    weights = torch.rand(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores, _ = mixed_pairs(draw(0, 6), pairs.flat, weights)
    rows = weights[:, None] * pairs.scores[first] + (1 - weights[:, None]) * pairs.scores[second]
    assert_close(scores[6:, :6], rows)
    assert_close(scores[6:, 6:], weights * rows[:, first] + (1 - weights) * rows[:, second])
    assert gradcheck(lambda leaf: mixed_pairs(leaf, pairs.flat, weights)[0], draw(0, 6).requires_grad_())


def test_mixup_has_the_same_gradient_on_any_number_of_threads():
    labels = torch.arange(256) % 32
    gradients, before = [], torch.get_num_threads()
    try:
        for n_threads in (1, 2, 4, 4, 4):
            torch.set_num_threads(n_threads)
            embeddings = draw(0, 256, 128).float().requires_grad_()
            losses.create_loss("smooth_recall", mixup=True)(embeddings, labels).backward()
            gradients.append(embeddings.grad)
    finally:
        torch.set_num_threads(before)
    assert [bool((one == gradients[0]).all()) for one in gradients] == [True] * 5


def test_each_call_in_training_draws_new_points_and_a_resumed_run_the_same():
    loss, resumed = (losses.create_loss("smooth_recall", mixup=True, seed=3) for _ in range(2))
    first = loss(draw(0, 6), CLASSES)
    resumed.load_state_dict(loss.state_dict())
    second = loss(draw(0, 6), CLASSES)
    assert abs(first - second) > 1e-4
    assert_close(resumed(draw(0, 6), CLASSES), second, rtol=0, atol=0)
    assert_close(losses.create_loss("smooth_recall", mixup=True, seed=3)(draw(0, 6), CLASSES), first, rtol=0, atol=0)
    assert abs(losses.create_loss("smooth_recall", mixup=True, seed=4)(draw(0, 6), CLASSES) - first) > 1e-4
    plain = losses.create_loss("smooth_recall")
    assert_close(loss.eval()(draw(0, 6), CLASSES), plain(draw(0, 6), CLASSES), rtol=0, atol=0)
    loss.train()
    assert loss(draw(0, 6).bfloat16(), CLASSES).dtype == torch.float32
    assert loss(draw(0, 6), torch.arange(6)).item() == 0  # classes of one
    assert_refused(r"ref_emb.*mixup", loss, draw(0, 6), CLASSES, **references(draw(1, 6), CLASSES))
    assert_refused(r"indices_tuple.*mixup", loss, draw(0, 6), CLASSES, (CLASSES, CLASSES, CLASSES))


@pytest.mark.parametrize(("offset", "at_k"), [(0.0, 0.5), (0.5, 1.0)])
def test_narrow_sigmoids_count_an_item_at_place_k_half_or_with_an_offset_whole(offset, at_k):
    relevant = torch.tensor([[True, False, True, False, False]])  # at places 1 and 3 of falling scores
    for k, found, divisor in ((1, at_k, 1), (2, 1, 2), (3, 1 + at_k, 2), (4, 2, 2)):
        loss = losses.smooth_recall_loss(E1, relevant, ks=[k], rank_width=1e-4, tau=1e-4, offset=offset).item()
        assert_close(loss, 1 - found / divisor, rtol=0, atol=1e-6)
