"""What a report shows: a table, a run or a model beside another, and the rejector that judges it."""

import re
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.models.encoder import Encoder
from sightline.ood.rejector import fit_rejector
from sightline.report.figures import outlier_panel
from sightline.report.page import ReportOptions, write_report
from sightline.report.subject import EMBEDDED, Subject, held_rejector, matched, read_outliers, read_subject, read_untrained
from sightline.training.recipe import Recipe, read_recipe
from sightline.training.run import train

TINY = """model.backbone=tiny model.weights=none model.embedding_dim=8 model.adaptation=full data.image_size=32
data.n_workers=0 sampler.batch_size=16 schedule.epochs=2"""


def changed(subject, rows):
    """The subject with another table of images."""
    manifest = replace(subject.table.manifest, table=rows, places=None)
    return Subject("other", EmbeddingTable(manifest, subject.table.vectors[: len(rows)], "g"))


def test_another_subject_is_matched_by_id_and_refused_with_other_images_or_labels(random_subject):
    subject = random_subject()
    rows, order = subject.table.manifest.table, np.random.default_rng(0).permutation(40)
    other = changed(subject, rows[order])
    assert np.array_equal(matched(subject, other).table.vectors[order], other.table.vectors)
    renamed = rows.with_columns(id=pl.col("id").str.replace("^3.png", "x.png"))
    is_seventh = pl.col("id") == "7.png"
    relabelled = rows.with_columns(label_1=pl.when(is_seventh).then(pl.lit("new")).otherwise(pl.col("label_1")))
    for others, message in (
        (rows[:39], r"1 ids .* '39.png'"),
        (renamed, r"2 ids .* '3.png'"),
        (relabelled, r"labels differ for 1 of 40 images, first for '7.png': .*'m1'.* and .*'new'"),
    ):
        assert_refused(message, matched, subject, changed(subject, others))


def test_what_cannot_be_shown_is_refused(circle, tmp_path):
    flat = circle((0, 1)).table.write(tmp_path / "flat.parquet")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file").touch()
    for message, call, given in (
        ("flat", read_subject, flat),
        (r"'recipe.json'.*'encoder'.*found 'file'", read_subject, tmp_path / "some"),
        ("no such file", read_subject, tmp_path / "nowhere.parquet"),
        ("--against untrained", read_untrained, circle((0, 1), "aa")),
    ):
        assert_refused(message, call, given)


@pytest.fixture(scope="module")
def run(tmp_path_factory, image_tree):
    folder = tmp_path_factory.mktemp("runs") / "run"
    overrides = [f"data.manifest={image_tree}", *TINY.split(), "loss={name='roadmap', alpha=0.8}"]
    train(read_recipe("images", overrides), folder)
    return folder


def test_a_run_is_shown_on_the_classes_it_held_out_and_embedded_once_by_its_encoder(run):
    subject = read_subject(run)
    table = subject.table
    assert (subject.name, len(table), table.manifest.n_levels) == ("run", 12, 2)
    assert table.fingerprint == Encoder.from_pretrained(run / "encoder").fingerprint()
    assert any(name == "loss" for _, _, name, _ in subject.log)
    assert subject.thresholds == {"alpha": 0.8, "beta": 0.6}
    assert all(fact in subject.selection for fact in ("of 2", "map@r", "(12 images, 2 classes", "optimistic"))
    stamp = (run / EMBEDDED).stat().st_mtime_ns
    again = read_subject(run, name="mine")
    assert ((run / EMBEDDED).stat().st_mtime_ns, again.name) == (stamp, "mine")
    assert np.array_equal(again.table.vectors, table.vectors)
    EmbeddingTable(table.manifest, table.vectors + 1, "of another").write(run / EMBEDDED)
    assert np.array_equal(read_subject(run).table.vectors, table.vectors)
    few = table.where(pl.col("label_1") == "super0")
    assert read_subject(run, like=few).table.ids == few.ids
    untrained = read_untrained(subject)
    assert (untrained.name, untrained.table.ids, untrained.thresholds) == ("untrained", table.ids, {})
    assert untrained.table.fingerprint != table.fingerprint


