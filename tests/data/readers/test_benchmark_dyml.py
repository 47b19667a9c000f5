import numpy as np
import pytest

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.readers.dyml import DYML_ANIMAL, DYML_PRODUCT, TRAIN_COLUMNS, level_sets, read_glued
from sightline.data.readers.source import PublishedCounts
from sightline.errors import InputError
from sightline.evaluation.benchmark_protocols import RetrievalSet, evaluate_dyml
from sightline.evaluation.tables import evaluate_table

TRAIN = ["0.jpg, 4, 3, 2", "1.jpg, 4, 3, 2", "2.jpg, 4, 9, 7"]  # coarse, middle, fine
TRAIN_HEADER, TEST_HEADER = "fname, coarse_id, middle_id, fine_id", "fname, labels"


def csv(header, rows, glued=True):
    return header + ("" if glued else "\n") + "\n".join(rows) + "\n"


def put_training(tree, glued=True):
    tree.text("train/label.csv", csv(TRAIN_HEADER, TRAIN, glued))
    tree.images(*(f"train/imgs/{number}.jpg" for number in range(3)))


def put_levels(tree, glued=True):
    """Galleries of four images in two classes; the two queries are the third and the first of them."""
    put_training(tree, glued)
    for level in ("fine", "middle", "coarse"):
        tree.text(f"bmk_{level}/gallery.csv", csv(TEST_HEADER, [f"{n}.jpg, {n % 2}" for n in range(4)], glued))
        tree.text(f"bmk_{level}/query.csv", csv(TEST_HEADER, ["0.jpg, 0", "1.jpg, 0"], glued))
        tree.images(*(f"bmk_{level}/gallery/{number}.jpg" for number in range(4)))
        for query, twin in ((0, 2), (1, 0)):
            tree.data(f"bmk_{level}/query/{query}.jpg", (tree.root / f"bmk_{level}/gallery/{twin}.jpg").read_bytes())


@pytest.mark.parametrize("glued", [True, False])
def test_no_image_is_lost_to_a_header_without_its_line_break(tree, rows, glued):
    put_levels(tree, glued)
    manifest = tree.prepare(DYML_ANIMAL, counts={"train": PublishedCounts(3, (2, 2, 1))})
    train = manifest.split("train")
    assert rows(train, "path", "label_0", "label_1", "label_2") == [
        ("../files/train/imgs/0.jpg", "2", "3", "4"),
        ("../files/train/imgs/1.jpg", "2", "3", "4"),
        ("../files/train/imgs/2.jpg", "7", "9", "4"),
    ]


def test_an_image_that_is_query_and_gallery_is_one_row(tree, rows):
    put_levels(tree)
    test = tree.prepare(DYML_ANIMAL).split("test")
    assert rows(test, "test_level", "path", "is_query", "is_gallery")[:4] == [
        ("coarse", "../files/bmk_coarse/gallery/0.jpg", True, True),
        ("coarse", "../files/bmk_coarse/gallery/1.jpg", False, True),
        ("coarse", "../files/bmk_coarse/gallery/2.jpg", True, True),
        ("coarse", "../files/bmk_coarse/gallery/3.jpg", False, True),
    ]
    assert len(test) == 12


def test_a_query_that_is_not_in_the_gallery_stays_a_row(tree, rows):
    put_levels(tree)
    tree.images("bmk_fine/query/1.jpg")
    fine = [
        row for row in rows(tree.prepare(DYML_ANIMAL), "path", "test_level", "is_query", "is_gallery") if row[1] == "fine"
    ]
    assert len(fine) == 5
    assert ("../files/bmk_fine/query/1.jpg", "fine", True, False) in fine


def test_each_level_is_measured_on_its_own_images(tree):
    put_levels(tree)
    manifest = tree.prepare(DYML_ANIMAL)
    sets = level_sets(manifest)
    assert list(sets) == ["fine", "middle", "coarse"]
    vectors = np.random.default_rng(0).normal(size=(len(manifest), 4))
    ids = manifest.table["id"].to_numpy()
    for level, (queries, gallery, labels) in sets.items():
        assert (len(queries), len(gallery)) == (2, 4)
        assert {f"bmk_{level}" in path for path in ids[gallery]} == {True}
        assert labels[queries[0]] == labels[queries[1]] == labels[gallery[0]] != labels[gallery[1]]
    results, means = evaluate_dyml(
        {
            level: RetrievalSet(vectors[q], y[q], vectors[g], y[g], ids[q].tolist(), ids[g].tolist())
            for level, (q, g, y) in sets.items()
        }
    )
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for level, (queries, gallery, labels) in sets.items():  # one relevant item each: AP is one over its rank
        expected = []
        for query in queries:
            others = sorted((g for g in gallery if g != query), key=lambda g: -unit[g] @ unit[query])
            expected.append(1 / (1 + [labels[g] == labels[query] for g in others].index(True)))
        assert results[level]["map"] == pytest.approx(np.mean(expected))
    assert means["map"] == pytest.approx(np.mean([result["map"] for result in results.values()]))
    table = EmbeddingTable(manifest, vectors.astype(np.float32), "0" * 64)
    with pytest.raises(InputError, match=r"its test images are three sets, .*sl\.evaluate_dyml"):
        evaluate_table(table)


def test_product_has_all_levels_in_one(tree):
    put_training(tree)
    tree.text("mini-bmk_all_in_one/label.csv", csv(TRAIN_HEADER, ["0.jpg, 1, 1, 1", "1.jpg, 1, 2, 2", "2.jpg, 1, 2, 2"]))
    tree.images(*(f"mini-bmk_all_in_one/imgs/{number}.jpg" for number in range(3)))
    manifest = tree.prepare(
        DYML_PRODUCT, counts={"train": PublishedCounts(3, (2, 2, 1)), "test": PublishedCounts(3, (2, 2, 1))}
    )
    for (queries, gallery, labels), n_classes in zip(level_sets(manifest).values(), (2, 2, 1), strict=True):
        assert queries.tolist() == gallery.tolist() == [3, 4, 5]
        assert len(set(labels[queries])) == n_classes
        assert not set(labels[queries]) & set(labels[:3])


def test_faults(tree):
    put_levels(tree)
    tree.text("train/label.csv", csv(TRAIN_HEADER, [*TRAIN[:2], "2.jpg, 4"]))
    assert "train/label.csv: 1 fault\n  line 3: 4 fields are needed, found 2" in tree.complaint(DYML_ANIMAL)
    tree.text("train/label.csv", "fname, fine_id\n")
    assert "the header fname, coarse_id, middle_id, fine_id is needed" in tree.complaint(DYML_ANIMAL)
    put_training(tree)
    assert "train/label.csv (train): 2 classes in label_0, 495 are published" in tree.complaint(DYML_ANIMAL, counts=None)
    (tree.root / "bmk_middle/gallery.csv").unlink()
    assert "no file 'bmk_middle/gallery.csv'" in tree.complaint(DYML_ANIMAL)


def test_other_manifests_have_no_levels_to_test(tree):
    put_training(tree)
    from sightline.data.manifest import read_manifest

    with pytest.raises(InputError, match="not the manifest of a DyML set"):
        level_sets(read_manifest(tree.root))


def test_glued_header_in_another_order(tmp_path):
    (tmp_path / "l.csv").write_text("fname, fine_id, middle_id, coarse_id9.jpg, 1, 2, 3\n8.jpg, 4, 5, 6")
    found = read_glued(tmp_path / "l.csv", TRAIN_COLUMNS)
    assert found["fname", "fine_id", "coarse_id"].rows() == [("9.jpg", "1", "3"), ("8.jpg", "4", "6")]
