"""Losses on items with several codes: what each sees of them, one pair at a time, and one proxy a code at each depth."""

import math

import numpy as np
import pytest
import torch
from loss_cases import draw, value_and_gradient
from torch.testing import assert_close

from refusals import assert_refused
from sightline import losses
from sightline.labels.codes import CodeRelevance
from sightline.losses import create_loss, list_losses
from sightline.losses.several_codes import CodesLoss, ItemCodes
from sightline.ranking.similarity import cosine_scores

SETS = [
    ["1.1.1", "9.1.1"],
    ["1.1.1"],
    ["1.1.2"],
    ["1.2.1", "9.1.1"],
    ["2.1.1"],
    ["2.1.2", "1.1.2", "9.1.2"],
    ["2.1.1"],
    ["3.1.1"],
]
GRADED = ("smooth_h_ap", "smooth_ndcg", "sup_h_ap", "sup_ndcg")
FLAT = (
    "blackbox_ap",
    "blackbox_recall",
    "calibration",
    "contrastive",
    "fast_ap",
    "smooth_ap",
    "smooth_recall",
    "softbin_ap",
)
FLAT += ("sup_ap", "sup_con", "sup_recall", "triplet", "xbm_contrastive")
ON_PROXIES = ("happier", "happier_f", "norm_softmax", "proxy_nca_pp", "sum_norm_softmax", "sum_proxy_nca_pp")
ON_PROXIES += ("binary_cross_entropy", "sum_binary_cross_entropy")  # see test_classification.py
OTHERS = ("each_label_ap", "roadmap", "rod_ndcg", "rod_recall", "sum_triplet", "weighted_sum")
REFUSED = ("arcface", "csl")
OPTIONS = {"triplet": {"mining": "all"}}


def shared_depth(code, other):
    return next((n for n, pair in enumerate(zip(code.split("."), other.split("."), strict=True)) if len({*pair}) > 1), 3)


def tables(queries, items, level):
    """What each item is worth to each query, in 120 grades, and whether they share a code of the level."""
    depth = [[[max(shared_depth(code, one) for one in item) for code in query] for item in items] for query in queries]
    worth = [[max(round(40 * sum(row) / len(row)), 1) / 120 if any(row) else 0.0 for row in rows] for rows in depth]
    return torch.tensor(worth).double(), torch.tensor([[max(row) >= 3 - level for row in rows] for rows in depth])


def made(name, level=0, **options):
    codes = ItemCodes(SETS, CodeRelevance(3), level)
    known = {"n_classes": codes.counts[level], "embedding_dim": 4, "n_levels": 3, "code_counts": codes.counts}
    known |= {"class_counts": codes.counts, "terms": [{"name": "sup_h_ap", "weight": 1.0}]}
    known = {key: value for key, value in known.items() if key in losses.loss_options(name)}
    return CodesLoss(create_loss(name, **known | options).double(), codes)


@pytest.mark.parametrize("level", [0, 2])
def test_each_loss_sees_what_it_asks_for(level):
    assert sorted([*GRADED, *FLAT, *ON_PROXIES, *OTHERS, *REFUSED]) == list_losses()
    embeddings, items, numbers = draw(0, 8), draw(1, 5), torch.arange(8)
    chosen = torch.tensor([5, 0, 0, 7, 2])
    of_chosen = [SETS[number] for number in chosen.tolist()]
    for name in (*GRADED, *FLAT):
        loss, function = made(name, level, **OPTIONS.get(name, {})), getattr(losses, f"{name}_loss")
        for beside, others, others_codes, mask in (
            ({}, None, SETS, ~torch.eye(8, dtype=torch.bool)),
            ({"ref_emb": items, "ref_labels": chosen}, items, of_chosen, None),
        ):
            worth, relevant = tables(SETS, others_codes, level)
            judged = worth if name in GRADED else relevant

            def expected(leaf, function=function, judged=judged, mask=mask, others=others, name=name):
                scores = cosine_scores(leaf, leaf if others is None else others)
                return function(scores, judged, mask, **OPTIONS.get(name, {}))

            assert_close(
                value_and_gradient(loss, embeddings, numbers, **beside), value_and_gradient(expected, embeddings), msg=name
            )
        joined = {"ref_emb": torch.cat([embeddings, items]), "ref_labels": torch.cat([numbers, chosen])}
        mask = torch.cat([~torch.eye(8, dtype=torch.bool), torch.ones(8, 5, dtype=torch.bool)], 1)
        judged = tables(SETS, SETS + of_chosen, level)[name not in GRADED]
        scores = cosine_scores(embeddings, joined["ref_emb"])
        assert_close(loss(embeddings, numbers, **joined), function(scores, judged, mask, **OPTIONS.get(name, {})), msg=name)


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


