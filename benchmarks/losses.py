"""Time and memory of the losses against the product of their own scores and against pytorch-metric-learning.

Forward and backward of the whole module, in one process. `python benchmarks/losses.py --out docs/performance.md` replaces
the section "Losses" of that file and draws the picture beside it; figures are ratios, because the
machine is shared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import extra_megabytes, fastest, table, write_section
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn

from sightline import create_loss
from sightline.kernels import row_loops
from sightline.training.large_batch import keep_freed_memory

DIM = 512
GRADED = ("sup_h_ap", "smooth_h_ap", "sup_ndcg", "smooth_ndcg", "happier")
RANKING = ("sup_ap", "smooth_ap", "sup_recall", "smooth_recall", "sup_h_ap", "smooth_h_ap", "sup_ndcg", "smooth_ndcg")
OTHERS = ("roadmap", "happier", "softbin_ap", "fast_ap", "blackbox_ap", "blackbox_recall", "contrastive", "triplet",
          "norm_softmax", "proxy_nca_pp", "arcface")  # fmt: skip
PEERS: dict[str, Callable[[int], nn.Module]] = {  # by ours, given the classes
    "smooth_ap": lambda n: peers.SmoothAPLoss(),
    "sup_ap": lambda n: peers.SmoothAPLoss(),
    "fast_ap": lambda n: peers.FastAPLoss(),
    "contrastive": lambda n: peers.ContrastiveLoss(),
    "norm_softmax": lambda n: peers.NormalizedSoftmaxLoss(n, DIM),
    "proxy_nca_pp": lambda n: peers.ProxyNCALoss(n, DIM),
    "arcface": lambda n: peers.ArcFaceLoss(n, DIM),
}
PEER_LIMIT = {"smooth_ap": 512, "sup_ap": 512, "fast_ap": 2048, "contrastive": 2048}  # theirs grow with the cube
OTHERS_LIMIT = 2048
PEER_ROUNDS = 5
INTRODUCTION = """
Forward and backward pass of the whole module on classes of 4 images, {dim} dimensions, {threads} threads; minimum of
{runs} runs (ten times as many up to batch 512). With 1 level a query has 3 relevant items; with 3 levels 16 classes share
a middle label and 128 a coarse one, which gives up to 511.

- "on top": time beyond the matrix product of the same scores, forward and backward, divided by the time of that product.
- "extra MB": growth of the process at its peak, beyond its growth for the product.
- The last column divides the time of the same loss in pytorch-metric-learning (for `sup_ap`: its SmoothAP) by ours, each
  the minimum of {rounds} alternating rounds.

The first call in a new installation compiles the kernels ({compile:.0f} s here); later runs reuse them. Made by `python
benchmarks/losses.py --out docs/performance.md`.

