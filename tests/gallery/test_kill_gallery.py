"""Galleries whose writers are killed by SIGKILL, or run out of disk, keep all acknowledged writes and no partial ones.

As a script, ``python test_kill_gallery.py <folder> <seed> <rounds>``, it kills writers: each is forked from a process that
imports but never computes, works on a gallery, and is killed at a random moment of the kind of write of its round. After
each, another process compares the gallery with the list of acknowledged writes. There is a gallery for each kind of index:
exact, a graph, and an inverted file that has to be trained.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from full_disk import files_of_at_most

from sightline.errors import InputError
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.index import read_header

DIM, N_FIRST, LONGEST = 64, 300, 0.06
KINDS = ["add", "remove", "compact", "build"]
INDEXES = ["Flat", "HNSW32", "IVF16,SQ8"]
FIRST = ("add", [f"item {n}" for n in range(N_FIRST)], 7)
IDENTITY = EncoderIdentity("f", DIM, "by hand")


def draw(n_rows, seed):
    return np.random.default_rng(seed).standard_normal((n_rows, DIM)).astype(np.float32)


def apply(items, operation):
    """What a dictionary of id: (seed, place) becomes."""
    kind, ids, seed = operation
    items = dict(items)
    for place, id_ in enumerate(ids):
        items.pop(id_, None)
        if kind == "add":
            items[id_] = (seed, place, len(ids))
    return items


def perform(gallery, operation):
    kind, ids, seed = operation
    if kind == "add":  # some of the ids may be there
        gallery.upsert(ids, draw(len(ids), seed), [{"seed": seed, "place": place} for place in range(len(ids))])
    elif kind == "remove":
        gallery.remove(ids)
    elif kind == "compact":
        gallery.compact()
    else:
        gallery.build_index()


def next_operation(rng, items, kind):
    if kind == "add":
        return kind, [f"item {n}" for n in rng.sample(range(2000), rng.randint(1, 250))], rng.randrange(10**9)
    if kind == "remove":
        return kind, rng.sample(sorted(items), min(len(items), rng.randint(1, 120))), 0
    return kind, [], 0


def work(folder, items, kind, seed, pipe):
    """Write until killed: the kind asked for, most of the time; each operation is reported before and after."""
    rng = random.Random(seed)
    with Gallery.open(folder) as gallery:
        while True:
            chosen = kind if rng.random() < 0.7 and (kind != "remove" or len(items) > 50) else "add"
            operation = next_operation(rng, items, chosen)
            os.write(pipe, (json.dumps(["begin", operation]) + "\n").encode())
            perform(gallery, operation)
            os.write(pipe, b'["done"]\n')
            items = apply(items, operation)


def killed_writer(folder, items, kind, seed):
    """The operations a writer began before it was killed, and how many of them it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(folder, items, kind, seed, writing)
        except BaseException as error:
            os.write(writing, (json.dumps(["error", repr(error)]) + "\n").encode())
        os._exit(1)
    os.close(writing)
    first = os.read(reading, 1)  # it has opened the gallery
    time.sleep(random.Random(seed).uniform(0, LONGEST * 4))
    os.kill(child, signal.SIGKILL)
    text = first
    while part := os.read(reading, 1 << 16):
        text += part
    os.close(reading)
    os.waitpid(child, 0)
    lines = [json.loads(line) for line in text.decode().splitlines() if line.endswith("]")]
    assert not [line for line in lines if line[0] == "error"], lines[-1]
    return [line[1] for line in lines if line[0] == "begin"], sum(line[0] == "done" for line in lines)


def assert_holds(folder, items, least=1.0):
    """Ids, metadata and vectors are those of the dictionary; search is brute force over them, or a share of it at least."""
    with Gallery.open(folder) as gallery:
        assert gallery.verify() == []
        assert gallery.ids() == list(items)
        vectors = np.array([draw(n, seed)[place] for seed, place, n in items.values()]).reshape(len(items), DIM)
        units = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
        np.testing.assert_allclose(gallery.vectors(list(items)), units, atol=1e-6)
        known = [(row["seed"], row["place"]) for row in gallery.metadata(list(items))]
        assert known == [(seed, place) for seed, place, _ in items.values()]
        queries = draw(3, 1)
        cosines = queries.astype(float) @ units.T / np.linalg.norm(queries.astype(float), axis=1, keepdims=True)
        true = np.array(list(items), object)[np.argsort(-cosines, axis=1)[:, :10]].tolist()
        scores, found = gallery.search(queries)
        places = {id_: place for place, id_ in enumerate(items)}
        for row, ids in enumerate(found.tolist()):  # whatever was found exists, once, and has its true score
            np.testing.assert_allclose(scores[row], cosines[row, [places[id_] for id_ in ids]], atol=1e-6)
            assert len({*ids}) == len(true[row])
        shared = [len({*ids} & {*best}) for ids, best in zip(found.tolist(), true, strict=True)]
        assert found.tolist() == true if least == 1 else sum(shared) >= least * len(true) * 10
        assert not [repair for repair in gallery.repairs if "index" in repair]
        tables = [int(file.name[8:-4]) for file in folder.glob("vectors-*")]  # a compaction may have been killed
        assert min(tables) == gallery._store.state().epoch


