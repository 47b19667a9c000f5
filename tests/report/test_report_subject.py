import re

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.models.encoder import Encoder
from sightline.report.subject import EMBEDDED, Subject, matched, read_subject, read_untrained
from sightline.training.recipe import Recipe, read_recipe
from sightline.training.run import train


def changed(subject, rows, name="other"):
    """The subject with another table of images."""
    manifest = subject.table.manifest
    other = type(manifest)(manifest.source, manifest.root, rows, manifest.n_levels)
    return Subject(name, EmbeddingTable(other, subject.table.vectors[: len(rows)], "g"))


def test_rows_in_another_order_are_matched_by_id(random_subject):
    subject = random_subject()
    order = np.random.default_rng(0).permutation(40)
    other = changed(subject, subject.table.manifest.table[order])
    vectors = matched(subject, other).table.vectors
    assert np.array_equal(vectors[order], other.table.vectors)


def test_other_images_and_labels_are_refused(random_subject):
    subject = random_subject()
    rows = subject.table.manifest.table
    assert_refused(r"1 ids .* '39.png'", matched, subject, changed(subject, rows[:39]))
    renamed = rows.with_columns(id=pl.col("id").str.replace("^3.png", "x.png"))
    assert_refused(r"2 ids .* '3.png'", matched, subject, changed(subject, renamed))
    other = rows.with_columns(label_1=pl.when(pl.col("id") == "7.png").then(pl.lit("new")).otherwise(pl.col("label_1")))
    message = r"labels differ for 1 of 40 images, first for '7.png': .*'m1'.* and .*'new'"
    assert_refused(message, matched, subject, changed(subject, other))


def test_what_cannot_be_shown_is_refused(circle, tmp_path):
    flat = circle((0, 1)).table.write(tmp_path / "flat.parquet")
    assert_refused("flat", read_subject, flat)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file").touch()
    assert_refused(r"'recipe.json'.*'encoder'.*found 'file'", read_subject, tmp_path / "some")
    assert_refused("no such file", read_subject, tmp_path / "nowhere.parquet")
    assert_refused("--against untrained", read_untrained, circle((0, 1), "aa"))


@pytest.fixture(scope="module")
def run(tmp_path_factory, image_tree):
    overrides = [
        "model.backbone=tiny", "model.weights=none", "model.embedding_dim=8", "data.image_size=32", "data.n_workers=0",
        "sampler.batch_size=16", "schedule.epochs=2", "model.adaptation=full", "loss={name='roadmap', alpha=0.8}",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(read_recipe("images", [f"data.manifest={image_tree}", *overrides]), folder)
    return folder


def test_a_run_is_shown_on_the_classes_it_held_out_and_embedded_once_by_its_encoder(run):
    subject = read_subject(run)
    assert (subject.name, len(subject.table), subject.table.manifest.n_levels) == ("run", 12, 2)
    assert subject.table.fingerprint == Encoder.from_pretrained(run / "encoder").fingerprint()
    assert any(name == "loss" for _, _, name, _ in subject.log)
    assert subject.thresholds == {"alpha": 0.8, "beta": 0.6}
    assert all(fact in subject.selection for fact in ("of 2", "map@r", "(12 images, 2 classes", "optimistic"))
    stamp = (run / EMBEDDED).stat().st_mtime_ns
    again = read_subject(run, name="mine")
    assert ((run / EMBEDDED).stat().st_mtime_ns, again.name) == (stamp, "mine")
    assert np.array_equal(again.table.vectors, subject.table.vectors)
    stale = EmbeddingTable(subject.table.manifest, subject.table.vectors + 1, "of another")
    stale.write(run / EMBEDDED)
    assert np.array_equal(read_subject(run).table.vectors, subject.table.vectors)


def test_a_run_is_shown_on_the_images_of_a_table_and_beside_its_untrained_backbone(run):
    subject = read_subject(run)
    few = subject.table.where(pl.col("label_1") == "super0")
    assert read_subject(run, like=few).table.ids == few.ids
    untrained = read_untrained(subject)
    assert (untrained.name, untrained.table.ids, untrained.thresholds) == ("untrained", subject.table.ids, {})
    assert untrained.table.fingerprint != subject.table.fingerprint


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"name": "roadmap"}, {"alpha": 0.9, "beta": 0.6}),
        ({"name": "roadmap", "decomposability": "proxy"}, {}),
        ({"name": "smooth_ap"}, {}),
    ],
)
def test_thresholds_are_those_that_training_aimed_at(random_subject, loss, expected):
    recipe = Recipe.model_validate({"data": {"manifest": "x"}, "loss": loss})
    assert Subject("m", random_subject().table, recipe=recipe).thresholds == expected


def test_a_run_that_held_nothing_out_says_what_to_do(run, image_tree, tmp_path):
    text = (run / "recipe.json").read_text()
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "encoder").symlink_to(run / "encoder")
    (copy / "recipe.json").write_text(re.sub(r'"val_fraction": [\d.]+', '"val_fraction": 0.0', text))
    assert_refused("sightline embed", read_subject, copy)
    (copy / "recipe.json").write_text("{}")
    assert_refused(r"recipe\.json: not a recipe", read_subject, copy)
