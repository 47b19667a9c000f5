import numpy as np
import polars as pl
import pytest

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.gallery.query import search_images
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", embedding_dim=8, image_size=32)


@pytest.fixture(scope="module")
def table(encoder, image_tree):
    return embed_manifest(encoder, read_manifest(image_tree))


def test_an_image_of_the_table_finds_itself_and_then_the_nearest(encoder, table):
    wanted = [40, 3]
    found = search_images(encoder, table, [table.manifest.paths()[place] for place in wanted], k=4)
    for place, hits in zip(wanted, found, strict=True):
        cosines = table.vectors.astype(float) @ table.vectors[place].astype(float)
        expected = np.argsort(-cosines)[:4].tolist()
        assert expected[0] == place
        assert [hit.id for hit in hits] == [table.ids[other] for other in expected]
        np.testing.assert_allclose([hit.score for hit in hits], cosines[expected], atol=1e-5)
        row = table.manifest.table.row(place, named=True)
        assert hits[0].path == table.manifest.root / row["path"]
        assert hits[0].labels == (row["label_0"], row["label_1"])
        assert hits[0].labels[0].startswith("class")
        assert hits[0].labels[1].startswith("super")


def test_an_open_image_finds_what_its_file_does(encoder, table):
    path = table.manifest.paths()[7]
    assert search_images(encoder, table, [load_image(path)], k=3) == search_images(encoder, table, [path], k=3)


def test_fewer_come_back_where_the_table_is_small_and_labels_may_be_missing(encoder, table):
    few = table.where(pl.col("label_0") == "class00")
    unlabelled = EmbeddingTable(
        read_manifest(few.manifest.root / "super0" / "class00", labelled=False), few.vectors, few.fingerprint
    )
    hits = search_images(encoder, unlabelled, [few.manifest.paths()[0]], k=100)[0]
    assert len(hits) == 6
    assert {hit.labels for hit in hits} == {()}
    assert hits[0].id == "0.png"


def test_a_table_of_another_encoder_is_refused_with_both_fingerprints(encoder, table):
    other = Encoder.create("tiny", embedding_dim=8, image_size=32, seed=1)
    with pytest.raises(InputError, match=f"another encoder: .*{table.fingerprint}, this one {other.fingerprint()}"):
        search_images(other, table, [table.manifest.paths()[0]], k=1)


def test_bad_requests_are_refused(encoder, table):
    with pytest.raises(InputError, match="k is 0"):
        search_images(encoder, table, [table.manifest.paths()[0]], k=0)
    with pytest.raises(InputError, match=r"nowhere\.png: no such file"):
        search_images(encoder, table, ["nowhere.png"], k=1)
