import math
from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as metric_learning
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses.proxies import (
    ArcFaceLoss,
    CSLLoss,
    NormSoftmaxLoss,
    ProxyNCAPPLoss,
    arcface_loss,
    csl_loss,
    csl_margins,
    norm_softmax_loss,
    proxy_nca_pp_loss,
)

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 4, 4, 4, 4])  # of unequal classes; class 3 is never seen
PARENTS = torch.tensor([0, 0, 1, 1, 2])
PATHS = torch.stack([torch.arange(5), PARENTS], 1)
LEVELS = PATHS[LABELS]  # (10, 2)
MODULES = {
    "norm_softmax": partial(NormSoftmaxLoss, 5, 4),
    "proxy_nca_pp": partial(ProxyNCAPPLoss, 5, 4),
    "arcface": partial(ArcFaceLoss, 5, 4),
    "csl": partial(CSLLoss, 5, 4, 2),
}
FUNCTIONS = {
    "norm_softmax": norm_softmax_loss,
    "proxy_nca_pp": proxy_nca_pp_loss,
    "arcface": arcface_loss,
    "csl": partial(csl_loss, paths=PATHS),
}
every_name = pytest.mark.parametrize("name", sorted(MODULES))
seeds = pytest.mark.parametrize("seed", range(5))


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed=0, n_items=10, dtype=torch.float64):
    return torch.randn(n_items, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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


# Definitions.

SQUARE = double([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (norm_softmax_loss, [4.0181499, 0.0181499, 28.0181499]),
        (proxy_nca_pp_loss, [3.6269571, 0.0269571, 25.2269571]),
    ],
)
@pytest.mark.parametrize("label", range(3))
def test_worked_examples(loss, expected, label):
    found = loss(double([[0.6, 0.8]]), torch.tensor([label]), SQUARE)
    assert_close(found.item(), expected[label], rtol=0, atol=1e-6)
    scaled = loss(double([[6.0, 8.0]]), torch.tensor([[label, 7]]), 3 * SQUARE)  # of any length, labels in levels
    assert_close(scaled, found)


def test_csl_worked_example():
    """Proxies at cosines 0.6, 0.8 and -0.6; the fine level has both others outside, the coarse one the last alone."""
    proxies = double([[0.6, 0.8], [0.8, 0.6], [-0.6, 0.8]])
    paths = torch.tensor([[0, 0], [1, 0], [2, 1]])
    vector, label = double([[1.0, 0.0]]), torch.tensor([[0, 0]])
    both = csl_loss(vector, label, proxies, paths).item()
    assert_close(both, 14.4000006, rtol=0, atol=1e-6)
    never = -1e4  # a margin that makes its level 0
    assert_close(csl_loss(vector, label, proxies, paths, margins=[0.25, never]).item(), 14.4000006, rtol=0, atol=1e-6)
    assert_close(csl_loss(vector, label, proxies, paths, margins=[never, 0.45]).item(), 3.8e-11, rtol=0.01, atol=0)


@seeds
def test_softmax_losses_are_their_definition(seed):
    embeddings, proxies = draw(seed), draw(seed + 100, 5)
    expected = partial(softmax_by_definition, embeddings, LABELS, proxies)
    assert_close(norm_softmax_loss(embeddings, LABELS, proxies).item(), expected(20))
    assert_close(norm_softmax_loss(embeddings, LABELS, proxies, 0.3).item(), expected(1 / 0.3))
    assert_close(proxy_nca_pp_loss(embeddings, LABELS, proxies).item(), expected(18))
    assert_close(arcface_loss(embeddings, LABELS, proxies).item(), expected(30, 0.5))
    assert_close(arcface_loss(embeddings, LABELS, proxies, 2.0, 8.0).item(), expected(8, 2.0))
    assert_close(arcface_loss(embeddings, LABELS, proxies, 0.0, 20.0), norm_softmax_loss(embeddings, LABELS, proxies))


@seeds
@pytest.mark.parametrize("options", [{}, {"gamma": 5.0}, {"gamma": 3.0, "margins": [0.1, 0.7]}])
def test_csl_is_its_definition(seed, options):
    embeddings, proxies = draw(seed), draw(seed + 100, 5)
    unseen = PATHS.clone()
    unseen[3] = -1
    for paths in (PATHS, unseen):
        expected = csl_by_definition(
            embeddings, LEVELS, proxies, paths, options.get("gamma", 32.0), options.get("margins", [0.25, 0.45])
        )
        assert_close(csl_loss(embeddings, LEVELS, proxies, paths, **options).item(), expected)


def test_csl_tells_a_recurring_coarse_name_apart_by_its_parent():
    """Classes 0 and 1 both lie below a middle class named 0, of different parents: outside each other on that level."""
    paths = torch.tensor([[0, 0, 0], [1, 0, 1]])
    embeddings, proxies = draw(0, 2), draw(1, 2)
    expected = csl_by_definition(embeddings, paths, proxies, paths, 32.0, csl_margins(3))
    assert_close(csl_loss(embeddings, paths, proxies, paths).item(), expected)


@seeds
def test_equal_to_pytorch_metric_learning(seed):
    embeddings, proxies = draw(seed), draw(seed + 100, 5)
    for theirs, ours in [
        (metric_learning.NormalizedSoftmaxLoss(5, 4, temperature=0.05), norm_softmax_loss),
        (metric_learning.ArcFaceLoss(5, 4, margin=math.degrees(0.5), scale=30), arcface_loss),
    ]:
        theirs.W.data = proxies.T.clone()
        assert_close(ours(embeddings, LABELS, proxies), theirs(embeddings, LABELS))
    nca = metric_learning.ProxyNCALoss(5, 4, softmax_scale=9)
    nca.proxies.data = proxies.clone()
    assert_close(proxy_nca_pp_loss(embeddings, LABELS, proxies), nca(embeddings, LABELS))


# Gradients.


@every_name
def test_gradient_is_the_finite_difference(name):
    embeddings, proxies = draw(3).requires_grad_(), draw(4, 5).requires_grad_()
    loss = FUNCTIONS[name]
    assert gradcheck(lambda embeddings, proxies: loss(embeddings, LEVELS, proxies), (embeddings, proxies))


@every_name
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_is_finite_on_the_proxy_opposite_to_it_and_at_zero(name, dtype):
    """pytorch-metric-learning's ArcFace gives NaN here."""
    proxies = torch.eye(5, 4, dtype=dtype).requires_grad_()  # the last is a zero vector
    embeddings = torch.cat([torch.eye(4), -torch.eye(4), torch.zeros(2, 4)]).to(dtype).requires_grad_()
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 4])
    value = FUNCTIONS[name](embeddings, PATHS[labels], proxies)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    assert proxies.grad.isfinite().all()


