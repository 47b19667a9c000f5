"""Expansion, augmentation and k-reciprocal re-ranking: the specification's vectors, and loops over the definitions."""

import math
from functools import cache

import pytest
import torch
from torch.testing import assert_close

from refusals import assert_refused
from sightline.ranking import refine
from sightline.ranking.nearest import neighbours
from sightline.ranking.refine import augment_gallery, expand_queries, kreciprocal_scores

QUERY = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
GALLERY = torch.tensor([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0], [0.96, 0.28]], dtype=torch.float64)


def draw(seed, n, dim=5):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_by_definition(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def expanded_by_definition(query, gallery, k, alpha, own=-1):
    query = unit_by_definition(query)
    items = [unit_by_definition(item) for item in gallery]
    scored = sorted(
        ((sum(a * b for a, b in zip(query, item, strict=True)), place) for place, item in enumerate(items) if place != own),
        key=lambda pair: (-pair[0], pair[1]),
    )
    total = list(query)
    for score, place in scored[:k]:
        weight = max(score, 0.0) ** alpha
        total = [a + weight * b for a, b in zip(total, items[place], strict=True)]
    return unit_by_definition(total)


def test_worked_queries_and_gallery():
    worked = (0, 2, [0.95274427, 0.30377353]), (3, 2, [0.97112675, 0.23856410]), (2, 3, [0.94209225, 0.33535383])
    for alpha, k, expected in worked:
        assert_close(expand_queries(QUERY, GALLERY, k, alpha)[0].tolist(), expected, rtol=0, atol=5e-9)
    expected = [[0.81102604, 0.58501005], [0.55718997, 0.83038505], [0.36244626, 0.93200467], [0.84059947, 0.54165722]]
    assert_close(augment_gallery(GALLERY, k=2, alpha=2).tolist(), expected, rtol=0, atol=5e-9)


@pytest.mark.parametrize("alpha", [0, 0.5, 3])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_queries_and_items_by_definition(k, alpha, monkeypatch):
    monkeypatch.setattr(refine, "SUMMED_ELEMENTS", 40)  # several blocks
    queries, gallery = draw(k, 6), draw(k + 100, 11)
    own = torch.tensor([-1, 3, 0, -1, 10, 3])
    expected = [
        expanded_by_definition(query, gallery.tolist(), k, alpha, place)
        for query, place in zip(queries.tolist(), own.tolist(), strict=True)
    ]
    assert_close(expand_queries(queries, gallery, k, alpha, own), torch.tensor(expected, dtype=torch.float64))
    expected = [expanded_by_definition(item, gallery.tolist(), k, alpha, n) for n, item in enumerate(gallery.tolist())]
    assert_close(augment_gallery(gallery, k, alpha), torch.tensor(expected, dtype=torch.float64))


def test_no_neighbour_a_large_power_or_items_on_the_other_side_leave_the_query():
    queries, gallery = draw(0, 4), draw(1, 9)
    plain = torch.nn.functional.normalize(queries, dim=1)
    for items, options in ((gallery, {"k": 0}), (gallery, {"k": 5, "alpha": 1e4}), (gallery[:0], {"k": 5})):
        assert_close(expand_queries(queries, items, **options), plain)
    assert expand_queries(queries[:0], gallery).shape == (0, 5)
    behind = torch.tensor([[-1.0, 0.1]])
    assert_close(expand_queries(QUERY.float(), behind, k=1, alpha=2), QUERY.float())
    assert expand_queries(QUERY.float(), behind, k=1, alpha=0)[0, 1] > 0.9  # but all count alike in the plain average


def test_an_item_is_left_out_by_its_place_not_by_its_score():
    copies = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    scores, places = neighbours(copies, copies, 1, own=torch.arange(3))
    assert places.tolist() == [[1], [0], [0]]
    assert scores.tolist() == [[1.0], [1.0], [0.0]]
    scores, places = neighbours(copies, copies, 7, own=torch.tensor([0, -1, 2]))
    assert places.tolist() == [[1, 2, -1], [0, 1, 2], [0, 1, -1]]
    assert scores[0].tolist() == [1.0, 0.0, -math.inf]
    # Many copies before it: it is not among those looked at, and nothing else is lost.
    many = torch.ones(50, 2)
    assert neighbours(many, many, 2, own=torch.arange(50))[1][40].tolist() == [0, 1]


def draw_candidates(seed, n_queries, n_candidates, dim=4):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_queries, dim, generator=generator, dtype=torch.float64)
    near = queries[:, None] + 1.2 * torch.randn(n_queries, n_candidates, dim, generator=generator, dtype=torch.float64)
    return queries, near