![Time against batch size]({picture})
"""
DEVICES_INTRODUCTION = """
What a GPU runs instead of the compiled loops, beside them: both on one thread of this CPU, without a GPU; processor time of
forward and backward, minimum of {runs} runs (ten times as many at batch 256), freed memory kept as `sightline train` does.
Made by `python benchmarks/losses.py --devices --out docs/performance.md`.
"""


def draw(n_items: int, per_class: int) -> tuple[Tensor, Tensor]:
    """Unit vectors in classes below two coarser levels; the items of a class lie near each other."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(n_items) // per_class
    labels = torch.stack([fine, fine // 16, fine // 128], 1)
    means = [torch.randn(int(column.max()) + 1, DIM, generator=generator)[column] for column in labels.T]
    return F.normalize(sum(means) + torch.randn(n_items, DIM, generator=generator), dim=1), labels


def step_of(loss: Callable[..., Tensor], embeddings: Tensor, *rest: Tensor, **beside: Tensor) -> Callable[[], None]:
    def step() -> None:
        loss(embeddings.detach().requires_grad_(), *rest, **beside).backward()

    return step


def product(embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None) -> Tensor:
    """The scores and the backward pass through them alone."""
    return (embeddings @ (embeddings if ref_emb is None else ref_emb).T).sum()


def fastest_of_both(ours: Callable[[], None], theirs: Callable[[], None], n_runs: int) -> tuple[float, float]:
    """Seconds of either, in rounds by turns: a busy spell of the machine falls on both."""
    rounds = [(fastest(ours, n_runs), fastest(theirs, 1)) for _ in range(PEER_ROUNDS)]
    return min(one for one, _ in rounds), min(other for _, other in rounds)


def known_options(name: str, labels: Tensor) -> dict[str, int]:
    needs = name in ("norm_softmax", "proxy_nca_pp", "arcface", "happier")
    return {"n_classes": int(labels[:, 0].max()) + 1, "embedding_dim": DIM} if needs else {}


def cells(name: str, n_items: int, n_levels: int, n_runs: int, base: float, base_mb: float) -> tuple[list[str], float]:
    """One row of the table, and the milliseconds."""
    embeddings, labels = draw(n_items, 4)
    levels = labels[:, :n_levels] if name in GRADED else labels[:, 0]
    step = step_of(create_loss(name, **known_options(name, labels)), embeddings, levels)
    if name in PEERS and n_items <= PEER_LIMIT.get(name, OTHERS_LIMIT):
        peer = step_of(PEERS[name](int(labels[:, 0].max()) + 1), embeddings, labels[:, 0])
        seconds, theirs = fastest_of_both(step, peer, n_runs)
        against = f"{theirs / seconds:.3g}"
    else:
        seconds, against = fastest(step, n_runs), ""
    memory = max(0.0, extra_megabytes(step) - base_mb)
    on_top = f"{(seconds - base) / base:.2f}"
    return [name, str(n_items), str(n_levels), f"{1e3 * seconds:.3g}", on_top, f"{memory:.0f}", against], 1e3 * seconds


def batch_rows(sizes: list[int], n_runs: int) -> tuple[list[list[str]], dict[str, dict[int, float]]]:
    """The rows of a loss on a batch, and the milliseconds by loss and size for the picture."""
    rows: list[list[str]] = []
    curves: dict[str, dict[int, float]] = {}
    for n_items in sizes:
        repeats = n_runs * (10 if n_items <= 512 else 1)
        embeddings, labels = draw(n_items, 4)
        step = step_of(product, embeddings, labels)
        base, base_mb = fastest(step, repeats), extra_megabytes(step)
        rows.append(["(product)", str(n_items), "", f"{1e3 * base:.3g}", "", f"{base_mb:.0f}", ""])
        curves.setdefault("product", {})[n_items] = 1e3 * base
        for name in RANKING + (OTHERS if n_items <= OTHERS_LIMIT else ()):
            for n_levels in (1, 3) if name in GRADED else (1,):
                row, milliseconds = cells(name, n_items, n_levels, repeats, base, base_mb)
                rows.append(row)
                print(" ".join(row), flush=True)  # noqa: T201
                if name in ("sup_ap", "sup_h_ap", "sup_ndcg") and n_levels == (3 if name in GRADED else 1):
                    curves.setdefault(f"{name}, {n_levels} level{'s' * (n_levels > 1)}", {})[n_items] = milliseconds
    return rows, curves


def memory_rows(n_runs: int) -> list[list[str]]:
    """256 queries against a cross-batch memory of 60,000 with thousands of relevant items each."""
    rows = []
    references, ref_labels = draw(60_000, 4)
    ref_labels = torch.stack([ref_labels[:, 0], ref_labels[:, 0] // 16, ref_labels[:, 0] // 1500], 1)
    queries, labels = references[:256], ref_labels[:256]
    step = step_of(product, queries, labels, ref_emb=references, ref_labels=ref_labels)
    base, base_mb = fastest(step, n_runs), extra_megabytes(step)
    for name in ("sup_h_ap", "sup_ndcg"):
        step = step_of(create_loss(name), queries, labels, ref_emb=references, ref_labels=ref_labels)
        seconds, memory = fastest(step, n_runs), extra_megabytes(step)
        on_top = f"{(seconds - base) / base:.2f}"
        rows.append([name, "256 x 60000", "3", f"{1e3 * seconds:.3g}", on_top, f"{max(0.0, memory - base_mb):.0f}", ""])
    return rows


def processor_milliseconds(step: Callable[[], None], n_runs: int) -> float:
    """Of the fastest run, after one that does not count."""
    step()
    spent = []
    for _ in range(n_runs):
        since = time.process_time()
        step()
        spent.append(time.process_time() - since)
    return 1e3 * min(spent)


def write_devices(file: Path | None, n_runs: int) -> None:
    """The way of other devices beside the compiled one, both on one thread of this CPU, by processor time."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rows, compiled = [], row_loops.DEVICES
    for n_items, repeats in ((256, 10 * n_runs), (1024, n_runs)):
        for name, n_levels in (("sup_ap", 1), ("smooth_ap", 1), ("sup_recall", 1), ("sup_h_ap", 3), ("smooth_h_ap", 3)):
            embeddings, labels = draw(n_items, 4)
            step = step_of(create_loss(name), embeddings, labels[:, :n_levels] if name in GRADED else labels[:, 0])
            ours = processor_milliseconds(step, repeats)
            row_loops.DEVICES = ()
            theirs = processor_milliseconds(step, repeats)
            row_loops.DEVICES = compiled
            rows.append([name, str(n_items), str(n_levels), f"{ours:.3g}", f"{theirs:.3g}", f"{theirs / ours:.1f}"])
            print(" ".join(rows[-1]), flush=True)  # noqa: T201
    if file is not None:
        head = ["loss", "batch", "levels", "compiled ms", "torch ms", "torch / compiled"]
        write_section(file, "Losses on other devices", f"{DEVICES_INTRODUCTION.format(runs=n_runs)}\n{table(head, rows)}")


def compile_seconds() -> float:
    """The first call of a new installation, in a process with an empty cache."""
    code = (
        "import time, torch, tempfile; since = time.perf_counter(); from sightline import create_loss; "
        "create_loss('sup_h_ap')(torch.randn(40, 8, requires_grad=True), torch.zeros(40, 2).long()).backward(); "
        "print(time.perf_counter() - since)"
    )

    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"NUMBA_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(found.stdout)


def draw_picture(curves: dict[str, dict[int, float]], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (label, points), style in zip(sorted(curves.items()), ("o-", "s-", "^-", "d-"), strict=False):
        axes.plot(list(points), list(points.values()), style, label=label)
    axes.set(xscale="log", yscale="log", xlabel="items in the batch", ylabel="milliseconds, forward and backward")
    axes.set_xticks(list(curves["product"]), [str(size) for size in curves["product"]], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="also write the table to this Markdown file")
    parser.add_argument("--devices", action="store_true", help="only the section on other devices")
    options = parser.parse_args()
    if options.devices:
        write_devices(options.out, options.runs)
        return
    since = time.perf_counter()
    seconds = compile_seconds()
    rows, curves = batch_rows(options.sizes, options.runs)
    rows += memory_rows(options.runs)
    head = ["loss", "batch", "levels", "ms", "on top", "extra MB", "times faster than pytorch-metric-learning"]
    print(table(head, rows))  # noqa: T201
    print(f"{time.perf_counter() - since:.0f} s in all")  # noqa: T201
    if options.out is not None:
        picture = options.out.with_name("losses.png")
        draw_picture(curves, picture)
        text = INTRODUCTION.format(
            dim=DIM,
            threads=torch.get_num_threads(),
            runs=options.runs,
            rounds=PEER_ROUNDS,
            compile=seconds,
            picture=picture.name,
        )
        write_section(options.out, "Losses", f"{text}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
