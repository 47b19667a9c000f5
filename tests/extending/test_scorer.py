"""An outlier scorer from another package, met in Python and on the command line, saved and loaded by its name."""

import numpy as np
import polars as pl
import pytest

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest

CODE = '''
import torch
from sightline.ood import Scorer

class Centre(Scorer):
    """Distance to the mean of all vectors.

    Args:
        power: of the distance.
    """

    state = ("centre",)

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def _fit(self, inputs, labels, classifier):
        self.centre = inputs.mean(0)

    def energy(self, features):
        return torch.linalg.vector_norm(features - self.centre, dim=1) ** self.power
'''
IN_PYTHON = """
import sys, numpy as np
import sightline as sl
vectors = np.array([[0.0, 0.0], [2.0, 0.0]])
print("centre" in sl.ood.list_scorers())
scorer = sl.ood.create("centre", power=2.0).fit(vectors)
print(scorer.score(np.array([[4.0, 0.0]])).tolist())
"""


@pytest.fixture
def table_file(tmp_path):
    """40 vectors about one direction, in four classes."""
    rows = pl.DataFrame(
        {
            "id": [str(n) for n in range(40)],
            "path": ["none.png"] * 40,
            "split": ["train"] * 40,
            "label_0": [f"c{n % 4}" for n in range(40)],
        }
    )
    vectors = np.random.default_rng(0).normal([5, 0, 0], 1, (40, 3)).astype(np.float32)
    return EmbeddingTable(Manifest(tmp_path, tmp_path, rows, 1), vectors, "f").write(tmp_path / "t.parquet")


def test_a_scorer_of_another_package_is_fitted_saved_and_loaded(other_package, table_file, tmp_path):
    python = other_package(CODE, "sightline.scorers", "centre", "Centre")
    assert python("-c", IN_PYTHON).stdout.splitlines() == ["True", "[9.0]"]
    assert "centre (power): Distance to the mean of all vectors." in python("-m", "sightline", "ood", "scorers").stdout
    fit = ["-m", "sightline", "ood", "fit", table_file, "--out", tmp_path / "rejector"]
    fitted = python(*fit, "--scorer", "centre", "--option", "power=2")
    assert fitted.returncode == 0, fitted.stderr
    evaluate = ["-m", "sightline", "ood", "evaluate", tmp_path / "rejector", "--in", table_file]
    measured = python(*evaluate, "--out-sets", f"same={table_file}")
    assert measured.returncode == 0, measured.stderr
    assert "50.0" in measured.stdout  # AUROC of a set against itself


def test_a_scorer_by_its_path_is_imported_only_where_it_is_trusted(other_package, table_file, tmp_path):
    python = other_package(CODE, "sightline.scorers", "centre", "Centre")
    fit = ["-m", "sightline", "ood", "fit", table_file, "--out", tmp_path / "rejector", "--scorer", "others:Centre"]
    refused = python(*fit)
    assert (refused.returncode, "'others'" in refused.stderr, "--trust" in refused.stderr) == (2, True, True)
    assert python(*fit, "--trust").returncode == 0
    evaluate = ["-m", "sightline", "ood", "evaluate", tmp_path / "rejector", "--in", table_file]
    assert python(*evaluate, "--out-sets", f"same={table_file}").returncode == 2
    assert python(*evaluate, "--out-sets", f"same={table_file}", "--trust").returncode == 0
