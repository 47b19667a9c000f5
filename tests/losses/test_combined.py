import math

import pytest
import torch
from loss_cases import double, draw, draw_pairs, references, value_and_gradient
from torch.testing import assert_close

from refusals import assert_refused
from sightline import losses
from sightline.errors import InputError
from sightline.losses import create_loss, weighted_sum
from sightline.losses.average_precision import SupAPLoss, sup_ap_loss
from sightline.losses.base import flat_pairs
from sightline.losses.contrastive import calibration_loss
from sightline.losses.graded import sup_h_ap_loss, sup_ndcg_loss
from sightline.losses.sums import RoadmapLoss
from sightline.ranking.pairs import batch_pairs, table_pairs
from sightline.training.prepare import create_recipe_loss
from sightline.training.recipe import read_recipe


def on_scores(name, scores, relevance, mask=None, n_levels=None, **options):
    """The named loss with calibration, on scores at hand."""
    flat = name in ("roadmap", "rod_recall")
    pairs = flat_pairs(scores, relevance, mask) if flat else table_pairs(scores, relevance, mask, n_levels)
    return create_loss(name, decomposability="calibration", **{"weight": 0.5} | options).of_pairs(pairs)


def test_value_and_gradient_are_the_weighted_sum_each_term_over_its_own_queries():
    tables = draw_pairs(1)
    rank, pair = {"tau": 0.05, "rho": 20.0, "delta": 0.1}, {"alpha": 0.8, "beta": 0.3}
    loss = value_and_gradient(lambda *t: on_scores("roadmap", *t, weight=0.3, **rank, **pair), *tables)
    parts = value_and_gradient(sup_ap_loss, *tables, **rank), value_and_gradient(calibration_loss, *tables, **pair)
    assert_close(loss, tuple(0.7 * one + 0.3 * other for one, other in zip(*parts, strict=True)))
    # A query without relevant items is left out of the rank term, and counts in the pair term with its excess.
    scores, relevant = double([[0.7, 0.7], [0.7, 0.7]]), torch.tensor([[True, False], [False, False]])
    rank_term, pair_term = 1 - 1 / 2, ((0.2 + 0.1) + 0.1) / 2
    assert_close(on_scores("roadmap", scores, relevant).item(), 0.5 * rank_term + 0.5 * pair_term)
    # Of a single class the pair term alone is left.
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert_close(RoadmapLoss()(embeddings, [4, 4]).item(), 0.5 * 0.3)
    assert RoadmapLoss(weight=0.0)(embeddings, [4, 4]).item() == 0


SHARED = torch.tensor([[2, 0, 1, 0, 2, 1], [0, 1, 1, 0, 0, 0], [0, 0, 2, 0, 1, 0]])


def worth_by_hand(row, alpha, n_levels=2):
    """The papers' relevance of one list, item by item: ``(l / L) ** alpha`` over the items that share just l levels."""
    return [(level / n_levels) ** alpha / row.count(level) if level else 0.0 for level in row]


def draw_scores(seed=3):
    return torch.rand(3, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("name", "alpha"), [("happier", 1.0), ("happier_f", 5.0)])
def test_shared_levels_give_the_weighted_sum(name, alpha):
    scores = draw_scores()
    worth = double([worth_by_hand(row, alpha) for row in SHARED.tolist()])
    parts = [sup_h_ap_loss(scores[i : i + 1], worth[i : i + 1]) for i in range(3)]
    expected = 0.7 * sum(parts) / 3 + 0.3 * calibration_loss(scores, SHARED == 2)
    assert_close(on_scores(name, scores, SHARED, weight=0.3), expected)
    gains = double([[0, 1, 3][level] for level in SHARED.flatten()]).view(3, 6)
    for relevance, is_relevant in ((SHARED, SHARED == 2), (gains, gains)):
        expected = 0.7 * sup_ndcg_loss(scores, gains) + 0.3 * calibration_loss(scores, is_relevant)
        assert_close(on_scores("rod_ndcg", scores, relevance, weight=0.3), expected)


