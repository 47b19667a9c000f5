"""The bar: 1.4 million rows in three levels are read, checked, counted and sampled in 30 s and 2 GB."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "manifest.py"


def test_a_small_one_runs_through():
    words = [sys.executable, SCRIPT, "--images", "5000", "--suffix", ".csv"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    steps = re.findall(r"^(\w+) +[\d.]+ s +[\d.]+ s of CPU, peak +\d+ MB$", out, flags=re.MULTILINE)
    assert steps == ["read", "statistics", "split", "labels", "epoch"]
    assert re.search(r"5000 images, \d+ batches", out)
