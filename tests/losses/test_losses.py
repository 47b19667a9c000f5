"""The table of losses, and what every loss in it promises."""

import copy
import inspect
import math
import pickle
import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline import losses
from sightline.errors import InputError
from sightline.losses import LOSSES, SupRank, create_loss, list_losses, loss_options
from sightline.losses.base import flat_pairs
from sightline.losses.sums import takes_references
from sightline.ranking import profile, ranks
from sightline.ranking.pairs import table_pairs
from sightline.ranking.similarity import cosine_scores

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=60)

OPTIONS = {
    "calibration": {"alpha": 0.8, "beta": 0.1, "reduction": "nonzero"},
    "fast_ap": {"n_bins": 4},
    "sup_ap": {"tau": 0.05, "rho": 20.0, "delta": 0.3, "preset": "released-code"},
}
RANKED = [name for name in LOSSES if name.startswith(("sup_", "smooth_", "softbin_", "fast_", "blackbox_"))]
COMBINED = ["happier", "happier_f", "roadmap", "rod_ndcg", "rod_recall"]
ON_PAIRS = [*RANKED, *COMBINED, "calibration", "contrastive", "triplet", "xbm_contrastive"]


def on_scores(name, scores, relevance, mask=None):
    """A combined loss, with the term that works on scores."""
    flat = name in ("roadmap", "rod_recall")
    pairs = flat_pairs(scores, relevance, mask) if flat else table_pairs(scores, relevance, mask)
    return create_on_pairs(name).of_pairs(pairs)


FUNCTIONS = {name: getattr(losses, f"{name}_loss", partial(on_scores, name)) for name in ON_PAIRS}
every_name = pytest.mark.parametrize("name", sorted(OPTIONS))  # those whose options are their function's
on_pairs = pytest.mark.parametrize("name", ON_PAIRS)
both = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # pairs one by one, and the compiled way
NEAR = {torch.float64: {"rtol": 1e-7, "atol": 1e-7}, torch.float32: {"rtol": 1e-3, "atol": 1e-4}}
GRADED = [name for name in ON_PAIRS if name.endswith(("_h_ap", "_ndcg")) or name.startswith("happier")]
flat = pytest.mark.parametrize("name", [name for name in ON_PAIRS if name not in GRADED])
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3])  # of unequal classes, one of a single item


