import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from refusals import assert_refused
from sightline.kernels.blocks import packed
from sightline.ranking.ranks import SigmoidStep, SupStep, check_counts, check_range, exact_counts, smooth_counts
from step_definitions import h_minus, sigmoid

DERIVED_DELTA = 0.01 * math.log(99)  # from epsilon = 0.01
GAPS = [-0.1, -0.02, -0.01, -0.001, 0, 0.001, 0.01, 0.03, 0.05, 0.06, 0.1, 1]
H_MINUS = [4.54e-5, 0.119203, 0.268941, 0.475021, 1, 1.024979, 1.231059, 1.452574, 1.493307, 2.493307, 6.493307, 96.493307]
WIDE = {"tau": 0.2, "rho": 3.0, "delta": 0.15}
STEPS = [SigmoidStep(), SupStep(), SigmoidStep(0.3), SupStep(**WIDE)]
DEFINITIONS = [sigmoid, h_minus, partial(sigmoid, tau=0.3), partial(h_minus, **WIDE)]


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed, n_queries=4, n_items=9, n_targets=3):
    """Scores in steps of 0.05, so that many are equal; targets taken from them; about two thirds counted."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-8, 9, (n_queries, n_items), generator=generator).double() / 20
    index = torch.randint(n_items, (n_queries, n_targets), generator=generator)
    return scores, scores.gather(1, index), torch.rand(n_queries, n_items, generator=generator) < 0.66


def counts_by_definition(scores, targets, counted, step):
    """One item at a time."""
    return [
        [sum(step(score - target) for score, counts in zip(row, use, strict=True) if counts) for target in wanted]
        for row, wanted, use in zip(scores.tolist(), targets.tolist(), counted.tolist(), strict=True)
    ]


def test_steps_and_their_slopes_are_those_of_the_papers():
    """The sigmoid's slope up to delta, 25 at a tie; rho beyond; and a margin below."""
    for delta, further in ((0.05, 0), (DERIVED_DELTA, 0.4015729)):  # 1.894880 for 1.493307 and so on
        expected = double(H_MINUS) + further * double([gap >= 0.05 for gap in GAPS])
        assert_close(SupStep(delta=delta).value(double(GAPS)), expected, rtol=0, atol=6e-7)
        below = SupStep(delta=delta).value(double([-1e-300, -1e-12]))  # one half just below a tie, 1 at it
        assert_close(below, double([0.5, 0.5]))
        assert SupStep(delta=delta).value(double([0.0, -0.0])).tolist() == [1.0, 1.0]
    gaps = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    for tau, rho, delta in [(0.01, 100.0, 0.05), (0.2, 3.0, 0.15), (0.5, 0.1, 1.0)]:
        expected = [h_minus(gap, tau, rho, delta) for gap in gaps.tolist()]
        assert_close(SupStep(tau, rho, delta).value(gaps), double(expected))
        assert_close(SigmoidStep(tau).value(gaps), double([sigmoid(gap, tau) for gap in gaps.tolist()]))
    slopes = SupStep().slope(double([0.0, -1e-12, 0.05, 0.0500001, 1.0, -0.05, -0.1]))
    assert_close(slopes, double([25.0, 25.0, 0.6648057, 100.0, 100.0, 0.6648057, 0.0045396]), rtol=0, atol=1e-6)
    assert_close(SupStep(delta=DERIVED_DELTA).slope(double([DERIVED_DELTA])), double([0.99]))
    slopes = SigmoidStep().slope(double([0.0, 0.05, -0.05, 1.0]))
    assert_close(slopes, double([25.0, 0.6648057, 0.6648057, 0.0]), rtol=0, atol=1e-6)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=20), st.floats(1e-3, 1), st.floats(1e-2, 1e4), st.floats(1e-3, 1))
def test_h_minus_is_never_below_the_true_step(gaps, tau, rho, delta):
    for dtype in (torch.float32, torch.float64):
        gap = torch.tensor(gaps, dtype=dtype)
        value = SupStep(tau, rho, delta).value(gap)
        assert (value >= (gap >= 0).to(dtype)).all()
        assert value.isfinite().all()


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_slope_is_the_derivative_of_value_and_both_are_finite_far_out(step):
    gaps = torch.linspace(-0.3, 0.3, 240, dtype=torch.float64)  # 0 and the deltas are not among them
    numeric = (step.value(gaps + 1e-7) - step.value(gaps - 1e-7)) / 2e-7
    assert_close(step.slope(gaps), numeric, rtol=1e-5, atol=1e-6)
    for dtype in (torch.float32, torch.float64):
        far = torch.tensor([-1e30, -1e4, -2.0, 2.0, 1e4, 1e30], dtype=dtype)
        for result in (step.value(far), step.slope(far)):
            assert result.dtype == dtype
            assert result.isfinite().all()


