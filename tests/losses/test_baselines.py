from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as metric_learning
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.miners import DistanceWeightedMiner
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses.contrastive import (
    ContrastiveLoss,
    TripletLoss,
    XBMContrastiveLoss,
    contrastive_loss,
    triplet_loss,
    xbm_contrastive_loss,
)
from sightline.ranking import ranks
from sightline.ranking.pairs import batch_pairs

MINING = ("all", "hard", "semi-hard", "distance-weighted")
reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=60)

E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5], [0.62, 0.60, 0.59, 0.585, 0.50]
E_RELEVANT = torch.tensor([[False, True, False, False, True]])
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3])  # of unequal classes, one of a single item
FUNCTIONS = {
    "contrastive": contrastive_loss,
    "xbm_contrastive": xbm_contrastive_loss,
    **{mining: partial(triplet_loss, mining=mining) for mining in ("all", "hard", "semi-hard")},
}
MODULES = {
    "contrastive": ContrastiveLoss,
    "xbm_contrastive": XBMContrastiveLoss,
    **{mining: partial(TripletLoss, mining=mining) for mining in MINING},
}
every_function = pytest.mark.parametrize("name", sorted(FUNCTIONS))
every_module = pytest.mark.parametrize("name", sorted(MODULES))
seeds = pytest.mark.parametrize("seed", range(5))


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed=0, n_items=10, dtype=torch.float64):
    """Of one half-space, so that cosines are high enough for every loss."""
    drawn = torch.randn(n_items, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn + torch.tensor([1.5, 0, 0, 0])).to(dtype)


def value_of(name, embeddings, labels, *references):
    """Of a module, with the draws of distance-weighted mining the same every time."""
    torch.manual_seed(0)
    return MODULES[name]()(embeddings, labels, *references)


def sides(scores, relevant, mask):
    """The relevant and the irrelevant scores of each query, one after the other."""
    for row, is_relevant, listed in zip(scores.tolist(), relevant.tolist(), mask.tolist(), strict=True):
        items = [(score, good) for score, good, present in zip(row, is_relevant, listed, strict=True) if present]
        yield [score for score, good in items if good], [score for score, good in items if not good]


def mean_above_zero(terms):
    above = [term for term in terms if term > 0]
    return sum(above) / len(above) if above else 0.0


def contrastive_by_definition(scores, relevant, mask, pos_margin=0.9, neg_margin=0.6):
    queries = list(sides(scores, relevant, mask))
    short = [pos_margin - score for positives, _ in queries for score in positives]
    return mean_above_zero(short) + mean_above_zero([score - neg_margin for _, negatives in queries for score in negatives])


def xbm_contrastive_by_definition(scores, relevant, mask, neg_margin=0.5):
    total = 0.0
    for positives, negatives in sides(scores, relevant, mask):
        total += sum(1 - score for score in positives if score < 1 - 1e-5)
        total += sum(score for score in negatives if score > neg_margin)
    return total / len(scores)


def triplet_by_definition(scores, relevant, mask, margin=0.05, mining="semi-hard"):
    terms = []
    for positives, negatives in sides(scores, relevant, mask):
        if mining == "all":
            terms += [n - p + margin for p in positives for n in negatives]
        elif mining == "hard" and positives and negatives:
            terms.append(max(negatives) - min(positives) + margin)
        elif mining == "semi-hard" and positives and (below := [n for n in negatives if n < max(positives)]):
            terms.append(max(below) - max(positives) + margin)
    return mean_above_zero([term if abs(term) > 1e-12 else 0.0 for term in terms])


DEFINITIONS = {
    "contrastive": contrastive_by_definition,
    "xbm_contrastive": xbm_contrastive_by_definition,
    **{mining: partial(triplet_by_definition, mining=mining) for mining in ("all", "hard", "semi-hard")},
}


@st.composite
def lists(draw_value):
    """Scores in steps of 1/16, many of them equal, and exact in binary as their differences are."""
    n_queries, n_items = draw_value(st.integers(1, 4)), draw_value(st.integers(1, 7))
    row = {"min_size": n_items, "max_size": n_items}
    rows = {"min_size": n_queries, "max_size": n_queries}
    scores = draw_value(st.lists(st.lists(st.integers(-16, 16), **row), **rows))
    relevant, mask = (draw_value(st.lists(st.lists(st.booleans(), **row), **rows)) for _ in range(2))
    return double(scores) / 16, torch.tensor(relevant), torch.tensor(mask)


# Definitions.


