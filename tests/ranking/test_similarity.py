import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.ranking.similarity import check_vectors, cosine_scores, unit


def draw(seed, n_vectors, dimensions=5):
    return torch.randn(n_vectors, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine_by_definition(one, other):
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(math.fsum(a * a for a in one)) / math.sqrt(math.fsum(b * b for b in other))


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_cosines_whatever_the_lengths(seed):
    queries, gallery = draw(seed, 3), draw(seed + 100, 4)
    queries, gallery = queries * torch.tensor([[1e-3], [1.0], [1e3]]), gallery * 7
    expected = [[cosine_by_definition(one, other) for other in gallery.tolist()] for one in queries.tolist()]
    assert_close(cosine_scores(queries, gallery), torch.tensor(expected, dtype=torch.float64))


def test_scores_gradient_is_the_finite_difference():
    assert gradcheck(cosine_scores, (draw(0, 3).requires_grad_(), draw(1, 2).requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_a_set_against_itself_comes_from_both_sides(dtype):
    vectors, weights = draw(0, 6).to(dtype).requires_grad_(), draw(1, 6, 6).to(dtype)
    (found,) = torch.autograd.grad((cosine_scores(vectors, vectors) * weights).sum(), vectors)
    (expected,) = torch.autograd.grad((cosine_scores(vectors, vectors.clone()) * weights).sum(), vectors)
    assert_close(found, expected)
    if dtype == torch.float64:
        assert gradcheck(lambda table: cosine_scores(table, table), vectors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_items", [10, 33])
def test_copies_tie_wherever_they_are(n_items, dtype):
    for place in range(n_items - 1):
        vectors = draw(place, n_items, 4).to(dtype)
        vectors[place] = vectors[-1]
        for scores in (cosine_scores(vectors, vectors), cosine_scores(draw(1, 3, 4).to(dtype), vectors)):
            assert_close(scores[:, place], scores[:, -1], rtol=0, atol=0)


@pytest.mark.parametrize("n_items", [40, 256, 1100])
def test_copies_of_one_vector_all_tie_in_float64(n_items):
    scores = cosine_scores(draw(1, 7, 64), draw(0, 1, 64).expand(n_items, -1))
    assert_close(scores, scores[:, :1].expand(-1, n_items), rtol=0, atol=0)


@pytest.mark.parametrize("n_items", [512, 513, 1100])
def test_gradient_of_a_large_set_against_itself_is_that_of_two_products(n_items):
    """From 513 items on the gradient is worked out band by band."""
    vectors, slopes = draw(1, n_items, 3).requires_grad_(), draw(2, n_items, n_items)
    (found,) = torch.autograd.grad(cosine_scores(vectors, vectors), vectors, slopes)
    scaled = torch.nn.functional.normalize(vectors, dim=1)
    (expected,) = torch.autograd.grad(scaled @ scaled.T, vectors, slopes)
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_of_vectors_whose_squares_are_too_large(dtype):
    vectors = draw(0, 3).to(dtype)
    powers = [0, 65, 125] if dtype == torch.float32 else [0, 600, 1020]
    factor, weights = torch.tensor([[2.0**n] for n in powers], dtype=dtype), draw(1, 3).to(dtype)
    long, short = (vectors * factor).requires_grad_(), vectors.clone().requires_grad_()
    assert_close(unit(long), unit(short))
    slopes = [torch.autograd.grad((unit(leaf) * weights).sum(), leaf)[0] for leaf in (long, short)]
    assert_close(slopes[0][:2] * factor[:2], slopes[1][:2])  # further on it is too small to be held
    assert slopes[0].isfinite().all()


def test_unit_has_length_one_and_leaves_zero_at_zero():
    vectors = draw(0, 4)
    vectors[2] = 0
    assert_close(unit(vectors).norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64))
    assert unit(vectors)[2].tolist() == [0.0] * 5


def test_zero_vector_scores_zero_with_a_finite_gradient():
    queries = draw(0, 2)
    queries[0] = 0
    queries.requires_grad_()
    scores = cosine_scores(queries, draw(1, 3))
    scores.sum().backward()
    assert scores[0].tolist() == [0.0] * 3
    assert queries.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_the_product(dtype):
    queries, gallery = draw(0, 3).to(dtype), draw(1, 4).to(dtype)
    scores = cosine_scores(queries, gallery)
    assert scores.dtype == torch.float32
    assert_close(scores, cosine_scores(queries.double(), gallery.double()).float())  # 1e-6, not the 1e-3 of a half


@pytest.mark.parametrize(
    ("queries", "gallery", "expected"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.bfloat16, torch.float16, torch.float32),
    ],
)
def test_scores_take_the_wider_type_of_the_two(queries, gallery, expected):
    scores = cosine_scores(draw(0, 2).to(queries), draw(1, 3).to(gallery))
    assert scores.dtype == expected
    in_double = cosine_scores(draw(0, 2).to(queries).double(), draw(1, 3).to(gallery).double())
    assert_close(scores.double(), in_double, rtol=0, atol=1e-6 if expected == torch.float32 else 1e-12)


def test_autocast_changes_nothing():
    queries, gallery = draw(0, 8, 64).float(), draw(1, 9, 64).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (queries @ gallery.T).dtype == torch.bfloat16  # it is on
        inside = cosine_scores(queries, gallery)
    assert_close(inside, cosine_scores(queries, gallery), rtol=0, atol=0)


def test_vectors_of_two_sizes_are_refused():
    with pytest.raises(InputError, match=r"vectors of 5 and 4 dimensions cannot be compared"):
        cosine_scores(draw(0, 2), draw(0, 2, 4))


@pytest.mark.parametrize(
    ("vectors", "found"),
    [
        (torch.zeros(3), r"torch\.float32 \(3,\)"),
        (torch.zeros(2, 3, 4), r"torch\.float32 \(2, 3, 4\)"),
        (torch.zeros(2, 3, dtype=torch.int64), r"torch\.int64 \(2, 3\)"),
        (torch.zeros(2, 3, dtype=torch.bool), r"torch\.bool \(2, 3\)"),
        (torch.zeros(2, 3, dtype=torch.complex64), r"torch\.complex64 \(2, 3\)"),
    ],
)
def test_anything_but_a_table_of_floats_is_refused(vectors, found):
    with pytest.raises(InputError, match=rf"^queries: a \(B, D\) floating point table is needed, found {found}$"):
        check_vectors(vectors, "queries")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_named(value):
    vectors = draw(0, 6)
    vectors[1, 0] = vectors[4, 3] = vectors[4, 4] = value
    with pytest.raises(InputError, match=r"^gallery: 2 of 6 rows hold NaN or infinity: 1, 4$"):
        check_vectors(vectors, "gallery")
