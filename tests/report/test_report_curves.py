import math
import re
import xml.etree.ElementTree as ET

import pytest
from torch.testing import assert_close

from sightline.report.curves import smoothed, training_curves

LOSSES = [(step, 0, "loss", 1 / step) for step in range(1, 6)]
VALIDATED = [(5, 0, "val/map@r", 0.25), (5, 0, "val/map", 0.5)]


def panels(svg):
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [element.get("id") for element in root.iter() if re.fullmatch(r"axes_\d+", element.get("id", ""))]


def test_loss_and_metric_stand_side_by_side():
    svg = training_curves(LOSSES + VALIDATED, "map@r")
    assert panels(svg) == ["axes_1", "axes_2"]
    assert "Training loss" in svg
    assert "Validation map@r (%)" in svg


@pytest.mark.parametrize("log", [LOSSES, [*LOSSES, (5, 0, "val/map", 0.5), (5, 0, "map@r", 0.5)]])
def test_the_metrics_panel_is_left_out_where_nothing_was_validated(log):
    svg = training_curves(log, "map@r")
    assert panels(svg) == ["axes_1"]
    assert "Validation" not in svg


def test_an_empty_log_draws_an_empty_panel():
    assert panels(training_curves([], "map@r")) == ["axes_1"]


def test_the_same_log_draws_the_same_picture():
    assert training_curves(LOSSES + VALIDATED, "map@r") == training_curves(LOSSES + VALIDATED, "map@r")
    assert training_curves(LOSSES, "map") != training_curves(LOSSES[:4], "map")


def test_the_mean_by_definition():
    values = [3.0, -1.0, 4.0, 1.0, -5.0]
    expected = []
    for last in range(len(values)):
        weights = [0.8 ** (last - place) for place in range(last + 1)]
        expected.append(math.fsum(w * v for w, v in zip(weights, values, strict=False)) / math.fsum(weights))
    assert_close(smoothed(values, weight=0.8), expected)
    assert smoothed([]) == []
