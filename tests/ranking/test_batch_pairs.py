import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from refusals import assert_refused
from sightline.ranking.pairs import as_tensor, batch_pairs, check_indices, check_labels, only_chosen, shared_levels


def draw(seed, n_vectors, dimensions=4):
    return torch.randn(n_vectors, dimensions, generator=torch.Generator().manual_seed(seed))


def levels_by_definition(one, other):
    """Read both paths from the root down and stop where they part."""
    n_shared = 0
    while n_shared < len(one) and one[len(one) - 1 - n_shared] == other[len(other) - 1 - n_shared]:
        n_shared += 1
    return n_shared


@st.composite
def label_tables(draw_value):
    n_levels = draw_value(st.integers(1, 4))
    rows = st.lists(st.lists(st.integers(0, 2), min_size=n_levels, max_size=n_levels), min_size=1, max_size=5)
    return draw_value(rows), draw_value(rows)


@given(label_tables())
def test_shared_levels_stop_where_the_paths_part(tables):
    labels, ref_labels = tables
    expected = [[levels_by_definition(one, other) for other in ref_labels] for one in labels]
    found = shared_levels(torch.tensor(labels), torch.tensor(ref_labels))
    assert found.tolist() == expected
    assert found.dtype == torch.int8


def test_labels_become_an_int64_table():
    for labels in ([3, 1, 3], np.array([3, 1, 3], np.uint32), torch.tensor([3, 1, 3], dtype=torch.int8)):
        table = check_labels(labels, 3, "labels")
        assert (table.dtype, table.tolist()) == (torch.int64, [[3], [1], [3]])
    large = check_labels([2**53, 2**53 + 1], 2, "labels")  # apart as integers, not as floats
    assert shared_levels(large, large).tolist() == [[1, 0], [0, 1]]
    for shape, expected in (((0,), (0, 1)), ((0, 3), (0, 3)), ((2, 126), (2, 126))):
        assert check_labels(torch.zeros(shape, dtype=torch.int64), shape[0], "labels").shape == expected
    for dtype in (torch.float16, torch.complex64, torch.bool):
        assert_refused(rf"ref_labels.*{dtype}", check_labels, torch.zeros(3, dtype=dtype), 3, "ref_labels")
    for shape in ((), (2,), (2, 3), (3, 0), (3, 1, 1)):
        labels = torch.zeros(shape, dtype=torch.int64)
        assert_refused(r"labels.*\(3,\) or \(3, L\).*" + str(shape)[1:-1], check_labels, labels, 3, "labels")
    assert_refused(r"labels.* 126 .* 128 .*bool", check_labels, torch.zeros(2, 128, dtype=torch.int64), 2, "labels")
    assert_refused(r"labels.*dict", as_tensor, {}, "labels")


def test_a_miners_choice_is_all_there_is():
    pairs = batch_pairs(draw(0, 3), torch.tensor([0, 0, 1]))
    four, three = ([0, 1], [1, 0], [0], [2]), (np.array([1]), [0], torch.tensor([2], dtype=torch.int32))
    assert only_chosen(pairs, four).levels.tolist() == [[-1, 1, 0], [1, -1, -1], [-1, -1, -1]]
    assert only_chosen(pairs, three).levels.tolist() == [[-1, -1, -1], [1, -1, 0], [-1, -1, -1]]
    assert (only_chosen(pairs, torch.zeros(3, 0, dtype=torch.int64)).levels == -1).all()
    for wrong in (four[:2], ([0.5], [0], [1]), ([0, 1], [0], [1], [2]), ([[0]], [0], [1]), ([0], [1], [3])):
        assert_refused("indices_tuple", check_indices, wrong, 3, 3)
    for labels in ([[0, 0], [0, 0], [1, 0]], torch.eye(3).bool(), torch.eye(3)):
        assert_refused(r"indices_tuple.*\(B,\)", only_chosen, batch_pairs(draw(0, 3), as_tensor(labels, "labels")), three)


