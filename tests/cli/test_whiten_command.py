"""``sightline whiten`` and the steps of ``sightline evaluate``, as a user types them."""

import pytest

from sightline import EmbeddingTable, Encoder


@pytest.fixture
def table(sightline, encoder, image_tree, tmp_path):
    assert sightline("embed", encoder, image_tree, "--out", tmp_path / "table.parquet", "--workers", 0)[0] == 0
    return tmp_path / "table.parquet"


def test_a_whitening_of_its_own_and_a_whitened_encoder_are_measured_alike(sightline, encoder, table, image_tree, tmp_path):
    own, other, results = tmp_path / "w.safetensors", tmp_path / "whitened.parquet", tmp_path / "results.json"
    status, out, _ = sightline("whiten", encoder, table, "--out", own, "--dim", 6)
    assert (status, out) == (0, f"{own}: fitted on 72 vectors, 8 dimensions to 6, power 0.25\n")
    assert sightline("whiten", encoder, image_tree, "--out", tmp_path / "encoder2", "--dim", 6, "--workers", 0)[0] == 0
    assert sightline("embed", tmp_path / "encoder2", image_tree, "--out", other, "--workers", 0)[0] == 0
    assert EmbeddingTable.read(other).vectors.shape == (72, 6)
    assert EmbeddingTable.read(other).fingerprint != EmbeddingTable.read(table).fingerprint
    steps = ["--augment", 3, "--expand", 4, "--alpha", 1.5, "--rerank", "kreciprocal", "--depth", 30]
    status, whole, _ = sightline("evaluate", other, *steps)
    assert status == 0
    words = ["evaluate", table, "--whiten", own, *steps, "--json", results]
    assert sightline(*words)[1] == whole
    together = results.read_text()
    blocks = sightline(*words, "--each-step")[1].split("+ ")
    names = ["no step", "whitening", "augmentation by 3", "expansion by 4", "re-ranking kreciprocal"]
    assert [block.splitlines()[0] for block in blocks] == names
    assert blocks[-1] == f"re-ranking kreciprocal\n{whole}"
    assert blocks[0] == f"no step\n{sightline('evaluate', table)[1]}"
    assert results.read_text() == together  # the values of every query are those of all steps


def test_what_does_not_fit_is_one_message(check_refused, encoder, table, tmp_path):
    other = Encoder.create("tiny", 8, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    check_refused(["evaluate", table, "--whiten", "none.safetensors"], "none.safetensors: no such file")
    check_refused(["evaluate", table, "--rerank", "kreciprocl"], "'kreciprocl': did you mean 'kreciprocal'?")
    check_refused(["whiten", other, table, "--out", tmp_path / "out"], "must be of this encoder")
    check_refused(["whiten", encoder, table, "--out", tmp_path / "out", "--split", "val"], "val")
    assert not (tmp_path / "out").exists()
