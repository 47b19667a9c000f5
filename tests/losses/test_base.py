"""Settings of the papers and of their released code: the spec's vectors, and the compiled way against all pairs."""

import math

import pytest
import torch
from torch.testing import assert_close

from loss_cases import E1, E2, E_RELEVANT, LABELS, both, create, draw, value_and_gradient
from sightline.losses import create_loss, smooth_ap_loss, sup_ap_loss
from sightline.losses.average_precision import sup_ap_objective
from sightline.losses.base import PRESETS, flat_pairs, flat_rank_loss
from sightline.losses.graded import _h_ap, _ndcg
from sightline.ranking.pairs import Pairs, level_counts
from sightline.ranking.ranks import SupStep

# With the query itself as the last item, of score 1.
WITH_SELF = [torch.cat([scores, torch.ones(1, 1)], 1) for scores in (E1, E2)]
RELEVANT = torch.cat([E_RELEVANT, torch.ones(1, 1).bool()], 1)
close = {"rtol": 0, "atol": 2e-6}


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
            assert_close(sup_ap_loss(scores.to(dtype), RELEVANT, preset=preset).item(), loss, **close)
            assert_close(smooth_ap_loss(scores, RELEVANT, tau=1e-5).item(), 0.2777778, **close)  # 1 - AP
        assert_close(sup_ap_loss(*two, preset=preset).item(), tied)


@both
def test_delta_of_none_is_where_the_sigmoid_comes_to_099(dtype):
    scores, relevant = torch.cat(WITH_SELF).to(dtype), RELEVANT.expand(2, -1)
    derived = 0.01 * math.log(99)
    assert_close(derived, 0.0459512, **close)
    for tau in (0.01, 0.02):
        expected = sup_ap_loss(scores, relevant, tau=tau, delta=100 * tau * derived)
        assert_close(sup_ap_loss(scores, relevant, tau=tau, delta=None), expected)
    assert_close(*(create_loss("sup_ap", delta=delta)(draw(dtype=dtype), LABELS) for delta in (None, derived)))


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


@pytest.mark.parametrize("preset", ["released-code", "released-code-inaturalist"])
def test_released_weights_exponent_and_reduction(preset):
    """Section 8 of the losses: what the released files set where the papers say otherwise or nothing."""
    for name, term, paper, released in (
        ("rod_recall", "proxy", 0.1, 0.5),
        ("rod_recall", "calibration", 0.5, 0.5),
        ("happier", "proxy", 0.1, 0.1),
        ("happier_f", "proxy", 0.1, 0.5),
        ("rod_ndcg", "proxy", 0.1, 0.1),
    ):
        for options, weight in (({}, paper), ({"preset": preset}, released), ({"preset": preset, "weight": 0.3}, 0.3)):
            assert create(name, decomposability=term, **options).weight == weight
    counts = torch.tensor([[3, 1, 1]])
    for options, middle in [({}, 0.5**5), ({"preset": preset}, 0.5), ({"preset": preset, "alpha": 3.0}, 0.125)]:
        assert create("happier_f", **options).rank.relevance(counts).tolist() == [[0, middle, 1]]
    pairs = flat_pairs(torch.tensor([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[1, 1, 0, 0, 0]]))
    for options, expected in (({}, 0.12), ({"preset": preset}, 0.23)):
        assert_close(create_loss("roadmap", weight=1.0, **options).of_pairs(pairs).item(), expected)
