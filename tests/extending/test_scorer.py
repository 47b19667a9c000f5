"""An outlier scorer from another package, in Python and on the command line, saved and loaded by its name."""

import numpy as np

from small_tables import small_table

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


def test_a_scorer_of_another_package_is_fitted_saved_and_loaded(other_package, tmp_path):
    vectors = np.random.default_rng(0).normal([5, 0, 0], 1, (40, 3))
    table = small_table(vectors, np.arange(40) % 4).write(tmp_path / "t.parquet")
    python = other_package(CODE, scorers="centre = others:Centre")
    assert "centre (power): Distance to the mean of all vectors." in python("-m", "sightline", "ood", "scorers").stdout
    fit = ["-m", "sightline", "ood", "fit", table, "--out", tmp_path / "rejector", "--option", "power=2", "--scorer"]
    evaluate = ["-m", "sightline", "ood", "evaluate", tmp_path / "rejector", "--in", table, "--out-sets", f"same={table}"]
    refused = python(*fit, "others:Centre", status=2).stderr
    assert "'others'" in refused
    assert "--trust" in refused
    python(*fit, "centre")
    assert "50.0" in python(*evaluate).stdout  # AUROC of a set against itself
    python(*fit, "others:Centre", "--trust")
    python(*evaluate, status=2)
    python(*evaluate, "--trust")