def test_numbers_and_counts_out_of_range_are_all_named_at_once():
    assert_refused(r"tau .* 0; delta .* -1$", check_range, "(0, inf)", tau=0, rho=1, delta=-1)
    for option in ("tau", "rho", "delta"):
        assert_refused(rf"{option} .* -0.01", SupStep, **{option: -0.01})
    for interval, inside, outside in (
        ("(0, inf)", [1e-9, 1e9], [0, -1, math.inf, math.nan]),
        ("[0, inf]", [0, math.inf], [-1e-9, math.nan]),
        ("[0, 1]", [0, 0.5, 1], [-1e-9, 1.1]),
        ("(-inf, inf)", [-1e30, 0], [math.inf, -math.inf, math.nan]),
    ):
        for value in inside:
            check_range(interval, value=value)
        for value in outside:
            assert_refused(rf"value .* {value}$", check_range, interval, value=value)
    check_counts(least=0, n=0)
    for count in (0, -1, 2.0, True, "3", None):
        assert_refused(rf"n .* 1.* {count!r}$", check_counts, n=count)


@given(
    st.integers(0, 4).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=5))
)
def test_targets_of_a_row_are_its_true_columns_packed_to_the_left(chosen):
    index, valid = packed(torch.tensor(chosen, dtype=torch.bool).reshape(len(chosen), -1))
    assert [row[:n].tolist() for row, n in zip(index, valid.sum(1), strict=True)] == [
        [column for column, true in enumerate(row) if true] for row in chosen
    ]
    assert valid.tolist() == valid.sort(1, descending=True).values.tolist()
    assert index.shape[1] == max(map(sum, chosen))
    assert packed(torch.zeros(0, 3, dtype=torch.bool))[0].shape == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_counts_count_ties_against_the_target(dtype):
    for seed in range(3):
        scores, targets, counted = draw(seed)
        scores, targets = scores.to(dtype), targets.to(dtype)
        expected = counts_by_definition(scores, targets, counted, lambda gap: int(gap >= 0))
        found = exact_counts(scores, targets, counted)
        assert (found.dtype, found.tolist()) == (torch.int64, expected)
        # Without any slack: a sum of numbers of at least 1 cannot round below their number.
        assert (smooth_counts(scores, targets, counted, SupStep()) >= found).all()
    scores = torch.tensor([[math.nan, 0.5, math.inf, -math.inf, 0.5, 0.2]], dtype=dtype)
    counted = torch.tensor([[False, True, False, False, True, True]])
    targets = torch.tensor([[0.5, 0.2, 0.9, -1.0]], dtype=dtype)
    assert exact_counts(scores, targets, counted)[0, [0, 2, 3]].tolist() == [2, 0, 3]


@pytest.mark.parametrize(("step", "definition"), [*zip(STEPS, DEFINITIONS, strict=True)], ids=[str(step) for step in STEPS])
def test_smooth_counts_are_the_sum_of_steps_and_their_gradient_is_the_finite_difference(step, definition):
    scores, targets, counted = draw(0)
    expected = double(counts_by_definition(scores, targets, counted, definition))
    assert_close(smooth_counts(scores, targets, counted, step), expected)
    single = smooth_counts(scores.float(), targets.float(), counted, step)
    assert_close(single, expected.float(), rtol=1e-4, atol=1e-5)
    scores, targets, counted = draw(0, n_items=6)
    noise = torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)).double() / 30 + 0.003  # off the ties
    inputs = ((scores + noise).requires_grad_(), targets.requires_grad_())
    gaps = inputs[0][:, None, :] - inputs[1][:, :, None]
    assert min(gaps.abs().min(), (gaps - 0.05).abs().min(), (gaps - 0.15).abs().min()) > 1e-4
    assert gradcheck(lambda scores, targets: smooth_counts(scores, targets, counted, step), inputs, rtol=1e-4)
