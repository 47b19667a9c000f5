"""The table of losses, and what every loss in it promises."""

import copy
import inspect
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

import loss_cases as cases
from loss_cases import LABELS, TREE, assert_equal, both, create, draw, draw_pairs, references, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.errors import InputError
from sightline.losses import LOSSES, create_loss, list_losses, loss_options
from sightline.losses.base import flat_pairs
from sightline.losses.sums import takes_references
from sightline.ranking import profile, ranks
from sightline.ranking.pairs import table_pairs
from sightline.ranking.similarity import cosine_scores

OPTIONS = {
    "calibration": {"alpha": 0.8, "beta": 0.1, "reduction": "nonzero"},
    "fast_ap": {"n_bins": 4},
    "sup_ap": {"tau": 0.05, "rho": 20.0, "delta": 0.3, "preset": "released-code"},
}
RANKED = [
    name for name in LOSSES if name.startswith(("sup_", "smooth_", "softbin_", "fast_", "blackbox_")) and name != "sup_con"
]
COMBINED = ["happier", "happier_f", "roadmap", "rod_ndcg", "rod_recall"]
ON_PAIRS = [*RANKED, *COMBINED, "calibration", "contrastive", "sup_con", "triplet", "xbm_contrastive"]
GRADED = [name for name in ON_PAIRS if name.endswith(("_h_ap", "_ndcg")) or name.startswith("happier")]
OVER_LEVELS = ["sum_binary_cross_entropy", "sum_norm_softmax", "sum_proxy_nca_pp", "sum_triplet"]
NEAR = {torch.float64: {"rtol": 1e-7, "atol": 1e-7}, torch.float32: {"rtol": 1e-3, "atol": 1e-4}}
on_pairs = pytest.mark.parametrize("name", ON_PAIRS)
flat = pytest.mark.parametrize("name", [name for name in ON_PAIRS if name not in GRADED])
every_loss = pytest.mark.parametrize("name", sorted(LOSSES))


def on_scores(name, scores, relevance, mask=None):
    """A combined loss, with the term that works on scores."""
    to_pairs = flat_pairs if name in ("roadmap", "rod_recall") else table_pairs
    return create_on_pairs(name).of_pairs(to_pairs(scores, relevance, mask))


FUNCTIONS = {name: getattr(losses, f"{name}_loss", partial(on_scores, name)) for name in ON_PAIRS}


def create_on_pairs(name, **options):
    """The loss by name, on pairs alone: combined ones with the term that their function has."""
    return create_loss(name, **options | ({"decomposability": "calibration"} if name in COMBINED else {}))


def test_every_loss_is_seen():
    assert list_losses() == sorted(LOSSES.table)
    assert [len(names) for names in (list_losses(), RANKED, ON_PAIRS, GRADED)] == [33, 12, 22, 7]
    without_function = [name for name in list_losses() if not callable(getattr(losses, f"{name}_loss", None))]
    assert without_function == sorted([*COMBINED, *OVER_LEVELS, "weighted_sum"])


@both
@every_loss
def test_every_loss_takes_levels_and_is_never_nan(name, dtype):
    spread = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    one_class = torch.zeros(12, 2, dtype=torch.int64)
    for embeddings, labels in ((spread, TREE), (spread, one_class), (torch.ones(12, 6, dtype=dtype), TREE)):
        value, gradient = value_and_gradient(create(name), embeddings, labels)
        assert value.shape == ()
        assert value.isfinite()
        assert gradient.isfinite().all()
    assert value_and_gradient(create(name), spread, TREE)[1].abs().sum() > 0


