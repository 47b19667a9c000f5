"""The files of the page: what they weigh, that they name no other host, and that composed filters mean what was ticked."""

import re
from importlib.resources import files

import numpy as np
import pytest
from page_server import CHROMIUM, FLAGS, NO_CHROMIUM, served
from playwright.sync_api import sync_playwright

from sightline.models.encoder import Encoder
from sightline.search.gallery import Gallery

WEB = files("sightline.serve") / "web"
VALUES = ['"', "'", "\\", '\\"', "a\nb", "tab\there", "\u2028", "🦉 ñ", "None", "True", "x' or 'a' == 'a", "{}", "", "1"]


def test_the_page_weighs_less_than_200_kb():
    assert sum(len(file.read_bytes()) for file in WEB.iterdir()) < 200_000


def test_no_file_names_another_host_or_holds_script_or_style_inline():
    seen = 0
    for file in WEB.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]", text), file.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file.name
        if file.name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text)
        seen += 1
    assert seen >= 15


@pytest.mark.skipif(not CHROMIUM.exists(), reason=NO_CHROMIUM)
def test_a_composed_filter_keeps_the_items_whose_values_were_ticked(tmp_path):
    rows = [{"mark": value, "year": float(n), "sold": n % 2 == 0} for n, value in enumerate(VALUES)] + [{"year": -1.5}]
    named = [str(n) for n in range(len(rows))]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4))
    encoder = Encoder.create("tiny", embedding_dim=4, image_size=32)
    with Gallery.create(tmp_path / "odd", encoder) as gallery:
        gallery.add(named, vectors, rows)
        with served(tmp_path / "odd") as url, sync_playwright() as playwright:
            page = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS).new_page()
            page.goto(url)
            call = "async ([facets, free]) => (await import('/static/where.js')).composed(facets, free)"
            for n, value in enumerate(VALUES):
                alone = page.evaluate(call, [{"mark": {"values": [value]}}, ""])
                assert gallery.filter(alone) == [str(n)], alone
                pair = page.evaluate(call, [{"mark": {"values": [value, None]}}, ""])
                assert sorted(gallery.filter(pair), key=int) == [str(n), str(len(VALUES))], pair
            every = page.evaluate(
                call, [{"mark": {"values": VALUES}, "year": {"min": 2, "max": 9}, "sold": {"values": [True]}}, ""]
            )
            assert sorted(gallery.filter(every), key=int) == ["2", "4", "6", "8"]
            joined = page.evaluate(call, [{"year": {"max": 3}}, "year == 1 or year == 7"])
            assert gallery.filter(joined) == ["1"]  # what was written is one condition, not two
            assert page.evaluate(call, [{"two words": {"values": ["x"]}}, " "]) == ""
            assert page.evaluate(call, [{"class": {"values": ["x"]}}, ""]) == ""
