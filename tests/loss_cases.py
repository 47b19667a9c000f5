"""Draws, worked examples and slow oracles that the tests of the losses share."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline.losses import create_loss, loss_options

reproducible = settings(derandomize=True, database=None, deadline=None, max_examples=60)
both = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # pairs one by one, and the compiled way

exactly = {"rtol": 0, "atol": 0}
assert_equal = partial(assert_close, **exactly)
KNOWN = {"n_classes": 4, "embedding_dim": 6, "n_levels": 2, "class_counts": [4, 2]}
KNOWN["terms"] = [{"name": "sup_ap", "weight": 0.9}, {"name": "csl", "weight": 0.1}]
STATEFUL = {"memory": 2, "margin_noise": True, "mixup": True}
TREE = torch.tensor([[0, 0], [1, 0], [2, 1], [3, 1]]).repeat(3, 1)

# The specification's examples: one query, five items, the second and the last of them relevant.
E1 = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]], dtype=torch.float64)
E2 = torch.tensor([[0.62, 0.60, 0.59, 0.585, 0.50]], dtype=torch.float64)
E_RELEVANT = torch.tensor([[False, True, False, False, True]])
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3, 3])  # of unequal classes, one of a single item
# Of length 1, and every cosine a multiple of a half: what is tied on paper is tied in both computations.
HALVES = torch.cat([torch.eye(4), -torch.eye(4), torch.tensor(list(itertools.product([0.5, -0.5], repeat=4)))]).double()


def options_of(name, options):
    """Those of the options that a loss has."""
    return {key: value for key, value in options.items() if key in loss_options(name)}


def create(name, **options):
    """The loss by name, with what it asks for of ``KNOWN``."""
    return create_loss(name, **options_of(name, KNOWN) | options)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed=0, n_items=10, dim=4, dtype=torch.float64):
    return torch.randn(n_items, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_pairs(seed=0, n_queries=5, n_items=9, share=0.4, apart=False):
    """Scores in steps of 0.05, many of them equal unless they are to be apart, with any relevance and mask."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-8, 9, (n_queries, n_items), generator=generator).double() / 20
    if apart:  # multiples of a gap that meets neither 0 nor delta
        rows = [torch.randperm(60, generator=generator)[:n_items] for _ in range(n_queries)]
        scores = torch.stack(rows).double() * 0.0173
    return scores, *(torch.rand(n_queries, n_items, generator=generator) < part for part in (share, 0.83))


def value_and_gradient(loss, leaf, *rest, **options):
    leaf = leaf.detach().clone().requires_grad_()
    value = loss(leaf, *rest, **options)
    value.backward()
    return value.detach(), leaf.grad


def gradient_of(loss, leaf):
    return value_and_gradient(loss, leaf)[1]


def references(ref_emb, ref_labels):
    return {"ref_emb": ref_emb, "ref_labels": ref_labels}


@st.composite
def lists(draw_value, step=1 / 16, most=16):
    """Scores in steps, some of them equal, with any relevance and any mask."""
    n_queries, n_items = draw_value(st.integers(1, 4)), draw_value(st.integers(1, 8))
    row, rows = ({"min_size": n, "max_size": n} for n in (n_items, n_queries))
    scores = draw_value(st.lists(st.lists(st.integers(-most, most), **row), **rows))
    relevant, mask = (draw_value(st.lists(st.lists(st.booleans(), **row), **rows)) for _ in range(2))
    return double(scores) * step, torch.tensor(relevant), torch.tensor(mask)


def sides(scores, relevant, mask):
    """The relevant and the irrelevant scores of each query, one after the other."""
    for row, is_relevant, listed in zip(scores.tolist(), relevant.tolist(), mask.tolist(), strict=True):
        items = [(score, good) for score, good, present in zip(row, is_relevant, listed, strict=True) if present]
        yield [score for score, good in items if good], [score for score, good in items if not good]


def mean_over_lists(loss_of_list, scores, relevant, mask):
    """The mean of ``loss_of_list(relevant scores, irrelevant scores)`` over the lists with a relevant item."""
    found = [loss_of_list(yes, no) for yes, no in sides(scores, relevant, mask) if yes]
    return sum(found) / len(found) if found else 0
