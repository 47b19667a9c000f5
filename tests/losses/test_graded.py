"""Hierarchical AP and NDCG with smooth ranks: the spec's vectors, slow definitions, bounds."""

import pytest
import torch
from torch.testing import assert_close

from loss_cases import E1, E2, both, draw, value_and_gradient
from ranking_definitions import h_ap, ndcg
from refusals import assert_refused
from sightline import losses
from sightline.labels.relevance import population_relevance, sum_wap_relevance, weight_relevance
from sightline.losses.average_precision import sup_ap_objective
from sightline.losses.base import flat_rank_loss
from sightline.losses.graded import _h_ap, _ndcg
from sightline.ranking.pairs import Pairs, level_counts
from sightline.ranking.ranks import SupStep

LEVELS = torch.tensor([[2, 3, 0, 1, 3]])
LOSSES = [losses.sup_h_ap_loss, losses.smooth_h_ap_loss, losses.sup_ndcg_loss, losses.smooth_ndcg_loss]
close = {"rtol": 0, "atol": 2e-6}


@both
def test_worked_examples(dtype):
    levels = LEVELS.to(torch.int8)
    counts = level_counts(levels, 3)
    table = population_relevance(counts)
    worth = table.gather(1, LEVELS)
    for scores, by_third, by_value, by_level, gain in (
        (E1, 0.6522601, 0.3287442, 0.5323622, 0.4952961),
        (E2, 0.4689335, 0.3280576, 0.3489002, 0.3667893),
    ):
        scores = scores.to(dtype)
        assert_close(losses.sup_h_ap_loss(scores, LEVELS / 3).item(), by_third, **close)
        assert_close(losses.sup_h_ap_loss(scores, worth).item(), by_value, **close)
        assert_close(_h_ap(scores, levels, counts, table, SupStep()).item(), by_level, **close)
        assert_close(losses.sup_ndcg_loss(scores, 2.0**LEVELS - 1).item(), gain, **close)
        for loss, relevance, metric in (  # both are in the same order: a metric tells them not apart
            (losses.smooth_h_ap_loss, LEVELS / 3, 0.2166667),
            (losses.smooth_h_ap_loss, worth, 0.1083333),
            (losses.smooth_ndcg_loss, 2.0**LEVELS - 1, 0.2091850),
        ):
            assert_close(loss(scores.double(), relevance, tau=1e-5).item(), metric, **close)


@both
def test_with_two_grades_hierarchical_ap_is_ap(dtype):
    generator = torch.Generator().manual_seed(0)
    scores, relevant = torch.rand(6, 30, generator=generator).to(dtype), torch.rand(6, 30, generator=generator) < 0.5
    assert_close(losses.sup_h_ap_loss(scores, relevant * 0.7), losses.sup_ap_loss(scores, relevant))
    assert_close(losses.smooth_h_ap_loss(scores, relevant * 0.7), losses.smooth_ap_loss(scores, relevant))


def test_smooth_losses_tend_to_the_metric_as_tau_falls():
    generator = torch.Generator().manual_seed(1)
    scores, levels = torch.randperm(20, generator=generator)[None] / 20, torch.randint(0, 4, (1, 20), generator=generator)
    scores, ranked = scores.double(), levels[0, scores[0].argsort(descending=True)].tolist()
    for loss, metric in ((losses.smooth_h_ap_loss, h_ap), (losses.smooth_ndcg_loss, ndcg)):
        assert_close(loss(scores, levels, tau=1e-4).item(), 1 - metric(ranked, range(4)))
    # Hierarchical AP with the sum of WAPs as relevance is the weighted sum of the levels' AP.
    weights = (0.2, 0.3, 0.5)
    relevance = sum_wap_relevance(level_counts(levels.to(torch.int8), 3), weights).gather(1, levels)
    by_level = [1 - losses.smooth_ap_loss(scores, levels >= level, tau=1e-4).item() for level in (1, 2, 3)]
    expected = sum(weight * ap for weight, ap in zip(weights, by_level, strict=True))
    assert_close(1 - losses.smooth_h_ap_loss(scores, relevance, tau=1e-4).item(), expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_grades_may_be_of_each_query_and_of_any_scale(loss):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 30, generator=generator)
    grades = torch.randint(0, 5, (50, 30), generator=generator).float()
    factors = 1 + torch.arange(50)[:, None] / 64  # 200 grades in all; a factor changes neither metric
    assert_close(loss(scores, grades * factors), loss(scores, grades), rtol=1e-5, atol=0)
    for dtype in (torch.float32, torch.float64):
        for scale in (1e-310, 1e-40, 1e39, 1e307):
            plain, scaled = (loss(E1.to(dtype), LEVELS.double() * factor).item() for factor in (1.0, scale))
            assert_close(scaled, plain, rtol=1e-6, atol=0)
    assert_refused(r"126 .* 200", loss, scores[:2].repeat(1, 7)[:, :200], 1 + torch.arange(400.0).reshape(2, 200))
    assert_refused("relevance", loss, scores, -grades - 1)