def test_thresholds_are_those_that_training_aimed_at(random_subject):
    for loss, expected in (
        ({"name": "roadmap"}, {"alpha": 0.9, "beta": 0.6}),
        ({"name": "roadmap", "decomposability": "proxy"}, {}),
        ({"name": "smooth_ap"}, {}),
    ):
        recipe = Recipe.model_validate({"data": {"manifest": "x"}, "loss": loss})
        assert Subject("m", random_subject().table, recipe=recipe).thresholds == expected


def test_a_run_that_held_nothing_out_says_what_to_do(run, tmp_path):
    (tmp_path / "encoder").symlink_to(run / "encoder")
    held_nothing = re.sub(r'"val_fraction": [\d.]+', '"val_fraction": 0.0', (run / "recipe.json").read_text())
    for text, message in ((held_nothing, "sightline embed"), ("{}", r"recipe\.json: not a recipe")):
        (tmp_path / "recipe.json").write_text(text)
        assert_refused(message, read_subject, tmp_path)


@pytest.fixture(scope="module")
def fitted(two_subjects, tmp_path_factory):
    """A rejector of 8-dimensional vectors around one direction, their table, and outliers around another."""
    folder, rng = tmp_path_factory.mktemp("rejector"), np.random.default_rng(0)
    manifest = two_subjects[0].table.manifest
    own, far = ((rng.normal(0, 0.2, (40, 8)) + np.eye(8)[axis]).astype(np.float32) for axis in (0, 3))
    table = EmbeddingTable(manifest, own, "e")
    rejector = fit_rejector(table, "knn", gallery=table, k=5)
    outliers = EmbeddingTable(manifest, far, "e").write(folder / "outliers.parquet")
    return rejector, rejector.save(folder / "rejector"), table, outliers, far


def test_energies_are_those_of_the_rejector_and_vectors_of_another_encoder_are_refused(fitted, two_subjects):
    rejector, folder, table, outliers, far = fitted
    found = read_outliers(folder, table, outliers)
    np.testing.assert_allclose(found.inside, rejector.scorer.score(table.vectors))
    np.testing.assert_allclose(found.outside, rejector.scorer.score(far))
    assert (found.threshold, found.match) == (rejector.scorer.threshold, rejector.similarity_threshold)
    assert found.auroc == pytest.approx(roc_auc_score([0] * 40 + [1] * 40, [*found.inside, *found.outside]))
    (axes,) = outlier_panel(found).figure.axes
    assert axes.lines[0].get_xdata()[0] == found.threshold
    assert_refused(r"encoder e.* f", read_outliers, folder, two_subjects[0].table)
    other = EmbeddingTable(table.manifest, far, "g").write(outliers.with_name("other.parquet"))
    assert_refused(["other.parquet", "rejector"], read_outliers, folder, table, other)


def test_a_rejector_has_a_section_and_one_in_the_runs_encoder_is_shown_without_being_asked_for(
    fitted, tmp_path, sightline, check_refused, monkeypatch
):
    _, folder, table, outliers, _ = fitted
    run, file, subject = tmp_path / "run", tmp_path / "r.html", Subject("m", table)
    found = read_outliers(folder, table)
    text = write_report(file, subject, options=ReportOptions(outliers=found, k=3, n_queries=1)).file.read_text()
    kept = f"<p>{100 * np.mean([energy <= found.threshold for energy in found.inside]):.1f} % of the 40 images"
    assert (kept in text, "Of 40 outliers" in text) == (True, False)
    shutil.copytree(folder, run / "encoder" / "rejector")
    assert held_rejector(run) == run / "encoder" / "rejector"
    assert held_rejector(outliers) is None
    monkeypatch.setattr("sightline.report.subject.read_subject", lambda *_, **__: subject)
    status, _, error = sightline("report", run, "--outliers", outliers, "--out", file, "-k", 3)
    assert status == 0, error
    found, text = read_outliers(folder, table, outliers), file.read_text()
    refused = 100 * np.mean([energy > found.threshold for energy in found.outside])
    said = f"Of 40 outliers, {refused:.1f} % are rejected; AUROC {100 * found.auroc:.1f} %."
    assert [fact for fact in (kept, said, f"Made by: sightline report {run}") if fact not in text] == []
    for option, needed in (("--outliers", "--detector"), ("--against-name", "--against")):  # refused before the work
        check_refused(["report", "nowhere.parquet", option, "x"], needed)
