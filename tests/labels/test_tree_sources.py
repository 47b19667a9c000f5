"""Trees from the files that people have."""

import json

import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.labels.codes import normal_codes
from sightline.labels.tree import read_edges, read_taxonomy, read_tree, tree_of_folders, tree_of_manifest


def written(file, text):
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "child,parent\ndog.n.01,canine.n.02\ncanine.n.02,\n"),
        ("t.csv", "hypernym,hyponym,note\ncanine.n.02,dog.n.01,x\n"),
        ("t.tsv", "dog.n.01\tcanine.n.02\n"),
        ("t.txt", "child\tparent\n dog.n.01 \tcanine.n.02\n"),
        ("t.csv", "Parent, Child\ncanine.n.02,dog.n.01\n"),
    ],
)
def test_tables_of_edges(tmp_path, name, text):
    tree = read_edges(written(tmp_path / name, text))
    assert tree.path(tree.find("dog.n.01")) == ["canine.n.02", "dog.n.01"]


def test_a_second_hypernym_is_a_fault_unless_the_first_is_to_count(tmp_path):
    file = written(tmp_path / "wordnet.csv", "child,parent\ndog,canine\ndog,domestic animal\n")
    assert_refused(["'dog'", "2 parents", "'canine'", "'domestic animal'"], read_edges, file)
    tree = read_edges(file, several_parents="first")
    assert tree.path(tree.find("dog")) == ["canine", "dog"]
    assert_refused(["'last'"], read_edges, file, several_parents="last")


RANKED = "genus,kingdom,species\nMorus,Plantae,Morus alba\nMorus,Animalia,Morus bassanus\n,Animalia,Odd one\n"


def test_a_taxonomy_keeps_names_of_two_branches_apart(tmp_path):
    file = written(tmp_path / "species.csv", RANKED)
    assert_refused(["row 3", "genus"], read_taxonomy, file)
    tree = read_taxonomy(file, fill=True)
    assert tree.level_sizes() == [2, 3, 3]
    assert tree.path(tree.find("Odd one")) == ["Animalia", "Animalia (no genus)", "Odd one"]
    assert tree.path(tree.find("Morus alba")) == ["Plantae", "Morus", "Morus alba"]
    for name, text in (("s.tsv", "kingdom\tspecies\nPlantae\tOak\n"), ("s.csv", "Species,Kingdom\nOak,Plantae\n")):
        assert read_tree(written(tmp_path / name, text)).columns().rows() == [("Oak", "Plantae")]


def test_categories_of_inaturalist(tmp_path):
    records = [{"id": 3, "name": "Morus alba", "genus": "Morus", "kingdom": "Plantae", "supercategory": "Plants"}]
    file = written(tmp_path / "train2018.json", json.dumps({"categories": records}))
    assert read_taxonomy(file).columns().rows() == [("Morus alba", "Morus", "Plantae")]
    assert_refused("a list of records", read_taxonomy, written(tmp_path / "other.json", "{}"))


def test_rules_of_a_tree_are_only_for_its_kind(tmp_path):
    ranks = written(tmp_path / "species.csv", RANKED)
    assert read_tree(ranks, fill=True).level_sizes() == [2, 3, 3]
    edges = written(tmp_path / "edges.csv", "child,parent\ndog,canine\ndog,domestic animal\n")
    assert read_tree(edges, several_parents="first").level_sizes() == [1, 1]
    assert_refused("only a taxonomy has ranks to fill", read_tree, edges, fill=True)
    assert_refused("only edges have several parents", read_tree, ranks, several_parents="first")
    assert_refused(["'edge'", "'edges'"], read_tree, edges, kind="edge")


def test_label_columns_of_a_manifest(tmp_path):
    text = "path,split,label_0,label_1\na.png,train,cat,animal\nb.png,train,cat,animal\nc.png,test,oak,plant\n"
    tree = tree_of_manifest(read_manifest(written(tmp_path / "m.csv", text)))
    assert tree.columns().rows() == [("cat", "animal"), ("oak", "plant")]


def test_folders(image_tree):
    tree = tree_of_folders(image_tree)
    assert tree.level_sizes() == [3, 12]
    assert tree.path(tree.find("class04")) == ["super1", "class04"]


def test_wrong_codes_are_reported_at_once():
    assert_refused(["2 faults", "'26..1'", "'x'"], normal_codes, ["1.1", "26..1", "x"], "logos")
