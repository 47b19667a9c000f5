"""One bit of an artefact is flipped: it is found, or repaired from the truth, or what counts is shown to be unchanged.

A case is run alone by its name: ``pytest tests/hostile/test_bit_flips.py -m '' -k 'gallery.db-7'``.
"""

import json
import random
import shutil

import polars as pl
import pytest
from base_artefacts import train_words
from killed_operations import gallery_state, run_state, same_bits, table_state, weights
from mutations import flipped

FLIPS = {  # how many of each file
    ("gallery", "gallery.db"): 50,
    ("gallery", "vectors-0.f32"): 14,
    ("gallery", "index-*.faiss"): 14,
    ("gallery", "index.json"): 14,
    ("gallery", "encoder/encoder.json"): 10,
    ("gallery", "encoder/model.safetensors"): 10,
    ("gallery", "rejector/rejector.json"): 8,
    ("gallery", "rejector/scorer.json"): 8,
    ("gallery", "rejector/scorer.safetensors"): 8,
    ("encoder", "encoder.json"): 12,
    ("encoder", "model.safetensors"): 16,
    ("run", "last.pt"): 30,
    ("table.parquet", ""): 30,
}
CASES = [(artefact, place, seed) for (artefact, place), n in FLIPS.items() for seed in range(n)]
SAMPLE = [case for case in CASES if case[2] < 2]


def name(value):
    return str(value).replace("/", ".").replace("*", "") or "file"


def settings(folder):
    """What the JSON files of a folder say."""
    return {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def gallery_content(folder, scratch):
    encoder, rejector = folder / "encoder", folder / "rejector"
    files = [weights(encoder / "model.safetensors"), weights(rejector / "scorer.safetensors")]
    return [gallery_state(folder, scratch), files, settings(encoder), settings(rejector)]


def judge_gallery(base, warm, artefact, folder):
    """Verified, the gallery is refused, or holds what it held, and search over it answers as it did."""
    queries = [base / "images/0-0.png", base / "images/5-2.png"]
    search = [
        ("command", "search", *queries, "--gallery", place, "--json", "--reject") for place in (artefact, folder / "good")
    ]
    verified = warm.run([("command", "index", "verify", artefact)], folder)
    assert not verified.faults(), verified.faults()
    if verified.steps[0]["status"] == 2:
        return "found"
    shutil.copytree(base / "gallery", folder / "good")
    content = [gallery_content(place, folder / "scratch") for place in (artefact, base / "gallery")]
    assert same_bits(*content), f"verify finds nothing, and the content is another: {verified.steps[0]['printed']}"
    answers = [warm.run([one], folder).steps[0] for one in search]
    assert [answer["status"] for answer in answers] == [0, 0], answers
    assert without_place(answers[0], artefact) == without_place(answers[1], folder / "good"), answers
    return "repaired" if "repaired" in verified.steps[0]["printed"] else "unchanged"


def without_place(answer, folder):
    return [line for line in answer["printed"].replace(str(folder), "").splitlines() if not line.startswith("sightline:")]


def judge_encoder(base, warm, artefact, folder):
    out = folder / "table.parquet"
    steps = [("command", "embed", artefact, base / "manifest.csv", "--out", out, "--workers", 0)]
    outcome = warm.run(steps, folder)
    assert not outcome.faults(), outcome.faults()
    if outcome.steps[0]["status"] == 2:
        return "found"
    assert same_bits(weights(artefact / "model.safetensors"), weights(base / "encoder/model.safetensors"))
    assert same_bits(settings(artefact), settings(base / "encoder"))
    assert same_bits(table_state(out), table_state(base / "table.parquet"))
    return "unchanged"


def judge_run(base, warm, artefact, folder):
    outcome = warm.run([("command", *train_words(base, artefact), "--resume")], folder)
    assert not outcome.faults(), outcome.faults()
    if outcome.steps[0]["status"] == 2:
        return "found"
    shutil.copytree(base / "run", folder / "good")
    warm.call(("command", *train_words(base, folder / "good"), "--resume"))
    assert same_bits(run_state(artefact), run_state(folder / "good"))
    return "unchanged"


def judge_table(base, warm, artefact, folder):
    outcome = warm.run([("command", "evaluate", artefact)], folder)
    assert not outcome.faults(), outcome.faults()
    if outcome.steps[0]["status"] == 2:
        return "found"
    assert same_bits(table_state(artefact), table_state(base / "table.parquet"))
    described = [pl.read_parquet_metadata(file) for file in (artefact, base / "table.parquet")]
    kept = [[known.get(key) for key in ("root", "fingerprint", "n_levels")] for known in described]
    assert kept[0] == kept[1]
    return "unchanged"


JUDGES = {"gallery": judge_gallery, "encoder": judge_encoder, "run": judge_run, "table.parquet": judge_table}


def check(artefact, place, seed, base, warm, folder):
    copy = folder / artefact
    shutil.copytree(base / artefact, copy) if (base / artefact).is_dir() else shutil.copy(base / artefact, copy)
    file = next(iter(copy.glob(place))) if place else copy
    before = file.read_bytes()
    flipped(file, random.Random(f"{artefact} {place} {seed}"), None)
    where = next(place for place, (old, new) in enumerate(zip(before, file.read_bytes(), strict=True)) if old != new)
    try:
        JUDGES[artefact](base, warm, copy, folder)
    except Exception as error:  # what cannot be read after a flip that nobody found
        pytest.fail(f"{file.name}, byte {where} of {len(before)}: {type(error).__name__}: {error}")


@pytest.mark.parametrize(("artefact", "place", "seed"), SAMPLE, ids=name)
def test_some_flipped_bits(artefact, place, seed, base, warm, tmp_path):
    check(artefact, place, seed, base, warm, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("artefact", "place", "seed"), CASES, ids=name)
def test_many_flipped_bits(artefact, place, seed, base, warm, tmp_path):
    check(artefact, place, seed, base, warm, tmp_path)
