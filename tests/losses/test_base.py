"""Settings of the papers and of their released code: the spec's vectors, and the compiled way against all pairs."""

import math

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses import create_loss, smooth_ap_loss, sup_ap_loss
from sightline.losses.average_precision import sup_ap_objective
from sightline.losses.base import PRESETS, SupRank, flat_pairs, flat_rank_loss
from sightline.losses.graded import _h_ap, _ndcg
from sightline.ranking.pairs import Pairs, level_counts
from sightline.ranking.ranks import SupStep

# The query itself is the last item, of score 1.
E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5, 1.0], [0.62, 0.60, 0.59, 0.585, 0.50, 1.0]
RELEVANT = torch.tensor([[False, True, False, False, True, True]])
both = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # pairs one by one, and the compiled way
close = {"rtol": 0, "atol": 2e-6}


@both
@pytest.mark.parametrize(
    ("preset", "first", "second"),
    [
        ("paper", 0.5721839, 0.4472045),
        ("released-code", 0.5716471, 0.4468710),
        ("released-code-inaturalist", 0.5669555, 0.4178160),
    ],
)
def test_worked_examples_with_the_query_in_its_own_list(preset, first, second, dtype):
    for scores, expected in ((E1, first), (E2, second)):
        found = sup_ap_loss(torch.tensor([scores], dtype=dtype), RELEVANT, preset=preset)
        assert_close(found.item(), expected, **close)
        exact = smooth_ap_loss(torch.tensor([scores], dtype=torch.float64), RELEVANT, tau=1e-5)
        assert_close(exact.item(), 0.2777778, **close)
    assert len(PRESETS) == 3


@both
def test_steps_of_the_presets(dtype):
    gaps = torch.tensor([-0.01, 0.0, 0.01, 0.05, 0.05001, 0.06], dtype=dtype)
    low, mid, edge = (1 / (1 + math.exp(-x)) for x in (-1, 1, 5))
    for preset, expected in (
        ("released-code", [low, 0.5, mid + 0.5, edge + 0.5, 1.441, 2.44]),
        ("released-code-inaturalist", [low, 0.5, mid, edge, 1.001, 2.0]),
    ):
        step = SupRank(preset=preset).step
        if dtype == torch.float64:  # one rounding off, 0.05 falls on the other side
            assert_close(step.value(gaps), torch.tensor(expected, dtype=dtype), rtol=0, atol=1e-6)
        else:
            kept = [0, 1, 2, 4, 5]
            assert_close(step.value(gaps)[kept], torch.tensor(expected, dtype=dtype)[kept], rtol=0, atol=1e-4)


def test_only_the_papers_step_is_a_bound_at_a_tie():
    tied, relevant = torch.tensor([[0.5, 0.5]]), torch.tensor([[True, False]])
    for preset, expected in (("paper", 1 / 2), ("released-code", 1 / 3), ("released-code-inaturalist", 1 / 3)):
        assert_close(sup_ap_loss(tied, relevant, preset=preset).item(), expected)  # 1 - AP is 1/2


@both
def test_delta_of_none_is_where_the_sigmoid_comes_to_099(dtype):
    scores = torch.tensor([E1, E2], dtype=dtype)
    relevant = RELEVANT.expand(2, -1)
    derived = 0.01 * math.log(99)
    assert_close(derived, 0.0459512, **close)
    assert_close(sup_ap_loss(scores, relevant, delta=None), sup_ap_loss(scores, relevant, delta=derived))
    wider = sup_ap_loss(scores, relevant, tau=0.02, delta=None)
    assert_close(wider, sup_ap_loss(scores, relevant, tau=0.02, delta=2 * derived))
    embeddings, labels = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(dtype), torch.arange(8) % 3
    by_name = [create_loss("sup_ap", delta=delta)(embeddings, labels) for delta in (None, derived)]
    assert_close(*by_name)


