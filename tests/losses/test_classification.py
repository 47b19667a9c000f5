"""Binary cross-entropy over classes, sets of labels and codes, against torch's own loss and against one label at a time."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize, one_hot
from torch.testing import assert_close

from loss_cases import double, draw
from refusals import assert_refused
from sightline import losses
from sightline.labels.codes import CodeRelevance
from sightline.losses.several_codes import CodesLoss, ItemCodes

CODES = [["1.1", "3.1"], ["1.2"], ["1.1", "1.2"], ["2"]]
CODED = [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]]  # of 1.1, 1.2, 2, 3.1
ABOVE = [[1, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]]  # of 1, 2, 3


def by_definition(embeddings, has, weight, bias):
    """One item and one label at a time."""
    terms = []
    for vector, own in zip(embeddings.tolist(), has.tolist(), strict=True):
        for row, start, present in zip(weight.tolist(), bias.tolist(), own, strict=True):
            logit = sum(a * b for a, b in zip(vector, row, strict=True)) / math.hypot(*vector) + start
            terms.append(-math.log(1 / (1 + math.exp(-logit if present else logit))))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_its_definition_and_that_of_torch(seed):
    embeddings, weight, bias, has = draw(seed, 6), 9 * draw(seed + 10, 5), draw(seed + 20, 1, 5)[0], draw(seed, 6, 5) > 0.5
    found = losses.binary_cross_entropy_loss(embeddings, has, weight, bias)
    assert_close(found.item(), by_definition(embeddings, has, weight, bias))
    logits = torch.nn.functional.linear(normalize(embeddings), weight, bias)
    assert_close(found, torch.nn.BCEWithLogitsLoss()(logits, has.double()))
    classes = torch.tensor([0, 4, 2, 2, 1, 0])
    levels = torch.stack([classes, classes // 2], 1)
    of_sets = losses.binary_cross_entropy_loss(embeddings, one_hot(classes, 5).bool(), weight, bias)
    for labels in (classes, levels, levels.tolist()):
        assert_close(losses.binary_cross_entropy_loss(embeddings, labels, weight, bias), of_sets)


def test_worked_example_gradient_and_edges():
    embeddings, weight, bias = double([[0.0, 5.0]]), double([[1.0, math.log(3)]]), double([0.0])
    for has, chance in ((True, 3 / 4), (False, 1 / 4)):  # the odds are 3 to 1
        assert_close(
            losses.binary_cross_entropy_loss(embeddings, torch.tensor([[has]]), weight, bias).item(), -math.log(chance)
        )
    leaves = [draw(seed, *shape).requires_grad_() for seed, shape in ((1, (4, 4)), (2, (3, 4)), (3, (1, 3)))]
    has = draw(4, 4, 3) > 0
    assert gradcheck(lambda e, w, b: losses.binary_cross_entropy_loss(e, has, w, b[0]), leaves)
    far = 1e4 * draw(2, 3).requires_grad_()
    losses.binary_cross_entropy_loss(torch.zeros(2, 4).double(), has[:2], far, torch.zeros(3)).backward()
    assert losses.binary_cross_entropy_loss(draw(0, 0), has[:0], draw(2, 3), torch.zeros(3)) == 0
    loss = losses.create_loss("binary_cross_entropy", n_classes=8, embedding_dim=4)
    assert_close(loss.bias.sigmoid().detach(), torch.full((8,), 1 / 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(draw(0, 3).bfloat16(), torch.tensor([0, 7, 2])).dtype == torch.float32


@pytest.mark.parametrize(("level", "has"), [(0, CODED), (1, ABOVE)])
def test_codes_are_classified_at_the_level_or_at_every_depth(level, has):
    codes, numbers = ItemCodes(CODES, CodeRelevance(2), level), torch.tensor([3, 0, 2, 1])
    made = losses.create_loss("binary_cross_entropy", n_classes=codes.counts[level], embedding_dim=4).double()
    embeddings, targets = draw(0, 4), torch.tensor(has).bool()[numbers]
    expected = by_definition(embeddings, targets, made.weight, made.bias)
    assert_close(CodesLoss(made, codes)(embeddings, numbers).item(), expected)
    every = losses.create_loss("sum_binary_cross_entropy", class_counts=codes.counts, embedding_dim=4, seed=0).double()
    CodesLoss(every, codes)(embeddings, numbers)
    part = every.losses[level]
    assert_close(every.terms[f"level_{level}"].item(), by_definition(embeddings, targets, part.weight, part.bias))


def test_what_does_not_fit_is_refused():
    loss = losses.create_loss("binary_cross_entropy", n_classes=3, embedding_dim=4)
    assert_refused(["(4, 3)", "(4, 2)"], loss, draw(0, 4), torch.zeros(4, 2).bool())
    assert_refused(["3", "[5]"], loss, draw(0, 2), torch.tensor([0, 5]))
    assert_refused(["ref_emb"], loss, draw(0, 2), torch.tensor([0, 1]), ref_emb=draw(1), ref_labels=torch.arange(10))
