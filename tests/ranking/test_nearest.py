import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from refusals import assert_refused
from sightline.ranking import nearest as exact
from sightline.ranking.nearest import top_k
from sightline.ranking.similarity import score_blocks

# The scores of these with one another are exact in any order of summation, so that ties are certain.
UNITS = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5]])


def draw(seed, n_queries=5, n_items=37, dim=24):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_queries, dim, generator=generator), torch.randn(n_items, dim, generator=generator)


def best_by_definition(scores, k):
    """The first k places by falling score, then by rising place."""
    return np.array([np.lexsort((np.arange(len(row)), -row))[:k] for row in np.asarray(scores)])


@given(
    queries=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    gallery=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    k=st.integers(1, 45),
)
def test_equal_scores_come_in_the_gallerys_order(queries, gallery, k):
    exact_scores = (UNITS[queries] @ UNITS[gallery].T).numpy()
    scores, places = top_k(UNITS[queries], UNITS[gallery], k)
    expected = best_by_definition(exact_scores, k)
    assert places.tolist() == expected.tolist()
    assert scores.tolist() == np.take_along_axis(exact_scores, expected, 1).tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 4, 100])
def test_the_nearest_by_cosine_computed_twice_as_precisely(seed, k):
    queries, gallery = draw(seed)
    wide = [side.double().numpy() for side in (queries, gallery)]
    cosines = wide[0] @ wide[1].T / np.linalg.norm(wide[0], axis=1)[:, None] / np.linalg.norm(wide[1], axis=1)
    scores, places = top_k(queries, gallery, k)
    expected = best_by_definition(cosines, k)
    assert places.shape == (5, min(k, 37))
    assert places.tolist() == expected.tolist()
    assert scores.dtype == torch.float32
    assert places.dtype == torch.int64
    assert_close(scores.double(), torch.from_numpy(np.take_along_axis(cosines, expected, 1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("seed", "n_queries", "n_items"), [(0, 1, 33), (1, 5, 33), (2, 1, 10001), (0, 7, 10001)])
def test_copies_of_one_vector_tie_whatever_their_place(seed, n_queries, n_items):
    # A plain matrix product gives the last copies another last bit, with one query or on several threads.
    queries, base = draw(seed, n_queries, n_items=2)
    which = torch.randint(2, (n_items,), generator=torch.Generator().manual_seed(seed))
    scores, places = top_k(queries, base[which], k=n_items)
    assert all(len(row.unique()) <= 2 for row in scores)
    for row in places:
        for number in (0, 1):
            copies = row[which[row] == number].tolist()
            assert copies == sorted(copies)


@pytest.mark.parametrize("n_elements", [1, 80, 200, 10**9])
def test_blocks_equal_the_whole(n_elements, monkeypatch):
    queries, gallery = UNITS[[0, 3, 1, 4, 2, 3, 0]], UNITS[torch.arange(37) % 5]
    whole = top_k(queries, gallery, 9)
    monkeypatch.setattr(exact, "BLOCK_ELEMENTS", n_elements)
    assert_close(top_k(queries, gallery, 9), whole, rtol=0, atol=0)
    blocks = list(score_blocks(queries, gallery, n_elements))
    assert [row for rows, _ in blocks for row in range(7)[rows]] == [*range(7)]
    assert all(scores.numel() <= max(n_elements, 37) for _, scores in blocks)
    assert_close(torch.cat([scores for _, scores in blocks]), queries @ gallery.T, rtol=0, atol=0)


def test_the_wider_type_counts_and_half_precision_is_widened():
    queries, gallery = draw(0)
    expected = top_k(queries.double(), gallery.double(), 5)
    assert_close(top_k(queries, gallery.double(), 5), expected)
    assert_close(top_k(queries.double(), gallery, 5), expected)
    halves = queries.half(), gallery.half()
    assert_close(top_k(*halves, 5), top_k(*(side.float() for side in halves), 5), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = top_k(queries, gallery, 5)
    assert_close(inside, top_k(queries, gallery, 5), rtol=0, atol=0)
    assert top_k(torch.zeros(1, 4), UNITS, 3)[1].tolist() == [[0, 1, 2]]  # a zero vector is like nothing


def test_nothing_to_search_for_or_in_gives_nothing():
    for n_queries, n_items, shape in ((0, 5, (0, 3)), (2, 0, (2, 0)), (0, 0, (0, 0))):
        scores, places = top_k(UNITS[:n_queries].half(), UNITS[:n_items], 3)
        assert scores.shape == places.shape == shape
        assert (scores.dtype, places.dtype) == (torch.float32, torch.int64)
    for gallery, k, said in ((UNITS[:, :3], 1, r"queries .*gallery .* 4 and 3"), (UNITS, 0, r"k .* 0$")):
        assert_refused(said, top_k, UNITS, gallery, k)
