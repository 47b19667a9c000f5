"""Sets of labels, relevance matrices and several codes an item in place of classes: each loss against its definition.

That is its function on a table made one pair at a time, and with codes one proxy for each code of each depth.
"""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from loss_cases import both, draw, options_of, references, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.labels.codes import CodeRelevance
from sightline.losses import LOSSES, create_loss, list_losses
from sightline.losses.base import flat_pairs
from sightline.losses.several_codes import CodesLoss, ItemCodes
from sightline.ranking.similarity import cosine_scores

GRADED = {"smooth_h_ap", "smooth_ndcg", "sup_h_ap", "sup_ndcg"}
RANKED = {
    name for name in LOSSES if name.startswith(("sup_", "smooth_", "softbin_", "fast_", "blackbox_")) and name != "sup_con"
}
ON_PAIRS = sorted({*RANKED, "calibration", "contrastive", "roadmap", "sup_con", "triplet", "xbm_contrastive"})
ON_PROXIES = {"happier", "happier_f", "norm_softmax", "proxy_nca_pp", "sum_norm_softmax", "sum_proxy_nca_pp"}
ON_PROXIES |= {"binary_cross_entropy", "sum_binary_cross_entropy"}  # see test_classification.py
OTHERS = {"each_label_ap", "rod_ndcg", "rod_recall", "sum_triplet", "weighted_sum"}
OPTIONS = {"triplet": {"mining": "all"}}  # no semi-hard triplet breaks the margin in these batches


def function_of(name):
    def roadmap(*tables):
        return create_loss("roadmap").of_pairs(flat_pairs(*tables))

    return partial(getattr(losses, f"{name}_loss", roadmap), **OPTIONS.get(name, {}))


def expected_of(name, embeddings, items, relevance, mask=None):
    """By the function on the cosines; against no items, the batch without each query itself."""
    mask = ~torch.eye(len(embeddings), dtype=torch.bool) if items is None else mask

    def loss(leaf):
        return function_of(name)(cosine_scores(leaf, leaf if items is None else items), relevance, mask)

    return value_and_gradient(loss, embeddings)


def draw_sets(seed, n_items):
    """Up to four labels an item; item 2 has none."""
    sets = torch.rand(n_items, 4, generator=torch.Generator().manual_seed(seed)) < 0.4
    sets[2] = False
    return sets


def draw_relevance(seed, n_queries, n_items):
    """Grades 0, 0.5, 1 and 2.5, one way only: what answers a query need not be answered by it. Query 2 has no answer."""
    grades = torch.randint(0, 4, (n_queries, n_items), generator=torch.Generator().manual_seed(seed))
    relevance = torch.tensor([0.0, 0.5, 1.0, 2.5])[grades]
    relevance[2] = 0
    return relevance


def share_of_the_querys_labels(sets, ref_sets):
    """One pair at a time."""
    shares = [[int((one & other).sum()) / max(1, int(one.sum())) for other in ref_sets] for one in sets]
    return torch.tensor(shares, dtype=torch.float64)


@both
@pytest.mark.parametrize("name", ON_PAIRS)
def test_sets_of_labels_and_relevance_matrices(name, dtype):
    assert (len(RANKED), len(ON_PAIRS)) == (12, 18)
    sets, ref_sets, matrix, of_items = draw_sets(1, 9), draw_sets(2, 12), draw_relevance(1, 9, 9), draw_relevance(2, 9, 12)
    embeddings, items, loss = draw(0, 9, dtype=dtype), draw(3, 12, dtype=dtype), create_loss(name, **OPTIONS.get(name, {}))
    for labels, beside, relevance in (
        (sets, {}, share_of_the_querys_labels(sets, sets)),
        (sets, references(items, ref_sets), share_of_the_querys_labels(sets, ref_sets)),
        (matrix, {}, matrix),
        (of_items, {"ref_emb": items}, of_items),
    ):
        expected = expected_of(name, embeddings, beside.get("ref_emb"), relevance)
        assert expected[0] > 0
        assert_close(value_and_gradient(loss, embeddings, labels, **beside), expected)
    for nothing in (sets & False, matrix * 0):
        value, gradient = value_and_gradient(loss, embeddings, nothing)
        assert gradient.isfinite().all()
        assert value.item() == 0 or name not in RANKED


@both
@pytest.mark.parametrize("name", sorted(name for name in RANKED if name.startswith(("sup_", "smooth_", "softbin_"))))
def test_the_released_code_ranks_the_query_itself(name, dtype):
    embeddings, relevance = draw(0, 9, dtype=dtype), draw_relevance(1, 9, 9).fill_diagonal_(2.5)
    scores = cosine_scores(embeddings, embeddings)
    for preset in ("released-code", "released-code-inaturalist"):
        options = {"preset": preset} if name.startswith("sup_") else {}
        expected = function_of(name)(scores, relevance, **options)  # nothing is masked
        assert_close(create_loss(name, preset=preset)(embeddings, relevance), expected)


