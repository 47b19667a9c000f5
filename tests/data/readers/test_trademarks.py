"""Marks of one small package in the layout of Iconify's. Their codes are worked out again from the manifest's columns, the
font files and the pixels."""

import csv
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from package_archives import contents, random_blocks, write_iconify
from PIL import Image, ImageFont, ImageOps

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import check_images
from sightline.data.manifest import read_manifest
from sightline.data.readers.glyphs import font_file
from sightline.data.readers.trademarks import reader
from sightline.data.readers.trademarks.composing import RULES
from sightline.data.readers.trademarks.drawing import LAYOUTS
from sightline.data.readers.trademarks.reader import write_trademarks
from sightline.evaluation.benchmark_protocols import Asked, evaluate_protocol
from sightline.labels.tree import read_tree

SOURCE = Path(reader.__file__).with_name("codes.csv")
LEAVES = ("1.1.1", "1.15.3", "3.3.2", "3.9.3", "5.5.1", "7.1.2", "11.3.1", "18.1.1", "21.1.2")
FRAMES = {"circle": "26.1", "ellipse": "26.1", "triangle": "26.3", "square": "26.4", "rectangle": "26.4", "rhombus": "26.4"}
FRAMES |= {"pentagon": "26.5", "hexagon": "26.5", "octagon": "26.5", "shield": "24.1"}
# Code, the hues of the colour in degrees.
COLOURS = {"29.1.1": (340, 370), "29.1.2": (40, 58), "29.1.3": (95, 165), "29.1.4": (195, 240), "29.1.5": (260, 300)}
CHANGED = {  # of each kind of copy, the columns and the beginnings of codes that may differ from the original's
    "rotated": ((), ()),
    "mirrored": ((), ()),
    "recoloured": (("colours",), ("29.",)),
    "picture": (("pictures", "drawings"), ()),
    "shape": (("shape",), ("24.1.", "26.")),
    "word": (("word",), ()),
    "letters": (("typeface",), ("27.5.",)),
    "several": (("pictures", "drawings", "shape", "word", "typeface", "colours"), ("24.1.", "26.", "27.5.", "29.")),
}


