"""From a query to an answer: search by image in a table or a gallery, and the steps after the first ranking."""

import numpy as np
import polars as pl
import pytest
import torch
from drawn import assert_same

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.query import best_matches, refined_search, search_images
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
        assert len({*ids}) == len(ids)
        return np.array([self.items[name] for name in ids], np.float32)

    def where(self, keep):
        """Another with the items whose name and year pass."""
        return Shelf({name: row for name, row in self.items.items() if keep(name, self.years[name])}, self.years)


@pytest.fixture
def shelf():
    vectors = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    return Shelf({f"item {n}": row for n, row in enumerate(vectors)}, {f"item {n}": 2000 + n for n in range(30)})


@pytest.fixture
def queries():
    return np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def test_without_steps_it_is_the_gallerys_own_search_and_expanded_queries_search_twice(shelf, queries):
    for given in (queries, queries.tolist(), torch.from_numpy(queries)):
        assert_same(refined_search(shelf, given, k=7), shelf.search(queries, 7), 0)
    table, before = torch.from_numpy(np.stack(list(shelf.items.values()))), shelf.n_searches
    for alpha in (0.0, 2.0):
        expanded = expand_queries(torch.from_numpy(queries), table, 3, alpha).numpy()
        assert_same(refined_search(shelf, queries, 5, Refinement(expand=3, alpha=alpha)), shelf.search(expanded, 5), 1e-6)
    assert shelf.n_searches == before + 6


@pytest.mark.parametrize(("k", "depth", "k_1", "k_2"), [(5, 12, 20, 6), (40, 12, 4, 1)])
def test_the_first_results_are_reranked(shelf, queries, k, depth, k_1, k_2):
    scores, ids = refined_search(shelf, queries, k, Refinement(rerank="kreciprocal", depth=depth, reciprocal=k_1))
    _, first = shelf.search(queries, max(k, depth))
    candidates = torch.from_numpy(np.stack([shelf.vectors(row) for row in first]))
    rescored = kreciprocal_scores(torch.from_numpy(queries), candidates, k_1, k_2).numpy()
    for row in range(4):
        expected = sorted(zip(-rescored[row], range(len(first[row])), first[row], strict=True))[:k]
        assert_same(
            (scores[row], ids[row]), ([-score for score, _, _ in expected], [name for _, _, name in expected]), 1e-6
        )
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("refinement", [Refinement(), Refinement(40), Refinement(3, rerank="kreciprocal")])
def test_a_query_of_the_gallery_neither_finds_nor_expands_itself_and_a_filter_holds_for_every_search(
    shelf, queries, refinement
):
    own, vectors = ["item 3", None, "item 9"], shelf.vectors(["item 3", "item 4", "item 9"])
    _, ids = refined_search(shelf, vectors, 6, refinement, own=own)
    assert (ids.shape, "item 3" in ids[0], "item 9" in ids[2]) == ((3, 6), False, False)
    without = shelf.where(lambda name, _: name != "item 3")
    assert ids[0].tolist() == refined_search(without, vectors[:1], 6, refinement)[1][0].tolist()
    scores, ids = refined_search(shelf, vectors, 50, refinement, own=own)  # rows that end early are filled
    assert ids.shape == scores.shape == (3, 30)
    assert (ids[0, -1], scores[0, -1]) == (None, -np.inf)
    assert (sorted(ids[0, :-1]), sorted(ids[1])) == (sorted(without.items), sorted(shelf.items))
    _, ids = refined_search(shelf, queries, 20, refinement, where="year >= 2018")
    fewer = shelf.where(lambda _, year: year >= 2018)
    assert (ids.shape, ids.tolist()) == ((4, 12), refined_search(fewer, queries, 20, refinement)[1].tolist())
    assert refined_search(shelf, queries, 5, refinement, where="year > 3000")[1].shape == (4, 0)


def test_what_does_not_fit_is_refused(shelf, queries):
    for facts, call, arguments, options in (
        ("expand .*-1", Refinement, (), {"expand": -1}),
        ("alpha .*nan", Refinement, (), {"alpha": float("nan")}),
        ("depth .*0", Refinement, (), {"depth": 0}),
        ("reciprocal .*0", Refinement, (), {"reciprocal": 0}),
        ("'kreciprocl': did you mean 'kreciprocal'", Refinement, (), {"rerank": "kreciprocl"}),
        ("4 queries, got 1", refined_search, (shelf, queries), {"own": ["item 1"]}),
        (r"\(N, 6\)", refined_search, (shelf, queries[0]), {}),
        ("k .* got 0", refined_search, (shelf, queries), {"k": 0}),
        ("queries", refined_search, (shelf, [[1.0], [1.0, 2.0]]), {}),
    ):
        assert_refused(facts, call, *arguments, **options)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_a_query_is_an_item_by_its_id_or_by_its_direction(tmp_path, metric):
    vectors = np.array([[4, 0, 0], [0, 0.5, 0]], np.float32)
    queries = np.array([[2, 0.01, 0], [1, 1, 0], [0, 0.5, 0]], np.float32)
    with Gallery.create(tmp_path / "g", EncoderIdentity("f", 3, "by hand"), metric=metric) as gallery:
        assert_same(best_matches(gallery, queries, [None, None, "x"]), ([-1, -1, -1], [False, False, True]))
        gallery.add(["a", "b"], vectors)
        expected = [8, 4, 0] if metric == "dot" else [2 / np.hypot(2, 0.01), np.sqrt(0.5), 0]
        assert_same(best_matches(gallery, queries, [None, None, "b"]), (expected, [True, False, True]), 1e-6)


