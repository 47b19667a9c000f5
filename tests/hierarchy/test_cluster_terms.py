"""Groups of vectors that lie in known heaps, and their names."""

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file
from sklearn.metrics import adjusted_rand_score

from refusals import assert_refused
from sightline.hierarchy import cluster as cluster_module
from sightline.hierarchy.cluster import ClusterOptions, cluster_terms, find_groups, group_names, suggest_ks
from sightline.hierarchy.collect import digest, read_step, write_step


def heaps(n_coarse=3, n_fine=4, n_each=8, seed=0):
    """Vectors in tight heaps that lie in wider ones; and which."""
    rng = np.random.default_rng(seed)
    coarse = np.repeat(np.arange(n_coarse), n_fine * n_each)
    fine = np.repeat(np.arange(n_coarse * n_fine), n_each)
    centres = 10 * rng.normal(size=(n_coarse, 16))[coarse] + 2 * rng.normal(size=(n_coarse * n_fine, 16))[fine]
    return (centres + 0.1 * rng.normal(size=(len(fine), 16))).astype(np.float32), fine, coarse


@pytest.mark.parametrize("method", ["kmeans", "agglomerative", "agglomerative of gathered texts"])
def test_heaps_are_found_at_both_levels(method, monkeypatch):
    vectors, fine, coarse = heaps()
    is_gathered = "gathered" in method
    if is_gathered:
        monkeypatch.setattr(cluster_module, "DIRECT", 40)
        facts = "41 groups: agglomerative makes at most 40"
        assert_refused(facts, find_groups, vectors, ClusterOptions("agglomerative", (41,)))
    found = find_groups(vectors, ClusterOptions(method.split()[0], (12, 3)))
    assert adjusted_rand_score(coarse, found[1]) == 1
    assert adjusted_rand_score(fine, found[0]) > (0.8 if is_gathered else 1 - 1e-9)
    assert all(len({*found[1][found[0] == group]}) == 1 for group in range(12))


def test_the_number_of_heaps_is_suggested():
    vectors = heaps(n_coarse=6, n_fine=1, n_each=15)[0]
    finest, coarse = suggest_ks(vectors, 2)
    assert coarse < finest
    assert 5 <= finest <= 7
    assert suggest_ks(vectors) == (finest,)
    assert_refused("3 texts are too few", suggest_ks, vectors[:3])
    assert_refused("all alike", suggest_ks, np.ones((9, 2), np.float32))


def test_options_that_do_not_fit():
    for options, message in (
        (ClusterOptions(ks=(3, 3)), "must fall"),
        (ClusterOptions(ks=(0,)), "must fall"),
        (ClusterOptions(ks=(999,)), "999 groups of 96 texts"),
        (ClusterOptions(ks=(12, 3), levels=2), "levels is 2 .* the numbers of groups are given"),
        (ClusterOptions(method="kmean", ks=(2,)), "unknown method 'kmean': did you mean 'kmeans'"),
    ):
        assert_refused(message, find_groups, heaps()[0], options)


def test_names_are_words_of_the_group_or_its_most_central_texts_and_differ():
    texts = ["red cat", "old cat", "big cat", "oak", "elm", "ash", "wild cat", "shy cat"]
    groups = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    found = group_names(texts, groups, np.array([0.1, 0.2, 0.3, 0.9, 0.1, 0.5, 0.5, 0.1]))
    assert found[0] == "cat"
    assert found[1] in ("elm, ash", "ash elm")
    assert len({*found}) == 3


def test_the_step_writes_a_table_a_person_can_read(tmp_path):
    vectors, fine, _ = heaps()
    texts = [f"heap{group} item{place}" for place, group in enumerate(fine.tolist())]
    terms = pl.DataFrame({"text": texts, "n_labels": 1, "n_images": 2, "labels": texts, "examples": ""})
    write_step(tmp_path, "terms.csv", terms)
    save_file({"vectors": vectors}, tmp_path / "vectors.safetensors", {"terms": digest(tmp_path / "terms.csv")})
    assert cluster_terms(tmp_path, ClusterOptions(ks=(12, 3))) == (12, 3)
    table = read_step(tmp_path, "clusters.csv", ["text", "n_labels", "n_images", "distance", "group_1", "group_2"])
    assert (len(table), table["group_1"].n_unique()) == (96, 12)
    assert table.group_by("group_1").agg(pl.col("group_2").n_unique())["group_2"].to_list() == [1] * 12
    assert table.filter(pl.col("group_1") == table["group_1"][0])["distance"].cast(float).is_sorted()
    (tmp_path / "journal.jsonl").write_text("{}\n")
    assert_refused("a review of these clusters has begun", cluster_terms, tmp_path, ClusterOptions(ks=(2,)))
