"""Search by image in an embedding table, and in a gallery."""

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.query import search_images
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.ranking.refine import Refinement


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32)


@pytest.fixture(scope="module")
def table(encoder, image_tree):
    return embed_manifest(encoder, read_manifest(image_tree))


@pytest.fixture(scope="module")
def gallery(encoder, table, tmp_path_factory):
    with Gallery.create(tmp_path_factory.mktemp("g") / "gallery", encoder) as made:
        made.add_images(table)
        yield made


def test_an_image_of_the_table_finds_itself_and_then_the_nearest(encoder, table, gallery):
    wanted = [40, 3]
    images = [table.manifest.paths()[place] for place in wanted]
    found = search_images(encoder, table, images, k=4)
    for place, hits in zip(wanted, found, strict=True):
        cosines = table.vectors.astype(float) @ table.vectors[place].astype(float)
        expected = np.argsort(-cosines)[:4].tolist()
        assert expected[0] == place
        assert [hit.id for hit in hits] == [table.ids[other] for other in expected]
        np.testing.assert_allclose([hit.score for hit in hits], cosines[expected], atol=1e-5)
        row = table.manifest.table.row(place, named=True)
        assert hits[0].path == table.manifest.root / row["path"]
        assert hits[0].labels == (row["label_0"], row["label_1"])
    answers = gallery.search_images(images, 4)
    assert [[hit.id for hit in answer.results] for answer in answers] == [[hit.id for hit in hits] for hits in found]
    assert [answer.query_path for answer in answers] == [str(image) for image in images]
    assert [answer.results[0].path for answer in answers] == [image.resolve() for image in images]


def test_paths_texts_open_images_and_ids_are_queries(encoder, table, gallery, tmp_path):
    path, id_ = table.manifest.paths()[7], table.ids[7]
    expected = search_images(encoder, table, [path], k=3)
    files = encoder.save_pretrained(tmp_path / "encoder"), table.write(tmp_path / "t.parquet")
    for given in (load_image(path), str(path), [str(path)], [np.asarray(load_image(path))]):
        assert search_images(encoder, table, given, 3) == expected
    assert [hit.id for hit in search_images(str(files[0]), files[1], path, 3)[0]] == [hit.id for hit in expected[0]]
    for given in (path, str(path), [load_image(path)]):
        (answer,) = gallery.search_images(given, 3)
        assert [hit.id for hit in answer.results] == [hit.id for hit in expected[0]]
    assert [answer.query for answer in gallery.search_images([load_image(path), id_], 1)] == ["image in memory", id_]
    (answer,) = gallery.search_images(id_, 2, where='label_1 == "super0"', refinement=Refinement(expand=2))
    assert (len(answer.results), {hit.labels[1] for hit in answer.results}) == (2, {"super0"})
    assert len(gallery.search_images(path.parent)) == 6


def test_fewer_come_back_where_the_table_is_small_and_labels_may_be_missing(encoder, table):
    few = table.where(pl.col("label_0") == "class00")
    manifest = read_manifest(few.manifest.root / "super0" / "class00", labelled=False)
    unlabelled = EmbeddingTable(manifest, few.vectors, few.fingerprint)
    hits = search_images(encoder, unlabelled, [few.manifest.paths()[0]], k=100)[0]
    assert (len(hits), {hit.labels for hit in hits}, hits[0].id) == (6, {()}, "0.png")


def test_bad_requests_are_refused(encoder, table, gallery):
    other = Encoder.create("tiny", embedding_dim=8, image_size=32, seed=1)
    image = table.manifest.paths()[0]
    refused = [
        (lambda: search_images(other, table, [image], k=1), f"{table.fingerprint}, this one {other.fingerprint()}"),
        (lambda: search_images(encoder, table, [image], k=0), "k .* got 0"),
        (lambda: search_images(encoder, table, ["nowhere.png"]), r"nowhere\.png: no such file"),
        (lambda: search_images(encoder, [1], image), "EmbeddingTable, .* got Encoder and list"),
        (lambda: search_images(encoder, table, 5), "got int"),
        (lambda: gallery.search_images("nowhere.png"), r"unknown ids: 'nowhere\.png'; there is no image"),
        (lambda: gallery.search_images([]), "nothing to search for"),
        (lambda: gallery.search_images(table.vectors[:2]), "got ndarray; search takes vectors"),
        (lambda: gallery.search_images(image, "3"), "k .* got '3'"),
        (lambda: gallery.search_images(image, encoder=other), other.fingerprint()),
        (lambda: gallery.search_images(image, reject=True), "no rejector .*sightline ood fit --gallery"),
    ]
    for call, message in refused:
        assert_refused(message, call)
