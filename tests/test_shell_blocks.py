"""The shell blocks of the pages are run, small: each page from top to bottom in a folder of its own, as a reader would."""

import os
import re
import shlex
import shutil
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from command_lines import shell_lines
from sightline.data.manifest import read_manifest
from sightline.data.readers.glyphs import SIZES, GlyphSize
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.training.recipe import read_recipe
from sightline.training.run import train

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINES = {str(page.relative_to(DOCS)): list(shell_lines(page.read_text())) for page in sorted(DOCS.rglob("*.md"))}
NOT_RUN = {  # why: the beginnings of the lines, by page
    "installs; this environment stands for it": {
        "start.md": ["python3 -m venv", ". .venv/", "pip install"],
        "tutorials/own-folder.md": ["git clone", "python3 -m venv", ". .venv/", "pip install"],
        "export.md": ["pip install"],
    },
    "fetches packages": {
        "collections.md": ["sightline data prepare emoji"],
        "search.md": ["sightline data prepare emoji"],
    },
    "needs a Milvus server": {
        "search.md": [
            "sightline index build run/encoder images/ --out milvus+http:",
            "sightline index add milvus+http:",
            "sightline search photo.jpg --gallery milvus+http:",
        ],
    },
    "needs a hub; tests/models/test_card.py has one": {"export.md": ["sightline export hub"]},
    "runs for hours, or needs a set of that size": {
        "benchmarks.md": [
            "sightline data prepare cub",
            "sightline benchmark benchmarks/suites/cub-losses.toml --data",
            "python benchmarks/scoreboard.py",
            *(line for line in LINES["benchmarks.md"] if line.endswith(".toml --out benchmarks/evidence")),  # of each suite
        ],
        "tutorials/reproduce-a-paper.md": [
            "sightline benchmark benchmarks/suites/icons-losses.toml --out benchmarks/evidence &"
        ],
    },
}  # every other line is run
READER_HAS = {  # by page: what it says that the reader has, or what a line that is not run makes; and what stands for it
    "benchmarks.md": {"benchmarks": "benchmarks"},
    "data.md": {"Downloads/sop": "sop"},
    "export.md": {"run": "run", "images.csv": "images.csv", "notes.md": "notes.md"},
    "hierarchy.md": {"emoji": "emoji"},
    "ood.md": {
        "encoder": "run/encoder",
        "collection.csv": "images.csv",
        "test.csv": "images.csv",
        "cats": "strangers",
        "noise": "strangers",
        "photo.jpg": "photo.jpg",
        "emoji.parquet": "table.parquet",
        "logos.parquet": "table.parquet",
        "openclipart.parquet": "table.parquet",
        "glyphs.parquet": "table.parquet",
        "fashion-mnist.parquet": "table.parquet",
    },
    "reports.md": {"runs/emoji": "run", "new.parquet": "table.parquet", "old.parquet": "table.parquet"},
    "scale.md": {"encoder": "run/encoder", "images.parquet": "images.parquet"},
    "search.md": {"run": "run", "images.csv": "images.csv", "photo.jpg": "photo.jpg", "emoji": "emoji"},
    "serve.md": {"run": "run", "images": "catalogue", "shoe.jpg": "photo.jpg", "street.jpg": "photo.jpg"},
    "training.md": {"sop.parquet": "images.parquet"},
    "tutorials/hierarchy.md": {"manifest.csv": "flat.csv", "tree.csv": "tree.csv"},
    "tutorials/large-batches.md": {"photos.csv": "images.csv"},
    "tutorials/own-folder.md": {"photos": "photos"},
    "tutorials/reproduce-a-paper.md": {"Downloads/sop": "sop", "benchmarks": "benchmarks", "data/icons": "emoji"},
    "tutorials/search-service.md": {
        "runs/photos": "run",
        "photos": "photos",
        "new-photos": "strangers",
        "query.jpg": "photo.jpg",
    },
    "tutorials/strangers.md": {
        "runs/photos": "run",
        "gallery": "gallery",
        "photo.jpg": "photo.jpg",
        "test.csv": "images.csv",
        "strangers": "strangers",
    },
}
NAMES = {
    "clothing": ["crown", "dress", "jeans", "scarf", "socks", "coat"],
    "food-fruit": ["lemon", "tangerine", "grapes", "melon", "pear", "cherries"],
}
VENDORS = ["apple", "facebook", "google", "twitter"]
SMALL = [
    "model.backbone=tiny",
    "model.adaptation=full",
    "model.weights=none",
    "model.embedding_dim=16",
    "data.image_size=32",
    "data.resize=32",
    "data.n_workers=0",
    "sampler.batch_size=16",
    "schedule.epochs=1",
    "schedule.warmup_epochs=0",
    "precision=32-true",
]


