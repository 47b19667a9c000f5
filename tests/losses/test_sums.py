from functools import partial

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses.contrastive import ContrastiveLoss, TripletLoss
from sightline.losses.proxies import NormSoftmaxLoss, ProxyNCAPPLoss, norm_softmax_loss
from sightline.losses.sums import (
    PathNumbers,
    SumOverLevels,
    norm_softmax_over_levels,
    proxy_nca_pp_over_levels,
    sum_over_levels,
    triplet_over_levels,
)

# Fine, middle, coarse; middle name 0 recurs below coarse 0 and 1, fine name 1 below three middle classes.
LABELS = torch.tensor(
    [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [2, 0, 1], [2, 0, 1], [1, 0, 1], [3, 2, 1], [3, 2, 1]]
)
FINE = torch.tensor([0, 0, 2, 3, 3, 4, 4, 1, 5, 5])  # any number for each path
MIDDLE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
COARSE = LABELS[:, 2]
COUNTS = [6, 4, 2]
PROXY_LOSSES = {"norm_softmax": norm_softmax_over_levels, "proxy_nca_pp": proxy_nca_pp_over_levels}
MODULES = {
    **{name: partial(make, COUNTS, 4) for name, make in PROXY_LOSSES.items()},
    "triplet": partial(triplet_over_levels, 3, mining="hard"),
    "contrastive": lambda: SumOverLevels(lambda _: ContrastiveLoss(), 3),
}
every_name = pytest.mark.parametrize("name", sorted(MODULES))
every_proxy_loss = pytest.mark.parametrize("make", PROXY_LOSSES.values(), ids=list(PROXY_LOSSES))


