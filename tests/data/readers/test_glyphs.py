import json

import numpy as np
import polars as pl
import pytest
from package_archives import contents
from PIL import Image

from refusals import assert_refused
from sightline.data.readers import glyphs
from sightline.data.readers.glyphs import GlyphSize, draw_glyph, glyph_manifest, write_glyphs


@pytest.fixture(scope="module")
def small():
    return glyph_manifest("small")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(glyphs.SIZES, "tiny", GlyphSize(n_characters=12, n_typefaces=3))


def test_sizes_are_as_announced(small):
    full = glyph_manifest("full")
    assert 3500 <= len(small) <= 4500
    assert small["label_0"].n_unique() == 500
    assert 35_000 <= len(full) <= 45_000
    assert full["label_0"].n_unique() >= 2500
    for table in (small, full):
        assert table["path"].is_unique().all()
        assert table.group_by("label_0").len()["len"].min() >= glyphs.LEAST_TYPEFACES  # each query has answers
        shares = table.unique("label_0").group_by("split").len().sort("split")
        assert shares["split"].to_list() == ["test", "train", "val"]
        assert (shares["len"] / shares["len"].sum()).to_list() == pytest.approx([0.4, 0.5, 0.1], abs=0.05)
        assert table.group_by("label_0").agg(pl.n_unique("split"))["split"].max() == 1
    assert len(small.join(full, on=small.columns)) == len(small)


def test_every_image_of_a_class_has_ink_inside_the_frame_and_its_own_look(small):
    codes = small["label_0"].unique().sort().gather_every(50).to_list()
    assert len(codes) == 10
    for code in codes:
        character, drawn = chr(int(code[2:], 16)), set()
        for typeface in small.filter(pl.col("label_0") == code)["typeface"]:
            image = draw_glyph(character, typeface)
            assert (image.size, image.mode) == ((64, 64), "RGB")
            same_draws = glyphs._generator(0, ord(character), 1 + list(glyphs.TYPEFACES).index(typeface))
            coverage = glyphs._posed(character, typeface, same_draws)
            assert 0.01 < coverage.mean() < 0.9
            border = np.concatenate([coverage[0], coverage[-1], coverage[:, 0], coverage[:, -1]])
            assert border.mean() < 0.02  # not cut off
            light = np.asarray(image.convert("L")) / 255
            assert abs(light[coverage > 0.8].mean() - light[coverage < 0.1].mean()) > 0.2
            drawn.add(image.tobytes())
        assert len(drawn) == len(small.filter(pl.col("label_0") == code))


def test_unknown_names_and_characters_are_refused():
    for facts, draw, *asked in (
        (["'smal'", "'small'"], glyph_manifest, "smal"),
        (["unknown typeface 'stixx'"], draw_glyph, "a", "stixx"),
        (["'ab'"], draw_glyph, "ab", "stix"),
        (["'computer-modern'"], draw_glyph, "#", "computer-modern"),
    ):
        assert_refused(facts, draw, *asked)


def test_writing_gives_each_image_its_pure_pixels(tiny, tmp_path):
    file = write_glyphs(tmp_path / "new" / "glyphs", "tiny", seed=3)
    assert file == tmp_path / "new" / "glyphs" / "manifest.csv"
    table = pl.read_csv(file)
    assert table.equals(glyph_manifest("tiny", seed=3))
    assert len(table) == 36
    for path, code, typeface in table.sample(fraction=1, shuffle=True, seed=0)["path", "label_0", "typeface"].rows():
        with Image.open(file.parent / path) as image:
            assert image.tobytes() == draw_glyph(chr(int(code[2:], 16)), typeface, seed=3).tobytes()
    record = json.loads((file.parent / "glyphs.json").read_text())
    assert record == {"data": "glyphs", "version": glyphs.VERSION, "size": "tiny", "seed": 3, "n_images": 36}
    assert len(contents(file.parent)) == 36 + 2
    assert list((tmp_path / "new").iterdir()) == [file.parent]  # nothing left beside it
    assert contents(write_glyphs(tmp_path / "again", "tiny", seed=3).parent) == contents(file.parent)
    times = {path: path.stat().st_mtime_ns for path in file.parent.rglob("*")}
    assert write_glyphs(file.parent, "tiny", seed=3) == file
    assert {path: path.stat().st_mtime_ns for path in file.parent.rglob("*")} == times


@pytest.mark.parametrize("other", ["another seed", "no manifest", "{", "[]"])
def test_a_folder_with_other_content_is_refused_and_left_alone(tiny, tmp_path, other):
    folder = tmp_path / "mine"
    manifest = write_glyphs(folder, "tiny", seed=1 if other == "another seed" else 0)
    if other == "no manifest":
        manifest.unlink()
    elif other != "another seed":
        (folder / "glyphs.json").write_text(other)
    before = contents(folder)
    assert_refused("mine: exists and is not empty", write_glyphs, folder, "tiny")
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]
