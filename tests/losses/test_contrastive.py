import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.errors import InputError
from sightline.losses import contrastive
from sightline.losses.contrastive import CalibrationLoss, calibration_loss
from sightline.ranking.pairs import batch_pairs

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=200)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def calibration_by_definition(scores, relevant, mask, alpha=0.9, beta=0.6):
    """One pair at a time; queries without any item are left out."""
    found = []
    for row, is_relevant, listed in zip(scores.tolist(), relevant.tolist(), mask.tolist(), strict=True):
        short = [max(0.0, alpha - s) for s, good, present in zip(row, is_relevant, listed, strict=True) if present and good]
        over = [
            max(0.0, s - beta) for s, good, present in zip(row, is_relevant, listed, strict=True) if present and not good
        ]
        if short or over:
            found.append(sum(sum(side) / len(side) for side in (short, over) if side))
    return sum(found) / len(found) if found else 0.0


@st.composite
def lists(draw_value):
    n_queries, n_items = draw_value(st.integers(1, 4)), draw_value(st.integers(1, 7))
    row = {"min_size": n_items, "max_size": n_items}
    rows = {"min_size": n_queries, "max_size": n_queries}
    scores = draw_value(st.lists(st.lists(st.integers(-10, 10), **row), **rows))
    relevant, mask = (draw_value(st.lists(st.lists(st.booleans(), **row), **rows)) for _ in range(2))
    return double(scores) / 10, torch.tensor(relevant), torch.tensor(mask)


@reproducible
@given(lists(), st.sampled_from([(0.9, 0.6), (0.5, -0.2), (1.0, 0.9)]))
def test_calibration_is_its_definition(pairs, marks):
    alpha, beta = marks
    assert_close(calibration_loss(*pairs, alpha=alpha, beta=beta).item(), calibration_by_definition(*pairs, alpha, beta))
    scores, relevant, mask = pairs
    in_single = calibration_loss(scores.float(), relevant, mask, alpha, beta)
    assert_close(in_single.item(), calibration_by_definition(*pairs, alpha, beta), rtol=1e-5, atol=1e-6)


def test_mean_of_nonzero_terms_worked_by_hand():
    """Shortfall 0.2 of one pair, excess (0.05 + 0.01) / 2; with a second row, all pairs of the table together."""
    scores, relevant = double([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[True, True, False, False, False]])
    assert_close(calibration_loss(scores, relevant, reduction="nonzero").item(), 0.23)
    two = double([[0.95, 0.70, 0.65, 0.30, 0.61], [0.50, 0.90, 0.60, 0.50, 0.90]]), relevant.expand(2, -1)
    assert_close(calibration_loss(*two, reduction="nonzero").item(), (0.2 + 0.4) / 2 + (0.05 + 0.01 + 0.3) / 3)
    within = double([[0.95, 0.9, 0.6, 0.30, 0.1]]).requires_grad_()
    calibration_loss(within, relevant, reduction="nonzero").backward()
    assert (within.grad == 0).all()
    with pytest.raises(InputError, match=r"^unknown reduction 'nonzeros': did you mean 'nonzero'\?$"):
        calibration_loss(scores, relevant, reduction="nonzeros")


def test_an_empty_side_is_zero_and_an_empty_list_left_out():
    scores = double([[0.5, 0.8], [0.5, 0.8], [0.5, 0.8], [0.5, 0.8]])
    relevant = torch.tensor([[True, True], [False, False], [True, False], [True, False]])
    mask = torch.tensor([[True, True], [True, True], [True, True], [False, False]])
    # Shortfall alone (0.4 + 0.1) / 2; excess alone (0 + 0.2) / 2; both 0.4 + 0.2; not counted.
    assert_close(calibration_loss(scores, relevant, mask).item(), (0.25 + 0.1 + 0.6) / 3)


