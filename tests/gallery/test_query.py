"""The steps after the first ranking, over a gallery of a dictionary."""

import numpy as np
import pytest
import torch

from refusals import assert_refused
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.query import best_matches, refined_search
from sightline.ranking.refine import Refinement, expand_queries, kreciprocal_scores


class Shelf:
    """A gallery that ranks by hand."""

    identity = EncoderIdentity("f", 6, "by hand")

    def __init__(self, vectors, years):
        self.items, self.years, self.n_searches = vectors, years, 0

    def search(self, queries, k=10, *, where=None):
        self.n_searches += 1
        shown = [name for name in self.items if where is None or eval(where, {"year": self.years[name]})]
        table = np.array([self.items[name] / np.linalg.norm(self.items[name]) for name in shown], np.float32)
        scores = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ table.reshape(len(shown), queries.shape[1]).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, 1), np.array(shown, object)[order]

    def vectors(self, ids):
        assert len(set(ids)) == len(ids)
        return np.array([self.items[name] for name in ids], np.float32)


@pytest.fixture
def shelf():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 6)).astype(np.float32)
    return Shelf({f"item {n}": row for n, row in enumerate(vectors)}, {f"item {n}": 2000 + n for n in range(30)})


@pytest.fixture
def queries():
    return np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def test_without_steps_it_is_the_gallerys_own_search(shelf, queries):
    expected = shelf.search(queries, 7)
    for given in (queries, queries.tolist(), torch.from_numpy(queries)):
        scores, ids = refined_search(shelf, given, k=7)
        assert (ids.tolist(), scores.tolist()) == (expected[1].tolist(), expected[0].tolist())


def test_expanded_queries_search_a_second_time(shelf, queries):
    table = torch.from_numpy(np.stack(list(shelf.items.values())))
    for alpha in (0.0, 2.0):
        scores, ids = refined_search(shelf, queries, 5, Refinement(expand=3, alpha=alpha))
        expected = shelf.search(expand_queries(torch.from_numpy(queries), table, 3, alpha).numpy(), 5)
        assert ids.tolist() == expected[1].tolist()
        np.testing.assert_allclose(scores, expected[0], atol=1e-6)
    assert shelf.n_searches == 6


@pytest.mark.parametrize(("k", "depth", "k_1", "k_2"), [(5, 12, 20, 6), (40, 12, 4, 1)])
def test_the_first_results_are_reranked(shelf, queries, k, depth, k_1, k_2):
    scores, ids = refined_search(shelf, queries, k, Refinement(rerank="kreciprocal", depth=depth, reciprocal=k_1))
    _, first = shelf.search(queries, max(k, depth))
    candidates = torch.from_numpy(np.stack([shelf.vectors(row) for row in first]))
    rescored = kreciprocal_scores(torch.from_numpy(queries), candidates, k_1, k_2).numpy()
    for row in range(4):
        expected = sorted(zip(-rescored[row], range(len(first[row])), first[row], strict=True))[:k]
        assert ids[row].tolist() == [name for _, _, name in expected]
        np.testing.assert_allclose(scores[row], [-score for score, _, _ in expected], atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("refinement", [Refinement(), Refinement(40), Refinement(3, rerank="kreciprocal")])
def test_a_query_of_the_gallery_neither_finds_nor_expands_itself_and_rows_that_end_early_are_filled(shelf, refinement):
    own = ["item 3", None, "item 9"]
    vectors = np.stack([shelf.items["item 3"], shelf.items["item 4"], shelf.items["item 9"]])
    _, ids = refined_search(shelf, vectors, 6, refinement, own=own)
    assert ids.shape == (3, 6)
    assert "item 3" not in ids[0]
    assert "item 9" not in ids[2]
    without = Shelf({name: row for name, row in shelf.items.items() if name != "item 3"}, shelf.years)
    assert ids[0].tolist() == refined_search(without, vectors[:1], 6, refinement)[1][0].tolist()
    scores, ids = refined_search(shelf, vectors, 50, refinement, own=own)
    assert ids.shape == scores.shape == (3, 30)
    assert (ids[0, -1], scores[0, -1]) == (None, -np.inf)
    assert sorted(ids[0, :-1]) == sorted(set(shelf.items) - {"item 3"})
    assert sorted(ids[1]) == sorted(shelf.items)


@pytest.mark.parametrize("refinement", [Refinement(), Refinement(4), Refinement(4, rerank="kreciprocal")])
def test_a_filter_holds_for_every_search(shelf, queries, refinement):
    _, ids = refined_search(shelf, queries, 20, refinement, where="year >= 2018")
    assert ids.shape == (4, 12)
    fewer = Shelf({name: row for name, row in shelf.items.items() if shelf.years[name] >= 2018}, shelf.years)
    assert ids.tolist() == refined_search(fewer, queries, 20, refinement)[1].tolist()
    assert refined_search(shelf, queries, 5, refinement, where="year > 3000")[1].shape == (4, 0)


def test_what_does_not_fit_is_refused(shelf, queries):
    for options, facts in (
        ({"expand": -1}, "expand .*-1"),
        ({"alpha": float("nan")}, "alpha .*nan"),
        ({"depth": 0}, "depth .*0"),
        ({"reciprocal": 0}, "reciprocal .*0"),
        ({"rerank": "kreciprocl"}, "'kreciprocl': did you mean 'kreciprocal'"),
    ):
        assert_refused(facts, Refinement, **options)
    for given, options, facts in (
        (queries, {"own": ["item 1"]}, "4 queries, got 1"),
        (queries[0], {}, r"\(N, 6\)"),
        (queries, {"k": 0}, "k .* got 0"),
        ([[1.0], [1.0, 2.0]], {}, "queries"),
    ):
        assert_refused(facts, refined_search, shelf, given, **options)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_a_query_is_an_item_by_its_id_or_by_its_direction(tmp_path, metric):
    vectors = np.array([[4, 0, 0], [0, 0.5, 0]], np.float32)
    queries = np.array([[2, 0.01, 0], [1, 1, 0], [0, 0.5, 0]], np.float32)
    with Gallery.create(tmp_path / "g", EncoderIdentity("f", 3, "by hand"), metric=metric) as gallery:
        scores, is_item = best_matches(gallery, queries, [None, None, "x"])
        assert (scores.tolist(), is_item.tolist()) == ([-1, -1, -1], [False, False, True])
        gallery.add(["a", "b"], vectors)
        scores, is_item = best_matches(gallery, queries, [None, None, "b"])
    assert is_item.tolist() == [True, False, True]
    expected = [8, 4, 0] if metric == "dot" else [2 / np.hypot(2, 0.01), np.sqrt(0.5), 0]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
