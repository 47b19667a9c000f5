"""Galleries against bare FAISS: build, open, latency of 1 and of 64 queries, recall@10, disk and memory.

`python benchmarks/search.py --out docs/performance.md` replaces the section "Search" of that file. Each row of its table
is measured in a separate process.
"""

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import peak_megabytes, table, write_section
from numpy.typing import NDArray

DIM, K, N_QUERIES, BATCH = 512, 10, 200, 64
KINDS = ["bare IndexFlatIP", "exact", "Flat", "HNSW32", "IVF1024,Flat", "IVF1024,SQ8", "IVF1024,PQ64", "Milvus Lite"]
MILVUS_LIMIT = 10_000
GRAPH_LIMIT = 1_000_000
TEXT = """
{threads} threads, load average {load:.1f} when the run began. Made by
`python benchmarks/search.py --sizes {sizes} --out docs/performance.md`: vectors of {dim} around {clusters} centres per
10,000, {queries} queries that are not among them, {k} results each. Every line is a process of its own.

- "Write" is the time until all vectors and metadata are on disk (bare FAISS: in memory), "SQLite" that of the same bytes of
  vectors written to SQLite once, durably.
- "Build" is training, filling, tuning to a recall of 0.95 and measuring the index; "open" is opening the gallery and its
  first search.
- A gallery's latency is the median of single queries with the metadata of all results; that of {batch} is a query's share
  of a batch.
- Memory is what opening and searching add to the process at most, mapped files included.
- Milvus Lite is left out above {milvus} vectors, where a query takes seconds, and graphs above {graphs}.

{found}

{bars}
"""
HEAD = [
    "N",
    "index",
    "write s",
    "SQLite s",
    "build s",
    "open s",
    "ms, 1 query",
    f"ms, of {BATCH}",
    "recall@10",
    "disk MB",
    "memory MB",
]


