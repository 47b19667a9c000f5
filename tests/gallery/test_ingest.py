"""Galleries made from embedding tables: vectors are taken as they are."""

import numpy as np
import polars as pl
import pytest

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path_factory.mktemp("e") / "encoder")


@pytest.fixture(scope="module")
def table(encoder, image_tree, tmp_path_factory):
    embedded = embed_manifest(Encoder.from_pretrained(encoder), read_manifest(image_tree))
    return embedded.write(tmp_path_factory.mktemp("t") / "table.parquet")


def test_a_table_makes_a_gallery_and_its_folder_is_the_same_source(sightline, encoder, table, image_tree, tmp_path):
    build = ["index", "build", encoder, table, "--out", tmp_path / "g", "--workers", 0]
    status, out, _ = sightline(*build)
    assert (status, "72 added" in out) == (0, True)
    embedded = EmbeddingTable.read(table)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        np.testing.assert_allclose(gallery.vectors(embedded.ids), embedded.vectors, atol=1e-6)
        assert gallery.metadata(embedded.ids[:1])[0]["label_1"] == "super0"
    assert "72 unchanged" in sightline("index", "add", tmp_path / "g", table)[1]
    # Its images are of one source with it: they are embedded once, as no hash of theirs was known.
    assert "72 changed" in sightline("index", "add", tmp_path / "g", image_tree, "--workers", 0)[1]
    assert "72 unchanged" in sightline("index", "add", tmp_path / "g", table)[1]
    assert "72 unchanged" in sightline("index", "add", tmp_path / "g", image_tree, "--workers", 0)[1]


def test_other_vectors_labels_and_splits_of_a_table(sightline, encoder, table, tmp_path):
    embedded = EmbeddingTable.read(table)
    few = embedded.where(pl.col("label_0") == "class00")
    assert sightline("index", "build", encoder, table, "--out", tmp_path / "g")[0] == 0
    with Gallery.open(tmp_path / "g") as gallery:
        other = EmbeddingTable(few.manifest, few.vectors[::-1].copy(), few.fingerprint)
        done = index_images(gallery, None, other, prune=True)
        assert (done.changed, done.pruned, len(gallery)) == (6, 66, 6)
        np.testing.assert_allclose(gallery.vectors(few.ids), other.vectors, atol=1e-6)
        renamed = few.manifest.table.with_columns(label_1=pl.lit("other"))
        manifest = type(few.manifest)(few.manifest.source, few.manifest.root, renamed, few.manifest.n_levels)
        assert str(index_images(gallery, None, EmbeddingTable(manifest, other.vectors, few.fingerprint))) == "6 relabelled"
        assert {row["label_1"] for row in gallery.metadata(few.ids)} == {"other"}


def test_a_table_of_another_encoder_is_refused_by_fingerprint(sightline, encoder, table, tmp_path):
    embedded = EmbeddingTable.read(table)
    foreign = EmbeddingTable(embedded.manifest, embedded.vectors, "00ff").write(tmp_path / "foreign.parquet")
    assert sightline("index", "build", encoder, table, "--out", tmp_path / "g")[0] == 0
    status, _, err = sightline("index", "add", tmp_path / "g", foreign)
    assert (status, "00ff" in err, embedded.fingerprint in err) == (2, True, True)
    with Gallery.open(tmp_path / "g") as gallery, pytest.raises(InputError, match="00ff"):
        index_images(gallery, None, EmbeddingTable.read(foreign))
