"""One bit of a gallery is flipped: it is found, or repaired from the truth, or what counts is unchanged.

Tables, checkpoints and scorers have such a test of their own. A case is run alone by its name:
``pytest tests/hostile/test_bit_flips.py -m '' -k 'gallery.db-7'``.
"""

import json
import random
import shutil

import pytest
from killed_operations import gallery_state, same_bits, weights
from mutations import flipped

FLIPS = dict.fromkeys(("vectors-0.f32", "index-*.faiss", "index.json", "encoder/model.safetensors"), 14)
FLIPS |= dict.fromkeys(("encoder/encoder.json", "rejector/rejector.json", "rejector/scorer.safetensors"), 8)
FLIPS["gallery.db"] = 50
CASES = [(place, seed) for place, n in FLIPS.items() for seed in range(n)]


def content(folder, scratch):
    files = [weights(folder / "encoder/model.safetensors"), weights(folder / "rejector/scorer.safetensors")]
    parts = [file for name in ("encoder", "rejector") for file in sorted(folder.glob(f"{name}/*.json"))]
    return [gallery_state(folder, scratch), files, [json.loads(file.read_text()) for file in parts]]


def answers(warm, base, gallery, folder):
    """What search prints, whatever the gallery's place and what was repaired."""
    queries = [base / "images/0-0.png", base / "images/5-2.png"]
    step = warm.run([("command", "search", *queries, "--gallery", gallery, "--json", "--reject")], folder).steps[0]
    lines = step["printed"].replace(str(gallery), "").splitlines()
    return step["status"], [line for line in lines if not line.startswith("sightline:")]


@pytest.mark.parametrize(
    ("place", "seed"), [pytest.param(*case, marks=() if case[1] < 2 else pytest.mark.slow) for case in CASES]
)
def test_a_flipped_bit_is_found_or_changes_nothing(place, seed, base, warm, tmp_path):
    gallery, good = (shutil.copytree(base / "gallery", tmp_path / name) for name in ("gallery", "good"))
    file = next(iter(gallery.glob(place)))
    flipped(file, random.Random(f"gallery {place} {seed}"), None)
    verified = warm.run([("command", "index", "verify", gallery)], tmp_path)
    assert not verified.faults(), verified.faults()
    if verified.steps[0]["status"] == 2:
        return
    assert same_bits(content(gallery, tmp_path / "scratch"), content(base / "gallery", tmp_path / "scratch"))
    assert answers(warm, base, gallery, tmp_path) == answers(warm, base, good, tmp_path)