def test_gradient_worked_by_hand():
    """Each pair beyond its mark pulls by one over the size of its side; those within pull not at all."""
    scores = double([[0.95, 0.70, 0.65, 0.30, 0.61]]).requires_grad_()
    calibration_loss(scores, torch.tensor([[True, True, False, False, False]])).backward()
    assert_close(scores.grad, double([[0.0, -1 / 2, 1 / 3, 0.0, 1 / 3]]))


@reproducible
@given(lists())
def test_gradient_signs(pairs):
    scores, relevant, mask = pairs
    leaf = scores.clone().requires_grad_()
    calibration_loss(leaf, relevant, mask).backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[relevant] <= 0).all()
    assert (leaf.grad[~relevant] >= 0).all()
    assert (leaf.grad[~mask] == 0).all()
    assert ((leaf.grad != 0) == mask & torch.where(relevant, scores < 0.9, scores > 0.6)).all()


def calibration_by_autograd(scores, relevant, mask, reduction):
    """All pairs at once, in tables of their own."""
    short = torch.where(relevant & mask, 0.9 - scores, 0).relu()
    over = torch.where(~relevant & mask, scores - 0.6, 0).relu()
    if reduction == "nonzero":
        return sum(side.sum() / max(1, int((side > 0).sum())) for side in (short, over))
    sides = short.sum(1) / (relevant & mask).sum(1).clamp(min=1) + over.sum(1) / (~relevant & mask).sum(1).clamp(min=1)
    return sides[mask.any(1)].mean()


@pytest.mark.parametrize("reduction", ["mean", "nonzero"])
@pytest.mark.parametrize("block", [1, 20, 1 << 19])  # of 9 items: a row, two rows, the whole table at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_at_a_time_are_all_at_once(dtype, block, reduction, monkeypatch):
    monkeypatch.setattr(contrastive, "BLOCK_ELEMENTS", block)
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(7, 9, generator=generator, dtype=dtype)
    relevant, mask = torch.rand(7, 9, generator=generator) < 0.4, torch.rand(7, 9, generator=generator) < 0.8
    mask[2] = False
    expected, found = scores.clone().requires_grad_(), scores.masked_fill(~mask, torch.nan).requires_grad_()
    calibration_by_autograd(expected, relevant, mask, reduction).mul(3).backward()
    value = calibration_loss(found, relevant, mask, reduction=reduction)
    value.mul(3).backward()
    assert_close(value.detach(), calibration_by_autograd(scores, relevant, mask, reduction))
    assert found.grad.dtype == dtype
    assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("reduction", ["mean", "nonzero"])
def test_no_table_of_scores_is_kept_and_one_is_made(reduction, monkeypatch):
    """A byte a pair is kept; forwards no operator returns a table of the scores' size in their type, backwards one does."""
    monkeypatch.setattr(contrastive, "BLOCK_ELEMENTS", 600)

    class Tables(TorchDispatchMode):
        n_made = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            own = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            self.n_made += sum(t.is_floating_point() and t.numel() >= 3600 and t.data_ptr() not in own for t in leaves)
            return result

    kept = []
    pairs = batch_pairs(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 4)
    pairs = pairs._replace(scores=pairs.scores.detach().requires_grad_())
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel() * t.element_size()) or t, lambda t: t),
        Tables() as forwards,
    ):
        value = CalibrationLoss(reduction=reduction).of_pairs(pairs)
    with Tables() as backwards:
        value.backward()
    assert sum(kept) < 3600 + 60 * 20
    assert forwards.n_made == 0
    assert backwards.n_made == 1


def test_module_counts_a_query_whose_class_is_alone():
    """Two orthogonal classes of one item each: nothing relevant, nothing above beta; two parallel ones: 1 - 0.6."""
    labels = torch.tensor([0, 1])
    assert CalibrationLoss()(torch.eye(2), labels).item() == 0
    assert_close(CalibrationLoss()(torch.ones(2, 2), labels).item(), 0.4)
