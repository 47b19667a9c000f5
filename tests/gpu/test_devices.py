"""Whatever is on a device other than the CPU: the same numbers, no tensor of the wrong device, few waits for the device.

`make test-gpu` runs it on CUDA; everywhere else it runs on a device that is pretended.
"""

import copy

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.testing import assert_close

import loss_cases as cases
import sightline as sl
from loss_cases import TREE, create
from sightline.evaluation.metrics import METRICS
from sightline.losses import create_loss, list_losses
from sightline.losses.sums import takes_references
from sightline.models.encoder import Encoder
from sightline.models.heads import Head, Whitening
from sightline.models.inference import open_backend
from sightline.models.pooling import POOLINGS
from sightline.ranking.pairs import level_counts
from sightline.ranking.profile import rank_loss
from sightline.ranking.ranks import SigmoidStep, SupStep
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory
from sightline.training.engine import Engine
from sightline.training.large_batch import Examples
from sightline.training.run_folder import Position, load_checkpoint, save_checkpoint

# How often a forward and a backward pass wait for the device. Once to refuse NaN before it decides an index, which CUDA
# could only answer by ending the process; rank losses once for the largest number of relevant items, the shape of what
# follows. Those with proxies once for labels that have none, for the same reason.
MOST_WAITS = dict.fromkeys(list_losses(), 2) | {
    "csl": 3,  # and for a class with two paths
    "happier": 4,  # the sum of a rank loss and a proxy loss
    "happier_f": 4,
    "rod_ndcg": 4,
    "sum_binary_cross_entropy": 10,
    "sum_norm_softmax": 10,  # numbers the paths of each of two levels as they occur
    "sum_proxy_nca_pp": 10,
    "weighted_sum": 5,  # the sum of its terms
}
every_loss = pytest.mark.parametrize("name", list_losses())


def draw(seed=0, n_items=12, dim=6):
    return cases.draw(seed, n_items, dim, torch.float32)


def run(loss, embeddings, *rest, **beside):
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, *rest, **beside)
    value.backward()
    return [value.detach(), leaf.grad, *(weight.grad for weight in loss.parameters())]


