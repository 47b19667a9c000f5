"""The first two steps: what is known of each label, and one text for it."""

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.hierarchy import collect
from sightline.hierarchy.collect import CleanRules, choose_texts, clean_labels, labels_of_manifest, read_labels, read_step


def written(file, text):
    file.write_text(text, encoding="utf-8")
    return file


def labels(**columns):
    n = len(columns["label"])
    usual = {"category": [""] * n, "description": [""] * n, "n_images": [1] * n, "examples": [""] * n}
    return pl.DataFrame(usual | columns).select(collect.COLUMNS)


def test_labels_of_a_manifest_are_counted_and_described(tmp_path):
    rows = ["a/1.png,train,cat,a cat,pet", "a/2.png,train,cat,a cat,wild", "b/3.png,test,oak,a tree,"]
    rows += ["a/4.png,test,cat,x,pet", "/elsewhere/1.png,train,elm,,"]
    manifest = read_manifest(written(tmp_path / "m.csv", "path,split,label,what,kind\n" + "\n".join(rows) + "\n"))
    found = labels_of_manifest(manifest, description="what", category="kind").rows_by_key("label", named=True, unique=True)
    cats = "|".join(str(tmp_path / name) for name in ("a/1.png", "a/2.png", "a/4.png"))
    assert found["cat"] == {"category": "pet|wild", "description": "a cat", "n_images": 3, "examples": cats}
    assert (found["oak"]["description"], found["oak"]["category"]) == ("a tree", "")
    assert found["elm"]["examples"] == "/elsewhere/1.png"
    assert_refused("no column 'colour'", labels_of_manifest, manifest, description="colour")


def test_labels_of_a_table_are_joined(tmp_path):
    text = "landmark_id,category\n7,Church\n8,Lake\n7,Museum\n7,Church\n"
    found = read_labels(written(tmp_path / "l.csv", text))
    assert found.select("label", "category", "n_images").rows() == [("7", "Church|Museum", 3), ("8", "Lake", 1)]
    assert read_labels(written(tmp_path / "c.csv", "label,n_images\na,3\nb,\n"))["n_images"].to_list() == [3, 1]
    for text, fact in (
        ("label,category\na,b\n,c\n", "line 3: label is empty"),
        ("name\na\n", "no column 'label'"),
        ("label,n_images\na,3\nb,many\n", "line 3: n_images is 'many', not a whole number"),
    ):
        assert_refused([fact], read_labels, written(tmp_path / "l.csv", text))


def test_what_is_dropped_is_listed_with_its_reason():
    categories = ["Church  Building", "church|Museum", "Wikimedia category", "", "Salt LAKE|salt  lake", "list of lakes"]
    kept, dropped = choose_texts(labels(label=list("abcdef"), category=categories, n_images=[5] * 6), CleanRules())
    assert kept.select("label", "text").rows() == [("a", "church building"), ("e", "salt lake")]
    assert dropped.select("label", "reason").rows() == [
        ("b", "ambiguous: church|Museum"),
        ("c", "says nothing: Wikimedia category"),
        ("d", "no category"),
        ("f", "says nothing: list of lakes"),
    ]


@pytest.mark.parametrize(
    ("rules", "texts", "reasons"),
    [
        ({"text": "name"}, ["red crowned crane", "b"], []),
        ({"text": "description"}, ["a bird"], ["no description"]),
        ({"ambiguous": False}, ["x", "z"], []),
        ({"text": "name", "min_images": 2}, ["b"], ["1 images, fewer than 2"]),
        ({"text": "name", "meta": ["b"]}, ["red crowned crane"], ["says nothing: b"]),
    ],
)
def test_other_rules(rules, texts, reasons):
    given = labels(label=["red-crowned_crane", "b"], category=["x|y", "z"], description=["A  bird", ""], n_images=[1, 9])
    kept, dropped = choose_texts(given, CleanRules(**rules))
    assert (kept["text"].to_list(), dropped["reason"].to_list()) == (texts, reasons)


def test_rules_that_do_not_fit_are_refused():
    assert_refused(["'nmae'", "'name'"], CleanRules, text="nmae")
    assert_refused(["'('"], CleanRules, meta=["("])
    assert_refused(r"meta: '\(\?!x\)y' .*look-around", CleanRules, meta=["(?!x)y"])


def test_steps_are_files_in_order(tmp_path):
    assert_refused("labels.csv: no such file; `sightline hierarchy collect` makes it", clean_labels, tmp_path, CleanRules())
    collect.write_step(tmp_path, "labels.csv", labels(label=["a", "b"], category=["x", ""]))
    assert clean_labels(tmp_path, CleanRules())[0] == 1
    assert read_step(tmp_path, "clean.csv", ["label", "text"])["text"].to_list() == ["x"]
    assert read_step(tmp_path, "dropped.csv", ["reason"])["reason"].to_list() == ["no category"]
    nothing = r"no label is left \(2 no description\); .*--text"
    assert_refused(nothing, clean_labels, tmp_path, CleanRules(text="description"))
    assert read_step(tmp_path, "clean.csv", [])["text"].to_list() == ["x"]