@pytest.fixture(scope="module")
def gallery(encoder, table, tmp_path_factory):
    with Gallery.create(tmp_path_factory.mktemp("g") / "gallery", encoder) as made:
        made.add_images(table)
        yield made


def test_an_image_of_the_table_finds_itself_and_then_the_nearest(encoder, table, gallery):
    wanted = [40, 3]
    images = [table.manifest.paths()[place] for place in wanted]
    found, answers = search_images(encoder, table, images, k=4), gallery.search_images(images, 4)
    for place, hits in zip(wanted, found, strict=True):
        cosines = table.vectors.astype(float) @ table.vectors[place].astype(float)
        expected = np.argsort(-cosines)[:4].tolist()
        assert expected[0] == place
        of_hits = [hit.score for hit in hits], [hit.id for hit in hits]
        assert_same(of_hits, (cosines[expected], [table.ids[other] for other in expected]))
        row = table.manifest.table.row(place, named=True)
        assert (hits[0].path, hits[0].labels) == (table.manifest.root / row["path"], (row["label_0"], row["label_1"]))
    assert [[hit.id for hit in answer.results] for answer in answers] == [[hit.id for hit in hits] for hits in found]
    assert [answer.query_path for answer in answers] == [str(image) for image in images]
    assert [answer.results[0].path for answer in answers] == [image.resolve() for image in images]


def test_paths_texts_open_images_and_ids_are_queries(encoder, table, gallery, tmp_path):
    path, id_ = table.manifest.paths()[7], table.ids[7]
    image, expected = load_image(path), search_images(encoder, table, [path], k=3)
    saved = str(encoder.save_pretrained(tmp_path / "encoder")), table.write(tmp_path / "t.parquet")
    for given in (image, str(path), [str(path)], [np.asarray(image)]):
        assert search_images(encoder, table, given, 3) == expected
    answers = [gallery.search_images(given, 3)[0].results for given in (path, str(path), [image])]
    for hits in (search_images(*saved, path, 3)[0], *answers):
        assert [hit.id for hit in hits] == [hit.id for hit in expected[0]]
    assert [answer.query for answer in gallery.search_images([image, id_], 1)] == ["image in memory", id_]
    (answer,) = gallery.search_images(id_, 2, where='label_1 == "super0"', refinement=Refinement(expand=2))
    assert (len(answer.results), {hit.labels[1] for hit in answer.results}) == (2, {"super0"})
    assert len(gallery.search_images(path.parent)) == 6
    few = table.where(pl.col("label_0") == "class00")  # fewer than k, without labels
    manifest = read_manifest(few.manifest.root / "super0" / "class00", labelled=False)
    unlabelled = EmbeddingTable(manifest, few.vectors, few.fingerprint)
    hits = search_images(encoder, unlabelled, [few.manifest.paths()[0]], k=100)[0]
    assert (len(hits), {hit.labels for hit in hits}, hits[0].id) == (6, {()}, "0.png")


def test_images_that_cannot_be_searched_for_are_refused(encoder, other_encoder, table, gallery):
    other, image = other_encoder.fingerprint(), table.manifest.paths()[0]
    for facts, call, arguments, options in (
        (f"{table.fingerprint}, this one {other}", search_images, (other_encoder, table, [image]), {}),
        ("k .* got 0", search_images, (encoder, table, [image]), {"k": 0}),
        (r"nowhere\.png: no such file", search_images, (encoder, table, ["nowhere.png"]), {}),
        ("EmbeddingTable, .* got Encoder and list", search_images, (encoder, [1], image), {}),
        ("got int", search_images, (encoder, table, 5), {}),
        (r"unknown ids: 'nowhere\.png'; there is no image", gallery.search_images, ("nowhere.png",), {}),
        ("nothing to search for", gallery.search_images, ([],), {}),
        ("got ndarray; search takes vectors", gallery.search_images, (table.vectors[:2],), {}),
        ("k .* got '3'", gallery.search_images, (image, "3"), {}),
        (other, gallery.search_images, (image,), {"encoder": other_encoder}),
        ("no rejector .*sightline ood fit --gallery", gallery.search_images, (image,), {"reject": True}),
    ):
        assert_refused(facts, call, *arguments, **options)
