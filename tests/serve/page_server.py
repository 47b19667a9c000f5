"""What the tests of the service share: galleries, the real service, and a browser that watches."""

import dataclasses
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import uvicorn
from PIL import Image, ImageDraw

from sightline.data.manifest import Manifest, read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.ood.rejector import FOLDER, fit_rejector
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings

BASE = "http://127.0.0.1:8000"
COLOURS = {"red": "#d01818", "green": "#18a030", "blue": "#1848d0", "gold": "#e0b010", "pink": "#f080b0"}
ODD = 'it\'s a "square" \\ [x]'  # a label that must reach the filter unharmed
SHAPES = ("circle", ODD, "triangle", "bar")


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(seed: int = 0, size: tuple[int, int] = (40, 36)) -> bytes:
    """An image of noise as a PNG file."""
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)))


def chosen(data: bytes, name: str = "photo.png") -> dict:
    """A file as a person would choose it."""
    return {"name": name, "mimeType": "image/png", "buffer": data}


def make_gallery(folder: Path, images: Path | Manifest, seed: int = 0) -> Path:
    """The images of a tree or a manifest, embedded by a tiny encoder."""
    encoder = Encoder.create("tiny", embedding_dim=16, image_size=32, seed=seed)
    with Gallery.create(folder, encoder) as gallery:
        index_images(gallery, encoder, read_manifest(images) if isinstance(images, Path) else images)
    return folder


def shape(name: str, colour: str, shift: int = 0, size: int = 64) -> Image.Image:
    image = Image.new("RGB", (size, size), "white")
    pen, left, right, fill = ImageDraw.Draw(image), size // 8 + shift, size - size // 8 - shift, COLOURS[colour]
    if name == "circle":
        pen.ellipse((left, left, right, right), fill)
    elif name == "triangle":
        pen.polygon([(size // 2, left), (left, right), (right, right)], fill)
    else:
        top, bottom = (left, right) if name == ODD else (size // 2 - 7, size // 2 + 7)
        pen.rectangle((left, top, right, bottom), fill)
    return image


def draw_shapes(root: Path) -> Path:
    """40 images, 20 fine labels in 4 shapes; a manifest with a year and whether each was sold."""
    root.mkdir(parents=True)
    rows = []
    for number in range(40):
        name, colour, shift = SHAPES[number % 4], list(COLOURS)[number // 4 % 5], 4 * (number // 20)
        shape(name, colour, shift).save(root / f"{number}.png")
        labels = {"label_0": f"{colour} {name}", "label_1": name}
        more = {"year": 2000 + number, "sold": number < 10}
        rows.append({"id": f"no/{number}", "path": f"{number}.png", "split": "test", **labels, **more})
    pl.DataFrame(rows).write_parquet(root / "shapes.parquet")
    return root / "shapes.parquet"


def codes_of(number: int) -> list[str] | None:
    """The codes of a shape, by its number: of the shape, of the colour, and of some a third; two have none."""
    own = [f"26.{number % 4 + 1}.{number // 20 + 1}", f"29.1.{number // 4 % 5 + 1}"]
    return None if number in (9, 29) else [*own, "26.10", "5.3.13", "a longer code 7.1.1"][: 2 + number % 4]


def make_galleries(folder: Path) -> dict[str, Path]:
    """``plain``; ``other``, of another encoder, with codes and without 4 items; ``strict`` and ``picky``, which judge."""
    manifest = read_manifest(draw_shapes(folder / "drawn"))
    coded = manifest.table.with_columns(codes=pl.Series(map(codes_of, range(40))))
    part = dataclasses.replace(manifest, table=coded[4:], places=None)
    held = {"plain": manifest, "other": part, "strict": manifest, "picky": manifest}
    made = {name: make_gallery(folder / name, images, seed=int(name == "other")) for name, images in held.items()}
    table = embed_manifest(Encoder.from_pretrained(made["plain"] / "encoder"), manifest)
    rejector = fit_rejector(table, "knn", 0.95, table, k=2)
    for name, limit in (("strict", 0.0), ("picky", 0.9999999)):
        dataclasses.replace(rejector, similarity_threshold=limit, similarity_acceptance=0.5).save(made[name] / FOLDER)
    return made


@contextmanager
def served(*galleries: Path, **settings) -> Iterator[str]:
    """The address of the real service over these galleries; every test of a module asks it, so its rate is not limited."""
    roots = [gallery.parent for gallery in galleries]
    given = {"galleries": list(galleries), "image_roots": roots, "rate": 1e6, "burst": 1e6, **settings}
    app = create_app(read_settings(given=given, environ={}))
    with running(uvicorn.Config(app, log_config=None, access_log=False)) as address:
        yield address


@contextmanager
def running(config: uvicorn.Config) -> Iterator[str]:
    """The address of an application in a thread of this process."""
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:  # or a test that fails would never end
            server.should_exit = True
            thread.join()


class Watched:
    """A page of a new browser context, and all that it asked for and complained about."""

    def __init__(self, browser, address: str, **options) -> None:
        self.context = browser.new_context(base_url=address, reduced_motion="reduce", **options)
        self.page = self.context.new_page()
        self.address = address
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self._heard(line))
        self.page.set_default_timeout(15_000)

    def _heard(self, line) -> None:
        # The browser itself notes every refusal; those are what some tests are about.
        if line.type in ("error", "warning") and not line.text.startswith("Failed to load resource"):
            self.faults.append(line.text)

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked of another host."""
        assert self.faults == []
        foreign = [url for url in self.requests if not url.startswith((self.address, f"blob:{self.address}"))]
        assert self.requests
        assert foreign == []
