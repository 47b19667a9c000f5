import shutil

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.ood.rejector import fit_rejector
from sightline.report.figures import outlier_panel
from sightline.report.page import ReportOptions, write_report
from sightline.report.subject import Subject, held_rejector, read_outliers


@pytest.fixture(scope="module")
def fitted(two_subjects, tmp_path_factory):
    """A rejector of 8-dimensional vectors around one direction, their table, and outliers around another."""
    folder, rng = tmp_path_factory.mktemp("rejector"), np.random.default_rng(0)
    manifest = two_subjects[0].table.manifest
    own = (rng.normal(0, 0.2, (40, 8)) + np.eye(8)[0]).astype(np.float32)
    far = (rng.normal(0, 0.2, (40, 8)) + np.eye(8)[3]).astype(np.float32)
    table = EmbeddingTable(manifest, own, "e")
    rejector = fit_rejector(table, "knn", gallery=table, k=5)
    outliers = EmbeddingTable(manifest, far, "e").write(folder / "outliers.parquet")
    return rejector, rejector.save(folder / "rejector"), table, outliers, far


def test_energies_are_those_of_the_rejector(fitted):
    rejector, folder, table, outliers, far = fitted
    found = read_outliers(folder, table, outliers)
    np.testing.assert_allclose(found.inside, rejector.scorer.score(table.vectors))
    np.testing.assert_allclose(found.outside, rejector.scorer.score(far))
    assert (found.threshold, found.match) == (rejector.scorer.threshold, rejector.similarity_threshold)
    assert found.auroc == pytest.approx(roc_auc_score([0] * 40 + [1] * 40, [*found.inside, *found.outside]))
    (axes,) = outlier_panel(found).figure.axes
    assert axes.lines[0].get_xdata()[0] == found.threshold


def test_vectors_of_another_encoder_are_refused(fitted, two_subjects):
    _, folder, table, outliers, far = fitted
    assert_refused(r"encoder e.* f", read_outliers, folder, two_subjects[0].table)
    other = EmbeddingTable(table.manifest, far, "g").write(outliers.with_name("other.parquet"))
    assert_refused(["other.parquet", "rejector"], read_outliers, folder, table, other)


def test_the_page_has_a_section_for_them(fitted, tmp_path):
    _, folder, table, outliers, _ = fitted
    for others in (None, outliers):
        found = read_outliers(folder, table, others)
        options = ReportOptions(outliers=found, k=3, n_queries=1)
        text = write_report(tmp_path / "r.html", Subject("m", table), options=options).file.read_text()
        kept = 100 * np.mean([energy <= found.threshold for energy in found.inside])
        assert f"<p>{kept:.1f} % of the 40 images" in text
        assert ("Of 40 outliers" in text) == (others is not None)
    refused = 100 * np.mean([energy > found.threshold for energy in found.outside])
    assert f"Of 40 outliers, {refused:.1f} % are rejected; AUROC {100 * found.auroc:.1f} %." in text


def test_a_rejector_in_the_runs_encoder_is_shown_without_being_asked_for(fitted, tmp_path, sightline, monkeypatch):
    _, folder, table, outliers, _ = fitted
    shutil.copytree(folder, tmp_path / "run" / "encoder" / "rejector")
    assert held_rejector(tmp_path / "run") == tmp_path / "run" / "encoder" / "rejector"
    assert held_rejector(outliers) is None
    subject = Subject("m", table)
    monkeypatch.setattr("sightline.report.subject.read_subject", lambda *_, **__: subject)
    status, _, error = sightline("report", tmp_path / "run", "--outliers", outliers, "--out", tmp_path / "r.html", "-k", 3)
    assert status == 0, error
    text = (tmp_path / "r.html").read_text()
    assert "Of 40 outliers" in text
    assert f"Made by: sightline report {tmp_path / 'run'}" in text


def test_options_that_need_another_are_refused_before_the_work(check_refused):
    for option, needed in (("--outliers", "--detector"), ("--against-name", "--against")):
        check_refused(["report", "nowhere.parquet", option, "x"], needed)
