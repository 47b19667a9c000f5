"""Smooth counts, compiled and by blocks (the way of other devices), against all pairs in float64: the promised accuracy."""

import pytest
import torch
from torch.testing import assert_close

from refusals import assert_refused
from sightline.kernels import blocks
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
OPTIONS = [{"jump": 0.0}, {"offset": 2.0}, {"strict": True}, {"delta": None}]
OPTIONS += [{"tau": 0.1, "delta": 0.001}, {"tau": 0.01, "delta": 5.0}]  # a narrow edge and a wide one
both_steps = pytest.mark.parametrize("step", [SupStep(), SigmoidStep()], ids=["SupStep", "SigmoidStep"])


@pytest.fixture(params=["compiled", "by blocks"])
def way(request, monkeypatch):
    if request.param == "by blocks":
        monkeypatch.setattr(core, "MOST_ITEMS", 0)  # the compiled way is off
        monkeypatch.setattr(core, "FEW_TARGETS", 0)
    return request.param


both_ways = pytest.mark.usefixtures("way")


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


@both_ways
@pytest.mark.parametrize("share", [0.02, 0.4])  # few targets: pair by pair; many: by a sort
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{type(step).__name__} {step.tau}")
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_to_1e_4_and_gradients_to_1e_3(kind, step, share):
    assert_as_promised(*draw(kind, share), step)


@both_ways
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_of_the_step(options):
    for kind, share in (("spread", 0.3), ("tied", 0.3), ("rounded", 0.3), ("spread", 1.0)):
        assert_as_promised(*draw(kind, share, seed=1), SupStep(**options))


@both_ways
@pytest.mark.parametrize("share", [0.04, 0.3])
def test_scores_near_the_edge_fall_on_the_side_that_float64_puts_them(share):
    """Items a delta above others, rounded to either side of it."""
    for seed in range(5):
        scores, levels = draw("spread", share, seed)
        levels[:, 200:] = 0
        scores[:, 200:] = scores[:, :200] + 0.05
        assert_as_promised(scores, levels, SupStep())


@both_ways
@both_steps
def test_rows_of_any_length_without_targets_or_without_items(step):
    scores, levels = draw("concentrated", 0.4)
    for n_items in (1, 15, 16, 17, 33, 95):  # they do and do not fill their blocks
        assert_as_promised(scores[:, :n_items], levels[:, :n_items], step)
    scores, levels = draw("spread", 0.3)
    levels[1], levels[3] = 0, -1
    assert_as_promised(scores, levels, step)
    gradient = run(scores, levels, step)[1]
    assert not gradient[[1, 3]].any()
    assert gradient[[0, 2, 4]].any(1).all()


@both_ways
def test_blocks_of_rows_equal_the_whole(monkeypatch):
    scores, levels = draw("spread", 0.3)
    whole = run(scores, levels, SupStep())
    monkeypatch.setattr(core, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(blocks, "CHUNK_ELEMENTS", 1)
    single = run(scores, levels, SupStep())
    assert_close(single[:2], whole[:2], rtol=1e-5, atol=1e-9)  # rows of another width are summed in another order


def test_the_number_of_threads_changes_no_bit():
    scores, levels = draw("spread", 0.3)
    n_threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(run(scores, levels, SupStep())[:2])
    finally:
        torch.set_num_threads(n_threads)
    assert_close(*found, rtol=0, atol=0)


@both_ways
def test_a_factor_is_one_on_the_gradient_which_is_of_the_first_order_and_computed_where_wanted():
    scores, levels = draw("spread", 0.3)
    counts, leaf = level_counts(levels, 3), scores.clone().requires_grad_()
    assert not rank_loss(scores, levels, counts, SupStep(), smooth_ranks([])).requires_grad
    loss = 3 * rank_loss(leaf, levels, counts, SupStep(), smooth_ranks([]))
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    assert_close(first, 3 * run(scores, levels, SupStep())[1])
    with pytest.raises(RuntimeError, match="does not require grad"):
        first.sum().backward()


@pytest.mark.parametrize("way", ["by blocks"], indirect=True)
def test_levels_are_all_that_int8_holds_and_no_more(way):
    generator = torch.Generator().manual_seed(0)
    scores, levels = torch.rand(3, 300, generator=generator), torch.randint(-1, 127, (3, 300), generator=generator)
    levels, counts = levels.to(torch.int8), level_counts(levels.to(torch.int8), 126)
    for step in (SupStep(), SigmoidStep()):
        found, expected = [], []
        rank_loss(scores, levels, counts, step, smooth_ranks(found))
        rank_loss(scores.double(), levels, counts, step, smooth_ranks(expected))
        for table, expected_table in zip(found[0], expected[0], strict=True):
            assert_close(table, expected_table, rtol=1e-4, atol=0)
    counts = torch.zeros(3, 201, dtype=torch.int64)
    assert_refused(r"126 .* 200", rank_loss, scores, levels, counts, SupStep(), smooth_ranks([]))


@pytest.mark.parametrize("way", ["by blocks"], indirect=True)
@both_steps
def test_every_tensor_is_made_on_the_device_of_the_scores(step, way):
    """A tensor made without a device would be on the one that is the default, where it has no numbers."""
    scores, levels = draw("spread", 0.3)
    leaf, counts = scores.requires_grad_(), level_counts(levels, 3)
    with torch.device("meta"):
        rank_loss(leaf, levels, counts, step, smooth_ranks([])).backward()
    assert_close(leaf.grad, run(scores.detach(), levels, step)[1])