def test_arcface_on_and_opposite_to_its_proxy_worked_by_hand():
    proxies = double([[1.0, 0.0], [0.0, 1.0]])
    on = arcface_loss(double([[2.0, 0.0]]), torch.tensor([0]), proxies)
    assert_close(on.item(), math.log1p(math.exp(-30 * math.cos(0.5))))
    opposite = arcface_loss(double([[-2.0, 0.0]]), torch.tensor([0]), proxies)
    assert_close(opposite.item(), 30 * (1 + 0.5 * math.sin(0.5)))


def test_arcface_rises_with_the_angle():
    angles = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    vectors = torch.stack([angles.cos(), angles.sin(), 0 * angles], 1)
    proxies = double([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    values = torch.stack([arcface_loss(vector[None], torch.tensor([0]), proxies) for vector in vectors])
    assert (values.diff() > 0).all()


# The modules.


@every_name
def test_module_is_the_function_with_its_proxies(name):
    module = MODULES[name]()
    if name == "csl":  # so that class 3 is known
        module(draw(9, 5), PATHS)
    found = module(draw(dtype=torch.float32), LEVELS)
    assert_close(found, FUNCTIONS[name](draw(dtype=torch.float32), LEVELS, module.proxies))
    found.backward()
    assert module.proxies.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm_softmax", {"temperature": 0.2}),
        ("proxy_nca_pp", {"temperature": 0.2}),
        ("arcface", {"margin": 0.3}),
        ("arcface", {"scale": 7.0}),
        ("csl", {"gamma": 4.0}),
        ("csl", {"margins": [0.0, 0.1]}),
    ],
)
def test_options_reach_the_function(name, options):
    module = MODULES[name](**options)
    module(draw(9, 5), PATHS)
    found = module(draw(), LEVELS)
    assert_close(found, FUNCTIONS[name](draw(), LEVELS, module.proxies, **options))
    assert abs(found.item() - FUNCTIONS[name](draw(), LEVELS, module.proxies).item()) > 1e-3


@every_name
def test_first_proxies_come_from_the_seed_alone(name):
    one = MODULES[name]().proxies
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert_close(MODULES[name]().proxies, one, rtol=0, atol=0)
    assert_close(torch.get_rng_state(), before)
    assert not torch.equal(MODULES[name](seed=1).proxies, one)
    assert one.dtype == torch.float32
    assert one.shape == (5, 4)


