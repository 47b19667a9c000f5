"""A report on images that have codes and no labels, by command."""

import numpy as np
import pytest

from refusals import assert_refused
from sightline.evaluation.tables import evaluate_table
from sightline.report.page import write_report
from sightline.report.subject import read_subject

CODES = [["1.1", "9.1"], ["1.1"], ["1.2", "9.1"], ["1.2"], ["2.1", "9.1"], ["2.1"], ["3.1", "9.1"], ["3.1", "1.1"]]


ANGLES = [0, 5, 20, 30, 80, 82, 120, 11]


@pytest.fixture
def coded(circle):
    return circle(ANGLES, codes=CODES).table


def test_metrics_and_frames_are_by_codes_and_classes_by_a_rare_one(coded, tmp_path, sightline):
    coded.write(tmp_path / "marks.parquet")
    report = write_report(tmp_path / "page.html", read_subject(tmp_path / "marks.parquet"))
    (result,) = report.results.values()
    wanted = evaluate_table(coded, codes="codes")
    for metric in ("h_ap", "ndcg", "map", "map_label_1", "recall@1", "map_each_code"):
        np.testing.assert_allclose(result.per_query[metric], wanted.per_query[metric], atol=1e-12, err_msg=metric)
    page = report.file.read_text(encoding="utf-8")
    assert "column codes" in page
    assert "map_each_code" in page
    shown = [one for gallery in report.galleries for one in gallery.rows]
    heights = {asked.query.row: [p.height for p in next(iter(asked.found.values()))] for asked in shown}
    assert heights
    for query, found in heights.items():
        nearest = np.argsort(-(coded.vectors @ coded.vectors[query]), kind="stable")
        depth = [_shared(CODES[query], CODES[item]) for item in nearest if item != query]
        assert found == [2 - levels for levels in depth]
    assert sightline("report", tmp_path / "marks.parquet", "--out", tmp_path / "by.html")[0] == 0


def _shared(codes, others):
    """How many levels the nearest two codes share."""
    both = [(code.split("."), other.split(".")) for code in codes for other in others]
    return max(2 if one == other else int(one[0] == other[0]) for one, other in both)


def test_text_is_split_and_what_has_neither_labels_nor_codes_is_refused(tmp_path, circle):
    text = circle(ANGLES, codes=[";".join(codes) for codes in CODES]).table
    text.write(tmp_path / "text.parquet")
    assert_refused(["labels", "--codes"], read_subject, tmp_path / "text.parquet")
    subject = read_subject(tmp_path / "text.parquet", codes="codes")
    assert subject.codes == "codes"
    labels = subject.table.manifest.table["label_0"].to_list()
    assert all(label in codes for label, codes in zip(labels, CODES, strict=True))
