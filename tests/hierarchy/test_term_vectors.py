"""Vectors of texts by a sentence model or CLIP, of classes by their images, and of both."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from refusals import assert_refused
from sightline.data.manifest import Manifest
from sightline.hierarchy import term_vectors
from sightline.hierarchy.cluster import ClusterOptions, cluster_terms
from sightline.hierarchy.collect import write_step
from sightline.hierarchy.term_vectors import TextModel, class_means, embed_terms, read_vectors, terms_of, text_vectors


def kept(rows):
    return pl.DataFrame(rows, schema=["label", "text", "n_images", "examples"], orient="row")


KEPT = kept([("a", "cat", 2, "1|2"), ("b", "dog", 1, ""), ("c", "cat", 3, "3"), ("d", "car", 1, "4")])


def images(labels, vectors):
    table = pl.DataFrame({"path": [str(n) for n in range(len(labels))], "label_0": labels})
    return Manifest("images.parquet", ".", table, 1), np.array(vectors, np.float32)


IMAGES = images(["a", "a", "b", "c", "d", "other"], [[2, 0], [0, 3], [1, 1], [0, 1], [-1, 0], [5, 5]])


def unit(rows):
    rows = np.array(rows, np.float64)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def test_class_means_weigh_images_of_a_class_and_classes_of_a_text_alike():
    mean_of_a = unit(unit([2, 0]) + unit([0, 3]))
    expected = [unit(mean_of_a + unit([0, 1])), unit([1, 1]), unit([-1, 0])]
    np.testing.assert_allclose(class_means(KEPT, terms_of(KEPT), *IMAGES), expected, atol=1e-6)
    without = images(["b", "d"], [[1, 0], [0, 1]])
    faults = r"2 faults\n  no image of label 'a'\n  no image of label 'c'"
    assert_refused(faults, class_means, KEPT, terms_of(KEPT), *without)


def test_distances_of_joined_vectors_are_the_weighted_sum():
    one, other = unit(np.random.default_rng(0).normal(size=(5, 4))), unit(np.random.default_rng(1).normal(size=(5, 3)))
    both = term_vectors.join_vectors([one, other], [3, 1])

    def squares(rows):
        return ((rows[:, None] - rows[None]) ** 2).sum(2)

    np.testing.assert_allclose(squares(both), 0.75 * squares(one) + 0.25 * squares(other), atol=1e-6)
    assert_refused("weights", term_vectors.join_vectors, [one, other], [0, 0])


@pytest.fixture
def clip(tmp_path):
    """A CLIP model with random weights, in the files of a hub repository."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

    folder = tmp_path / "clip"
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    CLIPTokenizer.from_pretrained(str(folder)).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16).save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = shape | ends | {"vocab_size": len(words), "max_position_embeddings": 40}
    config = CLIPConfig(text_config=text, vision_config=shape | {"image_size": 16, "patch_size": 8}, projection_dim=12)
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    return folder


def test_the_text_tower_of_clip_with_a_prompt(clip, tmp_path):
    from transformers import CLIPModel, CLIPTokenizer

    found = text_vectors(["cat", "red bus"], tmp_path / "parts", TextModel(str(clip), "a photo of a {}"))
    tokens = CLIPTokenizer.from_pretrained(str(clip))
    for row, sentence in zip(found, ["a photo of a cat", "a photo of a red bus"], strict=True):
        with torch.no_grad():
            expected = CLIPModel.from_pretrained(clip).get_text_features(**tokens(sentence, return_tensors="pt"))
        np.testing.assert_allclose(row, unit(expected.pooler_output[0].numpy()), atol=1e-5)
    other = text_vectors(["cat", "red bus"], tmp_path / "parts", TextModel(str(clip)))
    assert np.abs(other - found).max() > 1e-3  # another prompt is not found among the parts of the first
    assert_refused(r"prompt must contain \{\} once.*'a photo'", TextModel, prompt="a photo")
    (tmp_path / "empty").mkdir()
    other = TextModel(str(tmp_path / "empty"))
    assert_refused("empty: not a sentence-transformers or CLIP model", text_vectors, ["cat"], tmp_path / "parts", other)


def test_parts_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(term_vectors, "PART", 2)
    texts = ["cat", "kitten", "pickup truck", "boat", "tree"]
    first = text_vectors(texts[:4], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    assert first[0] @ first[1] > first[0] @ first[2] + 0.2
    n_encoded = []

    class Model:
        def encode(self, part, **_):
            n_encoded.append(len(part))
            return np.zeros((len(part), first.shape[1]), np.float32)

    monkeypatch.setattr(TextModel, "load", lambda _: Model())
    again = text_vectors(texts, tmp_path)
    np.testing.assert_array_equal(again[:4], first)
    assert n_encoded == [1]


def test_the_step_writes_terms_and_vectors_that_belong_together(tmp_path):
    write_step(tmp_path, "clean.csv", KEPT)
    assert embed_terms(tmp_path, IMAGES, text_weight=0) == (3, 2)
    terms, vectors = read_vectors(tmp_path)
    assert terms["n_images"].to_list() == [5, 1, 1]
    np.testing.assert_allclose(vectors, class_means(KEPT, terms_of(KEPT), *IMAGES))
    write_step(tmp_path, "clean.csv", KEPT[:3])
    stale = r"made for another clean\.csv: run `sightline hierarchy embed`"
    assert_refused(stale, cluster_terms, tmp_path, ClusterOptions(ks=(2,)))
    write_step(tmp_path, "terms.csv", terms[:2])
    assert_refused(["terms.csv", "`sightline hierarchy embed`"], read_vectors, tmp_path)
    (tmp_path / "vectors.safetensors").write_bytes(b"half")
    assert_refused(r"vectors\.safetensors: damaged.* `sightline hierarchy embed`", read_vectors, tmp_path)
    (tmp_path / "vectors.safetensors").unlink()
    assert_refused("`sightline hierarchy embed` makes it", read_vectors, tmp_path)


def test_text_and_images_together_or_nothing_to_embed(tmp_path):
    write_step(tmp_path, "clean.csv", KEPT)
    assert embed_terms(tmp_path) == (3, 384)
    assert embed_terms(tmp_path, IMAGES, text_weight=1, image_weight=3) == (3, 384 + 2)
    vectors = read_vectors(tmp_path)[1]
    np.testing.assert_allclose((vectors[:, 384:] ** 2).sum(1), 0.75, atol=1e-5)
    assert not (tmp_path / "text_vectors").exists()
    unlabelled = Manifest("images.parquet", ".", IMAGES[0].table.drop("label_0"), 0), IMAGES[1]
    for table, given, facts in (
        (kept([("a", "cat", 2, ""), ("b", "", 1, "")]), IMAGES, ["clean.csv", "line 3", "text"]),
        (KEPT[:0], IMAGES, ["the table has no row"]),
        (KEPT, None, ["text_weight", "0", "images"]),
        (KEPT, unlabelled, ["images.parquet", "labels"]),
    ):
        write_step(tmp_path, "clean.csv", table)
        assert_refused(facts, embed_terms, tmp_path, given, text_weight=0)