def scores_by_definition(query, candidates, k_1, k_2, original_weight):
    pool = [[x / math.hypot(*vector) for x in vector] for vector in [query, *candidates]]
    everyone = range(len(pool))
    squared = [[sum((a - b) ** 2 for a, b in zip(pool[p], pool[g], strict=True)) for g in everyone] for p in everyone]
    d = [[squared[p][g] / max(squared[p]) for g in everyone] for p in everyone]

    @cache
    def nearest(p, k):
        others = sorted((g for g in everyone if g != p), key=lambda g: (d[p][g], g))
        return {p, *others[:k]}

    @cache
    def reciprocal(p, k):
        return {g for g in nearest(p, k) if p in nearest(g, k)}

    def extended(p):
        members = reciprocal(p, k_1)
        found = set(members)
        for q in members:
            half = reciprocal(q, max(1, round(k_1 / 2)))
            if len(members & half) * 3 >= 2 * len(half):
                found |= half
        return found

    described = []
    for p in everyone:
        weights = {g: math.exp(-d[p][g]) for g in extended(p)}
        described.append([weights.get(g, 0) / sum(weights.values()) for g in everyone])
    averaged = []
    for p in everyone:
        some = nearest(p, k_2 - 1)
        averaged.append([sum(described[q][g] for q in some) / len(some) for g in everyone])

    def jaccard(p, g):
        smaller = sum(min(a, b) for a, b in zip(averaged[p], averaged[g], strict=True))
        return 1 - smaller / sum(max(a, b) for a, b in zip(averaged[p], averaged[g], strict=True))

    return [1 - (1 - original_weight) * jaccard(0, g) - original_weight * d[0][g] for g in everyone if g]


@pytest.mark.parametrize(("k_1", "k_2"), [(1, 1), (4, 2), (7, 6), (100, 100)])
@pytest.mark.parametrize("n_candidates", [1, 9, 25])
def test_scores_by_definition(k_1, k_2, n_candidates, monkeypatch):
    monkeypatch.setattr(refine, "POOL_ELEMENTS", 300)  # several blocks
    queries, candidates = draw_candidates(k_1 + n_candidates, 5, n_candidates)
    for weight in (0.0, 0.3):
        expected = [
            scores_by_definition(query, near, k_1, k_2, weight)
            for query, near in zip(queries.tolist(), candidates.tolist(), strict=True)
        ]
        found = kreciprocal_scores(queries, candidates, k_1, k_2, weight)
        assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_scores_lie_between_0_and_1_and_do_not_depend_on_length_or_order():
    queries, candidates = draw_candidates(1, 4, 30)
    scores = kreciprocal_scores(queries, candidates, k_1=6, k_2=3)
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    assert_close(kreciprocal_scores(7 * queries, candidates / 3, k_1=6, k_2=3), scores)
    cosines = torch.cosine_similarity(queries[:, None], candidates, dim=2)
    by_cosine = kreciprocal_scores(queries, candidates, original_weight=1.0)
    assert by_cosine.argsort(1).tolist() == cosines.argsort(1).tolist()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert_close(kreciprocal_scores(queries, candidates[:, order], k_1=6, k_2=3), scores[:, order])
    alike = torch.ones(2, 5, 3)
    assert_close(kreciprocal_scores(alike[:, 0], alike, k_1=20, k_2=6), torch.ones(2, 5))
    assert kreciprocal_scores(alike[:, 0], alike[:, :0]).shape == (2, 0)
    assert kreciprocal_scores(alike[:0, 0], alike[:0]).shape == (0, 5)


def test_what_does_not_fit_is_refused():
    for name, value in (("k", -1), ("alpha", -0.5), ("alpha", math.nan)):
        assert_refused([name, str(value)], expand_queries, QUERY, GALLERY, **{name: value})
    for option, value in (("k_1", 0), ("k_2", 0), ("original_weight", 1.5)):
        assert_refused(rf"{option}.* {value}", kreciprocal_scores, torch.ones(1, 2), torch.ones(1, 3, 2), **{option: value})
    assert_refused(["(2, 2)", "(1, 3, 2)"], kreciprocal_scores, torch.ones(2, 2), torch.ones(1, 3, 2))
