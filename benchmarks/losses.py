"""Time and memory of the rank losses against the product of their own scores and against pytorch-metric-learning.

Forward and backward, in one process, smallest of several runs. `python benchmarks/losses.py --out docs/performance.md`
writes the table; figures are ratios, for the machine is shared.
"""

import argparse
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import SmoothAPLoss as PeerSmoothAP
from torch import Tensor

from sightline import create_loss

DIM = 512
INTRODUCTION = """# Performance

## Losses

Classes of 4, {dim} dimensions, forward and backward of the whole module, {threads} threads, smallest of several runs.
"Of the product" divides by the forward and backward matrix product of the same scores, "extra MB" is how far the process
grew. Made by `python benchmarks/losses.py --out docs/performance.md`.

"""
NAMES = ("sup_ap", "smooth_ap", "sup_h_ap", "sup_ndcg", "sup_recall")


def draw(n_items: int, per_class: int) -> tuple[Tensor, Tensor]:
    """Unit vectors in classes below two coarser levels; the items of a class lie near each other."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(n_items) // per_class
    labels = torch.stack([fine, fine // 16, fine // 128], 1)
    means = [torch.randn(int(column.max()) + 1, DIM, generator=generator)[column] for column in labels.T]
    return F.normalize(sum(means) + torch.randn(n_items, DIM, generator=generator), dim=1), labels


def timed(step: Callable[[], None], n_runs: int) -> float:
    """Seconds of the fastest run, after one that does not count."""
    step()
    seconds = []
    for _ in range(n_runs):
        since = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - since)
    return min(seconds)


def extra_megabytes(step: Callable[[], None]) -> float:
    """How far the memory of the process rises above its start while the step runs, sampled every millisecond."""
    page = 4096 / 1e6
    statm = Path("/proc/self/statm")
    resident = lambda: int(statm.read_text().split()[1]) * page  # noqa: E731
    gc.collect()
    start, peak, done = resident(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    done.set()
    watcher.join()
    return max(0.0, peak - start)


def step_of(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        loss(embeddings.detach().requires_grad_(), labels).backward()

    return step


def product(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The scores and the backward pass through them alone."""
    return (embeddings @ embeddings.T).sum()


def rows(sizes: list[int], n_runs: int) -> list[list[str]]:
    """One row a case: loss, batch, levels, milliseconds, ratio to the product, MB, ratio to the peer."""
    found = []
    for n_items in sizes:
        embeddings, labels = draw(n_items, 4)
        base = timed(step_of(product, embeddings, labels), n_runs)
        found.append(["(product)", str(n_items), "", f"{1e3 * base:.1f}", "1.0", "", ""])
        peer = timed(step_of(PeerSmoothAP(), embeddings, labels[:, 0]), 1) if n_items <= 256 else None
        for name in NAMES:
            levels = labels if name in ("sup_h_ap", "sup_ndcg") else labels[:, 0]
            step = step_of(create_loss(name), embeddings, levels)
            seconds = timed(step, n_runs)
            against = f"{peer / seconds:.0f}x faster" if peer and name.endswith("_ap") and levels.ndim == 1 else ""
            shape = str(levels.shape[1]) if levels.ndim == 2 else "1"
            cells = [name, str(n_items), shape, f"{1e3 * seconds:.1f}", f"{seconds / base:.1f}"]
            found.append([*cells, f"{extra_megabytes(step):.0f}", against])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="also write the table to this Markdown file")
    options = parser.parse_args()
    head = ["loss", "batch", "levels", "ms", "of the product", "extra MB", "than pytorch-metric-learning's SmoothAP"]
    table = [head, ["---"] * len(head), *rows(options.sizes, options.runs)]
    text = "\n".join("| " + " | ".join(row) + " |" for row in table)
    print(text)  # noqa: T201
    if options.out is not None:
        options.out.write_text(INTRODUCTION.format(dim=DIM, threads=torch.get_num_threads()) + text + "\n")


if __name__ == "__main__":
    main()
