"""Memory of staged back-propagation, the loss's share of a step, the cost of freed memory, and image loading.

`python benchmarks/training.py --out docs/performance.md` replaces the section "Training" of that file.
"""

import argparse
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from measure import extra_megabytes, fastest, table, write_section
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline import Encoder, create_loss
from sightline.data.dataset import PREFETCHED, ImageDataset, consecutive, load_batches
from sightline.data.transforms import Preprocessing, train_transform
from sightline.training.batch_loss import BatchLoss
from sightline.training.large_batch import Examples, back_propagate, keep_freed_memory
from sightline.training.recipe import DataSection

from torchvision import transforms as plain_transforms  # isort: skip

BATCH, CHUNK = 4096, 64
STAGED = [64, 96]  # sides
LOADING = [(96, 2), (224, 2), (224, 1)]  # side and workers
WORKERS = [(0, 0), (1, 2), (2, 1), (2, 2), (2, 4), (3, 2), (4, 2)]  # workers, and batches each reads ahead
N_FILES, N_ROUNDS, N_RUNS = 512, 3, 2
TEXT = """
{threads} threads, load average {load:.1f} when the run began. Made by
`python benchmarks/training.py --out docs/performance.md`.

**Staged back-propagation.** Peak memory of one step with EfficientNet-Lite0 and `roadmap`, beyond the process and its
images: a batch of {batch} in chunks of {chunk}, and a batch of {chunk} as a whole. Bar: 1.3 times. Where images are small
the peak is that of the loss, whose scores have {batch} x {batch} entries.

{staged}

**The loss.** `roadmap` takes {loss:.1f} ms of a step of {step:.0f} ms at batch 256 with EfficientNet-Lite0 at 96 px:
{share:.1%} (bar: 5 %).

**Freed memory.** A step of EfficientNet-Lite0 and `sup_ap`, 128 images of 64 px: {left_alone:.2f} s of CPU as the C library
has it, {kept:.2f} s where it keeps what is freed, as `sightline train` asks of it.

**Loading.** {n_files} JPEG files of 500 x 375 pixels ({kilobytes:.0f} kB on average), a random part of each to a square,
{n_rounds} times each, batches of 64, the best of {n_runs} runs that take turns. "Plain" is PIL's `Image.open(...)` and
`convert("RGB")`, torchvision's `RandomResizedCrop` of the same areas, `RandomHorizontalFlip`, `ToTensor`, `Normalize`, and
torch's `DataLoader`; "exact" is ours with `data.draft=false`. "CPU ms" is what an image costs all processes together, which
a busy machine distorts less: the bar of 1.5 is held against the ratio of those. At 224 px a part of such an image cannot be
reduced, and what its decoder takes is the same for all.

{loading}

**Workers.** The same files at 96 px, batches of 64: loaded alone, and in an epoch of training EfficientNet-Lite0 with
`sup_ap`, in which model and workers share the cores; the best of {n_runs} runs that take turns. `data.n_workers` is
{n_workers} by default, and each of them reads {n_ahead} batches ahead.

{workers}
"""


def staged_megabytes(encoder: Encoder, side: int, n_images: int, chunk_size: int | None) -> float:
    """What a step takes beyond the images and the gradients."""
    fabric, loss = Fabric(accelerator="cpu"), BatchLoss(create_loss("roadmap"))
    images, labels = torch.randn(n_images, 3, side, side), torch.arange(n_images) // 4
    module = fabric.setup(encoder.train())

    def step() -> Tensor:
        return back_propagate(fabric, module, loss, Examples(images, labels, torch.arange(n_images)), 0, chunk_size)

    back_propagate(fabric, module, loss, Examples(images[:8], labels[:8], torch.arange(8)), 0)  # gradients, kernels
    return extra_megabytes(step)


def staged_row(side: int) -> list[str]:
    """The peaks of a chunk and of a batch in chunks, and their ratio."""
    encoder = Encoder.create("tf_efficientnet_lite0", 512, image_size=96)
    one, whole = staged_megabytes(encoder, side, CHUNK, None), staged_megabytes(encoder, side, BATCH, CHUNK)
    return [str(side), f"{one:.0f}", f"{whole:.0f}", f"{whole / one:.2f}"]


def loss_and_step_milliseconds(encoder: Encoder) -> tuple[float, float]:
    """The loss forward and backward, and a whole step with it."""
    images, labels = torch.randn(256, 3, 96, 96), torch.arange(256) // 4
    loss, fabric = create_loss("roadmap"), Fabric(accelerator="cpu")
    optimizer = torch.optim.AdamW(encoder.parameters())
    rows = F.normalize(torch.randn(256, encoder.dim), dim=1).requires_grad_()
    module = fabric.setup(encoder.train())

    def step() -> None:
        optimizer.zero_grad()
        back_propagate(fabric, module, BatchLoss(loss), Examples(images, labels, torch.arange(256)), 0)
        optimizer.step()

    return 1e3 * fastest(lambda: loss(rows, labels).backward(), 20), 1e3 * fastest(step, 2)


def seconds_without_and_with_kept_memory() -> tuple[float, float]:
    """Of CPU, a step; the process keeps what it frees from then on."""
    encoder, loss = Encoder.create("tf_efficientnet_lite0", 128, image_size=64).train(), create_loss("sup_ap")
    images, labels = torch.randn(128, 3, 64, 64), torch.arange(128) // 4

    def step() -> float:
        since = time.process_time()
        loss(encoder(images), labels).backward()
        return time.process_time() - since

    left_alone = statistics.median([step() for _ in range(10)][2:])
    keep_freed_memory()
    return left_alone, statistics.median([step() for _ in range(10)][2:])


