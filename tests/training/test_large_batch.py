"""Staged back-propagation against one pass, for every loss; and what becomes of freed memory."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from staged_batches import ALL, N_ITEMS, ON_CODES, REMEMBERING, SIDE, draw, gradients, new_encoder, new_loss
from torch import nn
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.dataset import derived_seed
from sightline.training import large_batch
from sightline.training.large_batch import back_propagate, chunk_bounds, fitting_chunk_size


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def one_pass(fabric, encoder, loss, batch, seed, chunk_size):
    """The same chunks, all their graphs held at once."""
    parts = []
    for number, (start, stop) in enumerate(chunk_bounds(len(batch.images), chunk_size)):
        torch.manual_seed(derived_seed(seed, number))
        parts.append(encoder(batch.images[start:stop]))
    value = loss(torch.cat(parts), batch.labels, batch.ids)
    fabric.backward(value)
    return value.detach()


@pytest.mark.parametrize("name", [*ALL, *REMEMBERING, *ON_CODES])
def test_staged_equals_one_pass_for_every_loss(name, fabric):
    assert (len(ALL), len(REMEMBERING)) >= (29, 20)
    assert not torch.equal(draw(0).images, draw(1).images)
    encoder, other = fabric.setup_module(new_encoder()), fabric.setup_module(new_encoder())
    loss, other_loss = new_loss(name), new_loss(name)
    for step in range(3 if loss.memory else 2):  # a loss may remember
        batch = draw(step, by_codes="codes" in name)
        batch = batch._replace(ids=batch.ids + 8 * step)
        expected = one_pass(fabric, other, other_loss, batch, step, 5)
        assert_close(back_propagate(fabric, encoder, loss, batch, step, 5), expected, rtol=1e-9, atol=1e-12)
    assert_close(gradients(encoder, loss), gradients(other, other_loss), rtol=1e-6, atol=1e-12)
    assert_close(loss.state_dict(), other_loss.state_dict())
    assert all(gradient.any() for gradient in gradients(encoder))


@pytest.mark.parametrize("chunk_size", [1, 3, 8, N_ITEMS - 1, N_ITEMS])
def test_chunks_of_any_size_equal_the_whole_batch(chunk_size, fabric):
    """Without anything drawn, chunks do not show: the gradient is that of plain back-propagation."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5)
    encoder, loss, batch = nn.Sequential(*layers).double(), new_loss("roadmap"), draw()
    encoder[1].eval()
    expected = loss(encoder(batch.images), batch.labels, batch.ids)
    expected.backward()
    whole = gradients(encoder)
    encoder.zero_grad()
    found = back_propagate(fabric, fabric.setup_module(encoder), loss, batch, 0, chunk_size)
    assert_close(found, expected.detach(), rtol=1e-10, atol=0)
    assert_close(gradients(encoder), whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_staged_equals_one_pass_in_half_precision_with_its_loss_scale(precision):
    """The scale is in the gradient of the weights and of the proxies once; the encoder sees half precision twice."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if precision == "16-mixed" else None
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision(precision, "cpu", scaler)])
    batch = draw()._replace(images=draw().images.float())
    for name in ("roadmap", "norm_softmax"):
        results = []
        for compute in (back_propagate, one_pass):
            encoder, loss = new_encoder().float(), new_loss(name).float()
            value = compute(fabric, fabric.setup_module(encoder), loss, batch, 0, 4)
            results.append((value, gradients(encoder, loss)))
        assert_close(*results, rtol=1e-5, atol=1e-7)


def test_what_a_loss_draws_does_not_depend_on_chunks_and_a_batch_norm_that_learns_is_refused_by_name(fabric):
    values = []
    for chunk_size in (None, 4, 16):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5)).double()
        loss = new_loss("triplet:distance-weighted")
        values.append(back_propagate(fabric, fabric.setup_module(encoder), loss, draw(), 0, chunk_size))
    assert_close(values[1:], values[:1] * 2)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)).double()
    facts, module = r"chunk_size.*'.*1'.*freeze_batch_norm", fabric.setup_module(encoder)
    assert_refused(facts, back_propagate, fabric, module, new_loss("sup_ap"), draw(), 0, 4)


def test_the_chunk_that_fits_is_the_batch_or_a_power_of_two(monkeypatch):
    encoder, image = new_encoder(), draw().images[0]
    monkeypatch.setattr(large_batch, "_free_bytes", lambda device: 1 << 40)
    assert fitting_chunk_size(encoder, image, 100) == 100
    monkeypatch.setattr(large_batch, "_free_bytes", lambda device: 1 << 17)
    small = fitting_chunk_size(encoder, image, 100)
    assert 1 <= small < 100
    assert small & (small - 1) == 0
    monkeypatch.setattr(large_batch, "gathered_objects", lambda here: [here, 2])
    assert fitting_chunk_size(encoder, image, 100) == 2


MEMORY = """
import re, resource
from pathlib import Path
import numpy as np
from sightline.training.large_batch import keep_freed_memory, release_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(1 << 26, 1, np.uint8)  # written and freed; above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def kilobytes():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

left_alone = min(faults() for _ in range(3))
before = kilobytes()
assert keep_freed_memory()
mapped_again = max([faults() for _ in range(4)][1:])
blocks = [np.full(1 << 24, 1, np.uint8) for _ in range(8)]
last = np.full(1 << 10, 1, np.uint8)  # stays, above them
del blocks
kept = kilobytes() - before
release_freed_memory()
print(left_alone, mapped_again, kept, kilobytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt and malloc_trim are glibc's")
def test_freed_memory_is_kept_and_handed_back_when_asked_for_and_another_c_library_left_alone(monkeypatch):
    # Large pages of the system would hide what is counted: numpy asks for them.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, env=environment)
    left_alone, mapped_again, kept, released = map(int, done.stdout.split())
    assert left_alone > 10_000  # 64 MB have 16,384 pages
    assert mapped_again < 100
    assert kept > 100_000  # kB
    assert released < 20_000
    monkeypatch.setattr("sightline.files.ctypes.CDLL", lambda name: object())
    assert large_batch.keep_freed_memory() is False
    large_batch.release_freed_memory()
