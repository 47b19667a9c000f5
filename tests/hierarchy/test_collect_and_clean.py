"""The first two steps: what is known of each label, and one text for it."""

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.hierarchy.collect import (
    COLUMNS,
    CleanRules,
    choose_texts,
    clean_labels,
    labels_of_manifest,
    read_labels,
    read_step,
    write_step,
)


def written(file, text):
    file.write_text(text, encoding="utf-8")
    return file


def labels(**columns):
    n = len(columns["label"])
    usual = {"category": [""] * n, "description": [""] * n, "n_images": [1] * n, "examples": [""] * n}
    return pl.DataFrame(usual | columns).select(COLUMNS)


def test_labels_of_a_manifest_are_counted_and_described(tmp_path):
    rows = [
        "a/1.png,train,cat,a cat,pet",
        "a/2.png,train,cat,a cat,wild",
        "b/3.png,test,oak,a tree,",
        "a/4.png,test,cat,x,pet",
    ]
    manifest = read_manifest(written(tmp_path / "m.csv", "path,split,label,what,kind\n" + "\n".join(rows) + "\n"))
    found = labels_of_manifest(manifest, description="what", category="kind").rows_by_key("label", named=True, unique=True)
    assert found["cat"]["n_images"] == 3
    assert (found["cat"]["description"], found["cat"]["category"]) == ("a cat", "pet|wild")
    assert found["cat"]["examples"].split("|") == [str(tmp_path / name) for name in ("a/1.png", "a/2.png", "a/4.png")]
    absolute = read_manifest(written(tmp_path / "a.csv", "path,split,label\n/elsewhere/1.png,train,cat\n"))
    assert labels_of_manifest(absolute)["examples"].to_list() == ["/elsewhere/1.png"]
    assert (found["oak"]["description"], found["oak"]["category"]) == ("a tree", "")
    assert_refused("no column 'colour'", labels_of_manifest, manifest, description="colour")


def test_labels_of_a_table_are_joined(tmp_path):
    text = "landmark_id,category\n7,Church\n8,Lake\n7,Museum\n7,Church\n"
    found = read_labels(written(tmp_path / "l.csv", text))
    assert found.select("label", "category", "n_images").rows() == [("7", "Church|Museum", 3), ("8", "Lake", 1)]
    with pytest.raises(InputError, match=r"line 3: label is empty"):
        read_labels(written(tmp_path / "e.csv", "label,category\na,b\n,c\n"))
    with pytest.raises(InputError, match="no column 'label'"):
        read_labels(written(tmp_path / "n.csv", "name\na\n"))
    counted = read_labels(written(tmp_path / "c.csv", "label,n_images\na,3\nb,\n"))
    assert counted["n_images"].to_list() == [3, 1]
    with pytest.raises(InputError, match="line 3: n_images is 'many', not a whole number"):
        read_labels(written(tmp_path / "w.csv", "label,n_images\na,3\nb,many\n"))


def test_what_is_dropped_is_listed_with_its_reason():
    given = labels(
        label=["a", "b", "c", "d", "e", "f"],
        category=["Church  Building", "church|Museum", "Wikimedia category", "", "Salt LAKE|salt  lake", "list of lakes"],
        n_images=[5, 5, 5, 5, 5, 1],
    )
    kept, dropped = choose_texts(given, CleanRules())
    assert kept.select("label", "text").rows() == [("a", "church building"), ("e", "salt lake")]
    assert dict(dropped.select("label", "reason").iter_rows()) == {
        "b": "ambiguous: church|Museum",
        "c": "says nothing: Wikimedia category",
        "d": "no category",
        "f": "says nothing: list of lakes",
    }
    assert len(kept) + len(dropped) == len(given)


def test_other_rules():
    given = labels(label=["red-crowned_crane", "b"], category=["x|y", "z"], description=["A  bird", ""], n_images=[1, 9])
    assert choose_texts(given, CleanRules(text="name"))[0]["text"].to_list() == ["red crowned crane", "b"]
    assert choose_texts(given, CleanRules(text="description"))[0]["text"].to_list() == ["a bird"]
    assert choose_texts(given, CleanRules(ambiguous=False))[0]["text"].to_list() == ["x", "z"]
    kept, dropped = choose_texts(given, CleanRules(text="name", min_images=2))
    assert (kept["label"].to_list(), dropped["reason"].to_list()) == (["b"], ["1 images, fewer than 2"])
    assert choose_texts(given, CleanRules(text="name", meta=["b"]))[1]["label"].to_list() == ["b"]
    assert_refused(["'nmae'", "'name'"], CleanRules, text="nmae")
    assert_refused(["'('"], CleanRules, meta=["("])
    assert_refused(r"meta: '\(\?!x\)y' .*look-around", CleanRules, meta=["(?!x)y"])


def test_steps_are_files_in_order(tmp_path):
    with pytest.raises(InputError, match=r"labels.csv: no such file; `sightline hierarchy collect` makes it"):
        clean_labels(tmp_path, CleanRules())
    write_step(tmp_path, "labels.csv", labels(label=["a", "b"], category=["x", ""]))
    assert clean_labels(tmp_path, CleanRules())[0] == 1
    assert read_step(tmp_path, "clean.csv", ["label", "text"])["text"].to_list() == ["x"]
    assert read_step(tmp_path, "dropped.csv", ["reason"])["reason"].to_list() == ["no category"]
    with pytest.raises(InputError, match=r"no label is left \(2 no description\); .*--text"):
        clean_labels(tmp_path, CleanRules(text="description"))
    assert read_step(tmp_path, "clean.csv", [])["text"].to_list() == ["x"]