def draw(n_rows: int, seed: int, centres: int) -> NDArray[np.float32]:
    """Unit vectors around centres, as embeddings are."""
    rng = np.random.default_rng(seed)
    middle = np.random.default_rng(99).standard_normal((centres, DIM), dtype=np.float32)
    rows = middle[rng.integers(0, centres, n_rows)] + 0.7 * rng.standard_normal((n_rows, DIM), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def seconds(step: Callable[[], object]) -> float:
    """How long a step takes, once."""
    since = time.perf_counter()
    step()
    return time.perf_counter() - since


def latencies(search: Callable[[NDArray[np.float32]], object], queries: NDArray[np.float32]) -> tuple[float, float]:
    """Milliseconds of a single query, and of one in a batch: medians."""
    search(queries[:1])
    one = statistics.median(seconds(lambda q=queries[n : n + 1]: search(q)) for n in range(min(50, len(queries))))
    many = statistics.median(seconds(lambda: search(queries[:BATCH])) for _ in range(5))
    return 1e3 * one, 1e3 * many / BATCH


def recall_of(found: NDArray[np.generic], true: NDArray[np.int64]) -> float:
    """Share of the true rows that were found."""
    return float(
        np.mean([len({int(x) for x in a if x is not None} & set(b.tolist())) / K for a, b in zip(found, true, strict=True)])
    )


def size_of(folder: Path) -> float:
    """Megabytes below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def write_once(file: Path, vectors: NDArray[np.float32]) -> None:
    """The vectors' bytes into SQLite, in blocks of a megabyte, in one transaction."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE blocks (start INTEGER PRIMARY KEY, vectors BLOB)")
    connection.execute("BEGIN")
    for start in range(0, len(vectors), 512):
        connection.execute("INSERT INTO blocks VALUES (?, ?)", (start, vectors[start : start + 512].data))
    connection.execute("COMMIT")
    connection.close()


def bare_line(vectors: NDArray[np.float32], queries: NDArray[np.float32], folder: Path) -> dict[str, float]:
    """What FAISS does by itself; leaves the true answers in the folder."""
    import faiss

    index = faiss.IndexFlatIP(DIM)
    found: dict[str, float] = {"write": seconds(lambda: index.add(vectors))}
    true = index.search(queries, K)[1]
    np.save(folder / "true.npy", true)
    found["one"], found["many"] = latencies(lambda q: index.search(q, K), queries)
    faiss.write_index(index, str(folder / "bare.faiss"))
    return found | {"recall": 1.0, "disk": (folder / "bare.faiss").stat().st_size / 1e6, "memory": vectors.nbytes / 1e6}


def gallery_line(kind: str, vectors: NDArray[np.float32], queries: NDArray[np.float32], folder: Path) -> dict[str, float]:
    """A gallery in the folder, or in a Milvus Lite file there."""
    from sightline.gallery.gallery import EncoderIdentity, Gallery

    home, identity = folder / "gallery", EncoderIdentity("0", DIM, "benchmark")
    ids = [str(n) for n in range(len(vectors))]
    metadata = [{"path": f"{n}.jpg", "label_0": f"class {n % 500}", "year": 2000 + n % 25} for n in range(len(vectors))]
    found: dict[str, float] = {"sqlite": seconds(lambda: write_once(folder / "once.db", vectors))}
    (folder / "once.db").unlink()
    where = str(home)
    if kind == "Milvus Lite":
        from sightline.gallery.milvus import MilvusGallery

        home.mkdir()
        where = f"milvus+file:{home / 'lite.db'}/benchmark"
        with MilvusGallery.make(where, identity) as cluster:
            found["write"] = seconds(lambda: cluster.add(ids, vectors, metadata))
    else:
        with Gallery.create(home, identity, index=kind) as gallery:
            found["write"] = seconds(lambda: gallery.add(ids, vectors, metadata))
            if kind != "exact":
                found["build"] = seconds(gallery.build_index)
    true = np.load(folder / "true.npy")
    opened: list[Gallery] = []

    def answer(some: NDArray[np.float32]) -> NDArray[np.object_]:
        rows = opened[0].search(some, K)[1]
        opened[0].metadata(sorted({id_ for id_ in rows.reshape(-1) if id_ is not None}))
        return rows

    def first() -> None:
        opened.append(Gallery.open(where, read_only=True))
        opened[0].search(queries[:1], K)

    def all_of_it() -> None:
        found["open"] = seconds(first)
        found["recall"] = recall_of(answer(queries), true)

    found["memory"] = peak_megabytes(all_of_it)[0]
    found["one"], found["many"] = latencies(answer, queries)
    opened[0].close()
    return found | {"disk": size_of(home)}


def measured(kind: str, n_rows: int, folder: Path) -> dict[str, float]:
    """One line, by a process of its own."""
    words = [sys.executable, __file__, "--one", kind, "--sizes", str(n_rows), "--folder", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    line: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return line


def cells(n_rows: int, kind: str, line: dict[str, float]) -> list[str]:
    """A line of the table."""
    shown = {"write": ".2f", "sqlite": ".2f", "build": ".1f", "open": ".2f", "one": ".2f", "many": ".2f", "recall": ".3f"}
    shown |= {"disk": ".0f", "memory": ".0f"}
    return [str(n_rows), kind, *(format(line[name], style) if name in line else "" for name, style in shown.items())]


def bars(lines: dict[tuple[int, str], dict[str, float]]) -> str:
    """What the largest exact gallery comes to against its bars."""
    sentences = []
    for (n_rows, kind), line in lines.items():
        if kind == "exact":
            bare = lines[n_rows, KINDS[0]]
            sentences.append(
                f"At {n_rows:,}: a single query takes {line['one']:.2f} ms (bar: 1.5 times bare FAISS and 2 ms, "
                f"{1.5 * bare['one'] + 2:.2f}), opening with a first search {line['open']:.2f} s (bar at 60,000: 1 s), "
                f"writing {line['write'] / line['sqlite']:.1f} times as long as SQLite alone (bar: 3)."
            )
    return "\n".join(sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 60_000])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--out", type=Path, default=None, help="also replace the section of this Markdown file")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        vectors, queries = np.load(options.folder / "vectors.npy"), np.load(options.folder / "queries.npy")
        bare = options.one == KINDS[0]
        line = (
            bare_line(vectors, queries, options.folder)
            if bare
            else gallery_line(options.one, vectors, queries, options.folder)
        )
        print(json.dumps(line))  # noqa: T201
        return
    load, lines = os.getloadavg()[0], {}
    for n_rows in options.sizes:
        with tempfile.TemporaryDirectory() as scratch:
            centres = max(10, n_rows // 100)
            np.save(Path(scratch, "vectors.npy"), draw(n_rows, 0, centres))
            np.save(Path(scratch, "queries.npy"), draw(N_QUERIES, 1, centres))
            for kind in dict.fromkeys([KINDS[0], *options.kinds]):
                if (kind == "Milvus Lite" and n_rows > MILVUS_LIMIT) or ("HNSW" in kind and n_rows > GRAPH_LIMIT):
                    continue
                lines[n_rows, kind] = measured(kind, n_rows, Path(scratch))
                print(" ".join(cells(n_rows, kind, lines[n_rows, kind])), flush=True)  # noqa: T201
                shutil.rmtree(Path(scratch, "gallery"), ignore_errors=True)
    if options.out is not None:
        text = TEXT.format(
            threads=os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
            load=load,
            sizes=" ".join(map(str, options.sizes)),
            dim=DIM,
            clusters=100,
            queries=N_QUERIES,
            k=K,
            batch=BATCH,
            milvus=f"{MILVUS_LIMIT:,}",
            graphs=f"{GRAPH_LIMIT:,}",
            found=table(HEAD, [cells(*key, line) for key, line in lines.items()]),
            bars=bars(lines),
        )
        write_section(options.out, "Search", text)


if __name__ == "__main__":
    main()