def reason(page, line):
    found = [why for why, pages in NOT_RUN.items() if any(line.startswith(one) for one in pages.get(page, []))]
    return found[0] if found else None


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What stands for the things of a reader: 48 images in 12 classes, manifests, a run, a table and a gallery of them."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    rows = []
    for kind, things in NAMES.items():
        for number, thing in enumerate(things):
            base = rng.integers(0, 256, (8, 8, 3))
            (folder / "photos" / kind / thing).mkdir(parents=True)
            for vendor in VENDORS:
                pixels = np.clip(base + rng.integers(-80, 80, base.shape), 0, 255).astype(np.uint8)
                file = folder / "photos" / kind / thing / f"{vendor}.png"
                Image.fromarray(pixels).resize((32, 32)).save(file)
                split = ("train", "train", "train", "val", "test", "test")[number]
                rows.append((str(file), split, thing, kind, vendor, f"a {thing}"))
    images = pl.DataFrame(rows, ["path", "split", "label_0", "label_1", "vendor", "name"], orient="row")
    images.write_csv(folder / "images.csv")
    images.write_parquet(folder / "images.parquet")
    images.drop("label_1").rename({"label_0": "label"}).write_csv(folder / "flat.csv")
    (folder / "tree.csv").write_text("child,parent\n" + "".join(f"{t},{k}\n" for k, ts in NAMES.items() for t in ts))
    (folder / "emoji").mkdir()
    images.write_csv(folder / "emoji" / "manifest.csv")
    shutil.copy(rows[0][0], folder / "photo.jpg")
    (folder / "notes.md").write_text("Made for a test.\n")
    (folder / "strangers").mkdir()
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "strangers" / f"{number}.png")
    _write_sop(folder / "sop", images)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shutil.copytree(folder / "photos", folder / "catalogue")
    (folder / "catalogue" / "Boots" / "model-17").mkdir(parents=True)
    shutil.copy(rows[0][0], folder / "catalogue" / "Boots" / "model-17" / "1.jpg")
    recipe = read_recipe("images", [f"data.manifest={folder / 'images.csv'}", *SMALL])
    encoder = Encoder.from_pretrained(train(recipe, folder / "run"))
    with Gallery.create(folder / "gallery", encoder) as gallery:
        index_images(gallery, encoder, read_manifest(folder / "photos"))
    embed_manifest(encoder, read_manifest(folder / "images.csv")).write(folder / "table.parquet")
    return folder


def _write_sop(folder, images):
    """The published files of Stanford Online Products, of other images."""
    lines = {"train": [], "test": []}
    for number, (path, split, thing, kind, *_) in enumerate(images.rows()):
        place = f"{kind}_final/{thing}_{number}.JPG"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / place)
        product = 1 + images["label_0"].unique(maintain_order=True).to_list().index(thing)
        lines["test" if split == "test" else "train"].append(f"{number + 1} {product} {1 + [*NAMES].index(kind)} {place}\n")
    for part, listed in lines.items():
        (folder / f"Ebay_{part}.txt").write_text("image_id class_id super_class_id path\n" + "".join(listed))


