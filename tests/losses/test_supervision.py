"""Sets of labels and relevance matrices in place of classes: every ranking loss against its function on the table."""

from functools import partial

import pytest
import torch
from loss_cases import both, references, value_and_gradient
from loss_cases import draw as draw_vectors
from torch.testing import assert_close

from sightline import losses
from sightline.errors import InputError
from sightline.losses import LOSSES, create_loss
from sightline.losses.base import flat_pairs
from sightline.ranking.similarity import cosine_scores

RANKED = [name for name in LOSSES if name.startswith(("sup_", "smooth_", "softbin_", "fast_", "blackbox_"))]
ON_PAIRS = [*RANKED, "calibration", "contrastive", "roadmap", "triplet", "xbm_contrastive"]
every_name = pytest.mark.parametrize("name", ON_PAIRS)
OPTIONS = {"triplet": {"mining": "all"}}  # no semi-hard triplet breaks the margin in these batches
OTHERS = ~torch.eye(9, dtype=torch.bool)


def draw(seed, n_items, dtype=torch.float64):
    return draw_vectors(seed, n_items, 5, dtype)


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
    return torch.tensor(
        [[int((one & other).sum()) / max(1, int(one.sum())) for other in ref_sets] for one in sets], dtype=torch.float64
    )


def roadmap_on_scores(scores, relevance, mask):
    return create_loss("roadmap").of_pairs(flat_pairs(scores, relevance, mask))


def assert_equal_to_the_function(name, module_call, relevance, mask, items, dtype):
    function = partial(getattr(losses, f"{name}_loss", roadmap_on_scores), **OPTIONS.get(name, {}))
    embeddings = draw(0, 9, dtype)
    expected = value_and_gradient(
        lambda leaf: function(cosine_scores(leaf, leaf if items is None else items), relevance, mask), embeddings
    )
    assert expected[0] > 0
    assert_close(value_and_gradient(module_call, embeddings), expected)


@both
@every_name
def test_sets_of_labels(name, dtype):
    assert (len(RANKED), len(ON_PAIRS)) == (12, 17)
    sets, ref_sets, items = draw_sets(1, 9), draw_sets(2, 12), draw(3, 12, dtype)
    loss = create_loss(name, **OPTIONS.get(name, {}))
    worth = share_of_the_querys_labels(sets, sets)
    assert_equal_to_the_function(name, lambda leaf: loss(leaf, sets), worth, OTHERS, None, dtype)
    worth = share_of_the_querys_labels(sets, ref_sets)
    against = references(items, ref_sets)
    assert_equal_to_the_function(name, lambda leaf: loss(leaf, sets, **against), worth, None, items, dtype)
    nothing = value_and_gradient(loss, draw(0, 9, dtype), torch.zeros(9, 4, dtype=torch.bool))
    assert all(part.isfinite().all() for part in nothing)
    assert nothing[0].item() == 0 or name not in RANKED


@both
@every_name
def test_a_relevance_matrix(name, dtype):
    relevance, of_items, items = draw_relevance(1, 9, 9), draw_relevance(2, 9, 12), draw(3, 12, dtype)
    loss = create_loss(name, **OPTIONS.get(name, {}))
    assert_equal_to_the_function(name, lambda leaf: loss(leaf, relevance), relevance, OTHERS, None, dtype)
    assert_equal_to_the_function(name, lambda leaf: loss(leaf, of_items, ref_emb=items), of_items, None, items, dtype)


@both
@pytest.mark.parametrize("name", [name for name in RANKED if name.startswith("sup_")])
@pytest.mark.parametrize("preset", ["released-code", "released-code-inaturalist"])
def test_the_released_code_ranks_the_query_itself(name, preset, dtype):
    relevance = draw_relevance(1, 9, 9).fill_diagonal_(2.5)
    scores = cosine_scores(draw(0, 9, dtype), draw(0, 9, dtype))
    expected = getattr(losses, f"{name}_loss")(scores, relevance, preset=preset)
    assert_close(create_loss(name, preset=preset)(draw(0, 9, dtype), relevance), expected)


@pytest.mark.parametrize("name", ["smooth_ap", "smooth_h_ap", "smooth_ndcg", "smooth_recall", "softbin_ap"])
def test_the_baselines_rank_the_query_itself_as_released(name):
    embeddings, classes = draw(0, 9, torch.float64), torch.arange(9) % 3
    scores, relevant = cosine_scores(embeddings, embeddings), (classes[:, None] == classes).double()
    expected = getattr(losses, f"{name}_loss")(scores, relevant)  # nothing masked: each query is in its own list
    assert_close(create_loss(name, preset="released-code")(embeddings, classes), expected)
    assert create_loss(name)(embeddings, classes) > expected + 0.02, "a sure first hit makes the loss smaller"
    if name == "smooth_recall":
        for option in ("include_query", "mixup"):
            with pytest.raises(InputError, match=option):
                create_loss(name, preset="released-code", **{option: True})


@pytest.mark.parametrize("name", ["blackbox_ap", "blackbox_recall"])
def test_sets_of_labels_are_kept_in_memory(name):
    loss = create_loss(name, memory=1)
    loss(draw(0, 9), draw_sets(1, 9))
    found = loss(draw(1, 5), draw_sets(2, 5))
    scores = cosine_scores(draw(1, 5), torch.cat([draw(1, 5), draw(0, 9)]))
    worth = share_of_the_querys_labels(draw_sets(2, 5), torch.cat([draw_sets(2, 5), draw_sets(1, 9)]))
    mask = torch.cat([~torch.eye(5, dtype=torch.bool), torch.ones(5, 9, dtype=torch.bool)], 1)
    assert_close(found, getattr(losses, f"{name}_loss")(scores, worth, mask))


def test_what_classes_alone_can_do_refuses_sets():
    for name, options in (
        ("softbin_ap", {"class_balanced": True}),
        ("triplet", {"mining": "distance-weighted"}),
        ("norm_softmax", {"n_classes": 4, "embedding_dim": 5}),
        ("happier", {"n_classes": 4, "embedding_dim": 5}),
        ("sum_triplet", {"n_levels": 2}),
    ):
        with pytest.raises(InputError, match=r"labels.*torch\.bool"):
            create_loss(name, **options)(draw(0, 9), draw_sets(1, 9))
    with pytest.raises(InputError, match=r"labels.*torch\.float32"):
        create_loss("blackbox_ap", memory=1)(draw(0, 9), draw_relevance(1, 9, 9))