def test_preset_of_roadmap_sets_the_reduction():
    scores = torch.tensor([[0.95, 0.70, 0.65, 0.30, 0.61]])
    relevant = torch.tensor([[True, True, False, False, False]])
    for preset, expected in (("paper", 0.12), ("released-code", 0.23), ("released-code-inaturalist", 0.23)):
        assert_close(
            create_loss("roadmap", weight=1.0, preset=preset).of_pairs(flat_pairs(scores, relevant)).item(), expected
        )


def test_unknown_preset_suggests_the_nearest():
    for name in ("sup_ap", "sup_recall", "sup_h_ap", "sup_ndcg", "roadmap"):
        with pytest.raises(InputError, match=r"^unknown preset 'released': did you mean 'released-code'\?$"):
            create_loss(name, preset="released")


FORMULAS = {
    "ap": lambda scores, levels, step: flat_rank_loss(Pairs(scores, levels.clamp(max=1), 1, 1), step, sup_ap_objective),
    "h_ap": lambda scores, levels, step: _h_ap(
        scores, levels, level_counts(levels, 3), torch.arange(4).expand(5, -1), step
    ),
    "ndcg": lambda scores, levels, step: _ndcg(
        scores, levels, level_counts(levels, 3), torch.arange(4).expand(5, -1), step
    ),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("kind", ["spread", "tied"])
@pytest.mark.parametrize("share", [0.02, 0.4])  # few targets: pair by pair; many: by a sort
@pytest.mark.parametrize(
    "step",
    [
        SupStep(offset=1.44, strict=True),
        SupStep(jump=0.0, offset=1.0, strict=True),
        SupStep(jump=0.0, offset=1.0),
        SupStep(jump=2.0, offset=0.5),
        SupStep(strict=True),
        SupStep(delta=None),
    ],
    ids=str,
)
def test_compiled_steps_are_those_of_all_pairs(step, share, kind, formula):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(5, 400, generator=generator)
    if kind == "tied":
        scores = (scores * 20).round() / 23  # no gap is exactly delta
    levels = torch.randint(1, 4, scores.shape, generator=generator)
    levels = (levels * (torch.rand(scores.shape, generator=generator) < share)).to(torch.int8)
    levels[torch.rand(scores.shape, generator=generator) < 0.1] = -1
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = scores.detach().to(dtype).requires_grad_()
        loss = FORMULAS[formula](leaf, levels, step)
        loss.backward()
        results.append((loss.item(), leaf.grad.double()))
    (found, gradient), (expected, its_gradient) = results
    assert_close(found, expected, rtol=1e-4, atol=0)
    assert (gradient - its_gradient).norm() <= 1e-3 * its_gradient.norm()


@pytest.mark.parametrize("preset", ["released-code", "released-code-inaturalist"])
def test_released_weights_and_exponent(preset):
    """Section 8 of the losses: what the released files set where the papers say otherwise or nothing."""
    known = {"n_classes": 4, "embedding_dim": 6}
    for name, term, paper, released in [
        ("rod_recall", "proxy", 0.1, 0.5),
        ("rod_recall", "calibration", 0.5, 0.5),
        ("happier", "proxy", 0.1, 0.1),
        ("happier_f", "proxy", 0.1, 0.5),
        ("rod_ndcg", "proxy", 0.1, 0.1),
    ]:
        assert create_loss(name, decomposability=term, **known).weight == paper
        assert create_loss(name, decomposability=term, preset=preset, **known).weight == released
        assert create_loss(name, decomposability=term, preset=preset, weight=0.3, **known).weight == 0.3
    counts = torch.tensor([[3, 1, 1]])
    for options, middle in [({}, 0.5**5), ({"preset": preset}, 0.5), ({"preset": preset, "alpha": 3.0}, 0.125)]:
        assert create_loss("happier_f", **known, **options).rank.relevance(counts).tolist() == [[0, middle, 1]]
