"""Earlier embeddings as more items: what is kept, what is left out, and what the loss makes of it."""

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch.testing import assert_close

from refusals import assert_refused
from sightline import Encoder, train
from sightline.losses import SupAPLoss, create_loss, sup_ap_loss
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory, remember
from sightline.training.large_batch import Examples


def draw(seed, n_items=6):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n_items,), generator=generator)
    return torch.randn(n_items, 4, generator=generator), torch.stack([labels, labels // 2], 1)


def test_the_newest_items_push_out_the_oldest_and_an_image_is_held_once():
    memory = CrossBatchMemory(size=5, dim=4, n_levels=2)
    for step in range(3):
        embeddings, labels = draw(step, 3)
        memory.push(embeddings, labels, torch.arange(3) + 3 * step)
    assert memory.ids.tolist() == [4, 5, 6, 7, 8]
    assert_close(memory.rows, torch.cat([draw(1, 3)[0], draw(2, 3)[0]])[1:])
    memory = CrossBatchMemory(size=10, dim=4, n_levels=2)
    first, labels = draw(0)
    memory.push(first, labels, torch.arange(6))
    second, _ = draw(1)
    memory.push(second[:2], labels[:2], torch.tensor([1, 3]))
    assert memory.ids.tolist() == [0, 2, 4, 5, 1, 3]
    rows, kept = memory.references(torch.tensor([0, 1]))
    assert_close(rows, torch.cat([first[[2, 4, 5]], second[1:2]]))
    assert_close(kept, torch.cat([labels[[2, 4, 5]], labels[1:2]]))
    memory.push(second[:4], labels[:4], torch.tensor([8, 9, 8, 2]))  # twice in one batch: the last counts
    assert memory.ids.tolist() == [0, 4, 5, 1, 3, 9, 8, 2]
    assert_close(memory.rows[-3:], second[1:4])


@pytest.mark.parametrize("start", [1, 2])
def test_batch_and_memory_count_in_equal_parts_from_its_start_on(start):
    plain = create_loss("roadmap")
    loss, (second, labels) = BatchLoss(plain, CrossBatchMemory(20, 4, 2), start=start), draw(1)
    for step in range(start):
        assert_close(loss(*draw(step), torch.arange(6) + 6 * step), plain(*draw(step)))
        assert_close(loss.terms, {f"batch/{name}": term for name, term in plain.terms.items()})
    rows, row_labels = (torch.cat(parts) for parts in zip(*(draw(step) for step in range(start)), strict=True))
    leaf, ids = second.clone().requires_grad_(), torch.tensor([0, 1, 20, 21, 22, 23])  # two are held already
    value, alone = loss(leaf, labels, ids), plain(second, labels)
    terms = {f"batch/{name}": term for name, term in plain.terms.items()}
    assert_close(value, (alone + plain(second, labels, ref_emb=rows[2:], ref_labels=row_labels[2:])) / 2)
    assert_close(loss.terms, terms | {f"memory/{name}": term for name, term in plain.terms.items()})
    value.backward()
    assert leaf.grad.abs().sum() > 0
    assert not loss.memory.rows.requires_grad
    plain = BatchLoss(SupAPLoss(), CrossBatchMemory(20, 4, 2), start=1)
    plain(*draw(0), torch.arange(6))
    assert list(plain.terms) == ["batch"]


def test_a_momentum_encoder_fills_the_memory_by_the_running_mean_of_the_weights():
    """Written out: after each step the mean moves a quarter of the way, and its embeddings of the batch are kept."""
    fabric, layer = Fabric(accelerator="cpu", devices=1), torch.nn.Linear(4, 3, bias=False)
    losses = [BatchLoss(SupAPLoss(), CrossBatchMemory(20, 3, 1), joined=True, momentum=0.75) for _ in range(2)]
    for loss in losses:
        loss.start_keys(layer)
    mean, kept = layer.weight.detach().clone(), {}
    for step in range(3):
        images, labels = draw(step)
        ids = torch.arange(6) + 4 * step  # two of each batch come again in the next
        batch = Examples(images / 2, labels[:, :1], ids)
        losses[0](layer(images), labels[:, :1], ids).backward()
        assert losses[0].memory.ids.sort()[0].tolist() == sorted(kept), "the loss itself adds nothing"
        with torch.no_grad():
            layer.weight += torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(step))
        for loss, chunk_size in zip(losses, (None, 4), strict=True):
            remember(fabric, loss, layer, batch, chunk_size, finished=lambda halves: 2 * halves)
        mean = 0.75 * mean + 0.25 * layer.weight.detach()
        kept |= dict(zip(ids.tolist(), images @ mean.T, strict=True))
    for loss in losses:
        assert loss.memory.ids.sort()[0].tolist() == sorted(kept)
        assert_close(loss.memory.rows, torch.stack([kept[number] for number in loss.memory.ids.tolist()]))
        assert not any(weight.requires_grad for weight in loss.keys.parameters())


def test_proxies_follow_the_mean_of_their_class():
    loss = create_loss("norm_softmax", n_classes=3, embedding_dim=4)
    together = BatchLoss(loss, followers=[loss.proxies])
    embeddings, labels = draw(0)
    embeddings.requires_grad_()
    unit = embeddings.detach() / embeddings.detach().norm(dim=1, keepdim=True)
    together.move_proxies(embeddings, labels, step=1.0)
    for number in labels[:, 0].unique():
        mean = unit[labels[:, 0] == number].mean(0)
        assert_close(loss.proxies[number].detach(), mean / mean.norm())
    before, (other, other_labels) = loss.proxies.clone(), draw(5)
    together(other.requires_grad_(), other_labels, torch.arange(6)).backward()
    assert other.grad is not None
    assert loss.proxies.grad is None
    unit = other.detach() / other.detach().norm(dim=1, keepdim=True)
    for number in range(3):
        mean = unit[other_labels[:, 0] == number].sum(0)
        is_there = bool((other_labels[:, 0] == number).any())
        expected = 0.9 * before[number] + 0.1 * mean / mean.norm() if is_there else before[number]
        assert_close(loss.proxies[number], expected)
    before = loss.proxies.clone()
    together.eval()(other, other_labels, torch.arange(6))
    assert_close(loss.proxies, before, rtol=0, atol=0)


class TestWholeSet:
    """A batch ranked against all training images: one list, nobody in it twice or against itself."""

    @staticmethod
    def rows(n, seed):
        return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)

    @pytest.fixture
    def memory(self):
        """Images 0 to 11 of three classes, by their latest embeddings."""
        memory = CrossBatchMemory(12, 6, 1).double()
        memory.push(self.rows(12, 0), torch.arange(12)[:, None] % 3, torch.arange(12))
        return memory

    def test_the_loss_and_its_gradient_are_those_of_the_list_written_out(self, memory):
        ids = torch.tensor([4, 7, 2, 11])
        batch, labels = self.rows(4, 1).requires_grad_(), ids % 3
        value = BatchLoss(create_loss("sup_ap", tau=0.1), memory, joined=True)(batch, labels, ids)
        (found,) = torch.autograd.grad(value, batch)
        others = [number for number in range(12) if number not in ids]
        items = torch.cat([batch, self.rows(12, 0)[others]])
        relevant = labels[:, None] == torch.cat([labels, torch.tensor(others) % 3])
        mask = ~torch.eye(4, 12, dtype=torch.bool)
        expected = sup_ap_loss(F.normalize(batch, dim=1) @ F.normalize(items, dim=1).T, relevant, mask, tau=0.1)
        assert_close(value, expected)
        assert_close(found, torch.autograd.grad(expected, batch)[0])
        order, latest = memory.ids.argsort(), self.rows(12, 0)
        latest[ids] = batch.detach()
        assert_close(memory.rows[order], latest, rtol=0, atol=0)

    @pytest.mark.parametrize("name", ["sup_ap", "sup_recall", "sup_h_ap", "sup_ndcg"])
    def test_an_item_never_meets_itself(self, memory, name):
        """Two items of classes that nobody else has find nothing: none counts as its own answer."""
        batch, labels = self.rows(2, 3), torch.tensor([[7], [8]])
        apart = create_loss(name)(batch, labels, ref_emb=memory.rows, ref_labels=memory.labels)
        joined = BatchLoss(create_loss(name), memory, joined=True)
        assert_close(joined(batch, labels, torch.tensor([20, 21])), apart)


def test_training_with_scores_in_blocks_is_training_without(recipe_with, tmp_path):
    weights = []
    same = "schedule.epochs=1", "schedule.warmup_epochs=0", "chunk_size=6", "optimizer.lr=1e-4"
    for out, settings in (("a", ["loss.queries_at_once=3"]), ("b", [])):
        weights.append(Encoder.from_pretrained(train(recipe_with(*same, *settings), tmp_path / out)).state_dict())
    assert_close(*weights, rtol=1e-4, atol=1e-5)
    both = recipe_with("loss.queries_at_once=3", "memory.size=all", "loss.name=sup_ap")
    assert_refused(["loss.queries_at_once", "memory.size"], train, both, tmp_path / "both")
