"""Smooth counts by blocks, the way of devices without compiled kernels: the accuracy that the compiled ones promise."""

import pytest
import test_profile as cases
import torch
from torch.testing import assert_close

from sightline.kernels import blocks
from sightline.ranking import profile as core
from sightline.ranking.pairs import level_counts
from sightline.ranking.profile import rank_loss
from sightline.ranking.ranks import SigmoidStep, SupStep

OPTIONS = {
    "no jump": SupStep(jump=0.0),
    "offset": SupStep(offset=2.0),
    "strict": SupStep(strict=True),
    "edge where the sigmoid ends": SupStep(delta=None),
    "narrow edge": SupStep(tau=0.1, delta=0.001),
    "wide edge": SupStep(tau=0.01, delta=5.0),
}

both_steps = pytest.mark.parametrize("step", [SupStep(), SigmoidStep()], ids=["SupStep", "SigmoidStep"])


@pytest.fixture(autouse=True)
def by_blocks(monkeypatch):
    monkeypatch.setattr(core, "MOST_ITEMS", 0)  # the compiled way is off
    monkeypatch.setattr(core, "FEW_TARGETS", 0)


@pytest.mark.parametrize("share", [0.02, 0.4])
@pytest.mark.parametrize("step", cases.STEPS, ids=lambda step: f"{type(step).__name__} {step.tau}")
@pytest.mark.parametrize("kind", cases.KINDS)
def test_ranks_to_1e_4_and_gradients_to_1e_3(kind, step, share):
    cases.assert_as_promised(*cases.draw(kind, share), step)


@pytest.mark.parametrize("step", OPTIONS.values(), ids=OPTIONS)
def test_every_option_of_the_step(step):
    for kind in ("spread", "tied", "rounded"):
        cases.assert_as_promised(*cases.draw(kind, 0.3, seed=1), step)
    cases.assert_as_promised(*cases.draw("spread", 1.0), step)


def test_scores_near_the_edge_fall_on_the_side_that_float64_puts_them():
    for seed in range(3):
        cases.assert_as_promised(*cases.draw_near_the_edge(0.3, seed), SupStep())


@both_steps
def test_rows_that_do_and_do_not_fill_their_blocks(step):
    scores, levels = cases.draw("concentrated", 0.4)
    for n_items in (1, 15, 16, 17, 33, 95):
        cases.assert_as_promised(scores[:, :n_items], levels[:, :n_items], step)


@both_steps
def test_a_row_without_targets_or_without_items_gets_no_gradient(step):
    scores, levels = cases.draw("spread", 0.3)
    levels[1], levels[3] = 0, -1
    cases.assert_as_promised(scores, levels, step)
    gradient = cases.run(scores, levels, step)[1]
    assert not gradient[[1, 3]].any()
    assert gradient[[0, 2, 4]].any(1).all()


def test_all_levels_that_int8_holds():
    generator = torch.Generator().manual_seed(0)
    scores, levels = torch.rand(3, 300, generator=generator), torch.randint(-1, 127, (3, 300), generator=generator)
    levels, counts = levels.to(torch.int8), level_counts(levels.to(torch.int8), 126)
    for step in (SupStep(), SigmoidStep()):
        found, expected = [], []
        rank_loss(scores, levels, counts, step, cases.smooth_ranks(found))
        rank_loss(scores.double(), levels, counts, step, cases.smooth_ranks(expected))
        for table, expected_table in zip(found[0], expected[0], strict=True):
            assert_close(table, expected_table, rtol=1e-4, atol=0)


def test_chunks_of_rows_equal_the_whole(monkeypatch):
    scores, levels = cases.draw("spread", 0.3)
    whole = cases.run(scores, levels, SupStep())
    monkeypatch.setattr(blocks, "CHUNK_ELEMENTS", 1)
    single = cases.run(scores, levels, SupStep())
    assert_close(single[:2], whole[:2], rtol=1e-5, atol=1e-9)
    cases.assert_first_order_alone()


@both_steps
def test_every_tensor_is_made_on_the_device_of_the_scores(step):
    """A tensor made without a device would be on the one that is the default, where it has no numbers."""
    scores, levels = cases.draw("spread", 0.3)
    leaf, counts = scores.requires_grad_(), level_counts(levels, 3)
    with torch.device("meta"):
        rank_loss(leaf, levels, counts, step, cases.smooth_ranks([])).backward()
    assert_close(leaf.grad, cases.run(scores.detach(), levels, step)[1])
