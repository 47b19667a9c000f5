"""Sums of losses: of a rank loss and a pair or proxy loss, over levels of labels, and of any terms."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from loss_cases import TREE, create, double, draw, draw_pairs, references, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.losses import create_loss, weighted_sum
from sightline.losses.base import flat_pairs
from sightline.losses.sums import PathNumbers, RoadmapLoss
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
    parts = [value_and_gradient(losses.sup_ap_loss, *tables, **rank)]
    parts += [value_and_gradient(losses.calibration_loss, *tables, **pair)]
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
SCORES = torch.rand(3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def worth_by_hand(row, alpha, n_levels=2):
    """The papers' relevance of one list, item by item: ``(l / L) ** alpha`` over the items that share just l levels."""
    return [(level / n_levels) ** alpha / row.count(level) if level else 0.0 for level in row]


def test_shared_levels_give_the_weighted_sum():
    for name, alpha in (("happier", 1.0), ("happier_f", 5.0)):
        worth = double([worth_by_hand(row, alpha) for row in SHARED.tolist()])
        parts = [losses.sup_h_ap_loss(SCORES[i : i + 1], worth[i : i + 1]) for i in range(3)]
        expected = 0.7 * sum(parts) / 3 + 0.3 * losses.calibration_loss(SCORES, SHARED == 2)
        assert_close(on_scores(name, SCORES, SHARED, weight=0.3), expected)
    gains = double([[0, 1, 3][level] for level in SHARED.flatten()]).view(3, 6)
    for relevance, is_relevant in ((SHARED, SHARED == 2), (gains, gains)):
        expected = 0.7 * losses.sup_ndcg_loss(SCORES, gains) + 0.3 * losses.calibration_loss(SCORES, is_relevant)
        assert_close(on_scores("rod_ndcg", SCORES, relevance, weight=0.3), expected)
    for level, n_levels in ((-1, None), (3, 2), (127, None)):
        wrong = SHARED.masked_fill(SHARED == 1, level)
        assert_refused(r"relevance.* 0 to \d+", on_scores, "happier", SCORES, wrong, n_levels=n_levels)
    scores, shared = SCORES[:1], SHARED[1:2]  # no pair shares the finest level: how many there are is given
    alone = on_scores("happier", scores, shared, n_levels=2, weight=0.0) + losses.calibration_loss(scores, shared == 2)
    assert_close(on_scores("happier", scores, shared, n_levels=2), alone / 2)
    assert (on_scores("happier", scores, shared) - alone / 2).abs() > 0.01


RANKS = {"roadmap": "sup_ap", "rod_recall": "sup_recall", "happier": "sup_h_ap", "rod_ndcg": "sup_ndcg"}
RANKS["happier_f"] = "sup_h_ap"
SIDES = {"calibration": "calibration", "proxy": "norm_softmax"}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", RANKS)
def test_both_terms_are_named_as_the_losses_that_they_are(name, side):
    loss, embeddings = create(name, decomposability=side, weight=0.3), draw(0, 12, 6).requires_grad_()
    assert loss.terms == {}
    value = loss(embeddings, TREE)
    rank = create_loss(RANKS[name], **{"alpha": 5.0} if name == "happier_f" else {})
    parts = {RANKS[name]: rank, SIDES[side]: create(SIDES[side])}
    assert_close(loss.terms, {called: part(embeddings, TREE).detach() for called, part in parts.items()})
    first, second = loss.terms.values()
    assert_close(0.7 * first + 0.3 * second, value.detach())
    assert not any(term.requires_grad for term in loss.terms.values())
    assert not any("terms" in key for key in loss.state_dict())
    assert_refused(r"'proxy'.*n_classes.*embedding_dim", create_loss, name, decomposability="proxy")
    if side == "proxy":
        assert_refused(r"'proxy'.*embeddings", loss.of_pairs, batch_pairs(embeddings, TREE))
    against = references(draw(1, 5, 6), TREE[:5])
    loss(embeddings, TREE, **against)
    assert_close(loss.terms[RANKS[name]], rank(embeddings, TREE, **against).detach())


@pytest.mark.parametrize("preset", ["released-code", "released-code-inaturalist"])
def test_released_weights_exponent_and_reduction(preset):
    """Section 8 of the losses: what the released files set where the papers say otherwise or nothing."""
    for name, term, paper, released in (
        ("rod_recall", "proxy", 0.1, 0.5),
        ("rod_recall", "calibration", 0.5, 0.5),
        ("happier", "proxy", 0.1, 0.1),
        ("happier_f", "proxy", 0.1, 0.5),
        ("rod_ndcg", "proxy", 0.1, 0.1),
    ):
        for options, weight in (({}, paper), ({"preset": preset}, released), ({"preset": preset, "weight": 0.3}, 0.3)):
            assert create(name, decomposability=term, **options).weight == weight
    counts = torch.tensor([[3, 1, 1]])
    for options, middle in [({}, 0.5**5), ({"preset": preset}, 0.5), ({"preset": preset, "alpha": 3.0}, 0.125)]:
        assert create("happier_f", **options).rank.relevance(counts).tolist() == [[0, middle, 1]]
    pairs = flat_pairs(torch.tensor([[0.95, 0.70, 0.65, 0.30, 0.61]]), torch.tensor([[1, 1, 0, 0, 0]]))
    for options, expected in (({}, 0.12), ({"preset": preset}, 0.23)):
        assert_close(create_loss("roadmap", weight=1.0, **options).of_pairs(pairs).item(), expected)


