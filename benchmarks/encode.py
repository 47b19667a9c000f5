"""Folder to vectors, against plain torch with PIL and against its parts alone; writes its section of docs/performance.md.

python benchmarks/encode.py [--images 512] [--photos FOLDER] [--runs 3] [--write]

Processor time of one thread, so that a busy machine distorts little. Without --photos the images are drawn: JPEG files of
640 x 480. Plain is how vectors were computed before there were backends: PIL decodes and resizes in the main process, then
the encoder runs in torch, batch by batch.
"""

import argparse
import io
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
import torch
import typer
from measure import PAGE, photographs, table, verdict, write_section
from numpy.typing import NDArray
from PIL import Image

from sightline import Encoder, Gallery
from sightline.cli.main import run
from sightline.data.transforms import eval_transform
from sightline.models.inference import AT_ONCE, INPUT, onnx_file

from torchvision.transforms import v2  # isort: skip  (after Sightline, which makes it importable beside any torch)

BATCH, N_DRAWN = 64, 64
LEAST_TIMES, MOST_OF_LIMIT, MOST_DIFFERENCE, MOST_OF_QUERY = 2.5, 1.2, 1e-4, 0.5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--images", type=int, default=512)
    arguments.add_argument("--photos", type=Path, help="folder of JPEG files to use instead of drawn ones")
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--write", action="store_true", help="write the section of docs/performance.md")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    encoder = Encoder.from_pretrained("bundled")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = photographs(folder / "drawn", N_DRAWN) if given.photos is None else sorted(given.photos.rglob("*.jpg"))
        photos = folder / "photos"
        photos.mkdir()
        files = [photos / f"{number:05}.jpg" for number in range(given.images)]
        for number, file in enumerate(files):
            shutil.copy(found[number % len(found)], file)
        kilobytes = np.mean([file.stat().st_size for file in files]) / 1000
        rows = measured(encoder, files, folder, given.runs)
    section = (
        f"`python benchmarks/encode.py --images {given.images} --runs {given.runs} --write`: "
        f"{'drawn ' if given.photos is None else ''}JPEG files of {kilobytes:.0f} kB on average, the encoder `bundled` at "
        f"{encoder.settings.preprocessing.crop} px. Processor time, one thread; the median of the runs, which take turns, "
        "and in brackets the lowest and the highest. Plain: PIL in the main process and torch, batch by batch. The limit: "
        "decoding alone and the network alone, nothing resized. "
        "`index build` is what the command takes for each further image.\n\n" + table(["", "measured", "bar"], rows)
    )
    typer.echo(section)
    if given.write:
        write_section(PAGE, "Folder to vectors", section)