def draw(seed=0, n_items=10, dtype=torch.float64):
    return torch.randn(n_items, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# Definition.


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
def test_pair_losses_see_each_level_as_flat_classes(seed, mining):
    loss = TripletLoss(0.3, mining)
    expected = sum(loss(draw(seed), level) for level in (FINE, MIDDLE, COARSE)) / 3
    assert_close(triplet_over_levels(3, 0.3, mining)(draw(seed), LABELS), expected)
    assert_close(sum_over_levels([loss] * 3, draw(seed), LABELS), expected)
    assert_close(sum_over_levels(loss, draw(seed), LABELS), expected)
    references, rows = draw(seed + 50), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    expected = sum(loss(draw(seed), level, references, level[rows]) for level in (FINE, MIDDLE, COARSE)) / 3
    found = triplet_over_levels(3, 0.3, mining)(draw(seed), LABELS, references, LABELS[rows])
    assert_close(found, expected)


@every_proxy_loss
def test_proxy_losses_number_paths_in_sorted_order(make):
    """Sorted by fine, middle, coarse name: the order of ``unique``."""
    module = make(COUNTS, 4).double()
    found = module(draw(), LABELS)
    expected = 0
    for level, loss in enumerate(module.losses):
        numbers = LABELS[:, level:].unique(dim=0, return_inverse=True)[1]
        expected += norm_softmax_loss(draw(), numbers, loss.proxies, loss.options["temperature"]) / 3
    assert_close(found, expected)


@every_proxy_loss
def test_one_proxy_table_a_level(make):
    module = make(COUNTS, 4)
    assert [tuple(table.shape) for table in module.parameters()] == [(6, 4), (4, 4), (2, 4)]
    assert not torch.equal(module.losses[0].proxies[:2], module.losses[2].proxies)  # each level has its own seed
    kind = {norm_softmax_over_levels: NormSoftmaxLoss, proxy_nca_pp_over_levels: ProxyNCAPPLoss}[make]
    assert all(type(loss) is kind for loss in module.losses)
    assert_close(module.losses[1].proxies, kind(4, 4, seed=1).proxies)
    assert all(loss.options == {"temperature": 0.3} for loss in make(COUNTS, 4, temperature=0.3).losses)
    module(draw(dtype=torch.float32), LABELS).backward()
    assert all((table.grad != 0).any(1).all() for table in module.parameters())


def test_each_level_is_told_by_its_number():
    loss = triplet_over_levels(3)
    value = loss(draw(), LABELS)
    alone = [TripletLoss()(draw(), LABELS[:, level:]) for level in range(3)]
    assert_close(loss.terms, {f"level_{level}": one for level, one in enumerate(alone)})
    assert_close(value, sum(alone) / 3)


# Numbers of paths.


def test_numbers_stay_once_given():
    numbers = PathNumbers(4, 2)
    assert numbers(torch.tensor([[5, 1], [5, 0], [5, 1]])).tolist() == [1, 0, 1]
    assert numbers(torch.tensor([[2, 9], [5, 1], [-1, -1]])).tolist() == [3, 1, 2]
    assert numbers(torch.tensor([[5, 0], [-1, -1], [2, 9]])).tolist() == [0, 2, 3]
    assert numbers.paths.tolist() == [[5, 0], [5, 1], [-1, -1], [2, 9]]
    assert numbers(torch.zeros(0, 2, dtype=torch.int64)).tolist() == []


def test_one_path_too_many_is_refused_and_leaves_no_trace():
    numbers = PathNumbers(2, 1)
    numbers(torch.tensor([[4]]))
    with pytest.raises(InputError, match=r"^labels: there are places for 2 classes; \[6\] is one too many$"):
        numbers(torch.tensor([[5], [6]]))
    assert numbers.n_known.item() == 1
    assert numbers(torch.tensor([[6]])).tolist() == [1]
    with pytest.raises(InputError, match=r"^labels: there are places for 1 classes; \[1\] is one too many$"):
        norm_softmax_over_levels([6, 4, 1], 4)(draw(), LABELS)


def test_evaluation_keeps_nothing():
    numbers = PathNumbers(2, 1).eval()
    assert numbers(torch.tensor([[7], [3]])).tolist() == [1, 0]
    assert numbers.n_known.item() == 0


@every_proxy_loss
def test_paths_given_beforehand_fix_the_numbers(make):
    """Two processes that meet the classes in another order then agree."""
    one, other = (make(COUNTS, 4, paths=LABELS[order]).double() for order in (torch.arange(10), torch.arange(9, -1, -1)))
    one(draw(0, 3), LABELS[:3])
    other(draw(0, 2), LABELS[8:])
    assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert_close(one(draw(), LABELS), other(draw(), LABELS))
    with pytest.raises(InputError, match=r"^labels: there are places for 6 classes; \[9, 9, 9\] is one too many$"):
        one(draw(0, 1), torch.tensor([[9, 9, 9]]))


# What every one promises.


@pytest.mark.parametrize("name", ["norm_softmax", "proxy_nca_pp"])
def test_gradient_is_the_finite_difference(name):
    module = MODULES[name]().double()
    assert gradcheck(lambda embeddings: module(embeddings, LABELS), draw(0).requires_grad_())


@every_name
@pytest.mark.parametrize("n_items", [0, 1, 2])
def test_a_batch_of_one_class_or_none(name, n_items):
    embeddings = draw(n_items=n_items, dtype=torch.float32).requires_grad_()
    value = MODULES[name]()(embeddings, LABELS[:n_items])
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()


@every_name
def test_half_precision_and_autocast(name):
    half = MODULES[name]()(draw(dtype=torch.bfloat16), LABELS)
    assert_close(half, MODULES[name]()(draw(dtype=torch.bfloat16).float(), LABELS), rtol=0, atol=0)
    assert half.dtype == torch.float32
    outside = MODULES[name]()(draw(dtype=torch.float32), LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = MODULES[name]()(draw(dtype=torch.float32), LABELS)
    assert_close(inside, outside, rtol=0, atol=0)


@every_proxy_loss
def test_saved_and_loaded_is_never_stopped(make):
    def step(module, rows):
        loss = module(draw(dtype=torch.float32)[rows], LABELS[rows])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for table, gradient in zip(module.parameters(), gradients, strict=True):
                table -= 0.1 * gradient
        return loss.detach()

    late, early = slice(6, 10), slice(0, 8)  # so that numbers are not in sorted order
    whole, resumed = make(COUNTS, 4), make(COUNTS, 4, seed=9)
    step(whole, late)
    resumed.load_state_dict(whole.state_dict())
    assert_close(step(resumed, early), step(whole, early), rtol=0, atol=0)
    assert_close(dict(resumed.state_dict()), dict(whole.state_dict()), rtol=0, atol=0)
    assert len(whole.state_dict()) == 9


# Bad input.


@every_name
def test_bad_batches_are_refused(name):
    loss = MODULES[name]()
    with pytest.raises(InputError, match=r"^labels: 3 levels are needed, found 1$"):
        loss(draw(), FINE)
    with pytest.raises(InputError, match=r"^embeddings: a \(B, D\) .* found torch\.float64 \(4,\)$"):
        loss(draw()[0], LABELS)
    with pytest.raises(InputError, match=r"^labels: \(10,\) or \(10, L\) is needed, found \(9, 3\)$"):
        loss(draw(), LABELS[:9])
    with pytest.raises(InputError, match=r"^labels: whole numbers are needed, found torch\.float32$"):
        loss(draw(), LABELS.float())


def test_references_fit_or_are_refused():
    triplet = triplet_over_levels(3)
    for references in ({"ref_emb": draw()}, {"ref_labels": FINE}):
        with pytest.raises(InputError, match=r"^ref_emb and ref_labels go together"):
            triplet(draw(), LABELS, **references)
    with pytest.raises(InputError, match=r"^ref_labels: 3 levels are needed, found 1$"):
        triplet(draw(), LABELS, draw(), FINE)
    with pytest.raises(InputError, match=r"^ref_emb, ref_labels: a proxy loss compares each item with its proxies"):
        norm_softmax_over_levels(COUNTS, 4)(draw(), LABELS, draw(), LABELS)


def test_bad_sizes_are_refused():
    with pytest.raises(InputError, match=r"^n_levels is 0;"):
        triplet_over_levels(0)
    with pytest.raises(InputError, match=r"^n_levels is 0;"):
        norm_softmax_over_levels([], 4)
    with pytest.raises(InputError, match=r"^n_levels is 0;"):
        sum_over_levels([], draw(), LABELS)
    with pytest.raises(InputError, match=r"^losses: a loss with proxies needs a table for each level"):
        sum_over_levels(NormSoftmaxLoss(6, 4), draw(), LABELS)
    with pytest.raises(InputError, match=r"^n_classes is 0;"):
        norm_softmax_over_levels([3, 0], 4)
    with pytest.raises(InputError, match=r"^embedding_dim is -1;"):
        proxy_nca_pp_over_levels([3, 2], -1)
    for counts in ([3], 3):
        with pytest.raises(InputError, match=r"^n_classes is \[?3\]?; 2 counts are needed, one a level, finest first$"):
            SumOverLevels(lambda level: NormSoftmaxLoss(3, 4), 2, counts)
    with pytest.raises(InputError, match=r"^paths: only losses with proxies"):
        SumOverLevels(lambda _: TripletLoss(), 3, paths=LABELS)
    with pytest.raises(InputError, match=r"^paths: 3 levels are needed, found 2$"):
        norm_softmax_over_levels(COUNTS, 4, paths=LABELS[:, :2])