@pytest.mark.parametrize("name", ["blackbox_ap", "blackbox_recall"])
def test_sets_of_labels_are_kept_in_memory(name):
    loss, items, sets = create_loss(name, memory=1), torch.cat([draw(1, 5), draw(0, 9)]), draw_sets(2, 5)
    loss(draw(0, 9), draw_sets(1, 9))
    worth = share_of_the_querys_labels(sets, torch.cat([sets, draw_sets(1, 9)]))
    expected = function_of(name)(cosine_scores(draw(1, 5), items), worth, ~torch.eye(5, 14, dtype=torch.bool))
    assert_close(loss(draw(1, 5), sets), expected)


SETS = [["1.1.1", "9.1.1"], ["1.1.1"], ["1.1.2"], ["1.2.1", "9.1.1"], ["2.1.1"], ["2.1.2", "1.1.2", "9.1.2"]]
SETS += [["2.1.1"], ["3.1.1"]]
NUMBERS = torch.arange(8)


def shared_depth(code, other):
    return next((n for n, pair in enumerate(zip(code.split("."), other.split("."), strict=True)) if len({*pair}) > 1), 3)


def tables(queries, items, level=0):
    """What each item is worth to each query, in 120 grades, and whether they share a code of the level."""
    depth = [[[max(shared_depth(code, one) for one in item) for code in query] for item in items] for query in queries]
    worth = [[max(round(40 * sum(row) / len(row)), 1) / 120 if any(row) else 0.0 for row in rows] for rows in depth]
    return torch.tensor(worth).double(), torch.tensor([[max(row) >= 3 - level for row in rows] for rows in depth])


def made(name, level=0, **options):
    codes = ItemCodes(SETS, CodeRelevance(3), level)
    known = {"n_classes": codes.counts[level], "embedding_dim": 4, "n_levels": 3, "code_counts": codes.counts}
    known |= {"class_counts": codes.counts, "terms": [{"name": "sup_h_ap", "weight": 1.0}]}
    return CodesLoss(create_loss(name, **options_of(name, known) | options).double(), codes)


@pytest.mark.parametrize("level", [0, 2])
def test_of_codes_each_loss_sees_what_it_asks_for(level):
    assert sorted({*ON_PAIRS, *ON_PROXIES, *OTHERS, "arcface", "csl"}) == list_losses()
    embeddings, items, chosen = draw(0, 8), draw(1, 5), torch.tensor([5, 0, 0, 7, 2])
    of_chosen = [SETS[number] for number in chosen.tolist()]
    joined = {"ref_emb": torch.cat([embeddings, items]), "ref_labels": torch.cat([NUMBERS, chosen])}
    for name in ON_PAIRS:
        loss, is_flat = made(name, level, **OPTIONS.get(name, {})), name not in GRADED
        for others_codes, beside in ((SETS, {}), (of_chosen, references(items, chosen))):
            expected = expected_of(name, embeddings, beside.get("ref_emb"), tables(SETS, others_codes, level)[is_flat])
            assert_close(value_and_gradient(loss, embeddings, NUMBERS, **beside), expected, msg=name)
        judged, scores = tables(SETS, SETS + of_chosen, level)[is_flat], cosine_scores(embeddings, joined["ref_emb"])
        expected = function_of(name)(scores, judged, ~torch.eye(8, 13, dtype=torch.bool))  # nobody against itself
        assert_close(loss(embeddings, NUMBERS, **joined), expected, msg=name)


def nodes(codes, depth):
    return {".".join(code.split(".")[:depth]) for code in codes}


def proxies_by_definition(embeddings, sets, tables, temperature):
    """The mean over depths, coarser last, of the mean over items of the mean over their codes of -log softmax."""
    total = 0.0
    for depth, proxies in zip((3, 2, 1), tables, strict=True):
        called = sorted({node for codes in SETS for node in nodes(codes, depth)})
        for vector, codes in zip(embeddings.tolist(), sets, strict=True):
            cosines = [
                sum(a * b for a, b in zip(vector, proxy, strict=True)) / math.hypot(*vector) / math.hypot(*proxy)
                for proxy in proxies.tolist()
            ]
            weights = [math.exp(cosine / temperature) for cosine in cosines]
            own = [-math.log(weights[called.index(node)] / sum(weights)) for node in nodes(codes, depth)]
            total += sum(own) / len(own) / len(sets) / 3
    return total


def with_proxies(name, tables):
    loss = made(name)
    with torch.no_grad():
        for own, given in zip(loss.parameters(), tables, strict=True):
            own.copy_(given)
    return loss


