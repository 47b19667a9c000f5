"""A single query through linear layers, in compiled code."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sightline import ood
from sightline.ood import classifier
from sightline.ood.classifier import linear_layers


def drawn(widths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pairs = list(pairwise(widths))
    weights = [torch.randn(after, before, generator=generator) / before**0.5 for before, after in pairs]
    biases = [torch.randn(after, generator=generator) for _, after in pairs]
    return torch.randn(1, widths[0], generator=generator), weights, biases


def by_definition(row, weights, biases, slope):  # in float64
    row = row.double()
    for weight, bias in zip(weights, biases, strict=True):
        row = row @ weight.double().T + bias.double()
        row = torch.where(row > 0, row, slope * row)
    return row


@pytest.mark.parametrize(("widths", "slope"), [((5, 7), 1.0), ((512, 1024, 33), 0.2), ((3, 1, 1025, 2), 0.2)])
def test_a_row_goes_through_layers_as_written(widths, slope, monkeypatch):
    monkeypatch.setattr(classifier, "LARGE", 0)
    row, weights, biases = drawn(widths)
    with torch.no_grad():
        found = linear_layers(row, weights, biases, slope)
        without = linear_layers(row, weights, slope=slope)
    assert_close(found.double(), by_definition(row, weights, biases, slope), rtol=1e-5, atol=1e-5)
    zeros = [torch.zeros_like(bias) for bias in biases]
    assert_close(without.double(), by_definition(row, weights, zeros, slope), rtol=1e-5, atol=1e-5)


def test_weights_in_bfloat16_are_read_as_what_they_stand_for(monkeypatch):
    monkeypatch.setattr(classifier, "LARGE", 0)
    row, weights, biases = drawn((512, 1024, 33))
    halves, offsets = ([tensor.bfloat16() for tensor in tensors] for tensors in (weights, biases))
    for n_rows in (1, 3):
        with torch.no_grad():
            found = linear_layers(row.expand(n_rows, -1), halves, offsets, 0.2)
        assert found.dtype == torch.float32
        assert_close(found.double(), by_definition(row.expand(n_rows, -1), halves, offsets, 0.2), rtol=1e-5, atol=1e-5)


@pytest.fixture
def calls(monkeypatch):
    """How many parts the compiled code works in, at each of its calls."""
    made, compiled = [], classifier.through_layers

    def through_layers(*given):
        made.append(given[-1])
        return compiled(*given)

    monkeypatch.setattr(classifier, "through_layers", through_layers)
    return made


def test_threads_change_no_bit_and_all_else_is_left_to_torch(calls):
    row, weights, biases = drawn((1024, 1024, 1024))
    n_threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            with torch.no_grad():
                found.append(linear_layers(row, weights, biases, 0.2))
    finally:
        torch.set_num_threads(n_threads)
    assert calls == [1, 2]
    assert torch.equal(*found)
    linear_layers(row.requires_grad_(), weights, biases, 0.2).sum().backward()
    assert row.grad is not None
    row = row.detach()
    with torch.no_grad():
        linear_layers(row.expand(2, -1), weights, biases)
        linear_layers(row[:0], weights, biases)
        linear_layers(row.double(), [weight.double() for weight in weights])
        linear_layers(row, [weight.T for weight in weights])
        linear_layers(row[:, :8], [weight[:, :8].contiguous() for weight in weights[:1]])
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["knn", "soft_knn"])
def test_one_query_scores_as_it_does_among_others(name, calls):
    vectors = np.random.default_rng(0).normal(size=(2100, 512)).astype(np.float32)
    scorer = ood.create(name).fit(vectors)
    together = scorer.score(vectors[:3])
    assert not calls
    np.testing.assert_allclose([scorer.score(vectors[i : i + 1])[0] for i in range(3)], together, rtol=1e-4, atol=1e-4)
    assert len(calls) == 3