@pytest.mark.parametrize(
    ("name", "first", "second"), [("xbm_contrastive", 2.9, 2.695), ("semi-hard", 0.0, 0.04)], ids=["xbm", "semi-hard"]
)
def test_worked_examples(name, first, second):
    assert_close(FUNCTIONS[name](double([E1]), E_RELEVANT).item(), first, rtol=0, atol=1e-9)
    assert_close(FUNCTIONS[name](double([E2]), E_RELEVANT).item(), second, rtol=0, atol=1e-9)


def test_triplets_worked_by_hand():
    """Relevant 0.8 and 0.5; the others 0.9, 0.7 and 0.6."""
    assert_close(FUNCTIONS["hard"](double([E1]), E_RELEVANT).item(), 0.9 - 0.5 + 0.05)
    # Against 0.8: 0.15 alone; against 0.5: 0.45, 0.25 and 0.15.
    assert_close(FUNCTIONS["all"](double([E1]), E_RELEVANT).item(), (0.15 + 0.45 + 0.25 + 0.15) / 4)
    assert_close(triplet_loss(double([E1]), E_RELEVANT, margin=0.3).item(), 0.7 - 0.8 + 0.3)


@every_function
@reproducible
@given(pairs=lists())
def test_each_is_its_definition(name, pairs):
    expected = DEFINITIONS[name](*pairs)
    assert_close(FUNCTIONS[name](*pairs).item(), expected)
    scores, relevant, mask = pairs
    assert_close(FUNCTIONS[name](scores.float(), relevant, mask).item(), expected, rtol=1e-5, atol=1e-6)
    assert_close(FUNCTIONS[name](scores, relevant * 0.5, mask).item(), expected)  # relevance in numbers


@reproducible
@given(lists(), st.sampled_from([0.0, 0.125, 1.0]))
def test_options_are_those_of_the_definition(pairs, margin):
    for mining in ("all", "hard", "semi-hard"):
        expected = triplet_by_definition(*pairs, margin=margin, mining=mining)
        assert_close(triplet_loss(*pairs, margin=margin, mining=mining).item(), expected)
    expected = contrastive_by_definition(*pairs, 1 - margin, margin - 0.5)
    assert_close(contrastive_loss(*pairs, 1 - margin, margin - 0.5).item(), expected)
    assert_close(xbm_contrastive_loss(*pairs, margin).item(), xbm_contrastive_by_definition(*pairs, margin))


def test_all_triplets_in_blocks_are_the_whole(monkeypatch):
    pairs = batch_pairs(draw(), LABELS)
    whole = FUNCTIONS["all"](pairs.scores, pairs.relevant, pairs.mask)
    monkeypatch.setattr(ranks, "WORKSPACE_ELEMENTS", 15)
    assert_close(FUNCTIONS["all"](pairs.scores, pairs.relevant, pairs.mask), whole)


@seeds
@pytest.mark.parametrize("with_references", [False, True], ids=["batch", "references"])
def test_equal_to_pytorch_metric_learning(seed, with_references):
    embeddings, references = draw(seed).requires_grad_(), draw(seed + 50, 12)
    rest = {"ref_emb": references, "ref_labels": torch.arange(12) % 5} if with_references else {}
    cases = [
        (ContrastiveLoss(0.9, 0.6), metric_learning.ContrastiveLoss(0.9, 0.6, distance=CosineSimilarity())),
        (TripletLoss(0.05, "all"), metric_learning.TripletMarginLoss(0.05, distance=CosineSimilarity())),
    ]
    for ours, theirs in cases:
        found, expected = ours(embeddings, LABELS, **rest), theirs(embeddings, LABELS, **rest)
        assert_close(found, expected)
        assert_close(torch.autograd.grad(found, embeddings), torch.autograd.grad(expected, embeddings))


# Distance-weighted mining.


@seeds
@pytest.mark.parametrize("with_references", [False, True], ids=["batch", "references"])
def test_distance_weighted_is_pytorch_metric_learning_with_its_miner(seed, with_references):
    embeddings = draw(seed).requires_grad_()
    rest = {"ref_emb": draw(seed + 50, 12), "ref_labels": torch.arange(12) % 5} if with_references else {}
    torch.manual_seed(seed)
    found = TripletLoss(0.2, "distance-weighted")(embeddings, LABELS, **rest)
    torch.manual_seed(seed)
    triplets = DistanceWeightedMiner()(embeddings, LABELS, **rest)
    theirs = metric_learning.TripletMarginLoss(0.2, distance=CosineSimilarity())
    expected = theirs(embeddings, LABELS, triplets, **rest)
    assert len(triplets[0]) > 5
    assert_close(found, expected)
    assert_close(torch.autograd.grad(found, embeddings), torch.autograd.grad(expected, embeddings))


