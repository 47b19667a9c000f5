"""From an image dropped on the page to results on screen, in Chromium; writes its section of docs/performance.md.

python benchmarks/page.py [--items 60000] [--runs 5] [--backbone tf_efficientnet_lite0] [--write]

The gallery has random vectors, and its items share 600 small images; these and those dropped are drawn: clouds of colour
with grain. The page is reloaded for every image, and the first one does not count. The time that the service reports for
encoding, which includes decoding and waiting for a batch, is subtracted.
"""

import argparse
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import typer
from measure import PAGE, photographs, table, verdict, write_section
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from sightline import Encoder, Gallery

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
MOST_SECONDS = 1.0
N_SMALL = 600  # more than all runs show: few thumbnails are there before they are asked for

# Milliseconds after the drop: when cards had been painted, and when the pictures of all cards in view had been.
DROP = """async (data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], "dropped.jpg", { type: "image/jpeg" }));
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const inView = (card) => card.getBoundingClientRect().top < innerHeight;
  const cards = () => [...document.querySelectorAll(".card[data-id]")].filter(inView);
  const since = performance.now();
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
  while (!cards().length) await painted();
  await painted();
  const first = performance.now() - since;
  const pictures = cards().map((card) => card.querySelector("img"));
  await Promise.all(pictures.map((picture) => picture.decode()));
  await painted();
  return [first, performance.now() - since, pictures.length];
}"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--items", type=int, default=60_000)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--backbone", default="tf_efficientnet_lite0")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/performance.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = photographs(folder / "photographs", given.runs + 1)
        make_gallery(folder / "gallery", given, small_images(folder / "small", files))
        section = measured(folder / "gallery", files, given)
    typer.echo(section)
    if given.write:
        write_section(PAGE, "The page", section)


def small_images(folder: Path, files: list[Path]) -> list[Path]:
    """Parts of these images, 160 x 120."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    made = []
    for number in range(N_SMALL):
        left, top = int(rng.integers(0, 480)), int(rng.integers(0, 360))
        made.append(folder / f"{number}.jpg")
        with Image.open(files[number % len(files)]) as image:
            image.crop((left, top, left + 160, top + 120)).save(made[-1], quality=85)
    return made


def make_gallery(folder: Path, given: argparse.Namespace, pictures: list[Path]) -> None:
    """A gallery of random vectors with labels in two levels, a number and a picture each."""
    weights = "bundled" if given.backbone == "tf_efficientnet_lite0" else None
    encoder = Encoder.create(given.backbone, embedding_dim=512, weights=weights)
    vectors = np.random.default_rng(0).normal(size=(given.items, encoder.dim)).astype(np.float32)
    rows = [
        {
            "path": str(pictures[n % len(pictures)]),
            "label_0": f"class {n % 6000}",
            "label_1": f"group {n % 12}",
            "year": n % 90,
        }
        for n in range(given.items)
    ]
    with Gallery.create(folder, encoder) as gallery:
        gallery.add([f"item {n}" for n in range(given.items)], vectors, rows)


def measured(gallery: Path, files: list[Path], given: argparse.Namespace) -> str:
    """The times and what they are held against, as Markdown."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "sightline", "serve", str(gallery), "--images", str(gallery.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = f"http://127.0.0.1:{int(server.stdout.readline().rpartition(':')[2])}"
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                runs = np.array([dropped(browser, address, file) for file in files][1:])
        finally:
            server.terminate()
    encode, search, first, full, n_pictures = np.median(runs, axis=0)
    cards, pictures = np.median(runs[:, 2] - runs[:, 0]), np.median(runs[:, 3] - runs[:, 0])
    rows = [
        ["results with scores and labels on screen", f"{cards:.0f} ms", ""],
        [
            f"and the pictures of all {n_pictures:.0f} in view",
            f"{pictures:.0f} ms ({', '.join(f'{ms:.0f}' for ms in sorted(runs[:, 3] - runs[:, 0]))})",
            verdict(pictures < 1000 * MOST_SECONDS, f"{MOST_SECONDS:g} s"),
        ],
        ["of which the search", f"{search:.0f} ms", ""],
        ["the encoder, excluded above", f"{encode:.0f} ms", ""],
        ["with the encoder: results, pictures", f"{first:.0f} ms, {full:.0f} ms", ""],
    ]
    return (
        f"`python benchmarks/page.py --items {given.items} --runs {given.runs} --backbone {given.backbone} --write`, "
        f"{os.cpu_count()} cores, load average {load:.1f} at the start. From dropping a JPEG file of 640 x 480 on "
        f"the page to results, in Chromium at 1280 x 800 on this machine; {given.items:,} items, median of {given.runs} "
        "images, each on a freshly loaded page. Vectors are random and all images are drawn, those of items at 160 x 120. "
        "The times exclude `took.encode_ms` of the answer (decoding and encoding the dropped image).\n\n"
        + table(["", "measured", "bar"], rows)
    )


def dropped(browser: Browser, address: str, file: Path) -> tuple[float, float, float, float, int]:
    """Milliseconds to encode and to search, until cards and until pictures are there; how many pictures are in view."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(120_000)
    page.goto(address, wait_until="networkidle")
    with page.expect_response(lambda response: response.url.endswith("/v1/search")) as answer:
        first, full, n_pictures = page.evaluate(DROP, base64.b64encode(file.read_bytes()).decode())
    took = answer.value.json()["took"]
    page.close()
    return took["encode_ms"], took["search_ms"], first, full, n_pictures


if __name__ == "__main__":
    main()
