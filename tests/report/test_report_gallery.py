import base64
import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from sightline.evaluation.tables import evaluate_table
from sightline.report.galleries import THUMBNAIL, Thumbnails, choose_queries, galleries, gallery_figure
from sightline.report.numbers import first_results
from sightline.report.style import PURPLE, as_svg, level_colours


def opened(uri):
    head, data = uri.split(",")
    assert head == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def shown(subjects, **options):
    found = {subject.name: first_results(subject, 5) for subject in subjects}
    precision = {subject.name: evaluate_table(subject.table).per_query["map"] for subject in subjects}
    return found, precision, {one.name: one for one in galleries(subjects[0].table, found, precision, **options)}


def rows_of(gallery):
    return [asked.query.row for asked in gallery.rows]


def test_each_gallery_shows_what_it_says(random_subject):
    subjects = [random_subject(0, "new"), random_subject(1, "old")]
    found, precision, by_name = shown(subjects, n_queries=4)
    assert list(by_name) == ["hardest", "severe", "improved", "worsened", "random"]
    ap, gain = precision["new"], precision["new"] - precision["old"]
    assert rows_of(by_name["hardest"])[0] == np.argmin(ap)
    assert ap[rows_of(by_name["hardest"])].tolist() == sorted(ap[rows_of(by_name["hardest"])])
    assert rows_of(by_name["improved"])[0] == np.argmax(gain)
    assert (gain[rows_of(by_name["improved"])] > 0).all()
    assert rows_of(by_name["worsened"])[0] == np.argmin(gain)
    assert (gain[rows_of(by_name["worsened"])] < 0).all()
    first = found["new"].heights[:, 0]
    severe = rows_of(by_name["severe"])
    assert first[severe[0]] == first.max()
    assert first[severe].tolist() == sorted(first[severe], reverse=True)
    drawn = [tuple(rows_of(shown(subjects[:1], n_queries=3, seed=seed)[2]["random"])) for seed in range(8)]
    assert len(set(drawn)) > 4
    codes = subjects[0].table.manifest.labels()[:, 0]
    for gallery in by_name.values():
        assert len(set(codes[rows_of(gallery)])) == len(gallery.rows) <= 4
        assert all(list(asked.found) == ["new", "old"] for asked in gallery.rows)
        assert all(asked.precision["old"] == precision["old"][asked.query.row] for asked in gallery.rows)


def test_the_surest_of_equally_severe_mistakes_come_first(circle):
    subject = circle((0, 1, 40, 80, 84), ["a", "b", "a", "b", "c"])  # 4 is alone in its class
    _, _, by_name = shown([subject], n_queries=1)
    assert rows_of(by_name["severe"]) == [0]  # 0 and 1 are nearest; of a tie the earlier


def test_galleries_without_queries_and_queries_without_a_relevant_image_are_not_shown(circle):
    assert list(shown([circle((0, 1, 80, 81), "aabb")])[2]) == ["hardest", "random"]
    _, _, by_name = shown([circle((0, 10, 20, 30), "aabc")])
    assert {row for gallery in by_name.values() for row in rows_of(gallery)} <= {0, 1}


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_of_each_class_are_chosen(seed):
    rng = np.random.default_rng(seed)
    values, classes = rng.random(30), rng.integers(0, 8, 30)
    values[rng.random(30) < 0.2] = np.nan
    expected, seen = [], set()
    for place in sorted(range(30), key=lambda place: values[place] if values[place] == values[place] else 9):
        if not np.isnan(values[place]) and classes[place] not in seen:
            seen.add(classes[place])
            expected.append(place)
    assert choose_queries(values, classes, 5).tolist() == expected[:5]


def test_a_thumbnail_is_small_cut_to_its_box_and_read_once(circle):
    boxes = {side: [at, None] for side, at in zip(("x_1", "y_1", "x_2", "y_2"), (10, 20, 40, 30), strict=True)}
    subject = circle((0, 1), "aa", **boxes, name_of=["LETTER A", None])
    thumbnails = Thumbnails(subject.table)
    assert opened(thumbnails.uri(0)).size == (30, 10)
    image = opened(thumbnails.uri(1))
    assert image.size == (THUMBNAIL, THUMBNAIL // 2)
    assert np.abs(np.array(image.convert("RGB").getpixel((9, 9))) - (1, 0, 200)).max() < 12
    assert not thumbnails.missing
    assert thumbnails.image(1) is thumbnails.image(1)


def test_an_image_that_cannot_be_read_is_counted(circle):
    subject = circle((0, 1, 2), "aab")
    (subject.table.manifest.root / "1.png").unlink()
    (subject.table.manifest.root / "2.png").write_bytes(b"no image")
    thumbnails = Thumbnails(subject.table)
    assert [thumbnails.uri(row) is None for row in (0, 1, 2, 1)] == [False, True, True, True]
    assert thumbnails.missing == {1, 2}


def test_a_gallery_is_a_figure_with_a_line_for_each_model(random_subject):
    subjects = [random_subject(0, "new"), random_subject(1, "old")]
    gallery = shown(subjects, n_queries=2)[2]["random"]
    figure = gallery_figure(gallery, Thumbnails(subjects[0].table), n_levels=3)
    (axes,) = figure.axes
    assert len(axes.images) == len(axes.patches) == 2 * (1 + 5 + 5)  # the query once
    heights = [p.height for asked in gallery.rows for pictures in asked.found.values() for p in pictures]
    frames = [to_hex(frame.get_edgecolor()) for frame in axes.patches]
    assert [frame for frame in frames if frame != PURPLE] == [level_colours(3)[height] for height in heights]
    assert frames.count(PURPLE) == 2
    assert [text.get_text() for text in axes.texts] == ["new", "old"] * 2
    assert as_svg(figure, "gallery", "").count("<image") == len(axes.images)  # not one picture of them all: slow
