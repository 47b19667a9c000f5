from functools import partial

import pytest
import torch
from loss_cases import draw, references
from torch.testing import assert_close

from refusals import assert_refused
from sightline import losses
from sightline.losses.sums import PathNumbers

# Fine, middle, coarse; middle name 0 recurs below coarse 0 and 1, fine name 1 below three middle classes.
LABELS = torch.tensor(
    [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [2, 0, 1], [2, 0, 1], [1, 0, 1], [3, 2, 1], [3, 2, 1]]
)
FINE = torch.tensor([0, 0, 2, 3, 3, 4, 4, 1, 5, 5])  # any number for each path
MIDDLE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
COARSE = LABELS[:, 2]
COUNTS = [6, 4, 2]
PROXY_LOSSES = {"norm_softmax": losses.norm_softmax_over_levels, "proxy_nca_pp": losses.proxy_nca_pp_over_levels}
MODULES = {
    **{name: partial(make, COUNTS, 4) for name, make in PROXY_LOSSES.items()},
    "triplet": partial(losses.triplet_over_levels, 3, mining="hard"),
    "contrastive": lambda: losses.SumOverLevels(lambda _: losses.ContrastiveLoss(), 3),
}
every_proxy_loss = pytest.mark.parametrize("make", PROXY_LOSSES.values(), ids=list(PROXY_LOSSES))


@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
def test_pair_losses_see_each_level_as_flat_classes(mining):
    loss, levels = losses.TripletLoss(0.3, mining), (FINE, MIDDLE, COARSE)
    over_levels, alone = losses.triplet_over_levels(3, 0.3, mining), [loss(draw(), level) for level in levels]
    assert_close(over_levels(draw(), LABELS), sum(alone) / 3)
    assert_close(over_levels.terms, {f"level_{number}": one for number, one in enumerate(alone)})
    for same in ([loss] * 3, loss):
        assert_close(losses.sum_over_levels(same, draw(), LABELS.numpy()), sum(alone) / 3)
    rows = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    expected = sum(loss(draw(), level, **references(draw(50), level[rows])) for level in levels) / 3
    assert_close(over_levels(draw(), LABELS, **references(draw(50), LABELS[rows])), expected)
    assert_close(losses.sum_over_levels(loss, draw(), LABELS, draw(50), LABELS[rows]), expected)


@every_proxy_loss
def test_proxy_losses_number_paths_in_sorted_order(make):
    """Sorted by fine, middle, coarse name: the order of ``unique``."""
    module = make(COUNTS, 4).double()
    found = module(draw(), LABELS)
    expected = 0
    for level, loss in enumerate(module.losses):
        numbers = LABELS[:, level:].unique(dim=0, return_inverse=True)[1]
        expected += losses.norm_softmax_loss(draw(), numbers, loss.proxies, loss.options["temperature"]) / 3
    assert_close(found, expected)


@every_proxy_loss
def test_one_proxy_table_a_level(make):
    module = make(COUNTS, 4)
    assert [tuple(table.shape) for table in module.parameters()] == [(6, 4), (4, 4), (2, 4)]
    assert not torch.equal(module.losses[0].proxies[:2], module.losses[2].proxies)  # each level has its own seed
    kind = {
        losses.norm_softmax_over_levels: losses.NormSoftmaxLoss,
        losses.proxy_nca_pp_over_levels: losses.ProxyNCAPPLoss,
    }[make]
    assert all(type(loss) is kind for loss in module.losses)
    assert_close(module.losses[1].proxies, kind(4, 4, seed=1).proxies)
    assert all(loss.options == {"temperature": 0.3} for loss in make(COUNTS, 4, temperature=0.3).losses)
    module(draw(dtype=torch.float32), LABELS).backward()
    assert all((table.grad != 0).any(1).all() for table in module.parameters())