@pytest.mark.parametrize("seed", range(3))
def test_happier_has_one_proxy_for_each_code_of_each_depth(seed):
    embeddings, numbers = draw(seed, 6), torch.tensor([0, 5, 3, 5, 7, 1])
    sets = [SETS[number] for number in numbers.tolist()]
    loss = made("happier")
    with torch.no_grad():
        for number, table in enumerate(loss.parameters()):
            table.copy_(draw(10 * seed + number, len(table)))
    proxies = [*loss.parameters()]
    assert [len(table) for table in proxies] == [8, 5, 4]
    term = proxies_by_definition(embeddings, sets, proxies, 0.05)
    rank = losses.sup_h_ap_loss(cosine_scores(embeddings, embeddings), tables(sets, sets, 0)[0], ~torch.eye(6).bool())
    assert_close(loss(embeddings, numbers).item(), (0.9 * rank + 0.1 * term).item())
    assert_close(
        {name: value.item() for name, value in loss.terms.items()}, {"sup_h_ap": rank.item(), "sum_norm_softmax": term}
    )
    references = loss(embeddings, numbers, ref_emb=draw(9, 2), ref_labels=torch.tensor([5, 0]))
    rank = losses.sup_h_ap_loss(cosine_scores(embeddings, draw(9, 2)), tables(sets, [SETS[5], SETS[0]], 0)[0])
    assert_close(references.item(), (0.9 * rank + 0.1 * term).item())
    flat = made("norm_softmax")
    with torch.no_grad():
        flat.loss.proxies.copy_(proxies[0])
    one_depth = made("sum_norm_softmax")
    with torch.no_grad():
        for table, given in zip(one_depth.parameters(), proxies, strict=True):
            table.copy_(given)
    one_depth(embeddings, numbers)
    assert_close(flat(embeddings, numbers), one_depth.terms["level_0"])


def test_proxies_of_sets_with_one_label_are_those_of_classes_and_no_label_counts_as_no_item():
    embeddings, proxies, classes = draw(0, 5), draw(1, 3), torch.tensor([0, 2, 1, 0, 2])
    sets = torch.nn.functional.one_hot(classes).bool()
    expected = losses.norm_softmax_loss(embeddings, classes, proxies)
    assert_close(losses.norm_softmax_loss(embeddings, sets, proxies), expected)
    more = torch.cat([embeddings, draw(2, 1)]), torch.cat([sets, torch.zeros(1, 3, dtype=torch.bool)])
    assert_close(losses.norm_softmax_loss(*more, proxies), expected)
    assert losses.norm_softmax_loss(embeddings, sets & False, proxies) == 0
    assert_refused([r"(5, 3)", "(5, 2)"], losses.norm_softmax_loss, embeddings, sets[:, :2], proxies)


def test_sums_and_each_code_are_made_of_the_same_parts():
    embeddings, numbers = draw(3, 8), torch.arange(8)
    worth, relevant = tables(SETS, SETS, 0)
    mask, scores = ~torch.eye(8, dtype=torch.bool), cosine_scores(embeddings, embeddings)
    flat = losses.sup_ap_loss(scores, relevant, mask) + losses.calibration_loss(scores, relevant, mask)
    assert_close(made("roadmap")(embeddings, numbers), flat / 2)
    assert_close(made("weighted_sum")(embeddings, numbers), losses.sup_h_ap_loss(scores, worth, mask))
    by_level = [losses.triplet_loss(scores, tables(SETS, SETS, level)[1], mask) for level in range(3)]
    assert_close(made("sum_triplet")(embeddings, numbers), sum(by_level) / 3)
    called = sorted({code for codes in SETS for code in codes})
    sets = torch.from_numpy(np.array([[code in codes for code in called] for codes in SETS]))
    assert_close(made("each_label_ap")(embeddings, numbers), losses.each_label_ap_loss(scores, sets, sets, mask))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in REFUSED),
        ("blackbox_ap", {"memory": 1}),
        ("softbin_ap", {"class_balanced": True}),
        ("triplet", {"mining": "distance-weighted"}),
    ],
)
def test_what_needs_one_class_an_item_refuses_several_codes(name, options):
    assert_refused("codes", made(name, **options), draw(0, 8), torch.arange(8))


def test_levels_and_arguments_that_do_not_fit_are_refused():
    assert_refused(["level", "3", "got 3"], ItemCodes, SETS, CodeRelevance(3), 3)
    assert_refused(["ref_emb"], made("sup_ap"), draw(0, 8), torch.arange(8), ref_emb=draw(1, 2))
    outside = CodesLoss(create_loss("torch.nn:TripletMarginLoss", trust=True), ItemCodes(SETS, CodeRelevance(3)))
    assert_refused(["TripletMarginLoss", "codes"], outside, draw(0, 8), torch.arange(8))
