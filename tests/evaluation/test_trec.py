import json
import os
import subprocess
import sys

import torch
from numpy.testing import assert_allclose

from ranking_definitions import ndcg
from refusals import assert_refused
from sightline import evaluate
from sightline.evaluation import trec
from sightline.evaluation.trec import judgements, rankings, write_qrels, write_run
from small_tables import small_table

RUN = {"q1": {"x": 0.1 + 0.2, "y": -1e-17, "z": 0.25}, "q2": {"z": 1.0}}
JUDGED = {"q1": {"x": 2, "z": 1}, "q2": {"y": 1}}


def draw(seed, n=30):  # 6 classes below 2 parents, and an item alone in its class
    vectors = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fine = torch.arange(n) % 6
    labels = torch.stack([fine, fine % 2], 1)
    labels[-1] = 99
    return vectors, labels, [f"image{i}" for i in range(n)]


BY_RANX = """
import json, ranx, sys
run, binary, graded, run_file, qrels_file = json.load(sys.stdin)
found = ranx.evaluate(ranx.Qrels(binary), ranx.Run(run), ["map", "ndcg"])
found["graded"] = ranx.evaluate(ranx.Qrels(graded), ranx.Run(run), "ndcg_burges")
files = ranx.Qrels.from_file(qrels_file, kind="trec"), ranx.Run.from_file(run_file, kind="trec")
found["from files"] = ranx.evaluate(*files, "map")
print(json.dumps(found))
"""


def test_ranx_finds_our_metrics_in_the_exported_run(tmp_path, monkeypatch):
    vectors, labels, ids = draw(0)
    run = rankings(vectors, vectors, ids, ids)
    binary, graded = (judgements(columns, columns, ids, ids) for columns in (labels[:, 0], labels))
    assert graded["image0"] == {f"image{i}": 2 if i % 6 == 0 else 1 for i in range(2, 30, 2)}
    monkeypatch.setattr(trec, "BLOCK_ELEMENTS", 70)
    assert judgements(labels, labels, ids, ids) == graded
    assert len(binary) == 29  # the lonely query is not judged
    run = {query: run[query] for query in binary}
    files = write_run(tmp_path / "run.trec", run), write_qrels(tmp_path / "qrels.trec", binary)
    given, environ = json.dumps([run, binary, graded, *map(str, files)]), os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", BY_RANX], input=given, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # not compiled, which would take half a minute
    found, ours = json.loads(done.stdout), evaluate(vectors, labels[:, 0])
    assert ours.n_skipped == 1
    assert_allclose([found["map"], found["from files"]], ours["map"])
    for name, judged, gains in (("ndcg", binary, [0, 1]), ("graded", graded, [0, 1, 3])):  # lists come best first
        expected = [ndcg([judged[query].get(item, 0) for item in run[query]], gains) for query in judged]
        assert_allclose(found[name], sum(expected) / len(expected))


def test_rankings_are_the_sorted_scores_without_the_query():
    vectors, _, ids = draw(1)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    for k in (None, 1, 100):
        run = rankings(vectors[:10].numpy(), vectors, ids[:10], ids, k)
        for place, query in enumerate(ids[:10]):
            others = {item: float(unit[place] @ unit[other]) for other, item in enumerate(ids) if item != query}
            expected = sorted(others, key=lambda item: -others[item])[:k]
            assert list(run[query]) == expected
            assert_allclose(list(run[query].values()), [others[item] for item in expected], atol=1e-12)


def test_trec_files_hold_what_other_tools_read(tmp_path):
    assert write_run(tmp_path / "new" / "run.txt", RUN).read_text().splitlines() == [
        "q1 Q0 x 1 0.30000000000000004 sightline",
        "q1 Q0 z 2 0.25 sightline",
        "q1 Q0 y 3 -1e-17 sightline",
        "q2 Q0 z 1 1.0 sightline",
    ]
    assert write_qrels(tmp_path / "qrels.txt", JUDGED).read_text() == "q1 0 x 2\nq1 0 z 1\nq2 0 y 1\n"
    assert write_run(tmp_path / "empty.txt", {}).read_text() == ""


def test_the_command_writes_both_files(tmp_path, sightline):
    vectors, labels, ids = draw(0)
    table = small_table(vectors, *labels.T.tolist(), id=ids).write(tmp_path / "table.parquet")
    status, _, err = sightline("evaluate", table, "--trec", tmp_path / "trec")
    assert status == 0, err
    run, qrels = ((tmp_path / "trec" / f"{name}.trec").read_text().splitlines() for name in ("run", "qrels"))
    assert "image0 0 image6 2" in qrels
    assert (len(run), len(qrels)) == (30 * 29, sum(map(len, judgements(labels, labels, ids, ids).values())))


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path):
    vectors, labels, ids = draw(0)
    for broken in ("two words", "", "line\nbreak"):
        assert_refused(r"out\.txt", write_run, tmp_path / "out.txt", {"q": {broken: 1.0}})
        assert_refused(r"out\.txt", write_qrels, tmp_path / "out.txt", {broken: {"x": 1}})
        assert_refused(r"out\.txt", write_run, tmp_path / "out.txt", RUN, name=broken)
    assert list(tmp_path.iterdir()) == []
    assert_refused(r"query_ids.*30.*29", rankings, vectors, vectors, ids[1:], ids)
    assert_refused(r"gallery_ids.*'image1'", judgements, labels, labels, ids, ["image1", *ids[1:]])
    assert_refused(r"k must.*0", rankings, vectors, vectors, ids, ids, k=0)