def draw(seed=0, n_items=10, dtype=torch.float64):
    return torch.randn(n_items, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_pairs(seed=0, n_queries=5, n_items=8):
    """Scores in steps of 0.05, many of them equal, with any relevance and mask."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 20, (n_queries, n_items), generator=generator).double() / 20
    return scores, *(torch.rand(n_queries, n_items, generator=generator) < share for share in (0.4, 0.8))


def value_and_gradient(loss, scores, *rest):
    leaf = scores.detach().clone().requires_grad_()
    value = loss(leaf, *rest)
    value.backward()
    return value.detach(), leaf.grad


def create_on_pairs(name, **options):
    """The loss by name, on pairs alone: combined ones with the term that their function has."""
    return create_loss(name, **options | ({"decomposability": "calibration"} if name in COMBINED else {}))


# The table.


def test_every_loss_is_seen():
    assert list_losses() == sorted(LOSSES.table)
    assert len(list_losses()) == 30
    assert len(RANKED) == 12
    assert len(ON_PAIRS) == 21
    assert len(GRADED) == 7
    without_function = [name for name in list_losses() if not callable(getattr(losses, f"{name}_loss", None))]
    sums = ["sum_norm_softmax", "sum_proxy_nca_pp", "sum_triplet", "weighted_sum"]
    assert without_function == sorted([*COMBINED, *sums])


KNOWN = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2, "class_counts": [4, 2]}
KNOWN["terms"] = [{"name": "sup_ap", "weight": 0.9}, {"name": "csl", "weight": 0.1}]


def create_with_what_it_asks_for(name, **options):
    return create_loss(name, **{key: value for key, value in KNOWN.items() if key in loss_options(name)} | options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_takes_levels_and_is_never_nan(name, dtype):
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(12, 6, generator=generator).to(dtype)
    labels = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]]).repeat(3, 1)
    one_class = torch.zeros(12, 2, dtype=torch.int64)
    for embeddings, of in ((spread, labels), (spread, one_class), (torch.ones(12, 6, dtype=dtype), labels)):
        loss = create_with_what_it_asks_for(name)
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, of)
        value.backward()
        assert value.shape == ()
        assert value.isfinite()
        assert leaf.grad.isfinite().all()
    learning = create_with_what_it_asks_for(name)
    leaf = spread.clone().requires_grad_()
    learning(leaf, labels).backward()
    assert leaf.grad.abs().sum() > 0


@pytest.mark.parametrize("name", COMBINED)
def test_combined_losses_weigh_either_term_as_the_papers_do(name):
    embeddings = draw(n_items=10)
    labels = torch.stack([LABELS, LABELS // 2], 1)
    for term, weight in (("calibration", 0.5), ("proxy", 0.1)):
        loss = create_loss(name, decomposability=term, n_classes=4, embedding_dim=4)
        assert loss.weight == weight
        parts = (1 - weight) * loss.rank(embeddings, labels) + weight * loss.term(embeddings, labels)
        assert_close(loss(embeddings, labels), parts)
    with pytest.raises(InputError, match="decomposability 'proxy' needs n_classes and embedding_dim"):
        create_loss(name, decomposability="proxy")
    with pytest.raises(InputError, match="unknown decomposability 'proxi': did you mean 'proxy'"):
        create_loss(name, decomposability="proxi", n_classes=4, embedding_dim=4)


@every_name
def test_options_are_those_of_the_function_with_its_defaults(name):
    of_module = inspect.signature(LOSSES.find(name)).parameters
    of_function = dict(list(inspect.signature(FUNCTIONS[name]).parameters.items())[3:])  # after scores, relevance, mask
    assert loss_options(name) == list(of_module) == list(OPTIONS[name]) == list(of_function)
    assert {key: option.default for key, option in of_module.items()} == {
        key: option.default for key, option in of_function.items()
    }


@every_name
def test_options_reach_the_function(name):
    embeddings, relevant, mask = draw(), LABELS[:, None] == LABELS, ~torch.eye(10, dtype=torch.bool)
    scores = cosine_scores(embeddings, embeddings)
    for key, value in OPTIONS[name].items():
        found = create_loss(name, **{key: value})(embeddings, LABELS).item()
        listed = mask | (key == "preset")  # the released code keeps a query in its own list
        assert_close(found, FUNCTIONS[name](scores, relevant, listed, **{key: value}).item())
        assert abs(found - create_loss(name)(embeddings, LABELS).item()) > 1e-4  # it matters
    found = create_loss(name, **OPTIONS[name])(embeddings, LABELS).item()
    assert_close(found, FUNCTIONS[name](scores, relevant, mask | ("preset" in OPTIONS[name]), **OPTIONS[name]).item())


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("sup_pa", "did you mean 'sup_ap'?"),
        ("smoothap", "did you mean 'smooth_ap'?"),
        ("xyz", "known: " + ", ".join(repr(name) for name in sorted(LOSSES))),
    ],
)
def test_unknown_name_suggests_the_nearest(name, end):
    for use in (create_loss, loss_options):
        with pytest.raises(InputError) as caught:
            use(name)
        assert str(caught.value) == f"unknown loss {name!r}: {end}"


def test_unknown_option_suggests_the_nearest():
    with pytest.raises(InputError, match=r"^loss 'sup_ap' has no option 'rh0': did you mean 'rho'\?$"):
        create_loss("sup_ap", tau=0.1, rh0=3.0)
    with pytest.raises(InputError, match=r"^loss 'fast_ap' has no option 'margin': known: 'n_bins'$"):
        create_loss("fast_ap", margin=1)


def test_missing_options_are_named():
    with pytest.raises(InputError, match=r"^loss 'csl' needs n_classes and n_levels$"):
        create_loss("csl", embedding_dim=4)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("sup_ap", "tau", "small"),
        ("sup_ap", "tau", None),
        ("sup_ap", "delta", True),
        ("roadmap", "weight", "much"),
        ("happier", "rho", "steep"),
        ("fast_ap", "n_bins", 2.5),
        ("smooth_recall", "mixup", 1),
        ("sup_recall", "ks", 5),
        ("sup_recall", "ks", "5"),
        ("smooth_recall", "ks", ["1"]),
        ("blackbox_recall", "weights", 1.0),
        ("sup_ap", "preset", 1),
    ],
)
def test_options_of_another_kind_are_refused(name, option, value):
    with pytest.raises(InputError, match=rf"^loss '{name}': {option} ") as caught:
        create_loss(name, **{option: value})
    assert repr(value).strip("[]") in str(caught.value)


def test_whole_numbers_and_none_stand_for_numbers_where_they_may():
    assert SupRank(tau=1, delta=None).step.edge == math.log(99)
    assert create_loss("sup_ap", tau=1, delta=None).options["delta"] is None
    assert create_loss("roadmap", weight=None).weight == 0.5


def test_options_handed_on_are_spelled_out():
    """A class that leaves options to its function or its rank loss shows them like its own."""
    for name, own in (("happier", ["n_classes", "alpha"]), ("sup_h_ap", ["alpha"]), ("smooth_recall", ["mixup"])):
        shown = inspect.signature(LOSSES.find(name)).parameters
        assert list(shown) == loss_options(name)
        assert {"tau", *own} <= shown.keys()
        assert shown["tau"].default == 0.01
    scored = inspect.signature(losses.sup_ap_loss).parameters
    assert list(scored) == ["scores", "relevance", "mask", "tau", "rho", "delta", "preset"]
    with pytest.raises(TypeError, match="rh0"):
        losses.SupAPLoss(rh0=3.0)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["copy", "pickle"])
def test_a_copy_is_the_loss(name, copied):
    loss, labels = create_with_what_it_asks_for(name), torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]]).repeat(3, 1)
    embeddings = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    assert_close(copied(loss)(embeddings, labels), loss(embeddings, labels), rtol=0, atol=0)


# Losses of other packages.


class Spread(nn.Module):
    """Without references; says which labels it got."""

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


def test_a_loss_of_pytorch_metric_learning_trains():
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    loss, layer = create_loss(MULTI_SIMILARITY, trust=True, alpha=2.5), nn.Linear(4, 3)
    tree = torch.stack([LABELS, LABELS // 2], 1)
    vectors = draw(dtype=torch.float32)
    assert_close(loss(vectors, tree), MultiSimilarityLoss(alpha=2.5)(vectors, LABELS))
    against = (draw(1, dtype=torch.float32), tree)
    assert_close(
        loss(vectors, tree, *against), MultiSimilarityLoss(alpha=2.5)(vectors, LABELS, None, against[0], LABELS.clone())
    )
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        values.append(loss(layer(vectors), tree))
        values[-1].backward()
        optimizer.step()
    assert values[-1] < values[0]


def test_an_import_path_is_refused_without_trust():
    for use in (create_loss, loss_options):
        with pytest.raises(InputError, match=r"pytorch_metric_learning\.losses.*--trust"):
            use(MULTI_SIMILARITY)
    assert "alpha" in loss_options(MULTI_SIMILARITY, trust=True)


def test_a_loss_from_outside_gets_the_finest_labels_unless_it_takes_levels():
    tree = torch.stack([LABELS, LABELS // 2], 1)
    for made, expected in (("Spread", LABELS), ("SpreadOverLevels", tree)):
        loss = create_loss(f"{__name__}:{made}", trust=True, scale=2.0)
        assert [name for name, _ in loss.named_parameters()] == ["loss.scale"]
        loss(draw(), tree)
        assert_close(loss.loss.labels, expected)


def test_a_loss_from_outside_without_references_sees_the_batch_alone():
    loss = create_loss(f"{__name__}:Spread", trust=True)
    assert not takes_references(loss)
    with pytest.raises(InputError, match=r"Spread.*no reference set"):
        loss(draw(), LABELS, draw(1), LABELS)
    both = losses.WeightedSum([loss, create_loss("sup_ap")], [1.0, 1.0])
    assert takes_references(both)
    assert_close(
        both(draw(), LABELS, draw(1), LABELS), loss(draw(), LABELS) + both.losses[1](draw(), LABELS, draw(1), LABELS)
    )


def test_what_makes_no_loss_is_refused():
    for made in ("NOT_A_LOSS", "draw"):
        with pytest.raises(InputError, match=rf"{made}.*torch\.nn\.Module"):
            create_loss(f"{__name__}:{made}", trust=True)


# Invariances.


@on_pairs
@pytest.mark.parametrize("seed", range(2))
@both
def test_order_of_items_and_queries_is_of_no_account(name, dtype, seed):
    scores, relevant, mask = draw_pairs(seed)
    if name.startswith("blackbox_"):  # equal scores rank by column: they move by the place they are given in
        scores = scores + torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) / 100
    scores = scores.to(dtype)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=generator) for n in scores.shape)
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant, mask)
    permuted = value_and_gradient(FUNCTIONS[name], *(part[rows][:, columns] for part in (scores, relevant, mask)))
    assert_close(permuted, (value, gradient[rows][:, columns]), **NEAR[dtype])


@on_pairs
def test_order_of_the_batch_is_of_no_account(name):
    value, gradient = value_and_gradient(create_on_pairs(name), draw(), LABELS)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert_close(value_and_gradient(create_on_pairs(name), draw()[order], LABELS[order]), (value, gradient[order]))


@on_pairs
def test_names_of_classes_are_of_no_account(name):
    other_names = torch.tensor([2**60, -2, 7, 0])[LABELS]  # -1 would be no name
    assert_close(create_on_pairs(name)(draw(), other_names), create_on_pairs(name)(draw(), LABELS), rtol=0, atol=0)


@on_pairs
def test_length_of_embeddings_is_of_no_account(name):
    lengths = torch.linspace(0.1, 9.0, 10).double()[:, None]
    assert_close(create_on_pairs(name)(draw() * lengths, LABELS), create_on_pairs(name)(draw(), LABELS))


@on_pairs
@pytest.mark.parametrize("place", [0, 3, 8])
@pytest.mark.parametrize("score", [0.5, 3e38, math.nan, math.inf, -math.inf])
@both
def test_masked_items_change_nothing_whatever_they_score(name, dtype, place, score):
    """Place 0 as well: rows with fewer relevant items than others are padded with column 0."""
    for seed in range(3):
        tables = (draw_pairs(seed)[0].to(dtype), *draw_pairs(seed)[1:])
        value, gradient = value_and_gradient(FUNCTIONS[name], *tables)
        longer = [
            torch.cat([part[:, :place], torch.full((5, 2), fill, dtype=part.dtype), part[:, place:]], 1)
            for part, fill in zip(tables, (score, seed % 2, False), strict=True)
        ]
        found, its_gradient = value_and_gradient(FUNCTIONS[name], *longer)
        assert_close(found, value, **NEAR[dtype])
        assert (its_gradient[:, place : place + 2] == 0).all()
        assert_close(torch.cat([its_gradient[:, :place], its_gradient[:, place + 2 :]], 1), gradient, **NEAR[dtype])


@flat
def test_numbers_above_zero_are_relevant(name):
    scores, relevant, mask = draw_pairs()
    expected = FUNCTIONS[name](scores, relevant, mask)
    for relevance in (relevant * 0.3, relevant.long() * 4, relevant.to(torch.int8), torch.where(relevant, 2.0, -1.0)):
        assert_close(FUNCTIONS[name](scores, relevance, mask), expected, rtol=0, atol=0)


@on_pairs
def test_mask_may_be_left_out(name):
    scores, relevant, _ = draw_pairs()
    everywhere = torch.ones_like(relevant)
    assert_close(FUNCTIONS[name](scores, relevant), FUNCTIONS[name](scores, relevant, everywhere), rtol=0, atol=0)


@on_pairs
def test_strides_are_of_no_account(name):
    tables = draw_pairs()
    strided = [part.T.contiguous().T for part in tables]
    assert_close(value_and_gradient(FUNCTIONS[name], *strided), value_and_gradient(FUNCTIONS[name], *tables))


@on_pairs
def test_arguments_are_not_changed(name):
    tables = draw_pairs()
    FUNCTIONS[name](*tables)
    assert_close(tables, draw_pairs(), rtol=0, atol=0)
    embeddings, labels = draw() * 3, LABELS.clone()
    create_on_pairs(name)(embeddings, labels, ref_emb=embeddings, ref_labels=labels)
    assert_close((embeddings, labels), (draw() * 3, LABELS), rtol=0, atol=0)


@on_pairs
@pytest.mark.parametrize("workspace", [1, 30])
def test_blocks_equal_the_whole(name, workspace, monkeypatch):
    whole = value_and_gradient(create_on_pairs(name), draw(), LABELS)
    monkeypatch.setattr(ranks, "WORKSPACE_ELEMENTS", workspace)
    assert_close(value_and_gradient(create_on_pairs(name), draw(), LABELS), whole, rtol=1e-12, atol=1e-12)


# Labels and references.


@on_pairs
def test_labels_of_one_level_are_flat_labels(name):
    loss = create_on_pairs(name)
    assert_close(loss(draw(), LABELS[:, None]), loss(draw(), LABELS), rtol=0, atol=0)
    assert_close(loss(draw(), LABELS.int()), loss(draw(), LABELS), rtol=0, atol=0)


@flat
def test_of_labels_in_levels_the_finest_counts(name):
    loss = create_on_pairs(name)
    in_levels = torch.stack([LABELS, LABELS // 2], 1)  # a tree: classes 0, 1 and 2, 3 share a parent
    assert_close(loss(draw(), in_levels), loss(draw(), LABELS), rtol=0, atol=0)
    recurring = torch.stack([LABELS % 2, LABELS // 2], 1)  # fine labels 0 and 1 below both parents
    assert_close(loss(draw(), recurring), loss(draw(), LABELS), rtol=0, atol=0)
    assert abs(loss(draw(), LABELS % 2) - loss(draw(), LABELS)) > 1e-4  # without their parents they are two classes


@on_pairs
def test_reference_set_is_ranked_whole(name):
    """By the function on the scores: nobody is left out, not even an equal of the query."""
    embeddings, references = draw(0, 4), torch.cat([draw(1, 5), draw(0, 4)])
    labels, ref_labels = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 1, 3, 0, 0, 1, 2, 0])
    expected = FUNCTIONS[name](cosine_scores(embeddings, references), labels[:, None] == ref_labels)
    assert_close(create_on_pairs(name)(embeddings, labels, ref_emb=references, ref_labels=ref_labels), expected)
    assert_close(create_on_pairs(name)(embeddings, labels, references, ref_labels), expected)


@pytest.mark.parametrize("name", [name for name in ON_PAIRS if not name.startswith("blackbox_")])
def test_gradient_is_the_finite_difference(name):
    embeddings, references = draw(5, 6).requires_grad_(), draw(6, 5).requires_grad_()
    labels, ref_labels = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 1, 2, 3])
    for options in ({}, OPTIONS.get(name, {})):
        loss = create_on_pairs(name, **options)
        assert gradcheck(lambda emb, loss=loss: loss(emb, labels), embeddings, rtol=1e-4)
        both = (embeddings, references)
        assert gradcheck(lambda emb, ref, loss=loss: loss(emb, labels, ref, ref_labels), both, rtol=1e-4)


# Edges.


@on_pairs
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_table_is_zero_with_a_gradient(name, shape):
    value, gradient = value_and_gradient(FUNCTIONS[name], torch.zeros(shape), torch.zeros(shape, dtype=torch.bool))
    assert value.item() == 0
    assert gradient.shape == shape


@on_pairs
@pytest.mark.parametrize("n_items", [0, 1])
def test_batch_without_pairs_is_zero_with_a_zero_gradient(name, n_items):
    value, gradient = value_and_gradient(create_on_pairs(name), draw(0, n_items), LABELS[:n_items])
    assert value.item() == 0
    assert gradient.tolist() == [[0.0] * 4] * n_items


@on_pairs
def test_empty_reference_set_is_zero_with_a_zero_gradient(name):
    value, gradient = value_and_gradient(create_on_pairs(name), draw(), LABELS, draw(1, 0), LABELS[:0])
    assert value.item() == 0
    assert (gradient == 0).all()


@on_pairs
def test_all_masked_is_zero_with_a_zero_gradient(name):
    scores, relevant, mask = draw_pairs()
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant, torch.zeros_like(mask))
    assert value.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", ["sup_ap", "smooth_ap"])
def test_nothing_relevant_is_zero_with_a_zero_gradient(name):
    value, gradient = value_and_gradient(create_on_pairs(name), draw(), torch.arange(10))
    assert value.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", ["sup_ap", "smooth_ap"])
def test_single_class_is_zero_with_a_zero_gradient(name):
    value, gradient = value_and_gradient(create_on_pairs(name), draw(), torch.zeros(10, dtype=torch.int64))
    assert value.item() == 0
    if name == "sup_ap":  # exactly; Smooth-AP subtracts two equal gradients, one rounded otherwise than the other
        assert (gradient == 0).all()
    assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sup_ap", "smooth_ap"])
def test_queries_without_relevant_items_are_left_out_of_the_mean(name):
    scores, relevant, mask = draw_pairs()
    relevant[[1, 3]] = False
    kept = (relevant & mask).any(1)
    assert kept.sum() == 3
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant, mask)
    alone = value_and_gradient(FUNCTIONS[name], scores[kept], relevant[kept], mask[kept])
    assert_close((value, gradient[kept]), alone)
    assert (gradient[~kept] == 0).all()


@on_pairs
def test_copies_and_zero_vectors_have_finite_gradients(name):
    embeddings = draw()
    embeddings[1] = embeddings[0]  # of one class
    embeddings[7] = embeddings[2]  # of two
    embeddings[5] = 0
    value, gradient = value_and_gradient(create_on_pairs(name), embeddings, LABELS)
    assert value.isfinite()
    assert gradient.isfinite().all()
    value, gradient = value_and_gradient(create_on_pairs(name), torch.ones(10, 4), LABELS)
    assert value.isfinite()
    assert gradient.isfinite().all()


@reproducible
@given(
    st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=2), min_size=1, max_size=7),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_loss_and_gradient_are_finite_for_any_finite_batch(rows, labels, dtype):
    for name in ON_PAIRS:
        embeddings = torch.tensor(rows, dtype=dtype)
        value, gradient = value_and_gradient(create_on_pairs(name), embeddings, torch.tensor(labels[: len(rows)]))
        assert value.isfinite()
        assert gradient.isfinite().all()


HUGE = {
    torch.float16: [0.0, 0.5, -1.0, 6e4, -6e4],
    torch.bfloat16: [0.0, 0.5, -1.0, 3e38, -3e38],
    torch.float32: [0.0, 0.5, 0.55, -1.0, 1e10, 1e20, 1e30, 3e38, -3e38],
    torch.float64: [0.0, 0.5, 0.55, -1.0, 1e30, 1e308, -1e308],
}


@on_pairs
@pytest.mark.parametrize("dtype", list(HUGE), ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_huge_scores_are_never_nan(name, dtype, compiled, monkeypatch):
    if not compiled:  # the way of other devices
        monkeypatch.setattr(profile, "MOST_ITEMS", 0)
        monkeypatch.setattr(profile, "FEW_TARGETS", 0)
    generator, among = torch.Generator().manual_seed(0), torch.tensor(HUGE[dtype], dtype=dtype)
    for n_items, share in ((1, 1.0), (6, 0.0), (20, 0.3), (40, 0.6)):
        scores = among[torch.randint(0, len(among), (3, n_items), generator=generator)]
        relevant = torch.rand(3, n_items, generator=generator) < share
        value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant)
        assert not value.isnan()
        assert not gradient.isnan().any()


@pytest.mark.parametrize("name", GRADED)
@pytest.mark.parametrize("worth", [-1.0, math.nan, 7.0])
def test_masked_items_change_nothing_whatever_they_are_worth(name, worth):
    scores, relevant, mask = draw_pairs()
    relevance = relevant * 0.5
    expected = FUNCTIONS[name](scores, relevance, mask)
    assert_close(FUNCTIONS[name](scores, relevance.masked_fill(~mask, worth), mask), expected, rtol=0, atol=0)


# Half precision.


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_that_float16_cannot_hold_are_infinite_and_not_nan(name):
    """Short vectors have long gradients. Those of two terms of a loss, infinite alone, would cancel to NaN."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 6, generator=generator)
    embeddings[::2] *= 1e-6
    leaf = embeddings.half().requires_grad_()
    loss = create_with_what_it_asks_for(name)
    loss(leaf, torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]]).repeat(3, 1)).backward()
    assert not leaf.grad.isnan().any()


