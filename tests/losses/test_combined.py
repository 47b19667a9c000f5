import math

import pytest
import torch
from torch.testing import assert_close

from sightline import losses
from sightline.errors import InputError
from sightline.losses import create_loss, weighted_sum
from sightline.losses.average_precision import SupAPLoss, sup_ap_loss
from sightline.losses.base import flat_pairs
from sightline.losses.contrastive import calibration_loss
from sightline.losses.graded import sup_h_ap_loss, sup_ndcg_loss
from sightline.losses.proxies import NormSoftmaxLoss
from sightline.losses.recall import sup_recall_loss
from sightline.losses.sums import RoadmapLoss
from sightline.ranking.pairs import batch_pairs, table_pairs
from sightline.training.prepare import create_recipe_loss
from sightline.training.recipe import read_recipe

E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5], [0.62, 0.60, 0.59, 0.585, 0.50]
E_RELEVANT = torch.tensor([[False, True, False, False, True]])


def on_scores(name, scores, relevance, mask=None, n_levels=None, **options):
    """The named loss with calibration, on scores at hand."""
    flat = name in ("roadmap", "rod_recall")
    pairs = flat_pairs(scores, relevance, mask) if flat else table_pairs(scores, relevance, mask, n_levels)
    return create_loss(name, decomposability="calibration", **{"weight": 0.5} | options).of_pairs(pairs)


def roadmap_loss(scores, relevance, mask=None, **options):
    return on_scores("roadmap", scores, relevance, mask, **options)


