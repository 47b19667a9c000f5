"""Sets of labels and relevance matrices in place of classes: every ranking loss against its function on the table."""

from functools import partial

import pytest
import torch
from loss_cases import both, draw, value_and_gradient
from torch.testing import assert_close

from refusals import assert_refused
from sightline import losses
from sightline.losses import LOSSES, create_loss
from sightline.losses.base import flat_pairs
from sightline.ranking.similarity import cosine_scores

RANKED = [
    name for name in LOSSES if name.startswith(("sup_", "smooth_", "softbin_", "fast_", "blackbox_")) and name != "sup_con"
]
ON_PAIRS = [*RANKED, "calibration", "contrastive", "roadmap", "sup_con", "triplet", "xbm_contrastive"]
OPTIONS = {"triplet": {"mining": "all"}}  # no semi-hard triplet breaks the margin in these batches
OTHERS = ~torch.eye(9, dtype=torch.bool)


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


def function_of(name):
    def roadmap(*tables):
        return create_loss("roadmap").of_pairs(flat_pairs(*tables))

    return partial(getattr(losses, f"{name}_loss", roadmap), **OPTIONS.get(name, {}))


@both
@pytest.mark.parametrize("name", ON_PAIRS)
def test_sets_of_labels_and_relevance_matrices(name, dtype):
    assert (len(RANKED), len(ON_PAIRS)) == (12, 18)
    sets, ref_sets, matrix, of_items = draw_sets(1, 9), draw_sets(2, 12), draw_relevance(1, 9, 9), draw_relevance(2, 9, 12)
    embeddings, items, loss = draw(0, 9, dtype=dtype), draw(3, 12, dtype=dtype), create_loss(name, **OPTIONS.get(name, {}))
    for labels, beside, relevance in (
        (sets, {}, share_of_the_querys_labels(sets, sets)),
        (sets, {"ref_emb": items, "ref_labels": ref_sets}, share_of_the_querys_labels(sets, ref_sets)),
        (matrix, {}, matrix),
        (of_items, {"ref_emb": items}, of_items),
    ):
        against = (lambda leaf: cosine_scores(leaf, items)) if beside else (lambda leaf: cosine_scores(leaf, leaf))
        mask, function = None if beside else OTHERS, function_of(name)
        expected = value_and_gradient(lambda leaf: function(against(leaf), relevance, mask), embeddings)  # noqa: B023
        assert expected[0] > 0
        assert_close(value_and_gradient(loss, embeddings, labels, **beside), expected)
    for nothing in (sets & False, matrix * 0):
        value, gradient = value_and_gradient(loss, embeddings, nothing)
        assert gradient.isfinite().all()
        assert value.item() == 0 or name not in RANKED


@both
@pytest.mark.parametrize("name", [name for name in RANKED if name.startswith(("sup_", "smooth_", "softbin_"))])
def test_the_released_code_ranks_the_query_itself(name, dtype):
    embeddings, relevance = draw(0, 9, dtype=dtype), draw_relevance(1, 9, 9).fill_diagonal_(2.5)
    scores = cosine_scores(embeddings, embeddings)
    for preset in ("released-code", "released-code-inaturalist"):
        options = {"preset": preset} if name.startswith("sup_") else {}
        expected = getattr(losses, f"{name}_loss")(scores, relevance, **options)  # nothing is masked
        assert_close(create_loss(name, preset=preset)(embeddings, relevance), expected)


@pytest.mark.parametrize("name", ["blackbox_ap", "blackbox_recall"])
def test_sets_of_labels_are_kept_in_memory(name):
    loss = create_loss(name, memory=1)
    loss(draw(0, 9), draw_sets(1, 9))
    found = loss(draw(1, 5), draw_sets(2, 5))
    scores = cosine_scores(draw(1, 5), torch.cat([draw(1, 5), draw(0, 9)]))
    worth = share_of_the_querys_labels(draw_sets(2, 5), torch.cat([draw_sets(2, 5), draw_sets(1, 9)]))
    mask = torch.cat([~torch.eye(5, dtype=torch.bool), torch.ones(5, 9, dtype=torch.bool)], 1)
    assert_close(found, function_of(name)(scores, worth, mask))


def test_what_needs_classes_refuses_others():
    for name, options, labels in (
        ("softbin_ap", {"class_balanced": True}, draw_sets(1, 9)),
        ("triplet", {"mining": "distance-weighted"}, draw_sets(1, 9)),
        ("arcface", {"n_classes": 4, "embedding_dim": 4}, draw_sets(1, 9)),
        ("sum_triplet", {"n_levels": 2}, draw_sets(1, 9)),
        ("blackbox_ap", {"memory": 1}, draw_relevance(1, 9, 9)),
    ):
        assert_refused(rf"labels.*{labels.dtype}", create_loss(name, **options), draw(0, 9), labels)
    for option in ("include_query", "mixup"):
        assert_refused(option, create_loss, "smooth_recall", preset="released-code", **{option: True})