def test_levels_that_cannot_be_are_refused_and_those_that_do_not_occur_are_given():
    for level, n_levels in ((-1, None), (3, 2), (127, None)):
        with pytest.raises(InputError, match=r"relevance.* 0 to \d+"):
            on_scores("happier", draw_scores(), SHARED.masked_fill(SHARED == 1, level), n_levels=n_levels)
    scores, shared = draw_scores()[:1], SHARED[1:2]  # no pair shares the finest level
    alone = 0.5 * on_scores("happier", scores, shared, n_levels=2, weight=0.0) + 0.5 * calibration_loss(scores, shared == 2)
    assert_close(on_scores("happier", scores, shared, n_levels=2), alone)
    assert (on_scores("happier", scores, shared) - alone).abs() > 0.01


LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]])
TERMS = [{"name": "sup_ap", "weight": 0.9, "tau": 0.02}, {"name": "norm_softmax", "weight": 0.1, "temperature": 0.1}]


@pytest.mark.parametrize("preset", ["paper", "released-code"])
def test_roadmap_is_a_weighted_sum(preset):
    reduction = "mean" if preset == "paper" else "nonzero"
    terms = [
        {"name": "sup_ap", "weight": 0.7, "preset": preset},
        {"name": "calibration", "weight": 0.3, "reduction": reduction},
    ]
    embeddings = draw(0, 8, 6)
    expected = RoadmapLoss(weight=0.3, preset=preset)(embeddings, LABELS)
    assert_close(weighted_sum(terms)(embeddings, LABELS), expected)
    unnamed = losses.WeightedSum([SupAPLoss(preset=preset), losses.CalibrationLoss(reduction=reduction)], [0.7, 0.3])
    assert_close(unnamed(embeddings, LABELS), expected)
    assert list(unnamed.terms) == ["1", "2"]


def test_weighted_sum_gives_the_references_to_the_terms_that_take_them():
    embeddings, against = draw(0, 8, 6), references(draw(1, 5, 6), LABELS[:5])
    names = ("calibration", "csl", "arcface", "proxy_nca_pp", "sum_norm_softmax", "sum_triplet")
    known = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2, "class_counts": [4, 2]}
    loss = weighted_sum([{"name": name, "weight": 2} for name in names], **known)
    parts = [
        part(embeddings, LABELS, **(against if name in ("calibration", "sum_triplet") else {}))
        for name, part in zip(names, loss.losses, strict=True)
    ]
    assert_close(loss(embeddings, LABELS, **against), 2 * sum(parts))
    with pytest.raises(InputError, match="ref_emb, ref_labels"):
        weighted_sum([{"name": "csl", "weight": 1}], **known)(embeddings, LABELS, **against)


def test_terms_may_be_sums_with_options_of_their_own_and_come_from_a_recipe(tmp_path):
    inner = {"name": "weighted_sum", "weight": 0.5, "terms": [{"name": "norm_softmax", "weight": 3, "n_classes": 9}]}
    loss = weighted_sum([inner, {"name": "calibration", "weight": 0}], n_classes=4, embedding_dim=6)
    assert loss.losses[0].losses[0].proxies.shape == (9, 6)
    assert_close(loss(draw(0, 8, 6), LABELS), 1.5 * loss.losses[0].losses[0](draw(0, 8, 6), LABELS))
    terms = """[[loss.terms]]\nname = "sup_h_ap"\nweight = 0.9\n[[loss.terms]]\nname = "sum_norm_softmax"\nweight = 0.1"""
    (tmp_path / "sum.toml").write_text(f'[data]\nmanifest = "photos"\n[loss]\nname = "weighted_sum"\n{terms}')
    loss = create_recipe_loss(read_recipe(str(tmp_path / "sum.toml")), embedding_dim=6, class_counts=[4, 2])
    assert loss.weights == (0.9, 0.1)
    assert [tuple(table.shape) for table in loss.parameters()] == [(4, 6), (2, 6)]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ([], ["terms", "[]"]),
        ("sup_ap", ["terms", "'sup_ap'"]),
        (["sup_ap"], ["terms", "'sup_ap'"]),
        ([{"name": "sup_ap"}], ["term 1", "weight"]),
        ([*TERMS, {"name": "sup_pa", "weight": 1}], ["term 3", "'sup_pa'", "'sup_ap'"]),
        ([{"name": "sup_ap", "weight": 1, "rh0": 3}], ["term 1", "'rh0'", "'rho'"]),
        ([{"name": "sup_ap", "weight": 1, "tau": -1}], ["term 1", "tau", "-1"]),
        ([{"name": "arcface", "weight": 1, "n_classes": None}], ["term 1", "'arcface'", "n_classes"]),
        ([{"name": "sup_ap", "weight": "1"}], ["term 1", "weight", "'1'"]),
        ([{"name": "sup_ap", "weight": math.nan}], ["term 1", "weight", "nan"]),
    ],
)
def test_bad_terms_are_refused(terms, said):
    assert_refused(said, create_loss, "weighted_sum", terms=terms, n_classes=4, embedding_dim=6)


