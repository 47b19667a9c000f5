import math

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
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


def test_the_feature_norm_is_by_choice():
    pooled = drawn(4, 6)
    head = Head(6, 3, "none")
    weight, bias = head.projection.weight, head.projection.bias
    assert_close(head(pooled), torch.nn.functional.normalize(pooled @ weight.T + bias, dim=1))
    head.norm = Head(6, 3, "l2").norm
    assert_close(head(pooled), torch.nn.functional.normalize(pooled / pooled.norm(dim=1)[:, None] @ weight.T + bias, dim=1))
    with pytest.raises(InputError, match=r"unknown feature_norm 'l3'.*'l2'"):
        Head(6, 3, "l3")


@pytest.mark.parametrize("norm", ["l2", "layer", "none"])
def test_a_whitened_projection_gives_uncorrelated_features_of_variance_one(norm):
    head, pooled = Head(12, 5, norm), drawn(200, 12) * torch.arange(1, 13)
    head.whiten(pooled)
    projected = head.projection(head.norm(pooled)).detach().double()
    assert_close(projected.mean(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-3)
    assert_close(projected.T.cov(), torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-3)
    assert head.projection.weight.requires_grad


def test_a_whitened_projection_keeps_the_directions_of_most_variance():
    spread = torch.tensor([1.0, 9.0, 3.0])
    pooled = torch.cat([torch.diag(spread), -torch.diag(spread)])  # principal directions are the axes
    head = Head(3, 2, "none")
    head.whiten(pooled)
    deviations = (2 * spread.square() / 5).sqrt()
    expected = torch.tensor([[0, 1 / deviations[1], 0], [0, 0, 1 / deviations[2]]])
    assert_close(head.projection.weight.detach(), expected)


def test_a_whitened_projection_depends_on_the_features_alone():
    heads = [Head(12, 5, "l2"), Head(12, 5, "l2")]
    pooled = drawn(50, 12)
    heads[0].whiten(pooled)
    heads[1].whiten(pooled.flip(0))  # another order, in which a decomposition may choose other signs
    assert_close(heads[0].state_dict(), heads[1].state_dict(), rtol=1e-4, atol=1e-4)


def test_too_few_directions_to_whiten_are_refused():
    with pytest.raises(InputError, match="5 images with 12 features vary in 4 directions, embedding_dim is 5"):
        Head(12, 5).whiten(drawn(5, 12))
    with pytest.raises(InputError, match="there is no projection; set embedding_dim"):
        Head(12).whiten(drawn(50, 12))
