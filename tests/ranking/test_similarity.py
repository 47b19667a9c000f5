import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from refusals import assert_refused
from sightline.ranking.similarity import check_vectors, cosine_scores, unit


def draw(seed, n_vectors, dimensions=5):
    return torch.randn(n_vectors, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine_by_definition(one, other):
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(math.fsum(a * a for a in one)) / math.sqrt(math.fsum(b * b for b in other))


def test_scores_are_cosines_whatever_the_lengths():
    queries, gallery = draw(0, 3), draw(100, 4)
    queries, gallery = queries * torch.tensor([[1e-3], [1.0], [1e3]]), gallery * 7
    expected = [[cosine_by_definition(one, other) for other in gallery.tolist()] for one in queries.tolist()]
    assert_close(cosine_scores(queries, gallery), torch.tensor(expected, dtype=torch.float64))
    assert gradcheck(cosine_scores, (draw(0, 3).requires_grad_(), draw(1, 2).requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_a_set_against_itself_comes_from_both_sides(dtype):
    vectors, weights = draw(0, 6).to(dtype).requires_grad_(), draw(1, 6, 6).to(dtype)
    (found,) = torch.autograd.grad((cosine_scores(vectors, vectors) * weights).sum(), vectors)
    (expected,) = torch.autograd.grad((cosine_scores(vectors, vectors.clone()) * weights).sum(), vectors)
    assert_close(found, expected)
    if dtype == torch.float64:
        assert gradcheck(lambda table: cosine_scores(table, table), vectors)
    for n_items in (512, 1100):  # from 513 items on the gradient is worked out band by band
        vectors, slopes = draw(1, n_items, 3).to(dtype).requires_grad_(), draw(2, n_items, n_items).to(dtype)
        (found,) = torch.autograd.grad(cosine_scores(vectors, vectors), vectors, slopes)
        scaled = torch.nn.functional.normalize(vectors, dim=1)
        (expected,) = torch.autograd.grad(scaled @ scaled.T, vectors, slopes)
        assert_close(found, expected, **{} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_tie_wherever_they_are(dtype):
    for place in range(0, 32, 3):
        vectors = draw(place, 33, 4).to(dtype)
        vectors[place] = vectors[-1]
        for scores in (cosine_scores(vectors, vectors), cosine_scores(draw(1, 3, 4).to(dtype), vectors)):
            assert_close(scores[:, place], scores[:, -1], rtol=0, atol=0)


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
    vectors.requires_grad_()
    scores = cosine_scores(vectors, draw(1, 3))
    scores.sum().backward()
    assert scores[2].tolist() == [0.0] * 3
    assert vectors.grad.isfinite().all()
    assert_close(unit(vectors.detach()).norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64))


def test_scores_take_the_wider_type_of_the_two_and_single_precision_at_least():
    for queries, gallery, expected in (
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.bfloat16, torch.float16, torch.float32),
    ):
        sides = draw(0, 2).to(queries), draw(1, 3).to(gallery)
        scores, in_double = cosine_scores(*sides), cosine_scores(*(side.double() for side in sides))
        assert scores.dtype == expected
        assert_close(scores.double(), in_double, rtol=0, atol=1e-6 if expected == torch.float32 else 1e-12)


def test_vectors_that_do_not_fit_are_refused():
    for vectors in (torch.zeros(3), torch.zeros(2, 3, 4), torch.zeros(2, 3).bool()):
        shape = ", ".join(map(str, vectors.shape))
        assert_refused(rf"queries.*\(B, D\).*{vectors.dtype} \({shape}", check_vectors, queries=vectors)
    vectors = draw(0, 16)
    vectors[2:15, 3] = -math.inf
    assert_refused(r"gallery.* 13 of 16 rows .* 2, 3, .* 11, \.\.\.$", check_vectors, gallery=vectors)
