"""The files of the page: their weight, that they name no other host, that filters mean what was ticked; its pictures."""

import re
import runpy
from importlib.resources import files
from pathlib import Path

import numpy as np
from page_server import served

from sightline.gallery.gallery import Gallery
from sightline.models.encoder import Encoder

DOCS = Path(__file__).parents[2] / "docs"
WEB = files("sightline.serve") / "web"
VALUES = ['"', "'", "\\", '\\"', "a\nb", "tab\there", "\u2028", "🦉 ñ", "None", "True", "x' or 'a' == 'a", "{}", "", "1"]

ODD_NAMES = ["class", "two words", "it's", "a.b[0]", "ﬁ", "🦉 ñ"]


def test_every_picture_of_the_page_is_taken_by_the_one_command_and_shown():
    taken = runpy.run_path(str(DOCS / "make_page_pictures.py"))["SHOTS"]
    assert {file.stem for file in (DOCS / "serve").iterdir()} == {*taken}
    assert {*re.findall(r"\(serve/([\w-]+)\.png\)", (DOCS / "serve.md").read_text(encoding="utf-8"))} == {*taken}


def test_no_file_names_another_host_or_holds_script_or_style_inline():
    texts = {file.name: file.read_text(encoding="utf-8") for file in WEB.iterdir()}
    assert len(texts) >= 15
    assert sum(len(text.encode()) for text in texts.values()) < 200_000
    foreign = r"https?:|//[a-z0-9-]+\.[a-z]|innerHTML|insertAdjacentHTML|document\.write|\beval\("
    for name, text in texts.items():
        found = re.findall(foreign, text.replace("http://www.w3.org/2000/svg", ""))  # a name, not an address
        if name.endswith(".html"):
            found += re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text)
        assert found == [], name


def test_a_composed_filter_keeps_the_items_whose_values_were_ticked(tmp_path, chromium):
    rows = [{"mark": value, "year": float(n), "sold": n % 2 == 0} for n, value in enumerate(VALUES)] + [{"year": -1.5}]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4))
    with Gallery.create(tmp_path / "odd", Encoder.create("tiny", embedding_dim=4, image_size=32)) as gallery:
        gallery.add([str(n) for n in range(len(rows))], vectors, rows)
        with served(tmp_path / "odd") as url:
            page = chromium.new_page()
            page.goto(url)

            def composed(facets, free=""):
                call = "async ([facets, free]) => (await import('/static/where.js')).composed(facets, free)"
                return page.evaluate(call, [facets, free])

            def kept(facets, free=""):
                return sorted(map(int, gallery.filter(composed(facets, free))))

            for n, value in enumerate(VALUES):
                assert kept({"mark": {"values": [value]}}) == [n], value
                assert kept({"mark": {"values": [value, None]}}) == [n, len(VALUES)], value
            facets = {"mark": {"values": VALUES}, "year": {"min": 2, "max": 9}, "sold": {"values": [True]}}
            assert kept(facets) == [2, 4, 6, 8]
            assert kept({"year": {"max": 3}}, "year == 1 or year == 7") == [1]  # what was written is one condition, not two
            for name in ODD_NAMES:
                gallery.upsert(["0"], vectors[:1], [{name: "x", "year": 0.0}])
                assert kept({name: {"values": ["x"]}, "year": {"max": 9}}) == [0]
            for name in ('"', "\\", "a\nb", ""):  # cannot be written
                assert composed({name: {"values": ["x"]}}, " ") == ""