def measured(encoder: Encoder, files: list[Path], folder: Path, n_runs: int) -> list[list[str]]:
    """The rows of the table."""
    few, transform = files[:BATCH], eval_transform(encoder.settings.preprocessing)
    encoder.encode(few, backend="onnx")  # exports, opens and compiles: does not count
    network = network_alone(encoder, torch.stack([transform.pixels(Image.open(file).convert("RGB")) for file in few]))
    single = files[:20]
    steps: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(encoder, few),
        "decoding": lambda: [Image.open(file).convert("RGB") for file in few],
        "decoding and resizing": lambda: [transform.pixels(Image.open(file).convert("RGB")) for file in few],
        "network": network,
        "encode": lambda: encoder.encode(files, backend="onnx"),
        "processes": lambda: encoder.encode(files, backend="onnx", n_workers=2),
        "torch": lambda: encoder.encode(few, backend="torch"),
        "plain query": lambda: [plain(encoder, [file]) for file in single],
        "query": lambda: [encoder.encode([file], backend="onnx") for file in single],
    }
    n_images = {"encode": len(files), "processes": len(files), "plain query": len(single), "query": len(single)}
    cost: dict[str, list[float]] = {name: [] for name in (*steps, "index")}
    for _ in range(n_runs):
        for name, step in steps.items():
            cost[name].append(1000 * processor_seconds(step) / n_images.get(name, len(few)))
        cost["index"].append(1000 * index_seconds(files, folder) / (len(files) - BATCH))
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        vectors = gallery.vectors([file.name for file in few])
    difference = float(np.abs(vectors - plain(encoder, few)).max())
    least = {name: float(np.median(values)) for name, values in cost.items()}
    limit = least["decoding"] + least["network"]
    times, of_limit, of_query = (
        least["plain"] / least["index"],
        least["index"] / limit,
        least["query"] / least["plain query"],
    )

    def row(title: str, name: str, bar: str = "") -> list[str]:
        low, high = min(cost[name]), max(cost[name])
        return [title, f"{least[name]:.2f} ms ({low:.2f} to {high:.2f}), {1000 / least[name]:.0f} images/s a core", bar]

    return [
        row("plain torch and PIL", "plain"),
        row(
            "`sightline index build`",
            "index",
            verdict(times >= LEAST_TIMES, f"{times:.1f} x plain, at least {LEAST_TIMES:g}"),
        ),
        row("`Encoder.encode` and `embed`", "encode"),
        row("the same, two worker processes", "processes"),
        row("the same, backend torch", "torch"),
        row("decoding alone", "decoding"),
        row("decoding and resizing alone", "decoding and resizing"),
        row("ONNX Runtime alone", "network"),
        [
            "limit",
            f"{limit:.2f} ms",
            verdict(of_limit <= MOST_OF_LIMIT, f"index build {of_limit:.2f} x, at most {MOST_OF_LIMIT:g}"),
        ],
        row("one query, plain", "plain query"),
        row("one query", "query", verdict(of_query <= MOST_OF_QUERY, f"{of_query:.2f} x plain, at most {MOST_OF_QUERY:g}")),
        [
            "largest difference to plain",
            f"{difference:.1e}",
            verdict(difference <= MOST_DIFFERENCE, f"{MOST_DIFFERENCE:g}"),
        ],
    ]


def plain(encoder: Encoder, files: list[Path]) -> NDArray[np.float32]:
    """Vectors as before there were backends."""
    seen = encoder.settings.preprocessing
    cut = v2.Compose([v2.Resize([seen.resize], v2.InterpolationMode(seen.interpolation)), v2.CenterCrop(seen.crop)])
    images = torch.stack([seen.to_tensor(cut(Image.open(file).convert("RGB"))) for file in files])
    with torch.inference_mode():
        return encoder(images).numpy()  # type: ignore[no-any-return]


def network_alone(encoder: Encoder, pixels: torch.Tensor) -> Callable[[], object]:
    """ONNX Runtime on images in memory, as many at once as the encoder gives it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(onnx_file(encoder)), options, providers=["CPUExecutionProvider"])
    parts = [part.numpy() for part in encoder.settings.preprocessing.normalised(pixels, planes=True).split(AT_ONCE)]
    return lambda: [session.run(None, {INPUT: part}) for part in parts]


def processor_seconds(step: Callable[[], object]) -> float:
    """Of this process, all its threads and the processes it starts."""

    def now() -> float:
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in spent)

    since = now()
    step()
    return now() - since


def index_seconds(files: list[Path], folder: Path) -> float:
    """What `sightline index build` takes for all files, beyond what it takes for a batch of them."""
    photos, small, out = files[0].parent, folder / "small", folder / "gallery"
    small.mkdir(exist_ok=True)
    for file in files[:BATCH]:
        shutil.copy(file, small)

    def build(source: Path) -> None:  # in this process: starting another would cost more, and less evenly, than the images
        shutil.rmtree(out, ignore_errors=True)
        sys.argv = ["sightline", "index", "build", "bundled", str(source), "--out", str(out)]
        sys.argv += ["--backend", "onnx", "--index", "exact"]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
            run()

    return -processor_seconds(lambda: build(small)) + processor_seconds(lambda: build(photos))


if __name__ == "__main__":
    main()