@both
def test_relevance_of_a_high_alpha_is_that_of_the_levels_at_hand(dtype):
    counts = torch.tensor([[3, 2, 2]])
    assert weight_relevance(counts, 2.0).tolist() == [[0.0, 0.25, 1.0]]
    assert (population_relevance(counts, 5.0)[0, 2] / population_relevance(counts, 5.0)[0, 1]).item() == 32
    # All share the coarsest of seven levels alone: one grade, all of it relevant, so the ranking is right.
    labels = torch.cat([torch.arange(6)[:, None].expand(-1, 6), torch.zeros(6, 1, dtype=torch.int64)], 1)
    assert_close(losses.SupHAPLoss(alpha=50.0)(draw(0, 6, dtype=dtype), labels).item(), 0.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("relevance", ["weight", "sum_wap", "exponential"])
def test_modules_take_any_relevance_of_levels(relevance):
    labels = torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [2, 1]])
    loss = losses.SupHAPLoss(relevance)
    found = loss(draw(5, 8, 6), labels)
    assert 0 < loss(draw(5, 8, 6), labels, ref_emb=draw(5, 8, 6), ref_labels=labels) < found  # each finds itself first
    assert abs(found - losses.SupHAPLoss()(draw(5, 8, 6), labels)) > 1e-6


FORMULAS = {
    "ap": lambda scores, levels, step: flat_rank_loss(Pairs(scores, levels.clamp(max=1), 1, 1), step, sup_ap_objective),
    **{
        name: lambda scores, levels, step, formula=formula: formula(
            scores, levels, level_counts(levels, 3), torch.arange(4).expand(5, -1), step
        )
        for name, formula in (("h_ap", _h_ap), ("ndcg", _ndcg))
    },
}


STEPS = [{"offset": 1.44, "strict": True}, {"jump": 0.0, "offset": 1.0, "strict": True}, {"jump": 2.0, "offset": 0.5}]


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("share", [0.02, 0.4])  # few targets: pair by pair; many: by a sort
@pytest.mark.parametrize("step", [SupStep(**options) for options in (*STEPS, {"delta": None})], ids=str)
def test_compiled_steps_are_those_of_all_pairs(step, share, formula):
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(5, 400, generator=generator)
    for scores in (spread, (spread * 20).round() / 23):  # the second has ties; no gap is exactly delta
        levels = torch.randint(1, 4, scores.shape, generator=generator)
        levels = (levels * (torch.rand(scores.shape, generator=generator) < share)).to(torch.int8)
        levels[torch.rand(scores.shape, generator=generator) < 0.1] = -1
        (found, gradient), (expected, its_gradient) = (
            value_and_gradient(FORMULAS[formula], scores.to(dtype), levels, step)
            for dtype in (torch.float32, torch.float64)
        )
        assert_close(found.item(), expected.item(), rtol=1e-4, atol=0)
        assert (gradient.double() - its_gradient).norm() <= 1e-3 * its_gradient.norm()
