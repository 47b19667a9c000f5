"""An outlier scorer from another package, in Python and on the command line, saved and loaded by its name."""

import numpy as np
import polars as pl
import pytest

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest

CODE = '''
import torch
from sightline.ood import Scorer

class Centre(Scorer):
    """Distance to the mean of all vectors."""

    state = ("centre",)

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def _fit(self, inputs, labels, classifier):
        self.centre = inputs.mean(0)

    def energy(self, features):
        return torch.linalg.vector_norm(features - self.centre, dim=1) ** self.power
'''


@pytest.fixture
def table_file(tmp_path):
    """40 vectors about one direction, in four classes."""
    labels = [f"c{n % 4}" for n in range(40)]
    rows = pl.DataFrame(
        {"id": list(map(str, range(40))), "path": ["a.png"] * 40, "split": ["train"] * 40, "label_0": labels}
    )
    vectors = np.random.default_rng(0).normal([5, 0, 0], 1, (40, 3)).astype(np.float32)
    return EmbeddingTable(Manifest(tmp_path, tmp_path, rows, 1), vectors, "f").write(tmp_path / "t.parquet")


def test_a_scorer_of_another_package_is_fitted_saved_and_loaded(other_package, table_file, tmp_path):
    python = other_package(CODE, "sightline.scorers", "centre", "Centre")
    assert "centre (power): Distance to the mean of all vectors." in python("-m", "sightline", "ood", "scorers").stdout
    fit = ["-m", "sightline", "ood", "fit", table_file, "--out", tmp_path / "rejector", "--option", "power=2", "--scorer"]
    refused = python(*fit, "others:Centre")
    assert (refused.returncode, "'others'" in refused.stderr, "--trust" in refused.stderr) == (2, True, True)
    evaluate = ["-m", "sightline", "ood", "evaluate", tmp_path / "rejector", "--in", table_file]
    evaluate += ["--out-sets", f"same={table_file}"]
    fitted = python(*fit, "centre")
    assert fitted.returncode == 0, fitted.stderr
    assert "50.0" in python(*evaluate).stdout  # AUROC of a set against itself
    assert python(*fit, "others:Centre", "--trust").returncode == 0
    assert python(*evaluate).returncode == 2
    assert python(*evaluate, "--trust").returncode == 0
