import base64
import io
import math

import numpy as np
import polars as pl
import pytest
from PIL import Image

from sightline.data.manifest import Manifest
from sightline.embedding.table import EmbeddingTable
from sightline.report.gallery import THUMBNAIL, draw_queries, nearest_pictures, picture_of

ANGLES = (0, 10, 25, 60, 62, 100)  # degrees
LABELS = ("a", "b", "a", "c", "c", "b")


def table_of(folder, angles=ANGLES, labels=LABELS, **columns):
    """An image of its own colour for each vector."""
    names = [f"{place}.png" for place in range(len(angles))]
    for place, name in enumerate(names):
        Image.new("RGB", (200, 100), (place, 0, 0)).save(folder / name)
    rows = {"id": names, "path": names, "split": ["test"] * len(names), "label_0": list(labels), **columns}
    vectors = [[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in angles]
    return EmbeddingTable(Manifest(folder, folder, pl.DataFrame(rows), 1), np.array(vectors, np.float32), "f")


def opened(picture):
    head, data = picture.source.split(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_the_nearest_others_come_best_first_each_right_or_wrong(tmp_path):
    rows = nearest_pictures(table_of(tmp_path), np.array([0, 3, 5]), k=3)
    assert [[picture.name for picture in row] for row in rows] == [
        ["1.png", "2.png", "3.png"],
        ["4.png", "2.png", "5.png"],
        ["4.png", "3.png", "2.png"],
    ]
    assert [[picture.right for picture in row] for row in rows] == [[False, True, False], [True, False, False], [False] * 3]
    assert [picture.label for picture in rows[0]] == ["b", "a", "c"]
    expected = [math.cos(math.radians(angle)) for angle in (10, 25, 60)]
    np.testing.assert_allclose([picture.score for picture in rows[0]], expected, atol=1e-6)


def test_a_query_among_its_copies_is_still_the_one_left_out(tmp_path):
    table = table_of(tmp_path, angles=[30] * 6)
    rows = nearest_pictures(table, np.arange(6), k=2)
    assert [[picture.name for picture in row] for row in rows] == [
        ["1.png", "2.png"],
        ["0.png", "2.png"],
        *[["0.png", "1.png"]] * 4,
    ]


def test_fewer_come_where_the_table_is_small(tmp_path):
    assert [len(row) for row in nearest_pictures(table_of(tmp_path), np.array([2]), k=50)] == [5]


def test_a_picture_is_a_thumbnail_of_its_image(tmp_path):
    picture = picture_of(table_of(tmp_path), 4, score=0.5, right=False)
    image = opened(picture)
    assert image.size == (THUMBNAIL, THUMBNAIL // 2)
    assert image.getpixel((3, 3)) == (4, 0, 0)
    assert (picture.label, picture.score, picture.right) == ("c", 0.5, False)


def test_a_picture_is_cut_to_its_box_and_called_by_its_name(tmp_path):
    boxes = {side: [at] * 6 for side, at in zip(("x_1", "y_1", "x_2", "y_2"), (10, 20, 40, 30), strict=True)}
    table = table_of(tmp_path, **boxes, name=["LATIN SMALL LETTER A", *[None] * 5])
    assert opened(picture_of(table, 0)).size == (30, 10)
    assert picture_of(table, 0).name == "LATIN SMALL LETTER A"
    assert picture_of(table, 1).name == "1.png"


@pytest.mark.parametrize("seed", range(10))
def test_queries_are_of_different_classes_with_another_image(seed, tmp_path):
    labels = "aaabbcdddde"
    table = table_of(tmp_path, angles=range(len(labels)), labels=labels)
    queries = draw_queries(table, 10, seed)
    assert sorted(labels[query] for query in queries) == ["a", "b", "d"]
    assert draw_queries(table, 2, seed).tolist() == queries[:2].tolist()
    assert draw_queries(table, 10, seed).tolist() == queries.tolist()


def test_another_seed_draws_other_queries(tmp_path):
    table = table_of(tmp_path, angles=range(12), labels="aaabbbcccddd")
    drawn = [tuple(draw_queries(table, 4, seed).tolist()) for seed in range(20)]
    assert len(set(drawn)) > 10
    assert {query for queries in drawn for query in queries} == set(range(12))  # any image of a class, not its first
