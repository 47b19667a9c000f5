"""Icons and logos out of one small package in the layout of Iconify's, made here."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from package_archives import contents, random_blocks, write_iconify, write_npm

from refusals import assert_refused
from sightline.data.images import check_images, load_image
from sightline.data.manifest import read_manifest
from sightline.data.readers import icons as module
from sightline.data.readers.icons import write_icons, write_logos

CIRCLE = '<circle cx="12" cy="12" r="10"/>'
SMALL_RED_CIRCLE = '<circle cx="9" cy="9" r="5" fill="red"/>'
RING = '<circle cx="12" cy="12" r="8" fill="none" stroke="black" stroke-width="4"/>'
SQUARE = '<path d="M3 3h18v18h-18z"/>'
CROSS = '<path d="M10 1h4v9h9v4h-9v9h-4v-9h-9v-4h9z"/>'
TRIANGLE = '<path d="M12 2l10 20h-20z"/>'
BARS = '<path d="M2 2h20v4h-20zM2 10h20v4h-20zM2 18h20v4h-20z"/>'
CORNER = '<path d="M2 2h20v6h-14v14h-6z"/>'
WIDE = '<path d="M0 8h24v6h-24z"/>'
DISC = '<ellipse cx="12" cy="12" rx="11" ry="7"/>'
WHITE = '<path d="M3 3h18v18h-18z" fill="white"/>'

COLLECTIONS = {  # prefix: licence, group, icons
    "aa": ("MIT", "UI 24px", {"home": CIRCLE, "home-filled": RING, "home-duotone": BARS, "menu": BARS, "up": CROSS}),
    "bb": ("CC-BY-4.0", "UI 24px", {"home-outline": SQUARE, "menu-24": SQUARE, "cart": WIDE}),
    "cc": ("Apache-2.0", "Emoji", {"home": TRIANGLE, "menu": CROSS, "cart": WHITE}),
    "dd": ("MIT", "Material", {"home": SMALL_RED_CIRCLE, "menu": BARS, "cart": "<path", "hat": CORNER}),
    "ee": ("ISC", "UI 24px", {"home-line": CORNER, "cart": DISC}),
    "ff": ("GPL-3.0", "UI 24px", {"home": BARS, "menu": SQUARE}),
    "gg": ("MIT", "Logos", {"acme-icon": CIRCLE, "vuedotjs": SQUARE, "solo": BARS}),
    "hh": ("CC0-1.0", "Logos", {"acme": TRIANGLE, "vue-js": CROSS}),
}


@pytest.fixture
def package(tmp_path):
    return write_iconify(tmp_path, COLLECTIONS)


def table_of(write, tmp_path, package, **options):
    manifest = read_manifest(write(tmp_path / "set", root=tmp_path / "npm", package=package, **options))
    check_images(manifest)
    return manifest.table


def counts_of(folder):
    lines = (line[2:].rsplit(": ", 1) for line in (folder / "SOURCES.md").read_text().splitlines() if line[:2] == "- ")
    return {what: int(n) for what, n in lines}


def test_names_meet_without_words_of_style_and_each_drawing_is_kept_or_counted(tmp_path, package):
    table = table_of(write_icons, tmp_path, package, size="full")
    # Gone are a third style of aa, the circle of dd, aa's in another size and colour, and bb's square, its menu too.
    assert sorted(table.select("label_0", "collection", "name").rows()) == [
        ("home", "aa", "home"), ("home", "aa", "home-filled"), ("home", "cc", "home"), ("home", "ee", "home-line")
    ]  # fmt: skip
    counts = counts_of(tmp_path / "set")
    assert counts["collections"] == 5  # without the licence of ff, and logos
    for reason, n in {"blank": 2, "wide": 1, "of another": 2, "near-duplicates": 2, "too few": 3}.items():
        assert [found for what, found in counts.items() if reason in what] == [n], reason
    left_out = sum(n for what, n in counts.items() if what.startswith("left out"))
    assert counts["drawings of names in at least 4 collections"] - left_out == len(table)


def test_logos_are_the_collections_of_logos(tmp_path, package):
    table = table_of(write_logos, tmp_path, package, side=32)
    drawn = {brand: sorted(group["name"]) for (brand,), group in table.group_by("label_0")}
    assert drawn == {"acme": ["acme", "acme-icon"], "vuejs": ["vue-js", "vuedotjs"]}
    assert load_image(tmp_path / "set" / table["path"][0]).size == (32, 32)
    page = (tmp_path / "set" / "SOURCES.md").read_text()
    assert "GG (gg), by Ann | 1.0.0 | MIT | 2 |" in page
    write_logos(tmp_path / "again", root=tmp_path / "npm", package=package, side=32)
    assert contents(tmp_path / "again") == contents(tmp_path / "set")


def test_categories_splits_and_a_small_part(tmp_path, monkeypatch):
    names = [f"thing-{number:c}{number:c}" for number in range(97, 97 + 22)]
    rng = np.random.default_rng(0)
    drawn = {prefix * 2: ("MIT", "UI", {name: random_blocks(rng) for name in [*names, "home"]}) for prefix in "pqrs"}
    package = write_iconify(tmp_path, drawn)
    monkeypatch.setattr(module, "ICONS", replace(module.ICONS, least_sorted=1))
    table = table_of(write_icons, tmp_path, package, size="full")
    assert dict(table.select("label_0", "label_1").rows())["home"] == "building"
    assert table["label_1"].unique().sort().to_list() == ["building", "unsorted"]
    assert table["label_0"].n_unique() >= 20
    assert {*table.group_by("label_0").agg(pl.col("split").n_unique())["split"]} == {1}
    small = read_manifest(write_icons(tmp_path / "small", root=tmp_path / "npm", package=package)).table
    assert 0 < small["label_0"].n_unique() < table["label_0"].n_unique()
    assert set(small["label_0"]) <= set(table["label_0"])


def test_another_size_or_package_is_refused_by_name(tmp_path, package):
    assert_refused("'tiny'", write_icons, tmp_path / "set", root=tmp_path / "npm", package=package, size="tiny")
    assert_refused(["iconify-json-2.2.535.tgz"], write_icons, tmp_path / "set", root=tmp_path / "npm")
    nothing = write_npm(tmp_path / "npm", "@iconify/json", {"json/aa.json": b"{}"})
    assert_refused(r"collections\.json", write_icons, tmp_path / "set", root=tmp_path / "npm", package=nothing)
    assert not (tmp_path / "set").exists()
