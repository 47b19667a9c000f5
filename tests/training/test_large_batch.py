"""Staged back-propagation against one pass, and two processes against one."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from torch import nn
from torch.testing import assert_close

from sightline.data.dataset import derived_seed
from sightline.errors import InputError
from sightline.losses import create_loss, list_losses, loss_options
from sightline.losses.combined import has_proxies_alone
from sightline.training.large_batch import back_propagate, chunk_bounds, fitting_chunk_size
from sightline.training.memory import BatchLoss, CrossBatchMemory, MemoryLoss

KNOWN = {"n_classes": 4, "embedding_dim": 5, "n_levels": 2, "class_counts": [4, 2]}
N_ITEMS = 16


def new_encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(96, 5)).double()


def draw():
    generator = torch.Generator().manual_seed(1)
    fine = torch.arange(N_ITEMS) % 4
    images = torch.randn(N_ITEMS, 3, 6, 6, generator=generator, dtype=torch.float64)
    return images, torch.stack([fine, fine // 2], 1), torch.arange(N_ITEMS)


def new_loss(name, memory=False):
    torch.manual_seed(0)
    name, *mining = name.split(":")
    options = {key: value for key, value in KNOWN.items() if key in loss_options(name)}
    module = create_loss(name, **options | ({"mining": mining[0]} if mining else {})).double()
    return MemoryLoss(module, CrossBatchMemory(40, 5, 2).double(), start=1) if memory else BatchLoss(module)


def gradients(*modules):
    return [weight.grad.clone() for module in modules for weight in module.parameters()]


def one_pass(encoder, loss, images, labels, ids, seed, chunk_size):
    """The same chunks, all their graphs held at once."""
    parts = []
    for number, (start, stop) in enumerate(chunk_bounds(len(images), chunk_size)):
        torch.manual_seed(derived_seed(seed, number))
        parts.append(encoder(images[start:stop]))
    value = loss(torch.cat(parts), labels, ids)
    value.backward()
    return value.detach()


ALL = [name for name in list_losses() if name != "weighted_sum"]
REMEMBERING = [name for name in ALL if not has_proxies_alone(new_loss(name).loss)]


@pytest.mark.parametrize("chunk_size", [4, 5])
@pytest.mark.parametrize("name", ALL)
def test_staged_equals_one_pass_for_every_loss(name, chunk_size):
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder, other = new_encoder(), new_encoder()
    loss, other_loss = new_loss(name), new_loss(name)
    module = fabric.setup_module(encoder)
    for step in range(2):  # a loss may remember
        expected = one_pass(other, other_loss, *draw(), step, chunk_size)
        found = back_propagate(fabric, module, loss, *draw(), step, chunk_size)
        assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_close(gradients(encoder, loss), gradients(other, other_loss), rtol=1e-6, atol=1e-12)


def test_every_loss_was_staged():
    assert len(ALL) >= 28
    assert len(REMEMBERING) >= 20


@pytest.mark.parametrize("chunk_size", range(1, N_ITEMS + 1))
def test_chunks_of_any_size_equal_the_whole_batch(chunk_size):
    """Without anything drawn, chunks do not show: the gradient is that of plain back-propagation."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)).double()
    encoder[1].eval()
    loss = new_loss("roadmap")
    images, labels, ids = draw()
    expected = loss(encoder(images), labels, ids)
    expected.backward()
    whole = gradients(encoder)
    encoder.zero_grad()
    fabric = Fabric(accelerator="cpu", devices=1)
    found = back_propagate(fabric, fabric.setup_module(encoder), loss, images, labels, ids, 0, chunk_size)
    assert_close(found, expected.detach(), rtol=1e-10, atol=0)
    assert_close(gradients(encoder), whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["roadmap", "norm_softmax"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_staged_equals_one_pass_in_half_precision_with_its_loss_scale(precision, name):
    """The scale is in the gradient of the weights and of the proxies once; the encoder sees half precision twice."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if precision == "16-mixed" else None
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision(precision, "cpu", scaler)])
    images, labels, ids = draw()
    results = []
    for staged in (True, False):
        encoder, loss = new_encoder().float(), new_loss(name).float()
        module = fabric.setup_module(encoder)
        if staged:
            value = back_propagate(fabric, module, loss, images.float(), labels, ids, 0, 4)
        else:
            parts = []
            for number in range(4):
                torch.manual_seed(derived_seed(0, number))
                parts.append(module(images[4 * number : 4 * number + 4].float()))
            value = loss(torch.cat(parts), labels, ids)
            fabric.backward(value)
        results.append((value.detach(), gradients(encoder, loss)))
    assert_close(*results, rtol=1e-5, atol=1e-7)


def test_what_a_loss_draws_does_not_depend_on_chunks():
    values = []
    for chunk_size in (None, 4, 16):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(108, 5)).double()
        fabric = Fabric(accelerator="cpu", devices=1)
        loss = new_loss("triplet:distance-weighted")
        values.append(back_propagate(fabric, fabric.setup_module(encoder), loss, *draw(), 0, chunk_size))
    assert_close(values[1:], values[:1] * 2)


@pytest.mark.parametrize("name", ["roadmap", "blackbox_recall", "calibration", "happier", "smooth_ap"])
def test_staged_with_memory_equals_one_pass_with_memory(name):
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder, other = new_encoder(), new_encoder()
    loss, other_loss = new_loss(name, memory=True), new_loss(name, memory=True)
    module = fabric.setup_module(encoder)
    images, labels, ids = draw()
    for step in range(3):
        expected = one_pass(other, other_loss, images, labels, ids + 8 * step, step, 4)
        assert_close(back_propagate(fabric, module, loss, images, labels, ids + 8 * step, step, 4), expected)
    assert_close(gradients(encoder), gradients(other), rtol=1e-6, atol=1e-12)
    assert_close(loss.state_dict(), other_loss.state_dict())


def test_a_batch_norm_that_learns_from_the_batch_is_refused_by_name():
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).double()
    module = fabric.setup_module(encoder)
    with pytest.raises(InputError, match=r"batch norm '.*1' takes its statistics from the batch.*freeze_batch_norm"):
        back_propagate(fabric, module, new_loss("sup_ap"), *draw(), 0, 4)
    encoder[1].eval()
    back_propagate(fabric, module, new_loss("sup_ap"), *draw(), 0, 4)


def test_the_chunk_that_fits_is_the_batch_or_a_power_of_two(monkeypatch):
    import sightline.training.large_batch as module

    encoder = new_encoder()
    monkeypatch.setattr(module, "_free_bytes", lambda device: 1 << 40)
    assert fitting_chunk_size(encoder, draw()[0][0], 100) == 100
    monkeypatch.setattr(module, "_free_bytes", lambda device: 1 << 17)
    small = fitting_chunk_size(encoder, draw()[0][0], 100)
    assert 1 <= small < 100
    assert small & (small - 1) == 0


IN_PROCESSES = [*ALL, "triplet:distance-weighted", *(f"{name} with memory" for name in REMEMBERING)]


def test_two_processes_equal_one_for_every_loss_with_memory_and_stages(tmp_path):
    """Each process has half of the batch; weights, proxies and memory come out as those of one process with all of it."""
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            sys.path.insert(0, sys.argv[1])
            import torch
            from lightning_fabric import Fabric
            import test_large_batch as t
            from sightline.training.large_batch import back_propagate
            torch.set_num_threads(1)
            fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
            fabric.launch()
            found = {}
            for name in t.IN_PROCESSES:
                encoder = t.new_encoder()
                loss = t.new_loss(name.split()[0], memory=" " in name)
                module = fabric.setup_module(encoder)
                half = slice(8 * fabric.global_rank, 8 * fabric.global_rank + 8)
                for step in range(2):
                    images, labels, ids = t.draw()
                    value = back_propagate(fabric, module, loss, images[half], labels[half], ids[half] + 8 * step, step, 4)
                found[name] = [value, t.gradients(encoder, loss), loss.state_dict()]
            torch.save(found, sys.argv[2] + str(fabric.global_rank))
            """
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), os.path.dirname(__file__), str(tmp_path / "found")],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    results = [torch.load(tmp_path / f"found{rank}", weights_only=True) for rank in range(2)]
    fabric = Fabric(accelerator="cpu", devices=1)
    for name in IN_PROCESSES:
        encoder, loss = new_encoder(), new_loss(name.split()[0], memory=" " in name)
        module = fabric.setup_module(encoder)
        for step in range(2):
            images, labels, ids = draw()
            value = back_propagate(fabric, module, loss, images, labels, ids + 8 * step, step, 4)
        expected = [value, gradients(encoder, loss), loss.state_dict()]
        for found in results:
            assert_close(found[name], expected, rtol=1e-6, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