class Terminal:
    """Runs lines one after the other in the current folder; a service goes on answering until the next one starts."""

    def __init__(self, sightline, monkeypatch):
        self.sightline, self.monkeypatch, self.client, self.printed = sightline, monkeypatch, None, ""
        monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: self._serve(server.config.app))
        monkeypatch.setattr("logging.config.dictConfig", lambda settings: None)  # logs of the service
        monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", _interrupted)
        monkeypatch.setattr("webbrowser.open", lambda address: None)
        monkeypatch.setitem(SIZES, "small", GlyphSize(n_characters=24, n_typefaces=5))

    def run(self, line):
        words = shlex.split(os.path.expandvars(line), comments=True)
        if words[0] == "torchrun":  # on one process; tests/training has several
            words = words[words.index("-m") + 1 :]
        if words[:2] == ["python", "-c"]:
            exec(words[2], {})
        elif words[0] == "curl":
            self._curl(words[1:])
        else:
            assert words[0] == "sightline", line
            status, out, err = self.sightline(*small(words[1:]))
            assert status == 0, f"{line}\n{err}"
            self.printed += out + err
            if words[1] == "token":
                self.monkeypatch.setenv("TOKEN", out.strip())

    def _serve(self, app):
        self.close()
        self.client = TestClient(app)
        self.client.__enter__()

    def _curl(self, words):
        fields, files, headers, content = {}, {}, {}, None
        *options, address = words
        for option, value in zip(options[::2], options[1::2], strict=True):
            if option == "-F":
                name, _, given = value.partition("=")
                target, given = (files, Path(given[1:]).read_bytes()) if given.startswith("@") else (fields, given)
                target[name] = given
            elif option == "-H":
                headers |= dict([value.split(": ")])
            else:
                assert option == "-d", option
                content = value
        method = "POST" if fields or files or content else "GET"
        given = {"content": content} if content else {"data": fields, "files": files} if method == "POST" else {}
        answer = self.client.request(method, address, headers=headers, **given)
        assert answer.status_code == 200, f"{address}: {answer.text}"

    def close(self):
        if self.client is not None:
            self.client.__exit__(None, None, None)


def _interrupted(server):
    raise KeyboardInterrupt


def small(words):
    """The same command for 48 images: options added or numbers lowered, nothing that is read or written changed."""
    command = " ".join(words[:2])
    if words[0] in ("train", "demo"):
        upper = ["model.adaptation=upper:2"] if "images" in words else []  # as the recipe has it
        return [*words, *SMALL, *upper]
    if command == "hierarchy cluster":
        numbers = iter((5, 2))
        return [str(next(numbers)) if before == "-k" else word for before, word in zip(["", *words], words, strict=False)]
    added = {
        "data check": ["--recipe=none"],
        "data prepare": ["--subset"],
        "ood fit": [f"--option={one}" for one in ("epochs=1", "hidden=16")] if "heat" in words else [],
        "index build": ["--workers=0"],
        "index add": ["--workers=0"],
    }
    added |= {verb: ["--workers=0"] for verb in ("embed", "whiten")} | {"serve": ["--port=0"], "report": ["-k", "2"]}
    return [*words, *added.get(command, added.get(words[0], []))]


def transcripts(page):
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    return [block.splitlines() for block in blocks if "git clone" not in block]


def shape(line):
    """A line with other numbers and other images in it."""
    words = " ".join(re.sub(r"\d+(\.\d+)*", "0", re.sub(r" in /\S+;", " in a folder;", line)).split())
    return re.sub(r"^0 0 (/?).*", r"0 0 \1image", words)


@pytest.mark.parametrize("page", [page for page, lines in LINES.items() if any(reason(page, one) is None for one in lines)])
def test_lines_of_a_page_run_one_after_the_other(page, kept, tmp_path, sightline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, stands_for in READER_HAS.get(page, {}).items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (kept / stands_for).is_dir() else shutil.copy
        copy(kept / stands_for, place)
    terminal = Terminal(sightline, monkeypatch)
    try:
        for line in LINES[page]:
            if reason(page, line) is None:
                terminal.run(line)
    finally:
        terminal.close()
    if page == "tutorials/own-folder.md":  # a transcript: what it shows is what is printed
        shown = [line for block in transcripts(DOCS / page) for line in block if not line.startswith(("$ ", "..."))]
        assert len(shown) >= 14
        assert [line for line in shown if shape(line) not in map(shape, terminal.printed.splitlines())] == []
    if page == "tutorials/reproduce-a-paper.md":
        assert "tpami_table05" in Path("happier-sop.html").read_text()  # the papers' values, as the page promises


def test_lines_that_are_not_run_are_these():
    named = [(page, one) for pages in NOT_RUN.values() for page, beginnings in pages.items() for one in beginnings]
    assert [(page, one) for page, one in named if sum(line.startswith(one) for line in LINES[page]) != 1] == []
    assert sum(map(len, LINES.values())) - len(named) >= 60


def test_pages_say_what_a_reader_must_have():
    untold = []
    for page, things in READER_HAS.items():
        text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.S | re.M)
        made = " ".join(line for line in LINES[page] if reason(page, line))
        untold += [
            (page, one) for one in things if not re.search(rf"`{re.escape(one)}[/`]", text) and f" {one}" not in made
        ]
    assert untold == []
