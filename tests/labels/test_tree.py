"""The label tree against walks up the parents, one step at a time."""

from itertools import pairwise

import numpy as np
import pytest

from refusals import assert_refused
from sightline.labels.tree import NOTHING, Tree, read_edges

EDGES = [("cat", "mammal"), ("dog", "mammal"), ("eagle", "bird"), ("mammal", "animal"), ("bird", "animal")]
EDGES += [("oak", "plant"), ("animal", None), ("plant", "")]


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


@pytest.mark.parametrize("seed", range(5))
def test_common_ancestors_and_distances_are_those_of_the_paths(seed):
    tree = draw_tree(seed)
    nodes = np.arange(len(tree))
    ancestors = tree.common_ancestor(nodes[:, None], nodes)
    distances = tree.distance(nodes[:, None], nodes)
    shared = tree.shared_levels(nodes[:, None], nodes)
    for one in nodes:
        for other in nodes:
            up, above = path_up(tree, one), path_up(tree, other)
            met = next((node for node in up if node in above), NOTHING)
            assert ancestors[one, other] == met
            steps = len(up) + len(above) if met == NOTHING else up.index(met) + above.index(met)
            assert distances[one, other] == steps
            assert shared[one, other] == (0 if met == NOTHING else len(path_up(tree, met)))
    assert [len(path_up(tree, node)) - 1 for node in nodes] == tree.depths.tolist()


def test_edges_in_any_order_make_the_same_tree():
    tree, turned = Tree.from_edges(EDGES), Tree.from_edges(reversed(EDGES))
    for one in (tree, turned):
        assert one.path(one.find("cat")) == ["animal", "mammal", "cat"]
        assert one.level_sizes() == [2, 3, 3]
        assert {one.names[leaf] for leaf in one.leaves} == {"cat", "dog", "eagle", "oak"}
        assert {one.names[child] for child in one.children(one.find("animal"))} == {"mammal", "bird"}
        assert {one.names[root] for root in one.children(NOTHING)} == {"animal", "plant"}


def test_cycles_two_parents_and_empty_rows_are_reported_at_once():
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("x", "y"), ("x", "z"), ("", "y"), ("own", "own"), ("own", "b")]
    facts = ["row 6: the child is empty", "'x' has 2 parents: 'y', 'z'", "'own' has 2 parents", "'own' < 'own'"]
    message = assert_refused(["edges.csv: 5 faults", *facts], Tree.from_edges, edges, "edges.csv")
    assert any(" < ".join(map(repr, circle)) in message for circle in ("abca", "bcab", "cabc"))


@pytest.mark.parametrize("seed", range(12))
def test_an_edge_back_is_found_wherever_it_is(seed):
    """Random parents, several of each child: a cycle is reported exactly where walking up comes back to its start."""
    rng = np.random.default_rng(seed)
    edges = [(f"n{child}", f"n{rng.integers(12)}") for child in range(8) for _ in range(rng.integers(1, 3))]
    above = {child: {parent for one, parent in edges if one == child} for child, _ in edges}
    reached = {}
    for start in above:
        seen, waiting = set(), [*above[start]]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += above.get(name, ())
        reached[start] = seen
    is_circular = any(start in seen for start, seen in reached.items())
    has_two = any(len(parents) > 1 for parents in above.values())
    if not is_circular and not has_two:
        Tree.from_edges(edges)
        return
    lines = assert_refused("", Tree.from_edges, edges).splitlines()
    cycles = [line.removeprefix("  a cycle: ").split(" < ") for line in lines if "a cycle" in line]
    assert bool(cycles) == is_circular
    for cycle in cycles:
        names = [name.strip("'") for name in cycle]
        assert names[0] == names[-1]
        assert all(parent in above[child] for child, parent in pairwise(names))


def test_faults_of_columns_are_reported_at_once():
    paths = [("animal", "cat"), ("plant", "cat"), ("animal", ""), ("cat", "tabby"), ("animal",)]
    facts = ["m.csv: 4 faults", "'cat' has 2 parents: 'animal', 'plant'", "'cat' is a name at levels 1, 2"]
    assert_refused([*facts, "animal > : a level", "animal: 1 levels, most have 2"], Tree.from_paths, paths, "m.csv")


def test_paths_that_share_a_name_are_two_nodes_where_asked():
    tree = Tree.from_paths([("animal", "cat"), ("machine", "cat")], unique=False)
    assert tree.level_sizes() == [2, 2]
    assert_refused(["2 nodes", "'cat'", "machine > cat"], tree.find, "cat")


def test_leaves_of_different_depth_are_refused_until_levelled():
    tree = Tree.from_edges(EDGES)
    for call in (tree.columns, lambda: tree.labels(tree.leaves)):
        assert_refused(["'oak' is a leaf of 2 levels, others have 3"], call)
    columns = tree.levelled().columns().sort("label_0")
    assert columns.row(3) == ("oak", "oak", "plant")
    assert columns.row(0) == ("cat", "mammal", "animal")


def test_written_and_read_it_is_the_same_tree(tmp_path):
    tree = Tree.from_edges(EDGES)
    again = read_edges(tree.write(tmp_path / "tree.csv"))
    assert (again.names, again.parents.tolist()) == (tree.names, tree.parents.tolist())


def test_codes_keep_what_is_shared():
    tree = Tree.from_edges(EDGES)
    codes = tree.codes()
    for one in tree.names:
        for other in tree.names:
            parts = zip(codes[one].split("."), codes[other].split("."), strict=False)
            n_shared = next((n for n, (left, right) in enumerate(parts) if left != right), None)
            shortest = min(codes[one].count("."), codes[other].count(".")) + 1
            expected = int(tree.shared_levels(tree.find(one), tree.find(other)))
            assert (shortest if n_shared is None else n_shared) == expected
    assert_refused("2 nodes are called 'cat'", Tree.from_paths([("animal", "cat"), ("machine", "cat")], unique=False).codes)


def test_columns_and_labels_of_the_leaves():
    tree = Tree.from_paths([("animal", "cat"), ("animal", "dog"), ("plant", "oak")])
    rows = [("cat", "animal"), ("dog", "animal"), ("oak", "plant")]
    assert tree.columns().rows() == rows
    assert [tuple(tree.names[node] for node in row) for row in tree.labels(tree.leaves).tolist()] == rows


def test_an_unknown_name_suggests_the_nearest():
    assert_refused(["'mamal'", "'mammal'"], Tree.from_edges(EDGES).find, "mamal")
    assert_refused("no row", Tree.from_edges, [])