def test_batch_scores_and_levels():
    labels = torch.tensor([5, 9, 5])
    embeddings = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    pairs = batch_pairs(embeddings, labels)
    assert_close(pairs.scores, torch.tensor([[1.0, 0.0, 0.6], [0.0, 1.0, 0.8], [0.6, 0.8, 1.0]]))
    assert pairs.levels.tolist() == [[-1, 0, 1], [0, -1, 0], [1, 0, -1]]
    assert pairs.n_levels == 1
    assert pairs.relevant.tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    assert batch_pairs(embeddings, labels, include_self=True).levels.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    pairs = batch_pairs(embeddings[[0, 1, 0]], torch.tensor([[0, 8], [1, 8], [0, 8]]))  # a copy of another image stays in
    assert pairs.levels[0].tolist() == [-1, 1, 2]
    assert (pairs.n_levels, pairs.relevant[0].tolist(), pairs.flat[0].tolist()) == (2, [False, False, True], [-1, 0, 1])


def test_sets_of_labels_are_worth_the_share_of_the_querys_labels():
    sets = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]).bool()
    pairs = batch_pairs(draw(0, 4), sets)
    assert pairs.levels.tolist() == [[-1, 1, 0, 2], [1, -1, 0, 1], [0, 0, -1, 1], [2, 1, 1, -1]]
    worth = pairs.worth.gather(1, pairs.levels.long().clamp(min=0))
    assert worth[0].tolist() == [0.0, 0.5, 0.0, 1.0]
    assert worth[3].tolist() == [0.5, 0.25, 0.25, 0.0]
    assert pairs.relevant[0].tolist() == [False, True, False, True]
    of_references = batch_pairs(draw(0, 4), sets, draw(1, 2), sets[:2])
    assert of_references.levels[3].tolist() == [2, 1]


def test_a_relevance_matrix_stands_for_labels():
    relevance = torch.tensor([[0.0, 0.5, 2.0], [0.5, 0.0, 0.0], [2.0, 0.0, 0.0]])
    pairs = batch_pairs(draw(0, 3), relevance)
    assert pairs.levels.tolist() == [[-1, 1, 2], [1, -1, 0], [1, 0, -1]]  # levels are those of a row
    assert pairs.worth.tolist() == [[0.0, 0.5, 2.0], [0.0, 0.5, 0.0], [0.0, 2.0, 0.0]]
    assert batch_pairs(draw(0, 3), relevance[:, :2], draw(1, 2)).mask.all()
    assert_refused(r"labels.*\(3, 3\).*\(3, 2\)", batch_pairs, draw(0, 3), relevance[:, :2])
    assert_refused(r"\(2, 4\)", batch_pairs, draw(0, 2), torch.ones(2, 4).bool(), draw(1, 2), torch.tensor([0, 1]))


def test_a_label_of_minus_one_is_shared_by_none():
    labels = torch.tensor([[3, 5], [-1, 5], [-1, 5], [4, -1], [4, -1]])
    levels = batch_pairs(draw(0, 5), labels).levels.fill_diagonal_(9)
    assert levels.tolist() == [[9, 1, 1, 0, 0], [1, 9, 1, 0, 0], [1, 1, 9, 0, 0], [0, 0, 0, 9, 0], [0, 0, 0, 0, 9]]
    assert batch_pairs(draw(0, 3), torch.tensor([-1, -1, 2])).levels.tolist() == [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert batch_pairs(draw(0, 1), labels[1:2], draw(1, 5), labels).levels.tolist() == [[1, 1, 1, 0, 0]]


@pytest.mark.parametrize("labels", [torch.tensor([0, 0, 1]), torch.eye(3) + 1, torch.ones(3, 2, dtype=torch.bool)])
def test_the_batch_as_its_own_reference_set_is_the_batch(labels):
    vectors = draw(0, 3)  # a copy of it, another tensor, counts whole
    expected, ref_labels = batch_pairs(vectors, labels), None if labels.is_floating_point() else labels.clone()
    assert batch_pairs(vectors, labels, vectors, ref_labels).levels.tolist() == expected.levels.tolist()
    assert batch_pairs(vectors, labels, vectors.clone(), ref_labels).levels.diagonal().min() >= 0