@pytest.mark.parametrize("seed", range(3))
def test_happier_has_one_proxy_for_each_code_of_each_depth(seed):
    embeddings, numbers = draw(seed, 6), torch.tensor([0, 5, 3, 5, 7, 1])
    sets = [SETS[number] for number in numbers.tolist()]
    proxies = [draw(10 * seed + number, n_codes) for number, n_codes in enumerate((8, 5, 4))]
    loss, term = with_proxies("happier", proxies), proxies_by_definition(embeddings, sets, proxies, 0.05)
    rank = losses.sup_h_ap_loss(cosine_scores(embeddings, embeddings), tables(sets, sets)[0], ~torch.eye(6).bool())
    assert_close(loss(embeddings, numbers).item(), (0.9 * rank + 0.1 * term).item())
    assert_close(
        {called: one.item() for called, one in loss.terms.items()}, {"sup_h_ap": rank.item(), "sum_norm_softmax": term}
    )
    found = loss(embeddings, numbers, ref_emb=draw(9, 2), ref_labels=torch.tensor([5, 0]))
    rank = losses.sup_h_ap_loss(cosine_scores(embeddings, draw(9, 2)), tables(sets, [SETS[5], SETS[0]])[0])
    assert_close(found.item(), (0.9 * rank + 0.1 * term).item())
    each_depth, flat = with_proxies("sum_norm_softmax", proxies), with_proxies("norm_softmax", proxies[:1])
    each_depth(embeddings, numbers)
    assert_close(flat(embeddings, numbers), each_depth.terms["level_0"])


def test_proxies_of_sets_with_one_label_are_those_of_classes_and_no_label_counts_as_no_item():
    embeddings, proxies, classes = draw(0, 5), draw(1, 3), torch.tensor([0, 2, 1, 0, 2])
    sets = torch.nn.functional.one_hot(classes).bool()
    expected = losses.norm_softmax_loss(embeddings, classes, proxies)
    assert_close(losses.norm_softmax_loss(embeddings, sets, proxies), expected)
    more = torch.cat([embeddings, draw(2, 1)]), torch.cat([sets, torch.zeros(1, 3, dtype=torch.bool)])
    assert_close(losses.norm_softmax_loss(*more, proxies), expected)
    assert losses.norm_softmax_loss(embeddings, sets & False, proxies) == 0
    assert_refused(["(5, 3)", "(5, 2)"], losses.norm_softmax_loss, embeddings, sets[:, :2], proxies)


def test_of_codes_sums_and_each_code_are_made_of_the_same_parts():
    embeddings, worth, mask = draw(3, 8), tables(SETS, SETS)[0], ~torch.eye(8, dtype=torch.bool)
    scores = cosine_scores(embeddings, embeddings)
    assert_close(made("weighted_sum")(embeddings, NUMBERS), losses.sup_h_ap_loss(scores, worth, mask))
    by_level = [losses.triplet_loss(scores, tables(SETS, SETS, level)[1], mask) for level in range(3)]
    assert_close(made("sum_triplet")(embeddings, NUMBERS), sum(by_level) / 3)
    called = sorted({code for codes in SETS for code in codes})
    sets = torch.tensor([[code in codes for code in called] for codes in SETS])
    assert_close(made("each_label_ap")(embeddings, NUMBERS), losses.each_label_ap_loss(scores, sets, sets, mask))


def test_what_needs_one_class_an_item_refuses_others():
    for name, options, labels in (
        ("softbin_ap", {"class_balanced": True}, draw_sets(1, 8)),
        ("triplet", {"mining": "distance-weighted"}, draw_sets(1, 8)),
        ("arcface", {"n_classes": 4, "embedding_dim": 4}, draw_sets(1, 8)),
        ("sum_triplet", {"n_levels": 2}, draw_sets(1, 8)),
        ("blackbox_ap", {"memory": 1}, draw_relevance(1, 8, 8)),
        ("csl", {}, None),
    ):
        if labels is not None:
            assert_refused(rf"labels.*{labels.dtype}", create_loss(name, **options), draw(0, 8), labels)
        if name != "sum_triplet":
            assert_refused("codes", made(name, **options), draw(0, 8), NUMBERS)
    assert_refused(["level", "3", "got 3"], ItemCodes, SETS, CodeRelevance(3), 3)
    assert_refused(["ref_emb"], made("sup_ap"), draw(0, 8), NUMBERS, ref_emb=draw(1, 2))
    outside = CodesLoss(create_loss("torch.nn:TripletMarginLoss", trust=True), ItemCodes(SETS, CodeRelevance(3)))
    assert_refused(["TripletMarginLoss", "codes"], outside, draw(0, 8), NUMBERS)
    for option in ("include_query", "mixup"):
        assert_refused(option, create_loss, "smooth_recall", preset="released-code", **{option: True})
