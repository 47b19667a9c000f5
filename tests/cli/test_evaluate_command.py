"""``sightline evaluate`` and ``sightline compare``, as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from sightline import EmbeddingTable, Manifest, Result, evaluate_table


@pytest.fixture
def table(tmp_path):
    """24 images of 6 classes, by 3 cameras; one image has no camera."""
    rng = np.random.default_rng(0)
    classes = np.arange(24) % 6
    ids = [f"image {place}" for place in range(24)]
    rows = {"id": ids, "path": ids, "split": ["test"] * 24, "label_0": [f"class {n}" for n in classes]}
    rows["camera"] = [None, *(f"camera {n}" for n in rng.integers(0, 3, 23))]
    vectors = (rng.normal(size=(6, 4))[classes] + rng.normal(size=(24, 4))).astype(np.float32)
    return EmbeddingTable(Manifest(Path("set.csv"), Path("images"), pl.DataFrame(rows), 1), vectors, "one")


def test_images_of_the_querys_own_camera_never_count(sightline, table, tmp_path):
    file, out_file = table.write(tmp_path / "t.parquet"), tmp_path / "result.json"
    status, _, err = sightline("evaluate", file, "--exclude", "camera", "--json", out_file)
    assert (status, err) == (0, "")
    unit = table.vectors / np.linalg.norm(table.vectors, axis=1, keepdims=True)
    classes, cameras = (table.manifest.table[name].to_list() for name in ("label_0", "camera"))
    expected = []
    for query in range(24):
        others = [i for i in range(24) if i != query and (cameras[query] is None or cameras[i] != cameras[query])]
        ranked = [classes[i] == classes[query] for i in sorted(others, key=lambda i: -float(unit[query] @ unit[i]))]
        hits = [place for place, relevant in enumerate(ranked, start=1) if relevant]
        expected.append(sum(n / place for n, place in enumerate(hits, start=1)) / len(hits) if hits else None)
    assert json.loads(out_file.read_text())["per_query"]["map"] == pytest.approx(expected, nan_ok=True)
    assert evaluate_table(table, exclude="camera")["map"] != evaluate_table(table)["map"]

    first = table.where(pl.col("id").is_in(table.ids[:9]))  # in two tables the column is numbered alike
    found = evaluate_table(first, gallery=table, exclude="camera").per_query["map"]
    assert found.tolist() == pytest.approx(expected[:9])


def test_intervals_over_classes_and_mistakes(sightline, check_refused, table, tmp_path):
    words = ["evaluate", table.write(tmp_path / "t.parquet")]
    status, out, _ = sightline(*words, "--metric", "map", "--interval", 0.9, "--by", "classes")
    low, high = evaluate_table(table).interval("map", 0.9, by="classes")
    assert (status, out.splitlines()[-1]) == (0, "24 queries; 90 % intervals over classes")
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in out
    columns = "'id', 'path', 'split', 'label_0', 'camera'"
    check_refused([*words, "--exclude", "kamera"], f"no column 'kamera'; it has {columns}")
    check_refused([*words, "--by", "class"], "unknown unit 'class': did you mean 'classes'?")
    check_refused([*words, "--interval", 95], "95.0")


def test_two_processes_print_and_write_what_one_does(sightline, table, tmp_path):
    file = table.write(tmp_path / "t.parquet")
    _, alone, _ = sightline("evaluate", file, "--json", tmp_path / "one.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sightline"]
    words = [*command, "evaluate", str(file), "--json", str(tmp_path / "two.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == alone
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    base, labels = rng.random(200), np.arange(200) // 4
    a = {"map": base, "recall@1": (base < 0.5) * 1.0}
    b = {"map": base + rng.normal(0.05, 0.1, 200), "recall@1": (rng.random(200) < 0.5) * 1.0}
    return [
        Result(side, labels=labels).write_json(tmp_path / name / "test.json") for name, side in (("old", a), ("new", b))
    ]


@pytest.mark.parametrize("by", ["queries", "classes"])
def test_compare_prints_which_differences_are_real(sightline, files, by):
    status, out, err = sightline("compare", *files, "--by", by)
    header, first, second, how = out.splitlines()
    assert (status, err, header.split()[:3]) == (0, "", ["metric", "old/test", "new/test"])
    assert (first.split()[0], second.split()[0]) == ("map", "recall@1")
    assert (first.endswith("new/test is higher"), second.endswith("may be chance")) == (True, True)
    assert all(fact in how for fact in ("200 queries", "paired by position", by))
    assert "test (1)" in sightline("compare", files[0], files[0])[1]


def test_mistakes_of_compare_are_one_message(check_refused, files, tmp_path):
    (tmp_path / "no.json").write_text("no JSON")
    short = Result({"map": np.array([1.0])}).write_json(tmp_path / "short.json")
    plain = Result(Result.read_json(files[0]).per_query).write_json(tmp_path / "plain.json")
    for words, fact in (
        ([files[0], tmp_path / "no.json"], "no.json: not a result of sightline evaluate"),
        ([files[0], tmp_path / "none.json"], "none.json: not a result of sightline evaluate"),
        ([*files, "--by", "class"], "unknown unit 'class': did you mean 'classes'?"),
        ([*files, "--level", 95], "95.0"),
        ([files[0], short], "200 and 1 queries"),
        ([plain, plain, "--by", "classes"], "class"),
    ):
        check_refused(["compare", *words], fact)
