"""``sightline whiten`` and the steps of ``sightline evaluate``, as a user types them."""

import pytest

from sightline import EmbeddingTable, Encoder


@pytest.fixture
def encoder(tmp_path):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path / "encoder")


def test_a_whitening_of_its_own_and_a_whitened_encoder_are_measured_alike(sightline, encoder, image_tree, tmp_path):
    table, other = tmp_path / "table.parquet", tmp_path / "whitened.parquet"
    assert sightline("embed", encoder, image_tree, "--out", table, "--workers", 0)[0] == 0
    status, out, _ = sightline("whiten", encoder, table, "--out", tmp_path / "w.safetensors", "--dim", 6)
    assert (status, out) == (0, f"{tmp_path / 'w.safetensors'}: fitted on 72 vectors, 8 dimensions to 6, power 0.25\n")
    words = ["whiten", encoder, image_tree, "--out", tmp_path / "encoder2", "--dim", 6, "--workers", 0]
    assert sightline(*words)[0] == 0
    assert sightline("embed", tmp_path / "encoder2", image_tree, "--out", other, "--workers", 0)[0] == 0
    assert EmbeddingTable.read(other).vectors.shape == (72, 6)
    assert EmbeddingTable.read(other).fingerprint != EmbeddingTable.read(table).fingerprint
    steps = ["--augment", 3, "--expand", 4, "--alpha", 1.5, "--rerank", "kreciprocal", "--depth", 30]
    status, whole, _ = sightline("evaluate", other, *steps)
    assert status == 0
    assert sightline("evaluate", table, "--whiten", tmp_path / "w.safetensors", *steps)[1] == whole
    status, each, _ = sightline("evaluate", table, "--whiten", tmp_path / "w.safetensors", *steps, "--each-step")
    blocks = each.split("+ ")
    assert [block.splitlines()[0] for block in blocks] == [
        "no step",
        "whitening",
        "augmentation by 3",
        "expansion by 4",
        "re-ranking kreciprocal",
    ]
    assert blocks[-1] == f"re-ranking kreciprocal\n{whole}"
    assert blocks[0] == f"no step\n{sightline('evaluate', table)[1]}"


def test_the_values_of_every_query_are_those_of_all_steps(sightline, encoder, image_tree, tmp_path):
    table, results = tmp_path / "table.parquet", tmp_path / "results.json"
    sightline("embed", encoder, image_tree, "--out", table, "--workers", 0)
    assert sightline("evaluate", table, "--expand", 4, "--json", results)[0] == 0
    together = results.read_text()
    assert sightline("evaluate", table, "--expand", 4, "--json", results, "--each-step")[0] == 0
    assert results.read_text() == together


def test_what_does_not_fit_is_one_message(sightline, encoder, image_tree, tmp_path):
    table = tmp_path / "table.parquet"
    sightline("embed", encoder, image_tree, "--out", table, "--workers", 0)
    for words, message in (
        (["--whiten", "none.safetensors"], "none.safetensors: no such file"),
        (["--rerank", "kreciprocl"], "unknown re-ranking 'kreciprocl': did you mean 'kreciprocal'?"),
    ):
        assert sightline("evaluate", table, *words) == (2, "", f"sightline: {message}\n")
    other = Encoder.create("tiny", 8, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    status, _, err = sightline("whiten", other, table, "--out", tmp_path / "out")
    assert status == 2
    assert "must be of this encoder" in err
    assert not (tmp_path / "out").exists()
    status, _, err = sightline("whiten", encoder, table, "--out", tmp_path / "out", "--split", "val")
    assert status == 2
    assert "val" in err