@pytest.mark.parametrize("name", ["norm_softmax", "proxy_nca_pp", "arcface"])
def test_a_split_batch_is_the_mean_of_its_parts_and_only_fine_labels_count(name):
    embeddings, module = draw(), MODULES[name]().double()
    parts = 0.3 * module(embeddings[:3], LABELS[:3]) + 0.7 * module(embeddings[3:], LABELS[3:])
    assert_close(parts, module(embeddings, LABELS))
    assert_close(module(embeddings, LEVELS), module(embeddings, LABELS))


@every_name
def test_one_class_one_item_and_no_item(name):
    for n_items in (4, 1, 0):
        module = MODULES[name]()
        embeddings = draw(n_items=n_items, dtype=torch.float32).requires_grad_()
        value = module(embeddings, torch.tensor([[2, 1]]).expand(n_items, 2))
        value.backward()
        assert value.isfinite()
        assert embeddings.grad.isfinite().all()
        assert module.proxies.grad.isfinite().all()
        # CSL knows one class so far: nothing lies outside it. The others need no second class in the batch.
        assert (value.item() > 0) == (n_items > 0 and name != "csl")


@every_name
def test_one_proxy(name):
    module = CSLLoss(1, 4, 1) if name == "csl" else type(MODULES[name]())(1, 4)
    value = module(draw(), torch.zeros(10, dtype=torch.int64))
    value.backward()
    assert value.item() == 0
    assert module.proxies.grad.isfinite().all()


@every_name
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, dtype):
    embeddings = draw(dtype=dtype).requires_grad_()
    value = MODULES[name]()(embeddings, LEVELS)
    assert value.dtype == torch.float32
    assert_close(value, MODULES[name]()(embeddings.detach().float(), LEVELS), rtol=0, atol=0)
    value.backward()
    assert embeddings.grad.dtype == dtype
    assert embeddings.grad.isfinite().all()


