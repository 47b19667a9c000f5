"""What the benchmarks share: time, peak memory, drawn photographs, and rewriting one section of a Markdown file."""

import ctypes
import gc
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def fastest(step: Callable[[], object], n_runs: int) -> float:
    """Seconds of the fastest run, after one that does not count."""
    step()
    seconds = []
    for _ in range(n_runs):
        since = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - since)
    return min(seconds)


def _kilobytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(found[1])


def peak_megabytes(step: Callable[[], object]) -> tuple[float, float]:
    """How far memory rises above its start while the step runs, and to what, as the operating system counts it."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that was freed but kept would hide what the step needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    start = _kilobytes("VmRSS")
    step()
    peak = _kilobytes("VmHWM")
    return max(0, peak - start) * 1024 / 1e6, peak * 1024 / 1e6


def extra_megabytes(step: Callable[[], object]) -> float:
    """How far memory rises above its start while the step runs."""
    return peak_megabytes(step)[0]


def photographs(folder: Path, n_images: int) -> list[Path]:
    """JPEG files of 640 x 480: clouds of colour with grain, about as large as photographs are."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    files = []
    for number in range(n_images):
        clouds = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
        grain = rng.normal(0, 8, (480, 640, 1))
        pixels = np.clip(np.asarray(clouds) + grain, 0, 255).astype(np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=85)
    return files


def verdict(holds: bool, bar: str) -> str:
    """A bar, and whether it held."""
    return f"{bar}: {'held' if holds else 'MISSED'}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def write_section(file: Path, heading: str, text: str) -> None:
    """Replace the section of that heading, or add it at the end."""
    old = file.read_text(encoding="utf-8") if file.is_file() else "# Performance\n"
    section = f"## {heading}\n\n{text.strip()}\n"
    new, n_replaced = re.subn(
        rf"^## {heading}\n.*?(?=^## |\Z)", lambda _: section + "\n", old, flags=re.MULTILINE | re.DOTALL
    )
    file.write_text(new.rstrip() + "\n" if n_replaced else f"{old.rstrip()}\n\n{section}", encoding="utf-8")