TERMS = [{"name": "sup_ap", "weight": 0.9, "tau": 0.02}, {"name": "norm_softmax", "weight": 0.1, "temperature": 0.1}]
SIZES = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2, "class_counts": [4, 2]}


def test_a_weighted_sum_names_its_terms_one_by_one_and_unweighted():
    terms = [{"name": "roadmap", "weight": 0.5}, *TERMS]
    terms += [{"name": "sup_ap", "weight": 2, "tau": 0.1}, {"name": "sum_triplet", "weight": 0}]
    loss = weighted_sum(terms, n_classes=4, embedding_dim=6, n_levels=2)
    value, terms = loss(draw(0, 12, 6), TREE), loss.terms
    weights = {"roadmap/sup_ap": 0.25, "roadmap/calibration": 0.25, "sup_ap": 0.9, "norm_softmax": 0.1, "sup_ap_2": 2}
    assert list(terms) == [*weights, "sum_triplet/level_0", "sum_triplet/level_1"]
    assert_close(sum(weight * terms[name] for name, weight in weights.items()), value.detach())
    assert_close(terms["sup_ap_2"], losses.SupAPLoss(0.1)(draw(0, 12, 6), TREE))
    for preset, reduction in (("paper", "mean"), ("released-code", "nonzero")):
        both = losses.SupAPLoss(preset=preset), losses.CalibrationLoss(reduction=reduction)
        unnamed = losses.WeightedSum(both, [0.7, 0.3])
        assert_close(unnamed(draw(0, 12, 6), TREE), RoadmapLoss(weight=0.3, preset=preset)(draw(0, 12, 6), TREE))
        assert list(unnamed.terms) == ["1", "2"]


def test_a_weighted_sum_gives_the_references_to_the_terms_that_take_them():
    embeddings, against = draw(0, 12, 6), references(draw(1, 5, 6), TREE[:5])
    names = ("calibration", "csl", "arcface", "proxy_nca_pp", "sum_norm_softmax", "sum_triplet")
    loss, expected = weighted_sum([{"name": name, "weight": 2} for name in names], **SIZES), 0
    for name, part in zip(names, loss.losses, strict=True):
        expected += 2 * part(embeddings, TREE, **(against if name in ("calibration", "sum_triplet") else {}))
    assert_close(loss(embeddings, TREE, **against), expected)
    without = weighted_sum([{"name": "csl", "weight": 1}], **SIZES)
    assert_refused("ref_emb, ref_labels", without, embeddings, TREE, **against)


def test_terms_may_be_sums_with_options_of_their_own_and_come_from_a_recipe(tmp_path):
    inner = {"name": "weighted_sum", "weight": 0.5, "terms": [{"name": "norm_softmax", "weight": 3, "n_classes": 9}]}
    loss = weighted_sum([inner, {"name": "calibration", "weight": 0}], n_classes=4, embedding_dim=6)
    assert loss.losses[0].losses[0].proxies.shape == (9, 6)
    assert_close(loss(draw(0, 12, 6), TREE), 1.5 * loss.losses[0].losses[0](draw(0, 12, 6), TREE))
    terms = """[[loss.terms]]\nname = "sup_h_ap"\nweight = 0.9\n[[loss.terms]]\nname = "sum_norm_softmax"\nweight = 0.1"""
    (tmp_path / "sum.toml").write_text(f'[data]\nmanifest = "photos"\n[loss]\nname = "weighted_sum"\n{terms}')
    loss = create_recipe_loss(read_recipe(str(tmp_path / "sum.toml")), embedding_dim=6, class_counts=[4, 2])
    assert loss.weights == (0.9, 0.1)
    assert [tuple(table.shape) for table in loss.parameters()] == [(4, 6), (2, 6)]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ([], ["terms", "[]"]),
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


