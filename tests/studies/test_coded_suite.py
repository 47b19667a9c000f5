"""A suite on images with several codes: its cells, what they keep, and the question that its page answers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.evaluation.tables import evaluate_table
from sightline.labels.code_column import read_codes
from sightline.models.embed import embed_manifest
from sightline.studies.cells import Outcome, read_finished, run_job, write_job
from sightline.studies.suite import DataSet, cells_of, read_images, read_suite
from sightline.studies.suite_page import as_markdown
from sightline.training.prepare import untrained_encoder

SPLITS = ("train", "train", "val", "val", "test", "test")
SUITE = """
title = "t"
recipe = "images"
set = ["data.codes=codes", "model.backbone=tiny", "model.weights=none", "model.embedding_dim=16", "model.adaptation=full",
       "data.image_size=32", "data.n_workers=0", "sampler.batch_size=12", "sampler.per_class=2", "schedule.epochs=1",
       "validation.metric=h_ap"]
seeds = [0, 1]
metrics = ["h_ap", "map", "map_label_1", "map_each_code", "recall@1"]
baseline = "A"
data = [{ name = "marks" }]
rows = [{ name = "0", trained = false }, { name = "A", set = ["loss.name=sup_ap"] },
        { name = "B", set = ["loss.name=binary_cross_entropy"] }]
questions = [{ better = "B", than = ["A", "0"], metric = "h_ap", level = 0.01 }]
"""


@pytest.fixture(scope="module")
def marks(image_tree, tmp_path_factory):
    """12 kinds of 6 images: a code of their kind, and every second one a common code too."""
    root = tmp_path_factory.mktemp("marks")
    rows = [
        (
            str(file),
            ("train", "train", "val", "val", "test", "test")[item],
            f"{1 + kind % 3}.{kind + 1}" + ";9.1" * (kind % 2),
        )
        for kind, folder in enumerate(sorted(image_tree.glob("*/*")))
        for item, file in enumerate(sorted(folder.iterdir()))
    ]
    pl.DataFrame(rows, ["path", "split", "codes"], orient="row").write_csv(root / "marks.csv")
    return root / "marks.csv"


@pytest.fixture
def cells(marks, tmp_path):
    def read(*changes, manifest=marks):
        text = SUITE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "marks.toml").write_text(text)
        return cells_of(read_suite(tmp_path / "marks.toml"), {"marks": manifest}, tmp_path / "data", check=False)

    return read


def test_cells_keep_the_means_of_queries_with_one_rarest_code_and_the_page_answers_its_question(cells, marks, tmp_path):
    every = cells()
    assert len(every) == 5
    for cell in every:
        run_job(write_job(tmp_path / "out", cell))
    done = read_finished(tmp_path / "out", every)
    assert len(done) == 5
    untrained = done[every[0]]
    assert {"h_ap", "ndcg", "map_each_code", "recall@32", "map_label_1"} <= untrained.means.keys()
    assert "decomposability_gap" not in untrained.about
    manifest = read_codes(read_manifest(marks, labelled=False), "codes").split("test")
    found = evaluate_table(embed_manifest(untrained_encoder(every[0].recipe), manifest), codes="codes")
    assert untrained.means["h_ap"] == pytest.approx(found["h_ap"], abs=1e-9)
    kinds = np.repeat(np.arange(12), 2)  # the common code is in 12 of 24 marks, that of a kind in two
    in_order = np.argsort([f"{1 + kind % 3}.{kind + 1}" for kind in range(12)])
    means = [found.per_query["map"][kinds == kind].mean() for kind in in_order]
    np.testing.assert_allclose(untrained.class_means["map"], means, atol=1e-6)
    page = as_markdown(read_suite(tmp_path / "marks.toml"), Path("marks.toml"), done, 5, {})
    assert "12 groups of queries, each by its rarest code" in page
    assert "Is B better than A and 0 in h_ap, p < 0.01?" not in page  # a row without training has one seed
    trained = {cell: outcome for cell, outcome in done.items() if cell.row.trained}
    (tmp_path / "marks.toml").write_text(SUITE.replace('["A", "0"]', '["A"]'))
    suite = read_suite(tmp_path / "marks.toml")
    assert "Is B better than A in h_ap, p < 0.01? **" in as_markdown(suite, Path("marks.toml"), trained, 5, {})
    better = {
        cell: outcome if cell.row.name == "A" else Outcome(outcome.means, _shifted(done, cell, every), outcome.about)
        for cell, outcome in trained.items()
    }
    assert "p < 0.01? **Yes**: +20.0 against A" in as_markdown(suite, Path("marks.toml"), better, 5, {})


def _shifted(done, cell, every):
    """The values of row A with the same seed, all higher by 0.2, but for a little noise."""
    base = next(done[one] for one in every if (one.row.name, one.seed) == ("A", cell.seed))
    noise = np.resize([1e-3, -1e-3], 12).astype(np.float32)
    return {name: values + np.float32(0.2) + noise for name, values in base.class_means.items()}


def test_what_does_not_fit_is_refused_before_anything_runs(cells, marks, tmp_path):
    for old, new, facts in (
        ('"loss.name=sup_ap"', '"loss.name=sup_ap", "data.codes=none"', ["data.codes", "'None'", "'codes'"]),
        ("map_label_1", "map_label_2", ["'map_label_2'"]),
        ('set = ["data.codes=codes", ', "set = [", ["marks.csv"]),
        ("data.codes=codes", "data.codes=tags", ["'tags'"]),
        ('than = ["A"', 'than = ["C"', ["question", "'C'"]),
    ):
        assert_refused(facts, cells, (old, new))
    cut = read_codes(read_manifest(marks, labelled=False), "codes")
    one = DataSet(name="marks", val_fraction=0.2)
    without = cut.where(pl.col("split") != "val")
    held_out = read_images(one, without, tmp_path, "codes").split("val").table["codes"].explode()
    kept = read_images(one, without, tmp_path, "codes").split("train").table["codes"].explode()
    gone = {*held_out} - {*kept}
    assert gone
    assert "9.1" not in gone
