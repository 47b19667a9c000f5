"""The shell blocks of README and pages run from top to bottom, small, and print what the page shows."""

import os
import re
import shlex
import shutil
from argparse import ArgumentParser
from contextlib import closing
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
TEXT = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
TEXT["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = {page: list(shell_lines(text)) for page, text in TEXT.items()}
INSTALLS = ("git clone", "make demo", "python3 -m venv", ". .venv/", "pip install")  # this environment stands for it
ROXFORD = "sightline evaluate oxford.parquet --protocol roxford5k --judgements data/roxford5k.judgements.json"
NOT_RUN = {  # other lines by page, by their beginnings, and why; every other line is run
    "collections.md": [  # fetch packages; tests/data/readers/test_trademarks.py does the last three
        "sightline data prepare emoji",
        "sightline data prepare trademarks",
        "sightline embed bundled data/trademarks/manifest.csv",
        "sightline evaluate marks.parquet --protocol",
    ],
    "search.md": [  # fetches packages; the others need a Milvus server
        "sightline data prepare emoji",
        "sightline index build run/encoder images/ --out milvus+http:",
        "sightline index add milvus+http:",
        "sightline search photo.jpg --gallery milvus+http:",
    ],
    "ood.md": ["sightline ood recalibrate"],  # needs the log of many queries; tests/ood/test_drift.py has one
    # The first two need published weights, the third a hub; tests/models/ has test_released.py and test_card.py.
    "export.md": ["sightline convert Resnet101", "sightline convert roadmap", "sightline export hub"],
    "data.md": [  # need sets of that size; tests/evaluation/test_benchmark_protocols.py has small ones
        "sightline embed run/encoder data/roxford5k.parquet",
        "sightline embed run/encoder data/revisitop1m/",
        f"{ROXFORD} --expand",
        f"{ROXFORD}  ",
        "sightline evaluate landmarks.parquet",
        "sightline evaluate animals.parquet",
    ],
    "benchmarks.md": [  # run for hours
        "sightline data prepare cub",
        "sightline benchmark benchmarks/suites/cub-losses.toml --data",
        "python benchmarks/scoreboard.py",
        *(line for line in LINES["benchmarks.md"] if line.endswith(".toml --out benchmarks/evidence")),  # of each suite
    ],
    "codes.md": [line for line in LINES["codes.md"] if line.endswith(".toml --out benchmarks/evidence")],
    "tutorials/own-folder.md": ["sightline data prepare emoji"],  # fetches packages
    "tutorials/trademarks.md": LINES["tutorials/trademarks.md"],  # run by tests/data/readers/test_trademark_tutorial.py
    "tutorials/reproduce-a-paper.md": [
        "sightline benchmark benchmarks/suites/icons-losses.toml --out benchmarks/evidence &"
    ],
}
READER_HAS = {  # by page: what its reader has, by its words or from a line that is not run, and what stands for it here
    "README.md": "photos=photos query.jpg=photo.jpg",
    "benchmarks.md": "benchmarks=benchmarks",
    "codes.md": "marks.csv=marks.csv vienna.csv=vienna.csv",
    "data.md": "Downloads/sop=sop",
    "export.md": "run=run images.csv=images.csv notes.md=notes.md",
    "hierarchy.md": "emoji=emoji",
    "ood.md": "encoder=run/encoder collection.csv=images.csv test.csv=images.csv cats=outliers noise=outliers "
    "photo.jpg=photo.jpg emoji.parquet=table.parquet logos.parquet=table.parquet openclipart.parquet=table.parquet "
    "glyphs.parquet=table.parquet",
    "plan-your-run.md": "logos=emoji",
    "reports.md": "runs/emoji=run new.parquet=table.parquet old.parquet=table.parquet",
    "scale.md": "encoder=run/encoder images.parquet=images.parquet",
    "search.md": "run=run images.csv=images.csv photo.jpg=photo.jpg emoji=emoji marks.csv=marks.csv",
    "serve.md": "run=run images=catalogue shoe.jpg=photo.jpg street.jpg=photo.jpg marks.csv=marks.csv mark.jpg=photo.jpg",
    "training.md": "sop.parquet=images.parquet",
    "tutorials/hierarchy.md": "manifest.csv=flat.csv tree.csv=tree.csv",
    "tutorials/large-batches.md": "photos.csv=images.csv",
    "tutorials/own-folder.md": "data/emoji=emoji",
    "tutorials/reproduce-a-paper.md": "Downloads/sop=sop benchmarks=benchmarks data/icons=emoji",
    "tutorials/search-service.md": "runs/photos=run photos=photos new-photos=outliers query.jpg=photo.jpg",
    "tutorials/out-of-distribution.md": "runs/photos=run gallery=gallery photo.jpg=photo.jpg test.csv=images.csv "
    "unrelated=outliers",
}
WITHOUT_OUTPUT = ("collections.md", "tutorials/own-folder.md")  # the second is compared with its real images, a slow test
WITH_OUTPUT = [page for page in TEXT if page not in WITHOUT_OUTPUT and "```console" in TEXT[page]]
NAMES = {
    "clothing": ["crown", "dress", "jeans", "scarf", "socks", "coat"],
    "food-fruit": ["lemon", "tangerine", "grapes", "melon", "pear", "cherries"],
}
VENDORS = ["apple", "facebook", "google", "twitter"]
SMALL = """model.backbone=tiny model.adaptation=full model.weights=none model.embedding_dim=16 data.image_size=32
data.resize=32 data.n_workers=0 sampler.batch_size=16 schedule.epochs=1 schedule.warmup_epochs=0 precision=32-true"""


def is_run(page, line):
    return not line.startswith((*INSTALLS, *NOT_RUN.get(page, [])))


def reader_has(page):
    return dict(pair.split("=") for pair in READER_HAS.get(page, "").split())


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What a reader has: 48 images in 12 classes, manifests, a run, a table and a gallery of them."""
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
    own = (pl.col("label_1").rank("dense"), pl.col("label_0").rank("dense"), pl.col("vendor").rank("dense"))
    images.select("path", "split", codes=pl.format("{}.1.{};29.1.{}", *own)).write_csv(folder / "marks.csv")
    codes = [f"{kind}.1.{thing}" for kind, n in ((1, 12), (2, 12), (29, 4)) for thing in range(1, n + 1)]
    edges = {f"{code},{code.rpartition('.')[0]}\n" for one in codes for code in (one, one.rpartition(".")[0])}
    (folder / "vienna.csv").write_text("child,parent\n" + "".join(sorted(edges)))
    shutil.copytree(folder / "photos", folder / "emoji" / "photos")
    inside = pl.col("path").str.strip_prefix(f"{folder}/")
    images.with_columns(inside).write_csv(folder / "emoji" / "manifest.csv")
    shutil.copy(rows[0][0], folder / "photo.jpg")
    (folder / "notes.md").write_text("Made for a test.\n")
    (folder / "outliers").mkdir()
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "outliers" / f"{number}.png")
    _write_sop(folder / "sop", images)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shutil.copytree(folder / "photos", folder / "catalogue")
    (folder / "catalogue" / "Boots" / "model-17").mkdir(parents=True)
    shutil.copy(rows[0][0], folder / "catalogue" / "Boots" / "model-17" / "1.jpg")
    recipe = read_recipe("images", [f"data.manifest={folder / 'images.csv'}", *SMALL.split()])
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
    """Runs lines one after the other in the current folder; a service answers until the next one starts."""

    def __init__(self, sightline, monkeypatch, changed):
        self.sightline, self.monkeypatch, self.changed = sightline, monkeypatch, changed
        self.client, self.printed = None, ""
        monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: self._serve(server.config.app))
        monkeypatch.setattr("logging.config.dictConfig", lambda settings: None)  # logs of the service
        monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", _interrupted)
        monkeypatch.setattr("webbrowser.open", lambda address: None)

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
            if "2>" in words:
                words = words[: words.index("2>")]
            status, out, err = self.sightline(*self.changed(words[1:]))
            assert status == 0, f"{line}\n{err}"
            self.printed += out + err
            if words[1] == "token":
                self.monkeypatch.setenv("TOKEN", out.strip())

    def _serve(self, app):
        self.close()
        self.client = TestClient(app)
        self.client.__enter__()

    def _curl(self, words):
        parser = ArgumentParser()
        for option in ("-F", "-H"):
            parser.add_argument(option, action="append", default=[])
        parser.add_argument("-d")
        parser.add_argument("address")
        given = parser.parse_args(words)
        headers = dict(header.split(": ") for header in given.H)
        parts = dict(part.split("=", 1) for part in given.F)
        files = {name: Path(value[1:]).read_bytes() for name, value in parts.items() if value.startswith("@")}
        fields = {name: value for name, value in parts.items() if name not in files}
        method = "POST" if parts or given.d else "GET"
        content = {"content": given.d} if given.d else {"data": fields, "files": files} if parts else {}
        answer = self.client.request(method, given.address, headers=headers, **content)
        assert answer.status_code == 200, f"{given.address}: {answer.text}"

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
        return [*words, *SMALL.split(), *upper]
    if command == "hierarchy cluster":
        numbers = iter((5, 2))
        return [str(next(numbers)) if before == "-k" else word for before, word in zip(["", *words], words, strict=False)]
    added = {
        "data check": ["--recipe=none"],
        "data prepare": ["--subset"],
        "ood fit": [f"--option={one}" for one in ("train_steps=5", "hidden=16")] if "heat" in words else [],
        "index build": ["--workers=0"],
        "index add": ["--workers=0"],
    }
    added |= {verb: ["--workers=0"] for verb in ("embed", "whiten")} | {"serve": ["--port=0"], "report": ["-k", "2"]}
    return [*words, *added.get(command, added.get(words[0], []))]


def on_any_port(words):
    return [*words, "--port=0"] if words[0] == "serve" else words


def transcript(page):
    """The lines that a page shows as printed."""
    blocks = re.findall(r"^```console\n(.*?)^```", TEXT[page].replace("\\\n", " "), flags=re.S | re.M)
    typed = {part for line in LINES[page] for part in line.splitlines()}
    lines = [line for block in blocks if "git clone" not in block for line in block.splitlines()]
    return [line for line in lines if not line.startswith(("$ ", "...")) and line not in typed]


def shape(line):
    """A line without its numbers, folders and image names."""
    words = " ".join(re.sub(r"\d+(\.\d+)*", "0", re.sub(r" in /\S+;", " in a folder;", line)).split())
    return re.sub(r"^0 0 (/?).*", r"0 0 \1image", words)


@pytest.mark.parametrize("page", [page for page, lines in LINES.items() if any(is_run(page, one) for one in lines)])
def test_lines_of_a_page_run_one_after_the_other(page, kept, tmp_path, sightline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SIZES, "small", GlyphSize(n_characters=24, n_typefaces=5))
    for place, stands_for in reader_has(page).items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (kept / stands_for).is_dir() else shutil.copy
        copy(kept / stands_for, place)
    with closing(Terminal(sightline, monkeypatch, small)) as terminal:
        for line in LINES[page]:
            if is_run(page, line):
                terminal.run(line)
        if page in WITH_OUTPUT:
            printed = {shape(line) for line in terminal.printed.splitlines()}
            assert [line for line in transcript(page) if shape(line) not in printed] == []
        if page == "tutorials/reproduce-a-paper.md":
            assert "tpami_table05" in Path("happier-sop.html").read_text()  # the papers' values, as the page promises
        if page == "README.md":
            names = {}
            for block in re.findall(r"^```python\n(.*?)^```", TEXT[page], flags=re.S | re.M):
                exec(block, names)
            assert names["ids"][0][0] == "clothing/crown/apple.png"  # of which query.jpg is a copy
            assert names["loss"].item() >= 0
            assert "<html" in terminal.client.get("http://127.0.0.1:8000/").text


@pytest.mark.slow
def test_the_tutorial_prints_these_numbers(tmp_path, sightline, monkeypatch):
    """As a reader runs it, with the real images: percentages within 3 points, cosines within 0.1, counts exactly."""
    page = "tutorials/own-folder.md"
    monkeypatch.chdir(tmp_path)
    with closing(Terminal(sightline, monkeypatch, on_any_port)) as terminal:
        status, _, err = sightline("data", "prepare", "emoji")
        if status:
            pytest.skip(f"no npm or no network: {err}")
        for line in LINES[page]:
            if is_run(page, line):
                terminal.run(line)
    printed = terminal.printed.splitlines()
    assert [line for line in transcript(page) if not any(agrees(line, other) for other in printed)] == []
    report = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', Path("report.html").read_text(encoding="utf-8"), re.S)
    measured = {re.sub(r"<[^>]*>", "", name): re.findall(r"[+-]?\d+\.\d", cells) for name, cells in report}
    rows = re.findall(r"^\| (recall@1|mAP@R|mAP) \|(.*)\|$", TEXT[page], flags=re.M)
    assert len(rows) == 3
    for name, cells in rows:  # trained, untrained, change and its interval
        expected = [float(measured[name.lower()][place]) for place in (0, 3, 6, 7, 8)]
        assert [*map(float, re.findall(r"[+-]?\d+\.\d", cells))] == pytest.approx(expected, abs=3), name


def agrees(line, printed):
    """Is it the same line, but for paths, sizes in MB and small differences of other numbers?"""
    if shape(line) != shape(printed):
        return False
    shown, found = (re.findall(r"\d+(?:\.\d+)?", re.sub(r"[\d.]+ MB| /\S+|http:\S+", "", one)) for one in (line, printed))
    slack = [0 if "." not in number else 3 if float(number) > 1.5 else 0.1 for number in shown]
    return all(abs(float(a) - float(b)) <= most for a, b, most in zip(shown, found, slack, strict=True))


def test_lines_that_are_not_run_are_these_and_pages_say_what_a_reader_must_have():
    named = [(page, one) for page, beginnings in NOT_RUN.items() for one in beginnings]
    assert [(page, one) for page, one in named if sum(line.startswith(one) for line in LINES[page]) != 1] == []
    assert sum(is_run(page, line) for page, lines in LINES.items() for line in lines) >= 60
    for page in READER_HAS:
        made = " ".join(line for line in LINES[page] if not is_run(page, line))
        for one in reader_has(page):
            assert f" {one}" in made or re.search(rf"[`(\"]{re.escape(one)}[/`\"]", TEXT[page]), (page, one)
