"""Hierarchical AP and NDCG with smooth ranks: the spec's vectors, slow definitions, bounds."""

import math

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.labels.relevance import population_relevance, sum_wap_relevance, weight_relevance
from sightline.losses.average_precision import smooth_ap_loss, sup_ap_loss
from sightline.losses.graded import (
    SmoothHAPLoss,
    SmoothNDCGLoss,
    SupHAPLoss,
    SupNDCGLoss,
    _h_ap,
    smooth_h_ap_loss,
    smooth_ndcg_loss,
    sup_h_ap_loss,
    sup_ndcg_loss,
)
from sightline.losses.recall import smooth_recall_loss, sup_recall_loss
from sightline.ranking.pairs import level_counts
from sightline.ranking.ranks import SupStep

LEVELS = torch.tensor([[2, 3, 0, 1, 3]])
E1 = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]], dtype=torch.float64)
E2 = torch.tensor([[0.62, 0.60, 0.59, 0.585, 0.50]], dtype=torch.float64)
both = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # pairs one by one, and the compiled way
close = {"rtol": 0, "atol": 2e-6}


def value(loss, scores, *rest, dtype=torch.float64, **options):
    return loss(scores.to(dtype), *rest, **options).item()


@both
@pytest.mark.parametrize(("scores", "expected"), [(E1, 0.6522601), (E2, 0.4689335)])
def test_sup_h_ap_of_the_worked_examples(scores, expected, dtype):
    assert_close(value(sup_h_ap_loss, scores, LEVELS / 3, dtype=dtype), expected, **close)


@both
@pytest.mark.parametrize(("scores", "by_value", "by_level"), [(E1, 0.3287442, 0.5323622), (E2, 0.3280576, 0.3489002)])
def test_sup_h_ap_with_population_relevance_by_value_and_by_level(scores, by_value, by_level, dtype):
    table = population_relevance(level_counts(LEVELS.to(torch.int8), 3))
    relevance = table.gather(1, LEVELS)
    assert_close(value(sup_h_ap_loss, scores, relevance, dtype=dtype), by_value, **close)
    levels = LEVELS.to(torch.int8)
    found = _h_ap(scores.to(dtype), levels, level_counts(levels, 3), table, SupStep())
    assert_close(found.item(), by_level, **close)


@both
@pytest.mark.parametrize(("scores", "expected"), [(E1, 0.4952961), (E2, 0.3667893)])
def test_sup_ndcg_of_the_worked_examples(scores, expected, dtype):
    assert_close(value(sup_ndcg_loss, scores, 2.0**LEVELS - 1, dtype=dtype), expected, **close)


@pytest.mark.parametrize("scores", [E1, E2])  # in the same order: a metric tells them not apart
def test_metrics_of_the_worked_examples(scores):
    population = population_relevance(level_counts(LEVELS.to(torch.int8), 3)).gather(1, LEVELS)
    for loss, definition, relevance, expected in (
        (smooth_h_ap_loss, h_ap_by_definition, LEVELS / 3, 0.2166667),
        (smooth_h_ap_loss, h_ap_by_definition, population, 0.1083333),
        (smooth_ndcg_loss, ndcg_by_definition, 2.0**LEVELS - 1, 0.2091850),
    ):
        assert_close(1 - definition(scores[0].tolist(), relevance[0].tolist()), expected, **close)
        assert_close(loss(scores, relevance, tau=1e-5).item(), expected, **close)


@both
@pytest.mark.parametrize("seed", range(5))
def test_with_two_grades_hierarchical_ap_is_ap(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    scores, relevant = torch.rand(6, 30, generator=generator).to(dtype), torch.rand(6, 30, generator=generator) < 0.5
    assert_close(sup_h_ap_loss(scores, relevant * 0.7), sup_ap_loss(scores, relevant))
    assert_close(smooth_h_ap_loss(scores, relevant * 0.7), smooth_ap_loss(scores, relevant))


def counting_rank(scores, k):
    return sum(score >= scores[k] for score in scores)


def h_ap_by_definition(scores, relevance):
    total = 0.0
    for k, worth in enumerate(relevance):
        if worth:
            at_least = [min(worth, relevance[j]) for j, score in enumerate(scores) if score >= scores[k]]
            total += sum(at_least) / counting_rank(scores, k)
    return total / sum(relevance)


def ndcg_by_definition(scores, gains):
    found = sum(gain / math.log2(1 + counting_rank(scores, k)) for k, gain in enumerate(gains))
    return found / sum(gain / math.log2(1 + place) for place, gain in enumerate(sorted(gains, reverse=True), start=1))


@pytest.mark.parametrize("loss", [smooth_h_ap_loss, smooth_ndcg_loss])
def test_smooth_losses_tend_to_the_metric_as_tau_falls(loss):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randperm(12, generator=generator).double()[None] / 12
    levels = torch.randint(0, 4, (1, 12), generator=generator).double()
    definition = h_ap_by_definition if loss is smooth_h_ap_loss else ndcg_by_definition
    assert_close(loss(scores, levels, tau=1e-4).item(), 1 - definition(scores[0].tolist(), levels[0].tolist()))


def test_hierarchical_ap_with_sum_wap_relevance_is_the_weighted_sum_of_the_levels_ap():
    generator = torch.Generator().manual_seed(4)
    scores = torch.randperm(20, generator=generator).double()[None] / 20
    levels = torch.randint(0, 4, (1, 20), generator=generator)
    weights = (0.2, 0.3, 0.5)
    relevance = sum_wap_relevance(level_counts(levels.to(torch.int8), 3), weights).gather(1, levels)
    by_level = [1 - smooth_ap_loss(scores, levels >= level, tau=1e-4).item() for level in (1, 2, 3)]
    expected = sum(weight * ap for weight, ap in zip(weights, by_level, strict=True))
    assert_close(1 - smooth_h_ap_loss(scores, relevance, tau=1e-4).item(), expected)


LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, 1]])


