"""The bar: 1.4 million rows in three levels are read, checked, counted and sampled in 30 s and 2 GB."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "manifest.py"


def run(*options):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, options)], capture_output=True, text=True, check=True)
    steps = re.findall(r"^(\w+) +[\d.]+ s +([\d.]+) s of CPU, peak +(\d+) MB$", done.stdout, flags=re.MULTILINE)
    assert [step for step, _, _ in steps] == ["read", "statistics", "split", "labels", "epoch"]
    return done.stdout, sum(float(seconds) for _, seconds, _ in steps), max(int(peak) for _, _, peak in steps)


def test_a_small_one_runs_through():
    out, _, _ = run("--images", 5000, "--suffix", ".csv")
    assert re.search(r"5000 images, \d+ batches", out)
