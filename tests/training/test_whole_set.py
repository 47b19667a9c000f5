"""A batch ranked against all training images: one list, nobody in it twice or against itself."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline import create_loss
from sightline.losses import sup_ap_loss
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory


def rows(n, seed):
    return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


@pytest.fixture
def memory():
    """Images 0 to 11 of three classes, by their latest embeddings."""
    memory = CrossBatchMemory(12, 6, 1).double()
    memory.push(rows(12, 0), torch.arange(12)[:, None] % 3, torch.arange(12))
    return memory


def test_the_loss_and_its_gradient_are_those_of_the_list_written_out(memory):
    ids = torch.tensor([4, 7, 2, 11])
    batch, labels = rows(4, 1).requires_grad_(), ids % 3
    loss = BatchLoss(create_loss("sup_ap", tau=0.1), memory, joined=True)
    value = loss(batch, labels, ids)
    (found,) = torch.autograd.grad(value, batch)

    others = [number for number in range(12) if number not in ids]
    items = torch.cat([batch, rows(12, 0)[others]])
    relevant = labels[:, None] == torch.cat([labels, torch.tensor(others) % 3])
    mask = ~torch.eye(4, 12, dtype=torch.bool)
    expected = sup_ap_loss(F.normalize(batch, dim=1) @ F.normalize(items, dim=1).T, relevant, mask, tau=0.1)
    assert_close(value, expected)
    assert_close(found, torch.autograd.grad(expected, batch)[0])


def test_what_has_passed_replaces_its_older_embedding(memory):
    ids = torch.tensor([4, 7])
    batch = rows(2, 1)
    BatchLoss(create_loss("sup_ap"), memory, joined=True).train()(batch, ids % 3, ids)
    order = memory.ids.argsort()
    expected = rows(12, 0)
    expected[ids] = batch
    assert_close(memory.rows[order], expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sup_ap", "smooth_ap", "sup_recall", "sup_h_ap", "sup_ndcg", "contrastive"])
def test_an_item_never_meets_itself(memory, name):
    """Two items of classes that nobody else has find nothing: none counts as its own answer."""
    ids = torch.tensor([20, 21])
    batch, labels = rows(2, 3).requires_grad_(), torch.tensor([[7], [8]])
    loss = create_loss(name)
    alone = loss(batch, labels, ref_emb=torch.cat([batch, memory.rows]), ref_labels=torch.cat([labels, memory.labels]))
    apart = loss(batch, labels, ref_emb=memory.rows, ref_labels=memory.labels)
    assert_close(BatchLoss(loss, memory, joined=True)(batch, labels, ids), alone)
    if name != "contrastive":  # whose irrelevant pairs count, each with the other item of the batch too
        assert_close(alone, apart)
