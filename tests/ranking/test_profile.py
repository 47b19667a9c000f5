"""The compiled way to smooth counts against every pair evaluated in float64: the accuracy that is promised."""

import pytest
import torch
from torch.testing import assert_close

from refusals import assert_refused
from sightline.ranking import profile as core
from sightline.ranking.pairs import level_counts
from sightline.ranking.profile import rank_loss
from sightline.ranking.ranks import SigmoidStep, SupStep

KINDS = {
    "spread": lambda g: torch.rand(5, 400, generator=g) * 2 - 1,
    "concentrated": lambda g: 0.5 + torch.rand(5, 400, generator=g) / 10,
    "tied": lambda g: (torch.rand(5, 400, generator=g) * 20).round() / 23,  # no gap is exactly delta
    "rounded": lambda g: (torch.rand(5, 400, generator=g) * 200 - 100).round() / 100,  # many are, but for the last bit
    "constant": lambda g: torch.full((5, 400), 0.3),
    "wide": lambda g: torch.randn(5, 400, generator=g) * 3,
    "separated": lambda g: torch.rand(5, 400, generator=g) / 10,  # a positive shift follows
}
STEPS = [SupStep(tau, 100.0, 0.05) for tau in (0.001, 0.01, 0.1)] + [SigmoidStep(tau) for tau in (0.001, 0.01, 0.1)]


def draw(kind, share, seed=0, n_levels=3):
    generator = torch.Generator().manual_seed(seed)
    scores = KINDS[kind](generator).float()
    levels = torch.randint(1, n_levels + 1, scores.shape, generator=generator)
    levels = (levels * (torch.rand(scores.shape, generator=generator) < share)).to(torch.int8)
    if kind == "separated":
        scores = scores + levels * 0.3
    levels[torch.rand(scores.shape, generator=generator) < 0.1] = -1
    return scores, levels


def smooth_ranks(kept):
    """An objective that keeps the smooth ranks it was given, and falls where they fall."""

    def objective(profile):
        rank = profile.above + profile.smooth.sum(2)
        counted = (profile.above, profile.graded, rank.detach())
        kept.append([(table * profile.valid).double().sort(1).values for table in counted])  # targets come in any order
        inverse = profile.valid / rank.clamp(min=1)
        return -inverse.sum(1), inverse.square()[..., None].expand_as(profile.smooth)

    return objective


def run(scores, levels, step):
    leaf, kept = scores.clone().requires_grad_(), []
    worth = torch.tensor([0.0, 0.5, 1.0, 0.75]).to(scores).expand(len(scores), -1)  # not the larger the higher
    loss = rank_loss(leaf, levels, level_counts(levels, 3), step, smooth_ranks(kept), worth)
    loss.backward()
    return loss.detach(), leaf.grad, *kept[0]


def assert_as_promised(scores, levels, step):
    loss, gradient, above, graded, rank = run(scores, levels, step)
    expected_loss, expected_gradient, expected_above, expected_graded, expected_rank = run(scores.double(), levels, step)
    assert_close(above, expected_above, rtol=0, atol=0)
    assert_close(graded, expected_graded, rtol=1e-6, atol=0)
    assert_close(rank, expected_rank, rtol=1e-4, atol=0)
    assert_close(loss.double(), expected_loss, rtol=1e-4, atol=1e-6)
    norms = expected_gradient.norm(dim=1)
    assert ((gradient - expected_gradient).norm(dim=1) <= 1e-3 * norms + 1e-12).all()
    # Translation invariance, to rounding.
    assert (gradient.double().sum(1).abs() <= 1e-5 * gradient.double().abs().sum(1) + 1e-12).all()


@pytest.mark.parametrize("share", [0.02, 0.4])  # few targets: pair by pair; many: by a sort
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{type(step).__name__} {step.tau}")
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_to_1e_4_and_gradients_to_1e_3(kind, step, share):
    assert_as_promised(*draw(kind, share), step)


def draw_near_the_edge(share, seed):
    """Items a delta above others, rounded to either side of it."""
    scores, levels = draw("spread", share, seed)
    levels[:, 200:] = 0
    scores[:, 200:] = scores[:, :200] + 0.05
    return scores, levels


@pytest.mark.parametrize("share", [0.04, 0.3])
def test_scores_near_the_edge_fall_on_the_side_that_float64_puts_them(share):
    for seed in range(5):
        assert_as_promised(*draw_near_the_edge(share, seed), SupStep())


def test_blocks_of_rows_equal_the_whole(monkeypatch):
    scores, levels = draw("spread", 0.3)
    whole = run(scores, levels, SupStep())
    monkeypatch.setattr(core, "BLOCK_ELEMENTS", 1)
    single = run(scores, levels, SupStep())
    assert_close(single[:2], whole[:2], rtol=1e-6, atol=1e-9)  # rows of another width are summed in another order


def test_the_number_of_threads_changes_no_bit():
    scores, levels = draw("spread", 0.3)
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(scores, levels, SupStep())
        torch.set_num_threads(3)
        three = run(scores, levels, SupStep())
    finally:
        torch.set_num_threads(n_threads)
    assert_close(three[:2], one[:2], rtol=0, atol=0)


def assert_first_order_alone():
    """A factor on the loss is one on the gradient; without a gradient none is computed; a second derivative is refused."""
    scores, levels = draw("spread", 0.3)
    counts, leaf = level_counts(levels, 3), scores.clone().requires_grad_()
    assert not rank_loss(scores, levels, counts, SupStep(), smooth_ranks([])).requires_grad
    loss = 3 * rank_loss(leaf, levels, counts, SupStep(), smooth_ranks([]))
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    assert_close(first, 3 * run(scores, levels, SupStep())[1])
    with pytest.raises(RuntimeError, match="does not require grad"):
        first.sum().backward()


def test_gradients_are_of_the_first_order_and_levels_fit_int8():
    assert_first_order_alone()
    levels, counts = torch.zeros(2, 3, dtype=torch.int8), torch.zeros(2, 201, dtype=torch.int64)
    assert_refused(r"126 .* 200", rank_loss, torch.rand(2, 3), levels, counts, SupStep(), smooth_ranks([]))
