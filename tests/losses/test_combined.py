import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.losses.average_precision import sup_ap_loss
from sightline.losses.combined import roadmap, roadmap_loss
from sightline.losses.pairwise import calibration_loss
from sightline.ranking.relevance import batch_pairs

E1, E2 = [0.9, 0.8, 0.7, 0.6, 0.5], [0.62, 0.60, 0.59, 0.585, 0.50]
E_RELEVANT = torch.tensor([[False, True, False, False, True]])


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(seed, n_queries=4, n_items=8):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n_queries, n_items, generator=generator, dtype=torch.float64)
    return scores, *(torch.rand(n_queries, n_items, generator=generator) < share for share in (0.4, 0.8))


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    ("scores", "sup_ap", "calibration"), [(E1, 0.9170087, 0.3833333), (E2, 0.7757919, 0.3566667)], ids=["E1", "E2"]
)
def test_worked_examples(scores, sup_ap, calibration, weight):
    found = roadmap_loss(double([scores]), E_RELEVANT, weight=weight).item()
    assert_close(found, (1 - weight) * sup_ap + weight * calibration, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_the_weighted_sum(seed):
    scores, relevant, mask = draw(seed)
    scores.requires_grad_()
    options, marks = {"tau": 0.05, "rho": 20.0, "delta": 0.1}, {"alpha": 0.8, "beta": 0.3}
    loss = roadmap_loss(scores, relevant, mask, weight=0.3, **options, **marks)
    rank_term = sup_ap_loss(scores, relevant, mask, **options)
    pair_term = calibration_loss(scores, relevant, mask, **marks)
    assert_close(loss, 0.7 * rank_term + 0.3 * pair_term)
    gradient, of_rank, of_pair = (torch.autograd.grad(part, scores)[0] for part in (loss, rank_term, pair_term))
    assert_close(gradient, 0.7 * of_rank + 0.3 * of_pair)


def test_terms_are_averaged_over_their_own_queries():
    """A query without relevant items is left out of the rank term, and counts in the pair term with its excess."""
    scores, relevant = double([[0.7, 0.7], [0.7, 0.7]]), torch.tensor([[True, False], [False, False]])
    rank_term, pair_term = 1 - 1 / 2, ((0.2 + 0.1) + 0.1) / 2
    assert_close(roadmap_loss(scores, relevant).item(), 0.5 * rank_term + 0.5 * pair_term)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_the_finite_difference(seed):
    scores, relevant, mask = draw(seed, 3, 6)
    gaps = scores[:, None, :] - scores[:, :, None] + torch.eye(6)
    assert min(gaps.abs().min(), (gaps - 0.05).abs().min()) > 1e-5  # off the jumps
    assert gradcheck(lambda scores: roadmap_loss(scores, relevant, mask), scores.requires_grad_(), rtol=1e-4)


def test_single_class_leaves_the_pair_term():
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert_close(roadmap()(embeddings, torch.tensor([4, 4])).item(), 0.5 * 0.3)
    assert roadmap(weight=0.0)(embeddings, torch.tensor([4, 4])).item() == 0


def test_module_hands_every_option_on():
    embeddings = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
    pairs = batch_pairs(embeddings, labels)
    default = roadmap()(embeddings, labels).item()
    assert_close(default, roadmap_loss(pairs.scores, pairs.relevant, pairs.mask).item())
    for option in ({"weight": 0.9}, {"tau": 0.05}, {"rho": 20.0}, {"delta": 0.3}, {"alpha": 0.7}, {"beta": 0.1}):
        found = roadmap(**option)(embeddings, labels).item()
        assert_close(found, roadmap_loss(pairs.scores, pairs.relevant, pairs.mask, **option).item())
        assert abs(found - default) > 1e-4


def test_module_with_a_reference_set():
    embeddings, references = (torch.randn(n, 4, generator=torch.Generator().manual_seed(n)).double() for n in (3, 5))
    labels, ref_labels = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1, 0, 3])
    pairs = batch_pairs(embeddings, labels, references, ref_labels)
    expected = roadmap_loss(pairs.scores, labels[:, None] == ref_labels)
    assert_close(roadmap()(embeddings, labels, ref_emb=references, ref_labels=ref_labels), expected)


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan, math.inf])
def test_weight_outside_zero_to_one_is_refused(weight):
    with pytest.raises(InputError, match=rf"^weight is {weight}; a number from 0 to 1 is needed$"):
        roadmap_loss(double([E1]), E_RELEVANT, weight=weight)
    with pytest.raises(InputError, match=rf"^weight is {weight}; a number from 0 to 1 is needed$"):
        roadmap(weight=weight)


def test_options_of_both_terms_are_checked():
    with pytest.raises(InputError, match=r"^tau is -1; a finite number above 0 is needed$"):
        roadmap_loss(double([E1]), E_RELEVANT, tau=-1)
    with pytest.raises(InputError, match=r"^alpha is 0\.1, beta is 0\.6; alpha must be above beta"):
        roadmap_loss(double([E1]), E_RELEVANT, alpha=0.1)
