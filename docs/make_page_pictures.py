"""Take pictures of the search page in Debian's Chromium.

``python docs/make_page_pictures.py emoji/manifest.csv`` takes those in ``docs/serve/``; ``sightline data prepare emoji``
writes the manifest. 600 emoji by Google and by Twitter go into two galleries, embedded by the bundled encoder at 128 and at
64 pixels. It takes some minutes.

``python docs/make_page_pictures.py --states FOLDER`` takes every state of the page (empty, results, rejected, filtered to
nothing, error, slow, offline and others) on a phone, a tablet and a desktop, in light and dark, for a person to look at.
``tests/serve/test_page_states.py`` checks the same states.
"""

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import typer
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from sightline import Encoder, Gallery
from sightline.data.manifest import Manifest, read_manifest
from sightline.gallery.ingest import index_images
from sightline.models.embed import embed_manifest
from sightline.ood.rejector import FOLDER, Rejector, fit_rejector

DOCS = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
VENDORS = ("google", "twitter")  # whose drawings may be shown: Apache-2.0 and CC-BY-4.0
N_HELD, N_CALIBRATED = 600, 150
SHOWN = "hammer"
MATCH = 0.5  # similarity threshold for a match
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


@dataclass(frozen=True)
class Scene:
    """Queries: an item's id, a drawing without a match, an image of two things, a file that is not an image, a plot."""

    id: str
    far: Path
    two: Path
    broken: Path
    plot: Path = DOCS / "losses.png"


@dataclass(frozen=True)
class Shot:
    """A picture: the flow that leads to it, the colour scheme and the window."""

    flow: Callable[[Page, Scene], None]
    scheme: str = "light"
    options: dict[str, Any] = field(default_factory=lambda: DESKTOP)


def wait_for_images(page: Page) -> None:
    """Wait until all images in view are loaded."""
    page.wait_for_function(
        """() => [...document.querySelectorAll("img")]
            .filter((one) => one.checkVisibility() && one.getBoundingClientRect().top < innerHeight)
            .every((one) => one.complete && one.naturalWidth > 0)"""
    )


def alike(page: Page, scene: Scene) -> None:
    page.goto(f"/?id={scene.id}&of=emoji-at-128")
    page.locator(".card[data-relation]").first.wait_for()


def compared(page: Page, scene: Scene) -> None:
    alike(page, scene)
    page.locator("#compare").click()
    page.locator("#both").wait_for()


def filtered(page: Page, scene: Scene) -> None:
    alike(page, scene)
    page.locator("#filters > summary").click()
    page.locator("#facets summary", has_text="Grandparent label").click()
    tick(page, "Objects").check()
    page.locator(".card").first.wait_for()


def tick(page: Page, name: str) -> Locator:
    return page.locator(".tick", has_text=name).get_by_role("checkbox")


def opened(page: Page, scene: Scene) -> None:
    alike(page, scene)
    page.locator(".card .picture").nth(3).click()
    page.get_by_role("dialog").wait_for()


def begun(page: Page, scene: Scene) -> None:
    page.goto("/")
    page.locator(".card img").first.wait_for()


def browsed(page: Page, scene: Scene) -> None:
    page.goto("/?browse&level=1")
    page.locator(".class-head").first.wait_for()


def sent(page: Page, file: Path, awaited: str) -> None:
    page.goto("/")
    page.set_input_files("#file", file)
    page.locator(awaited).first.wait_for()