@every_loss
def test_labels_may_be_tensors_arrays_or_lists(name):
    embeddings, expected = draw(0, 12, 6), create(name)(draw(0, 12, 6), TREE)
    frozen = TREE.numpy().copy()
    frozen.flags.writeable = False  # torch warns of such arrays
    for labels in (frozen, TREE.numpy().astype(np.uint16), TREE.tolist(), TREE.int()):
        assert_equal(create(name)(embeddings, labels), expected)
    if name in ON_PAIRS:
        loss, labels = create_on_pairs(name), LABELS.tolist()
        expected = loss(draw(), LABELS, **references(draw(1), LABELS))
        assert_equal(loss(draw(), labels, **references(draw(1), LABELS.numpy())), expected)
    if name in ON_PAIRS and name not in COMBINED:
        scores, relevant, mask = draw_pairs()
        found = FUNCTIONS[name](scores, relevant.tolist(), mask.numpy())
        assert_equal(found, FUNCTIONS[name](scores, relevant, mask))


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_options_are_those_of_the_function_and_reach_it(name):
    of_function = [*inspect.signature(FUNCTIONS[name]).parameters][3:]  # after scores, relevance, mask
    assert loss_options(name) == list(OPTIONS[name]) == of_function
    assert {"tau", "n_classes", "alpha"} <= {*loss_options("happier")}  # of its rank loss
    embeddings, relevant, mask = draw(), LABELS[:, None] == LABELS, ~torch.eye(10, dtype=torch.bool)
    scores = cosine_scores(embeddings, embeddings)
    for options in (*({key: value} for key, value in OPTIONS[name].items()), OPTIONS[name]):
        found = create_loss(name, **options)(embeddings, LABELS).item()
        listed = mask | ("preset" in options)  # the released code keeps a query in its own list
        assert_close(found, FUNCTIONS[name](scores, relevant, listed, **options).item())
        assert abs(found - create_loss(name)(embeddings, LABELS).item()) > 1e-4  # it matters


@every_loss
def test_a_copy_is_the_loss_and_a_resumed_run_one_that_was_never_stopped(name):
    options = cases.options_of(name, cases.STATEFUL)
    whole, first, second = (create(name, **options) for _ in range(3))
    batches = [(draw(seed, 12, 6), TREE.roll(seed, 0)) for seed in range(3)]
    for other in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert_equal(other(*batches[0]), copy.deepcopy(whole)(*batches[0]))
    expected = [whole(*batch).item() for batch in batches]
    for batch in batches[:2]:
        first(*batch)
    second(*batches[2])  # what it held is replaced
    second.load_state_dict(first.state_dict())
    assert second(*batches[2]).item() == expected[2]
    assert_equal(dict(second.state_dict()), dict(whole.state_dict()))


