import math
from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as metric_learning
from torch.autograd import gradcheck
from torch.testing import assert_close

from loss_cases import assert_equal, double, draw, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.losses.proxies import csl_margins

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 4, 4, 4, 4])  # of unequal classes; class 3 is never seen
PARENTS = torch.tensor([0, 0, 1, 1, 2])
PATHS = torch.stack([torch.arange(5), PARENTS], 1)
LEVELS = PATHS[LABELS]  # (10, 2)
MODULES = {
    "norm_softmax": partial(losses.NormSoftmaxLoss, 5, 4),
    "proxy_nca_pp": partial(losses.ProxyNCAPPLoss, 5, 4),
    "arcface": partial(losses.ArcFaceLoss, 5, 4),
    "csl": partial(losses.CSLLoss, 5, 4, 2),
}
FUNCTIONS = {
    "norm_softmax": losses.norm_softmax_loss,
    "proxy_nca_pp": losses.proxy_nca_pp_loss,
    "arcface": losses.arcface_loss,
    "csl": partial(losses.csl_loss, paths=PATHS),
}
every_name = pytest.mark.parametrize("name", sorted(MODULES))
seeds = pytest.mark.parametrize("seed", range(3))


def cosine(one, other):
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.hypot(*one) / math.hypot(*other)


def log_sum_exp(values):
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def softmax_by_definition(embeddings, labels, proxies, scale, margin=0.0):
    """One item at a time."""
    terms = []
    for vector, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        cosines = [cosine(vector, proxy) for proxy in proxies.tolist()]
        angle = math.acos(cosines[label])
        beyond = angle + margin > math.pi
        cosines[label] = cosines[label] - margin * math.sin(margin) if beyond else math.cos(angle + margin)
        terms.append(log_sum_exp([scale * value for value in cosines]) - scale * cosines[label])
    return sum(terms) / len(terms)


def csl_by_definition(embeddings, labels, proxies, paths, gamma, margins):
    """One item and one level at a time; proxies without a path are left out."""
    terms = []
    for vector, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        cosines = [cosine(vector, proxy) for proxy in proxies.tolist()]
        known = [(value, path) for value, path in zip(cosines, paths.tolist(), strict=True) if path[0] >= 0]
        own = [-gamma * value for value, path in known if path == label]
        for level, margin in enumerate(margins):
            others = [gamma * value for value, path in known if path[level:] != label[level:]]
            exponent = log_sum_exp(others) + log_sum_exp(own) + gamma * margin if others else -math.inf
            terms.append(max(exponent, 0) + math.log1p(math.exp(-abs(exponent))))
    return sum(terms) / len(embeddings)


