"""Panels, maps and published tables."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.manifest import Manifest
from sightline.report import figures
from sightline.report.figures import class_map, map_panel, neighbour_purity, training_panels, unit_class_means
from sightline.report.numbers import places_of, published_tables_of
from sightline.report.style import CLASSES, MARKERS, as_svg

LOSSES = [(step, 0, "loss", 1 / step) for step in range(1, 6)]


def test_losses_their_terms_and_metrics_are_drawn_where_they_were_logged():
    terms = [(step, 0, f"term/{name}", value) for step in (1, 2) for name, value in (("sup_ap", 0.5), ("calibration", 2.0))]
    panels = training_panels({"new": [*LOSSES, *terms, (5, 0, "val/map", 0.5)], "old": LOSSES}, "map")
    assert [panel.name for panel in panels] == ["training-loss", "training-terms", "training-validation"]
    lines = panels[1].figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["new, sup_ap", "new, calibration"]
    assert [list(line.get_ydata()) for line in lines] == [[0.5, 0.5], [2.0, 2.0]]
    assert panels[2].figure.axes[0].lines[0].get_ydata() == [50.0]
    assert panels[2].figure.axes[0].get_title(loc="left") == "Validation map (%)"
    assert [panel.name for panel in training_panels({"new": LOSSES}, "map")] == ["training-loss"]
    assert training_panels({"new": [], "old": []}, "map") == []
    levels = training_panels({"new": [(5, 0, "val/severity@1", 1.5)]}, "severity@1")
    assert levels[0].figure.axes[0].lines[0].get_ydata() == [1.5]
    best = training_panels({"new": [(step, 0, "val/map", 1.0) for step in (1, 2)]}, "map")[0]
    assert best.figure.axes[0].get_ylim()[1] == 101


def test_bars_show_shares_histograms_thresholds_and_an_svg_follows_the_mode_of_its_page():
    panel = figures.severity_panel({"new": np.array([0.5, 0.25, 0.25]), "old": np.array([0.2, 0.3, 0.5])}, k=1)
    assert_close([bar.get_height() for bar in panel.figure.axes[0].patches], [50.0, 25.0, 25.0, 20.0, 30.0, 50.0])
    histogram = np.zeros((3, 100), np.int64)  # of one kind there are no pairs
    histogram[0, 90], histogram[1, 60] = 4, 9
    axes = figures.score_panel("m", histogram, {"alpha": 0.9, "beta": 0.6}).figure.axes[0]
    assert [line.get_xdata()[0] for line in axes.lines] == [0.9, 0.6]
    assert {text.get_text() for text in axes.texts} == {"alpha", "beta"}
    assert axes.get_legend() is None, "it would cover the densities"
    svg = as_svg(training_panels({"new": LOSSES}, "map")[0].figure, "a<b", 'say "so"')
    assert all(text in svg for text in ('aria-label="say &quot;so&quot;"', "var(--blue)", "a-b-figure_1"))
    assert not any(text in svg for text in ("#0072b2", "<metadata"))


def test_a_map_has_each_class_once_in_the_look_of_its_coarsest_label(random_subject, circle):
    found = class_map([random_subject(0, "new"), random_subject(1, "old")])
    assert sorted(found.names) == [f"c{number}" for number in range(10)]
    assert [kind.name for kind in found.kinds] == ["odd", "even"]  # 6 classes, then 4
    assert found.points.keys() == {"new", "old"}
    for points in found.points.values():
        assert (points.shape, points.min(), points.max()) == ((10, 2), 0, pytest.approx(1))
    assert [len(drawn.get_offsets()) for drawn in map_panel(found, "new").figure.axes[0].collections] == [6, 4]
    n_labels = len(MARKERS) * (len(CLASSES) - 1) + 5  # more labels than looks share a grey
    labels = [f"{number:03}" for number in range(n_labels) for _ in range(2)]
    found = class_map([circle(range(len(labels)), labels, labels)])
    assert len({(kind.colour, kind.marker) for kind in found.kinds}) == len(found.kinds) == n_labels - 4
    assert (found.kinds[-1].name, (found.kind_of == n_labels - 5).sum()) == ("5 others", 5)


def test_purity_is_the_share_of_near_classes_with_the_same_coarsest_label(random_subject, circle):
    assert class_map([circle(range(8), "aabbccdd")]).purity == {}  # of one level
    subject = random_subject(0, "new")
    labels, means = subject.table.manifest.labels(), unit_class_means(subject)
    coarse, shares = dict(labels[:, [0, -1]].tolist()), []
    for code in range(10):
        total = sum(subject.table.vectors[place].astype(np.float64) for place in range(40) if labels[place, 0] == code)
        assert_close(means[code], total / np.linalg.norm(total), atol=1e-6, rtol=0)
        near = sorted((other for other in range(10) if other != code), key=lambda other: -means[code] @ means[other])[:4]
        shares += [coarse[other] == coarse[code] for other in near]
    assert neighbour_purity(means, np.array([coarse[code] for code in range(10)]), 4) == pytest.approx(np.mean(shares))
    assert class_map([subject]).purity.keys() == {"new"}


def test_published_values_are_shown_for_a_known_set_or_by_name():
    tables = published_tables_of([Path("/data/CUB_200_2011/images")], None, ["recall@1", "recall@2", "map"])
    assert [(table["dataset"], table["metrics"]) for table in tables] == [("CUB", ["recall@1", "recall@2"])]
    assert dict(tables[0]["rows"])["Triplet SH"][0] == 63.6
    (table,) = published_tables_of([Path("/data/sop")], "tpami_table01", ["recall@1", "map@r"])
    assert dict(table["rows"])["Fast-AP"] == [77.8, 50.5]
    for name, named in (("tpami_table01", "'SOP', 'iNaturalist'.*'/photos'"), ("tpami_table1", "'tpami_table1'")):
        assert_refused(named, published_tables_of, [Path("/photos")], name, ["recall@1"])


def test_a_set_is_known_by_its_manifest_or_by_where_its_images_lie(tmp_path):
    for manifest, images, dataset in (
        ("work/sop.parquet", "../Downloads/Stanford_Online_Products", "SOP"),
        ("work/table.parquet", "../Downloads/sop", "SOP"),
        ("data/inat-full.parquet", "../Downloads/inat", "iNat-full"),
        ("work/photos.csv", "photos", None),
    ):
        paths = [f"{images}/cub/1.jpg", f"{images}/wolf/1.jpg"]  # a class called as a data set says nothing
        rows = pl.DataFrame({"id": paths, "path": paths, "split": "test", "label_0": ["cub", "wolf"]})
        places = places_of(Manifest(tmp_path / manifest, (tmp_path / manifest).parent, rows, n_levels=1))
        found = {table["dataset"] for table in published_tables_of(places, None, ["recall@1", "h_ap"])}
        assert found == ({dataset} if dataset else set())
