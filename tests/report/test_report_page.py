"""The page as a whole: its sections, what it loads, and that what people wrote stays text."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from html_pages import Page
from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.models.card import Account, EvaluationFacts, TrainingFacts
from sightline.report.page import ReportOptions, write_report
from sightline.report.subject import Subject

NASTY = "<script>alert('x')</script> & \"q\""
LOG = (*((step, 0, "loss", 1 / step) for step in range(1, 6)), (5, 0, "val/map@r", 0.25))
TRAINING = {"loss": "sup_ap", "loss_options": {}, "weights": None, "adaptation": "full", "epoch": 3, "epochs": 9}
TRAINING |= {"batch_size": 8, "optimizer": "adamw", "lr": 0.1, "precision": "32-true", "seed": 0, "trained_share": 0.5}
ON = {"on": "images of x.csv (40 images, 7 classes)", "n_queries": 40, "n_skipped": 0, "level": 0.95, "metrics": {}}
CARD = Account(training=TrainingFacts(**TRAINING), evaluation=EvaluationFacts(**ON, chose=True))


@pytest.fixture(scope="module")
def two(two_subjects):
    new, old = two_subjects
    return Subject("new", new.table, LOG, card=CARD, shows_validation=True), old


@pytest.fixture(scope="module")
def report(two, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    said = {"title": f"Title {NASTY}", "summary": [f"Two {NASTY}."]}
    options = ReportOptions(**said, k=4, n_queries=2, figures=folder / "figures")
    return write_report(folder / "new" / "report.html", *two, options)


@pytest.fixture(scope="module")
def text(report):
    assert [path.name for path in report.file.parent.iterdir()] == ["report.html"]
    return report.file.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(text):
    page = Page(text)
    assert {"html", "svg", "img", "table", "nav"} <= {tag for tag, _ in page.tags}
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    attributes = [pair for _, attrs in page.tags for pair in attrs.items()]
    loaded = [value for key, value in attributes if re.search(r"(^|:)(src|href|srcset|action)$", key)]
    loaded += re.findall(r"url\(\s*['\"]?([^)'\"]*)", text)
    assert len(loaded) > 100
    assert [value for value in loaded if not value.startswith(("data:", "#"))] == []
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert ("@import" in text, len(text) < 2e6) == (False, True)


def test_every_section_is_there_no_id_twice_and_what_people_wrote_is_shown_and_never_obeyed(text, two):
    page = Page(text)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    sections = ["metrics", "training", "curves", "galleries", "map", "severity", "scores", "gap", "classes"]
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"] == sections
    assert {attrs["href"][1:] for tag, attrs in page.tags if tag == "a"} <= set(ids)
    panels = re.findall(r'<figure class="panel">(<svg.*?</svg>)', text, re.DOTALL)
    assert len(panels) == 2 + 3 + 2 + 2 + 1
    assert all(ET.fromstring(svg).get("aria-label") for svg in panels)
    assert "alert('x')" not in re.sub(r"&#39;|&quot;", "", text)
    assert (page.text.count(f"Title {NASTY}"), page.text.count(f"Two {NASTY}.")) == (2, 1)
    header = text[text.index("<h1>") : text.index("<section")]  # how many validation classes chose the epoch
    facts = ("new: epoch 3 of 9", "weights 50% trained", "x.csv (40 images, 7 classes)", "optimistic")
    assert ([fact for fact in facts if fact not in header], "old: epoch" in header) == ([], False)
    assert replace(two[0], card=CARD.model_copy(update={"evaluation": None})).selection is None
    data = json.loads(re.search(r'id="map-data">(.*?)</script>', text, re.DOTALL)[1])
    assert sorted(data["kinds"]) == ["even", "odd"]
    kinds = {name: data["kinds"][kind] for name, kind in zip(data["names"], data["kind_of"], strict=True)}
    assert kinds == {f"c{number}": "even" if number % 3 == 0 else "odd" for number in range(10)}
    assert len(re.findall(r'<path class="k\d+" data-i="', text)) == 20


def test_one_model_of_one_level_needs_no_comparison_and_images_that_cannot_be_read_a_placeholder(circle, tmp_path):
    subject, options = circle((0, 5, 50, 60, 7), "aabbb"), ReportOptions(k=4)
    first, again = (write_report(tmp_path / f"{n}.html", subject, options=options) for n in range(2))
    text = first.file.read_text(encoding="utf-8")
    assert text == again.file.read_text(encoding="utf-8")
    assert [gallery.name for gallery in first.galleries] == ["hardest", "severe", "random"]
    assert ("another class" in text, "verdict" in Page(text).text) == (True, False)
    assert [words for words in ('id="training"', "label levels") if words in text] == []
    for path in subject.table.manifest.paths()[:3]:
        path.unlink()
    report = write_report(tmp_path / "r.html", subject, options=options)
    text = report.file.read_text(encoding="utf-8")
    assert (report.n_missing, "3 of the images shown could not be read" in text) == (3, True)
    assert text.count(">no image</div>") >= 3


def test_classes_of_one_image_each_are_refused(circle, tmp_path):
    file = tmp_path / "r.html"
    assert_refused("none of the 3 queries has a relevant item", write_report, file, circle((0, 5, 50), "abc"))
    assert not file.exists()


FIGURES = """training-loss training-validation recall precision-recall hierarchical-precision-recall severity-1 severity-4
scores-new scores-old decomposability-gap tsne-new tsne-old gallery-hardest gallery-severe gallery-improved
gallery-worsened gallery-random"""


def test_every_figure_is_a_file_too(report):
    assert {path.name for path in report.figures} == {
        f"{stem}.{kind}" for stem in FIGURES.split() for kind in ("png", "svg")
    }
    for path in report.figures:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 300
        else:
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("kind", ["equal", "huge", "equal but one"])
def test_a_page_of_vectors_that_coincide_or_are_huge(random_subject, tmp_path, kind):
    subject = random_subject()
    vectors = {
        "equal": np.ones((40, 2), np.float32),
        "huge": subject.table.vectors * np.float32(2e38),
        "equal but one": np.where(np.arange(40)[:, None] % 10 == 3, -1, np.ones((40, 2))).astype(np.float32),
    }[kind]
    changed = replace(subject, table=EmbeddingTable(subject.table.manifest, vectors, "f"))
    report = write_report(tmp_path / "r.html", changed, options=ReportOptions(k=2, n_queries=1))
    page = Page(report.file.read_text(encoding="utf-8"))
    drawn = [attrs["d"] for tag, attrs in page.tags if tag == "path" and "data-i" in attrs]
    assert len(drawn) == (0 if kind == "equal" else 10)  # without distances there is no map
    assert not any("nan" in path for path in drawn)