# Fine, middle, coarse; middle name 0 recurs below coarse 0 and 1, fine name 1 below three middle classes.
PATHS = torch.tensor(
    [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [2, 0, 1], [2, 0, 1], [1, 0, 1], [3, 2, 1], [3, 2, 1]]
)
FINE = torch.tensor([0, 0, 2, 3, 3, 4, 4, 1, 5, 5])  # any number for each path
MIDDLE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
COUNTS = [6, 4, 2]
PROXY_LOSSES = {
    losses.norm_softmax_over_levels: losses.NormSoftmaxLoss,
    losses.proxy_nca_pp_over_levels: losses.ProxyNCAPPLoss,
}
every_proxy_loss = pytest.mark.parametrize(("make", "kind"), PROXY_LOSSES.items(), ids=["norm_softmax", "proxy_nca_pp"])


@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
def test_pair_losses_see_each_level_as_flat_classes(mining):
    loss, levels = losses.TripletLoss(0.3, mining), (FINE, MIDDLE, PATHS[:, 2])
    over_levels, alone = losses.triplet_over_levels(3, 0.3, mining), [loss(draw(), level) for level in levels]
    assert_close(over_levels(draw(), PATHS), sum(alone) / 3)
    assert_close(over_levels.terms, {f"level_{number}": one for number, one in enumerate(alone)})
    for same in ([loss] * 3, loss):
        assert_close(losses.sum_over_levels(same, draw(), PATHS.numpy()), sum(alone) / 3)
    rows = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    expected = sum(loss(draw(), level, **references(draw(50), level[rows])) for level in levels) / 3
    assert_close(over_levels(draw(), PATHS, **references(draw(50), PATHS[rows])), expected)
    assert_close(losses.sum_over_levels(loss, draw(), PATHS, draw(50), PATHS[rows]), expected)


@every_proxy_loss
def test_proxy_losses_have_one_table_a_level_and_number_paths_in_sorted_order(make, kind):
    """Sorted by fine, middle, coarse name: the order of ``unique``."""
    module, expected = make(COUNTS, 4).double(), 0
    assert [tuple(table.shape) for table in module.parameters()] == [(6, 4), (4, 4), (2, 4)]
    for level, loss in enumerate(module.losses):
        assert type(loss) is kind
        assert_close(loss.proxies, kind(COUNTS[level], 4, seed=level).proxies.double())
        numbers = PATHS[:, level:].unique(dim=0, return_inverse=True)[1]
        expected += losses.norm_softmax_loss(draw(), numbers, loss.proxies, loss.options["temperature"]) / 3
    found = module(draw(), PATHS)
    assert_close(found, expected)
    found.backward()
    assert all((table.grad != 0).any(1).all() for table in module.parameters())
    assert all(loss.options == {"temperature": 0.3} for loss in make(COUNTS, 4, temperature=0.3).losses)


@every_proxy_loss
def test_paths_given_beforehand_fix_the_numbers(make, kind):
    """Two processes that meet the classes in another order then agree."""
    one, other = (make(COUNTS, 4, paths=PATHS[order]).double() for order in (torch.arange(10), torch.arange(9, -1, -1)))
    one(draw(0, 3), PATHS[:3])
    other(draw(0, 2), PATHS[8:])
    assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert_close(one(draw(), PATHS), other(draw(), PATHS))
    assert_refused(r"labels.* 6 classes.*\[9, 9, 9\]", one, draw(0, 1), torch.tensor([[9, 9, 9]]))


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


def test_levels_and_sizes_that_do_not_fit_are_refused():
    proxies, triplet = losses.norm_softmax_over_levels, losses.triplet_over_levels(3)
    of_three, over_levels = partial(losses.NormSoftmaxLoss, 3, 4), losses.SumOverLevels
    for said, call, *arguments in (
        ("labels.* 3 levels.* 1", proxies(COUNTS, 4), draw(), FINE),
        ("labels.* 3 levels.* 1", triplet, draw(), FINE),
        ("indices_tuple.*level", triplet, draw(), PATHS, (FINE, FINE, FINE)),
        (r"labels.* 1 classes.*\[1\]", proxies([6, 4, 1], 4), draw(), PATHS),
        ("n_levels.* 0", losses.triplet_over_levels, 0),
        ("n_levels.* 0", proxies, [], 4),
        ("n_levels.* 0", losses.sum_over_levels, [], draw(), PATHS),
        ("losses.*prox", losses.sum_over_levels, losses.NormSoftmaxLoss(6, 4), draw(), PATHS),
        ("n_classes.* 0", proxies, [3, 0], 4),
        ("embedding_dim.* -1", losses.proxy_nca_pp_over_levels, [3, 2], -1),
        ("n_classes.* 2 .*3", over_levels, lambda level: of_three(), 2, [3]),
        ("n_classes.* 2 .*3", over_levels, lambda level: of_three(), 2, 3),
    ):
        assert_refused(said, call, *arguments)
    assert_refused("paths.*prox", over_levels, lambda level: losses.TripletLoss(), 3, paths=PATHS)
    assert_refused("paths.* 3 levels.* 2", proxies, COUNTS, 4, paths=PATHS[:, :2])
