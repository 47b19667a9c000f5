"""k-reciprocal re-ranking against its definition, written with sets."""

import math
from functools import cache

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.ranking import refine as rerank
from sightline.ranking.refine import kreciprocal_scores


def draw(seed, n_queries, n_candidates, dim=4):
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
    monkeypatch.setattr(rerank, "POOL_ELEMENTS", 300)  # several blocks
    queries, candidates = draw(k_1 + n_candidates, 5, n_candidates)
    for weight in (0.0, 0.3):
        expected = [
            scores_by_definition(query, near, k_1, k_2, weight)
            for query, near in zip(queries.tolist(), candidates.tolist(), strict=True)
        ]
        found = kreciprocal_scores(queries, candidates, k_1, k_2, weight)
        assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_an_outsider_near_the_query_falls_behind_the_querys_own_crowd():
    # The query sits at the edge of a crowd; a lone outsider is nearer to it than most of the crowd is.
    angles = torch.tensor([0.0, -0.11, 0.10, 0.12, 0.14, 0.16, 0.18, -0.13, -0.15, -0.17, -0.19, -0.21, -0.23])
    vectors = torch.stack([angles.cos(), angles.sin()], 1)
    plain = (vectors[1:] @ vectors[0]).argsort(descending=True)
    scores = kreciprocal_scores(vectors[:1], vectors[1:][None], k_1=4, k_2=2)[0]
    assert plain[1].item() == 0  # at -0.11: the query is not among its 4 nearest
    assert scores.argsort(descending=True).tolist().index(0) > 3


def test_scores_lie_between_0_and_1_and_do_not_depend_on_length_or_order():
    queries, candidates = draw(1, 4, 30)
    scores = kreciprocal_scores(queries, candidates, k_1=6, k_2=3)
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    assert_close(kreciprocal_scores(7 * queries, candidates / 3, k_1=6, k_2=3), scores)
    cosines = torch.cosine_similarity(queries[:, None], candidates, dim=2)
    by_cosine = kreciprocal_scores(queries, candidates, original_weight=1.0)
    assert by_cosine.argsort(1).tolist() == cosines.argsort(1).tolist()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert_close(kreciprocal_scores(queries, candidates[:, order], k_1=6, k_2=3), scores[:, order])


def test_copies_of_the_query_score_1_and_nothing_is_nan():
    alike = torch.ones(2, 5, 3)
    assert_close(kreciprocal_scores(alike[:, 0], alike, k_1=20, k_2=6), torch.ones(2, 5))
    assert kreciprocal_scores(alike[:, 0], alike[:, :0]).shape == (2, 0)
    assert kreciprocal_scores(alike[:0, 0], alike[:0]).shape == (0, 5)


def test_what_does_not_fit_is_refused():
    for option, value in (("k_1", 0), ("k_2", 0), ("original_weight", 1.5)):
        with pytest.raises(InputError, match=rf"{option}.* {value}"):
            kreciprocal_scores(torch.ones(1, 2), torch.ones(1, 3, 2), **{option: value})
    with pytest.raises(InputError, match=r"\(Q, M, D\).*\(2, 2\) and \(1, 3, 2\)"):
        kreciprocal_scores(torch.ones(2, 2), torch.ones(1, 3, 2))
