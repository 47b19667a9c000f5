import math

import pytest
import torch
from torch.testing import assert_close

from sightline.models.heads import Head


def drawn(*shape: int) -> torch.Tensor:
    return 5 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def normalised_by_definition(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
    return [(value - mean) / deviation for value in values]


def unit_by_definition(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value**2 for value in values))
    return [value / length for value in values]


def test_without_a_projection_it_is_layer_norm_then_unit_length():
    pooled = drawn(4, 6)
    expected = [unit_by_definition(normalised_by_definition(row)) for row in pooled.tolist()]
    assert_close(Head(6)(pooled), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_with_a_projection_it_stands_between_the_two():
    head, pooled = Head(6, 3), drawn(4, 6)
    weight, bias = head.projection.weight.tolist(), head.projection.bias.tolist()
    expected = []
    for row in pooled.tolist():
        normal = normalised_by_definition(row)
        projected = [
            sum(a * b for a, b in zip(line, normal, strict=True)) + c for line, c in zip(weight, bias, strict=True)
        ]
        expected.append(unit_by_definition(projected))
    assert_close(head(pooled).detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embedding_dim", [None, 3, 16])
def test_vectors_are_of_unit_length(embedding_dim):
    vectors = Head(6, embedding_dim)(drawn(10, 6))
    assert vectors.shape == (10, embedding_dim or 6)
    assert_close(vectors.norm(dim=1), torch.ones(10))


def test_layer_norm_has_nothing_to_learn():
    assert [name for name, _ in Head(6, 3).named_parameters()] == ["projection.weight", "projection.bias"]
    assert not list(Head(6).parameters())


def test_scale_and_shift_of_the_features_do_not_matter():
    head, pooled = Head(6, 3), drawn(4, 6)
    assert_close(head(100 * pooled - 7), head(pooled), rtol=1e-3, atol=1e-4)
