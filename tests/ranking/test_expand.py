"""Query expansion and database augmentation: the specification's vectors, and loops over the definition."""

import math

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.ranking import refine as expand
from sightline.ranking.nearest import neighbours
from sightline.ranking.refine import augment_gallery, expand_queries

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


@pytest.mark.parametrize(
    ("alpha", "k", "expected"),
    [
        (0, 2, [0.95274427, 0.30377353]),
        (2, 2, [0.96594149, 0.25876058]),
        (3, 2, [0.97112675, 0.23856410]),
        (2, 3, [0.94209225, 0.33535383]),
    ],
)
def test_worked_queries(alpha, k, expected):
    assert_close(expand_queries(QUERY, GALLERY, k, alpha)[0].tolist(), expected, rtol=0, atol=5e-9)


def test_worked_gallery():
    expected = [
        [0.81102604, 0.58501005],
        [0.55718997, 0.83038505],
        [0.36244626, 0.93200467],
        [0.84059947, 0.54165722],
    ]
    assert_close(augment_gallery(GALLERY, k=2, alpha=2).tolist(), expected, rtol=0, atol=5e-9)


@pytest.mark.parametrize("alpha", [0, 0.5, 3])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_queries_and_items_by_definition(k, alpha, monkeypatch):
    monkeypatch.setattr(expand, "SUMMED_ELEMENTS", 40)  # several blocks
    queries, gallery = draw(k, 6), draw(k + 100, 11)
    own = torch.tensor([-1, 3, 0, -1, 10, 3])
    expected = [
        expanded_by_definition(query, gallery.tolist(), k, alpha, place)
        for query, place in zip(queries.tolist(), own.tolist(), strict=True)
    ]
    assert_close(expand_queries(queries, gallery, k, alpha, own), torch.tensor(expected, dtype=torch.float64))
    expected = [expanded_by_definition(item, gallery.tolist(), k, alpha, n) for n, item in enumerate(gallery.tolist())]
    assert_close(augment_gallery(gallery, k, alpha), torch.tensor(expected, dtype=torch.float64))


def test_no_neighbour_or_a_large_power_leaves_the_query():
    queries, gallery = draw(0, 4), draw(1, 9)
    plain = torch.nn.functional.normalize(queries, dim=1)
    assert_close(expand_queries(queries, gallery, k=0), plain)
    assert_close(expand_queries(queries, gallery, k=5, alpha=1e4), plain)
    assert_close(expand_queries(queries, gallery[:0], k=5), plain)
    assert expand_queries(queries[:0], gallery).shape == (0, 5)


def test_items_on_the_other_side_of_the_query_have_no_weight():
    gallery = torch.tensor([[-1.0, 0.1]])
    assert_close(expand_queries(QUERY.float(), gallery, k=1, alpha=2), QUERY.float())
    assert expand_queries(QUERY.float(), gallery, k=1, alpha=0)[0, 1] > 0.9  # but all count alike in the plain average
    for options in ({"k": -1}, {"alpha": -0.5}, {"alpha": math.nan}):
        with pytest.raises(InputError, match=rf"{next(iter(options))} .* {next(iter(options.values()))}"):
            expand_queries(QUERY, GALLERY, **options)


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