class Spread(nn.Module):
    """Without references; keeps the labels it got."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale, self.labels = nn.Parameter(torch.tensor(scale)), None

    def forward(self, embeddings, labels):
        self.labels = labels
        return self.scale * embeddings.var()


class SpreadOverLevels(Spread):
    takes_levels = True


NOT_A_LOSS = 3
MULTI_SIMILARITY = "pytorch_metric_learning.losses:MultiSimilarityLoss"


def test_a_loss_of_pytorch_metric_learning_is_called_as_ours():
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    loss, theirs, tree = create_loss(MULTI_SIMILARITY, trust=True, alpha=2.5), MultiSimilarityLoss(alpha=2.5), LABELS // 2
    tree, vectors, others = torch.stack([LABELS, tree], 1), draw().float(), draw(1).float()
    pairs = tuple(torch.tensor(row) for row in ([0, 2], [1, 3], [0, 5], [5, 6]))
    assert_close(loss(vectors, tree), theirs(vectors, LABELS))
    assert_close(loss(vectors, tree, pairs), theirs(vectors, LABELS, pairs))
    assert_close(loss(vectors, tree, None, others, tree), theirs(vectors, LABELS, None, others, LABELS.clone()))
    assert_refused("ref_emb and ref_labels", loss, vectors, tree, ref_emb=others)
    for use in (create_loss, loss_options):
        assert_refused(r"pytorch_metric_learning\.losses.*--trust", use, MULTI_SIMILARITY)
    assert "alpha" in loss_options(MULTI_SIMILARITY, trust=True)


def test_a_loss_from_outside_gets_the_finest_labels_and_the_batch_alone_unless_it_takes_more():
    tree = torch.stack([LABELS, LABELS // 2], 1)
    for made, expected in (("Spread", LABELS), ("SpreadOverLevels", tree)):
        loss = create_loss(f"{__name__}:{made}", trust=True, scale=2.0)
        assert [name for name, _ in loss.named_parameters()] == ["loss.scale"]
        loss(draw(), tree)
        assert_close(loss.loss.labels, expected)
    for made in ("NOT_A_LOSS", "draw"):
        assert_refused(rf"{made}.*torch\.nn\.Module", create_loss, f"{__name__}:{made}", trust=True)
    loss, against = create_loss(f"{__name__}:Spread", trust=True), references(draw(1), LABELS)
    assert not takes_references(loss)
    assert_refused(r"ref_emb, ref_labels.*Spread", loss, draw(), LABELS, **against)
    assert_refused(r"indices_tuple.*Spread", loss, draw(), LABELS, (LABELS, LABELS, LABELS))
    both = losses.WeightedSum([loss, create_loss("sup_ap")], [1.0, 1.0])
    assert takes_references(both)
    assert_close(both(draw(), LABELS, **against), loss(draw(), LABELS) + both.losses[1](draw(), LABELS, **against))


@both
@on_pairs
def test_order_of_items_and_queries_does_not_matter(name, dtype):
    scores, relevant, mask = draw_pairs()
    if name.startswith("blackbox_"):  # equal scores rank by column: they move by the place they are given in
        scores = scores + torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)) / 100
    scores, generator = scores.to(dtype), torch.Generator().manual_seed(0)
    rows, columns = (torch.randperm(n, generator=generator) for n in scores.shape)
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant, mask)
    permuted = value_and_gradient(FUNCTIONS[name], *(part[rows][:, columns] for part in (scores, relevant, mask)))
    assert_close(permuted, (value, gradient[rows][:, columns]), **NEAR[dtype])


@on_pairs
def test_order_names_and_lengths_of_a_batch_do_not_matter(name):
    loss, order = create_on_pairs(name), torch.randperm(10, generator=torch.Generator().manual_seed(1))
    value, gradient = value_and_gradient(loss, draw(), LABELS)
    assert_close(value_and_gradient(loss, draw()[order], LABELS[order]), (value, gradient[order]))
    assert_close(loss(draw(), torch.tensor([2**60, -2, 7, 0])[LABELS]), value, rtol=0, atol=0)  # -1 would be no name
    assert_close(loss(draw() * torch.linspace(0.1, 9.0, 10).double()[:, None], LABELS), value)
    assert_equal(loss(draw(), LABELS[:, None]), value)


@both
@on_pairs
def test_masked_items_change_nothing_whatever_they_score(name, dtype):
    """Place 0 as well: rows with fewer relevant items than others are padded with column 0."""
    tables = (draw_pairs()[0].to(dtype), *draw_pairs()[1:])
    value, gradient = value_and_gradient(FUNCTIONS[name], *tables)
    for place, score, relevant in ((0, 0.5, True), (0, math.nan, False), (3, math.inf, True), (9, -math.inf, False)):
        longer = [
            torch.cat([part[:, :place], torch.full((5, 2), fill, dtype=part.dtype), part[:, place:]], 1)
            for part, fill in zip(tables, (score, relevant, False), strict=True)
        ]
        found, its_gradient = value_and_gradient(FUNCTIONS[name], *longer)
        assert_close(found, value, **NEAR[dtype])
        assert (its_gradient[:, place : place + 2] == 0).all()
        assert_close(torch.cat([its_gradient[:, :place], its_gradient[:, place + 2 :]], 1), gradient, **NEAR[dtype])
    if name in GRADED:
        worth = tables[1] * 0.5
        for masked in (-1.0, math.nan, 7.0):
            found = FUNCTIONS[name](tables[0], worth.masked_fill(~tables[2], masked), tables[2])
            assert_equal(found, FUNCTIONS[name](tables[0], worth, tables[2]))


@flat
def test_numbers_above_zero_are_relevant_and_the_finest_level_counts(name):
    scores, relevant, mask = draw_pairs()
    for relevance in (relevant * 0.3, relevant.long() * 4, torch.where(relevant, 2.0, -1.0)):
        assert_equal(FUNCTIONS[name](scores, relevance, mask), FUNCTIONS[name](scores, relevant, mask))
    loss = create_on_pairs(name)
    for tree in (torch.stack([LABELS, LABELS // 2], 1), torch.stack([LABELS % 2, LABELS // 2], 1)):  # names that recur
        assert_equal(loss(draw(), tree), loss(draw(), LABELS))
    assert abs(loss(draw(), LABELS % 2) - loss(draw(), LABELS)) > 1e-4  # without their parents they are two classes


@on_pairs
def test_arguments_are_not_changed_and_strides_and_blocks_do_not_matter(name, monkeypatch):
    tables = draw_pairs()
    found = value_and_gradient(FUNCTIONS[name], *tables)
    assert_equal(tables, draw_pairs())
    assert_close(value_and_gradient(FUNCTIONS[name], *(part.T.contiguous().T for part in tables)), found)
    everywhere = torch.ones_like(tables[1])
    assert_equal(FUNCTIONS[name](*tables[:2]), FUNCTIONS[name](*tables[:2], everywhere))
    embeddings, labels = draw() * 3, LABELS.clone()
    whole = value_and_gradient(create_on_pairs(name), embeddings, labels, **references(embeddings, labels))
    assert_equal((embeddings, labels), (draw() * 3, LABELS))
    monkeypatch.setattr(ranks, "WORKSPACE_ELEMENTS", 30)
    in_blocks = value_and_gradient(create_on_pairs(name), embeddings, labels, **references(embeddings, labels))
    assert_close(in_blocks, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ON_PAIRS if not name.startswith("blackbox_")])
def test_gradient_is_the_finite_difference(name):
    leaves = draw(5, 6).requires_grad_(), draw(6, 5).requires_grad_()
    labels, ref_labels = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 1, 2, 3])
    for options in [{}, OPTIONS.get(name, {}), *({"mining": mining} for mining in ("all", "hard") if name == "triplet")]:
        loss = create_on_pairs(name, **options)
        assert gradcheck(lambda emb, loss=loss: loss(emb, labels), leaves[0], rtol=1e-4)
        assert gradcheck(lambda emb, ref, loss=loss: loss(emb, labels, None, ref, ref_labels), leaves, rtol=1e-4)


@on_pairs
def test_nothing_to_rank_is_zero_with_a_zero_gradient(name):
    cases = [(FUNCTIONS[name], torch.zeros(shape), torch.zeros(shape).bool()) for shape in ((0, 0), (0, 3), (3, 0))]
    cases += [(create_on_pairs(name), draw(0, n_items), LABELS[:n_items]) for n_items in (0, 1)]
    cases += [(create_on_pairs(name), draw(), LABELS, None, draw(1, 0), LABELS[:0])]
    cases += [(FUNCTIONS[name], *draw_pairs()[:2], torch.zeros(5, 9).bool())]
    if name in ("sup_ap", "smooth_ap"):
        cases += [(create_on_pairs(name), draw(), torch.arange(10)), (create_on_pairs(name), draw(), LABELS * 0)]
    for loss, leaf, *rest in cases:
        value, gradient = value_and_gradient(loss, leaf, *rest)
        assert value.item() == 0
        assert gradient.shape == leaf.shape
        # Of a single class Smooth-AP subtracts two equal gradients, one rounded otherwise than the other.
        assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12 if name == "smooth_ap" else 0)


@cases.reproducible
@given(
    st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=2), min_size=1, max_size=7),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_loss_and_gradient_are_finite_for_any_finite_batch(rows, labels, dtype):
    for name in ON_PAIRS:
        found = value_and_gradient(
            create_on_pairs(name), torch.tensor(rows, dtype=dtype), torch.tensor(labels[: len(rows)])
        )
        assert all(part.isfinite().all() for part in found)


HUGE = {
    torch.float16: [0.0, 0.5, -1.0, 6e4, -6e4],
    torch.bfloat16: [0.0, 0.5, -1.0, 3e38, -3e38],
    torch.float32: [0.0, 0.5, 0.55, -1.0, 1e10, 1e20, 1e30, 3e38, -3e38],
    torch.float64: [0.0, 0.5, 0.55, -1.0, 1e30, 1e308, -1e308],
}


@on_pairs
@pytest.mark.parametrize("compiled", [True, False])
def test_huge_scores_are_never_nan(name, compiled, monkeypatch):
    if not compiled:  # the way of other devices
        monkeypatch.setattr(profile, "MOST_ITEMS", 0)
        monkeypatch.setattr(profile, "FEW_TARGETS", 0)
    generator = torch.Generator().manual_seed(0)
    for dtype, values in HUGE.items():
        for n_items, share in ((1, 1.0), (6, 0.0), (20, 0.3), (40, 0.6)):
            scores = torch.tensor(values, dtype=dtype)[torch.randint(0, len(values), (3, n_items), generator=generator)]
            relevant = torch.rand(3, n_items, generator=generator) < share
            assert not any(part.isnan().any() for part in value_and_gradient(FUNCTIONS[name], scores, relevant))


@every_loss
def test_gradients_that_float16_cannot_hold_are_infinite_and_not_nan(name):
    """Short vectors have long gradients. Those of two terms of a loss, infinite alone, would cancel to NaN."""
    embeddings = draw(0, 12, 6, torch.float32)
    embeddings[::2] *= 1e-6
    assert not value_and_gradient(create(name), embeddings.half(), TREE)[1].isnan().any()


@on_pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(name, dtype):
    embeddings = draw(dtype=dtype)
    value, gradient = value_and_gradient(create_on_pairs(name), embeddings, LABELS)
    expected = value_and_gradient(create_on_pairs(name), embeddings.float(), LABELS)
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    assert_equal(value, expected[0])
    # As query and as item each embedding has a gradient; both are rounded before they meet.
    rounding = 3 * torch.finfo(dtype).eps * expected[1].abs().max().item()
    assert_close(gradient.float(), expected[1], rtol=0, atol=rounding)
    # 1000 irrelevant items, 1 above a relevant one, make rank- 95 000: more than float16 holds.
    scores = torch.cat([torch.zeros(1, 1), torch.ones(1, 1000)], 1).to(dtype)
    relevant = torch.arange(1001)[None] == 0
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant)
    expected = value_and_gradient(FUNCTIONS[name], scores.float(), relevant)
    assert_equal(value, expected[0])
    assert_close(gradient.float(), expected[1].to(dtype).float())


@every_loss
def test_autocast_changes_nothing(name):
    """The backward pass is run outside, as PyTorch asks."""
    loss, embeddings = create(name), draw(0, 12, 6, torch.float32)
    outside = value_and_gradient(copy.deepcopy(loss), embeddings, TREE)
    leaf = embeddings.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(leaf, TREE)
    assert inside.dtype == torch.float32
    assert_equal((inside.detach(), *torch.autograd.grad(inside, leaf)), outside)


@every_loss
def test_bad_batches_are_refused(name):
    loss, vectors, broken = create(name), draw(0, 12, 6), draw(0, 12, 6)
    broken[2, 1], broken[5, 0] = math.nan, math.inf
    for said, embeddings, labels in (
        (r"embeddings.* 2 of 12 rows.* 2, 5$", broken, TREE),
        (r"embeddings.*\(B, D\).*torch\.int64", vectors.long(), TREE),
        (r"embeddings.*\(B, D\).*torch\.float64 \(6,\)", vectors[0], TREE),
        (r"embeddings .*torch\.Tensor.* numpy\.ndarray", vectors.numpy(), TREE),
        (r"labels.*(torch\.float32|relevance must be \(12, 12\))", vectors, TREE.float()),
        (r"labels.*\(12,\) or \(12, L\).*\(9, 2\)", vectors, TREE[:9]),
        (r"labels .*str", vectors, [["cat", "pet"]] * 12),
        (r"labels .*list", vectors, [[0], [0, 1]]),
        (r"labels .*NoneType", vectors, None),
    ):
        assert_refused(said, loss, embeddings, labels)
    ten = references(draw(1, 10, 6), LABELS[:, None].expand(10, 2))
    if not takes_references(loss):
        assert_refused("ref_emb, ref_labels.*prox", loss, vectors, TREE, **ten)
        assert_refused("indices_tuple.*prox", loss, vectors, TREE, (torch.arange(3),) * 3)
        return
    for said, beside in (
        (r"ref_emb.* 2 of 12 rows.* 2, 5$", references(broken, TREE)),
        ("ref_emb and ref_labels", {"ref_emb": vectors}),
        ("ref_emb and ref_labels", {"ref_labels": TREE}),
        (r"ref_emb .*numpy\.ndarray", references(vectors.numpy(), TREE)),
        (r"6 and 3 dimensions", ten | {"ref_emb": draw(1)[:, :3]}),
        (r"2 and 1 levels|2 levels.* 1", ten | {"ref_labels": LABELS}),
    ):
        assert_refused(said, loss, vectors, TREE, **beside)


@on_pairs
def test_bad_tables_are_refused(name):
    scores, relevant, mask = draw_pairs()
    for said, tables in (
        (r"scores.*\(Q, G\).*torch\.int64 \(5, 9\)", (scores.long(), relevant, mask)),
        (r"relevance.*\(9, 5\).*\(5, 9\)", (scores, relevant.T, mask)),
        (r"mask.*bool \(5, 9\).*torch\.float32 \(5, 9\)", (scores, relevant, mask.float())),
        ("scores .*NaN", (scores / 0, relevant, torch.ones_like(mask))),
        *(() if name in COMBINED else ((r"scores .*list", (scores.tolist(), relevant, mask)),)),
    ):
        assert_refused(said, FUNCTIONS[name], *tables)


NUMBERS = {
    name: [key for key, one in LOSSES.options(name).items() if one.annotation in (float, float | None)] for name in LOSSES
}


@every_loss
def test_numbers_that_are_not_finite_are_refused_when_a_loss_is_made(name):
    assert sum(map(len, NUMBERS.values())) == 72
    assert bool(NUMBERS[name]) == (name not in ("fast_ap", "weighted_sum") and not name.endswith("cross_entropy"))
    for option in NUMBERS[name]:
        for value in (math.nan, math.inf, -math.inf):
            assert_refused(rf"\b{option}\b.*{value}", create, name, **{option: value})


BAD = {  # of another type, unknown, or out of range
    "sup_ap": {"tau": "small", "delta": True},
    "roadmap": {"weight": 1.1, "decomposability": "proxi"},
    "smooth_recall": {"mixup": 1, "ks": [], "normalise": "cap", "rank_width": 0.0},
    "sup_recall": {"ks": "5"},
    "rod_recall": {"ks": [0]},
    "binary_cross_entropy": {"n_classes": 0, "seed": "one"},
    "blackbox_ap": {"margin": -0.1, "strength": 0, "memory": -1, "seed": -1},
    "blackbox_recall": {"reduction": "mean", "weights": [math.nan]},
    "arcface": {"margin": 4},
    "calibration": {"alpha": 0.6, "reduction": "nonzeros"},
    "csl": {"gamma": -1, "margins": [0.1]},
    "each_label_ap": {"label_weights": [1, -1]},
    "fast_ap": {"n_bins": 0},
    "softbin_ap": {"n_bins": 1, "low": 1.0, "ties": "simple"},
    "sup_h_ap": {"relevance": "populaton", "alpha": 0.0},
    "sup_ndcg": {"preset": "released"},
    "sum_norm_softmax": {"temperature": -1.0},
    "triplet": {"mining": "semihard"},
}


@pytest.mark.parametrize(("name", "options"), BAD.items())
def test_bad_options_are_refused_when_a_loss_is_made(name, options):
    for option, value in options.items():
        with pytest.raises(InputError, match=rf"\b{option}\b") as caught:
            create(name, **{option: value})
        assert repr(value).strip("[]") in str(caught.value)