def cropped(page: Page, scene: Scene) -> None:
    sent(page, scene.two, ".card[data-id]")
    box = page.locator(".stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.98 * box["width"], box["y"] + box["height"] - 4)
    with page.expect_response("**/v1/search"):
        page.mouse.up()


SHOTS = {
    "begun-light": Shot(begun),
    "browse-light": Shot(browsed),
    "results-light": Shot(alike),
    "compare-light": Shot(compared),
    "results-dark": Shot(filtered, "dark"),
    "cropped-light": Shot(cropped),
    "detail-dark": Shot(opened, "dark"),
    "outside-light": Shot(lambda page, scene: sent(page, scene.plot, ".banner.outside")),
    "far-dark": Shot(lambda page, scene: sent(page, scene.far, ".banner.far"), "dark"),
    "fault-light": Shot(lambda page, scene: sent(page, scene.broken, ".banner.fault")),
    "phone-dark": Shot(alike, "dark", PHONE),
    "phone-light": Shot(compared, "light", PHONE),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("manifest", type=Path, nargs="?", help="of the data set emoji")
    arguments.add_argument("--out", type=Path, default=DOCS / "serve", help="folder for the pictures")
    arguments.add_argument("--only", choices=SHOTS, nargs="+", default=list(SHOTS), help="pictures to take")
    arguments.add_argument("--states", type=Path, metavar="FOLDER", help="take every state of the page instead")
    given = arguments.parse_args()
    if given.states is not None:
        return take_states(given.states)
    if given.manifest is None:
        arguments.error("a manifest is required, unless --states is given")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        galleries, scene = made(Path(folder), read_manifest(given.manifest))
        with served(galleries, given.manifest.parent) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for name in given.only:
                take(browser, address, SHOTS[name], scene, given.out / f"{name}.png")
    if "results-light" in given.only:
        shutil.copyfile(given.out / "results-light.png", given.out.parent / "search-page.png")  # in the tutorials


def take_states(folder: Path) -> None:
    """A picture of every state, width and colour scheme, of the galleries that the tests use."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "serve"))
    from page_server import Watched
    from page_states import STATES, looks, serving_states

    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving_states(Path(scratch) / "galleries") as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, state in STATES.items():
            page = Watched(browser, address).page
            state.reach(page)
            for look in looks(page):
                page.screenshot(path=folder / f"{name}-{look}.png")
            page.unroute_all(behavior="ignoreErrors")  # requests that the state holds back
            page.context.close()
            typer.echo(name)


def made(folder: Path, manifest: Manifest) -> tuple[list[Path], Scene]:
    """The galleries, and what is asked of them."""
    of_both = manifest.table.filter(pl.col("vendor").is_in(VENDORS))
    names = of_both["label_0"].unique().sort().to_list()
    order = [names[place] for place in np.random.default_rng(0).permutation(len(names)) if names[place] != SHOWN]
    kept = [SHOWN, *order[: N_HELD - 1]]
    calibrated, others = order[N_HELD - 1 : N_HELD - 1 + N_CALIBRATED], order[N_HELD - 1 + N_CALIBRATED :][:N_CALIBRATED]

    def part(chosen: list[str]) -> Manifest:
        return dataclasses.replace(manifest, table=of_both.filter(pl.col("label_0").is_in(chosen)))

    galleries = []
    for side in (128, 64):
        encoder = Encoder.create(
            "tf_efficientnet_lite0", embedding_dim=None, weights="bundled", image_size=side, resize=side
        )
        galleries.append(folder / f"emoji-at-{side}")
        with Gallery.create(galleries[-1], encoder) as gallery:
            index_images(gallery, encoder, part(kept), show_progress=True)
        rejector = fit_rejector(
            embed_manifest(encoder, part(kept)), "knn", 0.95, embed_manifest(encoder, part(calibrated)), k=10
        )
        rejector = dataclasses.replace(rejector, similarity_threshold=MATCH, similarity_acceptance=0.95)
        rejector.save(galleries[-1] / FOLDER)
        if side == 128:
            far = without_match(encoder, galleries[0], rejector, part(others))
    shown = part([SHOWN]).table.filter(pl.col("vendor") == VENDORS[0])["id"].item()
    return galleries, Scene(shown, far, *uploads(folder, part(order[:2]).paths()))


def without_match(encoder: Encoder, folder: Path, rejector: Rejector, others: Manifest) -> Path:
    """Of drawings that the gallery lacks, the one that belongs and is least similar to any item."""
    with Gallery.open(folder, read_only=True) as gallery:
        vectors = encoder.encode(others.paths())
        best = gallery.search(vectors, 1)[0][:, 0]
    verdicts = rejector.judge(vectors, best)
    fits = [place for place, verdict in enumerate(verdicts) if verdict.belongs and not verdict.matched]
    typer.echo(
        f"of {len(verdicts)} drawings that the galleries lack, {sum(verdict.belongs for verdict in verdicts)} belong, "
        f"{len(fits)} of them without a match"
    )
    return others.paths()[min(fits, key=lambda place: best[place])]


def uploads(folder: Path, drawings: list[Path]) -> tuple[Path, Path]:
    """An image of two things side by side, and a file that is not an image."""
    both = Image.new("RGB", (420, 210), "white")
    for place, file in enumerate(drawings[:2]):
        with Image.open(file) as image:
            large = image.convert("RGBA").resize((190, 190))
            both.paste(large, (10 + 210 * place, 10), large)
    both.save(folder / "two.png")
    (folder / "mark.png").write_bytes(b"not an image")
    return folder / "two.png", folder / "mark.png"


@contextmanager
def served(galleries: list[Path], images: Path) -> Iterator[str]:
    """The address of the service over these galleries, with images from a folder."""
    command = [sys.executable, "-m", "sightline", "serve", *map(str, galleries), "--images", str(images), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline().rpartition(':')[2])}"
        finally:
            server.terminate()


def take(browser: Browser, address: str, shot: Shot, scene: Scene, file: Path) -> None:
    """Open the page, run the flow, and save the picture with few colours, to keep the file small."""
    options: dict[str, Any] = {"base_url": address, "color_scheme": shot.scheme, "reduced_motion": "reduce", **shot.options}
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    shot.flow(page, scene)
    page.wait_for_load_state("networkidle")
    page.evaluate("scrollTo(0, 0)")
    wait_for_images(page)
    page.screenshot(path=file)
    context.close()
    with Image.open(file) as image:
        image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(
            file, optimize=True
        )
    typer.echo(f"{file.name}: {file.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
