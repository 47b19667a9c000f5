"""The queries that a report shows, their results and the frames around them."""

import base64
import io
from itertools import product, takewhile

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from refusals import assert_refused
from sightline.evaluation.tables import evaluate_table
from sightline.report.galleries import THUMBNAIL, Thumbnails, choose_queries, galleries, gallery_figure
from sightline.report.numbers import first_results
from sightline.report.page import Material, ReportOptions, galleries_section
from sightline.report.style import PURPLE, as_svg, level_colours, template


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
    gain = precision["new"] - precision["old"]
    lowest = {"hardest": precision["new"], "improved": -gain, "worsened": gain, "severe": -found["new"].heights[:, 0]}
    for name, values in lowest.items():
        shown_values = values[rows_of(by_name[name])]
        assert shown_values[0] == values.min()
        assert shown_values.tolist() == sorted(shown_values)
        assert (shown_values < 0).all() or name not in ("improved", "worsened")
    drawn = [tuple(rows_of(shown(subjects[:1], n_queries=3, seed=seed)[2]["random"])) for seed in range(8)]
    assert len(set(drawn)) > 4
    codes = subjects[0].table.manifest.labels()[:, 0]
    for gallery in by_name.values():
        assert len(set(codes[rows_of(gallery)])) == len(gallery.rows) <= 4
        assert all(list(asked.found) == ["new", "old"] for asked in gallery.rows)
        assert all(asked.precision["old"] == precision["old"][asked.query.row] for asked in gallery.rows)


def test_which_queries_are_left_out_and_which_come_first(circle):
    subject = circle((0, 1, 40, 80, 84), ["a", "b", "a", "b", "c"])  # 4 is alone in its class
    assert rows_of(shown([subject], n_queries=1)[2]["severe"]) == [0]  # 0 and 1 are nearest; of a tie the earlier
    assert list(shown([circle((0, 1, 80, 81), "aabb")])[2]) == ["hardest", "random"]
    _, _, by_name = shown([circle((0, 10, 20, 30), "aabc")])
    assert {row for gallery in by_name.values() for row in rows_of(gallery)} <= {0, 1}  # the others have none relevant


def test_results_are_coloured_by_the_deepest_code_they_share(circle):
    codes = [["26.1.15", "5.3"], ["7", "26.1.2"], ["26.1.15"], ["5.3.1", "26.10"], ["8.8.8"], ["26", "5.3"]]
    subject = circle((0, 10, 20, 30, 40, 50), "aabbcc", codes=codes)
    text = circle((0, 10, 20, 30, 40, 50), "aabbcc", codes=[";".join(own) for own in codes])
    for own, column in ((subject, None), (text, "codes")):
        values = galleries_section(Material([own], ReportOptions(codes=column))).values
        asked = [row for one in values["galleries"] for row in one.rows]
        pictures = [(row.query.row, picture) for row in asked for picture in row.found["model"]]
        assert len(pictures) >= 20
        for query, picture in pictures:
            best = []  # by definition: every pair of codes, level by level
            for pair in product(codes[query], codes[picture.row]):
                levels = zip(*(code.split(".") for code in pair), strict=False)
                best = max(best, [part for part, _ in takewhile(lambda two: two[0] == two[1], levels)], key=len)
            assert (picture.height, picture.shared) == (3 - len(best), ".".join(best))
        names = [*(f"shares a code of depth {depth}" for depth in (3, 2, 1)), "no code shared"]
        assert values["levels"] == list(zip(names, level_colours(3), strict=True))
        page = template("galleries.html").render(**values)
        assert all(f"<br>{shared}</figcaption>" in page for shared in ("26", "26.1", "26.1.15"))
    assert galleries_section(Material([text], ReportOptions())).values["levels"][0][0] == "same class"
    vienna = Material([subject], ReportOptions(codes="vienna"))
    assert_refused("no column 'vienna' .* it has 'codes'", galleries_section, vienna)


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


def test_a_thumbnail_is_small_cut_to_its_box_read_once_and_counted_where_it_cannot_be_read(circle):
    boxes = {side: [at, None, None, None] for side, at in {"x_1": 10, "y_1": 20, "x_2": 40, "y_2": 30}.items()}
    subject = circle((0, 1, 2, 3), "aabb", **boxes)
    thumbnails = Thumbnails(subject.table)
    assert opened(thumbnails.uri(0)).size == (30, 10)
    image = opened(thumbnails.uri(1))
    assert image.size == (THUMBNAIL, THUMBNAIL // 2)
    assert np.abs(np.array(image.convert("RGB").getpixel((9, 9))) - (1, 0, 200)).max() < 12
    assert not thumbnails.missing
    assert thumbnails.image(1) is thumbnails.image(1)
    (subject.table.manifest.root / "2.png").unlink()
    (subject.table.manifest.root / "3.png").write_bytes(b"no image")
    assert [thumbnails.uri(row) is None for row in (0, 1, 2, 3, 2)] == [False, False, True, True, True]
    assert thumbnails.missing == {2, 3}


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