SQUARE = double([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def test_worked_examples():
    for loss, value in ((losses.norm_softmax_loss, 4.0181499), (losses.proxy_nca_pp_loss, 3.6269571)):
        assert_close(loss(double([[0.6, 0.8]]), [0], SQUARE).item(), value, rtol=0, atol=1e-6)
        scaled = loss(double([[6.0, 8.0]]), torch.tensor([[0, 7]]), 3 * SQUARE)  # of any length, labels in levels
        assert_close(scaled.item(), value, rtol=0, atol=1e-6)
    # CSL with proxies at cosines 0.6, 0.8, -0.6; the fine level has both others outside, the coarse one the last alone.
    paths = torch.tensor([[0, 0], [1, 0], [2, 1]])
    tables = double([[1.0, 0.0]]), [[0, 0]], double([[0.6, 0.8], [0.8, 0.6], [-0.6, 0.8]]), paths
    for margins, expected in ((None, 14.4000006), ([-1e4, 0.45], 3.8e-11)):  # -1e4: no such level
        assert_close(losses.csl_loss(*tables, margins=margins).item(), expected, rtol=0.01, atol=5e-7)


@seeds
def test_softmax_losses_are_their_definition_and_pytorch_metric_learnings(seed):
    embeddings, proxies = draw(seed), draw(seed + 100, 5)
    expected = partial(softmax_by_definition, embeddings, LABELS, proxies)
    assert_close(losses.norm_softmax_loss(embeddings, LABELS, proxies).item(), expected(20))
    assert_close(losses.norm_softmax_loss(embeddings, LABELS, proxies, 0.3).item(), expected(1 / 0.3))
    assert_close(losses.proxy_nca_pp_loss(embeddings, LABELS, proxies).item(), expected(18))
    assert_close(losses.arcface_loss(embeddings, LABELS, proxies).item(), expected(30, 0.5))
    assert_close(losses.arcface_loss(embeddings, LABELS, proxies, 2.0, 8.0).item(), expected(8, 2.0))
    for theirs, ours in (
        (metric_learning.NormalizedSoftmaxLoss(5, 4, temperature=0.05), losses.norm_softmax_loss),
        (metric_learning.ArcFaceLoss(5, 4, margin=math.degrees(0.5), scale=30), losses.arcface_loss),
        (metric_learning.ProxyNCALoss(5, 4, softmax_scale=9), losses.proxy_nca_pp_loss),
    ):
        (weight,) = theirs.parameters()
        weight.data = (proxies if ours is losses.proxy_nca_pp_loss else proxies.T).clone()
        assert_close(ours(embeddings, LABELS, proxies), theirs(embeddings, LABELS))


@seeds
def test_csl_is_its_definition(seed):
    embeddings, proxies, unseen = draw(seed), draw(seed + 100, 5), PATHS.clone()
    unseen[3] = -1
    for paths in (PATHS, unseen):
        for gamma, margins in ((32.0, [0.25, 0.45]), (3.0, [0.1, 0.7])):
            expected = csl_by_definition(embeddings, LEVELS, proxies, paths, gamma, margins)
            assert_close(losses.csl_loss(embeddings, LEVELS, proxies, paths, gamma, margins).item(), expected)
    assert_close(
        losses.csl_loss(embeddings, LEVELS, proxies, unseen), losses.csl_loss(embeddings, LEVELS, proxies, unseen, 32.0)
    )
    # Classes 0 and 1 both lie below a middle class named 0, of different parents: outside each other on that level.
    paths = torch.tensor([[0, 0, 0], [1, 0, 1]])
    expected = csl_by_definition(embeddings[:2], paths, proxies[:2], paths, 32.0, csl_margins(3))
    assert_close(losses.csl_loss(embeddings[:2], paths, proxies[:2], paths).item(), expected)


@every_name
def test_gradient_is_the_finite_difference_and_finite_at_zero_and_on_the_opposite_proxy(name):
    tables = draw(3).requires_grad_(), draw(4, 5).requires_grad_()
    assert gradcheck(lambda embeddings, proxies: FUNCTIONS[name](embeddings, LEVELS, proxies), tables)
    for dtype in (torch.float64, torch.float32):  # pytorch-metric-learning's ArcFace gives NaN here
        proxies = torch.eye(5, 4, dtype=dtype).requires_grad_()  # the last is a zero vector
        embeddings = torch.cat([torch.eye(4), -torch.eye(4), torch.zeros(2, 4)]).to(dtype)
        labels = PATHS[[0, 1, 2, 3, 0, 1, 2, 3, 0, 4]]
        found = value_and_gradient(FUNCTIONS[name], embeddings, labels, proxies)
        assert all(part.isfinite().all() for part in (*found, proxies.grad))


def test_arcface_rises_with_the_angle():
    angles = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    vectors = torch.stack([angles.cos(), angles.sin(), 0 * angles], 1)
    proxies = double([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    values = torch.stack([losses.arcface_loss(vector[None], [0], proxies) for vector in vectors])
    assert (values.diff() > 0).all()
    assert_close(values[0].item(), math.log1p(math.exp(-30 * math.cos(0.5))))  # on its proxy
    opposite = losses.arcface_loss(double([[-2.0, 0.0, 0.0]]), [0], proxies)
    assert_close(opposite.item(), 30 * (1 + 0.5 * math.sin(0.5)))


OPTIONS = {
    "norm_softmax": {"temperature": 0.2},
    "proxy_nca_pp": {"temperature": 0.2},
    "arcface": {"margin": 0.3, "scale": 7.0},
    "csl": {"gamma": 4.0, "margins": [0.0, 0.1]},
}


@every_name
def test_module_is_the_function_with_its_options_and_with_proxies_that_come_from_the_seed_alone(name):
    for options in ({}, OPTIONS[name]):
        module = MODULES[name](**options)
        if name == "csl":  # so that class 3 is known
            module(draw(9, 5), PATHS)
        found = module(draw(), LEVELS)
        assert_close(found, FUNCTIONS[name](draw(), LEVELS, module.proxies, **options))
        plain = FUNCTIONS[name](draw(), LEVELS, module.proxies)
        assert (abs(found.item() - plain.item()) > 1e-3) == bool(options)
        found.backward()
        assert module.proxies.grad.abs().sum() > 0
    first, before = MODULES[name]().proxies, torch.get_rng_state()
    assert_equal(MODULES[name]().proxies, first)
    assert_equal(torch.get_rng_state(), before)
    assert not torch.equal(MODULES[name](seed=1).proxies, first)


@every_name
def test_one_class_one_item_no_item_and_one_proxy(name):
    for n_items in (4, 1, 0):
        module = MODULES[name]()
        found = value_and_gradient(module, draw(n_items=n_items), torch.tensor([[2, 1]]).expand(n_items, 2))
        assert all(part.isfinite().all() for part in (*found, module.proxies.grad))
        # CSL knows one class so far: nothing lies outside it. The others need no second class in the batch.
        assert (found[0].item() > 0) == (n_items > 0 and name != "csl")
    module = losses.CSLLoss(1, 4, 1) if name == "csl" else type(MODULES[name]())(1, 4)
    assert value_and_gradient(module, draw(), [0] * 10)[0].item() == 0
    assert module.proxies.grad.isfinite().all()


def test_csl_learns_paths_as_it_sees_them_in_training():
    module, evaluated = losses.CSLLoss(5, 4, 2).double(), losses.CSLLoss(5, 4, 2).double().eval()
    assert (module.paths == -1).all()
    module(draw(0, 2), LEVELS[:2])
    assert module.paths.tolist() == [[0, 0], [-1, -1], [-1, -1], [-1, -1], [-1, -1]]
    value = module(draw(), LEVELS)
    assert module.paths.tolist() == [[0, 0], [1, 0], [2, 1], [-1, -1], [4, 2]]
    value.backward()
    assert (module.proxies.grad[3] == 0).all()  # the proxy of a class that was not seen does not count
    assert (module.proxies.grad[[0, 1, 2, 4]] != 0).any(1).all()
    with torch.no_grad():
        evaluated.proxies[3] = 7.0
    assert_close(evaluated(draw(), LEVELS), value)  # counts the batch, and keeps nothing
    assert (evaluated.paths == -1).all()
    coarse = losses.CSLLoss(2, 4, 2)  # a coarse label of -1 is a label
    assert coarse(draw(0, 2), [[0, -1], [1, 3]]).item() > 0
    assert coarse.paths.tolist() == [[0, -1], [1, 3]]


@every_name
def test_labels_proxies_and_sizes_that_do_not_fit_are_refused(name):
    loss, strange = MODULES[name](), torch.arange(5, 17)[:, None].expand(-1, 2)
    for said, *batch in (
        ("3 and 4 dimensions", draw()[:, :3], LEVELS),
        (r"labels.* 5 proxies.* 0 to 4.*\[-1\]", draw(0, 1), [[-1, 0]]),
        (r"labels.* 5 proxies.* 0 to 4.*\[5, 6, .*14\]", draw(0, 12), strange),
    ):
        assert_refused(said, loss, *batch)
    with torch.no_grad():
        loss.proxies[1, 1] = math.inf
    assert_refused(r"proxies.* 1 of 5 rows.* 1$", loss, draw(), LEVELS)
    sizes = {"n_classes": 5, "embedding_dim": 4, **({"n_levels": 2} if name == "csl" else {})}
    for option in sizes:
        for value in (0, 2.0, True, None):
            assert_refused(rf"{option}.* {value}", type(loss), **sizes | {option: value})


def test_csl_refuses_a_class_of_two_paths_and_tables_of_other_levels():
    for earlier, labels in ((LEVELS, [[0, 0], [1, 2]]), (LEVELS[:0], [[1, 0], [1, 2]])):
        module = losses.CSLLoss(5, 4, 2)
        module(draw(n_items=len(earlier)), earlier)
        before = module.paths.clone()
        assert_refused(r"labels .* 1 of 2 .* class 1 .*\[1, [02]\].*\[1, [02]\]", module, draw(0, 2), labels)
        assert_close(module.paths, before)
    assert_refused(r"labels.* 2 levels.* 1", losses.CSLLoss(5, 4, 2), draw(), LABELS)
    tables = draw(), LEVELS, draw(1, 5), PATHS[:, :1].float()
    assert_refused(r"paths.*int64 \(5, 2\).*float32 \(5, 1\)", losses.csl_loss, *tables)