def happier_loss(scores, relevance, mask=None, n_levels=None, **options):
    return on_scores("happier", scores, relevance, mask, n_levels, **options)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed, n_queries=4, n_items=8):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n_queries, n_items, generator=generator, dtype=torch.float64)
    return scores, *(torch.rand(n_queries, n_items, generator=generator) < share for share in (0.4, 0.8))


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    ("scores", "sup_ap", "calibration"), [(E1, 0.9170087, 0.3833333), (E2, 0.7757919, 0.3566667)], ids=["E1", "E2"]
)
def test_worked_examples(scores, sup_ap, calibration, weight):
    found = roadmap_loss(double([scores]), E_RELEVANT, weight=weight).item()
    assert_close(found, (1 - weight) * sup_ap + weight * calibration, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_the_weighted_sum(seed):
    scores, relevant, mask = draw(seed)
    scores.requires_grad_()
    options, marks = {"tau": 0.05, "rho": 20.0, "delta": 0.1}, {"alpha": 0.8, "beta": 0.3}
    loss = roadmap_loss(scores, relevant, mask, weight=0.3, **options, **marks)
    rank_term = sup_ap_loss(scores, relevant, mask, **options)
    pair_term = calibration_loss(scores, relevant, mask, **marks)
    assert_close(loss, 0.7 * rank_term + 0.3 * pair_term)
    gradient, of_rank, of_pair = (torch.autograd.grad(part, scores)[0] for part in (loss, rank_term, pair_term))
    assert_close(gradient, 0.7 * of_rank + 0.3 * of_pair)


def test_terms_are_averaged_over_their_own_queries():
    """A query without relevant items is left out of the rank term, and counts in the pair term with its excess."""
    scores, relevant = double([[0.7, 0.7], [0.7, 0.7]]), torch.tensor([[True, False], [False, False]])
    rank_term, pair_term = 1 - 1 / 2, ((0.2 + 0.1) + 0.1) / 2
    assert_close(roadmap_loss(scores, relevant).item(), 0.5 * rank_term + 0.5 * pair_term)


def test_single_class_leaves_the_pair_term():
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert_close(RoadmapLoss()(embeddings, torch.tensor([4, 4])).item(), 0.5 * 0.3)
    assert RoadmapLoss(weight=0.0)(embeddings, torch.tensor([4, 4])).item() == 0


def test_module_hands_every_option_on():
    embeddings = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
    pairs = batch_pairs(embeddings, labels)
    default = RoadmapLoss()(embeddings, labels).item()
    assert_close(default, roadmap_loss(pairs.scores, pairs.relevant, pairs.mask).item())
    for option in ({"weight": 0.9}, {"tau": 0.05}, {"rho": 20.0}, {"delta": 0.3}, {"alpha": 0.7}, {"beta": 0.1}):
        found = RoadmapLoss(**option)(embeddings, labels).item()
        assert_close(found, roadmap_loss(pairs.scores, pairs.relevant, pairs.mask, **option).item())
        assert abs(found - default) > 1e-4


# The functions on label levels.

SHARED = torch.tensor([[2, 0, 1, 0, 2, 1], [0, 1, 1, 0, 0, 0], [0, 0, 2, 0, 1, 0]])


def worth_by_hand(row, alpha, n_levels=2):
    """The papers' relevance of one list, item by item: ``(l / L) ** alpha`` over the items that share just l levels."""
    return [(level / n_levels) ** alpha / row.count(level) if level else 0.0 for level in row]


def draw_scores(seed=3):
    return torch.rand(3, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("name", "alpha"), [("happier", 1.0), ("happier_f", 5.0)])
def test_happier_on_shared_levels_is_its_weighted_sum(name, alpha):
    scores = draw_scores()
    worth = double([worth_by_hand(row, alpha) for row in SHARED.tolist()])
    parts = [sup_h_ap_loss(scores[i : i + 1], worth[i : i + 1]) for i in range(3)]
    expected = 0.7 * sum(parts) / 3 + 0.3 * calibration_loss(scores, SHARED == 2)
    assert_close(on_scores(name, scores, SHARED, weight=0.3), expected)


def test_rod_ndcg_on_shared_levels_is_its_weighted_sum():
    scores, gains = draw_scores(), double([[0, 1, 3][level] for level in SHARED.flatten()]).view(3, 6)
    expected = 0.7 * sup_ndcg_loss(scores, gains) + 0.3 * calibration_loss(scores, SHARED == 2)
    assert_close(on_scores("rod_ndcg", scores, SHARED, weight=0.3), expected)
    ready = 0.7 * sup_ndcg_loss(scores, gains) + 0.3 * calibration_loss(scores, gains)
    assert_close(on_scores("rod_ndcg", scores, gains, weight=0.3), ready)


@pytest.mark.parametrize("relevance", [SHARED > 0, SHARED, SHARED.double()])
def test_rod_recall_is_its_weighted_sum(relevance):
    scores = draw_scores()
    expected = 0.7 * sup_recall_loss(scores, SHARED > 0, ks=(1, 2)) + 0.3 * calibration_loss(scores, SHARED > 0)
    assert_close(on_scores("rod_recall", scores, relevance, weight=0.3, ks=(1, 2)), expected)


@pytest.mark.parametrize("preset", ["paper", "released-code"])
@pytest.mark.parametrize("name", ["happier", "happier_f", "rod_ndcg", "rod_recall"])
def test_of_pairs_is_the_module_against_a_reference_set(name, preset):
    embeddings, references = draw_batch(), draw_batch(1)
    module = create_loss(name, decomposability="calibration", preset=preset)
    pairs = batch_pairs(embeddings, LABELS, references, LABELS)
    relevance = pairs.relevant if name == "rod_recall" else pairs.levels
    assert_close(on_scores(name, pairs.scores, relevance, preset=preset), module(embeddings, LABELS, references, LABELS))


def test_a_list_without_finest_pairs_needs_the_number_of_levels():
    scores, shared = draw_scores()[:1], SHARED[1:2]
    alone = 0.5 * happier_loss(scores, shared, n_levels=2, weight=0.0) + 0.5 * calibration_loss(scores, shared == 2)
    assert_close(happier_loss(scores, shared, n_levels=2), alone)
    assert (happier_loss(scores, shared) - alone).abs() > 0.01


@pytest.mark.parametrize(("level", "n_levels"), [(-1, None), (3, 2), (127, None)])
def test_levels_that_cannot_be_are_refused(level, n_levels):
    shared = SHARED.masked_fill(SHARED == 1, level)
    with pytest.raises(InputError, match=r"^relevance: shared label levels are 0 to \d+, found others$"):
        happier_loss(draw_scores(), shared, n_levels=n_levels)


# Any weighted sum.

LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]])
TERMS = [{"name": "sup_ap", "weight": 0.9, "tau": 0.02}, {"name": "norm_softmax", "weight": 0.1, "temperature": 0.1}]