@on_pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_are_scored_in_single(name, dtype):
    embeddings = draw(dtype=dtype)
    value, gradient = value_and_gradient(create_on_pairs(name), embeddings, LABELS)
    expected = value_and_gradient(create_on_pairs(name), embeddings.float(), LABELS)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert_close(value, expected[0], rtol=0, atol=0)
    # As query and as item each embedding has a gradient; both are rounded before they meet.
    rounding = 3 * torch.finfo(dtype).eps * expected[1].abs().max().item()
    assert_close(gradient.float(), expected[1], rtol=0, atol=rounding)


@on_pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_are_ranked_in_single(name, dtype):
    """1000 irrelevant items, 1 above a relevant one, make rank- 95 000: more than float16 holds."""
    scores = torch.cat([torch.zeros(1, 1), torch.ones(1, 1000)], 1).to(dtype)
    relevant = torch.arange(1001)[None] == 0
    value, gradient = value_and_gradient(FUNCTIONS[name], scores, relevant)
    expected = value_and_gradient(FUNCTIONS[name], scores.float(), relevant)
    assert value.dtype == torch.float32
    assert_close(value, expected[0], rtol=0, atol=0)
    assert_close(gradient.float(), expected[1].to(dtype).float())


@on_pairs
def test_autocast_changes_nothing(name):
    """The backward pass is run outside, as PyTorch asks."""
    embeddings, labels = draw(0, 40, torch.float32).requires_grad_(), torch.arange(40) % 8
    outside = create_on_pairs(name)(embeddings, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = create_on_pairs(name)(embeddings, labels)
    assert inside.dtype == torch.float32
    assert_close(inside, outside, rtol=0, atol=0)
    assert_close(*(torch.autograd.grad(loss, embeddings)[0] for loss in (inside, outside)), rtol=0, atol=0)


# Bad input.


@on_pairs
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_refused_by_row(name, value):
    embeddings = draw()
    embeddings[[2, 5], 1] = value
    with pytest.raises(InputError, match=r"^embeddings: 2 of 10 rows hold NaN or infinity: 2, 5$"):
        create_on_pairs(name)(embeddings, LABELS)
    with pytest.raises(InputError, match=r"^ref_emb: 2 of 10 rows hold NaN or infinity: 2, 5$"):
        create_on_pairs(name)(draw(), LABELS, ref_emb=embeddings, ref_labels=LABELS)


@on_pairs
def test_bad_batches_are_refused(name):
    loss = create_on_pairs(name)
    with pytest.raises(InputError, match=r"^embeddings: a \(B, D\) floating point table is needed, found torch\.int64"):
        loss(draw().long(), LABELS)
    with pytest.raises(InputError, match=r"^embeddings: a \(B, D\) .* found torch\.float64 \(4,\)$"):
        loss(draw()[0], LABELS)
    with pytest.raises(InputError, match=r"^labels: whole numbers are needed, found torch\.float32$"):
        loss(draw(), LABELS.float())
    with pytest.raises(InputError, match=r"^labels: \(10,\) or \(10, L\) is needed, found \(9,\)$"):
        loss(draw(), LABELS[:9])
    with pytest.raises(InputError, match=r"^ref_emb and ref_labels go together"):
        loss(draw(), LABELS, ref_emb=draw(1))
    with pytest.raises(InputError, match=r"^ref_emb and ref_labels go together"):
        loss(draw(), LABELS, ref_labels=LABELS)
    with pytest.raises(InputError, match=r"^vectors of 4 and 3 dimensions cannot be compared$"):
        loss(draw(), LABELS, ref_emb=draw(1)[:, :3], ref_labels=LABELS)
    with pytest.raises(InputError, match=r"^labels of 1 and 2 levels cannot be compared$"):
        loss(draw(), LABELS, ref_emb=draw(1), ref_labels=LABELS[:, None].expand(10, 2))


@on_pairs
def test_bad_tables_are_refused(name):
    scores, relevant, mask = draw_pairs()
    with pytest.raises(
        InputError, match=r"^scores: a \(Q, G\) floating point table is needed, found torch\.int64 \(5, 8\)$"
    ):
        FUNCTIONS[name](scores.long(), relevant, mask)
    with pytest.raises(InputError, match=r"^relevance is \(8, 5\), scores are \(5, 8\)$"):
        FUNCTIONS[name](scores, relevant.T, mask)
    with pytest.raises(InputError, match=r"^mask: bool \(5, 8\) is needed, found torch\.float32 \(5, 8\)$"):
        FUNCTIONS[name](scores, relevant, mask.float())
    with pytest.raises(InputError, match=r"^scores hold NaN or infinity$"):
        FUNCTIONS[name](scores / 0, relevant, torch.ones_like(mask))


NUMBERS = [
    (name, option)
    for name in LOSSES
    for option, parameter in LOSSES.options(name).items()
    if parameter.annotation in (float, float | None)
]


def test_every_number_is_seen():
    assert len(NUMBERS) == 71
    assert {name for name in LOSSES if name not in dict(NUMBERS)} == {"fast_ap", "weighted_sum"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_bad_numbers_are_refused_when_a_loss_is_made(name, option, value):
    with pytest.raises(InputError, match=rf"\b{option} is {value}"):
        create_with_what_it_asks_for(name, **{option: value})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("blackbox_ap", {"margin": -0.1}, "margin is -0.1;"),
        ("blackbox_ap", {"strength": 0}, "strength is 0;"),
        ("blackbox_ap", {"memory": -1}, "memory is -1;"),
        ("blackbox_ap", {"seed": -1}, "seed is -1;"),
        ("blackbox_recall", {"reduction": "mean"}, "unknown reduction 'mean'"),
        ("blackbox_recall", {"weights": [math.nan]}, "weights are [nan]; one or more finite numbers"),
        ("blackbox_recall", {"weights": "lolog"}, "unknown weights 'lolog': did you mean 'log'?"),
        ("arcface", {"margin": 4}, "margin is 4;"),
        ("calibration", {"alpha": 0.6}, "alpha is 0.6, beta is 0.6; alpha must be above beta"),
        ("csl", {"gamma": -1}, "gamma is -1;"),
        ("csl", {"margins": [0.1]}, "margins are [0.1]; 2 finite numbers are needed, one a level"),
        ("each_label_ap", {"label_weights": [1, -1]}, "label_weights are [1, -1]; finite numbers of 0 or more are needed"),
        ("fast_ap", {"n_bins": 0}, "n_bins is 0;"),
        ("rod_recall", {"ks": [0]}, "ks are [0]; places from 1 on are needed"),
        ("smooth_recall", {"ks": []}, "ks are []; places from 1 on are needed"),
        ("softbin_ap", {"n_bins": 1}, "n_bins is 1;"),
        ("softbin_ap", {"low": 1.0}, "low is 1.0, high is 1.0; low must be below high"),
        ("softbin_ap", {"ties": "simple"}, "unknown ties 'simple'"),
        ("roadmap", {"weight": 1.1}, "weight is 1.1;"),
        ("smooth_recall", {"normalise": "cap"}, "unknown normalise 'cap'"),
        ("smooth_recall", {"rank_width": 0.0}, "rank_width is 0.0;"),
        ("sum_norm_softmax", {"temperature": -1.0}, "temperature is -1.0;"),
        ("triplet", {"mining": "softhard"}, "unknown mining 'softhard'"),
    ],
)
def test_bad_options_are_refused_when_a_loss_is_made(name, options, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        create_with_what_it_asks_for(name, **options)