@every_name
def test_autocast_changes_nothing(name):
    embeddings = draw(dtype=torch.float32).requires_grad_()
    module = MODULES[name]()
    outside = module(embeddings, LEVELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module(embeddings, LEVELS)
    assert inside.dtype == torch.float32
    assert_close(inside, outside, rtol=0, atol=0)
    leaves = (embeddings, module.proxies)
    for one, other in zip(torch.autograd.grad(inside, leaves), torch.autograd.grad(outside, leaves), strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert module.proxies.dtype == torch.float32


@every_name
def test_saved_and_loaded_is_never_stopped(name):
    def step(module, optimizer, seed):
        optimizer.zero_grad()
        loss = module(draw(seed, dtype=torch.float32), LEVELS)
        loss.backward()
        optimizer.step()
        return loss.detach()

    whole = MODULES[name]()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    step(whole, optimizer, 0)
    resumed = MODULES[name](seed=8)
    resumed.load_state_dict(whole.state_dict())
    second = torch.optim.SGD(resumed.parameters(), lr=0.1)
    assert_close(step(resumed, second, 1), step(whole, optimizer, 1), rtol=0, atol=0)
    assert_close(dict(resumed.state_dict()), dict(whole.state_dict()), rtol=0, atol=0)
    assert set(whole.state_dict()) == ({"proxies", "paths"} if name == "csl" else {"proxies"})


# What CSL learns of the classes.


def test_csl_learns_paths_as_it_sees_them():
    module = CSLLoss(5, 4, 2)
    assert module.paths.dtype == torch.int64
    assert (module.paths == -1).all()
    module(draw(0, 2), LEVELS[:2])
    assert module.paths.tolist() == [[0, 0], [-1, -1], [-1, -1], [-1, -1], [-1, -1]]
    module(draw(), LEVELS)
    assert module.paths.tolist() == [[0, 0], [1, 0], [2, 1], [-1, -1], [4, 2]]


def test_csl_leaves_out_proxies_of_unseen_classes():
    module = CSLLoss(5, 4, 2).double()
    module(draw(), LEVELS).backward()
    assert (module.proxies.grad[3] == 0).all()
    assert (module.proxies.grad[[0, 1, 2, 4]] != 0).any(1).all()
    other = CSLLoss(5, 4, 2).double()
    with torch.no_grad():
        other.proxies[3] = 7.0
    assert_close(other(draw(), LEVELS), module(draw(), LEVELS))


def test_csl_keeps_nothing_in_evaluation_but_counts_the_batch():
    module, trained = CSLLoss(5, 4, 2).eval(), CSLLoss(5, 4, 2)
    assert_close(module(draw(), LEVELS), trained(draw(), LEVELS))
    assert (module.paths == -1).all()


def test_csl_takes_a_coarse_label_of_minus_one_for_a_label():
    module = CSLLoss(2, 4, 2)
    labels = torch.tensor([[0, -1], [1, 3]])
    assert module(draw(0, 2), labels).item() > 0
    assert module.paths.tolist() == labels.tolist()


@pytest.mark.parametrize("earlier", [True, False], ids=["an earlier batch", "the same batch"])
def test_csl_refuses_a_class_of_two_paths(earlier):
    module = CSLLoss(5, 4, 2)
    if earlier:
        module(draw(), LEVELS)
        labels = torch.tensor([[0, 0], [1, 2]])
    else:
        labels = torch.tensor([[1, 0], [1, 2]])
    before = module.paths.clone()
    message = r"^labels: 1 of 2 do not have the path of their class: class 1 has \[1, [02]\] and, elsewhere, \[1, [02]\]$"
    with pytest.raises(InputError, match=message):
        module(draw(0, 2), labels)
    assert_close(module.paths, before)


# Bad input.


@every_name
@pytest.mark.parametrize(
    ("labels", "found"), [([0, 5], "5"), ([-1, 0], "-1"), ([7, 6], "6, 7"), (list(range(5, 17)), "5, 6, .*14\\]")]
)
def test_labels_without_a_proxy_are_named(name, labels, found):
    labels = torch.tensor(labels)[:, None].expand(-1, 2)
    with pytest.raises(InputError, match=rf"^labels: there are 5 proxies, for classes 0 to 4; found \[{found}"):
        MODULES[name]()(draw(n_items=len(labels)), labels)


@every_name
def test_references_are_refused(name):
    for references in ({"ref_emb": draw(), "ref_labels": LEVELS}, {"ref_emb": draw()}, {"ref_labels": LEVELS}):
        with pytest.raises(InputError, match=r"^ref_emb, ref_labels: a proxy loss compares each item with its proxies"):
            MODULES[name]()(draw(), LEVELS, **references)


@every_name
def test_bad_batches_are_refused(name):
    loss = MODULES[name]()
    bad = draw()
    bad[[2, 5], 1] = math.nan
    with pytest.raises(InputError, match=r"^embeddings: 2 of 10 rows hold NaN or infinity: 2, 5$"):
        loss(bad, LEVELS)
    with pytest.raises(InputError, match=r"^embeddings: a \(B, D\) .* found torch\.float64 \(4,\)$"):
        loss(draw()[0], LEVELS)
    with pytest.raises(InputError, match=r"^labels: whole numbers are needed, found torch\.float32$"):
        loss(draw(), LEVELS.float())
    with pytest.raises(InputError, match=r"^labels: \(10,\) or \(10, L\) is needed, found \(9, 2\)$"):
        loss(draw(), LEVELS[:9])
    with pytest.raises(InputError, match=r"^vectors of 3 and 4 dimensions cannot be compared$"):
        loss(draw()[:, :3], LEVELS)
    with torch.no_grad():
        loss.proxies[1, 1] = math.inf
    with pytest.raises(InputError, match=r"^proxies: 1 of 5 rows hold NaN or infinity: 1$"):
        loss(draw(), LEVELS)


@every_name
@pytest.mark.parametrize("value", [0, -2, 2.0, True, None])
def test_sizes_must_be_whole_and_above_zero(name, value):
    module = type(MODULES[name]())
    rest = {"n_levels": 2} if name == "csl" else {}
    for option in ("n_classes", "embedding_dim", *rest):
        sizes = {"n_classes": 5, "embedding_dim": 4, **rest, option: value}
        with pytest.raises(InputError, match=rf"^{option} is {value};"):
            module(**sizes)


def test_csl_needs_labels_and_paths_of_its_levels():
    with pytest.raises(InputError, match=r"^labels: 2 levels are needed, found 1$"):
        CSLLoss(5, 4, 2)(draw(), LABELS)
    with pytest.raises(InputError, match=r"^paths: int64 \(5, 2\) is needed, found int64 \(5, 1\)$"):
        csl_loss(draw(), LEVELS, draw(1, 5), PATHS[:, :1])
    with pytest.raises(InputError, match=r"^paths: int64 \(5, 2\) is needed, found float32 \(5, 2\)$"):
        csl_loss(draw(), LEVELS, draw(1, 5), PATHS.float())