def draw_batch(seed=0, n_items=8):
    return torch.randn(n_items, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weighted_sum_is_the_sum_of_its_terms():
    embeddings = draw_batch().requires_grad_()
    loss = create_loss("weighted_sum", terms=TERMS, n_classes=4, embedding_dim=6)
    value = loss(embeddings, LABELS)
    expected = 0.9 * SupAPLoss(0.02)(embeddings, LABELS) + 0.1 * NormSoftmaxLoss(4, 6, 0.1)(embeddings, LABELS)
    assert_close(value, expected)
    assert_close(*(torch.autograd.grad(one, embeddings)[0] for one in (value, expected)))
    assert [name for name, _ in loss.named_parameters()] == ["losses.1.proxies"]


@pytest.mark.parametrize("preset", ["paper", "released-code"])
def test_roadmap_is_a_weighted_sum(preset):
    reduction = "mean" if preset == "paper" else "nonzero"
    terms = [
        {"name": "sup_ap", "weight": 0.7, "preset": preset},
        {"name": "calibration", "weight": 0.3, "reduction": reduction},
    ]
    embeddings = draw_batch()
    expected = RoadmapLoss(weight=0.3, preset=preset)(embeddings, LABELS)
    assert_close(weighted_sum(terms)(embeddings, LABELS), expected)


def test_weighted_sum_gives_the_references_to_the_terms_that_take_them():
    embeddings, references = draw_batch(), draw_batch(1, 5)
    names = ("calibration", "csl", "arcface", "proxy_nca_pp", "sum_norm_softmax", "sum_triplet")
    known = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2, "class_counts": [4, 2]}
    loss = weighted_sum([{"name": name, "weight": 2} for name in names], **known)
    against = (references, LABELS[:5])
    parts = [
        part(embeddings, LABELS, *(against if name in ("calibration", "sum_triplet") else ()))
        for name, part in zip(names, loss.losses, strict=True)
    ]
    assert_close(loss(embeddings, LABELS, *against), 2 * sum(parts))


def test_a_term_of_a_sum_may_be_a_sum_and_has_its_own_options():
    inner = {"name": "weighted_sum", "weight": 0.5, "terms": [{"name": "norm_softmax", "weight": 3, "n_classes": 9}]}
    loss = weighted_sum([inner, {"name": "calibration", "weight": 0}], n_classes=4, embedding_dim=6)
    assert loss.losses[0].losses[0].proxies.shape == (9, 6)
    assert_close(loss(draw_batch(), LABELS), 1.5 * loss.losses[0].losses[0](draw_batch(), LABELS))


def test_weighted_sum_by_recipe(tmp_path):
    (tmp_path / "sum.toml").write_text(
        """
        [data]
        manifest = "photos"
        [loss]
        name = "weighted_sum"
        [[loss.terms]]
        name = "sup_h_ap"
        weight = 0.9
        [[loss.terms]]
        name = "sum_norm_softmax"
        weight = 0.1
        temperature = 0.1
        """
    )
    loss = create_recipe_loss(read_recipe(str(tmp_path / "sum.toml")), embedding_dim=6, class_counts=[4, 2])
    assert loss.weights == (0.9, 0.1)
    assert [tuple(table.shape) for table in loss.parameters()] == [(4, 6), (2, 6)]
    assert loss(draw_batch(), LABELS).isfinite()


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], r"^terms is \[\]; a list of losses is needed, each with its name, weight and options$"),
        ("sup_ap", r"weighted_sum.* terms .*'sup_ap'"),
        (["sup_ap"], r"weighted_sum.* terms .*'sup_ap'"),
        ([{"name": "sup_ap"}], r"^term 1 is \{'name': 'sup_ap'\}; a name and a weight are needed$"),
        ([*TERMS, {"name": "sup_pa", "weight": 1}], r"^term 3: unknown loss 'sup_pa': did you mean 'sup_ap'\?$"),
        ([{"name": "sup_ap", "weight": 1, "rh0": 3}], r"^term 1: loss 'sup_ap' has no option 'rh0': did you mean 'rho'"),
        ([{"name": "sup_ap", "weight": 1, "tau": -1}], r"^term 1: tau is -1;"),
        ([{"name": "arcface", "weight": 1}], r"^term 1: loss 'arcface' needs n_classes and embedding_dim$"),
        ([{"name": "sup_ap", "weight": "1"}], r"^term 1: weight is '1';"),
        ([{"name": "sup_ap", "weight": -1}], r"^term 1: weight is -1; a finite number"),
        ([{"name": "sup_ap", "weight": math.nan}], r"^term 1: weight is nan; a finite number"),
    ],
)
def test_bad_terms_are_refused(terms, message):
    known = {} if terms and "arcface" in str(terms) else {"n_classes": 4, "embedding_dim": 6}
    with pytest.raises(InputError, match=message):
        create_loss("weighted_sum", terms=terms, **known)