class PlainDataset(Dataset[Tensor]):
    """What most people write."""

    def __init__(self, files: list[Path], side: int) -> None:
        self.files = files
        self.transform = plain_transforms.Compose(
            [
                plain_transforms.RandomResizedCrop(side, scale=(0.16, 1)),
                plain_transforms.RandomHorizontalFlip(),
                plain_transforms.ToTensor(),
                plain_transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        pixels: Tensor = self.transform(Image.open(self.files[index]).convert("RGB"))
        return pixels


def write_jpegs(folder: Path, n_files: int) -> list[Path]:
    """Soft shapes with the noise of a camera."""
    rng = np.random.default_rng(0)
    for number in range(n_files):
        shapes = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
        noisy = np.asarray(shapes) + rng.normal(0, 6, (375, 500, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.jpg", quality=90)
    return sorted(folder.iterdir())


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def loading_row(files: list[Path], side: int, n_workers: int, n_runs: int) -> list[str]:
    """Images a second and CPU milliseconds an image of each loader; they take turns, a busy machine is busy for all."""

    def ours(draft: bool) -> Iterable[object]:
        transform = train_transform(Preprocessing(crop=side, resize=side), draft=draft)
        return load_batches(ImageDataset(files, transform, seed=0), consecutive(len(files), 64), n_workers)

    loaders: dict[str, Callable[[], Iterable[object]]] = {
        "plain": lambda: DataLoader(PlainDataset(files, side), 64, num_workers=n_workers),
        "exact": lambda: ours(False),
        "ours": lambda: ours(True),
    }
    seconds, cpu = dict.fromkeys(loaders, math.inf), dict.fromkeys(loaders, math.inf)
    for _ in range(n_runs):
        for name, load in loaders.items():
            since, used = time.perf_counter(), processor_seconds()
            for _ in load():
                pass
            seconds[name] = min(seconds[name], (time.perf_counter() - since) / len(files))
            cpu[name] = min(cpu[name], (processor_seconds() - used) / len(files))
    speeds = [f"{1 / value:.0f}" for value in seconds.values()]
    costs = [f"{1e3 * value:.2f}" for value in cpu.values()]
    return [str(side), str(n_workers), *speeds, *costs, f"{cpu['plain'] / cpu['ours']:.2f}"]


def workers_rows(encoder: Encoder, files: list[Path], n_runs: int) -> list[list[str]]:
    """Images a second, loaded and trained on, for each number of workers and of batches ahead; they take turns."""
    images = ImageDataset(files, train_transform(Preprocessing(crop=96, resize=96)), seed=0)
    batches, labels = consecutive(len(files), 64), torch.arange(64) // 4
    fabric, loss = Fabric(accelerator="cpu"), BatchLoss(create_loss("sup_ap"))
    module, optimizer = fabric.setup(encoder.train()), torch.optim.SGD(encoder.parameters(), 1e-6)
    seconds: dict[tuple[int, int], list[float]] = {}

    def step(pixels: Tensor, places: Tensor) -> None:
        optimizer.zero_grad()
        back_propagate(fabric, module, loss, Examples(pixels, labels[: len(places)], places), 0)
        optimizer.step()

    for _ in range(n_runs):
        for n_workers, n_ahead in WORKERS:
            spent = []
            for use in (lambda *_: None, step):
                since = time.perf_counter()
                for batch in load_batches(images, batches, n_workers, n_ahead=n_ahead):
                    use(*batch)
                spent.append(time.perf_counter() - since)
            seconds[n_workers, n_ahead] = list(map(min, spent, seconds.get((n_workers, n_ahead), spent)))
    return [
        [str(n_workers), str(n_ahead or ""), *(f"{len(files) / value:.0f}" for value in values)]
        for (n_workers, n_ahead), values in seconds.items()
    ]


def section(
    load: float,
    staged: list[list[str]],
    times: tuple[float, float],
    kept: tuple[float, float],
    kilobytes: float,
    loading: list[list[str]],
    workers: list[list[str]],
) -> str:
    """The text of the figures."""
    head = ["side", "workers", "plain images/s", "exact", "ours", "plain CPU ms", "exact", "ours", "plain / ours"]
    loss, step = times
    return TEXT.format(
        threads=torch.get_num_threads(), load=load, batch=BATCH, chunk=CHUNK, loss=loss, step=step, share=loss / step,
        left_alone=kept[0], kept=kept[1],
        staged=table(["side", "chunk MB", "batch MB", "times"], staged), loading=table(head, loading),
        n_files=N_FILES, n_rounds=N_ROUNDS, n_runs=N_RUNS, kilobytes=kilobytes, n_ahead=PREFETCHED,
        n_workers=DataSection.model_fields["n_workers"].default,
        workers=table(["workers", "batches ahead", "images/s, loaded", "images/s, trained on"], workers),
    )  # fmt: skip


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        files = write_jpegs(Path(folder), N_FILES)
        kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1e3
        loading = [loading_row(files * N_ROUNDS, side, n_workers, N_RUNS) for side, n_workers in LOADING]
        encoder = Encoder.create("tf_efficientnet_lite0", 512, image_size=96)
        workers = workers_rows(encoder, files, N_RUNS)
    fresh = get_context("spawn")
    with ProcessPoolExecutor(1, fresh, initializer=keep_freed_memory, max_tasks_per_child=1) as processes:
        staged = list(processes.map(staged_row, STAGED))
    times = loss_and_step_milliseconds(encoder)
    text = section(load, staged, times, seconds_without_and_with_kept_memory(), kilobytes, loading, workers)
    write_section(arguments.out, "Training", text)


if __name__ == "__main__":
    main()