def test_distance_weighted_is_a_function_of_the_global_generator():
    loss, embeddings, labels = TripletLoss(mining="distance-weighted"), draw(0, 40), torch.arange(40) % 8
    torch.manual_seed(1)
    first, second = loss(embeddings, labels), loss(embeddings, labels)
    torch.manual_seed(1)
    again = loss(embeddings, labels)
    assert_close(again, first, rtol=0, atol=0)
    assert first.item() != second.item()


def test_distance_weighted_survives_a_close_pair_in_many_dimensions():
    """Items 0 and 1 of two classes coincide: their weight is e^370 times that of others, which float32 cannot hold."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(24, 512, generator=generator) + 0.3  # most cosines above 0.02
    embeddings[1] = embeddings[0]
    embeddings.requires_grad_()
    torch.manual_seed(0)
    TripletLoss(2.0, "distance-weighted")(embeddings, torch.arange(24) % 8).backward()
    assert (embeddings.grad != 0).any(1).all()


def test_distance_weighted_without_a_near_negative_is_zero():
    for references in ({}, {"ref_emb": -torch.ones(3, 2), "ref_labels": torch.tensor([0, 1, 1])}):
        embeddings = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
        embeddings = (embeddings if not references else embeddings.abs()).requires_grad_()
        value = TripletLoss(mining="distance-weighted")(embeddings, torch.tensor([0, 0, 1]), **references)
        value.backward()
        assert value.item() == 0
        assert (embeddings.grad == 0).all()


def test_distance_weighted_takes_names_below_two_parents_for_two_classes():
    labels = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1]])
    torch.manual_seed(0)
    by_path = TripletLoss(1.0, "distance-weighted")(draw(0, 4), labels)
    torch.manual_seed(0)
    assert_close(by_path, TripletLoss(1.0, "distance-weighted")(draw(0, 4), torch.tensor([0, 0, 1, 1])))
    assert by_path.item() > 0


# Gradients.


@every_function
@seeds
def test_gradient_is_the_finite_difference(name, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(3, 6, generator=generator, dtype=torch.float64).requires_grad_()
    relevant, mask = torch.rand(3, 6, generator=generator) < 0.5, torch.rand(3, 6, generator=generator) < 0.8
    corners = (scores[:, :, None] - scores[:, None, :]).abs() - 0.05  # of the hinges
    assert corners.abs().min() > 1e-5
    assert min((scores - mark).abs().min() for mark in (0.9, 0.6, 0.5)) > 1e-5
    assert gradcheck(lambda scores: FUNCTIONS[name](scores, relevant, mask), scores)


@every_function
@reproducible
@given(pairs=lists())
def test_gradient_signs(name, pairs):
    scores, relevant, mask = pairs
    leaf = scores.clone().requires_grad_()
    FUNCTIONS[name](leaf, relevant, mask).backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[relevant] <= 0).all()
    assert (leaf.grad[~relevant] >= 0).all()
    assert (leaf.grad[~mask] == 0).all()


def test_xbm_leaves_out_the_item_itself():
    """A memory that holds the batch: the same as a memory without it where others of the class are absent."""
    embeddings, labels = torch.eye(3), torch.arange(3)
    assert XBMContrastiveLoss()(embeddings, labels, embeddings, labels).item() == 0
    near = torch.tensor([[1.0, 1e-3, 0.0]])  # cosine 1 - 5e-7
    assert XBMContrastiveLoss()(embeddings[:1], labels[:1], near, labels[:1]).item() == 0
    assert XBMContrastiveLoss(epsilon=1e-7)(embeddings[:1], labels[:1], near, labels[:1]).item() > 0


# What every module promises.


@every_module
@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [0], []], ids=["one class", "all alone", "one", "none"])
def test_batches_without_positives_or_negatives(name, labels):
    embeddings = draw(n_items=len(labels), dtype=torch.float32).requires_grad_()
    value = value_of(name, embeddings, torch.tensor(labels, dtype=torch.int64))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    if name in MINING or len(labels) < 2:  # triplets need both sides, pairs one
        assert value.item() == 0
        assert (embeddings.grad == 0).all()
    else:
        assert value.item() > 0


# Bad input.


def test_unknown_mining_suggests_the_nearest():
    assert len(MINING) == 4
    for use in (
        lambda mining: TripletLoss(mining=mining),
        lambda mining: triplet_loss(double([E1]), E_RELEVANT, mining=mining),
    ):
        with pytest.raises(InputError, match=r"^unknown mining 'semihard': did you mean 'semi-hard'\?$"):
            use("semihard")
    with pytest.raises(InputError, match=r"^mining 'distance-weighted' needs embeddings, .* use TripletLoss$"):
        triplet_loss(double([E1]), E_RELEVANT, mining="distance-weighted")