# Each term by its own name.

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
    embeddings = draw_batch().requires_grad_()
    value = loss(embeddings, LABELS)
    options = {"alpha": 5.0} if name == "happier_f" else {}
    known = {"n_classes": 4, "embedding_dim": 6} if side == "proxy" else {}
    parts = {RANKS[name]: create_loss(RANKS[name], **options), SIDES[side]: create_loss(SIDES[side], **known)}
    assert_close(loss.terms, {called: part(embeddings, LABELS).detach() for called, part in parts.items()})
    first, second = loss.terms.values()
    assert_close(0.7 * first + 0.3 * second, value.detach())
    assert not any(term.requires_grad for term in loss.terms.values())
    assert not any("terms" in key for key in loss.state_dict())


def test_terms_are_those_of_the_last_call_against_a_reference_set_too():
    loss, references = RoadmapLoss(), draw_batch(1, 5)
    loss(draw_batch(2), LABELS)
    loss(draw_batch(), LABELS, references, LABELS[:5])
    assert_close(loss.terms["sup_ap"], SupAPLoss()(draw_batch(), LABELS, references, LABELS[:5]))


def test_the_terms_of_a_sum_are_told_unweighted_and_apart():
    inner = {"name": "roadmap", "weight": 0.5}
    terms = [inner, *TERMS, {"name": "sup_ap", "weight": 2, "tau": 0.1}, {"name": "sum_triplet", "weight": 0}]
    loss = weighted_sum(terms, n_classes=4, embedding_dim=6, n_levels=2)
    value, told = loss(draw_batch(), LABELS), loss.terms
    assert list(told) == [
        "roadmap/sup_ap", "roadmap/calibration", "sup_ap", "norm_softmax", "sup_ap_2",
        "sum_triplet/level_0", "sum_triplet/level_1",
    ]  # fmt: skip
    weights = (0.25, 0.25, 0.9, 0.1, 2, 0, 0)
    assert_close(sum(weight * term for weight, term in zip(weights, told.values(), strict=True)), value.detach())
    assert_close(told["sup_ap_2"], SupAPLoss(0.1)(draw_batch(), LABELS))


def test_a_sum_without_names_counts_its_terms():
    loss = losses.WeightedSum([SupAPLoss(), losses.CalibrationLoss()], [0.5, 0.5])
    loss(draw_batch(), LABELS)
    assert list(loss.terms) == ["1", "2"]


def test_saved_and_loaded_is_never_stopped():
    terms = [{"name": "blackbox_ap", "weight": 1.0, "memory": 1}, {"name": "norm_softmax", "weight": 0.5}]
    whole, resumed = (weighted_sum(terms, n_classes=4, embedding_dim=6) for _ in range(2))
    whole(draw_batch(), LABELS)
    resumed.load_state_dict(whole.state_dict())
    assert_close(resumed(draw_batch(1), LABELS), whole(draw_batch(1), LABELS), rtol=0, atol=0)