@pytest.mark.parametrize(
    "module",
    [SupHAPLoss(), SupHAPLoss("weight", 2.0), SupHAPLoss("sum_wap"), SmoothHAPLoss(), SupNDCGLoss(), SmoothNDCGLoss()],
)
def test_modules_take_levels_and_a_reference_set(module):
    generator = torch.Generator().manual_seed(5)
    embeddings = torch.randn(8, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    loss = module(embeddings, LABELS)
    loss.backward()
    assert 0 < loss.item() <= 1
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().sum() > 0
    assert_close(module(embeddings.float(), LABELS), loss.float(), rtol=1e-4, atol=1e-5)
    with_copy = module(embeddings, LABELS, ref_emb=embeddings.detach(), ref_labels=LABELS)
    assert 0 <= with_copy.item() < loss.item()  # each item finds itself first


def test_a_higher_alpha_weighs_the_finest_level_more():
    counts = torch.tensor([[3, 2, 2]])
    assert_close(weight_relevance(counts, 2.0), torch.tensor([[0.0, 0.25, 1.0]], dtype=torch.float64))
    assert_close(
        population_relevance(counts, 5.0)[0, 2] / population_relevance(counts, 5.0)[0, 1], torch.tensor(32.0).double()
    )


@both
def test_edges_are_zero_or_defined_and_never_nan(dtype):
    scores = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]], dtype=dtype, requires_grad=True)
    for relevance in (torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[0.0, 1, 2], [0, 0, 0]])):
        for loss in (sup_h_ap_loss, smooth_h_ap_loss, sup_ndcg_loss, smooth_ndcg_loss, sup_recall_loss, smooth_recall_loss):
            scores.grad = None
            result = loss(scores, relevance)
            result.backward()
            assert result.isfinite()
            assert scores.grad.isfinite().all()
    assert sup_h_ap_loss(scores, torch.zeros(2, 3)).item() == 0
    assert sup_h_ap_loss(scores, torch.ones(2, 3)).item() == 0


@pytest.mark.parametrize("loss", [sup_h_ap_loss, smooth_h_ap_loss, sup_ndcg_loss, smooth_ndcg_loss])
def test_each_query_may_have_grades_of_its_own(loss):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 30, generator=generator)
    grades = torch.randint(0, 5, (50, 30), generator=generator).float()
    factors = 1 + torch.arange(50)[:, None] / 64  # 200 grades in all; a factor changes neither metric
    assert_close(loss(scores, grades * factors), loss(scores, grades), rtol=1e-5, atol=0)


def test_bad_input_is_named():
    scores = torch.rand(2, 200)
    with pytest.raises(InputError, match="a query's list has 200 grades of relevance, at most 126 are supported"):
        sup_h_ap_loss(scores, 1 + torch.arange(400.0).reshape(2, 200))
    with pytest.raises(InputError, match="relevance: finite numbers from 0 on"):
        sup_h_ap_loss(scores, -torch.ones(2, 200))
    with pytest.raises(InputError, match="unknown relevance 'populaton': did you mean 'population'"):
        SupHAPLoss("populaton")
    with pytest.raises(InputError, match=r"alpha is 0\.0;"):
        SupHAPLoss(alpha=0.0)


@both
@pytest.mark.parametrize("loss", [sup_h_ap_loss, smooth_h_ap_loss, sup_ndcg_loss, smooth_ndcg_loss])
@pytest.mark.parametrize("scale", [1e-310, 1e-40, 1e38, 1e39, 1e307])
def test_the_scale_of_relevance_is_of_no_account(loss, scale, dtype):
    plain, scaled = (value(loss, E1, LEVELS.double() * factor, dtype=dtype) for factor in (1.0, scale))
    assert_close(scaled, plain, rtol=1e-6, atol=0)


@both
def test_relevance_of_a_high_alpha_is_that_of_the_levels_at_hand(dtype):
    # All share the coarsest of seven levels alone: one grade, all of it relevant, so the ranking is right.
    labels = torch.cat([torch.arange(6)[:, None].expand(-1, 6), torch.zeros(6, 1, dtype=torch.int64)], 1)
    embeddings = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    assert_close(SupHAPLoss(alpha=50.0)(embeddings, labels).item(), 0.0, rtol=0, atol=1e-6)
