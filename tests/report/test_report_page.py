import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from sightline.evaluation.result import Result
from sightline.report.gallery import Picture
from sightline.report.page import Comparison, write_page

NASTY = "<script>alert('x')</script> & \"q\""
LOG = [(1, 0, "loss", 0.5), (2, 0, "loss", 0.4), (2, 0, "val/map", 0.3)]
BEFORE = Result({"recall@1": np.array([1.0, 0.0, np.nan]), "map": np.array([0.5, 0.25, np.nan])})
AFTER = Result({"recall@1": np.array([1.0, 1.0, np.nan]), "map": np.array([0.75, 0.125, np.nan])})
DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


def picture(label="a", score=0.5, right=True):
    return Picture(DOT, f"name of {label}", label, score, right)


COMPARISONS = [
    Comparison(
        picture("q", None), [picture("w1", 0.125, right=False), picture("r1")], [picture("r2"), picture("r3", -0.25)]
    ),
    Comparison(picture(NASTY, None), [], [picture(NASTY, right=False)]),
]


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def text(tmp_path):
    file = write_page(
        tmp_path / "new" / "report.html",
        f"Title {NASTY}",
        ["One.", f"Two {NASTY}."],
        BEFORE,
        AFTER,
        LOG,
        "map",
        COMPARISONS,
    )
    assert [path.name for path in file.parent.iterdir()] == ["report.html"]
    return file.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(text):
    page = Page(text)
    assert {"html", "svg", "img", "table"} <= {tag for tag, _ in page.tags}
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    loaded = [
        value for _, attrs in page.tags for key, value in attrs.items() if re.search(r"(^|:)(src|href|srcset|data)$", key)
    ]
    loaded += re.findall(r"url\(\s*['\"]?([^)'\"]*)", text)
    assert len(loaded) > len([tag for tag, _ in page.tags if tag == "img"]) == 7
    assert [value for value in loaded if not value.startswith(("data:", "#"))] == []
    assert "@import" not in text


def test_what_people_wrote_is_shown_and_never_obeyed(text):
    assert "<script" not in text.lower()
    page = Page(text)
    shown = "".join(page.texts)
    assert f"Title {NASTY}" in shown
    assert f"Two {NASTY}." in shown
    assert shown.count(NASTY) == 5  # title, heading, sentence, a query's label, a result's label
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img"][-2:] == [
        f"query: name of {NASTY}",
        f"name of {NASTY}",
    ]


def test_each_metric_stands_there_before_and_after_with_its_change(text):
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td class="after">(.*?)</td><td.*?>(.*?)</td>', text)
    assert rows == [("recall@1", "50.0", "100.0", "+50.0"), ("map", "37.5", "43.8", "+6.2")]
    assert "3 queries, 1 without a relevant image left out" in text
    assert "Validation map (%)" in text


def test_a_number_of_levels_is_no_percentage_and_better_if_it_falls(tmp_path):
    before, after = (Result({"severity@1": np.array([value])}) for value in (2.0, 1.5))
    text = write_page(tmp_path / "report.html", "T", [], before, after, LOG, "map", []).read_text(encoding="utf-8")
    assert '<td>2.00</td><td class="after">1.50</td><td class="gain">-0.50</td>' in text


def test_a_metric_that_only_one_side_has_is_left_out(tmp_path):
    after = Result({**AFTER.per_query, "new": np.array([1.0, 1.0, 1.0])})
    text = write_page(tmp_path / "report.html", "T", [], BEFORE, after, LOG, "map", []).read_text(encoding="utf-8")
    assert re.findall(r'<th scope="row">(.*?)</th>', text) == ["recall@1", "map"]


def test_frames_say_which_results_are_right(text):
    page = Page(text)
    frames = [attrs["class"] for tag, attrs in page.tags if tag == "figure"]
    assert frames == ["query", "wrong", "right", "right", "right", "query", "wrong"]
    captions = re.findall(r"<figcaption><b>(.)</b> (.*?)<br>(.*?)</figcaption>", text)
    assert captions[:4] == [("✗", "w1", "0.12"), ("✓", "r1", "0.50"), ("✓", "r2", "0.50"), ("✓", "r3", "-0.25")]
    assert [stage for stage in page.texts if stage in ("before", "after")] == [
        "before",
        "after",
    ] * 3  # the table's head first


def test_the_page_is_utf_8_whatever_the_computer_speaks(tmp_path):
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from sightline.evaluation.result import Result; from sightline.report.page import write_page\n"
        "result = Result({'map': np.ones(1)})\n"
        "write_page(Path(sys.argv[1]), 'T', [], result, result, [], 'map', [])"
    )
    speaks_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    file = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], env=os.environ | speaks_ascii, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "✓" in file.read_text(encoding="utf-8")