def test_numbers_stay_once_given_and_one_path_too_many_is_refused():
    numbers = PathNumbers(4, 2)
    assert numbers(torch.tensor([[5, 1], [5, 0], [5, 1]])).tolist() == [1, 0, 1]
    assert numbers(torch.tensor([[2, 9], [5, 1], [-1, -1]])).tolist() == [3, 1, 2]
    assert numbers(torch.tensor([[5, 0], [-1, -1], [2, 9]])).tolist() == [0, 2, 3]
    assert numbers.paths.tolist() == [[5, 0], [5, 1], [-1, -1], [2, 9]]
    assert numbers(torch.zeros(0, 2, dtype=torch.int64)).tolist() == []
    evaluated = PathNumbers(2, 1).eval()
    assert evaluated(torch.tensor([[7], [3]])).tolist() == [1, 0]
    assert evaluated.n_known.item() == 0
    numbers = PathNumbers(2, 1)
    numbers(torch.tensor([[4]]))
    assert_refused(r"labels.* 2 classes.*\[6\]", numbers, torch.tensor([[5], [6]]))
    assert numbers.n_known.item() == 1
    assert numbers(torch.tensor([[6]])).tolist() == [1]
    assert_refused(r"labels.* 1 classes.*\[1\]", losses.norm_softmax_over_levels([6, 4, 1], 4), draw(), LABELS)


@every_proxy_loss
def test_paths_given_beforehand_fix_the_numbers(make):
    """Two processes that meet the classes in another order then agree."""
    one, other = (make(COUNTS, 4, paths=LABELS[order]).double() for order in (torch.arange(10), torch.arange(9, -1, -1)))
    one(draw(0, 3), LABELS[:3])
    other(draw(0, 2), LABELS[8:])
    assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert_close(one(draw(), LABELS), other(draw(), LABELS))
    assert_refused(r"labels.* 6 classes.*\[9, 9, 9\]", one, draw(0, 1), torch.tensor([[9, 9, 9]]))


def test_bad_batches_and_sizes_are_refused():
    triplet, proxies = losses.triplet_over_levels(3), losses.norm_softmax_over_levels(COUNTS, 4)
    for said, call in (
        *(("labels.* 3 levels.* 1", lambda make=make: make()(draw(), FINE)) for make in MODULES.values()),
        ("ref_emb and ref_labels", lambda: triplet(draw(), LABELS, ref_emb=draw())),
        ("ref_emb and ref_labels", lambda: triplet(draw(), LABELS, ref_labels=LABELS)),
        ("ref_labels.* 3 levels.* 1", lambda: triplet(draw(), LABELS, **references(draw(), FINE))),
        ("indices_tuple.*level", lambda: triplet(draw(), LABELS, (FINE, FINE, FINE))),
        ("ref_emb, ref_labels.*prox", lambda: proxies(draw(), LABELS, **references(draw(), LABELS))),
        ("n_levels.* 0", lambda: losses.triplet_over_levels(0)),
        ("n_levels.* 0", lambda: losses.norm_softmax_over_levels([], 4)),
        ("n_levels.* 0", lambda: losses.sum_over_levels([], draw(), LABELS)),
        ("losses.*prox", lambda: losses.sum_over_levels(losses.NormSoftmaxLoss(6, 4), draw(), LABELS)),
        ("n_classes.* 0", lambda: losses.norm_softmax_over_levels([3, 0], 4)),
        ("embedding_dim.* -1", lambda: losses.proxy_nca_pp_over_levels([3, 2], -1)),
        ("n_classes.* 2 .*3", lambda: losses.SumOverLevels(lambda level: losses.NormSoftmaxLoss(3, 4), 2, [3])),
        ("n_classes.* 2 .*3", lambda: losses.SumOverLevels(lambda level: losses.NormSoftmaxLoss(3, 4), 2, 3)),
        ("paths.*prox", lambda: losses.SumOverLevels(lambda _: losses.TripletLoss(), 3, paths=LABELS)),
        ("paths.* 3 levels.* 2", lambda: losses.norm_softmax_over_levels(COUNTS, 4, paths=LABELS[:, :2])),
    ):
        assert_refused(said, call)
