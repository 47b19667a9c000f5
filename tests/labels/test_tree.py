"""The label tree against walks up the parents, one step at a time; and trees from the files that people have."""

import json
from itertools import pairwise

import numpy as np
import pytest

from refusals import assert_refused
from sightline.data.manifest import read_manifest
from sightline.labels.codes import normal_codes
from sightline.labels.tree import NOTHING, Tree, read_edges, read_taxonomy, read_tree, tree_of_folders, tree_of_manifest

EDGES = [("cat", "mammal"), ("dog", "mammal"), ("eagle", "bird"), ("mammal", "animal"), ("bird", "animal")]
EDGES += [("oak", "plant"), ("animal", None), ("plant", "")]
TWO_CATS = [("animal", "cat"), ("machine", "cat")]


def draw_tree(seed, n_nodes=40):
    """Each node below an earlier one, or a root."""
    rng = np.random.default_rng(seed)
    parents = [int(rng.integers(-1, node)) if node else NOTHING for node in range(n_nodes)]
    return Tree(tuple(f"n{node}" for node in range(n_nodes)), np.array(parents))


def path_up(tree, node):
    found = [node]
    while tree.parents[found[-1]] != NOTHING:
        found.append(int(tree.parents[found[-1]]))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_common_ancestors_distances_and_codes_are_those_of_the_paths(seed):
    tree = draw_tree(seed)
    nodes = np.arange(len(tree))
    ancestors, distances, shared = (
        function(nodes[:, None], nodes) for function in (tree.common_ancestor, tree.distance, tree.shared_levels)
    )
    codes = [tree.codes()[name].split(".") for name in tree.names]
    assert [len(path_up(tree, node)) - 1 for node in nodes] == tree.depths.tolist()
    for one in nodes:
        for other in nodes:
            up, above = path_up(tree, one), path_up(tree, other)
            met = next((node for node in up if node in above), NOTHING)
            n_shared = 0 if met == NOTHING else len(path_up(tree, met))
            steps = len(up) + len(above) if met == NOTHING else up.index(met) + above.index(met)
            assert (ancestors[one, other], distances[one, other], shared[one, other]) == (met, steps, n_shared)
            is_same = [left == right for left, right in zip(codes[one], codes[other], strict=False)]
            assert is_same[: n_shared + 1].count(True) == n_shared


def test_edges_in_any_order_make_the_same_tree_also_when_it_is_written_and_read(tmp_path):
    tree = Tree.from_edges(EDGES)
    again = read_edges(tree.write(tmp_path / "tree.csv"))
    assert (again.names, again.parents.tolist()) == (tree.names, tree.parents.tolist())
    for one in (tree, Tree.from_edges(reversed(EDGES))):
        assert one.path(one.find("cat")) == ["animal", "mammal", "cat"]
        assert one.level_sizes() == [2, 3, 3]
        assert {one.names[leaf] for leaf in one.leaves} == {"cat", "dog", "eagle", "oak"}
        assert {one.names[child] for child in one.children(one.find("animal"))} == {"mammal", "bird"}
        assert {one.names[root] for root in one.children(NOTHING)} == {"animal", "plant"}


def test_all_faults_of_edges_or_columns_are_reported_at_once():
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("x", "y"), ("x", "z"), ("", "y"), ("own", "own"), ("own", "b")]
    facts = ["row 6: the child is empty", "'x' has 2 parents: 'y', 'z'", "'own' has 2 parents", "'own' < 'own'"]
    message = assert_refused(["edges.csv: 5 faults", *facts], Tree.from_edges, edges, "edges.csv")
    assert any(" < ".join(map(repr, circle)) in message for circle in ("abca", "bcab", "cabc"))
    paths = [("animal", "cat"), ("plant", "cat"), ("animal", ""), ("cat", "tabby"), ("animal",)]
    facts = ["m.csv: 4 faults", "'cat' has 2 parents: 'animal', 'plant'", "'cat' is a name at levels 1, 2"]
    assert_refused([*facts, "animal > : a level", "animal: 1 levels, most have 2"], Tree.from_paths, paths, "m.csv")
    assert_refused("no row", Tree.from_edges, [])
    assert_refused(["2 faults", "'26..1'", "'x'"], normal_codes, ["1.1", "26..1", "x"], "logos")


