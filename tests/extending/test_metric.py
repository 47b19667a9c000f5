"""A metric from another package, in Python, on the command line and in a report."""

import numpy as np
import polars as pl
import pytest
from PIL import Image

from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest

CODE = '''
import sightline as sl

def mean_reciprocal_rank(ranking):
    """One over the place of the first relevant item."""
    return ranking.share(1.0, ranking.first)

MRR = sl.Metric(mean_reciprocal_rank, "one over the place of the first image of the class")
'''
IN_PYTHON = """
import sys
import sightline as sl
table = sl.EmbeddingTable.read(sys.argv[1])
print("mrr" in sl.list_metrics())
print(sl.evaluate(table.vectors, table.manifest.labels(), metrics=["mrr"])["mrr"])
print(sl.evaluate_table(table, metrics=["mrr"]).per_query["mrr"].tolist())
"""


@pytest.fixture
def table_file(tmp_path):
    """Four images at 0, 10, 50 and 60 degrees, of the classes a, b, b and a."""
    Image.new("RGB", (8, 8)).save(tmp_path / "i.png")
    rows = pl.DataFrame({"id": list("pqrs"), "path": ["i.png"] * 4, "split": ["test"] * 4, "label_0": list("abba")})
    angles = np.radians([0.0, 10.0, 50.0, 60.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    return EmbeddingTable(Manifest(tmp_path, tmp_path, rows, 1), vectors, "f").write(tmp_path / "t.parquet")


def test_a_metric_of_another_package_is_measured_and_shown(other_package, table_file, tmp_path):
    python = other_package(CODE, "sightline.metrics", "mrr", "MRR")
    # From 0 degrees: 10, 50, 60 (third is right); from 10: 0, 50 (second); the other two alike.
    listed, mean, each = python("-c", IN_PYTHON, table_file).stdout.splitlines()
    assert (listed, mean) == ("True", str((1 / 3 + 1 / 2) / 2))
    assert each == str([1 / 3, 1 / 2, 1 / 2, 1 / 3])
    by_path = ["-m", "sightline", "evaluate", table_file, "--metric", "others:MRR"]
    refused = python(*by_path)
    assert (refused.returncode, "'others'" in refused.stderr, "--trust" in refused.stderr) == (2, True, True)
    assert python(*by_path, "--trust").stdout.split()[:2] == ["others:MRR", "41.7"]
    made = python("-m", "sightline", "report", table_file, "--out", tmp_path / "page.html", "-k", 2)
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith('<tr><th scope="row">mrr'))
    assert "41.7" in row
    assert "one over the place of the first image of the class" in row