RANKS = {
    "roadmap": "sup_ap",
    "rod_recall": "sup_recall",
    "happier": "sup_h_ap",
    "happier_f": "sup_h_ap",
    "rod_ndcg": "sup_ndcg",
}
SIDES = {"calibration": "calibration", "proxy": "norm_softmax"}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", RANKS)
def test_both_terms_are_named_as_the_losses_that_they_are(name, side):
    loss = create_loss(name, decomposability=side, weight=0.3, n_classes=4, embedding_dim=6)
    assert loss.terms == {}
    embeddings = draw(0, 8, 6).requires_grad_()
    value = loss(embeddings, LABELS)
    options = {"alpha": 5.0} if name == "happier_f" else {}
    known = {"n_classes": 4, "embedding_dim": 6} if side == "proxy" else {}
    parts = {RANKS[name]: create_loss(RANKS[name], **options), SIDES[side]: create_loss(SIDES[side], **known)}
    assert_close(loss.terms, {called: part(embeddings, LABELS).detach() for called, part in parts.items()})
    first, second = loss.terms.values()
    assert_close(0.7 * first + 0.3 * second, value.detach())
    assert not any(term.requires_grad for term in loss.terms.values())
    assert not any("terms" in key for key in loss.state_dict())
    assert create_loss(name, decomposability=side, n_classes=4, embedding_dim=6).weight == {"proxy": 0.1}.get(side, 0.5)
    assert_refused(r"'proxy'.*n_classes.*embedding_dim", create_loss, name, decomposability="proxy")
    if side == "proxy":
        assert_refused(r"'proxy'.*embeddings", loss.of_pairs, batch_pairs(embeddings, LABELS))
    against = references(draw(1, 5, 6), LABELS[:5])
    loss(embeddings, LABELS, **against)
    assert_close(loss.terms[RANKS[name]], parts[RANKS[name]](embeddings, LABELS, **against).detach())


def test_the_terms_of_a_sum_are_named_one_by_one_and_not_weighted():
    inner = {"name": "roadmap", "weight": 0.5}
    terms = [inner, *TERMS, {"name": "sup_ap", "weight": 2, "tau": 0.1}, {"name": "sum_triplet", "weight": 0}]
    loss = weighted_sum(terms, n_classes=4, embedding_dim=6, n_levels=2)
    value, terms = loss(draw(0, 8, 6), LABELS), loss.terms
    assert list(terms) == [
        "roadmap/sup_ap", "roadmap/calibration", "sup_ap", "norm_softmax", "sup_ap_2",
        "sum_triplet/level_0", "sum_triplet/level_1",
    ]  # fmt: skip
    weights = (0.25, 0.25, 0.9, 0.1, 2, 0, 0)
    assert_close(sum(weight * term for weight, term in zip(weights, terms.values(), strict=True)), value.detach())
    assert_close(terms["sup_ap_2"], SupAPLoss(0.1)(draw(0, 8, 6), LABELS))