@pytest.mark.parametrize("seed", range(12))
def test_an_edge_back_is_found_wherever_it_is(seed):
    """Random parents, several of each child: a cycle is reported exactly where walking up comes back to its start."""
    rng = np.random.default_rng(seed)
    edges = [(f"n{child}", f"n{rng.integers(12)}") for child in range(8) for _ in range(rng.integers(1, 3))]
    above = {child: {parent for one, parent in edges if one == child} for child, _ in edges}
    is_circular = False
    for start in above:
        seen, waiting = set(), [*above[start]]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += above.get(name, ())
        is_circular |= start in seen
    if not is_circular and all(len(parents) == 1 for parents in above.values()):
        Tree.from_edges(edges)
        return
    lines = assert_refused("", Tree.from_edges, edges).splitlines()
    cycles = [line.removeprefix("  a cycle: ").replace("'", "").split(" < ") for line in lines if "a cycle" in line]
    assert bool(cycles) == is_circular
    for names in cycles:
        assert names[0] == names[-1]
        assert all(parent in above[child] for child, parent in pairwise(names))


def test_paths_that_share_a_name_are_two_nodes_where_asked():
    tree = Tree.from_paths(TWO_CATS, unique=False)
    assert tree.level_sizes() == [2, 2]
    assert_refused(["2 nodes", "'cat'", "machine > cat"], tree.find, "cat")
    assert_refused("2 nodes are called 'cat'", tree.codes)
    assert_refused(["'mamal'", "'mammal'"], Tree.from_edges(EDGES).find, "mamal")


def test_columns_and_labels_of_the_leaves_which_must_be_of_one_depth():
    tree = Tree.from_paths([("animal", "cat"), ("animal", "dog"), ("plant", "oak")])
    rows = [("cat", "animal"), ("dog", "animal"), ("oak", "plant")]
    assert tree.columns().rows() == rows
    assert [tuple(tree.names[node] for node in row) for row in tree.labels(tree.leaves).tolist()] == rows
    uneven = Tree.from_edges(EDGES)
    for call in (uneven.columns, lambda: uneven.labels(uneven.leaves)):
        assert_refused(["'oak' is a leaf of 2 levels, others have 3"], call)
    columns = uneven.levelled().columns().sort("label_0")
    assert (columns.row(0), columns.row(3)) == (("cat", "mammal", "animal"), ("oak", "oak", "plant"))


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


RANKED = "genus,kingdom,species\nMorus,Plantae,Morus alba\nMorus,Animalia,Morus bassanus\n,Animalia,Odd one\n"


def test_a_taxonomy_keeps_names_of_two_branches_apart(tmp_path):
    file = written(tmp_path / "species.csv", RANKED)
    assert_refused(["row 3", "genus"], read_taxonomy, file)
    tree = read_taxonomy(file, fill=True)
    assert tree.level_sizes() == read_tree(file, fill=True).level_sizes() == [2, 3, 3]
    assert tree.path(tree.find("Odd one")) == ["Animalia", "Animalia (no genus)", "Odd one"]
    assert tree.path(tree.find("Morus alba")) == ["Plantae", "Morus", "Morus alba"]
    for name, text in (("s.tsv", "kingdom\tspecies\nPlantae\tOak\n"), ("s.csv", "Species,Kingdom\nOak,Plantae\n")):
        assert read_tree(written(tmp_path / name, text)).columns().rows() == [("Oak", "Plantae")]
    records = [{"id": 3, "name": "Morus alba", "genus": "Morus", "kingdom": "Plantae", "supercategory": "Plants"}]
    inaturalist = written(tmp_path / "train2018.json", json.dumps({"categories": records}))
    assert read_taxonomy(inaturalist).columns().rows() == [("Morus alba", "Morus", "Plantae")]
    assert_refused("a list of records", read_taxonomy, written(tmp_path / "other.json", "{}"))
    assert_refused("only edges have several parents", read_tree, file, several_parents="first")


def test_a_second_hypernym_is_a_fault_unless_the_first_is_to_count(tmp_path):
    file = written(tmp_path / "wordnet.csv", "child,parent\ndog,canine\ndog,domestic animal\n")
    assert_refused(["'dog'", "2 parents", "'canine'", "'domestic animal'"], read_edges, file)
    for read in (read_edges, read_tree):
        tree = read(file, several_parents="first")
        assert tree.path(tree.find("dog")) == ["canine", "dog"]
    assert_refused(["'last'"], read_edges, file, several_parents="last")
    assert_refused("only a taxonomy has ranks to fill", read_tree, file, fill=True)
    assert_refused(["'edge'", "'edges'"], read_tree, file, kind="edge")


def test_label_columns_of_a_manifest_and_folders(tmp_path, image_tree):
    text = "path,split,label_0,label_1\na.png,train,cat,animal\nb.png,train,cat,animal\nc.png,test,oak,plant\n"
    tree = tree_of_manifest(read_manifest(written(tmp_path / "m.csv", text)))
    assert tree.columns().rows() == [("cat", "animal"), ("oak", "plant")]
    tree = tree_of_folders(image_tree)
    assert tree.level_sizes() == [3, 12]
    assert tree.path(tree.find("class04")) == ["super1", "class04"]