def assert_same(place, found, expected, **tolerance):
    """The same numbers and types, all of them on the device."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.device == place.device
        assert_close(ours.cpu(), theirs, **tolerance)


NEAR = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: tests/gpu has run on a pretended one alone")
def test_cuda_computes():
    assert torch.ones(3, device="cuda").sum().item() == 3


@every_loss
def test_every_loss_follows_its_input(name, place):
    assert (sorted(MOST_WAITS), len(MOST_WAITS)) == (list_losses(), 33)
    loss = create(name)
    ours, expected = place.move(copy.deepcopy(loss)), run(loss, draw(), TREE)
    embeddings, labels = place.move(draw()), place.move(TREE)
    run(create_loss("sup_ap"), embeddings, labels)  # what is kept on the device between calls
    place.waits.clear()
    found = run(ours, embeddings, labels)
    assert sum(place.waits.values()) <= MOST_WAITS[name], place.waits
    assert_same(place, found, expected, **NEAR)


@every_loss
def test_its_options_states_types_and_reference_sets_too(name, place):
    loss = create(name, **cases.options_of(name, cases.STATEFUL))
    ours = place.move(copy.deepcopy(loss))
    for seed in range(2):
        embeddings = draw(seed).bfloat16()
        expected = run(loss, embeddings, TREE)
        assert_same(place, run(ours, place.move(embeddings), place.move(TREE)), expected, rtol=2e-2, atol=1e-3)
        assert expected[0].dtype == torch.float32
    assert all(buffer.device == place.device for buffer in ours.buffers())
    loss, ours = create(name), place.move(create(name))
    if takes_references(loss):
        beside = {"ref_emb": torch.cat([draw(), draw(3)]), "ref_labels": TREE.repeat(2, 1)}
        moved = {key: place.move(value) for key, value in beside.items()}
        found = run(ours, place.move(draw()), place.move(TREE), **moved)
        assert_same(place, found, run(loss, draw(), TREE, **beside), **NEAR)


@pytest.mark.parametrize("name", ["sup_ap", "sup_h_ap", "softbin_ap", "each_label_ap", "roadmap"])
def test_sets_of_labels_and_relevance(name, place):
    sets, relevance = draw(5, 12, 3) > 0, draw(7, 12, 12).clamp(min=0).mul(3).round() / 3
    for labels in (sets, relevance) if name != "each_label_ap" else (sets,):
        found = run(create(name), place.move(draw()), place.move(labels))
        assert_same(place, found, run(create(name), draw(), labels), **NEAR)


@pytest.mark.parametrize("step", [SupStep(), SigmoidStep()], ids=["SupStep", "SigmoidStep"])
@pytest.mark.parametrize("share", [0.02, 0.5])  # pair by pair, and in blocks
def test_the_rank_core_waits_once(step, share, place):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(5, 300, generator=generator)
    levels = (torch.rand(5, 300, generator=generator) < share) * torch.randint(1, 4, (5, 300), generator=generator)
    levels, worth = levels.to(torch.int8), torch.tensor([0.0, 0.5, 1.0, 0.75]).expand(5, -1)

    def objective(profile):
        rank = (profile.above + profile.graded + profile.smooth.sum(2)).clamp(min=1)
        inverse = profile.valid / rank
        return -inverse.sum(1), inverse.square()[..., None].expand_as(profile.smooth)

    results = []
    for move in (lambda tensor: tensor, place.move):
        leaf, own_levels = move(scores.clone()).requires_grad_(), move(levels)
        counts, own_worth = level_counts(own_levels, 3), move(worth)
        rank_loss(leaf, own_levels, counts, step, objective, own_worth).backward()  # keeps its constants on the device
        leaf.grad = None
        place.waits.clear()
        value = rank_loss(leaf, own_levels, counts, step, objective, own_worth)
        value.backward()
        results.append([value.detach(), leaf.grad])
    assert sum(place.waits.values()) <= 1, place.waits
    assert_same(place, results[1], results[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("joined", [False, True], ids=["weighted", "joined"])
def test_cross_batch_memory_and_running_means_of_proxies(joined, place):
    def steps(move):
        terms = [{"name": "sup_ap", "weight": 1.0}, {"name": "norm_softmax", "weight": 0.5}]
        loss = create("sup_ap") if joined else create("weighted_sum", terms=terms)
        followers = [weight for name, weight in loss.named_parameters() if name.endswith("proxies")]
        whole = BatchLoss(loss, CrossBatchMemory(30, 6, 2), 1, 0.5, joined, followers)
        whole = move(whole) if joined else move(BatchLoss(loss, CrossBatchMemory(30, 6, 2), 1))
        found = []
        for step in range(3):
            place.waits.clear()
            leaf = move(draw(step)).requires_grad_()
            whole(leaf, move(TREE), move(torch.arange(12) + 5 * step)).backward()
            found.append(leaf.grad)
        return [*found, whole.memory.rows]

    expected, found = steps(lambda thing: thing), steps(place.move)
    # The memory waits for what of it is listed and for what stays; where it starts later, for the number of the step.
    assert sum(place.waits.values()) - 3 <= (4 if joined else 11), place.waits  # three are this test's own copies
    assert_same(place, found, expected, **NEAR)


def test_a_training_step_reads_its_numbers_at_once(place, monkeypatch):
    """In chunks: loss, terms and norm come to the host together, and the loss itself waits twice."""
    fabric = Fabric(accelerator="cuda" if place.device.type == "cuda" else "cpu", devices=1)
    monkeypatch.setattr(fabric, "to_device", lambda batch: batch)
    results = []
    for move in (lambda thing: thing, place.move):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 6))
        encoder = fabric.setup_module(move(layers), move_to_device=False)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(encoder.parameters(), lr=0.1))
        engine = Engine(fabric, encoder, BatchLoss(create_loss("roadmap")), optimizer, seed=0, chunk_size=5)
        batch = Examples(*map(move, (draw(1, 12, 3 * 64).view(12, 3, 8, 8), TREE, torch.arange(12))))
        for step in range(2):
            place.waits.clear()
            numbers = engine.step(batch, step)
        assert set(numbers) == {"loss", "grad_norm", "lr", "term/sup_ap", "term/calibration"}
        results.append((numbers, [weight.detach() for weight in encoder.parameters()]))
    assert sum(place.waits.values()) <= 3, place.waits
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    assert_same(place, results[1][1], results[0][1], **NEAR)


def test_every_metric(place):
    names = [f"{name}@4" if METRICS.find(name).takes_k == "always" else name for name in sl.list_metrics()]
    labels = np.stack([np.arange(60) // 5, np.arange(60) // 20], 1)
    vectors = draw(0, 60, 8) + torch.from_numpy(labels[:, :1]) / 3
    expected = sl.evaluate(vectors, labels, metrics=names)
    moved = place.move(vectors)
    found = sl.evaluate(moved, labels, metrics=names)
    assert len(names) >= 17
    assert found.means == pytest.approx(expected.means, rel=1e-6, nan_ok=True)
    found = sl.evaluate(moved[::2], labels[::2], gallery=moved[1::2], gallery_labels=labels[1::2])
    expected = sl.evaluate(vectors[::2], labels[::2], gallery=vectors[1::2], gallery_labels=labels[1::2])
    assert found.means == pytest.approx(expected.means, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in POOLINGS.names() if name != "native"])
def test_poolings_heads_and_whitening(name, dtype, place):
    shape = (4, 6) if name == "none" else (4, 5, 6)
    features = draw(0, 4, int(np.prod(shape[1:]))).view(shape).to(dtype)
    head = Head(6, 5, "layer", 4)
    head.whiten(draw(2, 30, 6))
    both = nn.Sequential(POOLINGS.create(name, {}), head)
    expected = both(features.float())
    found = place.move(copy.deepcopy(both))(place.move(features.float()))
    assert_same(place, [found], [expected], **NEAR)
    pooled = place.move(copy.deepcopy(both[0]))(place.move(features))
    assert_same(place, [pooled], [both[0](features)], rtol=1e-2, atol=1e-3)
    whitening = Whitening.fit(place.move(draw(2, 30, 6)), 3)
    assert_same(place, [whitening.weight], [Whitening.fit(draw(2, 30, 6), 3).weight], **NEAR)


@pytest.mark.parametrize("backbone", ["tiny", "test_vit"])
def test_an_encoder_forwards_and_backwards(backbone, place):
    encoder = Encoder.create(backbone, 8, "gem", image_size=64).eval()
    images = draw(0, 3, 3 * 64 * 64).view(3, 3, 64, 64)
    ours = place.move(copy.deepcopy(encoder))
    place.waits.clear()
    found = ours(place.move(images))
    found.square().sum().backward()
    assert sum(place.waits.values()) <= 1, place.waits  # the copy of the images
    encoder(images).square().sum().backward()
    assert_same(place, [found], [encoder(images)], rtol=1e-4, atol=1e-5)


def test_auto_is_half_precision_for_many_images_where_the_device_has_it(place, capsys):
    encoder = Encoder.create("tiny", 8, image_size=32).eval()
    pixels = torch.randint(0, 256, (5, 32, 32, 3), generator=torch.Generator().manual_seed(0)).byte()
    ours, expected = place.move(copy.deepcopy(encoder)), open_backend(encoder, "torch").run(pixels)
    half = "float16" if place.device.type == "cuda" else "torch in float32"  # what is pretended has no autocast
    for n_images, precision in ((3, ""), (1000, half)):
        found = open_backend(ours, "auto", n_images).run(pixels)
        assert ((found * expected).sum(1) > 0.999).all()
        assert precision in capsys.readouterr().err


def test_encoder_checkpoint_and_index(device, tmp_path):
    encoder = Encoder.create("tiny", 8, image_size=32).to(device)
    images = [np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8) for seed in range(6)]
    vectors = encoder.encode(images, batch_size=4)
    assert_close(vectors, copy.deepcopy(encoder).cpu().encode(images, batch_size=4), rtol=1e-4, atol=1e-4)
    optimizer = torch.optim.AdamW(encoder.parameters())
    encoder(torch.rand(2, 3, 32, 32, device=device)).sum().backward()
    optimizer.step()
    state = {"encoder": encoder.state_dict(), "optimizer": optimizer.state_dict()}
    save_checkpoint(tmp_path / "last.pt", Position(step=3), state)
    position, stored = load_checkpoint(tmp_path / "last.pt")
    other = Encoder.create("tiny", 8, image_size=32).to(device)
    other.load_state_dict(stored["encoder"])
    assert position.step == 3
    assert_close(dict(other.state_dict()), dict(encoder.state_dict()), rtol=0, atol=0)
    encoder.save_pretrained(tmp_path / "encoder")
    with sl.Gallery.create(tmp_path / "gallery", encoder) as gallery:
        gallery.add([str(number) for number in range(6)], encoder.encode(images))
        assert [ids[0] for ids in gallery.search(encoder.encode(images), k=1)[1]] == [str(number) for number in range(6)]
