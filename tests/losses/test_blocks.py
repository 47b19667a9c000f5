"""A loss in blocks of queries equals the loss of the whole batch, value and gradients; and what cannot be split."""

import subprocess
import sys

import pytest
import torch

from refusals import assert_refused
from sightline.losses import create_loss
from sightline.losses.blocks import MEANS, check_blocks, loss_in_blocks
from sightline.losses.sums import terms_of

FLAT, TREE = torch.arange(40) % 10, torch.stack([torch.arange(40) % 10, torch.arange(40) % 5], 1)
SIZES = {"n_classes": 10, "embedding_dim": 6}
ON_CLASSES = ("sup_ap", "smooth_ap", "fast_ap", "softbin_ap", "sup_recall", "smooth_recall", "roadmap", "calibration")
LOSSES = [
    *((name, {}, FLAT) for name in (*ON_CLASSES, "rod_recall")),
    ("sup_ap", {"preset": "released-code"}, FLAT),
    ("roadmap", {"decomposability": "proxy", **SIZES}, FLAT),
    *((name, {}, TREE) for name in ("sup_h_ap", "smooth_h_ap", "sup_ndcg", "smooth_ndcg")),
    *((name, SIZES, TREE) for name in ("happier", "happier_f")),
]


@pytest.mark.parametrize(("name", "options", "labels"), LOSSES, ids=[f"{n}-{len(o)}" for n, o, _ in LOSSES])
@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_blocks_equal_the_whole(name, options, labels, at_once):
    torch.manual_seed(0)
    loss = create_loss(name, **options).double()
    check_blocks(loss)
    whole = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    parts = whole.detach().clone().requires_grad_()
    expected = loss(whole, labels)
    named = {key: term.detach().clone() for key, term in terms_of(loss).items()}
    weights = list(loss.parameters())
    slopes = torch.autograd.grad(3 * expected, [whole, *weights])
    found, terms = loss_in_blocks(loss, parts, labels, at_once)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(terms, named)
    torch.testing.assert_close(torch.autograd.grad(3 * found, [parts, *weights]), slopes)
    with torch.no_grad():
        assert not loss_in_blocks(loss, parts, labels, at_once)[0].requires_grad


def test_memory_is_that_of_a_block():
    code = """
import resource, torch
from sightline.losses import create_loss
from sightline.losses.blocks import loss_in_blocks
loss, labels = create_loss("roadmap"), torch.arange(8192) // 4
rows = torch.randn(8192, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
loss(rows[:64], labels[:64]).backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss_in_blocks(loss, rows, labels, 128)[0].backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 8192 * 8192 * 4 / 2**20 / 2, f"{grown} MB: half of the table of scores alone"


def test_what_is_no_mean_over_queries_and_a_class_of_one_image_are_refused():
    for name, options, fact in (
        ("triplet", {}, "TripletLoss"),
        ("contrastive", {}, "ContrastiveLoss"),
        ("blackbox_ap", {}, "BlackBoxAPLoss"),
        ("norm_softmax", SIZES, "NormSoftmaxLoss"),
        ("roadmap", {"preset": "released-code"}, "reduction=nonzero"),
        ("softbin_ap", {"class_balanced": True}, "class_balanced=True"),
        ("smooth_recall", {"mixup": True}, "mixup=True"),
    ):
        assert_refused([fact, "queries_at_once"], check_blocks, create_loss(name, **options))
    loss = create_loss("sup_ap")
    assert isinstance(loss, MEANS)
    assert_refused(["2 classes"], loss_in_blocks, loss, torch.eye(4), torch.tensor([0, 0, 1, 2]), 2)
