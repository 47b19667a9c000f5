"""The cost of a vector and a query in each kind of index, and of an image in the encoder, for docs/scale.md.

python benchmarks/scale.py TABLE [--encoder FOLDER]

Times are processor time with one thread; on a shared machine they still vary by half or more. Sizes are file sizes minus
that of an empty index. Queries run in one batch.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import typer
from PIL import Image

from sightline import EmbeddingTable, Encoder
from sightline.gallery.gallery import EncoderIdentity
from sightline.gallery.milvus import MilvusGallery

FACTORIES = {  # np: without an order of the codes, which takes minutes and is of no use here
    "Flat": {},
    "SQfp16": {},
    "SQ8": {},
    "PQ64np": {},
    "HNSW32": {"efSearch": 128},
    "IVF128,Flat": {"nprobe": 16},
    "IVF128,SQ8": {"nprobe": 16},
    "IVF128,PQ64np": {"nprobe": 16},
}
K, N_QUERIES, N_IMAGES = 10, 500, 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("table", type=Path)
    arguments.add_argument("--encoder", type=Path)
    given = arguments.parse_args()
    faiss.omp_set_num_threads(1)
    vectors = np.random.default_rng(0).permutation(EmbeddingTable.read(given.table).vectors)
    queries, items = vectors[:N_QUERIES], np.ascontiguousarray(vectors[N_QUERIES:])
    best = np.argsort(-(queries @ items.T), axis=1)[:, :K]
    typer.echo(f"{len(items)} vectors of {items.shape[1]}, {N_QUERIES} queries, recall of the nearest {K}\n")
    typer.echo(
        "| index | bytes a vector | recall@10 | CPU ms a query | CPU ms to add a vector |\n|---|---:|---:|---:|---:|"
    )
    for factory, effort in FACTORIES.items():
        index = faiss.index_factory(items.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(items)
        empty = faiss.serialize_index(index).nbytes  # centres and code books
        adding = seconds(lambda index=index: index.add(items))
        for name, value in effort.items():
            faiss.ParameterSpace().set_index_parameter(index, name, value)
        found: list[np.ndarray] = []
        searching = seconds(lambda index=index, found=found: found.append(index.search(queries, K)[1]))
        size = (faiss.serialize_index(index).nbytes - empty) / len(items)
        row(factory, size, found[0], best, searching, adding / len(items))
    milvus(queries, items, best)
    if given.encoder is not None:
        extraction(given.encoder)


def milvus(queries: np.ndarray, items: np.ndarray, best: np.ndarray) -> None:
    folder = Path(tempfile.mkdtemp())
    ids = [str(number) for number in range(len(items))]
    identity = EncoderIdentity("measured", items.shape[1], "measured")
    with MilvusGallery.make(f"milvus+file:{folder}/scale.db/items", identity, index="HNSW32") as gallery:
        adding = seconds(lambda: gallery.add(ids, items))
        gallery.compact()
        found: list[np.ndarray] = []
        searching = seconds(lambda: found.append(gallery.search(queries, K)[1].astype(np.int64)))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / len(items)
    row("Milvus Lite, HNSW32", size, found[0], best, searching, adding / len(items))
    shutil.rmtree(folder)


def extraction(folder: Path) -> None:
    encoder = Encoder.from_pretrained(folder)
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (256, 256, 3), np.uint8)) for _ in range(N_IMAGES)]
    encoder.encode(pictures[:8])
    taken = seconds(lambda: encoder.encode(pictures)) / N_IMAGES
    side = encoder.settings.preprocessing.crop
    typer.echo(
        f"\n{encoder.settings.backbone} at {side} px: {1000 * taken:.1f} CPU ms an image, {1 / taken:.1f} a second a core"
    )


def seconds(work) -> float:  # type: ignore[no-untyped-def]
    begin = time.process_time()
    work()
    return time.process_time() - begin


def row(name: str, size: float, found: np.ndarray, best: np.ndarray, searching: float, adding: float) -> None:
    recall = np.mean([len(set(one) & set(other)) / K for one, other in zip(found.tolist(), best.tolist(), strict=True)])
    typer.echo(f"| {name} | {size:,.0f} | {recall:.3f} | {1000 * searching / N_QUERIES:.2f} | {1000 * adding:.3f} |")


if __name__ == "__main__":
    main()