def holds(folder, items, least):
    """Whether the gallery is the dictionary, seen by another process."""
    child = os.fork()
    if child == 0:
        try:
            assert_holds(folder, items, least)
        except BaseException as error:
            sys.stderr.write(f"{error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def stored_items(folder):
    """Id, seed and place of each item, by SQLite alone."""
    connection = sqlite3.connect(folder / "gallery.db")
    rows = connection.execute("SELECT id, metadata FROM items ORDER BY row").fetchall()
    connection.close()
    return [(id_, json.loads(text)["seed"], json.loads(text)["place"]) for id_, text in rows]


def main(folder, seed, n_rounds):
    import faiss  # here, not in each writer: they would be killed while they import

    faiss.omp_set_num_threads(1)
    hit, all_items = Counter(), {index: apply({}, FIRST) for index in INDEXES}
    for number in range(n_rounds):
        index, kind = INDEXES[number // len(KINDS) % len(INDEXES)], KINDS[number % len(KINDS)]
        gallery, items = Path(folder) / index, all_items[index]
        begun, n_done = killed_writer(gallery, items, kind, seed * 1000 + number)
        for operation in begun[:n_done]:
            items = apply(items, operation)
        if len(begun) > n_done:  # the last one was under way: it happened as a whole, or not
            hit[f"{index} {begun[-1][0]}"] += 1
            after = apply(items, begun[-1])
            if stored_items(gallery) == [(id_, seed, place) for id_, (seed, place, _) in after.items()]:
                items = after
        else:
            hit["idle"] += 1
        if not holds(gallery, items, 1.0 if index == "Flat" else 0.9):
            sys.exit(f"round {number}, {index}, after {n_done} of {begun}")
        all_items[index] = items
    sys.stdout.write(json.dumps(hit))


def run_killed(tmp_path, seed, n_rounds):
    for index in INDEXES:
        with Gallery.create(tmp_path / index, IDENTITY, index=index) as gallery:
            perform(gallery, FIRST)
            assert gallery.build_index(recall=1.0).factory == index
    words = [sys.executable, __file__, tmp_path, str(seed), str(n_rounds)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    hit = Counter(json.loads(done.stdout))
    assert hit.total() == n_rounds
    return hit


def test_killed_at_some_moments(tmp_path):
    assert run_killed(tmp_path, seed=0, n_rounds=12)["idle"] < 12


@pytest.mark.slow
def test_killed_at_fifty_random_moments_of_every_kind_for_every_index(tmp_path):
    hit = run_killed(tmp_path, seed=1, n_rounds=180)
    for index in INDEXES:
        assert sum(hit[f"{index} {kind}"] for kind in KINDS) >= 50
        assert all(hit[f"{index} {kind}"] >= 3 for kind in KINDS), hit


FILLING = """
import resource, sys
import numpy as np
from pathlib import Path
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery
folder = Path(sys.argv[1])
vectors = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)
with Gallery.open(folder) as gallery:
    largest = 1_500_000  # bytes of any one file
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    for call in (gallery.add, gallery.upsert):
        try:
            call([f"new {n}" for n in range(20_000)], vectors)
        except InputError as error:
            print(error)
    assert len(gallery) == 300 and gallery.search(vectors[:2])[1].shape == (2, 10)
    gallery.add(["small"], vectors[:1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    gallery.add(["later"], vectors[1:2])
"""


def test_a_disk_that_fills_up_is_one_error_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "gallery"
    with Gallery.create(folder, IDENTITY) as gallery:
        perform(gallery, FIRST)
    done = subprocess.run([sys.executable, "-c", FILLING, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [str(folder) in line and "disk full" in line for line in lines] == [True, True]
    with Gallery.open(folder) as gallery:
        assert gallery.verify() == []
        gallery.remove(["small", "later"])
    assert_holds(folder, apply({}, FIRST))


@pytest.mark.parametrize("index", ["Flat", "IVF16,SQ8"])
def test_a_disk_that_fills_up_while_an_index_is_written_leaves_the_one_before(tmp_path, index):
    with Gallery.create(tmp_path / "gallery", IDENTITY, index=index) as gallery:
        perform(gallery, FIRST)
        before = gallery.build_index(recall=1.0)
        with files_of_at_most(10_000), pytest.raises(InputError, match=r"gallery: .*File too large.*disk full"):
            gallery.build_index()
        assert read_header(gallery.folder) == before
        assert not list(gallery.folder.glob(".*"))
    assert_holds(gallery.folder, apply({}, FIRST), 0.9)
    (gallery.folder / before.file).write_bytes(b"damaged")
    with Gallery.open(gallery.folder) as again, files_of_at_most(10_000):
        assert again.search(draw(3, 1))[1].shape == (3, 10)
        assert [before.file in repair and "brute force" in repair for repair in again.repairs] == [True]


def test_a_build_that_was_killed_leaves_no_litter_behind_the_next(tmp_path):
    folder = tmp_path / "gallery"
    with Gallery.create(folder, IDENTITY, index="Flat") as gallery:
        perform(gallery, ("add", ["a", "b"], 1))
        for name in (".index-0-2-1.faiss.1", ".index.json.1", "index-0-1-1.faiss"):
            (folder / name).write_bytes(b"half")
        gallery.build_index()
        assert len([path for path in folder.iterdir() if "index-" in path.name]) == 1
        assert not list(folder.glob(".*"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
