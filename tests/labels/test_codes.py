"""Relevance between sets of codes against the definition, one pair of codes at a time; then in losses and metrics."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ranking_definitions import h_ap
from refusals import assert_refused
from sightline.data.samplers import SamplerSection, create_sampler
from sightline.evaluation.protocol import evaluate
from sightline.labels.codes import CodeRelevance, graded, sampling_classes, sampling_labels

QUERY, ITEM = ["3.6.3", "26.1.15", "29.1.1"], ["3.6.1", "26.1.15"]


def draw_sets(seed, n_items, several_depths=False):
    rng = np.random.default_rng(seed)
    sets = []
    for _ in range(n_items):
        codes = {".".join(map(str, rng.integers(1, 4, 3))) for _ in range(rng.integers(1, 5))}
        sets.append([code[: rng.choice([1, 3, 5])] if several_depths else code for code in sorted(codes)])
    return sets


def shared(one, other):
    n = 0
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        n += 1
    return n


def by_definition(query, item, worth, weight):
    """For each code of the query its best match; averaged."""
    codes = list(dict.fromkeys(query))
    total = 0.0
    for code in codes:
        values = [[0.0, *worth][shared(code, other)] for other in item]
        total += weight(code) * max(values) / worth[code.count(".")]
    return total / sum(map(weight, codes))


@pytest.mark.parametrize(
    ("options", "there", "back"),
    [
        ({}, 0.5555555556, 0.8333333333),
        ({"alpha": 2}, 0.4814814815, 0.7222222222),
        ({"symmetry": "mean"}, 0.6944444444, 0.6944444444),
        ({"symmetry": "harmonic"}, 0.6666666667, 0.6666666667),
        ({"level_weights": (0.0, 0.5, 1.0)}, 0.5, 0.75),
        ({"code_weights": {"29": 0}}, 0.8333333333, 0.8333333333),
        ({"threshold": 0.6}, 0.0, 0.8333333333),
    ],
)
def test_pair_worked_by_hand(options, there, back):
    relevance = CodeRelevance(3, **options)
    assert relevance.matrix([QUERY], [ITEM])[0, 0] == pytest.approx(there, abs=1e-10)
    assert relevance.matrix([ITEM], [QUERY])[0, 0] == pytest.approx(back, abs=1e-10)


@pytest.mark.parametrize(("seed", "several_depths"), [(0, False), (1, True), (2, True)])
def test_all_pairs_are_those_of_the_definition(seed, several_depths):
    queries, items = draw_sets(seed, 7, several_depths), draw_sets(seed + 100, 30, several_depths)

    def rarity(code):
        return np.log(31 / (1 + sum(code in item for item in items))) + 1

    for alpha, code_weights, weight in ((1.0, None, lambda code: 1.0), (2.5, None, lambda code: 1.0), (1.0, "idf", rarity)):
        worth = [(level / 3) ** alpha for level in (1, 2, 3)]
        expected = np.array([[by_definition(query, item, worth, weight) for item in items] for query in queries])
        assert_close(CodeRelevance(3, alpha=alpha, code_weights=code_weights).matrix(queries, items), expected)


def test_an_auxiliary_code_meets_its_main_one_at_its_own_worth():
    relevance = CodeRelevance(3, auxiliary={"3.6.25": "3.6.3", "03.06.26": "3.6.3"}, auxiliary_weight=0.9)
    found = relevance.matrix([["3.6.3"]], [["3.6.3"], ["3.6.25"], ["3.6.1"], ["3.7.1"], ["4.1.1"]])
    assert_close(found, np.array([[1.0, 0.9, 2 / 3, 1 / 3, 0.0]]))
    assert_close(relevance.matrix([["3.6.25"]], [["3.6.26"], ["3.6.3"]]), np.array([[0.9, 0.9]]))
    same_division = CodeRelevance(3, auxiliary={"3.6.25": "3.6.3"})
    assert_close(same_division.matrix([["3.6.3"]], [["3.6.25"]]), np.array([[2 / 3]]))


@pytest.mark.parametrize("symmetry", ["query", "mean", "harmonic"])
def test_properties(symmetry):
    sets = draw_sets(3, 12)
    relevance = CodeRelevance(3, symmetry=symmetry)
    table, pairs = relevance.matrix(sets), relevance.between(sets)
    assert_close(np.concatenate([pairs.rows(np.arange(start, start + 4)) for start in range(0, 12, 4)]), table)
    assert_close(pairs(np.array([3, 1])), graded(table[[3, 1]]))
    assert_close(np.diag(table).copy(), np.ones(12))
    assert 0 <= table.min() <= table.max() <= 1 + 1e-12
    if symmetry == "query":
        more = relevance.matrix(sets, [[*codes, "1.2.3"] for codes in sets])
        assert (more >= table - 1e-12).all()
    else:
        assert_close(table, table.T.copy())
    renamed = [[code.replace("1", "7") for code in codes] for codes in sets]
    assert_close(relevance.matrix(renamed), table)


def test_metrics_by_codes_are_those_of_the_definition():
    sets = draw_sets(7, 25)
    vectors = np.random.default_rng(0).normal(size=(25, 6))
    pairs = CodeRelevance(3, alpha=2).between(sets)
    result = evaluate(vectors, judgements=pairs, metrics=["h_ap", "ndcg", "map"])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores, worth = unit @ unit.T, pairs(np.arange(25))
    for query in range(25):
        others = sorted((item for item in range(25) if item != query), key=lambda item: -scores[query, item])
        expected = h_ap(range(24), worth[query, others].tolist())
        assert result.per_query["h_ap"][query] == pytest.approx(expected)


@pytest.mark.parametrize(("seed", "min_items"), [(0, 1), (1, 2), (2, 4), (3, 4)])
def test_each_item_is_sampled_by_a_code_of_its_own_which_enough_others_share(seed, min_items):
    sets = draw_sets(seed, 60)
    labels = sampling_labels(sets, 3, min_items)[:, 0]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shared = set.intersection(*(set(sets[item]) for item in members))
        assert shared  # the code that makes the class
        if len(members) < min_items:  # only where no code of the item is in use by enough
            for item in members:
                others = [other for other in range(60) if len(np.flatnonzero(labels == labels[other])) >= min_items]
                in_use = [set.intersection(*(set(sets[o]) for o in np.flatnonzero(labels == labels[i]))) for i in others]
                assert not any(len(codes) == 1 and codes <= set(sets[item]) for codes in in_use)


def test_flat_sets_are_sampled_by_a_rare_label_that_enough_items_have():
    sets = np.zeros((12, 6), bool)
    sets[:, 0] = True  # common
    sets[np.arange(12), 1 + np.arange(12) % 2] = True  # six items each
    sets[3, 3] = True  # one item alone
    sets[11] = False  # no label
    classes = sampling_classes(sets, min_items=3)
    assert classes[:11].tolist() == [1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1]
    assert classes[11] not in classes[:11]
    assert sampling_classes(torch.from_numpy(sets), min_items=1)[3] == 3
    batches = create_sampler(SamplerSection(batch_size=6, per_class=3), classes, seed=0).batches(epoch=0)
    assert batches
    assert all((sets[batch].sum(0) >= 3).sum() == 3 for batch in batches)
    assert_refused(r"^label_sets .*int64 \(12, 6\)$", sampling_classes, sets.astype(int))
    assert_refused(r"bool; .*sampling_classes", create_sampler, SamplerSection(batch_size=6, per_class=3), sets, seed=0)
    assert_refused(r"min_items .*1.*0", sampling_classes, sets, min_items=0)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"level_weights": (0.5, 0.2, 1.0)}, "level_weights"),
        ({"level_weights": (0.5, 1.0)}, "level_weights must be 3"),
        ({"alpha": float("nan")}, "level_weights"),
        ({"symmetry": "max"}, "symmetry 'max'"),
        ({"code_weights": "tf"}, "'tf'"),
        *(({"code_weights": {"1": weight}}, "code_weights") for weight in (-1, float("nan"), float("inf"))),
        ({"threshold": float("nan")}, "got nan"),
        ({"auxiliary": {"1.1.2": "1.1.1"}, "auxiliary_weight": 0.2}, "auxiliary_weight is 0.2"),
        ({"auxiliary": {"3.6": "3.5"}}, "'3.6' of '3.5'"),
        ({"auxiliary": {"5.1.2": "3.6.3", "3.6.4": "3.6.3"}}, "'5.1.2' of '3.6.3':"),
        ({"auxiliary": {"3.6.4": "3.6.3", "3.6.5": "3.6.4"}}, "'3.6.5' of '3.6.4':"),
        ({"n_levels": 0}, "n_levels"),
    ],
)
def test_options_and_sets_that_do_not_fit(options, fact):
    assert_refused([fact], CodeRelevance, **{"n_levels": 3} | options)
    assert_refused(["2 faults", "item 2", "'1.2.3.4'", "4 levels"], CodeRelevance(3).matrix, [["1.2.3.4"], []])


@pytest.mark.parametrize(
    ("options", "codes", "of_the_first"),
    [({"level_weights": (0, 0, 1)}, ["1.2"], 1), ({"code_weights": {"29": 0}}, ["29.1.1", "29.2.1"], (1 + 1 / 3) / 2)],
)
def test_an_item_fully_answers_itself_where_its_weights_are_0(options, codes, of_the_first):
    found = CodeRelevance(3, **options).matrix([codes], [codes, ["1.3.1"], codes[:1]])
    np.testing.assert_allclose(found, [[1, 0, of_the_first]])
