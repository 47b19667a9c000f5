"""Time and memory of `evaluate` against the product of its own scores and pytorch-metric-learning's AccuracyCalculator.

Times are the smallest of several runs in one process; memory is that of a process which does nothing else.
`python benchmarks/evaluation.py --out docs/performance.md` replaces the section "Evaluation" of that file; figures are
ratios, because the machine is shared.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import fastest, peak_megabytes, table, write_section
from torch import Tensor

from sightline import evaluate

DIM = 512
N_COARSE = 12  # as Stanford Online Products: about 5 images a class, an eighth of a twelfth of all share the coarse one
PEER_LIMIT = 10_000  # it holds all pairs several times over
LARGE = 30_000  # above it one run is enough
KS = (1, 10, 100, 1000)
USUAL = "classes"  # what scores are like, unless they are hard to sort
INTRODUCTION = """
Every item queries all the others; {dim} dimensions, classes of 5 below 12 coarse classes (the shape of Stanford Online
Products), {threads} threads, minimum of {runs} runs, one run above 30,000.

- "product": the blocked matrix product alone, 128 queries at a time. The ratios divide by it.
- "two levels": `evaluate` with recall@1, 10, 100, 1000, mAP@R, mAP of each level, H-AP, NDCG, ASI and severity; "one
  level": with the flat metrics.
- "peak MB": peak memory of a process that imports sightline and evaluates two levels; in brackets, what `evaluate` adds.
- "peer": pytorch-metric-learning's AccuracyCalculator with precision@1, mAP and mAP@R of the fine level, up to {limit}
  items.
- The last rows have scores that are hard to sort: two tight clusters far apart, and all scores equal.

Made by `python benchmarks/evaluation.py --out docs/performance.md`.
"""


def draw(n_items: int) -> tuple[Tensor, Tensor]:
    """Unit vectors in classes of 5 below coarse classes, fine label first."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(n_items) // 5
    coarse = torch.randint(N_COARSE, (int(fine.max()) + 1,), generator=generator)[fine]
    labels = torch.stack([fine, coarse], 1)
    vectors = torch.randn(n_items, DIM, generator=generator).mul_(1.8)
    for column, scale in ((fine, 1.0), (coarse, 0.6)):
        vectors += scale * torch.randn(int(column.max()) + 1, DIM, generator=generator)[column]
    return F.normalize(vectors, dim=1), labels


def hard_to_sort(n_items: int) -> dict[str, Tensor]:
    """Vectors whose scores are two far, tight clusters; and all equal."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n_items, DIM, generator=generator)
    side = torch.randint(2, (n_items, 1), generator=generator) * 2.0 - 1
    return {"two clusters": F.normalize(side + 1e-3 * noise, dim=1), "all equal": torch.ones(n_items, DIM) / DIM**0.5}


def product(vectors: Tensor) -> None:
    """All scores, 128 queries at a time."""
    for first in range(0, len(vectors), 128):
        _ = vectors[first : first + 128] @ vectors.T


def peer(vectors: Tensor, labels: Tensor) -> None:
    """pytorch-metric-learning's metrics."""
    # Here, for the process that measures memory never calls this.
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision", "mean_average_precision_at_r"),
        device=torch.device("cpu"),
        knn_func=CustomKNN(CosineSimilarity()),
        kmeans_func=len,  # never called
    ).get_accuracy(vectors, labels)


def print_memory(scores: str, n_items: int) -> None:
    """Print the peak of this process and what `evaluate` added to it, in MB."""
    evaluate(*draw(500))  # compiles
    vectors, labels = draw(n_items)
    if scores != USUAL:
        vectors = hard_to_sort(n_items)[scores]
    grown, peak = peak_megabytes(lambda: evaluate(vectors, labels, ks=KS))
    print(f"{peak:.0f} ({grown:.0f})")  # noqa: T201


def memory(scores: str, n_items: int) -> str:
    """What :func:`print_memory` prints in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", scores, str(n_items)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cells(scores: str, vectors: Tensor, labels: Tensor, n_runs: int) -> list[str]:
    base = fastest(lambda: product(vectors), n_runs)
    levels = fastest(lambda: evaluate(vectors, labels, ks=KS), n_runs)
    flat = fastest(lambda: evaluate(vectors, labels[:, 0], ks=KS), n_runs)
    found = [f"{base:.2f}"]
    for seconds in (levels, flat):
        found += [f"{seconds:.2f}", f"{seconds / base:.2f}"]
    return [*found, memory(scores, len(vectors)), "", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 10_000, 30_000, 60_502])
    parser.add_argument("--hard-size", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="also replace the section of this Markdown file")
    parser.add_argument("--memory-of", nargs=2, metavar=("SCORES", "N"), help="measure the memory of this alone")
    options = parser.parse_args()
    if options.memory_of is not None:
        print_memory(options.memory_of[0], int(options.memory_of[1]))
        return
    evaluate(*draw(500))  # compiles
    rows = []
    for n_items in options.sizes:
        rows.append([USUAL, str(n_items), *cells(USUAL, *draw(n_items), options.runs if n_items <= LARGE else 1)])
        print(" ".join(rows[-1]), flush=True)  # noqa: T201
    labels = draw(options.hard_size)[1]
    for name, vectors in hard_to_sort(options.hard_size).items():
        rows.append([name, str(options.hard_size), *cells(name, vectors, labels, options.runs)])
        print(" ".join(rows[-1]), flush=True)  # noqa: T201
    for row in rows[: len(options.sizes)]:  # last, for it leaves memory behind
        if int(row[1]) <= PEER_LIMIT:
            vectors, labels = draw(int(row[1]))
            row[-2] = f"{fastest(lambda x=vectors, y=labels[:, 0]: peer(x, y), 1):.1f}"
            row[-1] = f"{peak_megabytes(lambda x=vectors, y=labels[:, 0]: peer(x, y))[0]:.0f}"
            print(" ".join(row), flush=True)  # noqa: T201
    if options.out is not None:
        head = ["scores", "N", "product s", "two levels s", "ratio", "one level s", "ratio", "peak MB", "peer s", "peer MB"]
        text = INTRODUCTION.format(dim=DIM, threads=torch.get_num_threads(), runs=options.runs, limit=PEER_LIMIT)
        write_section(options.out, "Evaluation", f"{text}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