def leaf_icons():
    with SOURCE.open() as opened:
        return {row["code"]: row["icons"].split() for row in csv.DictReader(opened) if row["icons"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package, and the set made of it."""
    rng, made = np.random.default_rng(0), tmp_path_factory.mktemp("trademarks")
    icons = [name for code in LEAVES for name in leaf_icons()[code]]
    drawn = {prefix * 2: ("MIT", "UI", {name: random_blocks(rng) for name in icons}) for prefix in "pq"}
    drawn["zz"] = ("GPL-3.0", "UI", {name: random_blocks(rng) for name in icons})
    package = write_iconify(made, drawn)
    with pytest.MonkeyPatch.context() as patch:
        for name, seed, n_marks in (("set", 0, 320), ("few", 0, 60), ("again", 0, 60), ("other", 1, 60)):
            patch.setitem(reader.SIZES, "tiny", n_marks)
            write_trademarks(made / name, root=made / "npm", package=package, size="tiny", side=64, seed=seed)
    return made


@pytest.fixture(scope="module")
def table(folder):
    manifest = read_manifest(folder / "set" / "manifest.csv", labelled=False)
    check_images(manifest)
    return manifest.table.with_columns(pl.col("n_lines").cast(pl.Int64), is_outlined=pl.col("is_outlined") == "true")


def split_text(text):
    return text.split(";") if text else []


def style_code(typeface, is_outlined):
    """From what the font file says of itself."""
    family, style = ImageFont.truetype(font_file(typeface)).getname()
    words = f"{family} {style}".lower()
    styles = {"27.5.1": ("oblique", "italic", "cmti"), "27.5.2": ("bold", "cmb10"), "27.5.3": ("mono", "cmtt")}
    found = [code for code, names in styles.items() if any(name in words for name in names)]
    return ["27.5.4"] if is_outlined else found[:1]


def part_codes(row):
    """Of all parts but the colours."""
    layout, code_of = row["layout"], {name: code for code, icons in leaf_icons().items() for name in icons}
    codes = [code_of[name] for name in split_text(row["pictures"])]
    if row["shape"]:
        is_alone, has_letters = layout in ("figure", "pattern", "ring"), layout in ("badge", "initials")
        is_alive = not is_alone and not has_letters and codes[0].split(".")[0] in ("3", "5")
        codes.append(f"{FRAMES[row['shape']]}.{1 if is_alone else 18 if has_letters else 15 if is_alive else 16}")
    if layout in ("pattern", "ring"):
        codes.append("25.7.3" if layout == "ring" else "25.7.2" if row["pictures"] else "25.7.1")
    if row["word"]:
        arranged = {"curve": "27.1.1", "circle": "27.1.2", "down": "27.1.3", "slope": "27.1.4"}.get(row["arrangement"])
        codes += style_code(row["typeface"], row["is_outlined"]) + [arranged] * (arranged is not None)
        codes += ["27.3.1"] * (layout == "letter") + ["27.7.1"] * (layout in ("initials", "ring"))
        codes += ["27.7.2"] * (row["word"][-1] in "0123456789")
        codes += {0: [], 1: ["26.11.1"]}.get(row["n_lines"], ["26.11.2"])
    return set(codes)


def colour_codes(file):
    """From the hues of the pixels; orange and brown differ in brightness."""
    pixels = np.asarray(Image.open(file).convert("HSV"), np.float64).reshape(-1, 3)
    hue, _, brightness = pixels[pixels[:, 1] * pixels[:, 2] > 0.3 * 255**2].T * [[360 / 255], [1 / 255], [1 / 255]]
    masks = {code: (low <= hue) & (hue <= high) | (hue + 360 <= high) for code, (low, high) in COLOURS.items()}
    is_either, is_dark = (hue >= 14) & (hue <= 34), brightness < 0.6
    masks |= {"29.1.7": is_either & is_dark, "29.1.8": is_either & ~is_dark}
    return {code for code, mask in masks.items() if mask.sum() >= 8}


def test_codes_are_those_of_the_parts_and_of_the_pixels(folder, table):
    equal = {1: [], 2: []}
    for row in table.rows(named=True):
        codes = split_text(row["codes"])
        assert 1 <= len(codes) <= 6
        assert len({*codes}) == len(codes)
        colours = {code for code in codes if code.startswith("29.")}
        assert {*codes} - colours == part_codes(row), row
        if "grey" not in row["colours"] and "black" not in row["colours"]:
            seen = colour_codes(folder / "set" / row["path"])
            # Thin letters are all edge: nothing is seen that is not listed, and most of what is listed is seen.
            assert seen <= colours, row
            equal[len(colours)].append(seen == colours)
    assert min(map(len, equal.values())) >= 5
    assert np.mean(equal[1]) > 0.8
    assert np.mean(equal[2]) > 0.5
    assert set(table["layout"]) == RULES.keys() == LAYOUTS.keys()


def test_no_icon_word_or_typeface_is_in_two_splits(table):
    words = pl.col("word").str.to_lowercase().str.strip_chars("0123456789")
    parts = table.with_columns(pl.col("pictures", "drawings").str.split(";"), words)
    for part in ("pictures", "drawings", "word", "typeface"):
        used = parts.select("split", part).explode(part) if part in ("pictures", "drawings") else parts
        n_splits = used.drop_nulls(part).group_by(part).agg(pl.col("split").n_unique())
        assert set(n_splits["split"]) == {1}, part
        assert len(n_splits) >= 10
    for drawings in table["drawings"].drop_nulls():
        assert "zz:" not in drawings  # a licence that does not let anyone use it


def test_copies_keep_what_their_kind_keeps(folder, table):
    rows = {row["path"]: row for row in table.rows(named=True)}
    kinds = table["copy"].drop_nulls().value_counts()
    assert {*kinds["copy"]} == {*CHANGED, "new"}
    assert kinds["count"].max() - kinds["count"].min() <= 2
    for row in (row for row in rows.values() if row["copy"] in CHANGED):
        original, (columns, beginnings) = rows[row["copy_of"]], CHANGED[row["copy"]]
        assert original["split"] == row["split"] != "train"
        assert [one[flag] for one in (original, row) for flag in ("is_gallery", "is_query")] == [True, False, False, True]
        kept, were = (
            {code for code in split_text(one["codes"]) if not code.startswith(beginnings)} for one in (row, original)
        )
        assert kept == were
        assert {name for name in CHANGED["several"][0] if row[name] != original[name]} <= {*columns}, row["copy"]
        pixels = [Image.open(folder / "set" / one["path"]) for one in (row, original)]
        assert pixels[0].tobytes() != pixels[1].tobytes(), row["path"]
        if (row["copy"], row["layout"]) == ("mirrored", "picture"):
            images = (pixels[0], ImageOps.mirror(pixels[1]), pixels[1])
            there, back, plain = (np.asarray(image, np.float64) for image in images)
            assert abs(there - back).mean() < abs(there - plain).mean() / 2
        if row["copy"] == "recoloured":
            bare = [np.asarray(image).min(2) < 250 for image in pixels]
            assert (bare[0] != bare[1]).mean() < 0.03


def test_judgements_are_read_by_the_protocol_and_rank_the_copied_mark_first(folder, table):
    manifest = read_manifest(folder / "set" / "manifest.csv", labelled=False).split("test")
    place = {path: number for number, path in enumerate(manifest.table["path"])}
    vectors = np.eye(len(place), dtype=np.float32)
    for path, original in manifest.table.select("path", "copy_of").rows():
        if original:
            vectors[place[path]] = vectors[place[original]]
    judged = folder / "set" / "manifest.judgements.json"
    found = evaluate_protocol("roxford5k", Asked(EmbeddingTable(manifest, vectors, "none"), judged))
    assert found["easy"]["map"] == 1
    rows = {row["path"]: row for row in table.rows(named=True)}
    for query, lists in json.loads(judged.read_text()).items():
        asked = [rows[query]] + ([rows[rows[query]["copy_of"]]] if rows[query]["copy_of"] else [])
        names = {name for one in asked for name in split_text(one["pictures"])}
        words = {one["word"].lower().rstrip("0123456789") for one in asked if one["word"]}
        near = {
            path
            for path, row in rows.items()
            if row["is_gallery"] and row["split"] == asked[0]["split"] and path != asked[0]["copy_of"]
            and (names & {*split_text(row["pictures"])} or (row["word"] or "").lower().rstrip("0123456789") in words)
        }  # fmt: skip
        assert {*lists["hard"]} == near
        assert lists["easy"] == ([asked[0]["copy_of"]] if asked[0]["copy_of"] else [])


def test_the_classification_is_a_tree_of_three_depths_with_names(folder, table):
    tree = read_tree(folder / "set" / "codes.csv")
    assert tree.n_levels == 3
    leaves = {tree.names[leaf] for leaf in tree.leaves}
    assert {code for codes in table["codes"] for code in codes.split(";")} <= leaves
    assert all(code.count(".") == 2 for code in leaves)
    for code, parent in zip(tree.names, tree.parents, strict=True):
        assert code.rpartition(".")[0] == ("" if parent < 0 else tree.names[parent])
    named = pl.read_csv(folder / "set" / "codes.csv", infer_schema=False)
    assert named["name"].is_not_null().all()
    icons = [name for several in leaf_icons().values() for name in several]
    assert len({*icons}) == len(icons) > 700
    assert min(map(len, leaf_icons().values())) >= 2  # one to train with, one to hold out


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_marks_of_the_same_icons(folder, table):
    few, again = contents(folder / "few"), contents(folder / "again")
    assert few.keys() == again.keys()
    assert not [name for name in few if few[name] != again[name]]
    other = pl.read_csv(folder / "other" / "manifest.csv")
    assert other["codes"].to_list() != pl.read_csv(folder / "few" / "manifest.csv")["codes"].to_list()
    for split in ("train", "test"):
        here, elsewhere = other.filter(pl.col("split") == split), table.filter(pl.col("split") != split)
        used = [{*rows["pictures"].drop_nulls().str.split(";").explode()} for rows in (here, elsewhere)]
        assert not used[0] & used[1]


@pytest.mark.parametrize(
    ("options", "fact"), [({"size": "smal"}, "'small'"), ({"side": 4}, "side.* 4"), ({"seed": -1}, "seed.* -1")]
)
def test_other_options_are_refused(folder, tmp_path, options, fact):
    assert_refused(fact, write_trademarks, tmp_path / "set", root=folder / "npm", **options)
    package = write_iconify(tmp_path, {"aa": ("MIT", "UI", {"star": random_blocks(np.random.default_rng(0))})})
    assert_refused("val, test|test, val", write_trademarks, tmp_path / "set", root=tmp_path / "npm", package=package)
    assert not (tmp_path / "set").exists()
